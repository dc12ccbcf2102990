//! The lease: renewed in time, and again if that failed.

use super::{Machine, PAUSE_MAX, Request};
use crate::rendezvous::{Action, Context, EventName, Operator, Settings, State, decide};
use crate::time::{Duration, Instant};

/// How a node stands with its lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Keeping {
    /// When the heartbeat was sent that was answered last.
    last: Option<Instant>,
    /// When the one was sent that was not answered yet, and its note.
    sent: Option<(Instant, Vec<u8>)>,
    /// The note of the one that was answered last; `None` if nobody knows what the backend has.
    left: Option<Vec<u8>>,
    /// When one that failed is tried again.
    retry: Option<Instant>,
    /// When the present one counts as failed.
    deadline: Option<Instant>,
}

impl Keeping {
    pub(super) fn holds(&self) -> bool {
        self.last.is_some()
    }

    /// When the node last said that it lives.
    pub(super) fn last_heartbeat(&self) -> Option<Instant> {
        self.sent.as_ref().map(|(sent, _)| *sent).or(self.retry).or(self.last)
    }

    /// Whether the backend was last given a note that says something.
    pub(super) fn has_left_a_wish(&self) -> bool {
        self.left.as_ref().is_some_and(|left| !left.is_empty())
    }

    /// Whether that is the note which the backend was last given.
    pub(super) fn has_left(&self, note: &[u8]) -> bool {
        self.left.as_deref() == Some(note)
    }

    pub(super) fn lapsed(&mut self) {
        *self = Self::default();
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.left = None;
        if self.sent.take().is_some() {
            self.retry = Some(now + PAUSE_MAX / 4);
        }
    }

    pub(super) fn poll_timeout(&self, settings: &Settings) -> Option<Instant> {
        let due = self.last.map(|last| last + settings.keep_alive_interval);
        let next = if self.sent.is_some() { None } else { self.retry.or(due) };
        // A moment later: a deadline is over once it has passed.
        let late = self.deadline.map(|deadline| deadline + Duration::from_millis(1));
        next.into_iter().chain(late).min()
    }
}

impl Machine {
    /// The lease was renewed.
    pub fn handle_beat(&mut self, now: Instant) {
        let Some((sent, note)) = self.keeping.sent.take() else { return self.step(now) };
        let is_known = self.keeping.has_left(&note);
        // Counted from when it was sent: the register may have heard it then.
        self.keeping = Keeping { last: Some(sent), left: Some(note), ..Keeping::default() };
        // What this node sees now was told to it with its own wish: it may be the last that was missing.
        if is_known { self.step(now) } else { self.step_first(now) }
    }

    /// Sends a heartbeat unless one is under way.
    pub(super) fn beat(&mut self, now: Instant) {
        let note = self.note(now);
        let keeping = &mut self.keeping;
        if keeping.sent.is_none() && keeping.retry.is_none_or(|retry| now >= retry) {
            keeping.sent = Some((now, note.clone()));
            keeping.retry = None;
            keeping.deadline.get_or_insert(now + self.settings.heartbeat);
            self.requests.push_back(Request::Beat { lease: self.settings.lease(), note });
        }
    }

    /// Renews the lease if it is time, whatever else goes on.
    pub(super) fn keep_alive(&mut self, now: Instant) {
        if self.keeping.retry.is_some_and(|retry| now >= retry) {
            // What failed may have been a wish, long before the next heartbeat is due.
            self.beat(now);
        }
        if !self.keeping.holds() && self.keeping.deadline.is_none() {
            return;
        }
        let is_late = self.keeping.deadline.is_some_and(|deadline| now > deadline);
        let deadline = self.keeping.deadline.unwrap_or(now + self.settings.heartbeat);
        let nothing = State::default();
        let context = Context {
            state: &nothing,
            settings: &self.settings,
            node: &self.node,
            now,
            deadline,
            last_heartbeat: self.keeping.last.filter(|_| !is_late),
            called: None,
        };
        match decide(Operator::KeepAlive, &context) {
            Action::KeepAlive => self.beat(now),
            Action::ErrorTimeout => {
                let limit = self.settings.heartbeat;
                let error = self.trouble.clone().unwrap_or_else(|| "no answer".to_owned());
                let text = format!("no heartbeat got through within {limit:?}; it is tried again");
                self.tell(EventName::KeepAliveFailed, text, Some(error));
                self.keeping.deadline = Some(now + limit);
                self.beat(now);
            }
            _ => {}
        }
    }
}
