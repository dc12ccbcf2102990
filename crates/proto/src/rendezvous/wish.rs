//! What a node wants, left beside its lease, so that whoever writes next can write it down for it.
//!
//! If each node joins with a write of its own, N nodes take N writes one after another, and all hear of each. But only
//! the last of them decides anything. So a node that wants into a round says so in a note beside its lease. That collides
//! with nobody's write. Everybody who looks at the register reads the state *and* what those want who are alive, and makes
//! the same picture of both: who would take part, who would wait. What changes no round stays a picture. Whoever sees
//! that the picture begins a last call, completes a round or opens the next one writes it down, for all at once.
//!
//! The invariant: a picture binds nobody. What counts is what was written, on the last token, by a node whose lease
//! lasts. A wish is granted only while its owner's lease lasts, and by the same rules that its owner would follow.
//!
//! What it does not do: nobody is taken out of a round that it was not told of, and nobody is waited for.

use super::{Action, Context, Node, Operator, Settings, State, StateError, apply, decide, sanitise};
use crate::limits::{NODE_ADDRESS_BYTES_MAX, NOTE_BYTES_MAX, RENDEZVOUS_NODES_MAX};
use crate::time::Instant;
use crate::wire::register::Snapshot;
use crate::wire::{InvalidMessage, Message, decode, printable, within};
use minicbor::{CborLen, Decode, Encode};
use std::collections::BTreeMap;

/// A node wants into the next round.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub struct Wish {
    /// Who.
    #[n(0)]
    pub node: Node,
    /// The round that it was told of last: if that is the one that is complete, it leaves it.
    #[n(1)]
    pub after: Option<u64>,
    /// Where it can be reached.
    #[n(2)]
    pub address: String,
}

impl Message for Wish {
    const BYTES_MAX: usize = NOTE_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        self.node.check()?;
        within("address", self.address.len(), NODE_ADDRESS_BYTES_MAX)?;
        printable("address", &self.address)
    }
}

/// The wishes in a snapshot. A note that is no wish, or one in another's name, is nothing to us.
pub fn wishes(snapshot: &Snapshot) -> BTreeMap<Node, Wish> {
    let read = |(holder, note): (&String, &minicbor::bytes::ByteVec)| {
        let wish: Wish = decode(note).ok().filter(|_| snapshot.alive.contains(holder))?;
        (wish.node.to_string() == *holder).then(|| (wish.node.clone(), wish))
    };
    snapshot.notes.iter().filter_map(read).collect()
}

/// The picture that a snapshot gives: the state, without the nodes that are gone, as all who live want it.
pub fn picture(snapshot: &Snapshot, settings: &Settings) -> Result<State, StateError> {
    let mut state = snapshot.value.as_deref().map_or(Ok(State::default()), State::from_bytes)?;
    sanitise(&mut state, settings, None, &snapshot.alive);
    grant(&mut state, settings, &wishes(snapshot));
    Ok(state)
}

/// Grants what can be granted. Who was in the last round comes before who was not, in the order of ranks: a spare takes
/// nobody's place who is there.
pub fn grant(state: &mut State, settings: &Settings, wishes: &BTreeMap<Node, Wish>) {
    if wishes.is_empty() || state.closed {
        return;
    }
    for (node, wish) in wishes {
        if state.complete && wish.after == Some(state.round) {
            apply(Action::RemoveFromParticipants, state, settings, node, &wish.address);
        }
    }
    let is_survivor = |node: &&Node| wishes.contains_key(*node);
    let survivors: Vec<Node> = state.roster.iter().filter(is_survivor).cloned().collect();
    for node in &survivors {
        join(state, settings, &wishes[node]);
    }
    let known: std::collections::BTreeSet<&Node> = survivors.iter().collect();
    for wish in wishes.values().filter(|wish| !known.contains(&wish.node)) {
        join(state, settings, wish);
    }
}

/// What the owner of the wish would do, by the same rules.
fn join(state: &mut State, settings: &Settings, wish: &Wish) {
    let Wish { node, address, .. } = wish;
    if let Some(seat) = state.participants.get_mut(node) {
        if !state.complete && seat.address != *address {
            seat.address.clone_from(address);
        }
        return;
    }
    // From the redundancy list to no list to another one.
    for _ in 0..2 {
        let context = Context {
            state,
            settings,
            node,
            now: Instant::ORIGIN,
            deadline: Instant::ORIGIN,
            last_heartbeat: Some(Instant::ORIGIN),
            called: None,
        };
        let action = decide(Operator::Join, &context);
        let adds = match action {
            Action::AddToParticipants | Action::AddToWaitList | Action::AddToRedundancyList => true,
            Action::RemoveFromRedundancyList => false,
            _ => return,
        };
        if adds && state.place(node).is_none() && state.nodes() >= RENDEZVOUS_NODES_MAX {
            return;
        }
        apply(action, state, settings, node, address);
        if adds {
            return;
        }
    }
}
