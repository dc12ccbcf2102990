//! One member of a store that is measured: does what it is told, and says how long it took.

use crate::ExitCode;
use anyhow::Context as _;
use clap::ValueEnum;
use outlast::Store;
use outlast::membership::Preset;
use std::io::BufRead as _;
use std::time::{Duration, Instant};

/// Keys of each member.
const KEYS: u64 = 32;
/// As many quantiles are told of each turn.
const TOLD: usize = 200;
const TIMEOUT: Duration = Duration::from_mins(1);

/// One kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// A set, then a get of the same key
    Pairs,
    /// A get of a key that another member has set
    Get,
    /// One counter for all
    Add,
    /// Whether a key of another member is there
    Check,
    /// A counter, and a key that its last one sets and all wait for
    Barrier,
    /// A value that one member sets, a new key and another member each time, and all others get
    Spread,
}

impl Kind {
    /// All members do it together, so many times.
    pub(super) fn is_common(self) -> bool {
        matches!(self, Self::Barrier | Self::Spread)
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Get => "get",
            Self::Add => "add",
            Self::Check => "check",
            Self::Barrier => "barrier",
            Self::Spread => "spread",
        }
    }
}

/// One member of the measurement.
#[derive(Debug, clap::Args)]
pub(super) struct Member {
    #[arg(long)]
    coordinator: String,
    #[arg(long)]
    rank: u64,
    #[arg(long)]
    members: u64,
    #[arg(long)]
    value_bytes: usize,
    #[arg(long)]
    no_direct: bool,
}

/// Waits for words like `pairs 3 1.5 300` (what, the turn, for how long, or how many), until its input ends.
pub(super) fn run(args: &Member) -> anyhow::Result<ExitCode> {
    let store = Store::builder()
        .coordinator(&*args.coordinator)
        .listen("127.0.0.1:0".parse().context("an address")?)
        .preset(Preset::Local)
        .name(format!("bench {}", args.rank))
        .timeout(TIMEOUT)
        .configure(|config| config.direct = !args.no_direct)
        .join()?;
    let value = vec![b'v'; args.value_bytes];
    for key in 0..KEYS {
        store.set(format!("get/{}/{key}", args.rank), value.clone())?;
    }
    // Everybody is there, and linked with everybody, before anything is measured.
    barrier(&store, "there", args.members)?;
    for member in 0..args.members {
        for key in 0..KEYS {
            store.get(format!("get/{member}/{key}"), None)?;
        }
    }
    println!("@0");
    let mut line = String::new();
    loop {
        line.clear();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            store.leave()?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut words = line.split_whitespace();
        let mut next = || words.next().context("a word is missing");
        let kind = Kind::from_str(next()?, true).map_err(anyhow::Error::msg)?;
        let (turn, lasts, many): (u64, f64, u64) = (next()?.parse()?, next()?.parse()?, next()?.parse()?);
        let many = if kind.is_common() { many } else { u64::MAX };
        let lasts = if kind.is_common() { TIMEOUT } else { Duration::from_secs_f64(lasts) };
        measure(many, lasts, |number| operate(&store, kind, args, (turn, number), &value))?;
    }
}

fn operate(
    store: &Store,
    kind: Kind,
    args: &Member,
    (turn, number): (u64, u64),
    value: &[u8],
) -> anyhow::Result<()> {
    // Every key of every member, in an order in which neighbours do not meet.
    let theirs = || format!("get/{}/{}", (args.rank + 1 + number) % args.members, number * 7 % KEYS);
    match kind {
        Kind::Pairs => {
            let key = format!("pair/{}/{}", args.rank, number % KEYS);
            store.set(&key, value)?;
            store.get(&key, None)?;
        }
        Kind::Get => drop(store.get(theirs(), None)?),
        Kind::Add => drop(store.add("counter", 1)?),
        Kind::Check => drop(store.check(&[theirs()])?),
        Kind::Spread => {
            let key = format!("spread/{turn}/{number}");
            if number % args.members == args.rank {
                store.set(&key, value)?;
            } else {
                store.get(&key, None)?;
            }
        }
        Kind::Barrier => barrier(store, &format!("barrier/{turn}/{number}"), args.members)?,
    }
    Ok(())
}

fn barrier(store: &Store, name: &str, members: u64) -> anyhow::Result<()> {
    let open = format!("{name}/open");
    if store.add(name, 1)? == members as i64 {
        store.set(&open, "")?;
    } else {
        store.wait(&[open], None)?;
    }
    Ok(())
}

fn measure(
    many: u64,
    lasts: Duration,
    mut operate: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut times = Vec::new();
    let (from, begun) = (outlast::clock::now().as_nanos(), Instant::now());
    let mut before = begun;
    while (times.len() as u64) < many && before.duration_since(begun) < lasts {
        operate(times.len() as u64)?;
        let now = Instant::now();
        times.push(now.duration_since(before).as_nanos() as u64);
        before = now;
    }
    let until = outlast::clock::now().as_nanos();
    times.sort_unstable();
    let told = (0..TOLD).map(|at| times[at * (times.len() - 1) / (TOLD - 1)].to_string());
    println!("@{} {from} {until} {}", times.len(), told.collect::<Vec<_>>().join(" "));
    Ok(())
}
