//! The driver under stress: engine, control line and whoever drives, over wires of memory, in an order that a seed
//! chooses.
//!
//! A few peers, each with two calls at a time. A call moves its bytes, votes over its line and waits for the verdict; a
//! decider at the other ends of the lines counts votes. Links break; then the decider aborts and everybody tries again.
//! Lines break too, in the middle of a frame or between a vote and its verdict; then a new one is laid, on which the peer
//! votes again and the decider says again what it has decided.
//! Threads are shuttle's, so one seed settles everything: whose turn it is, how many bytes a wire takes, when the user's
//! question is due.
//!
//! What must hold: every attempt that was aborted leaves its memory as it was, every one that was committed has the
//! right sum, and all come to an end. No wait of a call times out here, so a wake-up that is lost is found at once.
//!
//! What is not here: whether a session says the right things on its next line, which is played in `crates/sim`.

mod wire;

use super::Stopped;
use super::abort::Abort;
use super::arithmetic::Arithmetic;
use super::companion::{Accompanied, Beside, Companion};
use super::driver::{Hands, Inbox};
use super::engine::{Command, Engine, Output};
use super::memory::Buffers;
use super::operation::{Operation, Parts};
use super::plane::{DataSettings, Performed};
use super::ticket::{Caller, Ticket, Told};
use super::transport::Moved;
use super::undo::{UndoLog, UndoPool};
use crate::baton::Drive as _;
use crate::baton_explored::baton::{Baton, Drive, Seat};
use crate::baton_explored::{bell, watch};
use crate::bell::Bell;
use crate::communicator::line::Line;
use crate::link::Wire as _;
use crate::sync::{Arc, Mutex, lock};
use outlast_proto::collective::frame::OpName;
use outlast_proto::collective::plan::Plan;
use outlast_proto::collective::{DataType, Fingerprint, OpKey, OpKind, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::limits::FRAME_BYTES_MAX;
use outlast_proto::rng::Rng;
use outlast_proto::wire::frame::{self, FrameBuffer};
use outlast_proto::wire::hello::Version;
use shuttle::scheduler::RandomScheduler;
use shuttle::thread;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};
use wire::MemoryWire;

const SEEDS: u64 = 200;
/// Nothing waits that long.
const FAR: Duration = Duration::from_hours(1);
/// How long a receiver waits for a link that broke before it got anything: the one thing here that real time decides.
const LINK_GRACE: Duration = Duration::from_millis(5);
const TAGS: [u8; 2] = [0, 1];

/// The name of one attempt: tag and number.
type Name = (u8, u8);
type Place = Seat<Driven>;

/// The real hands, in shuttle's world.
struct Driven {
    hands: Hands,
    bell: Arc<bell::Bell>,
    real_bell: Arc<Bell>,
}

impl Drive for Driven {
    fn heed(&mut self) {
        if self.bell.is_ringing() {
            self.bell.answer();
            self.real_bell.ring();
        }
        self.hands.heed();
    }

    fn turn(&mut self) -> bool {
        self.heed();
        self.hands.turn()
    }

    fn wait(&mut self, _: Instant) {
        // Every wire is always ready, so this polls and does not wait; meanwhile it is somebody else's turn.
        thread::yield_now();
        self.hands.wait(Instant::now() + FAR);
    }
}

impl Caller for Place {
    fn notify(&self) {
        Seat::notify(self);
    }
}

/// The attempt that a call waits for, how to end it, and where the call waits.
type Waiting = (u8, Abort, Arc<Place>);

/// What a peer's control side knows: the line, what it said and got no verdict on, the verdicts that came, and who waits
/// for them.
struct Control {
    line: Mutex<Arc<Line>>,
    said: Mutex<BTreeMap<Name, bool>>,
    verdicts: Mutex<BTreeMap<Name, bool>>,
    waiting: Mutex<BTreeMap<u8, Waiting>>,
}

impl Control {
    fn line(&self) -> Arc<Line> {
        Arc::clone(&lock(&self.line))
    }

    fn vote(&self, name: Name, done: bool) {
        // Known before it is said: if the line is another one by then, it is said there.
        lock(&self.said).insert(name, done);
        let line = self.line();
        line.put_frame(&[name.0, name.1, u8::from(done)]);
        line.flush();
    }

    /// The line broke, and this is the next one.
    fn go_on_over(&self, line: Line) {
        *lock(&self.line) = Arc::new(line);
        let said = lock(&self.said).clone();
        said.into_iter().for_each(|(name, done)| self.vote(name, done));
    }
}

impl Companion for Control {
    fn beside(&self) -> Option<Arc<dyn Beside>> {
        Some(self.line() as _)
    }

    fn turn(&self) {
        let line = self.line();
        line.flush_if_due();
        line.receive(|frame| {
            let [tag, number, commit] = frame[..] else { return false };
            lock(&self.said).remove(&(tag, number));
            lock(&self.verdicts).insert((tag, number), commit == 1);
            let waiting = lock(&self.waiting).get(&tag).cloned();
            if let Some((waited_for, abort, seat)) = waiting {
                if waited_for == number && commit == 0 {
                    abort.trigger();
                }
                seat.notify();
            }
            true
        });
    }
}

struct Peer {
    id: PeerId,
    baton: Arc<Baton<Driven>>,
    real_bell: Arc<Bell>,
    inbox: Arc<Inbox>,
    undo: Arc<UndoPool>,
    control: Arc<Control>,
}

impl Peer {
    fn post(&self, command: Command) {
        self.inbox.put(command);
        self.baton.nudge();
    }

    /// One attempt, up to where its verdict is waited for.
    fn perform<'a>(
        &self,
        name: Name,
        tensor: &'a mut [u8],
        abort: &Abort,
        seat: &Arc<Place>,
        members: &[PeerId],
    ) -> Result<Performed<'a>, Stopped> {
        let call = Fingerprint::new(OpKind::AllReduce, DataType::U8, [tensor.len() as u64]);
        let arithmetic = Arithmetic::new(&call, members.len());
        let plan = Plan::new(&call, members, members, self.id, arithmetic.unit()).unwrap();
        let undo =
            UndoLog::new(Buffers::in_place([tensor]).into_region(), plan.block_bytes(), &self.undo).unwrap();
        let (tag, seq) = (name.0.into(), name.1.into());
        let key = OpKey { group: 0, epoch: 1, scope: Scope::Whole, tag, seq };
        let parts = Parts {
            name: OpName::from(&key),
            fingerprint: call.digest(),
            plan,
            arithmetic,
            deadline: Instant::now() + FAR,
            abort: abort.clone(),
            window_bytes: 1 << 20,
            end: None,
        };
        let _listening = abort.listen(&self.real_bell);
        let operation = Box::new(Operation::new(parts, undo, Ticket::new(Arc::<Place>::clone(seat))));
        let claim = operation.ticket.claim();
        self.post(Command::Join(operation));
        match seat.wait(Instant::now() + FAR, || claim.take()).expect("it ends") {
            Told::Over(operation, Ok(())) => Ok(Performed::of(Moved::by(*operation), Instant::now())),
            Told::Over(_, Err(stopped)) => Err(stopped),
            Told::Gone => Err(Stopped::Closed),
        }
    }

    /// One call: as many attempts as it takes.
    fn all_reduce(&self, tag: u8, first: u8, tensor: &mut [u8], members: &[PeerId]) -> u8 {
        let seat = Arc::new(Seat::new(&self.baton));
        let before = tensor.to_vec();
        let mut number = first;
        loop {
            let (name, abort) = ((tag, number), Abort::new());
            lock(&self.control.waiting).insert(tag, (number, abort.clone(), Arc::clone(&seat)));
            if lock(&self.control.verdicts).get(&name) == Some(&false) {
                abort.trigger();
            }
            let performed = self.perform(name, tensor, &abort, &seat, members);
            self.control.vote(name, performed.is_ok());
            let verdict = || lock(&self.control.verdicts).remove(&name);
            let commit = seat.wait(Instant::now() + FAR, verdict).expect("there is a verdict");
            number += 1;
            match performed {
                Ok(performed) if commit => {
                    performed.commit();
                    return number;
                }
                performed => {
                    assert!(!commit, "committed although we said no");
                    drop(performed);
                }
            }
            assert!(tensor == before, "an attempt that was aborted has changed its memory");
        }
    }
}

/// Makes links between peers.
struct Network {
    peers: OnceLock<Vec<Arc<Peer>>>,
    rng: Mutex<Rng>,
    ready: Arc<OwnedFd>,
    breaks_left: AtomicUsize,
}

impl Network {
    fn carry_out(&self, me: usize, outputs: Vec<Output>) {
        let peers = self.peers.get().expect("nobody dials before all are there");
        for output in outputs {
            let Output::Dial { peer, serial, .. } = output else { continue };
            let breaks = self.breaks_left.load(Ordering::SeqCst) > 0 && lock(&self.rng).chance(0.5);
            let breaks_after = breaks.then(|| {
                self.breaks_left.fetch_sub(1, Ordering::SeqCst);
                lock(&self.rng).below(60)
            });
            let [ours, theirs] = wire::pair(&mut lock(&self.rng), &self.ready, breaks_after);
            let other = peers.iter().find(|other| other.id == peer).expect("a member is dialled");
            other.post(Command::Accepted { peer: peers[me].id, wire: Box::new(theirs) });
            peers[me].post(Command::Dialled { peer, serial, result: Ok(Box::new(ours)) });
        }
    }
}

/// The other ends of the lines.
#[derive(Default)]
struct Decider {
    lines: Vec<(MemoryWire, FrameBuffer, Vec<u8>)>,
    votes: BTreeMap<Name, BTreeSet<usize>>,
    decided: BTreeMap<Name, bool>,
}

fn tell(name: Name, commit: bool, outgoing: &mut Vec<u8>) {
    frame::append(&[name.0, name.1, u8::from(commit)], outgoing);
}

impl Decider {
    fn turn(&mut self) {
        for peer in 0..self.lines.len() {
            let (wire, frames, _) = &mut self.lines[peer];
            let mut bytes = [0; 64];
            while let Ok(count @ 1..) = wire.receive(&mut [IoSliceMut::new(&mut bytes)]) {
                frames.push(&bytes[..count]);
            }
            while let Some(frame) = self.lines[peer].1.take().expect("a frame") {
                let [tag, number, done] = frame[..] else { panic!("{frame:?} is no vote") };
                self.vote(peer, (tag, number), done == 1);
            }
        }
        for (wire, _, outgoing) in &mut self.lines {
            while !outgoing.is_empty()
                && let Ok(count) = wire.send(&[IoSlice::new(outgoing)])
            {
                outgoing.drain(..count);
            }
            let _ = wire.flush();
        }
    }

    fn vote(&mut self, peer: usize, name: Name, done: bool) {
        let votes = self.votes.entry(name).or_default();
        votes.insert(peer);
        if (!done || votes.len() == self.lines.len()) && !self.decided.contains_key(&name) {
            self.decided.insert(name, done);
            self.lines.iter_mut().for_each(|(_, _, outgoing)| tell(name, done, outgoing));
        }
    }

    /// A peer comes back on that line: what it missed is not known, so it hears everything again.
    fn hear_again(&mut self, peer: usize, wire: MemoryWire) {
        let mut outgoing = Vec::new();
        self.decided.iter().for_each(|(name, commit)| tell(*name, *commit, &mut outgoing));
        self.lines[peer] = (wire, FrameBuffer::new(FRAME_BYTES_MAX), outgoing);
    }
}

fn peer_id(number: usize) -> PeerId {
    PeerId::from_bytes([number as u8 + 1; 16])
}

fn line(network: &Network, wire: MemoryWire) -> Line {
    let frames = FrameBuffer::new(FRAME_BYTES_MAX);
    Line::over(Arc::clone(&network.ready) as _, Box::new(wire), frames, Version::CURRENT)
}

fn peer(network: &Arc<Network>, index: usize, wire: MemoryWire) -> Arc<Peer> {
    let settings = DataSettings { link_grace: LINK_GRACE, ..DataSettings::default() };
    let engine = Engine::new(peer_id(index), &settings, Arc::new(AtomicUsize::new(settings.window_bytes)));
    let control = Arc::new(Control {
        line: Mutex::new(Arc::new(line(network, wire))),
        said: Mutex::default(),
        verdicts: Mutex::default(),
        waiting: Mutex::default(),
    });
    let place = super::companion::Place::default();
    let companion: Weak<Control> = Arc::downgrade(&control);
    assert!(place.set(companion).is_ok());
    let (real_bell, inbox) = (Arc::new(Bell::new().unwrap()), Arc::<Inbox>::default());
    let (bell, outside) = (Arc::<bell::Bell>::default(), Arc::downgrade(network));
    let carry_out = Box::new(move |outputs| outside.upgrade().unwrap().carry_out(index, outputs));
    let accompanied = Accompanied::by(place, Duration::ZERO);
    let hands = Hands::new(engine, Arc::clone(&inbox), accompanied, Arc::clone(&real_bell), carry_out);
    let driven = Driven { hands, bell: Arc::clone(&bell), real_bell: Arc::clone(&real_bell) };
    let baton = Arc::new(Baton::new(Box::new(driven), bell));
    Arc::new(Peer {
        id: peer_id(index),
        baton,
        real_bell,
        inbox,
        undo: Arc::new(UndoPool::new(1 << 20)),
        control,
    })
}

/// How many lines may still break, and where the next one does, if it does.
struct Breaks(usize);

impl Breaks {
    fn next(&mut self, rng: &mut Rng) -> Option<usize> {
        let breaks = self.0 > 0 && rng.chance(0.5);
        self.0 -= usize::from(breaks);
        breaks.then(|| rng.below(60))
    }
}

/// One small life of a group; how many lines broke in it.
fn play(seed: u64) -> usize {
    let mut rng = Rng::from_seed(seed);
    let (world, calls) = (2 + rng.below(3), 1 + rng.below(2));
    let bytes = 1 + rng.below(2_000);
    let ready = wire::always_ready();
    let network = Arc::new(Network {
        peers: OnceLock::new(),
        rng: Mutex::new(rng.split()),
        ready: Arc::clone(&ready),
        breaks_left: AtomicUsize::new(rng.below(4)),
    });
    let (mut decider, mut breaks, mut broken) = (Decider::default(), Breaks(rng.below(4)), 0);
    let peers: Vec<_> = (0..world)
        .map(|index| {
            let breaks_after = breaks.next(&mut rng);
            let [ours, theirs] = wire::pair(&mut rng, &ready, breaks_after);
            decider.lines.push((theirs, FrameBuffer::new(FRAME_BYTES_MAX), Vec::new()));
            peer(&network, index, ours)
        })
        .collect();
    assert!(network.peers.set(peers.clone()).is_ok());
    let members: Vec<_> = peers.iter().map(|peer| peer.id).collect();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    for peer in &peers {
        let ring = members.iter().map(|member| (*member, nowhere)).collect();
        peer.post(Command::OpenEpoch { group: 0, epoch: 1, ring });
    }
    let left = Arc::new(AtomicUsize::new(world * TAGS.len()));
    let mut threads = Vec::new();
    for (index, peer) in peers.iter().enumerate() {
        for tag in TAGS {
            let (peer, members, left) = (Arc::clone(peer), members.clone(), Arc::clone(&left));
            let is_watched = rng.chance(0.3);
            threads.push(thread::spawn(move || {
                if is_watched {
                    watch::begin();
                }
                let mut number = 0;
                for _ in 0..calls {
                    let mut tensor: Vec<_> =
                        (0..bytes).map(|at| (at as u8 ^ tag).wrapping_add(index as u8)).collect();
                    number = peer.all_reduce(tag, number, &mut tensor, &members);
                    let sum = |at: usize| {
                        let terms =
                            (0..members.len()).map(|index| (at as u8 ^ tag).wrapping_add(index as u8));
                        terms.fold(0_u8, u8::wrapping_add)
                    };
                    assert!(tensor.iter().enumerate().all(|(at, byte)| *byte == sum(at)), "a wrong sum");
                }
                left.fetch_sub(1, Ordering::SeqCst);
            }));
        }
    }
    // The decider, and what stands in for the calls where a line takes no more.
    while left.load(Ordering::SeqCst) > 0 {
        decider.turn();
        for (index, peer) in peers.iter().enumerate() {
            let now = peer.control.line();
            if now.is_over() {
                broken += 1;
                let breaks_after = breaks.next(&mut rng);
                let [ours, theirs] = wire::pair(&mut rng, &ready, breaks_after);
                decider.hear_again(index, theirs);
                peer.control.go_on_over(line(&network, ours));
                peer.baton.nudge();
            } else if now.is_blocked() {
                now.flush();
            }
        }
        thread::yield_now();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for peer in &peers {
        assert!(!peer.baton.is_driven(Duration::ZERO), "somebody kept the baton");
    }
    broken
}

/// Says how to play a failure again.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!(
                "again: OUTLAST_STRESS_SEED={seed} cargo nextest run -p outlast --lib executor::stress"
            );
        }
    }
}

#[test]
fn every_call_ends_well_whatever_the_wires_do_and_whoever_drives() {
    let only = std::env::var("OUTLAST_STRESS_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let broken = Arc::<AtomicUsize>::default();
    for seed in only.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        let _replay = Replay(seed);
        let mut config = shuttle::Config::new();
        config.stack_size = 1 << 20;
        let scheduler = RandomScheduler::new_from_seed(seed, 1);
        let count = Arc::clone(&broken);
        shuttle::Runner::new(scheduler, config).run(move || {
            count.fetch_add(play(seed), Ordering::Relaxed);
        });
    }
    let broken = broken.load(Ordering::Relaxed);
    assert!(only.is_some() || broken > 20, "only {broken} lines broke");
}
