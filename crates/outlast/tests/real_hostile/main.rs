//! A training run beside people who mean it harm: real processes, on loopback, with the 1,024 open files that a shell
//! gives.
//!
//! What each test shows was once otherwise: about a thousand silent connections ended a training process (`Too many
//! open files`), held places made a link undiallable and a live peer was evicted for it, a flood of TLS hellos slowed
//! votes down a hundredfold, one holder of the secret could exhaust the coordinator, and none of it was to be seen; one forged
//! resume dissolved a run, froze it or poisoned its term (`claims.rs`).
//!
//! All of it is bounded in number and in time. Nothing here waits for a moment: each waits for what the workers say.

mod cast;
mod claims;
mod holder;
mod strangers;

use cast::Stage;
use outlast_proto::limits::{QUESTIONS_BURST, QUESTIONS_BURST_ALL, RUNS_MAX, RUNS_PER_PEER_MAX};
use std::time::{Duration, Instant};
use strangers::{Crowd, Flood};

/// Steps that show that training goes on.
const STEPS: usize = 200;

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    cast::play();
}

#[test]
fn fifteen_hundred_silent_connections_end_nobodys_training() {
    let mut stage = Stage::new(3);
    let targets = stage.everybodys_ports();
    let crowd = Crowd::gather(&targets, 1_500);
    stage.everybody_steps(STEPS, 3);
    assert!(crowd.opened() >= targets.len() * 1_500, "the crowd came: {}", crowd.opened());
    for (who, files) in stage.open_files() {
        assert!(files < 512, "{who} has {files} open files");
    }
    let status = stage.status();
    assert!(status.contains("\"evictions\":0") && status.contains("too_many_handshakes"), "{status}");
    drop(crowd);
    stage.everybody_steps(STEPS, 3);
}

/// A newcomer is admitted, which needs new links to and from every port, while strangers hold all places there. A
/// link that cannot be dialled costs somebody its place (rule 16).
#[test]
fn links_are_dialled_though_strangers_hold_every_place() {
    let mut stage = Stage::new(2);
    let crowd = Crowd::gather(&stage.everybodys_ports(), 400);
    stage.everybody_steps(STEPS, 2);
    stage.enter();
    stage.everybody_steps(STEPS, 3);
    let status = stage.status();
    assert!(status.contains("\"evictions\":0") && status.contains("\"kicks\":0"), "{status}");
    drop(crowd);
}

/// How many times longer a step may take while hellos pour in. It was a hundred times, and is one to two, where the flood itself
/// keeps one of two processors busy.
const SLOWDOWN_MAX: f64 = 20.0;

#[test]
fn a_flood_of_hellos_slows_nobody_to_a_halt() {
    let mut stage = Stage::new(2);
    stage.everybody_steps(STEPS, 2);
    let calm = stage.median_step(STEPS);
    for (what, targets) in
        [("coordinator", vec![stage.coordinator()]), ("everybody", stage.everybodys_ports())]
    {
        let flood = Flood::start(&targets, 64);
        let hellos = flood.wait_for_hellos(500);
        let began = Instant::now();
        // A machine that others use may be slow for a while for another reason; hellos that slow a step down slow all of them.
        let medians: Vec<_> = (0..3).map(|_| stage.median_step(STEPS)).collect();
        let flooded = medians.into_iter().min().expect("three");
        let hellos_per_second = (flood.hellos() - hellos) as f64 / began.elapsed().as_secs_f64();
        drop(flood);
        let times = flooded.as_secs_f64() / calm.as_secs_f64();
        let report = format!(
            "hellos to {what}: {hellos_per_second:.0} per second; a step took {:.2} ms instead of {:.2} ms: {times:.1} times",
            flooded.as_secs_f64() * 1e3,
            calm.as_secs_f64() * 1e3,
        );
        println!("{report}");
        assert!(hellos_per_second > 0.0 && times <= SLOWDOWN_MAX, "{report}");
    }
    let status = stage.status();
    assert!(status.contains("\"evictions\":0") && status.contains("\"kicks\":0"), "{status}");
    stage.everybody_steps(STEPS, 2);
}

#[test]
fn a_name_that_paints_terminals_is_refused_by_coordinator_and_builder() {
    let mut stage = Stage::new(2);
    let hostile = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[31mp1\nrank 0 p9";
    let mut holder = stage.holder("default");
    holder.register(hostile, 99);
    let told = holder.hear().expect("it hears why");
    assert!(told.contains("name holds the character '\\u{1b}'") && !told.contains('\u{1b}'), "{told}");
    assert_eq!(holder.hear(), None, "the connection is closed");
    let status = stage.status();
    assert!(!status.contains("owned"), "{status}");
    let refused = stage.membership().name(hostile).start().expect_err("such a name is refused");
    assert!(refused.to_string().contains("name holds the character '\\u{1b}'"), "{refused}");
    stage.everybody_steps(STEPS, 2);
}

#[test]
fn one_holder_cannot_have_more_runs_than_there_are_places_for() {
    let mut stage = Stage::new(2);
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for number in 0..RUNS_MAX + 20 {
        let mut holder = stage.holder(&format!("run-{number}"));
        holder.register("r", 99);
        match holder.hear().expect("an answer").as_str() {
            "registered" => taken.push(holder),
            text => refused.push(text.to_owned()),
        }
    }
    // One place is the honest run's.
    assert_eq!((taken.len(), refused.len()), (RUNS_MAX - 1, 21));
    let text = &refused[0];
    assert!(text.contains("128 runs, which is its limit") && text.contains("another coordinator"), "{text}");
    stage.everybody_steps(STEPS, 2);
    drop(taken);
    // Empty runs give way.
    let deadline = Instant::now() + cast::PATIENCE;
    loop {
        let mut late = stage.holder("late");
        late.register("r", 99);
        if late.hear().as_deref() == Some("registered") {
            break;
        }
        assert!(Instant::now() < deadline, "a place becomes free");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn one_identity_is_refused_its_fifth_run_and_keeps_the_four_that_it_is_in() {
    let mut stage = Stage::new(2);
    let first = stage.holder("run-0");
    let in_run = |number: usize| {
        let mut holder = first.again_in(stage.secret(), &format!("run-{number}"));
        holder.register("everywhere", 99);
        let told = holder.hear().expect("an answer");
        (holder, told)
    };
    let (mut taken, told): (Vec<_>, Vec<_>) = (0..RUNS_PER_PEER_MAX).map(in_run).unzip();
    assert!(told.iter().all(|told| told == "registered"), "{told:?}");
    let (mut fifth, told) = in_run(RUNS_PER_PEER_MAX);
    assert!(
        told.contains("is in 4 runs, the limit is 4: leave one of them, or give every process"),
        "{told}"
    );
    assert_eq!(fifth.hear(), None, "the connection is closed");
    // Somebody else is let in there, and the four are untouched.
    let mut other = stage.holder("run-4");
    other.register("elsewhere", 99);
    assert_eq!(other.hear().as_deref(), Some("registered"));
    for (number, holder) in taken.iter_mut().enumerate() {
        holder.ask(1);
        let status = holder.hear().expect("an answer");
        assert!(status.contains("everywhere"), "run-{number}: {status}");
    }
    // Who leaves one has room for another. It is known there until its connection has been seen to end.
    drop(taken.pop());
    let deadline = Instant::now() + cast::PATIENCE;
    loop {
        let (holder, told) = in_run(RUNS_PER_PEER_MAX);
        if told == "registered" {
            drop(holder);
            break;
        }
        assert!(Instant::now() < deadline, "a place becomes free: {told}");
        std::thread::sleep(Duration::from_millis(50));
    }
    stage.everybody_steps(STEPS, 2);
}

/// No single one of them asks too often.
#[test]
fn questions_of_many_identities_together_are_limited_and_nobodys_training_waits_for_them() {
    let mut stage = Stage::new(2);
    // So many that the pace of all answers not half of them while they are read.
    let askers = 4 * QUESTIONS_BURST_ALL.div_ceil(QUESTIONS_BURST);
    let mut crowd: Vec<_> = (0..askers).map(|_| stage.holder("default")).collect();
    crowd.iter_mut().for_each(|holder| holder.ask(QUESTIONS_BURST as usize));
    let answers: Vec<_> =
        crowd.iter_mut().flat_map(|holder| holder.hear_statuses(QUESTIONS_BURST as usize)).collect();
    assert_eq!(answers.len(), (askers * QUESTIONS_BURST) as usize, "everybody hears something");
    let refused = |answer: &&String| answer.contains("more than 200 questions");
    let refusal = answers.iter().find(refused).expect("some are refused");
    assert!(refusal.contains("by all peers together") && refusal.contains("ask again in"), "{refusal}");
    let told = answers.iter().filter(|answer| answer.contains("\"world_size\":2")).count();
    assert!(told >= QUESTIONS_BURST_ALL as usize, "only {told} are answered");
    assert!(!answers.iter().any(|answer| answer.contains("by one peer")), "none of them asked too often");
    stage.everybody_steps(STEPS, 2);
}

#[test]
fn questions_and_connections_without_end_cost_the_one_who_asks() {
    let mut stage = Stage::new(2);
    // Without reading the answers: they must not pile up either.
    let mut holder = stage.holder("default");
    for _ in 0..20 {
        holder.ask(200);
        stage.everybody_steps(10, 2);
    }
    let answers = holder.hear_statuses(QUESTIONS_BURST as usize);
    let told = answers.iter().filter(|answer| answer.contains("\"world_size\":2")).count();
    assert!(told > 0, "some are answered: {answers:?}");
    let mut other = stage.holder("default");
    other.ask(60);
    let refusals = other.hear_statuses(60);
    let refusal = refusals.iter().find(|answer| answer.contains("{\"error\"")).expect("a refusal");
    assert!(refusal.contains("more than 20 questions") && refusal.contains("ask again in"), "{refusal}");
    // One identity on many connections.
    let first = stage.holder("elsewhere");
    let greedy: Vec<_> = (0..12).map(|_| first.again()).collect();
    let refused = greedy.into_iter().filter_map(|mut holder| {
        holder.register("greedy", 99);
        holder.hear()
    });
    let refused: Vec<_> = refused.filter(|text| text.contains("the limit is 8: close some")).collect();
    assert!(!refused.is_empty(), "connections are counted by identity");
    assert!(stage.status_of("elsewhere").contains("the limit is 8: close some"), "and the status tells");
    stage.everybody_steps(STEPS, 2);
}
