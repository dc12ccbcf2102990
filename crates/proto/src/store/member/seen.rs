//! Which broadcasts of one origin are here, so that a second copy is told from news.
//!
//! Only so many can be remembered. One that is older than all of them counts as seen: were it news, it would be so each time
//! that it comes, and a broadcast that is news to all goes around for ever.

use crate::limits::STORE_CASTS_MAX;
use std::collections::BTreeSet;

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Seen {
    /// Whatever has a lower number counts as seen.
    below: u64,
    numbers: BTreeSet<u64>,
}

impl Seen {
    pub(super) fn has(&self, number: u64) -> bool {
        number < self.below || self.numbers.contains(&number)
    }

    pub(super) fn add(&mut self, number: u64) {
        self.numbers.insert(number);
        if self.numbers.len() > STORE_CASTS_MAX
            && let Some(oldest) = self.numbers.pop_first()
        {
            self.below = self.below.max(oldest.saturating_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_all_that_is_remembered_is_no_news() {
        let mut seen = Seen::default();
        let most = STORE_CASTS_MAX as u64;
        (11..=10 + most).for_each(|number| seen.add(number));
        assert!(!seen.has(5) && seen.has(11) && !seen.has(11 + most), "all are remembered");
        // One that comes late is the oldest, and is not forgotten at once.
        seen.add(5);
        assert!(seen.has(5) && seen.has(11));
        seen.add(12 + most);
        assert!(seen.has(5) && seen.has(11) && seen.has(8), "{seen:?}");
        assert!(!seen.has(11 + most), "the newest one that has not come");
        assert_eq!(seen.numbers.len(), STORE_CASTS_MAX);
    }
}
