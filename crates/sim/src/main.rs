//! The simulator's program: replay one seed, soak thousands, write the comparison table, state the scale.

mod explore_command;

use clap::{Parser, Subcommand};
use outlast_sim::heart;
use outlast_sim::nodes::MembershipNode;
use outlast_sim::rendezvous;
use outlast_sim::report::Report;
use outlast_sim::runner;
use outlast_sim::scale;
use outlast_sim::scenarios::{self, Scenario};
use outlast_sim::store;
use outlast_sim::table::{self, Plan, Trouble, cell};
use std::path::{Path, PathBuf};
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
        #[arg(long, default_value = "mixed")]
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
        /// Only scenarios whose name begins so: one of them, or all of a family such as `heart-`.
        #[arg(long)]
        scenario: Option<String>,
    },
    /// Stops processes for a moment, many of them, and counts who was declared dead for it.
    Stalls {
        /// How many stalls at least.
        #[arg(long, default_value_t = 5_000)]
        count: usize,
    },
    /// Measures ours beside the baseline (with the feature `baseline`) and writes the tables.
    Table {
        /// A small part of everything, in seconds.
        #[arg(long)]
        quick: bool,
        /// Only groups up to this size.
        #[arg(long)]
        up_to: Option<u32>,
        /// The page to write into, between its markers; standard output otherwise.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// States what one vote costs a coordinator of that many peers.
    VoteCost {
        /// How many peers.
        #[arg(long, default_value_t = 10_000)]
        peers: usize,
        /// How many collectives.
        #[arg(long, default_value_t = 20)]
        rounds: u32,
    },
    /// States what an operation of the store costs as members grow.
    StoreCost {
        /// How many members, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "4,8,16,32,64,1000")]
        members: Vec<usize>,
    },
    /// Visits every state of a small run, within bounds, and prints the shortest way to a failure.
    Explore(explore_command::Args),
    /// Runs one large group and states its memory and its time.
    Scale {
        /// How many members.
        #[arg(long, default_value_t = 10_000)]
        members: u32,
    },
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Replay { scenario, seed, trace } => replay(&scenario, seed, trace),
        Command::List => {
            for Named { name, about, waits, .. } in named() {
                println!("{name:24} {about}{}", if waits { " (fails: not mended yet)" } else { "" });
            }
            ExitCode::SUCCESS
        }
        Command::Soak { seeds, from, jobs, scenario } => soak(seeds, from, jobs, scenario.as_deref()),
        Command::Stalls { count } => stalls(count),
        Command::Table { quick, up_to, out } => write_tables(quick, up_to, out.as_deref()),
        Command::VoteCost { peers, rounds } => {
            let started = Instant::now();
            let cost = heart::cost::measure(peers, rounds, || started.elapsed());
            println!(
                "{} peers: registering and admitting all {:?}; per Initiate {:?}, per Complete {:?}, \
                 a verdict to all {:?}, a goodbye and the next epoch {:?}",
                cost.peers, cost.admission, cost.initiate, cost.complete, cost.verdict, cost.eviction
            );
            ExitCode::SUCCESS
        }
        Command::StoreCost { members } => {
            println!("{}", store::cost::table(&members));
            ExitCode::SUCCESS
        }
        Command::Explore(args) => explore_command::run(&args),
        Command::Scale { members } => {
            state_scale(members);
            ExitCode::SUCCESS
        }
    }
}

/// Stalls of 1, 2 and 5 s in groups of 8 and 64, without loss and with 10 %: `count` of them in equal shares.
fn stalls(count: usize) -> ExitCode {
    let (mut stalls, mut deaths) = (0, 0);
    for (members, at_once) in [(8, 1), (64, 3)] {
        for loss in [0.0, 0.1] {
            for length in [1_000, 2_000, 5_000] {
                let rounds = count.div_ceil(12 * at_once);
                let played = cell::<MembershipNode>(members, loss, Trouble::Stall(length), rounds);
                let (struck, wrong) = (played.protected, played.false_deaths);
                println!("n = {members}, loss {loss}, {length} ms: {struck} stalls, {wrong} false deaths");
                stalls += struck;
                deaths += wrong;
            }
        }
    }
    println!("in all {stalls} stalls, {deaths} false deaths");
    if deaths == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write_tables(quick: bool, up_to: Option<u32>, out: Option<&Path>) -> ExitCode {
    let mut plan = if quick { Plan::quick() } else { Plan::full() };
    plan.sizes.retain(|(members, _)| up_to.is_none_or(|most| *members <= most));
    let mut text = table::tables(&plan, |line| eprintln!("{line}"));
    if !quick {
        text.push('\n');
        text.push_str(&state_scale(10_000));
        text.push('\n');
    }
    let Some(out) = out else {
        println!("{text}");
        return ExitCode::SUCCESS;
    };
    let page = std::fs::read_to_string(out).unwrap_or_default();
    if let Err(error) = std::fs::write(out, table::write_between_markers(&page, &text)) {
        eprintln!("cannot write {}: {error}; does its folder exist?", out.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs a large group, and says what it took.
fn state_scale(members: u32) -> String {
    let started = Instant::now();
    let scale = scale::run(members, 1);
    let memory = peak_memory_mib().map_or_else(|| "unknown".to_owned(), |mib| format!("{mib} MiB"));
    let known =
        scale.known_after.map_or_else(|| "never".to_owned(), |after| format!("{:.2} s", after.as_secs_f64()));
    let text = format!(
        "A world of {} members: {:.1} s of world time with {} events in {:.0} s; peak memory of the process {memory}; \
         a killed process known to {} of {} after {known}; {:.1} packets per member and second.",
        scale.members,
        scale.simulated.as_secs_f64(),
        scale.events,
        started.elapsed().as_secs_f64(),
        scale.informed,
        scale.members - 1,
        scale.packets
    );
    println!("{text}");
    text
}

/// The most memory this process ever held, as the kernel counts it.
fn peak_memory_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1_024)
}

/// A scenario of either world.
struct Named {
    name: &'static str,
    about: &'static str,
    play: Box<dyn Fn(u64, bool) -> Report>,
    /// Finds a fault that is not mended yet: a soak plays it only if it is asked for by its full name.
    waits: bool,
    /// Takes minutes, and is treated likewise.
    is_slow: bool,
}

fn named() -> Vec<Named> {
    let membership = scenarios::all().into_iter().map(|Scenario { name, about, script }| {
        let play = Box::new(move |seed, timeline| {
            runner::run::<MembershipNode>(name, seed, &script(seed), timeline)
        });
        Named { name, about, play, waits: false, is_slow: false }
    });
    let all = heart::scenarios::all().into_iter().map(|scenario| (scenario, false));
    let waiting = heart::scenarios::waiting().into_iter().map(|scenario| (scenario, true));
    let heart = all.chain(waiting).map(|(scenario, waits)| {
        let heart::scenarios::Scenario { name, about, script } = scenario;
        let play = Box::new(move |seed, timeline| heart::runner::run(name, seed, &script(seed), timeline));
        Named { name, about, play, waits, is_slow: false }
    });
    let rendezvous = rendezvous::scenarios::all().into_iter().map(|scenario| {
        let rendezvous::scenarios::Scenario { name, about, plan, is_slow } = scenario;
        let play =
            Box::new(move |seed, timeline| rendezvous::scenarios::run(name, seed, plan(seed), timeline));
        Named { name, about, play, waits: false, is_slow }
    });
    let store = store::scenarios::all().into_iter().map(|scenario| {
        let store::scenarios::Scenario { name, about, plan } = scenario;
        let play = Box::new(move |seed, timeline| store::scenarios::run(name, seed, plan(seed), timeline));
        Named { name, about, play, waits: false, is_slow: false }
    });
    membership.chain(heart).chain(rendezvous).chain(store).collect()
}

fn replay(name: &str, seed: u64, trace: bool) -> ExitCode {
    let Some(scenario) = named().into_iter().find(|scenario| scenario.name == name) else {
        eprintln!("there is no scenario {name:?}; `outlast-sim list` names them all");
        return ExitCode::from(2);
    };
    let report = (scenario.play)(seed, trace);
    for line in &report.timeline {
        println!("{line}");
    }
    println!("faults left their marks: {}", report.tally);
    println!("{report}");
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn soak(seeds: u64, from: u64, jobs: u64, only: Option<&str>) -> ExitCode {
    let chosen = move |scenario: &Named| match only {
        _ if scenario.waits || scenario.is_slow => only == Some(scenario.name),
        None => true,
        Some(name) => scenario.name.starts_with(name),
    };
    if let Some(name) = only.filter(|_| !named().iter().any(chosen)) {
        eprintln!("there is no scenario {name:?}; `outlast-sim list` names them all");
        return ExitCode::from(2);
    }
    let (next, failed, started) = (AtomicU64::new(from), AtomicBool::new(false), Instant::now());
    let worker = || {
        let scenarios: Vec<_> = named().into_iter().filter(chosen).collect();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + seeds || failed.load(Ordering::Relaxed) {
                return;
            }
            for scenario in &scenarios {
                let report = (scenario.play)(seed, false);
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
