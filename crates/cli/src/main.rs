//! The `outlast` program. One file per command under `commands/`; this file only routes.

mod commands;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Collectives that outlast the machines that run them.
#[derive(Debug, Parser)]
#[command(name = "outlast", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Coordinator(commands::coordinator::Args),
    Status(commands::status::Args),
    Members(Box<commands::members::Args>),
    Bench(commands::bench::Args),
    Secret(commands::secret::Args),
    Lab(commands::lab::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome: anyhow::Result<ExitCode> = match cli.command {
        Command::Coordinator(args) => commands::coordinator::run(&args),
        Command::Status(args) => commands::status::run(&args),
        Command::Members(args) => commands::members::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Secret(args) => commands::secret::run(args),
        Command::Lab(args) => commands::lab::run(args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("outlast: {error:#}");
        ExitCode::FAILURE
    })
}
