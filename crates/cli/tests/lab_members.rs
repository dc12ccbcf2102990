//! Membership on hosts of a lab: real processes, real networks, cut, healed and lied about.
//!
//! Needs root; says SKIPPED otherwise. Each fault is asserted to have fired before its outcome is judged.

mod common;

use common::{Member, SECOND};
use outlast_lab::{Lab, LabError, Refusal};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// What `lan` allows for: `dead_after`, and as much again for a busy machine.
const DEAD_AFTER_MAX: Duration = Duration::from_secs(20);
/// After a heal everybody finds everybody again by themselves.
const REUNION_MAX: Duration = Duration::from_secs(20);

struct Group {
    lab: Lab,
    members: Vec<Member>,
}

/// A member on each of the hosts `a`, `b`, ..; all settled.
fn group(label: &str, size: usize, options: &[&str]) -> Option<Group> {
    let names: Vec<String> = (0..size).map(|number| char::from(b'a' + number as u8).to_string()).collect();
    let lab = match Lab::new(label, names.clone()) {
        Err(LabError::NotRoot) => {
            eprintln!("SKIPPED {label}: the lab needs root");
            return None;
        }
        lab => lab.expect("a lab"),
    };
    let secret = common::new_secret();
    let seed = format!("{}:7000", lab.host("a").expect("a host").address());
    let members: Vec<_> = names
        .iter()
        .map(|name| {
            let host = lab.host(name).expect("a host");
            let listen = format!("{}:7000", host.address());
            let mut all = vec!["--listen", listen.as_str(), "--join", seed.as_str()];
            all.extend(options);
            Member::start_by(host.command(env!("CARGO_BIN_EXE_outlast")), name, &secret, &all)
        })
        .collect();
    for member in &members {
        member.wait_settled(size, 30 * SECOND);
    }
    Some(Group { lab, members })
}

impl Group {
    fn marks(&self) -> Vec<usize> {
        self.members.iter().map(Member::mark).collect()
    }

    /// All but the last member.
    fn others(&self) -> &[Member] {
        &self.members[..self.members.len() - 1]
    }

    fn last(&self) -> &Member {
        &self.members[self.members.len() - 1]
    }

    fn wait_settled(&self) {
        for member in &self.members {
            member.wait_settled(self.members.len(), REUNION_MAX);
        }
    }

    /// Packets that links to and from the last host lost by that cause.
    fn lost(&self, count: impl Fn(&outlast_lab::LinkCounters) -> u64) -> u64 {
        let last = self.last().name.clone();
        let pairs = self.others().iter().flat_map(|other| [(&other.name, &last), (&last, &other.name)]);
        pairs.map(|(from, to)| count(&self.lab.counters(from, to).expect("counters"))).sum()
    }
}

#[test]
fn a_cut_host_is_dead_in_time_and_back_by_itself() {
    let Some(group) = group("cut", 5, &[]) else { return };
    let marks = group.marks();
    let began = Instant::now();
    group.lab.isolate("e").expect("a cut");
    let mut slowest = Duration::ZERO;
    for (member, mark) in group.others().iter().zip(&marks) {
        let died = member.wait_for("the death of e", DEAD_AFTER_MAX, *mark, |line| {
            line.is_about("died", &group.last().id)
        });
        slowest = slowest.max(died.at - began);
    }
    println!("a cut host was known to be dead by all after {slowest:?}");
    assert!(group.lost(|counters| counters.cut) > 0, "the cut cut nothing");
    // The other side of the cut is patient: it may be itself that is cut off (rule 21).
    for other in group.others() {
        let died = group.last().wait_for("the others as failed", 2 * DEAD_AFTER_MAX, marks[4], |line| {
            line.is_about("died", &other.id)
        });
        assert!(died.at - began >= 9 * SECOND, "{:?} is before dead_after", died.at - began);
    }
    for (member, mark) in group.others().iter().zip(&marks) {
        let wrong = member
            .since(*mark)
            .into_iter()
            .find(|line| line.is("died") && line.json["member"]["id"] != group.last().id.as_str());
        assert!(wrong.is_none(), "{} saw another death: {wrong:?}", member.name);
    }
    group.lab.heal_all().expect("a heal");
    group.wait_settled();
}

#[test]
fn a_pair_that_cannot_talk_one_way_blames_nobody() {
    let Some(group) = group("pair", 5, &[]) else { return };
    let marks = group.marks();
    group.lab.cut("a", "e").expect("a cut");
    // Long enough that a silence would have been a death several times over.
    let watch = Instant::now() + 12 * SECOND;
    while Instant::now() < watch {
        for member in &group.members {
            member.status();
        }
    }
    assert!(group.lab.counters("a", "e").expect("counters").cut > 0, "the cut cut nothing");
    for (member, mark) in group.members.iter().zip(&marks) {
        member.assert_never(&["died", "left"], *mark);
    }
}

#[test]
fn a_host_that_talks_and_cannot_hear_gets_one_consistent_decision() {
    let Some(group) = group("deaf", 5, &[]) else { return };
    let marks = group.marks();
    group.lab.set_cuts(None, Some("e"), false, true).expect("a one-way cut");
    for (member, mark) in group.others().iter().zip(&marks) {
        member.wait_for("the death of e", 2 * DEAD_AFTER_MAX, *mark, |line| {
            line.is_about("died", &group.last().id)
        });
    }
    for other in group.others() {
        group.last().wait_for("the others as failed", 2 * DEAD_AFTER_MAX, marks[4], |line| {
            line.is_about("died", &other.id)
        });
    }
    group.lab.heal_all().expect("a heal");
    group.wait_settled();
}

#[test]
fn a_firewall_that_rejects_for_a_while_kills_nobody() {
    let Some(group) = group("reject", 5, &[]) else { return };
    let marks = group.marks();
    group.lab.reject("e", Some(Refusal::everything())).expect("a firewall");
    let until = Instant::now() + 5 * SECOND;
    while Instant::now() < until {
        group.last().status();
    }
    group.lab.reject("e", None).expect("no firewall");
    assert!(group.lost(|counters| counters.refused) > 0, "the firewall refused nothing");
    group.wait_settled();
    for (member, mark) in group.members.iter().zip(&marks) {
        member.assert_never(&["died", "left"], *mark);
    }
}

#[test]
fn where_udp_is_blocked_members_live_on_streams_and_the_killed_still_die() {
    let Some(group) = group("noudp", 4, &[]) else { return };
    let marks = group.marks();
    group.lab.block_udp("d", true).expect("no UDP");
    let watch = Instant::now() + 12 * SECOND;
    while Instant::now() < watch {
        for member in &group.members {
            member.status();
        }
    }
    assert!(group.lost(|counters| counters.udp_blocked) > 0, "nothing was blocked");
    for (member, mark) in group.members.iter().zip(&marks) {
        member.assert_never(&["died", "left"], *mark);
    }
    group.last().signal(Signal::KILL);
    for member in group.others() {
        member.wait_for("the death of d", DEAD_AFTER_MAX, 0, |line| line.is_about("died", &group.last().id));
    }
}
