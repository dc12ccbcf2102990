//! Where streams wait that others have opened to us for a measurement.

use crate::state::exchange::Stream;
use crate::sync::{Condvar, Mutex, lock, sleep_while};
use outlast_proto::id::PeerId;
use outlast_proto::topology::probe::STREAMS_MAX;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Streams of one peer that wait: a measurement has one for messages and several for bytes.
const PER_PEER_MAX: usize = 1 + STREAMS_MAX as usize;
/// Streams that wait, all in all.
const WAITING_MAX: usize = 128;
/// How often a wait looks whether it is still wanted.
const BEAT: Duration = Duration::from_millis(20);

/// Streams that have come; open only while a call measures.
#[derive(Default)]
pub(crate) struct Arrivals {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    /// How many calls measure; there should be one.
    open: usize,
    waiting: VecDeque<(PeerId, Stream)>,
}

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

/// Arrivals that are open. Dropped, what waits is closed.
pub(crate) struct Opened<'a>(&'a Arrivals);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        let closed = {
            let mut state = lock(&self.0.state);
            state.open -= 1;
            if state.open == 0 { std::mem::take(&mut state.waiting) } else { VecDeque::new() }
        };
        drop(closed); // Sockets are closed without the lock.
    }
}

impl Arrivals {
    /// Takes streams from now on.
    pub(crate) fn open(&self) -> Opened<'_> {
        lock(&self.state).open += 1;
        Opened(self)
    }

    /// A member has opened a stream to us. Without a call that measures, or with too many of them, it is closed.
    pub(crate) fn accept(&self, peer: PeerId, stream: Stream) {
        let mut state = lock(&self.state);
        let of_peer = state.waiting.iter().filter(|(other, _)| *other == peer).count();
        if state.open > 0 && of_peer < PER_PEER_MAX && state.waiting.len() < WAITING_MAX {
            state.waiting.push_back((peer, stream));
            drop(state);
            self.came.notify_all();
        }
    }

    /// The next stream of that peer; none if none came until then, or it is called off.
    pub(crate) fn take(&self, peer: PeerId, until: Instant, off: &dyn Fn() -> bool) -> Option<Stream> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let is_its = |(other, _): &(PeerId, Stream)| *other == peer;
            let waits = |state: &mut State| !state.waiting.iter().any(is_its);
            let mut state = sleep_while(&self.came, lock(&self.state), left.min(BEAT), waits);
            if let Some(at) = state.waiting.iter().position(is_its) {
                return state.waiting.remove(at).map(|(_, stream)| stream);
            }
            drop(state);
            if left.is_zero() || off() {
                return None;
            }
        }
    }
}
