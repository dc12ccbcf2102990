//! Operators choose actions: what a node should do next, given the state.
//!
//! Pure functions, in the order in which the rules apply. A rule that changes the state is applied and the operator is
//! asked again; it ends with `Finish` or an error, or with `Sync` when there is nothing to do until something changes.

use super::{Node, Settings, State};
use crate::time::Instant;

/// What a node wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// Into a round.
    Join,
    /// Its heartbeat told in time.
    KeepAlive,
    /// The rendezvous over, for all.
    Close,
    /// Out of every list.
    Exit,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Renew the lease.
    KeepAlive,
    /// Take part in the open round. Reaching min begins the last call, reaching max completes the round.
    AddToParticipants,
    /// Wait for the next round.
    AddToWaitList,
    /// Wait for a place in a round that is full.
    AddToRedundancyList,
    /// Leave the round. The last one to leave a complete round opens the next.
    RemoveFromParticipants,
    /// Wait no longer.
    RemoveFromWaitList,
    /// There is a place: join afresh.
    RemoveFromRedundancyList,
    /// Complete the round and give out the ranks.
    MarkComplete,
    /// End the rendezvous for all.
    MarkClosed,
    /// Nothing to do until the state changes or time passes.
    Sync,
    /// The rendezvous is over.
    ErrorClosed,
    /// The time is up.
    ErrorTimeout,
    /// Done.
    Finish,
}

/// What an operator looks at.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The state, without the nodes that are gone.
    pub state: &'a State,
    /// How many nodes, and how long for what.
    pub settings: &'a Settings,
    /// Who asks.
    pub node: &'a Node,
    /// Now.
    pub now: Instant,
    /// When the operation should be over.
    pub deadline: Instant,
    /// When the node last renewed its lease.
    pub last_heartbeat: Option<Instant>,
    /// When the node saw the last call begin that is under way.
    pub called: Option<Instant>,
}

/// What the node should do next.
pub fn decide(operator: Operator, context: &Context<'_>) -> Action {
    match operator {
        Operator::Join => join(context),
        Operator::KeepAlive => keep_alive(context),
        Operator::Close => close(context),
        Operator::Exit => exit(context),
    }
}

fn join(context: &Context<'_>) -> Action {
    let Context { state, settings, node, .. } = *context;
    if state.closed {
        return Action::ErrorClosed;
    }
    let has_room = state.participants.len() < settings.max_nodes;
    if state.redundancy_list.contains(node) {
        // A spare waits for as long as the round is full, however long that is.
        return if has_room { Action::RemoveFromRedundancyList } else { context.wait() };
    }
    let is_participant = state.participants.contains_key(node);
    if state.complete && is_participant {
        return Action::Finish;
    }
    let is_waiting = state.wait_list.contains(node);
    if context.is_late() {
        let can_roll_back = context.now <= context.deadline + settings.rollback;
        return match (can_roll_back, is_participant, is_waiting) {
            (true, true, _) => Action::RemoveFromParticipants,
            (true, false, true) => Action::RemoveFromWaitList,
            _ => Action::ErrorTimeout,
        };
    }
    if is_participant {
        let is_enough = state.participants.len() >= settings.min_nodes;
        if is_enough && context.last_call_is_over() {
            return Action::MarkComplete;
        }
    } else if !state.complete && has_room {
        return Action::AddToParticipants;
    } else if !has_room {
        // Also who waited already: a round that is full has no reason to be met again for it.
        return Action::AddToRedundancyList;
    } else if !is_waiting {
        return Action::AddToWaitList;
    }
    context.wait()
}

fn keep_alive(context: &Context<'_>) -> Action {
    match (context.heartbeat_is_due(), context.is_late()) {
        (false, _) => Action::Finish,
        (true, false) => Action::KeepAlive,
        (true, true) => Action::ErrorTimeout,
    }
}

fn close(context: &Context<'_>) -> Action {
    match (context.state.closed, context.is_late()) {
        (true, _) => Action::Finish,
        (false, false) => Action::MarkClosed,
        (false, true) => Action::ErrorTimeout,
    }
}

fn exit(context: &Context<'_>) -> Action {
    let Context { state, node, .. } = *context;
    let removal = if state.participants.contains_key(node) {
        Action::RemoveFromParticipants
    } else if state.wait_list.contains(node) {
        Action::RemoveFromWaitList
    } else if state.redundancy_list.contains(node) {
        Action::RemoveFromRedundancyList
    } else {
        return Action::Finish;
    };
    if context.is_late() { Action::ErrorTimeout } else { removal }
}

impl Context<'_> {
    fn is_late(&self) -> bool {
        self.now > self.deadline
    }

    fn heartbeat_is_due(&self) -> bool {
        self.last_heartbeat.is_none_or(|last| self.now >= last + self.settings.keep_alive_interval)
    }

    fn last_call_is_over(&self) -> bool {
        let over = |called| self.now >= called + self.settings.last_call;
        self.state.calling && self.called.is_some_and(over)
    }

    /// Nothing to do but to stay alive.
    fn wait(&self) -> Action {
        if self.heartbeat_is_due() { Action::KeepAlive } else { Action::Sync }
    }
}
