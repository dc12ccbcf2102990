//! `outlast run` on hosts of a lab: four workers by one, two and three agents, with links between them that are cut. Needs
//! root; says SKIPPED otherwise.

#[path = "../real_run/agent.rs"]
#[expect(dead_code, reason = "each test binary uses its part of this page")]
mod agent;
#[path = "../real_run/training.rs"]
#[expect(dead_code, reason = "each test binary uses its part of this page")]
mod training;

use agent::{Agent, PATIENCE};
use outlast::security::RunSecret;
use outlast_lab::{Lab, LabError};
use rustix::process::Signal;
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Where the agents are; the coordinator is on `k`.
const HOSTS: [&str; 3] = ["a", "b", "c"];
const WORKERS: usize = 4;

/// A coordinator, and the hosts.
struct Site {
    // Fields are dropped from top to bottom: the lab goes last.
    coordinator: Child,
    secret: RunSecret,
    lab: Lab,
}

impl Site {
    fn start(label: &str) -> Option<Self> {
        let lab = match Lab::new(label, HOSTS.into_iter().chain(["k"])) {
            Err(LabError::NotRoot) => {
                eprintln!("SKIPPED {label}: the lab needs root");
                return None;
            }
            lab => lab.expect("a lab"),
        };
        let (secret, host) = (RunSecret::generate(), lab.host("k").expect("a host"));
        let coordinator = host
            .command(env!("CARGO_BIN_EXE_outlast"))
            .args(["coordinator", "--preset", "local", "--forget-key"])
            .args(["--listen", &format!("{}:29400", host.address())])
            .env("OUTLAST_SECRET", secret.to_text())
            .env_remove("OUTLAST_SECRET_FILE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        Some(Self { coordinator, secret, lab })
    }

    /// An agent on that host, for a run of `world` workers at the beginning.
    fn agent(&self, host: &str, workers: usize, world: usize) -> Agent {
        let host = self.lab.host(host).expect("a host");
        let mut command = host.command(env!("CARGO_BIN_EXE_outlast"));
        command
            .env("OUTLAST_COORDINATOR", format!("{}:29400", self.lab.host("k").expect("a host").address()))
            .env("OUTLAST_SECRET", self.secret.to_text())
            .env(training::LISTEN, format!("{}:0", host.address()))
            .env_remove("OUTLAST_SECRET_FILE");
        let conf = "last_call_timeout=1,keep_alive_interval=1";
        let options = ["--nnodes", "1:3", "--rdzv-conf", conf, "--grace", "5s", "--max-restarts", "100"];
        training::start_by(command, workers, world, &options)
    }

    /// Waits until no process is on that host.
    fn wait_empty(&self, host: &str) {
        let host = self.lab.host(host).expect("a host");
        let deadline = Instant::now() + PATIENCE;
        while !host.processes().is_empty() {
            assert!(Instant::now() < deadline, "on {} there still is {:?}", host.name(), host.processes());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.coordinator.kill();
        let _ = self.coordinator.wait();
    }
}

fn numbers(workers: usize) -> Vec<u64> {
    (0..workers as u64).collect()
}

fn ended(agent: &Agent) -> usize {
    agent.said().iter().filter(|value: &&Value| value["event"] == "ended").count()
}

/// Four workers, so many on each host: one is killed, links between hosts are cut, an agent is killed with its workers, another
/// comes, and all are told to stop.
fn four_workers(label: &str, shares: &[usize]) {
    assert_eq!(shares.iter().sum::<usize>(), WORKERS);
    let Some(site) = Site::start(label) else { return };
    let mut agents: Vec<_> =
        shares.iter().zip(HOSTS).map(|(share, host)| site.agent(host, *share, WORKERS)).collect();
    let all_train = |agents: &[Agent], since: u64| {
        for (agent, share) in agents.iter().zip(shares) {
            training::wait_for_world(agent, WORKERS, since, &numbers(*share));
        }
    };
    all_train(&agents, 0);

    // A worker: its replacement joins, and nobody else is started again.
    let (victim, since) = (agents[0].pid_of(0, 0), training::micros());
    agent::kill(victim, Signal::KILL);
    let survivors: Vec<_> = numbers(shares[0]).split_off(1);
    training::wait_for_world(&agents[0], WORKERS - 1, since, &survivors);
    all_train(&agents, since);
    assert_eq!(
        agents.iter().map(ended).collect::<Vec<_>>()[..2.min(shares.len())],
        [1, 0][..2.min(shares.len())]
    );

    if shares.len() > 1 {
        // The link between two hosts, for less long than anybody is given up.
        site.lab.cut_both("a", "b").expect("hosts");
        std::thread::sleep(Duration::from_secs(2));
        site.lab.heal_both("a", "b").expect("hosts");
        all_train(&agents, training::micros());
        assert_eq!(agents.iter().map(ended).sum::<usize>(), 1, "nobody died of a cut link");

        // The last agent, with its workers.
        let place = shares.len() - 1;
        let left = WORKERS - shares[place];
        let since = training::micros();
        drop(agents.pop());
        for (agent, share) in agents.iter().zip(shares) {
            let at = training::wait_for_world(agent, left, since, &numbers(*share));
            println!("{label}: an agent's SIGKILL to a survivor's first commit: {} us", at - since);
        }
        site.wait_empty(HOSTS[place]);
        assert_eq!(agents.iter().map(ended).sum::<usize>(), 1, "nobody else was started again");
        let since = training::micros();
        agents.push(site.agent(HOSTS[place], shares[place], 1));
        all_train(&agents, since);
    }

    // Ctrl-C for all.
    let told = Instant::now();
    agents.iter().for_each(|agent| agent.signal(Signal::INT));
    for agent in &mut agents {
        assert_eq!(agent.end().code(), Some(130));
    }
    println!("{label}: Ctrl-C to the end of all agents: {:?}", told.elapsed());
    (0..shares.len()).for_each(|place| site.wait_empty(HOSTS[place]));
}

#[test]
fn four_workers_by_three_agents_outlast_kills_cuts_and_a_lost_agent() {
    four_workers("run-three", &[2, 1, 1]);
}

#[test]
#[ignore = "minutes long: make soak"]
fn four_workers_by_one_and_two_agents_do_so_too() {
    four_workers("run-one", &[4]);
    four_workers("run-two", &[2, 2]);
}
