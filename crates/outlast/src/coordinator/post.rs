//! How this coordinator stands among several, for everybody in the process who has to know.
//!
//! The election writes it; the clerk and the registers ask before they decide, and lines tell their callers. Whether
//! something may be decided is a question to the clock, not to a flag that somebody has to lower in time: a process that
//! was stopped finds out by itself, with the first thing that it does.
//!
//! A coordinator that is alone may always decide, and says nothing of this.

use crate::clock;
use crate::port::Frames;
use crate::sync::{Mutex, lock};
use outlast_proto::coordinator::{Config, ReignStatus, Run};
use outlast_proto::id::PeerId;
use outlast_proto::membership::Preset;
use outlast_proto::reign::{Appeal, Visitors};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::{Term, ToCoordinator, ToPeer};
use outlast_proto::wire::hello::Standing;
use outlast_proto::wire::{decode, encode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};

/// A coordinator's post: alone, or among several.
#[derive(Clone, Debug, Default)]
pub(super) struct Post(Option<Arc<Several>>);

#[derive(Debug)]
struct Several {
    /// Until when something may be decided, on the clock that goes on while the machine sleeps.
    good_until: AtomicU64,
    situation: watch::Sender<Situation>,
    /// Whose streams are held here, and who of them looks for whoever reigns.
    visitors: Mutex<Visitors>,
    visited: Notify,
}

/// What is known of the election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Situation {
    /// Where others reach this coordinator.
    pub(super) own: String,
    pub(super) term: Term,
    /// Whether that term is ours.
    pub(super) leads: bool,
    /// Where whoever reigns can be reached; empty if nobody does.
    pub(super) leader: String,
    /// Where those are who stand by.
    pub(super) standbys: Vec<String>,
    /// How long leases last.
    pub(super) lease: Duration,
}

impl Post {
    /// Among several, standing by.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "several need an etcd"))]
    pub(super) fn among_several(own: String, patience: Duration) -> Self {
        let situation = watch::Sender::new(Situation { own, ..Situation::default() });
        let visitors = Mutex::new(Visitors::new(patience));
        let visited = Notify::new();
        Self(Some(Arc::new(Several { good_until: AtomicU64::new(0), situation, visitors, visited })))
    }

    /// Whether something may be decided at this moment.
    pub(super) fn may_decide(&self) -> bool {
        self.0.as_ref().is_none_or(|several| {
            clock::boot_now() < Instant::from_nanos(several.good_until.load(Ordering::Acquire))
        })
    }

    /// The term under which something may be decided at this moment; the first one for a coordinator that is alone.
    pub(super) fn reign(&self) -> Option<Term> {
        let Some(several) = &self.0 else { return Some(1) };
        let situation = several.situation.borrow();
        (situation.leads && self.may_decide()).then_some(situation.term)
    }

    /// Until when it may be; `None`: not at all.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "several need an etcd"))]
    pub(super) fn permit(&self, until: Option<Instant>) {
        if let Some(several) = &self.0 {
            several.good_until.store(until.map_or(0, Instant::as_nanos), Ordering::Release);
        }
    }

    /// The election goes on.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "several need an etcd"))]
    pub(super) fn tell(&self, change: impl FnOnce(&mut Situation)) {
        if let Some(several) = &self.0 {
            several.situation.send_if_modified(|situation| {
                let before = situation.clone();
                change(situation);
                *situation != before
            });
        }
    }

    /// Whose reign it is, if it is somebody else's.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "several need an etcd"))]
    pub(super) fn note_reign(&self, other: Option<Term>) {
        if let Some(several) = &self.0 {
            lock(&several.visitors).handle_reign(clock::boot_now(), other);
        }
    }

    /// What there is to say to whoever reigns, of peers that cannot reach it; or when to ask again.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "several need an etcd"))]
    pub(super) fn appeal(&self) -> (Option<Appeal>, Option<Instant>) {
        let Some(several) = &self.0 else { return (None, None) };
        let mut visitors = lock(&several.visitors);
        (visitors.poll_appeal(clock::boot_now()), visitors.poll_timeout())
    }

    /// Returns when peers came or went.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "several need an etcd"))]
    pub(super) async fn visited(&self) {
        match &self.0 {
            Some(several) => several.visited.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Counts a peer's stream for as long as the result lives.
    fn count(&self, (peer, seeks): (PeerId, bool)) -> Visit {
        let visit = Visit { several: self.0.clone(), peer, seeks };
        visit.note(|visitors, visit| visitors.handle_came(clock::boot_now(), visit.peer, visit.seeks));
        visit
    }

    /// Where others reach us.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "several need an etcd"))]
    pub(super) fn standing_at(&self) -> Option<String> {
        self.0.as_ref().map(|several| several.situation.borrow().own.clone())
    }

    /// What is said in a hello.
    pub(super) fn standing(&self) -> Option<Standing> {
        let situation = self.0.as_ref()?.situation.borrow().clone();
        let leads = situation.leads && self.may_decide();
        let leader = if situation.leads && !leads { String::new() } else { situation.leader };
        Some(Standing { term: situation.term, leads, leader })
    }

    /// For people.
    pub(super) fn status(&self) -> Option<ReignStatus> {
        let several = self.0.as_ref()?;
        let situation = several.situation.borrow().clone();
        let until = Instant::from_nanos(several.good_until.load(Ordering::Acquire));
        let seconds = |time: Duration| (time.as_secs_f64() * 1_000.0).round() / 1_000.0;
        Some(ReignStatus {
            address: situation.own,
            leads: situation.leads && self.may_decide(),
            leader: situation.leader,
            term: situation.term,
            lease_seconds: seconds(situation.lease),
            lease_left_seconds: situation.leads.then(|| seconds(until.since(clock::boot_now()))),
            standbys: situation.standbys,
        })
    }

    /// Keeps a stream open whose other end was told that we stand by, until that is not true any more, or somebody else
    /// reigns, or the other end goes. Whoever only wants to know how things stand is told. `visitor`: who counts as a peer that
    /// reaches us, and whether it looks for whoever reigns.
    pub(super) async fn hold<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        frames: &mut Frames<S>,
        told: &Standing,
        visitor: Option<(PeerId, bool)>,
    ) {
        let Some(several) = &self.0 else { return };
        let _visit = visitor.map(|visitor| self.count(visitor));
        let mut situation = several.situation.subscribe();
        loop {
            let now = self.standing();
            if now
                .as_ref()
                .is_some_and(|now| !now.leader.is_empty() && (now.term, now.leads) != (told.term, told.leads))
            {
                let _ = tokio::time::timeout(GOODBYE_TIMEOUT, frames.finish()).await;
                return;
            }
            tokio::select! {
                changed = situation.changed() => if changed.is_err() { return },
                frame = frames.next() => {
                    let Ok(Some(bytes)) = frame else { return };
                    if matches!(decode::<ToCoordinator>(&bytes), Ok(ToCoordinator::AskStatus)) {
                        let run = Run::new(Config::preset(Preset::Lan)).status(clock::now());
                        let run = run.with_history(false, Vec::new(), Vec::new()).with_reign(self.status());
                        let answer = encode(&ToPeer::Status(run.to_json()));
                        let said = tokio::time::timeout(GOODBYE_TIMEOUT, frames.send(&answer)).await;
                        if !matches!(said, Ok(Ok(()))) {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// A peer's stream that is held.
struct Visit {
    several: Option<Arc<Several>>,
    peer: PeerId,
    seeks: bool,
}

impl Visit {
    fn note(&self, what: fn(&mut Visitors, &Self)) {
        if let Some(several) = &self.several {
            what(&mut lock(&several.visitors), self);
            several.visited.notify_one();
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.note(|visitors, visit| visitors.handle_went(visit.peer, visit.seeks));
    }
}

/// How long last words, or an answer, may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);
