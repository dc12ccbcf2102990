//! What is fuzzed: one function for each decoder.
//!
//! Each takes any bytes, must not panic, and says whether the bytes were accepted. What was accepted must
//! survive being written and read again. The functions are shared by the libFuzzer programs beside this file
//! and by an ordinary test that replays the corpus and thousands of mutations of it on a stable compiler
//! (`crates/outlast/tests/fuzz_smoke.rs`).
//!
//! A new decoder gets a function here, a line in [`TARGETS`], a program in `fuzz_targets/` and seeds.

use outlast::security::datagram::{DatagramGuard, Opened};
use outlast::security::tls::run_of_server_name;
use outlast::security::{RunKeys, RunSecret};
use outlast_proto::ballot::sync::{Outcome, Wish};
use outlast_proto::collective::frame::{HEADER_BYTES, Header};
use outlast_proto::id::{BootId, PeerId, RunId};
use outlast_proto::limits::{BLOCK_BYTES_MAX, FRAME_BYTES_MAX, PACKET_BYTES_MAX};
use outlast_proto::rendezvous::State;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::{ToCoordinator, ToPeer};
use outlast_proto::wire::frame::{self, FrameBuffer};
use outlast_proto::wire::hatch::Hatch;
use outlast_proto::wire::hello::{Hello, Versions, negotiate};
use outlast_proto::wire::inspect::{Inspect, Inspected};
use outlast_proto::wire::membership::Packet;
use outlast_proto::wire::register::{FromRegister, ToRegister};
use outlast_proto::wire::store::account::Datagram;
use outlast_proto::wire::store::client::{FromClient, ToClient};
use outlast_proto::wire::store::mesh::{Hop, Letter};
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::{Message, decode, encode};
use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

/// A target: takes any bytes, says whether they were accepted.
pub(crate) type Target = fn(&[u8]) -> bool;

/// Every target by the name of its corpus.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("membership_packet", membership_packet),
    ("hello", hello),
    ("frame", frame),
    ("data_frame", data_frame),
    ("to_coordinator", to_coordinator),
    ("to_peer", to_peer),
    ("sync_wish", sync_wish),
    ("sync_outcome", sync_outcome),
    ("to_register", to_register),
    ("from_register", from_register),
    ("inspect", inspect),
    ("hatch", hatch),
    ("rendezvous_state", rendezvous_state),
    ("store_hop", store_hop),
    ("store_letter", store_letter),
    ("store_views", store_views),
    ("store_client", store_client),
    ("store_datagram", store_datagram),
    ("datagram", datagram),
    ("secret_text", secret_text),
    ("run_id", run_id),
];

/// The secret of the sealed seeds. It is public, and so good for nothing else.
pub(crate) const SEED_SECRET: &str = "outlast-1-a4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dq-3zby4ni";

/// The content of a datagram of the health plane.
pub(crate) fn membership_packet(bytes: &[u8]) -> bool {
    accepted_and_stable::<Packet>(bytes)
}

/// What a member says in a vote of `sync_state`.
pub(crate) fn sync_wish(bytes: &[u8]) -> bool {
    accepted_and_stable::<Wish>(bytes)
}

/// What a group agreed on in such a vote.
pub(crate) fn sync_outcome(bytes: &[u8]) -> bool {
    accepted_and_stable::<Outcome>(bytes)
}

/// A question to a peer about itself, or its answer.
pub(crate) fn inspect(bytes: &[u8]) -> bool {
    accepted_and_stable::<Inspect>(bytes) | accepted_and_stable::<Inspected>(bytes)
}

/// The first message on a stream, and what a peer does with it.
pub(crate) fn hello(bytes: &[u8]) -> bool {
    if let Ok(theirs) = decode::<Hello>(bytes) {
        let ours = Hello { versions: Versions::CURRENT, ..theirs.clone() };
        // An error shows what the other side sent; showing it must work for whatever was sent.
        if let Err(error) = negotiate(&ours, &theirs, theirs.peer) {
            assert!(!error.to_string().is_empty());
        }
    }
    accepted_and_stable::<Hello>(bytes)
}

/// A stream that arrives in pieces. The first byte says how long the pieces are.
pub(crate) fn frame(bytes: &[u8]) -> bool {
    let Some((piece, stream)) = bytes.split_first() else { return false };
    let (mut buffer, mut frames) = (FrameBuffer::new(FRAME_BYTES_MAX), Vec::new());
    for bytes in stream.chunks(usize::from(*piece) + 1) {
        buffer.push(bytes);
        loop {
            match buffer.take() {
                Ok(Some(payload)) => frames.push(payload),
                Ok(None) => break,
                Err(_) => return false,
            }
        }
    }
    let mut again = Vec::new();
    for payload in &frames {
        frame::append(payload, &mut again);
    }
    assert_eq!(again, stream[..stream.len() - buffer.pending()], "the frames are the stream");
    buffer.pending() == 0 && !frames.is_empty()
}

/// The header of a frame on a data link.
pub(crate) fn data_frame(bytes: &[u8]) -> bool {
    let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return false };
    match Header::parse(header) {
        Ok(parsed) => {
            assert_eq!(Header::parse(&parsed.to_bytes()), Ok(parsed), "written and read again");
            assert!(parsed.length as usize <= BLOCK_BYTES_MAX, "no frame announces more than a block");
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// A message on a control connection, from a peer.
pub(crate) fn to_coordinator(bytes: &[u8]) -> bool {
    accepted_and_stable::<ToCoordinator>(bytes)
}

/// A message on a control connection, from the coordinator.
pub(crate) fn to_peer(bytes: &[u8]) -> bool {
    accepted_and_stable::<ToPeer>(bytes)
}

/// What a node says to a register of the coordinator.
pub(crate) fn to_register(bytes: &[u8]) -> bool {
    accepted_and_stable::<ToRegister>(bytes)
}

/// What a register answers.
pub(crate) fn from_register(bytes: &[u8]) -> bool {
    accepted_and_stable::<FromRegister>(bytes)
}

/// The value of a register that a rendezvous is agreed in, whoever wrote it.
pub(crate) fn rendezvous_state(bytes: &[u8]) -> bool {
    if let Err(error) = State::from_bytes(bytes) {
        assert!(!error.to_string().is_empty());
        return false;
    }
    accepted_and_stable::<State>(bytes)
}

/// What two ends of a stream tell each other about a hatch within one host.
pub(crate) fn hatch(bytes: &[u8]) -> bool {
    accepted_and_stable::<Hatch>(bytes)
}

/// A frame on a link of the store.
pub(crate) fn store_hop(bytes: &[u8]) -> bool {
    accepted_and_stable::<Hop>(bytes)
}

/// What one member of the store says to another.
pub(crate) fn store_letter(bytes: &[u8]) -> bool {
    accepted_and_stable::<Letter>(bytes)
}

/// What members of the store and whoever decides on views say to each other.
pub(crate) fn store_views(bytes: &[u8]) -> bool {
    let said = accepted_and_stable::<ToRegistrar>(bytes);
    accepted_and_stable::<FromRegistrar>(bytes) || said
}

/// What clients of the store say and hear.
pub(crate) fn store_client(bytes: &[u8]) -> bool {
    let asked = accepted_and_stable::<FromClient>(bytes);
    accepted_and_stable::<ToClient>(bytes) || asked
}

/// A question about a call that does not end, or an account of one, as it is in a datagram.
pub(crate) fn store_datagram(bytes: &[u8]) -> bool {
    accepted_and_stable::<Datagram>(bytes)
}

/// A datagram that comes to a member which believes nobody yet. Accepted means: it opened.
pub(crate) fn datagram(bytes: &[u8]) -> bool {
    let mut guard = guard(2, 22);
    let opened = guard.open(Instant::ORIGIN, SocketAddr::from((Ipv4Addr::LOCALHOST, 9)), bytes);
    match &opened {
        Opened::Reply(reply) => assert!(reply.len() <= bytes.len(), "an amplifier"),
        Opened::Refused(cause) => assert!(!cause.to_string().is_empty()),
        Opened::Packet { .. } | Opened::Settled(_) => panic!("believed without an echo: {opened:?}"),
    }
    assert_eq!(guard.believed(), 0);
    if bytes.len() <= PACKET_BYTES_MAX {
        let mut sealed = Vec::new();
        self::guard(1, 11).seal(bytes, &mut sealed);
        let opened = guard.open(Instant::ORIGIN, SocketAddr::from((Ipv4Addr::LOCALHOST, 8)), &sealed);
        assert!(
            matches!(opened, Opened::Reply(_)),
            "whatever was sealed opens, and is challenged: {opened:?}"
        );
    }
    matches!(opened, Opened::Reply(_))
}

/// The text of a run secret.
pub(crate) fn secret_text(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    match text.parse::<RunSecret>() {
        Ok(secret) => {
            assert_eq!(secret.to_text(), text.trim(), "a secret has one text");
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// A run id, as text and as the server name of a TLS hello.
pub(crate) fn run_id(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    // Strangers choose this text freely.
    let _ = run_of_server_name(text);
    match text.parse::<RunId>() {
        Ok(run) => {
            assert_eq!(run.as_str(), text);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// A guard under the seeds' secret.
pub(crate) fn guard(peer: u8, boot: u64) -> DatagramGuard {
    static KEYS: OnceLock<Arc<RunKeys>> = OnceLock::new();
    let keys = KEYS.get_or_init(|| {
        let secret: RunSecret = SEED_SECRET.parse().expect("the secret is well formed");
        RunKeys::derive(&secret, &"fuzz".parse().expect("the run id is well formed"))
    });
    DatagramGuard::new(keys.clone(), PeerId::from_bytes([peer; 16]), BootId(boot))
}

fn accepted_and_stable<M: Message + PartialEq + Debug>(bytes: &[u8]) -> bool {
    let Ok(message) = decode::<M>(bytes) else { return false };
    // Bytes from outside need not be the shortest encoding, nor need ours be shorter; near the limit the two
    // may differ by a few bytes, and only our own encoding is bound to fit.
    if bytes.len() <= M::BYTES_MAX / 2 {
        assert_eq!(decode::<M>(&encode(&message)).as_ref(), Ok(&message), "written and read again");
    }
    true
}
