//! What the store carries, beside torch's own and moodist's, by turns.
//!
//! Every member is a process of its own that waits for a word, does one kind of operation for a while or a number of
//! barriers, and says how often and how long. All crowds are there at once, and take turns: whatever else the machine does
//! hits all of them alike. What is given is the median of the turns, with the quantiles of all calls of all turns.
//!
//! One thing is not alike, and is against us: our writes are with two members when they return, torch's `set` is
//! not even acknowledged (so it is measured in pairs with a `get` of the same key). That all members are on one host is for
//! us: links there leave TLS for pairs of Unix sockets. torch's are plain TCP anywhere.

use super::Members;
use super::rendezvous::Walker;
use super::store_member::Kind;
use crate::ExitCode;
use anyhow::{Context as _, bail, ensure};
use outlast::Coordinator;
use outlast::membership::Preset;
use serde_json::json;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

/// A member of a store that is called from Python: torch's, moodist's, or ours.
const PYTHON: &str = include_str!("store_member.py");

const EXAMPLES: &str = "\
Example: how many operations do 4 and 8 processes get done?
  outlast bench store
  outlast bench store --members 8 --operations pairs,add --json | jq .

Example: beside torch's TCPStore, by turns, with the Python that has torch (and moodist, and outlast, if it has those)
  outlast bench store --beside-torch python3

Example: what do routes cost, where every message goes over the mesh?
  outlast bench store --members 8,32 --no-direct

Example: how long does a value of 1 MiB take from one member to 31 others?
  outlast bench store --members 32 --operations spread --value-bytes 1048576 --barriers 10";

/// Time operations of a store between processes on this machine: how many per second in all, and how long each takes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Bench {
    /// Numbers of processes, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "4,8", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    members: Vec<u16>,
    /// What is measured
    #[arg(long, value_enum, value_delimiter = ',', default_value = "pairs,get,add,check,barrier")]
    operations: Vec<Kind>,
    /// Bytes of a value
    #[arg(long, default_value_t = 32, value_name = "BYTES")]
    value_bytes: usize,
    /// Time for each turn, in seconds
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    seconds: f64,
    /// Barriers, or values that are spread, in each turn
    #[arg(long, default_value_t = 300, value_name = "COUNT")]
    barriers: u32,
    /// Turns of each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    turns: u16,
    /// No links beside the mesh: other members pass messages on
    #[arg(long)]
    no_direct: bool,
    /// A Python with torch: measure its TCPStore in alternation, and moodist's and ours from Python if it has them
    #[arg(long, value_name = "PYTHON")]
    beside_torch: Option<String>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// The processes of one store, and whatever serves them.
struct Crowd {
    name: &'static str,
    walkers: Vec<Walker>,
    members: Members,
    _served: Option<Coordinator>,
}

/// What came of one turn.
struct Turn {
    per_second: f64,
    /// Of each process, in order, at equal distances.
    quantiles: Vec<u64>,
}

impl Crowd {
    fn of(name: &'static str, children: Vec<Child>, served: Option<Coordinator>) -> anyhow::Result<Self> {
        let mut members = Members(children);
        let walkers = members.0.iter_mut().map(Walker::of).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { name, walkers, members, _served: served })
    }

    /// Whether its store has that operation. moodist's has no `add`, and no `compare_set` to make one of.
    fn knows(&self, kind: Kind) -> bool {
        !(self.name == "moodist" && matches!(kind, Kind::Add))
    }

    fn turn(&mut self, kind: Kind, number: u32, args: &Bench) -> anyhow::Result<Turn> {
        for walker in &mut self.walkers {
            let (word, many) = (kind.word(), args.barriers);
            writeln!(walker.stdin, "{word} {number} {} {many}", args.seconds)?;
        }
        let told = self.walkers.iter_mut().map(Walker::says).collect::<anyhow::Result<Vec<_>>>();
        let told = told.with_context(|| format!("{} of {}", kind.word(), self.name))?;
        ensure!(told.iter().all(|told| told.len() > 3), "a member says something else: {told:?}");
        let count: u64 = told.iter().map(|told| told[0]).sum();
        let begun = told.iter().map(|told| told[1]).min().unwrap_or(0);
        let ended = told.iter().map(|told| told[2]).max().unwrap_or(0);
        // A barrier is one, however many take part.
        let count = if kind.is_common() { told[0][0] } else { count };
        let per_second = count as f64 / (ended.saturating_sub(begun).max(1) as f64 / 1e9);
        Ok(Turn { per_second, quantiles: told.iter().flat_map(|told| told[3..].iter().copied()).collect() })
    }
}

pub(super) fn run(args: &Bench) -> anyhow::Result<ExitCode> {
    if !(args.seconds.is_finite() && args.seconds > 0.0) {
        bail!("--seconds {}: it must be more than 0", args.seconds);
    }
    if !args.json {
        println!(
            "{:>8} {:>9} {:>15} {:>12} {:>10} {:>10} {:>8}",
            "members", "operation", "store", "per second", "p50", "p99", "ours is"
        );
    }
    for members in args.members.iter().copied().map(usize::from) {
        let mut crowds = vec![ours(args, members)?];
        if let Some(python) = &args.beside_torch {
            crowds.push(theirs("torch", python, members, args, None)?);
            for name in ["moodist", "outlast-python"] {
                if has(python, name.strip_suffix("-python").unwrap_or(name))? {
                    let served = if name == "moodist" { None } else { Some(coordinator()?) };
                    crowds.push(theirs(name, python, members, args, served)?);
                } else {
                    eprintln!("{name} is not measured: {python} cannot import it");
                }
            }
        }
        for crowd in &mut crowds {
            for walker in &mut crowd.walkers {
                walker.says().with_context(|| format!("{}: is it ready?", crowd.name))?;
            }
        }
        let mut number = 0;
        for kind in &args.operations {
            let mut turns: Vec<Vec<Turn>> = crowds.iter().map(|_| Vec::new()).collect();
            for _ in 0..args.turns {
                number += 1;
                for (crowd, turns) in
                    crowds.iter_mut().zip(&mut turns).filter(|(crowd, _)| crowd.knows(*kind))
                {
                    turns.push(crowd.turn(*kind, number, args)?);
                }
            }
            show(args, members, *kind, &crowds, turns);
        }
        for crowd in crowds {
            let Crowd { walkers, mut members, name, .. } = crowd;
            // Their input ends, and so do they; what they say until then must find an open pipe.
            let _said: Vec<_> = walkers.into_iter().map(|walker| walker.lines).collect();
            members.end().with_context(|| format!("the members of {name}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &Bench, members: usize, kind: Kind, crowds: &[Crowd], turns: Vec<Vec<Turn>>) {
    let mut ours = None;
    for (crowd, turns) in crowds.iter().zip(turns).filter(|(_, turns)| !turns.is_empty()) {
        let mut rates: Vec<_> = turns.iter().map(|turn| turn.per_second).collect();
        rates.sort_by(f64::total_cmp);
        let rate = rates[rates.len() / 2];
        let mut quantiles: Vec<_> = turns.iter().flat_map(|turn| turn.quantiles.iter().copied()).collect();
        quantiles.sort_unstable();
        let quantile = |part: f64| quantiles[((quantiles.len() - 1) as f64 * part) as usize] as f64 / 1e3;
        let (p50, p99) = (quantile(0.5), quantile(0.99));
        let ours = ours.get_or_insert(rate);
        if args.json {
            let line = json!({
                "members": members, "operation": kind.word(), "store": crowd.name, "per_second": rate,
                "slowest_turn": rates[0], "fastest_turn": rates[rates.len() - 1], "p50_us": p50, "p99_us": p99,
                "ours_is": *ours / rate, "direct": !args.no_direct, "value_bytes": args.value_bytes,
            });
            println!("{line}");
        } else {
            let (name, word, times) = (crowd.name, kind.word(), *ours / rate);
            println!(
                "{members:>8} {word:>9} {name:>15} {rate:>12.0} {p50:>7.0} us {p99:>7.0} us {times:>6.2} x"
            );
        }
    }
}

fn coordinator() -> anyhow::Result<Coordinator> {
    let listen = "127.0.0.1:0".parse().context("an address")?;
    Ok(Coordinator::builder().listen(listen).preset(Preset::Local).start()?)
}

fn ours(args: &Bench, members: usize) -> anyhow::Result<Crowd> {
    let served = coordinator()?;
    let mut children = Vec::new();
    for rank in 0..members {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "store-member", "--coordinator", &served.address().to_string()]);
        command.args(["--rank", &rank.to_string(), "--members", &members.to_string()]);
        command.args(["--value-bytes", &args.value_bytes.to_string()]);
        if args.no_direct {
            command.arg("--no-direct");
        }
        command.env("OUTLAST_SECRET", served.secret().to_text()).env_remove("OUTLAST_SECRET_FILE");
        children.push(piped(command)?);
    }
    Crowd::of("outlast", children, Some(served))
}

fn theirs(
    name: &'static str,
    python: &str,
    members: usize,
    args: &Bench,
    served: Option<Coordinator>,
) -> anyhow::Result<Crowd> {
    // A port that was free a moment ago, as everybody does it who must name one to torch.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address =
        served.as_ref().map_or_else(|| format!("127.0.0.1:{port}"), |served| served.address().to_string());
    let mut children = Vec::new();
    for rank in 0..members {
        let mut command = Command::new(python);
        command.args(["-c", PYTHON, name, &address, &rank.to_string(), &members.to_string()]);
        command.arg(args.value_bytes.to_string());
        if let Some(served) = &served {
            command.env("OUTLAST_SECRET", served.secret().to_text()).env_remove("OUTLAST_SECRET_FILE");
        }
        children.push(piped(command)?);
    }
    Crowd::of(name, children, served)
}

fn has(python: &str, module: &str) -> anyhow::Result<bool> {
    let mut command = Command::new(python);
    command.args(["-c", &format!("import torch, {module}")]).stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(status.with_context(|| format!("cannot start {python}"))?.success())
}

fn piped(mut command: Command) -> anyhow::Result<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a member")
}
