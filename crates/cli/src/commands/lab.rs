//! `outlast lab`: hosts on one machine, and links between them that can be made slow, late, lossy, or cut.
//!
//! A lab lives in a process of its own between two commands (`outlast_lab::daemon`); this file turns what
//! was typed into requests to it, and answers into lines.

mod show;

use crate::ExitCode;
use anyhow::{Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use outlast_lab::control::{Ends, Reply, Request, Status, ask};
use outlast_lab::registry::{self, Card, Found};
use outlast_lab::{Answer, Change, Host, LabError, NewRate, Rate, Refusal, Rule, daemon, host_names, units};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::time::Duration;

/// The word that stands for every host.
const EVERY_HOST: &str = "all";

/// Make hosts out of network namespaces on this machine, and links with rate, delay, jitter, loss and cuts (needs root).
#[derive(Debug, Parser)]
#[command(after_help = "Example: a lab with a slow link that fails and comes back
  sudo outlast lab up --hosts 3
  sudo outlast lab link a b --rate 100mbit --delay 20ms --jitter 2ms --loss 1%
  sudo outlast lab exec b -- python3 -m http.server 8000 &
  sudo outlast lab exec a -- curl http://b:8000/
  sudo outlast lab cut a b
  sudo outlast lab heal
  sudo outlast lab down")]
pub(crate) struct Args {
    /// Which lab; needed only if several are up.
    #[arg(long, global = true, env = "OUTLAST_LAB", value_name = "LAB")]
    name: Option<String>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Bring a lab up.
    #[command(after_help = "Example: four hosts a, b, c, d, every link 1 Gbit/s with 20 ms each way
  sudo outlast lab up --hosts 4 --rate 1gbit --delay 20ms")]
    Up {
        /// How many hosts (named a, b, c, ..), or their names: trainer,store,c.
        #[arg(long, default_value = "2", value_name = "N|NAMES")]
        hosts: String,
        #[command(flatten)]
        rule: RuleArgs,
        /// The largest packet on every link, in bytes.
        #[arg(long, default_value_t = 1_500, value_name = "BYTES")]
        mtu: u32,
        /// The seed of the random numbers that decide which packets are lost.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Take labs down: everything that runs in them ends.
    #[command(after_help = "Example: remove everything, even what killed processes left behind
  sudo outlast lab down --all")]
    Down {
        /// The labs; without any, the only one.
        #[arg(value_name = "LAB")]
        labs: Vec<String>,
        /// Every lab, leftovers of killed processes included; labs of running tests are left alone.
        #[arg(long, conflicts_with = "labs")]
        all: bool,
    },
    /// Change the links between two hosts; what is not named stays as it is.
    #[command(after_help = "Examples:
  sudo outlast lab link a b --delay 50ms              both ways
  sudo outlast lab link a b --loss 5% --one-way       from a to b only
  sudo outlast lab link all all --rate unlimited      every link")]
    Link {
        /// A host, or 'all'.
        from: String,
        /// A host, or 'all'.
        to: String,
        #[command(flatten)]
        rule: RuleArgs,
        /// Only from the first to the second.
        #[arg(long)]
        one_way: bool,
    },
    /// Put hosts behind a shared uplink: all traffic between them and the other hosts passes it, each way.
    #[command(after_help = "Examples:
  sudo outlast lab uplink a c e --rate 200mbit --delay 2ms    a site of three
  sudo outlast lab uplink a c e --rate unlimited              no limit any more")]
    Uplink {
        /// The hosts of the site; a host that was behind another uplink leaves that one.
        #[arg(required = true, value_name = "HOST")]
        hosts: Vec<String>,
        #[command(flatten)]
        rule: RuleArgs,
    },
    /// Cut links silently; what is on the way is lost.
    #[command(after_help = "Examples:
  sudo outlast lab cut a b               both ways between a and b
  sudo outlast lab cut a b --one-way     a's packets to b are lost, b's packets to a arrive
  sudo outlast lab cut a                 a is cut off from everybody")]
    Cut {
        /// A host.
        host: String,
        /// The other one; without it, everybody.
        other: Option<String>,
        /// Only from the first to the second.
        #[arg(long)]
        one_way: bool,
    },
    /// Heal cuts: of a pair, of a host, or all.
    #[command(after_help = "Example: end every cut in the lab
  sudo outlast lab heal")]
    Heal {
        /// A host; without it, every cut.
        host: Option<String>,
        /// The other one; without it, everybody.
        other: Option<String>,
        /// Only from the first to the second.
        #[arg(long, requires = "host")]
        one_way: bool,
    },
    /// Stop a host's processes (SIGSTOP); its kernel still answers.
    #[command(after_help = "Examples:
  sudo outlast lab freeze b              the processes stand still, connections are still accepted
  sudo outlast lab freeze b --whole      the whole host stands still, as a paused virtual machine does")]
    Freeze {
        /// A host.
        host: String,
        /// Silence the kernel too: it neither hears nor answers.
        #[arg(long)]
        whole: bool,
    },
    /// Let a frozen host continue.
    #[command(after_help = "Example: sudo outlast lab thaw b")]
    Thaw {
        /// A host.
        host: String,
    },
    /// Drop UDP to and from a host, silently; TCP still works.
    #[command(after_help = "Examples:
  sudo outlast lab block-udp b
  sudo outlast lab block-udp b --off")]
    BlockUdp {
        /// A host, or 'all'.
        host: String,
        /// Let it pass again.
        #[arg(long)]
        off: bool,
    },
    /// Make a host's firewall refuse what arrives, and say so to the sender.
    #[command(after_help = "Examples:
  sudo outlast lab reject b                               TCP is reset, UDP is unreachable
  sudo outlast lab reject b --only tcp --with prohibited  TCP only, as firewalld says it
  sudo outlast lab reject b --off")]
    Reject {
        /// A host.
        host: String,
        /// Refuse only this protocol.
        #[arg(long)]
        only: Option<Protocol>,
        /// What the firewall says.
        #[arg(long, default_value = "reset")]
        with: With,
        /// Accept again.
        #[arg(long, conflicts_with_all = ["only", "with"])]
        off: bool,
    },
    /// Run a command inside a host.
    #[command(after_help = "Examples:
  sudo outlast lab exec a -- ip address
  sudo outlast lab exec a -- bash")]
    Exec {
        /// A host.
        host: String,
        /// The command and its arguments.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Show the labs, their hosts and links.
    #[command(after_help = "Examples:
  sudo outlast lab list
  sudo outlast lab list --json")]
    List {
        /// Every link, even those that are like most others.
        #[arg(long)]
        links: bool,
        /// JSON instead of tables.
        #[arg(long)]
        json: bool,
    },
    /// The process that holds a lab; `up` starts it.
    #[command(hide = true)]
    Hold,
}

/// How links behave, for every command that makes or changes some.
#[derive(Debug, clap::Args)]
pub(super) struct RuleArgs {
    /// Rate of the line: 100mbit, 1gbit, unlimited.
    #[arg(long, value_parser = parse_rate)]
    rate: Option<NewRate>,
    /// Delay of each packet: 20ms, 250us.
    #[arg(long, value_parser = units::parse_time, value_name = "TIME")]
    delay: Option<Duration>,
    /// How much a packet's delay may vary, up or down: 2ms.
    #[arg(long, value_parser = units::parse_time, value_name = "TIME")]
    jitter: Option<Duration>,
    /// Share of packets that vanish: 1%, 0.5%.
    #[arg(long, value_parser = units::parse_share, value_name = "SHARE")]
    loss: Option<f64>,
    /// How much line time may wait in front of a limited line before packets are dropped: 50ms.
    #[arg(long, value_parser = units::parse_time, value_name = "TIME")]
    queue: Option<Duration>,
}

impl RuleArgs {
    pub(super) fn change(&self) -> Change {
        Change { rate: self.rate, delay: self.delay, jitter: self.jitter, loss: self.loss, queue: self.queue }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum With {
    /// TCP gets a reset, UDP "port unreachable": what a host without a listener says.
    Reset,
    /// Both get "port unreachable": what iptables' REJECT says.
    Unreachable,
    /// Both get "administratively prohibited": what firewalld says.
    Prohibited,
}

fn parse_rate(given: &str) -> Result<NewRate, units::UnitError> {
    if given == "unlimited" {
        return Ok(NewRate::Unlimited);
    }
    given.parse::<Rate>().map(NewRate::Limited)
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let name = args.name.as_deref();
    match args.action {
        Action::Up { hosts, rule, mtu, seed } => up(name, &hosts, &rule, mtu, seed)?,
        Action::Down { labs, all: false } => down(name, labs)?,
        Action::Down { all: true, .. } => return down_all(),
        Action::Link { from, to, rule, one_way } => {
            let change = rule.change();
            if change == Change::default() {
                bail!("nothing to change: give --rate, --delay, --jitter, --loss or --queue");
            }
            let said = format!("changed {}", show::ends(&from, &to, one_way));
            let ends = Ends { from: every(from), to: every(to), both: !one_way };
            request(name, &Request::Change { ends, change }, &said)?;
        }
        Action::Uplink { hosts, rule } => {
            let change = rule.change();
            if change == Change::default() {
                bail!("an uplink without a rule: give --rate, --delay, --jitter, --loss or --queue");
            }
            let rule = Rule::perfect().changed(&change);
            let said = format!("{} share an uplink: {rule}", hosts.join(", "));
            request(name, &Request::Uplink { hosts, rule }, &said)?;
        }
        Action::Cut { host, other, one_way } => {
            let other = other.unwrap_or_else(|| EVERY_HOST.to_owned());
            let said = format!("cut {}", show::ends(&host, &other, one_way));
            let ends = Ends { from: every(host), to: every(other), both: !one_way };
            request(name, &Request::Cut { ends }, &said)?;
        }
        Action::Heal { host, other, one_way } => {
            let [host, other] = [host, other].map(|host| host.unwrap_or_else(|| EVERY_HOST.to_owned()));
            let said = format!("healed {}", show::ends(&host, &other, one_way));
            let ends = Ends { from: every(host), to: every(other), both: !one_way };
            request(name, &Request::Heal { ends }, &said)?;
        }
        Action::Freeze { host, whole: false } => {
            let said = format!("froze {host}");
            request(name, &Request::Freeze { host }, &said)?;
        }
        Action::Freeze { host, whole: true } => {
            let said = format!("halted {host}");
            request(name, &Request::Halt { host }, &said)?;
        }
        Action::Thaw { host } => {
            let said = format!("thawed {host}");
            request(name, &Request::Thaw { host }, &said)?;
        }
        Action::BlockUdp { host, off } => {
            let said = format!("{host}: UDP {}", if off { "passes" } else { "is dropped" });
            request(name, &Request::BlockUdp { host: every(host), blocked: !off }, &said)?;
        }
        Action::Reject { host, only, with, off } => {
            let refusal = (!off).then(|| refusal(only, with));
            let said = format!("{host} {}", refusal.map_or("accepts again".to_owned(), show::refusal));
            request(name, &Request::Reject { host, refusal }, &said)?;
        }
        Action::Exec { host, command } => exec(name, &host, &command)?,
        Action::List { links, json } => list(name, links, json)?,
        Action::Hold => daemon::run()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn up(name: Option<&str>, hosts: &str, rule: &RuleArgs, mtu: u32, seed: u64) -> Result<()> {
    let hosts = match hosts.parse::<usize>() {
        // More than the limit is the lab's own error; no need to make up all the names first.
        Ok(count) => host_names(count.min(outlast_lab::limits::HOSTS_MAX + 1)),
        Err(_) => hosts.split(',').map(str::to_owned).collect(),
    };
    if hosts.iter().any(|host| host == EVERY_HOST) {
        bail!("'{EVERY_HOST}' stands for every host: give the host another name");
    }
    let rule = Rule::perfect().changed(&rule.change());
    let name = name.unwrap_or("lab").to_owned();
    let mut holder = crate::itself()?;
    holder.args(["lab", "hold"]);
    daemon::start(holder, &daemon::Blueprint { name: name.clone(), hosts, rule, mtu, seed })?;
    println!("lab '{name}' is up");
    show::lab(&status(&name)?, false);
    Ok(())
}

fn down(name: Option<&str>, mut labs: Vec<String>) -> Result<()> {
    if labs.is_empty() {
        labs.push(which(name, false)?.name);
    }
    for lab in labs {
        daemon::take_down(&lab)?;
        println!("lab '{lab}' is down");
    }
    Ok(())
}

/// Every lab but those of running tests. Goes on after a failure, because the next lab may still go.
fn down_all() -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let labs = registry::labs()?;
    if labs.is_empty() {
        println!("no lab is up, and nothing was left behind");
    }
    for Found { name, .. } in labs {
        match daemon::take_down(&name) {
            // Another lab's end may have swept this one away in between.
            Ok(()) | Err(LabError::NoLab { .. }) => println!("lab '{name}' is down"),
            Err(error @ LabError::NotServed { .. }) => println!("left alone: {error}"),
            Err(error) => {
                eprintln!("outlast: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn refusal(only: Option<Protocol>, with: With) -> Refusal {
    let refusal = match only {
        None => Refusal::everything(),
        Some(Protocol::Tcp) => Refusal::tcp(),
        Some(Protocol::Udp) => Refusal::udp(),
    };
    refusal.answer(match with {
        With::Reset => Answer::Reset,
        With::Unreachable => Answer::PortUnreachable,
        With::Prohibited => Answer::Prohibited,
    })
}

fn exec(name: Option<&str>, host: &str, command: &[OsString]) -> Result<()> {
    let card = which(name, false)?;
    let Some(found) = card.hosts.iter().find(|card| card.name == host) else {
        let hosts = card.hosts.into_iter().map(|card| card.name).collect();
        return Err(LabError::NoHost { host: host.to_owned(), hosts }.into());
    };
    let inside = Host::attach(&card.name, found)?;
    let (processes, stopped) = inside.count_processes();
    if processes > 0 && processes == stopped {
        return Err(LabError::Frozen { host: host.to_owned() }.into());
    }
    let (program, arguments) = command.split_first().unwrap_or_else(|| unreachable!("clap requires one"));
    // Takes this process's place, so that signals, the terminal and the exit code are the command's own.
    let error = inside.command(program).args(arguments).exec();
    bail!("cannot run '{}' in host '{host}': {error}", program.display());
}

fn list(name: Option<&str>, links: bool, json: bool) -> Result<()> {
    let mut labs = registry::labs()?;
    if let Some(name) = name {
        let names = labs.iter().map(|found| found.name.clone()).collect();
        labs.retain(|found| found.name == name);
        if labs.is_empty() {
            return Err(LabError::NoLab { name: name.to_owned(), labs: names }.into());
        }
    }
    // A lab that does not answer (it is being taken down, or hangs) must not hide the others.
    let served = |found: &Found| found.alive && found.card.as_ref().is_some_and(|card| card.served);
    let details = labs.iter().map(|found| served(found).then(|| status(&found.name).ok()).flatten());
    let details: Vec<Option<Status>> = details.collect();
    if json {
        println!("{:#}", show::json(&labs, &details));
    } else if labs.is_empty() {
        println!("no lab is up: start one with `outlast lab up --hosts 4`");
    } else {
        for (found, details) in labs.iter().zip(&details) {
            match details {
                Some(status) => show::lab(status, links),
                None => show::other(found),
            }
        }
    }
    Ok(())
}

/// The lab that is meant: the one that was named, or else the only one that takes commands.
fn which(name: Option<&str>, needs_commands: bool) -> Result<Card> {
    let labs = registry::labs()?;
    let living = labs.into_iter().filter(|found| found.alive).filter_map(|found| found.card);
    let (mut served, others): (Vec<Card>, Vec<Card>) = living.partition(|card| card.served);
    if let Some(name) = name {
        let names = served.iter().map(|card| card.name.clone()).collect();
        let found = served.into_iter().chain(others).find(|card| card.name == name);
        let card = found.ok_or_else(|| LabError::NoLab { name: name.to_owned(), labs: names })?;
        if needs_commands && !card.served {
            return Err(LabError::NotServed { name: card.name, pid: card.pid }.into());
        }
        return Ok(card);
    }
    if served.len() == 1 {
        return Ok(served.remove(0));
    }
    Err(LabError::WhichLab { labs: served.into_iter().map(|card| card.name).collect() }.into())
}

/// Asks the lab and, once it is done, says what was done.
fn request(name: Option<&str>, request: &Request, said: &str) -> Result<()> {
    let card = which(name, true)?;
    match ask(&card.name, request)? {
        Reply::Processes(1) => println!("{said} (1 process)"),
        Reply::Processes(count) => println!("{said} ({count} processes)"),
        _ => println!("{said}"),
    }
    Ok(())
}

fn status(name: &str) -> Result<Status> {
    match ask(name, &Request::Status)? {
        Reply::Status(status) => Ok(status),
        other => bail!("lab '{name}' gave an answer that nobody asked for: {other:?}"),
    }
}

fn every(host: String) -> Option<String> {
    (host != EVERY_HOST).then_some(host)
}
