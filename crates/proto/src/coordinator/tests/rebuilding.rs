//! A restarted coordinator: rule 17.

use super::bench::*;

const COMMIT: Verdict = Verdict::Commit { pending: 3 };

/// These members of epoch 1 resume at a coordinator that knows nothing.
fn rebuilt(resumes: Vec<(u8, Vec<TagReport>)>) -> Bench {
    let numbers: Vec<u8> = resumes.iter().map(|(number, _)| *number).collect();
    let mut bench = Bench::new();
    for (number, tags) in resumes {
        bench.resume(number, Resume { tags, ..resume(number, record(1, &numbers)) });
    }
    bench
}

fn verdicts(bench: &mut Bench, number: u8) -> Vec<ToPeer> {
    let told = bench.told(number);
    told.into_iter().filter(|message| matches!(message, ToPeer::Verdict { .. })).collect()
}

#[test]
fn nothing_is_decided_before_everybody_has_resumed() {
    let mut bench = Bench::new();
    let tags = vec![open(key(1, 0, 0), true)];
    bench.resume(1, Resume { tags: tags.clone(), ..resume(1, record(1, &[1, 2])) });
    bench.wait(ms(1_000));
    bench.assert_told(&[1], &[ToPeer::Resumed { term: 2 }]);
    bench.resume(2, Resume { tags, ..resume(2, record(1, &[1, 2])) });
    let proceed = ToPeer::Proceed { group: 0, epoch: 1 };
    let committed = ToPeer::Verdict { key: key(1, 0, 0), verdict: Verdict::Commit { pending: 0 } };
    bench.assert_told(&[1], &[committed.clone(), proceed.clone()]);
    bench.assert_told(&[2], &[ToPeer::Resumed { term: 2 }, committed, proceed]);
}

#[test]
fn a_known_commit_stands() {
    let mut bench =
        rebuilt(vec![(1, vec![learned(key(1, 0, 0), COMMIT)]), (2, vec![open(key(1, 0, 0), true)])]);
    assert_eq!(verdicts(&mut bench, 2), [ToPeer::Verdict { key: key(1, 0, 0), verdict: COMMIT }]);
    assert_eq!(verdicts(&mut bench, 1), []);
    // The next number is the next.
    bench.all_say(&[1, 2], &initiate(key(1, 0, 1)));
    bench.all_say(&[1, 2], &ToCoordinator::Complete { key: key(1, 0, 1) });
    assert_eq!(verdicts(&mut bench, 1), [commit(key(1, 0, 1))]);
}

#[test]
fn a_known_abort_stands_and_keeps_its_reason() {
    let reason = AbortReason::Timeout(Vec::new());
    let known = learned(key(1, 0, 0), Verdict::Abort(reason.clone()));
    let mut bench = rebuilt(vec![(1, vec![known]), (2, vec![open(key(1, 0, 0), true)])]);
    assert_eq!(verdicts(&mut bench, 2), [abort(key(1, 0, 0), reason)]);
}

#[test]
fn a_member_that_has_not_completed_makes_the_attempt_void() {
    let mut bench =
        rebuilt(vec![(1, vec![open(key(1, 0, 0), true)]), (2, vec![open(key(1, 0, 0), false)]), (3, vec![])]);
    for number in [1, 2, 3] {
        assert_eq!(verdicts(&mut bench, number), [abort(key(1, 0, 0), AbortReason::Void)], "peer {number}");
    }
}

#[test]
fn the_dead_do_not_hold_up_a_result_that_all_survivors_hold() {
    let mut bench = Bench::new();
    let tags = vec![open(key(1, 0, 0), true)];
    for number in [1, 2] {
        bench.resume(number, Resume { tags: tags.clone(), ..resume(number, record(1, &[1, 2, 3])) });
    }
    bench.clear();
    bench.wait(ms(2_000));
    assert_eq!(bench.lost(), [(id(3), LossReason::NotResumed)]);
    let told = bench.told(1);
    let [verdict, ToPeer::Epoch(record), proceed] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*proceed, ToPeer::Proceed { group: 0, epoch: 1_001 });
    assert_eq!(*verdict, commit(key(1, 0, 0)));
    assert_eq!((record.epoch, members(record)), (1_001, vec![id(1), id(2)]));
}

#[test]
fn a_member_that_stood_still_before_we_came_is_not_missed_like_a_silent_one() {
    let mut bench = Bench::new();
    let before = bench.now;
    bench.wait(ms(1_000));
    bench.resume(1, resume(1, record(1, &[1, 2])));
    // Its kernel answers the health plane, which knows since when: before it was expected here.
    let now = bench.now;
    bench.run.handle_health_since(now, id(2), Sign::Stalled, before);
    bench.wait(ms(9_999));
    assert_eq!(bench.lost(), []);
    // It goes on, and what was said of it before is over.
    bench.resume(2, resume(2, record(1, &[1, 2])));
    let now = bench.now;
    bench.run.handle_health_since(now, id(2), Sign::Dead(DeathReason::SilentTooLong), before);
    bench.wait(ms(5_000));
    assert_eq!(bench.lost(), []);
    assert_eq!(bench.told(2).last(), Some(&ToPeer::Proceed { group: 0, epoch: 1 }));
}

#[test]
fn who_missed_the_verdict_of_a_rebuild_is_told_when_it_comes_back() {
    // Two die, one is cut off again before it hears anything: the verdict is kept for it alone.
    let mut bench = Bench::new();
    let tags = vec![open(key(1, 0, 0), true)];
    for number in [1, 2, 3] {
        bench.resume(number, Resume { tags: tags.clone(), ..resume(number, record(1, &[1, 2, 3, 4, 5])) });
    }
    bench.close(3);
    bench.clear();
    bench.health(3, Sign::Alive { acked: None });
    bench.health(4, Sign::Dead(DeathReason::Exited));
    bench.health(5, Sign::Dead(DeathReason::Exited));
    bench.all_say(&[1, 2], &ToCoordinator::Acknowledge { key: key(1, 0, 0) });
    bench.resume(3, Resume { tags, generation: 3, ..resume(3, record(1, &[1, 2, 3, 4, 5])) });
    assert_eq!(verdicts(&mut bench, 3), [commit(key(1, 0, 0))]);
}

#[test]
fn members_that_lag_an_epoch_catch_up() {
    // The old coordinator had told 1 of the next epoch, and of nothing that 2 and 3 still wait for.
    let mut bench = Bench::new();
    let next = EpochRecord { left: vec![(id(4), LossReason::Left)], ..record(2, &[1, 2, 3]) };
    bench.resume(2, Resume { tags: vec![open(key(1, 0, 0), true)], ..resume(2, record(1, &[1, 2, 3, 4])) });
    bench.resume(1, resume(1, next));
    bench.resume(3, Resume { tags: vec![open(key(1, 0, 0), true)], ..resume(3, record(1, &[1, 2, 3, 4])) });
    for number in [2, 3] {
        let told = bench.told(number);
        let [.., verdict, ToPeer::Epoch(record), proceed] = &told[..] else { panic!("{told:?}") };
        assert_eq!(*proceed, ToPeer::Proceed { group: 0, epoch: 2 });
        assert_eq!(*verdict, abort(key(1, 0, 0), AbortReason::Void));
        assert_eq!((record.epoch, members(record)), (2, vec![id(1), id(2), id(3)]));
    }
    let told = bench.told(1);
    assert_eq!(told[1..], [ToPeer::Proceed { group: 0, epoch: 2 }], "it is in no such attempt any more");
    // The one that is only in the old roster had been evicted.
    bench.resume(4, resume(4, record(1, &[1, 2, 3, 4])));
    assert_eq!(bench.kicked(4).unwrap().0, KickReason::Evicted);
}

/// The connection to the old coordinator broke between the newest epoch and what had been decided before it (rule 43).
#[test]
fn who_knows_the_newest_epoch_and_not_what_fell_before_it_is_told() {
    let timeout = || AbortReason::Timeout(Vec::new());
    let missed = || learned(key(2, 0, 0), Verdict::Abort(timeout()));
    let back = |behind_from, remembers_from| {
        let mut bench = Bench::new();
        bench.resume(1, Resume { tags: vec![missed()], ..resume(1, record(3, &[1, 2])) });
        let late = resume(2, record(3, &[1, 2]));
        bench.resume(2, Resume { remembers_from, behind_from, ..late });
        bench
    };
    let mut bench = back(Some(2), 0);
    assert_eq!(verdicts(&mut bench, 2), [abort(key(2, 0, 0), timeout())]);
    // One that was let in with epoch 3 was in no earlier call.
    let mut bench = back(None, 0);
    assert_eq!(verdicts(&mut bench, 2), []);
    // One that has forgotten what it heard cannot say whether it heard this.
    let mut bench = back(Some(2), 3);
    assert_eq!(bench.kicked(2).unwrap().0, KickReason::Evicted);
}

#[test]
fn a_newer_record_puts_out_whom_it_does_not_know_even_if_it_resumed_first() {
    let mut bench = Bench::new();
    bench.resume(4, resume(4, record(1, &[1, 4])));
    bench.resume(1, resume(1, record(2, &[1])));
    assert_eq!(bench.kicked(4).unwrap().0, KickReason::Evicted);
    bench.all_say(&[1], &initiate(key(2, 0, 0)));
    bench.all_say(&[1], &ToCoordinator::Complete { key: key(2, 0, 0) });
    assert_eq!(verdicts(&mut bench, 1), [commit(key(2, 0, 0))]);
}

#[test]
fn who_denies_a_known_commit_lies_and_is_kicked() {
    let mut bench = rebuilt(vec![
        (1, vec![learned(key(1, 0, 0), COMMIT)]),
        (2, vec![learned(key(1, 0, 0), COMMIT)]),
        (3, vec![open(key(1, 0, 0), false)]),
    ]);
    assert_eq!(bench.kicked(3).unwrap().0, KickReason::Breach);
    assert!(bench.notes.contains(&Note::Contradiction(id(3))));
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1), id(2)]);
}

#[test]
fn a_commit_that_most_deny_is_the_lie() {
    let mut bench = rebuilt(vec![
        (1, vec![learned(key(1, 0, 0), COMMIT)]),
        (2, vec![open(key(1, 0, 0), false)]),
        (3, vec![]),
    ]);
    assert_eq!(bench.kicked(1).unwrap().0, KickReason::Breach);
    // Its word is not heard: the others are told that the attempt is void.
    assert_eq!(verdicts(&mut bench, 2), [abort(key(1, 0, 0), AbortReason::Void)]);
}

#[test]
fn messages_wait_until_everything_is_decided_and_keep_their_order() {
    let mut bench = Bench::new();
    bench.resume(1, resume(1, record(1, &[1, 2])));
    bench.say(1, initiate(key(1, 0, 0)));
    bench.say(1, ToCoordinator::Complete { key: key(1, 0, 0) });
    bench.resume(2, resume(2, record(1, &[1, 2])));
    bench.clear();
    bench.say(2, initiate(key(1, 0, 0)));
    bench.say(2, ToCoordinator::Complete { key: key(1, 0, 0) });
    bench.assert_told(&[1, 2], &[commit(key(1, 0, 0))]);
}

#[test]
fn the_term_is_above_any_that_was_obeyed() {
    let mut bench = Bench::new();
    bench.resume(1, Resume { term: 4, ..resume(1, record(1, &[1, 2])) });
    bench.assert_told(&[1], &[ToPeer::Resumed { term: 5 }]);
    bench.resume(2, Resume { term: 7, ..resume(2, record(1, &[1, 2])) });
    assert_eq!(bench.told(1)[0], ToPeer::Resumed { term: 8 });
    assert_eq!(bench.told(2)[0], ToPeer::Resumed { term: 8 });
}

#[test]
fn the_end_of_a_vote_that_some_know_is_told_to_the_others() {
    let mut bench = Bench::new();
    let done = heard(2, 2);
    bench.resume(
        1,
        Resume { ballots: done, tags: vec![open(key(1, 0, 0), false)], ..resume(1, record(1, &[1, 2])) },
    );
    bench.resume(2, Resume { ballots: standing(1), ..resume(2, record(1, &[1, 2])) });
    let told = bench.told(2);
    let wanted = agreed(1, 2, 2);
    assert!(told.contains(&wanted), "{told:?}");
    bench.all_say(&[1, 2], &initiate(key(1, 0, 1)));
    assert!(
        !bench
            .told(2)
            .iter()
            .any(|told| matches!(told, ToPeer::BallotEnded { end: BallotEnd::Mismatch { .. }, .. }))
    );
}

#[test]
fn a_member_that_does_not_know_it_was_admitted_begins_again() {
    // The old coordinator had told 1 of the epoch with 3 in it, and died before telling 3.
    let mut bench = Bench::new();
    bench.resume(1, Resume { ballots: standing(1), ..resume(1, record(2, &[1, 3])) });
    bench.register(3, 0, 1);
    assert_eq!(bench.kicked(3), None);
    bench.wait(ms(2_000));
    let record = bench.epoch(1).unwrap();
    assert_eq!(members(&record), [id(1), id(3)]);
    // The other way round: it registers first, and waits; then its old membership turns up.
    let mut bench = Bench::new();
    bench.register(3, 0, 5);
    bench.resume(1, resume(1, self::record(2, &[1, 3])));
    assert_eq!(bench.kicked(3), None, "it did nothing wrong, and waits to be let in");
    bench.wait(ms(2_000));
    let record = bench.epoch(1).unwrap();
    assert_eq!((record.epoch, members(&record)), (1_001, vec![id(1)]));
}

#[test]
fn resumes_that_cannot_be_true_are_turned_away() {
    let sound = || resume(1, record(3, &[1, 2]));
    let foreign_scope = OpKey { scope: Scope::Members(vec![id(2)]), ..key(1, 0, 0) };
    let mut twice = record(3, &[1, 2]);
    twice.roster.push(info(2));
    twice.ring.push(2);
    let lies = [
        Resume { record: record(3, &[2]), ..sound() },
        Resume { record: EpochRecord { group: 7, ..record(3, &[1, 2]) }, ..sound() },
        Resume { record: twice, ..sound() },
        Resume { tags: vec![open(key(4, 0, 0), true)], ..sound() },
        Resume { tags: vec![learned(key(1, 0, u64::MAX), COMMIT)], ..sound() },
        Resume { tags: vec![open(foreign_scope, true)], ..sound() },
        Resume { record: record(u64::MAX, &[1, 2]), ..sound() },
        Resume { term: u64::MAX, ..sound() },
        Resume { ballots: heard(1, 2), ..sound() },
        Resume { behind_from: Some(4), ..sound() },
        Resume { registration: registration(2, 0, 1), ..sound() },
        Resume {
            registration: Registration { session: SessionId([0; 16]), ..registration(1, 0, 1) },
            ..sound()
        },
    ];
    for lie in lies {
        let mut bench = Bench::new();
        bench.resume(1, lie.clone());
        assert_eq!(bench.kicked(1).map(|(reason, _)| reason), Some(KickReason::Breach), "{lie:?}");
        assert!(bench.run.is_empty());
    }
}

#[test]
fn a_resume_is_heard_only_with_the_promise_to_obey_no_lower_term() {
    // Without it the peer could go back to the old coordinator and be told something else.
    let mut bench = Bench::new();
    let (at, now) = (bench.connection(), bench.now);
    let tags = vec![open(key(1, 0, 0), true)];
    let unheard = Resume { tags: tags.clone(), ..resume(1, record(1, &[1, 2])) };
    bench.resume(2, Resume { tags, ..resume(2, record(1, &[1, 2])) });
    bench.run.handle_message(now, at, id(1), ToCoordinator::Resume(unheard));
    bench.at.insert(1, at);
    bench.drain();
    bench.assert_told(&[1], &[ToPeer::Resumed { term: 2 }]);
    bench.say(1, ToCoordinator::Promise { term: 1 });
    bench.assert_told(&[1], &[]);
    bench.say(1, ToCoordinator::Promise { term: 2 });
    bench.assert_told(&[1], &[commit(key(1, 0, 0)), ToPeer::Proceed { group: 0, epoch: 1 }]);
}

#[test]
fn who_waits_for_what_nobody_remembers_joins_anew() {
    // 1 has learned so much since that it has forgotten how the attempt ended in which 2 still is.
    let abort = |seq| (key(1, 0, seq), Verdict::Abort(AbortReason::Timeout(Vec::new())));
    let since = TagReport { learned: (5..13).map(abort).collect(), open: None };
    let mut bench = rebuilt(vec![(1, vec![since.clone()]), (2, vec![open(key(1, 0, 0), true)])]);
    assert_eq!(bench.kicked(2).unwrap().0, KickReason::Evicted);
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1)]);
    // The last commit is never forgotten; but what came between it and the rest is.
    let after_commit = |first: u64| {
        let learned = (first..first + 8).map(abort);
        TagReport { learned: [(key(1, 0, 0), COMMIT)].into_iter().chain(learned).collect(), open: None }
    };
    let mut bench = rebuilt(vec![(1, vec![after_commit(5)]), (2, vec![open(key(1, 0, 0), true)])]);
    assert_eq!(bench.kicked(2).unwrap().0, KickReason::Evicted);
    let mut bench = rebuilt(vec![(1, vec![after_commit(1)]), (2, vec![open(key(1, 0, 0), true)])]);
    let told = verdicts(&mut bench, 2);
    assert_eq!(told[0], ToPeer::Verdict { key: key(1, 0, 0), verdict: COMMIT });
    assert_eq!(told.len(), 9);
    // So it is for one that waits for nothing: its next call would end as another one of theirs did.
    let heard = TagReport { learned: vec![abort(3)], open: None };
    let mut bench = rebuilt(vec![(1, vec![since.clone()]), (2, vec![heard])]);
    assert_eq!(bench.kicked(2).unwrap().0, KickReason::Evicted);
    // What a third remembers is enough.
    let third = TagReport { learned: (1..9).map(abort).collect(), open: None };
    let heard = TagReport { learned: vec![abort(1)], open: None };
    let resumes = [(1, since), (2, heard), (3, third)];
    let mut bench = Bench::new();
    for (number, report) in resumes {
        bench.resume(number, Resume { tags: vec![report], ..resume(number, record(1, &[1, 2, 3])) });
    }
    assert_eq!(verdicts(&mut bench, 2).len(), 11);
    assert_eq!(verdicts(&mut bench, 3).len(), 4);
    // One that has made room for other tags says so, and is not taken for one that never knew.
    let mut bench = Bench::new();
    bench.resume(2, Resume { tags: vec![open(key(1, 0, 0), true)], ..resume(2, record(1, &[1, 2])) });
    bench.resume(
        1,
        Resume { remembers_from: 2, ..resume(1, EpochRecord { founder: founder(1), ..record(2, &[1, 2]) }) },
    );
    assert_eq!(bench.kicked(2).unwrap().0, KickReason::Evicted);
}

#[test]
fn the_size_of_the_run_does_not_shrink_while_other_groups_are_on_their_way_back() {
    let mut bench = Bench::new();
    let known = EpochRecord { global_world_size: 3, ..record(1, &[1, 2]) };
    for number in [1, 2] {
        bench.resume(number, resume(number, known.clone()));
    }
    bench.clear();
    bench.wait(ms(9_000));
    bench.assert_told(&[1, 2], &[]);
    // The other group is back: nothing has changed.
    let other = EpochRecord { group: 1, global_world_size: 3, ..record(1, &[11]) };
    bench.resume(11, resume(11, other));
    bench.wait(ms(9_000));
    bench.assert_told(&[1, 2], &[]);

    // It never comes: then it is gone.
    let mut bench = Bench::new();
    for number in [1, 2] {
        bench.resume(number, resume(number, known.clone()));
    }
    bench.clear();
    bench.wait(ms(10_001));
    bench.assert_told(&[1, 2], &[ToPeer::World { run_epoch: 1, global_world_size: 2 }]);
}
