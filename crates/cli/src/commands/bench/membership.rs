//! How soon a death is known to all, and what it costs to know.
//!
//! Every member is a process of its own that does nothing but be a member; all are on this machine and its one monotonic
//! clock. Three things are done to them, and each is counted from the moment of the signal by the members' own clocks: one
//! is killed, and replaced; one is stopped for a while and goes on, which must cost nobody its place; and they are left
//! alone, to see how many packets and how much of a processor that takes.

use super::super::members::PresetName;
use super::Members;
use crate::ExitCode;
use anyhow::{Context as _, bail, ensure};
use outlast::membership::{Event, Happening};
use outlast::security::RunSecret;
use outlast::{Membership, clock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Whatever is waited for has come by then, or the measurement has failed.
const TIMEOUT: Duration = Duration::from_mins(1);
/// How often a member looks whether it is still wanted, and tells how many packets it sent.
const GLANCE: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Example: how soon do 3, 8 and 32 processes know that one of them was killed?
  outlast bench membership
  outlast bench membership --members 8 --preset lan --rounds 20 --json | jq .";

/// Time until all know of a killed process, count the living that are declared dead, and show what health costs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Group {
    /// Numbers of members, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "3,8,32", value_name = "N",
          value_parser = clap::value_parser!(u16).range(2..=256))]
    members: Vec<u16>,
    /// Times for this kind of network
    #[arg(long, value_enum, default_value = "lan")]
    preset: PresetName,
    /// How many processes are killed, and how many are stopped
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    rounds: u16,
    /// How long a process is stopped, in seconds
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    stop: f64,
    /// How long a newcomer has been there when it is killed, in seconds
    ///
    /// What a kernel says of a closed port counts only after it was tried while the member lived: each member does
    /// that at its first answer, so a process that is killed in its first moments is missed by silence alone.
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    settle: f64,
    /// How long they are left alone, in seconds
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    quiet: f64,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// One of the processes.
#[derive(Debug, clap::Args)]
pub(super) struct GroupMember {
    #[arg(long)]
    join: Option<String>,
    #[arg(long, value_enum)]
    preset: PresetName,
}

/// What a member said: a word, when, and about whom; with what it knows by then.
struct Said {
    by: usize,
    word: String,
    at_nanos: u64,
    about: String,
    count: u64,
}

/// A process, and how far it is known to be.
struct Watched {
    child: usize,
    id: String,
    address: String,
    active: u64,
    packets: u64,
}

/// The group as it is measured.
struct Crowd {
    preset: PresetName,
    secret: String,
    processes: Members,
    /// By number of the process; whoever was killed is gone from here.
    alive: BTreeMap<usize, Watched>,
    said: Receiver<Said>,
    tell: Sender<Said>,
    /// Declared dead although it lived.
    wronged: u32,
}

pub(super) fn run(args: &Group) -> anyhow::Result<ExitCode> {
    for (flag, seconds) in [("--stop", args.stop), ("--settle", args.settle), ("--quiet", args.quiet)] {
        ensure!((0.0..=600.0).contains(&seconds), "{flag} {seconds}: it is a time from 0 to 600 seconds");
    }
    if !args.json {
        println!(
            "{:>7} {:>12} {:>14} {:>12} {:>14} {:>12} {:>9}",
            "members", "together", "kill, median", "worst", "wrongly dead", "packets/s", "CPU"
        );
    }
    for count in args.members.iter().copied() {
        measure(args, count)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Group, count: u16) -> anyhow::Result<()> {
    let (tell, said) = channel();
    let mut crowd = Crowd {
        preset: args.preset,
        secret: RunSecret::generate().to_text(),
        processes: Members(Vec::new()),
        alive: BTreeMap::new(),
        said,
        tell,
        wronged: 0,
    };
    let began = clock::now().as_nanos();
    for _ in 0..count {
        crowd.start()?;
    }
    let together = crowd.await_together(usize::from(count))?.saturating_sub(began) as f64 / 1e6;
    let (packets, cpu) = crowd.leave_alone(Duration::from_secs_f64(args.quiet))?;
    let mut known: Vec<f64> = Vec::new();
    for _ in 0..args.rounds {
        crowd.listen_for(Duration::from_secs_f64(args.settle))?;
        known.push(crowd.kill_one()?);
        crowd.start()?;
        crowd.await_together(usize::from(count))?;
    }
    for _ in 0..args.rounds {
        crowd.stop_one(Duration::from_secs_f64(args.stop), usize::from(count))?;
    }
    known.sort_by(f64::total_cmp);
    let (median, worst) = (known[known.len() / 2], known[known.len() - 1]);
    let wronged = crowd.wronged;
    if args.json {
        let line = json!({
            "members": count, "together_ms": together, "kill_known_to_all_ms": median, "kill_worst_ms": worst,
            "settle_seconds": args.settle, "kills": args.rounds, "stops": args.rounds, "stop_seconds": args.stop, "wrongly_dead": wronged,
            "packets_per_second": packets, "cpu_share": cpu,
        });
        println!("{line}");
    } else {
        println!(
            "{count:>7} {together:>9.0} ms {median:>11.0} ms {worst:>9.0} ms {wronged:>14} {packets:>12.1} {:>7.2} %",
            cpu * 100.0
        );
    }
    Ok(())
}

impl Crowd {
    /// Starts a member, which joins through whoever has been there longest.
    fn start(&mut self) -> anyhow::Result<()> {
        let number = self.processes.0.len();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "membership-member", "--preset", self.preset.word()]);
        if let Some(first) = self.alive.values().next() {
            command.args(["--join", &first.address]);
        }
        // The environment, not the command line: other users can read that one.
        command
            .env("OUTLAST_SECRET", &self.secret)
            .env_remove("OUTLAST_SECRET_FILE")
            .env_remove("OUTLAST_RUN_ID");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a member")?;
        let output = child.stdout.take().context("its output is piped")?;
        let tell = self.tell.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Some(said) = parsed(number, &line) else { continue };
                if tell.send(said).is_err() {
                    return;
                }
            }
        });
        self.processes.0.push(child);
        let deadline = Instant::now() + TIMEOUT;
        while !self.alive.contains_key(&number) {
            self.hear(deadline, "a member that was started")?;
        }
        Ok(())
    }

    /// Takes in the next thing that is said. Returns who died by it.
    fn hear(&mut self, deadline: Instant, what: &str) -> anyhow::Result<Option<(usize, u64, String)>> {
        let said = match self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) => bail!("{what}: not within {} s", TIMEOUT.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("every member has ended; its message is above"),
        };
        if said.word == "ready" {
            let (id, address) = said.about.split_once('@').context("a member says who and where it is")?;
            let (id, address) = (id.to_owned(), address.to_owned());
            let watched = Watched { child: said.by, id, address, active: 1, packets: 0 };
            self.alive.insert(said.by, watched);
            return Ok(None);
        }
        let Some(watched) = self.alive.get_mut(&said.by) else { return Ok(None) };
        if said.word == "packets" {
            watched.packets = said.count;
            return Ok(None);
        }
        watched.active = said.count;
        Ok((said.word == "died").then_some((said.by, said.at_nanos, said.about)))
    }

    /// Waits until everybody knows of everybody. Returns when the last one did.
    fn await_together(&mut self, count: usize) -> anyhow::Result<u64> {
        let deadline = Instant::now() + TIMEOUT;
        while self.alive.len() < count || self.alive.values().any(|one| one.active != count as u64) {
            if let Some((.., id)) = self.hear(deadline, "all members together")? {
                self.note_death(&id);
            }
        }
        Ok(clock::now().as_nanos())
    }

    fn note_death(&mut self, id: &str) {
        self.wronged += u32::from(self.alive.values().any(|one| one.id == id));
    }

    /// Packets per member and second, and the share of a processor that a member takes.
    fn leave_alone(&mut self, time: Duration) -> anyhow::Result<(f64, f64)> {
        let before = (self.packets(), self.cpu_seconds()?);
        let began = Instant::now();
        self.listen_for(time)?;
        let seconds = began.elapsed().as_secs_f64() * self.alive.len() as f64;
        let packets = self.packets().saturating_sub(before.0) as f64 / seconds;
        Ok((packets, (self.cpu_seconds()? - before.1).max(0.0) / seconds))
    }

    fn packets(&self) -> u64 {
        self.alive.values().map(|one| one.packets).sum()
    }

    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        let mut ticks = 0.0;
        for one in self.alive.values() {
            let stat = format!("/proc/{}/stat", self.processes.0[one.child].id());
            let stat = std::fs::read_to_string(&stat).with_context(|| format!("cannot read {stat}"))?;
            // Behind the name, which may hold anything, the times are the 12th and 13th word.
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let times = rest.split_whitespace().skip(11).take(2);
            ticks += times.filter_map(|word| word.parse::<f64>().ok()).sum::<f64>();
        }
        Ok(ticks / ticks_per_second)
    }

    /// Takes in what is said for so long.
    fn listen_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            match self.hear(until, "") {
                Ok(Some((.., id))) => self.note_death(&id),
                Ok(None) => {}
                Err(error) if Instant::now() < until => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Kills the youngest, and returns the milliseconds until the last of the others knew.
    fn kill_one(&mut self) -> anyhow::Result<f64> {
        let (_, victim) = self.alive.pop_last().context("somebody is there")?;
        let began = clock::now().as_nanos();
        self.processes.0[victim.child].kill()?;
        self.processes.0[victim.child].wait()?;
        let deadline = Instant::now() + TIMEOUT;
        let mut knew = BTreeMap::new();
        while knew.len() < self.alive.len() {
            match self.hear(deadline, "the death of a killed process")? {
                Some((by, at, id)) if id == victim.id => {
                    knew.entry(by).or_insert(at);
                }
                Some((.., id)) => self.note_death(&id),
                None => {}
            }
        }
        Ok(knew.values().max().map_or(0, |at| at.saturating_sub(began)) as f64 / 1e6)
    }

    /// Stops the youngest for a while, lets it go on, and waits until all is as before.
    fn stop_one(&mut self, time: Duration, count: usize) -> anyhow::Result<()> {
        let (_, youngest) = self.alive.last_key_value().context("somebody is there")?;
        let pid = pid(&self.processes.0[youngest.child])?;
        kill_process(pid, Signal::STOP)?;
        let heard = self.listen_for(time);
        kill_process(pid, Signal::CONT)?;
        heard?;
        self.await_together(count).map(drop)
    }
}

fn pid(child: &Child) -> anyhow::Result<Pid> {
    Pid::from_raw(child.id().try_into()?).context("a process has a number")
}

/// A line of a member, as [`member`] writes it; others are not for us.
fn parsed(by: usize, line: &str) -> Option<Said> {
    let mut words = line.strip_prefix('@')?.split_whitespace();
    let word = words.next()?.to_owned();
    let at_nanos = words.next()?.parse().ok()?;
    let count = words.next()?.parse().ok()?;
    let about = words.next().unwrap_or_default().to_owned();
    Some(Said { by, word, at_nanos, about, count })
}

/// One member: it tells what happens until its input ends.
pub(super) fn member(args: &GroupMember) -> anyhow::Result<ExitCode> {
    let secret = super::super::group_secret::GroupSecret::find_or_generate(None, true)?;
    let builder = Membership::builder().listen("127.0.0.1:0".parse()?).preset(args.preset.preset());
    let membership = builder.secret(secret.secret().clone()).join(args.join.clone()).start()?;
    // Whoever started us is gone when our input ends: nobody is left to measure for.
    std::thread::spawn(|| {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let now = || clock::now().as_nanos();
    println!("@ready {} 1 {}@{}", now(), membership.id(), membership.address());
    let mut due = Instant::now();
    loop {
        for event in membership.events(GLANCE)? {
            let Happening::Event(happened) = &event.what else { continue };
            let word = if matches!(happened, Event::Died { .. }) { "died" } else { "other" };
            let about = happened.about().map(|info| info.id.to_string()).unwrap_or_default();
            println!("@{word} {} {} {about}", event.at.as_nanos(), event.active);
        }
        if Instant::now() >= due {
            due = Instant::now() + GLANCE;
            println!("@packets {} {}", now(), membership.counters().packets_sent);
        }
    }
}
