//! `make demo`: elastic training on this machine that is killed, stopped, joined and orphaned, and goes on.
//!
//! Four real processes train a small network on handwritten digits, data-parallel, with one all-reduce per step.
//! In the middle the *director* sends SIGKILL to the worker of rank 0, stops another for two seconds, starts a
//! new one, and kills and restarts the coordinator. It shows what the workers say live, and measures how long
//! each fault cost.
//!
//! The demo keeps the program's promises honest. It succeeds only if every fault happened, nobody was lost who
//! was not killed, every replica was equal to the bit after every step that it told of, and the model reads more than
//! 95 % of the test images in the end. Otherwise it says what was missing, and its exit code is 1.
//!
//! | module | what it is |
//! |---|---|
//! | `script` | the order of events: what happens, and what is waited for after it |
//! | `crew` | the processes: starting, signalling, listening, and leaving none behind |
//! | `berth` | one worker's place, kept by the agent of `outlast run` |
//! | `ledger` | what the receipts said, compared between replicas |
//! | `worker`, `model`, `data` | the training program; `worker` is the one to read first |
//! | `said` | the lines that processes tell the director |
//! | `show`, `picture` | the live view, the lines for a pipe, JSON; the drawing of the run |
//!
//! The same program plays every role: the director starts itself again as the coordinator and as each worker.

mod berth;
mod coordinator;
mod crew;
mod data;
mod ledger;
mod model;
mod picture;
mod said;
mod script;
mod show;
#[path = "../../src/commands/stop.rs"]
mod stop;
mod worker;

use clap::{Parser, Subcommand};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::path::PathBuf;
use std::process::ExitCode;

/// Train through a killed worker, a stopped one, a newcomer and a lost coordinator.
#[derive(Debug, Parser)]
#[command(name = "train")]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Options,
}

/// How the director plays.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Steps to train for; the faults are spread over them
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    steps: u64,
    /// Least time for a step, in milliseconds: the model is so small that one could not watch it otherwise
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=1_000))]
    pace: u64,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Where to draw the run
    #[arg(long, value_name = "FILE", default_value = "target/demo/run.svg")]
    picture: PathBuf,
}

/// What the director starts this program as.
#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Worker(worker::Options),
    #[command(hide = true)]
    Coordinator(coordinator::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.role {
        Some(role) => play_role(role),
        None => script::play(&arguments.options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match arguments.role {
                Some(_) => eprintln!("{error:#}"),
                None => eprintln!("\nThe demo did not show what it promises: {error:#}"),
            }
            ExitCode::FAILURE
        }
    }
}

fn play_role(role: &Role) -> anyhow::Result<()> {
    // Nobody stays behind when the director is killed. If it is gone already, its end of our input is closed,
    // which is looked at as well.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match role {
        Role::Worker(options) => worker::run(options),
        Role::Coordinator(options) => coordinator::run(options),
    }
}
