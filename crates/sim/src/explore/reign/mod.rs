//! Two coordinators, one etcd, one key, two peers: every order of expiry, decision and takeover.
//!
//! # The model
//!
//! Production [`Reign`](outlast_proto::reign::Reign)s. Time goes in steps of a fifth of a lease. At each moment any of these
//! may happen next: a question reaches etcd, an answer or a piece of news reaches its coordinator, a connection breaks
//! with all that was on it, a lease that has had its time runs out (etcd may take longer), a coordinator looks at its
//! clock (or does not: it may be stopped), time goes on.
//!
//! There are two explorations of it. An *election* begins with nobody, and both coordinators are slow. A *takeover* begins
//! with a reign that two peers have promised to obey, and asks what becomes of the one attempt that it may give a verdict
//! on. Its leader is as slow as may be; the one that stands by hears and answers etcd at once, because only how late it
//! takes over matters, and that is how late the lease runs out. What is modelled here and is production code elsewhere
//! (`explore::run` has it) is rule 17, in its smallest form: a peer promises a term and tells the verdict that it has
//! heard; whoever reigns decides once both have promised it, for what it was told if it was told something; a verdict
//! arrives at any time later, or never; a peer obeys none of a term below the one that it promised.
//!
//! # The invariants
//!
//! In every state: at most one may decide; whoever may decide is the one whose key is there, so that terms grow as
//! etcd's revisions do; and the attempt has one verdict, whoever hears it.
//!
//! # What it does not do
//!
//! Facts that are written to etcd, more than one attempt, clocks that run apart. The storms with real coordinators have
//! those.

mod event;
mod world;

pub use event::Event;
pub use world::World;

use super::search::{Model, Violation};

/// What may happen at most, beside time.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub struct Budget {
    /// Connections to etcd that break.
    pub breaks: u8,
    /// Appeals that make a leader step down.
    pub appeals: u8,
}

/// Whose word is taken for who may decide: the machine's, or that of one with a mistake in it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Judge {
    /// The production machine's.
    Machine,
    /// Counts the lease from when the answer came.
    FromTheAnswer,
    /// Reigns until somebody tells it otherwise.
    WithoutAClock,
    /// Decides for a fifth of a lease longer than the lease lasts.
    AFifthLate,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct ReignModel {
    steps: u32,
    budget: Budget,
    is_takeover: bool,
    judge: Judge,
    keeps_promises: bool,
    /// Who appeals names a term that is over.
    appeals_late: bool,
}

impl ReignModel {
    /// An election from nothing, for so many fifths of a lease.
    pub fn election(steps: u32, budget: Budget) -> Self {
        let judge = Judge::Machine;
        Self { steps, budget, is_takeover: false, judge, keeps_promises: true, appeals_late: false }
    }

    /// A reign that may end, and the next.
    pub fn takeover(steps: u32) -> Self {
        Self { is_takeover: true, ..Self::election(steps, Budget::default()) }
    }

    /// The same with a mistake in who may decide.
    #[must_use]
    pub fn judged_by(self, judge: Judge) -> Self {
        Self { judge, ..self }
    }

    /// The same with peers that obey whoever speaks to them.
    #[must_use]
    pub fn without_promises(self) -> Self {
        Self { keeps_promises: false, ..self }
    }

    /// The same with appeals that come a term too late.
    #[must_use]
    pub fn with_late_appeals(self) -> Self {
        Self { appeals_late: true, ..self }
    }
}

impl Model for ReignModel {
    type State = World;
    type Event = Event;

    fn initial(&self) -> World {
        if self.is_takeover { World::reigned(self) } else { World::vacant(self) }
    }

    fn events(&self, world: &World) -> Vec<Event> {
        world.events(self)
    }

    fn happen(&self, world: &mut World, event: Event) -> Result<(), Violation> {
        world.happen(self, event)?;
        // Who decides late is found by what comes of it: promises make it harmless (rule 19).
        if self.judge == Judge::AFifthLate { Ok(()) } else { world.check_reigns(self.judge) }
    }

    fn judge(&self, world: &World) -> Result<(), Violation> {
        world.check_verdicts()
    }

    fn fingerprint(&self, world: &World) -> u64 {
        super::held::hash_of(world)
    }
}
