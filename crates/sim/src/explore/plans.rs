//! What is explored in every test run, and what in a soak.
//!
//! A plan of the first kind is whole: it ends because there is nothing more to see. Those of a soak are whole where
//! that takes minutes, and cut off at a number of states where it would take days; they say which.

use super::run::{Budget, Setup, Step};
use super::search::Limits;

/// One exploration: what of, and how far.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: &'static str,
    /// What of.
    pub setup: Setup,
    /// How far.
    pub limits: Limits,
}

impl Plan {
    /// Programs are written as in [`Step::program`], one per peer.
    fn new(name: &'static str, programs: &[&str], budget: Budget) -> Self {
        let programs = programs.iter().map(|program| Step::program(program).unwrap_or_default()).collect();
        let limits = Limits { depth: 500, states: 2_000_000 };
        Self { name, setup: Setup { programs, budget, sabotage: None }, limits }
    }
}

const NOTHING: Budget = Budget { breaks: 0, kills: 0, restarts: 0, severs: 0, cancels: 0, timers: 0 };
const BREAK: Budget = Budget { breaks: 1, ..NOTHING };
const KILL: Budget = Budget { kills: 1, ..NOTHING };
const RESTART: Budget = Budget { restarts: 1, ..NOTHING };
const SEVER: Budget = Budget { severs: 1, timers: 1, ..NOTHING };
const CANCEL: Budget = Budget { cancels: 1, ..NOTHING };
const JUMP: Budget = Budget { timers: 1, ..NOTHING };
const JUMPS: Budget = Budget { timers: 2, ..NOTHING };

/// Small enough for every test run: a second or two each, together some ten thousand states.
pub fn quick() -> Vec<Plan> {
    vec![
        Plan::new("two-calm", &["ror", "ror"], NOTHING),
        Plan::new("two-break", &["rr", "rr"], BREAK),
        Plan::new("two-break-once", &["oo", "oo"], BREAK),
        Plan::new("two-kill", &["rr", "rr"], KILL),
        Plan::new("two-restart", &["rr", "rr"], RESTART),
        Plan::new("two-restart-once", &["o", "o"], RESTART),
        Plan::new("two-sever", &["r", "r"], SEVER),
        Plan::new("two-leave", &["rl", "rl"], BREAK),
        Plan::new("two-differ", &["c", "b"], RESTART),
        Plan::new("two-cancel", &["rr", "rr"], CANCEL),
        Plan::new("two-deadline", &["t", "t"], JUMP),
        Plan::new("two-newcomer", &["vr", "jr"], BREAK),
        Plan::new("three-calm", &["r", "r", "r"], NOTHING),
        Plan::new("three-scope", &["sr", "sr", "r"], NOTHING),
    ]
}

/// Minutes to hours: two faults of different kinds, three peers.
pub fn soak() -> Vec<Plan> {
    vec![
        Plan::new("two-breaks", &["r", "r"], Budget { breaks: 2, ..NOTHING }),
        Plan::new("two-breaks-once", &["o", "o"], Budget { breaks: 2, ..NOTHING }),
        Plan::new("two-break-restart", &["r", "r"], Budget { breaks: 1, restarts: 1, ..NOTHING }),
        Plan::new("two-break-restart-once", &["oo", "oo"], Budget { breaks: 1, restarts: 1, ..NOTHING }),
        Plan::new("two-kill-restart", &["rr", "rr"], Budget { kills: 1, restarts: 1, ..JUMPS }),
        Plan::new("two-restarts", &["r", "r"], Budget { restarts: 2, ..NOTHING }),
        Plan::new("two-sever-break", &["o", "o"], Budget { breaks: 1, ..SEVER }),
        Plan::new("two-cancel-break", &["oo", "oo"], Budget { breaks: 1, ..CANCEL }),
        Plan::new("two-cancel-restart", &["r", "r"], Budget { restarts: 1, ..CANCEL }),
        Plan::new("two-deadline-and-on", &["tr", "tr"], JUMP),
        Plan::new("two-deadline-break", &["t", "t"], Budget { breaks: 1, ..JUMP }),
        Plan::new("two-deadline-restart", &["t", "t"], Budget { restarts: 1, ..JUMP }),
        Plan::new("two-newcomer-kill", &["vr", "jr"], Budget { kills: 1, ..JUMPS }),
        Plan::new("two-newcomer-restart", &["vr", "jr"], Budget { restarts: 1, ..JUMPS }),
        Plan::new("three-newcomer", &["vr", "vr", "jr"], BREAK),
        Plan::new("three-scope-kill", &["sr", "sr", "r"], KILL),
        Plan::new("three-scope-restart", &["sr", "sr", "r"], RESTART),
        Plan::new("three-break", &["r", "r", "r"], BREAK),
        Plan::new("three-kill-once", &["oo", "oo", "oo"], KILL),
        Plan::new("three-break-kill", &["o", "o", "o"], Budget { breaks: 1, kills: 1, ..NOTHING }),
        Plan::new("three-restart", &["r", "r", "r"], RESTART),
        Plan::new("three-kill-restart", &["r", "r", "r"], Budget { kills: 1, restarts: 1, ..JUMPS }),
    ]
}
