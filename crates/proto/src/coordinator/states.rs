//! Where a peer stands, by name, and what is legal next.
//!
//! A peer is in one connection phase and one connection state, and in one collective state for each tag that it has a
//! call under. The names are those of the design, because people meet them in `outlast status`, in errors and in the
//! pages. States of steps that are ballots come from the ballot's kind.

use super::groups::Groups;
use super::office::Office;
use super::operations::Op;
use super::peers::{Peer, Phase};
use crate::ballot;
use crate::collective::Group;
use crate::id::PeerId;

/// What a peer does, besides being healthy or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Nothing is under way.
    Idle,
    /// It votes to let newcomers in (`update_topology`), or is one who waits to be let in.
    VoteAcceptNewPeers,
    /// It makes the links of an epoch without newcomers: after a loss, or for a new ring (rule 8).
    Reconnecting,
    /// It makes the links of an epoch with newcomers.
    ConnectingToPeers,
    /// No ring avoids the links that cannot be made; they are dialled again (rule 16).
    ConnectingToPeersFailed,
    /// It votes to look for a better ring (`optimize_topology`).
    VoteOptimizeTopology,
    /// It measures its links for `optimize_topology`.
    OptimizeTopology,
    /// Measuring or rewiring did not succeed; the old ring stands (rule 32).
    OptimizeTopologyFailed,
    /// It votes to make everybody's state the same (`sync_state`).
    VoteSyncState,
    /// It gives or takes what differs.
    SyncingState,
    /// It holds the elected state and waits for the others.
    VoteSyncComplete,
    /// A donor or receiver was lost; what was taken in place is torn (rule 26).
    SyncFailed,
    /// It is in one or more collectives; their tags say how far.
    CollectivesRunning,
    /// It votes in a ballot that has no state of its own.
    #[cfg(any(test, feature = "dummy-ballot"))]
    Vote(&'static str),
}

impl ConnectionState {
    const NEXT_OF_VOTER: &'static str = "wait for the others to make the same call, or give it up";

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::VoteAcceptNewPeers => "VoteAcceptNewPeers",
            Self::Reconnecting => "Reconnecting",
            Self::ConnectingToPeers => "ConnectingToPeers",
            Self::ConnectingToPeersFailed => "ConnectingToPeersFailed",
            Self::VoteOptimizeTopology => "VoteOptimizeTopology",
            Self::OptimizeTopology => "OptimizeTopology",
            Self::OptimizeTopologyFailed => "OptimizeTopologyFailed",
            Self::VoteSyncState => "VoteSyncState",
            Self::SyncingState => "SyncingState",
            Self::VoteSyncComplete => "VoteSyncComplete",
            Self::SyncFailed => "SyncFailed",
            Self::CollectivesRunning => "CollectivesRunning",
            #[cfg(any(test, feature = "dummy-ballot"))]
            Self::Vote(name) => name,
        }
    }

    /// What its program may do now. A step that failed has one thing that is legal next.
    const fn next_of_accepted(self) -> &'static str {
        match self {
            Self::Idle => "any call",
            Self::VoteAcceptNewPeers | Self::VoteOptimizeTopology | Self::VoteSyncState => {
                Self::NEXT_OF_VOTER
            }
            #[cfg(any(test, feature = "dummy-ballot"))]
            Self::Vote(_) => Self::NEXT_OF_VOTER,
            Self::Reconnecting | Self::ConnectingToPeers => "any call; it waits for the links",
            Self::ConnectingToPeersFailed => "any call; it waits until a broken link carries again",
            Self::OptimizeTopology | Self::SyncingState | Self::VoteSyncComplete => "wait until it ends",
            Self::OptimizeTopologyFailed => "retry optimize_topology",
            Self::SyncFailed => "retry sync_state",
            Self::CollectivesRunning => "calls under other tags",
        }
    }

    /// The same for a peer in that phase.
    pub(super) const fn legal_next(self, phase: Phase) -> &'static str {
        match phase {
            Phase::Registered => Phase::NEXT_OF_REGISTERED,
            Phase::Accepted => self.next_of_accepted(),
        }
    }
}

impl Phase {
    const NEXT_OF_REGISTERED: &'static str = "wait to be admitted, or leave";

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Accepted => "accepted",
        }
    }
}

/// How far a collective is, for one member or for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectiveState {
    /// Somebody has not made the call.
    VoteInitiate,
    /// All have made it, and bytes move.
    Perform,
    /// The result is here, and the verdict is not.
    VoteComplete,
}

impl CollectiveState {
    /// Where everybody together is: as far as the first.
    pub(super) fn of_all(op: &Op) -> Self {
        Self::new(op, op.votes.values().any(|vote| vote.complete))
    }

    /// Where one member is; none if it has not made the call.
    pub(super) fn of(peer: PeerId, op: &Op) -> Option<Self> {
        Some(Self::new(op, op.votes.get(&peer)?.complete))
    }

    fn new(op: &Op, complete: bool) -> Self {
        if complete {
            Self::VoteComplete
        } else if op.votes.len() < op.members {
            Self::VoteInitiate
        } else {
            Self::Perform
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::VoteInitiate => "VoteInitiate",
            Self::Perform => "Perform",
            Self::VoteComplete => "VoteComplete",
        }
    }
}

/// What a peer does.
pub(super) fn connection_state(groups: &Groups, id: PeerId, peer: &Peer) -> ConnectionState {
    let state = match groups.get(peer.group) {
        _ if peer.phase == Phase::Registered => return ConnectionState::VoteAcceptNewPeers,
        None => return ConnectionState::Idle,
        Some(state) => state,
    };
    if state.operations.open().any(|(.., op)| op.votes.contains_key(&id)) {
        ConnectionState::CollectivesRunning
    } else if state.paths.is_stuck() {
        ConnectionState::ConnectingToPeersFailed
    } else if state.linking.awaits(id) {
        if state.linking.grew() { ConnectionState::ConnectingToPeers } else { ConnectionState::Reconnecting }
    } else if let Some((kind, wish)) = state.ballots.vote_of(id) {
        ballot::rules(kind).map_or(ConnectionState::Idle, |rules| rules.state(wish))
    } else {
        let mut ends =
            ballot::KINDS.iter().filter_map(|rules| Some((rules, state.ballots.last_end(rules.kind())?)));
        ends.find_map(|(rules, outcome)| rules.state_after(outcome)).unwrap_or(ConnectionState::Idle)
    }
}

/// What a peer is told that did what only members of that group may do.
pub(super) fn no_member(office: &Office, groups: &Groups, peer: PeerId, what: &str, group: Group) -> String {
    match office.peers.get(peer) {
        Some(record) if record.phase == Phase::Registered => {
            let (phase, state) = (record.phase.name(), connection_state(groups, peer, record).name());
            let next = Phase::NEXT_OF_REGISTERED;
            format!("{what} group {group} while it is {phase} ({state}): legal next is to {next}")
        }
        _ => format!("{what} group {group}, of which it is no member"),
    }
}
