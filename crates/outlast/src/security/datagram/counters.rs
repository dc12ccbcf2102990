//! What the guard did, in numbers, and why it refused.

/// Why a datagram was refused. Nothing else happened, except that a counter grew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedDatagram {
    /// Shorter than any datagram of ours: noise, or cut off on its way.
    #[error("the datagram is too short to be one of ours")]
    TooShort,
    /// Longer than any datagram of ours.
    #[error("the datagram is too long to be one of ours")]
    TooLong,
    /// Another version of the envelope, or noise.
    #[error("the datagram has envelope version {0}, this version knows {version}", version = super::envelope::VERSION)]
    UnknownVersion(u8),
    /// A kind of datagram that this version does not know, or noise.
    #[error("the datagram is of unknown kind {0}")]
    UnknownKind(u8),
    /// It claims to come from us: our own datagram was sent back, or an earlier boot's was kept, or another
    /// process runs under our peer id.
    #[error("the datagram carries our own peer id")]
    OwnName,
    /// The seal does not open: another secret, another run, a forgery, or altered on its way.
    #[error("the datagram does not open with this run's secret (another secret, another run, or altered)")]
    Unauthentic,
    /// The seal opens, and what is under it breaks the layout: a member with a bug.
    #[error("the datagram is authentic but malformed: its sender has a bug")]
    Malformed,
    /// A copy of a datagram that was here before. Networks make some by themselves.
    #[error("the datagram was received before")]
    Replayed,
    /// It was sent longer ago than any network takes: held back by somebody, or we were stopped for a while.
    #[error("the datagram was held back for too long")]
    Late,
    /// From a boot that a newer boot of the same peer has replaced.
    #[error("the datagram comes from a boot that its peer has left behind")]
    RetiredBoot,
    /// An echo of a nonce that we did not give to this boot at this address, or gave too long ago.
    #[error("the echo carries a nonce that we did not ask for, or too late")]
    StaleNonce,
}

impl RefusedDatagram {
    const CAUSES: usize = 11;

    fn index(self) -> usize {
        match self {
            Self::TooShort => 0,
            Self::TooLong => 1,
            Self::UnknownVersion(_) => 2,
            Self::UnknownKind(_) => 3,
            Self::OwnName => 4,
            Self::Unauthentic => 5,
            Self::Malformed => 6,
            Self::Replayed => 7,
            Self::Late => 8,
            Self::RetiredBoot => 9,
            Self::StaleNonce => 10,
        }
    }

    /// Whether a person should hear of it. Copies and late datagrams happen on honest networks and after
    /// honest stalls; they are counted.
    pub fn is_suspicious(self) -> bool {
        !matches!(self, Self::Replayed | Self::Late | Self::StaleNonce)
    }
}

/// What the guard did since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounters {
    /// Packets sealed.
    pub sealed: u64,
    /// Packets handed on: authentic and fresh.
    pub accepted: u64,
    /// Challenges given.
    pub challenges_sent: u64,
    /// Echoes given.
    pub echoes_sent: u64,
    /// Boots that proved themselves by an echo.
    pub boots_believed: u64,
    /// Boots that a newer one of the same peer replaced.
    pub boots_retired: u64,
    /// Senders forgotten because the table was full.
    pub senders_evicted: u64,
    /// First packets of unknown boots that were kept for the echo and then dropped.
    pub stash_dropped: u64,
    refused: [u64; RefusedDatagram::CAUSES],
}

impl DatagramCounters {
    /// Datagrams refused for this cause, whatever value it carries.
    pub fn refused(&self, cause: RefusedDatagram) -> u64 {
        self.refused[cause.index()]
    }

    /// Datagrams refused for any cause.
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }

    pub(super) fn count(&mut self, cause: RefusedDatagram) {
        self.refused[cause.index()] += 1;
    }
}
