use super::super::{chrome, stuck, words};
use super::*;
use serde_json::json;
use std::fmt::Write as _;

/// A file of one actor, with these events, each a time in milliseconds and fields.
fn file(header: &Value, events: &[(i64, Value)]) -> String {
    let mut text = format!("{header}\n");
    for (number, (time, fields)) in events.iter().enumerate() {
        let mut fields = fields.clone();
        fields["time_us"] = json!(time * 1_000);
        fields["number"] = json!(number + 1);
        let _ = writeln!(text, "{fields}");
    }
    text
}

fn peer(name: &str, digit: char) -> Value {
    let id = digit.to_string().repeat(32);
    json!({"flight": 1, "role": "peer", "name": name, "id": id, "pid": 1, "host": "h", "time_us": 9_000_000})
}

fn coordinator() -> Value {
    let names = json!({"0000000000000001": "default", "aaaaaaaaaaaaaaaa": "ada", "bbbbbbbbbbbbbbbb": "bob"});
    json!({"flight": 1, "role": "coordinator", "name": "coordinator", "pid": 2, "host": "h", "names": names})
}

fn at(what: &str, name: &str, seq: u64, from: Option<char>) -> Value {
    let mut fields = json!({"what": what, "name": name, "group": 0, "epoch": 1, "tag": 0, "seq": seq});
    if let Some(digit) = from {
        fields["peer"] = json!(digit.to_string().repeat(16));
    }
    fields
}

fn merged(files: &[String]) -> Flight {
    let mut flight = Flight::default();
    for file in files {
        flight.add(file).unwrap();
    }
    flight.align();
    flight
}

#[test]
fn a_clock_that_is_possible_is_believed_and_one_that_is_not_is_moved_to_the_middle() {
    let clerk = [
        (1_000, at("heard", "Complete", 1, Some('a'))),
        (1_010, at("heard", "Complete", 1, Some('b'))),
        (1_020, at("sent", "Commit", 1, None)),
    ];
    // Bob's clock is five seconds behind.
    let ada = [(999, at("sent", "Complete", 1, None)), (1_021, at("heard", "Commit", 1, None))];
    let bob = [(-3_994, at("sent", "Complete", 1, None)), (-3_976, at("heard", "Commit", 1, None))];
    let files = [file(&peer("bob", 'b'), &bob), file(&coordinator(), &clerk), file(&peer("ada", 'a'), &ada)];
    let flight = merged(&files);
    let moved: Vec<_> = flight.actors.iter().map(|actor| (actor.label.as_str(), actor.moved_us)).collect();
    assert_eq!(moved, [("bob bbbbbbbb", 5_000_000), ("coordinator", 0), ("ada aaaaaaaa", 0)]);
    let order: Vec<_> = flight.events.iter().map(|event| (event.actor, event.text("what"))).collect();
    let expected =
        [(2, "sent"), (1, "heard"), (0, "sent"), (1, "heard"), (1, "sent"), (2, "heard"), (0, "heard")];
    assert_eq!(order, expected, "nothing is heard before it was sent");
}

#[test]
fn without_a_coordinator_verdicts_tell_that_a_clock_is_off() {
    let verdicts = |offset: i64| -> Vec<_> {
        (0..5).map(|seq| (offset + 100 * seq, at("heard", "Commit", seq.try_into().unwrap(), None))).collect()
    };
    let files = [file(&peer("ada", 'a'), &verdicts(0)), file(&peer("bob", 'b'), &verdicts(-60_000))];
    assert_eq!(merged(&files).actors[1].moved_us, 60_000_000);
    let close = [file(&peer("ada", 'a'), &verdicts(0)), file(&peer("bob", 'b'), &verdicts(7))];
    assert_eq!(merged(&close).actors[1].moved_us, 0, "a network may explain that");
}

#[test]
fn two_dumps_of_one_process_are_one() {
    let events = [(1, at("sent", "Complete", 1, None)), (2, at("sent", "Complete", 2, None))];
    let files = [file(&peer("ada", 'a'), &events[..1]), file(&peer("ada", 'a'), &events)];
    let flight = merged(&files);
    assert_eq!((flight.actors.len(), flight.events.len()), (1, 2));
}

#[test]
fn a_file_that_is_none_is_refused_in_words() {
    let refuse = |text: &str| format!("{:#}", Flight::default().add(text).unwrap_err());
    assert_eq!(refuse(""), "it is empty");
    assert!(refuse("{\"a\":1}\n").contains("does not say whose it is"));
    assert!(refuse("{\"flight\":1}\nhello\n").contains("line 2 is not JSON"));
    assert!(refuse("{\"flight\":1}\n{}\n").contains("line 2 has no time_us"));
}

/// Ada has made the call and waits for Bob, who has not.
fn stuck_files() -> [String; 2] {
    let call = |what: &str, name: &str| json!({"what": what, "name": name, "subject": 4});
    let mut perform = at("ordered", "perform", 2, None);
    perform["subject"] = json!(4);
    let ada = [(1, call("called", "all_reduce")), (2, at("sent", "Initiate", 2, None)), (3, perform)];
    let clerk = [
        (0, at("heard", "Complete", 1, Some('a'))),
        (0, at("heard", "Complete", 1, Some('b'))),
        (3, at("heard", "Initiate", 2, Some('a'))),
    ];
    [file(&peer("ada", 'a'), &ada), file(&coordinator(), &clerk)]
}

#[test]
fn a_call_that_is_not_over_says_whom_it_waits_for() {
    let flight = merged(&stuck_files());
    let open = stuck::open_calls(&flight);
    assert_eq!(open.len(), 1);
    assert_eq!((open[0].stage, &open[0].waits_for[..]), ("moves bytes", &["bob bbbbbbbb".to_owned()][..]));
    let text = words::text(&flight, &open);
    let last = text.lines().last().unwrap();
    assert_eq!(last, "ada aaaaaaaa is in all_reduce for 8.999 s: moves bytes; not heard of: bob bbbbbbbb");
    let lines = words::json_lines(&flight, &open);
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(last["open"]["waits_for"][0], "bob bbbbbbbb");
}

#[test]
fn a_trace_has_slices_with_lengths_names_and_arrows() {
    let flight = merged(&stuck_files());
    let trace = chrome::trace(&flight, &stuck::open_calls(&flight));
    let events = trace["traceEvents"].as_array().unwrap();
    for event in events {
        let phase = event["ph"].as_str().unwrap();
        assert!(event["pid"].is_u64() && event["tid"].is_u64() && event["name"].is_string(), "{event}");
        match phase {
            "X" => assert!(event["ts"].is_i64() && event["dur"].as_i64() > Some(0), "{event}"),
            "s" | "f" => assert!(event["id"].is_u64() && event["ts"].is_i64(), "{event}"),
            "M" => assert!(event["args"]["name"].is_string(), "{event}"),
            other => panic!("{other} in {event}"),
        }
    }
    let count = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    assert_eq!((count("s"), count("f")), (1, 1), "one message is in both records");
    let open = events.iter().find(|event| event["name"].as_str().unwrap().contains("not over"));
    assert!(open.unwrap()["name"].as_str().unwrap().starts_with("all_reduce"), "{open:?}");
}
