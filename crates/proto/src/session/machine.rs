//! The session's state and face: connection, membership, time. What becomes of a call is in `attempts`.

use super::Config;
use super::attempts::{Call, Stage};
use super::ballots::Ballots;
use super::calls::{CallError, CallId, Command, Op, OutReason, Outcome};
use super::tags::TagMemory;
use super::transfers::Transfers;
use crate::annals::Annals;
use crate::collective::{OpKey, Scope, Tag};
use crate::id::PeerId;
use crate::limits::{NAMED_MAX, OPEN_TENSORS_MAX, SCOPES_MEMBERS_MAX, TAGS_MAX};
use crate::retry;
use crate::state::Revision;
use crate::time::{Duration, Instant};
use crate::wire::InvalidMessage;
use crate::wire::control::{
    BallotEnd, EpochRecord, LossReason, OpenVote, Refusal, Registration, Resume, TagReport, Term,
    ToCoordinator, ToPeer,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// What the driver is asked to do.
#[expect(
    clippy::large_enum_variant,
    reason = "actions are carried out one at a time and never kept in numbers"
)]
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Action {
    /// Dial the coordinator; answer with `handle_connected` or `handle_disconnected`.
    Dial,
    /// Close the connection to the coordinator, once what was sent before is on its way.
    HangUp,
    /// Send a message.
    Send(ToCoordinator),
    /// Build the links of this epoch; answer with `handle_links_up` or `handle_link_broken`.
    OpenEpoch(EpochRecord),
    /// That epoch may come, with another ring for the same members: make sure of the link that we would dial, and leave
    /// everything as it is. Answer with `handle_prepared` and the number.
    Prepare(EpochRecord, u64),
    /// Find out whether that peer's port can be reached: dial it, prove that it is that peer, hang up. Answer with
    /// `handle_redialled`.
    Redial(PeerId, SocketAddr),
    /// Build the link of the present epoch towards that peer once more; answer as for the epoch. It could not be dialled
    /// before, and takes dials again.
    Relink(PeerId),
    /// Tell the program: a link of the ring carries much less than it did.
    Slowed(SlowLink),
    /// Remember until the call ends: that peer made it last, so long after the first.
    CalledLast(OpKey, PeerId, Duration),
    /// Tell the thread of a call.
    Call(CallId, Command),
}

/// A link that carries much less than when the ring was made, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlowLink {
    /// The end that sends.
    pub from: PeerId,
    /// The end that receives.
    pub to: PeerId,
    /// Then.
    pub before: u64,
    /// Now.
    pub rate: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
/// Calling contract: messages of one connection in their order, and none of a connection before the last
/// `Dial`; `handle_performed` exactly once per `Command::Perform`; drain `poll_action` after every call, and do
/// what it says in that order.
#[derive(Clone, Debug, Hash)]
pub struct Session {
    pub(super) config: Config,
    pub(super) registration: Registration,
    /// Counts connections, over the whole life of this object.
    generation: u32,
    term: Term,
    connection: Connection,
    down_since: Option<Instant>,
    redial: Duration,
    /// Shared, because every attempt looks into it while the rest of the session changes.
    pub(super) record: Option<Arc<EpochRecord>>,
    /// The epoch whose links are up.
    pub(super) linked: Option<u64>,
    /// After an abort: attempts wait for `Proceed` or a new epoch.
    pub(super) hold: bool,
    /// After a resume: until `Proceed` we hear what we missed, and neither vote nor begin anything (rule 43).
    pub(super) resuming: bool,
    /// The epoch that it knew when it began to hear what it missed. A connection may break between the newest epoch and
    /// the verdicts that fell before it, so until `Proceed` the record does not say what it has heard (rule 43).
    behind_from: Option<u64>,
    pub(super) calls: BTreeMap<CallId, Call>,
    /// What the group votes on besides collectives.
    pub(super) ballots: Ballots,
    /// The last revision of the group's shared state that this peer took part in agreeing on.
    pub(super) revision: Option<Revision>,
    pub(super) tags: BTreeMap<(Scope, Tag), TagMemory>,
    pub(super) transfers: Transfers,
    /// What was learned in epochs before this one may be forgotten.
    remembers_from: u64,
    /// Who went lately, and why; the latest last.
    departed: VecDeque<(PeerId, LossReason)>,
    /// The question about the link of an epoch that may come, until it is answered or whoever asked is gone.
    pub(super) asked: Option<u64>,
    /// Broken links of this epoch that could not be reported yet.
    pub(super) unreported: Vec<ToCoordinator>,
    /// What happened to the run, for a coordinator that has forgotten it.
    annals: Annals,
    global_world_size: u32,
    pub(super) out: Option<OutReason>,
    serial: u64,
    pub(super) actions: VecDeque<Action>,
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
            resuming: false,
            behind_from: None,
            calls: BTreeMap::new(),
            ballots: Ballots::default(),
            revision: None,
            tags: BTreeMap::new(),
            transfers: Transfers::default(),
            remembers_from: 0,
            departed: VecDeque::new(),
            asked: None,
            unreported: Vec::new(),
            annals: Annals::default(),
            global_world_size: 0,
            out: Some(OutReason::NotConnected),
            serial: 0,
            actions: VecDeque::new(),
        }
    }

    /// The program wants to take part. Ends when admitted and the group is large enough. Who is in already
    /// just votes for newcomers.
    pub fn handle_connect_call(&mut self, now: Instant, min_world: u32, deadline: Instant) -> CallId {
        if self.out.is_none() {
            return self.handle_admission_call(now, min_world, deadline);
        }
        let id = self.next_call();
        self.out = None;
        // The promise to obey no lower term (rule 17) was the old session's, which is over. A process that was just
        // started knows of none either; and a run that began afresh would be closed to this one for ever.
        self.term = 0;
        if self.generation > 0 {
            // What was said of the session that is over must not touch this one (rule 45).
            self.registration.session = self.registration.session.next();
            self.generation = 0;
        }
        self.registration.min_world = min_world.max(1);
        self.wait_for_admission(id, min_world, deadline);
        self.redial = self.config.redial.0;
        self.dial();
        id
    }

    /// The program wants a collective. One of a (scope, tag) that has one in flight is refused.
    pub fn handle_op_call(&mut self, now: Instant, op: Op) -> CallId {
        let id = self.next_call();
        if let Some(reason) = self.out.clone() {
            self.finish(id, Err(CallError::Out(reason)));
            return id;
        }
        let place = (op.scope.clone(), op.tag);
        let checked = self.is_free(&op).and_then(|()| self.fits(&op)).and_then(|()| self.make_room(&place));
        if let Err(error) = checked {
            self.finish(id, Err(error));
            return id;
        }
        self.tags.entry(place).or_default().begin();
        self.calls.insert(id, Call::new(op));
        self.attempt(now, id);
        id
    }

    /// One (scope, tag) has one collective at a time, because its attempts are numbered.
    fn is_free(&self, op: &Op) -> Result<(), CallError> {
        let in_flight = |call: &Call| call.op.tag == op.tag && call.op.scope == op.scope;
        if self.calls.values().any(in_flight) {
            return Err(CallError::TagInFlight { tag: op.tag });
        }
        Ok(())
    }

    /// All open calls are told in one resume, each with its tensors (rule 40).
    fn fits(&self, op: &Op) -> Result<(), CallError> {
        let described = |op: &Op| op.fingerprint.weight();
        let tensors = described(op) + self.calls.values().map(|call| described(&call.op)).sum::<usize>();
        if tensors > OPEN_TENSORS_MAX { Err(CallError::TooManyTensors { tensors }) } else { Ok(()) }
    }

    /// What is remembered per (scope, tag) is bounded; the oldest history goes first.
    fn make_room(&mut self, place: &(Scope, Tag)) -> Result<(), CallError> {
        if self.tags.contains_key(place) || self.has_room(&place.0) {
            return Ok(());
        }
        self.forget_history();
        if self.has_room(&place.0) {
            return Ok(());
        }
        let (peer, listed) = (self.registration.info.id, self.listed());
        Err(CallError::TooManyTags { peer, tags: self.tags.len(), listed })
    }

    /// What is remembered of a place that a verdict names. The coordinator lets nobody use more places of one epoch than
    /// fit; what is left of earlier ones gives way, even if it still waits for calls.
    pub(super) fn memory(&mut self, place: (Scope, Tag)) -> &mut TagMemory {
        if !self.tags.contains_key(&place) && !self.has_room(&place.0) {
            self.forget_history();
            while !self.has_room(&place.0) && self.forget_oldest() {}
        }
        self.tags.entry(place).or_default()
    }

    fn listed(&self) -> usize {
        self.tags.keys().map(|(scope, _)| scope.listed()).sum()
    }

    fn has_room(&self, scope: &Scope) -> bool {
        self.tags.len() < TAGS_MAX && self.listed() + scope.listed() <= SCOPES_MEMBERS_MAX
    }

    fn forget_history(&mut self) {
        let epoch = self.record.as_ref().map_or(0, |record| record.epoch);
        let in_use: Vec<_> = self.calls.values().map(|call| (call.op.scope.clone(), call.op.tag)).collect();
        self.tags.retain(|place, memory| !memory.is_history(epoch) || in_use.contains(place));
        self.remembers_from = epoch;
    }

    /// Forgets the place that was used longest ago. False if all are of this epoch or in use.
    fn forget_oldest(&mut self) -> bool {
        let epoch = self.record.as_ref().map_or(0, |record| record.epoch);
        let in_use = |place: &(Scope, Tag)| {
            self.calls.values().any(|call| (&call.op.scope, call.op.tag) == (&place.0, place.1))
        };
        let old = self.tags.iter().filter(|(place, memory)| memory.epoch() < epoch && !in_use(place));
        let oldest = old.min_by_key(|(_, memory)| memory.epoch()).map(|(place, _)| place.clone());
        oldest.is_some_and(|place| self.tags.remove(&place).is_some())
    }

    /// The program gives a call up (Ctrl-C, a dropped handle).
    pub fn handle_cancel(&mut self, now: Instant, id: CallId) {
        if self.ballots.call().is_some_and(|call| call.id == id) {
            return self.abandon_ballot(CallError::Cancelled);
        }
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.cancelled.get_or_insert(now);
        match call.stage.clone() {
            Stage::Waiting => self.abandon(id, CallError::Cancelled),
            Stage::Settling { .. } => self.fail(id, CallError::Cancelled),
            Stage::Performing { .. } => self.refuse(now, id, Refusal::Cancelled),
            // Too late to give up alone: the verdict decides (rule 5). While there is none, the coordinator
            // can be asked for an abort.
            Stage::Complete { key } if self.may_vote() => {
                self.tell_decider(id, ToCoordinator::Refuse { key, reason: Refusal::Cancelled });
            }
            Stage::Complete { .. } | Stage::Refused { .. } => {}
        }
    }

    /// The program leaves. Nobody mistakes it for a failure. `for_good` is what whoever finished its training says: what
    /// the group had reached need not outlive it.
    pub fn handle_leave(&mut self, _now: Instant, for_good: bool) {
        self.end_session(OutReason::Left, for_good);
    }

    /// The connection to the coordinator is there.
    pub fn handle_connected(&mut self, now: Instant) {
        if self.connection != Connection::Dialling {
            return;
        }
        self.connection = Connection::Opening;
        self.generation += 1;
        // Attempts of calls that are no more ended with the old connection, or nobody knows of them. What the resume tells
        // of stays a vote of ours, whatever becomes of its call.
        self.tags.values_mut().for_each(TagMemory::forget_votes);
        let message = match &self.record {
            None => ToCoordinator::Register(self.registration.clone(), self.generation, self.term),
            Some(record) => ToCoordinator::Resume(Resume {
                registration: self.registration.clone(),
                generation: self.generation,
                term: self.term,
                record: EpochRecord::clone(record),
                behind_from: Some(*self.behind_from.get_or_insert(record.epoch.saturating_add(1)))
                    .filter(|epoch| *epoch < record.epoch),
                tags: self.reports(now),
                ballots: self.ballots.reports(),
                remembers_from: self.remembers_from,
                revision: self.revision,
            }),
        };
        self.send(message);
    }

    /// The connection is gone, or could not be made.
    pub fn handle_disconnected(&mut self, now: Instant) {
        if matches!(self.connection, Connection::Off | Connection::Down { .. }) {
            return;
        }
        if self.connection == Connection::Up {
            self.redial = self.config.redial.0;
            self.down_since = Some(now);
        }
        self.asked = None;
        self.connection = Connection::Down { redial_at: now + self.redial };
        self.redial = retry::longer(self.redial, self.config.redial.1);
    }

    /// Something arrived that is no message. A resume would bring the same again, so the session ends, in words.
    pub fn handle_unreadable(&mut self, error: &InvalidMessage) {
        self.end(OutReason::Unreadable(error.to_string()));
    }

    /// A message arrived.
    pub fn handle_message(&mut self, now: Instant, message: ToPeer) {
        match message {
            _ if self.out.is_some() => {}
            ToPeer::Registered { term } | ToPeer::Resumed { term } => self.greeted(now, term),
            ToPeer::Kicked { term, .. } if term < self.term => self.greeted(now, term),
            ToPeer::Kicked { reason, text, .. } => self.end(OutReason::Kicked(reason, text)),
            // Whoever has not said its term yet, or one that we refuse, has nothing to say.
            _ if !self.is_up() => {}
            ToPeer::Epoch(record) => self.open_epoch(now, record),
            ToPeer::BallotEnded { ballot, end, run_epoch, global_world_size } => {
                if matches!(end, BallotEnd::Agreed(_)) {
                    self.global_world_size = global_world_size;
                }
                self.ballot_ended(ballot, end, run_epoch);
            }
            ToPeer::Verdict { key, verdict } => self.verdict(now, key, verdict),
            ToPeer::Proceed { group, epoch } => {
                if self.record.as_ref().is_some_and(|record| (record.group, record.epoch) == (group, epoch)) {
                    self.proceed(now);
                }
            }
            ToPeer::Denied { key, peer, tags, listed } => {
                let (tags, listed) = (tags as usize, listed as usize);
                self.denied(&key, CallError::TooManyTags { peer, tags, listed });
            }
            ToPeer::Prepare { record, number } => {
                let (group, me) = (self.registration.group, self.registration.info.id);
                let newer = self.record.as_ref().is_some_and(|known| known.epoch < record.epoch);
                if newer && record.group == group && record.rank_of(me).is_some() {
                    self.asked = Some(number);
                    // A link that is up is not dialled a second time: a dial that fails would say less than the link does.
                    let is_kept = self.record.as_ref().is_some_and(|known| {
                        let next = |record: &EpochRecord| record.successor_of(me).map(|info| info.id);
                        self.linked == Some(known.epoch) && next(known) == next(&record)
                    });
                    if is_kept {
                        self.handle_prepared(number, None);
                    } else {
                        self.act(Action::Prepare(record, number));
                    }
                }
            }
            ToPeer::World { global_world_size, .. } => self.global_world_size = global_world_size,
            ToPeer::Redial { group, to, address } => {
                if group == self.registration.group && to != self.registration.info.id {
                    self.actions.push_back(Action::Redial(to, address));
                }
            }
            ToPeer::LinkSlowed { group, from, to, before, rate } => {
                if group == self.registration.group {
                    self.actions.push_back(Action::Slowed(SlowLink { from, to, before, rate }));
                }
            }
            ToPeer::CalledLast { key, peer, behind_ms } => {
                if key.group == self.registration.group {
                    self.act(Action::CalledLast(key, peer, Duration::from_millis(behind_ms)));
                }
            }
            // Whoever noted them knows the time; we only keep them.
            ToPeer::Annals(incidents) => self.annals.recall(u64::MAX, incidents),
            ToPeer::Status(_) => {}
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Connection::Down { redial_at } = self.connection
            && now >= redial_at
        {
            self.dial();
        }
        if self.lost_at().is_some_and(|at| now >= at) {
            return self.end(OutReason::CoordinatorLost);
        }
        self.expire_ballot(now);
        let is_due = |call: &Call| now >= call.op.deadline.min(self.given_up_at(call));
        let due: Vec<_> = self.calls.iter().filter(|(_, call)| is_due(call)).map(|(id, _)| *id).collect();
        for id in due {
            self.overdue(now, id);
        }
    }

    /// When the session ends for want of a coordinator. Who is not in yet waits as long as its call does.
    fn lost_at(&self) -> Option<Instant> {
        self.record.as_ref()?;
        Some(self.down_since? + self.config.control_lost_after)
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
        let grace = self.config.verdict_grace;
        let given_up_at = |call: &Call| self.given_up_at(call);
        let can_expire = self.may_vote() && self.record.is_some();
        let ballot = self.ballots.call().map(|call| {
            let now_or_never = call.connects || (can_expire && !call.expired);
            if now_or_never { call.deadline } else { call.deadline + grace }
        });
        let calls = self.calls.values().filter_map(|call| match &call.stage {
            Stage::Performing { aborted: None, refused: None, .. } => Some(call.op.deadline),
            // The executor was told to stop and is about to report.
            Stage::Performing { .. } => None,
            Stage::Waiting if can_expire => Some(call.op.deadline),
            Stage::Settling { .. } => Some(call.op.deadline),
            Stage::Waiting | Stage::Complete { .. } | Stage::Refused { .. } => Some(given_up_at(call)),
        });
        redial.into_iter().chain(self.lost_at()).chain(ballot).chain(calls).min()
    }

    /// The group's epoch that this peer is in, once admitted.
    pub fn record(&self) -> Option<&EpochRecord> {
        self.record.as_deref()
    }

    /// Why a peer went that was a member not long ago.
    pub fn departure(&self, peer: PeerId) -> Option<LossReason> {
        self.departed.iter().rev().find(|(gone, _)| *gone == peer).map(|(_, reason)| *reason)
    }

    /// Why a peer is no member any more. Of one that went too long ago to be remembered, or that was never heard of,
    /// only this is known: it did not come back.
    pub(super) fn loss_of(&self, peer: PeerId) -> LossReason {
        self.departure(peer).unwrap_or(LossReason::NotResumed)
    }

    /// Members of all groups together, as last told.
    pub fn global_world_size(&self) -> u32 {
        self.global_world_size
    }

    /// What happened to the run, as far as this peer was told.
    pub fn annals(&self) -> &Annals {
        &self.annals
    }

    /// Whether a coordinator that we obey has greeted us on the connection at hand.
    pub fn is_connected(&self) -> bool {
        self.is_up()
    }

    /// Who this peer is.
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// The highest term that it has obeyed.
    pub(super) fn term(&self) -> Term {
        self.term
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether this peer is in: admitted, and the session is not over. It may be without a coordinator for a moment.
    pub fn is_member(&self) -> bool {
        self.out.is_none() && self.record.is_some()
    }

    /// Why the session is over, if it is.
    pub fn out(&self) -> Option<&OutReason> {
        self.out.as_ref()
    }

    // Membership.

    fn greeted(&mut self, now: Instant, term: Term) {
        if !matches!(self.connection, Connection::Opening | Connection::Up) {
            return;
        }
        if term < self.term {
            // A coordinator of the past: not ours any more (rule 17).
            self.act(Action::HangUp);
            return self.handle_disconnected(now);
        }
        let grown = term > self.term && self.record.is_some();
        self.term = term;
        if grown {
            self.send(ToCoordinator::Promise { term });
        }
        if self.is_up() {
            return; // It only tells that its term has grown.
        }
        self.connection = Connection::Up;
        self.down_since = None;
        self.redial = self.config.redial.0;
        let Some(record) = &self.record else { return };
        let (group, epoch) = (record.group, record.epoch);
        let next = record.successor_of(self.registration.info.id).map(|info| info.id);
        // First comes what we missed; then we are told to go on (rule 43).
        self.resuming = true;
        if self.linked == Some(epoch) {
            self.send(ToCoordinator::Connected { group, epoch });
        } else if let Some(next) = next {
            // That it could not be dialled was perhaps said on the connection that broke. Then nobody knows it, and all may
            // wait for this link in a vote, with no call that would dial it (rule 8).
            self.actions.push_back(Action::Relink(next));
        }
        for report in std::mem::take(&mut self.unreported) {
            self.send(report);
        }
        if !self.annals.is_empty() {
            self.send(ToCoordinator::Remembered(self.annals.iter().cloned().collect()));
        }
    }

    /// What stood in the way is settled, and whoever came back has heard what it missed.
    fn proceed(&mut self, now: Instant) {
        self.hold = false;
        self.settled(&[]);
        if std::mem::take(&mut self.resuming) {
            self.behind_from = None;
            // What changed since the resume was written, and what may have been lost with the old connection.
            for (id, vote) in self.votes_again() {
                self.tell_decider(id, vote);
            }
            self.refuse_abandoned();
            self.tell_given_up();
            self.vote();
            self.expire_ballot(now);
        }
        self.attempt_all(now);
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
        let here: BTreeSet<_> = record.roster.iter().map(|info| info.id).collect();
        let reason = |peer: &PeerId| told.get(peer).copied().unwrap_or(LossReason::NotResumed);
        let lost = before.iter().filter(|peer| !here.contains(peer)).map(|peer| (*peer, reason(peer)));
        let lost: Vec<_> = lost.collect();
        self.note_epoch(&record, &before, &lost);
        self.departed.extend(&lost);
        self.departed.drain(..self.departed.len().saturating_sub(NAMED_MAX));
        self.global_world_size = record.global_world_size;
        self.hold = false;
        self.unreported.clear();
        self.record = Some(Arc::new(record.clone()));
        self.act(Action::OpenEpoch(record));
        self.settled(&lost);
        self.void_attempts(now);
        self.attempt_all(now);
    }

    // The end.

    /// All that this peer knows and a coordinator may have forgotten.
    fn reports(&self, now: Instant) -> Vec<TagReport> {
        let epoch = self.record.as_ref().map_or(0, |record| record.epoch);
        let open = |place: &(Scope, Tag)| {
            let call = self.calls.values().find(|call| call.op.scope == place.0 && call.op.tag == place.1)?;
            // An attempt of an epoch that is over was never decided, and will not be.
            let key = call.stage.key().filter(|key| key.epoch == epoch)?.clone();
            let complete = matches!(call.stage, Stage::Complete { .. });
            let timeout_ms = millis(call.op.deadline.since(now));
            Some(OpenVote { key, fingerprint: call.op.fingerprint.clone(), timeout_ms, complete })
        };
        self.tags
            .iter()
            .map(|(place, memory)| TagReport { learned: memory.learned(), open: open(place) })
            .filter(|report| !report.learned.is_empty() || report.open.is_some())
            .collect()
    }

    /// The session is over: every call ends, and its data is as it was (rule 5). Whatever ended it, the training goes on.
    pub(super) fn end(&mut self, reason: OutReason) {
        self.end_session(reason, false);
    }

    fn end_session(&mut self, reason: OutReason, for_good: bool) {
        if self.out.is_some() {
            return;
        }
        self.out = Some(reason.clone());
        if self.is_up() && !matches!(reason, OutReason::Kicked(..)) {
            self.send(ToCoordinator::Leave { for_good }); // Nobody needs to find out.
        }
        self.connection = Connection::Off;
        self.down_since = None;
        self.act(Action::HangUp);
        for (id, call) in std::mem::take(&mut self.calls) {
            if matches!(call.stage, Stage::Performing { .. }) {
                self.command(id, Command::Abort);
            }
            // Also while performing: the executor may have been done before it could be stopped.
            if matches!(call.stage, Stage::Performing { .. } | Stage::Complete { .. }) {
                self.command(id, Command::Undo);
            }
            // Whoever is put out because of this very call is told what was wrong with it (rule 42).
            let error = self.own_mismatch(&call).unwrap_or_else(|| CallError::Out(reason.clone()));
            self.finish(id, Err(error));
        }
        self.end_ballots(&reason);
        self.revision = None;
        self.record = None;
        self.linked = None;
        self.tags.clear();
        self.remembers_from = 0;
        self.departed.clear();
        self.annals = Annals::default();
        self.unreported.clear();
        self.asked = None;
        self.hold = false;
        self.resuming = false;
        self.behind_from = None;
    }

    /// Begins a new session on the same object, after the old one is over. Others may still wait for the old
    /// one to come back, so the new one needs a fresh `PeerId` and a fresh session id.
    pub fn renew(&mut self, registration: Registration) {
        assert!(self.out.is_some(), "a session is renewed only when it is over");
        self.registration = registration;
    }

    // Small things.

    /// Whether the program waits for the end of a ballot.
    pub(super) fn votes_in_ballot(&self) -> bool {
        self.ballots.call().is_some()
    }

    pub(super) fn is_up(&self) -> bool {
        self.connection == Connection::Up
    }

    /// Whether the coordinator may be told what we want: it knows us, and we know what we missed (rule 43).
    pub(super) fn may_vote(&self) -> bool {
        self.is_up() && !self.resuming
    }

    fn dial(&mut self) {
        self.connection = Connection::Dialling;
        self.act(Action::Dial);
    }

    pub(super) fn next_call(&mut self) -> CallId {
        self.serial += 1;
        CallId(self.serial)
    }

    pub(super) fn finish(&mut self, id: CallId, outcome: Outcome) {
        self.command(id, Command::Finish(outcome));
    }

    pub(super) fn command(&mut self, id: CallId, command: Command) {
        self.act(Action::Call(id, command));
    }

    pub(super) fn send(&mut self, message: ToCoordinator) {
        self.act(Action::Send(message));
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
