//! `outlast bench`: what it costs, measured with real processes on this machine.
//!
//! A figure is worth something beside another one that was taken under the same conditions. So `all-reduce`
//! measures the whole thing and the bare ring (the same bytes without votes) by turns of a few operations,
//! in the same processes: whatever else the machine does meanwhile hits both alike, and the difference is what
//! votes cost. Every result is checked once per size before it is timed.
//!
//! The processes are this program again; they meet through a coordinator inside the first one. With a rate, a delay
//! or a loss they live on hosts of a lab whose links are like that, with a coordinator on a host of its own; then
//! the bare ring makes room for what plain TCP streams carry around the same ring, which is what no all-reduce
//! can beat.

mod hash;
mod member;
mod membership;
mod place;
mod rendezvous;
mod report;
mod state;
mod store;
mod store_member;
mod stream;
mod topology;

use super::lab::RuleArgs;
use crate::ExitCode;
use anyhow::{Context as _, bail};
use clap::{Subcommand, ValueEnum};
use member::Kind;
use outlast::communicator::Encryption;
use place::Place;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// After the last line of the first member the others have this long to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const GLANCE: Duration = Duration::from_millis(20);

const EXAMPLES: &str = "\
Example: what do votes and encryption cost here?
  outlast bench all-reduce --world 4 --bytes 64KiB,1MiB,16MiB
  outlast bench all-reduce --encryption off --json | jq .

Example: how much of a link of 1 Gbit/s do four hosts use, by type?
  sudo outlast bench all-reduce --world 4 --rate 1gbit --delay 100us --bytes 64MiB --types f32,bf16,int8,int4";

/// Measure on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    AllReduce(AllReduce),
    Hash(hash::Hash),
    State(state::State),
    Topology(topology::Topology),
    Rendezvous(rendezvous::Meet),
    Membership(membership::Group),
    /// One of the members of a group whose health is measured; started by the others.
    #[command(hide = true)]
    MembershipMember(membership::GroupMember),
    Store(store::Bench),
    /// One of the members of a store that is measured; started by the others.
    #[command(hide = true)]
    StoreMember(store_member::Member),
    /// One of the nodes of a rendezvous that is measured; started by the others.
    #[command(hide = true)]
    RendezvousNode(rendezvous::Node),
    /// One of the processes of a measurement; started by the others.
    #[command(hide = true)]
    Member(member::Member),
    /// The same for the state.
    #[command(hide = true)]
    StateMember(state::StateMember),
}

/// Time all-reduce between processes over loopback, with votes and without; or over the links of a lab.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct AllReduce {
    /// Processes
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    world: u32,
    /// Sizes of the tensor, separated by commas (as in 4096, 64KiB, 16MiB)
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size,
          default_value = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB")]
    bytes: Vec<usize>,
    /// Whether data links are encrypted
    #[arg(long, value_enum, default_value = "on")]
    encryption: OnOff,
    /// Only the bare ring: no votes, no receipts, never encrypted
    #[arg(long)]
    no_votes: bool,
    /// Only with votes: do not measure the bare ring in alternation
    #[arg(long, conflicts_with = "no_votes")]
    no_ring: bool,
    /// Let the members of the bare ring wait for each other before each operation, as votes make them do: the
    /// difference that remains is the price of voting alone
    #[arg(long, conflicts_with = "no_ring")]
    in_step: bool,
    /// What to reduce: as many elements of each type as f32 would have in that size
    #[arg(long, value_enum, value_delimiter = ',', default_value = "f32")]
    types: Vec<Kind>,
    /// Links of a lab (needs root) instead of loopback; any of these makes one
    #[command(flatten)]
    link: RuleArgs,
    /// The hosts' TCP congestion control, as in reno; default: the machine's own
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// The most streams per link
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    streams: u8,
    /// Calls before the first that counts: it takes about thirty to find out how many streams help
    #[arg(long, default_value_t = 3, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    warm_up: u32,
    /// Time for each size, in seconds
    #[arg(long, default_value_t = 1.5, value_name = "SECONDS")]
    seconds: f64,
    /// Run without flight recorders, to see what they cost
    #[arg(long)]
    no_recorder: bool,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnOff {
    On,
    Off,
}

/// What one measurement is told on its command line, and what the members measure.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::AllReduce(args) => all_reduce(args),
        What::Hash(args) => hash::run(args),
        What::State(args) => state::run(args),
        What::StateMember(args) => state::member(args),
        What::Topology(args) => topology::run(args),
        What::Rendezvous(args) => rendezvous::run(args),
        What::RendezvousNode(args) => rendezvous::node(args),
        What::Membership(args) => membership::run(args),
        What::MembershipMember(args) => membership::member(args),
        What::Store(args) => store::run(args),
        What::StoreMember(args) => store_member::run(args),
        What::Member(args) => member::run(args),
    }
}

fn all_reduce(args: &AllReduce) -> anyhow::Result<ExitCode> {
    if !(args.seconds.is_finite() && args.seconds > 0.0) {
        bail!("--seconds {}: it must be more than 0", args.seconds);
    }
    if args.no_recorder {
        outlast::recorder::pause();
    }
    let place = Place::new(&args.link.change(), args.world, args.congestion.as_deref())?;
    let in_lab = place.is_lab();
    if !in_lab && args.congestion.is_some() {
        bail!("--congestion is for hosts of a lab: give --rate, --delay or --loss too");
    }
    if in_lab && args.no_votes {
        bail!(
            "the bare ring (--no-votes) runs on loopback only: leave out --rate, --delay, --loss and the like"
        );
    }
    let encryption = match args.encryption {
        OnOff::On => Encryption::On,
        OnOff::Off => Encryption::Off,
    };
    let mut members = Members(Vec::new());
    for number in 0..args.world {
        let mut command = place.command(number)?;
        command.args([
            "bench",
            "member",
            "--number",
            &number.to_string(),
            "--world",
            &args.world.to_string(),
        ]);
        command.args(["--encryption", &encryption.to_string(), "--seconds", &args.seconds.to_string()]);
        command.args(["--coordinator", place.coordinator(), "--listen", &place.listen(number)?]);
        let types: Vec<_> = args.types.iter().map(|kind| kind.name()).collect();
        command.args(["--types", &types.join(",")]);
        command.args(["--streams-max", &args.streams.to_string(), "--warm-up", &args.warm_up.to_string()]);
        if in_lab {
            command.arg("--streams");
        }
        let sizes: Vec<_> = args.bytes.iter().map(usize::to_string).collect();
        command.args(["--bytes", &sizes.join(",")]);
        if !args.no_votes {
            command.arg("--votes");
        }
        if !args.no_ring && !in_lab {
            command.arg("--ring");
        }
        if args.in_step {
            command.arg("--in-step");
        }
        if args.no_recorder {
            command.arg("--no-recorder");
        }
        // The environment, not the command line: other users can read that one.
        command.env("OUTLAST_SECRET", place.secret().to_text()).env_remove("OUTLAST_SECRET_FILE");
        command.env_remove("OUTLAST_RUN_ID").env_remove("OUTLAST_GROUP");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        members.0.push(command.spawn().context("cannot start a member")?);
    }
    let output = members.0[0].stdout.take().context("its output is piped")?;
    let mut report = report::Report::new(args.json, in_lab);
    for line in BufReader::new(output).lines() {
        report.add(&line?)?;
    }
    members.end()?;
    report.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// The processes of one measurement; none outlives it.
struct Members(Vec<Child>);

impl Members {
    /// Waits for all; one that failed ends the others.
    fn end(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + END_TIMEOUT;
        for (number, child) in self.0.iter_mut().enumerate() {
            let status = loop {
                if let Some(status) = child.try_wait()? {
                    break status;
                }
                if Instant::now() > deadline {
                    bail!("member {number} does not end");
                }
                std::thread::sleep(GLANCE);
            };
            if !status.success() {
                bail!("member {number} failed: {status}; its message is above");
            }
        }
        Ok(())
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// As in `4096`, `64KiB`, `16MiB`, `1GiB`.
fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" | "K" | "k" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        unit => return Err(format!("{unit:?} is not a unit: write KiB, MiB or GiB")),
    };
    let number: usize = digits.parse().map_err(|error| format!("{digits:?}: {error}"))?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= 64 << 30);
    bytes.ok_or_else(|| format!("{text} is more than 64 GiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!([size("12"), size("4KiB"), size("256MiB")], [Ok(12), Ok(4 << 10), Ok(256 << 20)]);
        assert!(size("3 apples").is_err() && size("-1").is_err() && size("99999GiB").is_err());
    }
}
