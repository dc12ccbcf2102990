//! The store's change of view, every order of events: production members and a production registrar.
//!
//! # The model
//!
//! Three members at most, one registrar, one key whose number is raised by a program. Streams and links are queues; what
//! is first in a queue may arrive at any time. A member may come, leave or be killed, the registrar may be killed, a
//! stream or a link may break, a member may be cut off from the registrar; each by a budget. Whoever was at the other end
//! notices at any point, and what has not arrived by then is lost. A registrar that was killed is there again at once and
//! knows nothing. Kernels tell the truth at once, and time stands still until it jumps to the next timer, by a budget.
//!
//! # What keeps the number of states small
//!
//! - *The key is one that the change is about.* Of all keys only those whose holders change can go wrong. So the key is
//!   chosen by the part that a newcomer will have in it; any of the others may be killed, cut or let go.
//! - *Small talk is heard at once.* Acknowledgements of frames let the other side forget a copy; greetings make a link
//!   carry; news of a broken link lets others go around it; a lease that is asked for is given, or not. None of them
//!   decides who holds what. They are taken as soon as they are first in their queue, unless a plan says that leases are
//!   slow, or a cut keeps them.
//! - *Times that say nothing are far away.* The knock at a dead member's port is the first timer of all, so that one
//!   jump is enough to know of a death. And time does not jump before the silent faults of a plan (a kill, a cut, a broken
//!   link) have struck.
//! - *Who has noticed acts.* A member that has noticed that its stream is gone registers in the same moment. The members
//!   that a plan begins with are in a settled view, reached in the plainest order.
//!
//! # The invariants
//!
//! In every state (`checkers.rs`): at most one member would answer for the key; whoever would has every raise that was
//! acknowledged, and none that nobody began; no two raises were answered alike; nobody who could be heard is put out; no
//! machine panics. In every state in which nothing is under way: if faults end here and time goes on, every call ends well
//! before its deadline, and all who live are in one view.
//!
//! # What it does not do
//!
//! Stops, several keys, values in pieces, direct links beside the mesh (three are a ring), members that are reborn: the world of
//! seeds ([`crate::store`]) has those. Clients that are no members, and a second death before the first is mended, which may
//! take keys along (`docs/decisions/0035-views-of-the-store.md` says when): no world has them.

mod carry;
mod checkers;
mod event;
mod state;

pub use event::{Event, MemberNumber};
pub use state::State;

use super::search::{Model, Violation};
use outlast_proto::preset::Preset;
use outlast_proto::store::Config;
use outlast_proto::store::layout::{Holders, Layout, bucket};
use outlast_proto::time::Duration;
use outlast_proto::wire::store::View;
use outlast_proto::wire::store::operation::Key;

/// What may happen at most.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub struct Budget {
    /// Members that come while the plan is played.
    pub joins: u8,
    /// Members that say goodbye.
    pub leaves: u8,
    /// Members that are killed.
    pub kills: u8,
    /// Registrars that are.
    pub restarts: u8,
    /// Streams to the registrar that break.
    pub breaks: u8,
    /// Connections between members that do.
    pub severs: u8,
    /// Members that are cut off from the registrar.
    pub cuts: u8,
    /// Raises of the number that programs ask for.
    pub calls: u8,
    /// Jumps of the clock.
    pub jumps: u8,
}

/// A bug that a checker must find.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Sabotage {
    /// When a view begins, those who were in the one before are told that that one goes on.
    OldViewGoesOn,
    /// What is fetched for a view is empty.
    EmptyFetch,
    /// What is fetched for a view does not say which calls were done.
    ForgottenCalls,
    /// An order to begin a view never arrives.
    DropActivate,
    /// Who comes to a new registrar does not say what it has frozen for.
    HiddenFreeze,
    /// A replica says that it has a change, and has not made it.
    HollowReplica,
    /// Leases last three times as long for those who hold them as for the registrar.
    LongLease,
    /// A kernel refuses although its process lives.
    FalseDeath,
}

/// The part of a newcomer in the key.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Part {
    /// It will own it.
    Owner,
    /// It will have the copy.
    Replica,
}

/// What is the same in all states of an exploration.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Scene {
    config: Config,
    key: Key,
    slow_leases: bool,
    patient: bool,
    sabotage: Option<Sabotage>,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct ViewModel {
    members: MemberNumber,
    budget: Budget,
    scene: Scene,
}

impl ViewModel {
    /// A store of so many; the next who comes will own the key.
    pub fn new(members: MemberNumber, budget: Budget) -> Self {
        let times = Config::preset(Preset::Local);
        let config = Config {
            // Nobody waits for others who might come too: that would only cost a jump of the clock.
            gathering: Duration::ZERO,
            // Before any other timer, so that one jump is enough for a death.
            probe_timeout: Duration::from_millis(10),
            // Who is silent is asked for once and given up when its lease is over: a few jumps, not hundreds.
            probe_interval: times.view_lease,
            dead_after: times.view_lease,
            ..times
        };
        let key = key_of(members, Part::Owner);
        Self {
            members,
            budget,
            scene: Scene { config, key, slow_leases: false, patient: false, sabotage: None },
        }
    }

    /// A newcomer has that part in the key.
    #[must_use]
    pub fn newcomer_is(mut self, part: Part) -> Self {
        self.scene.key = key_of(self.members, part);
        self
    }

    /// Questions for leases, and leases, may take as long as everything else.
    #[must_use]
    pub fn with_slow_leases(mut self) -> Self {
        self.scene.slow_leases = true;
        self
    }

    /// Time passes only while nothing is under way that could arrive.
    #[must_use]
    pub fn with_patience(mut self) -> Self {
        self.scene.patient = true;
        self
    }

    /// The same with a bug.
    #[must_use]
    pub fn with(mut self, sabotage: Sabotage) -> Self {
        self.scene.sabotage = Some(sabotage);
        self
    }
}

/// A key that the first member owns and the second has a copy of, and in which a newcomer will have that part.
fn key_of(members: MemberNumber, part: Part) -> Key {
    let layout = |count| {
        let members = (0..count).map(state::store_member).collect();
        Layout::new(View { epoch: 1, founder: 1, members })
    };
    let (before, after) = (layout(members), layout(members + 1));
    let newcomer = state::id(members);
    let is_meant = |key: &Key| {
        let bucket = bucket(key);
        let first = Holders { owner: state::id(0), replica: (members > 1).then(|| state::id(1)) };
        before.holders(bucket) == Some(first)
            && after.holders(bucket).is_some_and(|holders| match part {
                Part::Owner => holders.owner == newcomer,
                Part::Replica => holders.owner == state::id(0) && holders.replica == Some(newcomer),
            })
    };
    let mut names = (0..).map(|number: u32| Key::value(format!("number {number}").as_str()));
    names.find(is_meant).expect("members draw every part of some bucket")
}

impl Model for ViewModel {
    type State = State;
    type Event = Event;

    fn initial(&self) -> State {
        State::settled(&self.scene, self.members, self.budget)
    }

    fn events(&self, state: &State) -> Vec<Event> {
        state.events()
    }

    fn happen(&self, state: &mut State, event: Event) -> Result<(), Violation> {
        state.happen(event);
        Ok(())
    }

    fn judge(&self, state: &State) -> Result<(), Violation> {
        state.judge()?;
        // Whatever is under way arrives in some state that follows; what must end is asked where nothing is.
        if state.is_quiet() { state.judge_rest() } else { Ok(()) }
    }

    fn fingerprint(&self, state: &State) -> u64 {
        super::held::hash_of(state)
    }

    fn describe(&self, state: &State, event: Event) -> String {
        state.describe(event)
    }
}
