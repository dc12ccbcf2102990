//! `outlast-sim explore`: one exploration of a small world, all planned ones, or a schedule played again.

use outlast_sim::explore::planned::{Exploration, Planned};
use outlast_sim::explore::plans;
use outlast_sim::explore::run::{Budget, RunModel, Setup, Step};
use outlast_sim::explore::search::Limits;
use std::process::ExitCode;
use std::time::Instant;

/// What to explore.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A planned exploration, or `quick` or `soak` for all of them; otherwise the bounds below say what.
    #[arg(long)]
    plan: Option<String>,
    /// What each peer calls, one letter per call: r all-reduce, o all-reduce that does not retry, t all-reduce with a
    /// short deadline, s all-reduce of the first two, b barrier, c broadcast, v vote for newcomers, j join (first call
    /// of a newcomer), l leave. One program per peer, between commas.
    #[arg(long, default_value = "rr,rr")]
    programs: String,
    /// Control connections that break.
    #[arg(long, default_value_t = 0)]
    breaks: u8,
    /// Peers that are killed.
    #[arg(long, default_value_t = 0)]
    kills: u8,
    /// Coordinators that are killed and started again.
    #[arg(long, default_value_t = 0)]
    restarts: u8,
    /// Data links that break between two who live.
    #[arg(long, default_value_t = 0)]
    severs: u8,
    /// Calls that programs give up.
    #[arg(long, default_value_t = 0)]
    cancels: u8,
    /// Timers that fire.
    #[arg(long, default_value_t = 2)]
    timers: u8,
    /// Events from the beginning.
    #[arg(long, default_value_t = 200)]
    depth: usize,
    /// Distinct states.
    #[arg(long, default_value_t = 1_000_000)]
    states: usize,
    /// Plays a schedule again instead: as it was printed, or a file that holds it.
    #[arg(long)]
    replay: Option<String>,
    /// Says how far it has come after every depth.
    #[arg(long)]
    progress: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let chosen = match choose(args) {
        Ok(chosen) => chosen,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if let Some(schedule) = &args.replay {
        let [plan] = &chosen[..] else {
            eprintln!(
                "a schedule belongs to one exploration: name it, or give the bounds it was printed with"
            );
            return ExitCode::from(2);
        };
        return replay(&**plan, schedule);
    }
    let mut total = 0;
    let started = Instant::now();
    for plan in &chosen {
        match explore(&**plan, args.progress) {
            Some(states) => total += states,
            None => return ExitCode::FAILURE,
        }
    }
    println!("{total} distinct states in {:.1} s, none of them wrong", started.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

fn choose(args: &Args) -> Result<Vec<Box<dyn Exploration>>, String> {
    let (quick, soak) = (plans::quick(), plans::soak());
    match args.plan.as_deref() {
        Some("quick") => Ok(quick),
        Some("soak") => Ok(soak),
        Some(name) => {
            let all: Vec<_> = quick.into_iter().chain(soak).collect();
            let names: Vec<_> = all.iter().map(|plan| plan.name()).collect();
            let unknown =
                format!("there is no plan {name:?}: write quick, soak, or one of {}", names.join(", "));
            all.into_iter().find(|plan| plan.name() == name).map(|plan| vec![plan]).ok_or(unknown)
        }
        None => {
            let programs: Result<Vec<_>, _> = args.programs.split(',').map(Step::program).collect();
            let Args { breaks, kills, restarts, severs, cancels, timers, depth, states, .. } = *args;
            let budget = Budget { breaks, kills, restarts, severs, cancels, timers };
            let setup = Setup { programs: programs?, budget, sabotage: None };
            if !(1..=8).contains(&setup.programs.len()) {
                return Err(format!("{} peers: write between 1 and 8 programs", setup.programs.len()));
            }
            let (options, limits) = (options(&setup), Limits { depth, states });
            Ok(vec![Box::new(Planned { name: "as given", model: RunModel::new(setup), limits, options })])
        }
    }
}

/// The states that were seen, or none if one was wrong.
fn explore(plan: &dyn Exploration, progress: bool) -> Option<usize> {
    let (name, started) = (plan.name(), Instant::now());
    let seconds = || started.elapsed().as_secs_f64();
    let report = plan.explore(&mut |depth, states, near| {
        if progress {
            eprintln!("{name}: depth {depth}, {states} states, {near} to visit, {:.1} s", seconds());
        }
    });
    println!(
        "{name:24} {:>9} distinct states, {:>10} transitions, depth {:3}, {:6.1} s, {}",
        report.states,
        report.transitions,
        report.depth,
        seconds(),
        if report.whole { "all there are" } else { "cut off by the limits" },
    );
    let Some(failure) = report.failure else { return Some(report.states) };
    println!("FAILED after {} events: {}", failure.story.len(), failure.violation);
    failure.story.iter().for_each(|line| println!("{line}"));
    println!("again: outlast-sim explore {} --replay \"{}\"", plan.options(), failure.schedule);
    None
}

/// The options that give the bounds of a run.
fn options(setup: &Setup) -> String {
    let Budget { breaks, kills, restarts, severs, cancels, timers } = setup.budget;
    let letters = |program: &Vec<Step>| program.iter().map(|step| step.letter()).collect();
    let programs: Vec<String> = setup.programs.iter().map(letters).collect();
    format!(
        "--programs {} --breaks {breaks} --kills {kills} --restarts {restarts} --severs {severs} \
         --cancels {cancels} --timers {timers}",
        programs.join(",")
    )
}

fn replay(plan: &dyn Exploration, schedule: &str) -> ExitCode {
    let text = std::fs::read_to_string(schedule).unwrap_or_else(|_| schedule.to_owned());
    match plan.replay(&text) {
        Ok(replayed) => {
            replayed.story.iter().for_each(|line| println!("{line}"));
            if let Some(violation) = replayed.violation {
                println!("FAILED: {violation}");
                return ExitCode::FAILURE;
            }
            println!("nothing is wrong in any of these states");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
