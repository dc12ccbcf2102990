//! Processes that do not run for a while: stopped, or starved of the processor. None of them is dead.

mod common;

use common::{Member, SECOND, Saturation, group, new_secret};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Stops one of eight for `pause`: everybody says *stalled*, nobody says *dead*, and all is well afterwards.
fn stop_one(pause: Duration, options: &[&str]) {
    let members = group(8, &new_secret(), options);
    let (stopped, others) = members.split_last().unwrap();
    let marks: Vec<_> = members.iter().map(Member::mark).collect();
    let since = Instant::now();
    stopped.signal(Signal::STOP);
    for (member, mark) in others.iter().zip(&marks) {
        let line =
            member.wait_for("the stall", 4 * SECOND, *mark, |line| line.is_about("stalled", &stopped.id));
        println!("{} saw the stall after {} ms", member.name, (line.at - since).as_millis());
    }
    std::thread::sleep(pause.saturating_sub(since.elapsed()));
    for member in others {
        assert_eq!(member.health_of(&stopped.id), "stalled");
    }
    let resumed = Instant::now();
    stopped.signal(Signal::CONT);
    for (member, mark) in others.iter().zip(&marks) {
        let line = member
            .wait_for("the recovery", 5 * SECOND, *mark, |line| line.is_about("recovered", &stopped.id));
        println!("{} saw the recovery after {} ms", member.name, (line.at - resumed).as_millis());
    }
    for (member, mark) in members.iter().zip(&marks) {
        member.wait_settled(8, 10 * SECOND);
        member.assert_never(&["died", "left", "rejoined"], *mark);
    }
    // It slept through everything and must not have blamed anybody for it.
    stopped.assert_never(&["suspected", "stalled"], *marks.last().unwrap());
}

/// Saturates every core for `time` with twice as many busy loops as there are cores.
fn saturate(time: Duration, options: &[&str]) {
    let members = group(8, &new_secret(), options);
    let marks: Vec<_> = members.iter().map(Member::mark).collect();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let saturation = Saturation::start(2 * cores);
    std::thread::sleep(time);
    drop(saturation);
    for (member, mark) in members.iter().zip(&marks) {
        member.assert_never(&["died", "left", "rejoined"], *mark);
        member.wait_settled(8, 10 * SECOND);
        let lateness = member.status()["counters"]["lateness_ms_max"].as_f64().unwrap();
        println!("{}: its latest timer was {lateness:.0} ms late", member.name);
    }
}

#[test]
fn five_seconds_of_sigstop_are_a_stall_and_no_death() {
    stop_one(5 * SECOND, &["--preset", "lan"]);
}

#[test]
fn saturated_cores_kill_nobody() {
    saturate(8 * SECOND, &["--preset", "lan"]);
}

#[test]
fn a_stall_beyond_its_budget_is_a_death_and_the_process_comes_back_by_itself() {
    let options = ["--preset", "local", "--stall-budget", "2s", "--dead-after", "2s"];
    let members = group(4, &new_secret(), &options);
    let (stopped, others) = members.split_last().unwrap();
    let marks: Vec<_> = members.iter().map(Member::mark).collect();
    let stopped_at = Instant::now();
    stopped.signal(Signal::STOP);
    for (member, mark) in others.iter().zip(&marks) {
        let died = member
            .wait_for("the end of patience", 10 * SECOND, *mark, |line| line.is_about("died", &stopped.id));
        assert_eq!(died.json["reason"], "stalled_too_long", "{}", died.json);
    }
    stopped.signal(Signal::CONT);
    // It hears that it was out, why and since when.
    let mark = *marks.last().unwrap();
    let told = stopped.wait_for("that it was out", 15 * SECOND, mark, |line| line.is("rejoined"));
    assert_eq!(told.json["reason"], "stalled_too_long", "{}", told.json);
    assert!(told.json["reason_text"].as_str().is_some_and(|text| !text.is_empty()), "{}", told.json);
    assert!(told.json["incarnation"].as_u64().is_some_and(|incarnation| incarnation > 0), "{}", told.json);
    let out = Duration::from_secs_f64(told.json["out_seconds"].as_f64().expect("since when"));
    // What it is told may have waited in its socket while it was stopped, and was true when it was sent. So this is a lower bound.
    assert!(out <= told.at.saturating_duration_since(stopped_at), "{out:?}");
    for (member, mark) in others.iter().zip(&marks) {
        member.wait_for("its return", 15 * SECOND, *mark, |line| line.is_about("joined", &stopped.id));
        member.wait_settled(4, 10 * SECOND);
    }
    let status = others[0].status();
    let row = status["members"].as_array().unwrap().iter().find(|row| row["id"] == stopped.id.as_str());
    assert!(row.unwrap()["incarnation"].as_u64().unwrap() > 0, "it came back under its old incarnation");
    stopped.assert_never(&["died"], *marks.last().unwrap());
}

#[test]
#[ignore = "minutes long: make soak"]
fn sixty_seconds_of_sigstop_with_a_raised_budget() {
    stop_one(60 * SECOND, &["--preset", "lan", "--stall-budget", "90s"]);
}

#[test]
#[ignore = "minutes long: make soak"]
fn sixty_seconds_of_saturated_cores() {
    saturate(60 * SECOND, &["--preset", "lan"]);
}
