//! The Rust of the guide compiles: each snippet stands here as well, letter by letter.

#[path = "../../lab/tests/pages/mod.rs"]
mod pages;

#[rustfmt::skip]
#[expect(dead_code, reason = "it is compiled, not run: the address is somebody else's")]
fn membership() -> Result<(), Box<dyn std::error::Error>> {
// snippet
use outlast::Membership;
use outlast::membership::{Event, Happening, Preset};
use std::time::Duration;

let member = Membership::builder()
    .join(["10.0.0.1:4000"])
    .preset(Preset::Lan)
    .stall_budget(Duration::from_mins(1))
    .meta(b"gpu=8")
    .start()?;
for event in member.events(Duration::from_secs(1))? {
    if let Happening::Event(Event::Died { info, reason, .. }) = event.what {
        println!("{} died: {reason}", info.name);
    }
}
member.leave(Duration::from_secs(2))?;
// end
Ok(())
}

#[test]
fn every_rust_snippet_of_the_guide_is_compiled_here_or_with_the_lab() {
    pages::assert_compiled(include_str!("guide_snippets.rs"), "membership.md");
    assert_eq!(pages::with_rust(), ["lab.md", "membership.md"], "a snippet that no test compiles");
}
