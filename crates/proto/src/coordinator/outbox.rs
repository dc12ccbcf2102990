//! What the machine asks of its driver: things to do, and when to be called again.
//!
//! Whoever decides something says here what follows from it for the outside, and nothing is taken back. The order is
//! kept, because peers rely on it (rule 43).

use super::run::{Action, ConnectionId, Note};
use crate::collective::Group;
use crate::id::PeerId;
use crate::time::Instant;
use crate::wire::control::{KickReason, Term, ToPeer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Each has at most one alarm, the earliest that was asked for; whoever handles it asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// A collective's deadline, or the end of collecting differing calls, may have come.
    Ops(Group),
    /// A peer without a connection must be looked at.
    Lost(PeerId),
    /// The ends of a broken link had their time.
    LinkSettle(Group),
    /// Broken links are to be dialled again, or nobody knows a ring for too long.
    Paths(Group),
    /// A peer that was evicted lately may be admitted again.
    Admissible(PeerId),
    /// Members of a group that is being rebuilt had their time to speak.
    Claims(Group),
    /// Members of a run that we do not know had their time to come back.
    Fresh,
    /// Groups of a run that was rebuilt had theirs.
    World,
    /// Members may be told again what happened.
    Annals,
}

/// What is asked of the driver.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Outbox {
    actions: VecDeque<Action>,
    timers: BTreeSet<(Instant, Timer)>,
    alarms: BTreeMap<Timer, Instant>,
    /// The last number by which an answer is known again.
    numbers: u64,
}

impl Outbox {
    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn note(&mut self, note: Note) {
        self.act(Action::Note(note));
    }

    /// Refuses a connection that belongs to no peer.
    pub(super) fn turn_away(&mut self, at: ConnectionId, reason: KickReason, text: &str, term: Term) {
        self.act(Action::Send(at, ToPeer::Kicked { reason, text: text.to_owned(), term }));
        self.act(Action::Close(at));
    }

    /// A number that no answer carries yet.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Asks to be woken for that reason at `at`, or earlier if that was asked for already.
    pub(super) fn schedule(&mut self, at: Instant, timer: Timer) {
        match self.alarms.get(&timer) {
            Some(alarm) if *alarm <= at => return,
            Some(&later) => {
                self.timers.remove(&(later, timer));
            }
            None => {}
        }
        self.alarms.insert(timer, at);
        self.timers.insert((at, timer));
    }

    /// The first alarm that is due by then; it does not ring again.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let &(due, timer) = self.timers.first().filter(|(due, _)| *due <= now)?;
        self.timers.remove(&(due, timer));
        self.alarms.remove(&timer);
        Some(timer)
    }

    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn next_alarm(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// How many alarms are set.
    pub(super) fn alarms(&self) -> usize {
        self.timers.len()
    }
}
