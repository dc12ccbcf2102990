//! What the agent's driver asks of the program.

use super::environment::{Common, Placement};
use super::logs::{Logs, Source};
use super::nodes::Nodes;
use super::options::Shown;
use super::program::Program;
use super::report::{self, Who};
use outlast::agent::{Crew, Ending, ExitWitness, Fact, Launch, Life, Orders, Outcome, ProcessName, Streams};
use outlast::security::Credentials;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// One that was started.
#[derive(Clone, Copy, Debug)]
struct Known {
    pid: Option<u32>,
    process: Option<ProcessName>,
    since: Instant,
    ended: Option<(SystemTime, Duration)>,
}

/// The workers of this machine, as the program sees them.
pub(super) struct Workers {
    pub(super) common: Common,
    pub(super) program: Program,
    pub(super) processors: Option<Vec<Vec<usize>>>,
    pub(super) logs: Logs,
    pub(super) log_dir: Option<PathBuf>,
    pub(super) shown: Shown,
    pub(super) orders: Orders,
    pub(super) placement: Placement,
    credentials: Credentials,
    /// The other machines, if there may be any.
    pub(super) nodes: Option<Nodes>,
    round: Arc<AtomicU32>,
    /// Tells the coordinator of the run of that name whose processes have ended.
    witness: Option<(String, ExitWitness)>,
    known: BTreeMap<usize, (Life, Known)>,
}

impl Workers {
    pub(super) fn new(
        common: Common,
        program: Program,
        processors: Option<Vec<Vec<usize>>>,
        (logs, log_dir, shown): (Logs, Option<PathBuf>, Shown),
        orders: Orders,
        (credentials, round): (Credentials, Arc<AtomicU32>),
    ) -> Self {
        let world_size = common.workers;
        let master = ("127.0.0.1".to_owned(), 0);
        let placement = Placement { round: 0, node: 0, nodes: 1, first_rank: 0, world_size, master };
        let known = BTreeMap::new();
        let witness = None;
        Self {
            common,
            program,
            processors,
            logs,
            log_dir,
            shown,
            orders,
            placement,
            credentials,
            nodes: None,
            round,
            witness,
            known,
        }
    }

    fn who(&self, life: Life) -> Who {
        let known = self.known.get(&life.slot).filter(|(other, _)| *other == life);
        let pid = known.and_then(|(_, known)| known.pid);
        Who { life, rank: self.placement.first_rank + life.slot, pid }
    }

    /// Is a witness in the run of that round from now on. A run is none the worse without one, only slower to notice.
    fn watch_run(&mut self, round: u32) {
        let name = self.common.run_of(round);
        self.round.store(round, Ordering::Relaxed);
        if self.witness.as_ref().is_some_and(|(run, _)| *run == name) {
            return;
        }
        let run = name.parse().ok();
        let started = run.map(|run| ExitWitness::start(&self.common.coordinator, &self.credentials, &run));
        self.witness = match started {
            Some(Ok(witness)) => Some((name, witness)),
            Some(Err(error)) => {
                let words = format!("exits will be noticed later than they could be: {error}");
                self.logs
                    .say(words, serde_json::json!({ "event": "no_witness", "error": error.to_string() }));
                None
            }
            None => None,
        };
    }

    fn say(&self, (words, facts): report::Told) {
        self.logs.say(words, facts);
    }

    /// What is said of the whole at its end.
    pub(super) fn conclude(&mut self, outcome: Outcome) {
        if let Some(nodes) = self.nodes.take() {
            nodes.leave();
        }
        if let Outcome::Failed(failure) = outcome {
            let life = failure.life;
            let ended = self.known.get(&life.slot).and_then(|(_, known)| known.ended);
            let (at, lasted) = ended.unwrap_or((SystemTime::now(), Duration::ZERO));
            let tail = self.logs.tail(life);
            let program = self.program.name.to_string_lossy();
            self.say(report::failure(failure, self.who(life), lasted, at, &tail, &program));
            if let Some(folder) = &self.log_dir {
                let folder = folder.display();
                self.logs.say(
                    format!("logs are in {folder}"),
                    serde_json::json!({ "event": "logs", "folder": folder.to_string() }),
                );
            }
        }
    }
}

impl Crew for Workers {
    fn meet(&mut self, round: u32) {
        if let Some(nodes) = &self.nodes {
            return nodes.meet();
        }
        self.placement.round = round;
        // A port of the last round may still be held by what is ending.
        self.placement.master.1 = super::ports::free_port();
        let told = report::round(round, self.placement.nodes, self.placement.node, self.placement.world_size);
        self.say(told);
        self.orders.met();
    }

    fn launch(&mut self, life: Life) -> Launch {
        if let Some(placement) = self.nodes.as_ref().and_then(Nodes::placement) {
            self.placement = placement;
        }
        self.watch_run(self.placement.round);
        let processors = self.processors.as_ref().and_then(|sets| sets.get(life.slot).cloned());
        let known = Known { pid: None, process: None, since: Instant::now(), ended: None };
        self.known.insert(life.slot, (life, known));
        let agent = self.witness.as_ref().map(|(_, witness)| witness.name());
        Launch {
            program: self.program.name.clone(),
            arguments: self.program.arguments.clone(),
            environment: self.common.variables(std::env::vars_os(), &self.placement, life, agent),
            processors,
        }
    }

    fn started(&mut self, life: Life, pid: u32, streams: Streams) {
        if let Some((_, known)) = self.known.get_mut(&life.slot) {
            known.pid = Some(pid);
            known.process = self.witness.as_ref().and_then(|(_, witness)| witness.watch(pid));
        }
        let rank = self.placement.first_rank + life.slot;
        let folder = self.log_dir.as_ref().map(|folder| {
            let run = folder.join(self.common.run.as_str());
            run.join(life.number.to_string()).join(rank.to_string())
        });
        self.logs.follow(Source { life, rank, shown: self.shown.of(life.slot), folder }, streams);
        self.say(report::started(self.who(life)));
    }

    fn ended(&mut self, life: Life, _pid: Option<u32>, _ending: Ending) {
        if let Some((_, known)) = self.known.get_mut(&life.slot) {
            // First of all those who wait for it.
            if let (Some((_, witness)), Some(process)) = (&self.witness, known.process.take()) {
                witness.exited(process);
            }
            known.ended = Some((SystemTime::now(), known.since.elapsed()));
        }
    }

    fn told(&mut self, fact: Fact) {
        let who = match fact {
            Fact::Ended { life, .. } => Some(self.who(life)),
            // The next one has no number yet; it is the last one's that a person looks for.
            Fact::Replacing { next, .. } => Some(Who { pid: None, ..self.who(next) }),
            Fact::UsedUp(failure) => Some(self.who(failure.life)),
            _ => None,
        };
        self.say(report::fact(fact, who, &self.common.budget));
    }
}
