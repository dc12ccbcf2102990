//! What happened, for people and for whoever keeps records.
//!
//! Every event is logged through `tracing` with its fields, and kept until somebody takes it; a launcher passes them on
//! to a record of its own (torch's, under torchrun). Who never takes them loses the oldest.

use outlast_proto::rendezvous::{Event, EventName, Node};
use std::collections::VecDeque;

/// Events that are kept for whoever asks.
const KEPT_MAX: usize = 256;

/// One event, with all that a record of it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousEvent {
    /// What kind of thing: `joining`, `joined`, `waiting`, `node_lost`, `lease_lost`, `keep_alive_failed`, `closed`,
    /// `left` or `failed`.
    pub name: String,
    /// The run.
    pub run_id: String,
    /// What happened, in words.
    pub message: String,
    /// The node's host.
    pub host: String,
    /// The node's process.
    pub pid: u32,
    /// Which one of its process.
    pub local_id: u32,
    /// Its rank, if it has one.
    pub rank: Option<u32>,
    /// How it stands: `INIT`, `RUNNING`, `SUCCEEDED` or `FAILED`, in torch's words.
    pub node_state: &'static str,
    /// The backend.
    pub endpoint: String,
    /// What went wrong, if anything did.
    pub error_trace: Option<String>,
}

/// Where events are entered.
#[derive(Debug, Default)]
pub(super) struct Journal {
    who: Option<Who>,
    kept: VecDeque<RendezvousEvent>,
}

/// Who and where a node is.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) run_id: String,
    pub(super) node: Node,
    pub(super) endpoint: String,
}

impl Journal {
    pub(super) fn of(who: Who) -> Self {
        Self { who: Some(who), kept: VecDeque::new() }
    }

    pub(super) fn enter(&mut self, event: Event) {
        let Some(who) = &self.who else { return };
        let event = RendezvousEvent {
            name: event.name.to_string(),
            run_id: who.run_id.clone(),
            message: event.message,
            host: who.node.host.clone(),
            pid: who.node.pid,
            local_id: who.node.local_id,
            rank: event.rank,
            node_state: node_state(event.name),
            endpoint: who.endpoint.clone(),
            error_trace: event.error,
        };
        tracing::info!(
            name = event.name,
            run_id = event.run_id,
            host = event.host,
            pid = event.pid,
            local_id = event.local_id,
            rank = event.rank,
            node_state = event.node_state,
            endpoint = event.endpoint,
            error_trace = event.error_trace,
            "rendezvous: {}",
            event.message
        );
        if self.kept.len() >= KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(event);
    }

    pub(super) fn take(&mut self) -> Vec<RendezvousEvent> {
        self.kept.drain(..).collect()
    }
}

fn node_state(name: EventName) -> &'static str {
    match name {
        EventName::Joining => "INIT",
        EventName::Joined | EventName::Closed | EventName::Left => "SUCCEEDED",
        EventName::Failed => "FAILED",
        _ => "RUNNING",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_kept_with_all_their_fields_up_to_a_bound() {
        let node = Node { host: "h".to_owned(), pid: 7, local_id: 1 };
        let mut journal =
            Journal::of(Who { run_id: "run".to_owned(), node, endpoint: "embedded://a:1".to_owned() });
        for number in 0..=KEPT_MAX {
            let (name, message) = (EventName::Failed, number.to_string());
            journal.enter(Event { name, message, rank: None, error: Some("why".to_owned()) });
        }
        let kept = journal.take();
        assert_eq!((kept.len(), kept[0].message.as_str()), (KEPT_MAX, "1"), "the oldest is lost");
        assert_eq!((kept[0].name.as_str(), kept[0].node_state), ("failed", "FAILED"));
        assert_eq!(kept[0].error_trace.as_deref(), Some("why"));
        assert!(journal.take().is_empty());
    }
}
