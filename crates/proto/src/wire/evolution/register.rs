//! Samples of what a register hears and says, and of the state of a rendezvous in it.

use crate::rendezvous::{Node, Seat, State, Wish};
use crate::wire::encode;
use crate::wire::register::{Fate, FromRegister, Snapshot, ToRegister, Token};
use minicbor::bytes::ByteVec;
use std::collections::BTreeMap;

pub(super) fn snapshot() -> Snapshot {
    let alive = ["host-1_7_0".to_owned(), "host-2_9_1".to_owned()];
    Snapshot {
        value: Some(b"value".to_vec()),
        token: Token { era: 1, revision: 5 },
        alive: alive.into_iter().collect(),
        notes: BTreeMap::new(),
    }
}

fn noted() -> Snapshot {
    let note = ("host-2_9_1".to_owned(), encode(&wishes().remove(0)).into());
    Snapshot { notes: BTreeMap::from([note]), ..snapshot() }
}

pub(super) fn wishes() -> Vec<Wish> {
    let node = Node { host: "host-2".to_owned(), pid: 9, local_id: 1 };
    let wish = |after| Wish { node: node.clone(), after, address: "host-2:29400".to_owned() };
    vec![wish(Some(3)), wish(None)]
}

pub(super) fn to_register() -> Vec<ToRegister> {
    let note: Option<ByteVec> = Some(encode(&wishes().remove(0)).into());
    let opened = |brought, note| ToRegister::Open {
        register: "rendezvous".to_owned(),
        holder: "host-1_7_0".to_owned(),
        lease_ms: 15_000,
        brought,
        note,
    };
    vec![
        opened(Some(snapshot()), None),
        opened(None, None),
        ToRegister::Read,
        ToRegister::Write { expected: Token { era: 1, revision: 5 }, value: b"next".to_vec() },
        ToRegister::Beat { lease_ms: 15_000, note: None },
        ToRegister::Release,
        opened(Some(noted()), note.clone()),
        ToRegister::Beat { lease_ms: 15_000, note },
    ]
}

pub(super) fn fates() -> Vec<Fate> {
    vec![Fate::Accepted, Fate::Lost, Fate::Lapsed]
}

pub(super) fn from_register() -> Vec<FromRegister> {
    let nothing = Snapshot::default();
    vec![
        FromRegister::Told(snapshot()),
        FromRegister::Told(nothing),
        FromRegister::Written(Fate::Lost, snapshot()),
        FromRegister::Beaten,
        FromRegister::Refused("too many".to_owned()),
        FromRegister::Told(noted()),
    ]
}

pub(super) fn states() -> Vec<State> {
    let [one, two, three] =
        [1, 2, 3].map(|number| Node { host: format!("host-{number}"), pid: 7, local_id: 0 });
    let mut state = State::default();
    state.round = 4;
    state.complete = true;
    state.calls = 1;
    state.participants.insert(one.clone(), Seat { rank: 0, address: "host-1:29400".to_owned() });
    state.wait_list.insert(two.clone());
    state.redundancy_list.insert(three);
    state.roster = vec![one, two];
    vec![state, State::default()]
}
