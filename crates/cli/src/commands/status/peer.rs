//! A peer's answer about itself, for people, in as many columns as the coordinator's.

use super::table::{NAME_WIDTH, columns, cut, doors, list, seconds, word, wrapped};
use outlast::membership::RunId;
use serde_json::Value;
use std::fmt::Write as _;

/// Events that are shown; `--json` has the last hundred.
const EVENTS_SHOWN: usize = 10;

/// The whole answer as text.
pub(super) fn render(run: &RunId, status: &Value) -> String {
    let mut text = String::new();
    let peer = &status["peer"];
    let head = format!(
        "{} {} at {}, process {}, run {run}, group {}: {}",
        word(&peer["name"]),
        word(&peer["id"]).chars().take(8).collect::<String>(),
        word(&peer["address"]),
        word(&peer["pid"]),
        word(&status["group"]),
        word(&status["standing"]),
    );
    wrapped(&mut text, &head, 2);
    let coordinator = &status["coordinator"];
    let mut line = format!("coordinator {}: ", word(&coordinator["address"]));
    line.push_str(if coordinator["connected"] == true { "connected" } else { "NOT connected" });
    if coordinator["away_seconds"].is_number() {
        let _ = write!(line, ", away for {}", seconds(&coordinator["away_seconds"]));
    }
    if coordinator["connected"] == false && coordinator["last_error"].is_string() {
        let _ = write!(line, "; last: {}", word(&coordinator["last_error"]));
    }
    let _ = write!(line, "; term {}", word(&status["term"]));
    wrapped(&mut text, &line, 2);
    let view = &status["view"];
    if view.is_object() {
        let members = list(&status["members"]);
        let name = |rank: &Value| {
            let member = rank.as_u64().and_then(|rank| members.get(usize::try_from(rank).ok()?));
            member.map_or_else(|| word(rank), |member| word(&member["name"]))
        };
        let ring: Vec<_> = list(&view["ring"]).iter().map(name).collect();
        let mut line = format!(
            "epoch {} (run epoch {}), rank {} of {}; ring {}",
            word(&view["epoch"]),
            word(&view["run_epoch"]),
            word(&view["rank"]),
            word(&view["world_size"]),
            ring.join(" -> ")
        );
        for link in list(&view["broken_links"]) {
            let _ = write!(line, "; {} -> {} is broken", name(&link[0]), name(&link[1]));
        }
        wrapped(&mut text, &line, 2);
    }
    text.push('\n');
    calls(&mut text, status);
    links(&mut text, status);
    health(&mut text, status);
    let events = list(&status["events"]);
    if !events.is_empty() {
        text.push_str("\nlately, as the coordinator told it:\n");
    }
    for event in events.iter().take(EVENTS_SHOWN) {
        wrapped(&mut text, &format!("  {}", word(&event["text"])), 4);
    }
    doors(&mut text, status);
    text
}

/// What its program waits for.
fn calls(text: &mut String, status: &Value) {
    let calls = list(&status["calls"]);
    if calls.is_empty() {
        text.push_str("its program is in no call\n");
    }
    for call in calls {
        let mut line = word(&call["call"]);
        if call["tag"].is_number() {
            let _ = write!(line, " under tag {}", word(&call["tag"]));
        }
        let (age, left) = (seconds(&call["age_seconds"]), seconds(&call["deadline_seconds"]));
        let _ = write!(line, ", called {age} ago: {}; {left} until its deadline", word(&call["state"]));
        wrapped(text, &line, 2);
    }
    let unwell: Vec<_> = list(&status["members"])
        .iter()
        .filter(|member| member["health"] != "alive")
        .map(|member| format!("{} ({})", word(&member["name"]), word(&member["health"])))
        .collect();
    if !calls.is_empty() && !unwell.is_empty() {
        wrapped(text, &format!("  members that are not well: {}", unwell.join(", ")), 4);
    }
}

fn links(text: &mut String, status: &Value) {
    let row = |link: &Value| {
        let rate = link["rate"].as_f64().map_or_else(String::new, |rate| format!("{:.1} MB/s", rate / 1e6));
        vec![
            word(&link["direction"]),
            cut(&word(&link["name"]), NAME_WIDTH),
            word(&link["state"]),
            seconds(&link["seconds"]),
            rate,
            link["error"].as_str().map_or_else(String::new, |_| cut(&word(&link["error"]), 45)),
        ]
    };
    let rows: Vec<_> = list(&status["links"]).iter().map(row).collect();
    if !rows.is_empty() {
        text.push('\n');
        columns(text, &["link", "member", "state", "for", "carried", "error"], &rows);
    }
}

fn health(text: &mut String, status: &Value) {
    let row = |member: &Value| {
        vec![
            cut(&word(&member["name"]), NAME_WIDTH),
            word(&member["id"]).chars().take(8).collect(),
            word(&member["health"]),
            seconds(&member["seconds"]),
            member["round_trip_ms"].as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms")),
            seconds(&member["answered_seconds_ago"]),
        ]
    };
    let rows: Vec<_> = list(&status["health"]).iter().map(row).collect();
    if !rows.is_empty() {
        text.push('\n');
        columns(text, &["health of", "peer", "is", "for", "round trip", "answered"], &rows);
    }
    if let Some(late) = status["late_seconds_max"].as_f64().filter(|late| *late >= 0.5) {
        let line = format!("this process itself stood still for up to {late:.1} s (stopped, or starved)");
        wrapped(text, &line, 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_a_stuck_call_waits_for_in_a_hundred_columns() {
        let status = serde_json::json!({
            "peer": {"id": "aaaaaaaabbbb", "name": "ada\u{1b}[2J", "address": "10.0.0.2:41233", "pid": 7},
            "standing": "in", "group": 0, "term": 3,
            "coordinator": {"address": "10.0.0.1:29400", "connected": false, "away_seconds": 4.2, "last_error": "refused"},
            "view": {"epoch": 5, "run_epoch": 9, "rank": 0, "world_size": 2, "ring": [1, 0], "broken_links": [[0, 1]]},
            "members": [{"rank": 0, "name": "ada", "health": "alive"}, {"rank": 1, "name": "bob", "health": "stalled"}],
            "links": [{"direction": "to", "name": "bob", "state": "down", "seconds": 3.0, "rate": 2_500_000,
                       "error": "reset by a peer that sends very long explanations of what has happened to it"}],
            "calls": [{"call": "all_reduce(f32[1000], sum)", "tag": 0, "age_seconds": 12.4, "deadline_seconds": 47.6,
                       "state": "moves bytes, number 3 in epoch 5"}],
            "health": [{"id": "cccccccc", "name": "bob", "health": "stalled", "seconds": 3.2, "round_trip_ms": null,
                        "answered_seconds_ago": 3.3}],
            "events": [{"text": "cyd was lost: it said goodbye"}],
            "late_seconds_max": 0.1,
            "port": {"refused": {"not_tls": 2}, "accepted": 9, "authenticated": 5, "hung_up": 2, "recent": []},
        });
        let text = render(&"default".parse().unwrap(), &status);
        for words in [
            "NOT connected, away for 4.2 s; last: refused; term 3",
            "epoch 5 (run epoch 9), rank 0 of 2; ring bob -> ada; ada -> bob is broken",
            "all_reduce(f32[1000], sum) under tag 0, called 12.4 s ago: moves bytes, number 3 in epoch 5; 47.6 s",
            "members that are not well: bob (stalled)",
            "2.5 MB/s",
            "cyd was lost: it said goodbye",
            "refused: not tls 2",
        ] {
            let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(words), "no {words:?} in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
