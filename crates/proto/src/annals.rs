//! Annals: the last hundred things that happened to a run, remembered by its coordinator and by every member.
//!
//! # The problem
//!
//! "Why did I lose a peer last night?" is asked of whoever coordinates *now*. It may have been restarted since, and it holds
//! soft state only: what it told people was lost with it, just when they wanted to know most.
//!
//! # The intuition
//!
//! Members outlive their coordinator; that is how it is rebuilt. So they carry its annals too. The coordinator tells them
//! each incident as it notes it, and a member that resumes brings what it remembers. Whoever has more tells the other.
//!
//! # The invariant
//!
//! An incident is one moment and one text, and is never changed. The coordinator gives each a later moment than any before
//! it, so the order of moments is the order of incidents, and what several members bring is one incident if it is equal.
//! There are at most [`INCIDENTS_MAX`]; the oldest go first.
//!
//! # What it does not do
//!
//! It decides nothing, and nothing waits for it. A member that lies can make people read lies, up to a hundred lines of them
//! and none from the future; it changes nothing else (rule 39).

use crate::limits::{INCIDENT_CHARS_MAX, INCIDENTS_MAX};
use crate::text::printable;
use crate::wire::control::Incident;
use std::collections::BTreeSet;

/// See the module's essay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Annals {
    incidents: BTreeSet<Incident>,
}

impl Annals {
    /// Something happens now, in microseconds since 1970. Returns it as it is kept: a clock that was set back does not make
    /// it earlier than what was noted before.
    pub fn note(&mut self, now_us: u64, text: &str) -> Incident {
        let last = self.incidents.last().map_or(0, |incident| incident.at_us);
        let text: String = text.chars().take(INCIDENT_CHARS_MAX).collect();
        let incident = Incident { at_us: now_us.max(last.saturating_add(1)), text };
        self.keep(incident.clone());
        incident
    }

    /// Takes in what somebody else remembers; nothing of it can have happened after `now_us`.
    pub fn recall(&mut self, now_us: u64, told: impl IntoIterator<Item = Incident>) {
        for incident in told {
            if self.incidents.contains(&incident) {
                continue;
            }
            // Whoever told it had its limits checked, so this shortens nothing but what had to be escaped.
            let text = printable(&incident.text).chars().take(INCIDENT_CHARS_MAX).collect();
            self.keep(Incident { at_us: incident.at_us.min(now_us), text });
        }
    }

    /// What is here and not among what somebody else remembers, the oldest first.
    pub fn lacking(&self, told: &[Incident]) -> Vec<Incident> {
        let told: BTreeSet<_> = told.iter().collect();
        self.incidents.iter().filter(|incident| !told.contains(incident)).cloned().collect()
    }

    /// All of it, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Incident> {
        self.incidents.iter()
    }

    /// Whether nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.incidents.is_empty()
    }

    fn keep(&mut self, incident: Incident) {
        self.incidents.insert(incident);
        if self.incidents.len() > INCIDENTS_MAX {
            self.incidents.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(annals: &Annals) -> Vec<&str> {
        annals.iter().map(|incident| incident.text.as_str()).collect()
    }

    #[test]
    fn the_order_is_that_of_the_notes_even_if_the_clock_is_set_back() {
        let mut annals = Annals::default();
        annals.note(500, "first");
        annals.note(500, "second, in the same moment");
        annals.note(100, "third, after the clock was set back");
        let first = "first";
        assert_eq!(
            texts(&annals),
            [first, "second, in the same moment", "third, after the clock was set back"]
        );
    }

    #[test]
    fn what_several_remember_is_there_once_and_in_order() {
        let (mut annals, mut one, mut other) = (Annals::default(), Annals::default(), Annals::default());
        let told: Vec<_> = (0..5).map(|at| annals.note(at * 10, &format!("number {at}"))).collect();
        one.recall(100, told[..4].to_vec());
        other.recall(100, told[2..].to_vec());
        let mut rebuilt = Annals::default();
        rebuilt.note(90, "the coordinator came back");
        for member in [other, one] {
            rebuilt.recall(95, member.iter().cloned());
        }
        assert_eq!(
            texts(&rebuilt),
            ["number 0", "number 1", "number 2", "number 3", "number 4", "the coordinator came back"]
        );
        assert_eq!(rebuilt.lacking(&told).len(), 1, "only the last is news to them");
    }

    #[test]
    fn nothing_comes_from_the_future_and_nothing_reaches_a_terminal() {
        let mut annals = Annals::default();
        annals.recall(1_000, [Incident { at_us: u64::MAX, text: "\u{1b}[2Jlies".to_owned() }]);
        let noted = annals.note(1_001, "truth");
        assert_eq!(texts(&annals), ["\\u{1b}[2Jlies", "truth"]);
        assert_eq!(noted.at_us, 1_001);
    }

    proptest! {
        /// In whichever order members bring what they remember, the same hundred are left: the latest.
        #[test]
        fn the_order_of_resumes_does_not_matter(
            moments in proptest::collection::vec((0u64..200, 0usize..4), 0..300),
            turn in 0usize..4,
        ) {
            let incident = |at: u64| Incident { at_us: at, text: format!("at {at}") };
            let member = |number: usize| {
                let mine = moments.iter().filter(move |(_, who)| *who == number);
                mine.map(|(at, _)| incident(*at)).collect::<Vec<_>>()
            };
            let rebuilt = |order: [usize; 4]| {
                let mut annals = Annals::default();
                order.iter().for_each(|number| annals.recall(1_000, member(*number)));
                annals
            };
            let expected: BTreeSet<_> = moments.iter().map(|(at, _)| *at).collect();
            let latest: Vec<_> = expected.iter().rev().take(INCIDENTS_MAX).rev().copied().collect();
            let mut order = [0, 1, 2, 3];
            order.rotate_left(turn);
            let annals = rebuilt(order);
            prop_assert_eq!(&annals, &rebuilt([3, 2, 1, 0]));
            let kept: Vec<_> = annals.iter().map(|incident| incident.at_us).collect();
            prop_assert_eq!(kept, latest);
        }
    }
}
