//! Each checker can fail: a liar in the world, and the checker that must find it out.

use outlast_proto::membership::{Config, ConnectOutcome, ConnectToken};
use outlast_proto::time::Instant;
use outlast_proto::wire::membership::Record;
use outlast_sim::nodes::{Candidate, Founding, MembershipNode, Sealed};
use outlast_sim::report::Report;
use outlast_sim::runner;
use outlast_sim::scenarios;
use outlast_sim::script::Script;
use outlast_sim::world::{Birth, Effect, HealthNode, HealthNotice, Lists, Node, Output, Sender, What};
use std::cell::Cell;
use std::collections::VecDeque;

/// What is wrong with a liar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    None,
    /// One unanswered probe is a death.
    DeclaresOnSilence,
    /// Deaths are kept to itself.
    ForgetsDeaths,
    /// Refutations and joins are not heard.
    IgnoresAlive,
    /// Incarnations fall.
    CountsBackwards,
    /// It does not list itself.
    DeniesItself,
    /// Everything is sent many times over.
    Floods,
    /// Nothing is ever forgotten.
    Hoards,
    /// It asks for timeouts in the past.
    Spins,
    /// Its packets have more records than a packet may.
    Overfills,
    /// It breaks down.
    Panics,
}

struct Liar {
    inner: MembershipNode,
    lie: Lie,
    extra: VecDeque<Output<Sealed, HealthNotice>>,
    hoard: usize,
    looked: Cell<u32>,
}

impl Liar {
    fn honest(inner: MembershipNode, lie: Lie) -> Self {
        Self { inner, lie, extra: VecDeque::new(), hoard: 0, looked: Cell::new(0) }
    }
}

impl Node for Liar {
    type Message = Sealed;
    type Notice = HealthNotice;

    fn handle_message(&mut self, now: Instant, from: Sender, mut message: Sealed) {
        self.hoard += 1;
        if self.lie == Lie::IgnoresAlive {
            message.packet.records.retain(|record| !matches!(record, Record::Alive { .. }));
        }
        self.inner.handle_message(now, from, message);
    }

    fn handle_connect(&mut self, now: Instant, token: ConnectToken, outcome: ConnectOutcome) {
        self.inner.handle_connect(now, token, outcome);
    }

    fn handle_leave(&mut self, now: Instant) {
        self.inner.handle_leave(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        assert!(self.lie != Lie::Panics, "the planted bug");
        self.inner.handle_timeout(now);
    }

    fn poll_output(&mut self) -> Option<Output<Sealed, HealthNotice>> {
        if let Some(extra) = self.extra.pop_front() {
            return Some(extra);
        }
        Some(match self.inner.poll_output()? {
            Output::Send { to, path, mut message } => {
                if self.lie == Lie::Overfills
                    && let Some(record) = message.packet.records.first().cloned()
                {
                    message.packet.records = vec![record; 65];
                }
                if self.lie == Lie::Floods {
                    let copy = || Output::Send { to, path, message: message.clone() };
                    self.extra.extend((0..12).map(|_| copy()));
                }
                Output::Send { to, path, message }
            }
            Output::Notice(HealthNotice { subject, what: What::Stalled | What::Suspected })
                if self.lie == Lie::DeclaresOnSilence =>
            {
                Output::Notice(HealthNotice { subject, what: What::Died(None) })
            }
            Output::Notice(HealthNotice { what: What::Died(_), subject })
                if self.lie == Lie::ForgetsDeaths =>
            {
                Output::Notice(HealthNotice { subject, what: What::Suspected })
            }
            other => other,
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.lie == Lie::Spins { Some(Instant::ORIGIN) } else { self.inner.poll_timeout() }
    }

    fn audit(message: &Sealed) -> Result<u64, String> {
        MembershipNode::audit(message)
    }
}

impl HealthNode for Liar {
    fn lists(&self) -> Lists {
        let mut lists = self.inner.lists();
        self.looked.set(self.looked.get() + 1);
        match self.lie {
            Lie::ForgetsDeaths => lists.failed.clear(),
            Lie::CountsBackwards => {
                let rows = lists.active.iter_mut();
                rows.for_each(|row| row.incarnation = 1_000_u32.saturating_sub(self.looked.get()));
            }
            Lie::DeniesItself => {
                let me = self.inner.machine().me().id;
                lists.active.retain(|row| row.member.peer_id() != me);
            }
            _ => {}
        }
        lists
    }

    fn footprint(&self) -> usize {
        let hoard = if self.lie == Lie::Hoards { self.hoard * 500 } else { 0 };
        self.inner.footprint() + hoard
    }
}

impl Candidate for Liar {
    const NAME: &'static str = "liar";

    fn recipe(config: &Config, founding: &Founding) -> Box<dyn FnMut(Birth) -> Self> {
        let mut recipe = MembershipNode::recipe(config, founding);
        Box::new(move |birth| Self::honest(recipe(birth), Lie::None))
    }
}

/// Plays a scenario in which everybody lies.
fn play(scenario: &str, lie: Lie) -> Report {
    let script = (scenarios::find(scenario).expect("a scenario of that name").script)(1);
    play_script(&script, lie)
}

fn play_script(script: &Script, lie: Lie) -> Report {
    let mut recipe = MembershipNode::recipe(&script.config, &script.founding);
    runner::run_with("planted", 1, script, false, move |birth| {
        // A whole group that is deaf to refutations would argue for ever; one such member is enough.
        let honest = lie == Lie::IgnoresAlive && birth.identity.host.0 != 0;
        Liar::honest(recipe(birth), if honest { Lie::None } else { lie })
    })
}

#[track_caller]
fn assert_found(report: &Report, checker: &str) {
    let found = report.violations.iter().any(|violation| violation.checker == checker);
    assert!(found, "{checker} saw nothing wrong: {report}");
    assert!(report.to_string().contains("make sim SCENARIO=planted SEED=1"), "{report}");
}

#[test]
fn without_a_lie_nothing_is_found() {
    for scenario in ["kill", "stall", "cut-off", "calm"] {
        let report = play(scenario, Lie::None);
        assert!(report.passed(), "{report}");
    }
}

#[test]
fn no_false_death_finds_who_declares_on_silence() {
    assert_found(&play("stall", Lie::DeclaresOnSilence), "no_false_death");
}

#[test]
fn expectations_find_a_death_that_was_not_to_be_and_one_that_never_came() {
    assert_found(&play("stall", Lie::DeclaresOnSilence), "expectations");
    assert_found(&play("kill", Lie::ForgetsDeaths), "expectations");
}

#[test]
fn death_known_to_all_finds_who_keeps_a_death_to_itself() {
    assert_found(&play("kill", Lie::ForgetsDeaths), "death_known_to_all");
}

#[test]
fn convergence_finds_who_does_not_hear_refutations() {
    assert_found(&play("cut-off", Lie::IgnoresAlive), "convergence");
}

#[test]
fn incarnation_monotonic_finds_who_counts_backwards() {
    assert_found(&play("kill", Lie::CountsBackwards), "incarnation_monotonic");
}

#[test]
fn self_consistency_finds_who_denies_itself() {
    assert_found(&play("kill", Lie::DeniesItself), "self_consistency");
}

#[test]
fn bounded_packets_finds_a_flood() {
    assert_found(&play("kill", Lie::Floods), "bounded_packets");
}

#[test]
fn bounded_memory_finds_a_hoard() {
    assert_found(&play("calm", Lie::Hoards), "bounded_memory");
}

#[test]
fn driver_contract_finds_a_spinning_timer_and_an_overfull_packet() {
    assert_found(&play("kill", Lie::Spins), "driver_contract");
    assert_found(&play("kill", Lie::Overfills), "driver_contract");
}

#[test]
fn a_panic_is_a_finding_with_a_replay_command() {
    assert_found(&play("kill", Lie::Panics), "no_panic");
}

#[test]
fn faults_fired_finds_a_fault_that_left_no_mark() {
    let script = Script::quiet(3).safety_secs(2).fires(&[Effect::LostByChance]);
    assert_found(&play_script(&script, Lie::None), "faults_fired");
}
