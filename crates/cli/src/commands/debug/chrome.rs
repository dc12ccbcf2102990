//! A time line as a trace that `chrome://tracing` and Perfetto open.
//!
//! Each actor is a process of the trace. Its first thread has messages, links and health; then one thread for each tag, with its
//! calls, and inside them what they spent their time on: moving bytes, and waiting for the verdict. Arrows go from a
//! message that was sent to where it was heard.

use super::flight::{Event, Flight};
use super::stuck::Open;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Messages have no length; this one can be seen and clicked on.
const MESSAGE_US: i64 = 1;
/// The thread of messages.
const CONTROL: u64 = 0;

/// The whole trace.
pub(super) fn trace(flight: &Flight, open: &[Open]) -> Value {
    let mut events = Vec::new();
    for (at, actor) in flight.actors.iter().enumerate() {
        events.push(
            json!({"ph": "M", "pid": at, "tid": 0, "name": "process_name", "args": {"name": actor.label}}),
        );
        events.push(
            json!({"ph": "M", "pid": at, "tid": 0, "name": "thread_name", "args": {"name": "control"}}),
        );
    }
    events.extend(
        flight.events.iter().filter(|event| event.number("subject").is_none() || is_message(event)).map(
            |event| {
                let name = format!("{} {}", event.text("what"), event.text("name"));
                slice(event.actor, CONTROL, &name, event.time_us, MESSAGE_US, event)
            },
        ),
    );
    events.extend(calls(flight, open));
    events.extend(arrows(flight));
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}

fn is_message(event: &Event) -> bool {
    ["sent", "heard", "line", "decided", "health"].contains(&event.text("what"))
}

fn slice(actor: usize, thread: u64, name: &str, from_us: i64, length_us: i64, event: &Event) -> Value {
    let arguments = Value::Object(event.fields.clone());
    json!({
        "ph": "X", "pid": actor, "tid": thread, "name": name, "cat": event.text("what"),
        "ts": from_us, "dur": length_us.max(1), "args": arguments,
    })
}

/// Calls, and what is inside them.
fn calls(flight: &Flight, open: &[Open]) -> Vec<Value> {
    let mut slices = Vec::new();
    let mut begun: HashMap<(usize, u64), &Event> = HashMap::new();
    let mut moving: HashMap<(usize, u64), &Event> = HashMap::new();
    let mut voted: HashMap<(usize, u64), &Event> = HashMap::new();
    let mut threads: HashMap<(usize, u64), u64> = HashMap::new();
    let mut named = Vec::new();
    for event in &flight.events {
        let Some(call) = event.number("subject").filter(|_| !is_message(event)) else { continue };
        let key = (event.actor, call);
        let until = |from: &Event| event.time_us - from.time_us;
        match (event.text("what"), event.text("name")) {
            ("called", _) => {
                begun.insert(key, event);
            }
            ("ordered", "perform") => {
                let tag = event.number("tag").unwrap_or(0);
                threads.insert(key, tag + 1);
                if !named.contains(&(event.actor, tag)) {
                    named.push((event.actor, tag));
                }
                moving.insert(key, event);
            }
            ("moved", name) => {
                if let Some(from) = moving.remove(&key) {
                    let thread = threads.get(&key).copied().unwrap_or(1);
                    slices.push(slice(event.actor, thread, "moving bytes", from.time_us, until(from), from));
                }
                if name == "done" {
                    voted.insert(key, event);
                }
            }
            ("ordered", "commit" | "undo") | ("ended", _) => {
                let thread = threads.get(&key).copied().unwrap_or(1);
                if let Some(from) = voted.remove(&key) {
                    slices.push(slice(
                        event.actor,
                        thread,
                        "waiting for the verdict",
                        from.time_us,
                        until(from),
                        from,
                    ));
                }
                if let (Some(from), "ended") = (begun.get(&key), event.text("what")) {
                    slices.push(slice(
                        event.actor,
                        thread,
                        from.text("name"),
                        from.time_us,
                        until(from),
                        from,
                    ));
                    begun.remove(&key);
                }
            }
            _ => {}
        }
    }
    for call in open {
        let key = (call.actor, call.call);
        let (thread, asked) = (threads.get(&key).copied().unwrap_or(1), flight.actors[call.actor].asked_us);
        if let Some(from) = begun.get(&key) {
            let name = format!("{} (not over: {})", call.name, call.stage);
            slices.push(slice(call.actor, thread, &name, from.time_us, asked - from.time_us, from));
        }
    }
    slices.extend(named.into_iter().map(|(actor, tag)| {
        json!({"ph": "M", "pid": actor, "tid": tag + 1, "name": "thread_name", "args": {"name": format!("tag {tag}")}})
    }));
    slices
}

/// From where a message was sent to where it was heard.
fn arrows(flight: &Flight) -> Vec<Value> {
    let Some(coordinator) = flight.actors.iter().position(super::flight::Actor::is_coordinator) else {
        return Vec::new();
    };
    let peers = (0..flight.actors.len()).filter(|actor| *actor != coordinator);
    let pairs = peers.flat_map(|peer| flight.messages(peer, coordinator));
    let end = |phase: &str, id: usize, event: &Event| {
        json!({
            "ph": phase, "pid": event.actor, "tid": CONTROL, "id": id, "ts": event.time_us,
            "name": event.text("name"), "cat": "message", "bp": "e",
        })
    };
    pairs
        .enumerate()
        .flat_map(|(id, (sent, heard))| {
            [end("s", id, &flight.events[sent]), end("f", id, &flight.events[heard])]
        })
        .collect()
}
