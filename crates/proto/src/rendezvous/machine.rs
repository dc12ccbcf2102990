//! One node's side: reads, sanitises, decides, applies, writes, and again.
//!
//! The machine holds the last snapshot that it was told, without the nodes that are gone. For the operation under way
//! it asks the [rules](super::rules) for an action and applies it to a draft, as often as actions change something;
//! then the draft is written on the condition that nobody wrote in between. So one write carries all that a node has
//! to say at that moment. A write that lost is forgotten, and the snapshot that won is decided upon. Whoever lost lets
//! those write first who come before it: the snapshot tells who else is about to join or to leave, so they take turns
//! without a word, each at the news of the write before it. A thousand nodes that come at once write about twice each.
//!
//! Beside that it renews its lease for as long as it holds one.
//!
//! The contract with the driver: every [`Request::Read`] is answered by [`Machine::handle_snapshot`], every `Write` by
//! [`Machine::handle_written`], every `Beat` by [`Machine::handle_beat`], or any of them by
//! [`Machine::handle_trouble`], within a bounded time. Snapshots of changes may come unasked at any time, the newest
//! last. A driver that cannot watch asks the backend now and then.

mod keeping;

use super::{Action, Context, Event, EventName, Node, Operator, Settings, State, apply, decide, sanitise};
use crate::limits::RENDEZVOUS_NODES_MAX;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::wire::register::{Fate, Snapshot, Token};
use keeping::Keeping;
use std::collections::{BTreeSet, VecDeque};

/// How long a node that lost a write waits for each of those whose turn comes first. They write as soon as they hear of
/// the write before theirs, so this passes only where one of them is slow or dead.
const TURN: Duration = Duration::from_millis(5);
/// Who lost although it was its turn pauses for less than this, twice as long with every further loss, and for less than
/// the second in any case.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));
/// The longest pause between attempts to reach a backend in trouble.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Actions that one decision may take before it needs an answer: more would be a rule that undoes another.
const ACTIONS_MAX: usize = 16;

/// What a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Into the next round; out of the one before, if it is in one.
    Next,
    /// The rendezvous over, for all.
    Close,
    /// Out, for good.
    Leave,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read the register.
    Read,
    /// Write it, if that token is the last.
    Write {
        /// The last write that this node knows.
        expected: Token,
        /// The value.
        value: Vec<u8>,
    },
    /// Renew the lease.
    Beat {
        /// How long it should last.
        lease: Duration,
    },
    /// Give up the lease.
    Release,
    /// Tell people.
    Tell(Event),
    /// Tell the program how its operation ended.
    Done(Result<Outcome, Failure>),
}

/// How an operation ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// In a round.
    Joined(Round),
    /// The rendezvous is closed.
    Closed,
    /// Out.
    Left,
}

/// A round that is complete, as one participant sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Its number.
    pub round: u64,
    /// This node's rank.
    pub rank: u32,
    /// The participants and their addresses, by rank.
    pub participants: Vec<(Node, String)>,
}

impl Round {
    /// How many participants it has.
    pub fn world_size(&self) -> usize {
        self.participants.len()
    }
}

/// Why an operation failed. The node is in no list, or its lease runs out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Somebody closed it.
    #[error("the rendezvous is closed")]
    Closed,
    /// The time is up.
    #[error("no round within the time: {0}")]
    Timeout(String),
    /// The program did not want it any more.
    #[error("the call was given up")]
    Cancelled,
    /// The backend will not serve this node, or what it holds is nothing of ours.
    #[error("{0}")]
    Refused(String),
    /// There are as many nodes as there may be.
    #[error(
        "{RENDEZVOUS_NODES_MAX} nodes take part or wait, and no more may; use fewer nodes or another run id"
    )]
    Full,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Trying again will not help.
    pub is_final: bool,
    /// What happened, in words.
    pub text: String,
}

/// One node of a rendezvous.
#[derive(Clone, Debug)]
pub struct Machine {
    settings: Settings,
    node: Node,
    address: String,
    rng: Rng,
    /// The last that was told, without the nodes that are gone.
    view: Option<View>,
    /// The last call under way, and since when this node knows.
    called: Option<((u64, u32), Instant)>,
    running: Option<Running>,
    keeping: Keeping,
    is_reading: bool,
    is_writing: bool,
    losses: u32,
    pause_until: Option<Instant>,
    /// The pause is for those whose turn comes first, since that write.
    queued_at: Option<Token>,
    trouble: Option<String>,
    /// The last round that the program was told of.
    finished: Option<u64>,
    /// When it was last decided what to do; moments before that have had their effect.
    decided: Instant,
    requests: VecDeque<Request>,
}

#[derive(Clone, Debug)]
struct View {
    token: Token,
    state: State,
    /// Who holds a lease and is in no list: it is about to join.
    newcomers: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Running {
    operation: Operation,
    operators: &'static [Operator],
    /// Which operator decides.
    stage: usize,
    /// Which one decides after a loss: the last that a written state was decided by.
    written_stage: usize,
    deadline: Instant,
    /// What the decisions since the last snapshot made of the state.
    draft: Option<State>,
    /// The program does not wait for it any more.
    is_cancelled: bool,
}

impl Machine {
    /// A node that is not in yet. `address` is what the others will be told.
    pub fn new(settings: Settings, node: Node, address: String, rng: Rng) -> Self {
        Self {
            settings,
            node,
            address,
            rng,
            view: None,
            called: None,
            running: None,
            keeping: Keeping::default(),
            is_reading: false,
            is_writing: false,
            losses: 0,
            pause_until: None,
            queued_at: None,
            trouble: None,
            finished: None,
            decided: Instant::ORIGIN,
            requests: VecDeque::new(),
        }
    }

    /// The state as this node knows it, without the nodes that are gone.
    pub fn state(&self) -> Option<&State> {
        self.view.as_ref().map(|view| &view.state)
    }

    /// Whether an operation is under way.
    pub fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// What the others will be told from the next round on.
    pub fn set_address(&mut self, address: String) {
        self.address = address;
    }

    /// The program asks for something. One at a time.
    pub fn handle_operation(&mut self, now: Instant, operation: Operation) {
        assert!(self.running.is_none(), "one operation at a time");
        let (operators, time): (&'static [Operator], _) = match operation {
            Operation::Next => (&[Operator::Exit, Operator::Join], self.settings.join),
            Operation::Close => (&[Operator::Close], self.settings.close),
            Operation::Leave => (&[Operator::Exit], self.settings.close),
        };
        let deadline = now + time;
        let (draft, is_cancelled) = (None, false);
        let running =
            Running { operation, operators, stage: 0, written_stage: 0, deadline, draft, is_cancelled };
        self.running = Some(running);
        self.losses = 0;
        self.trouble = None;
        if operation == Operation::Next {
            self.tell(EventName::Joining, format!("waits for a round until {deadline:?}"), None);
        }
        self.step(now);
    }

    /// The program does not want to join any more. The node takes itself out first, within the rollback window.
    pub fn handle_cancel(&mut self, now: Instant) {
        let rollback = self.settings.rollback;
        if let Some(running) = self
            .running
            .as_mut()
            .filter(|running| running.operation == Operation::Next && !running.is_cancelled)
        {
            running.is_cancelled = true;
            running.operators = &[Operator::Exit];
            (running.stage, running.written_stage) = (0, 0);
            // What was decided and not sent is not wanted any more; what was sent is answered first.
            running.draft = None;
            running.deadline = now + rollback;
        }
        self.step(now);
    }

    /// How the register is, asked for or not.
    pub fn handle_snapshot(&mut self, now: Instant, snapshot: Snapshot) {
        self.is_reading = false;
        self.pause_until = self.pause_until.filter(|_| self.trouble.is_none());
        self.trouble = None;
        if self.look(now, snapshot) {
            let token = self.view.as_ref().map(|view| view.token);
            if self.queued_at.is_some() && (self.queued_at != token || self.ahead() == 0) {
                self.queue(now);
            }
            self.step(now);
        }
    }

    /// How a write ended, and how the register is now.
    pub fn handle_written(&mut self, now: Instant, fate: Fate, snapshot: Snapshot) {
        self.is_writing = false;
        self.trouble = None;
        if let Some(running) = &mut self.running {
            running.draft = None;
            match fate {
                Fate::Accepted => running.written_stage = running.stage,
                Fate::Lost | Fate::Lapsed => running.stage = running.written_stage,
            }
        }
        match fate {
            Fate::Accepted => {
                self.losses = 0;
                self.queued_at = None;
            }
            Fate::Lost => self.losses += 1,
            Fate::Lapsed => {
                self.keeping.lapsed();
                let text = "its lease had run out; it takes a new one and decides again".to_owned();
                self.tell(EventName::LeaseLost, text, None);
            }
        }
        if self.look(now, snapshot) {
            if fate == Fate::Lost {
                self.queue(now);
            }
            self.step(now);
        }
    }

    /// Waits for those whose turn comes first.
    fn queue(&mut self, now: Instant) {
        let (first, longest) = PAUSES;
        let ahead = self.ahead();
        let wait = match (ahead, self.losses) {
            // It is our turn. Whoever writes out of turn may beat us once; after that we are not alone.
            (0, 0..=1) => Duration::ZERO,
            (0, losses) => {
                (first * 2u32.saturating_pow(losses.min(16))).min(longest).mul_f64(self.rng.unit())
            }
            (ahead, _) => TURN * ahead,
        };
        self.queued_at = self.view.as_ref().map(|view| view.token).filter(|_| ahead > 0);
        self.pause_until = (!wait.is_zero()).then(|| now + wait);
    }

    /// How many are about to write who come before this node.
    fn ahead(&self) -> u32 {
        let Some(View { state, newcomers, .. }) = &self.view else { return 0 };
        let me = self.node.to_string();
        let before = |names: &mut dyn Iterator<Item = String>| names.filter(|name| *name < me).count();
        let newcomers = newcomers.iter().filter(|name| **name < me).count();
        let ahead = if !state.complete {
            before(&mut state.wait_list.iter().map(Node::to_string)) + newcomers
        } else if state.participants.contains_key(&self.node) {
            // A round that somebody has left is left by all: they meet again.
            before(&mut state.participants.keys().map(Node::to_string))
        } else {
            newcomers
        };
        ahead as u32
    }

    /// A request was not carried out, and nobody knows how far it came: what this node knows may be old.
    pub fn handle_trouble(&mut self, now: Instant, trouble: Trouble) {
        self.is_reading = false;
        self.is_writing = false;
        self.keeping.failed(now);
        if let Some(running) = &mut self.running {
            running.draft = None;
            running.stage = running.written_stage;
        }
        if trouble.is_final {
            return self.fail(Failure::Refused(trouble.text));
        }
        self.view = self.view.take().filter(|_| self.running.is_none());
        self.queued_at = None;
        self.pause_until = Some(now + PAUSE_MAX.mul_f64(0.1 + 0.4 * self.rng.unit()));
        self.trouble = Some(trouble.text);
        self.step(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.pause_until.is_some_and(|until| now >= until) {
            self.pause_until = None;
            self.queued_at = None;
        }
        self.keep_alive(now);
        self.step(now);
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let running = self.running.as_ref();
        // A moment later: a deadline is over once it has passed.
        let late = running.map(|running| running.deadline + Duration::from_millis(1));
        let rolled_back = late.map(|late| late + self.settings.rollback);
        let called = self.called.filter(|_| running.is_some());
        let over = called.map(|(_, since)| since + self.settings.last_call);
        let ahead = [late, rolled_back, over].into_iter().flatten().filter(|moment| *moment > self.decided);
        ahead.chain(self.pause_until).chain(self.keeping.poll_timeout(&self.settings)).min()
    }

    /// Takes up a snapshot. False if it cannot be read: the operation has failed then.
    fn look(&mut self, now: Instant, snapshot: Snapshot) -> bool {
        let read = snapshot.value.as_deref().map_or(Ok(State::default()), State::from_bytes);
        let mut state = match read {
            Ok(state) => state,
            Err(error) => {
                self.fail(Failure::Refused(error.to_string()));
                return false;
            }
        };
        let lost = sanitise(&mut state, &self.settings, &self.node, &snapshot.alive);
        let listed = state.participants.keys().chain(&state.wait_list).chain(&state.redundancy_list);
        let listed: BTreeSet<String> = listed.map(Node::to_string).collect();
        let newcomers = snapshot.alive.difference(&listed).cloned().collect();
        let known = self.view.replace(View { token: snapshot.token, state, newcomers });
        for node in &lost {
            if known.as_ref().is_some_and(|view| view.state.participants.contains_key(node)) {
                self.tell(EventName::NodeLost, format!("{node} was lost: its lease ran out"), None);
            }
        }
        self.notice_last_call(now);
        true
    }

    /// Each last call is counted from when this node first knew of it.
    fn notice_last_call(&mut self, now: Instant) {
        let draft = self.running.as_ref().and_then(|running| running.draft.as_ref());
        let state = draft.or(self.view.as_ref().map(|view| &view.state));
        let call = state.filter(|state| state.calling).map(|state| (state.round, state.calls));
        if self.called.map(|(known, _)| known) != call {
            self.called = call.map(|call| (call, now));
        }
    }

    /// Decides until there is something to wait for.
    fn step(&mut self, now: Instant) {
        self.decided = now;
        for _ in 0..ACTIONS_MAX {
            if !self.decide_once(now) {
                return;
            }
        }
        unreachable!("rules that undo each other: {:?} in {:?}", self.running, self.view);
    }

    /// One decision. False when there is something to wait for, or nothing to do.
    fn decide_once(&mut self, now: Instant) -> bool {
        let Some(running) = &self.running else { return false };
        let given_up = now > running.deadline + self.settings.rollback;
        if (self.is_writing || self.view.is_none() || self.pause_until.is_some()) && given_up {
            // No answer, or none that could be read: nothing to decide upon any more.
            self.fail(Failure::Timeout(self.explain()));
            return false;
        }
        if self.is_writing || self.pause_until.is_some() {
            return false;
        }
        if !self.keeping.holds() {
            self.beat(now);
            return false;
        }
        let Some(view) = &self.view else {
            if !std::mem::replace(&mut self.is_reading, true) {
                self.requests.push_back(Request::Read);
            }
            return false;
        };
        let operator = running.operators[running.stage];
        let state = running.draft.as_ref().unwrap_or(&view.state);
        let is_drafted = running.draft.is_some();
        // A round that the program was not told of is none to leave: a write whose answer was lost has brought us there.
        let is_news = state.participants.contains_key(&self.node) && self.finished != Some(state.round);
        let is_first = running.operation == Operation::Next && operator == Operator::Exit;
        if is_first && is_news && !running.is_cancelled {
            self.running.as_mut().expect("looked at above").stage += 1;
            return true;
        }
        let context = Context {
            state,
            settings: &self.settings,
            node: &self.node,
            now,
            deadline: running.deadline,
            last_heartbeat: self.keeping.last_heartbeat(),
            called: self.called.map(|(_, since)| since),
        };
        let action = decide(operator, &context);
        match action {
            Action::KeepAlive => {
                self.beat(now);
                self.flush(is_drafted);
                false
            }
            Action::Sync => {
                self.flush(is_drafted);
                false
            }
            Action::Finish if running.stage + 1 < running.operators.len() => {
                self.running.as_mut().expect("looked at above").stage += 1;
                true
            }
            Action::Finish | Action::ErrorClosed | Action::ErrorTimeout if is_drafted => {
                self.flush(true);
                false
            }
            Action::Finish if running.is_cancelled => {
                self.fail(Failure::Cancelled);
                false
            }
            Action::Finish => {
                self.finish();
                false
            }
            Action::ErrorClosed => {
                self.fail(Failure::Closed);
                false
            }
            Action::ErrorTimeout => {
                self.fail(Failure::Timeout(self.explain()));
                false
            }
            change => self.change(now, change),
        }
    }

    /// Applies a change to the draft. False if there is no room for it.
    fn change(&mut self, now: Instant, action: Action) -> bool {
        let (Some(running), Some(view)) = (&mut self.running, &self.view) else { return false };
        let adds =
            matches!(action, Action::AddToParticipants | Action::AddToWaitList | Action::AddToRedundancyList);
        let draft = running.draft.get_or_insert_with(|| view.state.clone());
        if adds && !draft.wait_list.contains(&self.node) && draft.nodes() >= RENDEZVOUS_NODES_MAX {
            self.fail(Failure::Full);
            return false;
        }
        apply(action, draft, &self.settings, &self.node, &self.address);
        let joins = running.operators[running.stage] == Operator::Join;
        if joins && action == Action::RemoveFromRedundancyList {
            // Its time as a spare does not count.
            running.deadline = now + self.settings.join;
        }
        match action {
            Action::AddToWaitList => {
                self.tell(EventName::Waiting, "waits for the next round".to_owned(), None);
            }
            Action::AddToRedundancyList => {
                self.tell(EventName::Waiting, "the round is full: waits as a spare".to_owned(), None);
            }
            _ => {}
        }
        self.notice_last_call(now);
        true
    }

    /// Writes the draft, if there is one.
    fn flush(&mut self, is_drafted: bool) {
        let (Some(running), Some(view)) = (&self.running, &self.view) else { return };
        if let Some(draft) = running.draft.as_ref().filter(|_| is_drafted) {
            self.is_writing = true;
            self.requests.push_back(Request::Write { expected: view.token, value: draft.to_bytes() });
        }
    }

    fn finish(&mut self) {
        let (Some(running), Some(view)) = (self.running.take(), &self.view) else { return };
        let (outcome, event) = match running.operation {
            Operation::Next => {
                let round = view.round(&self.node);
                self.finished = Some(round.round);
                let text = format!(
                    "round {} with {} nodes, as rank {}",
                    round.round,
                    round.participants.len(),
                    round.rank
                );
                (Outcome::Joined(round), (EventName::Joined, text))
            }
            Operation::Close => {
                (Outcome::Closed, (EventName::Closed, "closed the rendezvous for all".to_owned()))
            }
            Operation::Leave => (Outcome::Left, (EventName::Left, "left".to_owned())),
        };
        self.tell(event.0, event.1, None);
        if running.operation == Operation::Leave {
            self.release();
        }
        self.requests.push_back(Request::Done(Ok(outcome)));
    }

    fn fail(&mut self, failure: Failure) {
        let Some(running) = self.running.take() else { return };
        self.is_writing = false;
        self.pause_until = None;
        self.tell(EventName::Failed, format!("{:?} failed", running.operation), Some(failure.to_string()));
        // A participant whose attempt to close failed goes on; who could not join or leave has nothing to hold.
        if running.operation != Operation::Close {
            self.release();
        }
        self.requests.push_back(Request::Done(Err(failure)));
    }

    fn release(&mut self) {
        self.keeping = Keeping::default();
        self.requests.push_back(Request::Release);
    }

    /// What is missing, for whoever waited in vain.
    fn explain(&self) -> String {
        let (min, max) = (self.settings.min_nodes, self.settings.max_nodes);
        let trouble = self.trouble.as_ref().map(|text| format!("; the backend: {text}")).unwrap_or_default();
        let Some(View { state, .. }) = &self.view else {
            return format!("the backend told nothing{trouble}");
        };
        let (round, here, waiting) = (state.round, state.participants.len(), state.wait_list.len());
        let stands = if state.complete { "is complete" } else { "is open" };
        format!(
            "round {round} {stands} with {here} participants besides {waiting} that wait; {min} to {max} \
             can take part{trouble}"
        )
    }

    fn tell(&mut self, name: EventName, message: String, error: Option<String>) {
        let seat =
            self.state().filter(|state| state.complete).and_then(|state| state.participants.get(&self.node));
        let rank = seat.map(|seat| seat.rank);
        self.requests.push_back(Request::Tell(Event { name, message, rank, error }));
    }
}

impl View {
    /// The complete round that `me` is in.
    fn round(&self, me: &Node) -> Round {
        let seat = |node: &Node| self.state.participants.get(node).map(|seat| seat.address.clone());
        // A participant that was lost since keeps its place in this round: the others have it there, too.
        let participants =
            self.state.roster.iter().map(|node| (node.clone(), seat(node).unwrap_or_default()));
        let rank = self.state.participants.get(me).map_or(0, |seat| seat.rank);
        Round { round: self.state.round, rank, participants: participants.collect() }
    }
}
