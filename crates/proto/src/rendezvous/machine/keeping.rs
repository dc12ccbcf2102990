//! The lease: renewed in time, and again if that failed.

use super::{Machine, PAUSE_MAX, Request};
use crate::rendezvous::{Action, Context, EventName, Operator, Settings, State, decide};
use crate::time::{Duration, Instant};

/// How a node stands with its lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Keeping {
    /// When the heartbeat was sent that was answered last.
    last: Option<Instant>,
    /// When the one was sent that was not answered yet.
    sent: Option<Instant>,
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
        self.sent.or(self.retry).or(self.last)
    }

    pub(super) fn lapsed(&mut self) {
        *self = Self::default();
    }

    pub(super) fn failed(&mut self, now: Instant) {
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
        if let Some(sent) = self.keeping.sent.take() {
            // Counted from when it was sent: the register may have heard it then.
            self.keeping = Keeping { last: Some(sent), ..Keeping::default() };
        }
        self.step(now);
    }

    /// Sends a heartbeat unless one is under way.
    pub(super) fn beat(&mut self, now: Instant) {
        let keeping = &mut self.keeping;
        if keeping.sent.is_none() && keeping.retry.is_none_or(|retry| now >= retry) {
            keeping.sent = Some(now);
            keeping.retry = None;
            keeping.deadline.get_or_insert(now + self.settings.heartbeat);
            self.requests.push_back(Request::Beat { lease: self.settings.lease() });
        }
    }

    /// Renews the lease if it is time, whatever else goes on.
    pub(super) fn keep_alive(&mut self, now: Instant) {
        if !self.keeping.holds() && self.keeping.deadline.is_none() {
            return;
        }
        let deadline = self.keeping.deadline.unwrap_or(now + self.settings.heartbeat);
        let nothing = State::default();
        let context = Context {
            state: &nothing,
            settings: &self.settings,
            node: &self.node,
            now,
            deadline,
            last_heartbeat: self.keeping.last,
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
