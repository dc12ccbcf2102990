//! Donors that send wrong bytes or change what they lent, and members that take too long to say what they hold.

mod peers;

use outlast::Coordinator;
use outlast::communicator::{DataType, Error, NextStep, SyncOptions, SyncReport, ask_flight};
use outlast::state::{LEAF_BYTES, SharedState, TensorInfo};
use outlast::watch::watched;
use outlast_proto::id::PeerId;
use outlast_proto::session::CallError;
use peers::{coordinator, each};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A state of one array that the program goes on to write to while it is lent.
fn unruly(leaves: usize, revision: Option<u64>, value: u64) -> (SharedState, Arc<Vec<AtomicU64>>) {
    let count = leaves * LEAF_BYTES / 8;
    let numbers: Arc<Vec<_>> = Arc::new((0..count).map(|_| AtomicU64::new(value)).collect());
    let mut state = SharedState::new();
    let info = TensorInfo::new("w", DataType::U64, [count as u64]);
    let start = numbers[0].as_ptr().cast();
    // SAFETY: the owner keeps the memory, and it is written to as atomic numbers only.
    unsafe { state.insert_raw(info, start, Box::new(Arc::clone(&numbers))) }.unwrap();
    state.set_revision(revision);
    (state, numbers)
}

/// What members were told of a sync with a bad donor.
struct Told {
    bad: PeerId,
    /// The empty member.
    healed: Result<SyncReport, Error>,
    /// The bad one itself, and whether its state is torn.
    itself: (Result<SyncReport, Error>, bool),
}

/// A group of one bad donor, so many good ones, and an empty member.
fn with_a_bad_donor(good: usize, mutates: bool) -> Told {
    const LEAVES: usize = 48;
    let coordinator = Arc::new(coordinator());
    let (asked, changed) = (Arc::clone(&coordinator), AtomicBool::new(false));
    let results = each(&coordinator, good + 2, move |number, comm| {
        comm.connect(good as u32 + 2).expect("admitted");
        let me = comm.peer_id();
        if number > 0 {
            let (mut ours, numbers) = unruly(LEAVES, Some(3), 8);
            let is_bad = number == 1;
            if is_bad && !mutates {
                comm.spoil_served_state();
            }
            let voter = Arc::clone(&comm);
            let serving = thread::spawn(move || {
                let outcome = voter.sync_state(&mut ours, &SyncOptions::new());
                assert_eq!(ours.revision().is_none(), ours.is_torn(), "what is torn has no revision");
                (outcome, ours.is_torn())
            });
            if is_bad && mutates {
                // Once it has voted it has hashed; nobody has asked for anything before the empty one votes, too.
                until_voted(&asked, good + 1);
                numbers.iter().step_by(1_000).for_each(|number| number.store(9, Ordering::Relaxed));
                changed.store(true, Ordering::SeqCst);
            }
            return (serving.join().unwrap(), me);
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while mutates && !changed.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "the bad one changes its memory");
            thread::sleep(Duration::from_millis(5));
        }
        let (mut ours, _) = unruly(LEAVES, None, 0);
        let before = ours.digest();
        let outcome = comm.sync_state(&mut ours, &SyncOptions::new());
        match &outcome {
            Ok(report) => {
                assert_eq!(ours.digest(), unruly(LEAVES, None, 8).0.digest(), "not a byte of the bad one's");
                let kept: u64 = report.donors.iter().map(|(_, leaves)| leaves).sum();
                assert_eq!(kept, LEAVES as u64);
            }
            Err(_) => assert!(ours.digest() == before && !ours.is_torn()),
        }
        ((outcome, ours.is_torn()), me)
    });
    let mut results = results.into_iter();
    let (healed, bad) = (results.next().unwrap(), results.next().unwrap());
    assert!(results.all(|((outcome, torn), _)| outcome.is_ok() && !torn), "nothing happens to the good ones");
    Told { bad: bad.1, healed: healed.0.0, itself: bad.0 }
}

/// Waits until so many members have cast their first vote in a sync.
fn until_voted(coordinator: &Coordinator, count: usize) {
    let run = "default".parse().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = coordinator.status(&run).unwrap().unwrap_or_default();
        if status.matches("\"VoteSyncState\"").count() >= count {
            return;
        }
        assert!(Instant::now() < deadline, "{status}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_donor_that_corrupts_or_mutates_is_named_each_time_by_who_was_healed() {
    for (mutates, fault) in [
        (false, "it sent bytes that are not the elected ones"),
        (true, "its tensors changed during the sync"),
    ] {
        for round in 0..2 {
            let told = with_a_bad_donor(2, mutates);
            let report = told.healed.unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert_eq!(report.replaced, [(told.bad, fault.to_owned())], "round {round}");
            assert!(report.donors.iter().all(|(donor, _)| *donor != told.bad), "nothing of it was kept");
        }
        // Where there is no other it is named in the error.
        let told = with_a_bad_donor(0, mutates);
        let error = told.healed.expect_err("nobody else has it").to_string();
        assert!(error.contains(&told.bad.short()) && error.contains(fault), "{error}");
    }
}

/// It reported success, and was listed among those who hold what was elected.
#[test]
fn a_donor_that_changed_is_told_so_itself() {
    for good in [2, 0] {
        let told = with_a_bad_donor(good, true);
        let (outcome, torn) = told.itself;
        let error = outcome.expect_err("it does not hold what was elected");
        assert!(error.to_string().contains("its tensors changed during the sync"), "{error}");
        assert_eq!((error.action(), torn), (NextStep::Retry, true));
        match told.healed {
            Ok(report) => {
                assert!(good == 2 && report.members.len() == 3 && !report.members.contains(&told.bad));
            }
            Err(_) => assert_eq!(good, 0),
        }
    }
    // A donor that is honest to itself is not.
    let told = with_a_bad_donor(2, false);
    assert!(told.itself.0.is_ok() && !told.itself.1);
}

/// How many votes a member has cast.
fn votes(coordinator: &Coordinator, address: &str) -> usize {
    let run = "default".parse().unwrap();
    let flight = ask_flight(address, coordinator.secret(), &run, Duration::from_secs(20)).unwrap();
    let is_vote = |line: &&str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["what"] == "sent" && line["name"] == "Vote"
    };
    flight.lines().filter(is_vote).count()
}

/// Between the call and its first vote nobody looked at the clock or answered Ctrl-C, and of a large model that is seconds.
#[test]
fn hashing_heeds_the_deadline_and_whoever_gives_up() {
    let coordinator = Arc::new(coordinator());
    let asked = Arc::clone(&coordinator);
    each(&coordinator, 1, move |_, comm| {
        comm.connect(1).expect("admitted");
        let address = comm.peers()[0].address.to_string();
        let mut ours = unruly(3, Some(4), 1).0;
        let late = comm.sync_state(&mut ours, &SyncOptions::new().timeout(Duration::ZERO)).unwrap_err();
        assert!(late.to_string().contains("before its tensors were hashed"), "{late}");
        assert_eq!((late.action(), ours.revision(), ours.is_torn()), (NextStep::Retry, Some(4), false));
        let gave_up = watched(Duration::ZERO, || true, || comm.sync_state(&mut ours, &SyncOptions::new()));
        assert_eq!(gave_up.unwrap_err().cause(), Some(&CallError::Cancelled));
        assert_eq!(votes(&asked, &address), 0, "nobody was told anything yet");
        comm.sync_state(&mut ours, &SyncOptions::new()).expect("nobody is late, and nobody gives up");
        assert_eq!(votes(&asked, &address), 2);
    });
}
