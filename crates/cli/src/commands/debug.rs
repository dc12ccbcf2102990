//! `outlast debug`: what processes did lately, from the flight recorders that they carry.
//!
//! A dump is asked for by SIGUSR2, which is how a process can be asked that does nothing else any more; it writes the file by
//! itself, and this command waits for it. A process without a recorder would be killed by the signal, so whoever has none
//! is refused. A merge reads files only: it needs neither the run nor its secret.

mod chrome;
mod dump;
mod flight;
mod stuck;
mod words;

use super::address::coordinators;
use super::run_id::run_id;
use super::trust::TrustArgs;
use crate::ExitCode;
use anyhow::Context as _;
use flight::Flight;
use outlast::communicator;
use outlast::membership::RunId;
use outlast::security::RunSecret;
use serde_json::json;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// How long a peer may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// See what processes did lately: their flight recorders, on one time line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Dump(Dump),
    Merge(Merge),
}

const DUMP_EXAMPLES: &str = "\
Example: everybody of yours on this host writes down what it did lately
  outlast debug dump

Example: peers on other hosts, over their one port; each file is written here
  outlast debug dump --peer 10.0.0.2:41233 --peer 10.0.0.3:40017

Example: one process, such as the coordinator; the same by hand is kill -USR2 PID
  outlast debug dump 4711

Exit code: 0 if every process answered, 1 otherwise.";

/// Ask processes on this host, or peers anywhere, what they did lately.
///
/// Writes the last few thousand messages, calls, links and health events of each communicator and coordinator as JSON lines.
/// The process goes on as before.
#[derive(Debug, clap::Args)]
#[command(after_help = DUMP_EXAMPLES)]
struct Dump {
    /// Which processes; default: all of yours that have a recorder
    #[arg(value_name = "PID")]
    processes: Vec<u32>,
    /// Ask this peer, wherever it is, at its one port; the file is written to the current directory
    #[arg(long = "peer", value_name = "ADDR", value_parser = coordinators, conflicts_with = "processes")]
    peers: Vec<String>,
    /// The run of these peers
    #[arg(long, env = "OUTLAST_RUN_ID", default_value = "default", value_name = "ID", value_parser = run_id)]
    run_id: RunId,
    /// A file that holds the run secret; default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print one JSON object per process
    #[arg(long)]
    json: bool,
}

const MERGE_EXAMPLES: &str = "\
Example: where is it stuck? What each call waits for is told at the end.
  outlast debug merge --text flight-*.jsonl

Example: look at it in chrome://tracing or at ui.perfetto.dev
  outlast debug merge --chrome trace.json flight-*.jsonl > run.jsonl";

/// Put the flight records of several processes on one time line.
///
/// Prints JSON lines, oldest first. Clocks of different hosts are trusted, unless a message would have arrived before it was
/// sent: then its host's clock is moved, and the first line says by how much.
#[derive(Debug, clap::Args)]
#[command(after_help = MERGE_EXAMPLES)]
struct Merge {
    /// Files that processes wrote, in any order; several of one process are joined
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print lines for people, and what every call that is not over waits for
    #[arg(long)]
    text: bool,
    /// Write a trace that `chrome://tracing` and Perfetto can open
    #[arg(long, value_name = "FILE")]
    chrome: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Dump(args) if args.peers.is_empty() => dump::run(&args.processes, args.json),
        Command::Dump(args) => fetch(&args),
        Command::Merge(args) => merge(&args),
    }
}

/// Writes the flight records of peers that are asked over the network.
fn fetch(args: &Dump) -> anyhow::Result<ExitCode> {
    let secret = match &args.secret_file {
        Some(path) => RunSecret::from_file(path)?,
        None => RunSecret::from_environment()?.context(
            "a question to a peer needs the run's secret: set OUTLAST_SECRET or OUTLAST_SECRET_FILE, or give \
             --secret-file",
        )?,
    };
    let credentials = args.trust.credentials(&secret)?;
    let mut code = ExitCode::SUCCESS;
    for peer in &args.peers {
        let fetched = communicator::ask_flight(peer, credentials.clone(), &args.run_id, PATIENCE);
        let written = fetched.map_err(anyhow::Error::from).and_then(|text| {
            let name: String =
                peer.chars().map(|c| if c.is_alphanumeric() || c == '.' { c } else { '_' }).collect();
            let file = PathBuf::from(format!("flight-{name}.jsonl"));
            std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            Ok(file)
        });
        match written {
            Ok(file) if args.json => println!("{}", json!({ "peer": peer, "file": file })),
            Ok(file) => println!("{}", file.display()),
            Err(error) => {
                eprintln!("outlast: {error:#}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn merge(args: &Merge) -> anyhow::Result<ExitCode> {
    let mut flight = Flight::default();
    for path in &args.files {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        flight.add(&text).with_context(|| format!("{} is not a flight record", path.display()))?;
    }
    flight.align();
    let open = stuck::open_calls(&flight);
    if let Some(path) = &args.chrome {
        let trace = chrome::trace(&flight, &open).to_string();
        std::fs::write(path, trace).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = if args.text { words::text(&flight, &open) } else { words::json_lines(&flight, &open) };
    // Whoever read our lines may have gone.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}
