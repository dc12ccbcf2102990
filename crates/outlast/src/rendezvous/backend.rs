//! Backends: who holds the register that nodes agree by.
//!
//! # The contract
//!
//! A backend is a task between two queues. It takes an [`Ask`] and gives an [`Answer`]; and it tells of every change by
//! itself, the newest only. One `Read`, one `Beat` and one `Write` or `Find` are under way at most.
//!
//! - Every `Read` is answered by `Told`, every `Find` by `Found`, every `Write` by `Written`, every `Beat` by `Beaten`; or one
//!   `Trouble` answers all that are under way. An answer comes within [`ANSWER_TIMEOUT`], whatever the other side does. A
//!   `Told` may have been on its way before the `Read` was asked; what is `Found` is not older than its question.
//! - What is answered by `Trouble` may be carried out later all the same. Its own answer then has its number, and is news.
//! - A `Write` is accepted only if its token is the last one and, if there is a holder, its lease lasts. After a
//!   `Trouble` nobody knows whether a write came through: read again.
//! - Tokens of accepted writes only grow, and no two values share one.
//! - A lease runs out by the backend's own clock, and then its holder is told as gone to everybody.
//! - A `Beat` leaves a note beside the lease, for the others to read, in place of the one before. If that is another one,
//!   a `Told` that has it comes before `Beaten`. A backend that cannot keep notes leaves them out; then every node writes
//!   for itself.
//! - A change of the value is told at once, a change of leases and notes alone within a moment.
//! - It connects again by itself, with pauses that grow, and then renews the lease and tells how the register is.
//! - When the queue of asks ends, so does the task; a `Release` before that is passed on first.
//!
//! `tests/real_rendezvous` holds every backend to it.

use super::embedded::Embedded;
use super::stored::{self, StoredRegister};
use crate::runtime;
use crate::security::{Credentials, TlsIdentity};
use outlast_proto::id::RunId;
use outlast_proto::wire::register::{Fate, Snapshot, Token};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// How long an answer may take. A coordinator that was just started listens for up to 15 s before it answers.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long one attempt to connect may take.
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses between attempts to connect: the first, and the longest.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Room in the queues: more than can be under way at once.
const QUEUE: usize = 64;

/// What is asked of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// How is it? What is on its way already will do.
    Read,
    /// How is it now, and not before?
    Find,
    Write {
        expected: Token,
        value: Vec<u8>,
    },
    Beat {
        lease: Duration,
        note: Vec<u8>,
    },
    Release,
}

impl Ask {
    /// One of these is under way at most.
    pub(super) fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Find)
    }
}

/// What a backend says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Told(Snapshot),
    Found(Snapshot),
    Written(Fate, Snapshot),
    Beaten,
    Trouble(Trouble),
}

/// Why something was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) kind: TroubleKind,
    pub(super) text: String,
}

/// What can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TroubleKind {
    /// It may work in a moment.
    Passing,
    /// It will not work for whoever this is.
    Unauthorized,
    /// It will not work like this.
    Refused,
}

impl Trouble {
    pub(super) fn passing(text: impl fmt::Display) -> Self {
        Self { kind: TroubleKind::Passing, text: text.to_string() }
    }

    pub(super) fn refused(text: impl fmt::Display) -> Self {
        Self { kind: TroubleKind::Refused, text: text.to_string() }
    }

    pub(super) fn is_final(&self) -> bool {
        self.kind != TroubleKind::Passing
    }
}

/// Which register, and for whom.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    /// Its name within the run.
    pub(super) register: String,
    /// Who holds the lease; empty: nobody, and writes need none.
    pub(super) holder: String,
}

/// How we show ourselves to a backend that is proved by the run's secret.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) identity: TlsIdentity,
    pub(super) credentials: Credentials,
}

/// Something that was asked, and its number. An ask that was answered by trouble may be carried out all the same, in its own
/// time: by their numbers its answer and that of the next one are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) number: u64,
    pub(super) ask: Ask,
}

/// The driver's end of a backend.
#[derive(Debug)]
pub(super) struct BackendEnd {
    asks: mpsc::Sender<Asked>,
    answers: mpsc::Receiver<(u64, Answer)>,
    /// How often it was asked.
    asked: u64,
    /// The last `Write` or `Find`, and the last `Beat`.
    written: u64,
    beaten: u64,
}

impl BackendEnd {
    /// Both ends.
    pub(super) fn with_queues() -> (Self, Queues) {
        let (asks, asked) = mpsc::channel(QUEUE);
        let (answered, answers) = mpsc::channel(QUEUE);
        let end = Self { asks, answers, asked: 0, written: 0, beaten: 0 };
        (end, Queues { asks: asked, answers: answered })
    }

    /// Asks. It is answered by [`BackendEnd::next`]. False if the backend's task has ended.
    pub(super) fn ask(&mut self, ask: Ask) -> bool {
        self.asked += 1;
        match ask {
            Ask::Write { .. } | Ask::Find => self.written = self.asked,
            Ask::Beat { .. } => self.beaten = self.asked,
            Ask::Read | Ask::Release => {}
        }
        // There is always room: the queue holds more than may be under way, and releases are rare.
        self.asks.try_send(Asked { number: self.asked, ask }).is_ok()
    }

    /// The next answer; a task that ended by a panic is trouble for good (rule 40). What answers an ask that was given up is
    /// news.
    pub(super) async fn next(&mut self) -> Answer {
        let ended =
            || Trouble::refused("the backend's task has ended: this is a bug in outlast, please report it");
        loop {
            let Some((number, answer)) = self.answers.recv().await else { return Answer::Trouble(ended()) };
            match answer {
                Answer::Written(_, snapshot) | Answer::Found(snapshot) if number != self.written => {
                    return Answer::Told(snapshot);
                }
                Answer::Beaten if number != self.beaten => {}
                answer => return answer,
            }
        }
    }
}

/// The backend's end.
pub(super) struct Queues {
    pub(super) asks: mpsc::Receiver<Asked>,
    answers: mpsc::Sender<(u64, Answer)>,
}

impl Queues {
    /// Answers that ask. False if the driver is gone.
    pub(super) async fn answer(&self, number: u64, answer: Answer) -> bool {
        self.answers.send((number, answer)).await.is_ok()
    }

    /// Tells something of its own accord. False if the driver is gone.
    pub(super) async fn tell(&self, news: Answer) -> bool {
        self.answer(0, news).await
    }
}

/// Where the register is: `embedded://host:port` is a coordinator's, `store://host:port` is kept by the nodes themselves in
/// a store whose members a coordinator counts, `etcd://host:port` is kept by etcd (with the feature `etcd`). Several
/// addresses, separated by commas, are tried in turn. Without a scheme it is a coordinator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Embedded(String),
    Store(String),
    #[cfg(feature = "etcd")]
    Etcd(crate::etcd::EtcdOptions),
}

/// Why a text names no backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// A scheme that nobody serves.
    #[error(
        "{0:?} is not a backend of a rendezvous: write embedded://host:port, store://host:port or etcd://host:port"
    )]
    Scheme(String),
    /// This build has no etcd.
    #[error("this build of Outlast cannot speak with etcd: build it with the feature \"etcd\"")]
    NoEtcd,
    /// The address of etcd makes no sense.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] crate::etcd::EtcdOptionsError),
    /// No address.
    #[error("{0:?} has no address: write host:port, or several separated by commas")]
    Address(String),
}

impl FromStr for Backend {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Self, BackendError> {
        if text.trim().starts_with("etcd:") || text.trim().starts_with("etcds:") {
            return Self::etcd(text.trim());
        }
        let (scheme, rest) = text.trim().split_once("://").unwrap_or(("embedded", text.trim()));
        let rest = rest.trim_end_matches('/');
        let addresses: Vec<&str> =
            rest.split(',').map(str::trim).filter(|address| !address.is_empty()).collect();
        let has_port = |address: &&str| {
            address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        match scheme {
            // The coordinators at that etcd, whichever they are by then.
            "embedded" if rest.starts_with("etcd:") || rest.starts_with("etcds:") => {
                Ok(Self(Kind::Embedded(rest.to_owned())))
            }
            "embedded" | "store" if !addresses.is_empty() && addresses.iter().all(has_port) => {
                let kind = if scheme == "store" { Kind::Store } else { Kind::Embedded };
                Ok(Self(kind(addresses.join(","))))
            }
            "embedded" | "store" => Err(BackendError::Address(text.to_owned())),
            _ => Err(BackendError::Scheme(text.to_owned())),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Embedded(addresses) => write!(f, "embedded://{addresses}"),
            Kind::Store(addresses) => write!(f, "store://{addresses}"),
            #[cfg(feature = "etcd")]
            Kind::Etcd(options) => write!(f, "etcd:{options}"),
        }
    }
}

impl Backend {
    /// `etcd://host:port,..`, `etcds://..`, or `etcd:https://host:port,..` as the coordinator's `--backend`.
    #[cfg(feature = "etcd")]
    fn etcd(text: &str) -> Result<Self, BackendError> {
        let address = text.strip_prefix("etcd:").filter(|rest| rest.starts_with("http")).unwrap_or(text);
        Ok(Self(Kind::Etcd(crate::etcd::EtcdOptions::parse(address)?)))
    }

    #[cfg(not(feature = "etcd"))]
    fn etcd(_: &str) -> Result<Self, BackendError> {
        Err(BackendError::NoEtcd)
    }

    /// An etcd, with options of one's own.
    #[cfg(feature = "etcd")]
    pub fn with_etcd(options: crate::etcd::EtcdOptions) -> Self {
        Self(Kind::Etcd(options))
    }

    /// Whether what it serves is proved by the run's secret.
    pub(super) fn needs_secret(&self) -> bool {
        matches!(self.0, Kind::Embedded(_) | Kind::Store(_))
    }

    /// The coordinators that it names, which can count a store's members.
    pub(super) fn coordinators(&self) -> Option<&str> {
        match &self.0 {
            Kind::Embedded(addresses) | Kind::Store(addresses) => Some(addresses),
            #[cfg(feature = "etcd")]
            Kind::Etcd(_) => None,
        }
    }

    /// The run that it knows us by.
    pub(super) fn run_of(&self, run: &RunId) -> RunId {
        if matches!(self.0, Kind::Store(_)) { stored::run_of(run) } else { run.clone() }
    }

    /// Starts the task that speaks with it.
    pub(super) fn open(
        &self,
        runtime: &Handle,
        run: &RunId,
        access: Option<&Access>,
        opening: Opening,
    ) -> BackendEnd {
        let (end, queues) = BackendEnd::with_queues();
        match &self.0 {
            Kind::Embedded(addresses) => {
                let Access { identity, .. } = access.expect("asked for above: it needs a secret").clone();
                let backend = Embedded::new(addresses.clone(), identity, opening);
                runtime.spawn(runtime::to_its_end("the embedded backend", backend.run(queues)));
            }
            Kind::Store(addresses) => {
                let access = access.expect("asked for above: it needs a secret").clone();
                let backend = StoredRegister::new(addresses.clone(), run, access, opening);
                runtime.spawn(runtime::to_its_end("the backend in a store", backend.run(queues)));
            }
            #[cfg(feature = "etcd")]
            Kind::Etcd(options) => {
                let backend = super::etcd::EtcdRegister::new(options.clone(), run, opening);
                runtime.spawn(runtime::to_its_end("the etcd backend", backend.run(queues)));
            }
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_named_by_its_address_and_a_wrong_one_says_what_to_write() {
        if cfg!(feature = "etcd") {
            let etcd = "etcd:https://a:1".parse::<Backend>().unwrap_err().to_string();
            assert!(etcd.contains("--etcd-ca"), "{etcd}");
            assert_eq!("etcd://a:1,b:2".parse::<Backend>().unwrap().to_string(), "etcd:http://a:1,b:2");
        }
        let shown = |text: &str| text.parse::<Backend>().map(|backend| backend.to_string());
        assert_eq!(shown("embedded://a:1/"), Ok("embedded://a:1".to_owned()));
        assert_eq!(shown("store://a:1,b:2"), Ok("store://a:1,b:2".to_owned()));
        assert_eq!(shown(" a:1 , [::1]:2"), Ok("embedded://a:1,[::1]:2".to_owned()));
        for wrong in ["", "embedded://", "embedded://a", "store://a", "a:b", ":1", "a:1,b"] {
            let error = shown(wrong).unwrap_err();
            assert!(error.to_string().contains("write host:port"), "{error}");
        }
        assert!(shown("zookeeper://a:1").unwrap_err().to_string().contains("embedded://host:port"));
    }
}
