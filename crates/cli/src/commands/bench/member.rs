//! One process of a measurement.
//!
//! All members do the same in the same order; how often is rank 0's wish, which it tells the others by a sum
//! to which they add nothing. The member with number 0 prints.

use super::stream;
use crate::ExitCode;
use anyhow::{Context as _, bail};
use clap::ValueEnum;
use half::bf16;
use outlast::Communicator;
use outlast::bare_ring::BareRing;
use outlast::communicator::{Call, Encryption, Quantisation};
use outlast::membership::Preset;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const REPETITIONS_MIN: i64 = 7;
const REPETITIONS_MAX: i64 = 1_000;
/// Operations in a contender's turn that count.
const TURN: u64 = 4;
/// For one call. A measurement in which nothing moves for so long has failed.
const TIMEOUT: Duration = Duration::from_mins(2);

#[derive(Debug, clap::Args)]
pub(super) struct Member {
    #[arg(long)]
    number: u32,
    #[arg(long)]
    world: u32,
    #[arg(long)]
    coordinator: String,
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<usize>,
    #[arg(long)]
    encryption: String,
    #[arg(long)]
    votes: bool,
    #[arg(long)]
    ring: bool,
    #[arg(long)]
    in_step: bool,
    #[arg(long)]
    seconds: f64,
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long, value_enum, value_delimiter = ',')]
    types: Vec<Kind>,
    /// Measure what plain streams carry around the ring.
    #[arg(long)]
    streams: bool,
    #[arg(long)]
    streams_max: u8,
    #[arg(long)]
    warm_up: u32,
    #[arg(long)]
    no_recorder: bool,
}

/// What is reduced, and how it is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    F32,
    Bf16,
    /// f32, quantised
    Int8,
    /// f32, quantised
    Int4,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// How far from the exact result of ones, twos, .. one may be, as a share of it.
    fn tolerance(self, world: usize) -> f32 {
        match self {
            Self::F32 | Self::Bf16 => 0.0,
            Self::Int8 => 1.01 * world as f32 / 254.0,
            Self::Int4 => 1.01 * world as f32 / 14.0,
        }
    }
}

/// The memory of all contenders.
struct Tensors {
    f32: Vec<f32>,
    bf16: Vec<bf16>,
}

impl Tensors {
    fn new(elements: usize, kinds: &[Kind]) -> Self {
        let halves = if kinds.contains(&Kind::Bf16) { elements } else { 0 };
        Self { f32: vec![0.0; elements], bf16: vec![bf16::ZERO; halves] }
    }

    fn fill(&mut self, value: f32) {
        self.f32.fill(value);
        self.bf16.fill(bf16::from_f32(value));
    }

    /// The first element that is further from `expected` than it may be.
    fn wrong(&self, kind: Kind, expected: f32, world: usize) -> Option<f32> {
        let slack = kind.tolerance(world) * expected;
        let right = expected - slack..=expected + slack;
        let off = |value: &f32| !right.contains(value);
        match kind {
            Kind::Bf16 => self.bf16.iter().map(|value| value.to_f32()).find(|value| off(value)),
            _ => self.f32.iter().copied().find(|value| off(value)),
        }
    }
}

pub(super) fn run(args: &Member) -> anyhow::Result<ExitCode> {
    // Whoever started us reads what we print; without it there is nothing to measure for.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if args.no_recorder {
        outlast::recorder::pause();
    }
    let encryption = if args.encryption == "off" { Encryption::Off } else { Encryption::On };
    let comm = Communicator::builder()
        .coordinator(&*args.coordinator)
        .listen(args.listen)
        .preset(if args.streams { Preset::Lan } else { Preset::Local })
        .name(format!("bench-{}", args.number))
        .timeout(TIMEOUT)
        .encryption(encryption)
        .streams_max(args.streams_max)
        .start()?;
    comm.connect(args.world)?;
    let rank = comm.rank();
    let mut ring = if args.ring { Some(bare_ring(&comm)?) } else { None };
    let bench = Bench { comm, rank, budget: Duration::from_secs_f64(args.seconds), warm_up: args.warm_up };
    let tell = |line: serde_json::Value| -> anyhow::Result<()> {
        // Ranks follow the order of arrival; whoever started us listens to the first that it started.
        if args.number == 0 {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{line}")?;
            out.flush()?;
        }
        Ok(())
    };
    let streams = || -> anyhow::Result<()> {
        if args.streams {
            let bits = stream::around_the_ring(&bench.comm, args.listen.ip())?;
            tell(serde_json::json!({ "world": args.world, "what": "streams", "bits_per_second": bits }))?;
        }
        Ok(())
    };
    for bytes in &args.bytes {
        let elements = bytes / size_of::<f32>();
        let mut tensors = Tensors::new(elements, &args.types);
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        for kind in args.types.iter().filter(|_| args.votes) {
            let reduce = |tensors: &mut Tensors| Ok(bench.reduce(*kind, tensors)?);
            contenders.push(Contender { what: "votes", kind: *kind, reduce: Box::new(reduce) });
        }
        if let Some(ring) = &mut ring {
            let in_step = args.in_step;
            let reduce = move |tensors: &mut Tensors| {
                if in_step {
                    ring.all_reduce(&mut [0.0])?;
                }
                Ok(ring.all_reduce(&mut tensors.f32)?)
            };
            let what = if in_step { "in step" } else { "ring" };
            contenders.push(Contender { what, kind: Kind::F32, reduce: Box::new(reduce) });
        }
        streams()?;
        for figure in bench.measure(&mut contenders, &mut tensors)? {
            tell(serde_json::json!({
                "world": args.world, "bytes": bytes, "what": figure.what, "encryption": encryption.to_string(),
                "type": figure.kind.name(), "median": figure.median, "best": figure.best, "p99": figure.p99,
                "processor": figure.processor, "repetitions": figure.repetitions,
            }))?;
        }
        streams()?;
    }
    // A link that closes early would look like a failure.
    bench.comm.barrier(&Call::sum())?;
    Ok(ExitCode::SUCCESS)
}

/// The same members as a ring without votes, on loopback.
fn bare_ring(comm: &Communicator) -> anyhow::Result<BareRing> {
    let rank = comm.rank();
    let mut ring = BareRing::listen(rank)?;
    let mut ports = vec![0_i64; comm.world_size()];
    ports[rank] = i64::from(ring.address().port());
    comm.all_reduce(&mut ports, &Call::sum())?;
    let loopback = |port: &i64| -> anyhow::Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, u16::try_from(*port).context("a member told no port")?).into())
    };
    ring.open(&ports.iter().map(loopback).collect::<Result<Vec<_>, _>>()?);
    Ok(ring)
}

type Reduce<'a> = dyn FnMut(&mut Tensors) -> anyhow::Result<()> + 'a;

struct Contender<'a> {
    what: &'static str,
    kind: Kind,
    reduce: Box<Reduce<'a>>,
}

/// Seconds.
struct Figure {
    what: &'static str,
    kind: Kind,
    median: f64,
    best: f64,
    p99: f64,
    processor: f64,
    repetitions: usize,
}

struct Bench {
    comm: Communicator,
    rank: usize,
    budget: Duration,
    warm_up: u32,
}

impl Bench {
    fn reduce(&self, kind: Kind, tensors: &mut Tensors) -> Result<(), outlast::communicator::Error> {
        let call = match kind {
            Kind::F32 | Kind::Bf16 => Call::sum(),
            Kind::Int8 => Call::sum().quantise(Quantisation::Int8),
            Kind::Int4 => Call::sum().quantise(Quantisation::Int4),
        };
        match kind {
            Kind::Bf16 => self.comm.all_reduce(&mut tensors.bf16, &call)?,
            _ => self.comm.all_reduce(&mut tensors.f32, &call)?,
        };
        Ok(())
    }

    /// Lets the contenders take turns of a few operations. The first of a turn is not counted: members end an
    /// operation of the contender before at different moments, and whoever comes next would pay for it.
    fn measure(
        &self,
        contenders: &mut [Contender<'_>],
        tensors: &mut Tensors,
    ) -> anyhow::Result<Vec<Figure>> {
        let world = self.comm.world_size();
        for contender in contenders.iter_mut() {
            for _ in 0..self.warm_up {
                tensors.fill(self.rank as f32 + 1.0);
                (contender.reduce)(tensors)?;
            }
            let expected = (world * (world + 1) / 2) as f32;
            let (what, kind) = (contender.what, contender.kind);
            if let Some(wrong) = tensors.wrong(kind, expected, world) {
                let elements = tensors.f32.len();
                bail!("{what} {}: {wrong} instead of {expected} among {elements} elements", kind.name());
            }
        }
        tensors.fill(0.0);
        let started = Instant::now();
        contenders.iter_mut().try_for_each(|contender| (contender.reduce)(tensors))?;
        let once = started.elapsed().max(Duration::from_micros(1)) / contenders.len().max(1) as u32;
        let wish = (self.budget.as_secs_f64() / once.as_secs_f64()) as i64;
        let mut repetitions = [if self.rank == 0 { wish.clamp(REPETITIONS_MIN, REPETITIONS_MAX) } else { 0 }];
        self.comm.all_reduce(&mut repetitions, &Call::sum())?;
        let mut times = vec![Vec::new(); contenders.len()];
        let mut processor = vec![0.0; contenders.len()];
        for _ in 0..repetitions[0].max(1).cast_unsigned().div_ceil(TURN) {
            for (at, contender) in contenders.iter_mut().enumerate() {
                (contender.reduce)(tensors)?;
                for _ in 0..TURN {
                    let (before, started) = (processor_seconds(), Instant::now());
                    (contender.reduce)(tensors)?;
                    times[at].push(started.elapsed().as_secs_f64());
                    processor[at] += processor_seconds() - before;
                }
            }
        }
        let figure = |(contender, (mut times, processor)): (&Contender<'_>, (Vec<f64>, f64))| {
            times.sort_by(f64::total_cmp);
            let count = times.len();
            let (median, best, p99) = (times[count / 2], times[0], times[(count * 99 / 100).min(count - 1)]);
            let (what, kind, processor) = (contender.what, contender.kind, processor / count as f64);
            Figure { what, kind, median, best, p99, processor, repetitions: count }
        };
        Ok(contenders.iter().zip(times.into_iter().zip(processor)).map(figure).collect())
    }
}

/// Processor time of this process: the figure that other work on the machine disturbs least.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
