//! How many streams members have here (rule 39: one holder of the secret harms itself).
//!
//! Whoever belongs to the run may open streams, and each takes a descriptor of a process that needs them for its
//! training. So they are counted, by peer and in all, from the handover until the descriptor is closed.

use super::RefusedConnection;
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use outlast_proto::id::PeerId;
use std::collections::BTreeMap;

/// The streams that were handed over and are not closed yet.
#[derive(Debug)]
pub(super) struct Streams {
    max: usize,
    per_peer_max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    by_peer: BTreeMap<PeerId, usize>,
}

/// One stream's share, given back when dropped.
#[derive(Debug)]
pub(super) struct StreamLease {
    streams: Arc<Streams>,
    peer: PeerId,
}

impl Streams {
    pub(super) fn new(max: usize, per_peer_max: usize) -> Arc<Self> {
        Arc::new(Self { max, per_peer_max, open: Mutex::default() })
    }

    pub(super) fn lease(self: &Arc<Self>, peer: PeerId) -> Result<StreamLease, RefusedConnection> {
        let mut open = self.open();
        if open.total >= self.max {
            return Err(RefusedConnection::TooManyStreams(self.max));
        }
        let of_peer = open.by_peer.get(&peer).copied().unwrap_or(0);
        if of_peer >= self.per_peer_max {
            return Err(RefusedConnection::TooManyStreamsOfPeer(peer.short(), self.per_peer_max));
        }
        open.by_peer.insert(peer, of_peer + 1);
        open.total += 1;
        Ok(StreamLease { streams: Arc::clone(self), peer })
    }

    pub(super) fn total(&self) -> usize {
        self.open().total
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        open.total -= 1;
        if let Some(of_peer) = open.by_peer.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                open.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_a_share_and_it_comes_back() {
        let (one, two) = (PeerId::from_bytes([1; 16]), PeerId::from_bytes([2; 16]));
        let streams = Streams::new(3, 2);
        let held = [streams.lease(one).unwrap(), streams.lease(one).unwrap()];
        assert!(matches!(streams.lease(one), Err(RefusedConnection::TooManyStreamsOfPeer(_, 2))));
        let third = streams.lease(two).unwrap();
        assert_eq!(streams.lease(two).unwrap_err(), RefusedConnection::TooManyStreams(3));
        drop(held);
        assert_eq!(streams.total(), 1);
        assert!(streams.lease(one).is_ok());
        drop(third);
        assert_eq!(streams.total(), 0);
    }
}
