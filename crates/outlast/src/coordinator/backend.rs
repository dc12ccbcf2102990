//! Where a coordinator keeps what should outlive it.
//!
//! `memory` keeps nothing: whoever comes back tells it again, and nobody new is let in for one control grace after a start.
//! `file` is a small database in one file: the coordinator's key, and for each run its last term, its epochs and who was in
//! (`outlast_proto::coordinator::Facts`). `etcd` keeps the same for several coordinators, of which one reigns (rule 19); see
//! `election`. Either is written before anybody hears of what it says, and it changes only when membership does, so it is
//! waited for a few times in a run and not once per collective. The clerk knows neither: it has a [`Book`].
//!
//! The invariant: one coordinator at a time writes. Of a file the kernel's lock on it says so, and goes with the process;
//! of an etcd each write does, because it counts only while the writer's lease lasts.

#[cfg(feature = "etcd")]
use super::election::Seat;
#[cfg(feature = "etcd")]
use crate::etcd::EtcdOptions;
use crate::security::{KeyError, ProcessKey};
use outlast_proto::coordinator::{Facts, FactsStamp};
use outlast_proto::id::RunId;
use outlast_proto::wire::control::Term;
use redb::{Database, ReadableDatabase as _, TableDefinition, TableError};
use std::fmt;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const KEYS: TableDefinition<'_, &str, &str> = TableDefinition::new("keys");
const FACTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("facts");
/// Under which the coordinator's key is.
const OWN: &str = "coordinator";

/// Where to keep what should outlive a coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// Nowhere.
    #[default]
    Memory,
    /// In that file, which is made if it is not there.
    File(PathBuf),
    /// At that etcd, together with others who stand by.
    #[cfg(feature = "etcd")]
    Etcd(Box<EtcdOptions>),
}

impl Backend {
    /// Whether several coordinators stand by for each other there.
    pub fn is_for_several(&self) -> bool {
        match self {
            Self::Memory | Self::File(_) => false,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => true,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            #[cfg(feature = "etcd")]
            Self::Etcd(options) => write!(f, "etcd:{options}"),
        }
    }
}

impl FromStr for Backend {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Self, BackendError> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            #[cfg(feature = "etcd")]
            Some(("etcd", address)) => Ok(Self::Etcd(Box::new(EtcdOptions::parse(address)?))),
            #[cfg(not(feature = "etcd"))]
            Some(("etcd", _)) => Err(BackendError::NoEtcd),
            _ => Err(BackendError::Unknown(text.to_owned())),
        }
    }
}

/// Why a backend cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Nothing that we know.
    #[error(
        "{0:?} is not a backend of a coordinator: use memory, file:PATH, or etcd:HOST:PORT[,HOST:PORT..]"
    )]
    Unknown(String),
    /// This build has no etcd.
    #[error(
        "this build of Outlast cannot speak with etcd: build it with the feature \"etcd\", or use memory or file:PATH"
    )]
    NoEtcd,
    /// Etcd cannot be reached like this.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    EtcdOptions(#[from] crate::etcd::EtcdOptionsError),
    /// Etcd does not do what is asked.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] crate::etcd::EtcdError),
    /// Coordinators of another secret are at that etcd under the same name.
    #[cfg(feature = "etcd")]
    #[error(
        "the coordinators called {cluster:?} at {etcd} have another secret: give this one the same secret (or the old one \
         too, with --accept-secret-file), or another --cluster"
    )]
    OtherSecret {
        /// What they are called.
        cluster: String,
        /// Where.
        etcd: String,
    },
    /// Another coordinator has it.
    #[error(
        "{} is in use by another coordinator: stop that one first, or name another file (one file, one coordinator)",
        .0.display()
    )]
    InUse(PathBuf),
    /// The file cannot be opened, read or written, or holds something else.
    #[error("the coordinator's file {}: {cause}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What went wrong.
        cause: String,
    },
    /// The key in it cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Where the clerk writes facts down.
#[derive(Debug)]
pub(super) enum Book {
    File(FileBook),
    #[cfg(feature = "etcd")]
    Etcd(Seat),
}

/// When what was to be written is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Now,
    /// The clerk hears of it.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "files are written at once"))]
    Later,
}

impl Book {
    /// What was written of a run; `None` if nobody was ever in it.
    pub(super) fn facts(&self, run: &RunId) -> Result<Option<Facts>, BackendError> {
        match self {
            Self::File(file) => file.facts(run),
            #[cfg(feature = "etcd")]
            Self::Etcd(seat) => Ok(seat.facts(run)),
        }
    }

    /// Writes down, or sees to it.
    #[cfg_attr(not(feature = "etcd"), expect(unused_variables, reason = "files are written at once"))]
    pub(super) fn write(
        &mut self,
        run: &RunId,
        stamp: FactsStamp,
        facts: Facts,
    ) -> Result<Written, BackendError> {
        match self {
            Self::File(file) => file.write(run, &facts).map(|()| Written::Now),
            #[cfg(feature = "etcd")]
            Self::Etcd(seat) => {
                seat.write(run, stamp, facts);
                Ok(Written::Later)
            }
        }
    }

    /// The term that every run is served under, if it is given from outside.
    pub(super) fn term(&self) -> Option<Term> {
        match self {
            Self::File(_) => None,
            #[cfg(feature = "etcd")]
            Self::Etcd(seat) => seat.term(),
        }
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct FileBook {
    path: PathBuf,
    database: Database,
}

impl FileBook {
    /// Opens or makes the file, readable by this user only: the coordinator's key is in it.
    pub(super) fn open(path: &Path) -> Result<(Self, ProcessKey), BackendError> {
        let failed =
            |cause: &dyn fmt::Display| BackendError::File { path: path.to_owned(), cause: cause.to_string() };
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = file.map_err(|error| failed(&error))?;
        let database = Database::builder().create_file(file).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => BackendError::InUse(path.to_owned()),
            error => failed(&error),
        })?;
        let book = Self { path: path.to_owned(), database };
        let key = book.key()?;
        Ok((book, key))
    }

    fn failed(&self, cause: impl Into<redb::Error>) -> BackendError {
        BackendError::File { path: self.path.clone(), cause: cause.into().to_string() }
    }

    /// The coordinator's key; a new one is written down before it is used.
    fn key(&self) -> Result<ProcessKey, BackendError> {
        let reading = self.database.begin_read().map_err(|error| self.failed(error))?;
        match reading.open_table(KEYS) {
            Ok(table) => {
                if let Some(text) = table.get(OWN).map_err(|error| self.failed(error))? {
                    return Ok(ProcessKey::from_pem(&self.path, text.value())?);
                }
            }
            Err(TableError::TableDoesNotExist(_)) => {}
            Err(error) => return Err(self.failed(error)),
        }
        let (key, text) = ProcessKey::generate_kept();
        let writing = self.database.begin_write().map_err(|error| self.failed(error))?;
        {
            let mut table = writing.open_table(KEYS).map_err(|error| self.failed(error))?;
            table.insert(OWN, text.as_str()).map_err(|error| self.failed(error))?;
        }
        writing.commit().map_err(|error| self.failed(error))?;
        Ok(key)
    }

    /// What was written of a run; `None` if nobody was ever in it.
    fn facts(&self, run: &RunId) -> Result<Option<Facts>, BackendError> {
        let reading = self.database.begin_read().map_err(|error| self.failed(error))?;
        let table = match reading.open_table(FACTS) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        let Some(bytes) = table.get(run.as_str()).map_err(|error| self.failed(error))? else {
            return Ok(None);
        };
        let facts = Facts::from_bytes(bytes.value());
        facts
            .map(Some)
            .map_err(|error| BackendError::File { path: self.path.clone(), cause: error.to_string() })
    }

    /// Writes down; once it returns it is on the disk.
    fn write(&self, run: &RunId, facts: &Facts) -> Result<(), BackendError> {
        let bytes = facts.to_bytes();
        let writing = self.database.begin_write().map_err(|error| self.failed(error))?;
        {
            let mut table = writing.open_table(FACTS).map_err(|error| self.failed(error))?;
            table.insert(run.as_str(), bytes.as_slice()).map_err(|error| self.failed(error))?;
        }
        writing.commit().map_err(|error| self.failed(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn what_was_written_is_there_again_with_the_same_key_and_one_at_a_time_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("coordinator.redb");
        let (book, key) = FileBook::open(&path).unwrap();
        assert!(key.is_first() && key.is_kept());
        let run: RunId = "r".parse().unwrap();
        assert_eq!(book.facts(&run).unwrap(), None);
        let facts = Facts { term: 7, run_epoch: 3, floor: 9, groups: Vec::new() };
        book.write(&run, &facts).unwrap();
        assert!(matches!(FileBook::open(&path), Err(BackendError::InUse(_))));
        drop(book);
        let (again, same) = FileBook::open(&path).unwrap();
        assert_eq!((again.facts(&run).unwrap(), same.peer()), (Some(facts), key.peer()));
        assert!(!same.is_first());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_something_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "my notes, which are not a database at all\n".repeat(500)).unwrap();
        let error = FileBook::open(&path).unwrap_err().to_string();
        assert!(error.contains("notes.txt"), "{error}");
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("my notes"));
    }

    #[test]
    fn backends_are_named_and_others_are_refused_in_words() {
        assert_eq!("memory".parse::<Backend>().unwrap(), Backend::Memory);
        assert_eq!("file:/var/lib/x".parse::<Backend>().unwrap(), Backend::File("/var/lib/x".into()));
        for odd in ["", "file:", "disk:/x", "etcd"] {
            assert!(matches!(odd.parse::<Backend>(), Err(BackendError::Unknown(_))), "{odd}");
        }
        #[cfg(feature = "etcd")]
        {
            let several = "etcd:http://a:2379,b:2379".parse::<Backend>().unwrap();
            assert_eq!(several.to_string(), "etcd:http://a:2379,b:2379");
            let odd = "etcd:nowhere".parse::<Backend>();
            assert!(matches!(odd, Err(BackendError::EtcdOptions(_))), "{odd:?}");
        }
        #[cfg(not(feature = "etcd"))]
        assert!(matches!("etcd:a:2379".parse::<Backend>(), Err(BackendError::NoEtcd)));
    }
}
