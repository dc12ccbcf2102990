//! One machine among scripted peers: each rule with the smallest group that shows it.
//!
//! Whole groups under faults run in `sim`. Here one real machine is surrounded by peers that do exactly what
//! a test says: answer or not, with a kernel that accepts, refuses or is silent.

mod standing;

use super::*;
use crate::id::PeerId;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::wire::membership::{Body, DeathReason, MemberInfo, Packet, Record, SignOfLife, Silence};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a scripted peer does.
#[derive(Clone, Copy, Debug)]
struct Script {
    answers: bool,
    answers_streams: bool,
    answers_relays: bool,
    port: ConnectOutcome,
    closed: ConnectOutcome,
}

const LIVE: Script = Script {
    answers: true,
    answers_streams: true,
    answers_relays: true,
    port: ConnectOutcome::Accepted,
    closed: ConnectOutcome::Refused,
};
const STOPPED: Script = Script { answers: false, answers_streams: false, answers_relays: false, ..LIVE };
const KILLED: Script = Script { port: ConnectOutcome::Refused, ..STOPPED };
const CUT: Script = Script { port: ConnectOutcome::Silent, closed: ConnectOutcome::Silent, ..STOPPED };
const UDP_BLOCKED: Script = Script { answers_streams: true, ..STOPPED };

enum Due {
    Packet(u8, Path, Packet),
    Connect(ConnectToken, ConnectOutcome),
}

struct Stage {
    machine: Membership,
    scripts: BTreeMap<u8, Script>,
    now: Instant,
    due: BTreeMap<(Instant, u64), Due>,
    serial: u64,
    events: Vec<(Instant, Event)>,
    sent: Vec<(Instant, SocketAddr, Path, Packet)>,
}

fn peer(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

fn info(number: u8) -> Arc<MemberInfo> {
    Arc::new(MemberInfo {
        id: peer(number),
        address: ([10, 0, 0, number], 7_000).into(),
        closed_port: 7_001,
        name: format!("p{number}"),
        meta: Vec::new(),
    })
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Stage {
    /// The machine under test is number 0; `peers` others are alive and known, their kernels tried.
    fn new(peers: u8) -> Self {
        let now = Instant::ORIGIN + ms(1_000);
        let config = Config::preset(Preset::Lan);
        let mut machine = Membership::new(now, config, (*info(0)).clone(), Rng::from_seed(7));
        let members: Vec<_> = (1..=peers).map(info).collect();
        machine.seed_table(&members);
        let scripts = (1..=peers).map(|number| (number, LIVE)).collect();
        Self { machine, scripts, now, due: BTreeMap::new(), serial: 0, events: vec![], sent: vec![] }
    }

    fn script(&mut self, number: u8, script: Script) {
        self.scripts.insert(number, script);
    }

    fn later(&mut self, after: Duration, due: Due) {
        self.serial += 1;
        self.due.insert((self.now + after, self.serial), due);
    }

    /// A packet from a scripted peer arrives.
    fn say(&mut self, from: u8, body: Option<Body>, records: Vec<Record>) {
        self.deliver(from, Path::Datagram, Packet { body, records });
    }

    fn deliver(&mut self, from: u8, path: Path, packet: Packet) {
        let source = Source { id: peer(from), address: info(from).address, path };
        self.machine.handle_packet(self.now, source, packet);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Notify(event) => self.events.push((self.now, event)),
                Action::Connect { token, to, timeout } => {
                    let script = self.scripts[&number_of(to)];
                    let outcome = if to.port() == 7_001 { script.closed } else { script.port };
                    let after = if outcome == ConnectOutcome::Silent { timeout } else { ms(1) };
                    self.later(after, Due::Connect(token, outcome));
                }
                Action::Send { to, path, packet, .. } => {
                    self.sent.push((self.now, to, path, packet.clone()));
                    self.respond(number_of(to), path, packet.body.as_ref());
                }
            }
        }
    }

    fn respond(&mut self, to: u8, path: Path, body: Option<&Body>) {
        let Some(script) = self.scripts.get(&to).copied() else { return };
        let reachable = if path == Path::Stream { script.answers_streams } else { script.answers };
        let body = match body {
            Some(Body::Ping { probe, .. }) if reachable => Body::Ack { probe: *probe },
            Some(Body::PingReq { probe, target }) if reachable => {
                let target = self.scripts.get(&target.as_bytes()[0]);
                Body::IndirectAck {
                    probe: *probe,
                    answered: target.is_some_and(|target| target.answers_relays),
                }
            }
            _ => return,
        };
        self.later(ms(1), Due::Packet(to, path, Packet { body: Some(body), records: vec![] }));
    }

    fn run(&mut self, length: Duration) {
        let end = self.now + length;
        loop {
            let due = self.due.first_key_value().map(|((at, _), _)| *at);
            let timer = self.machine.poll_timeout();
            let Some(next) = due.into_iter().chain(timer).min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            // Everything that arrived is handed in before the timers run, as the driver does it.
            while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= self.now) {
                match entry.remove() {
                    Due::Packet(from, path, packet) => self.deliver(from, path, packet),
                    Due::Connect(token, outcome) => self.machine.handle_connect(self.now, token, outcome),
                }
                self.carry_out();
            }
            self.machine.handle_timeout(self.now);
            self.carry_out();
        }
        self.now = end;
    }

    /// The machine does not run for a while, as if stopped; what arrives meanwhile waits.
    fn freeze(&mut self, length: Duration) {
        self.now += length;
    }

    fn about(&self, number: u8) -> Vec<Event> {
        let is = |event: &Event| event.about().is_some_and(|info| info.id == peer(number));
        self.events.iter().map(|(_, event)| event).filter(|event| is(event)).cloned().collect()
    }

    fn death(&self, number: u8) -> Option<(Instant, DeathReason)> {
        self.events.iter().find_map(|(at, event)| match event {
            Event::Died { info, reason, .. } if info.id == peer(number) => Some((*at, *reason)),
            _ => None,
        })
    }

    fn died(&self, number: u8) -> Option<DeathReason> {
        self.death(number).map(|(_, reason)| reason)
    }

    fn health(&self, number: u8) -> &'static str {
        let members = self.machine.active(self.now);
        let failed = self.machine.failed();
        let found = members.iter().chain(&failed).find(|member| member.info.id == peer(number));
        found.map_or("unknown", |member| member.health.word())
    }

    fn accuse(&mut self, member: u8, accuser: u8, kind: Silence) {
        self.accuse_late(member, accuser, kind, 0);
    }

    /// An accusation that was `age_ms` on its way.
    fn accuse_late(&mut self, member: u8, accuser: u8, kind: Silence, age_ms: u32) {
        let (member, by) = (peer(member), peer(accuser));
        let record = Record::Suspect { member, incarnation: 0, accuser: by, kind, age_ms };
        self.say(accuser, None, vec![record]);
    }
}

fn number_of(address: SocketAddr) -> u8 {
    match address {
        SocketAddr::V4(address) => address.ip().octets()[3],
        SocketAddr::V6(_) => unreachable!("the stage is IPv4"),
    }
}

#[test]
fn a_ping_is_answered_with_an_ack_on_the_way_it_came() {
    let mut stage = Stage::new(1);
    for path in [Path::Datagram, Path::Stream] {
        let body = Some(Body::Ping { probe: 9, wants_table: false });
        stage.deliver(1, path, Packet { body, records: vec![] });
        let (_, to, by, packet) = stage.sent.last().unwrap();
        assert_eq!((*to, *by, &packet.body), (info(1).address, path, &Some(Body::Ack { probe: 9 })));
    }
}

#[test]
fn a_quiet_group_sends_three_pings_in_two_intervals_and_doubts_nobody() {
    let mut stage = Stage::new(7);
    stage.run(ms(20_000));
    assert!(stage.events.is_empty(), "{:?}", stage.events);
    let rate = stage.sent.len() as f64 / 20.0;
    assert!((6.5..=8.0).contains(&rate), "{rate} packets per second");
    assert!(stage.machine.backlog() < 5);
}

/// How often a member was pinged.
fn pings(stage: &Stage, member: u8) -> usize {
    let is_ping = |packet: &Packet| matches!(packet.body, Some(Body::Ping { .. }));
    stage.sent.iter().filter(|(_, to, _, packet)| *to == info(member).address && is_ping(packet)).count()
}

#[test]
fn a_small_group_asks_the_neighbour_every_second_interval_and_a_large_one_every_fourth() {
    let asked = |others| {
        let mut stage = Stage::new(others);
        stage.run(ms(4_000));
        pings(&stage, 1)
    };
    assert!(asked(16) >= 10, "{}", asked(16));
    assert!((5..=7).contains(&asked(17)), "{}", asked(17));
}

#[test]
fn in_a_large_group_the_turns_of_the_neighbour_cost_no_packets() {
    let mut stage = Stage::new(20);
    stage.run(ms(20_000));
    let rate = stage.sent.len() as f64 / 20.0;
    assert!((4.5..=6.0).contains(&rate), "{rate} packets per second");
}

#[test]
fn the_neighbour_of_a_stalled_member_is_watched_meanwhile() {
    let mut stage = Stage::new(17);
    stage.script(1, STOPPED);
    stage.run(ms(2_000));
    assert_eq!(stage.health(1), "stalled");
    let before = pings(&stage, 2);
    stage.run(ms(4_000));
    assert!(pings(&stage, 2) - before >= 5, "{}", pings(&stage, 2) - before);
}

#[test]
fn refusals_of_two_members_are_a_death_and_one_is_not() {
    let mut stage = Stage::new(7);
    stage.script(1, KILLED);
    stage.run(ms(3_000));
    assert_eq!(stage.health(1), "suspect", "nobody else has testified: {:?}", stage.events);
    stage.accuse(1, 2, Silence::Refused);
    stage.run(ms(150));
    assert_eq!(stage.died(1), Some(DeathReason::Refused));
}

#[test]
fn two_alone_take_a_second_refusal_of_their_own() {
    let mut stage = Stage::new(1);
    stage.script(1, KILLED);
    stage.run(ms(1_000));
    assert_eq!(stage.died(1), Some(DeathReason::Refused));
}

#[test]
fn a_message_after_the_refusal_cancels_it() {
    // A firewall rejects what goes in; what the member sends still comes out (rule 20b).
    let mut stage = Stage::new(7);
    stage.script(1, KILLED);
    for _ in 0..40 {
        stage.run(ms(200));
        stage.say(1, None, vec![]);
        stage.accuse(1, 2, Silence::Refused);
    }
    assert_eq!(stage.died(1), None, "{:?}", stage.events);
    stage.script(1, LIVE);
    stage.run(ms(2_000));
    assert_eq!(stage.health(1), "alive");
}

#[test]
fn who_talks_but_never_hears_is_dead_after_dead_after() {
    let mut stage = Stage::new(7);
    stage.script(1, CUT);
    let start = stage.now;
    for _ in 0..80 {
        stage.run(ms(200));
        stage.say(1, None, vec![]);
    }
    let (at, reason) = stage.death(1).unwrap();
    assert_eq!(reason, DeathReason::Deaf);
    assert!(at.since(start) >= stage.machine.config().dead_after, "{:?}", at.since(start));
}

#[test]
fn silence_needs_three_accusers_and_the_suspicion_time() {
    let mut stage = Stage::new(7);
    stage.script(1, CUT);
    stage.run(ms(4_000));
    assert_eq!(stage.health(1), "suspect");
    stage.accuse(1, 2, Silence::Silent);
    stage.run(ms(50));
    assert_eq!(stage.died(1), None, "two accusers are not three");
    stage.accuse(1, 3, Silence::Silent);
    stage.run(ms(50));
    assert_eq!(stage.died(1), Some(DeathReason::Silent));
}

#[test]
fn more_accusers_than_are_kept_do_not_postpone_the_verdict() {
    let mut stage = Stage::new(30);
    stage.script(1, CUT);
    // Each new voice used to drive out an older one, so that none was ever old enough.
    for accuser in (2..=30).cycle().take(1_000) {
        stage.accuse(1, accuser, Silence::Silent);
        stage.run(ms(4));
    }
    assert_eq!(stage.died(1), Some(DeathReason::Silent));
}

#[test]
fn uncorroborated_silence_is_a_death_only_after_dead_after() {
    let mut stage = Stage::new(7);
    stage.script(1, CUT);
    let start = stage.now;
    stage.run(ms(14_000));
    let (at, reason) = stage.death(1).unwrap();
    assert_eq!(reason, DeathReason::SilentTooLong);
    assert!(at.since(start) >= ms(10_000));
}

#[test]
fn two_alone_wait_for_dead_after() {
    let mut stage = Stage::new(1);
    stage.script(1, CUT);
    stage.run(ms(9_000));
    assert_eq!(stage.health(1), "suspect");
    stage.run(ms(3_000));
    assert_eq!(stage.died(1), Some(DeathReason::SilentTooLong));
}

#[test]
fn with_more_silent_than_answering_members_we_suspect_ourselves() {
    let mut stage = Stage::new(7);
    (1..=6).for_each(|number| stage.script(number, CUT));
    for _ in 0..40 {
        stage.run(ms(200));
        // The one other member on our side testifies as much as it likes.
        (1..=6).for_each(|number| stage.accuse(number, 7, Silence::Silent));
    }
    assert!((1..=6).all(|number| stage.died(number).is_none()), "{:?}", stage.events);
    stage.run(ms(9_000));
    assert!((1..=6).all(|number| stage.died(number).is_some()), "{:?}", stage.events);
}

#[test]
fn a_majority_that_is_found_silent_slowly_makes_us_suspect_ourselves_too() {
    // Probes come one at a time, so a second after the first silence most of a silent majority is still
    // unprobed, and what was found first is no longer recent. Nobody may die of that before dead_after.
    let mut stage = Stage::new(15);
    (1..=12).for_each(|number| stage.script(number, CUT));
    let start = stage.now;
    for step in 0..40 {
        stage.run(ms(200));
        let member = 1 + step % 12;
        (13..=15).for_each(|accuser| stage.accuse(member, accuser, Silence::Silent));
    }
    let dead: Vec<_> = (1..=12).filter_map(|number| stage.death(number)).collect();
    assert!(dead.iter().all(|(at, _)| at.since(start) >= ms(9_000)), "{dead:?}");
}

#[test]
fn after_an_isolation_the_suspicion_time_starts_anew() {
    // Whoever was cut off may have been the reason for every silence that it noted.
    let mut stage = Stage::new(3);
    (1..=3).for_each(|number| stage.script(number, CUT));
    stage.run(ms(4_000));
    stage.script(1, LIVE);
    while stage.health(1) != "alive" {
        stage.run(ms(20));
    }
    stage.run(ms(500));
    assert_eq!((stage.died(2), stage.died(3)), (None, None), "{:?}", stage.events);
    stage.run(ms(3_000));
    assert_eq!(stage.died(2), Some(DeathReason::Silent), "{:?}", stage.events);
}

#[test]
fn an_accepting_kernel_means_stalled_until_the_budget_ends() {
    let mut stage = Stage::new(7);
    stage.script(1, STOPPED);
    let start = stage.now;
    stage.run(ms(5_000));
    assert_eq!(stage.about(1), [Event::Stalled(info(1))]);
    (2..=4).for_each(|accuser| stage.accuse(1, accuser, Silence::Silent));
    stage.run(ms(5_000));
    assert_eq!(stage.died(1), None, "accusers do not outweigh an accepting kernel");
    stage.run(ms(10_000));
    let (at, reason) = stage.death(1).unwrap();
    assert_eq!(reason, DeathReason::StalledTooLong);
    assert!((15_000..17_500).contains(&at.since(start).as_millis()), "{:?}", at.since(start));
}

#[test]
fn silence_after_a_long_stall_is_counted_from_the_kernels_last_word() {
    let mut stage = Stage::new(7);
    stage.script(1, STOPPED);
    stage.run(ms(12_000));
    assert_eq!(stage.health(1), "stalled");
    // Now its kernel is silent, too, and nobody else has anything to say.
    stage.script(1, CUT);
    stage.run(ms(4_000));
    assert_eq!(stage.died(1), None, "silent for four seconds, not for dead_after: {:?}", stage.events);
}

#[test]
fn silence_before_a_stall_does_not_use_up_its_budget() {
    let mut stage = Stage::new(7);
    stage.script(1, CUT);
    stage.run(ms(8_000));
    stage.script(1, STOPPED);
    stage.run(ms(10_000));
    assert_eq!(stage.died(1), None, "stalled for ten seconds of fifteen: {:?}", stage.events);
    assert_eq!(stage.health(1), "stalled");
    stage.run(ms(7_000));
    assert_eq!(stage.died(1), Some(DeathReason::StalledTooLong));
}

#[test]
fn an_accepting_kernel_cancels_what_was_testified_before() {
    let mut stage = Stage::new(7);
    stage.script(1, STOPPED);
    stage.run(ms(2_000));
    stage.accuse(1, 2, Silence::Silent);
    stage.accuse(1, 3, Silence::Silent);
    stage.run(ms(1_500));
    assert_eq!(stage.health(1), "stalled");
    stage.script(1, CUT);
    stage.run(ms(3_000));
    assert_eq!(stage.died(1), None, "two of three accusers spoke before the kernel did: {:?}", stage.events);
}

#[test]
fn a_refusal_that_an_ack_to_somebody_else_refutes_is_not_believed_again() {
    let mut stage = Stage::new(7);
    stage.script(1, KILLED);
    stage.run(ms(3_000));
    assert_eq!(stage.health(1), "suspect");
    let (member, voucher, kind) = (peer(1), peer(2), SignOfLife::Acked);
    let record = Record::Vouch { member, incarnation: 0, voucher, kind, age_ms: 0, silent_ms: 0 };
    stage.run(ms(50));
    stage.say(2, None, vec![record]);
    let found = stage.machine.active(stage.now).into_iter().find(|found| found.info.id == member);
    assert_eq!(found.expect("still a member").kernel_trusted, None, "to be tried again first");
}

#[test]
fn a_socket_full_of_news_is_not_pushed_on_packet_by_packet() {
    let mut stage = Stage::new(7);
    stage.run(ms(1_000));
    stage.sent.clear();
    for number in 100..150 {
        stage.say(2, None, vec![Record::Alive { info: info(number), incarnation: 0 }]);
    }
    let pushed = stage.sent.len();
    assert!(pushed <= stage.machine.config().fanout, "{pushed} packets at one moment");
}

#[test]
fn the_echo_of_a_settled_doubt_is_not_news_again() {
    let mut stage = Stage::new(4);
    stage.run(ms(1_000));
    let mut looks = 0;
    let (member, reason) = (peer(1), DeathReason::Deaf);
    for step in 0..50 {
        stage.sent.clear();
        stage.accuse(1, 2 + step % 3, Silence::Refused);
        stage.say(2, None, vec![Record::Dead { member, incarnation: 0, reason, accusers: vec![] }]);
        stage.run(ms(10));
        let pings = stage.sent.iter().filter(|(_, to, _, packet)| {
            number_of(*to) == 1 && matches!(packet.body, Some(Body::Ping { .. }))
        });
        looks += pings.count();
    }
    assert!(looks <= 6, "{looks} looks at a member that answers each time, in half a second");
}

#[test]
fn a_case_opened_and_closed_again_and_again_leaves_no_trail_of_looks() {
    let mut stage = Stage::new(40);
    stage.run(ms(9_000));
    let (voucher, kind) = (peer(40), SignOfLife::Acked);
    // Not the neighbour, which is asked oftener.
    let vouch = Record::Vouch { member: peer(2), incarnation: 0, voucher, kind, age_ms: 0, silent_ms: 0 };
    for step in 0..37 {
        stage.run(ms(5));
        stage.accuse(2, 3 + step, Silence::Silent);
        stage.run(ms(5));
        // Somebody had an answer, which settles it.
        stage.say(40, None, vec![vouch.clone()]);
    }
    stage.run(ms(20));
    stage.sent.clear();
    stage.run(ms(1_200));
    let pings = stage
        .sent
        .iter()
        .filter(|(_, to, _, packet)| number_of(*to) == 2 && matches!(packet.body, Some(Body::Ping { .. })));
    assert!(pings.count() <= 1, "nobody doubts it any more, and its turn comes once in eight seconds");
}

#[test]
fn an_accusation_older_than_the_last_answer_says_nothing() {
    let mut stage = Stage::new(7);
    stage.run(ms(3_000));
    stage.sent.clear();
    for accuser in 1..=6 {
        // Everybody was asked once in 1.4 s, so the last answer is younger than that.
        stage.accuse_late(7, accuser, Silence::Silent, 1_500);
    }
    stage.run(ms(150));
    assert!(stage.about(7).is_empty(), "{:?}", stage.about(7));
    let vouches = |record: &Record| matches!(record, Record::Vouch { member, kind: SignOfLife::Acked, .. } if *member == peer(7));
    let said = stage.sent.iter().filter(|(.., packet)| packet.records.iter().any(vouches)).count();
    assert!(said > 0, "we may be the only one who can say that it lives");
    stage.run(ms(1_000));
    stage.script(7, CUT);
    stage.accuse_late(7, 2, Silence::Silent, 0);
    assert_eq!(stage.health(7), "suspect", "a fresh one counts");
}

#[test]
fn an_expired_vouch_starts_the_suspicion_time_anew() {
    // A newcomer that has not tried the stopped member's kernel sees only silence; another vouches, until
    // its word comes late once. That is no reason to call a stall of seconds a death.
    let mut stage = Stage::new(2);
    stage.script(9, CUT);
    stage.say(2, None, vec![Record::Alive { info: info(9), incarnation: 0 }]);
    let vouch = |silent_ms| Record::Vouch {
        member: peer(9),
        incarnation: 0,
        voucher: peer(2),
        kind: SignOfLife::Kernel,
        age_ms: 0,
        silent_ms,
    };
    for step in 0..8 {
        stage.say(2, None, vec![vouch(step * 500)]);
        stage.accuse(9, 1, Silence::Silent);
        stage.run(ms(500));
    }
    stage.run(ms(1_200));
    assert_eq!(stage.died(9), None, "{:?}", stage.events);
    stage.say(2, None, vec![vouch(5_200)]);
    stage.run(ms(100));
    assert_eq!(stage.health(9), "stalled");
}

#[test]
fn a_stopped_member_recovers_when_it_answers() {
    let mut stage = Stage::new(3);
    stage.script(1, STOPPED);
    stage.run(ms(5_000));
    stage.script(1, LIVE);
    stage.run(ms(1_500));
    assert_eq!(stage.about(1), [Event::Stalled(info(1)), Event::Recovered(info(1))]);
}

#[test]
fn a_stopped_member_that_is_killed_is_dead_soon_after() {
    let mut stage = Stage::new(3);
    stage.script(1, STOPPED);
    stage.run(ms(5_000));
    stage.script(1, KILLED);
    stage.run(ms(2_500));
    stage.accuse(1, 2, Silence::Refused);
    stage.run(ms(300));
    assert_eq!(stage.died(1), Some(DeathReason::Refused));
}

#[test]
fn a_relay_that_hears_the_member_ends_the_doubt() {
    let mut stage = Stage::new(7);
    stage.script(1, Script { answers_relays: true, ..CUT });
    stage.run(ms(20_000));
    assert!(stage.about(1).is_empty(), "{:?}", stage.events);
}

#[test]
fn an_answer_counts_only_from_the_relay_that_was_asked() {
    // Answers to somebody else's questions, played to us: every number that we might have used.
    let mut stage = Stage::new(7);
    stage.script(1, CUT);
    (2..=7).for_each(|number| stage.script(number, Script { answers_relays: false, ..LIVE }));
    for _ in 0..70 {
        stage.run(ms(200));
        for probe in 0..400 {
            stage.say(1, Some(Body::IndirectAck { probe, answered: true }), vec![]);
        }
    }
    assert!(stage.died(1).is_some(), "{:?}", stage.events);
}

#[test]
fn where_udp_is_blocked_a_stream_answers_and_pings_follow_it() {
    let mut stage = Stage::new(7);
    stage.script(1, UDP_BLOCKED);
    stage.run(ms(20_000));
    assert!(stage.about(1).is_empty(), "{:?}", stage.events);
    let member = stage.machine.active(stage.now).into_iter().find(|m| m.info.id == peer(1)).unwrap();
    assert_eq!(member.path, Path::Stream);
    stage.script(1, LIVE);
    stage.run(ms(30_000));
    let member = stage.machine.active(stage.now).into_iter().find(|m| m.info.id == peer(1)).unwrap();
    assert_eq!(member.path, Path::Datagram, "datagrams are tried again and preferred");
}

#[test]
fn a_declared_death_is_one_accusation_and_a_reason_to_look() {
    let dead = |member, reason| Record::Dead {
        member: peer(member),
        incarnation: 0,
        reason,
        // Whoever makes up a death makes up its witnesses.
        accusers: vec![peer(4), peer(5), peer(7)],
    };
    let reasons = [
        DeathReason::Exited,
        DeathReason::Refused,
        DeathReason::Silent,
        DeathReason::SilentTooLong,
        DeathReason::StalledTooLong,
        DeathReason::Deaf,
        DeathReason::Evicted,
    ];
    for reason in reasons {
        // 6 lives, 2 is stopped, 3 is cut off for less than the suspicion time.
        let mut stage = Stage::new(7);
        stage.run(ms(2_000));
        stage.script(2, STOPPED);
        stage.script(3, CUT);
        stage.sent.clear();
        stage.say(7, None, vec![dead(6, reason), dead(2, reason), dead(3, reason)]);
        let looked = |number| stage.sent.iter().any(|(_, to, ..)| *to == info(number).address);
        assert!([2, 3, 6].into_iter().all(looked), "{reason:?}: everybody is looked at at once");
        stage.run(ms(900));
        stage.script(3, LIVE);
        stage.run(ms(3_000));
        for number in [2, 3, 6] {
            assert_eq!(stage.died(number), None, "{reason:?} of {number}: {:?}", stage.events);
        }
        assert!(stage.about(6).is_empty(), "{reason:?}: {:?}", stage.about(6));
        assert_eq!(stage.health(3), "alive", "{reason:?}");
    }
}

#[test]
fn a_declared_death_is_believed_by_who_sees_the_port_refuse() {
    let mut stage = Stage::new(7);
    stage.run(ms(2_000));
    stage.script(6, KILLED);
    let (member, reason) = (peer(6), DeathReason::Refused);
    stage.say(7, None, vec![Record::Dead { member, incarnation: 0, reason, accusers: vec![] }]);
    stage.run(ms(600));
    assert_eq!(stage.died(6), Some(DeathReason::Refused), "{:?}", stage.events);
}

#[test]
fn a_goodbye_that_somebody_made_up_removes_nobody() {
    let mut stage = Stage::new(7);
    stage.run(ms(2_000));
    stage.script(2, STOPPED);
    let leave = |member| Record::Leave { member: peer(member), incarnation: 0 };
    // In the name of another, and in the victims' own: by datagram nobody proves who it is.
    stage.say(7, None, vec![leave(1), leave(2)]);
    stage.say(1, None, vec![leave(1)]);
    stage.say(2, None, vec![leave(2)]);
    stage.run(ms(5_000));
    assert!(stage.about(1).is_empty(), "{:?}", stage.about(1));
    assert_eq!(stage.health(1), "alive");
    assert_eq!(stage.about(2), [Event::Stalled(info(2))]);
}

#[test]
fn a_goodbye_over_a_stream_is_taken_at_its_word_from_its_owner_only() {
    let mut stage = Stage::new(3);
    let leave =
        |member| Packet { body: None, records: vec![Record::Leave { member: peer(member), incarnation: 0 }] };
    stage.deliver(1, Path::Stream, leave(1));
    assert_eq!(stage.about(1), [Event::Left(info(1))]);
    stage.deliver(3, Path::Stream, leave(2));
    stage.run(ms(3_000));
    assert!(stage.about(2).is_empty(), "{:?}", stage.about(2));
}

#[test]
fn a_goodbye_of_a_host_that_is_gone_needs_no_refusal() {
    let mut stage = Stage::new(7);
    stage.run(ms(2_000));
    stage.script(1, CUT);
    stage.say(1, None, vec![Record::Leave { member: peer(1), incarnation: 0 }]);
    stage.run(ms(1_500));
    assert_eq!(stage.about(1), [Event::Left(info(1))], "not suspected meanwhile");
}

#[test]
fn an_incarnation_that_nobody_can_have_reached_is_not_believed() {
    let mut stage = Stage::new(3);
    let (member, incarnation) = (peer(1), u32::MAX);
    let reason = DeathReason::Silent;
    stage.say(
        2,
        None,
        vec![
            Record::Suspect { member, incarnation, accuser: peer(2), kind: Silence::Silent, age_ms: 0 },
            Record::Dead { member, incarnation, reason, accusers: vec![] },
            Record::Leave { member, incarnation },
            Record::Dead { member: peer(9), incarnation, reason, accusers: vec![] },
            Record::Dead { member: peer(0), incarnation, reason, accusers: vec![] },
        ],
    );
    // Everybody can still say something newer than that: a refutation, and the first word of a newcomer.
    stage.script(9, LIVE);
    stage.say(1, None, vec![Record::Alive { info: info(1), incarnation: 1 }]);
    stage.say(9, None, vec![Record::Alive { info: info(9), incarnation: 0 }]);
    let known = |number| {
        let members = stage.machine.active(stage.now);
        members.iter().find(|member| member.info.id == peer(number)).map(|member| member.incarnation)
    };
    assert_eq!((known(0), known(1), known(9)), (Some(0), Some(1), Some(0)));
}
