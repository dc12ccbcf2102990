//! A place for one worker, kept by the same agent as `outlast run` uses.
//!
//! The agent starts the worker under a keeper, sees its end at once, tells the coordinator of it (rule 20a), and lets nothing
//! outlive the director. It has no restarts to give: in the demo it is the director who decides who comes and who goes.

use crate::crew::{Heard, Speaker};
use anyhow::{Context as _, Result};
use outlast::agent::{
    Budget, Config, Crew, Driver, Elastic, Ending, ExitWitness, Fact, Launch, Life, Orders, Outcome,
    ProcessName, Streams,
};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a worker may take to start.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long a worker that was told to stop may take for it.
const GRACE: Duration = Duration::from_secs(10);

/// A worker's place.
#[derive(Debug)]
pub(crate) struct Berth {
    pub(crate) pid: u32,
    orders: Orders,
    agent: JoinHandle<Outcome>,
}

impl Berth {
    /// Starts a worker, whose lines go to `lines`.
    pub(crate) fn start(
        launch: Launch,
        speaker: Speaker,
        lines: SyncSender<(Speaker, Heard)>,
        witness: Option<Arc<ExitWitness>>,
    ) -> Result<Self> {
        let budget = Budget { restarts: 0, within: None };
        let config = Config { slots: 1, budget, elastic: Elastic::Inplace, grace: GRACE };
        let (driver, orders) = Driver::new(config).context("an agent")?;
        let (born, births) = sync_channel(1);
        let mut crew =
            BerthCrew { launch, speaker, lines, witness, process: None, orders: orders.clone(), born };
        let agent = std::thread::Builder::new().name("agent".to_owned());
        let agent = agent.spawn(move || driver.run(&mut crew)).context("a thread for an agent")?;
        let pid = wait_for(&births)?;
        Ok(Self { pid, orders, agent })
    }

    /// SIGTERM, as an agent passes it on.
    pub(crate) fn tell_stop(&self) {
        self.orders.stop(libc::SIGTERM as u8);
    }

    /// How it ended, once it has.
    pub(crate) fn is_over(&self) -> bool {
        self.agent.is_finished()
    }

    /// Ends it whatever it does, and waits until nothing is left of it. The number that a shell would give for its end.
    pub(crate) fn end(self) -> u8 {
        // The second order does not wait for the grace time.
        self.orders.stop(libc::SIGKILL as u8);
        self.orders.stop(libc::SIGKILL as u8);
        self.wait()
    }

    /// Waits until nothing is left of it.
    pub(crate) fn wait(self) -> u8 {
        self.agent.join().map_or(u8::MAX, Outcome::code)
    }
}

fn wait_for(births: &Receiver<u32>) -> Result<u32> {
    births.recv_timeout(START_PATIENCE).context("a worker did not start")
}

/// What the agent asks, and whom it tells.
struct BerthCrew {
    launch: Launch,
    speaker: Speaker,
    lines: SyncSender<(Speaker, Heard)>,
    witness: Option<Arc<ExitWitness>>,
    process: Option<ProcessName>,
    orders: Orders,
    born: SyncSender<u32>,
}

impl Crew for BerthCrew {
    fn meet(&mut self, _round: u32) {
        self.orders.met();
    }

    fn launch(&mut self, _life: Life) -> Launch {
        self.launch.clone()
    }

    fn started(&mut self, _life: Life, pid: u32, streams: Streams) {
        self.process = self.witness.as_ref().and_then(|witness| witness.watch(pid));
        let (speaker, lines) = (self.speaker, self.lines.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(File::from(streams.output)).lines().map_while(Result::ok) {
                if lines.send((speaker, Heard::Line(line))).is_err() {
                    return;
                }
            }
            let _ = lines.send((speaker, Heard::End));
        });
        std::thread::spawn(move || {
            let errors = BufReader::new(File::from(streams.errors)).lines().map_while(Result::ok);
            errors.for_each(|line| eprintln!("{line}"));
        });
        let _ = self.born.try_send(pid);
    }

    fn ended(&mut self, _life: Life, _pid: Option<u32>, _ending: Ending) {
        if let (Some(witness), Some(process)) = (&self.witness, self.process.take()) {
            witness.exited(process);
        }
    }

    fn told(&mut self, _fact: Fact) {}
}
