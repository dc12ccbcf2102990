//! Several machines, played by several agents on one, at a coordinator of their own.

use super::agent::{Agent, kill, outlast, texts, wait_gone};
use super::{is, training};
use outlast::Coordinator;
use outlast::membership::Preset;
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

fn coordinator() -> Coordinator {
    let listen = "127.0.0.1:0".parse().unwrap();
    Coordinator::builder().listen(listen).preset(Preset::Local).start().expect("a coordinator")
}

/// `outlast` as one of the machines of that coordinator.
fn machine(coordinator: &Coordinator) -> Command {
    let mut command = outlast();
    command.env("OUTLAST_COORDINATOR", coordinator.address().to_string());
    command.env("OUTLAST_SECRET", coordinator.secret().to_text());
    command
}

fn agent(coordinator: &Coordinator, arguments: &[&str], program: &str) -> Agent {
    Agent::start_by(
        machine(coordinator).args(["run", "--json"]).args(arguments).args(["--", "bash", "-c", program]),
    )
}

#[test]
fn nodes_meet_and_agree_on_ranks_and_on_a_master() {
    let coordinator = coordinator();
    let said = "echo $GROUP_RANK/$GROUP_WORLD_SIZE $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT";
    let mut agents =
        ["2", "1"].map(|workers| agent(&coordinator, &["--nnodes", "2", "--nproc-per-node", workers], said));
    assert!(agents.iter_mut().all(|agent| agent.end().code() == Some(0)));
    let mut lines: Vec<_> = agents.iter().flat_map(|agent| texts(&agent.said())).collect();
    lines.sort_unstable();
    let master = lines[0].rsplit_once(' ').unwrap().1.to_owned();
    assert!(master.starts_with("127.0.0.1:") && !master.ends_with(&coordinator.address().port().to_string()));
    let places: Vec<_> =
        lines.iter().map(|line| line.strip_suffix(&master).expect("one master for all").trim()).collect();
    // Whichever came first has the lower number.
    let first = ["0/2 0/3 0/2", "0/2 1/3 1/2", "1/2 2/3 0/1"];
    let second = ["0/2 0/3 0/1", "1/2 1/3 0/2", "1/2 2/3 1/2"];
    assert!(places == first || places == second, "{places:?}");
}

#[test]
fn too_few_nodes_and_no_coordinator_have_codes_of_their_own() {
    let coordinator = coordinator();
    let mut alone = agent(&coordinator, &["--nnodes", "2", "--rdzv-conf", "join_timeout=1"], "echo started");
    assert_eq!(alone.end().code(), Some(75));
    assert!(texts(&alone.said()).is_empty(), "nobody is started for nothing");
    let nobody = ["--coordinator", "127.0.0.1:1", "--rdzv_conf", "join_timeout=1"];
    let mut lost = agent(&coordinator, &nobody, "echo started");
    assert_eq!(lost.end().code(), Some(69));
    let said = lost.said();
    let why = said.iter().find(|value| value["event"] == "unreachable").expect("why");
    assert!(why["error"].as_str().unwrap().contains("127.0.0.1:1"), "{why}");
    let run = outlast().args(["run", "--nnodes", "2", "--", "true"]).output().unwrap();
    assert_eq!(run.status.code(), Some(64));
}

#[test]
fn an_agent_that_waits_for_others_ends_when_it_is_told_to() {
    let coordinator = coordinator();
    let mut alone = agent(&coordinator, &["--nnodes", "2"], "echo started");
    alone.wait_until("a meeting", |lines| lines.iter().find(|value| value["event"] == "meeting").map(drop));
    alone.signal(Signal::INT);
    assert_eq!(alone.end().code(), Some(130));
}

#[test]
fn a_failure_on_one_node_starts_all_nodes_again_together() {
    let coordinator = coordinator();
    let said = "echo $RANK:$OUTLAST_RUN_ID:$MASTER_PORT; case $OUTLAST_RUN_ID in *.*) exit 0;; esac; \
                [ $RANK = 0 ] && sleep 1 && exit 5; exec sleep 1000";
    let options = ["--nnodes", "2", "--elastic", "restart", "--run-id", "r", "--nproc-per-node", "2"];
    let mut agents = [0, 1].map(|_| agent(&coordinator, &options, said));
    let codes: Vec<_> = agents.iter_mut().map(|agent| agent.end().code()).collect();
    assert_eq!(codes, [Some(0), Some(0)]);
    let mut lines: Vec<_> = agents.iter().flat_map(|agent| texts(&agent.said())).collect();
    lines.sort_unstable();
    let runs: std::collections::BTreeSet<_> =
        lines.iter().map(|line| line.split_once(':').unwrap().1).collect();
    assert_eq!(
        (lines.len(), runs.len()),
        (8, 2),
        "two rounds of four, each with a run and a port: {lines:?}"
    );
}

fn world_sizes(agent: &Agent) -> Vec<usize> {
    training::steps(&agent.said()).iter().map(|step| step.world).collect()
}

#[test]
fn a_lost_node_is_missed_and_a_new_one_joins_while_the_others_train_on() {
    let coordinator = coordinator();
    let options = ["--nnodes", "1:3", "--rdzv-conf", "last_call_timeout=1,keep_alive_interval=1"];
    let start = |workers, world| training::start_by(machine(&coordinator), workers, world, &options);
    let (first, second) = (start(2, 4), start(2, 4));
    training::wait_for_world(&first, 4, 0, &[0, 1]);
    let lost = [second.pid_of(0, 0), second.pid_of(1, 0)];
    let at = training::micros();
    kill(second.pid(), Signal::KILL);
    let took = training::wait_for_world(&first, 2, at, &[0, 1]) - at;
    eprintln!("an agent's SIGKILL to the survivors' first commit: {took} us");
    wait_gone("after their agent", || lost.to_vec());
    let third = start(2, 1);
    let later = training::micros();
    training::wait_for_world(&first, 4, later, &[0, 1]);
    training::wait_for_world(&third, 4, later, &[0, 1]);
    let restarted = |value: &Value| (0..2).any(|worker| is(value, "ended", worker));
    assert!(!first.said().iter().any(restarted), "nobody of the survivors was started again");
    assert!(world_sizes(&first).windows(2).all(|pair| pair[0] > 0));
}
