//! Who writes, and who waits for it, where many see the same reason to.
//!
//! When a last call is over, or the one that should have completed a round dies, everybody knows at once, and one write is
//! enough. So they write in the order of their names: the first at once, each further one a moment later, and by then it
//! hears of the write and has nothing to write any more. Who alone can know is not in that queue: it writes at once.

use super::{Machine, Place, Reading};
use crate::rendezvous::Node;
use crate::time::{Duration, Instant};
use crate::wire::register::Token;

/// How long a node waits for each of those who come first. They write as soon as they hear of the write before
/// theirs, so this passes only where one of them is slow or dead.
const WAIT_PER_NODE: Duration = Duration::from_millis(5);
/// Nobody waits longer than this, however many come first.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Who lost although it was the first pauses for less than this, twice as long with every further loss, and for less than
/// the second in any case.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// A place in the queue, after one write.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    after: Token,
    ahead: u32,
    pub(super) until: Instant,
}

impl Machine {
    /// Whether this node writes now; otherwise it has a place in the queue.
    pub(super) fn is_first_in_queue(&mut self, now: Instant) -> bool {
        let Some(reading) = &self.reading else { return false };
        // Who left no wish writes for itself, and nobody can do it for it.
        if self.losses == 0 && (self.is_first_to_know || reading.note.is_empty()) {
            return true;
        }
        let (token, ahead) = (reading.token, self.ahead());
        let holds = |queued: &&Queued| queued.after == token && (ahead > 0 || queued.ahead == 0);
        if let Some(queued) = self.queued.as_ref().filter(holds) {
            return now >= queued.until;
        }
        let until = now + self.wait_in_queue(ahead);
        self.queued = Some(Queued { after: token, ahead, until });
        now >= until
    }

    fn wait_in_queue(&mut self, ahead: u32) -> Duration {
        let (first, longest) = PAUSES;
        match (ahead, self.losses) {
            // Whoever writes without waiting may beat us once; after that we are not alone.
            (0, 0..=1) => Duration::ZERO,
            (0, losses) => {
                (first * 2u32.saturating_pow(losses.min(16))).min(longest).mul_f64(self.rng.unit())
            }
            (ahead, _) => (WAIT_PER_NODE * ahead).min(WAIT_MAX),
        }
    }

    /// How many are about to write who come before this node.
    fn ahead(&self) -> u32 {
        let Some(reading) = &self.reading else { return 0 };
        let Reading { base, wishes, newcomers, .. } = reading;
        if !reading.note.is_empty() {
            return wishes.range(..&self.node).count() as u32;
        }
        let me = self.node.to_string();
        let before = |names: &mut dyn Iterator<Item = String>| names.filter(|name| *name < me).count();
        let newcomers = newcomers.iter().filter(|name| **name < me).count();
        let ahead = if !base.complete {
            before(&mut base.wait_list.iter().map(Node::to_string)) + newcomers
        } else if base.place(&self.node) == Some(Place::Participant) {
            // A round that somebody has left is left by all: they meet again.
            before(&mut base.participants.keys().map(Node::to_string))
        } else {
            newcomers
        };
        ahead as u32
    }
}
