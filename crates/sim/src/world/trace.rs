//! What happened, as a hash for machines and as lines for people.

use outlast_proto::time::Instant;
use std::hash::Hasher;
use twox_hash::XxHash3_64;

/// Lines that are kept at most; a longer story is cut at its start.
const LINES_MAX: usize = 200_000;

/// A running hash over every event, and the readable timeline if it is wanted.
pub struct Trace {
    hasher: XxHash3_64,
    lines: Option<std::collections::VecDeque<String>>,
    events: u64,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self { hasher: XxHash3_64::with_seed(0), lines: None, events: 0 }
    }

    pub(crate) fn keep_lines(&mut self) {
        self.lines.get_or_insert_default();
    }

    /// Takes one event into the hash.
    pub(crate) fn event(&mut self, at: Instant, kind: u8, words: [u64; 3]) {
        let mut bytes = [0; 33];
        bytes[0] = kind;
        bytes[1..9].copy_from_slice(&at.as_nanos().to_le_bytes());
        for (i, word) in words.iter().enumerate() {
            bytes[9 + 8 * i..17 + 8 * i].copy_from_slice(&word.to_le_bytes());
        }
        self.hasher.write(&bytes);
        self.events += 1;
    }

    /// Takes a line into the hash, and into the timeline.
    pub(crate) fn line(&mut self, at: Instant, text: &str) {
        self.event(at, b'l', [0; 3]);
        self.hasher.write(text.as_bytes());
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(format!("{:>11.6}s  {text}", at.as_nanos() as f64 / 1e9));
        }
    }

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// How many events were hashed.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The timeline, if it was kept.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().flatten().map(String::as_str)
    }
}
