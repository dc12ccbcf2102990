//! Is the sentence of diagnosis right? Causes are injected in a lab, and what every survivor blames is held against them.
//!
//! Three workers on three hosts, a coordinator on a fourth. Each round is a run of its own: all reduce once, then something goes
//! wrong in or before the next call, whose error must name the cause and, where somebody is to blame, the name. `bench/blame`
//! makes the table of `bench/RESULTS.md` from many rounds; one round of each cause is a test. Needs root; says SKIPPED
//! otherwise.

mod roles;
#[path = "../support/stopped.rs"]
mod stopped;

use outlast_lab::{Lab, LabError, Rule};
use roles::{ADDRESS, NAME, ROLE, SECRET};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use stopped::wait_until_stopped;

const HOSTS: [&str; 3] = ["a", "b", "c"];
/// Where the coordinator lives.
const CLERK: &str = "k";
/// How long anything may take here: far beyond every deadline.
const PATIENCE: Duration = Duration::from_secs(50);
/// How long members have known each other when one of them is stopped.
const ACQUAINTANCE: Duration = Duration::from_secs(2);
/// A small call, and one that takes far longer than its deadline over a slow link.
const SMALL: usize = 1_000;
const LARGE: usize = 1 << 20;

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("worker") => roles::worker(),
        Ok("coordinator") => roles::coordinator(),
        _ => {}
    }
}

/// What is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Dead,
    Stalled,
    NotCalling,
    SlowLink,
    Partition,
    CoordinatorAway,
}

impl Cause {
    const ALL: [Self; 6] =
        [Self::Dead, Self::Stalled, Self::NotCalling, Self::SlowLink, Self::Partition, Self::CoordinatorAway];

    /// The word that the diagnosis has for it.
    const fn word(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Stalled => "stalled",
            Self::NotCalling => "not calling",
            Self::SlowLink => "slow link",
            Self::Partition => "partition",
            Self::CoordinatorAway => "coordinator away",
        }
    }
}

/// One process, and what it says.
struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    fn start(lab: &Lab, host: &str, role: &str, settings: &[(&str, String)]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = lab.host(host).expect("a host").command(program);
        command.args(["role", "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
        command.envs(settings.iter().map(|(name, value)| (*name, value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let told = output
                .lines()
                .map_while(Result::ok)
                .filter_map(|line| Some(line.strip_prefix('@')?.to_owned()));
            told.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        Self { child, input, lines }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it listens");
    }

    /// What it says next.
    fn hear(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something in time")
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        // SAFETY: a signal to a child that we have not waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one survivor blamed, and whether it was right.
#[derive(Debug)]
struct Verdict {
    right: bool,
    words: String,
}

fn lab() -> Option<Lab> {
    match Lab::new("blm", HOSTS.into_iter().chain([CLERK])) {
        Err(LabError::NotRoot) => {
            eprintln!("SKIPPED: the lab needs root");
            None
        }
        lab => Some(lab.expect("a lab")),
    }
}

/// One run in which one thing goes wrong; what each survivor says of it.
fn round(lab: &Lab, cause: Cause, number: usize) -> Vec<Verdict> {
    lab.heal_all().expect("a heal");
    lab.set_all(Rule::perfect()).expect("perfect links");
    let secret = outlast::security::RunSecret::generate().to_text();
    let address = format!("{}:29400", lab.host(CLERK).expect("a host").address());
    let settings = [(ADDRESS, address), (SECRET, secret)];
    let coordinator = Process::start(lab, CLERK, "coordinator", &settings);
    assert_eq!(coordinator.hear(), "ready");
    let mut workers: Vec<_> = HOSTS
        .iter()
        .enumerate()
        .map(|(at, host)| {
            let listen = format!("{}:7000", lab.host(host).expect("a host").address());
            let own = [&settings[..], &[(NAME, format!("w{at}")), (roles::LISTEN, listen)]].concat();
            Process::start(lab, host, "worker", &own)
        })
        .collect();
    for worker in &workers {
        assert_eq!(worker.hear(), "ready");
    }
    for worker in &mut workers {
        worker.tell(&format!("call 20000 {SMALL} retry"));
    }
    for worker in &workers {
        assert_eq!(worker.hear(), "ok");
    }
    // A kernel's word counts once it was tried (rule 22), which takes the health plane a sweep or two. Before that a process
    // that is stopped looks like one that is gone, and is put out.
    if cause == Cause::Stalled {
        std::thread::sleep(ACQUAINTANCE);
    }
    // The ranks take turns; so does whether the victim is in the call when it is struck.
    let (victim, in_call) = (number % HOSTS.len(), (number / HOSTS.len()).is_multiple_of(2));
    let name = format!("w{victim}");
    let others: Vec<_> = (0..HOSTS.len()).filter(|at| *at != victim).collect();
    let ask = |workers: &mut Vec<Process>, who: &[usize], call: &str| {
        who.iter().for_each(|at| workers[*at].tell(call));
    };
    match cause {
        Cause::Dead => {
            ask(&mut workers, &others, &format!("call 20000 {SMALL} once"));
            std::thread::sleep(Duration::from_millis(200 + 30 * (number as u64 % 5)));
            workers[victim].signal(libc::SIGKILL);
        }
        Cause::Stalled => {
            if in_call {
                ask(&mut workers, &[victim], &format!("call 4000 {SMALL} retry"));
                std::thread::sleep(Duration::from_millis(100));
            }
            workers[victim].signal(libc::SIGSTOP);
            wait_until_stopped(workers[victim].child.id());
            ask(&mut workers, &others, &format!("call 4000 {SMALL} retry"));
        }
        Cause::NotCalling => ask(&mut workers, &others, &format!("call 2000 {SMALL} retry")),
        Cause::SlowLink => {
            let slow = Rule::perfect().rate("2mbit".parse().expect("a rate"));
            for other in &others {
                lab.set(HOSTS[victim], HOSTS[*other], slow).expect("a slow link");
            }
            ask(&mut workers, &[0, 1, 2], &format!("call 5000 {LARGE} retry"));
        }
        Cause::Partition => {
            ask(&mut workers, &others, &format!("call 20000 {SMALL} once"));
            if in_call {
                std::thread::sleep(Duration::from_millis(100));
            }
            lab.isolate(HOSTS[victim]).expect("a cut");
        }
        Cause::CoordinatorAway => {
            coordinator.signal(libc::SIGKILL);
            let everybody = [0, 1, 2];
            std::thread::sleep(Duration::from_millis(if in_call { 0 } else { 300 }));
            ask(&mut workers, &everybody, &format!("call 3000 {SMALL} retry"));
        }
    }
    let judges = match cause {
        Cause::SlowLink | Cause::CoordinatorAway => vec![0, 1, 2],
        _ => others,
    };
    judges
        .into_iter()
        .map(|at| {
            let words = workers[at].hear();
            let named = match cause {
                Cause::CoordinatorAway => true,
                // Whoever is at the sending end of the slow link knows which it is; the others know that it is not theirs.
                Cause::SlowLink if at == victim => {
                    words.contains("the link from this member to w") && words.contains(" MB/s")
                }
                Cause::SlowLink => words.contains("not this member's own"),
                _ => words.contains(&format!("{name} ")),
            };
            let right = words.starts_with(&format!("error {}: ", cause.word())) && named;
            Verdict { right, words }
        })
        .collect()
}

/// One of each: all survivors are right, as the table asks for in 95 of 100.
#[test]
fn each_cause_is_blamed_for_what_it_did() {
    let Some(lab) = lab() else { return };
    let mut wrong = Vec::new();
    for (number, cause) in Cause::ALL.into_iter().enumerate() {
        let began = Instant::now();
        let verdicts = round(&lab, cause, number);
        println!("{cause:?} after {:?}: {verdicts:#?}", began.elapsed());
        wrong.extend(verdicts.into_iter().filter(|verdict| !verdict.right).map(|verdict| (cause, verdict)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Rounds for `bench/blame`, as the environment says; a line for each survivor.
#[test]
#[ignore = "a measurement: bench/blame"]
fn table() {
    let setting = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name}: see bench/blame"));
    let word = setting("OUTLAST_BLAME_CAUSE");
    let cause = Cause::ALL.into_iter().find(|cause| cause.word() == word).expect("a cause");
    let rounds = setting("OUTLAST_BLAME_ROUNDS").parse::<usize>().expect("a number of rounds");
    let first = setting("OUTLAST_BLAME_FIRST").parse::<usize>().expect("the number of the first round");
    let lab = lab().expect("a lab: root is needed");
    for number in first..first + rounds {
        let verdicts = round(&lab, cause, number);
        let right = verdicts.iter().filter(|verdict| verdict.right).count();
        println!("\n@round {word}|{number}|{right}|{}", verdicts.len());
        for verdict in verdicts.iter().filter(|verdict| !verdict.right) {
            println!("@wrong {word}|{number}|{}", verdict.words);
        }
    }
}
