//! What happened to a run lately, in words: for whoever asks for its status.
//!
//! The machine notes what it decides; the names of peers are kept beside it, because a peer that is gone has none in the
//! machine any more. Both are bounded, and nothing here decides anything. It is lost with the coordinator: what is rebuilt
//! from the peers begins with a line that says so.

use outlast_proto::coordinator::{EventStatus, Note};
use outlast_proto::id::PeerId;
use outlast_proto::text::printable;
use std::collections::{BTreeMap, VecDeque};
use std::time::SystemTime;

/// Events that are kept.
const EVENTS_MAX: usize = 100;
/// Names that are kept.
const NAMES_MAX: usize = 4_096;
/// Of one event's text.
const TEXT_MAX: usize = 160;

/// See the module's essay.
#[derive(Default)]
pub(super) struct History {
    names: BTreeMap<PeerId, String>,
    events: VecDeque<(SystemTime, String)>,
}

impl History {
    /// A peer said its name.
    pub(super) fn name(&mut self, peer: PeerId, name: &str) {
        if self.names.len() >= NAMES_MAX {
            self.names.pop_first();
        }
        self.names.insert(peer, printable(name).into_owned());
    }

    /// Something was decided; says it in words, if people want to know it.
    pub(super) fn note(&mut self, note: &Note) -> Option<String> {
        let text = self.words(note)?;
        Some(self.say(&text))
    }

    /// Something else that people want to know; returns as much of it as is kept.
    pub(super) fn say(&mut self, text: &str) -> String {
        let text: String = text.chars().take(TEXT_MAX).collect();
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back((SystemTime::now(), text.clone()));
        text
    }

    fn words(&self, note: &Note) -> Option<String> {
        let who = |peer: &PeerId| match self.names.get(peer) {
            Some(name) => format!("{name} {}", peer.short()),
            None => peer.short(),
        };
        Some(match note {
            Note::Accepted(peer) => format!("{} joined", who(peer)),
            Note::Disconnected(peer) => format!("{} lost its connection", who(peer)),
            Note::Resumed(peer) => format!("{} came back", who(peer)),
            Note::Lost(peer, reason) => format!("{} was lost: {reason}", who(peer)),
            Note::Epoch(group, epoch, world) => format!("group {group}: epoch {epoch} with {world} members"),
            Note::Kicked(peer, _, text) => format!("{} was told to go: {}", who(peer), printable(text)),
            Note::Rebuilt(group, epoch) => {
                format!("group {group}: rebuilt from its peers, epoch {epoch}; what was before is not listed")
            }
            Note::Contradiction(peer) => format!("{} contradicts the others", who(peer)),
            Note::LinkSlowed { from, to, before, rate } => {
                let megabytes = |rate: &u64| *rate as f64 / 1e6;
                let (now, then) = (megabytes(rate), megabytes(before));
                format!("the link {} -> {} carries {now:.1} MB/s, {then:.1} before", who(from), who(to))
            }
            Note::Frozen => "most peers fell silent at once: evictions for silence are frozen".to_owned(),
            Note::SteppedDown(term) => format!("a coordinator of term {term} reigned meanwhile"),
            Note::Registered(_) => return None,
        })
    }

    /// The latest first.
    pub(super) fn status(&self) -> Vec<EventStatus> {
        let (now, epoch) = (SystemTime::now(), SystemTime::UNIX_EPOCH);
        let seconds = |late: SystemTime, early: SystemTime| {
            late.duration_since(early).map_or(0.0, |time| (time.as_secs_f64() * 1e3).round() / 1e3)
        };
        let event = |(at, text): &(SystemTime, String)| EventStatus {
            time: seconds(*at, epoch),
            seconds_ago: seconds(now, *at),
            text: text.clone(),
        };
        self.events.iter().rev().map(event).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_proto::wire::control::LossReason;

    #[test]
    fn the_last_hundred_are_told_with_names_the_latest_first() {
        let (mut history, peer) = (History::default(), PeerId::from_bytes([7; 16]));
        history.name(peer, "ada\u{1b}[2J");
        for epoch in 0..120 {
            history.note(&Note::Epoch(0, epoch, 2));
        }
        history.note(&Note::Registered(peer));
        history.note(&Note::Lost(peer, LossReason::Killed));
        let told = history.status();
        assert_eq!(told.len(), EVENTS_MAX);
        assert_eq!(
            told[0].text,
            "ada\\u{1b}[2J 07070707 was lost: its connection closed and its port refuses"
        );
        assert_eq!(told[1].text, "group 0: epoch 119 with 2 members");
        assert!(told[0].time > 1.7e9 && told[0].seconds_ago < 60.0);
    }
}
