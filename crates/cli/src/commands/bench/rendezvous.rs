//! How long it takes until everybody who is there is in.
//!
//! What counts is the time from the last arrival to the last completion: what happened before is somebody's absence, not
//! our doing. Each node is a process of its own, all of them on this machine and its one monotonic clock. They wait for a
//! word, note when they arrive, meet, note when they are in, and say both.
//!
//! torch's own rendezvous is measured the same way, by turns, in processes of Python that speak the same few words.

use super::Members;
use crate::ExitCode;
use anyhow::{Context as _, bail, ensure};
use outlast::membership::Preset;
use outlast::{Coordinator, Rendezvous};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A node of torch's dynamic rendezvous on its c10d backend.
const C10D: &str = include_str!("c10d_node.py");
/// Nobody waits longer than this for the others.
const TIMEOUT: Duration = Duration::from_mins(2);

const EXAMPLES: &str = "\
Example: how long do 2, 8 and 32 agents take to agree, first and again?
  outlast bench rendezvous
  outlast bench rendezvous --nodes 2,8,32 --rounds 10 --json | jq .

Example: beside torch's own, by turns, with the Python that has torch
  outlast bench rendezvous --beside-c10d python3";

/// Time a rendezvous of processes on this machine, from the last arrival to the last completion.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Meet {
    /// Numbers of nodes, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "2,8,32", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=512))]
    nodes: Vec<u16>,
    /// Rounds: the first, and again
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(2..=1_000))]
    rounds: u16,
    /// A running backend, as in etcd://host:port; default: a coordinator is started
    #[arg(long, value_name = "ADDRESS")]
    backend: Option<String>,
    /// A Python with torch: measure its c10d rendezvous in alternation
    #[arg(long, value_name = "PYTHON")]
    beside_c10d: Option<String>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// One node of the measurement.
#[derive(Debug, clap::Args)]
pub(super) struct Node {
    #[arg(long)]
    backend: String,
    #[arg(long)]
    run: String,
    #[arg(long)]
    nodes: usize,
}

/// A process that does something when it is told to.
pub(super) struct Walker {
    pub(super) stdin: ChildStdin,
    pub(super) lines: BufReader<ChildStdout>,
}

impl Walker {
    pub(super) fn of(child: &mut Child) -> anyhow::Result<Self> {
        let stdin = child.stdin.take().context("its input is piped")?;
        let lines = BufReader::new(child.stdout.take().context("its output is piped")?);
        Ok(Self { stdin, lines })
    }

    /// The next line for us: `@` and some numbers.
    pub(super) fn says(&mut self) -> anyhow::Result<Vec<u64>> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line)? == 0 {
                bail!("a node ended early; its message is above");
            }
            if let Some(said) = line.trim().strip_prefix('@') {
                return said.split_whitespace().map(|word| word.parse().context("a number")).collect();
            }
        }
    }
}

pub(super) fn run(args: &Meet) -> anyhow::Result<ExitCode> {
    if !args.json {
        println!("{:>6} {:>10} {:>12} {:>12} {:>12}", "nodes", "what", "first", "again", "worst again");
    }
    for nodes in args.nodes.iter().copied().map(usize::from) {
        let ours = measure(args, nodes, "outlast", &|run| our_nodes(args, nodes, run))?;
        show(args, nodes, "outlast", &ours);
        if let Some(python) = &args.beside_c10d {
            let theirs = measure(args, nodes, "c10d", &|run| c10d_nodes(python, nodes, run))?;
            show(args, nodes, "c10d", &theirs);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The processes of one measurement, and whatever serves them.
type Crowd = (Members, Option<Coordinator>);

/// Milliseconds of each round.
fn measure(
    args: &Meet,
    nodes: usize,
    what: &str,
    start: &dyn Fn(&str) -> anyhow::Result<Crowd>,
) -> anyhow::Result<Vec<f64>> {
    let run = format!("bench-{what}-{}-{nodes}", std::process::id());
    let (mut members, _served) = start(&run)?;
    let mut walkers = members.0.iter_mut().map(Walker::of).collect::<anyhow::Result<Vec<_>>>()?;
    let mut times = Vec::new();
    for _ in 0..args.rounds {
        for walker in &mut walkers {
            walker.says().context("is it ready?")?;
        }
        for walker in &mut walkers {
            writeln!(walker.stdin, "go")?;
        }
        let told = walkers.iter_mut().map(Walker::says).collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(told.iter().all(|told| told.len() == 4), "a node says something else: {told:?}");
        let mut ranks: Vec<_> = told.iter().map(|told| told[2]).collect();
        ranks.sort_unstable();
        ensure!(ranks.iter().copied().eq(0..nodes as u64), "ranks are not 0 to {}: {ranks:?}", nodes - 1);
        let arrived = told.iter().map(|told| told[0]).max().unwrap_or(0);
        let completed = told.iter().map(|told| told[1]).max().unwrap_or(0);
        times.push(completed.saturating_sub(arrived) as f64 / 1e6);
    }
    // Their input ends, and so do they; what they say until then is nobody's concern, but must find an open pipe.
    let _said: Vec<_> = walkers.into_iter().map(|walker| walker.lines).collect();
    members.end()?;
    Ok(times)
}

fn show(args: &Meet, nodes: usize, what: &str, times: &[f64]) {
    let (first, mut again) = (times[0], times[1..].to_vec());
    again.sort_by(f64::total_cmp);
    let (median, worst) = (again[again.len() / 2], again[again.len() - 1]);
    if args.json {
        let line = json!({
            "nodes": nodes, "what": what, "first_ms": first, "again_ms": median, "worst_again_ms": worst,
            "rounds": times.len(),
        });
        println!("{line}");
    } else {
        println!("{nodes:>6} {what:>10} {first:>9.1} ms {median:>9.1} ms {worst:>9.1} ms");
    }
}

fn our_nodes(args: &Meet, nodes: usize, run: &str) -> anyhow::Result<Crowd> {
    let served = if args.backend.is_some() {
        None
    } else {
        let listen = "127.0.0.1:0".parse().context("an address")?;
        Some(Coordinator::builder().listen(listen).preset(Preset::Local).start()?)
    };
    let address = served.as_ref().map(|served| served.address().to_string());
    let backend = args.backend.clone().or(address).context("there is one of both")?;
    let mut members = Members(Vec::new());
    for _ in 0..nodes {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "rendezvous-node", "--backend", &backend, "--run", run]);
        command.args(["--nodes", &nodes.to_string()]);
        if let Some(served) = &served {
            command.env("OUTLAST_SECRET", served.secret().to_text()).env_remove("OUTLAST_SECRET_FILE");
        }
        members.0.push(piped(command)?);
    }
    Ok((members, served))
}

fn c10d_nodes(python: &str, nodes: usize, run: &str) -> anyhow::Result<Crowd> {
    // A port that was free a moment ago, as everybody does it who must name one to torch.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut members = Members(Vec::new());
    for number in 0..nodes {
        let mut command = Command::new(python);
        command.args(["-c", C10D, &port.to_string(), run, &nodes.to_string(), &number.to_string()]);
        members.0.push(piped(command)?);
    }
    Ok((members, None))
}

fn piped(mut command: Command) -> anyhow::Result<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a node")
}

/// One node: meets whenever it is told to, until its input ends.
pub(super) fn node(args: &Node) -> anyhow::Result<ExitCode> {
    let node = Rendezvous::builder(&*args.backend, args.nodes, args.nodes)
        .run_id(args.run.parse()?)
        .join_timeout(TIMEOUT)
        .start()?;
    node.is_closed()?;
    let mut word = String::new();
    loop {
        println!("@0");
        word.clear();
        if std::io::stdin().lock().read_line(&mut word)? == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        let arrived = outlast::clock::now().as_nanos();
        let round = node.next_rendezvous()?;
        println!("@{arrived} {} {} {}", outlast::clock::now().as_nanos(), round.rank, round.round);
    }
}
