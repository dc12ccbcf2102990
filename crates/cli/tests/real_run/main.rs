//! `outlast run` with real processes: who dies is replaced, who is told to stop stops, and nothing is left behind.

mod agent;
#[path = "../../../outlast/tests/support/etcds.rs"]
mod etcds;
mod nodes;
#[path = "../../../outlast/tests/support/ports.rs"]
mod ports;
mod standbys;
mod training;

use agent::{Agent, kill, lives, marked, outlast, texts, wait_gone, wait_grown};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Stdio;

/// A worker that says who it is and then waits to be told.
const WAITS: &str = "echo up; while :; do sleep 0.05; done";

fn is(value: &Value, event: &str, worker: u64) -> bool {
    value["event"] == event && value["worker"] == worker
}

#[test]
fn workers_find_their_places_and_their_words_are_marked() {
    let said =
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $OMP_NUM_THREADS $TORCHELASTIC_RUN_ID; echo e >&2";
    let run = outlast()
        .args(["run", "--standalone", "--nproc_per_node", "3", "--rdzv_id", "here", "--", "sh", "-c", said])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    let (out, err) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8(run.stderr).unwrap());
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["[0] 0/3 0 127.0.0.1 1 here", "[1] 1/3 1 127.0.0.1 1 here", "[2] 2/3 2 127.0.0.1 1 here"]
    );
    for rank in 0..3 {
        assert!(err.contains(&format!("[{rank}] e\n")), "{err}");
    }
}

#[test]
fn a_killed_worker_is_replaced_alone_and_at_once() {
    let mut agent = Agent::start(&["--nproc-per-node", "3", "--", "sh", "-c", &format!("sleep 1; {WAITS}")]);
    let others = [agent.pid_of(0, 0), agent.pid_of(2, 0)];
    agent.wait_for_words("up", 3);
    kill(agent.pid_of(1, 0), Signal::KILL);
    let replaced = agent.pid_of(1, 1);
    let ended = agent.moment(|value| is(value, "ended", 1)).expect("its end was told");
    let started = agent.moment(|value| is(value, "started", 1) && value["life"] == 1).unwrap();
    eprintln!("from the end to the replacement: {:?}", started - ended);
    assert!(lives(replaced) && others.iter().all(|pid| lives(*pid)));
    let told = agent.said();
    let end = told.iter().find(|value| is(value, "ended", 1)).unwrap();
    assert_eq!((&end["signal"], &end["exit_code"]), (&Value::from(9), &Value::Null));
    assert_eq!(
        told.iter().filter(|value| value["event"] == "started").count(),
        4,
        "nobody else was started again"
    );
    agent.signal(Signal::TERM);
    assert_eq!(agent.end().code(), Some(143));
    wait_gone("after SIGTERM", || vec![replaced, others[0], others[1]]);
}

#[test]
fn a_used_up_budget_ends_with_the_workers_code_its_reason_and_its_last_words() {
    let mut agent = Agent::start(&[
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "--grace",
        "5s",
        "--",
        "sh",
        "-c",
        "if [ $RANK = 1 ]; then echo oops >&2; exit 3; fi; exec sleep 1000",
    ]);
    assert_eq!(agent.end().code(), Some(3));
    let said = agent.said();
    let used = said.iter().find(|value| value["event"] == "used_up").expect("why it ended");
    assert_eq!((&used["worker"], &used["restarts"], &used["allowed"]), (&1.into(), &1.into(), &1.into()));
    let failed = said.last().expect("a summary");
    assert_eq!((&failed["event"], &failed["exit_code"]), (&"failed".into(), &3.into()));
    assert_eq!(failed["last_lines"], serde_json::json!(["oops"]));
}

#[test]
fn a_python_failure_is_told_with_its_traceback() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    std::fs::write(
        &script,
        "import sys\nprint('begin')\ndef step():\n    raise ValueError('no such batch')\nstep()\n",
    )
    .unwrap();
    let run = outlast().args(["run", "--max-restarts", "0"]).arg(&script).output().unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let err = String::from_utf8(run.stderr).unwrap();
    let (_, summary) = err.split_once("the run failed: worker 0").expect("a summary");
    assert!(summary.contains("exited with 1") && summary.contains("UTC"), "{summary}");
    assert!(
        summary.contains("Traceback (most recent call last):")
            && summary.contains("ValueError: no such batch"),
        "{summary}"
    );
}

#[test]
fn exit_codes_are_those_of_the_manual() {
    for (arguments, code) in [
        (&["--nproc-per-node", "0", "true"][..], 64),
        (&["--nnodes", "3:2", "true"], 64),
        (&["--max-restarts", "many", "true"], 64),
        (&["--no-such-option", "true"], 64),
        (&[], 64),
        (&["--", "true"], 0),
        (&["--", "no-such-program-anywhere"], 127),
        (&["no-such-script.py"], 127),
        (&["--coordinator", "nowhere", "--", "true"], 64),
        (&["--", "/dev/null"], 126),
        (&["--max-restarts", "0", "--", "sh", "-c", "exit 75"], 75),
        (&["--max-restarts", "0", "--", "sh", "-c", "kill -SEGV $$"], 139),
    ] {
        let run = outlast().arg("run").args(arguments).stderr(Stdio::null()).output().unwrap();
        assert_eq!(run.status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn ctrl_c_gives_grace_and_then_kills() {
    let stubborn = "trap '' INT TERM; echo up; while :; do sleep 0.05; done";
    let mut agent = Agent::start(&["--nproc-per-node", "2", "--grace", "300ms", "--", "sh", "-c", stubborn]);
    let pids = [agent.pid_of(0, 0), agent.pid_of(1, 0)];
    agent.wait_for_words("up", 2);
    agent.signal(Signal::INT);
    assert_eq!(agent.end().code(), Some(130));
    assert!(agent.said().iter().any(|value| value["event"] == "killing" && value["workers"] == 2));
    wait_gone("after Ctrl-C", || pids.to_vec());
}

#[test]
fn a_worker_that_finishes_its_step_after_a_notice_is_no_error() {
    let finishes = "trap 'echo left; exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let mut agent = Agent::start(&["--nproc-per-node", "2", "--", "sh", "-c", finishes]);
    agent.wait_for_words("up", 2);
    agent.signal(Signal::TERM);
    assert_eq!(agent.end().code(), Some(0));
    assert_eq!(texts(&agent.said()).iter().filter(|text| *text == "left").count(), 2);
}

/// Children that left their group and their session, ignore what can be ignored, and move on all the time.
const FAMILY: &str = r#"
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
def daemon(depth):
    if os.fork() == 0:
        os.setsid()
        if depth:
            daemon(depth - 1)
        while True:
            time.sleep(0.05)
def hopper():
    if os.fork() == 0:
        while True:
            os.setsid() if os.getpid() != os.getsid(0) else None
            time.sleep(0.002)
            if os.fork():
                os._exit(0)
for _ in range(3):
    daemon(2)
hopper()
print("family", flush=True)
while True:
    time.sleep(0.05)
"#;

fn family(mark: &str) -> Agent {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("family.py");
    std::fs::write(&script, FAMILY).unwrap();
    let mut command = outlast();
    command
        .args(["run", "--json", "--nproc-per-node", "2", "--grace", "1s"])
        .arg(&script)
        .env("OUTLAST_TEST_MARK", mark);
    let agent = Agent::start_by(&mut command);
    agent.wait_for_words("family", 2);
    // The agent, two keepers (forked from it: they have its environment), and the families.
    wait_grown(20, || marked(mark));
    agent
}

fn mark() -> String {
    format!("mark-{}-{:016x}", std::process::id(), u64::from_ne_bytes(outlast::security::random_bytes()))
}

#[test]
fn nothing_outlives_a_killed_agent_whatever_its_workers_started() {
    let mark = mark();
    let agent = family(&mark);
    kill(agent.pid(), Signal::KILL);
    wait_gone("after the agent's SIGKILL", || marked(&mark));
}

#[test]
fn nothing_that_a_worker_started_outlives_it() {
    let mark = mark();
    let mut agent = family(&mark);
    let (first, other) = (agent.pid_of(0, 0), agent.pid_of(1, 0));
    kill(first, Signal::KILL);
    // The next one is started when all of the last one are gone, and the other's are left alone.
    let next = agent.pid_of(0, 1);
    assert!(lives(next) && lives(other));
    agent.signal(Signal::INT);
    assert_eq!(agent.end().code(), Some(130));
    assert_eq!(marked(&mark), Vec::<u32>::new(), "an agent that has ended has left nothing");
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_killed_keeper_takes_its_worker_along_and_both_are_replaced() {
    let mut agent = Agent::start(&["--", "sh", "-c", WAITS]);
    let worker = agent.pid_of(0, 0);
    agent.wait_for_words("up", 1);
    let keeper = parent_of(worker);
    assert_eq!(parent_of(keeper), agent.pid());
    kill(keeper, Signal::KILL);
    let next = agent.pid_of(0, 1);
    wait_gone("after its keeper", || vec![worker]);
    assert!(lives(next));
    agent.signal(Signal::TERM);
    assert_eq!(agent.end().code(), Some(143));
}

#[test]
fn restart_starts_all_again_with_a_fresh_port_and_run() {
    let said = "echo $RANK:$TORCHELASTIC_RESTART_COUNT:$OUTLAST_RUN_ID:$MASTER_PORT; \
                [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] && sleep 1 && exit 5; exec sleep 1000";
    let mut agent = Agent::start(&[
        "--elastic",
        "restart",
        "--nproc-per-node",
        "3",
        "--run-id",
        "r",
        "--",
        "bash",
        "-c",
        said,
    ]);
    assert_eq!(agent.end().code(), Some(0));
    let texts = texts(&agent.said());
    let of = |round: &str| {
        let mut lines: Vec<_> =
            texts.iter().filter(|text| text.split(':').nth(1) == Some(round)).cloned().collect();
        lines.sort_unstable();
        lines
    };
    let port = |line: &str| line.rsplit_once(':').unwrap().1.to_owned();
    let (first, second) = (of("0"), of("1"));
    assert_eq!((first.len(), second.len()), (3, 3), "{texts:?}");
    assert!(
        first.iter().all(|line| line.contains(":r:")) && second.iter().all(|line| line.contains(":r.1:"))
    );
    assert!(first.iter().all(|line| port(line) == port(&first[0])));
    assert_ne!(port(&first[0]), port(&second[0]));
}

#[test]
fn logs_are_written_to_files_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let said = "printf 'a\\r\\nb\\n'; printf 'no end' >&2";
    let run = outlast()
        .args(["run", "--nproc-per-node", "2", "--tee", "2", "--log-dir"])
        .arg(folder.path())
        .args(["--", "sh", "-c", said])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0));
    assert_eq!(String::from_utf8(run.stdout).unwrap(), "", "only stderr was asked for");
    assert!(String::from_utf8(run.stderr).unwrap().contains("[1] no end\n"));
    for rank in ["0", "1"] {
        let of = |name: &str| std::fs::read(folder.path().join("default/0").join(rank).join(name)).unwrap();
        assert_eq!((of("stdout.log"), of("stderr.log")), (b"a\r\nb\n".to_vec(), b"no end".to_vec()));
    }
}

/// One kill after the other: each time the survivors commit without the dead, which is known because the agent saw it
/// exit, and the next one joins them.
fn kills_in_a_row(kills: usize) {
    let mut agent = training::start(4, &["--max-restarts", "1000"]);
    let all = [0, 1, 2, 3];
    training::wait_for_world(&agent, 4, 0, &all);
    let mut took = Vec::new();
    for kill_number in 0..kills {
        let victim = all[kill_number % 4];
        let pid = agent.pid_of(victim, (kill_number / 4) as u64);
        let survivors: Vec<u64> = all.into_iter().filter(|worker| *worker != victim).collect();
        let at = training::micros();
        kill(pid, Signal::KILL);
        took.push(training::wait_for_world(&agent, 3, at, &survivors) - at);
        training::wait_for_world(&agent, 4, at, &all);
    }
    agent.signal(Signal::TERM);
    assert_eq!(agent.end().code(), Some(143));
    let said = agent.said();
    let count = |event: &str| said.iter().filter(|value| value["event"] == event).count();
    assert_eq!((count("replacing"), count("started")), (kills, kills + 4), "nobody else was started again");
    let errors = agent.errors();
    let seen = errors.matches("its process was seen to exit").count();
    assert!(seen >= kills.min(20), "the coordinator was told {seen} times of {kills}:\n{errors}");
    took.sort_unstable();
    eprintln!(
        "SIGKILL to the survivors' first commit, us: median {}, worst {}",
        took[took.len() / 2],
        took[took.len() - 1]
    );
}

#[test]
fn ten_kills_in_a_row_are_ten_recoveries() {
    kills_in_a_row(10);
}

#[test]
#[ignore = "minutes long: make soak"]
fn a_hundred_kills_in_a_row_are_a_hundred_recoveries() {
    kills_in_a_row(100);
}
