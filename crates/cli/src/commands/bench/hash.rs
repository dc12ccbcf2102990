//! `outlast bench hash`: how fast is a state hashed, beside what memory can do?
//!
//! Three things take turns over the same bytes: a loop that only reads, `twox-hash` over the whole buffer, and the
//! hash of 1 MiB leaves that a sync does. Each counts with its best repetition: whatever else the machine does
//! makes one slower, never faster.

use crate::ExitCode;
use anyhow::ensure;
use outlast::state::{leaf_hashes, read_through};
use serde_json::json;
use std::hint::black_box;
use std::time::{Duration, Instant};
use twox_hash::XxHash3_128;

const EXAMPLES: &str = "\
Example: does hashing keep up with this machine's memory?
  outlast bench hash --bytes 1GiB --threads 1,2
  outlast bench hash --json | jq .of_read";

/// Hash a buffer in leaves, beside a plain read and twox-hash.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Hash {
    /// Size of the buffer; larger than any cache
    #[arg(long, value_name = "SIZE", value_parser = super::size, default_value = "512MiB")]
    bytes: usize,
    /// Numbers of threads, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Vec<u16>,
    /// Time for each number of threads, in seconds
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    seconds: f64,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Hash) -> anyhow::Result<ExitCode> {
    ensure!(args.bytes > 0, "--bytes 0: give at least one");
    ensure!((1e-3..1e5).contains(&args.seconds), "--seconds {}: give 0.001 to 100000", args.seconds);
    // Pages that nobody wrote to are all one page.
    let buffer: Vec<u8> = (0..args.bytes).map(|at| (at % 251) as u8).collect();
    if !args.json {
        println!("{:>7} {:>10} {:>12} {:>10} {:>8}", "threads", "read", "twox-hash", "leaves", "of read");
    }
    for threads in args.threads.iter().copied().map(usize::from) {
        let time = Duration::from_secs_f64(args.seconds);
        let [read, whole, leaves] = rates(&buffer, threads, time);
        if args.json {
            let line = json!({
                "bytes": args.bytes, "threads": threads, "read_gb_per_s": read, "twox_gb_per_s": whole,
                "leaves_gb_per_s": leaves, "of_read": leaves / read,
            });
            println!("{line}");
        } else {
            let share = 100.0 * leaves / read;
            println!("{threads:>7} {read:>7.2} GB/s {whole:>7.2} GB/s {leaves:>5.2} GB/s {share:>6.0} %");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Gigabytes per second of the read loop, of twox-hash over one part per thread, and of leaves.
fn rates(buffer: &[u8], threads: usize, time: Duration) -> [f64; 3] {
    let parts: Vec<_> = buffer.chunks(buffer.len().div_ceil(threads)).collect();
    let each = |work: &(dyn Fn(&[u8]) + Sync)| {
        std::thread::scope(|scope| parts.iter().for_each(|part| drop(scope.spawn(|| work(part)))));
    };
    let kinds: [&dyn Fn(); 3] = [
        &|| {
            each(&|part| {
                black_box(read_through(part));
            });
        },
        &|| {
            each(&|part| {
                black_box(XxHash3_128::oneshot(part));
            });
        },
        &|| drop(black_box(leaf_hashes(buffer, threads))),
    ];
    let (end, mut best) = (Instant::now() + time, [Duration::MAX; 3]);
    let mut repetitions = 0;
    // Twice at least: the first repetition warms up.
    while repetitions < 2 || Instant::now() < end {
        for (kind, best) in kinds.iter().zip(&mut best) {
            let began = Instant::now();
            kind();
            *best = began.elapsed().min(*best);
        }
        repetitions += 1;
    }
    best.map(|time| buffer.len() as f64 / time.as_secs_f64().max(1e-9) / 1e9)
}
