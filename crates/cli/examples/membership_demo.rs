//! `make demo`: a membership group on this machine that loses a member, keeps one, and sees one join.
//!
//! Five real `outlast members --json` processes find each other on loopback. Then one of them is killed, one is
//! stopped for five seconds, and a sixth joins. The demo reads what every member *says* and measures how long
//! it takes until all of them say it. Nothing is faked and nothing is asked of the members' insides: whatever
//! is printed here can be seen by running the same commands by hand.
//!
//! It keeps the program's promises honest: if a death is not noticed, if the stopped member is not called
//! stalled, or if anybody who lives is declared dead, the demo says so and its exit code is 1.
//!
//! The program is `OUTLAST_PROGRAM`, or the `outlast` that was built beside this example.

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const FOUNDERS: [&str; 5] = ["ada", "bob", "cleo", "dan", "eve"];
const KILLED: &str = "dan";
const STOPPED: &str = "bob";
const NEWCOMER: &str = "fay";

/// How long the stopped member stays stopped: half of the `local` preset's stall budget.
const STOP_TIME: Duration = Duration::from_secs(5);
/// Nothing that the demo waits for takes this long unless something is broken.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match play() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo did not show what it promises: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play() -> Result<()> {
    let program = program()?;
    let mut stage = Stage::new(&program)?;
    let mut rows = Vec::new();

    stage.tell("Five processes start. Each knows the run secret and the address of the first, nothing else.");
    for name in FOUNDERS {
        stage.start(name)?;
    }
    let began = stage.began;
    for newcomer in FOUNDERS {
        let others = stage.others(newcomer);
        stage.wait_for("joined", newcomer, &others, began, Echo::Quiet)?;
    }
    let formed = began.elapsed();
    stage.tell(&format!("Everybody knows everybody, {} after the first start.", seconds(formed)));
    rows.push(Row::new("five members start", "joined", formed, formed));

    stage.tell(&format!(
        "SIGKILL to {KILLED}. Its kernel closes its port; the others find the port refusing."
    ));
    let killed = stage.kill(KILLED)?;
    let witnesses = stage.others(KILLED);
    let died = stage.wait_for("died", KILLED, &witnesses, killed, Echo::Aloud)?;
    stage.tell(&format!("Known to all {} survivors {} after the kill.", witnesses.len(), seconds(died.last)));
    rows.push(Row::new(&format!("SIGKILL {KILLED}"), "died", died.first, died.last));

    stage.tell(&format!("SIGSTOP to {STOPPED}, for {}. It is as silent as the dead.", seconds(STOP_TIME)));
    let stopped = stage.signal(STOPPED, Signal::STOP)?;
    let witnesses = stage.others(STOPPED);
    let stalled = stage.wait_for("stalled", STOPPED, &witnesses, stopped, Echo::Aloud)?;
    stage.tell("Its kernel still accepts connects, so it is stalled and not dead. Nobody is thrown out.");
    stage.watch_until(stopped + STOP_TIME)?;
    rows.push(Row::new(&format!("SIGSTOP {STOPPED}"), "stalled", stalled.first, stalled.last));

    stage.tell(&format!("SIGCONT to {STOPPED}."));
    let continued = stage.signal(STOPPED, Signal::CONT)?;
    let recovered = stage.wait_for("recovered", STOPPED, &witnesses, continued, Echo::Aloud)?;
    stage.tell(&format!("Alive again for everybody after {}.", seconds(recovered.last)));
    rows.push(Row::new(&format!("SIGCONT {STOPPED}"), "recovered", recovered.first, recovered.last));

    stage.tell(&format!("{NEWCOMER} joins through one member, and the others hear of it."));
    let arrived = Instant::now();
    stage.start(NEWCOMER)?;
    let witnesses = stage.others(NEWCOMER);
    let joined = stage.wait_for("joined", NEWCOMER, &witnesses, arrived, Echo::Aloud)?;
    rows.push(Row::new(&format!("{NEWCOMER} starts"), "joined", joined.first, joined.last));

    // One more second in which a false death could still come to light.
    stage.watch_until(Instant::now() + Duration::from_secs(1))?;
    print_closing(&rows, began);
    Ok(())
}

/// The `outlast` program to drive.
fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("OUTLAST_PROGRAM") {
        return Ok(path.into());
    }
    // target/debug/examples/membership_demo -> target/debug/outlast
    let here = std::env::current_exe().context("this example's own path")?;
    let beside = here.parent().and_then(Path::parent).map(|folder| folder.join("outlast"));
    beside.filter(|path| path.exists()).ok_or_else(|| {
        anyhow!("no `outlast` beside {}; run `make demo`, or set OUTLAST_PROGRAM", here.display())
    })
}

/// What one member said about another: one line of `outlast members --json`.
struct Statement {
    /// When the line was read.
    at: Instant,
    /// Who said it.
    by: String,
    /// `joined`, `stalled`, `suspected`, `recovered`, `died`, `left`, `rejoined`; `started` for the first line.
    event: String,
    /// About whom; its own name in `started`.
    about: String,
    /// The address in `started`.
    address: String,
    /// The reason of `died`, as a sentence.
    reason: String,
}

impl Statement {
    /// The only place that knows the shape of the lines.
    fn parse(by: &str, line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line).with_context(|| format!("{by} printed {line:?}"))?;
        let text =
            |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Self {
            at: Instant::now(),
            by: by.to_owned(),
            event: text("/event"),
            about: text("/member/name"),
            address: text("/member/address"),
            reason: text("/reason_text"),
        })
    }
}

/// Whether statements are printed while they are waited for.
#[derive(Clone, Copy, PartialEq)]
enum Echo {
    Aloud,
    Quiet,
}

/// When the first and the last of several members said the same.
struct Spread {
    first: Duration,
    last: Duration,
}

/// The running processes, and everything they said.
struct Stage {
    program: PathBuf,
    secret: String,
    began: Instant,
    actors: BTreeMap<String, Child>,
    /// Where newcomers join.
    door: Option<String>,
    said: Vec<Statement>,
    sender: Sender<Result<Statement>>,
    receiver: Receiver<Result<Statement>>,
}

impl Stage {
    fn new(program: &Path) -> Result<Self> {
        let output = Command::new(program).args(["secret", "new"]).output();
        let output = output.with_context(|| format!("running {} secret new", program.display()))?;
        ensure!(
            output.status.success(),
            "`outlast secret new`: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let (sender, receiver) = channel();
        Ok(Self {
            program: program.to_owned(),
            secret: String::from_utf8(output.stdout).context("the secret")?.trim().to_owned(),
            began: Instant::now(),
            actors: BTreeMap::new(),
            door: None,
            said: Vec::new(),
            sender,
            receiver,
        })
    }

    /// Prints a line of the story.
    fn tell(&self, line: &str) {
        println!("\n{:>8}  {line}", seconds(self.began.elapsed()));
    }

    /// Everybody on stage except `name`.
    fn others(&self, name: &str) -> Vec<String> {
        self.actors.keys().filter(|other| *other != name).cloned().collect()
    }

    /// Starts a member and waits until it says where it listens.
    fn start(&mut self, name: &str) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["members", "--json", "--preset", "local", "--listen", "127.0.0.1:0", "--name", name]);
        if let Some(door) = &self.door {
            command.args(["--join", door]);
        }
        command
            .env("OUTLAST_SECRET", &self.secret)
            .env_remove("OUTLAST_SECRET_FILE")
            .env_remove("OUTLAST_RUN_ID");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("starting {}", self.program.display()))?;
        let output = child.stdout.take().context("the member's output")?;
        self.actors.insert(name.to_owned(), child);

        // The reader ends with the process: its pipe closes.
        let (sender, by) = (self.sender.clone(), name.to_owned());
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(Statement::parse(&by, &line)).is_err() {
                    break;
                }
            }
        });
        let from = Instant::now();
        self.wait_for("started", name, &[name.to_owned()], from, Echo::Quiet)?;
        if self.door.is_none() {
            self.door = self.said.iter().find(|s| s.event == "started").map(|s| s.address.clone());
        }
        Ok(())
    }

    /// Sends a signal; returns when that was.
    fn signal(&self, name: &str, signal: Signal) -> Result<Instant> {
        let child = self.actors.get(name).with_context(|| format!("{name} is not on stage"))?;
        let at = Instant::now();
        kill_process(Pid::from_child(child), signal).with_context(|| format!("signalling {name}"))?;
        Ok(at)
    }

    /// Kills a member; returns when that was.
    fn kill(&mut self, name: &str) -> Result<Instant> {
        let at = self.signal(name, Signal::KILL)?;
        if let Some(mut child) = self.actors.remove(name) {
            child.wait().with_context(|| format!("waiting for {name}"))?;
        }
        Ok(at)
    }

    /// Waits until every one of `by` has said `event` of `about` since `from`.
    fn wait_for(
        &mut self,
        event: &str,
        about: &str,
        by: &[String],
        from: Instant,
        echo: Echo,
    ) -> Result<Spread> {
        let deadline = Instant::now() + PATIENCE;
        let mut printed = 0;
        loop {
            let matching: Vec<&Statement> = self
                .said
                .iter()
                .filter(|s| s.event == event && s.about == about && s.at >= from && by.contains(&s.by))
                .collect();
            if echo == Echo::Aloud {
                for statement in &matching[printed..] {
                    print_statement(statement, from);
                }
            }
            printed = matching.len();
            let first_by: BTreeMap<&str, Instant> =
                matching.iter().rev().map(|s| (s.by.as_str(), s.at)).collect();
            if first_by.len() == by.len() {
                let times = || first_by.values().map(|at| at.duration_since(from));
                return Ok(Spread {
                    first: times().min().unwrap_or_default(),
                    last: times().max().unwrap_or_default(),
                });
            }
            let silent: Vec<&String> =
                by.iter().filter(|name| !first_by.contains_key(name.as_str())).collect();
            if !self.listen_until(deadline)? {
                bail!("{silent:?} did not say {event:?} of {about} within {}", seconds(PATIENCE));
            }
        }
    }

    /// Listens until `moment`, for deaths that must not be announced.
    fn watch_until(&mut self, moment: Instant) -> Result<()> {
        while self.listen_until(moment)? {}
        Ok(())
    }

    /// Takes one statement, and holds it against what is really so. `false` when `deadline` has passed.
    fn listen_until(&mut self, deadline: Instant) -> Result<bool> {
        let statement = match self.receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(statement) => statement?,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
        };
        match statement.event.as_str() {
            "died" if self.actors.contains_key(&statement.about) => {
                bail!(
                    "{} declared {} dead, which is alive: {}",
                    statement.by,
                    statement.about,
                    statement.reason
                )
            }
            "rejoined" => bail!("{} found itself declared dead, and it is alive", statement.by),
            _ => self.said.push(statement),
        }
        Ok(true)
    }
}

/// Whatever happens, nobody stays behind. SIGKILL also ends a process that is stopped.
impl Drop for Stage {
    fn drop(&mut self) {
        for child in self.actors.values_mut() {
            // An error means that the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One line of the closing table.
struct Row {
    what: String,
    said: &'static str,
    first: Duration,
    last: Duration,
}

impl Row {
    fn new(what: &str, said: &'static str, first: Duration, last: Duration) -> Self {
        Self { what: what.to_owned(), said, first, last }
    }
}

fn print_statement(statement: &Statement, from: Instant) {
    let mut line = format!("{:<5} says: {} {}", statement.by, statement.about, statement.event);
    if !statement.reason.is_empty() {
        let _ = write!(line, " ({})", statement.reason);
    }
    println!("{:>8}    {line}", format!("+{}", seconds(statement.at.duration_since(from))));
}

fn print_closing(rows: &[Row], began: Instant) {
    println!("\n{:<20} {:<11} {:>13} {:>13}", "what happened", "all said", "first knew", "all knew");
    for Row { what, said, first, last } in rows {
        println!("{what:<20} {said:<11} {:>13} {:>13}", seconds(*first), seconds(*last));
    }
    println!("\nNobody who lives was declared dead. It took {} in all.", seconds(began.elapsed()));
    println!(
        "\nWhat to try next
  outlast members --help         the same by hand, with a live table; README.md has three lines to paste
  make sim SEED=7                the same code in a simulated world with worse weather
  make test                      everything else; as root it also cuts real links between network namespaces
  ARCHITECTURE.md                what this will carry: an all-reduce, traced through a peer's death"
    );
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
