//! Looking for a better ring: two votes, and measurements between them.
//!
//! ```text
//!   vote: where I am, what I know -> who measures with whom -> measure -> vote: what I found -> the ring
//! ```
//!
//! What is decided and why is in [`outlast_proto::ballot::optimise`]; how a link is measured is in [`crate::probe`]. The
//! measurements run on the calling thread, one after the other, in an order that is the same for all: nobody waits for
//! somebody who waits for it.
//!
//! Whoever is lost meanwhile is not waited for: its measurements end when the next epoch is heard of. Whoever is stopped
//! costs each of its partners one heat's patience. What could not be measured is told, and the vote goes on without it.

use super::{Communicator, Error, Interrupt};
use crate::clock;
use crate::probe::{self, Outing};
use crate::recorder::{Entry, What};
use crate::state::exchange::Stream;
use crate::watch;
use outlast_proto::ballot::optimise::{Brought, KIND, Promise, RingOutcome, RingWish};
use outlast_proto::id::PeerId;
use outlast_proto::limits::{LINKS_BROUGHT_MAX, TEXT_BYTES_MAX};
use outlast_proto::session::{CallError, CallId, Done};
use outlast_proto::time::Duration;
use outlast_proto::topology::Forecast;
use outlast_proto::wire::{clip, decode, encode};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Heats follow each other as they end; a partner that is late is waited for until this much times the heat's number has
/// passed, and at least this long. A healthy group is far ahead of it, unless its ways are long.
const HEAT_PATIENCE: Duration = Duration::from_secs(5);
/// A member whose time is up has this long to say so to the others.
const LAST_WORD: Duration = Duration::from_secs(1);
/// The bytes for which a report says how long an all-reduce takes.
pub const REFERENCE_BYTES: u64 = 1 << 30;

/// What a vote for a better ring came to.
///
/// Agreed, the same on every member: all but `seconds`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TopologyReport {
    /// The members in the ring's order. Ranks are as they were.
    pub ring: Vec<PeerId>,
    /// How long the all-reduce of one gibibyte is expected to take on it, in seconds; none if a link was not measured.
    pub predicted: Option<f64>,
    /// The same for the ring before.
    pub before: Option<f64>,
    /// Whether it is another ring than before.
    pub improved: bool,
    /// Pairs that were measured for it, in both directions at once.
    pub measured_pairs: u32,
    /// From our call to its return.
    pub seconds: f64,
    /// Whether the search in the background had found it.
    pub moonshot: bool,
}

impl Communicator {
    /// Measures the links that are not known, and orders the ring for the slowest one. Every member of the group must
    /// call it. If nothing better by 5 % is found the ring stays as it is.
    pub fn optimize_topology(&self, timeout: Option<Duration>) -> Result<TopologyReport, Error> {
        self.optimize_topology_unless(timeout, &Interrupt::new())
    }

    /// As [`Self::optimize_topology`], until `interrupt` gives it up.
    pub fn optimize_topology_unless(
        &self,
        timeout: Option<Duration>,
        interrupt: &Interrupt,
    ) -> Result<TopologyReport, Error> {
        self.creator.check()?;
        self.control.may_begin_vote()?;
        let started = Instant::now();
        let stopped = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&stopped);
        let _attached = interrupt.attach(move || flag.store(true, Ordering::SeqCst));
        let deadline = started + timeout.unwrap_or(self.timeout);
        let call = Call { comm: self, interrupt, deadline, stopped };
        // Whoever hears the outcome before we do may come before we expect it.
        let _open = self.arrivals.open();
        let _turns = self.control.turns();
        let mut report = call.run()?;
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }
}

impl Communicator {
    /// Takes that for what was measured with a member, as if it had been. For tests of what rings follow from it.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn assume_link(&self, peer: PeerId, sends: u64, receives: u64, round_trip: Duration) {
        self.atlas.note(peer, sends, receives, round_trip);
    }
}

struct Call<'a> {
    comm: &'a Communicator,
    interrupt: &'a Interrupt,
    deadline: Instant,
    stopped: Arc<AtomicBool>,
}

/// What came of our measurements.
#[derive(Default)]
struct Findings {
    found: Vec<Brought>,
    failed: Vec<PeerId>,
    trouble: Option<String>,
}

impl Call<'_> {
    fn run(&self) -> Result<TopologyReport, Error> {
        loop {
            let (_, members) = self.comm.control.present()?;
            let known = self.comm.atlas.brought(&members);
            let begin = RingWish::Begin { site: self.comm.site.clone(), known };
            let findings = match self.vote(&begin)? {
                RingOutcome::Measure { members, heats } => self.measure(&members, &heats)?,
                RingOutcome::Failed { why } => return Err(Error::TopologyFailed(why)),
                RingOutcome::Again => continue,
                RingOutcome::Ring { .. } => return Err(Error::Bug("a ring before anything was measured")),
            };
            let Findings { found, failed, trouble } = findings;
            let wish = RingWish::Measured { site: self.comm.site.clone(), found, failed, trouble };
            match self.vote(&wish)? {
                RingOutcome::Ring { ring, links, promise, before, improved, moonshot, measured_pairs } => {
                    self.comm.atlas.learn(&ring, &links);
                    let members = u32::try_from(ring.len()).unwrap_or(u32::MAX);
                    let seconds =
                        |promise: Option<Promise>| promise.map(|promise| reference(members, promise));
                    return Ok(TopologyReport {
                        predicted: seconds(promise),
                        before: seconds(before),
                        improved,
                        measured_pairs,
                        seconds: 0.0,
                        moonshot,
                        ring,
                    });
                }
                RingOutcome::Failed { why } => return Err(Error::TopologyFailed(why)),
                RingOutcome::Again => {}
                RingOutcome::Measure { .. } => {
                    return Err(Error::Bug("a plan after everything was measured"));
                }
            }
        }
    }

    /// Goes through our part of the plan.
    fn measure(&self, members: &[PeerId], heats: &[Vec<(u32, u32)>]) -> Result<Findings, Error> {
        let me = self.comm.control.me();
        let start = Instant::now();
        let mut findings = Findings::default();
        let (flag, stopped) = (Arc::clone(&self.stopped), Arc::clone(&self.stopped));
        let _cancels = watch::cancels(move || flag.store(true, Ordering::SeqCst));
        let control = Arc::clone(&self.comm.control);
        for (number, heat) in (1u32..).zip(heats) {
            let peer = |at: &u32| members.get(*at as usize).copied();
            let ours = heat.iter().filter_map(|(dials, dialled)| Some((peer(dials)?, peer(dialled)?)));
            let Some((dials, dialled)) = ours.into_iter().find(|(one, other)| *one == me || *other == me)
            else {
                continue;
            };
            let other = if dials == me { dialled } else { dials };
            let deadline = self.deadline;
            let off = || {
                watch::look();
                let is_here = || control.present().is_ok_and(|(_, members)| members.contains(&other));
                let is_off = stopped.load(Ordering::SeqCst) || control.is_turn_over();
                is_off || Instant::now() >= deadline || !is_here()
            };
            let until = meet_by(start, Instant::now(), number).min(self.deadline);
            let streams_max = self.comm.streams_max;
            let outing = Outing { peer: other, until, streams_max, off: &off };
            if dials == me {
                self.dial(&outing, &mut findings);
            } else if let Err(error) = probe::wait(&self.comm.arrivals, &outing) {
                tracing::debug!(peer = %other, %error, "a measurement failed");
                findings.trouble.get_or_insert(format!("{}: {error}", other.short()));
            }
            if self.stopped.load(Ordering::SeqCst) {
                return Err(CallError::Cancelled.into());
            }
            if control.is_turn_over() {
                break; // Somebody gave up: the vote says who.
            }
        }
        findings.trouble = findings.trouble.map(|trouble| clip(&trouble, TEXT_BYTES_MAX));
        Ok(findings)
    }

    fn dial(&self, outing: &Outing<'_>, findings: &mut Findings) {
        let (links, control) = (&self.comm.links, &self.comm.control);
        let open = |peer: PeerId, by: Instant| {
            let gone = || io::Error::new(io::ErrorKind::NotConnected, "it is no member any more");
            let address = control.address(peer).ok_or_else(gone)?;
            links.dial_probe(peer, address, dial_by(by, Instant::now()), outing.off).map(Stream::new)
        };
        let peer = outing.peer;
        match probe::dial(&open, outing) {
            Ok(found) => {
                self.comm.atlas.note(peer, found.sends, found.receives, found.round_trip);
                if findings.found.len() < LINKS_BROUGHT_MAX {
                    findings.found.push(Brought {
                        peer,
                        sends: found.sends,
                        receives: found.receives,
                        round_trip_us: u32::try_from(found.round_trip.as_micros()).unwrap_or(u32::MAX),
                        age_ms: 0,
                    });
                }
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "a measurement failed");
                findings.trouble.get_or_insert(format!("{}: {error}", peer.short()));
                if findings.failed.len() < LINKS_BROUGHT_MAX {
                    findings.failed.push(peer);
                }
            }
        }
    }

    /// One turn of the vote.
    fn vote(&self, wish: &RingWish) -> Result<RingOutcome, Error> {
        let left = self.deadline.saturating_duration_since(Instant::now()).max(LAST_WORD);
        let deadline = clock::now() + left;
        let control = &self.comm.control;
        let called = |id: CallId| Entry::new(What::Called, "optimize").about(id.0);
        let (id, orders) = control.begin(called, |session, now| match wish {
            RingWish::Begin { .. } => session.handle_ballot_call(now, KIND, encode(wish), deadline),
            RingWish::Measured { .. } => session.handle_next_turn(now, KIND, encode(wish), deadline),
        });
        let canceller = Arc::downgrade(control);
        let _attached = self.interrupt.attach(move || {
            if let Some(control) = canceller.upgrade() {
                control.cancel(id);
            }
        });
        match self.comm.attend(id, &orders, left, |_| None)? {
            Ok(Done::Ballot { outcome, .. }) => Ok(decode(&outcome)?),
            Ok(Done::Committed { .. }) => Err(Error::Bug("a vote ended as a collective")),
            Err(CallError::GivenUp(why)) => Err(Error::TopologyFailed(why)),
            Err(error) => Err(error.into()),
        }
    }
}

/// When to give up waiting for the partner of a heat that we have come to now. Our own heats may have taken longer than they
/// should; then that one's may have, too.
fn meet_by(start: Instant, now: Instant, number: u32) -> Instant {
    (start + HEAT_PATIENCE * number).max(now + HEAT_PATIENCE)
}

/// When to give up dialling a partner that must be met by then. A later heat waits longer for a partner that is late,
/// because heats before it may have taken their time; but whoever lives takes streams at any time, so a dial that fails for
/// one heat's patience fails for good.
fn dial_by(until: Instant, now: Instant) -> Instant {
    until.min(now + HEAT_PATIENCE)
}

/// How long the all-reduce of [`REFERENCE_BYTES`] takes on a ring with that promise.
fn reference(members: u32, promise: Promise) -> f64 {
    let around = Duration::from_micros(promise.around_us);
    Forecast { members, rate: promise.rate.max(1), around }.all_reduce(REFERENCE_BYTES).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where one heat took ten seconds, every second one was over before it had begun.
    #[test]
    fn whoever_comes_late_to_a_heat_still_waits_for_its_partner() {
        let start = Instant::now();
        assert_eq!(meet_by(start, start, 1), start + HEAT_PATIENCE);
        assert_eq!(meet_by(start, start + HEAT_PATIENCE, 3), start + 3 * HEAT_PATIENCE);
        let late = start + 2 * HEAT_PATIENCE;
        assert_eq!(meet_by(start, late, 2), late + HEAT_PATIENCE);
    }

    /// The twentieth partner used to be dialled for a hundred seconds.
    #[test]
    fn nobody_is_dialled_for_longer_than_one_heats_patience() {
        let now = Instant::now();
        let soon = now + HEAT_PATIENCE / 2;
        assert_eq!(dial_by(soon, now), soon);
        assert_eq!(dial_by(now + 20 * HEAT_PATIENCE, now), now + HEAT_PATIENCE);
    }
}
