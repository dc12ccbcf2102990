//! The other machines: who takes part, in which order, and when to meet again.
//!
//! Agents meet in rounds by the rendezvous engine. A thread of its own waits for a round, so that the agent goes on
//! watching its workers meanwhile, and looks whether it is time for another one: a node waits to be let in, or one was
//! lost.
//!
//! - With `--elastic restart` the workers of a round are stopped then, and all nodes meet before any starts again.
//! - With `inplace` they go on. Only the agents meet, and what they settle on is for workers that are started from then
//!   on; whoever is in the run finds its newcomers through the coordinator.
//!
//! Each node introduces itself to the others: a host, a free port, and how many workers it starts. Rank 0's host and port
//! become `MASTER_ADDR` and `MASTER_PORT`.

use super::environment::Placement;
use super::logs::Logs;
use super::ports::free_port;
use super::report;
use outlast::Rendezvous;
use outlast::agent::{Abandoned, Elastic, Orders};
use outlast::coordinator::{CoordinatorError, ask_status};
use outlast::membership::RunId;
use outlast::rendezvous::{RendezvousError, Round};
use outlast::security::Credentials;
use outlast::sync::lock;
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often it looks whether somebody waits. What it looks at is in memory.
const GLANCE: Duration = Duration::from_millis(100);
/// How long meeting may rest after it failed while workers go on.
const REST: Duration = Duration::from_secs(5);

/// How long the coordinator may take to come up, and how long to answer once.
const REACH: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(5);

/// Where the coordinator is, and how to show oneself there.
#[derive(Clone, Debug)]
pub(super) struct Door {
    pub(super) coordinator: String,
    pub(super) credentials: Credentials,
    pub(super) run: RunId,
}

/// What was settled last.
pub(super) type Settled = Arc<Mutex<Option<Placement>>>;

/// The way to the other nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Each asks for a round for workers to start in.
    wishes: SyncSender<()>,
    settled: Settled,
    rendezvous: Arc<Rendezvous>,
    reached: Arc<AtomicBool>,
    elastic: Elastic,
}

/// What this node tells the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) workers: usize,
}

impl Introduction {
    fn text(&self) -> String {
        format!("{} {} {}", self.host, self.port, self.workers)
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (host, port, workers) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        (!host.is_empty() && words.next().is_none()).then(|| Self { host: host.to_owned(), port, workers })
    }
}

/// Where everybody is in a round. `None` if a participant did not introduce itself: it is no agent of ours.
fn placement(round: &Round) -> Option<Placement> {
    let met: Vec<Introduction> =
        round.participants.iter().map(|(_, text)| Introduction::read(text)).collect::<Option<_>>()?;
    let (node, first) = (round.rank as usize, met.first()?);
    Some(Placement {
        round: u32::try_from(round.round).unwrap_or(u32::MAX),
        node,
        nodes: met.len(),
        first_rank: met.iter().take(node).map(|node| node.workers).sum(),
        world_size: met.iter().map(|node| node.workers).sum(),
        master: (first.host.clone(), first.port),
    })
}

impl Nodes {
    pub(super) fn start(
        rendezvous: Rendezvous,
        (introduction, patience): (Introduction, Duration),
        door: Door,
        elastic: Elastic,
        orders: Orders,
        logs: Logs,
    ) -> std::io::Result<Self> {
        // One at a time is asked for.
        let (wishes, wished) = sync_channel(2);
        let (settled, rendezvous, reached) = (Settled::default(), Arc::new(rendezvous), Arc::default());
        let meeting = Meeting {
            rendezvous: Arc::clone(&rendezvous),
            introduction,
            patience,
            door,
            reached: Arc::clone(&reached),
            elastic,
            orders,
            logs,
            settled: Arc::clone(&settled),
        };
        std::thread::Builder::new().name("outlast-nodes".to_owned()).spawn(move || meeting.run(&wished))?;
        Ok(Self { wishes, settled, rendezvous, reached, elastic })
    }

    /// Asks for a round. Never waits.
    pub(super) fn meet(&self) {
        let _ = self.wishes.try_send(());
    }

    /// What was settled last.
    pub(super) fn placement(&self) -> Option<Placement> {
        lock(&self.settled).clone()
    }

    /// Says goodbye, which also ends a wait of the thread for a round. A run of rounds that is over for one is over for all:
    /// nobody could meet this node again.
    pub(super) fn leave(self) {
        if !self.reached.load(Ordering::Relaxed) {
            return; // There is nobody to say goodbye to.
        }
        let left = match self.elastic {
            Elastic::Restart => self.rendezvous.set_closed(),
            Elastic::Inplace => self.rendezvous.shutdown(),
        };
        // Whoever cannot say goodbye is missed soon.
        drop(left);
    }
}

struct Meeting {
    rendezvous: Arc<Rendezvous>,
    introduction: Introduction,
    patience: Duration,
    door: Door,
    /// Whether the coordinator was ever reached.
    reached: Arc<AtomicBool>,
    elastic: Elastic,
    orders: Orders,
    logs: Logs,
    settled: Settled,
}

impl Meeting {
    fn run(mut self, wishes: &Receiver<()>) {
        // Whether workers are at work in a round.
        let mut met = false;
        let mut patience = GLANCE;
        loop {
            match wishes.recv_timeout(patience) {
                Ok(()) => met = self.meet(),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if met => {
                    patience = GLANCE;
                    if !self.is_time() {
                        continue;
                    }
                    match self.elastic {
                        // The next wish is for a round, once the workers have stopped.
                        Elastic::Restart => {
                            met = false;
                            self.orders.round_over();
                        }
                        Elastic::Inplace => {
                            if !self.meet_again() {
                                patience = REST;
                            }
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Whether somebody waits or is gone. In a rendezvous that is closed nobody can meet: whoever works goes on.
    fn is_time(&self) -> bool {
        let closed = self.rendezvous.is_closed().unwrap_or(false);
        !closed && self.rendezvous.num_nodes_waiting().is_ok_and(|waiting| waiting > 0)
    }

    /// The next round. Whoever asked for it waits for an answer, so there is one even after a panic (rule 40).
    fn next(&mut self) -> Result<Placement, RendezvousError> {
        let settled = catch_unwind(AssertUnwindSafe(|| self.settle()));
        settled.unwrap_or(Err(RendezvousError::Bug("meeting other nodes panicked")))
    }

    fn settle(&mut self) -> Result<Placement, RendezvousError> {
        self.introduction.port = free_port();
        self.rendezvous.set_address(self.introduction.text())?;
        let round = self.rendezvous.next_rendezvous()?;
        let placement = placement(&round)
            .ok_or(RendezvousError::Bug("a participant of this rendezvous is no outlast run"))?;
        *lock(&self.settled) = Some(placement.clone());
        let (words, facts) =
            report::round(placement.round, placement.nodes, placement.node, placement.world_size);
        self.logs.say(words, facts);
        Ok(placement)
    }

    /// Waits until the coordinator answers, for a while: it may be starting too.
    fn reach(&self) -> Result<(), CoordinatorError> {
        let deadline = Instant::now() + self.patience.min(REACH);
        while !self.reached.load(Ordering::Relaxed) {
            let Door { coordinator, credentials, run } = &self.door;
            match ask_status(coordinator, credentials.clone(), run, ANSWER) {
                Ok(_) => self.reached.store(true, Ordering::Relaxed),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => std::thread::sleep(GLANCE),
            }
        }
        Ok(())
    }

    /// A round for workers to start in; false if there is none.
    fn meet(&mut self) -> bool {
        if let Err(error) = self.reach() {
            self.logs.say(error.to_string(), json!({ "event": "unreachable", "error": error.to_string() }));
            self.orders.abandon(Abandoned::Unreachable);
            return false;
        }
        let (min, max) = (self.rendezvous.settings().min_nodes, self.rendezvous.settings().max_nodes);
        if max > 1 {
            let words = format!("meeting other nodes: {min} are needed, {max} are welcome");
            self.logs.say(words, json!({ "event": "meeting", "min": min, "max": max }));
        }
        match self.next() {
            Ok(_) => {
                self.orders.met();
                true
            }
            Err(error) => {
                let reason = match error {
                    RendezvousError::Timeout(_) => Abandoned::TooFewNodes,
                    RendezvousError::Closed => Abandoned::Closed,
                    _ => Abandoned::Unreachable,
                };
                self.tell(&error);
                self.orders.abandon(reason);
                false
            }
        }
    }

    /// A round for those who come, while workers go on.
    fn meet_again(&mut self) -> bool {
        match self.next() {
            Ok(_) => true,
            Err(error) => {
                self.tell(&error);
                false
            }
        }
    }

    fn tell(&self, error: &RendezvousError) {
        if matches!(error, RendezvousError::Cancelled) {
            return; // It was our own goodbye.
        }
        let words = format!("no round of nodes: {error}");
        self.logs.say(words, json!({ "event": "no_round", "error": error.to_string() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::rendezvous::Node;

    fn round(lines: &[&str], rank: u32) -> Round {
        let node = |host: &str| Node { host: host.to_owned(), pid: 1, local_id: 0 };
        let participants = lines.iter().map(|line| (node("h"), (*line).to_owned())).collect();
        Round { round: 7, rank, participants }
    }

    #[test]
    fn ranks_follow_the_nodes_and_the_first_ones_host_is_the_master() {
        let found =
            placement(&round(&["10.0.0.1 21000 4", "10.0.0.2 22000 2", "10.0.0.3 23000 8"], 2)).unwrap();
        assert_eq!((found.node, found.nodes, found.first_rank, found.world_size), (2, 3, 6, 14));
        assert_eq!((found.master, found.round), (("10.0.0.1".to_owned(), 21_000), 7));
    }

    #[test]
    fn a_line_that_is_no_agents_is_not_guessed_at() {
        for odd in ["", "h", "h 1", "h 99999 1", " 1 1", "h 1 x", "h 1 1 1"] {
            assert_eq!(Introduction::read(odd), None, "{odd:?}");
        }
        let introduction = Introduction { host: "fe80::1".to_owned(), port: 2, workers: 3 };
        assert_eq!(Introduction::read(&introduction.text()), Some(introduction));
    }
}
