//! How the run stands, as its coordinator tells it: shown live, and told when membership changes.

use super::environment::Common;
use super::logs::Logs;
use super::report;
use outlast::Coordinator;
use outlast::agent::{Abandoned, Orders};
use outlast::membership::RunId;
use outlast::security::Credentials;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it looks.
const EVERY: Duration = Duration::from_millis(500);

/// How often a coordinator elsewhere is asked, and how long it may take.
const EVERY_REMOTE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(1);

/// Who knows how the run stands.
#[derive(Debug)]
pub(super) enum Source {
    /// A coordinator in this process, which ends with whoever looks at it.
    Embedded(Box<Coordinator>),
    /// One elsewhere.
    Remote(String, Box<Credentials>),
}

impl Source {
    fn every(&self) -> Duration {
        match self {
            Self::Embedded(_) => EVERY,
            Self::Remote(..) => EVERY_REMOTE,
        }
    }

    /// Why the coordinator in this process serves nobody any more, if so.
    fn has_ended(&self) -> Option<String> {
        match self {
            Self::Embedded(coordinator) => coordinator.check().err().map(|error| error.to_string()),
            Self::Remote(..) => None,
        }
    }

    fn status(&self, run: &RunId) -> Option<String> {
        match self {
            Self::Embedded(coordinator) => coordinator.status(run).ok().flatten(),
            Self::Remote(address, credentials) => {
                outlast::coordinator::ask_status(address, (**credentials).clone(), run, PATIENCE).ok()
            }
        }
    }
}

/// Looks at the coordinator until it is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What was seen of the first group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    epoch: u64,
    world_size: u64,
    commits: u64,
}

impl Progress {
    pub(super) fn start(
        logs: Logs,
        source: Source,
        (common, round): (Common, Arc<AtomicU32>),
        orders: Orders,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = sync_channel::<()>(0);
        let look = move || {
            let (began, mut last) = (Instant::now(), Seen::default());
            while stopped.recv_timeout(source.every()) == Err(RecvTimeoutError::Timeout) {
                if let Some(error) = source.has_ended() {
                    // Workers would look for it until they give up, one life after the other.
                    logs.say(error.clone(), json!({ "event": "unreachable", "error": error }));
                    orders.abandon(Abandoned::Unreachable);
                    break;
                }
                let run = common.run_of(round.load(Ordering::Relaxed)).parse().ok();
                let Some(status) = run.and_then(|run| source.status(&run)) else { continue };
                let Some(seen) = read(&status) else { continue };
                if (seen.epoch, seen.world_size) != (last.epoch, last.world_size) {
                    let (words, facts) = report::members(seen.epoch, seen.world_size, seen.commits);
                    logs.say(words, facts);
                }
                if seen.world_size > 0 {
                    let rate =
                        seen.commits.saturating_sub(last.commits) as f64 / source.every().as_secs_f64();
                    let seconds = began.elapsed().as_secs();
                    logs.progress(format!(
                        "{:02}:{:02}:{:02}  {} members, epoch {}, {} commits, {rate:.0} per second",
                        seconds / 3_600,
                        seconds / 60 % 60,
                        seconds % 60,
                        seen.world_size,
                        seen.epoch,
                        seen.commits
                    ));
                }
                last = seen;
            }
            logs.progress(String::new());
        };
        let thread = std::thread::Builder::new().name("outlast-progress".to_owned()).spawn(look)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The first group of a status.
fn read(status: &str) -> Option<Seen> {
    let status: serde_json::Value = serde_json::from_str(status).ok()?;
    let group = status["groups"].get(0);
    let number = |field: &str| group.and_then(|group| group[field].as_u64()).unwrap_or(0);
    Some(Seen {
        epoch: number("epoch"),
        world_size: number("world_size"),
        commits: status["commits"].as_u64()?,
    })
}
