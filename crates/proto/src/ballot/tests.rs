//! The rules of kinds and the memory of ballots, each by itself.

use super::admission::{self, Admission};
use super::dummy::{self, Dummy};
use super::*;
use crate::coordinator::ConnectionState;
use crate::wire::control::{BallotEnd, BallotId, BallotReport, Decider, EpochRecord, Tally};

fn id(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

fn votes(wishes: &[(u8, &[u8])]) -> BTreeMap<PeerId, Vec<u8>> {
    wishes.iter().map(|(number, wish)| (id(*number), wish.to_vec())).collect()
}

fn seats<'a>(group: Group, members: &'a [PeerId], votes: &'a BTreeMap<PeerId, Vec<u8>>) -> Seats<'a> {
    let (is_quiet, is_linked, agreed) = (true, true, None);
    let votes = Some(votes);
    let (ring, refused_ring) = (members, None);
    let (paths, survey) = (Box::leak(Box::default()), Box::leak(Box::default()));
    let revision = None;
    Seats { group, members, ring, refused_ring, paths, survey, votes, agreed, revision, is_quiet, is_linked }
}

fn record(tally: Tally) -> EpochRecord {
    EpochRecord {
        run_epoch: 1,
        group: 0,
        epoch: 1,
        roster: Vec::new(),
        ring: Vec::new(),
        decider: Decider::Coordinator,
        global_world_size: 0,
        joined: Vec::new(),
        left: Vec::new(),
        founder: id(1),
        broken: Vec::new(),
        incumbents: 0,
        ancestors: Vec::new(),
        ballots: vec![(dummy::KIND, tally)],
    }
}

fn report(ended: u64, agreed: u64, outcome: Option<&[u8]>) -> Vec<BallotReport> {
    let (tally, outcome) = (Tally { ended, agreed }, outcome.map(<[u8]>::to_vec));
    vec![BallotReport { kind: dummy::KIND, tally, outcome, wish: None }]
}

fn ended(number: u64, end: BallotEnd) -> (BallotId, BallotEnd) {
    (BallotId { kind: dummy::KIND, number }, end)
}

fn rebuilt(known: Tally, told: &[Vec<BallotReport>]) -> Ballots {
    let told: Vec<_> = told.iter().map(|reports| &reports[..]).collect();
    Ballots::rebuilt(&record(known), &told)
}

fn knows(ended: u64) -> Known {
    Known::from([(dummy::KIND, ended)])
}

#[test]
fn every_kind_has_a_number_and_a_name_of_its_own() {
    let kinds: BTreeSet<_> = KINDS.iter().map(|rules| rules.kind()).collect();
    let names: BTreeSet<_> = KINDS.iter().map(|rules| rules.name()).collect();
    assert_eq!((kinds.len(), names.len()), (KINDS.len(), KINDS.len()));
    assert!(KINDS.len() <= crate::limits::BALLOT_KINDS_MAX);
}

#[test]
fn a_ballot_of_a_group_waits_for_its_members_and_for_nobody_else() {
    let members = [id(2), id(1)];
    let (all, one) = (votes(&[(1, b"a"), (2, b"b")]), votes(&[(1, b"a")]));
    let other = [id(3)];
    let silent = BTreeMap::new();
    let hall = Hall::new(vec![seats(0, &members, &all), seats(1, &other, &silent)], None);
    // The outcome follows the order of ranks.
    assert_eq!(Dummy.count(&hall), Step::Agree(vec![(0, b"ba".to_vec())]));
    assert_eq!(Dummy.count(&Hall::new(vec![seats(0, &members, &one)], None)), Step::Wait);
    let busy = Seats { is_quiet: false, ..seats(0, &members, &all) };
    let unlinked = Seats { is_linked: false, ..seats(0, &members, &all) };
    for seats in [busy, unlinked] {
        assert_eq!(Dummy.count(&Hall::new(vec![seats], None)), Step::Wait);
    }
}

#[test]
fn a_ballot_of_the_run_waits_for_all_groups() {
    struct Everybody;
    impl Rules for Everybody {
        fn kind(&self) -> BallotKind {
            BallotKind(1)
        }
        fn name(&self) -> &'static str {
            "everybody"
        }
        fn state(&self, _wish: &[u8]) -> ConnectionState {
            ConnectionState::Vote("VoteEverybody")
        }
        fn reach(&self) -> Reach {
            Reach::Run
        }
        fn check(&self, _wish: &[u8]) -> Result<(), String> {
            Ok(())
        }
        fn outcome(&self, hall: &Hall<'_>, _seats: &Seats<'_>) -> Vec<u8> {
            hall.groups().flat_map(Seats::wishes).flat_map(|(_, wish)| wish.to_vec()).collect()
        }
    }
    let (ours, theirs) = ([id(1)], [id(2)]);
    let (one, other, silent) = (votes(&[(1, b"a")]), votes(&[(2, b"b")]), BTreeMap::new());
    let hall = Hall::new(vec![seats(0, &ours, &one), seats(1, &theirs, &silent)], None);
    assert_eq!(Everybody.count(&hall), Step::Wait);
    let hall = Hall::new(vec![seats(0, &ours, &one), seats(1, &theirs, &other)], None);
    assert_eq!(Everybody.count(&hall), Step::Agree(vec![(0, b"ab".to_vec()), (1, b"ab".to_vec())]));
    assert_eq!(Everybody.count(&Hall::new(Vec::new(), None)), Step::Wait);
}

#[test]
fn wishes_that_mean_nothing_are_told_so() {
    assert_eq!(Admission.check(&admission::wish(0)), Ok(()), "nobody asks for less than itself");
    assert!(Admission.check(b"").is_err());
    assert!(Admission.check(&minicbor::to_vec(admission::Wish { min_world: 0 }).unwrap()).is_err());
    assert!(Dummy.check(&[0; dummy::WISH_BYTES_MAX + 1]).is_err());
}

#[test]
fn a_peer_has_one_vote() {
    let mut ballots = Ballots::default();
    ballots.vote(dummy::KIND, id(1), b"a".to_vec());
    ballots.vote(admission::KIND, id(1), admission::wish(1));
    assert_eq!(ballots.votes(dummy::KIND), None);
    assert_eq!(ballots.vote_of(id(1)), Some((admission::KIND, &admission::wish(1)[..])));
    assert!(ballots.take_back(id(1)) && !ballots.take_back(id(1)));
}

#[test]
fn whoever_did_not_hear_an_end_is_told_the_last_agreement_and_the_last_timeout() {
    let mut ballots = Ballots::default();
    for end in [Some(b"one".to_vec()), None, Some(b"three".to_vec()), None] {
        ballots.end(dummy::KIND, end);
    }
    let agreed = ended(3, BallotEnd::Agreed(b"three".to_vec()));
    let timed_out = ended(4, BallotEnd::TimedOut(Vec::new()));
    assert_eq!(ballots.missed(&knows(2)), [agreed, timed_out.clone()]);
    assert_eq!(ballots.missed(&knows(3)), [timed_out]);
    assert_eq!(ballots.missed(&knows(4)), []);
}

#[test]
fn an_outcome_that_one_has_heard_is_everybodys_after_a_restart() {
    let ballots =
        rebuilt(Tally::default(), &[report(1, 0, None), report(2, 2, Some(b"x")), report(1, 0, None)]);
    assert_eq!(ballots.missed(&knows(1)), [ended(2, BallotEnd::Agreed(b"x".to_vec()))]);
    assert_eq!(ballots.current(dummy::KIND).number, 3);
}

#[test]
fn where_nobody_has_heard_the_outcome_the_ballot_is_void() {
    // The record says that it was agreed on; those who heard on what are gone.
    let tally = Tally { ended: 2, agreed: 2 };
    let ballots = rebuilt(tally, &[report(1, 1, Some(b"old")), report(2, 2, None)]);
    assert_eq!(ballots.missed(&knows(1)), [ended(2, BallotEnd::Void)]);
}

#[test]
fn who_claims_an_agreement_that_others_cannot_have_voted_in_is_not_believed() {
    // The other stands in ballot 2, so nobody can have agreed on ballot 7.
    let ballots = rebuilt(Tally::default(), &[report(1, 1, Some(b"x")), report(7, 7, Some(b"lie"))]);
    let told = ballots.missed(&knows(1));
    assert!(!told.iter().any(|(_, end)| matches!(end, BallotEnd::Agreed(_))), "{told:?}");
    // Of two outcomes of one ballot the one counts that more have heard.
    let told = [report(2, 2, Some(b"z")), report(2, 2, Some(b"a")), report(2, 2, Some(b"a"))];
    let ballots = rebuilt(Tally::default(), &told);
    assert_eq!(ballots.missed(&knows(1)), [ended(2, BallotEnd::Agreed(b"a".to_vec()))]);
}
