//! `outlast coordinator`: the service that counts votes and writes verdicts.
//!
//! It holds nothing that its peers could not tell it again: killed and started at the same address with the
//! same secret, it continues the runs. Nothing here decides anything; it starts [`outlast::Coordinator`],
//! says where it is and how peers find it, and waits for a signal.

use super::address::address;
use super::etcd::EtcdArgs;
use super::group_secret::GroupSecret;
use super::members::{PresetName, duration};
use super::stop::StopSignal;
use super::trust::TrustArgs;
use crate::ExitCode;
use anyhow::Context as _;
use outlast::Coordinator;
use outlast::coordinator::{Backend, CoordinatorError, DEFAULT_PORT};
use std::fmt::Display;
use std::fs::DirBuilder;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::Duration;

/// How often it looks whether it was told to stop, or has ended by itself.
const GLANCE: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "\
Example: a coordinator, and what its peers need to know
  outlast coordinator --listen 0.0.0.0:29400 --secret-file run.secret     # made by: outlast secret new --file run.secret
  OUTLAST_COORDINATOR=10.0.0.1:29400 OUTLAST_SECRET_FILE=run.secret ./train

Killed and started again with the same address and secret, it goes on with its runs. `outlast status` shows them.

Example: three that stand by for each other; the same on each host, with one secret and one etcd
  outlast coordinator --secret-file run.secret --backend etcd:10.0.0.7:2379,10.0.0.8:2379,10.0.0.9:2379
  OUTLAST_COORDINATOR=10.0.0.1:29400,10.0.0.2:29400,10.0.0.3:29400 OUTLAST_SECRET_FILE=run.secret ./train";

/// Serve runs: admit peers, count their votes, write verdicts.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", value_parser = address,
          default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)))]
    listen: SocketAddr,
    /// A file that holds the run secret; default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`, else a new secret
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
    /// Where to keep this coordinator's key, so that its peers recognise it after a restart; default: a file for
    /// each port in your state directory
    #[arg(long, value_name = "FILE", conflicts_with = "forget_key")]
    key_file: Option<PathBuf>,
    /// Where to keep what should outlive this coordinator: `memory` (nothing), `file:PATH` (its key, and for each run the
    /// term, the epochs and who was in), or `etcd:URL[,URL..]` (the same, for several coordinators that stand by for each
    /// other)
    #[arg(long, value_name = "memory|file:PATH|etcd:URL[,URL..]", default_value = "memory")]
    backend: String,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Keep no key: peers trust anybody who holds the secret and answers at this address
    #[arg(long)]
    forget_key: bool,
    /// Times for this kind of network; peers should use the same
    #[arg(long, value_enum, default_value = "lan")]
    preset: PresetName,
    /// Give up on a stalled process after this long (as in 500ms, 60s, 2m); default: the preset's
    #[arg(long, value_name = "TIME", value_parser = duration)]
    stall_budget: Option<Duration>,
    /// Declare a member dead after silence for this long, whoever testified; default: the preset's
    #[arg(long, value_name = "TIME", value_parser = duration)]
    dead_after: Option<Duration>,
    /// Wait this long for a peer that lost its connection and looks alive; default: the preset's
    #[arg(long, value_name = "TIME", value_parser = duration)]
    control_lost_after: Option<Duration>,
}

/// Serves until it is told to stop. If it ends by itself, that is an error.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    outlast::port::raise_files_max();
    let stop = StopSignal::install()?;
    let backend = args.etcd.backend(&args.backend)?;
    let is_one_of_several = backend.is_for_several();
    // Those who stand by for each other must have the same.
    let secret = GroupSecret::find_or_generate(args.secret_file.as_deref(), is_one_of_several)?;
    let mut builder = Coordinator::builder()
        .listen(args.listen)
        .secret(secret.secret().clone())
        .preset(args.preset.preset())
        .backend(backend.clone());
    builder = args.etcd.settle(builder);
    if let Some(budget) = args.stall_budget {
        builder = builder.stall_budget(budget);
    }
    if let Some(silence) = args.dead_after {
        builder = builder.dead_after(silence);
    }
    if let Some(time) = args.control_lost_after {
        builder = builder.control_lost_after(time);
    }
    if let Some(accepted) = args.trust.accepted()? {
        builder = builder.accept_secret(accepted);
    }
    let certificate = args.trust.certificate()?;
    let key_file = match &args.key_file {
        Some(path) => Some(path.clone()),
        // A name in a certificate survives restarts by itself, and nobody comes back to a port that was chosen now.
        None if args.forget_key || certificate.is_some() || args.listen.port() == 0 => None,
        // It holds the key.
        None if backend != Backend::Memory => None,
        // A place that was not asked for must not keep the coordinator from starting.
        None => match default_key_file(args.listen) {
            Ok(path) => Some(path),
            Err(error) => {
                key_is_not_kept(format!("{error:#}"));
                None
            }
        },
    };
    if let Some(certificate) = certificate {
        builder = builder.tls(certificate);
    }
    let started = match &key_file {
        Some(path) => builder.clone().key_file(path).start(),
        None => builder.clone().start(),
    };
    let (coordinator, key_file) = match started {
        Err(CoordinatorError::Key(error)) if args.key_file.is_none() => {
            key_is_not_kept(&error);
            (builder.start()?, None)
        }
        started => (started?, key_file),
    };
    let address = coordinator.address();
    let hand_over = secret.hand_over("coordinator", address)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "coordinator at {address}")?;
    writeln!(out, "{}", hand_over.explanation())?;
    if let Some(path) = &key_file {
        writeln!(out, "its peers recognise it by the key in {}", path.display())?;
    }
    let file = hand_over.file().or(args.secret_file.as_deref());
    let secret = file.map(|file| format!(" OUTLAST_SECRET_FILE={}", file.display())).unwrap_or_default();
    if is_one_of_several {
        writeln!(
            out,
            "one of several at {backend}: it stands by until it is elected; `outlast status` tells who reigns"
        )?;
        writeln!(out, "peers use:  OUTLAST_COORDINATOR={},..(all of them){secret}", reachable(address))?;
    } else {
        writeln!(out, "peers use:  OUTLAST_COORDINATOR={}{secret}", reachable(address))?;
    }
    out.flush()?;
    drop(out);
    while !stop.is_set() {
        // One that serves nobody any more must not look as if it ran: whoever supervises it starts another one.
        coordinator.check()?;
        std::thread::sleep(GLANCE);
    }
    drop(coordinator);
    // Whoever read our lines may have gone.
    let _ = writeln!(std::io::stdout(), "stopped");
    Ok(ExitCode::SUCCESS)
}

fn key_is_not_kept(error: impl Display) {
    eprintln!("outlast: the coordinator's key is not kept ({error}); give --key-file, or say --forget-key");
}

/// A key for each port, where programs keep what should outlive a restart of the machine.
fn default_key_file(listen: SocketAddr) -> anyhow::Result<PathBuf> {
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = given("XDG_STATE_HOME").or_else(|| given("HOME").map(|home| home.join(".local/state")));
    let folder = state.context("neither XDG_STATE_HOME nor HOME is set")?.join("outlast");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.with_context(|| format!("making {}", folder.display()))?;
    // Whoever starts with it makes the file, and so knows whether this is the first time.
    Ok(folder.join(format!("coordinator-{}.key", listen.port())))
}

/// What to type elsewhere: an address that listens everywhere is reached under this host's name.
fn reachable(address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}", address.port())
}
