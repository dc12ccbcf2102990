//! Who is in the group: what a program holds.
//!
//! ```no_run
//! use outlast::Membership;
//! use std::time::Duration;
//!
//! let member = Membership::builder().join(["10.0.0.1:4000"]).meta(b"gpu=8").start()?;
//! loop {
//!     for event in member.events(Duration::from_secs(1))? {
//!         println!("{:?} ({} active)", event.what, event.active);
//!     }
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), outlast::membership::MembershipError>(())
//! ```
//!
//! A [`Membership`] is a handle to a thread of its own, the *health plane*, which lives
//! on one port and shares nothing with the program but three short locks. Whatever the program does, however
//! long it computes, the member answers its pings; only stopping the whole process makes it *stalled*.
//!
//! What comes out are two lists and a stream of events. They are evidence, not verdicts: in a run, the
//! coordinator evicts (rule 20).

mod address;
mod builder;

pub(crate) use address::advertised;
pub(crate) use builder::default_name;

pub use crate::health::{Happening, TimedEvent};
pub use builder::MembershipBuilder;
pub use outlast_proto::id::{PeerId, RunId, RunIdError};
pub use outlast_proto::membership::{Config, Event, Health, Member, PairPolicy, Path, Preset};
pub use outlast_proto::time::Instant;
pub use outlast_proto::wire::membership::{DeathReason, MemberInfo};

use crate::clock;
use crate::fork::{Creator, UsedAfterFork};
use crate::health::{Ending, HealthPlane, RosterPost};
use crate::port::PortError;
use crate::recorder::Recorder;
use crate::security::SecretError;
use crate::security::tls::TlsError;
use outlast_proto::wire::InvalidMessage;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long a dropped member may take for its goodbye. Long enough for the packets to leave, short enough that
/// nobody notices it at the end of a scope.
const GOODBYE_ON_DROP: Duration = Duration::from_millis(300);

/// One member of a group. Dropping it leaves the group.
#[derive(Debug)]
pub struct Membership {
    plane: HealthPlane,
    info: Arc<MemberInfo>,
    creator: Creator,
}

/// Why a member could not start or cannot answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// There is no run secret. Nothing was started.
    #[error(
        "a member needs the run's secret: pass secret, or set OUTLAST_SECRET or OUTLAST_SECRET_FILE; make one with \
         `outlast secret new`"
    )]
    MissingSecret,
    /// The secret in the environment is damaged. Nothing was started.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The certificate of one's own authority cannot be used. Nothing was started.
    #[error(transparent)]
    Certificate(#[from] TlsError),
    /// A seed's name does not resolve. Nothing was started.
    #[error("cannot resolve the seed {seed:?} (write host:port): {cause}")]
    Seed {
        /// What was given.
        seed: String,
        /// What the resolver said.
        cause: io::Error,
    },
    /// The port cannot be opened. Nothing was started.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The name, the metadata or the address breaks a limit. Nothing was started.
    #[error("this member cannot be described to others: {0}")]
    Description(#[from] InvalidMessage),
    /// A time or a count in the settings makes no sense. Nothing was started.
    #[error("setting {setting} is {value}, but {rule}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What it must satisfy.
        rule: &'static str,
    },
    /// The operating system refused a thread or a descriptor. Nothing was started.
    #[error("cannot start the health plane: {0}")]
    Start(io::Error),
    /// The member has left the group: there is nothing more to tell.
    #[error("this member has left its group; start a new one to join again")]
    Left,
    /// The goodbye was not finished in time. The thread goes on by itself and ends soon.
    #[error("the goodbye was not finished within {0:?}; others may see a death instead")]
    GoodbyeTimeout(Duration),
    /// The handle was inherited by a forked child.
    #[error(transparent)]
    Forked(#[from] UsedAfterFork),
    /// The health plane broke one of its own invariants. That is a bug in Outlast.
    #[error("the health plane has stopped because of a bug in Outlast; its panic message is on stderr")]
    Broken,
}

/// What the health plane did so far. Every number starts at zero and only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams sent.
    pub packets_sent: u64,
    /// Datagrams received, hostile ones included.
    pub packets_received: u64,
    /// Bytes of the datagrams sent.
    pub bytes_sent: u64,
    /// Bytes of the datagrams received.
    pub bytes_received: u64,
    /// Packets that went over a stream, because UDP is blocked (rule 24).
    pub stream_packets_sent: u64,
    /// Packets that came over a stream.
    pub stream_packets_received: u64,
    /// Datagrams that did not open: noise, forgeries, copies.
    pub refused: u64,
    /// TCP connections that were refused: noise, other runs, foreign certificates.
    pub connections_refused: u64,
    /// Packets of members that did not decode.
    pub malformed: u64,
    /// Packets that were dropped here, because a buffer was full or there was no route.
    pub dropped: u64,
    /// Questions to other members' kernels.
    pub connects: u64,
    /// Of these, the ones that our own host could not ask.
    pub connects_not_asked: u64,
    /// How often this process found itself so late that it kept silent about others.
    pub stalls: u64,
    /// The latest that a timer ever was: how badly this process was starved or stopped.
    pub lateness_max: Duration,
}

impl Membership {
    /// Describes a member to be started.
    pub fn builder() -> MembershipBuilder {
        MembershipBuilder::new()
    }

    pub(crate) fn new(plane: HealthPlane, info: Arc<MemberInfo>) -> Self {
        Self { plane, info, creator: Creator::this_process() }
    }

    /// The address that others reach us at.
    pub fn address(&self) -> SocketAddr {
        self.info.address
    }

    /// The address that we listen on. It differs from [`Self::address`] if that was set by hand, or if we
    /// listen on every interface.
    pub fn listen_address(&self) -> SocketAddr {
        self.plane.bound()
    }

    /// Our id.
    pub fn id(&self) -> PeerId {
        self.info.id
    }

    /// How we describe ourselves to others.
    pub fn info(&self) -> Arc<MemberInfo> {
        Arc::clone(&self.info)
    }

    /// The present, on the clock of [`TimedEvent::at`] and of the times inside [`Health`].
    pub fn now(&self) -> Instant {
        clock::now()
    }

    /// Everybody who is in the group, ourselves included, in the order of their ids. At most 100 ms old, and
    /// never older than an event that was read before.
    pub fn active(&self) -> Result<Vec<Member>, MembershipError> {
        self.creator.check()?;
        Ok(self.plane.shared().lists().active.clone())
    }

    /// Everybody who died or left and is not forgotten yet.
    pub fn failed(&self) -> Result<Vec<Member>, MembershipError> {
        self.creator.check()?;
        Ok(self.plane.shared().lists().failed.clone())
    }

    /// What happened since the last call; waits up to `timeout` for the first event, and returns nothing if
    /// none came. Events that nobody reads are kept up to a bound; beyond it the oldest are replaced by one
    /// [`Happening::Lagged`]. After a goodbye, and once everything is read: [`MembershipError::Left`].
    pub fn events(&self, timeout: Duration) -> Result<Vec<TimedEvent>, MembershipError> {
        self.creator.check()?;
        self.plane.shared().take_events(timeout).map_err(|ending| match ending {
            Ending::Left => MembershipError::Left,
            Ending::Panicked => MembershipError::Broken,
        })
    }

    /// Whether its thread has panicked: what the lists say is as old as that, and nothing new will come.
    pub(crate) fn is_broken(&self) -> bool {
        self.plane.shared().ending() == Some(Ending::Panicked)
    }

    /// Keeps a record of events there, from now on.
    pub(crate) fn record_in(&self, recorder: &Arc<Recorder>) {
        self.plane.shared().record_in(recorder);
    }

    /// What the health plane did so far.
    pub fn counters(&self) -> Counters {
        self.plane.counters()
    }

    /// How often this process found itself late.
    pub(crate) fn stalls(&self) -> u64 {
        self.plane.shared().tally.stalls.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Where members are, for the port that they knock at.
    pub(crate) fn known_sources(&self) -> &Arc<crate::port::KnownSources> {
        self.plane.known_sources()
    }

    /// What came to the port.
    pub(crate) fn port_watch(&self) -> &crate::port::PortWatch {
        self.plane.port_watch()
    }

    /// Gets to know the group of these members, beside what is known already.
    pub(crate) fn join(&self, seeds: &[SocketAddr]) {
        self.plane.join(seeds);
    }

    /// There is evidence against that member: it is probed now, not in its turn.
    pub(crate) fn look(&self, member: PeerId) {
        self.plane.look(member);
    }

    /// That member has just registered with the coordinator: what was held against it is over (rule 45).
    pub(crate) fn renew(&self, member: MemberInfo) {
        self.plane.renew(member);
    }

    /// The coordinator took that member out of the run (rule 20).
    pub(crate) fn evict(&self, member: PeerId) {
        self.plane.evict(member);
    }

    /// Where the health plane is told who is in our group.
    pub(crate) fn rosters(&self) -> RosterPost {
        self.plane.rosters()
    }

    /// Says goodbye, so that nobody mistakes our end for a failure, and closes the port. Waits up to `timeout`
    /// until the goodbye is said. Leaving twice is no error.
    pub fn leave(&self, timeout: Duration) -> Result<(), MembershipError> {
        self.creator.check()?;
        if self.plane.leave(timeout) { Ok(()) } else { Err(MembershipError::GoodbyeTimeout(timeout)) }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // In a forked child the thread does not exist and the locks may be held forever: touch neither.
        if self.creator.check().is_ok() {
            self.plane.leave(GOODBYE_ON_DROP);
        }
    }
}
