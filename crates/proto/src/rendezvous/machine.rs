//! One node's side: reads, sanitises, decides, applies, writes, and again.
//!
//! The machine holds the last snapshot that it was told, without the nodes that are gone. For an operation under way it
//! draws what the state would be if everybody's [wishes](super::wish) were granted, its own among them; asks the
//! [rules](super::rules) for an action; and applies it to that draft, as often as actions change something. Then the draft
//! is written on the condition that nobody wrote in between, if it changes anything for the others: if it completes a
//! round, opens one, begins a last call, closes the rendezvous, or takes this node out (`deciding.rs`). What changes
//! nothing for them, such as one more that waits, is not written: everybody sees the wish. A backend that keeps no notes
//! gets every change written. A write that lost is forgotten, and the snapshot that won is decided upon.
//!
//! Where all see the same reason to write, they queue without a word (`queue.rs`); who comes last and sees by the
//! answer to its own wish that all are there writes at once. So N nodes that come together take one write.
//!
//! Beside that it renews its lease for as long as it holds one (`keeping.rs`).
//!
//! The contract with the driver: every [`Request::Read`] is answered by [`Machine::handle_snapshot`], every `Write` by
//! [`Machine::handle_written`], every `Beat` by [`Machine::handle_beat`], or any of them by
//! [`Machine::handle_trouble`], within a bounded time. A beat with another note than the one before is answered after a
//! snapshot that has the note, if the backend keeps notes. Snapshots of changes may come unasked at any time, the newest
//! last. A driver that cannot watch asks the backend now and then.

mod deciding;
mod keeping;
mod queue;

use super::{Event, EventName, Node, Place, Settings, State, Wish, sanitise, wishes};
use crate::limits::RENDEZVOUS_NODES_MAX;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::wire::register::{Fate, Snapshot, Token};
use keeping::Keeping;
use queue::Queued;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The longest pause between attempts to reach a backend in trouble.
const PAUSE_MAX: Duration = Duration::from_secs(1);
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
        /// What to leave beside it for the others; empty: nothing.
        note: Vec<u8>,
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
    reading: Option<Reading>,
    /// The last call under way, and since when this node knows.
    called: Option<((u64, u32), Instant)>,
    running: Option<Running>,
    keeping: Keeping,
    is_reading: bool,
    is_writing: bool,
    /// Writes that were lost since one was accepted.
    losses: u32,
    /// Until when a backend in trouble is left alone.
    pause_until: Option<Instant>,
    /// Its place among those who are about to write.
    queued: Option<Queued>,
    /// What is decided now is decided because of this node's own coming: nobody else can know yet.
    is_first_to_know: bool,
    trouble: Option<String>,
    /// The last round that the program was told of.
    finished: Option<u64>,
    /// When it was last decided what to do; moments before that have had their effect.
    decided: Instant,
    requests: VecDeque<Request>,
}

#[derive(Clone, Debug)]
struct Reading {
    token: Token,
    /// What was written, without the nodes that are gone.
    base: State,
    /// That, with all wishes granted, and what was decided since.
    draft: State,
    /// What the others want.
    wishes: BTreeMap<Node, Wish>,
    /// What the register holds of this node's own notes.
    note: Vec<u8>,
    /// Who holds a lease and is in no list: it is about to join.
    newcomers: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Running {
    operation: Operation,
    deadline: Instant,
    /// Where it stood when it was last looked at.
    place: Option<Place>,
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
            reading: None,
            called: None,
            running: None,
            keeping: Keeping::default(),
            is_reading: false,
            is_writing: false,
            losses: 0,
            pause_until: None,
            queued: None,
            is_first_to_know: false,
            trouble: None,
            finished: None,
            decided: Instant::ORIGIN,
            requests: VecDeque::new(),
        }
    }

    /// The state as this node knows it, without the nodes that are gone, and as all others want it.
    pub fn state(&self) -> Option<&State> {
        self.reading.as_ref().map(|reading| &reading.draft)
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
        let time = if operation == Operation::Next { self.settings.join } else { self.settings.close };
        let deadline = now + time;
        self.running = Some(Running { operation, deadline, place: None, is_cancelled: false });
        self.losses = 0;
        self.queued = None;
        self.trouble = None;
        if operation == Operation::Next {
            self.tell(EventName::Joining, format!("waits for a round until {deadline:?}"), None);
        }
        self.step_first(now);
    }

    /// The program does not want to join any more. The node takes itself out first, within the rollback window.
    pub fn handle_cancel(&mut self, now: Instant) {
        let rollback = self.settings.rollback;
        if let Some(running) = self
            .running
            .as_mut()
            .filter(|running| running.operation == Operation::Next && !running.is_cancelled)
        {
            // What was decided and not sent is not wanted any more; what was sent is answered first.
            running.is_cancelled = true;
            running.deadline = now + rollback;
        }
        self.step(now);
    }

    /// How the register is, asked for or not.
    pub fn handle_snapshot(&mut self, now: Instant, snapshot: Snapshot) {
        self.is_reading = false;
        if self.trouble.take().is_some() {
            self.pause_until = None;
        }
        if self.look(snapshot) {
            self.step(now);
        }
    }

    /// How a write ended, and how the register is now.
    pub fn handle_written(&mut self, now: Instant, fate: Fate, snapshot: Snapshot) {
        self.is_writing = false;
        self.trouble = None;
        self.queued = None;
        match fate {
            Fate::Accepted => self.losses = 0,
            Fate::Lost => self.losses += 1,
            Fate::Lapsed => {
                self.keeping.lapsed();
                let text = "its lease had run out; it takes a new one and decides again".to_owned();
                self.tell(EventName::LeaseLost, text, None);
            }
        }
        if self.look(snapshot) {
            self.step(now);
        }
    }

    /// A request was not carried out, and nobody knows how far it came: what this node knows may be old.
    pub fn handle_trouble(&mut self, now: Instant, trouble: Trouble) {
        self.is_reading = false;
        self.is_writing = false;
        let is_stale = self.running.is_none() && self.keeping.has_left_a_wish();
        self.keeping.failed(now);
        if is_stale {
            // A wish that was granted must not be brought to a register that has forgotten the round.
            self.beat(now);
        }
        if trouble.is_final {
            return self.fail(Failure::Refused(trouble.text));
        }
        self.reading = self.reading.take().filter(|_| self.running.is_none());
        self.queued = None;
        self.pause_until = Some(now + PAUSE_MAX.mul_f64(0.1 + 0.4 * self.rng.unit()));
        self.trouble = Some(trouble.text);
        self.step(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.pause_until.is_some_and(|until| now >= until) {
            self.pause_until = None;
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
        let queued = self.queued.as_ref().map(|queued| queued.until);
        let ahead = [late, rolled_back, over, queued];
        let ahead = ahead.into_iter().flatten().filter(|moment| *moment > self.decided);
        ahead.chain(self.pause_until).chain(self.keeping.poll_timeout(&self.settings)).min()
    }

    /// Takes up a snapshot. False if it cannot be read: the operation has failed then.
    fn look(&mut self, snapshot: Snapshot) -> bool {
        let read = snapshot.value.as_deref().map_or(Ok(State::default()), State::from_bytes);
        let mut base = match read {
            Ok(state) => state,
            Err(error) => {
                self.fail(Failure::Refused(error.to_string()));
                return false;
            }
        };
        if self.finished.is_some_and(|told| told > base.round || (told == base.round && !base.complete)) {
            // The register was lost with all who knew it, and rounds are counted anew.
            self.finished = None;
        }
        let lost = sanitise(&mut base, &self.settings, Some(&self.node), &snapshot.alive);
        let listed = base.participants.keys().chain(&base.wait_list).chain(&base.redundancy_list);
        let listed: BTreeSet<String> = listed.map(Node::to_string).collect();
        let newcomers = snapshot.alive.difference(&listed).cloned().collect();
        let mut wishes = wishes(&snapshot);
        wishes.remove(&self.node);
        let note = snapshot.notes.get(&self.node.to_string()).map(|note| note.to_vec()).unwrap_or_default();
        let draft = base.clone();
        let reading = Reading { token: snapshot.token, base, draft, wishes, note, newcomers };
        let known = self.reading.replace(reading);
        for node in &lost {
            if known.as_ref().is_some_and(|reading| reading.draft.participants.contains_key(node)) {
                self.tell(EventName::NodeLost, format!("{node} was lost: its lease ran out"), None);
            }
        }
        true
    }

    /// What is missing, for whoever waited in vain.
    fn explain(&self) -> String {
        let (min, max) = (self.settings.min_nodes, self.settings.max_nodes);
        let trouble = self.trouble.as_ref().map(|text| format!("; the backend: {text}")).unwrap_or_default();
        let Some(Reading { draft: state, .. }) = &self.reading else {
            return format!("nothing was heard from the backend{trouble}");
        };
        let (round, here, waiting) = (state.round, state.participants.len(), state.wait_list.len());
        let stands = if state.complete { "is complete" } else { "is open" };
        format!(
            "round {round} {stands} with {here} participants besides {waiting} that wait; {min} to {max} \
             can take part{trouble}"
        )
    }

    fn tell(&mut self, name: EventName, message: String, error: Option<String>) {
        let base = self.reading.as_ref().map(|reading| &reading.base).filter(|base| base.complete);
        let seat = base.and_then(|base| base.participants.get(&self.node));
        let rank = seat.map(|seat| seat.rank);
        self.requests.push_back(Request::Tell(Event { name, message, rank, error }));
    }
}

impl Reading {
    /// The complete round that `me` is in.
    fn round(&self, me: &Node) -> Round {
        let state = &self.base;
        let seat = |node: &Node| state.participants.get(node).map(|seat| seat.address.clone());
        // A participant that was lost since keeps its place in this round: the others have it there, too.
        let participants = state.roster.iter().map(|node| (node.clone(), seat(node).unwrap_or_default()));
        let rank = state.participants.get(me).map_or(0, |seat| seat.rank);
        Round { round: state.round, rank, participants: participants.collect() }
    }
}
