//! Who is believed, and how far: rule 41.

use super::bench::*;
use crate::limits::COUNT_MAX;

/// A peer's claim to be all there is of a group that nobody else has heard of.
fn alone(number: u8, group: u32) -> Resume {
    let record = EpochRecord { group, ..record(5, &[number]) };
    Resume { registration: registration(number, group, 1), ..resume(number, record) }
}

fn superseded(bench: &mut Bench, number: u8) -> bool {
    bench.kicked(number).is_some_and(|(reason, _)| reason == KickReason::Superseded)
}

#[test]
fn no_word_of_a_stranger_changes_a_group_that_is_served() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    for claim in [alone(9, 0), resume(9, EpochRecord { founder: founder(1), ..record(5, &[9, 1, 2, 3]) })] {
        bench.resume(9, claim);
        assert!(superseded(&mut bench, 9));
    }
    // Somebody who says that it is in the group as it stands is not in its roster.
    bench.resume(9, resume(9, EpochRecord { founder: founder(1), ..record(1, &[1, 9]) }));
    assert_eq!(bench.kicked(9).unwrap().0, KickReason::Evicted);
    bench.all_say(&[1, 2, 3], &ToCoordinator::Complete { key: key(1, 0, 0) });
    bench.assert_told(&[1, 2, 3], &[commit(key(1, 0, 0))]);
    assert_eq!(bench.run.term(), 1);
}

#[test]
fn one_voice_is_not_taken_for_the_run_that_others_come_back_to() {
    let mut bench = Bench::new();
    bench.resume(9, alone(9, 0));
    for number in [1, 2, 3] {
        bench.resume(number, resume(number, record(4, &[1, 2, 3])));
    }
    bench.wait(ms(1_999));
    assert_eq!(bench.told(1), [], "it is not known yet who is right");
    bench.wait(ms(1));
    assert!(superseded(&mut bench, 9));
    bench.promise();
    for number in [1, 2, 3] {
        let told = bench.told(number);
        assert_eq!(told.last(), Some(&ToPeer::Proceed { group: 0, epoch: 4 }), "{told:?}");
    }
    // Whoever comes now with another story is a stranger.
    bench.resume(8, alone(8, 0));
    assert!(superseded(&mut bench, 8));
}

#[test]
fn a_claim_on_others_members_does_not_keep_them_out() {
    // 9 says that 1 and 2 are in a group of its own.
    let mut bench = Bench::new();
    let theirs = EpochRecord { group: 7, ..record(5, &[9, 1, 2]) };
    bench.resume(9, Resume { registration: registration(9, 7, 1), ..resume(9, theirs) });
    bench.resume(1, resume(1, record(4, &[1, 2])));
    bench.resume(2, resume(2, record(4, &[1, 2])));
    bench.wait(ms(2_000));
    assert!(superseded(&mut bench, 9));
    bench.promise();
    for number in [1, 2] {
        assert_eq!(bench.told(number).last(), Some(&ToPeer::Proceed { group: 0, epoch: 4 }));
    }
}

#[test]
fn a_higher_epoch_of_somebody_whom_the_others_never_met_does_not_put_them_out() {
    let mut bench = Bench::new();
    for number in [1, 2, 3] {
        bench.resume(number, resume(number, record(4, &[1, 2, 3])));
        if number == 2 {
            bench.resume(9, resume(9, EpochRecord { founder: founder(1), ..record(1_000, &[9]) }));
        }
    }
    bench.wait(ms(2_001));
    assert!(superseded(&mut bench, 9));
    assert_eq!(bench.told(1).last(), Some(&ToPeer::Proceed { group: 0, epoch: 4 }));
    assert_eq!(bench.lost(), []);
}

#[test]
fn a_sole_survivor_is_served_after_the_others_had_their_time() {
    let mut bench = Bench::new();
    bench.resume(1, resume(1, record(4, &[1])));
    bench.assert_told(&[1], &[ToPeer::Resumed { term: 2 }]);
    bench.wait(ms(2_000));
    bench.assert_told(&[1], &[ToPeer::Proceed { group: 0, epoch: 4 }]);
}

#[test]
fn a_group_for_which_nobody_promises_holds_nobody_up() {
    let mut bench = Bench::of(&[1, 2]);
    let (at, now) = (bench.connection(), bench.now);
    bench.run.handle_message(now, at, id(8), ToCoordinator::Resume(alone(8, 7)));
    bench.drain();
    bench.register(9, 0, 1);
    bench.all_say(&[1, 2], &vote(1, 2));
    assert_eq!(bench.epoch(1), None);
    bench.wait(ms(2_001));
    assert!(bench.closed.contains(&at));
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1), id(2), id(9)]);
}

#[test]
fn a_group_that_is_first_heard_of_when_no_session_can_be_left_is_invented() {
    let mut bench = Bench::of(&[1, 2]);
    bench.wait(ms(11_000));
    bench.resume(8, alone(8, 7));
    assert!(superseded(&mut bench, 8));
}

#[test]
fn a_term_that_only_one_claims_is_not_counted() {
    let far = |number: u8| Resume { term: COUNT_MAX, ..resume(number, record(4, &[1, 2, 3])) };
    // Whether it comes first or last.
    for first in [true, false] {
        let mut bench = Bench::new();
        if first {
            bench.resume(3, far(3));
            bench.assert_told(&[3], &[]);
        }
        bench.resume(1, resume(1, record(4, &[1, 2, 3])));
        bench.resume(2, resume(2, record(4, &[1, 2, 3])));
        if !first {
            bench.resume(3, far(3));
        }
        assert_eq!(bench.kicked(3).unwrap().0, KickReason::Breach);
        assert_eq!(bench.run.term(), 2);
        bench.wait(ms(2_001));
        assert_eq!(members(&bench.epoch(1).unwrap()), [id(1), id(2)]);
    }
}

#[test]
fn a_member_that_claims_a_far_term_disturbs_nobody() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    for term in [2, COUNT_MAX] {
        bench.resume(
            3,
            Resume { term, ..resume(3, EpochRecord { founder: founder(1), ..record(1, &[1, 2, 3]) }) },
        );
        assert!(bench.kicked(3).is_some());
    }
    bench.all_say(&[1, 2], &ToCoordinator::Complete { key: key(1, 0, 0) });
    assert_eq!((bench.told(1), bench.told(2)), (vec![], vec![]));
    assert_eq!(bench.run.term(), 1);
}

#[test]
fn no_term_is_so_high_that_the_next_reign_is_refused() {
    let mut bench = Bench::new();
    bench.resume(1, Resume { term: COUNT_MAX, ..resume(1, record(4, &[1])) });
    bench.wait(ms(2_001));
    assert_eq!(bench.run.term(), COUNT_MAX);
    bench.wait(ms(2_001));
    assert_eq!(bench.told(1).last(), Some(&ToPeer::Proceed { group: 0, epoch: 4 }));
}

#[test]
fn a_coordinator_that_most_members_have_left_behind_begins_again() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, initiate(key(1, 0, 0)));
    bench.clear();
    let here = bench.at[&1];
    // 2 comes back from a coordinator of a higher term. One word is not enough.
    let ahead = |number: u8| Resume { term: 9, ..resume(number, record(2, &[1, 2])) };
    bench.resume(2, ahead(2));
    assert_eq!(bench.kicked(2).unwrap().0, KickReason::Superseded);
    assert_eq!(bench.closed.len(), 1);
    bench.resume(1, ahead(1));
    assert!(bench.closed.contains(&here));
    assert!(bench.notes.contains(&Note::SteppedDown(9)));
    bench.resume(2, ahead(2));
    assert_eq!(bench.told(1), [ToPeer::Resumed { term: 10 }, ToPeer::Proceed { group: 0, epoch: 2 }]);
}

#[test]
fn nobody_new_is_admitted_before_members_of_before_had_their_time() {
    let mut bench = Bench::new();
    bench.run.expect_old_members(bench.now + ms(2_000));
    bench.register(9, 0, 1);
    bench.wait(ms(1_000));
    let waiting = bench.run.status(bench.now).to_json();
    assert!(waiting.contains("have 1.0 s to come back"), "{waiting}");
    // The run that was there goes on at once, and lets the newcomer in.
    bench.resume(1, resume(1, record(4, &[1, 2])));
    bench.resume(2, resume(2, record(4, &[1, 2])));
    bench.confirm(&[1, 2], 4);
    bench.all_say(&[1, 2], &vote(1, 2));
    let done = agreed(4, 2, 2);
    assert!(bench.told(1).contains(&done), "there is nobody whom that vote could let in (rule 10)");
    bench.wait(ms(1_000));
    bench.all_say(&[1, 2], &vote(1, 3));
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1), id(2), id(9)]);
    assert_eq!(bench.kicked(9), None);
    // Where there was none, it begins one after that time.
    let mut bench = Bench::new();
    bench.run.expect_old_members(bench.now + ms(2_000));
    bench.register(9, 0, 1);
    bench.wait(ms(2_000));
    assert_eq!(members(&bench.epoch(9).unwrap()), [id(9)]);
}

/// Two groups: 1 to 3 are rebuilt here as group 0 while 4 and 5, whom we served as group 1, were another's. With `here`
/// we still hold connections to 4 and 5 that lead nowhere.
fn deposed_in_one_of_two_groups(here: bool) -> Bench {
    let mut bench = Bench::new();
    for number in [4, 5] {
        bench.register(number, 1, 2);
    }
    for number in [4, 5] {
        bench.say(number, ToCoordinator::Connected { group: 1, epoch: 1 });
        if !here {
            bench.close(number);
        }
        bench.at.remove(&number);
    }
    for number in [1, 2, 3] {
        bench.resume(number, Resume { term: 3, ..resume(number, record(1, &[1, 2, 3])) });
    }
    assert_eq!(bench.run.term(), 4);
    bench.clear();
    bench
}

fn of_group_1(number: u8, term: u64) -> Resume {
    Resume { term, ..resume(number, EpochRecord { group: 1, ..record(1, &[4, 5]) }) }
}

#[test]
fn the_rebuild_of_one_group_does_not_make_anothers_old_state_new() {
    for here in [false, true] {
        let mut bench = deposed_in_one_of_two_groups(here);
        // They obeyed term 3, which we never said. Our own is 4 by now, and they are fewer than those of group 0.
        bench.resume(4, of_group_1(4, 3));
        assert_eq!(bench.kicked(4).unwrap().0, KickReason::Superseded, "one word is not enough");
        bench.resume(5, of_group_1(5, 3));
        assert!(bench.notes.contains(&Note::SteppedDown(3)), "connections held: {here}");
        // The other group is served on.
        assert!([1, 2, 3].iter().all(|number| !bench.closed.contains(&bench.at[number])));
    }
}

#[test]
fn a_term_that_we_said_ourselves_deposes_nobody() {
    let mut bench = deposed_in_one_of_two_groups(true);
    // They heard of our new term on connections that broke before they could promise.
    for number in [4, 5] {
        bench.resume(number, of_group_1(number, 4));
        assert_eq!(bench.told(number)[0], ToPeer::Resumed { term: 4 });
    }
    assert!(!bench.notes.contains(&Note::SteppedDown(4)));
}

#[test]
fn two_histories_that_one_peer_founded_are_told_apart() {
    // 1 founds a group and 2 joins; later 1 connects again, at a coordinator that knows nothing, and founds it anew.
    let founded_by = |session: SessionId| {
        let mut bench = Bench::new();
        let at = bench.connection();
        bench.at.insert(1, at);
        let registration = Registration { session, ..registration(1, 0, 1) };
        bench.say(1, ToCoordinator::Register(registration, 1, 0));
        bench.epoch(1).unwrap().founder
    };
    let session = registration(1, 0, 1).session;
    let (before, since) = (founded_by(session), founded_by(session.next()));
    assert_ne!(before, since);
    // That one dies, too. 2 still knows a commit of the old history under a key that is open in the new one.
    let new = EpochRecord { founder: since, ..record(2, &[1, 3]) };
    let old = EpochRecord { founder: before, ..record(2, &[1, 2]) };
    let told = |number: u8| match number {
        2 => (old.clone(), learned(key(2, 0, 3), Verdict::Commit { pending: 0 })),
        _ => (new.clone(), open(key(2, 0, 3), number == 1)),
    };
    for order in [[1, 2, 3], [2, 1, 3]] {
        let mut bench = Bench::new();
        for number in order {
            let (record, report) = told(number);
            bench.resume(number, Resume { tags: vec![report], ..resume(number, record) });
        }
        bench.wait(ms(2_001));
        bench.promise();
        let heard = bench.told(1);
        assert!(!heard.contains(&commit(key(2, 0, 3))), "{order:?}: that was another call: {heard:?}");
        assert_eq!(bench.kicked(2).unwrap().0, KickReason::Superseded, "{order:?}");
    }
}

/// The claims of liars who were never in, about themselves and about members 1 and 2: above them, among them, instead of one of them,
/// beside them. One of three names a term that nobody ever obeyed.
fn lies() -> Vec<(u8, Resume)> {
    let records = [
        record(5, &[11]),
        EpochRecord { founder: founder(1), ..record(5, &[12]) },
        EpochRecord { founder: founder(13), ..record(1, &[1, 2, 13]) },
        EpochRecord { founder: founder(1), ..record(5, &[1, 2, 14]) },
        EpochRecord { founder: founder(15), ..record(COUNT_MAX - 1, &[1, 2, 15]) },
        EpochRecord { founder: founder(16), ..record(2, &[16, 2]) },
        EpochRecord { group: 7, ..record(5, &[17]) },
    ];
    let claim = |(number, record): (usize, EpochRecord)| {
        let (liar, term) = (11 + number as u8, [1, 7, COUNT_MAX][number % 3]);
        let registration = registration(liar, record.group, 1);
        (liar, Resume { registration, term, ..resume(liar, record) })
    };
    records.into_iter().enumerate().map(claim).collect()
}

/// Every order of so many.
fn orders(of: usize) -> Vec<Vec<usize>> {
    let Some(last) = of.checked_sub(1) else { return vec![Vec::new()] };
    let with_last = |rest: &Vec<usize>, at: usize| {
        let mut all = rest.clone();
        all.insert(at, last);
        all
    };
    orders(last).iter().flat_map(|rest| (0..of).map(|at| with_last(rest, at))).collect()
}

/// Members 1 and 2 come back to a coordinator that was restarted.
fn honest_come(bench: &mut Bench) {
    for number in [1, 2] {
        let record = EpochRecord { founder: founder(9), ..record(4, &[1, 2]) };
        bench.resume_only(number, resume(number, record));
    }
}

#[test]
fn in_whatever_order_liars_come_nobody_honest_loses_its_place() {
    // How many liars come first, and how long after them the honest do. Liars may obey or not.
    let cases = [(0, 0), (3, 0), (7, 0), (7, 1_000), (7, 1_999)];
    for (number, order) in orders(7).into_iter().enumerate().step_by(61) {
        let ((first, later), obey) = (cases[number % cases.len()], number % 2 == 0);
        let who: &[u8] = if obey { &[1, 2, 11, 12, 13, 14, 15, 16, 17] } else { &[1, 2] };
        let mut bench = Bench::new();
        let lies = lies();
        for (at, lie) in order.iter().enumerate() {
            if at == first {
                honest_come(&mut bench);
            }
            let (liar, claim) = lies[*lie].clone();
            bench.resume_only(liar, claim);
            bench.promise_of(who);
        }
        bench.wait(ms(later));
        if first == order.len() {
            honest_come(&mut bench);
        }
        for _ in 0..10 {
            bench.promise_of(who);
            bench.wait(ms(500));
        }
        for number in [1, 2] {
            let told = bench.told(number);
            let goes_on = told.contains(&ToPeer::Proceed { group: 0, epoch: 4 });
            assert!(
                goes_on && !bench.closed.contains(&bench.at[&number]),
                "{order:?} {first} {later}: {told:?}"
            );
        }
        assert!(bench.run.term() < 1 << 20, "{order:?} {first} {later}: term {}", bench.run.term());
    }
}

#[test]
fn far_terms_do_not_confirm_each_other() {
    let mut bench = Bench::new();
    let far = |number: u8| Resume { term: COUNT_MAX, ..alone(number, 0) };
    for liar in [7, 8, 9] {
        bench.resume(liar, far(liar));
        bench.assert_told(&[liar], &[]);
    }
    bench.resume(1, resume(1, record(4, &[1, 2])));
    assert_eq!(bench.kicked(7), None, "one word against one");
    bench.resume(2, resume(2, record(4, &[1, 2])));
    for liar in [7, 8, 9] {
        assert_eq!(bench.kicked(liar).unwrap().0, KickReason::Breach);
    }
    for number in [1, 2] {
        assert_eq!(bench.told(number).last(), Some(&ToPeer::Proceed { group: 0, epoch: 4 }));
    }
    assert_eq!(bench.run.term(), 2);
}

/// What 9 tells, who says that it is in a group with 2, and the record that 1 and 2 have.
fn contested() -> (Resume, EpochRecord) {
    let theirs = EpochRecord { founder: founder(9), ..record(5, &[9, 2]) };
    (resume(9, theirs), record(4, &[1, 2]))
}

#[test]
fn who_waits_to_be_heard_is_not_missed() {
    let (lie, truth) = contested();
    let mut bench = Bench::new();
    bench.resume(9, lie);
    bench.wait(ms(500));
    for number in [1, 2] {
        bench.resume(number, resume(number, truth.clone()));
    }
    // Nothing is known of their health, and the moment comes when somebody is missed who was expected and is not here.
    bench.wait(ms(1_500));
    assert_eq!(bench.lost(), []);
    bench.promise();
    for number in [1, 2] {
        assert_eq!(bench.told(number).last(), Some(&ToPeer::Proceed { group: 0, epoch: 4 }));
    }
}

#[test]
fn who_waited_and_went_is_missed_again() {
    let (lie, truth) = contested();
    let mut bench = Bench::new();
    bench.resume(1, resume(1, truth.clone()));
    bench.resume(9, lie);
    bench.resume(2, Resume { term: COUNT_MAX, ..resume(2, truth) });
    bench.wait(ms(1_000));
    bench.close(2);
    bench.wait(ms(1_999));
    assert_eq!(bench.lost(), []);
    bench.wait(ms(1));
    assert_eq!(bench.lost(), [(id(2), LossReason::NotResumed)]);
}

#[test]
fn who_comes_before_claims_are_weighed_is_counted() {
    let (lie, truth) = contested();
    let mut bench = Bench::new();
    bench.resume(9, lie);
    // It is time, and these are read first.
    bench.now += ms(2_010);
    for number in [1, 2] {
        bench.resume(number, resume(number, truth.clone()));
        assert_eq!(bench.told(number), []);
    }
    bench.wait(ms(0));
    assert!(superseded(&mut bench, 9));
    bench.promise();
    for number in [1, 2] {
        assert_eq!(bench.told(number).last(), Some(&ToPeer::Proceed { group: 0, epoch: 4 }));
    }
}

#[test]
fn a_coordinator_that_stood_still_gives_the_others_their_time_once() {
    let mut bench = Bench::new();
    bench.resume(9, alone(9, 0));
    bench.sleep(ms(3_000));
    bench.assert_told(&[9], &[ToPeer::Resumed { term: 2 }]);
    // It was a second late, so they have one more.
    bench.wait(ms(900));
    for number in [1, 2] {
        bench.resume(number, resume(number, record(4, &[1, 2])));
    }
    bench.sleep(ms(5_000));
    assert!(superseded(&mut bench, 9), "late again, and nobody waits without end");
    bench.promise();
    for number in [1, 2] {
        assert_eq!(bench.told(number).last(), Some(&ToPeer::Proceed { group: 0, epoch: 4 }));
    }
}
