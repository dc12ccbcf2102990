//! Functions that change the state: one per action, and the sanitising of nodes that are gone.

use super::{Action, Node, Seat, Settings, State};
use std::collections::BTreeSet;

/// Carries out an action of `node` on its copy of the state. Actions that are about something else change nothing.
pub fn apply(action: Action, state: &mut State, settings: &Settings, node: &Node, address: &str) {
    match action {
        Action::AddToParticipants => add_participant(state, settings, node, address),
        Action::AddToWaitList => {
            state.wait_list.insert(node.clone());
        }
        Action::AddToRedundancyList => {
            state.wait_list.remove(node);
            state.redundancy_list.insert(node.clone());
        }
        Action::RemoveFromParticipants => {
            if state.participants.remove(node).is_some() {
                after_a_loss(state, settings);
            }
        }
        Action::RemoveFromWaitList => {
            state.wait_list.remove(node);
        }
        Action::RemoveFromRedundancyList => {
            state.redundancy_list.remove(node);
        }
        Action::MarkComplete => complete(state, settings),
        Action::MarkClosed => state.closed = true,
        Action::KeepAlive | Action::Sync | Action::ErrorClosed | Action::ErrorTimeout | Action::Finish => {}
    }
}

/// Takes everybody out of every list who is not `alive`, and says who that was. `me` knows that it lives, whoever asks.
pub fn sanitise(
    state: &mut State,
    settings: &Settings,
    me: Option<&Node>,
    alive: &BTreeSet<String>,
) -> BTreeSet<Node> {
    let is_dead = |node: &&Node| Some(*node) != me && !alive.contains(&node.to_string());
    let listed = state.participants.keys().chain(&state.wait_list).chain(&state.redundancy_list);
    let dead: BTreeSet<Node> = listed.filter(is_dead).cloned().collect();
    let before = state.participants.len();
    for node in &dead {
        state.participants.remove(node);
        state.wait_list.remove(node);
        state.redundancy_list.remove(node);
    }
    if state.participants.len() < before {
        after_a_loss(state, settings);
    }
    dead
}

fn add_participant(state: &mut State, settings: &Settings, node: &Node, address: &str) {
    state.wait_list.remove(node);
    state.redundancy_list.remove(node);
    state.participants.insert(node.clone(), Seat { rank: 0, address: address.to_owned() });
    if state.participants.len() >= settings.min_nodes && !state.calling {
        state.calling = true;
        state.calls += 1;
    }
    if state.participants.len() >= settings.max_nodes {
        complete(state, settings);
    }
}

/// Survivors of the round before keep their order, whoever is new comes after them, sorted. Who waits and found no place is
/// a spare of the full round from its first moment: if it still counted as waiting until it said so itself, the
/// participants would meet again for it, and for the next one, without end.
fn complete(state: &mut State, settings: &Settings) {
    let survivors = state.roster.iter().filter(|node| state.participants.contains_key(node));
    let mut order: Vec<Node> = survivors.cloned().collect();
    let known: BTreeSet<Node> = order.iter().cloned().collect();
    order.extend(state.participants.keys().filter(|node| !known.contains(node)).cloned());
    for (rank, node) in order.iter().enumerate() {
        if let Some(seat) = state.participants.get_mut(node) {
            seat.rank = rank as u32;
        }
    }
    state.complete = true;
    state.calling = false;
    state.roster = order;
    if state.participants.len() >= settings.max_nodes {
        state.redundancy_list.append(&mut state.wait_list);
    }
}

fn after_a_loss(state: &mut State, settings: &Settings) {
    if !state.complete {
        state.calling &= state.participants.len() >= settings.min_nodes;
    } else if state.participants.is_empty() {
        state.complete = false;
        state.round += 1;
        state.calls = 0;
    }
}
