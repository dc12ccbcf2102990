//! The simulator's program: replay one seed, soak thousands, write the comparison table, state the scale.

use clap::{Parser, Subcommand};
use outlast_sim::nodes::MembershipNode;
use outlast_sim::report::Report;
use outlast_sim::runner;
use outlast_sim::scenarios::{self, Scenario};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

#[derive(Parser)]
#[command(about = "A deterministic world for the machines of Outlast")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Plays one scenario with one seed.
    Replay {
        /// Which scenario; `list` names them all.
        #[arg(long, default_value = "wild")]
        scenario: String,
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Prints the timeline of faults and of what members said.
        #[arg(long)]
        trace: bool,
    },
    /// Names every scenario.
    List,
    /// Plays every scenario with many seeds and stops at the first failure.
    Soak {
        /// How many seeds.
        #[arg(long, default_value_t = 1_000)]
        seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// How many seeds run at once.
        #[arg(long, default_value_t = 2)]
        jobs: u64,
        /// Only this scenario.
        #[arg(long)]
        scenario: Option<String>,
    },
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Replay { scenario, seed, trace } => replay(&scenario, seed, trace),
        Command::List => {
            for scenario in scenarios::all() {
                println!("{:24} {}", scenario.name, scenario.about);
            }
            ExitCode::SUCCESS
        }
        Command::Soak { seeds, from, jobs, scenario } => soak(seeds, from, jobs, scenario.as_deref()),
    }
}

fn play(scenario: &Scenario, seed: u64, timeline: bool) -> Report {
    runner::run::<MembershipNode>(scenario.name, seed, &(scenario.script)(seed), timeline)
}

fn replay(name: &str, seed: u64, trace: bool) -> ExitCode {
    let Some(scenario) = scenarios::find(name) else {
        eprintln!("there is no scenario {name:?}; `outlast-sim list` names them all");
        return ExitCode::from(2);
    };
    let report = play(&scenario, seed, trace);
    for line in &report.timeline {
        println!("{line}");
    }
    println!("faults left their marks: {}", report.tally);
    println!("{report}");
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn soak(seeds: u64, from: u64, jobs: u64, only: Option<&str>) -> ExitCode {
    if let Some(name) = only.filter(|name| scenarios::find(name).is_none()) {
        eprintln!("there is no scenario {name:?}; `outlast-sim list` names them all");
        return ExitCode::from(2);
    }
    let (next, failed, started) = (AtomicU64::new(from), AtomicBool::new(false), Instant::now());
    let worker = || {
        let scenarios: Vec<_> = scenarios::all()
            .into_iter()
            .filter(|scenario| only.is_none_or(|name| scenario.name == name))
            .collect();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + seeds || failed.load(Ordering::Relaxed) {
                return;
            }
            for scenario in &scenarios {
                let report = play(scenario, seed, false);
                if !report.passed() {
                    failed.store(true, Ordering::Relaxed);
                    println!("{report}");
                    return;
                }
            }
            let done = seed - from + 1;
            if done.is_multiple_of(50) {
                println!("{done} of {seeds} seeds, {:.0} s", started.elapsed().as_secs_f64());
            }
        }
    };
    std::thread::scope(|scope| (0..jobs.max(1)).for_each(|_| drop(scope.spawn(worker))));
    if failed.load(Ordering::Relaxed) {
        return ExitCode::FAILURE;
    }
    println!("{seeds} seeds passed every scenario in {:.0} s", started.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}
