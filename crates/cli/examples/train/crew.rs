//! The processes of the demo: starting, signalling, listening, and leaving none behind.
//!
//! Each process is this program again. What it prints is read by a thread of its own into one bounded queue. Workers are
//! kept by the agent of `outlast run` (see `berth`), which is also what tells them to stop. The coordinator is the
//! director's own child; its standard input tells it, by closing, that the director is gone. Whatever happens, dropping the
//! crew kills everyone, and SIGKILL ends a stopped process too.

use crate::berth::Berth;
use crate::said::{Commit, Said, micros};
use anyhow::{Context as _, Result, bail, ensure};
use outlast::agent::{ExitWitness, Launch};
use outlast::security::{Credentials, RunSecret};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Lines that wait for the director; beyond it the processes wait.
const LINES_MAX: usize = 4_096;
/// A process that was told to end and does not is killed after this long.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long a question about the run may take.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);
/// The run's name; it travels in the environment as for any program.
pub(crate) const RUN: &str = "demo";

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaker {
    /// The coordinator of this number: one that was killed may still be heard.
    Coordinator(usize),
    Worker(usize),
}

/// A line, or the end of all lines.
#[derive(Debug)]
pub(crate) enum Heard {
    Line(String),
    End,
}

/// What the director knows of a worker's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Started, and not yet in the group.
    Joining,
    Training,
    /// We stopped it.
    Stopped,
    /// We killed it.
    Killed,
    /// It trained to the end.
    Done,
}

impl Condition {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Training => "training",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::Done => "done",
        }
    }
}

/// How a newcomer got the state.
#[derive(Clone, Debug)]
pub(crate) struct CaughtUp {
    pub(crate) step: u64,
    /// The donor's id.
    pub(crate) from: String,
    pub(crate) bytes: usize,
    pub(crate) took: Duration,
}

/// How a worker ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finish {
    pub(crate) step: u64,
    pub(crate) digest: String,
    pub(crate) accuracy: f32,
}

/// One worker, alive or not.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) condition: Condition,
    pub(crate) started: u64,
    pub(crate) ended: Option<u64>,
    /// From when to when it was stopped.
    pub(crate) stops: Vec<(u64, u64)>,
    pub(crate) last: Option<Commit>,
    pub(crate) accuracy: Option<f32>,
    pub(crate) caught_up: Option<CaughtUp>,
    pub(crate) finish: Option<Finish>,
    pid: u32,
    /// None once nothing is left of it.
    berth: Option<Berth>,
}

impl Worker {
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }
}

/// All processes.
pub(crate) struct Crew {
    secret: RunSecret,
    address: String,
    coordinator: Option<Child>,
    coordinators: usize,
    /// Since when the present coordinator listens.
    pub(crate) listening_since: Option<u64>,
    pub(crate) workers: Vec<Worker>,
    /// Tells the coordinator whose processes have ended, as any agent does.
    witness: Option<Arc<ExitWitness>>,
    lines: Receiver<(Speaker, Heard)>,
    sender: SyncSender<(Speaker, Heard)>,
    pace: u64,
}

impl Crew {
    pub(crate) fn new(pace: u64) -> Self {
        let (sender, lines) = sync_channel(LINES_MAX);
        Self {
            secret: RunSecret::generate(),
            address: "127.0.0.1:0".to_owned(),
            coordinator: None,
            coordinators: 0,
            listening_since: None,
            workers: Vec::new(),
            witness: None,
            lines,
            sender,
            pace,
        }
    }

    /// What every process finds in its environment.
    fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("OUTLAST_SECRET", self.secret.to_text().clone()),
            ("OUTLAST_COORDINATOR", self.address.clone()),
            ("OUTLAST_RUN_ID", RUN.to_owned()),
        ]
    }

    /// Starts this program as a coordinator, and a thread that reads what it says.
    fn start(&self, speaker: Speaker, arguments: &[&str]) -> Result<Child> {
        let program = std::env::current_exe().context("this program's own path")?;
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .envs(self.variables())
            .env_remove("OUTLAST_SECRET_FILE")
            .env_remove("OUTLAST_GROUP")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C is for the director, which then ends the others in its own way.
            .process_group(0);
        let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        let output = BufReader::new(child.stdout.take().context("a process without output")?);
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send((speaker, Heard::Line(line))).is_err() {
                    return;
                }
            }
            let _ = sender.send((speaker, Heard::End));
        });
        Ok(child)
    }

    /// The one witness of all workers: it finds the coordinator again by itself.
    fn witness(&mut self) -> Result<Arc<ExitWitness>> {
        if let Some(witness) = &self.witness {
            return Ok(Arc::clone(witness));
        }
        let run = RUN.parse().context("the run's name")?;
        let witness = Arc::new(ExitWitness::start(&self.address, &Credentials::from(&self.secret), &run)?);
        self.witness = Some(Arc::clone(&witness));
        Ok(witness)
    }

    /// Starts a coordinator where the last one was. It is ready when `listening_since` says so.
    pub(crate) fn start_coordinator(&mut self) -> Result<()> {
        self.coordinators += 1;
        let speaker = Speaker::Coordinator(self.coordinators);
        self.coordinator = Some(self.start(speaker, &["coordinator", "--listen", &self.address])?);
        Ok(())
    }

    pub(crate) fn kill_coordinator(&mut self) -> Result<u64> {
        let mut process = self.coordinator.take().context("there is no coordinator")?;
        self.listening_since = None;
        let at = micros();
        process.kill().context("killing the coordinator")?;
        process.wait().context("the coordinator's end")?;
        Ok(at)
    }

    /// Starts a worker that waits until the group has that many members.
    pub(crate) fn start_worker(&mut self, name: &str, min_world: usize) -> Result<usize> {
        let number = self.workers.len();
        let (min_world, pace) = (min_world.to_string(), self.pace.to_string());
        let arguments = ["worker", "--name", name, "--min-world", &min_world, "--pace-ms", &pace];
        let witness = self.witness()?;
        let own = [
            "OUTLAST_SECRET",
            "OUTLAST_SECRET_FILE",
            "OUTLAST_COORDINATOR",
            "OUTLAST_RUN_ID",
            "OUTLAST_GROUP",
        ];
        let inherited = std::env::vars_os().filter(|(name, _)| own.iter().all(|own| name != own));
        let mut environment: Vec<(OsString, OsString)> = inherited.collect();
        environment.extend(self.variables().map(|(name, value)| (name.into(), value.into())));
        environment.push(("OUTLAST_AGENT".into(), witness.name().to_string().into()));
        let launch = Launch {
            program: std::env::current_exe().context("this program's own path")?.into(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment,
            processors: None,
        };
        let started = micros();
        let berth = Berth::start(launch, Speaker::Worker(number), self.sender.clone(), Some(witness))?;
        self.workers.push(Worker {
            name: name.to_owned(),
            id: String::new(),
            condition: Condition::Joining,
            started,
            ended: None,
            stops: Vec::new(),
            last: None,
            accuracy: None,
            caught_up: None,
            finish: None,
            pid: berth.pid,
            berth: Some(berth),
        });
        Ok(number)
    }

    pub(crate) fn kill(&mut self, number: usize) -> Result<u64> {
        let worker = &mut self.workers[number];
        let at = micros();
        signal_to(worker, Signal::KILL)?;
        if let Some(berth) = worker.berth.take() {
            berth.wait();
        }
        (worker.condition, worker.ended) = (Condition::Killed, Some(at));
        Ok(at)
    }

    /// SIGSTOP; the moment is one at which the worker does nothing any more.
    pub(crate) fn stop(&mut self, number: usize) -> Result<u64> {
        signal_to(&self.workers[number], Signal::STOP)?;
        let at = micros();
        let worker = &mut self.workers[number];
        worker.condition = Condition::Stopped;
        worker.stops.push((at, u64::MAX));
        Ok(at)
    }

    /// SIGCONT; the moment is one at which the worker does nothing yet.
    pub(crate) fn go_on(&mut self, number: usize) -> Result<u64> {
        let at = micros();
        signal_to(&self.workers[number], Signal::CONT)?;
        let worker = &mut self.workers[number];
        worker.condition = Condition::Training;
        if let Some(stop) = worker.stops.last_mut() {
            stop.1 = at;
        }
        Ok(at)
    }

    /// Tells everybody to stop after a step that they agree on.
    pub(crate) fn tell_stop(&self) {
        let training = self.workers.iter().filter(|worker| worker.condition == Condition::Training);
        training.filter_map(|worker| worker.berth.as_ref()).for_each(Berth::tell_stop);
    }

    /// Takes one line, if one comes before the deadline. A committed step is handed back; whatever must not
    /// happen is an error.
    pub(crate) fn listen(&mut self, deadline: Instant) -> Result<Option<(usize, Commit)>> {
        let patience = deadline.saturating_duration_since(Instant::now());
        let (speaker, heard) = match self.lines.recv_timeout(patience) {
            Ok(heard) => heard,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
        };
        match (speaker, heard) {
            (Speaker::Worker(number), Heard::Line(line)) => {
                let said = serde_json::from_str(&line).with_context(|| format!("{line:?}"))?;
                Ok(self.note(number, said)?.map(|commit| (number, commit)))
            }
            (Speaker::Worker(number), Heard::End) => {
                let worker = &self.workers[number];
                match worker.condition {
                    Condition::Killed | Condition::Done => Ok(None),
                    _ => bail!("{} ended by itself", worker.name),
                }
            }
            (Speaker::Coordinator(which), Heard::Line(line)) if which == self.coordinators => {
                match serde_json::from_str(&line).with_context(|| format!("{line:?}"))? {
                    Said::Listening { address } => {
                        self.address = address;
                        self.listening_since = Some(micros());
                    }
                    other => bail!("the coordinator said {other:?}"),
                }
                Ok(None)
            }
            (Speaker::Coordinator(which), Heard::End)
                if which == self.coordinators && self.coordinator.is_some() =>
            {
                bail!("the coordinator ended by itself")
            }
            (Speaker::Coordinator(_), _) => Ok(None),
        }
    }

    /// Takes a worker's word for what it did.
    fn note(&mut self, number: usize, said: Said) -> Result<Option<Commit>> {
        let worker = &mut self.workers[number];
        match said {
            Said::Ready { id } => worker.id = id,
            Said::CaughtUp { at: _, step, from, bytes, micros } => {
                worker.caught_up = Some(CaughtUp { step, from, bytes, took: Duration::from_micros(micros) });
            }
            Said::Committed(commit) => {
                if worker.condition == Condition::Joining {
                    worker.condition = Condition::Training;
                }
                worker.accuracy = commit.accuracy.or(worker.accuracy);
                worker.last = Some(commit.clone());
                return Ok(Some(commit));
            }
            Said::Done { step, digest, accuracy } => {
                (worker.condition, worker.ended) = (Condition::Done, Some(micros()));
                (worker.accuracy, worker.finish) = (Some(accuracy), Some(Finish { step, digest, accuracy }));
            }
            Said::Failed { why } => bail!("{} could not go on: {why}", worker.name),
            Said::Listening { .. } => bail!("{} is no coordinator and speaks like one", worker.name),
        }
        Ok(None)
    }

    /// The workers that we have not killed.
    pub(crate) fn living(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| worker.condition != Condition::Killed)
    }

    /// The name that goes with an id.
    pub(crate) fn name_of(&self, id: &str) -> &str {
        self.workers.iter().find(|worker| worker.id == id).map_or("somebody", |worker| &worker.name)
    }

    /// How the run stands, as the coordinator tells it.
    pub(crate) fn status(&self) -> Result<serde_json::Value> {
        let run = RUN.parse().context("the run's name")?;
        let text = outlast::coordinator::ask_status(&self.address, &self.secret, &run, STATUS_PATIENCE)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Everything that is known, for whoever must find out what went wrong.
    pub(crate) fn describe(&self) -> String {
        let word = |worker: &Worker| {
            let step = worker.last.as_ref().map_or(0, |commit| commit.step);
            format!("{} (pid {}) is {} at step {step}", worker.name, worker.pid(), worker.condition.word())
        };
        let words: Vec<_> = self.workers.iter().map(word).collect();
        let status = match self.status() {
            Ok(status) => status.to_string(),
            Err(error) => format!("{error:#}"),
        };
        format!("{}. The coordinator: {status}", words.join(", "))
    }

    /// Waits until those who are done have ended, and well.
    pub(crate) fn see_off(&mut self) -> Result<()> {
        let deadline = Instant::now() + END_PATIENCE;
        for worker in self.workers.iter_mut().filter(|worker| worker.condition == Condition::Done) {
            while worker.berth.as_ref().is_some_and(|berth| !berth.is_over()) {
                ensure!(Instant::now() < deadline, "{} is done and does not end", worker.name);
                std::thread::sleep(Duration::from_millis(5));
            }
            if let Some(berth) = worker.berth.take() {
                let code = berth.wait();
                ensure!(code == 0, "{} ended with {code}", worker.name);
            }
        }
        Ok(())
    }
}

/// From outside, as anybody could send it.
fn signal_to(worker: &Worker, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(worker.pid.cast_signed()).context("a worker without a number")?;
    kill_process(pid, signal).with_context(|| format!("a signal to {}", worker.name))
}

impl Drop for Crew {
    fn drop(&mut self) {
        for berth in self.workers.iter_mut().filter_map(|worker| worker.berth.take()) {
            berth.end();
        }
        if let Some(mut process) = self.coordinator.take() {
            // An error means that the process has ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
