//! A coordinator among honest peers and liars: it never panics, what it holds stays bounded, and honest peers are
//! not disturbed beyond what the rules allow.
//!
//! Honest peers are real sessions with an executor that moves no bytes; liars say anything that decodes, on
//! connections of their own, also under other peers' ids.

use outlast_proto::ballot::admission;
use outlast_proto::ballot::optimise::{Brought, RingWish};
use outlast_proto::collective::{DataType, Fingerprint, OpKey, OpKind, Scope};
use outlast_proto::coordinator::{self, Action, ConnectionId, Run, Sign};
use outlast_proto::id::PeerId;
use outlast_proto::limits::ANCESTORS_MAX;
use outlast_proto::membership::{ConnectOutcome, Preset};
use outlast_proto::session::{self, CallId, Command, Done, Op, OutReason, PerformResult, Session};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::Message as _;
use outlast_proto::wire::control::*;
use outlast_proto::wire::membership::{DeathReason, MemberInfo};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const HONEST: [u8; 3] = [1, 2, 3];

/// What a peer says of itself: who started it, and as what.
fn witness(agent: u8, number: u8) -> Witness {
    Witness { agent: id(agent), process: ProcessName { pid: number.into(), start: 1 } }
}

fn id(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

fn info(number: u8) -> MemberInfo {
    let address = ([10, 0, 0, number], 7_000).into();
    MemberInfo { id: id(number), address, closed_port: 7_001, name: format!("p{number}"), meta: Vec::new() }
}

fn call(retry: bool) -> Fingerprint {
    Fingerprint { retry, ..Fingerprint::new(OpKind::AllReduce, DataType::F32, [8]) }
}

struct Honest {
    session: Session,
    connection: Option<ConnectionId>,
    performing: BTreeMap<CallId, (OpKey, Vec<PeerId>)>,
    committed: u64,
    attempts: u32,
    pending: u32,
    busy: bool,
}

struct World {
    /// Who is honest.
    numbers: Vec<u8>,
    run: Run,
    now: Instant,
    honest: BTreeMap<u8, Honest>,
    mail: VecDeque<(ConnectionId, ToPeer)>,
    next_connection: u64,
    /// Whether honest peers admit whoever waits.
    hospitable: bool,
}

impl World {
    fn new(hospitable: bool) -> Self {
        Self::of(&HONEST, hospitable, None)
    }

    /// A group of these honest peers; and, if so, of a liar who was there first.
    fn of(numbers: &[u8], hospitable: bool, elder: Option<u8>) -> Self {
        let size = numbers.len() as u32 + u32::from(elder.is_some());
        let mut world = Self {
            numbers: numbers.to_vec(),
            run: Run::new(coordinator::Config::preset(Preset::Local)),
            now: Instant::from_nanos(1_000_000_000),
            honest: BTreeMap::new(),
            mail: VecDeque::new(),
            next_connection: 0,
            hospitable,
        };
        let registration = |number: u8| Registration {
            info: info(number),
            group: 0,
            session: SessionId([number; 16]),
            min_world: size,
            encryption: Encryption::On,
            witness: Some(witness(9, number)),
        };
        if let Some(elder) = elder {
            let message = ToCoordinator::Register(registration(elder), 1, 0);
            world.run.handle_message(world.now, connection_of(elder, 0), id(elder), message);
        }
        for number in numbers.iter().copied() {
            let mut session = Session::new(session::Config::preset(Preset::Local), registration(number));
            session.handle_connect_call(world.now, size, world.now + Duration::from_mins(1));
            let honest = Honest {
                session,
                connection: None,
                performing: BTreeMap::new(),
                committed: 0,
                attempts: 0,
                pending: 0,
                busy: true,
            };
            world.honest.insert(number, honest);
        }
        world.settle();
        // By now an old run could not come back any more.
        world.wait(Duration::from_secs(11));
        world
    }

    /// Lets everything happen that follows, without time passing.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let before = self.mail.len();
            let acted = self.drain_run() | self.drain_honest();
            if let Some((at, message)) = self.mail.pop_front() {
                let receiver = self.honest.values_mut().find(|honest| honest.connection == Some(at));
                if let Some(honest) = receiver {
                    honest.session.handle_message(self.now, message);
                }
            } else if !acted && before == 0 {
                return;
            }
        }
        panic!("the talk between coordinator and peers does not end");
    }

    fn drain_run(&mut self) -> bool {
        let mut acted = false;
        while let Some(action) = self.run.poll_action() {
            acted = true;
            match action {
                Action::Send(at, message) => self.mail.push_back((at, message)),
                Action::SendAll(all, message) => {
                    self.mail.extend(all.into_iter().map(|at| (at, message.clone())));
                }
                Action::Close(at) => {
                    self.run.handle_closed(self.now, at);
                    for honest in self.honest.values_mut().filter(|honest| honest.connection == Some(at)) {
                        honest.connection = None;
                        honest.session.handle_disconnected(self.now);
                    }
                }
                Action::Connect { token, to, .. } => {
                    let honest = to.ip().to_string().starts_with("10.0.0.") && to.port() == 7_000;
                    let outcome = if honest { ConnectOutcome::Accepted } else { ConnectOutcome::Refused };
                    self.run.handle_connect(self.now, token, outcome);
                }
                Action::Solve { token, question } => {
                    let answer = question.answer(&|| false);
                    self.run.handle_solved(self.now, token, &answer);
                }
                Action::Evict(_)
                | Action::Look(_)
                | Action::Renew(_)
                | Action::CallOff(_)
                | Action::Note(_) => {}
            }
        }
        acted
    }

    fn drain_honest(&mut self) -> bool {
        let mut acted = false;
        for number in self.numbers.clone() {
            while let Some(action) =
                self.honest.get_mut(&number).and_then(|honest| honest.session.poll_action())
            {
                acted = true;
                self.honest_acts(number, action);
            }
        }
        // An attempt that all of its ring perform is done.
        let keys: Vec<_> =
            self.honest.values().flat_map(|honest| honest.performing.values().cloned()).collect();
        for (key, ring) in keys {
            let at_work = |peer: &PeerId| {
                self.honest.iter().any(|(number, honest)| {
                    id(*number) == *peer && honest.performing.values().any(|(other, _)| *other == key)
                })
            };
            if ring.iter().all(at_work) {
                for honest in self.honest.values_mut() {
                    let done = honest.performing.iter().find(|(_, (other, _))| *other == key);
                    if let Some(call) = done.map(|(call, _)| *call) {
                        acted = true;
                        honest.performing.remove(&call);
                        honest.session.handle_performed(self.now, call, PerformResult::Done);
                    }
                }
            }
        }
        acted
    }

    fn honest_acts(&mut self, number: u8, action: session::Action) {
        let now = self.now;
        let Some(honest) = self.honest.get_mut(&number) else { return };
        match action {
            session::Action::Dial => {
                self.next_connection += 1;
                honest.connection = Some(ConnectionId(self.next_connection));
                honest.session.handle_connected(now);
            }
            session::Action::HangUp => {
                if let Some(at) = honest.connection.take() {
                    self.run.handle_closed(now, at);
                }
            }
            session::Action::Send(message) => {
                if let Some(at) = honest.connection {
                    self.run.handle_message(now, at, id(number), message);
                }
            }
            session::Action::OpenEpoch(record) => honest.session.handle_links_up(record.epoch),
            session::Action::Prepare(_, question) => honest.session.handle_prepared(question, None),
            session::Action::Redial(to, _) => honest.session.handle_redialled(to, None),
            session::Action::Relink(_) => {
                let epoch = honest.session.record().map_or(0, |record| record.epoch);
                honest.session.handle_links_up(epoch);
            }
            session::Action::Slowed(_) | session::Action::CalledLast(..) => {}
            session::Action::Call(call, Command::Perform(attempt)) => {
                honest.performing.insert(call, (attempt.key, attempt.ring.to_vec()));
            }
            session::Action::Call(call, Command::Abort) => {
                if honest.performing.remove(&call).is_some() {
                    honest.session.handle_performed(now, call, PerformResult::Stopped);
                }
            }
            session::Action::Call(_, Command::Commit | Command::Undo) => {}
            session::Action::Call(_, Command::Finish(outcome)) => {
                honest.busy = false;
                if let Ok(Done::Committed { attempts, pending, .. }) = outcome {
                    honest.committed += 1;
                    honest.attempts = honest.attempts.max(attempts);
                    honest.pending = pending;
                }
            }
        }
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        for _ in 0..100_000 {
            let sessions = self.honest.values().filter_map(|honest| honest.session.poll_timeout());
            let Some(due) = sessions.chain(self.run.poll_timeout()).min().filter(|due| *due <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(due);
            self.run.handle_timeout(self.now);
            for honest in self.honest.values_mut() {
                honest.session.handle_timeout(self.now);
            }
            self.settle();
        }
        panic!("timers fire for ever");
    }

    /// Every honest program that has nothing to do makes its next call.
    fn step(&mut self, tag: u64) {
        let now = self.now;
        let deadline = now + Duration::from_secs(5);
        for number in self.numbers.clone() {
            let Some(honest) = self.honest.get_mut(&number).filter(|honest| !honest.busy) else { continue };
            if honest.session.out().is_some() {
                continue;
            }
            honest.busy = true;
            if self.hospitable && std::mem::take(&mut honest.pending) > 0 {
                honest.session.handle_admission_call(now, 1, deadline);
            } else {
                let op = Op { scope: Scope::Whole, tag, fingerprint: call(true), deadline, members: None };
                honest.session.handle_op_call(now, op);
            }
        }
        self.settle();
    }
}

/// The connections of a liar.
fn connection_of(liar: u8, connection: u64) -> ConnectionId {
    ConnectionId(1_000 + u64::from(liar) * 10 + connection)
}

/// One move of a liar, or of the world.
#[derive(Clone, Debug)]
enum Move {
    Say { claims: u8, connection: u64, message: Box<ToCoordinator> },
    Close(u64),
    Wait(u64),
    Health(u8, Sign),
    HonestCall,
}

fn some_scope() -> impl Strategy<Value = Scope> {
    prop_oneof![
        3 => Just(Scope::Whole),
        1 => proptest::collection::btree_set(1u8..7, 1..4)
            .prop_map(|numbers| Scope::Members(numbers.into_iter().map(id).collect())),
    ]
}

fn some_key() -> impl Strategy<Value = OpKey> {
    let seq = prop_oneof![8 => 0u64..4, 1 => Just(u64::MAX)];
    (0u32..2, 0u64..6, some_scope(), 0u64..3, seq).prop_map(|(group, epoch, scope, tag, seq)| OpKey {
        group,
        epoch,
        scope,
        tag,
        seq,
    })
}

fn some_verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        (0u32..3).prop_map(|pending| Verdict::Commit { pending }),
        Just(Verdict::Abort(AbortReason::Void)),
        Just(Verdict::Abort(AbortReason::Timeout(Vec::new()))),
    ]
}

fn some_record() -> impl Strategy<Value = EpochRecord> {
    let roster = proptest::collection::vec(1u8..7, 1..4);
    (0u32..2, 0u64..8, roster, 1u8..7, any::<bool>()).prop_map(|(group, epoch, roster, founder, odd)| {
        let name = |founder: u8| SessionId([founder; 16]).founder(id(founder), 1);
        let before = Ancestor { founder: name(founder % 6 + 1), epoch: epoch / 2 };
        EpochRecord {
            run_epoch: epoch,
            group,
            epoch: if odd { u64::MAX - 1 } else { epoch },
            ring: (0..roster.len() as u32).rev().collect(),
            roster: roster.into_iter().map(info).collect(),
            decider: Decider::Coordinator,
            global_world_size: 1,
            joined: Vec::new(),
            left: Vec::new(),
            founder: name(founder),
            broken: if odd { vec![(0, 1), (u32::MAX, 0)] } else { Vec::new() },
            incumbents: if odd { u32::MAX } else { 1 },
            ancestors: if odd { vec![before; ANCESTORS_MAX + 1] } else { vec![before] },
            ballots: vec![(admission::KIND, Tally { ended: epoch, agreed: epoch })],
        }
    })
}

fn some_registration() -> impl Strategy<Value = Registration> {
    let min_world = prop_oneof![Just(0), Just(1), Just(2), Just(u32::MAX)];
    (1u8..7, 0u32..2, 4u8..7, min_world).prop_map(|(number, group, session, min_world)| Registration {
        info: info(number),
        group,
        session: SessionId([session; 16]),
        min_world,
        // Some lie about this too.
        encryption: if session == 6 { Encryption::Off } else { Encryption::On },
        witness: (session == 5).then(|| witness(group as u8, number)),
    })
}

fn some_report() -> impl Strategy<Value = TagReport> {
    let learned = proptest::collection::vec((some_key(), some_verdict()), 0..3);
    let open = proptest::option::of((some_key(), any::<bool>()));
    (learned, open).prop_map(|(learned, open)| TagReport {
        learned,
        open: open.map(|(key, complete)| OpenVote {
            key,
            fingerprint: call(true),
            timeout_ms: 100,
            complete,
        }),
    })
}

/// Kinds that are known, and one that is not.
fn some_ballot() -> impl Strategy<Value = BallotId> {
    let kind = prop_oneof![4 => Just(admission::KIND), 1 => Just(BallotKind(u32::MAX)),
        2 => Just(BallotKind(u32::MAX - 1)), 1 => Just(BallotKind(7))];
    let number = prop_oneof![8 => 0u64..5, 1 => Just(u64::MAX)];
    (kind, number).prop_map(|(kind, number)| BallotId { kind, number })
}

fn some_wish() -> impl Strategy<Value = Vec<u8>> {
    let ring = (1u8..7, any::<u64>(), any::<bool>()).prop_map(|(peer, rate, first)| {
        let link = Brought { peer: id(peer), sends: rate, receives: 1, round_trip_us: 1, age_ms: rate };
        let (site, links) = ("s".repeat(usize::from(peer)), vec![link; 2]);
        let wish = if first {
            RingWish::Begin { site, known: links }
        } else {
            RingWish::Measured { site, found: links, failed: vec![id(peer)], trouble: None }
        };
        minicbor::to_vec(wish).expect("a Vec takes every byte")
    });
    prop_oneof![3 => (0u32..4).prop_map(admission::wish), 2 => ring, 3 => Just(vec![1, 2, 3]), 1 => proptest::collection::vec(any::<u8>(), 0..20)]
}

fn some_ballot_report() -> impl Strategy<Value = BallotReport> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..4));
    (some_ballot(), 0u64..5, bytes(), proptest::option::of(some_wish())).prop_map(
        |(id, ended, outcome, wish)| BallotReport {
            kind: id.kind,
            tally: Tally { ended, agreed: id.number },
            outcome,
            wish,
        },
    )
}

fn some_message() -> impl Strategy<Value = ToCoordinator> {
    let number = 1u8..7;
    let timeout = prop_oneof![Just(0), Just(1), Just(1_000), Just(u64::MAX)];
    prop_oneof![
        4 => (some_registration(), 0u32..4).prop_map(|(who, generation)| ToCoordinator::Register(who, generation, 0)),
        4 => (
            some_registration(),
            0u32..4,
            prop_oneof![Just(0u64), Just(1), Just(7), Just(u64::MAX)],
            some_record(),
            proptest::collection::vec(some_report(), 0..3),
            proptest::collection::vec(some_ballot_report(), 0..3),
        )
            .prop_map(|(registration, generation, term, record, tags, ballots)| {
                let remembers_from = u64::from(generation);
                ToCoordinator::Resume(Resume {
                    registration,
                    generation,
                    term,
                    record,
                    tags,
                    ballots,
                    behind_from: (term < 9).then_some(term),
                    remembers_from,
                    revision: (generation % 2 == 0).then_some(u64::from(generation)),
                })
            }),
        3 => (some_ballot(), some_wish()).prop_map(|(ballot, wish)| ToCoordinator::Vote { ballot, wish }),
        1 => some_ballot().prop_map(|ballot| ToCoordinator::TakeBack { ballot }),
        1 => (0u32..2, 1u8..7, any::<u64>()).prop_map(|(group, to, rate)| {
            ToCoordinator::LinkSpeed(group, LinkSpeed { to: id(to), rate, round_trip_us: u32::MAX })
        }),
        1 => proptest::collection::vec((any::<u64>(), "\\PC{0,9}|\u{1b}\\[2J"), 0..9).prop_map(|told| {
            let incident = |(at_us, text)| Incident { at_us, text };
            ToCoordinator::Remembered(told.into_iter().map(incident).collect())
        }),
        // Testimony about the honest ones' processes, by those whom they did not name.
        2 => number.clone().prop_map(|number| ToCoordinator::Watch { process: witness(0, number).process }),
        2 => number.clone().prop_map(|number| ToCoordinator::Exited { process: witness(0, number).process }),
        1 => (0u32..2, 0u64..9, any::<bool>()).prop_map(|(group, number, well)| {
            let error = (!well).then(|| "so it says".to_owned());
            ToCoordinator::Prepared { group, number, error }
        }),
        2 => (0u32..2, 0u64..6).prop_map(|(group, epoch)| ToCoordinator::Connected { group, epoch }),
        2 => (0u32..2, 0u64..6, number.clone(), number.clone(), any::<bool>()).prop_map(
            |(group, epoch, from, to, dialling)| {
                let (from, to, error) = (id(from), id(to), "so it says".to_owned());
                ToCoordinator::LinkBroken { group, epoch, from, to, dialling, error }
            }
        ),
        1 => (0u32..2, number.clone(), any::<bool>()).prop_map(|(group, to, well)| {
            let error = (!well).then(|| "so it says".to_owned());
            ToCoordinator::Redialled { group, to: id(to), error }
        }),
        4 => (some_key(), any::<bool>(), timeout).prop_map(|(key, retry, timeout_ms)| ToCoordinator::Initiate {
            key,
            fingerprint: call(retry),
            timeout_ms,
        }),
        3 => some_key().prop_map(|key| ToCoordinator::Complete { key }),
        1 => (some_key(), number.clone()).prop_map(|(key, peer)| ToCoordinator::Refuse {
            key,
            reason: Refusal::Mismatch { peer: id(peer) },
        }),
        1 => some_key().prop_map(|key| ToCoordinator::Refuse { key, reason: Refusal::Deadline }),
        1 => (some_key(), number.clone(), number).prop_map(|(key, from, to)| ToCoordinator::Refuse {
            key,
            reason: Refusal::Link { from: id(from), to: id(to), error: String::new() },
        }),
        2 => some_key().prop_map(|key| ToCoordinator::Acknowledge { key }),
        1 => Just(ToCoordinator::Leave { for_good: true }),
        1 => Just(ToCoordinator::AskStatus),
        1 => some_ballot().prop_map(|ballot| ToCoordinator::Expired { ballot }),
        2 => prop_oneof![Just(2u64), Just(8), Just(u64::MAX)].prop_map(|term| ToCoordinator::Promise { term }),
    ]
}

/// Moves in which liars claim to be one of `liars`.
fn moves(liars: std::ops::Range<u8>, honest_too: bool) -> impl Strategy<Value = Vec<Move>> {
    let claims = if honest_too { (1..liars.end).boxed() } else { liars.clone().boxed() };
    let sign = prop_oneof![
        Just(Sign::Alive { acked: None }),
        Just(Sign::Stalled),
        Just(Sign::Suspect),
        Just(Sign::Dead(DeathReason::Silent)),
        Just(Sign::Dead(DeathReason::Refused)),
    ];
    let one = prop_oneof![
        12 => (claims, 0u64..4, some_message())
            .prop_map(|(claims, connection, message)| Move::Say { claims, connection, message: Box::new(message) }),
        1 => (0u64..40).prop_map(Move::Close),
        2 => prop_oneof![Just(1u64), Just(60), Just(900), Just(6_000)].prop_map(Move::Wait),
        1 => (liars, sign).prop_map(|(number, sign)| Move::Health(number, sign)),
        4 => Just(Move::HonestCall),
    ];
    proptest::collection::vec(one, 1..120)
}

/// A liar says who it is in what it sends, or the stream's owner would turn it away before we hear of it.
fn as_claimed(message: ToCoordinator, claims: u8, group: Option<u32>) -> ToCoordinator {
    match message {
        ToCoordinator::Register(mut registration, generation, term) => {
            registration.info = info(claims);
            registration.group = group.unwrap_or(registration.group);
            ToCoordinator::Register(registration, generation, term)
        }
        ToCoordinator::Resume(mut resume) => {
            resume.registration.info = info(claims);
            if let Some(group) = group {
                (resume.registration.group, resume.record.group) = (group, group);
            }
            ToCoordinator::Resume(resume)
        }
        other => other,
    }
}

fn play(world: &mut World, one: Move, group: Option<u32>) {
    match one {
        Move::Say { claims, connection, message } => {
            let message = as_claimed(*message, claims, group);
            if message.check().is_ok() {
                let at = connection_of(claims, connection);
                world.run.handle_message(world.now, at, id(claims), message);
                world.settle();
            }
        }
        Move::Close(connection) => {
            world.run.handle_closed(world.now, ConnectionId(1_000 + connection));
            world.settle();
        }
        Move::Wait(millis) => world.wait(Duration::from_millis(millis)),
        Move::Health(number, sign) => {
            world.run.handle_health(world.now, id(number), sign);
            world.settle();
        }
        Move::HonestCall => world.step(0),
    }
    assert!(world.run.footprint() < 600, "{} things are held", world.run.footprint());
}

/// What a liar in the group says of links, of the epoch in which the group is.
#[derive(Clone, Debug)]
enum Tale {
    /// Its link to that peer, or from it, is broken.
    Broken {
        with: u8,
        towards: bool,
        dialling: bool,
    },
    /// A dial that it was asked for, or was not, ended.
    Redialled {
        to: u8,
        well: bool,
    },
    Connected,
    Wait(u64),
    HonestCall,
}

fn tales() -> impl Strategy<Value = Vec<Tale>> {
    let one = prop_oneof![
        4 => (1u8..4, any::<bool>(), any::<bool>())
            .prop_map(|(with, towards, dialling)| Tale::Broken { with, towards, dialling }),
        2 => (1u8..4, any::<bool>()).prop_map(|(to, well)| Tale::Redialled { to, well }),
        1 => Just(Tale::Connected),
        3 => prop_oneof![Just(30u64), Just(900), Just(6_000)].prop_map(Tale::Wait),
        1 => Just(Tale::HonestCall),
    ];
    proptest::collection::vec(one, 1..60)
}

fn tell(world: &mut World, liar: u8, tale: &Tale) {
    let record = world.honest.values().find_map(|honest| honest.session.record());
    let epoch = record.map_or(0, |record| record.epoch);
    let message = match *tale {
        Tale::Broken { with, towards, dialling } => {
            let (from, to) = if towards { (id(liar), id(with)) } else { (id(with), id(liar)) };
            ToCoordinator::LinkBroken { group: 0, epoch, from, to, dialling, error: "so it says".to_owned() }
        }
        Tale::Redialled { to, well } => {
            let error = (!well).then(|| "so it says".to_owned());
            ToCoordinator::Redialled { group: 0, to: id(to), error }
        }
        Tale::Connected => ToCoordinator::Connected { group: 0, epoch },
        Tale::Wait(millis) => return world.wait(Duration::from_millis(millis)),
        Tale::HonestCall => return world.step(0),
    };
    world.run.handle_message(world.now, connection_of(liar, 0), id(liar), message);
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Liars in another group, and liars who claim to be honest peers, are not even noticed.
    #[test]
    fn liars_elsewhere_are_not_noticed(moves in moves(4..7, true)) {
        let mut world = World::new(false);
        for one in moves {
            // Group 1 is theirs; a liar under an honest id stays out by its session.
            play(&mut world, one, Some(1));
        }
        world.step(1);
        for (number, honest) in &world.honest {
            prop_assert_eq!(honest.session.out(), None, "peer {} was put out", number);
            prop_assert_eq!(honest.session.record().map(|record| record.epoch), Some(1));
            prop_assert!(honest.attempts <= 1 && honest.committed >= 1);
        }
    }

    /// Liars who are admitted can hold up a collective, and are kicked or waited for; but nobody honest is put
    /// out, and when they are gone the honest go on.
    #[test]
    fn liars_within_put_nobody_out(moves in moves(4..6, false)) {
        let mut world = World::new(true);
        for one in moves {
            play(&mut world, one, Some(0));
        }
        for liar in [4u8, 5] {
            for connection in 0..4 {
                world.run.handle_closed(world.now, connection_of(liar, connection));
            }
            world.run.handle_health(world.now, id(liar), Sign::Dead(DeathReason::Exited));
        }
        world.settle();
        for _ in 0..6 {
            world.step(0);
            world.wait(Duration::from_secs(12));
        }
        let before: u64 = world.honest.values().map(|honest| honest.committed).sum();
        for _ in 0..3 {
            world.step(0);
        }
        for (number, honest) in &world.honest {
            prop_assert_eq!(honest.session.out(), None, "peer {} was put out", number);
        }
        let after: u64 = world.honest.values().map(|honest| honest.committed).sum();
        prop_assert!(after >= before + 6, "the honest do not get on: {} commits", after - before);
    }

    /// A liar that was there before the honest, in a group of two or of four, says of links what it likes. At the most it
    /// costs itself its place.
    #[test]
    fn an_elder_that_lies_about_links_puts_nobody_out(tales in tales(), alone in any::<bool>()) {
        let numbers: &[u8] = if alone { &[1] } else { &HONEST };
        let mut world = World::of(numbers, false, Some(4));
        prop_assert_eq!(world.run.world_size(), numbers.len() + 1);
        for tale in &tales {
            tell(&mut world, 4, tale);
        }
        for _ in 0..3 {
            world.wait(Duration::from_secs(6));
        }
        for (number, honest) in &world.honest {
            // A `connect` of its own that waited too long for a liar who does nothing has put nobody out.
            let out = honest.session.out().filter(|out| **out != OutReason::NotConnected);
            prop_assert_eq!(out, None, "peer {} was put out", number);
        }
    }

    /// A coordinator that knows nothing is told anything at all: it does not panic and holds little.
    #[test]
    fn a_fresh_coordinator_survives_any_story(moves in moves(1..7, false)) {
        let mut world = World::new(false);
        world.run = Run::new(coordinator::Config::preset(Preset::Local));
        world.honest.clear();
        for one in moves {
            if !matches!(one, Move::HonestCall) {
                play(&mut world, one, None);
            }
        }
        world.wait(Duration::from_secs(30));
    }
}
