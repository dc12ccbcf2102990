//! The loop that an agent lives in.

use super::worker::{Launch, News, Streams, Worker, not_started};
use crate::bell::Bell;
use crate::clock;
use crate::sync::Arc;
use outlast_proto::agent::{Abandoned, Action, Agent, Config, Ending, Fact, Life, Outcome};
use outlast_proto::time::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Orders that wait; beyond it whoever gives them waits.
const ORDERS_MAX: usize = 64;

/// What a driver asks, and whom it tells. None of these may wait for anybody: while they run nobody is watched.
pub trait Crew {
    /// Settle with the others who takes part and who has which rank, and then say [`Orders::met`].
    fn meet(&mut self, round: u32);
    /// What to start.
    fn launch(&mut self, life: Life) -> Launch;
    /// A worker runs. Its streams are to be read: one that is full stops its worker.
    fn started(&mut self, life: Life, pid: u32, streams: Streams);
    /// A worker has ended; this comes before anything follows from it. `pid` is `None` if it never began.
    fn ended(&mut self, life: Life, pid: Option<u32>, ending: Ending);
    /// Something happened that a person may want to know.
    fn told(&mut self, fact: Fact);
}

/// One thing that an agent is told.
#[derive(Clone, Copy, Debug)]
enum Order {
    Met,
    RoundOver,
    Abandon(Abandoned),
    Stop(u8),
}

/// Tells an agent what to do, from any thread. An agent that is over does not listen any more.
#[derive(Clone, Debug)]
pub struct Orders {
    sender: SyncSender<Order>,
    bell: Arc<Bell>,
}

impl Orders {
    /// The round can begin: the answer to [`Crew::meet`].
    pub fn met(&self) {
        self.give(Order::Met);
    }

    /// Somebody came or was lost: all workers are stopped and started in a new round.
    pub fn round_over(&self) {
        self.give(Order::RoundOver);
    }

    /// The run cannot go on.
    pub fn abandon(&self, reason: Abandoned) {
        self.give(Order::Abandon(reason));
    }

    /// Stop because of that signal.
    pub fn stop(&self, signal: u8) {
        self.give(Order::Stop(signal));
    }

    fn give(&self, order: Order) {
        // A crew may give orders from within the loop, where waiting would be forever. Whoever gives more than can be
        // meant is not heard.
        if self.sender.try_send(order).is_ok() {
            self.bell.ring();
        }
    }
}

/// One worker's process, and its streams until somebody reads them.
struct Tenant {
    worker: Worker,
    streams: Option<Streams>,
}

/// Runs an agent's machine.
pub struct Driver {
    machine: Agent,
    tenants: BTreeMap<Life, Tenant>,
    orders: Receiver<Order>,
    bell: Arc<Bell>,
}

impl Driver {
    /// An agent, and how to tell it what to do.
    pub fn new(config: Config) -> io::Result<(Self, Orders)> {
        let (sender, orders) = sync_channel(ORDERS_MAX);
        let bell = Arc::new(Bell::new()?);
        // What a killed keeper leaves behind falls to us, not to the system's first process.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let driver =
            Self { machine: Agent::new(config), tenants: BTreeMap::new(), orders, bell: Arc::clone(&bell) };
        Ok((driver, Orders { sender, bell }))
    }

    /// Works until it is over. To be called on a thread that lives as long as the process.
    pub fn run(mut self, crew: &mut dyn Crew) -> Outcome {
        loop {
            while let Some(action) = self.machine.poll_action() {
                if let Some(outcome) = self.carry_out(action, crew) {
                    return outcome;
                }
            }
            self.wait();
            let now = clock::now();
            self.hear(now, crew);
            while let Ok(order) = self.orders.try_recv() {
                match order {
                    Order::Met => self.machine.handle_met(now),
                    Order::RoundOver => self.machine.handle_round_over(now),
                    Order::Abandon(reason) => self.machine.handle_abandoned(now, reason),
                    Order::Stop(signal) => self.machine.handle_stop(now, signal),
                }
            }
            if self.machine.poll_timeout().is_some_and(|at| at <= now) {
                self.machine.handle_timeout(now);
            }
        }
    }

    fn carry_out(&mut self, action: Action, crew: &mut dyn Crew) -> Option<Outcome> {
        match action {
            Action::Meet(round) => crew.meet(round),
            Action::Start(life) => self.start(life, crew),
            Action::Signal(life, signal) => {
                if let Some(tenant) = self.tenants.get(&life) {
                    tenant.worker.signal(signal);
                }
            }
            Action::Kill(life) => {
                if let Some(tenant) = self.tenants.get(&life) {
                    tenant.worker.kill();
                }
            }
            Action::Tell(fact) => crew.told(fact),
            Action::Finish(outcome) => return Some(outcome),
        }
        None
    }

    fn start(&mut self, life: Life, crew: &mut dyn Crew) {
        let launch = crew.launch(life);
        match Worker::start(&launch) {
            Ok((worker, streams)) => {
                self.tenants.insert(life, Tenant { worker, streams: Some(streams) });
            }
            Err(error) => {
                let ending = not_started(error.raw_os_error().unwrap_or(libc::EINVAL));
                crew.ended(life, None, ending);
                let now = clock::now();
                self.machine.handle_ended(now, life, ending);
                self.machine.handle_cleared(now, life);
            }
        }
    }

    /// Sleeps until a keeper says something, an order comes or time is up.
    fn wait(&self) {
        let bell = self.bell.descriptor();
        let lines = self.tenants.values().map(|tenant| tenant.worker.line());
        let mut polled: Vec<_> = std::iter::once(bell)
            .chain(lines)
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let left = self.machine.poll_timeout().map(|at| at.since(clock::now()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        // An interrupted poll is a short one.
        let _ = poll(&mut polled, left.as_ref());
        if !polled[0].revents().is_empty() {
            self.bell.heard();
        }
        self.bell.answer();
    }

    /// Takes what keepers have said.
    fn hear(&mut self, now: Instant, crew: &mut dyn Crew) {
        let lives: Vec<_> = self.tenants.keys().copied().collect();
        for life in lives {
            while let Some(tenant) = self.tenants.get_mut(&life) {
                let Some(news) = tenant.worker.hear() else { break };
                match news {
                    News::Started(pid) => {
                        if let Some(streams) = tenant.streams.take() {
                            crew.started(life, pid, streams);
                        }
                    }
                    News::Ended(ending) => {
                        tenant.worker.ended = true;
                        let pid = tenant.worker.pid;
                        crew.ended(life, pid, ending);
                        self.machine.handle_ended(now, life, ending);
                    }
                    News::Cleared => self.cleared(now, life),
                    News::Orphaned => self.orphaned(now, life, crew),
                }
            }
        }
    }

    fn cleared(&mut self, now: Instant, life: Life) {
        if let Some(tenant) = self.tenants.remove(&life) {
            tenant.worker.bury();
        }
        self.machine.handle_cleared(now, life);
    }

    /// A keeper was killed, and with it its worker. What they leave is cleared away from here.
    fn orphaned(&mut self, now: Instant, life: Life, crew: &mut dyn Crew) {
        let Some(tenant) = self.tenants.get(&life) else { return };
        let (pid, ended) = (tenant.worker.pid, tenant.worker.ended);
        tracing::warn!(slot = life.slot, "the keeper of a worker was killed; the worker is killed with it");
        tenant.worker.clear_session();
        if !ended {
            let ending = Ending::Killed(libc::SIGKILL as u8);
            crew.ended(life, pid, ending);
            self.machine.handle_ended(now, life, ending);
        }
        self.cleared(now, life);
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("living", &self.machine.living_count()).finish_non_exhaustive()
    }
}
