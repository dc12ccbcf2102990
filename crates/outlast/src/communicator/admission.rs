//! Why nobody let us in.
//!
//! A newcomer that is not admitted knows nothing of the group it waits for: it has no epoch yet. The coordinator does, so
//! it is asked, once, when the deadline has passed: who is here, and who has not voted. The answer becomes one sentence.
//! If no answer comes the sentence says what must be true in general; the question never holds the call up for longer
//! than [`ASK_TIMEOUT`].

use super::error::Error;
use super::{Communicator, control::Control};
use serde_json::Value;
use std::time::Duration;

/// How long the answer may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// Names in one sentence.
const NAMES_MAX: usize = 4;

impl Communicator {
    /// The error of a `connect` whose deadline passed while the coordinator was there.
    pub(super) fn not_admitted(&self, min_world: u32, within: Duration) -> Error {
        let control: &Control = &self.control;
        let me = control.me().to_string();
        let status = control.status(ASK_TIMEOUT).ok().and_then(|text| serde_json::from_str(&text).ok());
        let why = explain(&status.unwrap_or(Value::Null), &me, control.group(), min_world);
        Error::NotAdmitted { coordinator: control.coordinator().to_owned(), within, why }
    }
}

/// One sentence on what stands in the way of a newcomer to `group`, from the coordinator's answer.
fn explain(status: &Value, me: &str, group: u32, min_world: u32) -> String {
    let Some(peers) = status["peers"].as_array() else {
        return format!(
            "every peer that is in must call update_topology, and there must be {min_world} of them in group {group}"
        );
    };
    let others = || peers.iter().filter(|peer| peer["id"] != me);
    let is_in = |peer: &&Value| peer["phase"] != "registered";
    let of_group: Vec<_> = others().filter(|peer| peer["group"] == group).collect();
    let here = of_group.len() + 1;
    if here < min_world as usize {
        let with = if of_group.is_empty() {
            String::new()
        } else {
            format!(" with {}", names(of_group.iter().copied()))
        };
        return format!(
            "{here} of {min_world} members are here{with}: start the others, or ask for fewer with min_world"
        );
    }
    // A vote is counted over the whole run: whoever is in, of any group, must take part in it.
    let silent = |peer: &&Value| is_in(peer) && peer["state"] != "VoteAcceptNewPeers";
    let silent: Vec<_> = others().filter(silent).collect();
    if let Some(first) = silent.first() {
        let (word, age) = (first["last_call"].as_str().unwrap_or("nothing"), &first["last_call_seconds"]);
        let last = format!("{} last called {word} {} s ago", name(first), age.as_f64().unwrap_or(0.0));
        return format!("{} must call update_topology to let it in; {last}", names(silent.iter().copied()));
    }
    let mut waiting = status["waiting"].as_array().into_iter().flatten().filter_map(Value::as_str);
    match waiting.next_back() {
        Some(sentence) => sentence.to_owned(),
        None => format!("{here} of {min_world} members are here and nothing is known that stands in the way"),
    }
}

fn name(peer: &Value) -> String {
    let text = ["name", "id"].iter().find_map(|field| peer[*field].as_str().filter(|text| !text.is_empty()));
    outlast_proto::text::printable(text.unwrap_or("?")).into_owned()
}

fn names<'a>(peers: impl Iterator<Item = &'a Value>) -> String {
    let all: Vec<_> = peers.map(name).collect();
    let shown = all.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn peer(id: &str, phase: &str, state: &str) -> Value {
        json!({"id": id, "name": format!("n-{id}"), "group": 0, "phase": phase, "state": state,
               "last_call": "barrier", "last_call_seconds": 2.5})
    }

    #[test]
    fn too_few_are_counted_with_the_newcomer_itself() {
        let status =
            json!({"peers": [peer("a", "registered", "VoteAcceptNewPeers"), peer("me", "registered", "")]});
        let text = explain(&status, "me", 0, 3);
        assert_eq!(
            text,
            "2 of 3 members are here with n-a: start the others, or ask for fewer with min_world"
        );
        let alone = explain(&json!({"peers": []}), "me", 0, 2);
        assert!(alone.starts_with("1 of 2 members are here: start"), "{alone}");
    }

    #[test]
    fn whoever_is_in_and_does_not_vote_is_named_with_what_it_does() {
        let status =
            json!({"peers": [peer("a", "accepted", "VoteAcceptNewPeers"), peer("b", "accepted", "Idle")]});
        let text = explain(&status, "me", 0, 2);
        assert_eq!(text, "n-b must call update_topology to let it in; n-b last called barrier 2.5 s ago");
    }

    #[test]
    fn without_an_answer_it_says_what_must_be_true() {
        let text = explain(&Value::Null, "me", 7, 2);
        assert!(text.contains("update_topology") && text.contains("2 of them in group 7"), "{text}");
    }

    #[test]
    fn many_names_are_cut() {
        let peers: Vec<_> = (0..6).map(|at| peer(&at.to_string(), "registered", "")).collect();
        let text = explain(&json!({ "peers": peers }), "me", 0, 9);
        assert!(text.starts_with("7 of 9 members are here with n-0, n-1, n-2, n-3 and 2 more: "), "{text}");
    }
}
