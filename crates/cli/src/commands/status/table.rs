//! The coordinator's answer, for people.

use outlast::membership::RunId;
use outlast::text::printable;
use serde_json::Value;
use std::fmt::Write as _;

/// The whole answer as text.
pub(super) fn render(run: &RunId, coordinator: &str, status: &Value) -> String {
    let mut text = String::new();
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    let _ = writeln!(
        text,
        "run {run} at {coordinator}: epoch {}, term {}; {} committed, {} aborted, {} evicted, {} kicked\n",
        number("run_epoch"),
        number("term"),
        number("commits"),
        number("aborts"),
        number("evictions"),
        number("kicks"),
    );
    if status["encryption"] == "off" {
        // Rule 34: whoever looks at a run must see this.
        text.push_str("the data links are NOT encrypted: its peers asked for that with encryption off\n\n");
    }
    if status["key_is_kept"] == false {
        // Rule 39.
        text.push_str(
            "the coordinator's key is not kept: whoever holds the secret and answers at its address is believed\n\n",
        );
    }
    let mut peers: Vec<_> = list(&status["peers"]).iter().collect();
    peers.sort_by_key(|peer| (peer["group"].as_u64(), peer["rank"].as_u64().unwrap_or(u64::MAX)));
    if peers.is_empty() {
        text.push_str("nobody is in this run\n");
    } else {
        let head =
            ["group", "rank", "name", "peer", "health", "phase", "state", "legal next", "last call", "ago"];
        let rows: Vec<_> = peers.into_iter().map(peer_row).collect();
        columns(&mut text, &head, &rows);
    }
    if !list(&status["groups"]).is_empty() {
        text.push('\n');
        let head = ["group", "epoch", "world", "ring"];
        let rows: Vec<_> = list(&status["groups"]).iter().map(group_row).collect();
        columns(&mut text, &head, &rows);
    }
    text.push('\n');
    let waiting = list(&status["waiting"]);
    if waiting.is_empty() {
        text.push_str("nobody waits for anybody\n");
    }
    for sentence in waiting {
        let _ = writeln!(text, "{}", word(sentence));
    }
    doors(&mut text, status);
    text
}

/// Who was told to go, and who was not let in; nothing if nobody was.
fn doors(text: &mut String, status: &Value) {
    let kicked = list(&status["kicked"]);
    if !kicked.is_empty() {
        text.push_str("\ntold to go:\n");
    }
    for kick in kicked {
        let (peer, ago) = (word(&kick["peer"]), seconds(&kick["seconds_ago"]));
        let _ = writeln!(
            text,
            "  {ago} ago, {}: {}",
            peer.chars().take(8).collect::<String>(),
            word(&kick["text"])
        );
    }
    let port = &status["port"];
    let Some(refused) = port["refused"].as_object().filter(|refused| !refused.is_empty()) else { return };
    let causes: Vec<_> = refused
        .iter()
        .map(|(cause, count)| format!("{} {count}", printable(cause).replace('_', " ")))
        .collect();
    let number = |field: &str| port[field].as_u64().unwrap_or(0);
    let _ = writeln!(
        text,
        "\nat the port: {} connections, {} of members, {} closed without a word; refused: {}",
        number("accepted"),
        number("authenticated"),
        number("hung_up"),
        causes.join(", ")
    );
    for source in list(&port["recent"]) {
        let (ago, times) = (seconds(&source["seconds_ago"]), word(&source["times"]));
        let _ = writeln!(
            text,
            "  {ago} ago, {} ({times} times): {}",
            word(&source["source"]),
            word(&source["cause"])
        );
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        // Others chose these words, and a terminal obeys what it is shown.
        Value::String(text) => printable(text).into_owned(),
        other => other.to_string(),
    }
}

fn seconds(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s"))
}

fn peer_row(peer: &Value) -> Vec<String> {
    let mut state = word(&peer["state"]);
    for tag in list(&peer["tags"]) {
        let _ = write!(state, ", tag {} {}", word(&tag["tag"]), word(&tag["state"]));
    }
    if let Some(away) = peer["away_seconds"].as_f64() {
        let _ = write!(state, ", away for {away:.1} s");
    }
    vec![
        word(&peer["group"]),
        word(&peer["rank"]),
        word(&peer["name"]),
        word(&peer["id"]).chars().take(8).collect(),
        word(&peer["health"]),
        word(&peer["phase"]),
        state,
        word(&peer["next"]),
        word(&peer["last_call"]),
        seconds(&peer["last_call_seconds"]),
    ]
}

fn group_row(group: &Value) -> Vec<String> {
    let mut ring = list(&group["ring"]).iter().map(word).collect::<Vec<_>>().join(" -> ");
    for link in list(&group["broken_links"]) {
        let _ = write!(ring, "; {} -> {} is broken", word(&link[0]), word(&link[1]));
    }
    if group["rebuilding"] == true {
        ring.push_str("; rebuilding");
    }
    vec![word(&group["group"]), word(&group["epoch"]), word(&group["world_size"]), ring]
}

/// Every column as wide as its widest cell.
fn columns(text: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.max().unwrap_or(0).max(head[at].len())
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<_> =
            cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    };
    line(&mut head.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_peers_rings_and_who_waits() {
        let status = serde_json::json!({
            "term": 1, "run_epoch": 7, "commits": 5, "aborts": 1, "evictions": 0, "kicks": 0,
            "peers": [
                {"id": "bbbbbbbbbbbb", "name": "b", "group": 0, "rank": 1, "phase": "accepted", "state": "Idle",
                 "next": "any call", "tags": [], "health": "stalled", "away_seconds": 1.25, "last_call": "connect", "last_call_seconds": 3.21},
                {"id": "aaaaaaaaaaaa", "name": "a", "group": 0, "rank": 0, "phase": "accepted",
                 "state": "CollectivesRunning", "tags": [{"tag": 7, "seq": 0, "state": "Perform"}], "health": "alive", "away_seconds": null,
                 "last_call": "all_reduce", "last_call_seconds": 0.5},
            ],
            "groups": [{"group": 0, "epoch": 4, "world_size": 2, "ring": ["a", "b"], "broken_links": [],
                        "rebuilding": false}],
            "waiting": ["group 0 tag 0: all_reduce waits since 0.5 s for b to call it"],
        });
        let text = render(&"default".parse().unwrap(), "127.0.0.1:1", &status);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("epoch 7") && lines[0].contains("1 aborted"), "{text}");
        assert!(lines[3].starts_with("0      0     a ") && lines[3].ends_with("all_reduce  0.5 s"), "{text}");
        assert!(lines[4].contains("stalled") && lines[4].contains("Idle, away for 1.2 s "), "{text}");
        assert!(lines[3].contains("CollectivesRunning, tag 7 Perform"), "{text}");
        assert!(lines[4].contains(" any call "), "{text}");
        assert!(!text.contains("NOT encrypted"), "{text}");
        assert!(text.contains("a -> b") && text.contains("waits since 0.5 s for b"), "{text}");
    }

    #[test]
    fn who_was_refused_and_why_is_shown() {
        let status = serde_json::json!({
            "kicked": [{"peer": "aabbccddeeff", "text": "this coordinator serves 128 runs", "seconds_ago": 2.0}],
            "port": {"accepted": 1000, "authenticated": 3, "hung_up": 7, "refused": {"timed_out": 990},
                     "recent": [{"source": "10.0.0.9", "cause": "the handshake did not finish in time",
                                 "times": 990, "seconds_ago": 0.25}]},
        });
        let text = render(&"default".parse().unwrap(), "127.0.0.1:1", &status);
        assert!(text.contains("2.0 s ago, aabbccdd: this coordinator serves 128 runs"), "{text}");
        assert!(text.contains("1000 connections, 3 of members") && text.contains("timed out 990"), "{text}");
        assert!(text.contains("10.0.0.9 (990 times): the handshake did not"), "{text}");
    }

    #[test]
    fn what_others_wrote_cannot_paint_the_terminal() {
        let hostile = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[31mp1\nrank 0 p9\u{9b}2J\u{202e}";
        let status = serde_json::json!({
            "peers": [{"id": hostile, "name": hostile, "group": 0, "rank": 0, "phase": hostile, "state": hostile,
                       "next": hostile, "tags": [{"tag": hostile, "state": hostile}],
                       "health": hostile, "last_call": hostile, "last_call_seconds": 0.5}],
            "groups": [{"group": 0, "epoch": 4, "world_size": 2, "ring": [hostile], "broken_links": [[hostile, hostile]]}],
            "waiting": [hostile],
            "kicked": [{"peer": "a", "text": hostile}],
            "port": {"refused": {"\u{1b}[2J": 1}, "recent": [{"source": hostile, "cause": hostile}]},
        });
        let text = render(&"default".parse().unwrap(), "127.0.0.1:1", &status);
        let odd = text.lines().find_map(outlast::text::first_unprintable);
        assert_eq!(
            (odd, text.lines().filter(|line| line.starts_with("rank")).count()),
            (None, 0),
            "{text:?}"
        );
    }

    #[test]
    fn plaintext_is_said_aloud() {
        let status = serde_json::json!({"encryption": "off"});
        assert!(render(&"default".parse().unwrap(), "127.0.0.1:1", &status).contains("NOT encrypted"));
    }

    #[test]
    fn an_empty_run_says_so() {
        let text = render(&"default".parse().unwrap(), "127.0.0.1:1", &serde_json::json!({}));
        assert!(text.contains("nobody is in this run") && text.contains("nobody waits"), "{text}");
    }
}
