//! Three machines, played by three agents on one, that carry their coordinators along: they need an etcd and nothing else.

use super::agent::{Agent, outlast};
use super::etcds::Etcds;
use super::ports::free_ports;
use super::training;
use rustix::process::Signal;

fn agent(etcds: &Etcds, addresses: &str) -> Agent {
    let mut command = outlast();
    command.env("OUTLAST_COORDINATOR", addresses).env("OUTLAST_SECRET", etcds.secret.to_text());
    let options = ["--standby", "--backend", &etcds.url(), "--lease", "2s", "--nnodes", "2:3"];
    training::start_by(command, 1, 3, &options)
}

#[test]
fn a_run_outlasts_the_agent_that_carries_its_coordinator() {
    let etcds = Etcds::start(1);
    let addresses: Vec<_> = free_ports(3).iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let list = addresses.join(",");
    let mut agents: Vec<_> = (0..3).map(|_| agent(&etcds, &list)).collect();
    for agent in &agents {
        training::wait_for_world(agent, 3, 0, &[0]);
    }
    let run = "default".parse().expect("a run id");
    let status = outlast::coordinator::ask_status(&list, &etcds.secret, &run, super::agent::PATIENCE);
    let status: serde_json::Value = serde_json::from_str(&status.expect("an answer")).expect("JSON");
    // Whose process listens where the leader is?
    let leader = status["reign"]["leader"].as_str().expect("a leader").to_owned();
    let port: u16 = leader.rsplit_once(':').expect("a port").1.parse().expect("a number");
    let place = agents.iter().position(|agent| listens(agent.pid(), port)).expect("one of them reigns");
    let lost = agents.remove(place);
    let since = training::micros();
    lost.signal(Signal::KILL);
    for agent in &agents {
        training::wait_for_world(agent, 2, since, &[0]);
    }
}

/// Whether a process has a socket that listens at that port of this machine.
fn listens(pid: u32, port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let listening = table.lines().skip(1).filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let at = u16::from_str_radix(words.get(1)?.rsplit_once(':')?.1, 16).ok()?;
        (at == port && *words.get(3)? == "0A").then(|| format!("socket:[{}]", words[9]))
    });
    let sockets: Vec<_> = listening.collect();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok);
    files
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .any(|target| sockets.iter().any(|socket| target.to_string_lossy() == *socket))
}
