//! The coordinator's answer, for people: at most [`WIDTH`] columns, so that it fits a terminal and a chat.
//!
//! What is long is cut or wrapped. The whole of it, what is legal next for each peer among it, is in `--json`.

use outlast::membership::RunId;
use outlast::text::printable;
use serde_json::Value;
use std::fmt::Write as _;

/// No line is longer.
const WIDTH: usize = 100;
/// Members of a ring that are named.
const NAMED_MAX: usize = 32;
/// Events that are shown; `--json` has the last hundred.
const EVENTS_SHOWN: usize = 20;
/// A peer's name, as far as the table shows it.
pub(super) const NAME_WIDTH: usize = 14;

/// The whole answer as text.
pub(super) fn render(run: &RunId, coordinator: &str, status: &Value) -> String {
    let mut text = String::new();
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    let head = format!(
        "run {run} at {coordinator}: epoch {}, term {}; {} committed, {} aborted, {} evicted, {} kicked",
        number("run_epoch"),
        number("term"),
        number("commits"),
        number("aborts"),
        number("evictions"),
        number("kicks"),
    );
    wrapped(&mut text, &head, 2);
    text.push('\n');
    if status["encryption"] == "off" {
        // Rule 34: whoever looks at a run must see this.
        text.push_str("the data links are NOT encrypted: its peers asked for that with encryption off\n\n");
    }
    if status["key_is_kept"] == false {
        // Rule 39.
        let told = "the coordinator's key is not kept: whoever holds the secret and answers at its address is believed";
        wrapped(&mut text, told, 2);
        text.push('\n');
    }
    if status["reign"].is_object() {
        wrapped(&mut text, &reign_line(&status["reign"]), 2);
        text.push('\n');
    }
    let mut peers: Vec<_> = list(&status["peers"]).iter().collect();
    peers.sort_by_key(|peer| (peer["group"].as_u64(), peer["rank"].as_u64().unwrap_or(u64::MAX)));
    if peers.is_empty() {
        wrapped(&mut text, &nobody(run, status), 2);
    } else {
        let head = ["group", "rank", "name", "peer", "health", "state", "last call", "ago"];
        let rows: Vec<_> = peers.iter().map(|peer| peer_row(peer)).collect();
        columns(&mut text, &head, &rows);
        for peer in peers {
            details(&mut text, peer);
        }
    }
    for group in list(&status["groups"]) {
        wrapped(&mut text, &group_line(group), 2);
    }
    store(&mut text, &status["store"]);
    text.push('\n');
    let waiting = list(&status["waiting"]);
    if waiting.is_empty() {
        text.push_str("nobody waits for anybody\n");
    }
    for sentence in waiting {
        wrapped(&mut text, &word(sentence), 2);
    }
    let events = list(&status["events"]);
    if !events.is_empty() {
        text.push_str("\nlately:\n");
    }
    for event in events.iter().take(EVENTS_SHOWN) {
        let line = format!("  {} ago: {}", seconds(&event["seconds_ago"]), word(&event["text"]));
        wrapped(&mut text, &line, 4);
    }
    doors(&mut text, status);
    text
}

/// Which of several coordinators decides, and who stands by (rule 19).
fn reign_line(reign: &Value) -> String {
    let leader = word(&reign["leader"]);
    let mut line = if leader.is_empty() {
        "no coordinator reigns at the moment: nothing is decided until one is elected".to_owned()
    } else {
        format!("{leader} reigns, term {}", reign["term"].as_u64().unwrap_or(0))
    };
    let _ = write!(line, "; lease {}", seconds(&reign["lease_seconds"]));
    if reign["lease_left_seconds"].is_number() {
        let _ = write!(line, ", renewed in time for {} more", seconds(&reign["lease_left_seconds"]));
    }
    let standbys: Vec<_> = list(&reign["standbys"]).iter().map(word).collect();
    let _ = match standbys.len() {
        0 => write!(line, "; nobody stands by"),
        _ => write!(line, "; standing by: {}", standbys.join(", ")),
    };
    if reign["leads"] == false {
        let _ = write!(line, " (told by {}, which stands by and knows no runs)", word(&reign["address"]));
    }
    line
}

/// The run's store: its view, and what its members hold; nothing if nobody is in it.
fn store(text: &mut String, store: &Value) {
    if store.is_null() {
        return;
    }
    let members = list(&store["members"]);
    let number = |of: &Value, field: &str| of[field].as_u64().unwrap_or(0);
    let (keys, bytes, waits) = (number(store, "keys"), number(store, "bytes"), number(store, "waits"));
    let head = format!(
        "store: view {} of {} members; {keys} keys, {bytes} bytes with copies, {waits} calls wait",
        number(store, "epoch"),
        members.len()
    );
    text.push('\n');
    wrapped(text, &head, 2);
    let change = word(&store["change"]);
    if !change.is_empty() {
        wrapped(text, &format!("  {change}"), 4);
    }
    let row = |member: &Value| {
        let counts = ["keys", "bytes", "waits"].map(|field| number(member, field).to_string());
        let [keys, bytes, waits] = counts;
        let name: String = word(&member["name"]).chars().take(NAME_WIDTH).collect();
        vec![
            word(&member["rank"]),
            name,
            word(&member["address"]),
            word(&member["state"]),
            keys,
            bytes,
            waits,
        ]
    };
    let rows: Vec<_> = members.iter().map(row).collect();
    if !rows.is_empty() {
        columns(text, &["rank", "name", "address", "state", "keys", "bytes", "waits"], &rows);
    }
}

/// Why there is nobody to show: nobody has come, all have gone, or the run was mistyped.
fn nobody(run: &RunId, status: &Value) -> String {
    let others: Vec<_> = list(&status["runs"])
        .iter()
        .filter(|other| other["run_id"] != run.as_str())
        .map(|other| {
            let size = word(&other["world_size"]);
            let peers = if size == "1" { "peer" } else { "peers" };
            format!("{} ({size} {peers})", word(&other["run_id"]))
        })
        .collect();
    let here = if others.is_empty() { String::new() } else { format!("; runs here: {}", others.join(", ")) };
    match status["known"].as_bool() {
        Some(false) => {
            format!("there is no run {run} here: nobody has joined it, or it ended long ago{here}")
        }
        _ => format!("nobody is in this run{here}"),
    }
}

/// Who was told to go, and who was not let in; nothing if nobody was.
pub(super) fn doors(text: &mut String, status: &Value) {
    let kicked = list(&status["kicked"]);
    if !kicked.is_empty() {
        text.push_str("\ntold to go:\n");
    }
    for kick in kicked {
        let (peer, ago) = (word(&kick["peer"]), seconds(&kick["seconds_ago"]));
        let peer: String = peer.chars().take(8).collect();
        wrapped(text, &format!("  {ago} ago, {peer}: {}", word(&kick["text"])), 4);
    }
    let port = &status["port"];
    let Some(refused) = port["refused"].as_object().filter(|refused| !refused.is_empty()) else { return };
    let causes: Vec<_> = refused
        .iter()
        .map(|(cause, count)| format!("{} {count}", printable(cause).replace('_', " ")))
        .collect();
    let number = |field: &str| port[field].as_u64().unwrap_or(0);
    let summary = format!(
        "at the port: {} connections, {} of members, {} closed without a word; refused: {}",
        number("accepted"),
        number("authenticated"),
        number("hung_up"),
        causes.join(", ")
    );
    text.push('\n');
    wrapped(text, &summary, 2);
    for source in list(&port["recent"]) {
        let (ago, times) = (seconds(&source["seconds_ago"]), word(&source["times"]));
        let (from, cause) = (word(&source["source"]), word(&source["cause"]));
        wrapped(text, &format!("  {ago} ago, {from} ({times} times): {cause}"), 4);
    }
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        // Others chose these words, and a terminal obeys what it is shown.
        Value::String(text) => printable(text).into_owned(),
        other => other.to_string(),
    }
}

pub(super) fn seconds(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s"))
}

/// At most that many characters.
pub(super) fn cut(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        Some(_) => text.chars().take(width - 2).chain("..".chars()).collect(),
        None => text.to_owned(),
    }
}

fn peer_row(peer: &Value) -> Vec<String> {
    // Whoever is not admitted has one thing to wait for, whatever its state is called.
    let state = if peer["phase"] == "registered" { &peer["phase"] } else { &peer["state"] };
    let call = word(&peer["last_call"]);
    vec![
        cut(&word(&peer["group"]), 7),
        word(&peer["rank"]),
        cut(&word(&peer["name"]), NAME_WIDTH),
        word(&peer["id"]).chars().take(8).collect(),
        cut(&word(&peer["health"]), 8),
        cut(&word(state), 23),
        // The name of the call; what it was called with is in the sentences below and in --json.
        cut(call.split('(').next().unwrap_or(&call), 14),
        cut(&seconds(&peer["last_call_seconds"]), 8),
    ]
}

/// What else there is to say of a peer; mostly nothing.
fn details(text: &mut String, peer: &Value) {
    let mut parts: Vec<_> = list(&peer["tags"])
        .iter()
        .map(|tag| format!("tag {} {}", word(&tag["tag"]), word(&tag["state"])))
        .collect();
    parts.extend(peer["away_seconds"].as_f64().map(|away| format!("away for {away:.1} s")));
    if !parts.is_empty() {
        wrapped(text, &format!("  {}: {}", cut(&word(&peer["name"]), NAME_WIDTH), parts.join(", ")), 4);
    }
}

/// The ring of a group; of many members the first, and how many more there are.
fn ring(group: &Value) -> String {
    let ring = list(&group["ring"]);
    let mut names: Vec<_> = ring.iter().take(NAMED_MAX).map(word).collect();
    let size = group["world_size"].as_u64().map_or(ring.len(), |size| size as usize);
    if size > names.len() {
        names.push(format!("{} more", size - names.len()));
    }
    names.join(" -> ")
}

fn group_line(group: &Value) -> String {
    let mut line = format!(
        "group {}: epoch {}, {} members, ring {}",
        word(&group["group"]),
        word(&group["epoch"]),
        word(&group["world_size"]),
        ring(group)
    );
    for link in list(&group["broken_links"]) {
        let _ = write!(line, "; {} -> {} is broken", word(&link[0]), word(&link[1]));
    }
    if group["rebuilding"] == true {
        line.push_str("; rebuilding");
    }
    line
}

/// Writes a line, broken between words where it would be too long; what follows is indented. A word that is too long
/// itself is broken, too.
pub(super) fn wrapped(text: &mut String, line: &str, indent: usize) {
    let lead = line.len() - line.trim_start_matches(' ').len();
    let (mut row, mut width) = (" ".repeat(lead), lead);
    let mut is_first = true;
    for word in line.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        let gap = usize::from(!is_first);
        if !is_first && width + gap + word.len() > WIDTH {
            let _ = writeln!(text, "{row}");
            (row, width, is_first) = (" ".repeat(indent), indent, true);
        }
        while width + word.len() > WIDTH {
            let rest = word.split_off(WIDTH - width);
            let _ = writeln!(text, "{row}{}", word.iter().collect::<String>());
            (row, width, word) = (" ".repeat(indent), indent, rest);
        }
        if !is_first {
            row.push(' ');
            width += 1;
        }
        width += word.len();
        row.extend(word);
        is_first = false;
    }
    let _ = writeln!(text, "{}", row.trim_end());
}

/// Every column as wide as its widest cell.
pub(super) fn columns(text: &mut String, head: &[&str], rows: &[Vec<String>]) {
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
        assert!(lines[4].contains("stalled") && lines[4].contains("Idle "), "{text}");
        assert_eq!(lines[5..7], ["  a: tag 7 Perform", "  b: away for 1.2 s"], "{text}");
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
    fn no_line_is_wider_than_a_terminal() {
        let long = "a-very-long-name-".repeat(20);
        let peer = serde_json::json!({
            "id": "b".repeat(32), "name": long, "group": 4_000_000_000_u32, "rank": 1000, "phase": "accepted",
            "state": "ConnectingToPeersFailed", "health": "stalled", "away_seconds": 12_345.0,
            "tags": (0..40).map(|tag| serde_json::json!({"tag": tag, "state": "VoteComplete"})).collect::<Vec<_>>(),
            "last_call": "reduce_scatter(f32[1000000], sum, retry=false, min_world=1)", "last_call_seconds": 123_456.7});
        let status = serde_json::json!({
            "peers": [peer], "waiting": [long.clone() + " waits " + &long], "key_is_kept": false,
            "groups": [{"group": 0, "epoch": 4, "world_size": 40, "ring": vec!["a-name"; 40],
                        "broken_links": [[long, long]], "rebuilding": true}],
            "kicked": [{"peer": "aabbccddeeff", "text": long, "seconds_ago": 2.0}],
        });
        let text = render(&"default".parse().unwrap(), &format!("{}:29400", "host".repeat(30)), &status);
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= WIDTH, "{} columns: {widest}", widest.chars().count());
    }

    #[test]
    fn of_a_long_ring_the_first_are_named_and_the_rest_is_counted() {
        let names: Vec<_> = (0..40).map(|number| format!("p{number}")).collect();
        let line = |ring: &[String]| {
            group_line(&serde_json::json!({"group": 0, "epoch": 4, "world_size": 40, "ring": ring}))
        };
        assert!(line(&names).ends_with(" -> p30 -> p31 -> 8 more"), "{}", line(&names));
        assert!(line(&names[..20]).ends_with(" -> p19 -> 20 more"), "the status told no more");
    }

    #[test]
    fn a_mistyped_run_is_told_from_an_empty_one() {
        let runs =
            serde_json::json!([{"run_id": "training", "world_size": 3}, {"run_id": "eval", "world_size": 1}]);
        let show = |known: bool| {
            let status = serde_json::json!({"known": known, "runs": runs, "peers": []});
            render(&"trainign".parse().unwrap(), "127.0.0.1:1", &status).replace("\n  ", " ")
        };
        assert!(
            show(false).contains("there is no run trainign here: nobody has joined it"),
            "{}",
            show(false)
        );
        assert!(show(false).contains("runs here: training (3 peers), eval (1 peer)"), "{}", show(false));
        assert!(show(true).contains("nobody is in this run; runs here"), "{}", show(true));
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
