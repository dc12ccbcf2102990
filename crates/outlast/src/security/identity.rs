//! Who a process is: a key, and the name that follows from it (rule 39).
//!
//! A name that somebody merely claims must be looked up in a table, and then the table must be trusted, even by
//! a coordinator that has just been restarted and has none. So a peer's name follows from what only it has:
//!
//! ```text
//! private key --> public key --SHA-256, first 128 bits--> PeerId
//! ```
//!
//! A TLS handshake proves possession of the private key; whoever verifies one works the name out for itself. A
//! key is made when a process starts, lives in its memory and dies with it, so a [`PeerId`] survives
//! reconnects and belongs to nobody afterwards. A coordinator may keep its key in a file, because its peers
//! want to know it again ([`ProcessKey::kept_in`]).
//!
//! What it does not do: stop anybody who may take part from taking part under many names.

use aws_lc_rs::digest;
use outlast_proto::id::PeerId;
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::PrivatePkcs8KeyDer;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Longest file that is read as a key.
const FILE_BYTES_MAX: u64 = 4_096;

/// The key of one process. Clones are the same key.
#[derive(Clone)]
pub struct ProcessKey {
    /// PKCS #8. It cannot be shown, and is overwritten when the last clone goes.
    document: Arc<Zeroizing<Vec<u8>>>,
    peer: PeerId,
    origin: Origin,
}

/// Where a key comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Nowhere: it goes with its process.
    Passing,
    /// Its file was made for it.
    Written,
    /// Its file was there.
    Read,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read or made.
    #[error("cannot keep a key in {}: {cause}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The file holds something else.
    #[error(
        "{} holds no Ed25519 key in PEM ({cause}); name another file, or remove it and a new key is made",
        path.display()
    )]
    NotAKey {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
}

impl ProcessKey {
    /// A new key.
    ///
    /// # Panics
    /// If the operating system has no randomness to give.
    pub fn generate() -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("the random source answers");
        Self::from_pair(&key, Origin::Passing)
    }

    /// The key that is kept in `path`. If there is no such file a new key is written there, for this user alone.
    /// Of several processes that make the file at the same time one wins, and all have its key.
    pub fn kept_in(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        let path = path.as_ref();
        let failed = |cause| KeyError::File { path: path.to_owned(), cause };
        match File::open(path) {
            Ok(file) => return Self::read(path, file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("the random source answers");
        match write_once(path, &Zeroizing::new(key.serialize_pem())) {
            Ok(()) => Ok(Self::from_pair(&key, Origin::Written)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Self::read(path, File::open(path).map_err(failed)?)
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn read(path: &Path, file: File) -> Result<Self, KeyError> {
        super::secret::warn_if_open_to_others(path, &file, "coordinator's key");
        let mut text = Zeroizing::new(String::new());
        let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|cause| KeyError::File { path: path.to_owned(), cause })?;
        Self::from_pem(path, &text)
    }

    /// A new key, and the text as which it can be kept.
    pub(crate) fn generate_kept() -> (Self, Zeroizing<String>) {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("the random source answers");
        (Self::from_pair(&key, Origin::Written), Zeroizing::new(key.serialize_pem()))
    }

    /// A key that was kept somewhere in `path`.
    pub(crate) fn from_pem(path: &Path, text: &str) -> Result<Self, KeyError> {
        let key = KeyPair::from_pkcs8_pem_and_sign_algo(text, &rcgen::PKCS_ED25519)
            .map_err(|cause| KeyError::NotAKey { path: path.to_owned(), cause: cause.to_string() })?;
        Ok(Self::from_pair(&key, Origin::Read))
    }

    fn from_pair(key: &KeyPair, origin: Origin) -> Self {
        let peer = peer_of_public_key(&key.subject_public_key_info());
        Self { document: Arc::new(Zeroizing::new(key.serialize_der())), peer, origin }
    }

    /// The name of whoever has this key.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Whether a later start of the process will have it again.
    pub fn is_kept(&self) -> bool {
        self.origin != Origin::Passing
    }

    /// Whether its file was made just now: no earlier process can have been known by it.
    pub fn is_first(&self) -> bool {
        self.origin == Origin::Written
    }

    pub(super) fn document(&self) -> PrivatePkcs8KeyDer<'_> {
        PrivatePkcs8KeyDer::from(self.document.as_slice())
    }
}

impl fmt::Debug for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessKey(of {}, not shown)", self.peer)
    }
}

/// The name that follows from a public key (a `SubjectPublicKeyInfo` in DER).
pub(super) fn peer_of_public_key(key: &[u8]) -> PeerId {
    peer_of_hash(key)
}

/// The name that follows from the name in a certificate of somebody's own authority.
pub(super) fn peer_of_name(name: &[u8]) -> PeerId {
    peer_of_hash(name)
}

fn peer_of_hash(of: &[u8]) -> PeerId {
    let hash = digest::digest(&digest::SHA256, of);
    PeerId::from_bytes(*hash.as_ref().first_chunk().expect("SHA-256 has 32 bytes"))
}

/// Writes a file that did not exist, whole or not at all: whoever finds it finds all of it.
fn write_once(path: &Path, text: &str) -> io::Result<()> {
    let unique = u64::from_ne_bytes(super::random_bytes());
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{unique:016x}"));
    let draft = PathBuf::from(draft);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        // Unlike a rename, a link does not take the place of a file that somebody else has just made.
        std::fs::hard_link(&draft, path)
    })();
    let _ = std::fs::remove_file(&draft);
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_name_follows_from_the_key_and_two_keys_have_two_names() {
        let (one, other) = (ProcessKey::generate(), ProcessKey::generate());
        assert_ne!(one.peer(), other.peer());
        assert_eq!(one.clone().peer(), one.peer());
        assert!(!one.is_kept() && !one.is_first());
        assert!(!format!("{one:?}").contains("48, 46"), "no bytes of the key");
    }

    #[test]
    fn the_derivation_of_names_does_not_change() {
        // The first 128 bits of the SHA-256 of the DER of an Ed25519 public key, worked out with another program.
        let mut key = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        key.extend([7; 32]);
        assert_eq!(peer_of_public_key(&key).to_string(), "5d2d7a2942537f03ce7c388afb54861f");
    }

    #[test]
    fn a_kept_key_is_the_same_after_a_restart_and_only_its_user_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("coordinator.key");
        let first = ProcessKey::kept_in(&path).unwrap();
        assert!(first.is_kept() && first.is_first());
        let second = ProcessKey::kept_in(&path).unwrap();
        assert!(second.is_kept() && !second.is_first());
        assert_eq!(second.peer(), first.peer());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left behind");
    }

    #[test]
    fn processes_that_make_the_file_together_have_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let start = std::sync::Barrier::new(8);
        let names: std::collections::BTreeSet<_> = std::thread::scope(|scope| {
            let make = || {
                start.wait();
                ProcessKey::kept_in(&path).unwrap().peer()
            };
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn a_file_that_is_no_key_is_named_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "milk, bread").unwrap();
        let error = ProcessKey::kept_in(&path).unwrap_err().to_string();
        assert!(error.contains("notes holds no Ed25519 key"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "milk, bread");
        let error = ProcessKey::kept_in(folder.path().join("no/such/folder")).unwrap_err().to_string();
        assert!(error.contains("no/such/folder"), "{error}");
    }
}
