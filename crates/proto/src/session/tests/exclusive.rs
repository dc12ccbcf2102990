//! What may not be in flight together: one owner says so, and whoever is refused has changed nothing.

use super::*;

fn under(tag: u64, scope: Scope, now: Instant) -> Op {
    Op { scope, tag, fingerprint: fingerprint(false), deadline: now + ms(10_000), members: None }
}

#[test]
fn one_scope_and_tag_has_one_collective_at_a_time() {
    let mut bench = Bench::of(&[1, 2]);
    let first = bench.call(false);
    assert_eq!(bench.drain(), [initiate(key(1, 0), false, 10_000), perform(first, key(1, 0), &[2, 1])]);
    let second = bench.call(false);
    assert_eq!(bench.drain(), [fail(second, CallError::TagInFlight { tag: 0 })]);
    // Another tag, or another scope under the same tag, is another collective.
    for op in [under(1, Scope::Whole, bench.now), under(0, Scope::Members(vec![id(1), id(2)]), bench.now)] {
        bench.session.handle_op_call(bench.now, op);
        assert!(matches!(bench.drain()[..], [Action::Send(_), Action::Call(_, Command::Perform(_))]));
    }
    // The refused one used up no number: the next call is number 1.
    bench.performed(first, PerformResult::Done);
    bench.verdict(key(1, 0), Verdict::Commit { pending: 0 });
    let third = bench.call(false);
    assert_eq!(bench.drain()[1], perform(third, key(1, 1), &[2, 1]));
}

#[test]
fn a_vote_is_not_begun_beside_collectives() {
    let mut bench = Bench::of(&[1, 2]);
    assert_eq!(bench.session.may_begin_vote(), Ok(()));
    bench.session.handle_op_call(bench.now, under(7, Scope::Whole, bench.now));
    bench.drain();
    let open = CallError::CollectivesInFlight { tags: vec![7] };
    assert_eq!(bench.session.may_begin_vote(), Err(open.clone()));
    let vote = bench.session.handle_admission_call(bench.now, 1, bench.now + ms(1_000));
    assert_eq!(bench.drain(), [fail(vote, open)], "and nobody hears of it");
}

/// The second took the first one's place, whose caller then waited in vain until long after its deadline.
#[test]
fn of_two_votes_the_second_is_refused_and_the_first_ends() {
    let mut bench = Bench::of(&[1, 2]);
    let first = bench.session.handle_admission_call(bench.now, 1, bench.now + ms(1_000));
    assert_eq!(bench.drain(), [send(vote(1, 2))]);
    let kind = BallotKind(2);
    let second = bench.session.handle_ballot_call(bench.now, kind, Vec::new(), bench.now + ms(1_000));
    assert_eq!(bench.drain(), [fail(second, CallError::VoteInFlight { name: "update_topology" })]);
    bench.hear(agreed(2));
    assert!(matches!(bench.drain()[..], [Action::Call(call, Command::Finish(Ok(_)))] if call == first));
    assert_eq!(bench.session.may_begin_vote(), Ok(()));
}

#[test]
fn one_name_has_one_transfer_at_a_time_and_receives_are_numbered() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let from = |number: u8| TransferName { peer: id(number), tag: 5, receives: true };
    assert_eq!(bench.session.begin_transfer(from(2)), Ok(0));
    let (peer, tag, receives) = (id(2), 5, true);
    let taken = CallError::TransferInFlight { peer, tag, receives };
    assert!(taken.to_string().contains("receive from") && taken.to_string().contains("tag 5"), "{taken}");
    assert_eq!(bench.session.begin_transfer(from(2)), Err(taken));
    assert_eq!(bench.session.begin_transfer(from(3)), Ok(1));
    // A send has no number, and is no receive.
    let to = TransferName { receives: false, ..from(2) };
    assert_eq!((bench.session.begin_transfer(to), bench.session.begin_transfer(from(1))), (Ok(2), Ok(2)));
    bench.session.end_transfer(from(2));
    assert_eq!(bench.session.begin_transfer(from(2)), Ok(3));
}

#[test]
fn a_peer_is_in_from_its_admission_to_the_end_of_its_session() {
    let (mut bench, _) = Bench::connecting();
    assert!(!bench.session.is_member());
    bench.session.handle_connected(bench.now);
    bench.hear(ToPeer::Registered { term: 1 });
    assert!(!bench.session.is_member(), "registered is not admitted");
    bench.hear(ToPeer::Epoch(record(1, &[1, 2])));
    assert!(bench.session.is_member());
    bench.drain();
    bench.reconnect();
    assert!(bench.session.is_member(), "a moment without a coordinator costs nobody its place");
    let (reason, text, term) = (KickReason::Evicted, "evicted".to_owned(), 1);
    bench.hear(ToPeer::Kicked { reason, text, term });
    assert!(!bench.session.is_member());
}
