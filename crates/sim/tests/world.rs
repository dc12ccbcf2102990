//! The world itself: what kernels say, what waits, what is lost, and in which order a stopped process goes on.

use outlast_proto::membership::{ConnectOutcome, ConnectToken, Path};
use outlast_proto::time::{Duration, Instant};
use outlast_sim::world::{
    CLOSED_PORT, Conditions, Direction, Effect, Fault, Firewall, HostId, Node, Output, SOCKET_BUFFER_PACKETS,
    Sender, World,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

const A: HostId = HostId(0);
const B: HostId = HostId(1);

/// What a scripted process saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saw {
    Message(u32),
    Connect(ConnectOutcome),
    Timer,
}

/// A process that does what its script says on its first timer, then ticks, and tells all it sees.
struct Scripted {
    first: Vec<Output<u32, Saw>>,
    due: Instant,
    outputs: VecDeque<Output<u32, Saw>>,
}

impl Node for Scripted {
    type Message = u32;
    type Notice = Saw;

    fn handle_message(&mut self, _: Instant, _: Sender, message: u32) {
        self.outputs.push_back(Output::Notice(Saw::Message(message)));
    }

    fn handle_connect(&mut self, _: Instant, _: ConnectToken, outcome: ConnectOutcome) {
        self.outputs.push_back(Output::Notice(Saw::Connect(outcome)));
    }

    fn handle_leave(&mut self, _: Instant) {}

    fn handle_timeout(&mut self, now: Instant) {
        self.outputs.push_back(Output::Notice(Saw::Timer));
        self.outputs.extend(self.first.drain(..));
        self.due = now + Duration::from_millis(500);
    }

    fn poll_output(&mut self) -> Option<Output<u32, Saw>> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn audit(message: &u32) -> Result<u64, String> {
        Ok(u64::from(*message))
    }
}

/// Two hosts; the first process asks once for what `first` makes, 100 ms after its start.
fn world(first: impl Fn() -> Vec<Output<u32, Saw>> + 'static) -> World<Scripted> {
    let mut world = World::new(1, Conditions::lan(), move |birth| {
        let first = if birth.identity.host == A { first() } else { Vec::new() };
        Scripted { first, due: birth.now + Duration::from_millis(100), outputs: VecDeque::new() }
    });
    world.add_hosts(2);
    world
}

fn connect(to: SocketAddr) -> Output<u32, Saw> {
    Output::Connect { token: ConnectToken(1), to, timeout: Duration::from_millis(300) }
}

fn send(count: u32) -> Vec<Output<u32, Saw>> {
    (0..count).map(|message| Output::Send { to: B.address(), path: Path::Datagram, message }).collect()
}

fn at(ms: u64) -> Instant {
    Instant::ORIGIN + Duration::from_millis(ms)
}

/// What A's connect to B's port came to, after `faults`.
fn outcome(faults: &[Fault]) -> ConnectOutcome {
    let mut world = world(|| vec![connect(B.address())]);
    for fault in faults {
        world.inject(fault);
    }
    world.run_until(at(450));
    let found = world.take_notices().into_iter().find_map(|(_, host, saw)| match saw {
        Saw::Connect(outcome) if host == A => Some(outcome),
        _ => None,
    });
    found.expect("every connect ends by its deadline")
}

#[test]
fn kernels_answer_as_the_design_says() {
    assert_eq!(outcome(&[]), ConnectOutcome::Accepted);
    assert_eq!(outcome(&[Fault::Stall(B)]), ConnectOutcome::Accepted);
    assert_eq!(outcome(&[Fault::Kill(B)]), ConnectOutcome::Refused);
    assert_eq!(outcome(&[Fault::Freeze(B)]), ConnectOutcome::Silent);
    for direction in [Direction::Both, Direction::Inbound, Direction::Outbound] {
        assert_eq!(outcome(&[Fault::CutOff(B, direction)]), ConnectOutcome::Silent, "{direction:?}");
    }
    assert_eq!(outcome(&[Fault::Partition(vec![B])]), ConnectOutcome::Silent);
    assert_eq!(outcome(&[Fault::Firewall(B, Firewall::RejectTcp)]), ConnectOutcome::Refused);
    assert_eq!(outcome(&[Fault::Proxy(B, true), Fault::Kill(B)]), ConnectOutcome::Accepted);
    assert_eq!(outcome(&[Fault::BlockUdp(B)]), ConnectOutcome::Accepted);
    assert_eq!(
        outcome(&[Fault::Kill(B), Fault::Restart { host: B, same_identity: true }]),
        ConnectOutcome::Accepted
    );
}

#[test]
fn a_port_where_nobody_listens_refuses_for_the_living_and_the_stopped() {
    for fault in [Fault::Loss(0.0), Fault::Stall(B)] {
        let mut world = world(|| vec![connect(SocketAddr::new(B.address().ip(), CLOSED_PORT))]);
        world.inject(&fault);
        world.run_until(at(450));
        let saw: Vec<_> = world.take_notices().into_iter().map(|(_, _, saw)| saw).collect();
        assert!(saw.contains(&Saw::Connect(ConnectOutcome::Refused)), "{saw:?}");
    }
}

#[test]
fn a_stopped_process_finds_its_packets_first_and_its_timers_after() {
    let mut world = world(|| send(3));
    world.inject(&Fault::Stall(B));
    world.run_until(at(1_000));
    assert!(world.take_notices().iter().all(|(_, host, _)| *host == A), "a stopped process sees nothing");
    world.inject(&Fault::Resume(B));
    let saw: Vec<_> = world.take_notices().into_iter().filter(|(_, host, _)| *host == B).collect();
    let order: Vec<_> = saw.iter().map(|(_, _, saw)| *saw).collect();
    assert_eq!(order[3], Saw::Timer, "{order:?}");
    assert!(order[..3].iter().all(|saw| matches!(saw, Saw::Message(_))), "{order:?}");
    assert!(saw.iter().all(|(when, _, _)| *when == at(1_000)));
    assert_eq!(world.tally().count(Effect::WaitedForStall), 3);
    assert!(world.tally().count(Effect::LateTimer) > 0);
}

#[test]
fn a_full_socket_drops_what_comes_later() {
    let mut world = world(|| send(300));
    world.inject(&Fault::Stall(B));
    world.run_until(at(1_000));
    assert_eq!(world.tally().count(Effect::LostToFullBuffer), 300 - SOCKET_BUFFER_PACKETS as u64);
}

#[test]
fn a_frozen_host_and_a_dead_process_lose_what_comes() {
    for (fault, effect) in [(Fault::Freeze(B), Effect::LostToFrozen), (Fault::Kill(B), Effect::LostToDead)] {
        let mut world = world(|| send(5));
        world.inject(&fault);
        world.run_until(at(200));
        assert_eq!(world.tally().count(effect), 5, "{fault}");
    }
}

#[test]
fn a_clock_that_leaps_makes_timers_late_at_once() {
    let mut world = world(Vec::new);
    world.run_until(at(110));
    drop(world.take_notices());
    world.inject(&Fault::ClockJump(B, Duration::from_mins(1)));
    world.run_until(at(115));
    let saw: Vec<_> = world.take_notices().into_iter().map(|(_, host, saw)| (host, saw)).collect();
    assert_eq!(saw, [(B, Saw::Timer)]);
}

#[test]
fn streams_keep_their_order_under_loss_and_end_with_their_process() {
    let streamed = || {
        (0..50)
            .map(|message| Output::Send { to: B.address(), path: Path::Stream, message })
            .collect::<Vec<_>>()
    };
    let mut world = world(streamed);
    world.inject(&Fault::Loss(0.2));
    world.run_until(at(20_000));
    let heard = world.take_notices().into_iter().filter_map(|(_, _, saw)| match saw {
        Saw::Message(message) => Some(message),
        _ => None,
    });
    assert_eq!(heard.collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
    assert!(world.tally().count(Effect::LostByChance) > 0);
}
