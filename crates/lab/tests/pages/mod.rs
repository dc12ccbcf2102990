//! Rust in the pages of the guide, and in sources that hold the same between `// snippet` and `// end`.
#![allow(dead_code, reason = "each test binary uses its part of this page")]
#![allow(clippy::allow_attributes, reason = "an expectation would have to name each unused function")]

use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide")
}

/// What stands between two lines, each time.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> Vec<&'t str> {
    let parts = text.split(begin).skip(1);
    parts.map(|part| part.split(end).next().unwrap_or_default()).collect()
}

fn snippets(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(folder().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    between(&text, "\n```rust\n", "```\n").into_iter().map(str::to_owned).collect()
}

/// The pages that have any.
pub(crate) fn with_rust() -> Vec<String> {
    let names = std::fs::read_dir(folder()).expect("the guide").flatten();
    let pages = names.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "md"));
    let pages = pages.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = pages.filter(|name| !snippets(name).is_empty()).collect();
    names.sort_unstable();
    names
}

/// The source compiles, so the page's snippets do if they are the same.
pub(crate) fn assert_compiled(source: &str, page: &str) {
    assert_eq!(between(source, "\n// snippet\n", "// end\n"), snippets(page), "{page} and what is compiled");
}
