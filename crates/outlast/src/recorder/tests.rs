use super::*;
use outlast_proto::collective::{OpKey, Scope};
use outlast_proto::wire::control::ToCoordinator;
use serde_json::Value;

fn recorder(size: usize) -> Recorder {
    let (name, run) = ("ada".to_owned(), "default".to_owned());
    Recorder::new(Owner { role: "peer", id: Some(PeerId::from_bytes([7; 16])), name, run }, size)
}

fn lines(recorder: &Recorder) -> Vec<Value> {
    let mut text = String::new();
    recorder.describe("a test", &mut text);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn complete(seq: u64) -> ToCoordinator {
    ToCoordinator::Complete { key: OpKey { group: 1, epoch: 2, scope: Scope::Whole, tag: 3, seq } }
}

#[test]
fn what_is_noted_is_told_and_the_oldest_go_first() {
    let recorder = recorder(4);
    for seq in 0..6 {
        recorder.note(&Entry::to_coordinator(What::Sent, &complete(seq)));
    }
    let told = lines(&recorder);
    assert_eq!((told[0]["events"].as_u64(), told[0]["overwritten"].as_u64()), (Some(4), Some(2)));
    assert_eq!((told[0]["name"].as_str(), told[0]["flight"].as_u64()), (Some("ada"), Some(1)));
    let seqs: Vec<_> = told[1..].iter().map(|line| line["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [2, 3, 4, 5]);
    let last = &told[4];
    assert_eq!((last["what"].as_str(), last["name"].as_str()), (Some("sent"), Some("Complete")));
    assert_eq!([1, 2, 3], ["group", "epoch", "tag"].map(|key| last[key].as_u64().unwrap()));
    assert!(last.get("peer").is_none() && last.get("text").is_none(), "{last}");
    let times: Vec<_> = told[1..].iter().map(|line| line["time_us"].as_u64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] > 1_700_000_000_000_000, "{times:?}");
}

#[test]
fn a_long_text_is_cut_between_characters_and_a_peer_keeps_half_its_id() {
    let recorder = recorder(4);
    let text = "ü".repeat(60);
    let peer = PeerId::from_bytes([0xab; 16]);
    recorder.note(
        &Entry::new(What::Link, "a name that is longer than there is room for").with(peer).saying(text),
    );
    let told = lines(&recorder);
    assert_eq!(told[1]["text"].as_str(), Some("ü".repeat(40).as_str()));
    assert_eq!(told[1]["name"].as_str(), Some("a name that is l"));
    assert_eq!(told[1]["peer"].as_str(), Some("abababababababab"));
    assert_eq!(key_of(peer), 0xabab_abab_abab_abab);
}

/// Writers overtake a reader all the time; whatever it calls whole must be one record and no mixture of two.
#[test]
fn a_record_that_changes_while_it_is_read_is_left_out() {
    let recorder = Arc::new(recorder(2));
    let writer = Arc::clone(&recorder);
    let writing = std::thread::spawn(move || {
        for seq in 0..200_000 {
            let key = OpKey { group: 1, epoch: seq, scope: Scope::Whole, tag: seq, seq };
            writer.note(&Entry::to_coordinator(What::Sent, &ToCoordinator::Complete { key }));
        }
    });
    let mut read = 0;
    while !writing.is_finished() {
        for (_, words) in recorder.records() {
            assert!(words[3] == words[4] && words[4] == words[5], "{words:?}");
            read += 1;
        }
    }
    writing.join().unwrap();
    assert!(read > 0 && recorder.records().len() == 2);
}
