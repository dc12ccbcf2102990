//! The state as bytes, and the settings.

use super::cases::{node, state};
use crate::limits::{HOST_BYTES_MAX, NODE_ADDRESS_BYTES_MAX, REGISTER_BYTES_MAX, RENDEZVOUS_NODES_MAX};
use crate::rendezvous::{Node, Seat, Settings, SettingsError, State, StateError};
use crate::time::Duration;
use crate::wire::InvalidMessage;

#[test]
fn a_state_is_read_as_it_was_written() {
    let state = state(&["round=7", "complete", "participants=a:1,b:0", "wait=c", "spare=d", "roster=b,a"]);
    assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state));
}

#[test]
fn the_largest_state_that_keeps_the_limits_fits() {
    let mut state = State::default();
    for number in 0..RENDEZVOUS_NODES_MAX {
        let host = format!("{number:0>HOST_BYTES_MAX$}");
        let node = Node { host, pid: u32::MAX, local_id: u32::MAX };
        let seat = Seat { rank: number as u32, address: "x".repeat(NODE_ADDRESS_BYTES_MAX) };
        state.roster.push(node.clone());
        state.participants.insert(node, seat);
    }
    let bytes = state.to_bytes();
    assert!(bytes.len() <= REGISTER_BYTES_MAX, "{}", bytes.len());
    assert_eq!(State::from_bytes(&bytes), Ok(state));
}

#[test]
fn one_node_too_many_is_refused() {
    let mut state = State::default();
    for number in 0..=RENDEZVOUS_NODES_MAX {
        state.wait_list.insert(node(&number.to_string()));
    }
    let refused = State::from_bytes(&state.to_bytes());
    assert!(matches!(refused, Err(StateError::Invalid(InvalidMessage::OverLimit { .. }))), "{refused:?}");
}

#[test]
fn a_newer_version_is_refused_by_its_number_whatever_its_shape() {
    let mut bytes = Vec::new();
    let mut encoder = minicbor::Encoder::new(&mut bytes);
    encoder.array(3).unwrap().u16(2).unwrap().str("another").unwrap().bool(true).unwrap();
    assert_eq!(State::from_bytes(&bytes), Err(StateError::Newer { theirs: 2 }));
}

#[test]
fn bytes_of_others_are_refused() {
    for bytes in [&b"\x80\x04\x95 a pickle"[..], b"", b"\xff\xff", b"{}"] {
        assert!(matches!(State::from_bytes(bytes), Err(StateError::Invalid(_))), "{bytes:?}");
    }
}

#[test]
fn two_participants_with_one_rank_are_refused() {
    let state = state(&["complete", "participants=a:0,b:0"]);
    let refused = State::from_bytes(&state.to_bytes());
    assert!(matches!(refused, Err(StateError::Invalid(InvalidMessage::Meaningless { .. }))), "{refused:?}");
}

#[test]
fn settings_with_which_no_round_can_be_are_refused() {
    assert_eq!(Settings::new(1, 4).check(), Ok(()));
    for (min, max) in [(0, 1), (3, 2), (1, RENDEZVOUS_NODES_MAX + 1)] {
        assert_eq!(Settings::new(min, max).check(), Err(SettingsError::Nodes { min, max }));
    }
    let hasty = Settings { keep_alive_interval: Duration::ZERO, ..Settings::new(1, 2) };
    assert!(matches!(hasty.check(), Err(SettingsError::Time { name: "the keep-alive interval", .. })));
    let never = Settings { keep_alive_attempts: 0, ..Settings::new(1, 2) };
    assert!(matches!(never.check(), Err(SettingsError::Time { name: "the lease", .. })));
}
