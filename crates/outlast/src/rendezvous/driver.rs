//! What carries out the machine of one node: a task that reads, writes, beats and tells.
//!
//! The program's calls are commands in a queue. One operation runs at a time; closing or leaving cuts a wait for a round
//! short. What the program may ask at any time (is it closed? who waits?) is published after every step, so those
//! questions wait for nobody.

use super::backend::{Answer, Ask, BackendEnd, Trouble, TroubleKind};
use super::event::Journal;
use crate::clock;
use crate::sync::{Arc, Condvar, Mutex, lock};
use outlast_proto::rendezvous::{self as rules, Failure, Machine, Operation, Outcome, Request};
use std::collections::VecDeque;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;
use tokio::sync::mpsc;

/// What the program wants.
#[derive(Debug)]
pub(super) enum Command {
    /// Do it, and say how it ended.
    Operate(Operation, Reply),
    /// The program does not wait any more for what is under way.
    Cancel,
    /// What the others are told from the next round on.
    Address(String),
}

/// Where the outcome goes. Nobody may listen any more.
pub(super) type Reply = std_mpsc::SyncSender<Result<Outcome, Ended>>;

/// Why an operation did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Failed(Failure),
    /// Somebody answered who does not take us for one of the run.
    Unauthorized(String),
    /// The program closed or left meanwhile, or waits no longer.
    Cancelled,
}

/// What is known of the rendezvous, for questions that wait for nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Whether anything was ever told.
    pub(super) is_known: bool,
    pub(super) is_closed: bool,
    /// How many participants of the present round live.
    pub(super) nodes: usize,
    /// Why the participants of a complete round should meet again, as a number.
    pub(super) waiting: usize,
    /// What is wrong with the backend at the moment.
    pub(super) trouble: Option<Trouble>,
    /// The task has ended.
    pub(super) is_over: bool,
}

/// What driver and program share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) seen: Mutex<Seen>,
    pub(super) changed: Condvar,
    pub(super) journal: Mutex<Journal>,
}

struct Running {
    operation: Operation,
    reply: Reply,
    is_cancelled: bool,
}

pub(super) struct Driver {
    pub(super) machine: Machine,
    pub(super) backend: BackendEnd,
    pub(super) shared: Arc<Shared>,
    running: Option<Running>,
    waiting: VecDeque<(Operation, Reply)>,
    trouble: Option<Trouble>,
}

impl Driver {
    pub(super) fn new(machine: Machine, backend: BackendEnd, shared: Arc<Shared>) -> Self {
        Self { machine, backend, shared, running: None, waiting: VecDeque::new(), trouble: None }
    }

    /// Drives until the program lets go of its end.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        // Even after a panic: whoever waits finds out (rule 40).
        let _over = Over(Arc::clone(&self.shared));
        loop {
            self.pump();
            let due = self.machine.poll_timeout();
            let late = due.map(|due| due.since(clock::now()));
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => break,
                },
                answer = self.backend.next() => self.hear(answer),
                () = pass(late) => self.machine.handle_timeout(clock::now()),
            }
        }
        // The lease ends with the program's interest; what it wrote stays until somebody writes next.
        self.backend.ask(Ask::Release);
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Operate(operation, reply) => {
                if operation != Operation::Next {
                    self.cancel();
                }
                self.waiting.push_back((operation, reply));
            }
            Command::Cancel => self.cancel(),
            Command::Address(address) => self.machine.set_address(address),
        }
    }

    fn cancel(&mut self) {
        if let Some(running) = self.running.as_mut().filter(|running| running.operation == Operation::Next) {
            running.is_cancelled = true;
            self.machine.handle_cancel(clock::now());
        }
    }

    fn hear(&mut self, answer: Answer) {
        let now = clock::now();
        match answer {
            Answer::Told(snapshot) | Answer::Found(snapshot) => {
                self.trouble = None;
                self.machine.handle_snapshot(now, snapshot);
            }
            Answer::Written(fate, snapshot) => {
                self.trouble = None;
                self.machine.handle_written(now, fate, snapshot);
            }
            Answer::Beaten => self.machine.handle_beat(now),
            Answer::Trouble(trouble) => {
                let told = rules::Trouble { is_final: trouble.is_final(), text: trouble.text.clone() };
                self.trouble = Some(trouble);
                self.machine.handle_trouble(now, told);
            }
        }
    }

    /// Carries out what the machine wants, and begins what the program wants next.
    fn pump(&mut self) {
        loop {
            while let Some(request) = self.machine.poll_action() {
                match request {
                    Request::Read => self.ask(Ask::Read),
                    Request::Write { expected, value } => self.ask(Ask::Write { expected, value }),
                    Request::Beat { lease, note } => self.ask(Ask::Beat { lease, note }),
                    Request::Release => self.ask(Ask::Release),
                    Request::Tell(event) => lock(&self.shared.journal).enter(event),
                    Request::Done(outcome) => self.done(outcome),
                }
            }
            self.publish();
            if self.machine.is_busy() {
                return;
            }
            let Some((operation, reply)) = self.waiting.pop_front() else { return };
            self.running = Some(Running { operation, reply, is_cancelled: false });
            self.machine.handle_operation(clock::now(), operation);
        }
    }

    fn ask(&mut self, ask: Ask) {
        if !self.backend.ask(ask) {
            let text = "the backend's task has ended: this is a bug in outlast, please report it";
            let trouble = rules::Trouble { is_final: true, text: text.to_owned() };
            self.machine.handle_trouble(clock::now(), trouble);
        }
    }

    fn done(&mut self, outcome: Result<Outcome, Failure>) {
        let Some(running) = self.running.take() else { return };
        let unauthorized = self.trouble.as_ref().filter(|trouble| trouble.kind == TroubleKind::Unauthorized);
        let outcome = outcome.map_err(|failure| match (failure, unauthorized) {
            (Failure::Cancelled, _) => Ended::Cancelled,
            (Failure::Timeout(_), _) if running.is_cancelled => Ended::Cancelled,
            (Failure::Refused(_), Some(trouble)) => Ended::Unauthorized(trouble.text.clone()),
            (failure, _) => Ended::Failed(failure),
        });
        // Who called may have given up.
        let _ = running.reply.try_send(outcome);
    }

    fn publish(&self) {
        let mut seen = Seen { trouble: self.trouble.clone(), ..Seen::default() };
        if let Some(state) = self.machine.state() {
            seen.is_known = true;
            (seen.is_closed, seen.nodes) = (state.closed, state.participants.len());
            seen.waiting = state.waiting();
        }
        let mut shared = lock(&self.shared.seen);
        if !seen.is_known && shared.is_known {
            // What was told once stays what is known, for want of better.
            let known = shared.clone();
            seen = Seen { trouble: seen.trouble, ..known };
        }
        if *shared != seen {
            *shared = seen;
            self.shared.changed.notify_all();
        }
    }
}

/// Says that the task has ended, however it did.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        lock(&self.0.seen).is_over = true;
        self.0.changed.notify_all();
    }
}

async fn pass(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
