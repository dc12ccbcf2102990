//! A path between two living members that stays cut: what goes straight between members goes around it (rule 16).
//!
//! Four processes on four hosts of a lab gather, scatter and exchange, each value checked. Two of the hosts lose
//! each other. The calls that need the link fail twice and say which link; from then on they go around it, and
//! nobody is out. Needs root; says SKIPPED otherwise.

use outlast::communicator::{Call, Error};
use outlast::coordinator::ask_status;
use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast::{Communicator, Coordinator};
use outlast_lab::{Lab, LabError};
use outlast_proto::collective::BrokenLink;
use outlast_proto::session::CallError;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const ROLE: &str = "OUTLAST_DETOUR_ROLE";
const ADDRESS: &str = "OUTLAST_DETOUR_ADDRESS";
const LISTEN: &str = "OUTLAST_DETOUR_LISTEN";
const SECRET: &str = "OUTLAST_DETOUR_SECRET";
const HOSTS: [&str; PEERS] = ["a", "b", "c", "d"];
const PEERS: usize = 4;
const COUNT: usize = 10_007;
const PATIENCE: Duration = Duration::from_secs(90);

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\n@{line}\n");
    let _ = out.flush();
}

fn setting(name: &str) -> String {
    std::env::var(name).expect("a setting")
}

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let listen = setting(LISTEN).parse().expect("an address");
    let secret: RunSecret = setting(SECRET).parse().expect("a secret");
    std::thread::spawn(|| {
        // Ends with whoever started it.
        for _ in std::io::stdin().lock().lines() {}
        std::process::exit(3);
    });
    if role == "coordinator" {
        let builder = Coordinator::builder().listen(listen).secret(secret).preset(Preset::Local);
        let _coordinator = builder.start().expect("a coordinator");
        say("ready");
        std::thread::sleep(3 * PATIENCE);
        return;
    }
    let builder = Communicator::builder().coordinator(setting(ADDRESS)).secret(secret).listen(listen);
    let comm = builder.preset(Preset::Local).timeout(PATIENCE).start().expect("a communicator");
    comm.connect(PEERS as u32).expect("admitted");
    let ids: Vec<_> = comm.peers().iter().map(|peer| peer.id).collect();
    let rank = comm.rank() as i32;
    let value = |from: i32, to: i32, at: usize| 100_000 * from + 10_000 * to + at as i32 % 7_919;
    let part = |from: i32, to: i32| (0..COUNT).map(move |at| value(from, to, at));
    let all = |from: i32| (0..PEERS as i32).flat_map(move |to| part(from, to)).collect::<Vec<_>>();
    let mut detours = [0; 3];
    for step in 0.. {
        let root = step % PEERS;
        let call = Call::default().tag(step as u64 % 3);
        let outcome = match step / PEERS % 3 {
            0 => {
                let mut out = vec![-1; if rank == root as i32 { PEERS * COUNT } else { 0 }];
                let input: Vec<_> = part(rank, root as i32).collect();
                let outcome = comm.gather(&mut out, &input, ids[root], &call);
                let right = |at: usize| value((at / COUNT) as i32, root as i32, at % COUNT);
                let fits = out.iter().enumerate().all(|(at, value)| *value == right(at));
                check(outcome, fits, out.iter().all(|value| *value == -1))
            }
            1 => {
                let (mut out, input) = (vec![-1; COUNT], all(rank));
                let input = if rank == root as i32 { &input[..] } else { &[] };
                let outcome = comm.scatter(&mut out, input, ids[root], &call);
                let fits = out.iter().copied().eq(part(root as i32, rank));
                check(outcome, fits, out.iter().all(|value| *value == -1))
            }
            _ => {
                let (mut out, input) = (vec![-1; PEERS * COUNT], all(rank));
                let outcome = comm.all_to_all(&mut out, &input, &call);
                let fits = out.iter().copied().eq((0..PEERS as i32).flat_map(|from| part(from, rank)));
                check(outcome, fits, out.iter().all(|value| *value == -1))
            }
        };
        if let Some("detour") = outcome {
            detours[step / PEERS % 3] += 1;
            if detours.iter().all(|count| *count >= PEERS) {
                say("around");
                detours = [0; 3];
            }
        }
        if step == 3 * PEERS {
            say("straight");
        }
    }
}

/// Says what is wrong. The algorithm, if the call ended well.
fn check(
    outcome: Result<outlast::communicator::Receipt, Error>,
    fits: bool,
    untouched: bool,
) -> Option<&'static str> {
    match outcome {
        Ok(receipt) => {
            if !fits {
                say(&format!("wrong values in {receipt:?}"));
            }
            Some(receipt.algorithm)
        }
        Err(ref failed)
            if let Some(CallError::LinkBroken(BrokenLink { from, to, error })) = failed.cause() =>
        {
            say(&format!("broken {} {} {error}", from.short(), to.short()));
            if !untouched {
                say("wrong: a failed call changed its output");
            }
            None
        }
        Err(error) => {
            say(&format!("wrong {error}"));
            std::process::exit(1);
        }
    }
}

struct Worker {
    process: Child,
    said: Receiver<String>,
}

impl Worker {
    fn start(lab: &Lab, host: &str, port: u16, settings: &[(&str, String)]) -> Self {
        let lab_host = lab.host(host).expect("a host");
        let mut command: Command = lab_host.command(std::env::current_exe().expect("this program"));
        let command = command.args(["role", "--exact", "--nocapture"]);
        let listen = format!("{}:{port}", lab_host.address());
        let command = command.env(LISTEN, listen).envs(settings.iter().map(|(name, value)| (*name, value)));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let (teller, said) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(line) = line.strip_prefix('@') {
                    let _ = teller.send(line.to_owned());
                }
            }
        });
        Self { process, said }
    }

    /// What it says until it says `word`, which is waited for until `deadline`.
    fn hear(&self, word: &str, deadline: Instant, status: impl Fn() -> String) -> Vec<String> {
        let mut heard = Vec::new();
        loop {
            match self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == word => return heard,
                Ok(line) => {
                    assert!(!line.starts_with("wrong"), "{line}");
                    heard.push(line);
                }
                Err(error) => panic!("{error} instead of {word:?}, after {heard:?}\n{}", status()),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn what_goes_straight_between_members_goes_around_a_cut_path() {
    let lab = match Lab::new("hdet", HOSTS.into_iter().chain(["k"])) {
        Err(LabError::NotRoot) => return eprintln!("SKIPPED: the lab needs root"),
        lab => lab.expect("a lab"),
    };
    let secret = RunSecret::generate();
    let address = format!("{}:29400", lab.host("k").expect("a host").address());
    let settings =
        |role: &str| [(ROLE, role.to_owned()), (SECRET, secret.to_text()), (ADDRESS, address.clone())];
    let status = || {
        let run = "default".parse().expect("a run id");
        let ask = || ask_status(&address, &secret, &run, Duration::from_secs(5));
        format!("{:?}", lab.host("k").expect("a host").enter(ask))
    };
    let soon = || Instant::now() + PATIENCE;
    let coordinator = Worker::start(&lab, "k", 29_400, &settings("coordinator"));
    coordinator.hear("ready", soon(), String::new);
    let workers: Vec<_> =
        HOSTS.iter().map(|host| Worker::start(&lab, host, 7_000, &settings("worker"))).collect();
    workers.iter().for_each(|worker| drop(worker.hear("straight", soon(), status)));
    lab.cut_both("a", "b").expect("a cut");
    let cut = Instant::now();
    // Twice, so that the second time shows that it goes on.
    for _ in 0..2 {
        for worker in &workers {
            let heard = worker.hear("around", soon(), status);
            println!("{:.1} s after the cut: {heard:?}", cut.elapsed().as_secs_f64());
        }
    }
    let counters = |from, to| lab.counters(from, to).expect("counters").cut;
    assert!(counters("a", "b") + counters("b", "a") > 0, "the cut cut nothing");
    let status = status();
    assert!(status.contains(r#"\"evictions\":0"#) && status.contains(r#"\"kicks\":0"#), "{status}");
}
