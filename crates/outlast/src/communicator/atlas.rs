//! What this member knows of links: what it has measured itself, and what a vote told everybody.
//!
//! Its own measurements it brings along with its next vote for a better ring, so that a coordinator that was restarted
//! measures nothing again. What was told is for predictions: how long will a collective take on the ring that we have?

use crate::clock;
use crate::sync::{Mutex, lock};
use outlast_proto::ballot::optimise::{Brought, Told};
use outlast_proto::id::PeerId;
use outlast_proto::limits::LINKS_BROUGHT_MAX;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::topology::{Figure, Forecast, Link, Links};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What we measured with one member.
#[derive(Clone, Copy, Debug)]
struct Own {
    sends: u64,
    receives: u64,
    round_trip: Duration,
    at: Instant,
}

/// What collectives carried to one member of late.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    /// In the last call that told.
    last: Option<u64>,
    /// What the coordinator was told last, and when.
    told: Option<(u64, Instant)>,
}

/// How often a coordinator is told what a link carries, and how soon if that has changed by a fifth.
const TELL_EVERY: Duration = Duration::from_mins(1);
const TELL_SOONEST: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct State {
    carried: BTreeMap<PeerId, Carried>,
    own: BTreeMap<PeerId, Own>,
    told: Links,
    /// What the ring of that epoch promises, worked out once.
    promise: Option<(u64, Option<Forecast>)>,
}

/// What this member knows of links.
#[derive(Debug, Default)]
pub(super) struct Atlas(Mutex<State>);

impl Atlas {
    /// A measurement of ours; zero for a direction that was not measured.
    pub(super) fn note(&self, peer: PeerId, sends: u64, receives: u64, round_trip: Duration) {
        let mut state = lock(&self.0);
        let at = clock::now();
        let before = state.own.get(&peer).copied();
        let kept = |new: u64, old: Option<u64>| if new > 0 { new } else { old.unwrap_or(0) };
        let own = Own {
            sends: kept(sends, before.map(|own| own.sends)),
            receives: kept(receives, before.map(|own| own.receives)),
            round_trip,
            at,
        };
        if state.own.len() >= LINKS_BROUGHT_MAX && before.is_none() {
            let oldest = state.own.iter().min_by_key(|(_, own)| own.at).map(|(peer, _)| *peer);
            oldest.and_then(|peer| state.own.remove(&peer));
        }
        state.own.insert(peer, own);
    }

    /// What a collective let us see of our link to a member. Says what to tell the coordinator, if it is news: now and then,
    /// or when it has changed a lot. It is not ours to bring along: only who knows the ring can say whether the link had its
    /// way for itself.
    pub(super) fn note_carried(&self, (me, peer): (PeerId, PeerId), figure: Figure) -> Option<u64> {
        let now = clock::now();
        let mut state = lock(&self.0);
        let rate = match figure {
            Figure::Exactly(rate) => rate,
            Figure::AtLeast(rate) => {
                let known = state.told.of(me, peer).map(|link| link.rate);
                // No less than what is known already says nothing.
                Some(rate).filter(|rate| known.is_some_and(|known| *rate > known))?
            }
        };
        if state.carried.len() >= LINKS_BROUGHT_MAX {
            state.carried.retain(|other, _| *other == peer);
        }
        let carried = state.carried.entry(peer).or_default();
        // The first call of a link has a slow start, and one call may meet a busy moment; two do not.
        let rate = rate.max(carried.last.replace(rate)?).max(1);
        let is_news = carried.told.is_none_or(|(before, at)| {
            let waited = now.since(at);
            waited >= TELL_EVERY || (waited >= TELL_SOONEST && rate.abs_diff(before) > before / 5)
        });
        is_news.then(|| {
            carried.told = Some((rate, now));
            rate
        })
    }

    /// What a vote brings along, of members that are still here.
    pub(super) fn brought(&self, members: &[PeerId]) -> Vec<Brought> {
        let mut state = lock(&self.0);
        state.own.retain(|peer, _| members.contains(peer));
        let now = clock::now();
        let brought = state.own.iter().map(|(peer, own)| Brought {
            peer: *peer,
            sends: own.sends,
            receives: own.receives,
            round_trip_us: u32::try_from(own.round_trip.as_micros()).unwrap_or(u32::MAX),
            age_ms: u64::try_from(now.since(own.at).as_millis()).unwrap_or(u64::MAX),
        });
        brought.take(LINKS_BROUGHT_MAX).collect()
    }

    /// What all were told. Ends are places in `ring`.
    pub(super) fn learn(&self, ring: &[PeerId], links: &[Told]) {
        let now = clock::now();
        let mut state = lock(&self.0);
        // What was carried may have been on another ring, with other neighbours on the same uplink.
        (state.told, state.carried) = (Links::default(), BTreeMap::new());
        for told in links {
            let end = |at: u32| ring.get(at as usize).copied();
            if let (Some(from), Some(to)) = (end(told.from), end(told.to)) {
                let round_trip = Duration::from_micros(told.round_trip_us.into());
                let at = now - Duration::from_millis(told.age_ms);
                state.told.note(from, to, Link { rate: told.rate, round_trip, at });
            }
        }
        state.promise = None;
    }

    /// What a ring promises, if all its links are known. Asked for every call, so it is worked out once for each epoch.
    pub(super) fn forecast(&self, epoch: u64, ring: impl FnOnce() -> Vec<PeerId>) -> Option<Forecast> {
        let mut state = lock(&self.0);
        if let Some((_, promise)) = state.promise.filter(|(known, _)| *known == epoch) {
            return promise;
        }
        let promise = if state.told.is_empty() {
            None
        } else {
            let ring = ring();
            let ends = ring.iter().zip(ring.iter().cycle().skip(1));
            let links: Option<Vec<_>> = ends.map(|(from, to)| state.told.of(*from, *to).copied()).collect();
            links.and_then(|links| Forecast::of(&links))
        };
        state.promise = Some((epoch, promise));
        promise
    }

    /// A new session: perhaps of another group. What we measured ourselves stays true.
    pub(super) fn forget(&self) {
        let mut state = lock(&self.0);
        (state.told, state.carried, state.promise) = (Links::default(), BTreeMap::new(), None);
    }
}

/// Shared by a communicator and what it runs.
pub(super) type SharedAtlas = Arc<Atlas>;

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> PeerId {
        PeerId::from_bytes([number; 16])
    }

    fn told(rate: u64) -> Atlas {
        let atlas = Atlas::default();
        atlas.learn(&[peer(1), peer(2)], &[Told { from: 0, to: 1, rate, round_trip_us: 100, age_ms: 0 }]);
        atlas
    }

    #[test]
    fn one_call_alone_is_not_believed_and_the_better_of_two_is() {
        let atlas = told(1_000);
        let carried = |rate| atlas.note_carried((peer(1), peer(2)), Figure::Exactly(rate));
        assert_eq!(carried(300), None, "a slow start");
        assert_eq!(carried(900), Some(900));
        assert_eq!(carried(400), None, "a busy moment");
        // A new ring: what was carried before says nothing about it.
        atlas.learn(&[peer(1), peer(2)], &[]);
        assert_eq!((carried(500), carried(500)), (None, Some(500)));
    }

    #[test]
    fn a_link_that_waits_for_others_is_no_slower_for_it() {
        let atlas = told(1_000);
        let carried = |rate| atlas.note_carried((peer(1), peer(2)), Figure::AtLeast(rate));
        assert_eq!((carried(300), carried(300), carried(1_000)), (None, None, None));
        assert_eq!((carried(1_500), carried(1_500)), (None, Some(1_500)), "more than was known");
        assert!(
            atlas.brought(&[peer(2)]).is_empty(),
            "measured by nobody: the coordinator is told, and judges"
        );
    }
}
