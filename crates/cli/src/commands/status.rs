//! `outlast status`: how a run stands, as its coordinator tells it; or as one of its peers sees it (`--peer`).
//!
//! Looking changes nothing: the question comes over a connection of its own, from nobody in particular. The
//! coordinator answers with one JSON object; `--json` passes it on, otherwise it is put into tables and words.

mod peer;
mod table;
mod topology;

use super::address::coordinators;
use super::json;
use super::run_id::run_id;
use super::stop::StopSignal;
use super::trust::TrustArgs;
use crate::ExitCode;
use anyhow::Context as _;
use outlast::communicator;
use outlast::coordinator::{self, CoordinatorError, DEFAULT_PORT};
use outlast::membership::RunId;
use outlast::security::RunSecret;
use outlast::text::printable;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `EX_UNAVAILABLE` of sysexits: the service is not there.
const UNREACHABLE: u8 = 69;
/// How long the coordinator may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often `--watch` looks.
const REFRESH: Duration = Duration::from_secs(1);
const GLANCE: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "\
Example: who is in the run, and who waits for whom?
  outlast status --coordinator 10.0.0.1:29400 --secret-file run.secret
  outlast status --json | jq -r '.waiting[]'

Example: how fast are the links, and which does the ring use?
  outlast status --topology
  outlast status --topology --svg ring.svg

Example: what does that peer believe, and what does it wait for? It answers even if the coordinator is away.
  outlast status --json | jq -r '.peers[] | [.name, .address] | @tsv'
  outlast status --peer 10.0.0.2:41233

Exit code: 0 if the coordinator or peer answered, 69 if it could not be reached.";

/// Show the state of a run: its peers, its groups, and who waits for whom.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The coordinator, host:port
    #[arg(long, value_name = "ADDR", env = "OUTLAST_COORDINATOR", value_parser = coordinators,
          default_value_t = format!("127.0.0.1:{DEFAULT_PORT}"))]
    coordinator: String,
    /// Ask this peer instead, at its one port: what it knows of its group, its calls, its links, its health table
    #[arg(long, value_name = "ADDR", value_parser = coordinators, conflicts_with = "topology")]
    peer: Option<String>,
    /// The run to show
    #[arg(long, env = "OUTLAST_RUN_ID", default_value = "default", value_name = "ID", value_parser = run_id)]
    run_id: RunId,
    /// A file that holds the run secret; default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
    /// Look again every second until interrupted
    #[arg(long)]
    watch: bool,
    /// Show the links: a table of speeds, and the ring with each link's share of its time
    #[arg(long, conflicts_with = "json")]
    topology: bool,
    /// Also draw the links to a file
    #[arg(long, value_name = "FILE", requires = "topology")]
    svg: Option<PathBuf>,
    /// Print the answer as one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Asks and shows.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let secret = match &args.secret_file {
        Some(path) => RunSecret::from_file(path)?,
        None => RunSecret::from_environment()?.context(
            "a question about a run needs its secret: set OUTLAST_SECRET or OUTLAST_SECRET_FILE, or give \
             --secret-file (the coordinator printed where it wrote it)",
        )?,
    };
    let credentials = args.trust.credentials(&secret)?;
    let stop = StopSignal::install()?;
    let clear = args.watch && !args.json && std::io::stdout().is_terminal();
    loop {
        let asked = Instant::now();
        let answer = match &args.peer {
            Some(peer) => communicator::ask_account(peer, credentials.clone(), &args.run_id, PATIENCE)
                .map_err(anyhow::Error::from),
            None => coordinator::ask_status(&args.coordinator, credentials.clone(), &args.run_id, PATIENCE)
                .map_err(with_remedy)
                .and_then(unless_refused),
        };
        let text = match answer {
            Ok(answer) if args.json => json::printable_line(&answer),
            Ok(answer) => {
                let status: serde_json::Value =
                    serde_json::from_str(&answer).context("the answer is not JSON")?;
                if let Some(path) = &args.svg {
                    std::fs::write(path, topology::svg(&status))
                        .with_context(|| format!("cannot write {}", path.display()))?;
                }
                if args.peer.is_some() {
                    peer::render(&args.run_id, &status)
                } else if args.topology {
                    topology::render(&status)
                } else {
                    table::render(&args.run_id, &args.coordinator, &status)
                }
            }
            // On a screen that is cleared it must be part of what is shown.
            Err(error) if clear => format!("outlast: {error}; looking again\n"),
            Err(error) => {
                eprintln!("outlast: {error}");
                if !args.watch {
                    return Ok(ExitCode::from(UNREACHABLE));
                }
                String::new()
            }
        };
        let mut out = std::io::stdout().lock();
        // Home, the new text, and nothing of the old one below it.
        let written = if clear { write!(out, "\x1b[H\x1b[2J{text}") } else { write!(out, "{text}") };
        if written.and_then(|()| out.flush()).is_err() {
            return Ok(ExitCode::SUCCESS); // Whoever read our lines has gone.
        }
        drop(out);
        while args.watch && !stop.is_set() && asked.elapsed() < REFRESH {
            std::thread::sleep(GLANCE);
        }
        if !args.watch || stop.is_set() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Where nobody listens, there is no coordinator, or it is elsewhere.
fn with_remedy(error: CoordinatorError) -> anyhow::Error {
    match &error {
        CoordinatorError::Unreachable { cause, .. } if cause.starts_with("cannot connect to ") => {
            anyhow::anyhow!(
                "{error}; is it running there? Start one with `outlast coordinator`, or name another with --coordinator"
            )
        }
        _ => error.into(),
    }
}

/// An error if the coordinator refused to tell, in its words: it names the limit and the remedy.
fn unless_refused(answer: String) -> anyhow::Result<String> {
    let refusal = serde_json::from_str::<serde_json::Value>(&answer)
        .ok()
        .and_then(|status| status["error"].as_str().map(|text| printable(text).into_owned()));
    match refusal {
        Some(text) => Err(anyhow::anyhow!("the coordinator refuses to answer: {text}")),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_an_error_in_the_coordinators_words() {
        let error = unless_refused("{\"error\":\"ask again in 0.1 s\\u001b[2J\"}".to_owned()).unwrap_err();
        assert_eq!(error.to_string(), "the coordinator refuses to answer: ask again in 0.1 s\\u{1b}[2J");
        assert_eq!(unless_refused("{\"term\":1}".to_owned()).unwrap(), "{\"term\":1}");
    }
}
