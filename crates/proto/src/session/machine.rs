//! The session: connection, membership, attempts.

use super::Config;
use super::calls::{CallError, CallId, Command, Done, Op, OutReason, Outcome, PerformResult};
use super::tags::{Learned, TagMemory};
use crate::collective::{OpKey, Scope, Tag};
use crate::id::PeerId;
use crate::time::{Duration, Instant};
use crate::wire::control::{
    AbortReason, EpochRecord, LossReason, OpenVote, Refusal, Registration, Resume, TagReport, Term,
    ToCoordinator, ToPeer, Verdict,
};
use std::collections::{BTreeMap, VecDeque};

/// What the driver is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Dial the coordinator; answer with `handle_connected` or `handle_disconnected`.
    Dial,
    /// Close the connection to the coordinator, once what was sent before is on its way.
    HangUp,
    /// Send a message.
    Send(ToCoordinator),
    /// Build the links of this epoch; answer with `handle_links_up` or `handle_link_broken`.
    OpenEpoch(EpochRecord),
    /// Tell the thread of a call.
    Call(CallId, Command),
}

/// Where an attempt is.
#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// Between attempts.
    Waiting,
    /// The executor moves bytes; an abort may have arrived meanwhile.
    Performing { key: OpKey, aborted: Option<AbortReason>, refused: bool },
    /// We said Complete.
    Complete { key: OpKey },
    /// We gave up before Complete, and wait for the verdict to say why.
    Refused { key: OpKey },
}

#[derive(Clone, Debug)]
struct Call {
    op: Op,
    stage: Stage,
    attempts: u32,
    cancelled: bool,
}

#[derive(Clone, Debug)]
struct TopologyCall {
    id: CallId,
    min_world: u32,
    deadline: Instant,
    joined: Vec<PeerId>,
    left: Vec<(PeerId, LossReason)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// Nothing is wanted.
    Off,
    /// Dial again at that moment.
    Down {
        redial_at: Instant,
    },
    Dialling,
    /// Connected; Register or Resume is sent.
    Opening,
    /// The coordinator knows us.
    Up,
}

/// One peer's session.
///
/// Calling contract: messages of one connection in their order; `handle_performed` exactly once per
/// `Command::Perform`; drain `poll_action` after every call, and do what it says in that order.
#[derive(Debug)]
pub struct Session {
    config: Config,
    registration: Registration,
    generation: u32,
    term: Term,
    connection: Connection,
    down_since: Option<Instant>,
    redial: Duration,
    record: Option<EpochRecord>,
    /// The epoch whose links are up.
    linked: Option<u64>,
    /// After an abort: attempts wait for `Proceed` or a new epoch.
    hold: bool,
    calls: BTreeMap<CallId, Call>,
    topology: Option<TopologyCall>,
    tags: BTreeMap<(Scope, Tag), TagMemory>,
    global_world_size: u32,
    out: Option<OutReason>,
    serial: u64,
    actions: VecDeque<Action>,
}

impl Session {
    /// A session that has not begun. `registration` names us; its session id must be fresh and random.
    pub fn new(config: Config, registration: Registration) -> Self {
        let redial = config.redial.0;
        Self {
            config,
            registration,
            generation: 0,
            term: 0,
            connection: Connection::Off,
            down_since: None,
            redial,
            record: None,
            linked: None,
            hold: false,
            calls: BTreeMap::new(),
            topology: None,
            tags: BTreeMap::new(),
            global_world_size: 0,
            out: Some(OutReason::NotConnected),
            serial: 0,
            actions: VecDeque::new(),
        }
    }

    /// The program wants to take part. Ends when admitted and the group is large enough. Also after a session
    /// is over: under the same id, by which a coordinator that has not heard of the end knows us again.
    pub fn handle_connect_call(&mut self, now: Instant, min_world: u32, deadline: Instant) -> CallId {
        let id = self.next_call();
        self.out = None;
        self.registration.min_world = min_world.max(1);
        self.begin_topology(id, min_world, deadline);
        self.down_since = Some(now);
        self.dial();
        id
    }

    /// The program is ready for newcomers.
    pub fn handle_topology_call(&mut self, now: Instant, min_world: u32, deadline: Instant) -> CallId {
        let id = self.next_call();
        if let Some(reason) = self.out.clone() {
            self.finish(id, Err(CallError::Out(reason)));
            return id;
        }
        self.begin_topology(id, min_world, deadline);
        if self.is_up() {
            self.send(ToCoordinator::VoteTopology { min_world: min_world.max(1) });
        }
        let _ = now;
        id
    }

    /// The program wants a collective. Two with one (scope, tag) at a time are refused by the driver.
    pub fn handle_op_call(&mut self, now: Instant, op: Op) -> CallId {
        let id = self.next_call();
        if let Some(reason) = self.out.clone() {
            self.finish(id, Err(CallError::Out(reason)));
            return id;
        }
        self.calls.insert(id, Call { op, stage: Stage::Waiting, attempts: 0, cancelled: false });
        self.attempt(now, id);
        id
    }

    /// The program gives a call up (Ctrl-C, a dropped handle).
    pub fn handle_cancel(&mut self, now: Instant, id: CallId) {
        if self.topology.as_ref().is_some_and(|call| call.id == id) {
            self.end_topology(Err(CallError::Cancelled));
            return;
        }
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.cancelled = true;
        match call.stage.clone() {
            Stage::Waiting => self.abandon(id, None, CallError::Cancelled),
            Stage::Performing { .. } => self.refuse(now, id, Refusal::Cancelled),
            // Too late to give up alone: the verdict decides (rule 5).
            Stage::Complete { .. } | Stage::Refused { .. } => {}
        }
    }

    /// The program leaves. Nobody mistakes it for a failure.
    pub fn handle_leave(&mut self, _now: Instant) {
        if self.is_up() {
            self.send(ToCoordinator::Leave);
        }
        self.end(OutReason::Left);
    }

    /// The connection to the coordinator is there.
    pub fn handle_connected(&mut self, now: Instant) {
        if self.connection != Connection::Dialling {
            return;
        }
        self.connection = Connection::Opening;
        let message = match &self.record {
            None => ToCoordinator::Register(self.registration.clone()),
            Some(record) => {
                self.generation += 1;
                ToCoordinator::Resume(Resume {
                    registration: self.registration.clone(),
                    generation: self.generation,
                    term: self.term,
                    record: record.clone(),
                    tags: self.reports(now),
                    topology_vote: self.topology.as_ref().map(|call| call.min_world.max(1)),
                })
            }
        };
        self.send(message);
    }

    /// The connection is gone, or could not be made.
    pub fn handle_disconnected(&mut self, now: Instant) {
        if self.connection == Connection::Off {
            return;
        }
        if self.connection == Connection::Up {
            self.redial = self.config.redial.0;
            self.down_since = Some(now);
        }
        self.connection = Connection::Down { redial_at: now + self.redial };
        self.redial = (self.redial * 2).min(self.config.redial.1);
    }

    /// A message arrived.
    pub fn handle_message(&mut self, now: Instant, message: ToPeer) {
        if self.out.is_some() {
            return;
        }
        match message {
            ToPeer::Registered { term } | ToPeer::Resumed { term } => self.greeted(now, term),
            ToPeer::Epoch(record) => self.open_epoch(now, record),
            ToPeer::TopologyDone { run_epoch, global_world_size } => {
                self.global_world_size = global_world_size;
                let Some(call) = &self.topology else { return };
                let epoch = self.record.as_ref().map_or(0, |record| record.epoch);
                let (joined, left) = (call.joined.clone(), call.left.clone());
                self.end_topology(Ok(Done::Topology { run_epoch, epoch, joined, left }));
            }
            ToPeer::Verdict { key, verdict } => self.verdict(now, key, verdict),
            ToPeer::Proceed { group, epoch } => {
                if self.record.as_ref().is_some_and(|record| (record.group, record.epoch) == (group, epoch)) {
                    self.hold = false;
                    self.attempt_all(now);
                }
            }
            ToPeer::TopologyMismatch { others } => {
                self.end_topology(Err(CallError::Mismatch { ours: "update_topology".to_owned(), others }));
            }
            ToPeer::Kicked { reason, text } => self.end(OutReason::Kicked(reason, text)),
            ToPeer::Status(_) => {}
        }
    }

    /// All links of that epoch that this peer dials are up.
    pub fn handle_links_up(&mut self, epoch: u64) {
        if let Some(record) = self.record.as_ref().filter(|record| record.epoch == epoch) {
            let group = record.group;
            self.linked = Some(epoch);
            if self.is_up() {
                self.send(ToCoordinator::Connected { group, epoch });
            }
        }
    }

    /// A link of that epoch broke outside of any attempt, or could not be dialled.
    pub fn handle_link_broken(
        &mut self,
        epoch: u64,
        from: PeerId,
        to: PeerId,
        dialling: bool,
        error: String,
    ) {
        if let Some(record) = self.record.as_ref().filter(|record| record.epoch == epoch) {
            let group = record.group;
            if self.is_up() {
                self.send(ToCoordinator::LinkBroken { group, epoch, from, to, dialling, error });
            }
        }
    }

    /// The executor is done with an attempt and holds nothing of the caller's any more.
    pub fn handle_performed(&mut self, now: Instant, id: CallId, result: PerformResult) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Stage::Performing { key, aborted, refused } = call.stage.clone() else { return };
        let done = result == PerformResult::Done;
        if let Some(reason) = aborted {
            if done {
                self.command(id, Command::Undo);
            }
            return self.aborted(now, id, reason);
        }
        if refused {
            // The verdict will say why; until then nothing of ours is touched.
            if done {
                self.command(id, Command::Undo);
            }
            self.set_stage(id, Stage::Refused { key });
            return;
        }
        let refusal = match result {
            PerformResult::Done => {
                self.set_stage(id, Stage::Complete { key: key.clone() });
                if self.is_up() {
                    self.send(ToCoordinator::Complete { key });
                }
                return;
            }
            PerformResult::Stopped => Refusal::Cancelled,
            PerformResult::LinkBroken { from, to, error } => Refusal::Link { from, to, error },
            PerformResult::Mismatch { peer } => Refusal::Mismatch { peer },
        };
        self.set_stage(id, Stage::Refused { key: key.clone() });
        if self.is_up() {
            self.send(ToCoordinator::Refuse { key, reason: refusal });
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Connection::Down { redial_at } = self.connection
            && now >= redial_at
        {
            self.dial();
        }
        if self.down_since.is_some_and(|since| now.since(since) >= self.config.control_lost_after) {
            return self.end(OutReason::CoordinatorLost);
        }
        if self.topology.as_ref().is_some_and(|call| now >= call.deadline) {
            self.end_topology(Err(CallError::Timeout(Vec::new())));
        }
        let due: Vec<_> =
            self.calls.iter().filter(|(_, call)| now >= call.op.deadline).map(|(id, _)| *id).collect();
        for id in due {
            self.overdue(now, id);
        }
    }

    fn overdue(&mut self, now: Instant, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        let late = now.since(call.op.deadline) >= self.config.verdict_grace;
        match call.stage.clone() {
            Stage::Waiting => self.abandon(id, None, CallError::Timeout(Vec::new())),
            Stage::Performing { refused: false, .. } => self.refuse(now, id, Refusal::Deadline),
            // Before Complete a peer may refuse for good and return (rule 5).
            Stage::Refused { key } if late => self.abandon(id, Some(key), CallError::Timeout(Vec::new())),
            Stage::Complete { .. } if late => self.end(OutReason::OutcomeUnknown),
            Stage::Performing { .. } | Stage::Refused { .. } | Stage::Complete { .. } => {}
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call `handle_timeout`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let redial = match self.connection {
            Connection::Down { redial_at } => Some(redial_at),
            _ => None,
        };
        let lost = self.down_since.map(|since| since + self.config.control_lost_after);
        let topology = self.topology.as_ref().map(|call| call.deadline);
        let calls = self.calls.values().filter_map(|call| match &call.stage {
            Stage::Performing { refused: true, .. } => None,
            Stage::Waiting | Stage::Performing { .. } => Some(call.op.deadline),
            Stage::Complete { .. } | Stage::Refused { .. } => {
                Some(call.op.deadline + self.config.verdict_grace)
            }
        });
        redial.into_iter().chain(lost).chain(topology).chain(calls).min()
    }

    /// The group's epoch that this peer is in, once admitted.
    pub fn record(&self) -> Option<&EpochRecord> {
        self.record.as_ref()
    }

    /// Members of all groups together, as last told.
    pub fn global_world_size(&self) -> u32 {
        self.global_world_size
    }

    /// Why the session is over, if it is.
    pub fn out(&self) -> Option<&OutReason> {
        self.out.as_ref()
    }

    /// The tags of collectives that are not finished.
    pub fn open_tags(&self) -> Vec<Tag> {
        self.calls.values().map(|call| call.op.tag).collect()
    }

    /// Whether a collective with that scope and tag is not finished.
    pub fn is_open(&self, scope: &Scope, tag: Tag) -> bool {
        self.calls.values().any(|call| call.op.tag == tag && call.op.scope == *scope)
    }

    // Attempts.

    fn attempt_all(&mut self, now: Instant) {
        let waiting: Vec<_> =
            self.calls.iter().filter(|(_, call)| call.stage == Stage::Waiting).map(|(id, _)| *id).collect();
        for id in waiting {
            self.attempt(now, id);
        }
    }

    /// Begins the next attempt of a call, if nothing stands in its way.
    fn attempt(&mut self, now: Instant, id: CallId) {
        if !self.is_up() {
            return;
        }
        let Some(record) = self.record.clone() else { return };
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.stage == Stage::Waiting) else { return };
        let (scope, tag) = (call.op.scope.clone(), call.op.tag);
        let memory = self.tags.entry((scope.clone(), tag)).or_default();
        let seq = memory.next_seq(record.epoch);
        if let Some(reason) = memory.claim() {
            call.attempts += 1;
            return self.aborted(now, id, reason);
        }
        if self.hold {
            return;
        }
        let roster: Vec<_> = record.roster.iter().map(|info| info.id).collect();
        let members: Vec<_> = roster.iter().copied().filter(|peer| scope.involves(*peer)).collect();
        if let Scope::Members(listed) = &scope {
            let gone: Vec<_> = listed.iter().copied().filter(|peer| !members.contains(peer)).collect();
            if !gone.is_empty() {
                let lost = gone.into_iter().map(|peer| (peer, LossReason::Left)).collect();
                return self.fail(id, CallError::PeersLost(lost));
            }
        }
        let want = call.op.fingerprint.min_world;
        if members.len() < want as usize {
            return self.fail(id, CallError::TooFewPeers { have: members.len(), want });
        }
        let ring = record.ring.iter().map(|rank| roster[*rank as usize]).filter(|peer| scope.involves(*peer));
        let ring: Vec<_> = ring.collect();
        let key = OpKey { group: record.group, epoch: record.epoch, scope, tag, seq };
        call.attempts += 1;
        call.stage = Stage::Performing { key: key.clone(), aborted: None, refused: false };
        let fingerprint = call.op.fingerprint.clone();
        let timeout_ms = millis(call.op.deadline.since(now));
        self.send(ToCoordinator::Initiate { key: key.clone(), fingerprint, timeout_ms });
        self.command(id, Command::Perform { key, ring });
    }

    /// A verdict arrived.
    fn verdict(&mut self, now: Instant, key: OpKey, verdict: Verdict) {
        let place = (key.scope.clone(), key.tag);
        let memory = self.tags.entry(place).or_default();
        let mine = self.calls.iter().find(|(_, call)| match &call.stage {
            Stage::Waiting => false,
            Stage::Performing { key: open, .. }
            | Stage::Complete { key: open }
            | Stage::Refused { key: open } => *open == key,
        });
        let Some((&id, call)) = mine else {
            match memory.keep(&key, &verdict) {
                Learned::Known | Learned::Dropped => {}
                Learned::Kept => self.send(ToCoordinator::Acknowledge { key }),
                Learned::Overflow | Learned::Impossible => return self.end(OutReason::OutcomeUnknown),
            }
            if let Verdict::Abort(AbortReason::PeersLost(_) | AbortReason::LinkBroken { .. }) = verdict {
                self.hold = true;
            }
            return;
        };
        let stage = call.stage.clone();
        memory.learn(&key, &verdict);
        match (verdict, stage) {
            (Verdict::Commit { pending }, Stage::Complete { .. }) => {
                self.command(id, Command::Commit);
                self.commit(id, key, pending);
            }
            // A commit without our Complete cannot be: whoever says so is no coordinator of ours.
            (Verdict::Commit { .. }, _) => self.end(OutReason::OutcomeUnknown),
            (Verdict::Abort(reason), stage) => {
                if matches!(reason, AbortReason::PeersLost(_) | AbortReason::LinkBroken { .. }) {
                    self.hold = true;
                }
                match stage {
                    Stage::Performing { key, refused, .. } => {
                        self.set_stage(id, Stage::Performing { key, aborted: Some(reason), refused });
                        self.command(id, Command::Abort);
                    }
                    Stage::Complete { .. } => {
                        self.command(id, Command::Undo);
                        self.aborted(now, id, reason);
                    }
                    Stage::Refused { .. } => self.aborted(now, id, reason),
                    Stage::Waiting => {}
                }
            }
        }
    }

    fn commit(&mut self, id: CallId, key: OpKey, pending: u32) {
        let Some(call) = self.calls.get(&id) else { return };
        let attempts = call.attempts;
        let Some(record) = &self.record else { return };
        let roster = record.roster.iter().map(|info| info.id);
        let done = Done::Committed {
            contributors: roster.filter(|peer| key.scope.involves(*peer)).collect(),
            key,
            rank: record.rank_of(self.registration.info.id).unwrap_or(0),
            world_size: record.roster.len(),
            attempts,
            pending,
        };
        self.calls.remove(&id);
        self.finish(id, Ok(done));
    }

    /// An attempt was aborted and the caller's data is as it was: try again, or say why not. Every member
    /// decides this from the verdict and the fingerprint alone, so all decide the same (rule 8).
    fn aborted(&mut self, now: Instant, id: CallId, reason: AbortReason) {
        let me = self.registration.info.id;
        let Some(call) = self.calls.get(&id) else { return };
        let retry = call.op.fingerprint.retry;
        let ours = || call.op.fingerprint.to_string();
        let error = match reason {
            AbortReason::Timeout(waiting) => Some(CallError::Timeout(waiting)),
            AbortReason::Mismatch { deviating, common, .. } if deviating.contains(&me) => {
                Some(CallError::Mismatch { ours: ours(), others: common })
            }
            AbortReason::Cancelled { by } if by == me => Some(CallError::Cancelled),
            _ if call.cancelled => Some(CallError::Cancelled),
            _ if now >= call.op.deadline => Some(CallError::Timeout(Vec::new())),
            _ if retry => None,
            AbortReason::PeersLost(lost) => Some(CallError::PeersLost(lost)),
            AbortReason::LinkBroken { from, to, error } => Some(CallError::LinkBroken { from, to, error }),
            AbortReason::Mismatch { deviating, theirs, .. } => {
                let who: Vec<_> = deviating.iter().map(PeerId::short).collect();
                Some(CallError::GivenUp(format!("{} called {theirs}", who.join(", "))))
            }
            AbortReason::Cancelled { by } => Some(CallError::GivenUp(format!("cancelled by {}", by.short()))),
            AbortReason::EpochOver => Some(CallError::GivenUp("the epoch ended".to_owned())),
            AbortReason::Rebuilt => Some(CallError::GivenUp("the coordinator was restarted".to_owned())),
        };
        if let Some(error) = error {
            return self.fail(id, error);
        }
        self.set_stage(id, Stage::Waiting);
        self.attempt(now, id);
    }

    /// Gives an attempt up while the executor is at it: it is told to stop, and the others are told.
    fn refuse(&mut self, _now: Instant, id: CallId, reason: Refusal) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Stage::Performing { key, refused, .. } = &mut call.stage else { return };
        if std::mem::replace(refused, true) {
            return;
        }
        let key = key.clone();
        self.command(id, Command::Abort);
        if self.is_up() {
            self.send(ToCoordinator::Refuse { key, reason });
        }
    }

    /// Ends a call whose verdict, if one comes, belongs to nobody.
    fn abandon(&mut self, id: CallId, key: Option<OpKey>, error: CallError) {
        if let Some(call) = self.calls.get(&id) {
            let place = (call.op.scope.clone(), call.op.tag);
            self.tags.entry(place).or_default().abandon(key);
        }
        self.fail(id, error);
    }

    // Membership.

    fn greeted(&mut self, now: Instant, term: Term) {
        // Who is in no epoch has nothing that an older coordinator could undo: it takes whichever is there.
        if term < self.term && self.record.is_some() {
            // A coordinator of the past: not ours any more (rule 17).
            self.act(Action::HangUp);
            return self.handle_disconnected(now);
        }
        self.term = term;
        self.connection = Connection::Up;
        self.down_since = None;
        self.redial = self.config.redial.0;
        self.hold = false;
        if let Some(record) = &self.record {
            let (group, epoch) = (record.group, record.epoch);
            if self.linked == Some(epoch) {
                self.send(ToCoordinator::Connected { group, epoch });
            }
            self.attempt_all(now);
        }
    }

    fn open_epoch(&mut self, now: Instant, record: EpochRecord) {
        let me = self.registration.info.id;
        if record.group != self.registration.group || record.rank_of(me).is_none() {
            return; // Not about us: a coordinator of ours would not send it.
        }
        if self.record.as_ref().is_some_and(|known| known.epoch >= record.epoch) {
            return;
        }
        let before: Vec<_> = self.record.iter().flat_map(|known| &known.roster).map(|info| info.id).collect();
        let told: BTreeMap<_, _> = record.left.iter().copied().collect();
        if let Some(call) = &mut self.topology {
            let here = |peer: &PeerId| record.rank_of(*peer).is_some();
            let reason = |peer: &PeerId| told.get(peer).copied().unwrap_or(LossReason::NotResumed);
            call.left.extend(before.iter().filter(|peer| !here(peer)).map(|peer| (*peer, reason(peer))));
            let came =
                record.roster.iter().map(|info| info.id).filter(|peer| !before.contains(peer) && *peer != me);
            call.joined.extend(came);
            call.joined.retain(|peer| here(peer));
        }
        self.global_world_size = record.global_world_size;
        self.hold = false;
        self.record = Some(record.clone());
        self.act(Action::OpenEpoch(record));
        // Looked up before anything is tried again: an attempt of the new epoch is not to be aborted with it.
        let performing: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, call)| matches!(call.stage, Stage::Performing { aborted: None, .. }))
            .map(|(id, _)| *id)
            .collect();
        // Whatever was still open in the old epoch has had its verdict; what has none was never decided.
        let stale: Vec<_> = self
            .calls
            .iter()
            .filter_map(|(id, call)| match &call.stage {
                Stage::Refused { .. } => Some((*id, false)),
                Stage::Complete { .. } => Some((*id, true)),
                Stage::Waiting | Stage::Performing { .. } => None,
            })
            .collect();
        for (id, complete) in stale {
            if complete {
                return self.end(OutReason::OutcomeUnknown);
            }
            self.aborted(now, id, AbortReason::EpochOver);
        }
        for id in performing {
            if let Some(Stage::Performing { aborted, .. }) =
                self.calls.get_mut(&id).map(|call| &mut call.stage)
            {
                *aborted = Some(AbortReason::EpochOver);
            }
            self.command(id, Command::Abort);
        }
        self.attempt_all(now);
    }

    fn begin_topology(&mut self, id: CallId, min_world: u32, deadline: Instant) {
        let (joined, left) = (Vec::new(), Vec::new());
        self.topology = Some(TopologyCall { id, min_world, deadline, joined, left });
    }

    fn end_topology(&mut self, outcome: Outcome) {
        let Some(call) = self.topology.take() else { return };
        if outcome.is_err() && self.is_up() {
            self.send(ToCoordinator::VoteTopology { min_world: 0 });
        }
        self.finish(call.id, outcome);
    }

    /// All that this peer knows and a coordinator may have forgotten.
    fn reports(&self, now: Instant) -> Vec<TagReport> {
        let open = |place: &(Scope, Tag)| {
            self.calls.values().find(|call| call.op.scope == place.0 && call.op.tag == place.1).and_then(
                |call| {
                    let (key, complete) = match &call.stage {
                        Stage::Waiting => return None,
                        Stage::Performing { key, .. } | Stage::Refused { key } => (key.clone(), false),
                        Stage::Complete { key } => (key.clone(), true),
                    };
                    let timeout_ms = millis(call.op.deadline.since(now));
                    Some(OpenVote { key, fingerprint: call.op.fingerprint.clone(), timeout_ms, complete })
                },
            )
        };
        self.tags
            .iter()
            .map(|(place, memory)| TagReport { learned: memory.learned(), open: open(place) })
            .filter(|report| !report.learned.is_empty() || report.open.is_some())
            .collect()
    }

    /// The session is over: every call ends, and its data is as it was (rule 5).
    fn end(&mut self, reason: OutReason) {
        if self.out.is_some() {
            return;
        }
        if self.is_up() && matches!(reason, OutReason::OutcomeUnknown) {
            // Nobody need wait for somebody who fenced itself.
            self.send(ToCoordinator::Leave);
        }
        self.out = Some(reason.clone());
        self.connection = Connection::Off;
        self.down_since = None;
        self.act(Action::HangUp);
        let calls = std::mem::take(&mut self.calls);
        for (id, call) in calls {
            match call.stage {
                Stage::Performing { .. } => self.command(id, Command::Abort),
                Stage::Complete { .. } => self.command(id, Command::Undo),
                Stage::Waiting | Stage::Refused { .. } => {}
            }
            self.finish(id, Err(CallError::Out(reason.clone())));
        }
        if let Some(call) = self.topology.take() {
            self.finish(call.id, Err(CallError::Out(reason)));
        }
        self.record = None;
        self.linked = None;
        self.tags.clear();
        self.generation = 0;
        self.term = 0;
        self.hold = false;
    }

    // Small things.

    fn is_up(&self) -> bool {
        self.connection == Connection::Up
    }

    fn dial(&mut self) {
        self.connection = Connection::Dialling;
        self.act(Action::Dial);
    }

    fn next_call(&mut self) -> CallId {
        self.serial += 1;
        CallId(self.serial)
    }

    fn set_stage(&mut self, id: CallId, stage: Stage) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.stage = stage;
        }
    }

    fn fail(&mut self, id: CallId, error: CallError) {
        self.calls.remove(&id);
        self.finish(id, Err(error));
    }

    fn finish(&mut self, id: CallId, outcome: Outcome) {
        self.command(id, Command::Finish(outcome));
    }

    fn command(&mut self, id: CallId, command: Command) {
        self.act(Action::Call(id, command));
    }

    fn send(&mut self, message: ToCoordinator) {
        self.act(Action::Send(message));
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
