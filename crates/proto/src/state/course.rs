//! The course of a training loop: what a member does next, so that all do the same.
//!
//! # The problem
//!
//! Everybody must be in the same call at the same time: a member that syncs while another reduces waits for nobody's vote.
//! But members see different things. One's call failed, another's did not; one was thrown out; one has not heard of the
//! epoch that the other is in. A loop that decides by what it happens to see deadlocks, or sums different steps.
//!
//! # The intuition
//!
//! A member decides only by what all have heard alike: the receipt of a commit, the outcome of a ballot. There are four
//! things to do, and two rules.
//!
//! ```text
//!            +--------- out, or in doubt <-----------------------------+
//!            v                                                         |
//!         connect --> sync --> step --> step --> .. --+-- step --> .. -+
//!                      ^                              |
//!                      +------------ admit <----------+ newcomers wait, or too few are left
//! ```
//!
//! *Whoever has just come in, or has let somebody in, syncs next.* And *whoever cannot know what the others do next goes out
//! and comes in again*: then the others see a newcomer waiting, let it in, and sync. So a doubt is always resolved in the
//! same way, and costs one admission. But an end that the coordinator has told to all is no doubt: whoever goes out for it
//! leaves the group to a member that came last and holds the least.
//!
//! The **crew** are the members among whom a step's samples are dealt out: the contributors to the last commit, or those
//! who finished the last sync. Both lists are agreed on, so two members never take the same numbers, even if one of them
//! has heard of a death and the other has not.
//!
//! # The invariant
//!
//! Two members of one epoch that know the same receipts and outcomes are told to do the same. `number` grows by exactly one
//! with each commit, is set by each sync, and changes nowhere else.
//!
//! # What it does not do
//!
//! It makes no call and knows no tensor. That all members have the same settings (`verify_every`, `min_world`) is up to the
//! program; where they differ the calls are judged as any others (rule 7).

use super::Revision;
use crate::id::PeerId;
use crate::retry;
use crate::session::CallError;
use crate::time::Duration;
use std::num::NonZeroU64;

/// How long to wait before connecting again: at first, and at most. A coordinator that turns everybody away at once is
/// not asked a thousand times a second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// Come in, after going out if need be. Then: sync.
    Connect,
    /// Let newcomers in, and wait until there are enough members. Then: sync.
    Admit,
    /// Make the state the same everywhere. Then: step.
    Sync,
    /// The state is here; compute, and average.
    Step,
}

/// Why a move failed, as far as it matters for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// This member is out of the run, or the outcome is unknown.
    Out,
    /// The call ended without a result; do it again.
    Again,
    /// Fewer members are left than the program wants.
    TooFew,
    /// Nobody here has the state, and others wait outside who may.
    Outside,
    /// The program gave it up, or is to blame. The next time it is the same move again.
    Passed,
}

impl Failure {
    /// What it means that a vote for newcomers or a sync ended without an agreement. That a deadline passed, or somebody gave
    /// the sync up, the coordinator tells to all, and says who; where it names nobody it was our own clock that gave the call up.
    pub fn of_vote(at: Move, error: &CallError) -> Self {
        match error {
            CallError::Cancelled => Self::Passed,
            CallError::Timeout(waiting) if at == Move::Sync && !waiting.is_empty() => Self::Again,
            CallError::CameTooLate | CallError::GivenUp(_) if at == Move::Sync => Self::Again,
            _ => Self::Out,
        }
    }
}

/// Where a member's training is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Course {
    number: Revision,
    next: Move,
    crew: Vec<PeerId>,
    /// The number at which the states were last made the same.
    synced_at: Option<Revision>,
    verify_every: Option<NonZeroU64>,
    pause: Option<Duration>,
}

impl Course {
    /// A member that holds that revision. If it is in the run already it begins with a sync.
    pub fn new(number: Revision, verify_every: Option<NonZeroU64>, is_connected: bool) -> Self {
        let next = if is_connected { Move::Sync } else { Move::Connect };
        Self { number, next, crew: Vec::new(), synced_at: None, verify_every, pause: None }
    }

    /// Steps that were committed so far.
    pub fn number(&self) -> Revision {
        self.number
    }

    /// What to do next.
    pub fn next(&self) -> Move {
        self.next
    }

    /// Who takes samples of this step, in the order in which they are dealt out.
    pub fn crew(&self) -> &[PeerId] {
        &self.crew
    }

    /// How long to wait before the next move.
    pub fn pause(&self) -> Option<Duration> {
        self.pause
    }

    /// We are in.
    pub fn handle_connected(&mut self) {
        self.next = Move::Sync;
    }

    /// The vote for newcomers is over.
    pub fn handle_admitted(&mut self) {
        self.next = Move::Sync;
    }

    /// Everybody holds that revision now, and these are everybody.
    pub fn handle_synced(&mut self, revision: Revision, members: &[PeerId]) {
        (self.number, self.synced_at, self.pause) = (revision, Some(revision), None);
        members.clone_into(&mut self.crew);
        self.next = Move::Step;
    }

    /// The step was committed by these.
    pub fn handle_committed(&mut self, contributors: &[PeerId], pending: u32) {
        self.number += 1;
        self.pause = None;
        if self.crew != contributors {
            contributors.clone_into(&mut self.crew);
        }
        let verify = self.verify_every.is_some_and(|every| self.number.is_multiple_of(every.get()));
        self.next = match pending {
            // The sync that follows verifies as well.
            1.. => Move::Admit,
            0 if verify && self.synced_at != Some(self.number) => Move::Sync,
            0 => Move::Step,
        };
    }

    /// The state is no longer what the others hold, or may not be.
    pub fn handle_torn(&mut self) {
        self.next = Move::Connect;
    }

    /// A move failed.
    pub fn handle_failed(&mut self, at: Move, failure: Failure) {
        use Failure::{Again, Out, Outside, Passed, TooFew};
        self.next = match (at, failure) {
            (_, Passed) => at,
            (_, Out) | (Move::Connect, _) => Move::Connect,
            // Every member has too few, whether it has called already or calls later.
            (Move::Step, TooFew) => Move::Admit,
            // The attempt is void, for all of its members: all do it again.
            (Move::Step, Again) => Move::Step,
            // That a sync failed is an outcome that all have heard.
            (Move::Sync, Again) => Move::Sync,
            (Move::Sync, Outside) => Move::Admit,
            (Move::Step, Outside) => Move::Connect,
            // How the vote ended for the others we cannot know.
            (Move::Admit | Move::Sync, _) => Move::Connect,
        };
        self.pause = match self.next {
            Move::Connect => Some(self.pause.map_or(PAUSE.0, |pause| retry::longer(pause, PAUSE.1))),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::Waiting;

    fn peers(numbers: &[u8]) -> Vec<PeerId> {
        numbers.iter().map(|number| PeerId::from_bytes([*number; 16])).collect()
    }

    /// A member that has just synced.
    fn under_way(number: Revision, verify_every: Option<u64>) -> Course {
        let mut course = Course::new(0, verify_every.and_then(NonZeroU64::new), false);
        course.handle_connected();
        course.handle_synced(number, &peers(&[1, 2, 3]));
        course
    }

    #[test]
    fn whoever_comes_in_syncs_and_then_steps_follow_steps() {
        let mut course = Course::new(0, None, false);
        assert_eq!(course.next(), Move::Connect);
        course.handle_connected();
        assert_eq!(course.next(), Move::Sync);
        course.handle_synced(1_000, &peers(&[1, 2]));
        assert_eq!((course.next(), course.number(), course.crew()), (Move::Step, 1_000, &peers(&[1, 2])[..]));
        for number in 1_001..2_001 {
            course.handle_committed(&peers(&[1, 2]), 0);
            assert_eq!((course.next(), course.number()), (Move::Step, number));
        }
        assert_eq!(Course::new(0, None, true).next(), Move::Sync, "who is in already");
    }

    #[test]
    fn newcomers_are_let_in_and_all_sync() {
        let mut course = under_way(5, None);
        course.handle_committed(&peers(&[1, 3]), 1);
        assert_eq!((course.next(), course.crew()), (Move::Admit, &peers(&[1, 3])[..]));
        course.handle_admitted();
        assert_eq!(course.next(), Move::Sync);
    }

    #[test]
    fn too_few_wait_for_newcomers() {
        let mut course = under_way(5, None);
        course.handle_failed(Move::Step, Failure::TooFew);
        assert_eq!((course.next(), course.number()), (Move::Admit, 5));
    }

    #[test]
    fn a_step_that_failed_is_done_again_and_counts_nothing() {
        let mut course = under_way(5, None);
        let before = course.clone();
        course.handle_failed(Move::Step, Failure::Again);
        assert_eq!(course, before);
    }

    #[test]
    fn doubt_is_resolved_by_coming_in_again() {
        for (at, failure) in [
            (Move::Step, Failure::Out),
            (Move::Sync, Failure::Out),
            (Move::Admit, Failure::Out),
            (Move::Admit, Failure::Again),
            (Move::Admit, Failure::TooFew),
            (Move::Sync, Failure::TooFew),
        ] {
            let mut course = under_way(5, None);
            course.handle_failed(at, failure);
            assert_eq!(course.next(), Move::Connect, "{at:?} {failure:?}");
        }
        let mut course = under_way(5, None);
        course.handle_torn();
        assert_eq!(course.next(), Move::Connect);
    }

    #[test]
    fn an_agreed_failure_of_a_sync_is_repeated_by_all() {
        let mut course = under_way(5, None);
        course.handle_failed(Move::Sync, Failure::Again);
        assert_eq!(course.next(), Move::Sync);
    }

    #[test]
    fn a_sync_that_times_out_does_not_send_the_holders_out() {
        let (peer, name, health, last_call) =
            (peers(&[3])[0], "late".into(), "stalled".into(), "connect".into());
        let one = Waiting { peer, name, health, last_call, age_ms: 900 };
        for told in [CallError::Timeout(vec![one]), CallError::CameTooLate, CallError::GivenUp("late".into())]
        {
            let mut course = under_way(5, None);
            course.handle_failed(Move::Sync, Failure::of_vote(Move::Sync, &told));
            assert_eq!((course.next(), course.pause()), (Move::Sync, None), "{told}");
        }
        // Nobody told us: how it ended for the others we cannot know.
        let ours = CallError::Timeout(Vec::new());
        let mut course = under_way(5, None);
        course.handle_failed(Move::Sync, Failure::of_vote(Move::Sync, &ours));
        assert_eq!(course.next(), Move::Connect);
        assert_eq!(Failure::of_vote(Move::Sync, &CallError::Cancelled), Failure::Passed);
    }

    #[test]
    fn those_outside_are_let_in_where_nobody_has_the_state() {
        let mut course = under_way(5, None);
        course.handle_failed(Move::Sync, Failure::Outside);
        assert_eq!((course.next(), course.pause()), (Move::Admit, None));
        course.handle_admitted();
        assert_eq!(course.next(), Move::Sync);
    }

    #[test]
    fn what_the_program_gave_up_is_where_it_goes_on() {
        for at in [Move::Connect, Move::Admit, Move::Sync, Move::Step] {
            let mut course = under_way(5, None);
            course.handle_failed(at, Failure::Passed);
            assert_eq!(course.next(), at);
        }
    }

    #[test]
    fn states_are_verified_once_at_each_multiple() {
        let mut course = under_way(8, Some(10));
        course.handle_committed(&peers(&[1, 2]), 0);
        assert_eq!((course.number(), course.next()), (9, Move::Step));
        course.handle_committed(&peers(&[1, 2]), 0);
        assert_eq!((course.number(), course.next()), (10, Move::Sync));
        course.handle_synced(10, &peers(&[1, 2]));
        assert_eq!(course.next(), Move::Step);
        // The step after it fails and is done again: nothing is verified a second time.
        course.handle_failed(Move::Step, Failure::Again);
        assert_eq!(course.next(), Move::Step);
        // A newcomer that synced at ten and a member that verified at ten go on alike.
        let mut newcomer = under_way(10, Some(10));
        newcomer.handle_failed(Move::Step, Failure::Again);
        assert_eq!(newcomer.next(), course.next());
    }

    #[test]
    fn pauses_between_connects_grow_and_end_with_success() {
        let mut course = Course::new(0, None, false);
        assert_eq!(course.pause(), None);
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            course.handle_failed(Move::Connect, Failure::Again);
            let pause = course.pause().unwrap();
            assert!(pause >= last && pause <= PAUSE.1);
            last = pause;
        }
        assert_eq!(last, PAUSE.1);
        course.handle_connected();
        course.handle_synced(0, &peers(&[1]));
        assert_eq!(course.pause(), None);
    }
}
