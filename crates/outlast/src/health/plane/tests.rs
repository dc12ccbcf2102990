//! One turn at a time, against a peer that the test plays itself.

use super::*;
use crate::port::Frames;
use crate::runtime;
use crate::security::{RunKeys, RunSecret, fresh_boot_id, fresh_peer_id};
use outlast_proto::membership::{Config, Preset};
use outlast_proto::rng::Rng;
use outlast_proto::wire::membership::{Body, MemberInfo};
use std::net::UdpSocket;

const SOON: Duration = Duration::from_secs(5);

/// There are no streams in these tests.
struct Nowhere;

impl Dialler for Nowhere {
    type Stream = tokio::io::DuplexStream;
    async fn dial(&self, _to: SocketAddr) -> io::Result<(PeerId, Frames<Self::Stream>)> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The other member: a socket, a seal, and whatever the test lets it say.
struct Peer {
    socket: UdpSocket,
    guard: DatagramGuard,
}

impl Peer {
    /// Reads what is here and shakes hands; returns the numbers of the pings among it.
    fn read_pings(&mut self) -> Vec<u64> {
        let (mut pings, mut buffer) = (Vec::new(), [0; 2_000]);
        while let Ok((length, from)) = self.socket.recv_from(&mut buffer) {
            let (plaintext, reply) = match self.guard.open(clock::now(), from, &buffer[..length]) {
                Opened::Packet { plaintext, reply, .. } => (Some(plaintext), reply),
                Opened::Reply(reply) => (None, Some(reply)),
                Opened::Settled(_) | Opened::Refused(_) => (None, None),
            };
            if let Some(reply) = reply {
                self.socket.send_to(&reply, from).unwrap();
            }
            if let Some(Body::Ping { probe, .. }) =
                plaintext.and_then(|bytes| wire::decode::<Packet>(&bytes).unwrap().body)
            {
                pings.push(probe);
            }
        }
        pings
    }

    fn ack(&mut self, probe: u64, to: SocketAddr) {
        let packet = Packet { body: Some(Body::Ack { probe }), records: Vec::new() };
        let mut datagram = Vec::new();
        self.guard.seal(&wire::encode(&packet), &mut datagram);
        self.socket.send_to(&datagram, to).unwrap();
    }
}

/// A plane that knows one peer and has exchanged a ping with it.
fn pair() -> (Plane<Nowhere>, Peer) {
    let keys = RunKeys::derive(&RunSecret::generate(), &"test".parse().unwrap());
    let (port, other) = (Port::bind("127.0.0.1:0".parse().unwrap()).unwrap(), fresh_peer_id());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    port.udp().set_nonblocking(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    let info =
        |id, address, closed_port| MemberInfo { id, address, closed_port, name: String::new(), meta: vec![] };
    let me = info(fresh_peer_id(), port.address(), port.closed_port());
    let them = info(other, socket.local_addr().unwrap(), 1);
    let config = Config {
        probe_interval: Duration::from_millis(60),
        probe_timeout: Duration::from_millis(20),
        ..Config::preset(Preset::Local)
    };
    let guard = DatagramGuard::new(Arc::clone(&keys), me.id, fresh_boot_id());
    let peer = Peer { socket, guard: DatagramGuard::new(keys, other, fresh_boot_id()) };
    let mut machine = Membership::new(clock::now(), config, me, Rng::from_seed(1));
    machine.seed_table(&[Arc::new(them)]);
    let shared = Arc::new(Shared::new().unwrap());
    let streams = Streams::new(Arc::clone(&shared), runtime::of(runtime::Plane::Health).unwrap(), Nowhere);
    (Plane::new(machine, port, guard, streams, shared, Arc::default()), peer)
}

/// Turns until the peer has been pinged, answering nothing.
fn turn_until_pinged(plane: &mut Plane<Nowhere>, peer: &mut Peer) -> u64 {
    let deadline = clock::now() + SOON;
    loop {
        assert!(clock::now() < deadline, "no ping");
        let woken = plane.wait();
        plane.turn(&woken);
        if let Some(probe) = peer.read_pings().pop() {
            return probe;
        }
    }
}

#[test]
fn an_ack_that_is_here_counts_although_its_timer_has_run_out() {
    let (mut plane, mut peer) = pair();
    let address = plane.port.address();
    for round in 0..20 {
        let probe = turn_until_pinged(&mut plane, &mut peer);
        peer.ack(probe, address);
        let asked = plane.shared.tally.connects.load(Ordering::Relaxed);
        // The ack lies in the socket, and the timer that would escalate is due: a thread that woke late.
        let due = plane.machine.poll_timeout().unwrap();
        while clock::now() < due + Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        plane.turn(&Woken { socket: true, connects: Vec::new() });
        let connects = plane.shared.tally.connects.load(Ordering::Relaxed);
        // The first rounds also shake hands, and what is lost in them may escalate.
        assert!(round < 3 || connects == asked, "asked the kernel of a peer whose answer was here");
    }
    assert!(plane.machine.active(clock::now()).iter().any(|member| member.round_trip.is_some()));
}

#[test]
fn a_flood_does_not_keep_the_timers_waiting() {
    let (mut plane, _peer) = pair();
    plane.drain_max = 16;
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..100 {
        stranger.send_to(&[7; 10], plane.port.address()).unwrap();
    }
    let due = plane.machine.poll_timeout().unwrap();
    while clock::now() < due {
        std::thread::sleep(Duration::from_millis(1));
    }
    plane.turn(&Woken { socket: true, connects: Vec::new() });
    let received = || plane.shared.tally.packets_received.load(Ordering::Relaxed);
    assert_eq!(received(), 16, "one turn reads a bounded number");
    assert!(plane.machine.poll_timeout().unwrap() > due, "the timer was not looked at");
    // What is left is read without waiting for more to come.
    while !plane.drained {
        let woken = plane.wait();
        plane.turn(&woken);
    }
    assert!(plane.shared.tally.refused.load(Ordering::Relaxed) >= 100);
}

#[test]
fn a_goodbye_is_said_three_times_and_then_the_plane_is_done() {
    let (mut plane, mut peer) = pair();
    let probe = turn_until_pinged(&mut plane, &mut peer);
    peer.ack(probe, plane.port.address());
    plane.shared.post(Letter::Leave(clock::now() + SOON));
    let (deadline, before) = (clock::now() + SOON, plane.shared.tally.packets_sent.load(Ordering::Relaxed));
    while !plane.finished() {
        assert!(clock::now() < deadline, "the goodbye does not end");
        let woken = plane.wait();
        plane.turn(&woken);
    }
    let sent = plane.shared.tally.packets_sent.load(Ordering::Relaxed) - before;
    assert!((3..=4).contains(&sent), "{sent} packets: three goodbyes and at most one ping before them");
    assert!(plane.machine.poll_action().is_none());
}
