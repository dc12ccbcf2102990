//! What is explored in every test run, and what in a soak.
//!
//! A plan of the first kind is whole: it ends because there is nothing more to see. Those of a soak are whole where
//! that takes minutes, and cut off at a number of states where it would take days; they say which.

use super::planned::{Exploration, Planned};
use super::reign::{self, ReignModel};
use super::run::{Budget, RunModel, Setup, Step};
use super::search::Limits;
use super::views::{self, Part, ViewModel};

/// A run. Programs are written as in [`Step::program`], one per peer.
fn run(name: &'static str, programs: &[&str], budget: Budget) -> Box<dyn Exploration> {
    run_within(2_000_000, name, programs, budget)
}

/// A run of which so many states are seen, and no more.
fn run_within(states: usize, name: &'static str, programs: &[&str], budget: Budget) -> Box<dyn Exploration> {
    let programs = programs.iter().map(|program| Step::program(program).unwrap_or_default()).collect();
    let setup = Setup { programs, budget, sabotage: None };
    Box::new(Planned::new(name, RunModel::new(setup), Limits { depth: 500, states }))
}

/// A store whose view changes.
fn store(name: &'static str, model: ViewModel) -> Box<dyn Exploration> {
    Box::new(Planned::new(name, model, Limits { depth: 500, states: 1_000_000 }))
}

/// Two coordinators and a lease.
fn lease(name: &'static str, model: ReignModel) -> Box<dyn Exploration> {
    Box::new(Planned::new(name, model, Limits { depth: 500, states: 20_000_000 }))
}

const NOTHING: Budget = Budget { breaks: 0, kills: 0, restarts: 0, severs: 0, cancels: 0, timers: 0 };
const BREAK: Budget = Budget { breaks: 1, ..NOTHING };
const KILL: Budget = Budget { kills: 1, ..NOTHING };
const RESTART: Budget = Budget { restarts: 1, ..NOTHING };
const SEVER: Budget = Budget { severs: 1, timers: 1, ..NOTHING };
const CANCEL: Budget = Budget { cancels: 1, ..NOTHING };
const JUMP: Budget = Budget { timers: 1, ..NOTHING };
const JUMPS: Budget = Budget { timers: 2, ..NOTHING };

/// What is in every change of view that is explored: one raise of the number.
const CALL: views::Budget = views::Budget {
    joins: 0,
    leaves: 0,
    kills: 0,
    restarts: 0,
    breaks: 0,
    severs: 0,
    cuts: 0,
    calls: 1,
    jumps: 0,
};
const DEATH: views::Budget = views::Budget { kills: 1, jumps: 1, ..CALL };

/// Small enough for every test run: a second or two each, together some ten thousand states.
pub fn quick() -> Vec<Box<dyn Exploration>> {
    vec![
        run("two-calm", &["ror", "ror"], NOTHING),
        run("two-break", &["rr", "rr"], BREAK),
        run("two-break-once", &["oo", "oo"], BREAK),
        run("two-kill", &["rr", "rr"], KILL),
        run("two-restart", &["rr", "rr"], RESTART),
        run("two-restart-once", &["o", "o"], RESTART),
        run("two-sever", &["r", "r"], SEVER),
        run("two-leave", &["rl", "rl"], BREAK),
        run("two-differ", &["c", "b"], RESTART),
        run("two-cancel", &["rr", "rr"], CANCEL),
        run("two-deadline", &["t", "t"], JUMP),
        run("two-newcomer", &["vr", "jr"], BREAK),
        run("three-calm", &["r", "r", "r"], NOTHING),
        run("three-scope", &["sr", "sr", "r"], NOTHING),
        store("view-join", ViewModel::new(2, views::Budget { joins: 1, ..CALL })),
        store("view-restart", ViewModel::new(3, views::Budget { restarts: 1, ..CALL })),
        store("view-break", ViewModel::new(3, views::Budget { breaks: 1, ..CALL })),
        store("view-kill", ViewModel::new(3, views::Budget { calls: 0, ..DEATH })),
        store(
            "view-cut",
            ViewModel::new(3, views::Budget { cuts: 1, calls: 0, jumps: 12, ..CALL }).with_patience(),
        ),
        store(
            "view-join-restart",
            ViewModel::new(2, views::Budget { joins: 1, restarts: 1, calls: 0, ..CALL }),
        ),
        lease("lease-takeover", ReignModel::takeover(6)),
    ]
}

/// Minutes to hours: two faults of different kinds, three peers.
pub fn soak() -> Vec<Box<dyn Exploration>> {
    vec![
        run("two-breaks", &["r", "r"], Budget { breaks: 2, ..NOTHING }),
        run("two-breaks-once", &["o", "o"], Budget { breaks: 2, ..NOTHING }),
        run("two-break-restart", &["r", "r"], Budget { breaks: 1, restarts: 1, ..NOTHING }),
        run("two-break-restart-once", &["oo", "oo"], Budget { breaks: 1, restarts: 1, ..NOTHING }),
        run("two-kill-restart", &["rr", "rr"], Budget { kills: 1, restarts: 1, ..JUMPS }),
        run("two-restarts", &["r", "r"], Budget { restarts: 2, ..NOTHING }),
        run("two-sever-break", &["o", "o"], Budget { breaks: 1, ..SEVER }),
        run("two-cancel-break", &["oo", "oo"], Budget { breaks: 1, ..CANCEL }),
        run("two-cancel-restart", &["r", "r"], Budget { restarts: 1, ..CANCEL }),
        run("two-deadline-and-on", &["tr", "tr"], JUMP),
        run("two-deadline-break", &["t", "t"], Budget { breaks: 1, ..JUMP }),
        run("two-deadline-restart", &["t", "t"], Budget { restarts: 1, ..JUMP }),
        run("two-newcomer-kill", &["vr", "jr"], Budget { kills: 1, ..JUMPS }),
        run("two-newcomer-restart", &["vr", "jr"], Budget { restarts: 1, ..JUMPS }),
        run("three-newcomer", &["vr", "vr", "jr"], BREAK),
        run("three-scope-kill", &["sr", "sr", "r"], KILL),
        run("three-scope-restart", &["sr", "sr", "r"], RESTART),
        run("three-break", &["r", "r", "r"], BREAK),
        run("three-kill-once", &["oo", "oo", "oo"], KILL),
        run("three-break-kill", &["o", "o", "o"], Budget { breaks: 1, kills: 1, ..NOTHING }),
        run("three-restart", &["r", "r", "r"], RESTART),
        // Its states are large: two million of them take more than 24 GiB.
        run_within(
            800_000,
            "three-kill-restart",
            &["r", "r", "r"],
            Budget { kills: 1, restarts: 1, ..JUMPS },
        ),
        store("view-leave", ViewModel::new(3, views::Budget { leaves: 1, ..CALL })),
        store("view-kill-call", ViewModel::new(3, DEATH)),
        store("view-sever", ViewModel::new(3, views::Budget { severs: 1, jumps: 1, ..CALL })),
        store(
            "view-cut-call",
            ViewModel::new(3, views::Budget { cuts: 1, jumps: 12, ..CALL }).with_patience(),
        ),
        store("view-join-kill", ViewModel::new(2, views::Budget { joins: 1, calls: 0, ..DEATH })),
        store("view-calls", ViewModel::new(2, views::Budget { joins: 1, calls: 2, ..CALL })),
        store(
            "view-join-copy",
            ViewModel::new(2, views::Budget { joins: 1, calls: 2, ..CALL }).newcomer_is(Part::Replica),
        ),
        store("view-join-slow", ViewModel::new(2, views::Budget { joins: 1, ..CALL }).with_slow_leases()),
        store("view-join-kill-call", ViewModel::new(2, views::Budget { joins: 1, ..DEATH })),
        store("view-join-restart-call", ViewModel::new(2, views::Budget { joins: 1, restarts: 1, ..CALL })),
        store("view-join-break", ViewModel::new(2, views::Budget { joins: 1, breaks: 1, ..CALL })),
        store("view-join-sever", ViewModel::new(2, views::Budget { joins: 1, severs: 1, jumps: 1, ..CALL })),
        store("view-join-leave", ViewModel::new(2, views::Budget { joins: 1, leaves: 1, ..CALL })),
        store("view-leave-kill", ViewModel::new(3, views::Budget { leaves: 1, ..DEATH })),
        store("view-kill-restart", ViewModel::new(3, views::Budget { restarts: 1, ..DEATH })),
        store("view-kill-break", ViewModel::new(3, views::Budget { breaks: 1, ..DEATH })),
        store(
            "view-cut-restart",
            ViewModel::new(3, views::Budget { cuts: 1, restarts: 1, jumps: 12, ..CALL }),
        ),
        lease("lease-election", ReignModel::election(6, reign::Budget { breaks: 0, appeals: 0 })),
        lease("lease-election-break", ReignModel::election(6, reign::Budget { breaks: 1, appeals: 0 })),
        lease("lease-election-appeal", ReignModel::election(6, reign::Budget { breaks: 0, appeals: 1 })),
        lease("lease-takeover-long", ReignModel::takeover(8)),
    ]
}
