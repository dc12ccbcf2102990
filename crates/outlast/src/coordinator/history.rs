//! What happened to a run lately, in words: for whoever asks for its status.
//!
//! The machine notes what it decides; the names of peers are kept here, because a peer that is gone has none in the
//! machine any more. The words go back to the machine, which has the members remember them
//! ([`outlast_proto::annals`]): so they outlive the coordinator. Nothing here decides anything.

use outlast_proto::annals::Annals;
use outlast_proto::coordinator::{EventStatus, Note};
use outlast_proto::id::PeerId;
use outlast_proto::text::printable;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Names that are kept.
const NAMES_MAX: usize = 4_096;

/// See the module's essay.
#[derive(Default)]
pub(super) struct Names {
    names: BTreeMap<PeerId, String>,
}

impl Names {
    /// A peer said its name.
    pub(super) fn name(&mut self, peer: PeerId, name: &str) {
        if self.names.len() >= NAMES_MAX {
            self.names.pop_first();
        }
        self.names.insert(peer, printable(name).into_owned());
    }

    /// What was noted, if people want to know it.
    pub(super) fn words(&self, note: &Note) -> Option<String> {
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
                format!("a coordinator took over; group {group} was rebuilt from its peers, epoch {epoch}")
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
}

/// The clock on the wall: microseconds since 1970.
pub(super) fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// The latest first.
pub(super) fn status(annals: &Annals) -> Vec<EventStatus> {
    let (now, seconds) = (unix_us(), |us: u64| (us as f64 / 1e3).round() / 1e3);
    let event = |incident: &outlast_proto::wire::control::Incident| EventStatus {
        time: seconds(incident.at_us),
        seconds_ago: seconds(now.saturating_sub(incident.at_us)),
        text: incident.text.clone(),
    };
    annals.iter().rev().map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_proto::wire::control::LossReason;

    #[test]
    fn the_last_hundred_are_told_with_names_the_latest_first() {
        let (mut names, mut annals, peer) =
            (Names::default(), Annals::default(), PeerId::from_bytes([7; 16]));
        names.name(peer, "ada\u{1b}[2J");
        let epochs = (0..120).map(|epoch| Note::Epoch(0, epoch, 2));
        for note in epochs.chain([Note::Registered(peer), Note::Lost(peer, LossReason::Killed)]) {
            if let Some(text) = names.words(&note) {
                annals.note(unix_us(), &text);
            }
        }
        let told = status(&annals);
        assert_eq!(told.len(), 100);
        assert_eq!(
            told[0].text,
            "ada\\u{1b}[2J 07070707 was lost: its connection closed and its port refuses"
        );
        assert_eq!(told[1].text, "group 0: epoch 119 with 2 members");
        assert!(told[0].time > 1.7e9 && told[0].seconds_ago < 60.0);
    }
}
