//! Votes and verdicts: rules 2, 4, 6, 7, 8, 18, and breaches (20f).

use super::bench::*;
use crate::limits::TAGS_MAX;

fn complete(key: OpKey) -> ToCoordinator {
    ToCoordinator::Complete { key }
}

fn lost(number: u8, reason: LossReason) -> AbortReason {
    AbortReason::PeersLost(vec![(id(number), reason)])
}

#[test]
fn a_commit_takes_everybodys_complete() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    bench.all_say(&[1, 2], &complete(key(1, 0, 0)));
    // Twice is not two.
    bench.say(2, complete(key(1, 0, 0)));
    bench.assert_told(&[1, 2, 3], &[]);
    bench.say(3, complete(key(1, 0, 0)));
    bench.assert_told(&[1, 2, 3], &[commit(key(1, 0, 0))]);
}

#[test]
fn every_verdict_consumes_a_number_of_its_scope_and_tag() {
    let mut bench = Bench::of(&[1, 2]);
    let part = OpKey { scope: Scope::Members(vec![id(1)]), ..key(1, 0, 0) };
    bench.say(1, initiate(part.clone()));
    bench.say(1, complete(part.clone()));
    bench.assert_told(&[1], &[commit(part)]);
    assert_eq!(bench.told(2), []);
    for seq in 0..3 {
        bench.all_say(&[1, 2], &initiate(key(1, 7, seq)));
        bench.all_say(&[1, 2], &complete(key(1, 7, seq)));
        bench.assert_told(&[1, 2], &[commit(key(1, 7, seq))]);
    }
}

#[test]
fn whoever_said_complete_may_ask_for_an_abort_until_there_is_a_verdict() {
    let withdraw = |key| ToCoordinator::Refuse { key, reason: Refusal::Cancelled };
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.say(1, complete(key(1, 0, 0)));
    bench.say(1, withdraw(key(1, 0, 0)));
    bench.assert_told(&[1, 2], &[abort(key(1, 0, 0), AbortReason::Cancelled { by: id(1) })]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 1)));
    bench.all_say(&[1, 2], &complete(key(1, 0, 1)));
    bench.say(1, withdraw(key(1, 0, 1)));
    bench.assert_told(&[1, 2], &[commit(key(1, 0, 1))]);
}

#[test]
fn a_voter_that_is_lost_after_its_vote_still_counts() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.say(2, complete(key(1, 0, 0)));
    bench.close(2);
    bench.say(1, complete(key(1, 0, 0)));
    bench.assert_told(&[1], &[commit(key(1, 0, 0))]);
    // It learns it when it comes back.
    bench.resume(2, resume(2, record(1, &[1, 2])));
    let expected =
        [ToPeer::Resumed { term: 1 }, commit(key(1, 0, 0)), ToPeer::Proceed { group: 0, epoch: 1 }];
    bench.assert_told(&[2], &expected);
}

#[test]
fn a_closed_connection_aborts_at_once_and_evicts_nobody() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.say(1, complete(key(1, 0, 0)));
    bench.close(2);
    bench.assert_told(&[1], &[abort(key(1, 0, 0), lost(2, LossReason::Disconnected))]);
    assert_eq!(bench.lost(), []);
    // A call that comes meanwhile is told the same.
    bench.say(1, initiate(key(1, 0, 1)));
    bench.assert_told(&[1], &[abort(key(1, 0, 1), lost(2, LossReason::Disconnected))]);
    // When the peer resumes, all go on with the same roster.
    bench.resume(2, resume(2, record(1, &[1, 2])));
    bench.assert_told(&[1], &[ToPeer::Proceed { group: 0, epoch: 1 }]);
    let told = bench.told(2);
    assert_eq!(
        told[..3],
        [
            ToPeer::Resumed { term: 1 },
            abort(key(1, 0, 0), lost(2, LossReason::Disconnected)),
            abort(key(1, 0, 1), lost(2, LossReason::Disconnected)),
        ]
    );
    bench.all_say(&[1, 2], &initiate(key(1, 0, 2)));
    bench.all_say(&[1, 2], &complete(key(1, 0, 2)));
    bench.assert_told(&[1, 2], &[commit(key(1, 0, 2))]);
}

#[test]
fn an_eviction_aborts_and_opens_the_next_epoch() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    bench.say(2, complete(key(1, 0, 0)));
    bench.say(2, ToCoordinator::Leave { for_good: true });
    let told = bench.told(1);
    let [verdict, ToPeer::Epoch(record)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*verdict, abort(key(1, 0, 0), lost(2, LossReason::Left)));
    assert_eq!((record.epoch, members(record)), (2, vec![id(1), id(3)]));
    assert_eq!(record.left, [(id(2), LossReason::Left)]);
    // Numbers begin again; the old epoch's votes have no effect.
    bench.say(1, complete(key(1, 0, 0)));
    bench.all_say(&[1, 3], &initiate(key(2, 0, 0)));
    bench.all_say(&[1, 3], &complete(key(2, 0, 0)));
    assert_eq!(bench.told(1), [commit(key(2, 0, 0))]);
}

#[test]
fn several_who_go_together_make_one_epoch() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    bench.close(2);
    bench.close(3);
    bench.wait(ms(9_000));
    bench.clear();
    bench.wait(ms(1_500));
    let record = bench.epoch(1).unwrap();
    assert_eq!(members(&record), [id(1), id(4)]);
    assert!(record.epoch <= 3);
}

#[test]
fn the_first_deadline_ends_the_call_for_all_and_says_who_was_waited_for() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let hurried = ToCoordinator::Initiate { key: key(1, 0, 0), fingerprint: call(8), timeout_ms: 500 };
    bench.say(1, initiate(key(1, 0, 0)));
    bench.say(2, hurried);
    bench.wait(ms(499));
    bench.assert_told(&[1, 2, 3], &[]);
    bench.wait(ms(1));
    for number in [1, 2, 3] {
        let told = bench.told(number);
        let [ToPeer::Verdict { verdict: Verdict::Abort(AbortReason::Timeout(waiting)), .. }] = &told[..]
        else {
            panic!("{told:?}")
        };
        let [waiting] = &waiting[..] else { panic!("{waiting:?}") };
        assert_eq!((waiting.peer, &*waiting.name, &*waiting.health), (id(3), "p3", "alive"));
        assert_eq!((&*waiting.last_call, waiting.age_ms), ("connect", 500));
    }
    assert_eq!(bench.lost(), [], "being slow is no reason for an eviction");
}

/// A training loop makes the same call in every step. Whoever made it in the last one and not in this one looked as if it
/// had made this one too, and a slow link was blamed.
#[test]
fn having_made_the_last_call_is_not_having_made_this_one() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.all_say(&[1, 2], &complete(key(1, 0, 0)));
    bench.clear();
    bench.say(1, ToCoordinator::Initiate { key: key(1, 0, 1), fingerprint: call(8), timeout_ms: 500 });
    bench.wait(ms(500));
    let told = bench.told(1);
    let [ToPeer::Verdict { verdict: Verdict::Abort(AbortReason::Timeout(waiting)), .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(waiting[0].last_call, format!("{} under tag 0 (an earlier one)", call(8)));
}

#[test]
fn a_call_that_waited_for_a_lost_peer_until_its_deadline_names_it() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, initiate(key(1, 0, 0)));
    bench.close(2);
    bench.told(1);
    bench.wait(ms(1_000));
    bench.say(1, ToCoordinator::Initiate { key: key(1, 0, 1), fingerprint: call(8), timeout_ms: 0 });
    let told = bench.told(1);
    let [ToPeer::Verdict { verdict: Verdict::Abort(AbortReason::Timeout(waiting)), .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((waiting[0].peer, &*waiting[0].health), (id(2), "disconnected"));
}

#[test]
fn differing_calls_are_judged_when_all_are_in_and_the_fewer_deviate() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let other = ToCoordinator::Initiate { key: key(1, 0, 0), fingerprint: call(9), timeout_ms: 10_000 };
    bench.say(1, other);
    bench.say(2, initiate(key(1, 0, 0)));
    bench.assert_told(&[1, 2], &[]);
    bench.say(3, initiate(key(1, 0, 0)));
    let reason = AbortReason::Mismatch {
        deviating: vec![id(1)],
        theirs: call(9).to_string(),
        common: call(8).to_string(),
    };
    bench.assert_told(&[1, 2, 3], &[abort(key(1, 0, 0), reason)]);
    // The others' retry waits for it; it stays accepted.
    bench.all_say(&[2, 3], &initiate(key(1, 0, 1)));
    bench.wait(ms(5_000));
    bench.say(1, initiate(key(1, 0, 1)));
    bench.all_say(&[1, 2, 3], &complete(key(1, 0, 1)));
    // All hear for whom they waited, before they hear how it ended.
    let late = ToPeer::CalledLast { key: key(1, 0, 1), peer: id(1), behind_ms: 5_000 };
    bench.assert_told(&[1, 2, 3], &[late, commit(key(1, 0, 1))]);
}

#[test]
fn of_two_that_differ_the_newer_deviates_after_a_moment() {
    let mut bench = Bench::of(&[2, 1, 3]);
    let other = ToCoordinator::Initiate { key: key(1, 0, 0), fingerprint: call(9), timeout_ms: 10_000 };
    bench.say(1, other);
    bench.say(2, initiate(key(1, 0, 0)));
    bench.wait(ms(100));
    let reason = AbortReason::Mismatch {
        deviating: vec![id(1)],
        theirs: call(9).to_string(),
        common: call(8).to_string(),
    };
    bench.assert_told(&[1, 2, 3], &[abort(key(1, 0, 0), reason)]);
}

#[test]
fn retry_is_part_of_the_call() {
    let mut bench = Bench::of(&[1, 2]);
    let mut once = call(8);
    once.retry = false;
    bench.say(1, initiate(key(1, 0, 0)));
    bench.say(2, ToCoordinator::Initiate { key: key(1, 0, 0), fingerprint: once, timeout_ms: 10_000 });
    let told = bench.told(1);
    let [ToPeer::Verdict { verdict: Verdict::Abort(AbortReason::Mismatch { deviating, .. }), .. }] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(*deviating, [id(2)]);
}

#[test]
fn several_tensors_are_one_transaction_with_one_verdict() {
    let mut bench = Bench::of(&[1, 2]);
    let many = Fingerprint { kind: OpKind::AllReduceMany, counts: vec![1, 2, 3], ..call(0) };
    let message = ToCoordinator::Initiate { key: key(1, 0, 0), fingerprint: many, timeout_ms: 10_000 };
    bench.all_say(&[1, 2], &message);
    bench.all_say(&[1, 2], &complete(key(1, 0, 0)));
    bench.assert_told(&[1, 2], &[commit(key(1, 0, 0))]);
}

#[test]
fn one_other_type_in_a_list_is_another_call_and_is_named() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let types = |last| vec![DataType::F32, DataType::BF16, last];
    let many = Fingerprint { kind: OpKind::AllReduceMany, counts: vec![1, 2, 3], ..call(0) };
    let initiate = |last| ToCoordinator::Initiate {
        key: key(1, 0, 0),
        fingerprint: many.clone().typed(types(last)),
        timeout_ms: 10_000,
    };
    bench.all_say(&[1, 3], &initiate(DataType::BF16));
    bench.say(2, initiate(DataType::F16));
    let told = bench.told(1);
    let [
        ToPeer::Verdict {
            verdict: Verdict::Abort(AbortReason::Mismatch { deviating, theirs, common }), ..
        },
    ] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(*deviating, [id(2)]);
    assert!(
        theirs.ends_with("whose x[2] is f16[3]") && common.ends_with("whose x[2] is bf16[3]"),
        "{told:?}"
    );
}

#[test]
fn a_frame_of_another_call_is_judged_by_the_votes() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.say(1, ToCoordinator::Refuse { key: key(1, 0, 0), reason: Refusal::Mismatch { peer: id(2) } });
    // They agree: the frame was a stray one, and the attempt does not count.
    bench.wait(ms(100));
    bench.assert_told(&[1, 2], &[abort(key(1, 0, 0), AbortReason::Void)]);
}

#[test]
fn a_call_that_is_given_up_ends_the_attempt() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.say(2, ToCoordinator::Refuse { key: key(1, 0, 0), reason: Refusal::Cancelled });
    bench.assert_told(&[1, 2], &[abort(key(1, 0, 0), AbortReason::Cancelled { by: id(2) })]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 1)));
    bench.say(1, ToCoordinator::Refuse { key: key(1, 0, 1), reason: Refusal::Deadline });
    assert!(matches!(
        bench.told(2)[..],
        [ToPeer::Verdict { verdict: Verdict::Abort(AbortReason::Timeout(_)), .. }]
    ));
}

#[test]
fn a_verdict_is_kept_until_it_is_known() {
    // Acknowledged by the next vote, by an acknowledgement, or by links of a later epoch: and by nothing less.
    let mut bench = Bench::of(&[1, 2]);
    for seq in 0..2 {
        bench.all_say(&[1, 2], &initiate(key(1, 0, seq)));
        bench.all_say(&[1, 2], &complete(key(1, 0, seq)));
    }
    bench.close(2);
    bench.resume(2, resume(2, record(1, &[1, 2])));
    let expected =
        [ToPeer::Resumed { term: 1 }, commit(key(1, 0, 1)), ToPeer::Proceed { group: 0, epoch: 1 }];
    bench.told(2).iter().zip(&expected).for_each(|(told, expected)| assert_eq!(told, expected));
    bench.say(2, ToCoordinator::Acknowledge { key: key(1, 0, 1) });
    bench.close(2);
    bench.resume(2, Resume { generation: 3, ..resume(2, record(1, &[1, 2])) });
    let expected = [ToPeer::Resumed { term: 1 }, ToPeer::Proceed { group: 0, epoch: 1 }];
    bench.assert_told(&[2], &expected);
}

#[test]
fn links_of_an_epoch_say_nothing_about_its_verdicts() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(3, ToCoordinator::Leave { for_good: true });
    bench.all_say(&[1, 2], &initiate(key(2, 0, 0)));
    bench.say(1, ToCoordinator::Refuse { key: key(2, 0, 0), reason: Refusal::Cancelled });
    // This was on its way when the verdict was written.
    bench.confirm(&[2], 2);
    bench.close(2);
    bench.resume(2, resume(2, record(2, &[1, 2])));
    assert_eq!(bench.told(2)[1], abort(key(2, 0, 0), AbortReason::Cancelled { by: id(1) }));
}

#[test]
fn nothing_is_acknowledged_for_others() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let part = OpKey { scope: Scope::Members(vec![id(1), id(2)]), ..key(1, 0, 0) };
    bench.all_say(&[1, 2], &initiate(part.clone()));
    bench.close(2);
    bench.all_say(&[1, 3], &ToCoordinator::Acknowledge { key: part.clone() });
    bench.confirm(&[1, 3], 1);
    bench.resume(2, resume(2, record(1, &[1, 2, 3])));
    assert_eq!(bench.told(2)[1], abort(part, lost(2, LossReason::Disconnected)));
}

#[test]
fn verdicts_of_an_old_epoch_are_told_before_the_new_one() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    bench.close(2);
    bench.say(3, ToCoordinator::Leave { for_good: true });
    bench.resume(2, resume(2, record(1, &[1, 2, 3])));
    let told = bench.told(2);
    let [ToPeer::Resumed { .. }, verdict, ToPeer::Epoch(record), ToPeer::Proceed { epoch: 2, .. }] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(*verdict, abort(key(1, 0, 0), lost(2, LossReason::Disconnected)));
    assert_eq!(members(record), [id(1), id(2)]);
}

#[test]
fn what_nobody_waits_for_is_forgotten() {
    // The verdicts that a dead member never learned are not kept for it.
    let mut bench = Bench::of(&[1, 2]);
    for tag in 0..5 {
        bench.all_say(&[1, 2], &initiate(key(1, tag, 0)));
    }
    bench.say(2, ToCoordinator::Leave { for_good: true });
    bench.confirm(&[1], 2);
    bench.say(1, initiate(key(2, 0, 0)));
    bench.say(1, complete(key(2, 0, 0)));
    bench.close(1);
    bench.resume(1, resume(1, record(2, &[1])));
    let expected =
        [ToPeer::Resumed { term: 1 }, commit(key(2, 0, 0)), ToPeer::Proceed { group: 0, epoch: 2 }];
    bench.assert_told(&[1], &expected);
}

#[test]
fn breaches_are_kicked_with_a_text_and_nobody_else_is_disturbed() {
    let part = |numbers: &[u8]| Scope::Members(numbers.iter().map(|number| id(*number)).collect());
    let breaches: Vec<(ToCoordinator, &str)> = vec![
        (initiate(key(2, 0, 0)), "the group is in epoch 1"),
        (initiate(key(1, 0, 5)), "while seq 1 is next"),
        (initiate(OpKey { group: 9, ..key(1, 0, 0) }), "group 9, of which it is no member"),
        (initiate(OpKey { scope: part(&[1, 2]), ..key(1, 0, 0) }), "the group is in epoch 1"),
        (initiate(OpKey { scope: part(&[3, 9]), ..key(1, 0, 0) }), "no members of the group"),
        (complete(key(1, 0, 1)), "which nobody has begun"),
        (ToCoordinator::Connected { group: 4, epoch: 1 }, "links of group 4"),
        (
            ToCoordinator::LinkBroken {
                group: 0,
                epoch: 1,
                from: id(1),
                to: id(2),
                dialling: true,
                error: String::new(),
            },
            "a link that is not its own",
        ),
        (ToCoordinator::Register(registration(3, 0, 1), 7, 0), "registered twice"),
    ];
    for (breach, text) in breaches {
        let mut bench = Bench::of(&[1, 2, 3]);
        bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
        bench.all_say(&[1, 2, 3], &complete(key(1, 0, 0)));
        bench.clear();
        bench.say(3, breach.clone());
        let (reason, said) = bench.kicked(3).unwrap_or_else(|| panic!("{breach:?} must be kicked"));
        assert_eq!(reason, KickReason::Breach);
        assert!(said.contains(text), "{breach:?} was answered with {said:?}");
        assert!(bench.closed.contains(&bench.at[&3]));
        // The others have a new epoch, and nothing else.
        let told = bench.told(1);
        assert!(
            matches!(&told[..], [ToPeer::Epoch(record)] if members(record) == [id(1), id(2)]),
            "{told:?}"
        );
    }
}

#[test]
fn a_vote_that_contradicts_itself_is_a_breach() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.say(2, complete(key(1, 0, 0)));
    bench.say(2, ToCoordinator::Refuse { key: key(1, 0, 0), reason: Refusal::Deadline });
    assert!(bench.kicked(2).unwrap().1.contains("after completing it"));
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.say(2, ToCoordinator::Initiate { key: key(1, 0, 0), fingerprint: call(9), timeout_ms: 9 });
    assert!(bench.kicked(2).unwrap().1.contains("twice, with different calls"));
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, initiate(key(1, 0, 0)));
    bench.say(2, complete(key(1, 0, 0)));
    assert!(bench.kicked(2).unwrap().1.contains("without having initiated"));
}

#[test]
fn tags_are_bounded_in_an_epoch_and_free_again_in_the_next() {
    let mut bench = Bench::of(&[1, 2]);
    let all: Vec<u64> = (0..TAGS_MAX as u64).collect();
    for tag in &all {
        bench.all_say(&[1, 2], &initiate(key(1, *tag, 0)));
        bench.all_say(&[1, 2], &complete(key(1, *tag, 0)));
    }
    assert_eq!(bench.run.counters().commits, TAGS_MAX as u64);
    // One more is refused, whoever asks, and nobody is put out for it.
    let denied =
        |tag: u64| ToPeer::Denied { key: key(1, tag, 0), peer: id(2), tags: TAGS_MAX as u32, listed: 0 };
    bench.clear();
    bench.say(2, initiate(key(1, 99_999, 0)));
    bench.assert_told(&[2], &[denied(99_999)]);
    bench.register(3, 0, 1);
    bench.all_say(&[1, 2], &vote(1, 2));
    bench.confirm(&[1, 2, 3], 2);
    bench.clear();
    for tag in &all {
        bench.say(1, initiate(key(2, tag + 5_000, 0)));
    }
    bench.assert_told(&[1, 2], &[]);
    assert_eq!(bench.lost(), []);
}

/// Counted for the group, parts of it that used few tags each got an honest peer kicked.
#[test]
fn tags_are_counted_for_each_member() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    let part = |members: &[u8], tag: u64| {
        let scope = Scope::Members(members.iter().map(|number| id(*number)).collect());
        OpKey { scope, ..key(1, tag, 0) }
    };
    for tag in 0..TAGS_MAX as u64 - 1 {
        bench.all_say(&[1, 2], &initiate(part(&[1, 2], tag)));
        bench.all_say(&[3, 4], &initiate(part(&[3, 4], tag)));
    }
    bench.assert_told(&[1, 2, 3, 4], &[]);
    // The whole group has room for one more; then nobody has any.
    bench.say(1, initiate(key(1, 0, 0)));
    bench.assert_told(&[1], &[]);
    let denied = |key: OpKey, peer: u8| {
        let (tags, listed) = (TAGS_MAX as u32, 2 * (TAGS_MAX as u32 - 1));
        ToPeer::Denied { key, peer: id(peer), tags, listed }
    };
    bench.say(3, initiate(part(&[3, 4], 7_777)));
    bench.assert_told(&[3], &[denied(part(&[3, 4], 7_777), 3)]);
    // What is in use may be used again.
    bench.say(4, initiate(key(1, 0, 0)));
    bench.assert_told(&[4], &[]);
    assert_eq!((bench.lost(), bench.run.counters().kicks), (vec![], 0));
}

#[test]
fn timers_do_not_pile_up() {
    let mut bench = Bench::of(&[1, 2]);
    for seq in 0..1_000 {
        bench.all_say(&[1, 2], &initiate(key(1, 0, seq)));
        bench.all_say(&[1, 2], &complete(key(1, 0, seq)));
        bench.wait(ms(1));
    }
    assert!(bench.run.timers() <= 2, "{} timers", bench.run.timers());
}

#[test]
fn status_says_who_waits_for_whom() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2], &initiate(key(1, 4, 0)));
    bench.register(4, 0, 1);
    bench.wait(ms(1_500));
    let at = bench.connection();
    bench.run.handle_message(bench.now, at, id(77), ToCoordinator::AskStatus);
    let Some(Action::Send(_, ToPeer::Status(status))) = bench.run.poll_action() else { panic!("no status") };
    assert!(status.contains("waits since 1.5 s for p3 to call it"), "{status}");
    assert!(status.contains("p4 waits to be admitted until p1, p2, p3 calls update_topology"), "{status}");
    bench.say(3, initiate(key(1, 4, 0)));
    bench.all_say(&[1, 3], &complete(key(1, 4, 0)));
    let status = bench.run.status(bench.now).to_json();
    assert!(status.contains("for p2 to finish"), "{status}");
}
