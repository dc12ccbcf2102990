//! A time line in words, and as JSON lines.

use super::flight::{Event, Flight};
use super::stuck::Open;
use crate::commands::json;
use outlast::text::printable;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One JSON object per line: who is here, what happened, and which calls are not over.
pub(super) fn json_lines(flight: &Flight, open: &[Open]) -> String {
    let actors: Vec<_> = flight
        .actors
        .iter()
        .map(|actor| {
            let field = |key: &str| actor.header.get(key).cloned().unwrap_or(Value::Null);
            json!({
                "who": actor.label, "role": field("role"), "host": field("host"), "pid": field("pid"),
                "run": field("run"), "reason": field("reason"), "overwritten": field("overwritten"),
                "moved_us": actor.moved_us,
            })
        })
        .collect();
    let mut text =
        json::printable_line(&json!({ "merged": flight.events.len(), "actors": actors }).to_string());
    for event in &flight.events {
        let mut fields = event.fields.clone();
        fields.insert("who".to_owned(), flight.actors[event.actor].label.clone().into());
        if let Some(peer) = event.fields.get("peer").and_then(Value::as_str) {
            fields.insert("peer".to_owned(), flight.peer(peer).into());
        }
        text += &json::printable_line(&Value::Object(fields).to_string());
    }
    for call in open {
        let line = json!({ "open": {
            "who": flight.actors[call.actor].label, "call": call.name, "stage": call.stage,
            "seconds": seconds_open(flight, call), "waits_for": call.waits_for,
        }});
        text += &json::printable_line(&line.to_string());
    }
    text
}

/// For people.
pub(super) fn text(flight: &Flight, open: &[Open]) -> String {
    let mut text = String::new();
    let first = flight.events.first().map_or(0, |event| event.time_us);
    let widest = flight.actors.iter().map(|actor| actor.label.chars().count()).max().unwrap_or(0);
    for actor in &flight.actors {
        let overwritten = actor.header.get("overwritten").and_then(Value::as_u64).unwrap_or(0);
        let moved = match actor.moved_us {
            0 => String::new(),
            by => format!(", its clock moved by {} ms", by as f64 / 1e3),
        };
        let _ = writeln!(text, "{}: {overwritten} older events are gone{moved}", printable(&actor.label));
    }
    let _ = writeln!(text, "\nseconds from {}", first as f64 / 1e6);
    for event in &flight.events {
        let label = &flight.actors[event.actor].label;
        let seconds = (event.time_us - first) as f64 / 1e6;
        let _ = writeln!(text, "{seconds:>12.6}  {:widest$}  {}", printable(label), line(flight, event));
    }
    let _ = writeln!(text);
    if open.is_empty() {
        let _ = writeln!(text, "No call was under way when these processes were asked.");
    }
    for call in open {
        let who = printable(&flight.actors[call.actor].label).into_owned();
        let _ =
            write!(text, "{who} is in {} for {:.3} s: {}", call.name, seconds_open(flight, call), call.stage);
        if call.waits_for.is_empty() {
            text.push('\n');
        } else {
            let _ = writeln!(text, "; not heard of: {}", printable(&call.waits_for.join(", ")));
        }
    }
    text
}

fn seconds_open(flight: &Flight, call: &Open) -> f64 {
    (flight.actors[call.actor].asked_us - call.since_us).max(0) as f64 / 1e6
}

fn line(flight: &Flight, event: &Event) -> String {
    let mut text = format!("{} {}", event.text("what"), printable(event.text("name")));
    if let Some(peer) = event.fields.get("peer").and_then(Value::as_str) {
        let _ = write!(text, "  {}", printable(&flight.peer(peer)));
    }
    if let Some([group, epoch, tag, seq]) = event.place() {
        let _ = write!(text, "  group {group} epoch {epoch} tag {tag} seq {seq}");
    }
    if let Some(amount) = event.number("amount") {
        let _ = write!(text, "  {amount}");
    }
    if !event.text("text").is_empty() {
        let _ = write!(text, "  {}", printable(event.text("text")));
    }
    text
}
