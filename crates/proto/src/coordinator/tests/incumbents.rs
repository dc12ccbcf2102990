//! Who was there first: rules 7, 20h and 42.

use super::bench::*;

fn complete(key: OpKey) -> ToCoordinator {
    ToCoordinator::Complete { key }
}

/// A call of that many elements.
fn reduce(key: OpKey, count: u64) -> ToCoordinator {
    ToCoordinator::Initiate { key, fingerprint: call(count), timeout_ms: 10_000 }
}

fn mismatch(key: OpKey, deviating: &[u8], theirs: u64, common: u64) -> ToPeer {
    let reason = AbortReason::Mismatch {
        deviating: deviating.iter().map(|number| id(*number)).collect(),
        theirs: call(theirs).to_string(),
        common: call(common).to_string(),
    };
    abort(key, reason)
}

/// These have committed something together; then the others came. Epoch 2, nothing told since.
fn with_newcomers(incumbents: &[u8], newcomers: &[u8]) -> Bench {
    let mut bench = Bench::of(incumbents);
    bench.all_say(incumbents, &reduce(key(1, 0, 0), 8));
    bench.all_say(incumbents, &complete(key(1, 0, 0)));
    let world = (incumbents.len() + newcomers.len()) as u32;
    for newcomer in newcomers {
        bench.register(*newcomer, 0, world);
    }
    bench.all_say(incumbents, &vote(1, 2));
    let record = bench.epoch(newcomers[0]).expect("they are admitted");
    assert_eq!((record.epoch, record.incumbents), (2, incumbents.len() as u32));
    bench.confirm(incumbents, 2);
    bench.confirm(newcomers, 2);
    bench.clear();
    bench
}

#[test]
fn a_trained_member_is_right_against_any_number_of_newcomers() {
    let mut bench = with_newcomers(&[1], &[2, 3]);
    bench.all_say(&[2, 3], &reduce(key(2, 0, 0), 9));
    bench.say(1, reduce(key(2, 0, 0), 8));
    // The newcomers hear what was wrong, and that they are out.
    let verdict = mismatch(key(2, 0, 0), &[2, 3], 9, 8);
    for newcomer in [2, 3] {
        let told = bench.told(newcomer);
        let [first, ToPeer::Kicked { reason: KickReason::Evicted, .. }] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(*first, verdict);
    }
    assert_eq!(bench.lost(), [(id(2), LossReason::Deviated), (id(3), LossReason::Deviated)]);
    // Nobody waits for them: the retry runs in the next epoch.
    let told = bench.told(1);
    let [first, ToPeer::Epoch(record)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((first, record.epoch, record.incumbents), (&verdict, 3, 1));
    bench.say(1, reduce(key(3, 0, 0), 8));
    bench.say(1, complete(key(3, 0, 0)));
    bench.assert_told(&[1], &[commit(key(3, 0, 0))]);
}

#[test]
fn a_commit_of_the_whole_group_makes_newcomers_incumbents() {
    let mut bench = with_newcomers(&[1], &[2, 3]);
    // A part of the group proves nothing for the whole.
    let part = OpKey { scope: Scope::Members(vec![id(2), id(3)]), ..key(2, 0, 0) };
    bench.all_say(&[2, 3], &reduce(part.clone(), 8));
    bench.all_say(&[2, 3], &complete(part));
    assert_eq!(bench.run.groups[0].incumbents, 1);
    bench.all_say(&[1, 2, 3], &reduce(key(2, 0, 0), 8));
    bench.all_say(&[1, 2, 3], &complete(key(2, 0, 0)));
    assert_eq!(bench.run.groups[0].incumbents, 3);
    bench.clear();
    // Among equals the minority deviates, and is refused but stays.
    bench.say(1, reduce(key(2, 0, 1), 8));
    bench.all_say(&[2, 3], &reduce(key(2, 0, 1), 9));
    bench.assert_told(&[1, 2, 3], &[mismatch(key(2, 0, 1), &[1], 8, 9)]);
    assert_eq!(bench.lost(), []);
}

#[test]
fn nobody_is_put_out_before_most_incumbents_have_called() {
    let mut bench = with_newcomers(&[1, 2, 3], &[4]);
    bench.say(4, reduce(key(2, 0, 0), 8));
    bench.say(1, reduce(key(2, 0, 0), 9));
    bench.wait(ms(5_000));
    bench.assert_told(&[1, 2, 3, 4], &[]);
    // The newcomer is right after all, and so is whoever calls like it.
    bench.all_say(&[2, 3], &reduce(key(2, 0, 0), 8));
    bench.assert_told(&[1, 2, 3, 4], &[mismatch(key(2, 0, 0), &[1], 9, 8)]);
    assert_eq!(bench.lost(), []);
    // The deadline bounds the wait.
    bench.say(4, reduce(key(2, 0, 1), 8));
    bench.say(1, reduce(key(2, 0, 1), 9));
    bench.wait(ms(10_001));
    let told = bench.told(4);
    assert!(
        matches!(&told[..], [ToPeer::Verdict { verdict: Verdict::Abort(AbortReason::Timeout(_)), .. }]),
        "{told:?}"
    );
    assert_eq!(bench.lost(), []);
}

#[test]
fn newcomers_that_differ_among_themselves_wait_for_an_incumbent() {
    let mut bench = with_newcomers(&[1], &[2, 3]);
    bench.say(2, reduce(key(2, 0, 0), 8));
    bench.say(3, reduce(key(2, 0, 0), 9));
    bench.wait(ms(5_000));
    bench.assert_told(&[1, 2, 3], &[]);
    bench.say(1, reduce(key(2, 0, 0), 8));
    assert_eq!(bench.lost(), [(id(3), LossReason::Deviated)]);
}

#[test]
fn a_newcomer_that_votes_while_incumbents_reduce_is_put_out_and_the_other_way_round() {
    let mut bench = with_newcomers(&[1], &[2, 3]);
    bench.all_say(&[2, 3], &vote(1, 3));
    bench.say(1, reduce(key(2, 0, 0), 8));
    for newcomer in [2, 3] {
        let told = bench.told(newcomer);
        assert!(
            matches!(
                told[..],
                [ToPeer::BallotEnded { end: BallotEnd::Mismatch { .. }, .. }, ToPeer::Kicked { .. }]
            ),
            "{told:?}"
        );
    }
    assert_eq!(bench.lost(), [(id(2), LossReason::Deviated), (id(3), LossReason::Deviated)]);

    let mut bench = with_newcomers(&[1], &[2, 3]);
    bench.all_say(&[2, 3], &reduce(key(2, 0, 0), 8));
    bench.say(1, vote(1, 3));
    assert_eq!(bench.lost(), [(id(2), LossReason::Deviated), (id(3), LossReason::Deviated)]);
    assert!(
        !bench
            .told(1)
            .iter()
            .any(|told| matches!(told, ToPeer::BallotEnded { end: BallotEnd::Mismatch { .. }, .. }))
    );
}

#[test]
fn a_restarted_coordinator_knows_who_was_there_first() {
    let newcomers_deviate = |first: u32, report: Option<Verdict>| {
        let mut bench = Bench::new();
        let known = EpochRecord { incumbents: first, ..record(2, &[1, 2, 3]) };
        for number in [1, 2, 3] {
            let tags = report.iter().map(|verdict| learned(key(2, 7, 0), verdict.clone())).collect();
            bench.resume(number, Resume { tags, ..resume(number, known.clone()) });
        }
        bench.clear();
        bench.all_say(&[2, 3], &reduce(key(2, 0, 0), 9));
        bench.say(1, reduce(key(2, 0, 0), 8));
        bench.lost()
    };
    let both = [(id(2), LossReason::Deviated), (id(3), LossReason::Deviated)];
    assert_eq!(newcomers_deviate(1, None), both);
    // A commit since the record was written made incumbents of all.
    assert_eq!(newcomers_deviate(1, Some(Verdict::Commit { pending: 0 })), []);
    assert_eq!(newcomers_deviate(1, Some(Verdict::Abort(AbortReason::Void))), both);
    assert_eq!(newcomers_deviate(0, None), []);
}

#[test]
fn an_incumbent_that_goes_leaves_the_others_what_they_are() {
    let mut bench = with_newcomers(&[1, 2], &[3]);
    bench.say(1, ToCoordinator::Leave { for_good: true });
    assert_eq!(bench.epoch(2).map(|record| (record.epoch, record.incumbents)), Some((3, 1)));
}
