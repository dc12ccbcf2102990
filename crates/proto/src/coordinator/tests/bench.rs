//! A coordinator on the bench: scripted peers, a clock that the test turns, and every action sorted by whom it
//! concerns.

pub(super) use crate::ballot::admission::{self, KIND as ADMISSION};
pub(super) use crate::collective::{DataType, Fingerprint, Group, OpKey, OpKind, Scope};
pub(super) use crate::coordinator::{Action, Config, ConnectionId, Note, Run, Sign, SolveToken};
pub(super) use crate::id::PeerId;
pub(super) use crate::membership::{ConnectOutcome, ConnectToken, Preset};
pub(super) use crate::time::{Duration, Instant};
pub(super) use crate::topology::Question;
pub(super) use crate::wire::control::*;
pub(super) use crate::wire::membership::{DeathReason, MemberInfo};
use std::collections::BTreeMap;

pub(super) struct Bench {
    pub(super) run: Run,
    pub(super) now: Instant,
    /// The connection of each peer, by its number.
    pub(super) at: BTreeMap<u8, ConnectionId>,
    next_connection: u64,
    inbox: BTreeMap<ConnectionId, Vec<ToPeer>>,
    pub(super) closed: Vec<ConnectionId>,
    pub(super) notes: Vec<Note>,
    pub(super) knocks: Vec<(ConnectToken, std::net::SocketAddr)>,
    /// Those of them that ask who is there, and whether it is that one.
    pub(super) disputes: Vec<(ConnectToken, PeerId)>,
    /// Dials of broken links that were asked for and are not answered yet.
    redials: Vec<(ConnectionId, Group, PeerId)>,
    /// Whom the health plane was asked to probe.
    pub(super) looks: Vec<PeerId>,
    /// Questions to the solver that are not answered yet, and those that were called off.
    pub(super) questions: Vec<(SolveToken, Question)>,
    pub(super) called_off: Vec<SolveToken>,
}

pub(super) fn id(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn info(number: u8) -> MemberInfo {
    MemberInfo {
        id: id(number),
        address: ([10, 0, 0, number], 7_000).into(),
        closed_port: 7_001,
        name: format!("p{number}"),
        meta: Vec::new(),
    }
}

pub(super) fn registration(number: u8, group: u32, min_world: u32) -> Registration {
    Registration {
        info: info(number),
        group,
        session: SessionId([number; 16]),
        min_world,
        encryption: Encryption::On,
        witness: None,
    }
}

pub(super) fn call(count: u64) -> Fingerprint {
    Fingerprint::new(OpKind::AllReduce, DataType::F32, [count])
}

/// What a group that this peer founds is told apart by.
pub(super) fn founder(number: u8) -> PeerId {
    registration(number, 0, 1).session.founder(id(number), 1)
}

pub(super) fn key(epoch: u64, tag: u64, seq: u64) -> OpKey {
    OpKey { group: 0, epoch, scope: Scope::Whole, tag, seq }
}

pub(super) fn initiate(key: OpKey) -> ToCoordinator {
    ToCoordinator::Initiate { key, fingerprint: call(8), timeout_ms: 10_000 }
}

pub(super) fn commit(key: OpKey) -> ToPeer {
    ToPeer::Verdict { key, verdict: Verdict::Commit { pending: 0 } }
}

pub(super) fn abort(key: OpKey, reason: AbortReason) -> ToPeer {
    ToPeer::Verdict { key, verdict: Verdict::Abort(reason) }
}

/// An admission ballot of the group.
pub(super) fn ballot(number: u64) -> BallotId {
    BallotId { kind: ADMISSION, number }
}

pub(super) fn vote(min_world: u32, number: u64) -> ToCoordinator {
    ToCoordinator::Vote { ballot: ballot(number), wish: admission::wish(min_world) }
}

pub(super) fn expired(number: u64) -> ToCoordinator {
    ToCoordinator::Expired { ballot: ballot(number) }
}

pub(super) fn agreed(run_epoch: u64, global_world_size: u32, number: u64) -> ToPeer {
    let end = BallotEnd::Agreed(Vec::new());
    ToPeer::BallotEnded { ballot: ballot(number), end, run_epoch, global_world_size }
}

pub(super) fn mismatched(global_world_size: u32, number: u64, others: &str) -> ToPeer {
    let end = BallotEnd::Mismatch { others: others.to_owned() };
    ToPeer::BallotEnded { ballot: ballot(number), end, run_epoch: 1, global_world_size }
}

/// What a peer that has heard so much of admissions tells.
pub(super) fn heard(ended: u64, agreed: u64) -> Vec<BallotReport> {
    let tally = Tally { ended, agreed };
    vec![BallotReport { kind: ADMISSION, tally, outcome: Some(Vec::new()), wish: None }]
}

/// The same of one that knows the first and stands in the second.
pub(super) fn standing(min_world: u32) -> Vec<BallotReport> {
    heard(1, 1)
        .into_iter()
        .map(|report| BallotReport { wish: Some(admission::wish(min_world)), ..report })
        .collect()
}

impl Bench {
    pub(super) fn new() -> Self {
        Self {
            run: Run::new(Config::preset(Preset::Local)),
            now: Instant::from_nanos(1_000_000_000),
            at: BTreeMap::new(),
            next_connection: 0,
            inbox: BTreeMap::new(),
            closed: Vec::new(),
            notes: Vec::new(),
            knocks: Vec::new(),
            disputes: Vec::new(),
            redials: Vec::new(),
            looks: Vec::new(),
            questions: Vec::new(),
            called_off: Vec::new(),
        }
    }

    /// A group of these members in epoch 1, all links up, nobody waiting for anything.
    pub(super) fn of(numbers: &[u8]) -> Self {
        let mut bench = Self::new();
        for number in numbers {
            bench.register(*number, 0, numbers.len() as u32);
        }
        bench.confirm(numbers, 1);
        bench.clear();
        bench
    }

    pub(super) fn drain(&mut self) {
        while let Some(action) = self.run.poll_action() {
            match action {
                Action::Send(at, ToPeer::Redial { group, to, .. }) => self.redials.push((at, group, to)),
                Action::Send(at, message) => self.inbox.entry(at).or_default().push(message),
                Action::SendAll(all, message) => {
                    for at in all {
                        self.inbox.entry(at).or_default().push(message.clone());
                    }
                }
                Action::Close(at) => {
                    self.closed.push(at);
                    self.run.handle_closed(self.now, at);
                }
                Action::Connect { token, to, disputed, .. } => {
                    self.knocks.push((token, to));
                    self.disputes.extend(disputed.map(|peer| (token, peer)));
                }
                Action::Evict(_) | Action::Renew(_) => {}
                Action::Look(peer) => self.looks.push(peer),
                Action::Solve { token, question } => self.questions.push((token, question)),
                Action::CallOff(token) => self.called_off.push(token),
                Action::Note(note) => self.notes.push(note),
            }
        }
    }

    pub(super) fn connection(&mut self) -> ConnectionId {
        self.next_connection += 1;
        ConnectionId(self.next_connection)
    }

    pub(super) fn register(&mut self, number: u8, group: u32, min_world: u32) {
        let at = self.connection();
        self.at.insert(number, at);
        let message = ToCoordinator::Register(registration(number, group, min_world), 1, 0);
        self.run.handle_message(self.now, at, id(number), message);
        self.drain();
    }

    pub(super) fn say(&mut self, number: u8, message: ToCoordinator) {
        self.run.handle_message(self.now, self.at[&number], id(number), message);
        self.drain();
    }

    pub(super) fn all_say(&mut self, numbers: &[u8], message: &ToCoordinator) {
        for number in numbers {
            self.say(*number, message.clone());
        }
    }

    pub(super) fn confirm(&mut self, numbers: &[u8], epoch: u64) {
        self.all_say(numbers, &ToCoordinator::Connected { group: 0, epoch });
    }

    pub(super) fn close(&mut self, number: u8) {
        self.run.handle_closed(self.now, self.at[&number]);
        self.drain();
    }

    pub(super) fn resume(&mut self, number: u8, resume: Resume) {
        self.resume_only(number, resume);
        self.promise();
    }

    /// A resume, and no promise yet.
    pub(super) fn resume_only(&mut self, number: u8, resume: Resume) {
        let at = self.connection();
        self.at.insert(number, at);
        self.run.handle_message(self.now, at, id(number), ToCoordinator::Resume(resume));
        self.drain();
    }

    /// Everybody who was told a term obeys no lower one.
    pub(super) fn promise(&mut self) {
        let all: Vec<_> = self.at.keys().copied().collect();
        self.promise_of(&all);
    }

    /// The same of these alone.
    pub(super) fn promise_of(&mut self, numbers: &[u8]) {
        let known = self.at.clone();
        for (number, at) in known.into_iter().filter(|(number, _)| numbers.contains(number)) {
            let told = self.inbox.get(&at).into_iter().flatten();
            let term = told.filter_map(|message| match message {
                ToPeer::Resumed { term } => Some(*term),
                _ => None,
            });
            if let Some(term) = term.max().filter(|_| !self.closed.contains(&at)) {
                self.say(number, ToCoordinator::Promise { term });
            }
        }
    }

    pub(super) fn health(&mut self, number: u8, sign: Sign) {
        self.run.handle_health(self.now, id(number), sign);
        self.drain();
    }

    /// Answers every connect that waits: a peer's own port as told, the port where nobody listens by refusing.
    pub(super) fn answer_knocks(&mut self, port: ConnectOutcome) {
        for (token, to) in std::mem::take(&mut self.knocks) {
            let outcome = if to.port() == 7_001 { ConnectOutcome::Refused } else { port };
            self.run.handle_connect(self.now, token, outcome);
        }
        self.drain();
    }

    /// Answers every dial of a broken link that peers were asked for; says which those were.
    pub(super) fn answer_redials(
        &mut self,
        well: impl Fn((PeerId, PeerId)) -> bool,
    ) -> Vec<(PeerId, PeerId)> {
        let asked: Vec<_> = std::mem::take(&mut self.redials)
            .into_iter()
            .filter_map(|(at, group, to)| {
                let number = self.at.iter().find(|(_, own)| **own == at)?.0;
                Some((*number, group, to))
            })
            .collect();
        for (number, group, to) in &asked {
            let error = (!well((id(*number), *to))).then(|| "silent".to_owned());
            self.say(*number, ToCoordinator::Redialled { group: *group, to: *to, error });
        }
        asked.into_iter().map(|(number, _, to)| (id(number), to)).collect()
    }

    /// Lets that much time pass.
    pub(super) fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.run.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.run.handle_timeout(self.now);
            self.drain();
            assert!(
                self.run.poll_timeout().is_none_or(|next| next > due),
                "a timer must not be set to the past"
            );
        }
        self.now = until;
    }

    /// Stands still for that long, and then looks at the clock.
    pub(super) fn sleep(&mut self, time: Duration) {
        self.now += time;
        self.run.handle_timeout(self.now);
        self.drain();
    }

    /// What a peer was told since it was last asked.
    pub(super) fn told(&mut self, number: u8) -> Vec<ToPeer> {
        self.inbox.remove(&self.at[&number]).unwrap_or_default()
    }

    pub(super) fn assert_told(&mut self, numbers: &[u8], expected: &[ToPeer]) {
        for number in numbers {
            assert_eq!(self.told(*number), expected, "peer {number}");
        }
    }

    pub(super) fn clear(&mut self) {
        self.inbox.clear();
        self.notes.clear();
        self.closed.clear();
        self.knocks.clear();
    }

    /// The epoch that a peer was told last, if any.
    pub(super) fn epoch(&mut self, number: u8) -> Option<EpochRecord> {
        let told = self.told(number);
        told.into_iter().rev().find_map(|message| match message {
            ToPeer::Epoch(record) => Some(record),
            _ => None,
        })
    }

    pub(super) fn kicked(&mut self, number: u8) -> Option<(KickReason, String)> {
        self.told(number).into_iter().find_map(|message| match message {
            ToPeer::Kicked { reason, text, .. } => Some((reason, text)),
            _ => None,
        })
    }

    pub(super) fn lost(&self) -> Vec<(PeerId, LossReason)> {
        let lost = |note: &Note| match note {
            Note::Lost(peer, reason) => Some((*peer, *reason)),
            _ => None,
        };
        self.notes.iter().filter_map(lost).collect()
    }
}

pub(super) fn members(record: &EpochRecord) -> Vec<PeerId> {
    record.roster.iter().map(|info| info.id).collect()
}

/// A record as these members would have it.
pub(super) fn record(epoch: u64, numbers: &[u8]) -> EpochRecord {
    EpochRecord {
        run_epoch: epoch,
        group: 0,
        epoch,
        roster: numbers.iter().map(|number| info(*number)).collect(),
        ring: (0..numbers.len() as u32).collect(),
        decider: Decider::Coordinator,
        global_world_size: numbers.len() as u32,
        joined: Vec::new(),
        left: Vec::new(),
        founder: founder(numbers[0]),
        broken: Vec::new(),
        incumbents: 0,
        ancestors: Vec::new(),
        ballots: vec![(ADMISSION, Tally { ended: 1, agreed: 1 })],
    }
}

/// The resume of a peer that knows nothing but the epoch.
pub(super) fn resume(number: u8, record: EpochRecord) -> Resume {
    Resume {
        registration: registration(number, record.group, 1),
        generation: 2,
        term: 1,
        record,
        tags: Vec::new(),
        ballots: heard(1, 1),
        behind_from: None,
        remembers_from: 0,
        revision: None,
    }
}

pub(super) fn open(key: OpKey, complete: bool) -> TagReport {
    let vote = OpenVote { key, fingerprint: call(8), timeout_ms: 10_000, complete };
    TagReport { learned: Vec::new(), open: Some(vote) }
}

pub(super) fn learned(key: OpKey, verdict: Verdict) -> TagReport {
    TagReport { learned: vec![(key, verdict)], open: None }
}
