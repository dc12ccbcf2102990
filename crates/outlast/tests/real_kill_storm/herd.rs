//! The parent's side: it starts workers, kills them, and compares what they tell.
//!
//! Every committed collective is entered into a ledger under its (epoch, tag, seq). Two workers that disagree
//! about contributors or bits are found at once; a worker that lives and never commits what another did is
//! found at the end (`ledger.rs` says what it may have missed). Whoever is thrown out without having been killed is found too.

#[path = "ledger.rs"]
pub(crate) mod ledger;

use crate::roles::{ADDRESS, BYTES_MAX, MIN_WORLD, NAME, ROLE, SECRET, micros};
use ledger::{Account, Entry, Key};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// A worker that says nothing for this long hangs: more than a call's deadline and the verdict's grace.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// One look at what the workers say.
const TURN: Duration = Duration::from_millis(20);

/// This program again, as `role`, with its end of the pipes.
pub(crate) fn spawn_role(role: &str, settings: &[(&str, String)]) -> Child {
    spawn_by(Command::new(std::env::current_exe().expect("this program")), role, settings)
}

/// The same by a command for this program that the caller has prepared, such as one in a lab's host.
pub(crate) fn spawn_by(mut command: Command, role: &str, settings: &[(&str, String)]) -> Child {
    command.args(["role", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).envs(settings.iter().map(|(name, value)| (*name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process")
}

/// One committed collective, as one worker tells it.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub(crate) at: u64,
    pub(crate) began: u64,
    pub(crate) key: Key,
    pub(crate) attempts: u32,
    pub(crate) contributors: Vec<String>,
    hash: String,
    /// Elements of each tensor, rounded to a power of two, and how many were reduced at once.
    pub(crate) shape: (u32, u64),
    /// What was reduced.
    pub(crate) flavour: String,
}

#[derive(Debug)]
struct Worker {
    process: Child,
    stdin: Option<ChildStdin>,
    id: String,
    commits: Vec<Commit>,
    aborts: Vec<u64>,
    outs: Vec<String>,
    account: Account,
    streams: Vec<String>,
    children: Vec<i32>,
    killed: bool,
    done: bool,
}

/// All workers that ever were.
pub(crate) struct Herd {
    settings: Vec<(&'static str, String)>,
    workers: Vec<Worker>,
    lines: Receiver<(usize, String)>,
    sender: Sender<(usize, String)>,
    ledger: BTreeMap<Key, Entry>,
    /// Whatever must not happen and did.
    pub(crate) faults: Vec<String>,
    /// How long a worker may say nothing.
    pub(crate) patience: Duration,
}

impl Herd {
    pub(crate) fn new(address: String, secret: String, bytes_max: usize) -> Self {
        let (sender, lines) = channel();
        let settings = vec![(ADDRESS, address), (SECRET, secret), (BYTES_MAX, bytes_max.to_string())];
        Self {
            settings,
            workers: Vec::new(),
            lines,
            sender,
            ledger: BTreeMap::new(),
            faults: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// A setting for all workers to come.
    pub(crate) fn set(&mut self, name: &'static str, value: impl ToString) {
        self.settings.push((name, value.to_string()));
    }

    pub(crate) fn spawn(&mut self, min_world: u32) -> usize {
        self.spawn_by(Command::new(std::env::current_exe().expect("this program")), min_world, &[])
    }

    /// The same by a command for this program, with settings of its own.
    pub(crate) fn spawn_by(
        &mut self,
        command: Command,
        min_world: u32,
        own: &[(&'static str, String)],
    ) -> usize {
        let number = self.workers.len();
        let mut settings = self.settings.clone();
        settings.extend_from_slice(own);
        settings.push((NAME, format!("w{number}")));
        settings.push((MIN_WORLD, min_world.to_string()));
        let mut process = spawn_by(command, "worker", &settings);
        let out = BufReader::new(process.stdout.take().expect("its output"));
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix('@')
                    && sender.send((number, line.to_owned())).is_err()
                {
                    return;
                }
            }
        });
        let stdin = process.stdin.take();
        self.workers.push(Worker {
            process,
            stdin,
            id: String::new(),
            commits: Vec::new(),
            aborts: Vec::new(),
            outs: Vec::new(),
            account: Account::default(),
            streams: Vec::new(),
            children: Vec::new(),
            killed: false,
            done: false,
        });
        number
    }

    /// The first workers: each waits until all are there.
    pub(crate) fn spawn_all(&mut self, count: u32) {
        for _ in 0..count {
            self.spawn(count);
        }
    }

    pub(crate) fn pid(&self, number: usize) -> i32 {
        i32::try_from(self.workers[number].process.id()).expect("a process id")
    }

    /// SIGKILL, and when.
    pub(crate) fn kill(&mut self, number: usize) -> u64 {
        let worker = &mut self.workers[number];
        worker.killed = true;
        let at = micros();
        worker.process.kill().expect("a kill");
        worker.process.wait().expect("an end");
        at
    }

    /// Has it exit by itself, with success and without a goodbye, and says when.
    pub(crate) fn exit(&mut self, number: usize) -> u64 {
        let worker = &mut self.workers[number];
        worker.killed = true;
        let at = micros();
        let told = worker.stdin.as_mut().map(|stdin| stdin.write_all(b"exit\n"));
        told.expect("its input").expect("it listens");
        let status = worker.process.wait().expect("an end");
        assert!(status.success(), "it was to exit well: {status}");
        at
    }

    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|number| !self.workers[*number].killed).collect()
    }

    /// All workers that ever were.
    pub(crate) fn everybody(&self) -> std::ops::Range<usize> {
        0..self.workers.len()
    }

    pub(crate) fn commits(&self, number: usize) -> &[Commit] {
        &self.workers[number].commits
    }

    pub(crate) fn aborts(&self, number: usize) -> &[u64] {
        &self.workers[number].aborts
    }

    pub(crate) fn outs(&self, number: usize) -> &[String] {
        &self.workers[number].outs
    }

    /// What it decided about the streams of its link.
    pub(crate) fn streams(&self, number: usize) -> &[String] {
        &self.workers[number].streams
    }

    pub(crate) fn id(&self, number: usize) -> &str {
        &self.workers[number].id
    }

    pub(crate) fn collectives(&self) -> usize {
        self.ledger.len()
    }

    /// Listens until the condition holds. False if nothing of the kind happens within `patience`. Time in which
    /// this process itself stood still is not counted: nobody else could move either.
    pub(crate) fn until(&mut self, patience: Duration, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let mut left = patience;
        while !holds(self) {
            let began = Instant::now();
            match self.lines.recv_timeout(left.min(TURN)) {
                Ok((number, line)) => self.hear(number, &line),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(_) => return false,
            }
            left = left.saturating_sub(began.elapsed().min(10 * TURN));
        }
        true
    }

    /// Takes in what is said during that time.
    pub(crate) fn listen(&mut self, time: Duration) {
        self.until(time, |_| false);
    }

    fn hear(&mut self, number: usize, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let worker = &mut self.workers[number];
        match word {
            "ready" => rest.clone_into(&mut worker.id),
            "child" => worker.children.extend(rest.parse::<i32>()),
            "abort" => worker.aborts.extend(rest.parse::<u64>()),
            "out" => {
                worker.outs.push(rest.to_owned());
                worker.account.put_out();
            }
            "streams" => worker.streams.push(rest.to_owned()),
            "done" => worker.done = true,
            "op" => match parse_commit(rest) {
                Some(commit) => self.enter(number, commit),
                None => self.faults.push(format!("w{number} said {line:?}")),
            },
            _ => self.faults.push(format!("w{number}: {line}")),
        }
    }

    fn enter(&mut self, number: usize, commit: Commit) {
        let id = self.workers[number].id.clone();
        if !commit.contributors.contains(&id) {
            self.faults.push(format!("w{number} committed {:?} without contributing", commit.key));
        }
        let entry = self.ledger.entry(commit.key).or_insert_with(|| Entry {
            contributors: commit.contributors.clone(),
            hash: commit.hash.clone(),
            by: BTreeSet::new(),
        });
        if entry.contributors != commit.contributors || entry.hash != commit.hash {
            self.faults.push(format!("w{number} has {commit:?}, others {entry:?}"));
        }
        if !entry.by.insert(id) {
            self.faults.push(format!("w{number} committed {:?} twice", commit.key));
        }
        self.workers[number].account.commit(commit.key);
        self.workers[number].commits.push(commit);
    }

    /// A run begins whose epochs are counted from the start.
    pub(crate) fn forget_ledger(&mut self) {
        self.ledger.clear();
        self.workers.iter_mut().for_each(|worker| worker.account = Account::default());
    }

    /// Tells all to stop, waits for them, and holds the books against each other.
    pub(crate) fn finish(&mut self) {
        for number in self.alive() {
            // One that is gone already is found below.
            let _ = self.workers[number].stdin.as_mut().map(|stdin| stdin.write_all(b"stop\n"));
        }
        let alive = self.alive();
        if !self.until(self.patience, |herd| alive.iter().all(|number| herd.workers[*number].done)) {
            let hung: Vec<_> = alive.iter().filter(|number| !self.workers[**number].done).collect();
            self.faults.push(format!("never stopped: {hung:?}"));
        }
        let workers = alive.iter().map(|number| &self.workers[*number]);
        let living: Vec<_> = workers.map(|worker| (&*worker.id, &worker.account)).collect();
        for (key, silent) in ledger::silent(&self.ledger, &living) {
            let by = &self.ledger[&key].by;
            self.faults.push(format!("{key:?} was committed by {by:?} and never by {silent:?}"));
        }
    }

    /// Panics with everything that went wrong.
    pub(crate) fn check(&self, context: &str) {
        assert!(self.faults.is_empty(), "{context}: {:#?}", &self.faults[..self.faults.len().min(20)]);
    }

    /// For people who look for the reason of a hang.
    pub(crate) fn describe(&self) -> String {
        let describe = |number: &usize| {
            let worker = &self.workers[*number];
            let last = worker.commits.last().map(|commit| (commit.key, micros().saturating_sub(commit.at)));
            format!("w{number} {} last commit and its age {last:?}, done {}", worker.id, worker.done)
        };
        self.alive().iter().map(describe).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Herd {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            if !worker.killed {
                let _ = worker.process.kill();
                let _ = worker.process.wait();
            }
            for child in &worker.children {
                // SAFETY: a child that we know of by its parent's word; it pauses until its alarm.
                unsafe { libc::kill(*child, libc::SIGKILL) };
            }
        }
    }
}

fn parse_commit(rest: &str) -> Option<Commit> {
    let words: Vec<_> = rest.split(' ').collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    Some(Commit {
        at: number(0)?,
        began: number(1)?,
        key: (number(2)?, number(3)?, number(4)?),
        attempts: u32::try_from(number(5)?).ok()?,
        contributors: words.get(7)?.split(',').map(str::to_owned).collect(),
        hash: (*words.get(8)?).to_owned(),
        shape: (number(9)?.max(1).ilog2(), number(10)?),
        flavour: (*words.get(11)?).to_owned(),
    })
}
