//! One process of a measurement.
//!
//! All members do the same in the same order; how often is rank 0's wish, which it tells the others by a sum
//! to which they add nothing. The member with number 0 prints.

use crate::ExitCode;
use anyhow::{Context as _, bail};
use outlast::Communicator;
use outlast::bare_ring::BareRing;
use outlast::communicator::{Call, Encryption};
use outlast::membership::Preset;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const REPETITIONS_MIN: i64 = 7;
const REPETITIONS_MAX: i64 = 1_000;
const WARM_UP: usize = 3;
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
    seconds: f64,
}

pub(super) fn run(args: &Member) -> anyhow::Result<ExitCode> {
    // Whoever started us reads what we print; without it there is nothing to measure for.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let encryption = if args.encryption == "off" { Encryption::Off } else { Encryption::On };
    let comm = Communicator::builder()
        .coordinator(&*args.coordinator)
        .listen((Ipv4Addr::LOCALHOST, 0).into())
        .preset(Preset::Local)
        .name(format!("bench-{}", args.number))
        .timeout(TIMEOUT)
        .encryption(encryption)
        .start()?;
    comm.connect(args.world)?;
    let rank = comm.rank();
    let mut ring = BareRing::listen(rank)?;
    let mut ports = vec![0_i64; comm.world_size()];
    ports[rank] = i64::from(ring.address().port());
    comm.all_reduce(&mut ports, &Call::sum())?;
    let addresses: Vec<_> = ports.iter().map(|port| loopback(*port)).collect::<Result<_, _>>()?;
    ring.open(&addresses);

    let bench = Bench { comm, rank, budget: Duration::from_secs_f64(args.seconds) };
    let largest = args.bytes.iter().copied().max().unwrap_or(0);
    let mut tensor = vec![0_f32; largest / size_of::<f32>()];
    for bytes in &args.bytes {
        let tensor = &mut tensor[..bytes / size_of::<f32>()];
        let voted = |tensor: &mut [f32]| bench.comm.all_reduce(tensor, &Call::sum()).map(drop);
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        if args.votes {
            contenders.push(("votes", Box::new(|tensor| Ok(voted(tensor)?))));
        }
        if args.ring {
            contenders.push(("ring", Box::new(|tensor| Ok(ring.all_reduce(tensor)?))));
        }
        let figures = bench.measure(&mut contenders, tensor)?;
        // Ranks follow the order of arrival; whoever started us listens to the first that it started.
        if args.number == 0 {
            for figure in figures {
                let line = serde_json::json!({
                    "world": args.world, "bytes": bytes, "what": figure.what, "encryption": encryption.to_string(),
                    "median": figure.median, "best": figure.best, "p99": figure.p99,
                    "processor": figure.processor, "repetitions": figure.repetitions,
                });
                let mut out = std::io::stdout().lock();
                writeln!(out, "{line}")?;
                out.flush()?;
            }
        }
    }
    // A link that closes early would look like a failure.
    bench.comm.barrier(&Call::sum())?;
    Ok(ExitCode::SUCCESS)
}

fn loopback(port: i64) -> anyhow::Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, u16::try_from(port).context("a member told no port")?).into())
}

type Contender<'a> = (&'static str, Box<dyn FnMut(&mut [f32]) -> anyhow::Result<()> + 'a>);

/// Seconds.
struct Figure {
    what: &'static str,
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
}

impl Bench {
    /// Lets the contenders take turns of a few operations. The first of a turn is not counted: members end an
    /// operation of the contender before at different moments, and whoever comes next would pay for it.
    fn measure(&self, contenders: &mut [Contender<'_>], tensor: &mut [f32]) -> anyhow::Result<Vec<Figure>> {
        let world = self.comm.world_size();
        for (what, reduce) in contenders.iter_mut() {
            for _ in 0..WARM_UP {
                tensor.fill(self.rank as f32 + 1.0);
                reduce(tensor)?;
            }
            let expected = (world * (world + 1) / 2) as f32;
            if let Some(wrong) = tensor.iter().find(|sum| sum.to_bits() != expected.to_bits()) {
                bail!("{what}: {wrong} instead of {expected} among {} elements", tensor.len());
            }
        }
        tensor.fill(0.0);
        let started = Instant::now();
        contenders.iter_mut().try_for_each(|(_, reduce)| reduce(tensor))?;
        let once = started.elapsed().max(Duration::from_micros(1)) / contenders.len().max(1) as u32;
        let wish = (self.budget.as_secs_f64() / once.as_secs_f64()) as i64;
        let mut repetitions = [if self.rank == 0 { wish.clamp(REPETITIONS_MIN, REPETITIONS_MAX) } else { 0 }];
        self.comm.all_reduce(&mut repetitions, &Call::sum())?;
        let mut times = vec![Vec::new(); contenders.len()];
        let mut processor = vec![0.0; contenders.len()];
        for _ in 0..repetitions[0].max(1).cast_unsigned().div_ceil(TURN) {
            for (at, (_, reduce)) in contenders.iter_mut().enumerate() {
                reduce(tensor)?;
                for _ in 0..TURN {
                    let (before, started) = (processor_seconds(), Instant::now());
                    reduce(tensor)?;
                    times[at].push(started.elapsed().as_secs_f64());
                    processor[at] += processor_seconds() - before;
                }
            }
        }
        let figure = |((what, _), (mut times, processor)): (&Contender<'_>, (Vec<f64>, f64))| {
            times.sort_by(f64::total_cmp);
            let count = times.len();
            let (median, best, p99) = (times[count / 2], times[0], times[(count * 99 / 100).min(count - 1)]);
            Figure { what, median, best, p99, processor: processor / count as f64, repetitions: count }
        };
        Ok(contenders.iter().zip(times.into_iter().zip(processor)).map(figure).collect())
    }
}

/// Processor time of this process: the figure that other work on the machine disturbs least.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
