//! Registers that a coordinator serves: compare-and-set, leases and news, for whoever agrees on something.
//!
//! # The problem
//!
//! Nodes that meet need one small value that all of them see change in the same order, and somebody who lets the leases
//! of the dead run out. The coordinator is there anyway. But whatever nodes do with their registers must not cost the
//! votes of a run that trains a moment.
//!
//! # The intuition
//!
//! Registers share nothing with the clerk: they have streams of their own (`outlast-register/1`), a thread of their own
//! (see `runtime.rs`) and bounds of their own. Each register is a pure machine behind a lock that is held for one step
//! and never while anybody waits. One task per stream asks and answers; one task per register, its *warden*, lets time
//! pass. News is told newest only: a stream that is busy writing finds one snapshot afterwards, not a queue of them. A
//! write is told at once; who came and who went is told a moment later, so that a crowd is told of as one.
//!
//! # The invariant
//!
//! What is told on one stream never goes back: each snapshot is taken under the lock, and told before the next is taken.
//! Once the coordinator has stopped, no step is done any more.
//!
//! # What it does not do
//!
//! It keeps nothing on disk. After a restart the nodes bring what they saw (see `outlast_proto::rendezvous::Register`).
//! A register that nobody has been at for ten minutes is forgotten.

mod stream;

pub(super) use stream::serve;

use super::post::Post;
use crate::planted::{self, Place};
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::{clock, runtime};
use outlast_proto::id::RunId;
use outlast_proto::limits::{REGISTERS_BYTES_MAX, REGISTERS_PER_RUN_MAX, RUNS_MAX};
use outlast_proto::rendezvous::Register;
use outlast_proto::time::Instant;
use outlast_proto::wire::encode;
use outlast_proto::wire::register::FromRegister;
use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

/// How long a register is remembered that nobody is at.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);
/// How long the nodes have to bring what they saw of a register whose warden panicked.
const BROUGHT_WITHIN: Duration = Duration::from_secs(5);

/// All registers of a coordinator.
#[derive(Debug)]
pub(super) struct Registers {
    /// Whether anything may be decided here (rule 19).
    post: Post,
    runtime: Handle,
    /// Taken before the lock of a register, never after it.
    table: Mutex<Table>,
    /// Bytes of all values together.
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Table {
    /// Until then somebody may come back to a coordinator that was here before us.
    fresh_after: Option<Instant>,
    runs: BTreeMap<RunId, BTreeMap<String, Arc<KeptRegister>>>,
    has_stopped: bool,
}

/// One register and who wants to hear of it.
#[derive(Debug)]
struct KeptRegister {
    post: Post,
    held: Mutex<Held>,
    /// Grows whenever there is something to tell.
    news: watch::Sender<u64>,
    /// Rings when the warden has to wake up earlier than it planned.
    sooner: Notify,
    /// Bytes of all values of the coordinator together.
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Held {
    register: Register,
    /// Streams that are open here.
    streams: usize,
    /// Since when there are none.
    empty_since: Option<Instant>,
    /// When the warden means to wake up.
    wakes: Option<Instant>,
    /// The newest snapshot as it travels, and which change it tells of: one encoding for all who hear of it.
    told: Option<(u64, Arc<[u8]>)>,
    /// Bytes of its value, as counted with all others.
    bytes: usize,
    /// Not in the table any more; whoever finds it looks again.
    is_forgotten: bool,
}

/// Why a stream is over.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The other side is gone, or does not read, or the coordinator stops.
    Gone,
    /// It asked for what cannot be had; what to tell it.
    Refused(String),
}

impl Registers {
    pub(super) fn new(fresh_after: Option<Instant>, post: Post, runtime: Handle) -> Arc<Self> {
        let table = Table { fresh_after, ..Table::default() };
        Arc::new(Self { post, runtime, table: Mutex::new(table), bytes: Arc::default() })
    }

    /// Begins again after a [`stop`](Self::stop), as one that may have had a predecessor until that moment.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "reigns begin where there is an etcd"))]
    pub(super) fn begin(&self, fresh_after: Instant) {
        let mut table = lock(&self.table);
        (table.fresh_after, table.has_stopped) = (Some(fresh_after), false);
    }

    /// Ends every stream. Nothing is written and no lease is renewed any more once it returns.
    pub(super) fn stop(&self) {
        let mut table = lock(&self.table);
        table.has_stopped = true;
        for kept in std::mem::take(&mut table.runs).into_values().flat_map(BTreeMap::into_values) {
            kept.held().is_forgotten = true;
            kept.news.send_modify(|news| *news = u64::MAX);
            kept.sooner.notify_one();
        }
    }

    /// The register of that name, made if need be; with one more stream.
    fn open(self: &Arc<Self>, run: &RunId, name: &str) -> Result<Open, End> {
        loop {
            let kept = self.find(run, name)?;
            let mut held = kept.held();
            if !held.is_forgotten {
                held.streams += 1;
                held.empty_since = None;
                drop(held);
                return Ok(Open(kept));
            }
        }
    }

    fn find(self: &Arc<Self>, run: &RunId, name: &str) -> Result<Arc<KeptRegister>, End> {
        let mut table = lock(&self.table);
        if table.has_stopped {
            return Err(End::Gone);
        }
        if let Some(kept) = table.runs.get(run).and_then(|named| named.get(name)) {
            return Ok(Arc::clone(kept));
        }
        if !table.runs.contains_key(run) && table.runs.len() >= RUNS_MAX && !table.forget_an_empty_run() {
            return Err(End::Refused(format!(
                "registers of {RUNS_MAX} runs are in use here, and no more may be; use another coordinator, or \
                 wait until a run has ended"
            )));
        }
        let fresh_after = table.fresh_after;
        let named = table.runs.entry(run.clone()).or_default();
        if named.len() >= REGISTERS_PER_RUN_MAX {
            return Err(End::Refused(format!(
                "run {run} has {REGISTERS_PER_RUN_MAX} registers, and no more may be; use another run id for {name:?}"
            )));
        }
        let now = clock::now();
        let register = match fresh_after.filter(|until| now < *until) {
            Some(until) => Register::listening(until, era()),
            None => Register::anew(era()),
        };
        let kept = Arc::new(KeptRegister::new(register, now, self.post.clone(), Arc::clone(&self.bytes)));
        named.insert(name.to_owned(), Arc::clone(&kept));
        let (registers, weak) = (Arc::downgrade(self), Arc::downgrade(&kept));
        self.runtime.spawn(keep_to_the_end(registers, run.clone(), name.to_owned(), weak));
        Ok(kept)
    }

    /// Takes a register out of the table whose warden is gone. Its streams end, and the nodes bring what they saw to the next
    /// one, as after a restart.
    fn give_up(&self, run: &RunId, name: &str, kept: &KeptRegister) {
        let mut table = lock(&self.table);
        table.fresh_after = table.fresh_after.max(Some(clock::now() + BROUGHT_WITHIN));
        let is_it = |named: &Arc<KeptRegister>| std::ptr::eq(Arc::as_ptr(named), kept);
        if let Some(named) = table.runs.get_mut(run)
            && named.get(name).is_some_and(is_it)
        {
            named.remove(name);
        }
        kept.held().is_forgotten = true;
        drop(table);
        kept.news.send_modify(|news| *news = u64::MAX);
    }

    /// Takes a register out of the table if nobody has been at it for long enough. Whether it is gone.
    fn forget(&self, run: &RunId, name: &str, kept: &KeptRegister, now: Instant) -> bool {
        let mut table = lock(&self.table);
        let mut held = kept.held();
        if held.is_forgotten {
            return true;
        }
        let is_old = held.empty_since.is_some_and(|since| now >= since + FORGOTTEN_AFTER);
        if held.streams > 0 || !is_old {
            return false;
        }
        held.is_forgotten = true;
        drop(held);
        if let Some(named) = table.runs.get_mut(run) {
            named.remove(name);
            if named.is_empty() {
                table.runs.remove(run);
            }
        }
        true
    }
}

impl Table {
    /// Makes room by forgetting the registers of a run at which nobody is and nobody's lease lasts.
    fn forget_an_empty_run(&mut self) -> bool {
        let is_empty = |kept: &Arc<KeptRegister>| {
            let held = kept.held();
            held.streams == 0 && !held.register.has_leases()
        };
        let found = self.runs.iter().find(|(_, named)| named.values().all(is_empty));
        let Some(run) = found.map(|(run, _)| run.clone()) else { return false };
        for kept in self.runs.remove(&run).unwrap_or_default().into_values() {
            kept.held().is_forgotten = true;
        }
        true
    }
}

impl KeptRegister {
    fn new(register: Register, now: Instant, post: Post, bytes: Arc<AtomicUsize>) -> Self {
        let held = Held {
            register,
            streams: 0,
            empty_since: Some(now),
            wakes: None,
            told: None,
            bytes: 0,
            is_forgotten: false,
        };
        Self { post, held: Mutex::new(held), news: watch::Sender::new(0), sooner: Notify::new(), bytes }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }

    /// Does one step with the register, and lets everybody know what came of it.
    fn step<T>(&self, step: impl FnOnce(&mut Register, Instant) -> T) -> Result<T, End> {
        let mut held = self.held();
        if held.is_forgotten || !self.post.may_decide() {
            return Err(End::Gone);
        }
        let result = step(&mut held.register, clock::now());
        let bytes = held.register.bytes();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(std::mem::replace(&mut held.bytes, bytes), Ordering::Relaxed);
        let changes = held.register.changes();
        let due = held.register.poll_timeout();
        if due.is_some_and(|due| held.wakes.is_none_or(|wakes| due < wakes)) {
            self.sooner.notify_one();
        }
        drop(held);
        self.news.send_if_modified(|news| *news < changes && std::mem::replace(news, changes) != changes);
        Ok(result)
    }

    /// Whether there is room for a value of that many bytes in place of the one that is there.
    fn check_room(&self, bytes: usize) -> Result<(), End> {
        let (all, here) = (self.bytes.load(Ordering::Relaxed), self.held().bytes);
        if bytes > here && all - here + bytes > REGISTERS_BYTES_MAX {
            return Err(End::Refused(format!(
                "the registers of this coordinator hold {all} bytes, {REGISTERS_BYTES_MAX} are the limit, and this value \
                 has {bytes}; use another coordinator, or wait until a run has ended"
            )));
        }
        Ok(())
    }
}

impl Drop for KeptRegister {
    fn drop(&mut self) {
        let bytes = self.held().bytes;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Held {
    /// How the register is, as a message, and which change it tells of; `None` while it listens.
    fn told(&mut self) -> Option<(u64, Arc<[u8]>)> {
        let changes = self.register.changes();
        if self.told.as_ref().is_none_or(|(told, _)| *told != changes) {
            let snapshot = self.register.snapshot()?;
            self.told = Some((changes, encode(&FromRegister::Told(snapshot)).into()));
        }
        self.told.clone()
    }
}

/// A register with a stream at it, until it is dropped.
#[derive(Debug)]
struct Open(Arc<KeptRegister>);

impl Drop for Open {
    fn drop(&mut self) {
        let mut held = self.0.held();
        held.streams -= 1;
        if held.streams == 0 {
            held.empty_since = Some(clock::now());
            self.0.sooner.notify_one();
        }
    }
}

/// As [`keep`]. Leases that never run out would be waited for: a register without a warden is given up (rule 40).
async fn keep_to_the_end(registers: Weak<Registers>, run: RunId, name: String, kept: Weak<KeptRegister>) {
    let keeping = keep(registers.clone(), run.clone(), name.clone(), kept.clone());
    if runtime::to_its_end("the warden of a register", keeping).await.is_none()
        && let (Some(all), Some(kept)) = (registers.upgrade(), kept.upgrade())
    {
        all.give_up(&run, &name, &kept);
    }
}

/// The warden of a register: lets leases run out, ends listening, and forgets what nobody needs.
async fn keep(registers: Weak<Registers>, run: RunId, name: String, kept: Weak<KeptRegister>) {
    loop {
        let (Some(all), Some(kept)) = (registers.upgrade(), kept.upgrade()) else { return };
        planted::step(|place| matches!(place, Place::Warden(planted) if *planted == run));
        let now = clock::now();
        if all.forget(&run, &name, &kept, now) || kept.step(Register::handle_timeout).is_err() {
            return;
        }
        drop(all);
        let due = {
            let mut held = kept.held();
            let forgotten = held.empty_since.map(|since| since + FORGOTTEN_AFTER);
            held.wakes = held.register.poll_timeout().into_iter().chain(forgotten).min();
            held.wakes.map_or(FORGOTTEN_AFTER, |due| due.since(now))
        };
        // A ring that came before this wait is not lost: it is remembered.
        let _ = tokio::time::timeout(due, kept.sooner.notified()).await;
    }
}

/// The number of an era that begins now: microseconds of the time of day, which grow from one coordinator to the next.
fn era() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Plane;
    use outlast_proto::wire::register::{Fate, Token};

    fn registers() -> Arc<Registers> {
        Registers::new(None, Post::default(), runtime::of(Plane::Registers).unwrap())
    }

    fn run(number: usize) -> RunId {
        format!("run-{number}").parse().unwrap()
    }

    #[test]
    fn a_run_has_a_bounded_number_of_registers_and_so_has_a_coordinator() {
        let registers = registers();
        let mut open: Vec<_> =
            (0..REGISTERS_PER_RUN_MAX).map(|n| registers.open(&run(0), &n.to_string()).unwrap()).collect();
        let refused = registers.open(&run(0), "one more").unwrap_err();
        assert!(
            matches!(&refused, End::Refused(text) if text.contains("run-0 has 8 registers")),
            "{refused:?}"
        );
        open.extend((1..RUNS_MAX).map(|number| registers.open(&run(number), "r").unwrap()));
        assert!(matches!(registers.open(&run(RUNS_MAX), "r"), Err(End::Refused(_))), "all are in use");
        // A run that nobody is at gives way, one that somebody holds a lease in does not.
        let held = open.pop().unwrap();
        held.0
            .step(|register, now| register.handle_beat(now, "me", Duration::from_mins(1), Vec::new()))
            .unwrap();
        drop(held);
        assert!(matches!(registers.open(&run(RUNS_MAX), "r"), Err(End::Refused(_))), "a lease lasts");
        drop(open.pop());
        assert!(registers.open(&run(RUNS_MAX), "r").is_ok());
    }

    #[test]
    fn values_are_counted_together_and_given_back() {
        let registers = registers();
        let open = registers.open(&run(0), "r").unwrap();
        let write = |token, bytes: usize| {
            open.0.check_room(bytes)?;
            open.0.step(|register, now| register.handle_write(now, "", token, vec![7; bytes]))
        };
        write(Token::default(), 1_000).unwrap();
        assert_eq!(registers.bytes.load(Ordering::Relaxed), 1_000);
        registers.bytes.fetch_add(REGISTERS_BYTES_MAX - 1_500, Ordering::Relaxed);
        let after =
            open.0.step(|register, _| register.snapshot()).unwrap().expect("it does not listen").token;
        let refused = write(after, 2_000).unwrap_err();
        assert!(
            matches!(&refused, End::Refused(text) if text.contains("67108864 are the limit")),
            "{refused:?}"
        );
        assert_eq!(write(after, 1_400).unwrap(), Some(Fate::Accepted));
        drop(open);
        registers.stop();
        // The timer's task may hold it for a moment longer.
        let patience = std::time::Instant::now() + Duration::from_secs(10);
        while registers.bytes.load(Ordering::Relaxed) != REGISTERS_BYTES_MAX - 1_500 {
            assert!(std::time::Instant::now() < patience, "what was written is still counted");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_register_whose_warden_panics_is_given_up_and_the_next_one_listens() {
        let registers = registers();
        let (struck, spared): (RunId, RunId) = ("warden-panics".parse().unwrap(), run(2));
        let others = registers.open(&spared, "r").unwrap();
        planted::plant(Place::Warden(struck.clone()));
        let open = registers.open(&struck, "r").unwrap();
        let patience = std::time::Instant::now() + Duration::from_secs(10);
        while open.0.step(Register::handle_timeout).is_ok() {
            assert!(
                std::time::Instant::now() < patience,
                "nobody lets its leases run out, and nobody says so"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(registers.open(&struck, "r").unwrap().0.held().register.listens());
        assert_eq!(others.0.step(Register::handle_timeout), Ok(()));
    }

    #[test]
    fn after_a_stop_nothing_is_written_and_nobody_is_let_in() {
        let registers = registers();
        let open = registers.open(&run(0), "r").unwrap();
        let mut news = open.0.news.subscribe();
        registers.stop();
        let written = open.0.step(|register, now| register.handle_write(now, "", Token::default(), vec![1]));
        assert_eq!(written, Err(End::Gone));
        assert!(news.has_changed().unwrap(), "whoever waits is woken");
        news.mark_unchanged();
        assert_eq!(registers.open(&run(0), "r").unwrap_err(), End::Gone);
    }
}
