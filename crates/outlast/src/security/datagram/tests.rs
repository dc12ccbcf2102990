//! Two guards and a network in the reader's hands.

use super::*;
use crate::security::RunSecret;
use outlast_proto::limits::PACKET_BYTES_MAX;

const A_ADDRESS: &str = "192.0.2.1:1000";
const B_ADDRESS: &str = "192.0.2.2:2000";

/// Guards of one run on one clock.
struct World {
    keys: Arc<RunKeys>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let keys = RunKeys::derive(&RunSecret::generate(), &"run".parse().unwrap());
        Self { keys, now: Instant::ORIGIN + Duration::from_secs(1_000) }
    }

    fn guard(&self, peer: u8, boot: u64) -> DatagramGuard {
        DatagramGuard::new(self.keys.clone(), PeerId::from_bytes([peer; 16]), BootId(boot))
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn seal(&self, by: &mut DatagramGuard, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        by.seal_at(self.now.since(Instant::ORIGIN), text, &mut out);
        out
    }

    fn open(&self, by: &mut DatagramGuard, from: &str, datagram: &[u8]) -> Opened {
        by.open_at(self.now, self.now.since(Instant::ORIGIN), from.parse().unwrap(), datagram)
    }

    /// Carries `datagram` from `a` to `b` and the replies to and fro; the packets that the two received.
    fn carry(&self, a: &mut DatagramGuard, b: &mut DatagramGuard, datagram: Vec<u8>) -> Vec<Vec<u8>> {
        let (mut packets, mut travelling, mut to_b) = (Vec::new(), Some(datagram), true);
        for _ in 0..8 {
            let Some(datagram) = travelling.take() else { return packets };
            let opened =
                if to_b { self.open(b, A_ADDRESS, &datagram) } else { self.open(a, B_ADDRESS, &datagram) };
            match opened {
                Opened::Packet { plaintext, reply, .. } => {
                    packets.push(plaintext);
                    travelling = reply;
                }
                Opened::Reply(reply) => travelling = Some(reply),
                Opened::Settled(_) => {}
                Opened::Refused(cause) => panic!("refused: {cause}"),
            }
            to_b = !to_b;
        }
        panic!("the two keep answering each other");
    }

    /// Two guards that believe each other.
    fn pair(&self) -> (DatagramGuard, DatagramGuard) {
        let (mut a, mut b) = (self.guard(1, 11), self.guard(2, 22));
        let hello = self.seal(&mut a, b"hello");
        assert_eq!(self.carry(&mut a, &mut b, hello), [b"hello"]);
        (a, b)
    }
}

fn packet(sender: u8, text: &[u8]) -> Opened {
    Opened::Packet { sender: PeerId::from_bytes([sender; 16]), plaintext: text.to_vec(), reply: None }
}

fn reply(opened: Opened) -> Vec<u8> {
    match opened {
        Opened::Reply(reply) => reply,
        other => panic!("not a reply: {other:?}"),
    }
}

#[test]
fn the_first_packet_arrives_after_the_echo_and_both_sides_believe() {
    let world = World::new();
    let (mut a, mut b) = world.pair();
    assert_eq!((a.believed(), b.believed(), b.stashed()), (1, 1, 0));
    for text in [&b"again"[..], b"", &[9; PACKET_BYTES_MAX]] {
        let datagram = world.seal(&mut a, text);
        assert_eq!(world.open(&mut b, A_ADDRESS, &datagram), packet(1, text));
        let datagram = world.seal(&mut b, text);
        assert_eq!(world.open(&mut a, B_ADDRESS, &datagram), packet(2, text));
    }
    assert_eq!(b.counters().refused_total(), 0);
    assert_eq!((b.counters().challenges_sent, b.counters().echoes_sent), (1, 1));
}

#[test]
fn a_copy_is_refused_and_a_swapped_pair_is_not() {
    let world = World::new();
    let (mut a, mut b) = world.pair();
    let (first, second) = (world.seal(&mut a, b"1"), world.seal(&mut a, b"2"));
    assert_eq!(world.open(&mut b, A_ADDRESS, &second), packet(1, b"2"));
    assert_eq!(world.open(&mut b, A_ADDRESS, &first), packet(1, b"1"));
    for copy in [&first, &second] {
        assert_eq!(world.open(&mut b, A_ADDRESS, copy), Opened::Refused(RefusedDatagram::Replayed));
    }
    assert_eq!(b.counters().refused(RefusedDatagram::Replayed), 2);
}

#[test]
fn a_recorded_boot_is_not_believed_by_a_newcomer() {
    let world = World::new();
    let (mut a, mut b) = world.pair();
    let recorded: Vec<_> = (0..50).map(|_| world.seal(&mut a, b"I live")).collect();
    drop(a);
    let mut newcomer = world.guard(3, 33);
    for datagram in &recorded {
        // The challenge goes nowhere: nobody holds boot 11 any more. Another member cannot answer it either.
        let challenge = reply(world.open(&mut newcomer, A_ADDRESS, datagram));
        assert_eq!(world.open(&mut b, B_ADDRESS, &challenge), Opened::Refused(RefusedDatagram::Unauthentic));
    }
    assert_eq!((newcomer.believed(), newcomer.stashed(), newcomer.counters().accepted), (0, 1, 0));
}

#[test]
fn a_restarted_peer_is_believed_after_its_echo_and_its_old_boot_is_refused() {
    let world = World::new();
    let (mut old, mut b) = world.pair();
    let recorded = world.seal(&mut old, b"from the old boot");
    let mut new = world.guard(1, 12);
    let hello = world.seal(&mut new, b"back");
    // Until the echo, the old boot is the believed one.
    let challenge = reply(world.open(&mut b, A_ADDRESS, &hello));
    let early = world.seal(&mut old, b"still here");
    assert_eq!(world.open(&mut b, A_ADDRESS, &early), packet(1, b"still here"));
    let echo = reply(world.open(&mut new, B_ADDRESS, &challenge));
    assert!(
        matches!(world.open(&mut b, A_ADDRESS, &echo), Opened::Packet { plaintext, .. } if plaintext == b"back")
    );
    assert_eq!(world.open(&mut b, A_ADDRESS, &recorded), Opened::Refused(RefusedDatagram::RetiredBoot));
    assert_eq!((b.believed(), b.counters().boots_retired), (1, 1));
}

#[test]
fn an_echo_is_good_for_one_boot_one_address_and_a_few_seconds() {
    let mut world = World::new();
    let (mut a, mut b) = (world.guard(1, 11), world.guard(2, 22));
    let hello = world.seal(&mut a, b"hello");
    let challenge = reply(world.open(&mut b, A_ADDRESS, &hello));
    // From another address.
    let echo = reply(world.open(&mut a, B_ADDRESS, &challenge));
    assert_eq!(world.open(&mut b, "192.0.2.9:1000", &echo), Opened::Refused(RefusedDatagram::StaleNonce));
    // To another member.
    let mut c = world.guard(3, 33);
    assert_eq!(world.open(&mut c, A_ADDRESS, &echo), Opened::Refused(RefusedDatagram::Unauthentic));
    // Too late.
    world.pass(11);
    assert_eq!(world.open(&mut b, A_ADDRESS, &echo), Opened::Refused(RefusedDatagram::StaleNonce));
    assert_eq!((b.believed(), b.counters().accepted), (0, 0));
}

#[test]
fn what_was_sealed_before_the_echo_is_not_taken_after_it() {
    let world = World::new();
    let (mut a, mut b) = (world.guard(1, 11), world.guard(2, 22));
    let before = world.seal(&mut a, b"meant for somebody else, a while ago");
    let hello = world.seal(&mut a, b"hello");
    assert_eq!(world.carry(&mut a, &mut b, hello), [b"hello"]);
    assert_eq!(world.open(&mut b, A_ADDRESS, &before), Opened::Refused(RefusedDatagram::Replayed));
}

#[test]
fn an_old_packet_of_a_living_boot_is_not_delivered_with_its_echo() {
    let mut world = World::new();
    let (mut a, mut b) = (world.guard(1, 11), world.guard(2, 22));
    let old = world.seal(&mut a, b"an hour ago, to somebody else");
    world.pass(3_600);
    assert!(world.carry(&mut a, &mut b, old).is_empty());
    assert_eq!((b.believed(), b.stashed(), b.counters().stash_dropped), (1, 0, 1));
}

#[test]
fn a_datagram_that_was_held_back_is_refused_and_the_living_answer_the_challenge() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let held: Vec<_> = (0..3).map(|_| world.seal(&mut a, b"held back")).collect();
    world.pass(11);
    // A is dead by now: its held datagrams have no effect, and the challenge is asked once a second at most.
    let challenge = reply(world.open(&mut b, A_ADDRESS, &held[0]));
    assert_eq!(world.open(&mut b, A_ADDRESS, &held[1]), Opened::Refused(RefusedDatagram::Late));
    assert_eq!(b.counters().refused(RefusedDatagram::Late), 2);
    // A is not dead after all; what it says now is on time and needs no handshake.
    let now = world.seal(&mut a, b"now");
    assert_eq!(world.open(&mut b, A_ADDRESS, &now), packet(1, b"now"));
    let echo = reply(world.open(&mut a, B_ADDRESS, &challenge));
    assert_eq!(world.open(&mut b, A_ADDRESS, &echo), Opened::Settled(PeerId::from_bytes([1; 16])));
    assert_eq!(world.open(&mut b, A_ADDRESS, &held[2]), Opened::Refused(RefusedDatagram::Late));
}

#[test]
fn a_sender_whose_clock_stood_still_is_heard_again_after_one_echo() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let suspended_for = Duration::from_mins(1);
    world.pass(60);
    let a_clock = |world: &World| (world.now - suspended_for).since(Instant::ORIGIN);
    let mut late = Vec::new();
    a.seal_at(a_clock(&world), b"lost", &mut late);
    let challenge = reply(world.open(&mut b, A_ADDRESS, &late));
    let echo = reply(a.open_at(world.now, a_clock(&world), B_ADDRESS.parse().unwrap(), &challenge));
    assert_eq!(world.open(&mut b, A_ADDRESS, &echo), Opened::Settled(PeerId::from_bytes([1; 16])));
    let mut datagram = Vec::new();
    a.seal_at(a_clock(&world), b"heard", &mut datagram);
    assert_eq!(world.open(&mut b, A_ADDRESS, &datagram), packet(1, b"heard"));
}

#[test]
fn our_own_words_come_back_in_vain() {
    let world = World::new();
    let (mut a, _) = world.pair();
    let datagram = world.seal(&mut a, b"echo?");
    assert_eq!(world.open(&mut a, B_ADDRESS, &datagram), Opened::Refused(RefusedDatagram::OwnName));
}

#[test]
fn other_secrets_and_other_runs_are_refused() {
    let secret = RunSecret::generate();
    let keys = |secret: &RunSecret, run: &str| RunKeys::derive(secret, &run.parse().unwrap());
    let world = World { keys: keys(&secret, "run"), now: Instant::ORIGIN };
    let mut b = world.guard(2, 22);
    for foreign in [keys(&RunSecret::generate(), "run"), keys(&secret, "other-run")] {
        let mut a = DatagramGuard::new(foreign, PeerId::from_bytes([1; 16]), BootId(11));
        let datagram = world.seal(&mut a, b"let me in");
        assert_eq!(world.open(&mut b, A_ADDRESS, &datagram), Opened::Refused(RefusedDatagram::Unauthentic));
    }
    assert_eq!((b.believed(), b.stashed(), b.counters().challenges_sent), (0, 0, 0));
}

#[test]
fn no_answer_is_longer_than_what_it_answers() {
    let world = World::new();
    let (mut a, mut b) = (world.guard(1, 11), world.guard(2, 22));
    let hello = world.seal(&mut a, b"");
    let challenge = reply(world.open(&mut b, A_ADDRESS, &hello));
    let echo = reply(world.open(&mut a, B_ADDRESS, &challenge));
    assert!(challenge.len() <= hello.len() && echo.len() <= challenge.len());
}

#[test]
fn a_burst_before_the_handshake_ends_in_belief_and_silence() {
    let world = World::new();
    let (mut a, mut b) = (world.guard(1, 11), world.guard(2, 22));
    let burst: Vec<_> = (0..5u8).map(|n| world.seal(&mut a, &[n])).collect();
    let challenges: Vec<_> =
        burst.iter().map(|datagram| reply(world.open(&mut b, A_ADDRESS, datagram))).collect();
    let echoes: Vec<_> =
        challenges.iter().map(|datagram| reply(world.open(&mut a, B_ADDRESS, datagram))).collect();
    let (mut packets, mut replies) = (Vec::new(), Vec::new());
    for echo in &echoes {
        match world.open(&mut b, A_ADDRESS, echo) {
            Opened::Packet { plaintext, reply, .. } => {
                packets.push(plaintext);
                replies.extend(reply);
            }
            other => replies.push(reply(other)),
        }
    }
    assert_eq!(packets, [[4]], "the last packet was kept");
    for datagram in &replies {
        assert_eq!(world.open(&mut a, B_ADDRESS, datagram), Opened::Settled(PeerId::from_bytes([2; 16])));
    }
    assert_eq!((a.believed(), b.believed(), b.counters().refused_total()), (1, 1, 0));
}

#[test]
fn the_longest_silent_sender_makes_room() {
    let mut world = World::new();
    let mut hub = world.guard(0xff, 1);
    hub.believed_max = 3;
    for peer in 1..=5 {
        world.pass(1);
        let mut guard = world.guard(peer, 1);
        let hello = world.seal(&mut guard, b"hello");
        world.carry(&mut guard, &mut hub, hello);
    }
    assert_eq!((hub.believed(), hub.counters().senders_evicted), (3, 2));
    assert!(!hub.believed.contains_key(&PeerId::from_bytes([2; 16])));
    assert!(hub.believed.contains_key(&PeerId::from_bytes([3; 16])));
}

#[test]
fn the_stash_is_bounded() {
    let world = World::new();
    let mut b = world.guard(2, 22);
    for boot in 0..1_000 {
        let datagram = world.seal(&mut world.guard(1, boot), b"recorded");
        reply(world.open(&mut b, A_ADDRESS, &datagram));
    }
    assert_eq!((b.stashed(), b.believed()), (stash::STASH_MAX, 0));
}

#[test]
#[should_panic(expected = "the limit is")]
fn an_oversized_packet_is_our_own_bug() {
    let world = World::new();
    world.seal(&mut world.guard(1, 1), &[0; PACKET_BYTES_MAX + 1]);
}

#[test]
fn a_guard_may_live_on_a_thread_of_its_own() {
    fn can_move<T: Send + 'static>() {}
    can_move::<DatagramGuard>();
}
