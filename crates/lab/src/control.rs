//! What `outlast lab` says to a lab's own process, and what comes back: one line of JSON each way over a
//! Unix socket in the lab's directory, which only root can enter.

use crate::counters::LinkCounters;
use crate::error::LabError;
use crate::lab::Lab;
use crate::limits::{ANSWER_DEADLINE, LINE_BYTES_MAX};
use crate::refusal::Refusal;
use crate::registry;
use crate::rule::{Change, Rule};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The links that a request is about: all that lead from `from` to `to`, where none stands for every host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ends {
    /// The sender.
    pub from: Option<String>,
    /// The receiver.
    pub to: Option<String>,
    /// The ways back as well.
    pub both: bool,
}

/// What a lab can be asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant is the method of `Lab` with the same name")]
pub enum Request {
    Status,
    Change { ends: Ends, change: Change },
    Uplink { hosts: Vec<String>, rule: Rule },
    Cut { ends: Ends },
    Heal { ends: Ends },
    Freeze { host: String },
    Halt { host: String },
    Thaw { host: String },
    BlockUdp { host: Option<String>, blocked: bool },
    Reject { host: String, refusal: Option<Refusal> },
    Down,
}

/// What comes back.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It is done.
    Done,
    /// It is done, to this many processes.
    Processes(usize),
    /// How the lab is.
    Status(Status),
    /// Nothing was changed, for this reason.
    Refused(String),
}

/// How a lab is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields say it")]
pub struct Status {
    pub name: String,
    pub pid: u32,
    pub mtu: u32,
    pub hosts: Vec<HostStatus>,
    pub links: Vec<LinkStatus>,
    pub uplinks: Vec<UplinkStatus>,
}

/// What hosts of one site share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// Who is behind it.
    pub hosts: Vec<String>,
    /// Its rule, each way.
    #[serde(flatten)]
    pub rule: Rule,
}

/// How a host is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Processes inside.
    pub processes: usize,
    /// Those of them that are stopped.
    pub stopped: usize,
    /// Its kernel neither hears nor answers.
    pub halted: bool,
    /// UDP to and from it is dropped.
    pub udp_blocked: bool,
    /// What its firewall refuses.
    pub refusal: Option<Refusal>,
}

/// How one direction of a link is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// True while it is cut.
    pub cut: bool,
    /// Its rule.
    #[serde(flatten)]
    pub rule: Rule,
    /// Its totals.
    pub counters: LinkCounters,
}

impl Lab {
    /// How the lab is.
    pub fn status(&self) -> Status {
        let plan = self.switch().plan();
        let hosts = self.hosts().iter().enumerate().map(|(index, host)| {
            let firewall = plan.firewall(index);
            let (processes, stopped) = host.count_processes();
            HostStatus {
                name: host.name().to_owned(),
                address: host.address(),
                processes,
                stopped,
                halted: firewall.halted,
                udp_blocked: firewall.udp_blocked,
                refusal: firewall.refusal,
            }
        });
        let count = plan.hosts();
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let links = pairs.filter(|(from, to)| from != to).map(|(from, to)| LinkStatus {
            from: self.hosts()[from].name().to_owned(),
            to: self.hosts()[to].name().to_owned(),
            cut: plan.pair(from, to).is_cut(),
            rule: plan.pair(from, to).rule,
            counters: self.switch().counters(from, to),
        });
        Status {
            name: self.name().to_owned(),
            pid: std::process::id(),
            mtu: self.mtu(),
            hosts: hosts.collect(),
            links: links.collect(),
            uplinks: plan
                .sites()
                .map(|(hosts, rule)| UplinkStatus {
                    hosts: hosts.map(|host| self.hosts()[host].name().to_owned()).collect(),
                    rule,
                })
                .filter(|uplink| !uplink.hosts.is_empty())
                .collect(),
        }
    }

    /// Does what `request` says, except [`Request::Down`], which needs the lab itself.
    pub(crate) fn handle(&self, request: &Request) -> Result<Reply, LabError> {
        let done = |()| Reply::Done;
        match request {
            Request::Status => Ok(Reply::Status(self.status())),
            Request::Change { ends, change } => {
                self.change(ends.from.as_deref(), ends.to.as_deref(), ends.both, change).map(done)
            }
            Request::Uplink { hosts, rule } => self.uplink(hosts, *rule).map(done),
            Request::Cut { ends } => {
                self.set_cuts(ends.from.as_deref(), ends.to.as_deref(), ends.both, true).map(done)
            }
            Request::Heal { ends } => {
                self.set_cuts(ends.from.as_deref(), ends.to.as_deref(), ends.both, false).map(done)
            }
            Request::Freeze { host } => self.freeze(host).map(Reply::Processes),
            Request::Halt { host } => self.halt(host).map(Reply::Processes),
            Request::Thaw { host } => self.thaw(host).map(Reply::Processes),
            Request::BlockUdp { host: Some(host), blocked } => self.block_udp(host, *blocked).map(done),
            Request::BlockUdp { host: None, blocked } => {
                self.hosts().iter().try_for_each(|host| self.block_udp(host.name(), *blocked)).map(done)
            }
            Request::Reject { host, refusal } => self.reject(host, *refusal).map(done),
            Request::Down => Err(LabError::Refused("taking a lab down needs its owner".to_owned())),
        }
    }
}

pub(crate) fn socket(lab: &str) -> PathBuf {
    registry::directory(lab).join("control")
}

/// Asks the lab named `lab` and waits for its answer.
pub fn ask(lab: &str, request: &Request) -> Result<Reply, LabError> {
    let talk = || -> io::Result<Reply> {
        let stream = UnixStream::connect(socket(lab))?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
        write_line(&stream, request)?;
        read_line(&stream)
    };
    match talk().map_err(LabError::system(format!("talk to lab '{lab}'")))? {
        Reply::Refused(reason) => Err(LabError::Refused(reason)),
        reply => Ok(reply),
    }
}

pub(crate) fn write_line(mut to: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

pub(crate) fn read_line<T: for<'de> Deserialize<'de>>(from: impl Read) -> io::Result<T> {
    let mut line = String::new();
    BufReader::new(from.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the other side ended in the middle of a line",
        ));
    }
    Ok(serde_json::from_str(&line)?)
}
