//! A lab that is used by hand: a process of its own holds it between two commands.
//!
//! `outlast lab up` starts that process, tells it on standard input what to build, and reads one line back:
//! ready, or why not. From then on it answers requests, one at a time, until it is told to take the lab
//! down. If it is killed, its lab is a leftover like any other (see `registry`).

use crate::control::{self, Reply, Request, ask, read_line, write_line};
use crate::error::LabError;
use crate::lab::Lab;
use crate::limits::ANSWER_DEADLINE;
use crate::registry;
use crate::rule::Rule;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long one client may take to say what it wants; the next one waits meanwhile.
const CLIENT_DEADLINE: Duration = Duration::from_secs(2);

/// What a lab process is told to build.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Blueprint {
    /// The lab's name.
    pub name: String,
    /// The hosts' names.
    pub hosts: Vec<String>,
    /// The rule of every link at the start.
    pub rule: Rule,
    /// The largest packet.
    pub mtu: u32,
    /// The seed of the dice.
    pub seed: u64,
}

/// Starts `command`, which must call [`run`], and returns once the lab is up.
pub fn start(mut command: Command, blueprint: &Blueprint) -> Result<(), LabError> {
    registry::require_root()?;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(LabError::system("start the lab's process"))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(LabError::NotStarted("it has no standard input and output".to_owned()));
    };
    let answer = write_line(input, blueprint).and_then(|()| {
        let timeout = Timespec { tv_sec: ANSWER_DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
        if poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        read_line::<Reply>(output)
    });
    let problem = match answer {
        Ok(Reply::Done) => return Ok(()),
        Ok(Reply::Refused(reason)) => LabError::Refused(reason),
        Ok(_) => LabError::NotStarted("it gave an answer that nobody asked for".to_owned()),
        Err(error) => LabError::NotStarted(error.to_string()),
    };
    // Whatever it has built so far is a leftover, which the next lab removes.
    let _ = child.kill();
    let _ = child.wait();
    Err(problem)
}

/// The lab's process: builds what standard input asks for, answers on standard output, then serves.
pub fn run() -> Result<(), LabError> {
    let blueprint: Blueprint =
        read_line(io::stdin().lock()).map_err(LabError::system("read what lab to build"))?;
    // Ctrl-C in the terminal that started the lab is not meant for the lab.
    rustix::process::setsid().map_err(LabError::errno("leave the terminal's session"))?;
    rustix::process::chdir("/").map_err(LabError::errno("leave the working directory"))?;
    let built = build(blueprint);
    let reply = match &built {
        Ok(_) => Reply::Done,
        Err(error) => Reply::Refused(error.to_string()),
    };
    write_line(io::stdout().lock(), &reply).map_err(LabError::system("report that the lab is up"))?;
    let (lab, listener) = built?;
    let nowhere = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(LabError::system("open /dev/null"))?;
    rustix::stdio::dup2_stdin(&nowhere).map_err(LabError::errno("let go of standard input"))?;
    rustix::stdio::dup2_stdout(&nowhere).map_err(LabError::errno("let go of standard output"))?;
    serve(lab, &listener)
}

fn build(blueprint: Blueprint) -> Result<(Lab, UnixListener), LabError> {
    let lab = Lab::builder(blueprint.name)
        .exact_name()
        .served()
        .hosts(blueprint.hosts)
        .rule(blueprint.rule)
        .mtu(blueprint.mtu)
        .seed(blueprint.seed)
        .start()?;
    let path = registry::directory(lab.name()).join("log");
    let log = std::fs::File::create(&path).map_err(LabError::system(format!("create {}", path.display())))?;
    rustix::stdio::dup2_stderr(&log).map_err(LabError::errno("send messages to the log"))?;
    let path = control::socket(lab.name());
    let listener =
        UnixListener::bind(&path).map_err(LabError::system(format!("listen at {}", path.display())))?;
    Ok((lab, listener))
}

fn serve(lab: Lab, listener: &UnixListener) -> Result<(), LabError> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(LabError::system("accept a command")(error)),
        };
        match receive(&stream) {
            Ok(Request::Down) => {
                let closed = lab.close();
                answer(&stream, closed.as_ref().map(|()| Reply::Done).map_err(ToString::to_string));
                return closed;
            }
            Ok(request) => answer(&stream, lab.handle(&request).map_err(|error| error.to_string())),
            Err(error) => eprintln!("outlast lab: a command could not be read: {error}"),
        }
    }
}

fn receive(stream: &UnixStream) -> io::Result<Request> {
    stream.set_read_timeout(Some(CLIENT_DEADLINE))?;
    stream.set_write_timeout(Some(CLIENT_DEADLINE))?;
    read_line(stream)
}

fn answer(stream: &UnixStream, outcome: Result<Reply, String>) {
    // A client that did not wait for its answer loses nothing but the answer.
    if let Err(error) = write_line(stream, &outcome.unwrap_or_else(Reply::Refused)) {
        eprintln!("outlast lab: an answer was not taken: {error}");
    }
}

/// Takes the lab named `name` down: by asking its process, and if that does not answer, by ending it.
/// A lab that belongs to a running test or bench is left alone.
pub fn take_down(name: &str) -> Result<(), LabError> {
    let labs = registry::labs()?;
    let Some(found) = labs.iter().find(|found| found.name == name) else {
        let labs = labs.into_iter().map(|found| found.name).collect();
        return Err(LabError::NoLab { name: name.to_owned(), labs });
    };
    if found.alive {
        let (pid, served) = found.card.as_ref().map_or((0, false), |card| (card.pid, card.served));
        if !served {
            return Err(LabError::NotServed { name: name.to_owned(), pid });
        }
        if ask(name, &Request::Down).is_ok() {
            return Ok(());
        }
        end(pid);
    }
    registry::sweep().map(drop)
}

/// Ends a lab's process that no longer answers, and waits for its end so that its lock is free.
fn end(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let _ = pidfd_send_signal(&process, Signal::KILL);
    let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
    // A descriptor of a process becomes readable when the process has ended.
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout));
}
