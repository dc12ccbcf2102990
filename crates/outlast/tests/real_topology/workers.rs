//! Processes that do what they are told, one line at a time: connect, optimise, reduce, grow.
//!
//! A worker is this test program again. It reads commands from its standard input and answers each with one line that
//! begins with `@`; whatever else the test harness prints is skipped.
#![allow(dead_code, reason = "each test binary uses its part of this page")]
#![allow(clippy::allow_attributes, reason = "an expectation would have to name each unused function")]

use outlast::communicator::{Call, Error, NextStep};
use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast::{Communicator, Coordinator};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const ROLE: &str = "OUTLAST_TEST_TOPOLOGY";
/// How long any answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// What a worker does, if this process is one.
pub(crate) fn be_one() {
    let Ok(settings) = std::env::var(ROLE) else { return };
    let settings: Value = serde_json::from_str(&settings).expect("settings");
    let text = |key: &str| settings[key].as_str().expect("a text").to_owned();
    if settings["serves"] == json!(true) {
        return serve(&text("listen"), &text("secret"));
    }
    let preset = if text("preset") == "local" { Preset::Local } else { Preset::Lan };
    let comm = Communicator::builder()
        .coordinator(text("coordinator"))
        .secret(text("secret").parse::<RunSecret>().expect("a secret"))
        .listen(text("listen").parse().expect("an address"))
        .name(text("name"))
        .site(text("site"))
        .preset(preset)
        .timeout(PATIENCE)
        .start()
        .expect("a communicator");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let began = Instant::now();
        let answer = match words[0] {
            "connect" => comm.connect(number(1) as u32).map(|_| json!({"world": comm.world_size()})),
            "grow" => comm.update_topology(number(1) as u32).map(|_| json!({"world": comm.world_size()})),
            "optimise" => optimise(&comm),
            "events" => comm.events(Duration::from_secs(number(1))).map(|events| {
                json!(events.iter().map(|happened| happened.what.to_string()).collect::<Vec<_>>())
            }),
            "reduce" => reduce(&comm, number(1) as usize, number(2)),
            other => panic!("{other:?} is no command"),
        };
        let answer = answer.unwrap_or_else(|error| {
            let next = match error.action() {
                NextStep::Retry => "retry",
                NextStep::Rejoin => "rejoin",
                NextStep::Fatal => "fatal",
            };
            json!({"error": error.to_string(), "next": next})
        });
        println!("@{}", json!({"answer": answer, "seconds": began.elapsed().as_secs_f64()}));
    }
}

/// A coordinator, until nobody wants it any more.
fn serve(listen: &str, secret: &str) {
    let coordinator = Coordinator::builder()
        .listen(listen.parse().expect("an address"))
        .secret(secret.parse().expect("a secret"))
        .preset(Preset::Lan)
        .start()
        .expect("a coordinator");
    println!("@{}", json!({"answer": coordinator.address().to_string()}));
    let run = "default".parse().expect("a run id");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        assert_eq!(line, "status", "all that a coordinator is asked");
        let status = coordinator.status(&run).expect("an answer").expect("a run");
        let status: Value = serde_json::from_str(&status).expect("a status");
        println!("@{}", json!({"answer": status}));
    }
}

fn optimise(comm: &Communicator) -> Result<Value, Error> {
    let report = comm.optimize_topology(Some(PATIENCE))?;
    let name = |peer| comm.peers().into_iter().find(|known| known.id == peer).map(|known| known.name);
    let ring: Vec<_> = report.ring.iter().filter_map(|peer| name(*peer)).collect();
    Ok(json!({
        "ring": ring,
        "predicted": report.predicted,
        "before": report.before,
        "improved": report.improved,
        "measured_pairs": report.measured_pairs,
        "rank": comm.rank(),
        "world": comm.world_size(),
    }))
}

/// All-reduces of so many bytes; the seconds of each, and what was predicted for the last.
fn reduce(comm: &Communicator, bytes: usize, times: u64) -> Result<Value, Error> {
    let mut seconds = Vec::new();
    let (mut predicted, mut world) = (None, 0);
    for _ in 0..times {
        let mut x = vec![1.0f32; bytes / 4];
        let receipt = comm.all_reduce(&mut x, &Call::sum())?;
        world = receipt.contributors.len();
        let sum = (world as f32).to_bits();
        assert!(x.iter().all(|value| value.to_bits() == sum), "the one right sum");
        seconds.push(receipt.seconds);
        predicted = receipt.predicted_seconds;
    }
    Ok(json!({"seconds": seconds, "predicted": predicted, "world": world}))
}

/// One worker as the test sees it.
pub(crate) struct Worker {
    pub(crate) name: String,
    child: Child,
    input: ChildStdin,
    lines: Receiver<Value>,
}

impl Worker {
    pub(crate) fn spawn(mut command: Command, settings: &Value) -> Self {
        command.args(["--exact", "role", "--nocapture", "--quiet"]).env(ROLE, settings.to_string());
        command.env_remove("OUTLAST_RUN_ID").env_remove("OUTLAST_GROUP");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a worker");
        let (input, output) =
            (child.stdin.take().expect("its input"), child.stdout.take().expect("its output"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The harness may have begun the line.
                if let Some((_, answer)) = line.split_once('@')
                    && let Ok(answer) = serde_json::from_str(answer)
                    && tell.send(answer).is_err()
                {
                    return;
                }
            }
        });
        let name = settings["name"].as_str().expect("a name").to_owned();
        Self { name, child, input, lines }
    }

    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("it lives");
    }

    /// The answer to the last command.
    pub(crate) fn answer(&self) -> Value {
        match self.lines.recv_timeout(2 * PATIENCE) {
            Ok(answer) => answer["answer"].clone(),
            Err(RecvTimeoutError::Timeout) => panic!("{} does not answer: a call hangs", self.name),
            Err(RecvTimeoutError::Disconnected) => panic!("{} is gone", self.name),
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a kill");
        self.child.wait().expect("its end");
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets all of them do it at once; their answers.
pub(crate) fn all<'a>(workers: impl IntoIterator<Item = &'a mut Worker>, command: &str) -> Vec<Value> {
    let mut workers: Vec<_> = workers.into_iter().collect();
    workers.iter_mut().for_each(|worker| worker.tell(command));
    workers.iter().map(|worker| worker.answer()).collect()
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
