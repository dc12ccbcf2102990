//! Votes that are no collectives: how far they have come.

use minicbor::{CborLen, Decode, Encode};

/// How far a group's votes for newcomers have come. They are numbered from one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Rounds {
    /// The last vote that ended.
    #[n(0)]
    pub ended: u64,
    /// The last vote that ended well; those after it timed out.
    #[n(1)]
    pub done: u64,
}

impl Rounds {
    /// Knowing what either knows.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { ended: self.ended.max(other.ended), done: self.done.max(other.done) }
    }
}
