//! Workers that train: this very test program again, in the role of a peer.

use super::agent::Agent;
use outlast::Communicator;
use outlast::communicator::Call;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Set for workers.
const ROLE: &str = "OUTLAST_TEST_TRAINS";
/// Where workers listen; none: on this machine.
pub(crate) const LISTEN: &str = "OUTLAST_TEST_LISTENS";

/// A clock that all processes of a machine share.
pub(crate) fn micros() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// One committed step, as a worker tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) worker: u64,
    pub(crate) at: u64,
    pub(crate) world: usize,
}

/// A worker's program: it reduces, admits whoever waits, and says so, until it is told to stop.
#[test]
fn trains() {
    let Ok(size) = std::env::var(ROLE) else { return };
    let rank = std::env::var("RANK").expect("a rank");
    let listen = std::env::var(LISTEN).unwrap_or_else(|_| "127.0.0.1:0".to_owned());
    let comm = Communicator::builder().listen(listen.parse().unwrap()).name(format!("w{rank}")).start();
    let comm = comm.expect("a communicator");
    let restarted = std::env::var("TORCHELASTIC_RESTART_COUNT").is_ok_and(|count| count != "0");
    let wanted = if restarted { 1 } else { size.parse().unwrap() };
    comm.connect_within(wanted, Duration::from_secs(30)).expect("admitted");
    loop {
        let mut data = vec![1_i32; 16 * 1_024];
        let receipt = comm.all_reduce(&mut data, &Call::sum()).expect("a commit");
        assert!(data.iter().all(|value| *value as usize == receipt.contributors.len()), "a wrong sum");
        println!("\nstep {} {}", micros(), receipt.contributors.len());
        if receipt.pending > 0 {
            comm.update_topology(1).expect("newcomers");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts an agent whose workers train.
pub(crate) fn start(workers: usize, options: &[&str]) -> Agent {
    start_by(super::agent::outlast(), workers, workers, options)
}

/// The same by a command that the caller has prepared, for a run of `world` workers at the beginning.
pub(crate) fn start_by(mut command: Command, workers: usize, world: usize, options: &[&str]) -> Agent {
    let program = std::env::current_exe().expect("this program");
    command
        .args(["run", "--json", "--nproc-per-node", &workers.to_string()])
        .args(options)
        .args(["--", program.to_str().unwrap(), "--exact", "training::trains", "--nocapture"])
        .env(ROLE, world.to_string())
        .stderr(std::process::Stdio::piped());
    Agent::start_by(&mut command)
}

/// The steps that were told so far.
pub(crate) fn steps(lines: &[Value]) -> Vec<Step> {
    let step = |line: &Value| {
        let mut words = line["text"].as_str()?.split(' ');
        (words.next()? == "step").then_some(())?;
        let (at, world) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Step { worker: line["worker"].as_u64()?, at, world })
    };
    lines.iter().filter(|line| line["event"] == "line").filter_map(step).collect()
}

/// Waits until each of these workers has committed a step of `world` members since that moment; the moment of the
/// first such step.
pub(crate) fn wait_for_world(agent: &Agent, world: usize, since: u64, workers: &[u64]) -> u64 {
    agent.wait_until(&format!("steps of {world} members"), |lines| {
        let steps = steps(lines);
        let done = |worker: &u64| {
            steps.iter().any(|step| step.worker == *worker && step.at >= since && step.world == world)
        };
        let first =
            || steps.iter().filter(|step| step.at >= since && step.world == world).map(|step| step.at).min();
        workers.iter().all(done).then(first).flatten()
    })
}
