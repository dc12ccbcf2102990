//! How the run stands, as its coordinator tells it: shown live, and told when membership changes.

use super::environment::Common;
use super::logs::Logs;
use super::report;
use outlast::Coordinator;
use outlast::membership::RunId;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it looks.
const EVERY: Duration = Duration::from_millis(500);

/// Looks at the coordinator until it is dropped. Holds the embedded one, which ends with it.
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
    pub(super) fn start(logs: Logs, coordinator: Coordinator, common: Common) -> std::io::Result<Self> {
        let (stop, stopped) = sync_channel::<()>(0);
        let look = move || {
            let (began, mut last) = (Instant::now(), Seen::default());
            let run: Option<RunId> = common.run_of(0).parse().ok();
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let Some(Ok(Some(status))) = run.as_ref().map(|run| coordinator.status(run)) else {
                    continue;
                };
                let Some(seen) = read(&status) else { continue };
                if (seen.epoch, seen.world_size) != (last.epoch, last.world_size) {
                    let (words, facts) = report::members(seen.epoch, seen.world_size, seen.commits);
                    logs.say(words, facts);
                }
                if seen.world_size > 0 {
                    let rate = seen.commits.saturating_sub(last.commits) as f64 / EVERY.as_secs_f64();
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
