//! `outlast bench state`: how fast a member gets the group's state, from how many donors, and what of it moves.
//!
//! One process differs from the others in some of its leaves and syncs. The same is measured with one donor and with all
//! of them, by turns in the same processes, so that whatever else the machine does hits both alike. Members that are not
//! to give say so (`receive_only`), and hold the state already. Every healed state is compared with what it must be.

use super::place::Place;
use super::{Members, OnOff, RuleArgs, size};
use crate::ExitCode;
use anyhow::{Context as _, bail, ensure};
use outlast::Communicator;
use outlast::communicator::{Call, Encryption, SyncOptions, SyncReport};
use outlast::membership::Preset;
use outlast::state::{LEAF_BYTES, SharedState, Strategy};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

/// For one sync. A measurement in which nothing moves for so long has failed.
const TIMEOUT: Duration = Duration::from_mins(4);
const KEY: &str = "w";

const EXAMPLES: &str = "\
Example: a gigabyte from three donors over links of 1 Gbit/s each, beside one donor
  sudo outlast bench state --bytes 1GiB --donors 3 --rate 1gbit --differs 100,1,0

Example: on loopback, as JSON
  outlast bench state --bytes 64MiB --json | jq .";

/// Time `sync_state`: a member that differs, one donor and several.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct State {
    /// Size of the state (as in 64MiB, 1GiB)
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64MiB")]
    bytes: usize,
    /// Members that hold it
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    donors: u32,
    /// How much of it differs at the member that is healed, in percent of the leaves, separated by commas
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "100,1,0")]
    differs: Vec<f64>,
    /// How often each is measured; the median is reported
    #[arg(long, default_value_t = 3, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=100))]
    times: u32,
    /// Whether streams between members are encrypted
    #[arg(long, value_enum, default_value = "on")]
    encryption: OnOff,
    /// Links of a lab (needs root) instead of loopback; any of these makes one. Each pair of hosts has a link of its own
    #[command(flatten)]
    link: RuleArgs,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// One of the processes; the first is the one that is healed.
#[derive(Debug, clap::Args)]
pub(super) struct StateMember {
    #[arg(long)]
    number: u32,
    #[arg(long)]
    donors: u32,
    #[arg(long)]
    coordinator: String,
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    bytes: usize,
    #[arg(long, value_delimiter = ',')]
    differs: Vec<f64>,
    #[arg(long)]
    times: u32,
    #[arg(long)]
    encryption: String,
    #[arg(long)]
    lan: bool,
}

pub(super) fn run(args: &State) -> anyhow::Result<ExitCode> {
    if let Some(percent) = args.differs.iter().find(|percent| !(0.0..=100.0).contains(*percent)) {
        bail!("--differs {percent}: it is a share of the leaves, from 0 to 100 percent");
    }
    ensure!(args.bytes > 0, "--bytes 0: there is nothing to heal");
    let place = Place::new(&args.link.change(), args.donors + 1, None)?;
    let encryption = if matches!(args.encryption, OnOff::Off) { "off" } else { "on" };
    let mut members = Members(Vec::new());
    for number in 0..=args.donors {
        let mut command = place.command(number)?;
        command.args(["bench", "state-member", "--number", &number.to_string()]);
        command.args(["--donors", &args.donors.to_string(), "--bytes", &args.bytes.to_string()]);
        command.args(["--coordinator", place.coordinator(), "--listen", &place.listen(number)?]);
        let differs: Vec<_> = args.differs.iter().map(f64::to_string).collect();
        command.args(["--differs", &differs.join(","), "--times", &args.times.to_string()]);
        command.args(["--encryption", encryption]);
        if place.is_lab() {
            command.arg("--lan");
        }
        // The environment, not the command line: other users can read that one.
        command.env("OUTLAST_SECRET", place.secret().to_text()).env_remove("OUTLAST_SECRET_FILE");
        command.env_remove("OUTLAST_RUN_ID").env_remove("OUTLAST_GROUP");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        members.0.push(command.spawn().context("cannot start a member")?);
    }
    let output = members.0[0].stdout.take().context("its output is piped")?;
    let mut out = std::io::stdout();
    if !args.json {
        writeln!(
            out,
            "{:>8}  {:>7}  {:>12}  {:>10}  {:>9}  {:>9}",
            "differs", "donors", "received", "of all", "seconds", "Mbit/s"
        )?;
    }
    for line in BufReader::new(output).lines() {
        let line = line?;
        if args.json {
            writeln!(out, "{line}")?;
            continue;
        }
        let figure: Value =
            serde_json::from_str(&line).context("a member said something that is not JSON")?;
        let number = |key: &str| figure[key].as_f64().unwrap_or(f64::NAN);
        writeln!(
            out,
            "{:>6} %  {:>7}  {:>12}  {:>8.3} %  {:>9.3}  {:>9.0}",
            number("differs_percent"),
            number("donors"),
            number("received"),
            100.0 * number("received") / args.bytes as f64,
            number("seconds"),
            number("bits_per_second") / 1e6,
        )?;
    }
    members.end()?;
    Ok(ExitCode::SUCCESS)
}

/// What a leaf holds in a repetition.
fn value(repetition: u64, leaf: usize) -> u8 {
    (repetition as usize + leaf % 97) as u8
}

pub(super) fn member(args: &StateMember) -> anyhow::Result<ExitCode> {
    // Whoever started us reads what we print; without it there is nothing to measure for.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let comm = Communicator::builder()
        .coordinator(&*args.coordinator)
        .listen(args.listen)
        .preset(if args.lan { Preset::Lan } else { Preset::Local })
        .name(format!("bench-{}", args.number))
        .timeout(TIMEOUT)
        .encryption(if args.encryption == "off" { Encryption::Off } else { Encryption::On })
        .start()?;
    comm.connect(args.donors + 1)?;
    let mut state = SharedState::new();
    state.insert(KEY, vec![0_u8; args.bytes], &[args.bytes as u64])?;
    let mut repetition = 0;
    for percent in &args.differs {
        let counts = if args.donors > 1 { vec![1, args.donors] } else { vec![1] };
        let mut figures: Vec<Vec<SyncReport>> = vec![Vec::new(); counts.len()];
        for _ in 0..args.times {
            for (donors, reports) in counts.iter().zip(&mut figures) {
                repetition += 1;
                reports.push(heal(args, &comm, &mut state, repetition, *donors, *percent)?);
            }
        }
        for (donors, mut reports) in counts.into_iter().zip(figures) {
            if args.number > 0 {
                continue;
            }
            reports.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
            let middle = &reports[reports.len() / 2];
            let line = json!({
                "what": "heal", "bytes": args.bytes, "differs_percent": percent, "donors": donors,
                "leaves": middle.leaves, "received": middle.received, "seconds": middle.seconds,
                "bits_per_second": middle.received as f64 * 8.0 / middle.seconds,
                "encryption": args.encryption, "times": reports.len(),
            });
            let mut out = std::io::stdout().lock();
            writeln!(out, "{line}")?;
            out.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One repetition: everybody holds its state, the first member with differences, and all sync.
fn heal(
    args: &StateMember,
    comm: &Communicator,
    state: &mut SharedState,
    repetition: u64,
    donors: u32,
    percent: f64,
) -> anyhow::Result<SyncReport> {
    let bytes = state.get_mut::<u8>(KEY).context("it was inserted")?;
    let leaves = bytes.len().div_ceil(LEAF_BYTES);
    // Rounded up, so that a small share of few leaves is not nothing.
    let differing = (leaves as f64 * percent / 100.0).ceil() as usize;
    for (leaf, bytes) in bytes.chunks_mut(LEAF_BYTES).enumerate() {
        // Spread evenly, one in every so many.
        let differs = args.number == 0 && leaf * differing / leaves != (leaf + 1) * differing / leaves;
        bytes.fill(value(repetition, leaf) ^ if differs { 0xff } else { 0 });
    }
    let gives = (1..=donors).contains(&args.number);
    state.set_revision((args.number > 0).then_some(repetition));
    comm.barrier(&Call::default())?;
    let strategy = if gives || args.number == 0 { Strategy::Popular } else { Strategy::ReceiveOnly };
    let report = comm.sync_state(state, &SyncOptions::new().strategy(strategy))?;
    ensure!(report.revision == repetition, "revision {} in repetition {repetition}", report.revision);
    if args.number == 0 {
        let healed = state.get::<u8>(KEY).context("it was inserted")?;
        let wrong = |(leaf, bytes): (usize, &[u8])| bytes.iter().any(|byte| *byte != value(repetition, leaf));
        ensure!(
            !healed.chunks(LEAF_BYTES).enumerate().any(wrong),
            "repetition {repetition} healed to something else"
        );
        ensure!(report.leaves == differing as u64, "{} leaves differed, not {differing}", report.leaves);
    }
    Ok(report)
}
