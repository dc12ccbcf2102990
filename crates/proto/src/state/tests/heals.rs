//! Whole syncs, with exact byte counts.

use super::world::{Member, peer, sync};
use crate::collective::DataType;
use crate::state::election::{Deviation, NoDonor, Role, Strategy};
use crate::state::{LEAF_BYTES, TensorInfo};

const MIB: usize = LEAF_BYTES;

fn received(members: &[Member]) -> Vec<u64> {
    members.iter().map(|member| member.received).collect()
}

fn trio(value: u8) -> Vec<Member> {
    (0..3).map(|number| Member::new(number, 5).with("w", 3 * MIB + 10, value).with("b", 100, value)).collect()
}

#[test]
fn members_that_agree_move_nothing() {
    let mut members = trio(7);
    let election = sync(Some(5), &mut members).unwrap();
    assert_eq!(election.donors().len(), 3);
    assert_eq!((received(&members), election.diverged), (vec![0; 3], vec![]));
}

#[test]
fn one_flipped_bit_is_found_named_and_costs_one_leaf() {
    let mut members = trio(7);
    members[1].tensor("w")[2 * MIB + 3] ^= 1;
    let election = sync(Some(5), &mut members).unwrap();
    assert_eq!(received(&members), [0, MIB as u64, 0]);
    assert_eq!((election.diverged, &members[1].differed[..]), (vec![peer(1)], &["w".to_owned()][..]));
    assert_eq!(members[1].tensors, members[0].tensors);
}

#[test]
fn a_dirty_key_costs_its_own_leaves_and_no_other() {
    let mut members = trio(7);
    members[2].tensor("b").fill(9);
    sync(Some(5), &mut members).unwrap();
    assert_eq!(received(&members), [0, 0, 100]);
    // The last leaf of a tensor is as short as it is.
    members[2].tensor("w")[3 * MIB] = 1;
    members[2].received = 0;
    sync(Some(5), &mut members).unwrap();
    assert_eq!(received(&members), [0, 0, 10]);
}

#[test]
fn a_late_joiner_gets_everything_once_from_all() {
    let mut members = trio(7);
    members.push(Member::new(9, None).with("w", 3 * MIB + 10, 0).with("b", 100, 0));
    let election = sync(Some(5), &mut members).unwrap();
    assert_eq!(received(&members), [0, 0, 0, 3 * MIB as u64 + 10 + 100]);
    assert!(members[..3].iter().all(|donor| donor.sent > 0), "every donor gives");
    assert_eq!((members[3].revision, election.diverged), (Some(5), vec![]));
    assert_eq!(members[3].tensors, members[0].tensors);
}

#[test]
fn of_three_camps_the_most_popular_wins_and_ties_go_to_the_oldest() {
    let camp = |number, value| Member::new(number, 5).with("w", 2 * MIB, value);
    let mut members = vec![camp(0, 1), camp(1, 2), camp(2, 2), camp(3, 3), camp(4, 3), camp(5, 2)];
    let election = sync(Some(5), &mut members).unwrap();
    let whole = 2 * MIB as u64;
    assert_eq!(received(&members), [whole, 0, 0, whole, whole, 0]);
    assert_eq!(election.diverged, [peer(0), peer(3), peer(4)]);
    let mut members = vec![camp(0, 1), camp(1, 2), camp(2, 2), camp(3, 1)];
    sync(Some(5), &mut members).unwrap();
    assert_eq!(received(&members), [0, whole, whole, 0]);
}

#[test]
fn the_trained_state_wins_over_any_number_of_newcomers() {
    let fresh = |number, revision| Member::new(number, revision).with("w", MIB, 0);
    let trained = || Member::new(9, 1000).with("w", MIB, 5).extra(b"step 1000");
    for (last, revision) in [(Some(1000), Some(0)), (Some(1000), None), (None, Some(0)), (Some(999), None)] {
        let mut members = vec![fresh(0, revision), fresh(1, revision), fresh(2, revision), trained()];
        let election = sync(last, &mut members).unwrap();
        assert_eq!(
            (election.elected.revision, members[0].tensor("w")[0]),
            (1000, 5),
            "{last:?} {revision:?}"
        );
        assert!(members.iter().all(|member| member.extra == b"step 1000" && member.revision == Some(1000)));
    }
}

#[test]
fn extra_bytes_travel_with_the_revision_and_cost_no_leaf() {
    let mut members = trio(7);
    members[0].extra = b"new".to_vec();
    members[0].revision = Some(6);
    sync(Some(5), &mut members).unwrap();
    assert!(members.iter().all(|member| member.extra == b"new" && member.revision == Some(6)));
    assert_eq!(received(&members), [0; 3]);
}

#[test]
fn what_may_differ_is_neither_compared_nor_moved() {
    let own = |number| {
        let info = TensorInfo { may_differ: true, ..TensorInfo::new("rng", DataType::U64, [4]) };
        Member::new(number, 1).with("w", 10, 3).with_info(info, number)
    };
    let mut members = vec![own(0), own(1), Member { revision: None, ..own(2) }];
    members[2].tensor("w").fill(0);
    let election = sync(Some(1), &mut members).unwrap();
    assert_eq!((received(&members), election.diverged), (vec![0, 0, 10], vec![]));
    assert_eq!(members.iter_mut().map(|member| member.tensor("rng")[0]).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn strategies_mix_as_documented() {
    use Strategy::{Popular, ReceiveOnly, SendOnly};
    let member = |number, value, strategy| Member::new(number, 5).with("w", 10, value).strategy(strategy);
    // One sender outweighs two others of the same revision.
    let mut members = vec![member(0, 1, Popular), member(1, 1, Popular), member(2, 9, SendOnly)];
    sync(Some(5), &mut members).unwrap();
    assert_eq!(received(&members), [10, 10, 0]);
    // Receivers never give, whatever they hold.
    let mut members = vec![member(0, 1, ReceiveOnly), member(1, 1, ReceiveOnly), member(2, 9, Popular)];
    sync(Some(5), &mut members).unwrap();
    assert_eq!(received(&members), [10, 10, 0]);
    // A receiver that already has it is no donor of it.
    let mut members = vec![member(0, 9, ReceiveOnly), member(1, 9, SendOnly), member(2, 0, Popular)];
    let election = sync(Some(5), &mut members).unwrap();
    assert_eq!(election.donors(), [peer(1)]);
    assert_eq!((received(&members), members[0].sent), (vec![0, 0, 10], 0));
    // Two senders that disagree: the minority gets an error and keeps what it has.
    let mut members = vec![member(0, 1, SendOnly), member(1, 2, SendOnly), member(2, 2, SendOnly)];
    let election = sync(Some(5), &mut members).unwrap();
    assert_eq!(election.role(peer(0)), Role::Deviates(Deviation::Outvoted { elected: 5 }));
    assert_eq!((received(&members), members[0].tensor("w")[0]), (vec![0; 3], 1));
    // A sender does not outweigh a revision.
    let mut members = vec![member(0, 1, SendOnly), Member { revision: Some(6), ..member(1, 2, Popular) }];
    let election = sync(Some(5), &mut members).unwrap();
    assert_eq!(election.role(peer(0)), Role::Deviates(Deviation::Outvoted { elected: 6 }));
    // Nobody gives.
    let mut members = vec![member(0, 1, ReceiveOnly), member(1, 2, ReceiveOnly)];
    assert_eq!(sync(Some(5), &mut members), Err(NoDonor::NothingToGive));
}

#[test]
fn sixteen_bit_types_empty_tensors_and_single_numbers() {
    let state = |number, revision, value| {
        Member::new(number, revision)
            .with_info(TensorInfo::new("bf16", DataType::BF16, [3, 5]), value)
            .with_info(TensorInfo::new("f16", DataType::F16, [7]), value)
            .with_info(TensorInfo::new("empty", DataType::F64, [0]), value)
            .with_info(TensorInfo::new("zero axis", DataType::F32, [u64::MAX, 0, 9]), value)
            .with_info(TensorInfo::new("scalar", DataType::F64, []), value)
    };
    let mut members = vec![state(0, Some(1), 3), state(1, None, 4)];
    sync(None, &mut members).unwrap();
    assert_eq!(received(&members), [0, 30 + 14 + 8]);
    assert_eq!(members[1].differed, ["bf16", "f16", "scalar"]);
    // A state without any byte is a state.
    let nothing = |number, revision| Member::new(number, revision).with("empty", 0, 0);
    let mut members = vec![nothing(0, None), nothing(1, Some(3)), Member::new(2, None).with("empty", 0, 0)];
    sync(None, &mut members).unwrap();
    assert_eq!((received(&members), members[2].revision), (vec![0; 3], Some(3)));
}

#[test]
fn ten_thousand_tiny_tensors() {
    let state = |number, revision| {
        let mut member = Member::new(number, revision);
        for key in 0..10_000 {
            member.tensors.push((TensorInfo::new(format!("{key:05}"), DataType::F32, [2]), vec![1; 8]));
        }
        member
    };
    let mut members = vec![state(0, Some(1)), state(1, Some(1)), state(2, Some(1))];
    for key in (0..10_000).step_by(100) {
        members[1].tensors[key].1[0] = 7;
    }
    sync(Some(1), &mut members).unwrap();
    assert_eq!((received(&members), members[1].differed.len()), (vec![0, 800, 0], 100));
}

#[test]
fn one_huge_tensor_of_which_a_hundredth_differs() {
    let state = |number| Member::new(number, 1).with("w", 100 * MIB, 1);
    let mut members = vec![state(0), state(1), state(2)];
    members[2].tensor("w")[57 * MIB + 12_345] = 2;
    sync(Some(1), &mut members).unwrap();
    assert_eq!(received(&members), [0, 0, MIB as u64]);
}
