//! How far a ring is: which rounds are under way, and which may begin.
//!
//! Rounds run side by side within a window; a new one is opened when the oldest is complete. That window is all
//! the flow control there is after the first credit, and it is enough for a place to be there for every byte.
//! Let w be the window that this member grants its predecessor, and i the oldest round that it has not completed.
//! It has not opened round i + w, so nobody has all contributions to that round, so the predecessor has not
//! completed it and, by the window it was granted, has not opened round i + 2w. What arrives belongs to the
//! rounds from i to i + 2w.
//!
//! A link may have several streams, and streams overtake each other. Rounds do not care, the steps of one round do:
//! so all steps of a round leave on the stream that took its first.

use super::lanes::{Message, Source};
use outlast_proto::collective::ring::RingPlan;
use std::collections::VecDeque;

/// Every window has two rounds at least: eager frames may belong to two (a plan of several rounds has blocks of
/// 32 KiB and more).
const WINDOW_MIN: u32 = 2;

/// How far one round is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Steps whose blocks began to come in; each is taken once.
    begun: u32,
    received: u32,
    sent: u32,
    /// The stream that took this member's first step.
    stream: Option<u8>,
}

/// See the module's essay.
#[derive(Debug)]
pub(super) struct Rounds {
    window: u32,
    /// Progress of the rounds from `base` on, by round modulo its length.
    progress: Vec<Progress>,
    /// The oldest round that is not complete.
    base: u32,
    /// The next round to open.
    opened: u32,
    rounds: u32,
    steps: u32,
    /// Blocks of rounds that this member has not opened: the predecessor is ahead. They wait, so that the
    /// steps of a round leave in order.
    held: VecDeque<Message>,
}

impl Rounds {
    pub(super) fn new(plan: &RingPlan, window: u32) -> Self {
        let window = window.max(WINDOW_MIN);
        let places = (2 * window).min(plan.rounds().max(1)) as usize;
        Self {
            window,
            progress: vec![Progress::default(); places],
            base: 0,
            opened: 0,
            rounds: plan.rounds(),
            steps: plan.steps(),
            held: VecDeque::new(),
        }
    }

    /// Rounds that may be under way at a time.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    fn place(&mut self, round: u32) -> &mut Progress {
        let index = round as usize % self.progress.len();
        &mut self.progress[index]
    }

    /// Whether there is a place for this block now.
    pub(super) fn expects(&self, round: u32, step: u32) -> bool {
        round >= self.base
            && round < self.rounds
            && ((round - self.base) as usize) < self.progress.len()
            && step < self.steps
            && step == self.progress[round as usize % self.progress.len()].begun
    }

    /// An expected block begins to come in.
    pub(super) fn begun(&mut self, round: u32) {
        self.place(round).begun += 1;
    }

    /// Whether a message may leave on this stream.
    pub(super) fn fits(&self, message: &Message, stream: u8) -> bool {
        message.step == 0
            || self.progress[message.round as usize % self.progress.len()].stream == Some(stream)
    }

    /// The first message of a round was taken by this stream.
    pub(super) fn taken(&mut self, message: &Message, stream: u8) {
        if message.step == 0 {
            self.place(message.round).stream = Some(stream);
        }
    }

    pub(super) fn sent(&mut self, round: u32) {
        self.place(round).sent += 1;
    }

    pub(super) fn received(&mut self, round: u32) {
        self.place(round).received += 1;
    }

    /// A block can be passed on: at once, or when its round is opened.
    pub(super) fn pass_on(&mut self, message: Message, ready: &mut VecDeque<Message>) {
        let queue = if message.round < self.opened { ready } else { &mut self.held };
        queue.push_back(message);
    }

    /// Lets go of complete rounds and opens as many as the windows of both ends allow.
    pub(super) fn advance(&mut self, granted: Option<u32>, ready: &mut VecDeque<Message>) {
        while self.base < self.opened {
            let steps = self.steps;
            let oldest = self.place(self.base);
            if oldest.received < steps || oldest.sent < steps {
                break;
            }
            *oldest = Progress::default();
            self.base += 1;
        }
        // Before the receiver has granted anything, what any receiver has places for.
        let window = granted.unwrap_or(WINDOW_MIN).min(self.window);
        while self.opened < self.rounds && self.opened - self.base < window {
            ready.push_back(Message { lane: 0, round: self.opened, step: 0, source: Source::Input });
            for _ in 0..self.held.len() {
                let Some(message) = self.held.pop_front() else { break };
                let queue = if message.round == self.opened { &mut *ready } else { &mut self.held };
                queue.push_back(message);
            }
            self.opened += 1;
        }
    }

    /// Takes what waits for rounds that will not be opened any more.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Message> {
        self.held.drain(..)
    }
}
