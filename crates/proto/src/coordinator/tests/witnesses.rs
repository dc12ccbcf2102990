//! Who may say that a process has ended, and about whom: rules 20a and 45.

use super::bench::*;
use crate::limits::WITNESSED_MAX;

const AGENT: u8 = 100;
const STRANGER: u8 = 101;

fn process(number: u8) -> ProcessName {
    ProcessName { pid: 1_000 + u32::from(number), start: 77 }
}

/// A peer that says which process it is and who started it.
fn started_by(agent: u8, number: u8) -> Registration {
    Registration {
        witness: Some(Witness { agent: id(agent), process: process(number) }),
        ..registration(number, 0, 2)
    }
}

/// Peers 1 and 2 of which the agent watches both.
fn watched() -> Bench {
    let mut bench = Bench::new();
    let at = bench.connection();
    bench.at.insert(AGENT, at);
    for number in [1, 2] {
        bench.say(AGENT, ToCoordinator::Watch { process: process(number) });
        let at = bench.connection();
        bench.at.insert(number, at);
        bench.say(number, ToCoordinator::Register(started_by(AGENT, number), 1, 0));
    }
    bench.confirm(&[1, 2], 1);
    bench.clear();
    bench
}

fn exited(number: u8) -> ToCoordinator {
    ToCoordinator::Exited { process: process(number) }
}

const SEEN: LossReason = LossReason::Dead(DeathReason::Exited);

#[test]
fn an_exit_that_its_agent_saw_is_a_death_at_once() {
    let mut bench = watched();
    bench.say(1, initiate(key(1, 0, 0)));
    bench.clear();
    bench.say(AGENT, exited(2));
    assert_eq!(bench.lost(), [(id(2), SEEN)]);
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1)]);
}

#[test]
fn nobody_can_testify_about_another_agents_worker() {
    let mut bench = watched();
    let at = bench.connection();
    bench.at.insert(STRANGER, at);
    // It says that it watches the process, and it may even be a peer itself.
    bench.say(STRANGER, ToCoordinator::Watch { process: process(2) });
    bench.say(STRANGER, exited(2));
    bench.say(1, ToCoordinator::Watch { process: process(2) });
    bench.say(1, exited(2));
    assert_eq!(bench.lost(), []);
    assert!(bench.run.knows(id(2)));
}

#[test]
fn an_agent_that_said_nothing_before_is_not_believed() {
    let mut bench = watched();
    // Another process of the same name as the agent, or its old connection: it has watched nothing there.
    let other = bench.connection();
    bench.at.insert(AGENT, other);
    bench.say(AGENT, exited(2));
    assert_eq!(bench.lost(), []);
}

#[test]
fn a_worker_in_a_wrapper_is_not_taken_for_the_wrapper() {
    let mut bench = watched();
    bench.say(AGENT, ToCoordinator::Watch { process: process(9) });
    bench.say(AGENT, exited(9));
    // The same number, started at another moment: another process.
    let later = ProcessName { start: 78, ..process(2) };
    bench.say(AGENT, ToCoordinator::Watch { process: later });
    bench.say(AGENT, ToCoordinator::Exited { process: later });
    assert_eq!(bench.lost(), []);
}

#[test]
fn a_registration_that_arrives_after_the_end_is_lost_at_once() {
    let mut bench = watched();
    bench.say(AGENT, ToCoordinator::Watch { process: process(3) });
    bench.say(AGENT, exited(3));
    let at = bench.connection();
    bench.at.insert(3, at);
    bench.say(3, ToCoordinator::Register(started_by(AGENT, 3), 1, 0));
    assert_eq!(bench.lost(), [(id(3), SEEN)]);
}

#[test]
fn a_later_session_that_is_another_process_is_not_touched() {
    let mut bench = watched();
    // The same peer in a later session, without an agent or as another process (with an own authority names stay).
    let at = bench.connection();
    bench.at.insert(2, at);
    let mut session = [2; 16];
    session[15] += 1;
    let again = Registration { session: SessionId(session), witness: None, ..registration(2, 0, 2) };
    bench.say(2, ToCoordinator::Register(again, 2, 1));
    bench.clear();
    let known = bench.lost().len();
    bench.say(AGENT, exited(2));
    assert_eq!(bench.lost().len(), known, "the end of an earlier session says nothing of this one");
}

#[test]
fn an_agent_that_hangs_up_is_forgotten_and_condemns_nobody() {
    let mut bench = watched();
    bench.close(AGENT);
    assert_eq!(bench.lost(), []);
    bench.say(AGENT, exited(2));
    assert_eq!(bench.lost(), []);
    // It comes back, and says again what it watches.
    let at = bench.connection();
    bench.at.insert(AGENT, at);
    bench.say(AGENT, ToCoordinator::Watch { process: process(2) });
    bench.say(AGENT, exited(2));
    assert_eq!(bench.lost(), [(id(2), SEEN)]);
}

#[test]
fn one_agent_cannot_fill_the_coordinator() {
    let mut bench = watched();
    for pid in 0..2 * WITNESSED_MAX as u32 {
        bench.say(AGENT, ToCoordinator::Watch { process: ProcessName { pid, start: 1 } });
    }
    assert!(bench.closed.contains(&bench.at[&AGENT]), "it is told to go");
    assert!(bench.run.footprint() < 2 * WITNESSED_MAX);
    assert_eq!(bench.lost(), [], "and nobody suffers for it");
}
