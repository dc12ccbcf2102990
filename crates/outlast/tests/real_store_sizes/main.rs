//! A store with much in it, with real processes: many keys, many waiters, long keys, large values, many members without
//! direct links; and memory that is bounded.
//!
//! What is printed is what `bench/RESULTS.md` holds. What is asserted are counts and proportions, never a speed.

mod members;
#[path = "../support/store_waits.rs"]
mod waits;

use members::{Manner, PATIENCE, World, millis, value};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use waits::until_waiting;

const MIB: u64 = 1 << 20;

/// Not a test by itself: what the members do, when the environment says so.
#[test]
fn role() {
    members::play();
}

fn keys_survive(count: u64) {
    let mut world = World::of(3, Manner::USUAL);
    let before: Vec<_> = world.members.iter().map(|member| member.memory().0).collect();
    let (begun, each) = (Instant::now(), count / 3);
    let filled = world.all(&format!("fill many/#/ 0 {each}"));
    assert!(filled.iter().all(|filled| filled == "filled"), "{filled:?}");
    println!("{} keys were set in {} ms", each * 3, millis(begun));
    let begun = Instant::now();
    assert_eq!(world.store.num_keys().expect("a number"), each * 3);
    let keys = world.store.keys("many/").expect("keys");
    assert_eq!(keys.len() as u64, each * 3);
    assert!(keys.is_sorted(), "keys are sorted");
    println!("they were counted and listed in {} ms", millis(begun));
    for (member, before) in world.members.iter().zip(before) {
        let per_key = (member.memory().0.saturating_sub(before)) / (each * 3 * 2 / 4);
        println!(
            "a member takes {per_key} bytes for a key that it holds, of which there are {}",
            each * 3 * 2 / 4
        );
        // Two copies among four members. A key of 15 bytes with 32 of value, names of calls, and maps around them.
        assert!(per_key < 2_000, "{per_key} bytes for a key");
    }
    let begun = Instant::now();
    world.members.pop().expect("three").kill();
    world.wait_for_view(3);
    println!("a kill of one of four was a view of three after {} ms", millis(begun));
    let begun = Instant::now();
    for some in keys.chunks(1_000) {
        let values = world.store.multi_get(some).expect("values");
        for (key, got) in some.iter().zip(values) {
            let key = std::str::from_utf8(key).expect("text");
            assert!(got == value(key, 32), "the value of {key} is another one");
        }
    }
    println!("all of them were read after a member was killed, in {} ms", millis(begun));
}

#[test]
fn ten_thousand_keys_survive_a_death() {
    keys_survive(9_999);
}

#[test]
#[ignore = "half a minute: make soak"]
fn a_hundred_thousand_keys_survive_a_death() {
    keys_survive(99_999);
}

fn waiters(manner: Manner) {
    let mut world = World::of(4, manner);
    for member in &mut world.members {
        member.order("await late 2500");
    }
    // They are all there when their owner knows of them; and until then nobody may be told that the key is.
    until_waiting(&world.coordinator, 10_000, PATIENCE);
    assert!(!world.store.check(&["late"]).expect("an answer"));
    let begun = Instant::now();
    world.store.set("late", "here").expect("set");
    let set = millis(begun);
    assert!(world.members.iter().all(|member| member.outcome() == "came"));
    println!("the set took {set} ms, the last of 10,000 waiters was woken after {} ms", millis(begun));
    until_waiting(&world.coordinator, 0, PATIENCE);
}

#[test]
fn ten_thousand_waiters_on_one_key_are_all_woken() {
    waiters(Manner::USUAL);
}

#[test]
#[ignore = "more of the same: make soak"]
fn ten_thousand_waiters_on_one_key_are_all_woken_without_direct_links() {
    waiters(Manner::MESH);
}

/// Values of those sizes go from one process to another; small ones pass meanwhile.
fn sizes(sizes: &[u64]) {
    sizes_among(3, Manner::USUAL, sizes);
}

fn sizes_among(processes: usize, manner: Manner, sizes: &[u64]) {
    let mut world = World::of(processes, manner);
    let key = "k".repeat(10_000);
    for bytes in sizes {
        let (stops, mut slowest, mut small) = (AtomicBool::new(false), Duration::ZERO, 0_u32);
        let (store, members) = (&world.store, &mut world.members);
        let (put, took) = std::thread::scope(|scope| {
            let passing = scope.spawn(|| {
                while !stops.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    // Other keys each time: every member owns some of them.
                    store.set(format!("small/{}", small % 64), "x").expect("set");
                    slowest = slowest.max(begun.elapsed());
                    small += 1;
                }
            });
            let put = members[0].done(&format!("put {key} {bytes}"));
            let took = members[1].done(&format!("take {key} {bytes}"));
            stops.store(true, Ordering::Relaxed);
            passing.join().expect("small ones pass");
            (put, took)
        });
        let whole = put.parse::<u64>().expect("it was set") + took.parse::<u64>().expect("it was got");
        println!(
            "a value of {bytes} bytes: set in {put} ms, got in {took} ms; {small} small ones passed, the slowest in {} ms",
            slowest.as_millis()
        );
        // Whoever waits for the large one waits for most of that time; a small one must not.
        assert!(
            whole < 200 || slowest.as_millis() < u128::from(whole) / 2,
            "a small one waited {slowest:?} of {whole} ms"
        );
    }
    let most = world.members.iter().map(|member| member.memory().1).max().expect("members");
    println!("no member ever took more than {} MiB of memory", most / MIB);
}

#[test]
fn values_from_nothing_to_16_mib_pass_and_small_ones_between_them() {
    sizes(&[0, 1, 32, 64 << 10, MIB, 16 * MIB]);
}

#[test]
#[ignore = "half a minute, and gigabytes of memory: make soak"]
fn values_of_256_mib_pass_and_small_ones_between_them() {
    sizes(&[64 * MIB, 256 * MIB]);
}

/// Large values pass through the hands of others, who pass small ones on meanwhile.
#[test]
#[ignore = "half a minute, and gigabytes of memory: make soak"]
fn values_of_16_and_64_mib_pass_and_small_ones_between_them_without_direct_links() {
    sizes_among(7, Manner::MESH, &[16 * MIB, 64 * MIB]);
}

/// A member that is full says so, and takes no more memory than that.
#[test]
fn a_full_store_refuses_more_and_stays_as_it_is() {
    let limit = 32 * MIB;
    let mut world = World::of(2, Manner { bytes_max: Some(limit), ..Manner::USUAL });
    let mut refused = 0;
    for at in 0..120 {
        let said = world.members[0].done(&format!("put full/{at} {MIB}"));
        refused += u32::from(said.parse::<u64>().is_err());
        assert!(said.parse::<u64>().is_ok() || said.contains("full"), "{said}");
    }
    assert!(refused > 0, "120 MiB, twice, fit three members of 32 MiB");
    assert!(refused < 100, "{refused} of 120 were refused");
    // What was taken is still there, a delete makes room, and the room can be used.
    let there = world.store.keys("full/").expect("keys");
    assert_eq!(there.len() as u32, 120 - refused);
    for key in &there {
        assert!(world.store.delete_key(key).expect("a delete"));
    }
    assert!(world.members[0].done(&format!("put full/0 {MIB}")).parse::<u64>().is_ok());
    let most = world.members.iter().map(|member| member.memory().1).max().expect("members");
    println!(
        "{refused} of 120 MiB were refused; no member with a limit of {} MiB took more than {} MiB",
        limit / MIB,
        most / MIB
    );
    assert!(most < 8 * limit, "{most} bytes of memory");
}

fn without_direct_links(processes: usize, rounds: u64) {
    let mut world = World::of(processes, Manner::MESH);
    let begun = Instant::now();
    for round in 0..rounds {
        assert!(world.all(&format!("meet round/{round} {processes}")).iter().all(|met| met == "met"));
    }
    println!("{rounds} barriers of {} members without direct links took {} ms", processes + 1, millis(begun));
    assert!(world.all("fill mesh/#/ 0 100").iter().all(|filled| filled == "filled"));
    assert_eq!(world.store.num_keys().expect("a number"), processes as u64 * 100 + rounds * 2);
    let begun = Instant::now();
    world.store.set("spread", value("spread", MIB as usize)).expect("set");
    let slowest = world.all(&format!("take spread {MIB}"));
    println!("a value of 1 MiB was with all of them after {} ms", millis(begun));
    assert_eq!(slowest.len(), processes);
    // Along the tree, to each once; the second one is there before the first could come again.
    for name in ["first", "second"] {
        let begun = Instant::now();
        world.store.broadcast(value(name, MIB as usize)).expect("told");
        assert!(world.all(&format!("hear {name} {MIB}")).iter().all(|heard| heard == "heard"));
        println!("a broadcast of 1 MiB was heard by all of them after {} ms", millis(begun));
    }
    assert!(world.all("listen").iter().all(|heard| heard == "None"));
    world.members.pop().expect("members").kill();
    world.wait_for_view(processes);
    assert_eq!(world.store.keys("mesh/").expect("keys").len(), processes * 100);
}

#[test]
fn eight_members_without_direct_links_do_it_all() {
    without_direct_links(7, 20);
}

#[test]
#[ignore = "half a minute: make soak"]
fn thirty_two_members_without_direct_links_do_it_all() {
    without_direct_links(31, 50);
}
