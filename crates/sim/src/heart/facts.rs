//! What happened, as far as a checker needs to know.

use super::data::Buffer;
use super::process::CastVote;
use outlast_proto::ballot::optimise::RingOutcome;
use outlast_proto::collective::{OpKey, OpKind, Scope, Tag};
use outlast_proto::id::PeerId;
use outlast_proto::session::{OutReason, Outcome};
use outlast_proto::state::Revision;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::{BallotId, EpochRecord, LossReason, Verdict};

/// Which call of the program this was: the same on all members that agreed on the step together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The group's first member, and the call on which the step was agreed last.
    pub base: (PeerId, OpKey),
    /// The step.
    pub step: u64,
    /// Whom the call involves.
    pub scope: Scope,
    /// Its tag.
    pub tag: Tag,
    /// How often it ended for everybody before.
    pub turn: u32,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A peer's session took a verdict in.
    Heard {
        /// Which process.
        process: usize,
        /// Under which id.
        peer: PeerId,
        /// The attempt.
        key: OpKey,
        /// The verdict.
        verdict: Verdict,
        /// The first member of the group, which tells lineages apart.
        founder: PeerId,
        /// The term under which the coordinator that said it had greeted this peer.
        term: u64,
        /// When it was said.
        sent: Instant,
    },
    /// A peer's session heard what a ballot about nothing was agreed on.
    BallotAgreed {
        /// Under which id.
        peer: PeerId,
        /// The group's history.
        founder: PeerId,
        /// Which.
        ballot: BallotId,
        /// What all have said.
        outcome: Vec<u8>,
        /// What it said itself, if it waits in one.
        vote: Option<CastVote>,
        /// The term of whoever tells it.
        term: u64,
        /// Whether it has resumed, and hears what it missed.
        resuming: bool,
    },
    /// A turn of a vote for a better ring ended, as that peer heard it.
    RingTurn {
        /// Who heard it.
        peer: PeerId,
        /// What was agreed on.
        outcome: RingOutcome,
    },
    /// A sync elected a state, as that peer heard it.
    Elected {
        /// Who heard it.
        peer: PeerId,
        /// The revision.
        revision: Revision,
        /// Those of the donors whose state is torn.
        torn: Vec<PeerId>,
    },
    /// A sync was finished, and this peer holds what was elected.
    Synced {
        /// Who.
        peer: PeerId,
        /// The group's history.
        founder: PeerId,
        /// What all have heard.
        outcome: Vec<u8>,
        /// The revision.
        revision: Revision,
        /// What the state holds.
        contents: u64,
        /// The revision that it held before, if it was whole.
        held: Option<Revision>,
        /// Whether a group had agreed on it before.
        was_agreed: bool,
    },
    /// A step was committed, and this peer's state changed with it.
    Trained {
        /// Who.
        peer: PeerId,
        /// The group's history.
        founder: PeerId,
        /// The commit.
        key: OpKey,
        /// The revision that it is now.
        revision: Revision,
        /// What the state holds.
        contents: u64,
    },
    /// A peer said, or would say if it were connected, that it holds the result.
    Completed {
        /// Who.
        peer: PeerId,
        /// The attempt.
        key: OpKey,
    },
    /// A peer opened an epoch.
    Opened {
        /// Which process.
        process: usize,
        /// Under which id.
        peer: PeerId,
        /// The epoch.
        record: EpochRecord,
    },
    /// A call ended.
    Finished {
        /// Which process.
        process: usize,
        /// Under which id.
        peer: PeerId,
        /// What kind of collective it was; none for votes for newcomers.
        kind: Option<OpKind>,
        /// Who played a part of its own in it.
        root: Option<PeerId>,
        /// How.
        outcome: Outcome,
        /// What the caller's buffer held before the call, if it is a collective.
        before: Option<Buffer>,
        /// What it holds now.
        after: Option<Buffer>,
        /// Its deadline.
        deadline: Instant,
        /// Time that its process could not run since the deadline was set.
        stopped: std::time::Duration,
        /// Which of the program's calls it was, if the end is one that all members must hear.
        place: Option<Place>,
    },
    /// A coordinator took a peer out.
    Lost {
        /// Which coordinator.
        coordinator: usize,
        /// Who.
        peer: PeerId,
        /// Why.
        reason: LossReason,
    },
    /// A coordinator knows again how a group stands, from what its members told.
    Rebuilt {
        /// Which coordinator.
        coordinator: usize,
        /// The group.
        group: u32,
        /// The last revision that any of those took part in agreeing on who were with it in that moment.
        known: Option<Revision>,
    },
    /// A coordinator tells a peer that the run goes on without it.
    Superseded {
        /// Which coordinator.
        coordinator: usize,
        /// Whom.
        peer: PeerId,
        /// For how long this coordinator has had the address by now, or one had it before that this peer has missed.
        reigned: std::time::Duration,
        /// Whether it was the one that last told this peer to go on.
        was_let_on: bool,
        /// Whether it has its address back, and the peer has obeyed or joined another one meanwhile.
        is_behind: bool,
    },
    /// A peer's session is over.
    Out {
        /// Which process.
        process: usize,
        /// Under which id it was in.
        peer: PeerId,
        /// Why.
        reason: OutReason,
    },
    /// A peer heard something from a coordinator whose term is lower than one it has obeyed, and acted on it.
    ObeyedLowerTerm {
        /// Which process.
        process: usize,
        /// Under which id.
        peer: PeerId,
        /// The lower term.
        term: u64,
        /// The higher one.
        obeyed: u64,
    },
    /// Bytes arrived that are no message.
    Undecodable {
        /// On which stream.
        wire: u64,
        /// What is wrong with them.
        error: String,
    },
}
