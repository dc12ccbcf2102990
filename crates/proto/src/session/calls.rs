//! Calls of the program, and how each ends.

use crate::collective::{Attempt, BrokenLink, Fingerprint, GroupEpoch, OpKey, RunEpoch, Scope, Tag};
use crate::id::PeerId;
use crate::limits::{OPEN_TENSORS_MAX, SCOPES_MEMBERS_MAX, TAGS_MAX};
use crate::time::Instant;
use crate::wire::control::{BallotKind, KickReason, LossReason, Waiting};

/// One call of the program, numbered by the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A collective that the program wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    /// Whom it involves.
    pub scope: Scope,
    /// Its name.
    pub tag: Tag,
    /// The call.
    pub fingerprint: Fingerprint,
    /// It covers all attempts (rule 8).
    pub deadline: Instant,
    /// Whom the program knew to take part, in the order of ranks, if the meaning of the call depends on it:
    /// it fails rather than run among others (rule 8).
    pub members: Option<Vec<PeerId>>,
}

/// What a call's thread is told to do, in this order.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Command {
    /// Move the bytes of this attempt; report through `handle_performed`.
    Perform(Attempt),
    /// Stop moving bytes, at any byte, and report.
    Abort,
    /// The attempt counts: let go of what would undo it.
    Commit,
    /// The attempt does not count: restore the caller's data. It may follow an attempt that was stopped, and
    /// then finds nothing to restore.
    Undo,
    /// The call is over.
    Finish(Outcome),
}

/// How the executor's part of an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PerformResult {
    /// The result is there, and everything that others need is sent.
    Done,
    /// It was told to stop, and the caller's data is as it was.
    Stopped,
    /// A link broke, and the caller's data is as it was.
    LinkBroken(BrokenLink),
    /// It stopped although nobody asked it to, and the caller's data is as it was.
    Failed {
        /// Why.
        why: String,
        /// Whether another attempt may do better.
        again: bool,
    },
    /// A frame of that peer belongs to a different call, and the caller's data is as it was.
    Mismatch {
        /// Whose frame.
        peer: PeerId,
    },
}

/// How a call ended.
pub type Outcome = Result<Done, CallError>;

/// A call that did what it was for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Done {
    /// A collective was committed.
    Committed {
        /// The attempt that counted.
        key: OpKey,
        /// Who contributed, in the order of ranks.
        contributors: Vec<PeerId>,
        /// Our rank in the group.
        rank: usize,
        /// Members of the group.
        world_size: usize,
        /// How many attempts it took.
        attempts: u32,
        /// Newcomers that a vote would let in (rule 10).
        pending: u32,
    },
    /// A ballot was agreed on.
    Ballot {
        /// What it was about.
        kind: BallotKind,
        /// What was agreed, in the kind's own words: the same for all members.
        outcome: Vec<u8>,
        /// The run's epoch.
        run_epoch: RunEpoch,
        /// The group's epoch.
        epoch: GroupEpoch,
        /// Who came since the call began.
        joined: Vec<PeerId>,
        /// Who went since the call began, and why.
        left: Vec<(PeerId, LossReason)>,
    },
}

impl CallError {
    /// What a member tells its program of a deadline that passed. Whoever made the call when the others had given it up is
    /// among those that they waited for, and must not be told to wait for itself.
    pub(super) fn timed_out(mut waiting: Vec<Waiting>, me: PeerId) -> Self {
        let named = waiting.len();
        waiting.retain(|one| one.peer != me);
        if waiting.is_empty() && named > 0 { Self::CameTooLate } else { Self::Timeout(waiting) }
    }
}

/// Why a call failed. State: the caller's data is as it was before the call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Members were lost and the call does not retry by itself. Do it again.
    #[error("peers were lost: {}", list(.0))]
    PeersLost(Vec<(PeerId, LossReason)>),
    /// A data link broke and the call does not retry by itself. Do it again.
    #[error(transparent)]
    LinkBroken(BrokenLink),
    /// Two members cannot reach each other, and nobody else takes part who could pass things on. It fails in the
    /// same way until one of the two leaves or comes anew.
    #[error(
        "no link can be made from {from} to {to}, and nobody else takes part who could pass things on: open the \
         way between their hosts, or use a collective that includes a member which reaches both"
    )]
    NoPath {
        /// The end that sends.
        from: PeerId,
        /// The end that receives.
        to: PeerId,
    },
    /// Fewer members are left than the call accepts.
    #[error("{have} peers are left, the call needs at least {want}: wait for newcomers with update_topology")]
    TooFewPeers {
        /// How many there are.
        have: usize,
        /// How many it wants.
        want: u32,
    },
    /// A deadline passed, ours or another member's.
    #[error("timed out waiting for {}", waiting(.0))]
    Timeout(Vec<Waiting>),
    /// Everybody who is here agreed to let newcomers in, and too few came before the deadline.
    #[error("{have} of {want} members are here: start the others, or ask for fewer with min_world")]
    TooFewCame {
        /// How many there are.
        have: usize,
        /// How many it wants.
        want: u32,
    },
    /// The others gave the call up before this program made it: it was this program that they waited for.
    #[error(
        "the others waited for this program, and their deadline passed before it made the call: do it again"
    )]
    CameTooLate,
    /// Somebody else's call deviates or was cancelled, and this call does not retry by itself. Do it again.
    #[error("the attempt was given up: {0}")]
    GivenUp(String),
    /// This program's call deviates from the others'. Fix the program.
    #[error("this call is {ours}, but the others call {others}")]
    Mismatch {
        /// What we called.
        ours: String,
        /// What they called.
        others: String,
    },
    /// The program cancelled it.
    #[error("cancelled")]
    Cancelled,
    /// This process could not do its part. The others' retries wait for it; do it again, or leave.
    #[error("this process could not take part: {0}")]
    Failed(String),
    /// A member takes part in too many different tags or scopes since the group last changed. Fix the program.
    #[error(
        "{} takes part in {tags} tags and scopes, which list {listed} members; the limits are {TAGS_MAX} and \
         {SCOPES_MEMBERS_MAX}: use tags again, or make large parts groups of their own", peer.short()
    )]
    TooManyTags {
        /// Who has no room: this peer, or another that the call involves.
        peer: PeerId,
        /// How many it uses.
        tags: usize,
        /// How many members their scopes list.
        listed: usize,
    },
    /// The calls that are not finished describe more tensors than may be in flight. Wait for some of them.
    #[error(
        "the calls in flight describe {tensors} tensors with this one, the limit is {OPEN_TENSORS_MAX}: wait for \
         some of them, or join small tensors"
    )]
    TooManyTensors {
        /// How many, with this call.
        tensors: usize,
    },
    /// A collective of that scope and tag is not finished. Fix the program: wait for it, or use another tag.
    #[error("a collective under tag {tag} is in flight: wait for it, or use another tag")]
    TagInFlight {
        /// Its tag.
        tag: Tag,
    },
    /// A transfer of that name is not finished. Fix the program: wait for it, or use another tag.
    #[error(
        "a {} {} under tag {tag} is in flight: wait for it, or use another tag",
        if *receives { "receive from" } else { "send to" },
        peer.short()
    )]
    TransferInFlight {
        /// The other end.
        peer: PeerId,
        /// Its tag.
        tag: Tag,
        /// Whether this peer receives.
        receives: bool,
    },
    /// Whatever concerns the whole group waits for nobody's collective, and so is not begun before they are over. Fix
    /// the program: wait for them.
    #[error("collectives under tags {tags:?} are not finished: wait for them first")]
    CollectivesInFlight {
        /// Their tags.
        tags: Vec<Tag>,
    },
    /// Another call that concerns the whole group is not finished. Fix the program: wait for it.
    #[error("{name} is in flight: wait for it first")]
    VoteInFlight {
        /// Which.
        name: &'static str,
    },
    /// The session is over: this peer is out. Connect again.
    #[error("out of the run: {0}")]
    Out(OutReason),
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum OutReason {
    /// The coordinator said so.
    #[error("{1}")]
    Kicked(KickReason, String),
    /// The coordinator says what this version cannot read, and whatever it was may have mattered.
    #[error("the coordinator cannot be understood: {0}")]
    Unreadable(String),
    /// No coordinator could be reached.
    #[error("no coordinator for too long")]
    CoordinatorLost,
    /// It voted Complete and no verdict came: the others may have committed (rule 5).
    #[error("outcome unknown: voted Complete and no verdict came")]
    OutcomeUnknown,
    /// The program left.
    #[error("left: call connect to take part again")]
    Left,
    /// It never connected.
    #[error("not connected: call connect first")]
    NotConnected,
}

fn list(lost: &[(PeerId, LossReason)]) -> String {
    let words: Vec<_> = lost.iter().map(|(peer, reason)| format!("{} ({reason})", peer.short())).collect();
    words.join(", ")
}

fn waiting(list: &[Waiting]) -> String {
    let word = |waiting: &Waiting| {
        let Waiting { peer, name, health, last_call, age_ms } = waiting;
        format!("{name} {} ({health}, last called {last_call} {age_ms} ms ago)", peer.short())
    };
    if list.is_empty() {
        "the coordinator".to_owned()
    } else {
        list.iter().map(word).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_wait_for_itself() {
        let [me, other] = [1, 2].map(|number| PeerId::from_bytes([number; 16]));
        let one = |peer| Waiting {
            peer,
            name: String::new(),
            health: "alive".to_owned(),
            last_call: "barrier".to_owned(),
            age_ms: 1,
        };
        assert_eq!(CallError::timed_out(vec![one(me)], me), CallError::CameTooLate);
        assert_eq!(CallError::timed_out(vec![one(me), one(other)], me), CallError::Timeout(vec![one(other)]));
        assert_eq!(CallError::timed_out(Vec::new(), me), CallError::Timeout(Vec::new()));
    }
}
