//! Transfers that are under way: which names are taken, and the number of the next receive.
//!
//! Nobody votes on a transfer, and what it does is between its two ends. But two of one name at one end would take each
//! other's bytes, so here is who may begin.

use super::calls::CallError;
use super::machine::Session;
use crate::collective::{Seq, Tag};
use crate::id::PeerId;
use std::collections::BTreeSet;

/// Which transfers this is about: those with that peer, under that tag, in that direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferName {
    /// The other end.
    pub peer: PeerId,
    /// Its name.
    pub tag: Tag,
    /// Whether we receive.
    pub receives: bool,
}

/// The transfers of one peer.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Transfers {
    /// The number of the next receive. All names share one sequence: it is enough that numbers grow, also from one
    /// connection to the next.
    next: Seq,
    open: BTreeSet<TransferName>,
}

impl Session {
    /// The program wants a transfer, and gets the number of it if it receives. `end_transfer` must follow.
    ///
    /// # Errors
    /// If one of that name is not over. Nothing has changed.
    pub fn begin_transfer(&mut self, name: TransferName) -> Result<Seq, CallError> {
        if !self.transfers.open.insert(name) {
            let TransferName { peer, tag, receives } = name;
            return Err(CallError::TransferInFlight { peer, tag, receives });
        }
        let number = self.transfers.next;
        self.transfers.next += u64::from(name.receives);
        Ok(number)
    }

    /// A transfer is over, however it went.
    pub fn end_transfer(&mut self, name: TransferName) {
        self.transfers.open.remove(&name);
    }
}
