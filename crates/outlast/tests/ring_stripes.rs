//! One tensor over several streams: as many as help, the same bits, and a link that is as good as each of them.
//!
//! The wires here let each stream have so many bytes per second, as some providers do, and say so to whoever
//! measures. So a second stream helps, and nobody needs another host.

mod support;

use outlast::executor::{DataSettings, LinkEvent, Performed, Stopped};
use outlast::link::{Gauge, Wire};
use outlast_proto::collective::striping::STREAMS_MAX;
use outlast_proto::collective::{DataType, ReduceOp};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::moments::abort_at_random_moments;
use support::{Cluster, PATIENCE, Wrap, contribution_f32, reduce, sum_f32};

/// What a stream may send at once.
const BURST: u64 = 64 << 10;
/// Nobody breaks.
const NEVER: usize = usize::MAX;

/// A stream with a limit of its own.
struct Policed {
    wire: Box<dyn Wire>,
    bytes_per_second: u64,
    since: Instant,
    sent: u64,
    streams: Arc<Streams>,
    counted: bool,
}

/// What all streams of a cluster have in common.
#[derive(Default)]
struct Streams {
    /// How many ever carried more than a few words.
    used: AtomicUsize,
    /// Whoever is the one of this number breaks then.
    breaks: AtomicUsize,
    /// Bytes of all.
    sent: AtomicU64,
    broken: AtomicUsize,
    /// Streams whose other end was closed.
    ended: AtomicUsize,
    /// All streams share one line: more of them gain nothing.
    share_a_line: bool,
}

impl Wire for Policed {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let allowed = self.since.elapsed().as_micros() as u64 * self.bytes_per_second / 1_000_000 + BURST;
        if self.on_the_line() >= allowed {
            // The socket has room, so whoever polls it comes back at once.
            std::thread::sleep(Duration::from_micros(200));
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sent = self.wire.send(pieces)?;
        self.sent += sent as u64;
        self.streams.sent.fetch_add(sent as u64, Ordering::Relaxed);
        if self.sent > 2 * BURST && !self.counted {
            self.counted = true;
            let number = self.streams.used.fetch_add(1, Ordering::SeqCst);
            if number == self.streams.breaks.load(Ordering::SeqCst) {
                self.streams.broken.fetch_add(1, Ordering::SeqCst);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        Ok(sent)
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let bytes = self.wire.receive(pieces)?;
        if bytes == 0 {
            // As TLS says it of a stream that was dropped without a goodbye.
            self.streams.ended.fetch_add(1, Ordering::SeqCst);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wire.flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.wire.descriptor()
    }

    fn wants_checksums(&self) -> bool {
        true
    }

    fn gauge(&self) -> Option<Gauge> {
        // As long as it takes at this speed, and it is not far.
        let busy = Duration::from_micros(self.on_the_line() * 1_000_000 / self.bytes_per_second);
        let (none, waiting) = (Duration::ZERO, 0);
        Some(Gauge { acknowledged: self.sent, busy, held_up: none, round_trip: none, loaded: none, waiting })
    }
}

impl Policed {
    /// Bytes that were sent on the line that this stream has for itself, or shares.
    fn on_the_line(&self) -> u64 {
        if self.streams.share_a_line { self.streams.sent.load(Ordering::Relaxed) } else { self.sent }
    }
}

fn cluster(world: usize, bytes_per_second: u64) -> (Cluster, Arc<Streams>) {
    cluster_of(world, bytes_per_second, Streams::default())
}

fn cluster_of(world: usize, bytes_per_second: u64, streams: Streams) -> (Cluster, Arc<Streams>) {
    let streams = Arc::new(Streams { breaks: AtomicUsize::new(NEVER), ..streams });
    let shared = Arc::clone(&streams);
    let began = Instant::now();
    let wrap: Wrap = Arc::new(move |wire| {
        let streams = Arc::clone(&shared);
        let since = if streams.share_a_line { began } else { Instant::now() };
        Box::new(Policed { wire, bytes_per_second, since, sent: 0, streams, counted: false })
    });
    let settings = DataSettings { window_bytes: 2 << 20, ..DataSettings::default() };
    (Cluster::with(world, settings, &wrap), streams)
}

/// Elements of a tensor that is worth more than one stream.
const COUNT: usize = 1 << 20;

/// One call by all; what each said.
fn call(cluster: &Cluster, seq: u64) -> Vec<Result<(), Stopped>> {
    let world = cluster.members.len();
    let expected = sum_f32(world, COUNT, seq as usize);
    let spec = cluster.spec(0, seq, DataType::F32, ReduceOp::Sum, &[COUNT]);
    cluster.everybody(|number, member| {
        let original = contribution_f32(number, COUNT, seq as usize);
        let mut tensor = original.clone();
        let outcome = reduce(member, &spec, &mut tensor).map(Performed::commit);
        match &outcome {
            Ok(()) => assert!(tensor == expected, "call {seq}, member {number}: wrong values"),
            Err(_) => assert!(tensor == original, "call {seq}, member {number}: memory changed"),
        }
        outcome
    })
}

/// Calls until the cluster uses at least so many streams.
fn call_until_striped(cluster: &Cluster, streams: &Streams, wanted: usize) -> u64 {
    let (deadline, mut seq) = (Instant::now() + PATIENCE, 0);
    while streams.used.load(Ordering::SeqCst) < wanted {
        assert!(Instant::now() < deadline, "only {} streams", streams.used.load(Ordering::SeqCst));
        call(cluster, seq).into_iter().for_each(|outcome| outcome.expect("a sum"));
        seq += 1;
    }
    seq
}

#[test]
fn a_link_that_limits_each_stream_gets_more_of_them() {
    for world in [2, 3] {
        let (cluster, streams) = cluster(world, 40 << 20);
        // One link per member, and one more stream for each.
        let next = call_until_striped(&cluster, &streams, 2 * world);
        for seq in next..next + 4 {
            call(&cluster, seq).into_iter().for_each(|outcome| outcome.expect("a sum"));
        }
        assert!(streams.used.load(Ordering::SeqCst) <= world * usize::from(STREAMS_MAX));
    }
}

#[test]
fn streams_that_gain_nothing_are_closed_and_break_nothing() {
    let shared = Streams { share_a_line: true, ..Streams::default() };
    let (cluster, streams) = cluster_of(2, 80 << 20, shared);
    let (deadline, mut seq) = (Instant::now() + PATIENCE, 0);
    while streams.ended.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "no stream was closed of {}", streams.used.load(Ordering::SeqCst));
        call(&cluster, seq).into_iter().for_each(|outcome| outcome.expect("a sum"));
        seq += 1;
    }
    assert!(streams.used.load(Ordering::SeqCst) > 2, "no more streams were tried");
    for seq in seq..seq + 6 {
        call(&cluster, seq).into_iter().for_each(|outcome| outcome.expect("a sum"));
    }
    for member in &cluster.members {
        let events = member.events.lock().unwrap();
        let broken = events.iter().find(|event| matches!(event, LinkEvent::Down { .. }));
        assert!(broken.is_none(), "{broken:?}");
    }
}

#[test]
fn links_within_a_host_are_left_as_they_are() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let wrap: Wrap = Arc::new(move |wire| {
        count.fetch_add(1, Ordering::SeqCst);
        wire
    });
    let cluster = Cluster::with(2, DataSettings::default(), &wrap);
    for seq in 0..20 {
        call(&cluster, seq).into_iter().for_each(|outcome| outcome.expect("a sum"));
    }
    assert_eq!(opened.load(Ordering::SeqCst), 4, "two ends of two links");
}

#[test]
fn a_stream_that_breaks_in_the_middle_breaks_the_link_and_nothing_else() {
    let (cluster, streams) = cluster(2, 40 << 20);
    // The third stream that is used is the second one of a link, and breaks in the middle of a call.
    streams.breaks.store(2, Ordering::SeqCst);
    let deadline = Instant::now() + PATIENCE;
    let mut seq = 0;
    let failed = loop {
        assert!(Instant::now() < deadline, "no stream broke");
        // Who is not next to the broken link waits for a verdict, and there is none here: an end is made.
        let outcomes = call_with_verdict(&cluster, seq);
        seq += 1;
        if outcomes.iter().any(Result::is_err) {
            break outcomes;
        }
    };
    assert_eq!(streams.broken.load(Ordering::SeqCst), 1);
    let said = |outcome: &Result<(), Stopped>| matches!(outcome, Err(Stopped::LinkBroken(broken)) if broken.error.contains("stream"));
    assert!(failed.iter().any(said), "{failed:?}");
    for _ in 0..12 {
        call(&cluster, seq).into_iter().for_each(|outcome| outcome.expect("the link is made again"));
        seq += 1;
    }
}

/// One call in which the first who stops ends it for all, as a verdict does.
fn call_with_verdict(cluster: &Cluster, seq: u64) -> Vec<Result<(), Stopped>> {
    use outlast::executor::{Abort, Buffers};
    let world = cluster.members.len();
    let expected = sum_f32(world, COUNT, seq as usize);
    let spec = cluster.spec(0, seq, DataType::F32, ReduceOp::Sum, &[COUNT]);
    let abort = Abort::new();
    let original = |number: usize| contribution_f32(number, COUNT, seq as usize);
    let mut tensors: Vec<_> = (0..world).map(original).collect();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = cluster
            .members
            .iter()
            .zip(&mut tensors)
            .map(|(member, tensor)| {
                let (spec, abort) = (&spec, abort.clone());
                scope.spawn(move || {
                    let buffers = Buffers::in_place([support::bytes_of_mut(tensor)]);
                    let performed = member.plane.perform(spec, buffers, &abort);
                    if performed.is_err() {
                        abort.trigger();
                    }
                    performed
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a member")).collect()
    });
    let commits = outcomes.iter().all(Result::is_ok);
    let ends = outcomes
        .into_iter()
        .map(|outcome| outcome.map(|performed| if commits { performed.commit() } else { performed.undo() }));
    let ends: Vec<_> = ends.collect();
    for (number, tensor) in tensors.iter().enumerate() {
        assert!(*tensor == if commits { expected.clone() } else { original(number) }, "call {seq}, {number}");
    }
    ends
}

#[test]
fn aborts_at_any_moment_leave_memory_alone_and_striped_links_usable() {
    let (cluster, streams) = cluster(2, 60 << 20);
    call_until_striped(&cluster, &streams, 4);
    abort_at_random_moments(&cluster, COUNT, 12);
    assert!(streams.sent.load(Ordering::Relaxed) > 0);
}
