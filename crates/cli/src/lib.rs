//! The `outlast` program. One file per command under `commands/`; this file only routes.
//!
//! It is a library with one function, because the program comes in two shapes: a binary of its own, and the
//! command that the Python package brings.

mod commands;
mod exit;
mod log;

pub use exit::ExitCode;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process;
use std::sync::OnceLock;

/// Collectives that outlast the machines that run them.
#[derive(Debug, Parser)]
#[command(name = "outlast", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// `EX_USAGE` of sysexits: the command line makes no sense.
const USAGE: u8 = 64;

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<commands::run::Args>),
    Coordinator(Box<commands::coordinator::Args>),
    Status(commands::status::Args),
    Members(Box<commands::members::Args>),
    Store(Box<commands::store::Args>),
    Bench(commands::bench::Args),
    Secret(commands::secret::Args),
    Lab(commands::lab::Args),
    Debug(commands::debug::Args),
}

/// How this program is started, if not by its executable alone.
static STARTED_BY: OnceLock<Vec<OsString>> = OnceLock::new();

/// Says how to start this program again: an interpreter and what makes it this program. To be called before
/// [`run`], at most once.
pub fn started_by(command: Vec<OsString>) {
    let _ = STARTED_BY.set(command);
}

/// How this program was started, if somebody said so.
fn started_with() -> Option<&'static [OsString]> {
    STARTED_BY.get().map(Vec::as_slice)
}

/// A command that starts this program once more.
fn itself() -> std::io::Result<process::Command> {
    let Some([program, arguments @ ..]) = started_with() else {
        return Ok(process::Command::new(std::env::current_exe()?));
    };
    let mut command = process::Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Runs the program with these arguments, the first of which is its name. Usage errors, `--help` and
/// `--version` are answered here, too.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(answer) => {
            // Whoever should read it may have gone.
            let _ = answer.print();
            return if answer.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    // A table that fills the screen has no room for a log.
    if !matches!(&cli.command, Command::Members(args) if commands::members::is_live(args)) {
        log::to_stderr();
    }
    let outcome: anyhow::Result<ExitCode> = match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Coordinator(args) => commands::coordinator::run(&args),
        Command::Status(args) => commands::status::run(&args),
        Command::Members(args) => commands::members::run(&args),
        Command::Store(args) => commands::store::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Secret(args) => commands::secret::run(args),
        Command::Lab(args) => commands::lab::run(args),
        Command::Debug(args) => commands::debug::run(args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("outlast: {error:#}");
        ExitCode::FAILURE
    })
}
