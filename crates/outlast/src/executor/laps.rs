//! How far a ring is: which laps are under way, and which may begin.
//!
//! Laps run side by side within a window; a new one is opened when the oldest is complete. That window is all
//! the flow control there is after the first credit, and it is enough for a place to be there for every byte.
//! Let w be the window that this member grants its predecessor, and i the oldest lap that it has not completed.
//! It has not opened lap i + w, so nobody has all contributions to that lap, so the predecessor has not
//! completed it and, by the window it was granted, has not opened lap i + 2w. What arrives belongs to the
//! laps from i to i + 2w.
//!
//! A link may have several streams, and streams overtake each other. Laps do not care, the steps of one lap do:
//! so all steps of a lap leave on the stream that took its first.

use super::lanes::{Message, Source};
use outlast_proto::collective::ring::RingPlan;
use std::collections::VecDeque;

/// Every window has two laps at least: eager frames may belong to two (a plan of several laps has blocks of
/// 32 KiB and more).
const WINDOW_MIN: u32 = 2;

/// How far one lap is.
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
pub(super) struct Laps {
    window: u32,
    /// Progress of the laps from `base` on, by lap modulo its length.
    progress: Vec<Progress>,
    /// The oldest lap that is not complete.
    base: u32,
    /// The next lap to open.
    opened: u32,
    laps: u32,
    steps: u32,
    /// Blocks of laps that this member has not opened: the predecessor is ahead. They wait, so that the
    /// steps of a lap leave in order.
    held: VecDeque<Message>,
}

impl Laps {
    pub(super) fn new(plan: &RingPlan, window: u32) -> Self {
        let window = window.max(WINDOW_MIN);
        let places = (2 * window).min(plan.laps().max(1)) as usize;
        Self {
            window,
            progress: vec![Progress::default(); places],
            base: 0,
            opened: 0,
            laps: plan.laps(),
            steps: plan.steps(),
            held: VecDeque::new(),
        }
    }

    /// Laps that may be under way at a time.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    fn place(&mut self, lap: u32) -> &mut Progress {
        let index = lap as usize % self.progress.len();
        &mut self.progress[index]
    }

    /// Whether there is a place for this block now.
    pub(super) fn expects(&self, lap: u32, step: u32) -> bool {
        lap >= self.base
            && lap < self.laps
            && ((lap - self.base) as usize) < self.progress.len()
            && step < self.steps
            && step == self.progress[lap as usize % self.progress.len()].begun
    }

    /// An expected block begins to come in.
    pub(super) fn begun(&mut self, lap: u32) {
        self.place(lap).begun += 1;
    }

    /// Whether a message may leave on this stream.
    pub(super) fn fits(&self, message: &Message, stream: u8) -> bool {
        message.step == 0 || self.progress[message.lap as usize % self.progress.len()].stream == Some(stream)
    }

    /// The first message of a lap was taken by this stream.
    pub(super) fn taken(&mut self, message: &Message, stream: u8) {
        if message.step == 0 {
            self.place(message.lap).stream = Some(stream);
        }
    }

    pub(super) fn sent(&mut self, lap: u32) {
        self.place(lap).sent += 1;
    }

    pub(super) fn received(&mut self, lap: u32) {
        self.place(lap).received += 1;
    }

    /// A block can be passed on: at once, or when its lap is opened.
    pub(super) fn pass_on(&mut self, message: Message, ready: &mut VecDeque<Message>) {
        let queue = if message.lap < self.opened { ready } else { &mut self.held };
        queue.push_back(message);
    }

    /// Lets go of complete laps and opens as many as the windows of both ends allow.
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
        while self.opened < self.laps && self.opened - self.base < window {
            ready.push_back(Message { lane: 0, lap: self.opened, step: 0, source: Source::Input });
            for _ in 0..self.held.len() {
                let Some(message) = self.held.pop_front() else { break };
                let queue = if message.lap == self.opened { &mut *ready } else { &mut self.held };
                queue.push_back(message);
            }
            self.opened += 1;
        }
    }

    /// Takes what waits for laps that will not be opened any more.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Message> {
        self.held.drain(..)
    }
}
