//! Lanes over in-memory pipes: who gets which packet, and what stays bounded.

use super::*;
use outlast_proto::limits::{FRAME_BYTES_MAX, PACKET_BYTES_MAX};
use outlast_proto::wire::membership::Body;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{DuplexStream, duplex};

const SOON: Duration = Duration::from_secs(5);

fn peer(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn packet(probe: u64) -> Packet {
    Packet { body: Some(Body::Ack { probe }), records: Vec::new() }
}

/// Where dialling panics.
const PANICS: u16 = 13;

/// Gives out one prepared stream, then refuses; counts.
struct OneStream {
    stream: Mutex<Option<DuplexStream>>,
    dials: Arc<AtomicUsize>,
}

impl Dialler for OneStream {
    type Stream = DuplexStream;
    async fn dial(&self, to: SocketAddr) -> io::Result<(PeerId, Frames<DuplexStream>)> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        assert!(to.port() != PANICS, "on purpose");
        let stream = self.stream.lock().unwrap().take().ok_or(io::ErrorKind::ConnectionRefused)?;
        Ok((peer(7), frames(stream)))
    }
}

fn frames(stream: DuplexStream) -> Frames<DuplexStream> {
    Frames::new(stream, FRAME_BYTES_MAX)
}

/// Streams that can dial `stream` once, and the count of dials.
fn streams(stream: Option<DuplexStream>) -> (Arc<Streams<OneStream>>, Arc<Shared>, Arc<AtomicUsize>) {
    let shared = Arc::new(Shared::new().unwrap());
    let dials = Arc::new(AtomicUsize::new(0));
    let dialler = OneStream { stream: Mutex::new(stream), dials: Arc::clone(&dials) };
    (Streams::new(Arc::clone(&shared), Handle::current(), dialler), shared, dials)
}

/// Waits until the mailbox holds a letter.
async fn letter(shared: &Shared) -> Letter {
    let wait = async {
        loop {
            if let Some(letter) = shared.take_letters().pop_front() {
                return letter;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.expect("a letter arrives")
}

async fn read_packet(stream: &mut Frames<DuplexStream>) -> Packet {
    let frame = tokio::time::timeout(SOON, stream.next()).await.expect("a frame arrives");
    wire::decode(&frame.unwrap().expect("the lane is open")).unwrap()
}

#[tokio::test]
async fn a_packet_dials_once_and_the_answer_comes_back_the_same_way() {
    let (ours, theirs) = duplex(4_096);
    let mut theirs = frames(theirs);
    let (streams, shared, dials) = streams(Some(ours));
    assert!(streams.send(address(1), None, wire::encode(&packet(1))));
    assert!(streams.send(address(1), None, wire::encode(&packet(2))));
    assert_eq!(read_packet(&mut theirs).await, packet(1));
    assert_eq!(read_packet(&mut theirs).await, packet(2));
    theirs.send(&wire::encode(&packet(3))).await.unwrap();
    let Letter::Packet(source, answer) = letter(&shared).await else { panic!("a packet") };
    assert_eq!((source.id, source.address, source.path), (peer(7), address(1), Path::Stream));
    assert_eq!(answer, packet(3));
    // By now the peer is known, so its lane is found whatever address is named.
    assert!(streams.send(address(99), Some(peer(7)), wire::encode(&packet(4))));
    assert_eq!(read_packet(&mut theirs).await, packet(4));
    assert_eq!(dials.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_answer_to_a_lane_that_was_dialled_to_us_needs_no_dial() {
    let (streams, shared, dials) = streams(None);
    let (ours, theirs) = duplex(4_096);
    let mut theirs = frames(theirs);
    let lane = tokio::spawn(Arc::clone(&streams).serve(peer(5), address(50_000), frames(ours)));
    theirs.send(&wire::encode(&packet(1))).await.unwrap();
    assert!(matches!(letter(&shared).await, Letter::Packet(source, _) if source.id == peer(5)));
    assert!(streams.send(address(50_000), Some(peer(5)), wire::encode(&packet(2))));
    assert_eq!(read_packet(&mut theirs).await, packet(2));
    assert_eq!(dials.load(Ordering::Relaxed), 0);
    drop(theirs);
    tokio::time::timeout(SOON, lane).await.unwrap().unwrap();
    assert!(streams.lanes().open.is_empty());
}

#[tokio::test]
async fn an_address_that_refuses_is_left_alone_for_a_while() {
    let (streams, _, dials) = streams(None);
    assert!(streams.send(address(1), None, wire::encode(&packet(1))));
    let wait = async {
        while !streams.lanes().paused.contains_key(&address(1)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.expect("the dial fails");
    assert!(!streams.send(address(1), None, wire::encode(&packet(2))));
    assert_eq!(dials.load(Ordering::Relaxed), 1);
}

/// Its place among the dials was never given back, and nobody dialled there again.
#[tokio::test]
async fn an_address_over_which_a_dial_panics_is_left_alone_for_a_while_only() {
    let (streams, _, _) = streams(None);
    assert!(streams.send(address(PANICS), None, wire::encode(&packet(1))));
    let wait = async {
        while !streams.lanes().paused.contains_key(&address(PANICS)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.expect("the dial is over");
    assert!(streams.lanes().dialling.is_empty());
}

#[tokio::test]
async fn a_frame_that_is_too_long_or_no_packet_ends_the_lane() {
    let (streams, shared, _) = streams(None);
    for frame in [vec![0xff; 20], vec![0; PACKET_BYTES_MAX + 1]] {
        let (ours, theirs) = duplex(4_096);
        let lane = tokio::spawn(Arc::clone(&streams).serve(peer(5), address(2), frames(ours)));
        frames(theirs).send(&frame).await.unwrap();
        tokio::time::timeout(SOON, lane).await.expect("the lane ends").unwrap();
        assert!(shared.take_letters().is_empty());
    }
}

#[tokio::test]
async fn queues_are_bounded() {
    let (ours, _theirs) = duplex(16);
    let (streams, _, _) = streams(Some(ours));
    let taken = (0..10 * QUEUE_MAX as u64)
        .filter(|probe| streams.send(address(1), None, wire::encode(&packet(*probe))))
        .count();
    assert!((QUEUE_MAX..2 * QUEUE_MAX).contains(&taken), "{taken}");
}

#[tokio::test]
async fn closing_sends_what_is_queued_and_ends_every_lane() {
    let (ours, theirs) = duplex(4_096);
    let mut theirs = frames(theirs);
    let (streams, _, _) = streams(Some(ours));
    assert!(streams.send(address(1), None, wire::encode(&packet(1))));
    assert_eq!(read_packet(&mut theirs).await, packet(1));
    assert!(streams.send(address(1), Some(peer(7)), wire::encode(&packet(2))));
    streams.close();
    assert_eq!(read_packet(&mut theirs).await, packet(2));
    assert!(tokio::time::timeout(SOON, theirs.next()).await.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn two_that_dial_each_other_at_once_keep_both_lanes() {
    let (ours, theirs) = duplex(4_096);
    let (mut first, (again, second)) = (frames(theirs), duplex(4_096));
    let (streams, shared, _) = streams(Some(ours));
    assert!(streams.send(address(1), None, wire::encode(&packet(1))));
    assert_eq!(read_packet(&mut first).await, packet(1));
    let lane = tokio::spawn(Arc::clone(&streams).serve(peer(7), address(2), frames(again)));
    let mut second = frames(second);
    second.send(&wire::encode(&packet(2))).await.unwrap();
    letter(&shared).await;
    // The newer lane is used from now on, and the older one is still listened to.
    assert!(streams.send(address(1), Some(peer(7)), wire::encode(&packet(3))));
    assert_eq!(read_packet(&mut second).await, packet(3));
    first.send(&wire::encode(&packet(4))).await.unwrap();
    assert!(matches!(letter(&shared).await, Letter::Packet(_, last) if last == packet(4)));
    lane.abort();
}
