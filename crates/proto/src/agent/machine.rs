//! The agent's machine.

use super::budget::{Account, Budget};
use super::ending::{Abandoned, Ending, Failure, Outcome};
use crate::time::{Duration, Instant};
use std::collections::VecDeque;

/// What follows from a worker's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elastic {
    /// Only what died is replaced; the others train on.
    Inplace,
    /// All are stopped and started together.
    Restart,
}

/// What an agent is told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many workers.
    pub slots: usize,
    /// How often each may be replaced.
    pub budget: Budget,
    /// What a failure means to the others.
    pub elastic: Elastic,
    /// How long workers that were told to stop have for it.
    pub grace: Duration,
}

/// One worker from its start to its end: a slot, and how many lived there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// The slot.
    pub slot: usize,
    /// Its number in the slot, counted from zero.
    pub number: u32,
}

/// What the driver is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Find the others and settle on ranks, then say [`Agent::handle_met`]. The number counts the rounds from zero.
    Meet(u32),
    /// Start a worker.
    Start(Life),
    /// Send a signal to the worker's own process. What it started itself is its own affair: a data loader that dies
    /// under it would keep it from finishing its step.
    Signal(Life, u8),
    /// SIGKILL to the worker and to everything that it started.
    Kill(Life),
    /// Tell whoever watches.
    Tell(Fact),
    /// It is over. Nothing follows.
    Finish(Outcome),
}

/// What happened, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A worker ended while it was wanted.
    Ended {
        /// Which.
        life: Life,
        /// How.
        ending: Ending,
        /// How long it had lived.
        lasted: Duration,
    },
    /// Its slot is filled again after a pause.
    Replacing {
        /// The next one.
        next: Life,
        /// The pause.
        pause: Duration,
        /// Restarts that its slot has used, this one included.
        used: u32,
    },
    /// All are stopped, to be started together in the next round.
    NextRound(u32),
    /// A slot's budget is used up: the run ends.
    UsedUp(Failure),
    /// Workers were told to stop by that signal.
    Stopping(u8),
    /// So many have not stopped in time, or in the time that a second signal left them, and are killed.
    Killing(usize),
    /// So many cannot be killed; they are not waited for.
    Unkillable(usize),
}

/// `SIGTERM`.
const TERM: u8 = 15;
/// How long a process that was killed may take to be gone.
const UNKILLABLE: Duration = Duration::from_secs(10);

/// Who lives in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tenant {
    /// Nobody yet, or nobody any more.
    Nobody,
    /// Somebody from that moment on.
    Due(Instant),
    /// A worker, since.
    Living(Instant),
    /// A worker has ended, and what it left behind is being cleared away.
    Leaving,
    /// A worker is done; the slot stays empty.
    Done,
}

#[derive(Clone, Debug)]
struct Slot {
    tenant: Tenant,
    /// The number of who lives there, or will.
    number: u32,
    account: Account,
    /// Whether the last life failed, and how long to wait before the next.
    pause: Option<Duration>,
}

impl Slot {
    /// Whether a worker would have to be started for its work to be done.
    fn is_wanting(&self) -> bool {
        match self.tenant {
            Tenant::Nobody | Tenant::Due(_) => true,
            Tenant::Leaving => self.pause.is_some(),
            Tenant::Living(_) | Tenant::Done => false,
        }
    }
}

/// Why all are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Told {
        signal: u8,
        worst: Option<Ending>,
    },
    Failed(Failure),
    Abandoned(Abandoned),
    /// To begin the next round.
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Meeting,
    Working,
    /// Until `next` there is time; then who is left is killed, and then nobody is waited for any more.
    Stopping {
        why: Why,
        next: Instant,
        killed: bool,
    },
    Over,
}

/// The agent of one host.
///
/// Calling contract: [`Action::Start`] is answered with `handle_ended` and later `handle_cleared`, in this order and once
/// each, also when the worker could not be started. Drain `poll_action` after every call.
#[derive(Clone, Debug)]
pub struct Agent {
    config: Config,
    slots: Vec<Slot>,
    phase: Phase,
    round: u32,
    /// Before that moment the round's workers are not started.
    not_before: Instant,
    actions: VecDeque<Action>,
}

impl Agent {
    /// An agent that begins to look for the others.
    pub fn new(config: Config) -> Self {
        let slot = |_| Slot { tenant: Tenant::Nobody, number: 0, account: Account::default(), pause: None };
        let slots = (0..config.slots).map(slot).collect();
        let actions = VecDeque::from([Action::Meet(0)]);
        Self { config, slots, phase: Phase::Meeting, round: 0, not_before: Instant::ORIGIN, actions }
    }

    /// The others were found: workers can be started.
    pub fn handle_met(&mut self, now: Instant) {
        if self.phase != Phase::Meeting {
            return;
        }
        self.phase = Phase::Working;
        for slot in &mut self.slots {
            slot.tenant = Tenant::Due(now.max(self.not_before));
        }
        self.fill(now);
        self.settle(now);
    }

    /// Others want another round: somebody came or was lost. It costs no budget.
    pub fn handle_round_over(&mut self, now: Instant) {
        if self.phase == Phase::Working {
            self.begin_again(now);
            self.settle(now);
        }
    }

    /// The driver cannot go on.
    pub fn handle_abandoned(&mut self, now: Instant, reason: Abandoned) {
        match self.phase {
            Phase::Meeting | Phase::Working | Phase::Stopping { why: Why::Again, .. } => {
                self.stop_all(now, Why::Abandoned(reason), TERM);
                self.settle(now);
            }
            Phase::Stopping { .. } | Phase::Over => {}
        }
    }

    /// A signal asks for the end. A second one does not wait.
    pub fn handle_stop(&mut self, now: Instant, signal: u8) {
        match self.phase {
            Phase::Meeting | Phase::Working | Phase::Stopping { why: Why::Again, .. } => {
                self.tell(Fact::Stopping(signal));
                // Who is missing will not be started any more: its work is not done, and the signal is why.
                let worst = self.slots.iter().any(Slot::is_wanting).then_some(Ending::Killed(signal));
                self.stop_all(now, Why::Told { signal, worst }, signal);
                self.settle(now);
            }
            Phase::Stopping { why, .. } => {
                self.kill_all(now, why);
            }
            Phase::Over => {}
        }
    }

    /// A worker's process has ended.
    pub fn handle_ended(&mut self, now: Instant, life: Life, ending: Ending) {
        let Some(since) = self.living(life) else { return };
        let lasted = now.since(since);
        self.slots[life.slot].tenant = Tenant::Leaving;
        match &mut self.phase {
            Phase::Working => self.ended_at_work(now, life, ending, lasted),
            Phase::Stopping { why: Why::Told { worst, .. }, .. } if !ending.is_success() => {
                worst.get_or_insert(ending);
            }
            Phase::Stopping { .. } | Phase::Meeting | Phase::Over => {}
        }
    }

    fn ended_at_work(&mut self, now: Instant, life: Life, ending: Ending, lasted: Duration) {
        self.tell(Fact::Ended { life, ending, lasted });
        if ending.is_success() {
            return;
        }
        let account = &mut self.slots[life.slot].account;
        // What cannot be started now cannot be started later either.
        let startable = !matches!(ending, Ending::NotStarted { .. });
        let pause = startable.then(|| account.spend(now, lasted, &self.config.budget)).flatten();
        let used = account.used();
        let Some(pause) = pause else {
            let failure = Failure { life, ending, used };
            self.tell(Fact::UsedUp(failure));
            return self.stop_all(now, Why::Failed(failure), TERM);
        };
        self.slots[life.slot].pause = Some(pause);
        match self.config.elastic {
            Elastic::Inplace => {
                let next = Life { slot: life.slot, number: life.number + 1 };
                self.tell(Fact::Replacing { next, pause, used });
            }
            Elastic::Restart => self.begin_again(now),
        }
    }

    /// Nothing is left of a worker that has ended.
    pub fn handle_cleared(&mut self, now: Instant, life: Life) {
        let slot = &mut self.slots[life.slot];
        if slot.number != life.number || slot.tenant != Tenant::Leaving {
            return;
        }
        slot.tenant = match (self.phase, slot.pause) {
            (Phase::Working, None) => Tenant::Done,
            (Phase::Working, Some(pause)) => {
                (slot.number, slot.pause) = (slot.number + 1, None);
                Tenant::Due(now + pause)
            }
            _ => Tenant::Nobody,
        };
        self.fill(now);
        self.settle(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.phase {
            Phase::Working => self.fill(now),
            Phase::Stopping { why, next, killed: false } if next <= now => self.kill_all(now, why),
            Phase::Stopping { why, next, killed: true } if next <= now => self.give_up(now, why),
            Phase::Stopping { .. } | Phase::Meeting | Phase::Over => {}
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Stopping { next, .. } => Some(next),
            Phase::Working => self.due().min(),
            Phase::Meeting | Phase::Over => None,
        }
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How many workers live now.
    pub fn living_count(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot.tenant, Tenant::Living(_))).count()
    }

    fn living(&self, life: Life) -> Option<Instant> {
        let slot = self.slots.get(life.slot).filter(|slot| slot.number == life.number)?;
        match slot.tenant {
            Tenant::Living(since) => Some(since),
            _ => None,
        }
    }

    fn due(&self) -> impl Iterator<Item = Instant> {
        self.slots.iter().filter_map(|slot| match slot.tenant {
            Tenant::Due(at) => Some(at),
            _ => None,
        })
    }

    /// Starts whoever is due.
    fn fill(&mut self, now: Instant) {
        if self.phase != Phase::Working {
            return;
        }
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if matches!(slot.tenant, Tenant::Due(at) if at <= now) {
                slot.tenant = Tenant::Living(now);
                self.actions.push_back(Action::Start(Life { slot: number, number: slot.number }));
            }
        }
    }

    fn begin_again(&mut self, now: Instant) {
        self.tell(Fact::NextRound(self.round + 1));
        self.stop_all(now, Why::Again, TERM);
    }

    fn stop_all(&mut self, now: Instant, why: Why, signal: u8) {
        self.phase = Phase::Stopping { why, next: now + self.config.grace, killed: false };
        for (number, slot) in self.slots.iter_mut().enumerate() {
            match slot.tenant {
                Tenant::Living(_) => {
                    self.actions
                        .push_back(Action::Signal(Life { slot: number, number: slot.number }, signal));
                }
                Tenant::Due(_) => slot.tenant = Tenant::Nobody,
                Tenant::Nobody | Tenant::Leaving | Tenant::Done => {}
            }
        }
    }

    fn kill_all(&mut self, now: Instant, why: Why) {
        self.phase = Phase::Stopping { why, next: now + UNKILLABLE, killed: true };
        let living = |(number, slot): (usize, &Slot)| match slot.tenant {
            Tenant::Living(_) => Some(Life { slot: number, number: slot.number }),
            _ => None,
        };
        let living: Vec<_> = self.slots.iter().enumerate().filter_map(living).collect();
        if !living.is_empty() {
            self.tell(Fact::Killing(living.len()));
        }
        self.actions.extend(living.into_iter().map(Action::Kill));
    }

    /// Somebody cannot be killed: the kernel holds it, as it does while a disk does not answer. Nobody waits for it for
    /// ever; its keeper goes on.
    fn give_up(&mut self, now: Instant, why: Why) {
        let is_left = |slot: &&Slot| matches!(slot.tenant, Tenant::Living(_) | Tenant::Leaving);
        let left = self.slots.iter().filter(is_left).count();
        self.tell(Fact::Unkillable(left));
        if why == Why::Again {
            // A slot holds one life at a time. Whoever has had enough says so with a signal.
            self.phase = Phase::Stopping { why, next: now + UNKILLABLE, killed: true };
        } else {
            let unended = |signal| Some(Ending::Killed(signal));
            let why = match why {
                Why::Told { signal, worst } => Why::Told { signal, worst: worst.or(unended(signal)) },
                why => why,
            };
            self.conclude(now, why);
        }
    }

    fn conclude(&mut self, now: Instant, why: Why) {
        match why {
            Why::Told { signal, worst } => self.finish(Outcome::Stopped { signal, worst }),
            Why::Failed(failure) => self.finish(Outcome::Failed(failure)),
            Why::Abandoned(reason) => self.finish(Outcome::Abandoned(reason)),
            Why::Again => self.next_round(now),
        }
    }

    /// Goes on to the next phase once nobody is left in this one.
    fn settle(&mut self, now: Instant) {
        let is_empty = |slot: &Slot| matches!(slot.tenant, Tenant::Nobody | Tenant::Done);
        match self.phase {
            Phase::Working if self.slots.iter().all(|slot| slot.tenant == Tenant::Done) => {
                self.finish(Outcome::Done);
            }
            Phase::Stopping { why, .. } if self.slots.iter().all(is_empty) => self.conclude(now, why),
            Phase::Working | Phase::Stopping { .. } | Phase::Meeting | Phase::Over => {}
        }
    }

    fn next_round(&mut self, now: Instant) {
        // The longest pause of those who failed holds for all.
        let pause = self.slots.iter_mut().filter_map(|slot| slot.pause.take()).max().unwrap_or_default();
        self.not_before = now + pause;
        self.round += 1;
        for slot in &mut self.slots {
            (slot.number, slot.tenant) = (self.round, Tenant::Nobody);
        }
        self.phase = Phase::Meeting;
        self.actions.push_back(Action::Meet(self.round));
    }

    fn tell(&mut self, fact: Fact) {
        self.actions.push_back(Action::Tell(fact));
    }

    fn finish(&mut self, outcome: Outcome) {
        self.phase = Phase::Over;
        self.actions.push_back(Action::Finish(outcome));
    }
}
