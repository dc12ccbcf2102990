//! What the clerk tells of its runs: answers about the status, and lines in the log.
//!
//! Whoever asks gets one JSON object, made of what the run's machine says of itself and what only the clerk knows: who was told to
//! go, what came to the port, who reigns, how the run's store stands. Making it takes time that runs share, so it is made again
//! only after a moment, and peers may ask only so often (rule 39). The log is bounded too: whoever makes the coordinator refuse
//! it again and again must not fill a disk with that.

use super::Clerk;
use crate::coordinator::history;
use crate::coordinator::quotas::Pace;
use crate::planted::{self, Place};
use crate::runtime;
use crate::sync::lock;
use outlast_proto::coordinator::{ConnectionId, KickStatus, Run, RunStatus};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::limits::STATUS_REFUSALS_MAX;
use outlast_proto::text::printable;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::ToPeer;
use std::collections::VecDeque;
use std::time::Duration;

/// Refusals that are remembered, for all runs together.
const REFUSALS_MAX: usize = 256;
/// Lines about kicks and losses in quick succession, and the time until there may be one more.
const LOG_LINES_BURST: u32 = 30;
const LOG_LINE_EVERY: Duration = Duration::from_secs(2);

/// How much may be said in the log of what others can bring about.
#[derive(Default)]
pub(super) struct LogPace(Pace);

impl LogPace {
    /// Whether there may be a line now; if so, it counts.
    pub(super) fn allows_a_line(&mut self, now: Instant) -> bool {
        self.0.take(now, LOG_LINES_BURST, LOG_LINE_EVERY).is_ok()
    }
}

/// Who was told to go, the latest last.
#[derive(Default)]
pub(super) struct Refusals(VecDeque<Refusal>);

/// Somebody who was told to go.
struct Refusal {
    run: RunId,
    peer: PeerId,
    text: String,
    at: Instant,
}

impl Refusals {
    fn remember(&mut self, refusal: Refusal) {
        if self.0.len() >= REFUSALS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(refusal);
    }

    /// The last ones of that run, the latest first.
    fn of_run(&self, now: Instant, run: &RunId) -> Vec<KickStatus> {
        let seconds = |ago: Duration| (ago.as_secs_f64() * 1_000.0).round() / 1_000.0;
        let of_run = self.0.iter().rev().filter(|refusal| refusal.run == *run);
        let status = |refusal: &Refusal| KickStatus {
            peer: refusal.peer.to_string(),
            text: refusal.text.clone(),
            seconds_ago: seconds(now.since(refusal.at)),
        };
        of_run.take(STATUS_REFUSALS_MAX).map(status).collect()
    }
}

impl Clerk {
    /// Remembers that a peer was told to go.
    pub(super) fn remember_refusal(&mut self, now: Instant, run: &RunId, peer: PeerId, text: &str) {
        let text = printable(text).into_owned();
        if self.log_pace.allows_a_line(now) {
            tracing::warn!(%run, peer = %peer.short(), "told a peer to go: {text}");
        }
        self.refusals.remember(Refusal { run: run.clone(), peer, text, at: now });
    }

    /// Answers a question about the status.
    pub(super) fn answer(&mut self, now: Instant, run: &RunId, id: ConnectionId, peer: PeerId) {
        let asked = self.customers.may_speak(peer).and_then(|()| self.customers.may_ask(now, peer));
        let text = match asked {
            // Our own words: nothing in them needs to be escaped.
            Err(refusal) => format!("{{\"error\":\"{refusal}\"}}"),
            Ok(()) => self.status(now, run),
        };
        let served = self.runs.get(run).and_then(|served| served.line(id));
        let Some(line) = served.or_else(|| self.strangers.get(&id)) else { return };
        // Who does not read its answers is not read any more either: no more than its letters wait here.
        let _ = line.try_send(ToPeer::Status(text));
    }

    fn status(&mut self, now: Instant, run: &RunId) -> String {
        let Some(served) = self.runs.get(run) else {
            return self.described(now, run, &Run::new(self.config.clone()));
        };
        if let Some(text) = served.recent_status(now) {
            return text.to_owned();
        }
        let text = self.described(now, run, served.machine());
        if let Some(served) = self.runs.get_mut(run) {
            served.keep_status(now, text.clone());
        }
        text
    }

    /// How a run stands. Looking changes nothing, so a panic of it costs the answer, and the run nothing.
    pub(super) fn described(&self, now: Instant, run: &RunId, machine: &Run) -> String {
        let text = runtime::guarded("what describes a run", || {
            planted::step(|place| matches!(place, Place::Status(planted) if planted == run));
            self.describe(now, run, machine)
        });
        text.unwrap_or_else(|| r#"{"error":"what describes this run panicked; the run goes on"}"#.to_owned())
    }

    fn describe(&self, now: Instant, run: &RunId, machine: &Run) -> String {
        let runs = self.runs.iter().take(STATUS_REFUSALS_MAX).map(|(run, served)| RunStatus {
            run_id: run.as_str().to_owned(),
            world_size: served.machine().world_size(),
        });
        let served = self.runs.get(run);
        let events = served.map_or_else(Vec::new, |served| history::status(served.machine().annals()));
        let status = machine.status(now).with_doors(self.port.status(), self.refusals.of_run(now, run));
        let status = status.with_reign(self.post.status()).with_store(lock(&self.stores).get(run).cloned());
        status.with_history(served.is_some(), runs.collect(), events).to_json()
    }
}
