//! `outlast secret`: makes run secrets.

use crate::ExitCode;
use anyhow::Context as _;
use outlast::security::RunSecret;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Make the secret that the members of a run share.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    New(New),
}

/// Print a new run secret: 256 random bits with a checksum.
///
/// A process that has the secret can join the run; one that does not is refused. Give it to each process as
/// `OUTLAST_SECRET`, or as a file named by `OUTLAST_SECRET_FILE`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  export OUTLAST_SECRET=$(outlast secret new)

  outlast secret new --file run.secret      # readable by you alone
  scp -p run.secret other-host:
  export OUTLAST_SECRET_FILE=run.secret")]
struct New {
    /// Write the secret to this file, readable by its owner alone, instead of printing it. An existing file is
    /// left as it is.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::New(New { file, json }) = args.command;
    let secret = RunSecret::generate().to_text();
    let mut out = std::io::stdout().lock();
    if let Some(path) = file {
        write_once(&path, &secret)?;
        if json {
            writeln!(out, "{}", serde_json::json!({ "file": path }))?;
        } else {
            writeln!(out, "wrote a new run secret to {}", path.display())?;
        }
    } else if json {
        writeln!(out, "{}", serde_json::json!({ "secret": secret }))?;
    } else {
        writeln!(out, "{secret}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_once(path: &Path, secret: &str) -> anyhow::Result<()> {
    // The mode is given at creation, so that the secret is never readable by others, not even for a moment.
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(|| {
            format!("cannot create {} (an existing file is never overwritten)", path.display())
        })?;
    writeln!(file, "{secret}")
        .and_then(|()| file.sync_all())
        .with_context(|| format!("cannot write {}", path.display()))
}
