//! The store among several coordinators: the one that reigns decides on its views, and nothing that was acknowledged is
//! lost when it is killed, stopped or told to go.

use crate::coordinators::{Coordinators, PATIENCE, until};
use outlast::Store;
use outlast::membership::Preset;
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MEMBERS: usize = 4;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Rounds that each member has had acknowledged.
    done: [AtomicU64; MEMBERS],
    slowest_ms: AtomicU64,
}

fn join(coordinators: &Coordinators, name: &str) -> Store {
    Store::builder()
        .coordinator(coordinators.addresses())
        .secret(coordinators.etcds.secret.clone())
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Local)
        .name(name)
        .timeout(PATIENCE)
        .join()
        .expect("in the store")
}

/// Adds and sets without pause; every one of them must be acknowledged.
fn work(store: &Store, place: usize, shared: &Shared) {
    for number in 0_u64.. {
        let begun = Instant::now();
        store.add("counter", 1).expect("an add");
        store.set(format!("{place}/{number}"), number.to_string()).expect("a set");
        let took = u64::try_from(begun.elapsed().as_millis()).expect("milliseconds");
        shared.slowest_ms.fetch_max(took, Ordering::SeqCst);
        shared.done[place].store(number + 1, Ordering::SeqCst);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_store_outlasts_leaders_that_are_killed_stopped_and_told_to_go() {
    let mut all = Coordinators::start(1);
    let shared = Arc::<Shared>::default();
    let workers: Vec<JoinHandle<Store>> = (0..MEMBERS)
        .map(|place| {
            let (store, shared) = (join(&all, &format!("m{place}")), Arc::clone(&shared));
            std::thread::spawn(move || {
                work(&store, place, &shared);
                store
            })
        })
        .collect();
    let goes_on = |what: &str| {
        let counts = || shared.done.each_ref().map(|done| done.load(Ordering::SeqCst));
        let then = counts();
        until(what, || {
            assert!(!workers.iter().any(JoinHandle::is_finished), "a call failed: {what}");
            counts().iter().zip(then).all(|(now, then)| *now >= then + 20).then_some(())
        });
    };
    goes_on("the first calls");
    for signal in [Signal::KILL, Signal::TERM] {
        let leader = all.leader();
        let begun = Instant::now();
        all.end(leader, signal);
        goes_on("another one decides on views");
        println!("{signal:?} of the leader to twenty more calls of everybody: {:?}", begun.elapsed());
        all.launch(leader);
    }
    // One that does not know that its time is over.
    let leader = all.leader();
    all.signal(leader, Signal::STOP);
    // Longer than leases of the view and of the reign.
    std::thread::sleep(crate::LONGER_THAN_A_LEASE);
    goes_on("another one decides on views while the leader is stopped");
    all.signal(leader, Signal::CONT);
    goes_on("the one that was stopped disturbs nobody");
    // The view changes under the one that reigns now.
    let newcomer = join(&all, "late");
    goes_on("somebody came");
    let status = until("five are in the view", || {
        let status = all.status(&all.addresses())?;
        (status["store"]["members"].as_array()?.len() == MEMBERS + 1).then_some(status)
    });
    assert_eq!(status["reign"]["leads"], true);
    assert!(
        status["store"]["keys"].as_u64() > Some(20) && status["store"]["bytes"].as_u64() > Some(0),
        "{status}"
    );
    shared.stop.store(true, Ordering::SeqCst);
    let _stores: Vec<_> = workers.into_iter().map(|worker| worker.join().expect("its calls")).collect();
    let done = shared.done.each_ref().map(|done| done.load(Ordering::SeqCst));
    assert_eq!(newcomer.add("counter", 0).expect("a number"), done.iter().sum::<u64>().cast_signed());
    for (place, count) in done.into_iter().enumerate() {
        for number in 0..count {
            let value = newcomer.look(format!("{place}/{number}")).expect("an answer");
            assert_eq!(
                value,
                Some(number.to_string().into_bytes()),
                "{place}/{number} was acknowledged and is lost"
            );
        }
    }
    println!("{done:?} rounds, the slowest took {} ms", shared.slowest_ms.load(Ordering::SeqCst));
}
