//! The plan of a heal, with donors that are fast, slow, dead or lying.

use super::world::peer;
use crate::id::PeerId;
use crate::rng::Rng;
use crate::state::transfer::{DONORS_AT_ONCE, Fault, LATE, STALLED, Transfer, WINDOW};
use crate::time::{Duration, Instant};
use std::collections::BTreeMap;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn donors(count: u8) -> Vec<PeerId> {
    (0..count).map(peer).collect()
}

#[test]
fn each_donor_gives_what_its_link_carries() {
    // Milliseconds per leaf. A link that is four times as fast gives about four times as much, and nobody waits long.
    let rates: BTreeMap<_, _> = [(peer(0), 8), (peer(1), 8), (peer(2), 32)].into();
    let mut plan = Transfer::new(0..900, &donors(3), 0);
    while plan.engage().is_some() {}
    let (mut free_at, mut ms): (BTreeMap<PeerId, u64>, u64) = (BTreeMap::new(), 0);
    let mut under_way: Vec<(u64, PeerId, usize)> = Vec::new();
    while !plan.is_done() {
        for (donor, rate) in &rates {
            while let Some(leaf) = plan.next(at(ms), *donor) {
                let ends = free_at.get(donor).copied().unwrap_or(0).max(ms) + rate;
                free_at.insert(*donor, ends);
                under_way.push((ends, *donor, leaf));
            }
        }
        under_way.sort_unstable();
        let (ends, donor, leaf) = under_way.remove(0);
        ms = ends;
        assert!(plan.delivered(at(ms), donor, leaf), "nothing was asked for twice");
    }
    let kept = |number| plan.kept()[&peer(number)];
    assert_eq!(kept(0) + kept(1) + kept(2), 900);
    assert_eq!((kept(0), kept(1), kept(2)), (400, 400, 100));
    assert!((3_200..=3_200 + 40).contains(&ms), "{ms} ms; the links' sum allows 3200");
}

#[test]
fn what_a_dropped_donor_owed_goes_to_the_others_and_the_reserve_steps_in() {
    let mut plan = Transfer::new(0..4, &donors(10), 2);
    let engaged: Vec<_> = std::iter::from_fn(|| plan.engage()).collect();
    assert_eq!(engaged.len(), DONORS_AT_ONCE);
    assert_eq!(engaged[0], peer(2), "receivers of other ranks begin with other donors");
    assert_eq!(plan.next(at(0), peer(2)), Some(0));
    assert_eq!(plan.next(at(0), peer(3)), Some(1));
    plan.drop_donor(peer(2), Fault::Corrupt);
    assert_eq!(plan.engage(), Some(peer(0)));
    assert_eq!(plan.next(at(0), peer(0)), Some(0));
    plan.drop_donor(peer(2), Fault::Mutated);
    assert_eq!(plan.dropped(), [(peer(2), Fault::Corrupt)], "once is enough");
    assert_eq!(plan.next(at(0), peer(2)), None, "who is dropped is asked for nothing");
}

#[test]
fn what_a_busy_donor_was_asked_for_goes_back_and_it_stays() {
    let mut plan = Transfer::new(0..2, &donors(2), 0);
    while plan.engage().is_some() {}
    assert_eq!((plan.next(at(0), peer(0)), plan.next(at(0), peer(1))), (Some(0), Some(1)));
    plan.hand_back(peer(0), [0, 1]);
    assert!(plan.is_engaged(peer(0)) && !plan.is_hopeless() && plan.dropped().is_empty());
    assert_eq!(plan.stalled(at(0) + STALLED), [peer(1)], "who is busy owes nothing");
    // The other may have it now, and it may be asked for again itself.
    assert!(plan.delivered(at(1), peer(1), 1));
    assert_eq!(plan.next(at(2), peer(1)), Some(0));
    let late = at(2) + LATE;
    assert_eq!(plan.next(late, peer(0)), Some(0));
    plan.hand_back(peer(0), [0]);
    assert_eq!(plan.next(at(3), peer(0)), None, "the other still owes it, and is not late");
    assert!(plan.delivered(late, peer(1), 0) && plan.is_done());
    plan.hand_back(peer(0), [0]);
    assert!(plan.is_done(), "what is here is here");
}

#[test]
fn it_is_hopeless_only_when_nobody_is_left() {
    let mut plan = Transfer::new([7], &donors(2), 0);
    assert_eq!(plan.engage(), Some(peer(0)));
    plan.drop_donor(peer(0), Fault::Gone("reset".to_owned()));
    assert!(!plan.is_hopeless());
    assert_eq!(plan.engage(), Some(peer(1)));
    plan.drop_donor(peer(1), Fault::Stalled);
    assert!(plan.is_hopeless() && !plan.is_done());
    let mut nothing = Transfer::new([], &donors(2), 0);
    assert!(nothing.is_done() && !nothing.is_hopeless() && nothing.engage().is_none());
    assert!(Transfer::new([1], &[], 5).is_hopeless());
}

#[test]
fn a_leaf_that_is_late_is_asked_of_another_and_counts_once() {
    let mut plan = Transfer::new(0..2, &donors(2), 0);
    while plan.engage().is_some() {}
    assert_eq!(plan.next(at(0), peer(0)), Some(0));
    assert_eq!(plan.next(at(0), peer(1)), Some(1));
    assert!(plan.delivered(at(10), peer(1), 1));
    assert_eq!(plan.next(at(11), peer(1)), None, "it is not late yet");
    assert_eq!(plan.poll_timeout(), Some(at(0) + LATE));
    let late = at(0) + LATE;
    assert_eq!(plan.next(late, peer(1)), Some(0));
    assert_eq!(plan.next(late, peer(1)), None);
    assert!(plan.delivered(late, peer(1), 0) && plan.is_done());
    assert!(!plan.delivered(late, peer(0), 0), "the second answer is not kept");
    assert_eq!(plan.kept()[&peer(1)], 2);
}

#[test]
fn who_owes_and_delivers_nothing_has_stalled() {
    let mut plan = Transfer::new(0..100, &donors(2), 0);
    while plan.engage().is_some() {}
    assert_eq!(plan.stalled(at(1_000_000)), [], "who was not asked owes nothing");
    let first = plan.next(at(0), peer(0)).unwrap();
    plan.next(at(0), peer(0)).unwrap();
    plan.delivered(at(4_000), peer(0), first);
    assert_eq!(plan.stalled(at(4_000) + STALLED - Duration::from_millis(1)), []);
    assert_eq!(plan.stalled(at(4_000) + STALLED), [peer(0)]);
}

/// Only whole leaves counted: below 3.4 Mbit/s the two that were under way took longer than the patience, and the only
/// donor was dropped again and again.
#[test]
fn a_donor_that_is_slow_but_sends_is_not_dropped() {
    let mut plan = Transfer::new(0..3, &donors(1), 0);
    plan.engage();
    let first = plan.next(at(0), peer(0)).unwrap();
    plan.next(at(0), peer(0)).unwrap();
    // A few bytes just before each patience is over, for much longer than one.
    let almost = STALLED.saturating_sub(Duration::from_millis(1));
    let mut now = at(0);
    for bytes in 1..100 {
        now += almost;
        plan.heard(now, peer(0), bytes);
        assert_eq!(plan.stalled(now), []);
    }
    assert_eq!(plan.poll_timeout(), Some(at(0) + LATE), "what is late is still asked of others");
    // The same number again is no news: who stops in the middle of a leaf has stalled as soon as who never began.
    plan.heard(now + almost, peer(0), 99);
    assert_eq!(plan.stalled(now + almost), []);
    assert_eq!(plan.stalled(now + STALLED), [peer(0)]);
    // A leaf is a sign of life, too, and what came with it is not counted as a second one later.
    plan.delivered(now + almost, peer(0), first);
    plan.heard(now + almost, peer(0), 1_000);
    assert_eq!(plan.stalled(now + almost + STALLED), [peer(0)]);
}

#[test]
fn a_receiver_that_stood_still_blames_nobody() {
    let mut plan = Transfer::new(0..3, &donors(2), 0);
    while plan.engage().is_some() {}
    plan.next(at(0), peer(0)).unwrap();
    let woken = at(0) + STALLED * 4;
    plan.handle_stood_still(woken);
    assert_eq!(plan.stalled(woken), []);
    // From then on the usual patience; who owes nothing is not waited for.
    assert_eq!(plan.stalled(woken + STALLED), [peer(0)]);
}

#[test]
fn bytes_of_a_donor_that_owes_nothing_or_is_gone_start_no_clock() {
    let mut plan = Transfer::new(0..2, &donors(2), 0);
    while plan.engage().is_some() {}
    plan.heard(at(0), peer(0), 10);
    assert_eq!((plan.stalled(at(0) + STALLED), plan.poll_timeout()), (vec![], None));
    plan.drop_donor(peer(0), Fault::Mutated);
    plan.heard(at(1), peer(0), 20);
    assert!(!plan.is_engaged(peer(0)));
}

#[test]
fn no_donor_owes_more_than_a_window() {
    let mut plan = Transfer::new(0..1_000, &donors(1), 0);
    plan.engage();
    assert_eq!(std::iter::from_fn(|| plan.next(at(0), peer(0))).count(), WINDOW);
}

#[test]
fn whatever_happens_every_leaf_comes_once_or_it_is_hopeless() {
    let mut hopeless = 0;
    for seed in 0..500 {
        let mut rng = Rng::from_seed(seed);
        let (count, leaves) = (1 + rng.below(12) as u8, rng.below(60));
        let mut plan = Transfer::new(0..leaves, &donors(count), rng.below(20));
        let (mut kept, mut owed, mut engaged, mut ms) = (vec![0; leaves], Vec::new(), Vec::new(), 0);
        while !plan.is_done() && !plan.is_hopeless() {
            ms += rng.below(400) as u64;
            engaged.extend(plan.engage());
            if engaged.is_empty() {
                continue;
            }
            let donor = engaged[rng.below(engaged.len())];
            if rng.below(40) == 0 {
                plan.drop_donor(donor, Fault::Stalled);
                engaged.retain(|other| *other != donor);
                owed.retain(|(other, _)| *other != donor);
            } else if let Some(leaf) = plan.next(at(ms), donor) {
                owed.push((donor, leaf));
            }
            if !owed.is_empty() && rng.below(2) == 0 {
                let (donor, leaf) = owed.swap_remove(rng.below(owed.len()));
                kept[leaf] += u32::from(plan.delivered(at(ms), donor, leaf));
            }
        }
        hopeless += u32::from(plan.is_hopeless());
        let expected = |count: &u32| if plan.is_done() { *count == 1 } else { *count <= 1 };
        assert!(kept.iter().all(expected), "seed {seed}: {kept:?}");
        assert_eq!(plan.missing(), kept.iter().filter(|count| **count == 0).count(), "seed {seed}");
    }
    assert!(hopeless > 20, "the hopeless case was tried {hopeless} times");
}
