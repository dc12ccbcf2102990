//! States on disk: written whole or not at all, and never over another.
//!
//! A checkpoint is a folder with `tensors.safetensors`, which any tool reads, and `manifest.json`: revision, extra
//! bytes, and a digest of everything. It is written under another name, forced to the disk, and then renamed; so
//! a folder of the final name was whole once. Disks and people damage things later, so what is loaded is verified
//! against its digest *before* a byte of the state is changed, and of several checkpoints the newest that is whole wins.
//! One that is damaged is passed over, with a warning. One that the operating system refuses to read for now (no rights, no
//! more files, a disk that is away) may be as good as ever: then nothing is loaded, because to go on from an older one loses
//! what was learned since.
//!
//! What it does not do: it removes nothing. What a process left half-written when it was killed stays beside the others,
//! under a name that begins with a dot, and is never looked at.

use super::safetensors::{self, Places};
use super::{Revision, SharedState};
use crate::security;
use outlast_kernels::hash128;
use outlast_proto::limits::STATE_EXTRA_BYTES_MAX;
use outlast_proto::state::tree::{self, Leaves};
use outlast_proto::state::{Digest, LEAF_BYTES};
use rustix::fs::RenameFlags;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

const TENSORS: &str = "tensors.safetensors";
const MANIFEST: &str = "manifest.json";
const FORMAT: &str = "outlast-state/1";
/// The extra bytes as text, and some room for the rest.
const MANIFEST_BYTES_MAX: u64 = 2 * STATE_EXTRA_BYTES_MAX as u64 + 4_096;

/// Why a state was not saved or loaded. A state that was to be loaded is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused something.
    #[error("{path}: {cause}")]
    Disk {
        /// Which file or folder.
        path: PathBuf,
        /// What it said.
        cause: io::Error,
    },
    /// There is something of that name.
    #[error("{0} is there already: checkpoints are never overwritten; choose another name or remove it")]
    Exists(PathBuf),
    /// The state is torn, or has no revision: nobody could tell what it is.
    #[error("this state has no revision{}: sync it, or set the revision, before it is saved", if *.0 { " because a heal was aborted" } else { "" })]
    NoRevision(bool),
    /// No checkpoint is there.
    #[error("there is no checkpoint at {0}")]
    Nothing(PathBuf),
    /// What is there is not whole, or is of another state. Each with its reason.
    #[error("no checkpoint at {path} can be loaded: {}", reasons.join("; "))]
    Unusable {
        /// Where.
        path: PathBuf,
        /// Why, for each that was looked at.
        reasons: Vec<String>,
    },
}

/// What a checkpoint says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Manifest {
    revision: Revision,
    extra: Vec<u8>,
    /// Of everything, also of what may differ.
    digest: Digest,
}

impl SharedState {
    /// Writes the state to a new folder at `path`, whole or not at all. The folder above it is made if it is missing.
    pub fn save(&self, path: &Path) -> Result<(), CheckpointError> {
        let Some(revision) = self.revision else { return Err(CheckpointError::NoRevision(self.torn)) };
        let disk = |at: &Path| {
            let path = at.to_owned();
            move |cause| CheckpointError::Disk { path, cause }
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().ok_or_else(|| disk(path)(io::ErrorKind::InvalidFilename.into()))?;
        if path.exists() {
            return Err(CheckpointError::Exists(path.to_owned()));
        }
        make_folders(parent, &mut sync_folder).map_err(disk(parent))?;
        let mark = u64::from_le_bytes(security::random_bytes());
        let partial = Partial(parent.join(format!(".{}.partial-{mark:016x}", name.to_string_lossy())));
        fs::create_dir(&partial.0).map_err(disk(&partial.0))?;
        let digest = self.write_tensors(&partial.0.join(TENSORS)).map_err(disk(&partial.0))?;
        let manifest = Manifest { revision, extra: self.extra.clone(), digest };
        write_whole(&partial.0.join(MANIFEST), manifest.to_text().as_bytes()).map_err(disk(&partial.0))?;
        sync_folder(&partial.0).map_err(disk(&partial.0))?;
        match rename_to_new(&partial.0, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(CheckpointError::Exists(path.to_owned()));
            }
            renamed => renamed.map_err(disk(path))?,
        }
        sync_folder(parent).map_err(disk(parent))
    }

    /// Writes the tensors, and hashes what is written, not what is there later.
    fn write_tensors(&self, path: &Path) -> io::Result<Digest> {
        let strict = self.outline.strict();
        let leaves = Leaves::of(&strict);
        let (header, places) = safetensors::header(&strict);
        let mut hashes = Vec::with_capacity(leaves.len());
        let mut file = File::create_new(path)?;
        file.write_all(&header)?;
        file.set_len(places.end)?;
        let mut copy = Vec::with_capacity(LEAF_BYTES);
        for leaf in (0..leaves.len()).filter_map(|number| leaves.get(number)) {
            copy.clear();
            copy.extend_from_slice(&self.memory[leaf.tensor].bytes()[leaf.bytes.clone()]);
            hashes.push(Digest::from(hash128(&copy)));
            file.write_all_at(&copy, places.starts[leaf.tensor] + leaf.bytes.start as u64)?;
        }
        file.sync_all()?;
        Ok(tree::root(strict.digest(), &self.extra, &hashes))
    }

    /// Makes this state what was saved at `path`: a checkpoint, or a folder of checkpoints named by their revisions, of
    /// which the newest that is whole is taken. Says which one it was. If none can be loaded, or a newer one cannot be read
    /// though nothing says that it is damaged, nothing is changed.
    pub fn load(&mut self, path: &Path) -> Result<PathBuf, CheckpointError> {
        let is_one = fs::exists(path.join(MANIFEST));
        let is_one = is_one.map_err(|cause| CheckpointError::Disk { path: path.to_owned(), cause })?;
        let candidates = if is_one { vec![path.to_owned()] } else { newest(path)? };
        if candidates.is_empty() {
            return Err(CheckpointError::Nothing(path.to_owned()));
        }
        let mut reasons = Vec::new();
        for candidate in candidates {
            let reason = match self.load_one(&candidate) {
                Ok(Ok(())) => return Ok(candidate),
                Ok(Err(reason)) => reason,
                Err(error) if is_damage(&error) => error.to_string(),
                Err(cause) => return Err(CheckpointError::Disk { path: candidate, cause }),
            };
            tracing::warn!(path = %candidate.display(), reason, "a checkpoint cannot be loaded and is passed over");
            reasons.push(format!("{}: {reason}", candidate.display()));
        }
        Err(CheckpointError::Unusable { path: path.to_owned(), reasons })
    }

    /// The inner error: it is not whole, or of another state.
    fn load_one(&mut self, path: &Path) -> io::Result<Result<(), String>> {
        let manifest = match Manifest::read(&path.join(MANIFEST))? {
            Ok(manifest) => manifest,
            Err(reason) => return Ok(Err(reason)),
        };
        let file = File::open(path.join(TENSORS))?;
        let strict = self.outline.strict();
        let places = match safetensors::find(&file, &strict)? {
            Ok(places) => places,
            Err(found) => return Ok(Err(format!("{TENSORS} holds {found}"))),
        };
        let leaves = Leaves::of(&strict);
        let mut hashes = Vec::with_capacity(leaves.len());
        each_leaf(&file, &places, &leaves, |_, bytes| hashes.push(Digest::from(hash128(bytes))))?;
        if tree::root(strict.digest(), &manifest.extra, &hashes) != manifest.digest {
            return Ok(Err("its contents are not what was saved".to_owned()));
        }
        if let Some(why) = self.broken_tie(&leaves, &hashes) {
            return Ok(Err(why));
        }
        // From here on something changes. Should the disk fail now, the state is torn.
        (self.torn, self.revision) = (true, None);
        each_leaf(&file, &places, &leaves, |leaf, bytes| {
            self.memory[leaf.tensor].bytes_mut()[leaf.bytes].copy_from_slice(bytes);
        })?;
        self.extra = manifest.extra;
        self.set_agreed(manifest.revision);
        Ok(Ok(()))
    }
}

/// Whether it is what is there that is wrong: something is missing, cut off, or of another kind. Anything else may be over
/// when it is tried again.
fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, IsADirectory, NotADirectory, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory | UnexpectedEof | InvalidData)
}

fn each_leaf(
    file: &File,
    places: &Places,
    leaves: &Leaves,
    mut take: impl FnMut(tree::Leaf, &[u8]),
) -> io::Result<()> {
    let mut buffer = vec![0; LEAF_BYTES];
    for leaf in (0..leaves.len()).filter_map(|number| leaves.get(number)) {
        let bytes = &mut buffer[..leaf.bytes.len()];
        file.read_exact_at(bytes, places.starts[leaf.tensor] + leaf.bytes.start as u64)?;
        take(leaf, bytes);
    }
    Ok(())
}

/// The checkpoints in a folder, the newest first: those that are named by a revision. Whether they are whole is found
/// out when they are loaded.
pub fn newest(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(CheckpointError::Disk { path: folder.to_owned(), cause }),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|cause| CheckpointError::Disk { path: folder.to_owned(), cause })?;
        if let Some(revision) = entry.file_name().to_str().and_then(|name| name.parse::<Revision>().ok()) {
            found.push((revision, entry.path()));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

impl Manifest {
    /// Binds the revision to the rest: one flipped digit is noticed.
    fn check(&self) -> Digest {
        Digest::of(format!("{FORMAT} {} {}", self.revision, self.digest).as_bytes())
    }

    fn to_text(&self) -> String {
        let mut extra = String::with_capacity(2 * self.extra.len());
        for byte in &self.extra {
            let _ = write!(extra, "{byte:02x}");
        }
        let (digest, check) = (self.digest.to_string(), self.check().to_string());
        let fields = json!({
            "format": FORMAT, "revision": self.revision, "tensors": TENSORS,
            "digest": digest, "check": check, "extra": extra,
        });
        format!("{fields:#}\n")
    }

    fn read(path: &Path) -> io::Result<Result<Self, String>> {
        let mut text = String::new();
        let read = File::open(path)?.take(MANIFEST_BYTES_MAX).read_to_string(&mut text);
        Ok(match read {
            Ok(_) => Self::parse(&text).ok_or_else(|| format!("{MANIFEST} is damaged or of another version")),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(format!("{MANIFEST} is no text")),
            Err(error) => return Err(error),
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let fields: Value = serde_json::from_str(text).ok()?;
        let hex = |text: &str| u128::from_str_radix(text, 16).ok().map(Digest::from);
        let extra = fields["extra"].as_str()?.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let manifest = Self {
            revision: fields["revision"].as_u64()?,
            extra: extra.chunks(2).map(byte).collect::<Option<_>>()?,
            digest: hex(fields["digest"].as_str()?)?,
        };
        let whole = fields["format"] == FORMAT && hex(fields["check"].as_str()?)? == manifest.check();
        whole.then_some(manifest)
    }
}

/// A folder that is removed unless it was renamed.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Renames unless there is something of that name.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    let here = rustix::fs::CWD;
    match rustix::fs::renameat_with(here, from, here, to, RenameFlags::NOREPLACE) {
        // A file system that cannot promise it (NFS): a folder that holds something is not replaced by any of them.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// Makes a folder, and those above it that are missing. A folder that was made outlives a loss of power only if the one
/// that lists it is forced to the disk, too: `sync` does that.
fn make_folders(path: &Path, sync: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<_> = path.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(path)?;
    let above = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    missing.into_iter().rev().try_for_each(|made| sync(&above(made)))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests;
