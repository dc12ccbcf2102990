//! One attempt at a collective, from the session that orders it to the transport that performs it.

use super::OpKey;
use crate::id::PeerId;
use crate::wire::control::Decider;
use std::sync::Arc;

/// One attempt: its name, and whom its bytes pass. It follows from the epoch's record and the call alone, so all members
/// have the same. It is made once, by the session, and handed on as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Its name.
    pub key: OpKey,
    /// The ring's members in scope, in order.
    pub ring: Arc<[PeerId]>,
    /// The same members in the order of ranks (rule 3).
    pub members: Arc<[PeerId]>,
    /// Whether two of them cannot reach each other: what would go straight between members goes around the ring
    /// (rule 16).
    pub goes_around: bool,
    /// What gives its verdict (rule 11).
    pub decider: Decider,
}
