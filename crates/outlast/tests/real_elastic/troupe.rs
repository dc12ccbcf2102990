//! The processes of a storm, and the books that are kept of what they tell.
//!
//! *The line* is the list of steps that count. Every worker tells each step that it committed, and all tellings of a step
//! must be the same to the bit. If everybody who had a step is dead and nobody else goes on from it, what was reached since
//! the checkpoint is lost and done again: the line is cut there, and only there.

use crate::roles::{ADDRESS, FOLDER, NAME, ROLE, SECRET, WEIGHTS, replay};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// Nothing takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) fn spawn_role(role: &str, settings: &[(&str, String)]) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["role", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .envs(settings.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// A coordinator in a process of its own, at one address for the whole run.
pub(crate) struct Service {
    process: Child,
    pub(crate) address: String,
    secret: String,
}

impl Service {
    pub(crate) fn start(address: &str, secret: &str) -> Self {
        let settings = [(ADDRESS, address.to_owned()), (SECRET, secret.to_owned())];
        let mut process = spawn_role("coordinator", &settings);
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let told = lines.by_ref().map_while(Result::ok);
        let ready = { told }.find_map(|line| Some(line.strip_prefix("@ready ")?.to_owned()));
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { process, address: ready.expect("a coordinator that starts"), secret: secret.to_owned() }
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub(crate) fn restart(&mut self, pause: Duration) {
        self.end();
        std::thread::sleep(pause);
        *self = Self::start(&self.address.clone(), &self.secret.clone());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

struct Worker {
    process: Child,
    stdin: Option<ChildStdin>,
    alive: bool,
    /// The last step that it told, and when.
    last: Option<(u64, Instant)>,
    done: Option<(u64, u64, String)>,
}

/// One step that counts.
struct Told {
    digest: String,
    samples: Vec<u64>,
    by: BTreeSet<usize>,
}

/// Whose, and what it says.
type OutputLine = (usize, String);

pub(crate) struct Troupe {
    workers: Vec<Worker>,
    line: BTreeMap<u64, Told>,
    settings: Vec<(&'static str, String)>,
    say: Sender<OutputLine>,
    said: Receiver<OutputLine>,
    pub(crate) faults: Vec<String>,
    pub(crate) given_up: u64,
    pub(crate) without_donor: u64,
}

impl Troupe {
    pub(crate) fn new(service: &Service, folder: PathBuf) -> Self {
        let settings = vec![
            (ADDRESS, service.address.clone()),
            (SECRET, service.secret.clone()),
            (FOLDER, folder.to_string_lossy().into_owned()),
        ];
        let (say, said) = mpsc::channel();
        Self {
            workers: Vec::new(),
            line: BTreeMap::new(),
            settings,
            say,
            said,
            faults: Vec::new(),
            given_up: 0,
            without_donor: 0,
        }
    }

    pub(crate) fn spawn(&mut self) {
        let number = self.workers.len();
        let mut settings = self.settings.clone();
        settings.push((NAME, format!("w{number}")));
        let mut process = spawn_role("worker", &settings);
        let (stdin, output) = (process.stdin.take(), process.stdout.take().expect("its output"));
        let say = self.say.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix('@') {
                    let _ = say.send((number, line.to_owned()));
                }
            }
        });
        self.workers.push(Worker { process, stdin, alive: true, last: None, done: None });
    }

    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|number| self.workers[*number].alive).collect()
    }

    pub(crate) fn kill(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        worker.process.kill().expect("a kill");
        worker.process.wait().expect("an end");
        worker.alive = false;
    }

    pub(crate) fn signal(&self, number: usize, signal: i32) {
        let pid = i32::try_from(self.workers[number].process.id()).expect("a process id");
        // SAFETY: a signal to a child that we have not waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "signal {signal} to w{number}");
    }

    pub(crate) fn steps(&self) -> u64 {
        self.line.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Takes in what is said until it is true, or the time is over.
    pub(crate) fn until(&mut self, time: Duration, mut is_true: impl FnMut(&Self) -> bool) -> bool {
        let deadline = Instant::now() + time;
        while !is_true(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left.min(Duration::from_millis(50))) {
                Ok((number, line)) => self.hear(number, &line),
                Err(_) if !left.is_zero() => {}
                Err(_) => return false,
            }
        }
        true
    }

    pub(crate) fn listen(&mut self, time: Duration) {
        self.until(time, |_| false);
    }

    /// Waits until everybody who lives has told a step after that moment.
    pub(crate) fn all_step(&mut self, since: Instant, context: &str) {
        let stepped = |troupe: &Self| {
            let worker = |number: &usize| troupe.workers[*number].last.is_some_and(|(_, at)| at > since);
            let alive = troupe.alive();
            !alive.is_empty() && alive.iter().all(worker)
        };
        let happened = self.until(PATIENCE, stepped);
        let lasts: Vec<_> = self
            .alive()
            .iter()
            .map(|number| {
                format!("w{number} {:?}", self.workers[*number].last.map(|(step, at)| (step, at.elapsed())))
            })
            .collect();
        assert!(happened, "{context}: they hang: {lasts:?}");
        assert!(self.faults.is_empty(), "{context}: {:#?}", self.faults);
    }

    fn hear(&mut self, number: usize, line: &str) {
        let mut words = line.split(' ');
        match words.next().unwrap_or_default() {
            "ready" | "begin" => {}
            "late" => self.faults.push(format!("w{number} waited in vain: {line}")),
            "nodonor" => {
                self.without_donor += 1;
                let _ = self.workers[number].process.wait();
                self.workers[number].alive = false;
                self.spawn();
            }
            "step" => {
                let step: u64 = words.next().and_then(|word| word.parse().ok()).expect("a number");
                let digest = words.next().unwrap_or_default().to_owned();
                let samples = words.next().unwrap_or_default();
                let samples = samples.split(',').filter_map(|word| word.parse().ok()).collect();
                self.enter(number, step, digest, samples);
            }
            "done" => {
                let mut number_of = || words.next().and_then(|word| word.parse().ok()).expect("a number");
                let (step, open) = (number_of(), number_of());
                self.workers[number].done = Some((step, open, words.next().unwrap_or_default().to_owned()));
            }
            _ => self.faults.push(format!("w{number}: {line}")),
        }
    }

    fn enter(&mut self, number: usize, step: u64, digest: String, samples: Vec<u64>) {
        // A line that was on its way when its teller was killed counts as the others'.
        if let Some(told) = self.line.get(&step)
            && (told.digest != digest || told.samples != samples)
        {
            let lives = |number: &&usize| self.workers[**number].alive;
            let later = self.line.range(step..).flat_map(|(_, told)| &told.by).find(lives);
            match later {
                Some(other) if self.workers[number].alive => {
                    let ours = (&digest, &samples);
                    let theirs = (&told.digest, &told.samples);
                    self.faults.push(format!("step {step}: w{number} has {ours:?}, w{other} {theirs:?}"));
                }
                Some(_) => return,
                None => {
                    self.given_up += self.steps() + 1 - step;
                    self.line.split_off(&step);
                }
            }
        }
        let told = self.line.entry(step).or_insert_with(|| Told { digest, samples, by: BTreeSet::new() });
        told.by.insert(number);
        self.workers[number].last = Some((step, Instant::now()));
    }

    /// Tells all to stop, and holds the end against a replay by one process.
    pub(crate) fn finish(&mut self) {
        for number in self.alive() {
            let _ = self.workers[number].stdin.as_mut().map(|stdin| stdin.write_all(b"stop\n"));
        }
        let ended =
            self.until(PATIENCE, |troupe| troupe.alive().iter().all(|n| troupe.workers[*n].done.is_some()));
        assert!(ended && self.faults.is_empty(), "the end: {:#?}", self.faults);
        let ends: BTreeSet<_> = self.alive().iter().filter_map(|n| self.workers[*n].done.clone()).collect();
        assert_eq!(ends.len(), 1, "they end alike: {ends:?}");
        let (last, open, bits) = ends.into_iter().next().expect("an end");
        assert_eq!(last, self.steps());
        let (mut weights, mut seen) = (vec![0.0; WEIGHTS], BTreeSet::new());
        for step in 1..=last {
            let told = self.line.get(&step).unwrap_or_else(|| panic!("nobody told step {step}"));
            for sample in &told.samples {
                assert!(seen.insert(*sample), "sample {sample} is used again in step {step}");
            }
            if !told.samples.is_empty() {
                replay(&mut weights, &told.samples);
            }
        }
        let end = seen.last().map_or(0, |last| last + 1);
        assert!(
            end - seen.len() as u64 <= open,
            "{} of {end} samples are missing, {open} wait",
            end - seen.len() as u64
        );
        for (weight, bits) in weights.iter().zip(bits.split(',')) {
            let theirs = f64::from_bits(u64::from_str_radix(bits, 16).expect("bits"));
            assert!((weight - theirs).abs() < 1e-9, "a replay comes to {weight}, the training to {theirs}");
        }
    }
}

impl Drop for Troupe {
    fn drop(&mut self) {
        for worker in self.workers.iter_mut().filter(|worker| worker.alive) {
            let _ = worker.process.kill();
            let _ = worker.process.wait();
        }
    }
}
