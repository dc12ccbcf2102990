//! What came to the port, in numbers, and why it was refused.

use outlast_proto::id::PeerId;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection was closed before any plane saw it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedConnection {
    /// More handshakes at once than the port serves: it gave way to a newer one.
    #[error("too many handshakes at once: it gave way to a newer one")]
    TooMany,
    /// More handshakes at once than one source may have: it gave way to a newer one.
    #[error("too many handshakes at once from this source: it gave way to a newer one")]
    TooManyFromSource,
    /// It said nothing, or the handshake took too long: a slow opener, or a very slow network.
    #[error("the handshake did not finish in time")]
    TimedOut,
    /// What was sent is not TLS 1.3.
    #[error("this is not a TLS 1.3 handshake: {0}")]
    NotTls(String),
    /// It asked for a run that is not served here, or for none.
    #[error("it asked for {0}, which is not served here")]
    WrongRun(String),
    /// Its certificate is not of this run's authority, or it showed none: another secret.
    #[error("its certificate is not of this run (another secret?): {0}")]
    ForeignCertificate(String),
    /// It belongs to the run, and its certificate bears the name of somebody else's key (rule 39).
    #[error("its certificate says that it is {claimed}, its key is that of {proved}")]
    FalseName {
        /// Whose name it claims.
        claimed: PeerId,
        /// Who it is.
        proved: PeerId,
    },
    /// It asked for a plane that is not served here, or for none.
    #[error("it asked for no plane that is served here: {0}")]
    NoSuchPlane(String),
    /// The connection broke during the handshake, or the other side gave up: often because it refuses *us*.
    #[error("the connection broke during the handshake: {0}")]
    Broken(String),
    /// Too many different runs were asked for in a moment, none of which anybody has proved to belong to.
    #[error("too many unknown runs were asked for at once, {0} among them: ask again in a second")]
    Busy(String),
    /// It belongs to the run, and has as many streams here as one peer may have.
    #[error("peer {0} has {1} streams here, which is the limit for one peer")]
    TooManyStreamsOfPeer(String, usize),
    /// It belongs to the run, and there are as many streams as this process can have.
    #[error("there are {0} streams here, which is the limit; allow this process more open files (ulimit -n)")]
    TooManyStreams(usize),
}

impl RefusedConnection {
    /// A stable word for each cause, in the order of [`Self::index`].
    const WORDS: [&str; 12] = [
        "too_many_handshakes",
        "too_many_handshakes_from_source",
        "timed_out",
        "not_tls",
        "wrong_run",
        "foreign_certificate",
        "no_such_plane",
        "broken",
        "busy",
        "too_many_streams_of_peer",
        "too_many_streams",
        "false_name",
    ];

    fn index(&self) -> usize {
        match self {
            Self::TooMany => 0,
            Self::TooManyFromSource => 1,
            Self::TimedOut => 2,
            Self::NotTls(_) => 3,
            Self::WrongRun(_) => 4,
            Self::ForeignCertificate(_) => 5,
            Self::NoSuchPlane(_) => 6,
            Self::Broken(_) => 7,
            Self::Busy(_) => 8,
            Self::TooManyStreamsOfPeer(..) => 9,
            Self::TooManyStreams(_) => 10,
            Self::FalseName { .. } => 11,
        }
    }
}

/// What came to the port since it is served. Written by many tasks; each number is exact, together they may be
/// of slightly different moments.
#[derive(Debug, Default)]
pub struct PortCounters {
    accepted: AtomicU64,
    hung_up: AtomicU64,
    authenticated: AtomicU64,
    accept_errors: AtomicU64,
    handshakes: AtomicU64,
    refused: [AtomicU64; RefusedConnection::WORDS.len()],
}

impl PortCounters {
    /// Connections that were accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Connections that the other side closed without a word: kernel evidence (rule 22), and port scans.
    pub fn hung_up(&self) -> u64 {
        self.hung_up.load(Ordering::Relaxed)
    }

    /// Connections that were handed to a plane.
    pub fn authenticated(&self) -> u64 {
        self.authenticated.load(Ordering::Relaxed)
    }

    /// Times that accepting failed, for want of descriptors for example.
    pub fn accept_errors(&self) -> u64 {
        self.accept_errors.load(Ordering::Relaxed)
    }

    /// Handshakes that are under way now.
    pub fn handshakes(&self) -> u64 {
        self.handshakes.load(Ordering::Relaxed)
    }

    /// Connections refused for this cause, whatever text it carries.
    pub fn refused(&self, cause: &RefusedConnection) -> u64 {
        self.refused[cause.index()].load(Ordering::Relaxed)
    }

    /// Connections refused for any cause.
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Connections refused, for each cause that occurred, under a stable word.
    pub fn refused_by_cause(&self) -> Vec<(&'static str, u64)> {
        let counted = self.refused.iter().map(|count| count.load(Ordering::Relaxed));
        RefusedConnection::WORDS.into_iter().zip(counted).filter(|(_, count)| *count > 0).collect()
    }

    pub(super) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_hung_up(&self) {
        self.hung_up.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_authenticated(&self) {
        self.authenticated.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_accept_error(&self) {
        self.accept_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_handshakes(&self, now: usize) {
        self.handshakes.store(now as u64, Ordering::Relaxed);
    }

    pub(super) fn count_refused(&self, cause: &RefusedConnection) {
        self.refused[cause.index()].fetch_add(1, Ordering::Relaxed);
    }
}
