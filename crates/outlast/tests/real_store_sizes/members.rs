//! Members as processes, each of which does one thing after the other and says what came of it.

use outlast::membership::Preset;
use outlast::{Coordinator, Store};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const ROLE: &str = "OUTLAST_STORE_SIZES_ROLE";
/// How long a call of a member may take, and whatever a member is told to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);
/// Pairs that are set or got in one call.
const BATCH: u64 = 1_000;

/// What differs from a member as it is by default.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) direct: bool,
    pub(crate) bytes_max: Option<u64>,
}

impl Manner {
    pub(crate) const USUAL: Self = Self { direct: true, bytes_max: None };
    /// Only the links of the mesh.
    pub(crate) const MESH: Self = Self { direct: false, ..Self::USUAL };
}

/// The test's own member, or that of a process.
pub(crate) fn join(address: &str, secret: &str, manner: Manner) -> Store {
    Store::builder()
        .coordinator(address)
        .secret(secret.parse().expect("a secret"))
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Local)
        .configure(|config| {
            config.direct = manner.direct;
            config.bytes_max = manner.bytes_max.unwrap_or(config.bytes_max);
        })
        .timeout(PATIENCE)
        .join()
        .expect("in the store")
}

/// A value that follows from its key, so that whoever gets it can tell.
pub(crate) fn value(key: &str, bytes: usize) -> Vec<u8> {
    let mut pattern = key.as_bytes().to_vec();
    // A prime, so that no piece looks like the next one.
    pattern.resize(251, b'.');
    pattern.into_iter().cycle().take(bytes).collect()
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@{text}");
    let _ = out.flush();
}

/// What a process does when the environment says that it is a member.
pub(crate) fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<_> = role.split(' ').collect();
    let bytes_max = Some(words[3].parse().expect("bytes")).filter(|bytes| *bytes > 0);
    let store = join(words[0], words[1], Manner { direct: words[2] == "true", bytes_max });
    say("in");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        say(&obey(&store, &line));
    }
    // Whoever held the other end is gone, and so are we, without a goodbye.
    std::process::exit(0);
}

fn obey(store: &Store, line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    match words[..] {
        // Many keys, each with a value of its own.
        ["fill", prefix, from, count] => {
            let (from, end) = (number(from), number(from) + number(count));
            for first in (from..end).step_by(BATCH as usize) {
                let keys = (first..end.min(first + BATCH)).map(|key| format!("{prefix}{key}"));
                store.multi_set(keys.map(|key| (key.clone(), value(&key, 32)))).expect("set");
            }
            "filled".to_owned()
        }
        // As many waiters on one key.
        ["await", key, count] => {
            store.wait(&vec![key; number(count) as usize], None).expect("it comes");
            "came".to_owned()
        }
        ["put", key, bytes] => {
            let value = value(key, number(bytes) as usize);
            let begun = Instant::now();
            store.set(key, value).map_or_else(|error| error.to_string(), |()| millis(begun))
        }
        ["take", key, bytes] => {
            let begun = Instant::now();
            let got = store.get(key, None).expect("a value");
            let took = millis(begun);
            assert!(got == value(key, number(bytes) as usize), "the value of {key} is another one");
            took
        }
        // Waits for a broadcast, and says what came.
        ["hear", name, bytes] => {
            let (_, heard) = store.next_broadcast(None).expect("in the store").expect("a broadcast");
            assert!(heard == value(name, number(bytes) as usize), "{} bytes came", heard.len());
            "heard".to_owned()
        }
        // Whether nothing more came.
        ["listen"] => format!("{:?}", store.next_broadcast(Some(Duration::ZERO)).expect("in the store")),
        // Adds one and goes on when as many have.
        ["meet", key, count] => {
            if store.add(key, 1).expect("a number") == number(count) as i64 {
                store.set(format!("{key}/open"), "").expect("set");
            }
            store.wait(&[format!("{key}/open")], None).expect("it comes");
            "met".to_owned()
        }
        _ => panic!("no such order: {line}"),
    }
}

pub(crate) fn millis(begun: Instant) -> String {
    begun.elapsed().as_millis().to_string()
}

/// A member that was started.
pub(crate) struct Member {
    process: Child,
    orders: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl Member {
    fn start(coordinator: &Coordinator, manner: Manner) -> Self {
        let (address, secret) = (coordinator.address(), coordinator.secret().to_text());
        let Manner { direct, bytes_max } = manner;
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["role", "--exact", "--nocapture"])
            .env(ROLE, format!("{address} {secret} {direct} {}", bytes_max.unwrap_or(0)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (orders, output) =
            (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
        let (said, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once('@') {
                    let _ = said.send(line.to_owned());
                }
            }
        });
        Self { process, orders, lines }
    }

    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it reads");
        self.orders.flush().expect("it reads");
    }

    /// What came of the order before.
    pub(crate) fn outcome(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it answers")
    }

    pub(crate) fn done(&mut self, order: &str) -> String {
        self.order(order);
        self.outcome()
    }

    /// Memory of it that is in use, and the most that ever was.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("its status");
        let kib = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
            line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
        };
        (kib("VmRSS:"), kib("VmHWM:"))
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// So many processes and the test's own member, in one view.
pub(crate) struct World {
    pub(crate) coordinator: Coordinator,
    pub(crate) members: Vec<Member>,
    pub(crate) store: Store,
}

impl World {
    pub(crate) fn of(processes: usize, manner: Manner) -> Self {
        let listen = "127.0.0.1:0".parse().expect("an address");
        let coordinator =
            Coordinator::builder().listen(listen).preset(Preset::Local).start().expect("a coordinator");
        let members: Vec<_> = (0..processes).map(|_| Member::start(&coordinator, manner)).collect();
        members.iter().for_each(|member| assert_eq!(member.outcome(), "in"));
        let store = join(&coordinator.address().to_string(), &coordinator.secret().to_text(), manner);
        let world = Self { coordinator, members, store };
        world.wait_for_view(processes + 1);
        world
    }

    pub(crate) fn wait_for_view(&self, members: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.store.view().is_none_or(|view| view.members.len() != members) {
            assert!(Instant::now() < deadline, "no view of {members}: {:?}", self.coordinator.address());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All processes do the same, each with its number in place of `#`.
    pub(crate) fn all(&mut self, order: &str) -> Vec<String> {
        for (at, member) in self.members.iter_mut().enumerate() {
            member.order(&order.replace('#', &at.to_string()));
        }
        self.members.iter().map(Member::outcome).collect()
    }
}
