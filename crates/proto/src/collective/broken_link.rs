//! A data link that broke, as it is told from whoever saw it to the program whose call it ended.

use crate::id::PeerId;

/// A link between two members that broke or could not be made. It reports and condemns nobody (rule 20).
///
/// Transport, session, coordinator and program all mean this by it. A message adds what its receiver needs besides (the
/// epoch, whether to plan around it at once) and has these as numbered fields of its own, so that it can grow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the link {from} -> {to} broke: {error}")]
pub struct BrokenLink {
    /// The end that sends.
    pub from: PeerId,
    /// The end that receives.
    pub to: PeerId,
    /// What the system said.
    pub error: String,
}

impl BrokenLink {
    /// The link over which `me` sends to `peer`.
    pub fn towards(me: PeerId, peer: PeerId, error: impl Into<String>) -> Self {
        Self { from: me, to: peer, error: error.into() }
    }

    /// The link over which `me` receives from `peer`.
    pub fn back_from(me: PeerId, peer: PeerId, error: impl Into<String>) -> Self {
        Self { from: peer, to: me, error: error.into() }
    }

    /// Whether `peer` is one of its ends.
    pub fn ends_at(&self, peer: PeerId) -> bool {
        self.from == peer || self.to == peer
    }
}
