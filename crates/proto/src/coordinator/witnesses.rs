//! Agents that saw a process exit (rule 20a).
//!
//! # The problem
//!
//! That a process has ended is the one fact that its parent knows for certain and at once, and everybody else only after
//! some silence. But whoever may say "it has ended" may put anybody out, so it must be said by the right one, and about
//! the right process.
//!
//! # The intuition
//!
//! Three things must agree, and each comes from somebody else:
//!
//! - the *peer*, when it registered, named its agent and its own process;
//! - the *agent*, over a connection that proves its name, said that it watches this process, while it lived;
//! - the agent says over that same connection that it has ended.
//!
//! So a stranger cannot be a witness, because no peer names it; an agent cannot testify about a worker of another, because
//! that one named the other; and a worker that is wrapped in a shell is not taken for the shell, because its process is
//! another. A peer that names an agent that watches nothing has no witness, and is judged by its silence as any other.
//!
//! An agent may be quicker than a registration that is still on its way. So ends are remembered as long as the agent's
//! connection lasts, and a peer that registers for a process that has ended is lost at once.
//!
//! # The invariant
//!
//! A testimony concerns the peers that named this very process in their present session (rule 45), and nobody else.

use super::run::{ConnectionId, Run};
use crate::id::PeerId;
use crate::limits::{WITNESSED_IN_ALL_MAX, WITNESSED_MAX, WITNESSES_MAX};
use crate::wire::control::{KickReason, LossReason, ProcessName, Witness};
use crate::wire::membership::DeathReason;
use std::collections::BTreeMap;

/// What one agent watches.
#[derive(Clone, Debug, Hash)]
struct Watch {
    at: ConnectionId,
    /// Each process, and whether it has ended.
    processes: BTreeMap<ProcessName, bool>,
}

/// All agents of a run that watch processes.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Witnesses {
    agents: BTreeMap<PeerId, Watch>,
}

impl Witnesses {
    /// An agent watches a process. A new connection of the agent takes the place of its old one. False if that is more
    /// than anybody watches.
    pub(super) fn watch(&mut self, at: ConnectionId, agent: PeerId, process: ProcessName) -> bool {
        let full = self.agents.len() >= WITNESSES_MAX && !self.agents.contains_key(&agent);
        if full || self.footprint() >= WITNESSED_IN_ALL_MAX {
            return false;
        }
        let fresh = || Watch { at, processes: BTreeMap::new() };
        let watch = self.agents.entry(agent).or_insert_with(fresh);
        if watch.at != at {
            *watch = fresh();
        }
        if watch.processes.len() >= WITNESSED_MAX && !watch.processes.contains_key(&process) {
            // The ended ones are remembered for whoever registers late, which is over soon.
            watch.processes.retain(|_, ended| !*ended);
            if watch.processes.len() >= WITNESSED_MAX {
                return false;
            }
        }
        watch.processes.entry(process).or_insert(false);
        true
    }

    /// An agent says that a process has ended. Whether it is its place to say so.
    pub(super) fn exited(&mut self, at: ConnectionId, agent: PeerId, process: ProcessName) -> bool {
        let watch = self.agents.get_mut(&agent).filter(|watch| watch.at == at);
        let ended = watch.and_then(|watch| watch.processes.get_mut(&process));
        ended.map(|ended| *ended = true).is_some()
    }

    /// Whether the process that a peer says it is has ended.
    pub(super) fn has_exited(&self, witness: &Witness) -> bool {
        let watch = self.agents.get(&witness.agent);
        watch.is_some_and(|watch| watch.processes.get(&witness.process) == Some(&true))
    }

    /// A connection is gone, and with it whatever its agent watched.
    pub(super) fn closed(&mut self, at: ConnectionId) {
        self.agents.retain(|_, watch| watch.at != at);
    }

    /// How many processes are held.
    pub(super) fn footprint(&self) -> usize {
        self.agents.values().map(|watch| watch.processes.len()).sum()
    }
}

impl Run {
    /// An agent watches a process.
    pub(super) fn watch(&mut self, at: ConnectionId, from: PeerId, process: ProcessName) {
        if !self.witnesses.watch(at, from, process) {
            let text = format!(
                "this agent watches more processes than are held: {WITNESSED_MAX} of one agent, {WITNESSED_IN_ALL_MAX} of \
                 all, {WITNESSES_MAX} agents; the run goes on without it"
            );
            self.office.turn_away(at, KickReason::Limit, &text);
        }
    }

    /// An agent says that a process has ended: whoever is that process, by its own word, is gone.
    pub(super) fn exited(&mut self, at: ConnectionId, from: PeerId, process: ProcessName) {
        if !self.witnesses.exited(at, from, process) {
            return;
        }
        let named = Some(Witness { agent: from, process });
        let gone: Vec<_> =
            self.office.peers.iter().filter(|(_, peer)| peer.witness == named).map(|(id, _)| id).collect();
        for peer in gone {
            self.office.lose(peer, LossReason::Dead(DeathReason::Exited));
        }
    }

    /// The process of a peer that was heard of just now may have ended before its words arrived.
    pub(super) fn lose_if_exited(&mut self, peer: PeerId) {
        let witness = self.office.peers.get(peer).and_then(|peer| peer.witness);
        if witness.is_some_and(|witness| self.witnesses.has_exited(&witness)) {
            self.office.lose(peer, LossReason::Dead(DeathReason::Exited));
        }
    }
}
