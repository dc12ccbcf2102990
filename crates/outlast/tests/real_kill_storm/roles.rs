//! What the storm's processes do: this test program, started again in another role.
//!
//! A worker reduces for ever, and holds every element of every result against what the contributors named in the
//! receipt explain (see `work`). Which sizes, tags and types come next follows from the last vote's epoch and the
//! number of collectives since, which survivors and newcomers share. Whatever happens is told to the parent, a
//! line each.

use crate::work::{Flavour, Task};
use outlast::communicator::{Error, NextStep, Receipt};
use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast::{Communicator, Coordinator};
use std::fmt::Write as _;
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const ROLE: &str = "OUTLAST_STORM_ROLE";
pub(crate) const SECRET: &str = "OUTLAST_STORM_SECRET";
/// The coordinator's address: where a worker finds it, and where a coordinator listens.
pub(crate) const ADDRESS: &str = "OUTLAST_STORM_ADDRESS";
pub(crate) const NAME: &str = "OUTLAST_STORM_NAME";
pub(crate) const MIN_WORLD: &str = "OUTLAST_STORM_MIN_WORLD";
pub(crate) const BYTES_MAX: &str = "OUTLAST_STORM_BYTES_MAX";
/// Set to reduce tensors of many types, quantised ones and several at once among them, not f32 alone.
pub(crate) const TYPES: &str = "OUTLAST_STORM_TYPES";
pub(crate) const FORK: &str = "OUTLAST_STORM_FORK";
pub(crate) const STALL_MS: &str = "OUTLAST_STORM_STALL_MS";
/// A time limit for calls other than [`CALL_TIMEOUT`].
pub(crate) const TIMEOUT_MS: &str = "OUTLAST_STORM_TIMEOUT_MS";
/// Where a worker listens, if not on loopback.
pub(crate) const LISTEN: &str = "OUTLAST_STORM_LISTEN";
/// `lan` for the times of that preset; `local` otherwise.
pub(crate) const PRESET: &str = "OUTLAST_STORM_PRESET";
/// Set to see every event of the runtime on stderr.
pub(crate) const LOG: &str = "OUTLAST_STORM_LOG";

/// The smallest tensors, unless that is said.
pub(crate) const BYTES_MIN: &str = "OUTLAST_STORM_BYTES_MIN";
const BYTES_MIN_DEFAULT: usize = 64 << 10;
/// No call may take longer than this and the verdict's grace.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// No forked child outlives a test that went wrong for longer than this.
const CHILD_SECONDS: u32 = 120;

static STOP: AtomicBool = AtomicBool::new(false);

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn preset() -> Preset {
    if setting(PRESET).as_deref() == Some("lan") { Preset::Lan } else { Preset::Local }
}

fn secret() -> RunSecret {
    setting(SECRET).expect("a secret").parse().expect("a whole secret")
}

/// Microseconds on the clock that all processes of a machine share.
pub(crate) fn micros() -> u64 {
    outlast::clock::now().as_nanos() / 1_000
}

/// A line for the parent. The test harness may have left the cursor behind something of its own.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // If nobody listens any more there is nobody to tell.
    let _ = write!(out, "\n@{line}\n");
    let _ = out.flush();
}

/// Ends this process when the parent is gone or says so, and notes when it says stop.
fn mind_the_parent() {
    std::thread::spawn(|| {
        for line in std::io::stdin().lock().lines() {
            match line.as_deref() {
                Ok("stop") => STOP.store(true, Ordering::Relaxed),
                // As `os._exit(0)` of Python: at once, with no goodbye to anybody.
                // SAFETY: nothing of this process is used afterwards.
                Ok("exit") => unsafe { libc::_exit(0) },
                _ => {}
            }
        }
        std::process::exit(3);
    });
}

/// Runs the coordinator until killed.
pub(crate) fn coordinator() {
    trace::install();
    mind_the_parent();
    let address = setting(ADDRESS).expect("an address").parse().expect("an address");
    let mut coordinator = Coordinator::builder().listen(address).secret(secret()).preset(preset());
    if let Some(budget) = setting(STALL_MS) {
        coordinator = coordinator.stall_budget(Duration::from_millis(budget.parse().expect("milliseconds")));
    }
    let coordinator = coordinator.start().expect("a coordinator");
    say(&format!("ready {}", coordinator.address()));
    loop {
        std::thread::park();
    }
}

/// Reduces until told to stop.
pub(crate) fn worker() {
    trace::install();
    mind_the_parent();
    let mut builder = Communicator::builder()
        .coordinator(setting(ADDRESS).expect("an address"))
        .secret(secret())
        .listen(setting(LISTEN).as_deref().unwrap_or("127.0.0.1:0").parse().expect("an address"))
        .preset(preset())
        .timeout(
            setting(TIMEOUT_MS)
                .map_or(CALL_TIMEOUT, |ms| Duration::from_millis(ms.parse().expect("a number"))),
        )
        .name(setting(NAME).expect("a name"));
    if let Some(budget) = setting(STALL_MS) {
        builder = builder.stall_budget(Duration::from_millis(budget.parse().expect("milliseconds")));
    }
    let comm = Arc::new(builder.start().expect("a communicator"));
    say(&format!("ready {}", comm.peer_id()));
    if setting(FORK).is_some() {
        fork();
    }
    let mut min_world = setting(MIN_WORLD).expect("a number").parse().expect("a number");
    loop {
        match reduce_for_ever(&comm, min_world) {
            Ok(()) => break,
            Err(error) if error.action() == NextStep::Rejoin => say(&format!("out {error}")),
            Err(error) => {
                say(&format!("error {error}"));
                break;
            }
        }
        min_world = 1;
    }
    comm.leave();
    say("done");
}

/// A child that holds whatever it inherited, as a data loader's does.
fn fork() {
    // SAFETY: the child only pauses; the alarm ends it.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(CHILD_SECONDS);
            loop {
                libc::pause();
            }
        }
        child
    };
    assert!(child > 0, "no child");
    say(&format!("child {child}"));
}

fn reduce_for_ever(comm: &Arc<Communicator>, min_world: u32) -> Result<(), Error> {
    let mut epoch = comm.connect(min_world)?.epoch;
    let mut number = 0;
    loop {
        let step = Step::plan(epoch, number);
        number += 1;
        let (stopped, pending) = step.reduce(comm)?;
        if stopped {
            return Ok(());
        }
        if pending > 0 {
            epoch = comm.update_topology(1)?.epoch;
            number = 0;
        }
    }
}

/// One step of the program: one collective, or four at once.
struct Step {
    count: usize,
    tasks: Vec<Task>,
}

impl Step {
    fn plan(epoch: u64, number: u64) -> Self {
        let bytes = |name: &str| setting(name).and_then(|bytes| bytes.parse::<usize>().ok());
        let bytes_min = bytes(BYTES_MIN).unwrap_or(BYTES_MIN_DEFAULT);
        let bytes_max = bytes(BYTES_MAX).unwrap_or(1 << 20).max(bytes_min);
        let mut dice = Dice::new(epoch.wrapping_mul(1_000_003).wrapping_add(number));
        let doublings = (bytes_max / bytes_min).ilog2();
        // Small ones are common, so that the storm has many collectives to hit.
        let size =
            bytes_min << dice.below(u64::from(doublings) + 1).min(dice.below(u64::from(doublings) + 1));
        let odd = dice.below(7) as usize;
        let count = size / 4 + odd;
        let tags = if dice.below(3) == 0 { 1..5 } else { 0..1 };
        let types = setting(TYPES).is_some();
        let task = |tag: u64| {
            let (flavour, tensors) = if types {
                let flavours = Flavour::ALL.len() as u64;
                (Flavour::ALL[dice.below(flavours) as usize], [1, 1, 3, 7][dice.below(4) as usize])
            } else {
                (Flavour::F32, 1)
            };
            Task { flavour, tag, count, tensors, step: number }
        };
        Self { count, tasks: tags.map(task).collect() }
    }

    /// Whether somebody wants to stop, and how many wait to come in. The same on every member.
    fn reduce(&self, comm: &Arc<Communicator>) -> Result<(bool, u32), Error> {
        let began = micros();
        let mut tasks = self.tasks.clone();
        // In another order on every peer, because tags may come in any.
        let places = tasks.len();
        tasks.rotate_left(comm.rank() % places);
        let (mut over, mut pending, mut failure) = (false, 0, None);
        for (task, outcome) in Task::perform_all(tasks, comm, STOP.load(Ordering::Relaxed)) {
            if let Some(wrong) = outcome.wrong {
                say(&format!("wrong {task:?}: {wrong}"));
            }
            over |= outcome.stop;
            match outcome.ended {
                Ok((receipt, hash)) => {
                    pending = pending.max(receipt.pending);
                    self.tell(&task, &receipt, hash, began);
                }
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        failure.map_or(Ok((over, pending)), Err)
    }

    /// Tells the parent what was committed.
    fn tell(&self, task: &Task, receipt: &Receipt, hash: u64, began: u64) {
        let ids: Vec<_> = receipt.contributors.iter().map(ToString::to_string).collect();
        let mut line = format!("op {} {began}", micros());
        let Receipt { epoch, tag, seq, attempts, pending, .. } = receipt;
        let _ = write!(line, " {epoch} {tag} {seq} {attempts} {pending} {} {hash:x}", ids.join(","));
        let many = if task.tensors > 1 { "/many" } else { "" };
        let _ = write!(line, " {} {} {}{many}", self.count, self.tasks.len(), task.flavour.name());
        say(&line);
    }
}

/// A small generator; the storm's choices need be varied, not secret.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Watches the runtime's own events: the moment at which an attempt is given up is nowhere else to be seen.
mod trace {
    use super::{LOG, micros, say};
    use std::fmt::{Debug, Write as _};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    struct Watch {
        log: bool,
    }

    pub(super) fn install() {
        let watch = Watch { log: std::env::var_os(LOG).is_some() };
        let _ = tracing::subscriber::set_global_default(watch);
    }

    #[derive(Default)]
    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = write!(self.0, "{}={value:?} ", field.name());
        }
    }

    impl Subscriber for Watch {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("outlast") && *metadata.level() <= Level::DEBUG
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut text = Text::default();
            event.record(&mut text);
            if event.metadata().target().starts_with("outlast::communicator")
                && text.0.contains("an attempt stopped")
            {
                say(&format!("abort {}", micros()));
            }
            if text.0.contains("the streams of a link") {
                say(&format!("streams {}", text.0));
            }
            if self.log {
                let name = std::env::var(super::NAME).unwrap_or_else(|_| "coordinator".to_owned());
                eprintln!("{} {name} {} {}", micros(), event.metadata().target(), text.0);
            }
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }
}
