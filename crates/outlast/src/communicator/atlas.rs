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
use outlast_proto::topology::{Forecast, Link, Links};
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
#[derive(Clone, Copy, Debug)]
struct Carried {
    rate: u64,
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
    /// or when it has changed a lot.
    pub(super) fn note_carried(&self, peer: PeerId, rate: u64, round_trip: Duration) -> Option<u64> {
        let now = clock::now();
        let mut state = lock(&self.0);
        let carried = state.carried.entry(peer).or_insert(Carried { rate, told: None });
        // One call may meet a busy moment; half of what was before it evens that out.
        carried.rate = carried.rate / 2 + rate / 2;
        let rate = carried.rate.max(1);
        let is_news = carried.told.is_none_or(|(before, at)| {
            let waited = now.since(at);
            waited >= TELL_EVERY || (waited >= TELL_SOONEST && rate.abs_diff(before) > before / 5)
        });
        if !is_news {
            return None;
        }
        carried.told = Some((rate, now));
        if state.carried.len() > LINKS_BROUGHT_MAX {
            state.carried.retain(|other, _| *other == peer);
        }
        drop(state);
        self.note(peer, rate, 0, round_trip);
        Some(rate)
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
        state.told = Links::default();
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
        (state.told, state.promise) = (Links::default(), None);
    }
}

/// Shared by a communicator and what it runs.
pub(super) type SharedAtlas = Arc<Atlas>;
