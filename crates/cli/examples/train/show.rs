//! What a person sees: a live view on a terminal, plain lines in a pipe, JSON on request.
//!
//! Events scroll by and stay; on a terminal a block of one line per worker is drawn again below them. The block is
//! moved by hand, with the two escape sequences that every terminal knows (up so many lines, clear to the end),
//! so that what was printed remains in the terminal's own history. Without a terminal the block is one
//! line per second.

use crate::crew::{Condition, Crew};
use crate::ledger::Ledger;
use crate::said::micros;
use crate::script::{Fault, counted, span};
use anyhow::Result;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

/// How often the block is drawn.
const LIVE_EVERY_US: u64 = 100_000;
/// How often a line of progress is printed where there is no block.
const LINE_EVERY_US: u64 = 1_000_000;
/// Where the sentences of events begin, after the time.
const INDENT: usize = 11;
/// A worker without a step for this long waits for somebody.
const WAITING_AFTER_US: u64 = 300_000;

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at: u64,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    pub(crate) about: Option<String>,
    pub(crate) recovery: Option<Duration>,
    /// Whether the picture has a line for it.
    pub(crate) marked: bool,
}

impl Event {
    /// Something that happened now.
    pub(crate) fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { at: micros(), kind, text: text.into(), about: None, recovery: None, marked: false }
    }

    pub(crate) fn at(mut self, at: u64) -> Self {
        self.at = at;
        self
    }

    pub(crate) fn about(mut self, worker: &str) -> Self {
        self.about = Some(worker.to_owned());
        self
    }

    pub(crate) fn recovery(mut self, took: Duration) -> Self {
        self.recovery = Some(took);
        self
    }

    pub(crate) fn mark(mut self) -> Self {
        self.marked = true;
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Live,
    Plain,
    Json,
}

/// The screen, or what stands for it.
pub(crate) struct Show {
    mode: Mode,
    began: u64,
    refreshed: u64,
    /// Lines of the block that is on the screen.
    drawn: usize,
    events: Vec<Event>,
}

impl Show {
    pub(crate) fn new(json: bool) -> Self {
        let mode = match (json, std::io::stdout().is_terminal()) {
            (true, _) => Mode::Json,
            (false, true) => Mode::Live,
            (false, false) => Mode::Plain,
        };
        Self { mode, began: micros(), refreshed: 0, drawn: 0, events: Vec::new() }
    }

    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    fn seconds(&self, at: u64) -> f64 {
        at.saturating_sub(self.began) as f64 / 1e6
    }

    /// Says what happened.
    pub(crate) fn tell(&mut self, event: Event, ledger: &Ledger, crew: &Crew) {
        let at = self.seconds(event.at);
        match self.mode {
            Mode::Json => {
                let recovery = event.recovery.map(|took| took.as_secs_f64() * 1e3);
                print_json(&json!({
                    "event": event.kind, "at": at, "worker": event.about, "step": ledger.last_step(),
                    "recovery_ms": recovery, "text": event.text,
                }));
            }
            Mode::Plain => print_text(&format!("{at:>7.2} s  {}\n", event.text)),
            Mode::Live => {
                let colour = match (event.marked, event.recovery.is_some()) {
                    (true, _) => "\x1b[33m",
                    (_, true) => "\x1b[32m",
                    _ => "",
                };
                let text = format!("{at:>7.2} s  {colour}{}\x1b[0m\n", wrapped(&event.text, width()));
                let erased = self.erase();
                print_text(&format!("{erased}{text}"));
            }
        }
        self.events.push(event);
        if self.mode == Mode::Live {
            self.refreshed = 0;
            self.refresh(ledger, crew);
        }
    }

    /// Shows how it stands, if it is time to.
    pub(crate) fn refresh(&mut self, ledger: &Ledger, crew: &Crew) {
        let now = micros();
        let every = if self.mode == Mode::Live { LIVE_EVERY_US } else { LINE_EVERY_US };
        if now < self.refreshed + every || crew.workers.is_empty() {
            return;
        }
        self.refreshed = now;
        let Some(last) = ledger.entries().next_back() else { return };
        let (step, loss) = (last.commit.step, last.commit.loss);
        let accuracy = ledger.accuracy().unwrap_or(0.0) * 100.0;
        let names: Vec<_> = last.commit.contributors.iter().map(|id| crew.name_of(id)).collect();
        let at = self.seconds(now);
        match self.mode {
            Mode::Json => print_json(&json!({
                "event": "progress", "at": at, "step": step, "loss": loss, "accuracy": accuracy / 100.0,
                "contributors": names,
            })),
            Mode::Plain => print_text(&format!(
                "{at:>7.2} s    step {step:>4}   loss {loss:.3}   accuracy {accuracy:>4.1} %   {}\n",
                names.join(" ")
            )),
            Mode::Live => {
                let block = block(crew, ledger, now);
                let erased = self.erase();
                self.drawn = block.len();
                print_text(&format!("{erased}{}", block.concat()));
            }
        }
    }

    /// What takes the block off the screen.
    fn erase(&mut self) -> String {
        let lines = std::mem::take(&mut self.drawn);
        if lines == 0 { String::new() } else { format!("\x1b[{lines}A\x1b[J") }
    }

    /// The closing words.
    pub(crate) fn close(
        &mut self,
        ledger: &Ledger,
        crew: &Crew,
        faults: &[Fault],
        picture: &Path,
    ) -> Result<()> {
        let phases = ledger.phases();
        let over_time: Vec<_> = phases
            .iter()
            .map(|phase| format!("{} steps by {}", phase.steps, phase.contributors.len()))
            .collect();
        let accuracy = crew.living().filter_map(|worker| worker.accuracy).fold(0.0, f32::max);
        let digest =
            crew.living().find_map(|worker| worker.finish.as_ref()).map(|finish| finish.digest.clone());
        let (steps, receipts, retried) = (ledger.last_step(), ledger.receipts(), ledger.retried());
        let took = self.seconds(micros());
        if self.mode == Mode::Json {
            let faults: Vec<_> = faults
                .iter()
                .map(
                    |fault| json!({ "what": fault.what, "recovery_ms": fault.recovered.as_secs_f64() * 1e3 }),
                )
                .collect();
            print_json(&json!({
                "event": "summary", "at": took, "steps": steps, "receipts": receipts, "retried": retried,
                "phases": phases.iter().map(|phase| json!({
                    "steps": phase.steps, "contributors": phase.contributors.len(),
                })).collect::<Vec<_>>(),
                "accuracy": accuracy, "digest": digest, "faults": faults, "picture": picture,
            }));
            return Ok(());
        }
        let mut text = format!("\n{:<34} {:>9}   {}\n", "what happened", "recovery", "from .. to");
        for Fault { what, recovered, meaning } in faults {
            writeln!(text, "{what:<34} {:>9}   {meaning}", span(*recovered))?;
        }
        writeln!(text, "\naccuracy    {:.1} % of the test images", accuracy * 100.0)?;
        writeln!(
            text,
            "replicas    bit-identical after each of {steps} steps: XXH3 {}",
            digest.unwrap_or_default()
        )?;
        writeln!(
            text,
            "receipts    {receipts} compared; {} took more than one attempt\n            {} contributors",
            counted(retried as u64, "step"),
            over_time.join(", then ")
        )?;
        writeln!(text, "picture     {}", picture.display())?;
        writeln!(text, "took        {took:.1} s")?;
        text.push_str(NEXT);
        print_text(&text);
        Ok(())
    }
}

const NEXT: &str = "
What to try next
  cargo run --release -p outlast-cli --example train -- --steps 5000 --pace 0
      the same as fast as it goes
  cargo run --release -p outlast-cli -- bench all-reduce
      how fast an all-reduce is on this machine
  make sim SEED=7
      the same decisions in a simulated world with worse weather, replayed by a seed
The program that trains is crates/cli/examples/train/worker.rs; docs/guide/demo.md explains it.
";

/// The block: one line for the run, one per worker.
fn block(crew: &Crew, ledger: &Ledger, now: u64) -> Vec<String> {
    let width = width();
    let bar = accuracy_bar(ledger.accuracy().unwrap_or(0.0));
    let mut lines = vec![String::new(), format!("  step {:<5} accuracy {bar}", ledger.last_step())];
    let mut colours = vec!["", "\x1b[1m"];
    for worker in &crew.workers {
        let mut line = format!("  {:<5} pid {:<8}", worker.name, worker.pid());
        let waits = worker.last.as_ref().is_some_and(|commit| now > commit.at + WAITING_AFTER_US);
        if let Some(commit) = &worker.last {
            let accuracy =
                worker.accuracy.map_or("     -".to_owned(), |part| format!("{:>4.1} %", part * 100.0));
            let _ = write!(
                line,
                "rank {}/{}  step {:<5} loss {:.3}  acc {accuracy}  ",
                commit.rank, commit.world, commit.step, commit.loss
            );
        }
        let (word, colour) = match worker.condition {
            Condition::Training if waits => ("waiting", "\x1b[33m"),
            Condition::Training => (worker.condition.word(), "\x1b[32m"),
            Condition::Done => (worker.condition.word(), "\x1b[32m"),
            Condition::Joining | Condition::Stopped => (worker.condition.word(), "\x1b[33m"),
            Condition::Killed => (worker.condition.word(), "\x1b[31m"),
        };
        line.push_str(word);
        lines.push(line);
        colours.push(colour);
    }
    // A line that the terminal wraps would be counted as one and take two.
    let fit = |line: String| line.chars().take(width - 1).collect::<String>();
    lines.into_iter().zip(colours).map(|(line, colour)| format!("{colour}{}\x1b[0m\n", fit(line))).collect()
}

/// The terminal's.
fn width() -> usize {
    ratatui::crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns)).max(40)
}

/// A sentence broken between words, below the column where the sentences of events begin.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines = String::new();
    let mut column = INDENT;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column + length >= width && column > INDENT {
            let _ = write!(lines, "\n{:INDENT$}", "");
            column = INDENT;
        }
        let _ = write!(lines, "{word} ");
        column += length + 1;
    }
    lines.trim_end().to_owned()
}

fn accuracy_bar(part: f32) -> String {
    let full = (part * 30.0) as usize;
    format!("{}{} {:.1} %", "#".repeat(full), ".".repeat(30 - full.min(30)), part * 100.0)
}

fn print_json(value: &serde_json::Value) {
    print_text(&format!("{value}\n"));
}

/// Whoever read our lines may have gone.
fn print_text(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
