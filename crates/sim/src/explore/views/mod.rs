//! The store's change of view, every order of events: production members and a production registrar.
//!
//! # The model
//!
//! Three members at most, one registrar, one key whose number is raised by a program. Streams and links are queues; what
//! is first in a queue may arrive at any time. A member may be killed, the registrar too, each by a budget; whoever was
//! connected with it notices at any point, and what has not arrived by then is lost. A registrar that was killed is there
//! again at once and knows nothing. Dials succeed at once, kernels tell the truth at once, and time stands still until
//! somebody lets it jump to the next timer, by a budget.
//!
//! What keeps the number of states small: a frame that only acknowledges is taken as soon as it is there, because all that
//! it does is to let the other side forget a copy. A member that has noticed that its stream is gone registers in the same
//! moment. The members that the plan begins with are in a settled view, reached in the plainest order.
//!
//! # The invariants
//!
//! In every state: at most one member would answer for the key; whoever would has every raise that was acknowledged, and
//! none that nobody began; no machine panics. In every state in which nothing is under way: if faults end here and time goes
//! on, every call ends well before its deadline, and all who live are in one view.
//!
//! # What it does not do
//!
//! Cuts, stops, clients that are no members, several keys, values in pieces, direct links beside the mesh (three are a
//! ring), a second death before the first is mended. The world of seeds ([`crate::store`]) has those.

mod state;

pub use state::{Event, State};

use super::search::{Limits, Model, Violation};
use outlast_proto::preset::Preset;
use outlast_proto::store::Config;
use outlast_proto::time::Duration;

/// What may happen at most.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Budget {
    /// Members that come while the plan is played.
    pub joins: u8,
    /// Members that say goodbye.
    pub leaves: u8,
    /// Members that are killed.
    pub kills: u8,
    /// Registrars that are.
    pub restarts: u8,
    /// Raises of the number that the program asks for.
    pub calls: u8,
    /// Jumps of the clock.
    pub jumps: u8,
}

/// A bug that a checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The registrar is told that a member froze what moves before it has.
    NoFreeze,
    /// What is fetched for a view is empty.
    EmptyFetch,
    /// An order to begin a view never arrives.
    DropActivate,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct ViewModel {
    /// Members at the beginning, in one view.
    pub members: usize,
    /// What may happen.
    pub budget: Budget,
    /// A planted bug.
    pub sabotage: Option<Sabotage>,
    config: Config,
}

impl ViewModel {
    /// A store of so many.
    pub fn new(members: usize, budget: Budget) -> Self {
        // Nobody waits for others who might come too: that would only cost a jump of the clock.
        let config = Config { gathering: Duration::ZERO, ..Config::preset(Preset::Local) };
        Self { members, budget, sabotage: None, config }
    }

    /// The same with a bug.
    #[must_use]
    pub fn with(self, sabotage: Sabotage) -> Self {
        Self { sabotage: Some(sabotage), ..self }
    }
}

impl Model for ViewModel {
    type State = State;
    type Event = Event;

    fn initial(&self) -> State {
        State::settled(&self.config, self.members, self.budget)
    }

    fn events(&self, state: &State) -> Vec<Event> {
        state.events()
    }

    fn happen(&self, state: &mut State, event: Event) -> Result<(), Violation> {
        state.happen(event, self.sabotage);
        Ok(())
    }

    fn judge(&self, state: &State) -> Result<(), Violation> {
        state.judge()?;
        if state.is_quiet() { state.judge_rest(self.sabotage) } else { Ok(()) }
    }

    fn fingerprint(&self, state: &State) -> u64 {
        super::held::hash_of(state)
    }
}

/// One exploration of changes of view.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: &'static str,
    /// What is explored.
    pub model: ViewModel,
    /// How far.
    pub limits: Limits,
}

const NOTHING: Budget = Budget { joins: 0, leaves: 0, kills: 0, restarts: 0, calls: 1, jumps: 0 };

fn plan(name: &'static str, members: usize, budget: Budget, states: usize) -> Plan {
    Plan { name, model: ViewModel::new(members, budget), limits: Limits { depth: 400, states } }
}

/// Explored in every test run, each up to a number of states.
pub fn quick() -> Vec<Plan> {
    vec![
        plan("views-join", 2, Budget { joins: 1, ..NOTHING }, 20_000),
        plan("views-leave", 3, Budget { leaves: 1, ..NOTHING }, 20_000),
        plan("views-kill", 3, Budget { kills: 1, jumps: 2, ..NOTHING }, 20_000),
        plan("views-restart", 3, Budget { restarts: 1, ..NOTHING }, 20_000),
    ]
}

/// Minutes: two things at a time.
pub fn soak() -> Vec<Plan> {
    let states = 2_000_000;
    vec![
        plan("views-join-soak", 2, Budget { joins: 1, calls: 2, ..NOTHING }, states),
        plan("views-join-kill", 2, Budget { joins: 1, kills: 1, jumps: 2, ..NOTHING }, states),
        plan("views-join-restart", 2, Budget { joins: 1, restarts: 1, ..NOTHING }, states),
        plan("views-leave-kill", 3, Budget { leaves: 1, kills: 1, jumps: 2, ..NOTHING }, states),
        plan("views-kill-restart", 3, Budget { kills: 1, restarts: 1, jumps: 2, ..NOTHING }, states),
    ]
}
