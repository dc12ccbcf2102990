//! How the store ends: first everybody is told that it will, then it does.
//!
//! *Shutdown* is an intent: every member that hears it joins in and says so, and nobody is missed from then on. When all
//! have, or after `shutdown_wait`, comes *exit*: whatever waits is woken with an error, and after a moment for the last
//! messages links are closed. Members that are stopped may keep all of it from those behind them: these hear it from the
//! registrar. A member that goes without the first phase is failed over, unless it was to end the store with it: then the
//! others' errors name it.

use super::{Action, Failure, Member};
use crate::time::Instant;
use crate::wire::store::mesh::Letter;
use crate::wire::store::views::ToRegistrar;
use crate::wire::store::{MemberId, StoreMember};
use std::collections::BTreeSet;

/// Why the store is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Somebody shut it down.
    ShutDown,
    /// This member was gone, and was to end it.
    Lost(String),
    /// This member has left; the store goes on.
    Left,
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct State {
    phase: Phase,
}

#[derive(Clone, Debug, Default, Hash)]
enum Phase {
    #[default]
    Open,
    /// We have shut it down and wait for these to join in.
    Asking { left: BTreeSet<MemberId>, until: Instant },
    /// Somebody else did; should it not come to exit, we do it.
    Joined { until: Instant },
    /// It is over; last messages are on their way.
    Over { why: Ending, until: Instant, told: bool },
}

impl State {
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Open | Phase::Over { told: true, .. } => None,
            Phase::Asking { until, .. } | Phase::Joined { until } | Phase::Over { until, .. } => Some(*until),
        }
    }

    /// What calls fail with once it is over.
    pub(super) fn failure(&self) -> Option<Failure> {
        match &self.phase {
            Phase::Over { why, .. } => Some(why.failure()),
            _ => None,
        }
    }
}

impl Ending {
    fn failure(&self) -> Failure {
        match self {
            Self::ShutDown => Failure::ShutDown,
            Self::Lost(words) => Failure::ShutDownOn(words.clone()),
            Self::Left => Failure::Left,
        }
    }
}

impl Member {
    /// Ends the store for all. Its end is an [`Action::Ended`], at most twice `shutdown_wait` later.
    pub fn shutdown(&mut self, now: Instant) {
        if !matches!(self.ending.phase, Phase::Open) {
            return;
        }
        let me = self.me.id;
        let members = self.view().map(|view| view.members.iter().map(|member| member.id));
        let left: BTreeSet<_> = members.into_iter().flatten().filter(|member| *member != me).collect();
        self.actions.push_back(Action::Tell(ToRegistrar::Ends));
        self.ending.phase = Phase::Asking { left, until: now + self.config.shutdown_wait };
        self.cast(now, Letter::Shutdown { by: me });
        self.exit_if_all(now);
        self.settle(now);
    }

    /// What is said behind the registration on every new stream to a registrar: that the store ends, because the stream before
    /// may have broken with it. Who is in no view speaks for no store.
    pub fn last_word(&self) -> Option<ToRegistrar> {
        let ends = match &self.ending.phase {
            Phase::Asking { .. } | Phase::Joined { .. } => true,
            Phase::Over { why, .. } => *why == Ending::ShutDown,
            Phase::Open => false,
        };
        (ends && self.active.is_some()).then_some(ToRegistrar::Ends)
    }

    /// This member goes; the store goes on without it. Its end is an [`Action::Ended`], once the registrar has taken it
    /// out of the view, or after twice `shutdown_wait`.
    pub fn leave(&mut self, now: Instant) {
        self.actions.push_back(Action::Tell(ToRegistrar::Leave));
        self.settle(now);
    }

    /// The registrar has let this member go, or it goes without: its calls fail.
    pub fn gone(&mut self, now: Instant) {
        self.finish(now, Ending::Left);
    }

    /// A store without a coordinator: connects to the member with rank 0, which decides on views, are refused. If it was
    /// to end the store nobody is left who could say so, so whoever finds it dead does (rule 20b).
    pub fn handle_leader_refused(&mut self, now: Instant) {
        let since = *self.registrar.refused_since.get_or_insert(now);
        let me = self.me.id;
        let lost = self.view().and_then(|view| {
            view.members
                .iter()
                .find(|member| member.rank == 0 && member.ends_store && member.id != me)
                .cloned()
        });
        if let Some(lost) = lost.filter(|_| now >= since + self.config.probe_timeout) {
            self.cast(now, Letter::Exit { lost: Some(lost.clone()) });
            self.end(now, Some(lost));
        }
        self.settle(now);
    }

    pub(super) fn shutdown_heard(&mut self, now: Instant, by: MemberId) {
        if let Phase::Open = self.ending.phase {
            self.ending.phase = Phase::Joined { until: now + self.config.shutdown_wait * 2 };
            self.actions.push_back(Action::Tell(ToRegistrar::Ends));
        }
        self.send(now, by, Letter::JoinsIn);
    }

    /// This member is somebody else now, perhaps in another store. What it had joined in is none of its business any more;
    /// what it had begun itself ends for it here, and nowhere else.
    pub(super) fn forget_the_end(&mut self, now: Instant) {
        match self.ending.phase {
            Phase::Joined { .. } => self.ending.phase = Phase::Open,
            Phase::Asking { .. } => self.end(now, None),
            Phase::Open | Phase::Over { .. } => {}
        }
    }

    pub(super) fn joined_in(&mut self, now: Instant, from: MemberId) {
        if let Phase::Asking { left, .. } = &mut self.ending.phase {
            left.remove(&from);
        }
        self.exit_if_all(now);
    }

    fn exit_if_all(&mut self, now: Instant) {
        if matches!(&self.ending.phase, Phase::Asking { left, .. } if left.is_empty()) {
            self.exit(now);
        }
    }

    fn exit(&mut self, now: Instant) {
        self.cast(now, Letter::Exit { lost: None });
        self.end(now, None);
    }

    /// The store is over.
    pub(super) fn end(&mut self, now: Instant, lost: Option<StoreMember>) {
        self.finish(now, lost.map_or(Ending::ShutDown, |lost| Ending::Lost(lost.words())));
    }

    fn finish(&mut self, now: Instant, why: Ending) {
        if matches!(self.ending.phase, Phase::Over { .. }) {
            return;
        }
        self.fail_all(&why.failure());
        self.ending.phase = Phase::Over { why, until: now + self.config.last_words, told: false };
    }

    pub(super) fn ending_due(&mut self, now: Instant) {
        if self.ending.due().is_none_or(|at| now < at) {
            return;
        }
        match &mut self.ending.phase {
            Phase::Asking { .. } | Phase::Joined { .. } => self.exit(now),
            Phase::Over { why, told, .. } => {
                *told = true;
                self.actions.push_back(Action::Ended(why.clone()));
            }
            Phase::Open => {}
        }
    }
}
