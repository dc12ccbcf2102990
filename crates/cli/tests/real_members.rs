//! Groups of real processes: joining, dying, leaving, coming back.

mod common;

use common::{Member, SECOND, group, new_secret};
use outlast::membership::Preset;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// The product's promise: a SIGKILL is known to all of eight within a second (preset lan).
#[test]
fn a_killed_member_is_known_to_all_within_a_second() {
    let mut members = group(8, &new_secret(), &["--preset", "lan"]);
    // Three deaths, so that not one lucky moment decides.
    for _ in 0..3 {
        let victim = members.pop().unwrap();
        let marks: Vec<_> = members.iter().map(Member::mark).collect();
        let killed = Instant::now();
        victim.signal(Signal::KILL);
        let mut slowest = Duration::ZERO;
        for (member, mark) in members.iter().zip(&marks) {
            let died =
                member.wait_for("the death", 10 * SECOND, *mark, |line| line.is_about("died", &victim.id));
            assert_eq!(died.json["reason"], "refused", "{}", died.json);
            assert_eq!(died.json["active"], members.len());
            slowest = slowest.max(died.at - killed);
        }
        println!("kill to last event, {} members: {} ms", members.len(), slowest.as_millis());
        assert!(slowest < SECOND, "{slowest:?}");
        for (member, mark) in members.iter().zip(&marks) {
            let others = member.since(*mark).into_iter().filter(|line| line.is("died")).count();
            assert_eq!(others, 1, "{} saw more deaths than happened", member.name);
        }
    }
}

#[test]
fn any_member_is_a_way_in() {
    let secret = new_secret();
    let mut chain = vec![Member::start("a", &secret, &["--preset", "local", "--meta", "gpu=8"])];
    for name in ["b", "c", "d"] {
        let seed = chain.last().unwrap().address.to_string();
        chain.push(Member::start(name, &secret, &["--preset", "local", "--join", &seed]));
    }
    for member in &chain {
        member.wait_settled(4, 10 * SECOND);
    }
    let row = chain[3].status()["members"].as_array().unwrap().iter().find(|row| row["name"] == "a").cloned();
    assert_eq!(row.expect("a is in d's list")["meta"], "gpu=8");
}

#[test]
fn a_member_that_starts_before_its_seed_joins_when_the_seed_appears() {
    let secret = new_secret();
    let seed = Member::start("seed", &secret, &["--preset", "local"]);
    let address = seed.address.to_string();
    drop(seed);
    let early = Member::start("early", &secret, &["--preset", "local", "--join", &address]);
    let late = Member::start("late", &secret, &["--preset", "local", "--listen", &address]);
    early.wait_settled(2, 10 * SECOND);
    late.wait_settled(2, 10 * SECOND);
}

#[test]
fn a_goodbye_is_no_death() {
    let mut members = group(5, &new_secret(), &["--preset", "local"]);
    for signal in [Signal::TERM, Signal::INT] {
        let mut leaver = members.pop().unwrap();
        let marks: Vec<_> = members.iter().map(Member::mark).collect();
        leaver.signal(signal);
        assert!(leaver.wait_exit(5 * SECOND).success());
        // Its last line may still be on its way to us.
        leaver.wait_for("its last word", 5 * SECOND, 0, |line| line.is("stopped"));
        for (member, mark) in members.iter().zip(&marks) {
            member.wait_for("the goodbye", 5 * SECOND, *mark, |line| line.is_about("left", &leaver.id));
        }
        // What must not happen cannot be waited for. Had anybody begun to suspect it, that would show within twice the
        // suspicion time of the preset.
        std::thread::sleep(2 * Preset::Local.times().suspicion_min);
        for (member, mark) in members.iter().zip(&marks) {
            assert_eq!(member.health_of(&leaver.id), "left");
            member.assert_never(&["died", "suspected", "stalled"], *mark);
        }
    }
}

#[test]
fn a_killed_member_comes_back_as_a_new_process_on_the_same_port() {
    let secret = new_secret();
    let mut members = group(4, &secret, &["--preset", "local"]);
    let victim = members.pop().unwrap();
    let (address, seed) = (victim.address.to_string(), members[0].address.to_string());
    let marks: Vec<_> = members.iter().map(Member::mark).collect();
    victim.signal(Signal::KILL);
    for (member, mark) in members.iter().zip(&marks) {
        member.wait_for("the death", 5 * SECOND, *mark, |line| line.is_about("died", &victim.id));
    }
    let back = Member::start("back", &secret, &["--preset", "local", "--listen", &address, "--join", &seed]);
    assert_ne!(back.id, victim.id);
    for (member, mark) in members.iter().zip(&marks) {
        member.wait_for("the newcomer", 5 * SECOND, *mark, |line| line.is_about("joined", &back.id));
        member.wait_settled(4, 10 * SECOND);
        assert_eq!(member.health_of(&victim.id), "dead");
    }
    back.wait_settled(4, 10 * SECOND);
}

/// The replacement is there before anybody has noticed the death: its port accepts connects again, and still
/// the old process must be found dead and the new one must not be blamed. The old one was taken for stalled once, because
/// its address answered, until the stall budget ended; that is far longer here than anybody waits (rule 45).
#[test]
fn a_process_that_is_replaced_at_once_on_its_port_dies_and_its_successor_lives() {
    let secret = new_secret();
    let mut members = group(4, &secret, &["--preset", "local", "--stall-budget", "60s"]);
    let victim = members.pop().unwrap();
    let (address, seed) = (victim.address.to_string(), members[0].address.to_string());
    let marks: Vec<_> = members.iter().map(Member::mark).collect();
    let old = victim.id.clone();
    drop(victim);
    let options = ["--preset", "local", "--stall-budget", "60s", "--listen", &address, "--join", &seed];
    let back = Member::start("back", &secret, &options);
    for (member, mark) in members.iter().zip(&marks) {
        member.wait_for("the newcomer", 5 * SECOND, *mark, |line| line.is_about("joined", &back.id));
        member.wait_for("the death", 15 * SECOND, *mark, |line| line.is_about("died", &old));
        member.wait_settled(4, 10 * SECOND);
        let wrong = member.since(*mark).into_iter().find(|line| line.is_about("died", &back.id));
        assert!(wrong.is_none(), "{wrong:?}");
    }
}

#[test]
fn a_stranger_with_another_secret_or_of_another_run_changes_nothing() {
    let secret = new_secret();
    let members = group(3, &secret, &["--preset", "local"]);
    let marks: Vec<_> = members.iter().map(Member::mark).collect();
    let refused = |member: &Member| member.status()["counters"]["refused"].as_u64().unwrap();
    let before = refused(&members[0]);
    let seed = members[0].address.to_string();
    let stranger = Member::start("stranger", &new_secret(), &["--preset", "local", "--join", &seed]);
    let other_run =
        Member::start("other", &secret, &["--preset", "local", "--join", &seed, "--run-id", "another"]);
    let deadline = Instant::now() + 10 * SECOND;
    while refused(&members[0]) < before + 10 {
        assert!(Instant::now() < deadline, "the strangers' datagrams were not even refused");
    }
    for (member, mark) in members.iter().zip(&marks) {
        member.assert_never(&["joined", "died", "left", "suspected", "stalled"], *mark);
        assert_eq!(member.status()["active"], 3);
    }
    for outsider in [&stranger, &other_run] {
        assert_eq!(outsider.status()["active"], 1);
    }
}
