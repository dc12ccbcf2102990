//! A lost coordinator, resumes, kicks: how calls end, and how a session goes on.

use super::*;
use crate::ballot::sync;
use crate::wire::InvalidMessage;

#[test]
fn a_call_whose_meaning_depends_on_who_is_there_fails_rather_than_run_among_others() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let gather = |members: &[u8], now: Instant| Op {
        scope: Scope::Whole,
        tag: 5,
        fingerprint: fingerprint(false),
        deadline: now + ms(1_000),
        members: Some(members.iter().map(|number| id(*number)).collect()),
    };
    let call = bench.session.handle_op_call(bench.now, gather(&[1, 2, 3], bench.now));
    assert_eq!(bench.drain().len(), 2, "it runs among those it knows");
    // The epoch ends it undecided, which is nobody's fault; but the next one has not the same members.
    bench.hear(ToPeer::Epoch(EpochRecord { left: vec![(id(3), LossReason::Killed)], ..record(2, &[1, 2]) }));
    bench.drain();
    let error = CallError::PeersLost(vec![(id(3), LossReason::Killed)]);
    assert_eq!(bench.performed(call, PerformResult::Stopped), [fail(call, error.clone())]);
    // A program that has not looked since is told the same, and nobody else is troubled with it.
    let call = bench.session.handle_op_call(bench.now, gather(&[1, 2, 3], bench.now));
    assert_eq!(bench.drain(), [fail(call, error)]);
    bench.session.handle_op_call(bench.now, gather(&[1, 2], bench.now));
    assert_eq!(bench.drain().len(), 2);
}

#[test]
fn a_process_that_could_not_take_part_says_why_and_is_not_called_cancelled() {
    // (retries, whether another attempt may do better, the error if it does not go on)
    for (retry, again, fails) in
        [(true, false, true), (false, false, true), (false, true, true), (true, true, false)]
    {
        let mut bench = Bench::of(&[1, 2]);
        let call = bench.call(retry);
        bench.drain();
        let refused = bench.performed(call, PerformResult::Failed { why: "no memory".to_owned(), again });
        assert!(matches!(refused[..], [Action::Send(ToCoordinator::Refuse { .. })]), "{refused:?}");
        let actions = bench.abort(key(1, 0), AbortReason::Cancelled { by: id(1) });
        let failed = actions.contains(&fail(call, CallError::Failed("no memory".to_owned())));
        assert_eq!(failed, fails, "retry {retry}, again {again}: {actions:?}");
        assert_eq!(actions.contains(&initiate(key(1, 1), retry, 10_000)), !fails, "{actions:?}");
    }
}

#[test]
fn too_few_are_too_few() {
    let mut bench = Bench::of(&[1, 2]);
    let fingerprint = Fingerprint { min_world: 2, ..fingerprint(true) };
    let op = Op { scope: Scope::Whole, tag: 0, fingerprint, deadline: bench.now + ms(1_000), members: None };
    let call = bench.session.handle_op_call(bench.now, op);
    bench.drain();
    bench.abort(key(1, 0), lost(2));
    bench.performed(call, PerformResult::Stopped);
    bench.hear(ToPeer::Epoch(record(2, &[1])));
    let actions = bench.drain();
    assert_eq!(actions[1..], [fail(call, CallError::TooFewPeers { have: 1, want: 2 })]);
}

#[test]
fn a_resume_carries_everything_and_goes_on_only_when_told() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.verdict(key(1, 0), Verdict::Commit { pending: 0 });
    bench.session.handle_admission_call(bench.now, 1, bench.now + ms(1_000));
    let call = bench.call(true);
    bench.drain();
    bench.performed(call, PerformResult::Done);
    bench.wait(ms(100));
    let vote = OpenVote { key: key(1, 1), fingerprint: fingerprint(true), timeout_ms: 9_880, complete: true };
    let learned = vec![(key(1, 0), Verdict::Commit { pending: 0 })];
    let expected = Resume {
        registration: registration(),
        generation: 2,
        term: 1,
        record: record(1, &[1, 2]),
        tags: vec![TagReport { learned, open: Some(vote) }],
        ballots: vec![BallotReport {
            kind: ADMISSION,
            tally: Tally { ended: 1, agreed: 1 },
            outcome: Some(Vec::new()),
            wish: Some(admission::wish(1)),
        }],
        behind_from: None,
        remembers_from: 0,
        revision: None,
    };
    assert_eq!(bench.reconnect(), [send(ToCoordinator::Resume(expected))]);
    bench.hear(ToPeer::Resumed { term: 1 });
    assert_eq!(bench.drain(), [send(ToCoordinator::Connected { group: 0, epoch: 1 })]);
    // Neither does an epoch release it, nor does it vote or begin anything (rule 43).
    assert_eq!(bench.abort(key(1, 1), lost(1)), [tell(call, Command::Undo)]);
    bench.hear(ToPeer::Epoch(record(2, &[1, 2])));
    assert_eq!(bench.drain(), [Action::OpenEpoch(record(2, &[1, 2]))]);
    bench.hear(PROCEED);
    assert_eq!(bench.drain(), [], "that was the old epoch's");
    bench.hear(ToPeer::Proceed { group: 0, epoch: 2 });
    let actions = bench.drain();
    assert_eq!(actions[0], send(super::vote(1, 2)));
    assert_eq!(actions[1], initiate(key(2, 0), true, 9_880));
}

/// A connection may break between the newest epoch and what was decided before it (rule 43).
#[test]
fn whoever_was_not_told_everything_says_from_which_epoch_on() {
    let told_of = |bench: &mut Bench| {
        let actions = bench.reconnect();
        let [Action::Send(ToCoordinator::Resume(resume))] = &actions[..] else { panic!("{actions:?}") };
        let told = (resume.record.epoch, resume.behind_from);
        bench.hear(ToPeer::Resumed { term: 1 });
        told
    };
    let mut bench = Bench::of(&[1, 2]);
    assert_eq!(told_of(&mut bench), (1, None));
    // What was decided in an epoch that it knew when it came back is told before the next one.
    for (epoch, behind_from) in [(2, None), (3, Some(2)), (4, Some(2))] {
        bench.hear(ToPeer::Epoch(record(epoch, &[1, 2])));
        bench.drain();
        assert_eq!(told_of(&mut bench), (epoch, behind_from));
    }
    bench.hear(ToPeer::Proceed { group: 0, epoch: 4 });
    bench.drain();
    assert_eq!(told_of(&mut bench), (4, None));
}

#[test]
fn a_vote_stands_after_a_resume_if_nothing_was_decided_meanwhile() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 1 });
    bench.drain();
    // The program gives it up meanwhile: the coordinator is asked as soon as we may speak.
    bench.session.handle_cancel(bench.now, call);
    assert_eq!(bench.drain(), []);
    bench.hear(PROCEED);
    let reason = Refusal::Cancelled;
    assert_eq!(
        bench.drain(),
        [
            send(ToCoordinator::Complete { key: key(1, 0) }),
            send(ToCoordinator::Refuse { key: key(1, 0), reason }),
        ]
    );
}

#[test]
fn what_happens_while_a_resume_is_on_its_way_is_said_after_it() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.drain();
    bench.reconnect();
    // Done before the coordinator has answered; a link breaks in the same moment.
    assert_eq!(bench.performed(call, PerformResult::Done), []);
    bench.session.handle_link_broken(1, BrokenLink::towards(id(1), id(2), "reset"), false);
    assert_eq!(bench.drain(), []);
    bench.hear(ToPeer::Resumed { term: 1 });
    let (from, to, error) = (id(1), id(2), "reset".to_owned());
    assert_eq!(
        bench.drain()[1..],
        [send(ToCoordinator::LinkBroken { group: 0, epoch: 1, from, to, dialling: false, error })]
    );
    bench.hear(PROCEED);
    assert_eq!(bench.drain(), [send(ToCoordinator::Complete { key: key(1, 0) })]);
    // A vote for newcomers waits in the same way.
    bench.verdict(key(1, 0), Verdict::Commit { pending: 0 });
    bench.reconnect();
    bench.session.handle_admission_call(bench.now, 1, bench.now + ms(1_000));
    bench.hear(ToPeer::Resumed { term: 1 });
    assert!(!bench.drain().contains(&send(vote(1, 2))), "it hears first what it missed");
    bench.hear(PROCEED);
    assert_eq!(bench.drain(), [send(vote(1, 2))]);
}

#[test]
fn a_refusal_that_was_lost_is_said_again() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    let broken = PerformResult::LinkBroken(BrokenLink::towards(id(1), id(2), "reset"));
    bench.performed(call, broken);
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 1 });
    bench.hear(PROCEED);
    let reason = Refusal::Link { from: id(1), to: id(2), error: "reset".to_owned() };
    assert_eq!(bench.drain().last(), Some(&send(ToCoordinator::Refuse { key: key(1, 0), reason })));
}

#[test]
fn what_a_resume_told_of_is_refused_if_it_was_abandoned_since() {
    let cancelled = |key| send(ToCoordinator::Refuse { key, reason: Refusal::Cancelled });
    // What was said before is lost with the connection; the resume brings the vote on the call that is given up.
    let resumed_and_abandoned = || {
        let mut bench = Bench::of(&[1, 2]);
        let call = bench.call(false);
        bench.drain();
        bench.session.handle_disconnected(bench.now);
        bench.session.handle_cancel(bench.now, call);
        bench.performed(call, PerformResult::Stopped);
        bench.wait(ms(20));
        bench.session.handle_connected(bench.now);
        let sent = bench.drain();
        let [Action::Send(ToCoordinator::Resume(resume))] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(resume.tags[0].open.as_ref().map(|open| &open.key), Some(&key(1, 0)));
        bench.hear(ToPeer::Resumed { term: 1 });
        assert_eq!(bench.wait(ms(200)).last(), Some(&fail(call, CallError::Cancelled)));
        bench
    };
    // Nobody else would end it, and the others wait for it.
    let mut bench = resumed_and_abandoned();
    bench.hear(PROCEED);
    assert_eq!(bench.drain(), [cancelled(key(1, 0))]);
    // Another call waits for the verdict: to begin the same attempt with it would be a breach of protocol.
    let mut bench = resumed_and_abandoned();
    bench.call(true);
    bench.hear(PROCEED);
    assert_eq!(bench.drain(), [cancelled(key(1, 0))]);
    let told = bench.abort(key(1, 0), AbortReason::Cancelled { by: id(1) });
    assert_eq!(told[..2], [ack(key(1, 0)), initiate(key(1, 1), true, 10_000)]);
    // The same call again goes on with the vote.
    let mut bench = resumed_and_abandoned();
    bench.call(false);
    bench.hear(PROCEED);
    assert_eq!(bench.drain()[0], initiate(key(1, 0), false, 10_000));
    // What was abandoned before the resume was written is not in it, and is nobody's vote any more.
    let mut bench = resumed_and_abandoned();
    let sent = bench.reconnect();
    let [Action::Send(ToCoordinator::Resume(resume))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(resume.tags, []);
    bench.hear(ToPeer::Resumed { term: 1 });
    bench.drain();
    bench.call(true);
    bench.hear(PROCEED);
    assert_eq!(bench.drain()[0], initiate(key(1, 0), true, 10_000));
}

/// It said how the last sync had ended, and nothing of the steps since.
#[test]
fn a_resume_tells_how_far_the_state_had_come() {
    let told = |bench: &mut Bench| {
        let sent = bench.reconnect();
        let [Action::Send(ToCoordinator::Resume(resume))] = &sent[..] else { panic!("{sent:?}") };
        let revision = resume.revision;
        bench.hear(ToPeer::Resumed { term: 1 });
        bench.hear(PROCEED);
        bench.drain();
        revision
    };
    let mut bench = Bench::of(&[1, 2]);
    assert_eq!(told(&mut bench), None);
    // A sync of others, in which it stood apart, and one that it finished with them.
    for (number, members, expected) in [(1, vec![id(2)], None), (2, vec![id(1), id(2)], Some(700))] {
        let finished = sync::Outcome::Finished { revision: 700, healed: Vec::new(), members };
        let finished = minicbor::to_vec(&finished).expect("a vector takes everything");
        bench.hear(ended(BallotId { kind: sync::KIND, number }, BallotEnd::Agreed(finished)));
        assert_eq!(told(&mut bench), expected);
    }
    // A step that is committed, and one that is not.
    let step = |bench: &mut Bench, step: u64, verdict: Verdict| {
        let fingerprint = Fingerprint { step: Some(step), ..fingerprint(false) };
        let deadline = bench.now + ms(10_000);
        let op = Op { scope: Scope::Whole, tag: 0, fingerprint, deadline, members: None };
        let call = bench.session.handle_op_call(bench.now, op);
        bench.performed(call, PerformResult::Done);
        bench.verdict(key(1, step - 700), verdict);
        told(bench)
    };
    assert_eq!(step(&mut bench, 700, Verdict::Commit { pending: 0 }), Some(701));
    let cancelled = Verdict::Abort(AbortReason::Cancelled { by: id(2) });
    assert_eq!(step(&mut bench, 701, cancelled), Some(701));
    // The next session knows nothing of it; who has finished says that it has.
    bench.session.handle_leave(bench.now, true);
    assert!(bench.drain().contains(&send(ToCoordinator::Leave { for_good: true })));
    assert_eq!(bench.session.revision, None);
}

#[test]
fn a_lower_term_is_refused_and_nothing_it_says_counts() {
    let mut bench = Bench::of(&[1, 2]);
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 5 });
    bench.drain();
    let call = bench.call(true);
    bench.hear(PROCEED);
    bench.performed(call, PerformResult::Done);
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 4 });
    assert_eq!(bench.drain(), [Action::HangUp]);
    assert_eq!(bench.verdict(key(1, 0), Verdict::Commit { pending: 0 }), []);
    assert!(!bench.session.is_connected());
    // Nor does it put anybody out.
    bench.wait(ms(100));
    bench.session.handle_connected(bench.now);
    bench.drain();
    bench.hear(ToPeer::Kicked { reason: KickReason::Evicted, text: String::new(), term: 4 });
    assert_eq!(bench.drain(), [Action::HangUp]);
    assert_eq!(bench.session.out(), None);
    // One that says nothing of its term has nothing to say either.
    bench.wait(ms(1_000));
    bench.session.handle_connected(bench.now);
    bench.drain();
    assert_eq!(bench.verdict(key(1, 0), Verdict::Commit { pending: 0 }), []);
}

#[test]
fn a_term_that_grows_disturbs_nothing() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.abort(key(1, 0), lost(2));
    bench.performed(call, PerformResult::Stopped);
    bench.hear(ToPeer::Resumed { term: 3 });
    assert_eq!(bench.drain(), [send(ToCoordinator::Promise { term: 3 })], "still on hold");
}

#[test]
fn without_a_coordinator_for_too_long_the_session_is_over() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call_within(true, ms(60_000));
    bench.drain();
    bench.session.handle_disconnected(bench.now);
    let mut actions = bench.wait(ms(9_999));
    actions.retain(|action| *action != Action::Dial);
    assert_eq!(actions, []);
    let end = [
        Action::HangUp,
        tell(call, Command::Abort),
        tell(call, Command::Undo),
        fail(call, CallError::Out(OutReason::CoordinatorLost)),
    ];
    assert_eq!(bench.wait(ms(1)), end);
}

#[test]
fn a_kick_ends_everything_and_restores_the_callers_data() {
    let mut bench = Bench::of(&[1, 2]);
    // A program may begin to reduce while a vote of its own stands; not the other way round.
    let vote = bench.session.handle_admission_call(bench.now, 1, bench.now + ms(1_000));
    let call = bench.call(true);
    bench.drain();
    bench.hear(ToPeer::Kicked { reason: KickReason::Evicted, text: "away".to_owned(), term: 1 });
    let out = || CallError::Out(OutReason::Kicked(KickReason::Evicted, "away".to_owned()));
    assert_eq!(
        bench.drain(),
        [
            Action::HangUp,
            tell(call, Command::Abort),
            tell(call, Command::Undo),
            fail(call, out()),
            fail(vote, out()),
        ]
    );
    assert_eq!(bench.performed(call, PerformResult::Done), []);
}

#[test]
fn a_commit_that_cannot_be_ours_ends_the_session() {
    let mut bench = Bench::of(&[1, 2]);
    assert_eq!(bench.verdict(key(1, 0), Verdict::Commit { pending: 0 }).last(), Some(&Action::HangUp));
    assert_eq!(bench.session.out(), Some(&OutReason::OutcomeUnknown));
}

#[test]
fn the_deadline_of_a_vote_is_made_known_and_ends_with_the_news() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.session.handle_admission_call(bench.now, 3, bench.now + ms(500));
    assert_eq!(bench.drain(), [send(vote(3, 2))]);
    assert_eq!(bench.wait(ms(500)), [send(ToCoordinator::Expired { ballot: ballot(2) })]);
    // The vote may have ended well in the same moment: then it has.
    bench.hear(agreed(2));
    assert!(matches!(&bench.drain()[..], [Action::Call(done, Command::Finish(Ok(_)))] if *done == call));
    let call = bench.session.handle_admission_call(bench.now, 3, bench.now + ms(500));
    bench.wait(ms(500));
    bench.hear(timed_out(3));
    // Everybody who is here has voted: those are missing who are not.
    assert_eq!(bench.drain(), [fail(call, CallError::TooFewCame { have: 2, want: 3 })]);
    // No news at all: it ends for us alone, in time.
    let call = bench.session.handle_admission_call(bench.now, 3, bench.now + ms(500));
    bench.drain();
    assert_eq!(
        bench.wait(ms(5_500)),
        [
            send(ToCoordinator::Expired { ballot: ballot(4) }),
            send(ToCoordinator::TakeBack { ballot: ballot(4) }),
            fail(call, CallError::Timeout(Vec::new())),
        ]
    );
}

#[test]
fn news_of_an_earlier_vote_does_not_end_a_later_one() {
    let mut bench = Bench::of(&[1, 2]);
    bench.hear(timed_out(2));
    bench.session.handle_admission_call(bench.now, 1, bench.now + ms(500));
    assert_eq!(bench.drain(), [send(vote(1, 3))]);
    bench.hear(timed_out(2));
    assert_eq!(bench.drain(), []);
}

#[test]
fn different_tags_are_bounded_and_old_ones_make_room() {
    let mut bench = Bench::of(&[1]);
    let op = |tag: u64, now: Instant| Op {
        scope: Scope::Whole,
        tag,
        fingerprint: fingerprint(true),
        deadline: now + ms(1_000),
        members: None,
    };
    for tag in 0..TAGS_MAX as u64 {
        let call = bench.session.handle_op_call(bench.now, op(tag, bench.now));
        bench.performed(call, PerformResult::Done);
        bench.verdict(OpKey { tag, ..key(1, 0) }, Verdict::Commit { pending: 0 });
    }
    let call = bench.session.handle_op_call(bench.now, op(5_000, bench.now));
    assert_eq!(
        bench.drain(),
        [fail(call, CallError::TooManyTags { peer: id(1), tags: TAGS_MAX, listed: 0 })]
    );
    bench.hear(ToPeer::Epoch(record(2, &[1])));
    bench.drain();
    bench.session.handle_op_call(bench.now, op(5_000, bench.now));
    assert_eq!(bench.drain().len(), 2);
    // It says that it has forgotten something.
    let actions = bench.reconnect();
    assert!(
        matches!(&actions[..], [Action::Send(ToCoordinator::Resume(Resume { remembers_from: 2, .. }))]),
        "{actions:?}"
    );
}

#[test]
fn the_last_commit_is_remembered_however_many_aborts_follow() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.verdict(key(1, 0), Verdict::Commit { pending: 0 });
    for seq in 1..40 {
        bench.abort(key(1, seq), AbortReason::Cancelled { by: id(2) });
    }
    let actions = bench.reconnect();
    let [Action::Send(ToCoordinator::Resume(resume))] = &actions[..] else { panic!("{actions:?}") };
    let learned = &resume.tags[0].learned;
    assert_eq!(learned[0], (key(1, 0), Verdict::Commit { pending: 0 }));
    assert_eq!(learned.last().unwrap().0, key(1, 39));
    assert!(learned.len() <= crate::limits::LEARNED_MAX + 1);
}

/// One who does not call hears nothing but how the others' calls time out, and is never put out for it (rule 20).
#[test]
fn a_program_that_does_not_call_outlives_any_number_of_timeouts_of_the_others() {
    let mut bench = Bench::of(&[1, 2]);
    let timeout = || AbortReason::Timeout(Vec::new());
    for seq in 0..100_000 {
        bench.abort(key(1, seq), timeout());
    }
    assert_eq!(bench.session.out(), None);
    // Its own calls end as theirs did, one by one, and then it is with them.
    for _ in 0..100_000 {
        let call = bench.call(true);
        assert_eq!(bench.drain(), [fail(call, CallError::Timeout(Vec::new()))]);
    }
    bench.call(true);
    assert_eq!(bench.drain()[0], initiate(key(1, 100_000), true, 10_000));
}

#[test]
fn verdicts_that_wait_for_calls_are_few_in_memory_and_all_are_met() {
    for retry in [true, false] {
        let mut bench = Bench::of(&[1, 2]);
        for seq in 0..3_000 {
            let reason = match seq % 3 {
                0 => AbortReason::Timeout(Vec::new()),
                1 => AbortReason::Cancelled { by: id(2) },
                _ => lost(2),
            };
            bench.abort(key(1, seq), reason);
        }
        bench.hear(PROCEED);
        bench.drain();
        assert_eq!(bench.session.out(), None);
        // A call that retries is ended by a timeout only, another by anything.
        let mut ended = 0;
        loop {
            bench.call(retry);
            match &bench.drain()[..] {
                [Action::Call(_, Command::Finish(Err(_)))] => ended += 1,
                _ => break,
            }
        }
        assert_eq!(ended, if retry { 1_000 } else { 3_000 });
    }
}

#[test]
fn a_call_for_which_somebody_has_no_room_is_refused_and_leaves_nothing_behind() {
    let mut bench = Bench::of(&[1, 2]);
    let denied = ToPeer::Denied { key: key(1, 0), peer: id(2), tags: 1_024, listed: 7 };
    let error = CallError::TooManyTags { peer: id(2), tags: 1_024, listed: 7 };
    let call = bench.call(true);
    bench.drain();
    bench.hear(denied.clone());
    assert_eq!(bench.drain(), [tell(call, Command::Abort)]);
    assert_eq!(bench.performed(call, PerformResult::Stopped), [fail(call, error.clone())]);
    // It may have been done already.
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.hear(denied);
    assert_eq!(bench.drain(), [tell(call, Command::Undo), fail(call, error)]);
    assert_eq!(bench.session.out(), None);
    let actions = bench.reconnect();
    let [Action::Send(ToCoordinator::Resume(resume))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(resume.tags, []);
}

/// What the others' verdicts make a peer remember is bounded, epoch after epoch, and a call in this one is not forgotten.
#[test]
fn verdicts_on_tags_that_it_never_used_do_not_pile_up() {
    let mut bench = Bench::of(&[1, 2]);
    for epoch in 1..4 {
        for tag in 0..TAGS_MAX as u64 {
            let key = OpKey { tag: 10_000 * epoch + tag, ..key(epoch, 0) };
            bench.abort(key, AbortReason::Timeout(Vec::new()));
        }
        bench.hear(ToPeer::Epoch(record(epoch + 1, &[1, 2])));
        bench.drain();
    }
    let actions = bench.reconnect();
    let [Action::Send(ToCoordinator::Resume(resume))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((resume.tags.len(), resume.remembers_from), (TAGS_MAX, 3));
    assert!(resume.tags.iter().all(|report| report.learned.iter().all(|(key, _)| key.epoch == 3)));
}

#[test]
fn a_coordinator_that_cannot_be_read_ends_the_session_in_words() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.session.handle_unreadable(&InvalidMessage::Newer("unknown enum variant 250".to_owned()));
    let out = bench.session.out().cloned().expect("it is out");
    let text = out.to_string();
    assert!(text.contains("unknown enum variant 250") && text.contains("update the older side"), "{text}");
    let actions = bench.drain();
    assert!(
        actions.contains(&Action::Send(ToCoordinator::Leave { for_good: false })),
        "nobody needs to find out: {actions:?}"
    );
    assert!(actions.contains(&tell(call, Command::Undo)), "its data is as it was: {actions:?}");
    assert_eq!(actions.last(), Some(&fail(call, CallError::Out(out))));
}

#[test]
fn an_epoch_that_tells_of_an_end_is_not_the_end() {
    // It was away when the ballot ended; its connection breaks after the epoch, before the end is told (rule 43).
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.session.handle_admission_call(bench.now, 1, bench.now + ms(60_000));
    let tallies = vec![(ADMISSION, Tally { ended: 2, agreed: 2 })];
    bench.hear(ToPeer::Epoch(EpochRecord { ballots: tallies, ..record(2, &[1, 2]) }));
    bench.drain();
    let actions = bench.reconnect();
    let [Action::Send(ToCoordinator::Resume(resume))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(resume.ballots[0].tally.ended, 1, "it still waits for the end of the second");
    bench.hear(ToPeer::Resumed { term: 1 });
    bench.drain();
    bench.hear(agreed(2));
    assert!(matches!(&bench.drain()[..], [Action::Call(done, Command::Finish(Ok(_)))] if *done == call));
}

#[test]
fn a_call_in_a_ballot_that_is_void_votes_again_by_itself() {
    let mut bench = Bench::of(&[1, 2]);
    bench.session.handle_admission_call(bench.now, 1, bench.now + ms(60_000));
    bench.drain();
    bench.hear(ended(ballot(2), BallotEnd::Void));
    assert_eq!(bench.drain(), [send(vote(1, 3))]);
    // Once more, in the middle of a resume: then it waits until it is told to go on.
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 1 });
    bench.drain();
    bench.hear(ended(ballot(3), BallotEnd::Void));
    assert_eq!(bench.drain(), []);
    bench.hear(PROCEED);
    assert_eq!(bench.drain(), [send(vote(1, 4))]);
}

#[test]
fn what_was_agreed_on_is_remembered_for_a_coordinator_that_forgot_it() {
    let mut bench = Bench::of(&[1, 2]);
    let kind = BallotKind(77);
    let (wish, deadline) = (b"mine".to_vec(), bench.now + ms(60_000));
    let call = bench.session.handle_ballot_call(bench.now, kind, wish, deadline);
    bench.drain();
    bench.hear(ended(BallotId { kind, number: 1 }, BallotEnd::Agreed(b"ours".to_vec())));
    let actions = bench.drain();
    let [Action::Call(done, Command::Finish(Ok(Done::Ballot { outcome, .. })))] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!((*done, &outcome[..]), (call, &b"ours"[..]));
    bench.session.handle_ballot_call(bench.now, kind, b"next".to_vec(), deadline);
    bench.drain();
    let actions = bench.reconnect();
    let [Action::Send(ToCoordinator::Resume(resume))] = &actions[..] else { panic!("{actions:?}") };
    let tally = Tally { ended: 1, agreed: 1 };
    let (outcome, wish) = (Some(b"ours".to_vec()), Some(b"next".to_vec()));
    assert_eq!(resume.ballots[1], BallotReport { kind, tally, outcome, wish });
}

#[test]
fn a_coordinator_that_does_not_know_the_kind_fails_the_call_and_nothing_else() {
    let mut bench = Bench::of(&[1, 2]);
    let kind = BallotKind(77);
    let call = bench.session.handle_ballot_call(bench.now, kind, Vec::new(), bench.now + ms(60_000));
    bench.drain();
    bench.hear(ended(BallotId { kind, number: 1 }, BallotEnd::Unknown));
    assert!(
        matches!(&bench.drain()[..], [Action::Call(id, Command::Finish(Err(CallError::Failed(_))))] if *id == call)
    );
    assert_eq!(bench.session.out(), None);
}

#[test]
fn whether_a_link_can_be_made_is_said_to_whoever_asked_and_to_nobody_else() {
    let answer = |number| send(ToCoordinator::Prepared { group: 0, number, error: None });
    let ask = |bench: &mut Bench, number| {
        let record = EpochRecord { ring: vec![0, 1, 2], ..record(2, &[1, 2, 3]) };
        bench.hear(ToPeer::Prepare { record: record.clone(), number });
        assert_eq!(bench.drain(), [Action::Prepare(record, number)]);
    };
    let mut bench = Bench::of(&[1, 2, 3]);
    ask(&mut bench, 5);
    bench.session.handle_prepared(4, None);
    assert_eq!(bench.drain(), [], "an older question");
    bench.session.handle_prepared(5, None);
    assert_eq!(bench.drain(), [answer(5)]);
    // The connection on which it was asked is gone.
    ask(&mut bench, 6);
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 1 });
    bench.drain();
    bench.session.handle_prepared(6, None);
    assert_eq!(bench.drain(), []);
    // So is the session: in the next one it is no member, and an answer would be a breach.
    ask(&mut bench, 7);
    bench.hear(ToPeer::Kicked { reason: KickReason::Evicted, text: String::new(), term: 1 });
    bench.drain();
    bench.session.renew(Registration { session: SessionId([8; 16]), ..registration() });
    bench.session.handle_connect_call(bench.now, 1, bench.now + ms(60_000));
    bench.session.handle_connected(bench.now);
    bench.hear(ToPeer::Registered { term: 1 });
    bench.drain();
    bench.session.handle_prepared(7, None);
    assert_eq!(bench.drain(), []);
}

#[test]
fn a_link_that_is_up_is_not_dialled_for_a_ring_that_keeps_it() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    let next = EpochRecord { ring: vec![0, 3, 1, 2], ..record(2, &[1, 2, 3, 4]) };
    bench.hear(ToPeer::Prepare { record: next.clone(), number: 5 });
    assert_eq!(bench.drain(), [send(ToCoordinator::Prepared { group: 0, number: 5, error: None })]);
    // In an epoch whose link is not there yet it is.
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    bench.hear(ToPeer::Epoch(record(2, &[1, 2, 3, 4])));
    bench.drain();
    let next = EpochRecord { epoch: 3, ..next };
    bench.hear(ToPeer::Prepare { record: next.clone(), number: 6 });
    assert_eq!(bench.drain(), [Action::Prepare(next, 6)]);
}

#[test]
fn what_happened_is_brought_to_the_next_coordinator_and_forgotten_with_the_session() {
    let mut bench = Bench::of(&[1, 2]);
    let incident = |at_us| Incident { at_us, text: format!("number {at_us}") };
    bench.hear(ToPeer::Annals(vec![incident(7), incident(9)]));
    bench.hear(ToPeer::Annals(vec![incident(8), incident(9)]));
    assert_eq!(bench.drain(), [], "nothing follows from it");
    bench.session.handle_disconnected(bench.now);
    bench.wait(ms(60));
    bench.session.handle_connected(bench.now);
    bench.drain();
    bench.hear(ToPeer::Resumed { term: 5 });
    let remembered = ToCoordinator::Remembered(vec![incident(7), incident(8), incident(9)]);
    let sent = bench.drain();
    assert_eq!(sent.last(), Some(&Action::Send(remembered)), "{sent:?}");
    bench.session.handle_leave(bench.now, true);
    assert!(bench.session.annals().is_empty(), "the next session may be in another run's time");
}
