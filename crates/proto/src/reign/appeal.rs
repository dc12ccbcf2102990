//! Appeals: a coordinator that stands by says that peers reach it and do not reach the one that reigns.
//!
//! # The problem
//!
//! A lease proves that a coordinator reaches etcd. It says nothing of the peers: one whose way to them is cut renews its
//! lease for ever, decides nothing, and in the end puts out everybody who lives.
//!
//! # The intuition
//!
//! Nobody sees more of this than those who stand by. Every peer has a stream to each of them: who is served watches for the
//! next reign there, who is not served *seeks*. So one that stands by knows how many peers reach it, and who of them seeks
//! although somebody reigns. If that lasts, it writes both down where the leader looks: at etcd. The leader subtracts the
//! seekers from those on its own lines. If fewer are left than reach the other, it gives its lease back
//! ([`Reign::handle_appeal`](super::Reign::handle_appeal)), and leaves the next election to others.
//!
//! ```text
//!                  peers a b c d                    a, b seek; c, d watch:     reached 4, seekers a b
//!                 x x  |  \    \                    c, d are on the leader's lines:       served 2
//!             leader --+- etcd - one that stands by     2 < 4: the leader steps down
//! ```
//!
//! # The invariant
//!
//! Nobody is deposed: only the leader itself ends its reign, by the same steps as at any other end. An appeal that is late,
//! lost or untrue costs at most an election. Whoever took over is reached by more peers than the one before, so two of them
//! do not pass the reign to and fro.
//!
//! # What it does not do
//!
//! Where as many reach the one as the other nothing changes: peers that reach nobody who reigns are missed as ever.

use crate::id::PeerId;
use crate::limits::SEEKERS_MAX;
use crate::time::{Duration, Instant};
use crate::wire::control::Term;
use minicbor::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};

/// What one that stands by says of its peers.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Appeal {
    /// The reign that it is about.
    #[n(0)]
    pub term: Term,
    /// How many peers reach the one that appeals.
    #[n(1)]
    pub reached: u64,
    /// Who of them looks for the leader in vain.
    #[n(2)]
    pub seekers: Vec<PeerId>,
}

impl Appeal {
    /// As it is written down.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to a vector cannot fail.
        let _ = minicbor::encode(self, &mut bytes);
        bytes
    }

    /// Reads what was written down; none if it is something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        minicbor::decode::<Self>(bytes).ok().filter(|appeal| appeal.seekers.len() <= SEEKERS_MAX)
    }

    /// How many of those on our lines are served, as far as the one that appeals knows.
    pub fn served_of(&self, lines: impl Iterator<Item = PeerId>) -> u64 {
        let seekers: BTreeSet<_> = self.seekers.iter().copied().collect();
        let served: BTreeSet<_> = lines.filter(|peer| !seekers.contains(peer)).collect();
        served.len() as u64
    }
}

/// A peer that has streams to us.
#[derive(Clone, Debug, Default, Hash)]
struct Visitor {
    streams: u32,
    seeking: u32,
    /// Since when, without a gap: who reached the leader meanwhile, whatever came of that, has not looked in vain.
    since: Option<Instant>,
}

/// The peers that have streams to one that stands by, and when to appeal for them.
#[derive(Clone, Debug, Hash)]
pub struct Visitors {
    patience: Duration,
    peers: BTreeMap<PeerId, Visitor>,
    /// Whose reign, and since when we know of it. None while nobody else reigns.
    reign: Option<(Term, Instant)>,
    next_at: Instant,
}

impl Visitors {
    /// Of one that appeals after that long.
    pub fn new(patience: Duration) -> Self {
        Self { patience, peers: BTreeMap::new(), reign: None, next_at: Instant::ORIGIN }
    }

    /// A peer has opened a stream.
    pub fn handle_came(&mut self, now: Instant, peer: PeerId, seeks: bool) {
        if self.peers.len() >= SEEKERS_MAX && !self.peers.contains_key(&peer) {
            return;
        }
        let visitor = self.peers.entry(peer).or_default();
        visitor.streams += 1;
        if seeks {
            visitor.seeking += 1;
            visitor.since.get_or_insert(now);
        }
    }

    /// That stream is closed.
    pub fn handle_went(&mut self, peer: PeerId, seeks: bool) {
        let Some(visitor) = self.peers.get_mut(&peer) else { return };
        visitor.streams = visitor.streams.saturating_sub(1);
        visitor.seeking = visitor.seeking.saturating_sub(u32::from(seeks));
        if visitor.seeking == 0 {
            visitor.since = None;
        }
        if visitor.streams == 0 {
            self.peers.remove(&peer);
        }
    }

    /// Somebody else reigns under that term; or nobody else does.
    pub fn handle_reign(&mut self, now: Instant, term: Option<Term>) {
        if self.reign.map(|(term, _)| term) != term {
            self.reign = term.map(|term| (term, now));
        }
    }

    /// What to write down now, if anything is. It is said again while it is true.
    pub fn poll_appeal(&mut self, now: Instant) -> Option<Appeal> {
        if self.poll_timeout()? > now {
            return None;
        }
        self.next_at = now + self.patience;
        let (term, _) = self.reign?;
        let reached = self.peers.len() as u64;
        let seekers = self.peers.iter().filter(|(_, visitor)| visitor.seeking > 0);
        Some(Appeal { term, reached, seekers: seekers.map(|(peer, _)| *peer).collect() })
    }

    /// When to ask.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (_, known) = self.reign?;
        let longest = self.peers.values().filter_map(|visitor| visitor.since).min()?;
        Some((longest.max(known) + self.patience).max(self.next_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn at(millis: u64) -> Instant {
        Instant::ORIGIN + Duration::from_millis(millis)
    }

    fn peer(number: u8) -> PeerId {
        PeerId::from_bytes([number; 16])
    }

    #[test]
    fn who_seeks_while_somebody_reigns_is_appealed_for_again_and_again() {
        let mut visitors = Visitors::new(PATIENCE);
        visitors.handle_came(at(0), peer(1), false);
        visitors.handle_came(at(100), peer(2), true);
        assert_eq!(visitors.poll_timeout(), None, "nobody reigns: all are seeking, and rightly");
        visitors.handle_reign(at(500), Some(7));
        assert_eq!(visitors.poll_timeout(), Some(at(2_500)), "it had no time to find that one yet");
        assert_eq!(visitors.poll_appeal(at(2_499)), None);
        let appeal = Appeal { term: 7, reached: 2, seekers: vec![peer(2)] };
        assert_eq!(visitors.poll_appeal(at(2_500)), Some(appeal.clone()));
        assert_eq!(Appeal::from_bytes(&appeal.to_bytes()), Some(appeal.clone()));
        assert_eq!((visitors.poll_appeal(at(2_501)), visitors.poll_timeout()), (None, Some(at(4_500))));
        assert_eq!(visitors.poll_appeal(at(4_500)), Some(appeal));
        // The next reign has its own time.
        visitors.handle_reign(at(5_000), Some(9));
        assert_eq!(visitors.poll_timeout(), Some(at(7_000)));
        visitors.handle_went(peer(2), true);
        assert_eq!(visitors.poll_timeout(), None);
    }

    #[test]
    fn who_reaches_the_leader_and_is_refused_does_not_look_in_vain() {
        let mut visitors = Visitors::new(PATIENCE);
        visitors.handle_reign(at(0), Some(3));
        for moment in (0..20_000).step_by(1_900) {
            visitors.handle_came(at(moment), peer(1), true);
            assert_eq!(visitors.poll_appeal(at(moment + 1_899)), None);
            visitors.handle_went(peer(1), true);
        }
        // Two streams at once count once, and a stream that only watches is none that seeks.
        visitors.handle_came(at(30_000), peer(1), true);
        visitors.handle_came(at(30_500), peer(1), true);
        visitors.handle_went(peer(1), true);
        assert_eq!(visitors.poll_timeout(), Some(at(32_000)));
        visitors.handle_came(at(30_600), peer(1), false);
        visitors.handle_went(peer(1), true);
        assert_eq!(visitors.poll_timeout(), None);
    }

    #[test]
    fn whoever_seeks_is_not_served_whatever_the_leader_believes_of_its_line() {
        let appeal = Appeal { term: 7, reached: 3, seekers: vec![peer(1), peer(2)] };
        let lines = [peer(1), peer(2), peer(3), peer(3), peer(4)];
        assert_eq!(appeal.served_of(lines.into_iter()), 2);
    }

    #[test]
    fn visitors_are_bounded_and_forgotten() {
        let mut visitors = Visitors::new(PATIENCE);
        for number in 0..=SEEKERS_MAX {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            visitors.handle_came(at(0), PeerId::from_bytes(bytes), true);
        }
        assert_eq!(visitors.peers.len(), SEEKERS_MAX);
        for peer in visitors.peers.keys().copied().collect::<Vec<_>>() {
            visitors.handle_went(peer, true);
        }
        assert!(visitors.peers.is_empty());
    }
}
