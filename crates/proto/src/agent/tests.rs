//! Call, then compare the drained actions.

use super::*;
use crate::time::{Duration, Instant};

const GRACE: Duration = Duration::from_secs(30);
const KILL: Ending = Ending::Killed(9);
const WELL: Ending = Ending::Exited(0);

fn at(seconds: f64) -> Instant {
    Instant::ORIGIN + Duration::from_secs_f64(seconds)
}

fn life(slot: usize, number: u32) -> Life {
    Life { slot, number }
}

fn drain(agent: &mut Agent) -> Vec<Action> {
    std::iter::from_fn(|| agent.poll_action()).collect()
}

/// What was asked for, without what is only told.
fn asked(agent: &mut Agent) -> Vec<Action> {
    drain(agent).into_iter().filter(|action| !matches!(action, Action::Tell(_))).collect()
}

/// An agent whose workers have all been started.
fn working(slots: usize, elastic: Elastic, budget: &str) -> Agent {
    let budget = budget.parse().expect("a budget");
    let mut agent = Agent::new(Config { slots, budget, elastic, grace: GRACE });
    assert_eq!(drain(&mut agent), [Action::Meet(0)]);
    agent.handle_met(at(0.0));
    let starts: Vec<_> = (0..slots).map(|slot| Action::Start(life(slot, 0))).collect();
    assert_eq!(drain(&mut agent), starts);
    agent
}

fn gone(agent: &mut Agent, seconds: f64, life: Life, ending: Ending) {
    agent.handle_ended(at(seconds), life, ending);
    agent.handle_cleared(at(seconds), life);
}

#[test]
fn only_what_died_is_replaced_and_at_once() {
    let mut agent = working(3, Elastic::Inplace, "3/600");
    agent.handle_ended(at(20.0), life(1, 0), KILL);
    let (lasted, pause) = (Duration::from_secs(20), Duration::ZERO);
    let told = [
        Action::Tell(Fact::Ended { life: life(1, 0), ending: KILL, lasted }),
        Action::Tell(Fact::Replacing { next: life(1, 1), pause, used: 1 }),
    ];
    assert_eq!(drain(&mut agent), told);
    agent.handle_cleared(at(20.1), life(1, 0));
    assert_eq!(drain(&mut agent), [Action::Start(life(1, 1))]);
    assert_eq!(agent.living_count(), 3);
}

#[test]
fn nobody_moves_in_before_the_last_one_is_cleared_away() {
    let mut agent = working(1, Elastic::Inplace, "3");
    agent.handle_ended(at(5.0), life(0, 0), KILL);
    agent.handle_timeout(at(100.0));
    assert_eq!(asked(&mut agent), []);
    agent.handle_cleared(at(101.0), life(0, 0));
    assert_eq!(asked(&mut agent), [Action::Start(life(0, 1))]);
}

#[test]
fn who_fails_at_once_waits_before_the_next_life() {
    let mut agent = working(1, Elastic::Inplace, "3");
    gone(&mut agent, 0.2, life(0, 0), Ending::Exited(1));
    assert_eq!(asked(&mut agent), []);
    let due = agent.poll_timeout().expect("a moment");
    assert_eq!(due, at(0.45));
    agent.handle_timeout(at(0.44));
    assert_eq!(asked(&mut agent), []);
    agent.handle_timeout(due);
    assert_eq!(asked(&mut agent), [Action::Start(life(0, 1))]);
}

#[test]
fn all_done_is_success_also_when_one_was_replaced() {
    let mut agent = working(2, Elastic::Inplace, "1");
    gone(&mut agent, 5.0, life(0, 0), KILL);
    assert_eq!(asked(&mut agent), [Action::Start(life(0, 1))]);
    gone(&mut agent, 6.0, life(1, 0), WELL);
    assert_eq!(asked(&mut agent), [], "one is still at work");
    gone(&mut agent, 7.0, life(0, 1), WELL);
    assert_eq!(asked(&mut agent), [Action::Finish(Outcome::Done)]);
}

#[test]
fn a_used_up_budget_ends_the_run_with_that_workers_code() {
    let mut agent = working(2, Elastic::Inplace, "1");
    gone(&mut agent, 5.0, life(0, 0), KILL);
    assert_eq!(asked(&mut agent), [Action::Start(life(0, 1))]);
    agent.handle_ended(at(9.0), life(0, 1), Ending::Exited(3));
    let failure = Failure { life: life(0, 1), ending: Ending::Exited(3), used: 1 };
    let drained = drain(&mut agent);
    assert_eq!(drained[1..], [Action::Tell(Fact::UsedUp(failure)), Action::Signal(life(1, 0), 15)]);
    agent.handle_cleared(at(9.0), life(0, 1));
    assert_eq!(asked(&mut agent), []);
    // What the others make of it changes nothing.
    gone(&mut agent, 10.0, life(1, 0), Ending::Exited(77));
    assert_eq!(asked(&mut agent), [Action::Finish(Outcome::Failed(failure))]);
}

#[test]
fn each_slot_has_a_budget_of_its_own() {
    let mut agent = working(2, Elastic::Inplace, "1");
    gone(&mut agent, 5.0, life(0, 0), KILL);
    gone(&mut agent, 6.0, life(1, 0), KILL);
    assert_eq!(asked(&mut agent), [Action::Start(life(0, 1)), Action::Start(life(1, 1))]);
}

#[test]
fn a_program_that_is_not_there_is_not_tried_again() {
    let mut agent = working(1, Elastic::Inplace, "100");
    gone(&mut agent, 0.0, life(0, 0), Ending::NotStarted { errno: 2, missing: true });
    let [Action::Finish(outcome)] = asked(&mut agent)[..] else { panic!("it is over") };
    assert_eq!(outcome.code(), 127);
}

#[test]
fn a_signal_is_passed_on_and_who_ignores_it_is_killed_after_the_grace_time() {
    let mut agent = working(2, Elastic::Inplace, "3");
    agent.handle_stop(at(1.0), 15);
    let signals = [Action::Signal(life(0, 0), 15), Action::Signal(life(1, 0), 15)];
    assert_eq!(asked(&mut agent), signals);
    gone(&mut agent, 2.0, life(0, 0), WELL);
    assert_eq!(agent.poll_timeout(), Some(at(31.0)));
    agent.handle_timeout(at(31.0));
    assert_eq!(drain(&mut agent), [Action::Tell(Fact::Killing(1)), Action::Kill(life(1, 0))]);
    gone(&mut agent, 31.0, life(1, 0), KILL);
    let [Action::Finish(outcome)] = asked(&mut agent)[..] else { panic!("it is over") };
    assert_eq!(outcome.code(), 143);
}

#[test]
fn who_cannot_even_be_killed_is_not_waited_for() {
    let mut agent = working(1, Elastic::Inplace, "3");
    agent.handle_stop(at(1.0), 15);
    agent.handle_timeout(at(31.0));
    drain(&mut agent);
    let next = agent.poll_timeout().expect("a moment");
    agent.handle_timeout(next);
    let drained = drain(&mut agent);
    assert_eq!(drained[0], Action::Tell(Fact::Unkillable(1)));
    assert!(matches!(drained[1], Action::Finish(outcome) if outcome.code() == 143));
}

#[test]
fn workers_that_finish_their_step_and_leave_are_no_error() {
    let mut agent = working(2, Elastic::Inplace, "3");
    agent.handle_stop(at(1.0), 15);
    gone(&mut agent, 2.0, life(0, 0), WELL);
    gone(&mut agent, 3.0, life(1, 0), WELL);
    assert_eq!(asked(&mut agent)[2..], [Action::Finish(Outcome::Stopped { signal: 15, worst: None })]);
}

#[test]
fn a_second_signal_does_not_wait() {
    let mut agent = working(1, Elastic::Inplace, "3");
    agent.handle_stop(at(1.0), 2);
    agent.handle_stop(at(1.5), 2);
    assert_eq!(asked(&mut agent), [Action::Signal(life(0, 0), 2), Action::Kill(life(0, 0))]);
}

#[test]
fn nobody_is_started_once_all_are_told_to_stop() {
    let mut agent = working(2, Elastic::Inplace, "3");
    agent.handle_ended(at(5.0), life(0, 0), KILL);
    agent.handle_stop(at(5.0), 2);
    agent.handle_cleared(at(6.0), life(0, 0));
    agent.handle_timeout(at(7.0));
    assert_eq!(asked(&mut agent), [Action::Signal(life(1, 0), 2)]);
    // The first one's work is not done, so this is no success, whatever the second one says.
    gone(&mut agent, 8.0, life(1, 0), WELL);
    let [Action::Finish(outcome)] = asked(&mut agent)[..] else { panic!("it is over") };
    assert_eq!(outcome.code(), 130);
}

#[test]
fn told_to_stop_before_anybody_was_started() {
    let mut agent =
        Agent::new(Config { slots: 2, budget: Budget::default(), elastic: Elastic::Restart, grace: GRACE });
    agent.handle_stop(at(0.0), 2);
    let last = asked(&mut agent).pop();
    assert_eq!(last, Some(Action::Finish(Outcome::Stopped { signal: 2, worst: Some(Ending::Killed(2)) })));
    agent.handle_met(at(1.0));
    agent.handle_stop(at(1.0), 2);
    assert_eq!(drain(&mut agent), []);
}

#[test]
fn restart_stops_all_and_starts_all_in_a_new_round() {
    let mut agent = working(3, Elastic::Restart, "1");
    agent.handle_ended(at(9.0), life(1, 0), Ending::Exited(1));
    assert_eq!(asked(&mut agent), [Action::Signal(life(0, 0), 15), Action::Signal(life(2, 0), 15)]);
    agent.handle_cleared(at(9.0), life(1, 0));
    // The others die of it; that costs them nothing.
    gone(&mut agent, 9.5, life(0, 0), Ending::Exited(1));
    gone(&mut agent, 9.6, life(2, 0), Ending::Killed(15));
    assert_eq!(asked(&mut agent), [Action::Meet(1)]);
    agent.handle_met(at(10.0));
    let starts: Vec<_> = (0..3).map(|slot| Action::Start(life(slot, 1))).collect();
    assert_eq!(asked(&mut agent), starts);
    agent.handle_ended(at(19.0), life(0, 1), Ending::Exited(1));
    assert!(drain(&mut agent).contains(&Action::Tell(Fact::NextRound(2))), "a budget of its own");
}

#[test]
fn a_round_of_workers_that_fail_at_once_begins_after_a_pause() {
    let mut agent = working(2, Elastic::Restart, "5");
    agent.handle_ended(at(0.1), life(0, 0), Ending::Exited(1));
    agent.handle_cleared(at(0.1), life(0, 0));
    gone(&mut agent, 0.2, life(1, 0), Ending::Killed(15));
    agent.handle_met(at(0.3));
    assert_eq!(asked(&mut agent)[1..], [Action::Meet(1)]);
    assert_eq!(agent.poll_timeout(), Some(at(0.45)));
    agent.handle_timeout(at(0.45));
    assert_eq!(asked(&mut agent), [Action::Start(life(0, 1)), Action::Start(life(1, 1))]);
}

#[test]
fn a_round_that_others_end_costs_no_budget() {
    let mut agent = working(1, Elastic::Restart, "0");
    for round in 1..10 {
        agent.handle_round_over(at(f64::from(round)));
        gone(&mut agent, f64::from(round), life(0, round - 1), Ending::Killed(15));
        agent.handle_met(at(f64::from(round)));
        let expected =
            [Action::Signal(life(0, round - 1), 15), Action::Meet(round), Action::Start(life(0, round))];
        assert_eq!(asked(&mut agent), expected);
    }
    gone(&mut agent, 20.0, life(0, 9), Ending::Exited(4));
    let [Action::Finish(outcome)] = asked(&mut agent)[..] else { panic!("it is over") };
    assert_eq!(outcome.code(), 4);
}

#[test]
fn too_few_nodes_stops_what_runs_and_says_so_in_its_code() {
    let mut agent = working(1, Elastic::Restart, "3");
    agent.handle_round_over(at(1.0));
    agent.handle_abandoned(at(1.0), Abandoned::TooFewNodes);
    gone(&mut agent, 2.0, life(0, 0), Ending::Killed(15));
    assert_eq!(asked(&mut agent).pop(), Some(Action::Finish(Outcome::Abandoned(Abandoned::TooFewNodes))));
}

#[test]
fn what_is_said_of_an_earlier_life_is_not_taken_for_the_present_one() {
    let mut agent = working(1, Elastic::Inplace, "3");
    gone(&mut agent, 5.0, life(0, 0), KILL);
    drain(&mut agent);
    gone(&mut agent, 6.0, life(0, 0), KILL);
    agent.handle_ended(at(6.0), life(0, 7), WELL);
    agent.handle_ended(at(6.0), life(7, 0), WELL);
    assert_eq!(drain(&mut agent), []);
    assert_eq!(agent.living_count(), 1);
}

/// Whatever comes in whatever order: told to stop, it ends within the grace time, and nobody is started twice.
#[test]
fn it_ends_within_the_grace_time_in_every_order() {
    let mut rng = crate::rng::Rng::from_seed(16);
    for _ in 0..2_000 {
        let elastic = if rng.below(2) == 0 { Elastic::Inplace } else { Elastic::Restart };
        let mut agent = working(3, elastic, "4/60");
        let mut living: Vec<Life> = (0..3).map(|slot| life(slot, 0)).collect();
        let mut leaving: Vec<Life> = Vec::new();
        let (mut now, mut told, mut over, mut unkillable) = (at(0.0), None, false, false);
        let stop_after = rng.below(40);
        for step in 0..400 {
            now += Duration::from_millis(rng.below(3_000) as u64);
            if step >= stop_after && told.is_none() {
                told = Some(now);
                agent.handle_stop(now, 15);
            } else if !leaving.is_empty() && rng.below(3) > 0 {
                let life = leaving.swap_remove(rng.below(leaving.len()));
                agent.handle_cleared(now, life);
            } else if !living.is_empty() && rng.below(4) == 0 {
                let life = living.swap_remove(rng.below(living.len()));
                leaving.push(life);
                agent.handle_ended(now, life, [WELL, KILL, Ending::Exited(1)][rng.below(3)]);
            } else if let Some(due) = agent.poll_timeout() {
                now = now.max(due);
                agent.handle_timeout(now);
            }
            while let Some(action) = agent.poll_action() {
                assert!(!over, "{action:?} after the end");
                match action {
                    Action::Start(life) => {
                        assert_eq!(told, None, "started after it was told to stop");
                        assert!(living.iter().chain(&leaving).all(|other| other.slot != life.slot));
                        living.push(life);
                    }
                    Action::Kill(life) => {
                        living.retain(|other| *other != life);
                        leaving.push(life);
                        agent.handle_ended(now, life, KILL);
                    }
                    Action::Meet(_) => agent.handle_met(now),
                    Action::Finish(_) => over = true,
                    Action::Tell(Fact::Unkillable(_)) => unkillable = true,
                    Action::Signal(..) | Action::Tell(_) => {}
                }
            }
            if over {
                break;
            }
        }
        assert!(over && living.is_empty() && (unkillable || leaving.is_empty()));
    }
}
