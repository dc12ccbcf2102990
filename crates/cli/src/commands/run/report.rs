//! What an agent tells: the same facts in words for people and as JSON for programs.

use super::logs::Tail;
use outlast::agent::{Budget, Ending, Fact, Failure, Life};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What begins a Python traceback.
const TRACEBACK: &str = "Traceback (most recent call last):";
/// Lines that are shown of a failed worker: of its traceback, or of whatever it said last.
const TRACEBACK_LINES_MAX: usize = 100;
const LAST_LINES: usize = 15;

/// Words and facts.
pub(super) type Told = (String, Value);

/// Who a worker is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) life: Life,
    pub(super) rank: usize,
    pub(super) pid: Option<u32>,
}

impl Who {
    fn json(self) -> Value {
        json!({ "worker": self.life.slot, "life": self.life.number, "rank": self.rank, "pid": self.pid })
    }

    fn words(self) -> String {
        let pid = self.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        format!("worker {}{pid}", self.rank)
    }
}

fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

fn event(name: &str, more: Value) -> Value {
    with(json!({ "event": name, "time": seconds_since_epoch() }), more)
}

fn seconds_since_epoch() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_secs_f64() * 1_000.0).round() / 1_000.0
}

fn ending_json(ending: Ending) -> Value {
    match ending {
        Ending::Exited(code) => json!({ "exit_code": code, "signal": null }),
        Ending::Killed(signal) => json!({ "exit_code": null, "signal": signal }),
        Ending::NotStarted { errno, .. } => json!({ "exit_code": null, "signal": null, "error": errno }),
    }
}

pub(super) fn started(who: Who) -> Told {
    let words = if who.life.number == 0 { String::new() } else { format!("{} is started", who.words()) };
    (words, event("started", who.json()))
}

pub(super) fn members(epoch: u64, world_size: u64, commits: u64) -> Told {
    let facts = json!({ "epoch": epoch, "world_size": world_size, "commits": commits });
    let were = if world_size == 1 { "member" } else { "members" };
    (format!("{world_size} {were} in epoch {epoch}"), event("members", facts))
}

pub(super) fn round(number: u32, nodes: usize, rank: usize, world_size: usize) -> Told {
    let facts = json!({ "round": number, "nodes": nodes, "node_rank": rank, "world_size": world_size });
    let words = if nodes > 1 || number > 0 {
        format!("round {number}: {nodes} nodes, this is node {rank}, {world_size} workers in all")
    } else {
        String::new()
    };
    (words, event("round", facts))
}

/// What the machine tells. `who` is the worker that it is about.
pub(super) fn fact(fact: Fact, who: Option<Who>, budget: &Budget) -> Told {
    let about = who.map_or_else(|| json!({}), Who::json);
    let name = who.map(Who::words).unwrap_or_default();
    match fact {
        Fact::Ended { ending, lasted, .. } => {
            let seconds = (lasted.as_secs_f64() * 1_000.0).round() / 1_000.0;
            let facts = with(with(about, ending_json(ending)), json!({ "seconds": seconds }));
            let words = if ending.is_success() {
                format!("{name} is done after {}", span(lasted))
            } else {
                format!("{name} {} after {}", describe(ending), span(lasted))
            };
            (words, event("ended", facts))
        }
        Fact::Replacing { pause, used, .. } => {
            let when = if pause.is_zero() { "at once".to_owned() } else { format!("in {}", span(pause)) };
            let facts = with(
                about,
                json!({ "pause": pause.as_secs_f64(), "restarts": used, "allowed": budget.restarts }),
            );
            (format!("{name} is replaced {when}, restart {used} of {budget}"), event("replacing", facts))
        }
        Fact::NextRound(round) => (
            format!("all workers are stopped, to begin round {round}"),
            event("next_round", json!({ "round": round })),
        ),
        Fact::UsedUp(failure) => {
            let facts = with(about, json!({ "restarts": failure.used, "allowed": budget.restarts }));
            let why = match failure.ending {
                Ending::NotStarted { .. } => "it would not start the next time either".to_owned(),
                _ if budget.restarts == 0 => "no restart is allowed".to_owned(),
                _ => format!("all restarts are used ({budget})"),
            };
            (format!("{name} is not replaced: {why}; the run ends"), event("used_up", facts))
        }
        Fact::Stopping(signal) => {
            let words = format!(
                "{}: passed on to the workers",
                Ending::Killed(signal).to_string().trim_start_matches("was killed by ")
            );
            (words, event("stopping", json!({ "signal": signal })))
        }
        Fact::Killing(count) => (
            format!("{count} of the workers did not stop in time and are killed"),
            event("killing", json!({ "workers": count })),
        ),
        Fact::Unkillable(count) => (
            format!(
                "{count} of the workers cannot be killed: the kernel holds them; look at them with ps -o pid,stat,wchan"
            ),
            event("unkillable", json!({ "workers": count })),
        ),
    }
}

/// How it ended, with the system's words for an error.
fn describe(ending: Ending) -> String {
    match ending {
        Ending::NotStarted { errno, .. } => {
            format!("could not be started: {}", std::io::Error::from_raw_os_error(errno))
        }
        ending => ending.to_string(),
    }
}

fn span(duration: Duration) -> String {
    if duration < Duration::from_secs(100) {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} s", duration.as_secs())
    }
}

/// What a person needs to know of the failure that ended the run: who, when, how, and its last words.
pub(super) fn failure(
    failure: Failure,
    who: Who,
    lasted: Duration,
    at: SystemTime,
    tail: &Tail,
    program: &str,
) -> Told {
    let (stream, lines) = telling(tail);
    let mut words = format!(
        "the run failed: {} {} after {}, at {} UTC",
        who.words(),
        describe(failure.ending),
        span(lasted),
        clock_time(at)
    );
    if matches!(failure.ending, Ending::NotStarted { .. }) {
        let _ = write!(words, "\nthe command was: {program}");
    } else if lines.is_empty() {
        words.push_str("\nit had said nothing");
    } else {
        let _ = write!(words, "\nits last lines on {stream}:");
        for line in &lines {
            let _ = write!(words, "\n  {line}");
        }
    }
    let facts =
        with(with(who.json(), ending_json(failure.ending)), json!({ "stream": stream, "last_lines": lines }));
    (words, event("failed", facts))
}

/// The lines that tell most: a Python traceback, else the last ones of stderr, else of stdout.
fn telling(tail: &Tail) -> (&'static str, Vec<String>) {
    let said = |lines: &[String]| lines.iter().any(|line| !line.trim().is_empty());
    let (stream, lines) =
        if said(&tail.errors) { ("stderr", &tail.errors) } else { ("stdout", &tail.output) };
    let from = match lines.iter().rposition(|line| line.trim_end() == TRACEBACK) {
        // A chain of exceptions has several; it begins at the first of them that is near.
        Some(last) => {
            let far = last.saturating_sub(TRACEBACK_LINES_MAX / 2);
            let first = (far..last).find(|at| lines[*at].trim_end() == TRACEBACK).unwrap_or(last);
            first.max(lines.len().saturating_sub(TRACEBACK_LINES_MAX))
        }
        None => lines.len().saturating_sub(LAST_LINES),
    };
    (stream, lines[from..].to_vec())
}

fn clock_time(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_traceback_is_shown_from_its_first_line() {
        let errors = lines(
            "warming up\nTraceback (most recent call last):\n  File \"a.py\", line 1\nValueError: no\n",
        );
        let (stream, told) = telling(&Tail { output: lines("step 1"), errors });
        assert_eq!((stream, told.len(), told[0].as_str()), ("stderr", 3, TRACEBACK));
    }

    #[test]
    fn a_chain_of_exceptions_is_shown_whole() {
        let chain = format!(
            "{TRACEBACK}\nKeyError: 1\n\nDuring handling of the above exception\n\n{TRACEBACK}\nOSError: 2"
        );
        let (_, told) = telling(&Tail { output: Vec::new(), errors: lines(&format!("noise\n{chain}")) });
        assert_eq!(told, lines(&chain));
    }

    #[test]
    fn without_one_the_last_lines_are_shown_of_whichever_stream_spoke() {
        let many: Vec<_> = (0..50).map(|line| line.to_string()).collect();
        let (stream, told) = telling(&Tail { output: many, errors: lines("  ") });
        assert_eq!((stream, told.len(), told[0].as_str()), ("stdout", LAST_LINES, "35"));
        assert_eq!(telling(&Tail::default()).1, Vec::<String>::new());
    }

    #[test]
    fn the_time_is_that_of_the_day() {
        assert_eq!(clock_time(UNIX_EPOCH + Duration::from_secs(86_400 * 3 + 3_661)), "01:01:01");
    }
}
