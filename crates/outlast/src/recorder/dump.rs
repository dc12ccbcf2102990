//! What the recorders of this process hold, as JSON lines.
//!
//! Each recorder is one line that says whose it is, and then one line per record, the oldest first. Times are those of the
//! wall clock, reckoned back from the moment of the dump: a clock that was set meanwhile moves all of them alike.

use super::entry::Entry;
use super::{Recorder, recorders};
use crate::clock;
use crate::sync::lock;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::fs::{DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Dumps of one user that are kept where nobody said where to put them.
const FILES_MAX: usize = 64;

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the flight record to {}: {cause}", path.display())]
pub struct DumpError {
    path: PathBuf,
    cause: io::Error,
}

/// Where a process with that user and that directory for temporary files leaves its dumps: a directory of the user's own.
pub fn folder_for(temporary: &Path, user: u32) -> PathBuf {
    temporary.join(format!("outlast-{user}"))
}

/// Writes what all communicators and coordinators of this process have recorded, to `path` or to a new file in
/// [`folder_for`] this process; says where. `reason` is for whoever reads it.
pub fn dump(path: Option<&Path>, reason: &str) -> Result<PathBuf, DumpError> {
    let text = text(reason);
    match path {
        Some(path) => {
            let written = File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|cause| DumpError { path: path.to_owned(), cause })?;
            Ok(path.to_owned())
        }
        None => write_new(&text),
    }
}

/// A file of its own that appears when it is complete.
fn write_new(text: &str) -> Result<PathBuf, DumpError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let user = rustix::process::getuid().as_raw();
    let folder = folder_for(&std::env::temp_dir(), user);
    let failed = |cause: io::Error| DumpError { path: folder.clone(), cause };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // Somebody else may have made it first, in a directory where all may write: then it is not ours to use.
    let found = std::fs::symlink_metadata(&folder).map_err(failed)?;
    if !found.is_dir() || found.uid() != user {
        return Err(failed(io::Error::other("it is not a directory of this user's: remove it")));
    }
    let stamp = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = folder.join(format!("flight-{process}-{stamp}-{count}.jsonl"));
    let unfinished = path.with_extension("part");
    let write = || -> io::Result<()> {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&unfinished, &path)
    };
    write().map_err(|cause| DumpError { path: path.clone(), cause })?;
    forget_the_oldest(&folder);
    Ok(path)
}

/// Nobody cleans up behind a program that fails every night.
fn forget_the_oldest(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let is_ours = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("flight-"))
    };
    let files = entries.flatten().filter(|entry| is_ours(&entry.path()));
    let mut files: Vec<_> =
        files.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    files.sort_unstable();
    for (_, path) in files.iter().take(files.len().saturating_sub(FILES_MAX)) {
        let _ = std::fs::remove_file(path);
    }
}

fn text(reason: &str) -> String {
    let mut text = String::new();
    for recorder in recorders() {
        recorder.describe(reason, &mut text);
    }
    if text.is_empty() {
        // A file that says so is better than an empty one.
        let _ = writeln!(text, "{}", header(reason));
    }
    text
}

fn header(reason: &str) -> Value {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    json!({
        "flight": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "reason": reason,
        "host": host,
        "pid": std::process::id(),
    })
}

impl Recorder {
    /// The lines of this recorder, for whoever asked: as many of the latest as fit into that many bytes.
    pub(crate) fn flight(&self, reason: &str, bytes_max: usize) -> String {
        let mut text = String::new();
        self.describe(reason, &mut text);
        if text.len() > bytes_max {
            let header = text.find('\n').map_or(0, |at| at + 1);
            let surplus = text.len() - bytes_max;
            let line = text[header..].match_indices('\n').map(|(at, _)| at + 1).find(|at| *at >= surplus);
            text.drain(header..header + line.unwrap_or(text.len() - header));
        }
        text
    }

    /// Appends the lines of this recorder.
    pub(super) fn describe(&self, reason: &str, text: &mut String) {
        let (now, wall) = (clock::now().as_nanos(), SystemTime::now());
        let wall = wall.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
        let records = self.records();
        let noted = self.noted.load(Ordering::Relaxed);
        let names: Map<_, _> =
            lock(&self.names).iter().map(|(key, name)| (format!("{key:016x}"), json!(name))).collect();
        let owner = &self.owner;
        let mut header = header(reason);
        header["role"] = json!(owner.role);
        header["name"] = json!(owner.name);
        header["run"] = json!(owner.run);
        header["id"] = json!(owner.id.map(|id| id.to_string()));
        header["time_us"] = json!(wall);
        header["events"] = json!(records.len());
        header["overwritten"] = json!(noted.saturating_sub(self.cells.len() as u64));
        header["names"] = Value::Object(names);
        let _ = writeln!(text, "{header}");
        for (number, words) in &records {
            let Some(mut object) = Entry::read(words) else { continue };
            object.insert(
                "time_us".to_owned(),
                json!(wall.saturating_sub(now.saturating_sub(words[0]) / 1_000)),
            );
            object.insert("number".to_owned(), json!(number));
            let _ = writeln!(text, "{}", Value::Object(object));
        }
    }
}
