use super::*;

const ME: u8 = 1;

fn id(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

fn address(number: u8) -> SocketAddr {
    ([10, 0, 0, number], 7_000).into()
}

fn ring(numbers: &[u8]) -> Vec<(PeerId, SocketAddr)> {
    numbers.iter().map(|number| (id(*number), address(*number))).collect()
}

/// The links of peer 1 in epoch 1 of group 0, whose ring this is.
fn links(numbers: &[u8]) -> Links<u32> {
    let mut links = Links::new(id(ME));
    open(&mut links, 0, 1, numbers);
    links
}

fn open(links: &mut Links<u32>, group: Group, epoch: GroupEpoch, numbers: &[u8]) -> Vec<PeerId> {
    let roster = links.roster_of(epoch, ring(numbers));
    links.open(group, roster).into_iter().flat_map(Roster::into_members).collect()
}

fn dial(links: &mut Links<u32>, number: u8) -> u64 {
    match links.want(id(number)) {
        Wanted::Dial { serial, .. } => serial,
        other => panic!("{other:?} instead of a dial"),
    }
}

fn hearers(links: &Links<u32>, direction: Direction, number: u8, change: Change) -> Vec<(Group, GroupEpoch)> {
    links.hearers(direction, id(number), change).collect()
}

// ---- wanting a link ----

#[test]
fn a_link_that_is_missing_is_dialled_once_and_then_used() {
    let mut links = links(&[1, 2, 3]);
    let serial = dial(&mut links, 2);
    assert_eq!(links.want(id(2)), Wanted::UnderWay, "a second lane waits for the same dial");
    assert!(links.handle_dialled(id(2), serial));
    assert_eq!(links.handle_up(Direction::Towards, id(2), 7), None);
    assert_eq!(links.want(id(2)), Wanted::Use(7));
    assert_eq!(links.link(Direction::From, id(2)), None, "it goes one way");
}

#[test]
fn a_dial_goes_to_the_address_that_any_open_roster_knows() {
    let mut links = links(&[1, 2]);
    open(&mut links, 5, 9, &[1, 8]);
    assert_eq!(links.want(id(8)), Wanted::Dial { address: address(8), serial: 1 });
    assert_eq!(links.want(id(2)), Wanted::Dial { address: address(2), serial: 2 });
}

#[test]
fn whoever_is_in_no_roster_is_not_dialled() {
    assert_eq!(links(&[1, 2]).want(id(3)), Wanted::NoAddress);
}

#[test]
fn a_dial_that_failed_is_over_and_the_next_one_has_a_serial_of_its_own() {
    let mut links = links(&[1, 2]);
    let first = dial(&mut links, 2);
    assert!(links.handle_dialled(id(2), first));
    assert!(!links.handle_dialled(id(2), first), "it ends once");
    assert_ne!(dial(&mut links, 2), first);
}

#[test]
fn the_outcome_of_a_passed_dial_has_no_effect() {
    let mut links = links(&[1, 2]);
    let passed = dial(&mut links, 2);
    links.close(0);
    assert_eq!(links.drop_stranger(id(2)), [None, None]);
    assert!(!links.handle_dialled(id(2), passed), "the peer has left");
    open(&mut links, 0, 2, &[1, 2]);
    let present = dial(&mut links, 2);
    assert!(!links.handle_dialled(id(2), passed), "another dial is waited for");
    assert_eq!(links.want(id(2)), Wanted::UnderWay, "and still is");
    assert!(links.handle_dialled(id(2), present));
}

// ---- losing one ----

#[test]
fn a_newer_connection_takes_the_place_of_the_older_which_nobody_misses() {
    let mut links = links(&[1, 2]);
    for direction in [Direction::Towards, Direction::From] {
        assert_eq!(links.handle_up(direction, id(2), 7), None);
        assert_eq!(links.handle_up(direction, id(2), 8), Some(7));
        assert!(!links.handle_lost(direction, id(2), 7));
        assert_eq!(links.link(direction, id(2)), Some(8));
    }
}

#[test]
fn a_link_that_is_lost_is_missed_and_dialled_again() {
    let mut links = links(&[1, 2]);
    assert_eq!(links.handle_up(Direction::Towards, id(2), 7), None);
    assert_eq!(links.handle_up(Direction::From, id(2), 8), None);
    assert!(links.handle_lost(Direction::Towards, id(2), 7));
    assert!(!links.handle_lost(Direction::Towards, id(2), 7), "once");
    assert_eq!(links.link(Direction::From, id(2)), Some(8), "the other one stays");
    dial(&mut links, 2);
}

/// A lane that has done nothing yet.
fn lane(direction: Direction) -> LostLane<u32> {
    LostLane {
        direction,
        is_transfer: false,
        is_done: false,
        is_begun: false,
        is_silent: false,
        redials_left: REDIALS_MAX,
        present: None,
    }
}

const TOWARDS: Direction = Direction::Towards;
const FROM: Direction = Direction::From;

#[test]
fn a_lane_that_is_done_does_not_mind() {
    for (direction, is_begun, redials_left) in [(TOWARDS, true, 0), (TOWARDS, false, 1), (FROM, true, 2)] {
        let lane = LostLane { is_done: true, is_begun, redials_left, present: Some(7), ..lane(direction) };
        assert_eq!(after_loss(&lane), AfterLoss::Nothing);
    }
}

#[test]
fn what_was_sent_into_silence_is_not_done() {
    let sent = LostLane { is_done: true, is_begun: true, is_silent: true, ..lane(TOWARDS) };
    assert_eq!(after_loss(&sent), AfterLoss::Stop);
}

#[test]
fn what_was_received_before_the_silence_is_done() {
    let received = LostLane { is_done: true, is_begun: true, is_silent: true, ..lane(FROM) };
    assert_eq!(after_loss(&received), AfterLoss::Nothing);
}

#[test]
fn a_transfer_that_was_confirmed_before_the_silence_is_done() {
    let sent =
        LostLane { is_done: true, is_begun: true, is_silent: true, is_transfer: true, ..lane(TOWARDS) };
    assert_eq!(after_loss(&sent), AfterLoss::Nothing);
}

#[test]
fn a_lane_with_blocks_on_the_link_stops_whatever_is_there_instead() {
    for direction in [TOWARDS, FROM] {
        for is_transfer in [false, true] {
            let lane = LostLane { is_begun: true, is_transfer, present: Some(7), ..lane(direction) };
            assert_eq!(after_loss(&lane), AfterLoss::Stop);
        }
    }
}

#[test]
fn a_lane_without_redials_left_stops() {
    for direction in [TOWARDS, FROM] {
        assert_eq!(after_loss(&LostLane { redials_left: 0, ..lane(direction) }), AfterLoss::Stop);
        assert_eq!(
            after_loss(&LostLane { redials_left: 1, ..lane(direction) }),
            after_loss(&lane(direction))
        );
    }
}

#[test]
fn a_lane_that_has_not_begun_takes_the_link_that_is_there() {
    for direction in [TOWARDS, FROM] {
        for is_transfer in [false, true] {
            let lane = LostLane { is_transfer, present: Some(7), ..lane(direction) };
            assert_eq!(after_loss(&lane), AfterLoss::Use(7));
        }
    }
}

#[test]
fn a_lane_that_has_not_begun_to_send_dials_again() {
    for is_transfer in [false, true] {
        assert_eq!(after_loss(&LostLane { is_transfer, ..lane(TOWARDS) }), AfterLoss::Dial);
    }
}

#[test]
fn a_lane_that_has_not_begun_to_receive_awaits_its_predecessor_within_grace() {
    assert_eq!(after_loss(&lane(FROM)), AfterLoss::AwaitWithinGrace);
}

#[test]
fn the_receiver_of_a_transfer_awaits_a_sender_that_has_perhaps_not_called_yet() {
    assert_eq!(after_loss(&LostLane { is_transfer: true, ..lane(FROM) }), AfterLoss::Await);
}

#[test]
fn only_another_try_takes_a_redial() {
    let tries = [AfterLoss::Use(7), AfterLoss::Dial, AfterLoss::AwaitWithinGrace, AfterLoss::Await];
    assert!(tries.iter().all(AfterLoss::takes_a_redial));
    assert!(![AfterLoss::<u32>::Nothing, AfterLoss::Stop].iter().any(AfterLoss::takes_a_redial));
}

#[test]
fn a_lane_that_has_sent_goes_over_no_other_link_unless_it_is_of_a_transfer() {
    assert!(!may_change_links(true, false));
    assert!(may_change_links(true, true));
    assert!(may_change_links(false, false));
    assert!(may_change_links(false, true));
}

// ---- who hears of it ----

#[test]
fn a_ring_hears_of_the_link_to_the_next_and_from_the_previous_member() {
    let links = links(&[3, 1, 2, 4]);
    for change in [Change::Up, Change::Down] {
        assert_eq!(hearers(&links, TOWARDS, 2, change), [(0, 1)]);
        assert_eq!(hearers(&links, FROM, 3, change), [(0, 1)]);
    }
    assert!(hearers(&links, TOWARDS, 3, Change::Up).is_empty());
    assert!(hearers(&links, FROM, 2, Change::Up).is_empty());
}

#[test]
fn that_a_link_beside_the_ring_broke_is_told_by_the_end_that_sends() {
    let links = links(&[3, 1, 2, 4]);
    assert_eq!(hearers(&links, TOWARDS, 4, Change::Down), [(0, 1)]);
    assert!(hearers(&links, FROM, 4, Change::Down).is_empty());
    assert!(hearers(&links, TOWARDS, 4, Change::Up).is_empty());
}

#[test]
fn the_link_of_a_stranger_is_told_to_nobody() {
    let links = links(&[1, 2]);
    for direction in [TOWARDS, FROM] {
        assert!(hearers(&links, direction, 9, Change::Down).is_empty());
    }
}

#[test]
fn every_group_that_the_link_serves_is_told() {
    let mut links = links(&[1, 2]);
    open(&mut links, 5, 9, &[1, 2, 3]);
    open(&mut links, 6, 4, &[1, 3]);
    assert_eq!(hearers(&links, TOWARDS, 2, Change::Up), [(0, 1), (5, 9)]);
}

#[test]
fn whoever_is_alone_or_no_member_has_no_neighbours() {
    for numbers in [&[1][..], &[], &[2, 3]] {
        let links = links(numbers);
        let roster = links.roster(0).expect("it is open");
        assert_eq!((roster.successor(), roster.predecessor()), (None, None), "{numbers:?}");
    }
    assert_eq!(links(&[2, 1]).successors().collect::<Vec<_>>(), [id(2)]);
}

// ---- rosters ----

#[test]
fn epochs_of_a_group_grow_until_it_is_closed() {
    let mut links = links(&[1, 2]);
    assert!(links.may_open(0, 2) && links.may_open(3, 1));
    assert!(!links.may_open(0, 1) && !links.may_open(0, 0));
    assert!(links.close(0).is_some());
    assert!(links.may_open(0, 1) && links.close(0).is_none());
}

#[test]
fn whoever_is_in_no_roster_any_more_is_dropped_with_its_links_and_not_missed() {
    let mut links = links(&[1, 2, 3]);
    assert_eq!(links.handle_up(TOWARDS, id(2), 7), None);
    assert_eq!(links.handle_up(FROM, id(2), 8), None);
    assert_eq!(links.handle_up(FROM, id(3), 9), None);
    assert_eq!(open(&mut links, 0, 2, &[1, 3]), [id(1), id(2), id(3)]);
    assert_eq!(links.drop_stranger(id(2)), [Some(7), Some(8)]);
    assert_eq!(links.drop_stranger(id(3)), [None, None], "it is still a member");
    assert!(!links.handle_lost(TOWARDS, id(2), 7));
    assert_eq!(links.link(FROM, id(3)), Some(9));
}

#[test]
fn a_member_of_another_group_keeps_its_links() {
    let mut links = links(&[1, 2]);
    open(&mut links, 5, 9, &[2, 1]);
    assert_eq!(links.handle_up(TOWARDS, id(2), 7), None);
    links.close(0);
    assert_eq!(links.drop_stranger(id(2)), [None, None]);
    assert_eq!(links.want(id(2)), Wanted::Use(7));
}
