//! Shared state between real communicators: elections, heals, exact bytes, losses on the way.

mod peers;

use outlast::communicator::{Error, Event, Interrupt, NextStep, SyncOptions, SyncReport, ask_flight};
use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast::state::{LEAF_BYTES, SharedState, Strategy};
use outlast::{Communicator, Coordinator};
use peers::{coordinator, each, peer, together};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Four leaves, one of them short, and a small tensor.
const LARGE: usize = 3 * LEAF_BYTES + 5;
const BYTES: u64 = (LARGE + 12) as u64;

fn state(revision: Option<u64>, value: u8) -> SharedState {
    let mut state = SharedState::new();
    state.insert("large", vec![value; LARGE], &[LARGE as u64]).unwrap();
    state.insert("small", vec![f32::from(value); 3], &[3]).unwrap();
    state.set_revision(revision);
    state.set_extra([value, value]).unwrap();
    state
}

type Change = fn(&mut SharedState);

/// The list of hashes, with the extra bytes.
const LIST: u64 = 5 * 16 + 2;

fn synced(comm: &Communicator, state: &mut SharedState) -> SyncReport {
    comm.sync_state(state, &SyncOptions::new()).expect("a sync")
}

#[test]
fn members_that_agree_move_nothing_and_a_flipped_bit_is_named_to_all() {
    let reports = together(3, |comm| {
        // Who goes first is no member any more when the others look.
        let (rank, second) = (comm.rank(), comm.peers()[1].id);
        let mut ours = state(Some(0), 7);
        let first = synced(&comm, &mut ours);
        assert_eq!((first.sent, first.received, first.leaves, first.revision), (0, 0, 0, 0));
        assert!(first.healed.is_empty() && first.diverged.is_empty());
        if rank == 1 {
            ours.get_mut::<u8>("large").unwrap()[2 * LEAF_BYTES + 9] ^= 64;
        }
        let report = synced(&comm, &mut ours);
        assert_eq!(ours.digest(), state(None, 7).digest());
        assert_eq!(ours.revision(), Some(0));
        (rank, second, report)
    });
    let sent: u64 = reports.iter().map(|(.., report)| report.sent).sum();
    assert_eq!(sent, LEAF_BYTES as u64 + LIST);
    for (rank, second, report) in reports {
        let healed = rank == 1;
        assert_eq!(
            (report.received, report.leaves),
            if healed { (LEAF_BYTES as u64 + LIST, 1) } else { (0, 0) }
        );
        assert_eq!(report.differed, if healed { vec!["large".to_owned()] } else { vec![] });
        assert_eq!(report.healed, [(second, vec!["large".to_owned()])]);
        assert_eq!((report.diverged, report.replaced), (vec![second], vec![]));
    }
}

#[test]
fn a_newcomer_gets_everything_and_the_extra_bytes_staged_or_in_place() {
    for staged in [false, true] {
        let reports = together(3, move |comm| {
            let rank = comm.rank();
            let mut ours = if rank == 2 { state(None, 0) } else { state(Some(1_000), 9) };
            let report = comm.sync_state(&mut ours, &SyncOptions::new().staged(staged)).expect("a sync");
            assert_eq!(ours.digest(), state(None, 9).digest());
            assert_eq!((ours.revision(), &report.extra[..]), (Some(1_000), &[9, 9][..]));
            let told = comm.events(Duration::ZERO).expect("events");
            let healing = told.into_iter().map(|happened| happened.what);
            let healing: Vec<_> = healing.filter(|event| matches!(event, Event::Healing(..))).collect();
            let ends = if rank == 2 { vec![Event::Healing(0, 5), Event::Healing(5, 5)] } else { vec![] };
            assert_eq!((healing.first(), healing.last()), (ends.first(), ends.last()));
            (rank, report)
        });
        let newcomer = &reports.iter().find(|(rank, _)| *rank == 2).unwrap().1;
        assert_eq!((newcomer.received, newcomer.leaves), (BYTES + LIST, 5));
        assert_eq!(newcomer.differed, ["large", "small"]);
        assert_eq!(newcomer.donors.iter().map(|(_, leaves)| leaves).sum::<u64>(), 5);
        assert_eq!(reports.iter().map(|(_, report)| report.sent).sum::<u64>(), BYTES + LIST);
    }
}

#[test]
fn the_trained_state_wins_over_newcomers_and_popularity_decides_among_equals() {
    together(4, |comm| {
        let rank = comm.rank();
        // Three fresh ones and a survivor.
        let mut ours = if rank == 3 { state(Some(1_000), 5) } else { state(Some(0), 0) };
        assert_eq!(synced(&comm, &mut ours).revision, 1_000);
        assert_eq!(ours.digest(), state(None, 5).digest());
        // Three camps of the next revision, of two, one and one.
        let camp = [1, 2, 3, 2][rank];
        let mut ours = state(Some(1_001), camp);
        assert_eq!(synced(&comm, &mut ours).revision, 1_001);
        assert_eq!(ours.digest(), state(None, 2).digest());
    });
}

#[test]
fn a_revision_that_is_ahead_is_the_error_of_that_peer_alone() {
    together(3, |comm| {
        let mut ours = state(Some(4), 1);
        synced(&comm, &mut ours);
        let ahead = comm.rank() == 1;
        ours.set_revision(Some(if ahead { 6 } else { 5 }));
        let outcome = comm.sync_state(&mut ours, &SyncOptions::new());
        if ahead {
            let error = outcome.unwrap_err();
            assert_eq!(error.action(), NextStep::Fatal);
            assert!(error.to_string().contains("revision 6 is ahead"), "{error}");
            assert_eq!(ours.revision(), Some(6), "its data is as it was");
            ours.set_revision(None);
        } else {
            assert_eq!(outcome.unwrap().revision, 5);
        }
        assert_eq!(synced(&comm, &mut ours).revision, 5, "and it comes back by receiving");
    });
}

#[test]
fn a_wrong_key_shape_or_type_is_named_to_the_deviating_peer_alone() {
    together(3, |comm| {
        let (rank, peers) = (comm.rank(), comm.peers());
        let outcome = |change: Change| {
            let mut ours = SharedState::new();
            ours.insert("a", vec![1_i32; 6], &[2, 3]).unwrap();
            if rank == 2 {
                ours = SharedState::new();
                change(&mut ours);
            }
            ours.set_revision(Some(0));
            comm.sync_state(&mut ours, &SyncOptions::new())
        };
        let cases: [(Change, &str); 3] = [
            (|state| state.insert("b", vec![1_i32; 6], &[2, 3]).unwrap(), "the key \"a\" is missing"),
            (|state| state.insert("a", vec![1_i32; 6], &[3, 2]).unwrap(), "i32[3, 2] here and i32[2, 3]"),
            (|state| state.insert("a", vec![1_u32; 6], &[2, 3]).unwrap(), "u32[2, 3] here and i32[2, 3]"),
        ];
        for (change, named) in cases {
            match outcome(change) {
                Ok(report) => {
                    assert_ne!(rank, 2);
                    assert_eq!(
                        report.members,
                        [peers[0].id, peers[1].id],
                        "who deviates holds something else"
                    );
                }
                Err(error @ Error::StateMismatch(_)) => {
                    assert_eq!((rank, error.action()), (2, NextStep::Fatal));
                    assert!(error.to_string().contains(named), "{error}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn nobody_to_give_is_a_clear_error_for_all() {
    together(2, |comm| {
        let mut ours = state(None, 1);
        let error = comm.sync_state(&mut ours, &SyncOptions::new()).unwrap_err();
        assert!(matches!(error, Error::NoDonor(_)) && error.action() == NextStep::Fatal, "{error}");
        let receive = SyncOptions::new().strategy(Strategy::ReceiveOnly);
        ours.set_revision(Some(3));
        assert!(matches!(comm.sync_state(&mut ours, &receive), Err(Error::NoDonor(_))));
        // It changed nothing in the count: the first sync may still start anywhere.
        assert_eq!(synced(&comm, &mut ours).revision, 3);
    });
}

#[test]
fn strategies_are_kept() {
    together(3, |comm| {
        let rank = comm.rank();
        let (strategy, value) =
            [(Strategy::Popular, 1), (Strategy::ReceiveOnly, 1), (Strategy::SendOnly, 9)][rank];
        let mut ours = state(Some(0), value);
        let report = comm.sync_state(&mut ours, &SyncOptions::new().strategy(strategy)).unwrap();
        assert_eq!(ours.digest(), state(None, 9).digest());
        assert_eq!(report.received > 0, rank != 2);
    });
}

#[test]
fn groups_sync_apart() {
    let coordinator = coordinator();
    let threads: Vec<_> = (0..4_u8)
        .map(|number| {
            let group = u32::from(number % 2);
            let comm = peers::builder(&coordinator).group(group).start().unwrap();
            thread::spawn(move || {
                comm.connect(2).expect("admitted");
                let mut ours = state(Some(u64::from(group)), number);
                let report = synced(&comm, &mut ours);
                (group, report.revision, ours.digest(), (report.sent, report.received, report.leaves))
            })
        })
        .collect();
    let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (group, revision, digest, _) in &ends {
        assert_eq!(u64::from(*group), *revision);
        let same = ends.iter().filter(|(other, _, theirs, _)| other == group && theirs == digest).count();
        assert_eq!(same, 2, "{ends:?}");
    }
    // In each group one gives everything once, and the other gets it; nothing passes between groups.
    for group in 0..2 {
        let mut moved: Vec<_> =
            ends.iter().filter(|(of, ..)| *of == group).map(|(.., moved)| *moved).collect();
        moved.sort_unstable();
        assert_eq!(moved, [(0, BYTES + LIST, 5), (BYTES + LIST, 0, 0)]);
    }
}

/// Enough leaves that somebody can be lost in the middle.
fn many(revision: Option<u64>, value: u8) -> SharedState {
    let mut state = SharedState::new();
    state.insert("w", vec![value; 96 * LEAF_BYTES], &[96 * LEAF_BYTES as u64]).unwrap();
    state.set_revision(revision);
    state
}

#[test]
fn a_donor_that_goes_in_the_middle_is_replaced() {
    let coordinator = coordinator();
    let results = each(&coordinator, 4, |number, comm| {
        comm.connect(4).expect("admitted");
        if number == 1 {
            // It votes, serves for a moment, and goes without a word to its own call.
            let giver = Arc::clone(&comm);
            let serving = thread::spawn(move || giver.sync_state(&mut many(Some(3), 8), &SyncOptions::new()));
            thread::sleep(Duration::from_millis(150));
            comm.leave();
            return serving.join().unwrap().map(|_| 0);
        }
        let mut ours = if number == 0 { many(None, 0) } else { many(Some(3), 8) };
        let report = comm.sync_state(&mut ours, &SyncOptions::new())?;
        assert_eq!(ours.digest(), many(None, 8).digest(), "peer {number}");
        assert_eq!(ours.revision(), Some(3));
        Ok(report.leaves)
    });
    let healed = results[0].as_ref().expect("the receiver");
    assert_eq!(*healed, 96);
    assert!(results[2].is_ok() && results[3].is_ok(), "{results:?}");
}

#[test]
fn without_any_donor_left_the_receiver_is_whole_or_torn_and_says_so() {
    let coordinator: Coordinator = coordinator();
    let mut torn = 0;
    for pause in [20, 60, 120, 200] {
        let results = each(&coordinator, 2, move |number, comm| {
            comm.connect(2).expect("admitted");
            if number == 1 {
                let giver = Arc::clone(&comm);
                let serving =
                    thread::spawn(move || giver.sync_state(&mut many(Some(3), 8), &SyncOptions::new()));
                thread::sleep(Duration::from_millis(pause));
                comm.leave();
                let _ = serving.join().unwrap();
                return false;
            }
            let mut ours = many(Some(2), 0);
            match comm.sync_state(&mut ours, &SyncOptions::new()) {
                // If the donor was gone before the vote, ours was the best there was.
                Ok(report) => {
                    let value = if report.revision == 3 { 8 } else { 0 };
                    assert_eq!(ours.digest(), many(None, value).digest());
                    assert_eq!(ours.revision(), Some(report.revision));
                }
                Err(error) => {
                    let untouched = ours.digest() == many(None, 0).digest();
                    assert_eq!(ours.revision(), if ours.is_torn() { None } else { Some(2) });
                    assert!(ours.is_torn() || untouched, "{error}");
                    assert_eq!(
                        matches!(error, Error::SyncFailed { torn: true, .. }),
                        ours.is_torn(),
                        "{error}"
                    );
                }
            }
            let was_torn = ours.is_torn();
            if was_torn {
                // Alone with a torn state there is nobody to give.
                let error = comm.sync_state(&mut ours, &SyncOptions::new()).unwrap_err();
                assert!(matches!(error, Error::NoDonor(_)), "{error}");
            }
            comm.leave();
            was_torn
        });
        torn += u32::from(results[0]);
    }
    eprintln!("{torn} of 4 were torn");
}

#[test]
fn a_member_alone_agrees_with_itself_and_a_revision_beyond_counting_is_refused() {
    let coordinator = coordinator();
    let comm = peer(&coordinator, "alone");
    comm.connect(1).unwrap();
    let mut ours = state(Some(1), 1);
    assert_eq!(synced(&comm, &mut ours).revision, 1);
    ours.set_revision(Some(u64::MAX));
    assert!(matches!(comm.sync_state(&mut ours, &SyncOptions::new()), Err(Error::InvalidArgument(_))));
}

/// The others used to wait for it until their deadline.
#[test]
fn who_gives_up_while_it_is_healed_ends_the_sync_for_all_at_once_and_is_named() {
    const MANY: usize = 64 * LEAF_BYTES;
    let coordinator = coordinator();
    let outcomes = each(&coordinator, 3, |number, comm| {
        comm.connect(3).expect("admitted");
        let mut ours = SharedState::new();
        ours.insert("many", vec![u8::from(number != 2); MANY], &[MANY as u64]).unwrap();
        ours.set_revision((number != 2).then_some(5));
        let mut options = SyncOptions::new().timeout(Duration::from_mins(2));
        let interrupt = Interrupt::new();
        options = options.interrupt(&interrupt);
        let watched = Arc::clone(&comm);
        let quitting = (number == 2).then(|| {
            thread::spawn(move || {
                let healing = |event: &Event| matches!(event, Event::Healing(have, all) if have < all);
                let deadline = Instant::now() + Duration::from_secs(30);
                loop {
                    let told = watched.events(Duration::from_secs(1)).expect("events");
                    if told.iter().any(|happened| healing(&happened.what)) {
                        return interrupt.trigger();
                    }
                    assert!(Instant::now() < deadline, "it is being healed");
                }
            })
        });
        let began = Instant::now();
        let error = comm.sync_state(&mut ours, &options).expect_err("one gave up");
        let took = began.elapsed();
        assert_eq!(error.action(), NextStep::Retry, "{error}");
        if let Some(quitting) = quitting {
            quitting.join().unwrap();
        } else {
            assert!(error.to_string().contains("p2") && error.to_string().contains("gave"), "{error}");
            assert!(took < Duration::from_mins(1), "long before the deadline: {took:?}");
        }
        // The next one heals it.
        let report = comm.sync_state(&mut ours, &SyncOptions::new()).expect("a sync");
        assert!(ours.get::<u8>("many").unwrap().iter().all(|byte| *byte == 1));
        report.revision
    });
    assert_eq!(outcomes, [5; 3]);
}

/// What a member has said to its coordinator, and heard from it, since its flight record had that many lines.
fn told(coordinator: &Coordinator, address: &str, since: usize) -> (usize, BTreeMap<String, usize>) {
    let run = "default".parse().unwrap();
    let flight = ask_flight(address, coordinator.secret(), &run, Duration::from_secs(20)).unwrap();
    let mut words = BTreeMap::new();
    for line in flight.lines().skip(since) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        // What happened in the run is told to all now and then, whatever they do.
        if (line["what"] == "sent" || line["what"] == "heard") && line["name"] != "Annals" {
            let word = format!("{} {}", line["what"].as_str().unwrap(), line["name"].as_str().unwrap());
            *words.entry(word).or_default() += 1;
        }
    }
    (flight.lines().count(), words)
}

#[test]
fn members_that_agree_pay_one_pass_over_their_memory_and_two_round_trips() {
    let coordinator = Arc::new(coordinator());
    let asked = Arc::clone(&coordinator);
    let all = Arc::new(Barrier::new(3));
    each(&coordinator, 3, move |_, comm| {
        comm.connect(3).expect("admitted");
        let address = comm.peers()[comm.rank()].address.to_string();
        let mut ours = state(Some(0), 7);
        synced(&comm, &mut ours);
        for round in 1..4 {
            all.wait();
            let (lines, _) = told(&asked, &address, 0);
            let hashed = ours.leaves_hashed();
            all.wait();
            let report = synced(&comm, &mut ours);
            assert_eq!(ours.leaves_hashed() - hashed, 5, "round {round}: each leaf once");
            assert_eq!((report.sent, report.received, report.revision), (0, 0, 0));
            let (_, words) = told(&asked, &address, lines);
            all.wait(); // Who goes is heard of by the others.
            let two = [("heard BallotEnded".to_owned(), 2), ("sent Vote".to_owned(), 2)];
            assert_eq!(words, two.into(), "round {round}: two votes, two answers, and no other word");
        }
    });
}

/// Each receiver opens two streams, and a donor serves 64 at once, here a few: those beyond were closed, and the sync failed
/// for all.
#[test]
fn one_holder_heals_forty_empty_members_at_once() {
    const MEMBERS: usize = 41;
    const BYTES: usize = 2 * LEAF_BYTES;
    let coordinator = coordinator();
    let reports = each(&coordinator, MEMBERS, |number, comm| {
        let patience = Duration::from_secs(50);
        comm.connect_within(MEMBERS as u32, patience).expect("admitted");
        let holds = number == 0;
        comm.serve_fewer_streams(8);
        let mut ours = SharedState::new();
        ours.insert("w", vec![u8::from(holds); BYTES], &[BYTES as u64]).unwrap();
        ours.set_revision(holds.then_some(1_000));
        let report = comm.sync_state(&mut ours, &SyncOptions::new().timeout(patience)).expect("a sync");
        assert!(ours.get::<u8>("w").unwrap().iter().all(|byte| *byte == 1), "peer {number}");
        assert_eq!((report.revision, report.replaced), (1_000, vec![]));
        report.sent
    });
    let list = 2 * 16;
    assert_eq!(reports.iter().sum::<u64>(), (MEMBERS as u64 - 1) * (BYTES as u64 + list));
}

/// The newest that is left lost its mark when it was copied, and an older checkpoint was elected in its place.
#[test]
fn a_copy_that_was_healed_goes_on_before_an_older_checkpoint_though_its_sync_failed() {
    let coordinator = coordinator();
    let [giver, copy, quitter] = ["giver", "copy", "quitter"].map(|name| peer(&coordinator, name));
    let mut original = many(Some(21), 21);
    giver.connect(1).unwrap();
    synced(&giver, &mut original); // The group of one has agreed on it.
    let joining: Vec<_> = [&copy, &quitter]
        .map(|comm| {
            let comm = Arc::clone(comm);
            thread::spawn(move || comm.connect(3).expect("admitted"))
        })
        .into();
    while giver.world_size() < 3 {
        giver.update_topology(3).expect("a vote");
    }
    joining.into_iter().for_each(|thread| drop(thread.join().unwrap()));
    let mut copied = many(Some(20), 21);
    for round in 0.. {
        assert!(round < 10, "the other never gave up in time");
        copied.set_revision(Some(20));
        copied.get_mut::<u8>("w").unwrap()[0] = 0; // One leaf of 96 differs here, and all of them at the other.
        let (interrupt, is_healed) = (Interrupt::new(), AtomicBool::new(false));
        let outcome = thread::scope(|scope| {
            let giving = scope.spawn(|| giver.sync_state(&mut original, &SyncOptions::new()).map(drop));
            let quitting = scope.spawn(|| {
                let options = SyncOptions::new().interrupt(&interrupt);
                quitter.sync_state(&mut many(None, 0), &options).map(drop)
            });
            let copying = scope.spawn(|| copy.sync_state(&mut copied, &SyncOptions::new()).map(drop));
            scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(20);
                while !is_healed.load(Ordering::SeqCst) && Instant::now() < deadline {
                    let happened = copy.events(Duration::from_millis(50)).expect("events");
                    let healed = |event: &Event| matches!(event, Event::Healing(have, all) if have == all);
                    is_healed.store(happened.iter().any(|told| healed(&told.what)), Ordering::SeqCst);
                }
                interrupt.trigger();
            });
            let _ = (giving.join().unwrap(), quitting.join().unwrap());
            copying.join().unwrap()
        });
        if outcome.is_err() {
            break;
        }
    }
    assert_eq!((copied.revision(), copied.digest()), (Some(21), many(None, 21).digest()), "it is whole");
    copy.leave();
    quitter.leave();
    while giver.world_size() > 1 {
        giver.update_topology(1).expect("a vote");
    }
    original.set_revision(Some(22));
    synced(&giver, &mut original);
    let coming_back = {
        let copy = Arc::clone(&copy);
        thread::spawn(move || copy.connect(2).expect("admitted"))
    };
    giver.update_topology(2).expect("a vote");
    coming_back.join().unwrap();
    giver.leave();
    // Who had 22 is gone, and nobody who is here was there. What is left is the copy, and an older checkpoint.
    let folder = tempfile::tempdir().unwrap();
    many(Some(20), 20).save(&folder.path().join("20")).unwrap();
    let newcomer = peer(&coordinator, "newcomer");
    let revisions: Vec<_> = thread::scope(|scope| {
        let back = scope.spawn(|| {
            while copy.peers().iter().all(|peer| peer.name != "newcomer") {
                copy.update_topology(1).expect("a vote");
            }
            synced(&copy, &mut copied).revision
        });
        let old = scope.spawn(|| {
            let mut loaded = many(None, 0);
            loaded.load(folder.path()).unwrap();
            newcomer.connect(1).expect("admitted");
            synced(&newcomer, &mut loaded).revision
        });
        [back, old].map(|thread| thread.join().unwrap()).into()
    });
    assert_eq!(revisions, [21, 21]);
}

#[test]
fn one_checkpoint_wins_over_three_empty_members_whenever_the_coordinator_is_restarted() {
    let secret = RunSecret::generate();
    let start = |address: SocketAddr| {
        let coordinator = Coordinator::builder().listen(address).secret(secret.clone());
        coordinator.preset(Preset::Local).start().expect("a coordinator")
    };
    let folder = tempfile::tempdir().unwrap();
    let coordinator = start("127.0.0.1:0".parse().unwrap());
    let address = coordinator.address();
    let path = folder.path().join("1000");
    each(&coordinator, 2, move |number, comm| {
        comm.connect(2).expect("admitted");
        let mut ours = state(Some(1_000), 5);
        synced(&comm, &mut ours);
        if number == 0 {
            ours.save(&path).unwrap();
        }
    });
    // Everybody is gone, and then the coordinator as well.
    drop(coordinator);
    let mut coordinator = start(address);
    let path = folder.path().to_owned();
    let gate = Arc::new(Barrier::new(5));
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (comm, gate) = (peer(&coordinator, &format!("p{number}")), Arc::clone(&gate));
            let path = path.clone();
            thread::spawn(move || {
                let mut ours = state((number != 3).then_some(0), 0);
                if number == 2 {
                    ours.load(&path).unwrap();
                }
                comm.connect(4).expect("admitted");
                for _ in 0..2 {
                    gate.wait(); // The coordinator is restarted between these.
                    gate.wait();
                    let report = synced(&comm, &mut ours);
                    assert_eq!((report.revision, ours.digest()), (1_000, state(None, 5).digest()));
                }
            })
        })
        .collect();
    for _ in 0..2 {
        gate.wait();
        drop(coordinator);
        coordinator = start(address);
        gate.wait();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
