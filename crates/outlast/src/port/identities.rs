//! The identities under which a port is served, made once each.
//!
//! A port that serves one run has one identity. A coordinator serves whatever run its secret's holders name, and
//! whoever knocks names one before anything is proved. An identity costs a key derivation and two signatures, a
//! quarter of a millisecond: too much to be had for each knock. So identities are kept: those of runs to which
//! somebody has proved to belong, and, apart from these, a few of runs that were only named. New ones are made at a
//! bounded pace; beyond it a run that nobody has proved yet is told to ask again.

use crate::clock;
use crate::security::TlsIdentity;
use crate::sync::{Mutex, lock};
use outlast_proto::id::RunId;
use outlast_proto::time::{Duration, Instant};
use std::collections::BTreeMap;

/// Runs to which somebody belongs; the one that was asked for longest ago is forgotten first.
const PROVEN_MAX: usize = 1_024;
/// Runs that were only named.
const NAMED_MAX: usize = 64;
/// Identities that are made at once, and how long it takes until there may be one more.
const BURST: u32 = 256;
const PACE: Duration = Duration::from_millis(10);

/// Why there is no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotServed {
    /// That run is not served here.
    Unknown,
    /// Too many runs were asked for in a moment.
    Busy,
}

/// The identities under which a port is served: one for each run.
pub trait RunIdentities: Send + Sync {
    /// The identity for `run`, if it is served here.
    fn for_run(&self, run: &RunId) -> Result<TlsIdentity, NotServed>;

    /// Somebody has proved to belong to `run`.
    fn proven(&self, _run: &RunId) {}
}

impl RunIdentities for TlsIdentity {
    fn for_run(&self, run: &RunId) -> Result<TlsIdentity, NotServed> {
        if self.run() == run { Ok(self.clone()) } else { Err(NotServed::Unknown) }
    }
}

/// Every run is served, under an identity that is made when the run is first asked for.
pub struct CachedIdentities<F> {
    make: F,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    asked: u64,
    proven: Kept,
    named: Kept,
    /// When the identities that were made too fast will be paid for.
    paid: Option<Instant>,
}

/// Identities and when each was last asked for.
type Kept = BTreeMap<RunId, (TlsIdentity, u64)>;

impl<F: Fn(&RunId) -> TlsIdentity + Send + Sync> CachedIdentities<F> {
    /// Identities that `make` makes.
    pub fn new(make: F) -> Self {
        Self { make, cache: Mutex::default() }
    }

    fn at(&self, now: Instant, run: &RunId) -> Result<TlsIdentity, NotServed> {
        let mut guard = lock(&self.cache);
        let cache = &mut *guard;
        cache.asked += 1;
        let asked = cache.asked;
        if let Some((identity, last)) = cache.proven.get_mut(run).or_else(|| cache.named.get_mut(run)) {
            *last = asked;
            return Ok(identity.clone());
        }
        let paid = cache.paid.map_or(now, |paid| paid.max(now));
        if paid.since(now) >= BURST * PACE {
            return Err(NotServed::Busy);
        }
        cache.paid = Some(paid + PACE);
        drop(guard);
        // Not under the lock: runs that are known need not wait for it.
        let identity = (self.make)(run);
        let mut cache = lock(&self.cache);
        keep(&mut cache.named, NAMED_MAX, run, (identity.clone(), asked));
        Ok(identity)
    }
}

impl<F: Fn(&RunId) -> TlsIdentity + Send + Sync> RunIdentities for CachedIdentities<F> {
    fn for_run(&self, run: &RunId) -> Result<TlsIdentity, NotServed> {
        self.at(clock::now(), run)
    }

    fn proven(&self, run: &RunId) {
        let mut cache = lock(&self.cache);
        if let Some(kept) = cache.named.remove(run) {
            keep(&mut cache.proven, PROVEN_MAX, run, kept);
        }
    }
}

fn keep(kept: &mut Kept, max: usize, run: &RunId, entry: (TlsIdentity, u64)) {
    if kept.len() >= max && !kept.contains_key(run) {
        let oldest = kept.iter().min_by_key(|(_, (_, asked))| *asked).map(|(run, _)| run.clone());
        oldest.and_then(|oldest| kept.remove(&oldest));
    }
    kept.insert(run.clone(), entry);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{ProcessKey, RunKeys, RunSecret};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn run(number: usize) -> RunId {
        format!("run-{number}").parse().unwrap()
    }

    #[test]
    fn an_identity_is_made_once_and_a_flood_of_names_neither_costs_nor_displaces() {
        let (secret, key, made) = (RunSecret::generate(), ProcessKey::generate(), AtomicUsize::new(0));
        let identities = CachedIdentities::new(|run: &RunId| {
            made.fetch_add(1, Ordering::Relaxed);
            TlsIdentity::derived(&RunKeys::derive(&secret, run), &key)
        });
        let now = Instant::ORIGIN + Duration::from_secs(1);
        for _ in 0..100 {
            assert!(identities.at(now, &run(0)).is_ok());
        }
        assert_eq!(made.load(Ordering::Relaxed), 1, "one certificate for a hundred handshakes");
        identities.proven(&run(0));
        let refused = (1..1_000).filter(|number| identities.at(now, &run(*number)).is_err()).count();
        assert_eq!(made.load(Ordering::Relaxed), BURST as usize);
        assert_eq!(refused, 1_000 - BURST as usize);
        assert_eq!(identities.at(now, &run(1_000)).unwrap_err(), NotServed::Busy);
        assert!(identities.at(now, &run(0)).is_ok(), "whoever belongs somewhere is served");
        assert_eq!(made.load(Ordering::Relaxed), BURST as usize, "from what was kept");
        assert!(identities.at(now + PACE, &run(1_000)).is_ok(), "in time there is one more");
        assert!(identities.cache.lock().unwrap().named.len() <= NAMED_MAX);
    }
}
