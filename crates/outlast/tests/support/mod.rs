//! A group of data planes in one process, connected by real sockets on loopback.
#![allow(dead_code, reason = "each test binary uses its part of this page")]

pub(crate) mod moments;

use outlast::executor::{Abort, Buffers, DataPlane, DataSettings, LinkEvent, OpSpec, Performed, Stopped};
use outlast::fork::Guarded;
use outlast::link::{Dial, PlainDialer, TcpSettings, TcpWire, Wire, read_plain_hello};
use outlast_proto::collective::{Attempt, DataType, Fingerprint, OpKey, OpKind, ReduceOp, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::wire::control::Decider;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long any single thing may take in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn peer(number: usize) -> PeerId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(number as u64 + 1).to_be_bytes());
    PeerId::from_bytes(bytes)
}

/// Puts something between the executor and the socket.
pub(crate) type Wrap = Arc<dyn Fn(Box<dyn Wire>) -> Box<dyn Wire> + Send + Sync>;

struct WrappingDialer(PlainDialer, Wrap);

impl Dial for WrappingDialer {
    fn dial(&self, peer: PeerId, address: SocketAddr, deadline: Instant) -> std::io::Result<Box<dyn Wire>> {
        self.0.dial(peer, address, deadline).map(|wire| (self.1)(wire))
    }

    fn dial_stripe(
        &self,
        peer: PeerId,
        address: SocketAddr,
        deadline: Instant,
    ) -> std::io::Result<Box<dyn Wire>> {
        self.0.dial_stripe(peer, address, deadline).map(|wire| (self.1)(wire))
    }
}

/// One member: a plane and a listener that hands it connections.
pub(crate) struct Member {
    pub(crate) id: PeerId,
    pub(crate) address: SocketAddr,
    pub(crate) plane: Arc<DataPlane>,
    pub(crate) events: Arc<Mutex<Vec<LinkEvent>>>,
    stop: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Member {
    pub(crate) fn new(number: usize, settings: DataSettings, wrap: &Wrap) -> Self {
        let id = peer(number);
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        let plain = PlainDialer { me: id, tcp: TcpSettings::default() };
        let dialer = Arc::new(WrappingDialer(plain, Arc::clone(wrap)));
        let wrap = Arc::clone(wrap);
        let plane = DataPlane::new(id, settings, dialer, move |event| told.lock().unwrap().push(event));
        let plane = Arc::new(plane.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, taker) = (Arc::clone(&stop), Arc::clone(&plane));
        let listening = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let Ok(hello) = read_plain_hello(&mut stream, PATIENCE) else { continue };
                let Ok(stream) = Guarded::new(stream) else { continue };
                let Ok(wire) = TcpWire::new(stream, &TcpSettings::default()) else { continue };
                let wire = wrap(Box::new(wire));
                if hello.is_stripe {
                    taker.accept_stripe(hello.peer, wire);
                } else {
                    taker.accept(hello.peer, wire);
                }
            }
        });
        Self { id, address, plane, events, stop, listening: Some(listening) }
    }

    /// Closes every link and the listener, as a process that is killed does.
    pub(crate) fn kill(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.plane.shutdown();
        let _ = std::net::TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            listening.join().unwrap();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    pub(crate) ring: Arc<[PeerId]>,
    pub(crate) epoch: u64,
}

impl Cluster {
    pub(crate) fn new(world: usize) -> Self {
        Self::with(world, DataSettings::default(), &(Arc::new(|wire| wire) as Wrap))
    }

    pub(crate) fn with(world: usize, settings: DataSettings, wrap: &Wrap) -> Self {
        Self::of(&vec![settings; world], wrap)
    }

    /// Each member with settings of its own.
    pub(crate) fn of(settings: &[DataSettings], wrap: &Wrap) -> Self {
        let member = |(number, settings): (usize, &DataSettings)| Member::new(number, *settings, wrap);
        let members: Vec<_> = settings.iter().enumerate().map(member).collect();
        let mut cluster = Self { ring: members.iter().map(|member| member.id).collect(), members, epoch: 0 };
        cluster.open_epoch();
        cluster
    }

    /// The members in ring order, with their addresses.
    pub(crate) fn addresses(&self) -> Vec<(PeerId, SocketAddr)> {
        self.members.iter().map(|member| (member.id, member.address)).collect()
    }

    pub(crate) fn open_epoch(&mut self) {
        self.epoch += 1;
        let ring = self.addresses();
        self.ring = self.members.iter().map(|member| member.id).collect();
        for member in &self.members {
            member.plane.open_epoch(0, self.epoch, ring.clone());
        }
    }

    pub(crate) fn spec(
        &self,
        tag: u64,
        seq: u64,
        data_type: DataType,
        op: ReduceOp,
        counts: &[usize],
    ) -> OpSpec {
        OpSpec {
            attempt: self.attempt(Arc::clone(&self.ring), tag, seq),
            fingerprint: Fingerprint {
                op,
                ..Fingerprint::new(OpKind::AllReduce, data_type, counts.iter().map(|count| *count as u64))
            },
            deadline: Instant::now() + PATIENCE,
        }
    }

    fn attempt(&self, ring: Arc<[PeerId]>, tag: u64, seq: u64) -> Attempt {
        let key = OpKey { group: 0, epoch: self.epoch, scope: Scope::Whole, tag, seq };
        Attempt {
            key,
            ring,
            members: Arc::clone(&self.ring),
            goes_around: false,
            decider: Decider::Coordinator,
        }
    }

    /// Any call, in a ring that does not follow the order of ranks.
    pub(crate) fn spec_of(&self, call: &Fingerprint, tag: u64, seq: u64) -> OpSpec {
        let mut ring = self.ring.to_vec();
        ring[1..].reverse();
        OpSpec {
            attempt: self.attempt(ring.into(), tag, seq),
            fingerprint: call.clone(),
            deadline: Instant::now() + PATIENCE,
        }
    }

    /// Runs `work` for each member on a thread of its own and returns what they return.
    pub(crate) fn everybody<T: Send>(&self, work: impl Fn(usize, &Member) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = self
                .members
                .iter()
                .enumerate()
                .map(|(number, member)| scope.spawn(move || work(number, member)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

/// Small whole numbers: their sums are exact in every order, so the expected result is too.
pub(crate) fn contribution_f32(member: usize, count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + member * 13 + salt * 31) % 101) as f32 - 50.0).collect()
}

pub(crate) fn contribution_i64(member: usize, count: usize, salt: usize) -> Vec<i64> {
    (0..count)
        .map(|i| ((i * 7 + member * 13 + salt * 31) % 1_000_003).cast_signed() as i64 - 500_000)
        .collect()
}

pub(crate) fn sum_f32(world: usize, count: usize, salt: usize) -> Vec<f32> {
    let mut sum = vec![0.0; count];
    for member in 0..world {
        sum.iter_mut().zip(contribution_f32(member, count, salt)).for_each(|(sum, x)| *sum += x);
    }
    sum
}

pub(crate) fn sum_i64(world: usize, count: usize, salt: usize) -> Vec<i64> {
    let mut sum = vec![0; count];
    for member in 0..world {
        sum.iter_mut().zip(contribution_i64(member, count, salt)).for_each(|(sum, x)| *sum += x);
    }
    sum
}

pub(crate) fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: plain numbers have no padding and any byte is a `u8`.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub(crate) fn bytes_of_mut<T: Copy>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every pattern of bytes is a number.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Performs in place.
pub(crate) fn reduce<'a, T: Copy>(
    member: &Member,
    spec: &OpSpec,
    tensor: &'a mut [T],
) -> Result<Performed<'a>, Stopped> {
    member.plane.perform(spec, Buffers::in_place([bytes_of_mut(tensor)]), &Abort::new())
}
