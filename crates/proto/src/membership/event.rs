//! What goes into the machine and what comes out of it.

use crate::id::PeerId;
use crate::text::printable;
use crate::time::{Duration, Instant};
use crate::wire::membership::{DeathReason, MemberInfo, Packet};
use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

/// How a packet travels between two members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// A sealed datagram: the normal way.
    Datagram,
    /// A TLS stream: slower, for pairs between which UDP is blocked (rule 24).
    Stream,
}

/// Where an authenticated packet came from. The driver proved `id`; `address` is merely what it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The sender, proven by the seal or the certificate.
    pub id: PeerId,
    /// The address that the packet came from.
    pub address: SocketAddr,
    /// How it came.
    pub path: Path,
}

/// Names one connect attempt; the driver returns it with the outcome. A stale token is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectToken(pub u64);

/// What a kernel said to one TCP connect. Unauthenticated: see rule 22 for how little it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectOutcome {
    /// The connection was accepted. The driver has closed it again.
    Accepted,
    /// The connection was refused (reset).
    Refused,
    /// No answer within the asked time, or an answer that says nothing about the process, such as
    /// "no route to host".
    Silent,
    /// We could not even ask, for want of ports or descriptors: no evidence about anybody.
    NotAsked,
}

impl ConnectOutcome {
    /// What the end of a connect says, given its two addresses or the kind of its error; sorted by *whom it speaks
    /// about*. Everybody who asks a kernel uses this, so that all mean the same.
    ///
    /// A refusal or an accept speaks about the other host. A timeout, "no route" or "filtered" speaks about the path:
    /// silence. Running out of local ports, descriptors or memory, and whatever we do not know, speaks about
    /// ourselves and must never be held against the other side.
    ///
    /// One answer lies: on one host, a connect to a free port of the ephemeral range can meet *itself* (TCP's
    /// simultaneous open) and succeed. Nobody else can have been listening there.
    pub fn of(ended: Result<(SocketAddr, SocketAddr), ErrorKind>) -> Self {
        match ended {
            Ok((local, remote)) if local == remote => Self::Refused,
            // Established, and then reset before we looked: something listened there.
            Ok(_) | Err(ErrorKind::ConnectionReset | ErrorKind::NotConnected) => Self::Accepted,
            Err(ErrorKind::ConnectionRefused) => Self::Refused,
            Err(
                ErrorKind::TimedOut
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::NetworkDown
                | ErrorKind::PermissionDenied,
            ) => Self::Silent,
            Err(_) => Self::NotAsked,
        }
    }
}

/// What the driver is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a packet.
    Send {
        /// Where to.
        to: SocketAddr,
        /// To whom; not known yet for the first packet to a seed.
        peer: Option<PeerId>,
        /// How.
        path: Path,
        /// What.
        packet: Packet,
    },
    /// Try a TCP connect, close it at once if it succeeds, report through `handle_connect`.
    Connect {
        /// To be returned with the outcome.
        token: ConnectToken,
        /// Where to.
        to: SocketAddr,
        /// After this long the outcome is `Silent`.
        timeout: Duration,
    },
    /// Tell the user.
    Notify(Event),
}

/// What the health plane says of a member, each with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Alive,
    /// Its kernel answers and the process does not, since that moment.
    Stalled {
        /// Since when.
        since: Instant,
    },
    /// Nothing answers; it is being found out whether it is dead.
    Suspect {
        /// Since when.
        since: Instant,
        /// How many members testified so far.
        accusers: usize,
    },
    /// It is dead.
    Dead {
        /// Since when we know.
        since: Instant,
        /// Why.
        reason: DeathReason,
    },
    /// It said goodbye.
    Left {
        /// Since when we know.
        since: Instant,
    },
}

impl Health {
    /// One word for tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Stalled { .. } => "stalled",
            Self::Suspect { .. } => "suspect",
            Self::Dead { .. } => "dead",
            Self::Left { .. } => "left",
        }
    }
}

/// One row of the active or the failed list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who it is.
    pub info: Arc<MemberInfo>,
    /// Its incarnation.
    pub incarnation: u32,
    /// How it is.
    pub health: Health,
    /// How packets travel to it.
    pub path: Path,
    /// Round trip of the last probe that it answered us.
    pub round_trip: Option<Duration>,
    /// When it last answered us.
    pub acked: Option<Instant>,
    /// Whether its kernel's word counts for us (rule 22): `None` until that was tried.
    pub kernel_trusted: Option<bool>,
}

/// What happened to the group. Each variant is a fact about one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member is in the active list that was not there before, or is there again.
    Joined(Arc<MemberInfo>),
    /// It does not answer, and its kernel does. Next: `Recovered`, `Suspected` or `Died`.
    Stalled(Arc<MemberInfo>),
    /// Nothing answers. Next: `Recovered`, `Stalled` or `Died`.
    Suspected(Arc<MemberInfo>),
    /// It answers again.
    Recovered(Arc<MemberInfo>),
    /// It is dead. Next: nothing, or `Joined` under a higher incarnation.
    Died {
        /// Who.
        info: Arc<MemberInfo>,
        /// Why.
        reason: DeathReason,
        /// Who testified.
        accusers: Vec<PeerId>,
    },
    /// It said goodbye.
    Left(Arc<MemberInfo>),
    /// The others declared *us* dead; we have come back under a higher incarnation.
    Rejoined {
        /// Our new incarnation.
        incarnation: u32,
        /// Why they thought so.
        reason: DeathReason,
        /// Since when they did, as far as it was told.
        since: Instant,
    },
}

impl Event {
    /// Whom the event is about; `None` for ourselves.
    pub fn about(&self) -> Option<&Arc<MemberInfo>> {
        match self {
            Self::Joined(info)
            | Self::Stalled(info)
            | Self::Suspected(info)
            | Self::Recovered(info)
            | Self::Left(info)
            | Self::Died { info, .. } => Some(info),
            Self::Rejoined { .. } => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |info: &MemberInfo| format!("{} ({})", printable(&info.name), info.id.short());
        match self {
            Self::Joined(info) => write!(f, "{} joined from {}", name(info), info.address),
            Self::Stalled(info) => {
                write!(f, "{} stalled: its kernel answers, the process does not", name(info))
            }
            Self::Suspected(info) => write!(f, "{} suspected: nothing answers", name(info)),
            Self::Recovered(info) => write!(f, "{} recovered", name(info)),
            Self::Left(info) => write!(f, "{} left", name(info)),
            Self::Died { info, reason, accusers } => {
                write!(f, "{} died: {reason}", name(info))?;
                if !accusers.is_empty() {
                    let shorts: Vec<_> = accusers.iter().map(PeerId::short).collect();
                    write!(f, " (accusers: {})", shorts.join(", "))?;
                }
                Ok(())
            }
            Self::Rejoined { incarnation, reason, .. } => {
                write!(f, "we were declared dead ({reason}) and came back as incarnation {incarnation}")
            }
        }
    }
}
