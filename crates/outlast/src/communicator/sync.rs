//! Making the group's state the same: two votes, and bytes between them.
//!
//! ```text
//!   hash all leaves -> vote: what I hold -> elected -> heal, or serve -> vote: done -> finished
//! ```
//!
//! Who already agrees pays one pass over its memory and two round trips to the coordinator. A donor lends its tensors
//! until the last member is done. What was decided and why is in [`outlast_proto::state`]; how bytes move is in
//! [`crate::state`].
//!
//! The invariant: whatever ends a sync early, the state is as it was, or whole and what was elected, or *torn* and known to
//! be so (rule 26). With `staged` it is never torn.

use super::interrupt::Attached;
use super::news::Event;
use super::orders::Orders;
use super::{Communicator, Error, Interrupt};
use crate::clock;
use crate::recorder::{Entry, What};
use crate::state::exchange::Stream;
use crate::state::exchange::donor::Serving;
use crate::state::exchange::receiver::{self, Errand, Found, Open, Staged, Unhealed};
use crate::state::{Revision, SharedState, Strategy};
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::watch;
use outlast_proto::ballot::sync::{KIND, Outcome, Wish};
use outlast_proto::id::PeerId;
use outlast_proto::limits::COUNT_MAX;
use outlast_proto::session::{CallError, CallId, Done};
use outlast_proto::state::Digest;
use outlast_proto::state::election::{Deviation, Elected, Healed, Offer, Role};
use outlast_proto::state::tree;
use outlast_proto::time::Duration;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A member whose time is up has this long to say so to the others.
const LAST_WORD: Duration = Duration::from_secs(1);

/// How a sync is called. Members may differ in it.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct SyncOptions {
    strategy: Strategy,
    staged: bool,
    timeout: Option<Duration>,
    interrupt: Option<Interrupt>,
}

impl SyncOptions {
    /// Give or get, in place, with everything else as usual.
    pub fn new() -> Self {
        Self::default()
    }

    /// What this member is willing to do.
    pub fn strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }

    /// Whether what comes is kept aside until everything is there: the state is never torn, for as much memory as
    /// differs.
    pub fn staged(self, staged: bool) -> Self {
        Self { staged, ..self }
    }

    /// Time for all of it; the communicator's default otherwise.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// What gives the call up from another thread.
    pub fn interrupt(self, interrupt: &Interrupt) -> Self {
        Self { interrupt: Some(interrupt.clone()), ..self }
    }
}

/// What a sync found and did.
///
/// Agreed, the same on every member: `revision`, `extra`, `healed`, `diverged`, `members`. The others are this member's own.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SyncReport {
    /// The revision that all members hold now. Agreed.
    pub revision: Revision,
    /// The bytes that travel along. Agreed.
    pub extra: Vec<u8>,
    /// Payload bytes that we served.
    pub sent: u64,
    /// Payload bytes that came.
    pub received: u64,
    /// Leaves that differed here.
    pub leaves: u64,
    /// Who gave what was kept here, and how many leaves.
    pub donors: Vec<(PeerId, u64)>,
    /// Donors that were replaced on the way, and why.
    pub replaced: Vec<(PeerId, String)>,
    /// Keys whose contents differed here.
    pub differed: Vec<String>,
    /// Who was healed, and of which keys; the first few. Agreed.
    pub healed: Vec<(PeerId, Vec<String>)>,
    /// Who held the elected revision with other contents, without knowing it; the first few. Agreed.
    pub diverged: Vec<PeerId>,
    /// Everybody who holds it, in the order of ranks; none if there are more than 4,096. Agreed.
    pub members: Vec<PeerId>,
    /// From our call to its return.
    pub seconds: f64,
}

/// The last revision that this session knows its group agreed on.
#[derive(Debug, Default)]
pub(super) struct Agreed(Mutex<Option<Revision>>);

impl Agreed {
    fn known(&self) -> MutexGuard<'_, Option<Revision>> {
        lock(&self.0)
    }

    /// The group has agreed on this one.
    pub(super) fn note(&self, revision: Option<Revision>) {
        let mut known = self.known();
        *known = (*known).max(revision);
    }

    /// A new session: perhaps of another history.
    pub(super) fn forget(&self) {
        *self.known() = None;
    }
}

/// One member's sync under way.
struct Call<'a> {
    comm: &'a Communicator,
    options: &'a SyncOptions,
    deadline: Instant,
    stopped: Arc<AtomicBool>,
    /// In the outcome of the first turn.
    donors: Vec<PeerId>,
    found: Found,
    sent: u64,
}

impl Communicator {
    /// Makes `state` the same on every member of the group, to the bit: the highest revision wins, then the most popular
    /// contents. Every member of the group must call it.
    pub fn sync_state(&self, state: &mut SharedState, options: &SyncOptions) -> Result<SyncReport, Error> {
        self.creator.check()?;
        self.control.may_begin_vote()?;
        state.outline().validate().map_err(|error| Error::InvalidArgument(error.to_string()))?;
        if let Some(revision) = state.revision().filter(|revision| *revision > COUNT_MAX) {
            return Err(Error::InvalidArgument(format!("revision {revision}: the largest is {COUNT_MAX}")));
        }
        let started = Instant::now();
        let timeout = options.timeout.unwrap_or(self.timeout);
        let stopped = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&stopped);
        let _attached = options
            .interrupt
            .as_ref()
            .map(|interrupt| interrupt.attach(move || flag.store(true, Ordering::SeqCst)));
        let call = Call {
            comm: self,
            options,
            deadline: started + timeout,
            stopped,
            donors: Vec::new(),
            found: Found::default(),
            sent: 0,
        };
        let _turns = self.control.turns();
        let mut report = call.run(state)?;
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }
}

impl Communicator {
    /// Serves a shared state with changed bits from now on. For tests of what others do about such a donor.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn spoil_served_state(&self) {
        self.stall.spoil();
    }

    /// Serves a shared state to so many streams at once from now on. For tests of what the others do about it.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn serve_fewer_streams(&self, most: usize) {
        self.stall.serve_fewer(most);
    }

    /// How a donor is reached: where the roster says that it is now.
    fn open_state(&self) -> Open {
        let (links, control) = (Arc::clone(&self.links), Arc::clone(&self.control));
        Arc::new(move |peer, deadline| {
            let gone = || io::Error::new(io::ErrorKind::NotConnected, "it is no member any more");
            let address = control.address(peer).ok_or_else(gone)?;
            links.dial_state(peer, address, deadline).map(Stream::new)
        })
    }
}

/// How our part went, until the second vote.
enum Part {
    /// We hold what was elected.
    Whole,
    /// We hold it aside.
    Staged(Staged),
    /// We do not, and why.
    Without(Error),
}

impl<'a> Call<'a> {
    fn run(mut self, state: &mut SharedState) -> Result<SyncReport, Error> {
        self.comm.stall.begin_sync();
        let hashes = Arc::new(self.hash(state)?);
        let outline = state.outline().digest();
        let root = tree::root(outline, state.extra(), &hashes);
        let (strategy, was_agreed) = (self.options.strategy, state.was_agreed());
        let offer = Offer { revision: state.revision(), strategy, outline, root, was_agreed };
        let known = *self.comm.agreed.known();
        let (elected, diverged) = match self.vote(&Wish::Offer(offer, known))? {
            Outcome::Elected { elected, donors, diverged } => {
                self.donors = donors;
                (elected, diverged)
            }
            Outcome::NoDonor { why, .. } => return Err(Error::NoDonor(why)),
            outcome => return Err(failed(&outcome, state)),
        };
        let role = elected.role(&offer);
        // Whoever is to be healed says so at once, and how far it has come.
        let heals = role == Role::Receiver && offer.root != elected.root;
        let healing = heals.then(|| self.cast(&Wish::Healing(elected.root, 0, 0), LAST_WORD));
        let mut part = self.take_part(state, role, &elected, &hashes, healing.as_ref());
        let wish = match &part {
            Part::Whole | Part::Staged(_) => {
                let keys = self.found.differed.iter().map(String::as_str);
                Wish::Done(elected.root, Healed::of(keys))
            }
            // Who deviates is no obstacle to the others, and is not counted among those who hold it.
            Part::Without(Error::StateMismatch(_)) => Wish::Apart(elected.root),
            Part::Without(error) => Wish::Failed(elected.root, error.to_string()),
        };
        let vote = match healing {
            Some(vote) => {
                vote.change(&wish);
                vote
            }
            None => self.cast(&wish, Duration::ZERO),
        };
        let (outcome, sent, has_changed) = {
            let serving = self.serve(state, &part, &elected, &hashes, &vote)?;
            let outcome = vote.wait();
            let serving = serving.as_ref();
            (outcome, serving.map_or(0, Serving::sent), serving.is_some_and(Serving::has_changed))
        };
        self.sent = sent;
        if has_changed {
            // Nobody knows any more what it is. To sync again would not do: the others may have finished without us.
            state.begin_change();
            let text = "its tensors changed during the sync: leave them alone until it returns";
            part = Part::Without(CallError::Failed(text.to_owned()).into());
        }
        if matches!(part, Part::Whole) {
            // It was verified against what was elected, whatever the others came to. A copy of what a group agreed on was
            // agreed on as much as the original.
            if elected.was_agreed {
                state.set_agreed(elected.revision);
            } else {
                state.set_revision(Some(elected.revision));
            }
        }
        let (healed, members) = match (outcome, part) {
            (outcome, Part::Without(ours)) => return Err(without(outcome, ours)),
            (Ok(Outcome::Finished { healed, members, .. }), part) => {
                if let Part::Staged(staged) = part {
                    staged.apply(state);
                }
                state.set_agreed(elected.revision);
                (healed, members)
            }
            (Ok(outcome), _) => return Err(failed(&outcome, state)),
            (Err(error), _) => {
                return Err(match error.cause() {
                    Some(CallError::GivenUp(why)) => {
                        Error::SyncFailed { text: why.clone(), torn: state.is_torn() }
                    }
                    _ => error,
                });
            }
        };
        Ok(self.report(state, &elected, healed, diverged, members))
    }

    /// The hashes of our leaves, for as long as somebody waits for them.
    fn hash(&self, state: &SharedState) -> Result<Vec<Digest>, Error> {
        let hashes = self.heeding(|given_up| state.hashes(&|| given_up() || Instant::now() >= self.deadline));
        if let Some(hashes) = hashes {
            return Ok(hashes);
        }
        if self.stopped.load(Ordering::SeqCst) {
            return Err(CallError::Cancelled.into());
        }
        let text = "its time was up before its tensors were hashed: give it a longer timeout".to_owned();
        Err(Error::SyncFailed { text, torn: state.is_torn() })
    }

    /// Does `work` with a question for the calling thread: whether the program gave the call up.
    fn heeding<T>(&self, work: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
        let flag = Arc::clone(&self.stopped);
        let _cancels = watch::cancels(move || flag.store(true, Ordering::SeqCst));
        work(&|| {
            watch::look();
            self.stopped.load(Ordering::SeqCst)
        })
    }

    /// Makes ours what was elected, if it is not.
    fn take_part(
        &mut self,
        state: &mut SharedState,
        role: Role,
        elected: &Elected,
        hashes: &[Digest],
        healing: Option<&CastVote<'_>>,
    ) -> Part {
        match role {
            Role::Donor => Part::Whole,
            Role::Receiver => match healing {
                Some(vote) => self.heal(state, elected, hashes, vote),
                None => Part::Whole,
            },
            Role::Deviates(deviation) => {
                let difference = match deviation {
                    Deviation::Outline => self.errand(elected.root, &|_, _| {}, |errand| {
                        receiver::difference(errand, state.outline(), elected.outline)
                    }),
                    _ => None,
                };
                let text =
                    difference.map_or_else(|| deviation.to_string(), |difference| difference.to_string());
                Part::Without(Error::StateMismatch(text))
            }
        }
    }

    fn heal(
        &mut self,
        state: &mut SharedState,
        elected: &Elected,
        hashes: &[Digest],
        vote: &CastVote<'_>,
    ) -> Part {
        let mut found = std::mem::take(&mut self.found);
        let staged = self.options.staged;
        let root = elected.root;
        let (comm, size) = (self.comm, Cell::new(0));
        let progress = |have, all| {
            size.set(all);
            comm.control.news().tell(vec![Event::Healing(have, all)]);
            vote.change(&Wish::Healing(root, have, all));
        };
        let outcome =
            self.errand(root, &progress, |errand| receiver::heal(state, hashes, errand, staged, &mut found));
        self.found = found;
        if outcome.is_ok() {
            comm.control.news().tell(vec![Event::Healing(size.get(), size.get())]);
        }
        let unhealed = match outcome {
            Ok(Some(staged)) => return Part::Staged(staged),
            Ok(None) => return Part::Whole,
            Err(unhealed) => unhealed,
        };
        let replaced = self.found.dropped.iter().map(|(peer, fault)| format!("{}: {fault}", peer.short()));
        let text = match unhealed {
            Unhealed::NoDonor => {
                let replaced: Vec<_> = replaced.collect();
                format!("no donor is left that gives what is missing ({})", replaced.join("; "))
            }
            Unhealed::TimedOut => "its time was up before the state was here".to_owned(),
            Unhealed::GivenUp => return Part::Without(gave_up(state)),
            Unhealed::Unfit(why) => return Part::Without(Error::StateMismatch(why)),
        };
        Part::Without(Error::SyncFailed { text, torn: state.is_torn() })
    }

    /// Lends our tensors, if others are to fetch them. Should they turn out to have changed, our vote says that we stand
    /// apart: the others need not wait for us, and must not count us among those who hold it (rule 27).
    fn serve<'s>(
        &'s self,
        state: &'s SharedState,
        part: &Part,
        elected: &Elected,
        hashes: &Arc<Vec<Digest>>,
        vote: &CastVote<'_>,
    ) -> Result<Option<Serving<'s>>, Error> {
        let me = self.comm.control.me();
        if !matches!(part, Part::Whole) || !self.donors.contains(&me) {
            return Ok(None);
        }
        let (_, members) = self.comm.control.present()?;
        let others = members.into_iter().filter(|peer| *peer != me);
        let (voter, id, root) = (Arc::downgrade(&self.comm.control), vote.id, elected.root);
        let stand_apart = move || {
            if let Some(control) = voter.upgrade() {
                control.change_vote(id, Wish::Apart(root).encode());
            }
        };
        Ok(Some(self.comm.stall.lend(state, Arc::clone(hashes), root, others, stand_apart)))
    }

    /// Does `work` with what a receiver needs to know.
    fn errand<T>(&self, root: Digest, progress: &dyn Fn(u64, u64), work: impl FnOnce(&Errand<'_>) -> T) -> T {
        let me = self.comm.control.me();
        let rank = self
            .comm
            .control
            .present()
            .map_or(0, |(_, members)| members.iter().position(|peer| *peer == me).unwrap_or(0));
        let donors: Vec<_> = self.donors.iter().copied().filter(|peer| *peer != me).collect();
        let (open, deadline) = (self.comm.open_state(), self.deadline);
        self.heeding(|given_up| {
            work(&Errand { root, donors: &donors, rank, open, deadline, given_up, progress })
        })
    }

    /// One turn of the vote.
    fn vote(&self, wish: &Wish) -> Result<Outcome, Error> {
        self.cast(wish, Duration::ZERO).wait()
    }

    /// Casts a vote, which stands until it is waited for. It may be changed until then; `more`: time for a last word
    /// after the deadline.
    fn cast(&self, wish: &Wish, more: Duration) -> CastVote<'a> {
        let left = self.deadline.saturating_duration_since(Instant::now()).max(LAST_WORD) + more;
        let deadline = clock::now() + left;
        let control = &self.comm.control;
        let called = |id: CallId| Entry::new(What::Called, "sync_state").about(id.0);
        let (id, orders) = control.begin(called, |session, now| match wish {
            Wish::Offer(..) => session.handle_ballot_call(now, KIND, wish.encode(), deadline),
            _ => session.handle_next_turn(now, KIND, wish.encode(), deadline),
        });
        let canceller = Arc::downgrade(control);
        let attached = self.options.interrupt.as_ref().map(|interrupt| {
            interrupt.attach(move || {
                if let Some(control) = canceller.upgrade() {
                    control.cancel(id);
                }
            })
        });
        CastVote { comm: self.comm, id, orders: Some(orders), left, _attached: attached }
    }

    fn report(
        self,
        state: &SharedState,
        elected: &Elected,
        healed: Vec<(PeerId, Healed)>,
        diverged: Vec<PeerId>,
        members: Vec<PeerId>,
    ) -> SyncReport {
        let Found { received, leaves, differed, donors, dropped } = self.found;
        SyncReport {
            revision: elected.revision,
            extra: state.extra().to_vec(),
            sent: self.sent,
            received,
            leaves,
            donors: donors.into_iter().collect(),
            replaced: dropped.into_iter().map(|(peer, fault)| (peer, fault.to_string())).collect(),
            differed,
            healed: healed.into_iter().map(|(peer, found)| (peer, found.keys)).collect(),
            diverged,
            members,
            seconds: 0.0,
        }
    }
}

/// A vote that stands.
struct CastVote<'a> {
    comm: &'a Communicator,
    id: CallId,
    /// None once it was waited for.
    orders: Option<Arc<Orders>>,
    left: Duration,
    _attached: Option<Attached<'a>>,
}

impl CastVote<'_> {
    /// Says something else.
    fn change(&self, wish: &Wish) {
        self.comm.control.change_vote(self.id, wish.encode());
    }

    /// Waits until everybody has voted.
    fn wait(mut self) -> Result<Outcome, Error> {
        let orders = self.orders.take().ok_or(Error::Bug("a vote that is waited for twice"))?;
        let Done::Ballot { outcome, .. } = self.comm.attend(self.id, &orders, self.left, |_| None)?? else {
            return Err(Error::Bug("a sync ended as a collective"));
        };
        let outcome = Outcome::decode(&outcome).map_err(|_| Error::Bug("an outcome that is none"))?;
        // Who has only heard of an agreement does not know what the group can have: it holds nothing of it yet.
        if let Outcome::Finished { revision, .. } = &outcome {
            self.comm.agreed.note(Some(*revision));
        }
        Ok(outcome)
    }
}

impl Drop for CastVote<'_> {
    fn drop(&mut self) {
        // Nobody will wait for it any more: take it back, and let go of the call.
        if self.orders.is_some() {
            self.comm.control.cancel(self.id);
            self.comm.control.end(self.id);
        }
    }
}

/// What a member is told that does not hold what was elected. A failed heal is a failure for all once the vote has said so.
/// Whoever does not know how the vote ended must not take its own failure for everybody's.
fn without(outcome: Result<Outcome, Error>, ours: Error) -> Error {
    match (outcome, ours) {
        (Err(error), ours @ Error::SyncFailed { .. })
            if matches!(error.cause(), Some(CallError::Timeout(_) | CallError::Out(_))) =>
        {
            error.knowing(ours.to_string())
        }
        (_, ours) => ours,
    }
}

fn gave_up(state: &SharedState) -> Error {
    if state.is_torn() {
        return Error::SyncFailed { text: "cancelled".to_owned(), torn: true };
    }
    CallError::Cancelled.into()
}

/// What the program is told of a sync that somebody else could not finish.
fn failed(outcome: &Outcome, state: &SharedState) -> Error {
    let text = match outcome {
        Outcome::Failed { reasons, .. } => {
            let reasons: Vec<_> =
                reasons.iter().map(|(peer, why)| format!("{}: {why}", peer.short())).collect();
            format!("not every member could be healed ({})", reasons.join("; "))
        }
        _ => "the members were in different turns of it".to_owned(),
    };
    Error::SyncFailed { text, torn: state.is_torn() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_heal_whose_vote_timed_out_says_so() {
        let ours = || Error::SyncFailed { text: "no donor is left".to_owned(), torn: true };
        // Nobody told us how the vote ended: perhaps the others go on, perhaps they went out.
        let told = without(Err(CallError::Timeout(Vec::new()).into()), ours());
        assert_eq!(told.cause(), Some(&CallError::Timeout(Vec::new())));
        assert!(told.to_string().contains("no donor is left") && told.to_string().contains("torn"), "{told}");
        // It ended for all as it did for us.
        let all = Outcome::Failed { last: Some(5), reasons: Vec::new() };
        assert!(matches!(without(Ok(all), ours()), Error::SyncFailed { torn: true, .. }));
        let given_up = CallError::GivenUp("another".to_owned());
        assert!(matches!(without(Err(given_up.into()), ours()), Error::SyncFailed { .. }));
        // Who deviates does so whatever the others came to.
        let deviates = without(Err(CallError::Timeout(Vec::new()).into()), Error::StateMismatch("w".into()));
        assert!(matches!(deviates, Error::StateMismatch(_)));
    }
}
