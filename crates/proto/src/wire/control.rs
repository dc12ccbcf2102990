//! The control plane's messages: votes in, verdicts out.
//!
//! One authenticated stream runs between each peer and the coordinator; it keeps order, so what the
//! coordinator said first is known first. A stream that breaks is dialled again and opened with [`Resume`],
//! which carries all that the coordinator might have forgotten (rule 17).

use super::membership::{DeathReason, MemberInfo};
use super::{InvalidMessage, Message, within};
use crate::collective::{Fingerprint, Group, GroupEpoch, OpKey, RunEpoch};
use crate::id::PeerId;
use crate::limits::{
    BROKEN_LINKS_MAX, CONTROL_BYTES_MAX, LEARNED_MAX, MEMBERS_MAX, OPEN_TENSORS_MAX, ROSTER_BYTES_MAX,
    TAGS_MAX, TEXT_BYTES_MAX,
};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;
use std::net::SocketAddr;

/// Number of one coordinator's reign.
pub type Term = u64;

/// A peer's proof that it is the one that registered: 96 random bits of its process's own choosing, and the number of
/// the `connect` (rule 45). So whoever connects again is known to be the same process in a later session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct SessionId(#[cbor(with = "minicbor::bytes")] pub [u8; 16]);

impl SessionId {
    fn parts(self) -> ([u8; 12], u32) {
        let [token @ .., a, b, c, d] = self.0;
        (token, u32::from_be_bytes([a, b, c, d]))
    }

    /// The next session of the same process.
    #[must_use]
    pub fn next(self) -> Self {
        let (token, number) = self.parts();
        let mut next = self;
        next.0[..12].copy_from_slice(&token);
        next.0[12..].copy_from_slice(&number.wrapping_add(1).to_be_bytes());
        next
    }

    /// The name of a history that this session of a peer founds: the peer's id with the session's number mixed in. The
    /// random part of a session is a proof and is told to nobody.
    pub fn founder(self, peer: PeerId) -> PeerId {
        let mut name = *peer.as_bytes();
        name[12..].iter_mut().zip(&self.0[12..]).for_each(|(byte, number)| *byte ^= number);
        PeerId::from_bytes(name)
    }

    /// Whether this is a later session of the process that `earlier` was a session of. Numbers may wrap.
    pub fn succeeds(self, earlier: Self) -> bool {
        let ((token, number), (before, last)) = (self.parts(), earlier.parts());
        token == before && (1..1 << 31).contains(&number.wrapping_sub(last))
    }
}

/// From a peer to the coordinator.
#[expect(clippy::large_enum_variant, reason = "messages are handled one at a time and never kept in numbers")]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum ToCoordinator {
    /// A new peer wants to take part. The number counts the connections of its session, so that a stream that
    /// was given up cannot speak for the one that replaced it (rule 18); then the highest term it has obeyed.
    #[n(0)]
    Register(#[n(0)] Registration, #[n(1)] u32, #[n(2)] Term),
    /// A known peer is back, perhaps at a coordinator that knows nothing.
    #[n(1)]
    Resume(#[n(0)] Resume),
    /// The peer is ready for newcomers, and waits until its group has this many members.
    #[n(2)]
    VoteTopology {
        /// Fewest members wanted; zero takes the vote back.
        #[n(0)]
        min_world: u32,
        /// Which of its group's votes this is: one more than the last that it knows the end of.
        #[n(1)]
        round: u64,
    },
    /// The peer's link to its successor in the ring of that epoch is up.
    #[n(3)]
    Connected {
        /// The group.
        #[n(0)]
        group: Group,
        /// The epoch.
        #[n(1)]
        epoch: GroupEpoch,
    },
    /// A data link broke or could not be made. It reports and condemns nobody (rule 20).
    #[n(4)]
    LinkBroken {
        /// The group.
        #[n(0)]
        group: Group,
        /// The epoch whose ring uses it.
        #[n(1)]
        epoch: GroupEpoch,
        /// The end that sends.
        #[n(2)]
        from: PeerId,
        /// The end that receives.
        #[n(3)]
        to: PeerId,
        /// Whether it could not even be made, or the other host has acknowledged nothing for long: it counts as broken
        /// at once (rule 44).
        #[n(4)]
        dialling: bool,
        /// What the system said.
        #[n(5)]
        error: String,
    },
    /// The peer's program made this call; its bytes are on their way already.
    #[n(5)]
    Initiate {
        /// The attempt.
        #[n(0)]
        key: OpKey,
        /// The call.
        #[n(1)]
        fingerprint: Fingerprint,
        /// What is left of its deadline.
        #[n(2)]
        timeout_ms: u64,
    },
    /// The peer holds the result. Having said so it returns only with a verdict (rule 5).
    #[n(6)]
    Complete {
        /// The attempt.
        #[n(0)]
        key: OpKey,
    },
    /// The peer gives the attempt up, before having said Complete.
    #[n(7)]
    Refuse {
        /// The attempt.
        #[n(0)]
        key: OpKey,
        /// Why.
        #[n(1)]
        reason: Refusal,
    },
    /// The verdict has arrived; nobody needs to keep it for this peer (rule 18).
    #[n(8)]
    Acknowledge {
        /// The attempt.
        #[n(0)]
        key: OpKey,
    },
    /// Goodbye. Not a failure.
    #[n(9)]
    Leave,
    /// How does the run stand? Answered to anybody who holds the run secret, also without registering.
    #[n(10)]
    AskStatus,
    /// The deadline of the peer's vote for newcomers passed: the vote is over for its whole group (rule 6).
    #[n(11)]
    TopologyExpired {
        /// Which vote.
        #[n(0)]
        round: u64,
    },
    /// The peer has heard of a higher term, and refuses lower ones from now on. What it told in its resume is
    /// heard only then: before, it might still obey another coordinator (rule 17).
    #[n(12)]
    Promise {
        /// The term.
        #[n(0)]
        term: Term,
    },
    /// How a dial ended that the coordinator had asked for with `Redial`.
    #[n(13)]
    Redialled {
        /// The group.
        #[n(0)]
        group: Group,
        /// Who was dialled.
        #[n(1)]
        to: PeerId,
        /// What the system said, if it did not go well.
        #[n(2)]
        error: Option<String>,
    },
}

/// Who a new peer is and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Registration {
    /// Its id, name and one port.
    #[n(0)]
    pub info: MemberInfo,
    /// Its group.
    #[n(1)]
    pub group: Group,
    /// Proof for later.
    #[n(2)]
    pub session: SessionId,
    /// Members that its group must have before `connect` returns.
    #[n(3)]
    pub min_world: u32,
    /// Whether its data links are encrypted; one run has one setting (rule 34).
    #[n(4)]
    pub encryption: Encryption,
}

/// Whether the data links of a run are encrypted once both ends have proved themselves (rule 34). Votes and
/// verdicts always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Encryption {
    /// TLS to the last byte: the default.
    #[default]
    #[n(0)]
    On,
    /// Asked for: the ends prove themselves in a TLS handshake, then tensors travel in the clear.
    #[n(1)]
    Off,
}

impl Encryption {
    /// The one that it is not.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::On => Self::Off,
            Self::Off => Self::On,
        }
    }
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// All that a coordinator needs to know of a peer to go on with it (rule 17).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Resume {
    /// As registered.
    #[n(0)]
    pub registration: Registration,
    /// Counts the resumes of this session, so that an old stream cannot speak for a new one (rule 18).
    #[n(1)]
    pub generation: u32,
    /// The highest term this peer has obeyed; lower ones it refuses.
    #[n(2)]
    pub term: Term,
    /// The agreed membership as this peer knows it.
    #[n(3)]
    pub record: EpochRecord,
    /// What it voted and learned, per scope and tag.
    #[n(4)]
    pub tags: Vec<TagReport>,
    /// Its standing vote for newcomers, if it waits in one.
    #[n(5)]
    pub topology_vote: Option<u32>,
    /// The last of its group's votes for newcomers that it knows the end of.
    #[n(6)]
    pub rounds: Rounds,
    /// Of epochs before this one it may have forgotten how attempts ended.
    #[n(7)]
    pub remembers_from: GroupEpoch,
}

/// How far a group's votes for newcomers have come. They are numbered from one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Rounds {
    /// The last vote that ended.
    #[n(0)]
    pub ended: u64,
    /// The last vote that ended well; those after it timed out.
    #[n(1)]
    pub done: u64,
}

impl Rounds {
    /// Knowing what either knows.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { ended: self.ended.max(other.ended), done: self.done.max(other.done) }
    }
}

/// One peer's knowledge of one (scope, tag).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct TagReport {
    /// The last verdicts it learned, oldest first; a few, because others may lag by that many.
    #[n(0)]
    pub learned: Vec<(OpKey, Verdict)>,
    /// The attempt it is in.
    #[n(1)]
    pub open: Option<OpenVote>,
}

/// One peer's vote in one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct OpenVote {
    /// The attempt.
    #[n(0)]
    pub key: OpKey,
    /// The call.
    #[n(1)]
    pub fingerprint: Fingerprint,
    /// What is left of its deadline.
    #[n(2)]
    pub timeout_ms: u64,
    /// Whether it said Complete.
    #[n(3)]
    pub complete: bool,
}

/// One agreed membership of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct EpochRecord {
    /// The run's epoch when it was made.
    #[n(0)]
    pub run_epoch: RunEpoch,
    /// The group.
    #[n(1)]
    pub group: Group,
    /// The group's epoch.
    #[n(2)]
    pub epoch: GroupEpoch,
    /// The roster, in the order of ranks.
    #[n(3)]
    pub roster: Vec<MemberInfo>,
    /// The ring, as ranks.
    #[n(4)]
    pub ring: Vec<u32>,
    /// What gives the verdicts.
    #[n(5)]
    pub decider: Decider,
    /// Members of all groups together.
    #[n(6)]
    pub global_world_size: u32,
    /// Who came since the group's last epoch.
    #[n(7)]
    pub joined: Vec<PeerId>,
    /// Who went since the group's last epoch, and why.
    #[n(8)]
    pub left: Vec<(PeerId, LossReason)>,
    /// How far the group's votes for newcomers had come.
    #[n(9)]
    pub rounds: Rounds,
    /// The group's history, named after the session of its first member ([`SessionId::founder`]): two groups of one
    /// number that began apart are told apart by it, even if the same peer founded both (rules 41 and 45).
    #[n(10)]
    pub founder: PeerId,
    /// Links that cannot be used, as ranks of the end that sends and the end that receives (rule 16). The ring
    /// avoids them; what goes straight between members must go around them.
    #[n(11)]
    #[cbor(default)]
    pub broken: Vec<(u32, u32)>,
    /// How many members, the first in the order of ranks, were in a roster that gave a commit of the whole group
    /// when this was written: they were there first, and newcomers follow them (rule 42).
    #[n(12)]
    #[cbor(default)]
    pub incumbents: u32,
}

/// What gives a group's verdicts in one epoch (rule 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum Decider {
    /// The coordinator counts the votes.
    #[n(0)]
    Coordinator,
}

/// From the coordinator to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum ToPeer {
    /// The peer is known and waits to be admitted.
    #[n(0)]
    Registered {
        /// Whose word this is.
        #[n(0)]
        term: Term,
    },
    /// The peer's resume was taken down.
    #[n(1)]
    Resumed {
        /// Whose word this is.
        #[n(0)]
        term: Term,
    },
    /// A new agreed membership of the peer's group.
    #[n(2)]
    Epoch(#[n(0)] EpochRecord),
    /// The vote for newcomers is through: all links are up and the group is large enough.
    #[n(3)]
    TopologyDone {
        /// The run's epoch now.
        #[n(0)]
        run_epoch: RunEpoch,
        /// Members of all groups together.
        #[n(1)]
        global_world_size: u32,
        /// Which of the group's votes.
        #[n(2)]
        round: u64,
    },
    /// The one answer to an attempt; written once, never changed (rule 4).
    #[n(4)]
    Verdict {
        /// The attempt.
        #[n(0)]
        key: OpKey,
        /// The answer.
        #[n(1)]
        verdict: Verdict,
    },
    /// What stood in the way of that epoch's collectives is settled, with the same roster: go on.
    #[n(5)]
    Proceed {
        /// The group.
        #[n(0)]
        group: Group,
        /// The epoch.
        #[n(1)]
        epoch: GroupEpoch,
    },
    /// A vote for newcomers was refused: others of the group are in a collective (rule 7).
    #[n(6)]
    TopologyMismatch {
        /// What they do, in words.
        #[n(0)]
        others: String,
    },
    /// The peer is out.
    #[n(7)]
    Kicked {
        /// Why.
        #[n(0)]
        reason: KickReason,
        /// The same in words, with the thing, the value and the remedy.
        #[n(1)]
        text: String,
        /// Whose word this is. A coordinator of the past puts nobody out (rule 17).
        #[n(2)]
        term: Term,
    },
    /// How the run stands, as JSON text for people and tools.
    #[n(8)]
    Status(#[n(0)] String),
    /// The first deadline of a vote for newcomers passed; it is over for the whole group (rule 6).
    #[n(9)]
    TopologyTimeout {
        /// Which of the group's votes.
        #[n(0)]
        round: u64,
        /// Who had not voted.
        #[n(1)]
        waiting: Vec<Waiting>,
    },
    /// A call cannot be had in this epoch, because a member has no room for another tag or scope. Nothing was begun for
    /// it: no verdict follows, and whoever else makes the call is told the same.
    #[n(11)]
    Denied {
        /// The attempt that is not.
        #[n(0)]
        key: OpKey,
        /// Who has no room.
        #[n(1)]
        peer: PeerId,
        /// How many different tags and scopes it uses.
        #[n(2)]
        tags: u32,
        /// How many members those scopes list.
        #[n(3)]
        listed: u32,
    },
    /// Another group has grown or shrunk. That is no epoch of this peer's group (rule 1); its program sees it when its
    /// next call ends (rule 3).
    #[n(10)]
    World {
        /// The run's epoch now.
        #[n(0)]
        run_epoch: RunEpoch,
        /// Members of all groups together.
        #[n(1)]
        global_world_size: u32,
    },
    /// A link of the peer's counts as broken: does it carry again? Dial, say `Redialled`, change nothing (rule 16).
    #[n(12)]
    Redial {
        /// The group.
        #[n(0)]
        group: Group,
        /// Whom to dial.
        #[n(1)]
        to: PeerId,
        /// Where it is.
        #[n(2)]
        address: SocketAddr,
    },
}

/// Commit or abort.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Verdict {
    /// Every member of the roster in the scope holds the result.
    #[n(0)]
    Commit {
        /// How many newcomers a vote would let in: the same number for every member (rule 10).
        #[n(0)]
        pending: u32,
    },
    /// Nobody keeps a result.
    #[n(1)]
    Abort(#[n(0)] AbortReason),
}

/// Why an attempt was aborted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum AbortReason {
    /// Members went, or lost their control connection. Next: a new epoch, or `Proceed`.
    #[n(0)]
    PeersLost(#[n(0)] Vec<(PeerId, LossReason)>),
    /// A data link broke between two members. Next: `Proceed`, or a new epoch with another ring.
    #[n(1)]
    LinkBroken {
        /// The end that sends.
        #[n(0)]
        from: PeerId,
        /// The end that receives.
        #[n(1)]
        to: PeerId,
        /// What the system said.
        #[n(2)]
        error: String,
    },
    /// The first deadline passed; the call is over for all (rule 6).
    #[n(2)]
    Timeout(#[n(0)] Vec<Waiting>),
    /// Calls differ. The deviating members' calls are over; the others' retries wait for them (rule 7).
    #[n(3)]
    Mismatch {
        /// Who deviates.
        #[n(0)]
        deviating: Vec<PeerId>,
        /// What they called, in words.
        #[n(1)]
        theirs: String,
        /// What the others called, in words.
        #[n(2)]
        common: String,
    },
    /// A member gave its call up (Ctrl-C, a dropped handle).
    #[n(4)]
    Cancelled {
        /// Who.
        #[n(0)]
        by: PeerId,
    },
    /// The attempt does not count, for nobody's fault: the epoch ended before it was decided, the coordinator
    /// was restarted before all had completed (rule 17), or a stray frame disturbed it. The call goes on with
    /// the next attempt, whether it retries or not; who has not made the call yet has missed nothing.
    #[n(5)]
    Void,
    /// A link that is known to be broken broke again, and nobody else takes part who could pass things on (rule
    /// 16). The call is over for all: a retry would not differ from what failed.
    #[n(6)]
    NoPath {
        /// The end that sends.
        #[n(0)]
        from: PeerId,
        /// The end that receives.
        #[n(1)]
        to: PeerId,
    },
}

/// Somebody that an attempt waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Waiting {
    /// Who.
    #[n(0)]
    pub peer: PeerId,
    /// Its name.
    #[n(1)]
    pub name: String,
    /// Its health, in a word.
    #[n(2)]
    pub health: String,
    /// What it last called, in words.
    #[n(3)]
    pub last_call: String,
    /// How long ago.
    #[n(4)]
    pub age_ms: u64,
}

/// Why a member is no longer in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum LossReason {
    /// It said goodbye.
    #[n(0)]
    Left,
    /// Its control connection is closed; it may still come back.
    #[n(1)]
    Disconnected,
    /// Its control connection closed, its port refuses, and nothing came from it since (rule 20b).
    #[n(2)]
    Killed,
    /// It did not resume within its grace, and the health plane does not call it alive (rule 20c).
    #[n(3)]
    NotResumed,
    /// The health plane declared it dead (rules 20d, 20e).
    #[n(4)]
    Dead(#[n(0)] DeathReason),
    /// It broke the protocol (rule 20f).
    #[n(5)]
    Kicked,
    /// No ring can reach it (rules 16, 20g).
    #[n(6)]
    Unreachable,
    /// It is new, and its first call differs from that of those who were there before it (rules 20h, 42).
    #[n(7)]
    Deviated,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("it said goodbye"),
            Self::Disconnected => f.write_str("its control connection closed"),
            Self::Killed => f.write_str("its connection closed and its port refuses"),
            Self::NotResumed => f.write_str("it did not come back within its grace"),
            Self::Dead(reason) => write!(f, "{reason}"),
            Self::Kicked => f.write_str("it broke the protocol"),
            Self::Unreachable => f.write_str("no ring can reach it"),
            Self::Deviated => {
                f.write_str("it is new, and its first call differs from that of those who were there before")
            }
        }
    }
}

/// Why a peer gives an attempt up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum Refusal {
    /// Its deadline passed.
    #[n(0)]
    Deadline,
    /// Its program gave up.
    #[n(1)]
    Cancelled,
    /// A data frame carried another call's fingerprint; the decider will see it in the votes.
    #[n(2)]
    Mismatch {
        /// Whose frame.
        #[n(0)]
        peer: PeerId,
    },
    /// A data link of this attempt broke.
    #[n(3)]
    Link {
        /// The end that sends.
        #[n(0)]
        from: PeerId,
        /// The end that receives.
        #[n(1)]
        to: PeerId,
        /// What the system said.
        #[n(2)]
        error: String,
    },
}

/// Why a peer is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum KickReason {
    /// A message that is not legal in its state.
    #[n(0)]
    Breach,
    /// Another process uses this `PeerId`.
    #[n(1)]
    Duplicate,
    /// It was evicted meanwhile; the text says why.
    #[n(2)]
    Evicted,
    /// A limit of the coordinator.
    #[n(3)]
    Limit,
    /// The run that it belongs to was resumed without it.
    #[n(4)]
    Superseded,
    /// It wants its data links encrypted and the run does not, or the other way round (rule 34).
    #[n(5)]
    Encryption,
}

fn text(field: &'static str, text: &str) -> Result<(), InvalidMessage> {
    within(field, text.len(), TEXT_BYTES_MAX)
}

impl EpochRecord {
    /// Holds roster and ring against their limits and each other.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        within("roster", self.roster.len(), MEMBERS_MAX)?;
        within("joined", self.joined.len(), MEMBERS_MAX)?;
        within("left", self.left.len(), MEMBERS_MAX)?;
        self.roster.iter().try_for_each(MemberInfo::check)?;
        within("bytes of the roster", self.roster.iter().map(minicbor::len).sum(), ROSTER_BYTES_MAX)?;
        within("broken links", self.broken.len(), BROKEN_LINKS_MAX)?;
        within("incumbents", self.incumbents as usize, self.roster.len())?;
        let members = self.roster.len();
        let is_rank = |rank: u32| (rank as usize) < members;
        if let Some((from, to)) = self.broken.iter().find(|(from, to)| !is_rank(*from) || !is_rank(*to)) {
            let value = format!("{from} -> {to} among {members} members");
            return Err(InvalidMessage::Meaningless { field: "broken links", value });
        }
        let mut places = vec![false; self.roster.len()];
        let fits = self.ring.len() == places.len()
            && self.ring.iter().all(|rank| {
                places.get_mut(*rank as usize).is_some_and(|seen| !std::mem::replace(seen, true))
            });
        if fits {
            Ok(())
        } else {
            let value = format!("{:?} for {} members", self.ring, self.roster.len());
            Err(InvalidMessage::Meaningless { field: "ring", value })
        }
    }

    /// The links that cannot be used, by their ends.
    pub fn broken_links(&self) -> impl Iterator<Item = (PeerId, PeerId)> {
        let end = |rank: u32| self.roster.get(rank as usize).map(|info| info.id);
        self.broken.iter().filter_map(move |(from, to)| Some((end(*from)?, end(*to)?)))
    }

    /// Whether the ring leads from the one to the other.
    pub fn is_ring_link(&self, from: PeerId, to: PeerId) -> bool {
        let peer = |at: usize| self.roster.get(*self.ring.get(at)? as usize).map(|info| info.id);
        let next = |at: usize| peer((at + 1) % self.ring.len());
        (0..self.ring.len()).any(|at| peer(at) == Some(from) && next(at) == Some(to))
    }

    /// The rank of a member.
    pub fn rank_of(&self, peer: PeerId) -> Option<usize> {
        self.roster.iter().position(|info| info.id == peer)
    }
}

impl Message for ToCoordinator {
    const BYTES_MAX: usize = CONTROL_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Register(registration, ..) => registration.info.check(),
            Self::Resume(resume) => {
                resume.registration.info.check()?;
                resume.record.check()?;
                within("tags", resume.tags.len(), TAGS_MAX)?;
                let opens = || resume.tags.iter().filter_map(|tag| tag.open.as_ref());
                let tensors = opens().map(|open| open.fingerprint.weight()).sum();
                within("tensors in flight", tensors, OPEN_TENSORS_MAX)?;
                resume.tags.iter().try_for_each(|tag| {
                    within("learned verdicts", tag.learned.len(), LEARNED_MAX + 1)?;
                    tag.learned.iter().try_for_each(|(key, _)| key.scope.check())?;
                    tag.open.iter().try_for_each(|open| {
                        open.key.scope.check()?;
                        open.fingerprint.check()
                    })
                })
            }
            Self::LinkBroken { error, .. } | Self::Redialled { error: Some(error), .. } => {
                text("error", error)
            }
            Self::Initiate { key, fingerprint, .. } => {
                key.scope.check()?;
                fingerprint.check()
            }
            Self::Complete { key } | Self::Acknowledge { key } => key.scope.check(),
            Self::Refuse { key, reason } => {
                key.scope.check()?;
                match reason {
                    Refusal::Link { error, .. } => text("error", error),
                    _ => Ok(()),
                }
            }
            Self::VoteTopology { .. }
            | Self::TopologyExpired { .. }
            | Self::Promise { .. }
            | Self::Connected { .. }
            | Self::Redialled { error: None, .. }
            | Self::Leave
            | Self::AskStatus => Ok(()),
        }
    }
}

impl Message for ToPeer {
    const BYTES_MAX: usize = CONTROL_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Epoch(record) => record.check(),
            Self::Verdict { key, .. } | Self::Denied { key, .. } => key.scope.check(),
            _ => Ok(()),
        }
    }
}
