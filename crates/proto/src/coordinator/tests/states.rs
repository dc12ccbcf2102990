//! Where a peer stands, as `status` says it.

use super::bench::*;
use crate::ballot::sync::{self, Wish};
use crate::coordinator::ConnectionState;
use crate::coordinator::peers::Phase;
use crate::state::Digest;
use crate::state::election::{Healed, Offer, Strategy};

/// Phase, state and what is legal next, of that peer.
fn standing(bench: &Bench, number: u8) -> (String, String, String) {
    let status: serde_json::Value = serde_json::from_str(&bench.run.status(bench.now).to_json()).unwrap();
    let is_it = |peer: &&serde_json::Value| peer["id"] == id(number).to_string();
    let peer = status["peers"].as_array().unwrap().iter().find(is_it).expect("it is listed");
    let word = |field: &str| peer[field].as_str().unwrap().to_owned();
    let tags = peer["tags"].as_array().unwrap().iter();
    let tags = tags.map(|tag| format!(" {}:{}", tag["tag"], tag["state"].as_str().unwrap()));
    (word("phase"), word("state") + &tags.collect::<String>(), word("next"))
}

fn state(bench: &Bench, number: u8) -> String {
    standing(bench, number).1
}

#[test]
fn a_peer_is_followed_by_name_from_its_registration_to_a_verdict_and_a_loss() {
    let mut bench = Bench::new();
    bench.register(1, 0, 2);
    let (phase, word, next) = standing(&bench, 1);
    assert_eq!(
        (&*phase, &*word, &*next),
        ("registered", "VoteAcceptNewPeers", "wait to be admitted, or leave")
    );
    bench.register(2, 0, 2);
    let (phase, word, next) = standing(&bench, 1);
    assert_eq!((&*phase, &*word), ("accepted", "ConnectingToPeers"));
    assert_eq!(next, "any call; it waits for the links");
    bench.confirm(&[1, 2], 1);
    assert_eq!((state(&bench, 1), standing(&bench, 1).2), ("Idle".to_owned(), "any call".to_owned()));
    bench.say(1, initiate(key(1, 7, 0)));
    assert_eq!([1, 2].map(|number| state(&bench, number)), ["CollectivesRunning 7:VoteInitiate", "Idle"]);
    bench.say(2, initiate(key(1, 7, 0)));
    bench.say(1, initiate(key(1, 8, 0)));
    assert_eq!(state(&bench, 1), "CollectivesRunning 7:Perform 8:VoteInitiate");
    bench.say(1, ToCoordinator::Complete { key: key(1, 7, 0) });
    assert_eq!(state(&bench, 1), "CollectivesRunning 7:VoteComplete 8:VoteInitiate");
    assert_eq!(state(&bench, 2), "CollectivesRunning 7:Perform");
    let json = bench.run.status(bench.now).to_json();
    assert!(json.contains(r#""state":"VoteComplete","age_seconds""#), "as far as the first: {json}");
    bench.say(2, ToCoordinator::Leave { for_good: true });
    assert_eq!(state(&bench, 1), "Reconnecting", "an epoch without newcomers");
}

#[test]
fn a_ring_that_cannot_be_made_is_said_by_name() {
    let mut bench = Bench::of(&[1, 2]);
    for (from, to) in [(1, 2), (2, 1)] {
        let epoch = bench.run.groups[0].epoch;
        let (from, to, error) = (id(from), id(to), "no route".to_owned());
        let broken = ToCoordinator::LinkBroken { group: 0, epoch, from, to, dialling: true, error };
        bench.say(if from == id(1) { 1 } else { 2 }, broken);
        bench.wait(ms(200));
    }
    assert_eq!(state(&bench, 1), "ConnectingToPeersFailed");
    assert_eq!(standing(&bench, 1).2, "any call; it waits until a broken link carries again");
}

#[test]
fn a_sync_is_followed_by_name_through_both_turns_to_its_failure() {
    let mut bench = Bench::of(&[1, 2]);
    let root = Digest::of(b"contents");
    let (strategy, outline) = (Strategy::Popular, Digest::of(b"outline"));
    let offer = Offer { revision: Some(3), strategy, outline, root, was_agreed: true };
    let vote = |number, wish: &Wish| {
        let ballot = BallotId { kind: sync::KIND, number };
        ToCoordinator::Vote { ballot, wish: wish.encode() }
    };
    let states = |bench: &Bench| [1, 2].map(|number| state(bench, number));
    bench.say(1, vote(1, &Wish::Offer(offer, None)));
    assert_eq!(states(&bench), ["VoteSyncState", "Idle"]);
    bench.say(2, vote(1, &Wish::Offer(offer, None)));
    assert_eq!(states(&bench), ["SyncingState", "SyncingState"], "both know who gives and who takes");
    bench.say(1, vote(2, &Wish::Healing(root, 1, 2)));
    assert_eq!(state(&bench, 1), "SyncingState");
    bench.say(1, vote(2, &Wish::Done(root, Healed::default())));
    assert_eq!(state(&bench, 1), "VoteSyncComplete");
    bench.say(2, vote(2, &Wish::Failed(root, "its donor is gone".to_owned())));
    assert_eq!(states(&bench), ["SyncFailed", "SyncFailed"]);
    assert_eq!(standing(&bench, 1).2, "retry sync_state");
}

#[test]
fn what_only_members_may_do_is_refused_to_a_registered_peer_in_these_words() {
    for message in [initiate(key(1, 0, 0)), ToCoordinator::Connected { group: 0, epoch: 1 }] {
        let mut bench = Bench::of(&[1, 2]);
        bench.register(3, 0, 1);
        bench.say(3, message);
        let (reason, text) = bench.kicked(3).expect("it is told");
        assert_eq!(reason, KickReason::Breach);
        let words =
            "while it is registered (VoteAcceptNewPeers): legal next is to wait to be admitted, or leave";
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn every_state_of_the_design_has_its_name_and_says_what_is_legal_next() {
    use ConnectionState::*;
    let states = [
        (Idle, "Idle"),
        (VoteAcceptNewPeers, "VoteAcceptNewPeers"),
        (Reconnecting, "Reconnecting"),
        (ConnectingToPeers, "ConnectingToPeers"),
        (ConnectingToPeersFailed, "ConnectingToPeersFailed"),
        (VoteOptimizeTopology, "VoteOptimizeTopology"),
        (OptimizeTopology, "OptimizeTopology"),
        (OptimizeTopologyFailed, "OptimizeTopologyFailed"),
        (VoteSyncState, "VoteSyncState"),
        (SyncingState, "SyncingState"),
        (VoteSyncComplete, "VoteSyncComplete"),
        (SyncFailed, "SyncFailed"),
        (CollectivesRunning, "CollectivesRunning"),
    ];
    for (state, name) in states {
        assert_eq!(state.name(), name);
        assert!(!state.legal_next(Phase::Accepted).is_empty());
        let failed = name.ends_with("Failed") && name != "ConnectingToPeersFailed";
        let says_retry = state.legal_next(Phase::Accepted).starts_with("retry ");
        assert_eq!(failed, says_retry, "{name}: a failed step has one legal next action, and says so");
    }
}
