//! Who is put out, and who is not: rules 20 and 21.

use super::bench::*;

/// A group whose kernels have shown that their refusals mean something, and of whom the health plane has yet to hear.
fn unheard(numbers: &[u8]) -> Bench {
    let mut bench = Bench::new();
    for number in numbers {
        bench.register(*number, 0, numbers.len() as u32);
    }
    bench.confirm(numbers, 1);
    bench.answer_knocks(ConnectOutcome::Accepted);
    bench.wait(ms(1));
    bench.clear();
    bench
}

/// The same when all have answered the health plane.
fn trusted(numbers: &[u8]) -> Bench {
    let mut bench = unheard(numbers);
    for number in numbers {
        bench.health(*number, Sign::Alive { acked: Some(bench.now) });
    }
    bench
}

const ALIVE: Sign = Sign::Alive { acked: None };

#[test]
fn an_exit_that_was_seen_evicts_at_once() {
    let mut bench = trusted(&[1, 2]);
    bench.health(2, Sign::Dead(DeathReason::Exited));
    assert_eq!(bench.lost(), [(id(2), LossReason::Dead(DeathReason::Exited))]);
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1)]);
}

#[test]
fn a_closed_connection_and_a_refusal_evict_after_a_probe_timeout() {
    let mut bench = trusted(&[1, 2]);
    bench.close(2);
    bench.answer_knocks(ConnectOutcome::Refused);
    assert_eq!(bench.looks, [id(2), id(2)], "it is asked itself, too: at the close and at the refusal");
    bench.wait(ms(49));
    assert_eq!(bench.lost(), []);
    bench.wait(ms(1));
    assert_eq!(bench.lost(), [(id(2), LossReason::Killed)]);
}

#[test]
fn a_refusal_says_nothing_of_a_member_that_the_health_plane_has_not_heard_in_this_session() {
    // A reset, and a firewall that refuses, in the first moments of a member that lives: nobody could have missed it yet.
    for answered_before in [false, true] {
        let mut bench = unheard(&[1, 2]);
        if answered_before {
            // That was another session, whose answers say nothing of this one's silence (rule 45).
            bench.health(2, Sign::Alive { acked: Some(bench.now - ms(2)) });
        }
        bench.close(2);
        bench.answer_knocks(ConnectOutcome::Refused);
        bench.health(2, Sign::Dead(DeathReason::Refused));
        bench.wait(ms(1_999));
        assert_eq!(bench.lost(), [], "answered before: {answered_before}");
        // Whoever was killed then does not come back, and is missed no later than that (rule 20c).
        bench.wait(ms(1));
        assert_eq!(bench.lost(), [(id(2), LossReason::NotResumed)]);
    }
}

#[test]
fn an_answer_that_is_told_after_the_refusal_and_was_given_before_it_lets_the_refusal_count() {
    let mut bench = unheard(&[1, 2]);
    bench.wait(ms(1));
    let acked = bench.now;
    bench.wait(ms(1));
    bench.close(2);
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(20));
    // By now it is missed.
    bench.run.handle_answer(id(2), acked);
    bench.health(2, Sign::Suspect);
    bench.wait(ms(30));
    assert_eq!(bench.lost(), [(id(2), LossReason::Killed)]);
}

#[test]
fn a_coordinator_that_stood_still_asks_again_before_it_evicts() {
    let mut bench = trusted(&[1, 2]);
    bench.close(2);
    bench.answer_knocks(ConnectOutcome::Refused);
    // The whole machine froze: nobody could answer, and nobody could hear it.
    bench.sleep(ms(300));
    assert_eq!(bench.lost(), []);
    assert_eq!(bench.looks.len(), 3, "it is asked once more");
    bench.wait(ms(49));
    assert_eq!(bench.lost(), []);
    bench.wait(ms(1));
    assert_eq!(bench.lost(), [(id(2), LossReason::Killed)]);
}

#[test]
fn a_port_that_still_accepts_is_asked_again() {
    let mut bench = trusted(&[1, 2]);
    bench.close(2);
    bench.answer_knocks(ConnectOutcome::Accepted);
    bench.wait(ms(60));
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(60));
    assert_eq!(bench.lost(), [(id(2), LossReason::Killed)]);
}

#[test]
fn an_answer_after_the_refusal_cancels_it() {
    let mut bench = trusted(&[1, 2]);
    bench.close(2);
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(20));
    bench.health(2, Sign::Alive { acked: Some(bench.now) });
    bench.wait(ms(100));
    bench.answer_knocks(ConnectOutcome::Accepted);
    assert_eq!(bench.lost(), []);
    bench.resume(2, resume(2, record(1, &[1, 2])));
    bench.wait(ms(60_000));
    assert_eq!(bench.lost(), []);
}

/// A firewall resets all that a member says over TCP and refuses for it, and on a busy machine one of its answers comes too late.
/// It was put out though it lived.
#[test]
fn who_answers_after_its_connection_closed_is_missed_by_others_or_not_at_all() {
    let mut bench = trusted(&[1, 2]);
    bench.close(2);
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(40));
    bench.health(2, Sign::Alive { acked: Some(bench.now) });
    bench.wait(ms(60));
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(1_000));
    assert_eq!(bench.lost(), [], "it was not killed when its connection closed");
    // Now it is: two others have asked its kernel, and nobody has heard it.
    bench.health(2, Sign::Dead(DeathReason::Refused));
    assert_eq!(bench.lost(), [(id(2), LossReason::Dead(DeathReason::Refused))]);
    // And the same of its next connection.
    let mut bench = trusted(&[1, 2]);
    bench.close(2);
    bench.wait(ms(40));
    bench.health(2, Sign::Alive { acked: Some(bench.now) });
    bench.resume(2, resume(2, record(1, &[1, 2])));
    bench.close(2);
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(50));
    assert_eq!(bench.lost(), [(id(2), LossReason::Killed)]);
}

/// What it said last may be read after its connection closed.
#[test]
fn a_last_word_is_no_answer_after_the_end() {
    let mut bench = trusted(&[1, 2]);
    bench.close(2);
    bench.wait(ms(5));
    bench.health(2, Sign::Alive { acked: Some(bench.now) });
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(50));
    assert_eq!(bench.lost(), [(id(2), LossReason::Killed)]);
}

#[test]
fn a_refusal_is_not_believed_of_a_kernel_that_was_not_tried() {
    let mut bench = Bench::of(&[1, 2]);
    bench.close(2);
    assert_eq!(bench.knocks, []);
    bench.health(2, ALIVE);
    bench.wait(ms(9_900));
    assert_eq!(bench.lost(), []);
    bench.wait(ms(200));
    assert_eq!(bench.lost(), [(id(2), LossReason::NotResumed)], "control_lost_after, whatever health says");
}

#[test]
fn a_refusal_alone_does_not_outweigh_an_open_connection() {
    let mut bench = trusted(&[1, 2]);
    bench.health(2, Sign::Dead(DeathReason::Refused));
    assert_eq!(bench.lost(), []);
    bench.close(2);
    assert_eq!(bench.lost(), [(id(2), LossReason::Dead(DeathReason::Refused))]);
}

#[test]
fn who_does_not_resume_within_its_grace_and_is_not_called_alive_is_out() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.close(2);
    bench.health(2, Sign::Suspect);
    bench.wait(ms(1_999));
    assert_eq!(bench.lost(), []);
    bench.wait(ms(1));
    assert_eq!(bench.lost(), [(id(2), LossReason::NotResumed)]);
    // A stalled one has its kernel's word: it has until control_lost_after.
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.close(2);
    bench.health(2, Sign::Stalled);
    bench.wait(ms(9_999));
    assert_eq!(bench.lost(), []);
}

#[test]
fn the_health_planes_deaths_are_believed_and_its_doubts_are_not() {
    for reason in
        [DeathReason::StalledTooLong, DeathReason::Silent, DeathReason::SilentTooLong, DeathReason::Deaf]
    {
        let mut bench = Bench::of(&[1, 2, 3]);
        bench.health(2, Sign::Suspect);
        bench.wait(ms(60_000));
        bench.health(2, Sign::Stalled);
        bench.wait(ms(60_000));
        assert_eq!(bench.lost(), [], "{reason:?}");
        bench.health(2, Sign::Dead(reason));
        assert_eq!(bench.lost(), [(id(2), LossReason::Dead(reason))]);
    }
    // Our own eviction, under an earlier registration, is no evidence.
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.health(2, Sign::Dead(DeathReason::Evicted));
    assert_eq!(bench.lost(), []);
}

#[test]
fn who_is_alive_and_does_not_call_stays() {
    let mut bench = Bench::of(&[1, 2]);
    for seq in 0..20 {
        bench.say(1, initiate(key(1, 0, seq)));
        bench.wait(ms(10_000));
    }
    assert_eq!(bench.lost(), []);
    assert_eq!(bench.run.counters().aborts, 20);
}

#[test]
fn when_most_fall_silent_at_once_the_coordinator_doubts_itself_first() {
    let mut bench = Bench::of(&[1, 2, 3]);
    for number in [2, 3] {
        bench.health(number, Sign::Suspect);
    }
    bench.health(2, Sign::Dead(DeathReason::Silent));
    assert_eq!(bench.lost(), []);
    assert!(bench.notes.contains(&Note::Frozen));
    bench.health(3, Sign::Dead(DeathReason::SilentTooLong));
    bench.wait(ms(4_900));
    assert_eq!(bench.lost(), []);
    // One of them is heard of again; the other had its time.
    bench.health(3, ALIVE);
    bench.wait(ms(200));
    assert_eq!(bench.lost(), [(id(2), LossReason::Dead(DeathReason::Silent))]);
}

#[test]
fn when_most_connections_are_lost_with_their_peers_silent_it_doubts_itself_too() {
    let mut bench = Bench::of(&[1, 2, 3]);
    for number in [2, 3] {
        bench.close(number);
        bench.health(number, Sign::Suspect);
    }
    bench.wait(ms(6_900));
    assert_eq!(bench.lost(), []);
    bench.wait(ms(200));
    assert_eq!(bench.lost().len(), 2);
}

#[test]
fn certain_deaths_are_not_frozen() {
    let mut bench = trusted(&[1, 2, 3]);
    for number in [2, 3] {
        bench.close(number);
        bench.health(number, Sign::Suspect);
    }
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(50));
    assert_eq!(bench.lost(), [(id(2), LossReason::Killed), (id(3), LossReason::Killed)]);
}

#[test]
fn a_newcomer_that_goes_before_it_is_in_disturbs_nobody() {
    let mut bench = Bench::of(&[1]);
    bench.register(2, 0, 1);
    bench.close(2);
    assert_eq!(bench.lost(), [(id(2), LossReason::Disconnected)]);
    bench.say(1, vote(1, 2));
    bench.assert_told(&[1], &[agreed(1, 1, 2)]);
}

#[test]
fn a_goodbye_is_no_failure() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(2, ToCoordinator::Leave { for_good: true });
    assert_eq!(bench.run.counters().evictions, 0);
    assert_eq!(bench.kicked(2), None);
    assert_eq!(bench.epoch(1).unwrap().left, [(id(2), LossReason::Left)]);
}

#[test]
fn a_group_that_everybody_left_is_forgotten_and_its_numbers_go_on() {
    let mut bench = Bench::of(&[1]);
    bench.say(1, ToCoordinator::Leave { for_good: true });
    assert!(bench.run.is_empty());
    bench.register(2, 0, 1);
    assert_eq!(bench.epoch(2).unwrap().epoch, 2);
}

#[test]
fn the_others_timeouts_put_nobody_out_who_is_away_for_a_while() {
    let mut bench = Bench::of(&[1, 2]);
    bench.health(2, Sign::Alive { acked: None });
    bench.close(2);
    for seq in 0..1_000 {
        let key = key(1, 0, seq);
        bench.say(1, ToCoordinator::Initiate { key, fingerprint: call(8), timeout_ms: 0 });
    }
    bench.wait(ms(5_000));
    assert_eq!(bench.lost(), []);
    bench.resume(2, resume(2, record(1, &[1, 2])));
    let verdicts = bench.told(2).into_iter().filter_map(|told| match told {
        ToPeer::Verdict { key, verdict: Verdict::Abort(AbortReason::Timeout(_)) } => Some(key.seq),
        _ => None,
    });
    assert!(verdicts.eq(0..1_000));
}
