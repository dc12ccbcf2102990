//! Two ends of a link: on one host, and with somebody in between.

use super::*;
use crate::port::{Port, Routes, Serving};
use crate::security::{ProcessKey, RunKeys, RunSecret};
use outlast_proto::id::RunId;
use outlast_proto::wire::frame;
use outlast_proto::wire::store::ClientId;
use rustix::net::AddressFamily;
use std::io::IoSlice;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

const ME: MemberId = MemberId(3);
const OTHER: MemberId = MemberId(4);

fn identity(secret: &RunSecret) -> TlsIdentity {
    TlsIdentity::derived(&RunKeys::derive(secret, &run()), &ProcessKey::generate())
}

fn run() -> RunId {
    "default".parse().unwrap()
}

/// A member that takes links, where it listens, and what becomes of them.
struct Listening {
    address: SocketAddr,
    taken: mpsc::UnboundedReceiver<Result<Linked, String>>,
    _serving: (Port, Serving),
}

fn listening(secret: &RunSecret) -> Listening {
    let port = Port::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (tell, taken) = mpsc::unbounded_channel();
    let us = identity(secret);
    let me = us.peer();
    let routes = Routes::new().route(port::STORE, move |stream| {
        let tell = tell.clone();
        tokio::spawn(async move { drop(tell.send(Box::pin(accept(stream, me)).await)) });
    });
    let serving = port.serve(&Handle::current(), us, routes).unwrap();
    Listening { address: port.address(), taken, _serving: (port, serving) }
}

fn member_at(address: SocketAddr) -> StoreMember {
    StoreMember {
        id: OTHER,
        peer: PeerId::from_bytes([0; 16]),
        client: ClientId(4),
        rank: 0,
        address,
        closed_port: 0,
        name: "other".to_owned(),
        host: 0,
        ends_store: false,
    }
}

fn greeting_of_ours() -> Hop {
    Hop::Greeting { from: ME, to: OTHER, received: 0, count: 1, others_count: 0 }
}

fn is_within_the_host(linked: &Linked) -> bool {
    let address = rustix::net::getsockname(linked.wire.descriptor()).unwrap();
    address.address_family() == AddressFamily::UNIX
}

/// Dials, greets, and returns both ends.
async fn linked(secret: &RunSecret, at: SocketAddr, listening: &mut Listening) -> (Linked, Linked) {
    let mut ours = dial(&identity(secret), ME, member_at(at)).await.unwrap();
    let mut bytes = Vec::new();
    frame::append_message(&greeting_of_ours(), &mut bytes);
    assert_eq!(ours.wire.send(&[IoSlice::new(&bytes)]).unwrap(), bytes.len());
    ours.wire.flush().unwrap();
    let theirs = listening.taken.recv().await.unwrap().unwrap();
    assert_eq!((theirs.other, theirs.to, theirs.first.clone()), (ME, OTHER, Some(greeting_of_ours())));
    (ours, theirs)
}

#[tokio::test]
async fn within_a_host_a_link_leaves_its_stream() {
    let secret = RunSecret::generate();
    let mut listening = listening(&secret);
    let address = listening.address;
    let (ours, theirs) = linked(&secret, address, &mut listening).await;
    assert!(is_within_the_host(&ours) && is_within_the_host(&theirs));
    assert!(!ours.wire.wants_checksums());
}

/// Whoever put something between two members wants what they say to pass it.
#[tokio::test]
async fn behind_a_relay_a_link_stays_on_its_stream() {
    let secret = RunSecret::generate();
    let mut listening = listening(&secret);
    let target = listening.address;
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = relay.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut here, _) = relay.accept().await.unwrap();
        let mut there = TcpStream::connect(target).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
    });
    let (ours, theirs) = linked(&secret, address, &mut listening).await;
    assert!(!is_within_the_host(&ours) && !is_within_the_host(&theirs));
}

/// Somebody who proved itself, and then does not keep to the order of words.
#[tokio::test]
async fn who_answers_what_nobody_asked_is_not_taken() {
    let secret = RunSecret::generate();
    let mut listening = listening(&secret);
    for wrong in [Hatch::Through, Hatch::Stays] {
        let us = identity(&secret);
        let stream = port::connect(listening.address, port::STORE, &us, TIMEOUT).await.unwrap();
        let mut greeted = port::greet(stream, us.peer(), TIMEOUT).await.unwrap();
        greeted.frames.send(&encode(&wrong)).await.unwrap();
        let refused = listening.taken.recv().await.unwrap();
        assert_eq!(refused.err().as_deref(), Some("it answers what nobody asked"));
    }
}

/// A hatch that nobody opened, or that was shut meanwhile: both go on over the stream.
#[tokio::test]
async fn a_hatch_that_leads_nowhere_is_said_and_the_stream_is_kept() {
    let secret = RunSecret::generate();
    let mut listening = listening(&secret);
    let us = identity(&secret);
    let stream = port::connect(listening.address, port::STORE, &us, TIMEOUT).await.unwrap();
    let mut greeted = port::greet(stream, us.peer(), TIMEOUT).await.unwrap();
    let (from, to) = (local_address(greeted.frames.stream()).unwrap(), greeted.address);
    let nowhere = Hatch::Open { name: [9; 16].into(), proof: [9; 32].into(), from, to };
    greeted.frames.send(&encode(&nowhere)).await.unwrap();
    assert_eq!(said(&mut greeted.frames).await, Ok(Hatch::Stays));
    greeted.frames.send(&encode(&greeting_of_ours())).await.unwrap();
    let theirs = listening.taken.recv().await.unwrap().unwrap();
    assert!(!is_within_the_host(&theirs));
}

/// A dialler that opens a hatch, and what it is told.
async fn invited(secret: &RunSecret, listening: &Listening) -> (Greeted, OpenHatch) {
    let us = identity(secret);
    let stream = port::connect(listening.address, port::STORE, &us, TIMEOUT).await.unwrap();
    let mut greeted = port::greet(stream, us.peer(), TIMEOUT).await.unwrap();
    let hatch = OpenHatch::open().unwrap();
    let from = local_address(greeted.frames.stream()).unwrap();
    greeted.frames.send(&encode(&hatch.invitation(from, greeted.address))).await.unwrap();
    assert_eq!(said(&mut greeted.frames).await, Ok(Hatch::Through));
    (greeted, hatch)
}

/// It has no descriptors left, say. The link was lost, and dialled again the same way for ever.
#[tokio::test]
async fn who_cannot_take_what_was_brought_says_so_and_both_stay() {
    let secret = RunSecret::generate();
    let mut listening = listening(&secret);
    let (mut greeted, hatch) = invited(&secret, &listening).await;
    drop(hatch);
    let said = [encode(&Hatch::Stays), encode(&greeting_of_ours())];
    greeted.frames.send_all(said.iter().map(Vec::as_slice)).await.unwrap();
    let theirs = listening.taken.recv().await.unwrap().unwrap();
    assert!(!is_within_the_host(&theirs));
    assert_eq!(theirs.first, Some(greeting_of_ours()));
}

/// A name that is free again can be taken by somebody else: only who proved itself on the stream can say that it was there.
#[tokio::test]
async fn nobody_talks_to_a_hatch_whose_opener_does_not_say_on_the_stream_that_it_has_the_guest() {
    let secret = RunSecret::generate();
    let mut listening = listening(&secret);
    let (greeted, hatch) = invited(&secret, &listening).await;
    // The false one has the guest's proof and its pair; whoever invited is gone.
    let mut false_one = Frames::new(
        hatch
            .admit()
            .unwrap()
            .convert(|stream| {
                stream.set_nonblocking(true)?;
                tokio::net::UnixStream::from_std(stream)
            })
            .unwrap(),
        FRAME_BYTES_MAX,
    );
    drop(greeted);
    let _ = false_one.send(&encode(&greeting_of_ours())).await;
    assert!(listening.taken.recv().await.unwrap().is_err());
}
