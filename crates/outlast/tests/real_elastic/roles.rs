//! What the processes of a storm do: this test program, started again in another role.
//!
//! A worker trains with `Elastic` and tells every step: which numbers it used, and the digest of its replica afterwards.
//! What the steps come to depends on their order and on every sample, so a replay shows whether all of them count.

use outlast::communicator::{Error, NextStep};
use outlast::elastic::{Elastic, ElasticOptions, Ledger, Step};
use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast::state::SharedState;
use outlast::{Communicator, Coordinator};
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const ROLE: &str = "OUTLAST_STORM_ROLE";
pub(crate) const SECRET: &str = "OUTLAST_STORM_SECRET";
pub(crate) const ADDRESS: &str = "OUTLAST_STORM_ADDRESS";
pub(crate) const NAME: &str = "OUTLAST_STORM_NAME";
/// Which round of heals.
pub(crate) const ROUND: &str = "OUTLAST_STORM_ROUND";
pub(crate) const FOLDER: &str = "OUTLAST_STORM_FOLDER";
/// A process that is stopped for longer is left behind.
pub(crate) const STALL: Duration = Duration::from_millis(1_500);
/// Fewest members of a step.
pub(crate) const MIN_WORLD: u32 = 2;
pub(crate) const EVERY: u64 = 25;
pub(crate) const WEIGHTS: usize = 8;
/// How much of the model is lost and learned in a step.
const RATE: f64 = 0.01;

static STOP: AtomicBool = AtomicBool::new(false);

pub(crate) fn setting(name: &str) -> String {
    std::env::var(name).expect("a setting of the storm")
}

pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\n@{line}\n");
    let _ = out.flush();
}

/// Ends this process when the parent is gone, and notes when it says stop.
pub(crate) fn mind_the_parent() {
    std::thread::spawn(|| {
        for line in std::io::stdin().lock().lines() {
            match line.as_deref() {
                Ok("stop") => STOP.store(true, Ordering::Relaxed),
                _ => std::process::exit(3),
            }
        }
        std::process::exit(3);
    });
}

pub(crate) fn coordinator() {
    mind_the_parent();
    let secret: RunSecret = setting(SECRET).parse().expect("a whole secret");
    let listen = setting(ADDRESS).parse().expect("an address");
    let builder =
        Coordinator::builder().listen(listen).secret(secret).preset(Preset::Local).stall_budget(STALL);
    let coordinator = builder.start().expect("a coordinator");
    say(&format!("ready {}", coordinator.address()));
    loop {
        std::thread::park();
    }
}

/// The slope at a place that a sample asks for: it depends on the model, so that the order of steps matters.
pub(crate) fn slope(weight: f64, sample: u64, place: usize) -> f64 {
    0.1 * weight - ((sample % 1_000) as f64 * (place + 1) as f64).sin()
}

/// One step of one process on these samples: what all members together must come to.
pub(crate) fn replay(weights: &mut [f64], samples: &[u64]) {
    for (place, weight) in weights.iter_mut().enumerate() {
        let sum: f64 = samples.iter().map(|sample| slope(*weight, *sample, place)).sum();
        *weight -= RATE * sum / samples.len().max(1) as f64;
    }
}

fn fresh() -> SharedState {
    let mut state = SharedState::new();
    state.insert("weights", vec![0.0_f64; WEIGHTS], &[WEIGHTS as u64]).expect("a tensor");
    state.set_revision(Some(0));
    state
}

fn body(step: &mut Step<'_>, count: u64) -> Result<bool, Error> {
    let numbers = step.samples(count)?;
    let weights = step.state().get::<f64>("weights").expect("weights").to_vec();
    let total = numbers.len().max(1) as f64;
    let mean = |(place, weight): (usize, &f64)| {
        numbers.iter().map(|number| slope(*weight, *number, place)).sum::<f64>() / total
    };
    let mut slopes: Vec<f64> = weights.iter().enumerate().map(mean).collect();
    let stop = if STOP.load(Ordering::Relaxed) { 1.0 } else { 0.0 };
    let mut stops = [stop];
    step.average([&mut slopes[..], &mut stops[..]], numbers.len() as f64)?;
    let weights = step.state_mut()?.get_mut::<f64>("weights").expect("weights");
    weights.iter_mut().zip(&slopes).for_each(|(weight, slope)| *weight -= RATE * slope);
    Ok(stops[0] > 0.0)
}

/// The numbers that a step used, by the ledgers before and after it.
fn used(before: &Ledger, after: &Ledger) -> Vec<u64> {
    let open = |ledger: &Ledger| ledger.samples(0, 1, 0, ledger.open());
    let end = |ledger: &Ledger| ledger.consumed() + ledger.open();
    let left = open(after);
    let handed = open(before).into_iter().chain(end(before)..end(after));
    handed.filter(|number| left.binary_search(number).is_err()).collect()
}

pub(crate) fn worker() {
    mind_the_parent();
    let secret: RunSecret = setting(SECRET).parse().expect("a whole secret");
    let comm = Communicator::builder()
        .coordinator(setting(ADDRESS))
        .secret(secret)
        .name(setting(NAME))
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Local)
        .stall_budget(STALL)
        .timeout(Duration::from_mins(1))
        .start()
        .expect("a communicator");
    say(&format!("ready {}", comm.peer_id()));
    let options =
        ElasticOptions::new().min_world(MIN_WORLD).verify_every(50).checkpoint(setting(FOLDER), EVERY);
    let mut training = Elastic::new(Arc::new(comm), fresh(), options).expect("a loop");
    say(&format!("begin {}", training.number()));
    let mut turn = 0;
    loop {
        turn += 1;
        let mut before = (0, Ledger::default());
        let outcome = training.step(|step| {
            before = (step.number(), step.ledger().clone());
            // Not everybody takes as many, and sometimes nobody has to take any.
            body(step, [4, 4, 5, 3, 4, 0][turn % 6])
        });
        match outcome {
            Ok(stop) => {
                let (number, numbers) = (training.number(), used(&before.1, training.ledger()));
                assert_eq!(number, before.0 + 1, "one step at a time");
                let list: Vec<_> = numbers.iter().map(u64::to_string).collect();
                say(&format!("step {number} {:032x} {}", training.state().digest(), list.join(",")));
                if stop {
                    let weights = training.state().get::<f64>("weights").expect("weights");
                    let bits: Vec<_> =
                        weights.iter().map(|weight| format!("{:016x}", weight.to_bits())).collect();
                    say(&format!("done {number} {} {}", training.ledger().open(), bits.join(",")));
                    return;
                }
            }
            // Nobody is left who has the state: whoever is started again begins with the newest checkpoint.
            Err(Error::NoDonor(why)) => return say(&format!("nodonor {why}")),
            Err(error) if error.to_string().contains("no mean") => {
                say(&format!("step {} {:032x} ", training.number(), training.state().digest()));
            }
            Err(error) if error.action() != NextStep::Fatal => say(&format!("late {error}")),
            Err(error) => return say(&format!("fault {error}")),
        }
    }
}
