//! Members as processes that do what they are told, line by line.

use crate::stopped::wait_until_stopped;
use outlast::Store;
use outlast::membership::Preset;
use outlast_proto::store::layout::{Layout, bucket};
use outlast_proto::store::mesh::Mesh;
use outlast_proto::wire::store::StoreMember;
use outlast_proto::wire::store::operation::Key;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ROLE: &str = "OUTLAST_STORE_WORDS_ROLE";
/// How long anything is waited for that has no bound of its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// Over which links members talk to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Links {
    /// Those of the mesh, and one to everybody to whom there is something to say.
    #[default]
    Direct,
    /// Those of the mesh only.
    Mesh,
}

/// How a member is started.
#[derive(Clone, Default)]
pub(crate) struct Role {
    pub(crate) name: String,
    /// The coordinators; or where rank 0 listens, with our rank and the number of members.
    pub(crate) address: String,
    pub(crate) bootstrap: Option<(u32, u32)>,
    pub(crate) secret: String,
    /// Where others reach it, if not where it listens.
    pub(crate) listen: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(crate) ends_store: bool,
    pub(crate) links: Links,
    pub(crate) join_ms: u64,
    /// Its process stops before it joins.
    pub(crate) never_starts: bool,
}

impl Role {
    fn to_text(&self) -> String {
        let (rank, world) = self.bootstrap.unwrap_or_default();
        [
            self.name.clone(),
            self.address.clone(),
            rank.to_string(),
            world.to_string(),
            self.secret.clone(),
            self.listen.clone().unwrap_or_default(),
            self.advertise.clone().unwrap_or_default(),
            self.ends_store.to_string(),
            self.join_ms.to_string(),
            self.never_starts.to_string(),
            (self.links == Links::Direct).to_string(),
        ]
        .join(" ")
    }

    fn join(&self) -> Result<Store, outlast::store::StoreError> {
        let builder = match self.bootstrap {
            Some((rank, world)) => Store::bootstrap(&self.address, rank, world, "words"),
            None => Store::builder().coordinator(&self.address),
        };
        let listen = self.listen.as_deref().unwrap_or("127.0.0.1:0");
        let mut builder = builder
            .secret(self.secret.parse().expect("a secret"))
            .listen(listen.parse().expect("an address"))
            .preset(Preset::Local)
            .configure(|config| config.direct = self.links == Links::Direct)
            .name(&self.name)
            .shutdown_on_exit(self.ends_store)
            .timeout(Duration::from_millis(self.join_ms));
        if let Some(address) = &self.advertise {
            builder = builder.advertise(address.parse().expect("an address"));
        }
        builder.join()
    }
}

/// One line, whatever is in it.
fn json(text: &str) -> String {
    serde_json::to_string(text).expect("text")
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@{text}");
    let _ = out.flush();
}

/// What a process does when the environment says that it is a member. True if it was one.
pub(crate) fn play() -> bool {
    let Ok(text) = std::env::var(ROLE) else { return false };
    let words: Vec<_> = text.split(' ').collect();
    let set = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let world: u32 = words[3].parse().expect("a number");
    let role = Role {
        name: words[0].to_owned(),
        address: words[1].to_owned(),
        bootstrap: (world > 0).then(|| (words[2].parse().expect("a rank"), world)),
        secret: words[4].to_owned(),
        listen: set(words[5]),
        advertise: set(words[6]),
        ends_store: words[7] == "true",
        join_ms: words[8].parse().expect("milliseconds"),
        never_starts: words[9] == "true",
        links: if words[10] == "true" { Links::Direct } else { Links::Mesh },
    };
    if role.never_starts {
        kill_process(rustix::process::getpid(), Signal::STOP).expect("it is ours");
    }
    let store = match role.join() {
        Ok(store) => Arc::new(store),
        Err(error) => {
            say(&format!("0 {}", json(&error.to_string())));
            return true;
        }
    };
    say("0 \"in\"");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let store = Arc::clone(&store);
        // Every call on a thread of its own, so that one that waits keeps nobody from the next.
        std::thread::spawn(move || {
            let words: Vec<_> = line.split(' ').collect();
            let begun = Instant::now();
            let answer = act(&store, &words[1..]);
            say(&format!("{} {} {}", words[0], json(&answer), begun.elapsed().as_millis()));
        });
    }
    // Whoever held the other end is gone, and so are we, without a goodbye.
    std::process::exit(0);
}

fn act(store: &Store, words: &[&str]) -> String {
    let done = match *words {
        ["get", key, ms] => {
            let limit = Duration::from_millis(ms.parse().expect("milliseconds"));
            store.get(key, Some(limit)).map(|value| String::from_utf8_lossy(&value).into_owned())
        }
        ["set", key, value] => store.set(key, value).map(|()| "set".to_owned()),
        ["set-within", key, value, ms] => {
            let limit = Duration::from_millis(ms.parse().expect("milliseconds"));
            store.within(limit).set(key, value).map(|()| "set".to_owned())
        }
        // So many keys, one after the other; and later, which of them are not as they were set.
        ["fill", prefix, count] => {
            let numbers = 0..count.parse::<u32>().expect("a number");
            let mut sets = numbers.map(|number| store.set(format!("{prefix}/{number}"), number.to_string()));
            sets.find(Result::is_err).unwrap_or(Ok(())).map(|()| "filled".to_owned())
        }
        ["missing", prefix, count] => {
            let numbers = 0..count.parse::<u32>().expect("a number");
            let has = |number: &u32| {
                let found = store.look(format!("{prefix}/{number}"));
                found.is_ok_and(|value| value.as_deref() == Some(number.to_string().as_bytes()))
            };
            let missing = numbers.filter(|number| !has(number)).map(|number| number.to_string());
            return missing.collect::<Vec<_>>().join(" ");
        }
        ["push", key, value] => store.queue_push(key, value).map(|()| "pushed".to_owned()),
        ["pop", key, ms] => {
            let limit = Duration::from_millis(ms.parse().expect("milliseconds"));
            store.queue_pop(key, Some(limit)).map(|value| String::from_utf8_lossy(&value).into_owned())
        }
        ["shutdown"] => store.shutdown().map(|()| "shut".to_owned()),
        ["leave"] => store.leave().map(|()| "left".to_owned()),
        // A key, or a queue, that the member of that name owns.
        ["key-of", name] => return owned_by(store, name, |key| Key::value(key.as_bytes())),
        ["queue-of", name] => return owned_by(store, name, |key| Key::queue(key.as_bytes())),
        // Who of four is no neighbour of the member of that name.
        ["opposite", name] => {
            let view = store.view().expect("a view");
            let (mesh, members) = (Mesh::new(&view), &view.members);
            let one = members.iter().find(|member| member.name == name).expect("a member");
            let is_it = |other: &&StoreMember| other.id != one.id && !mesh.has(one.id, other.id);
            return members.iter().find(is_it).expect("one of four").name.clone();
        }
        // Two with as many hops between them as any two have.
        ["farthest"] => {
            let view = store.view().expect("a view");
            let (mesh, none) = (Mesh::new(&view), BTreeSet::new());
            let pairs = view.members.iter().flat_map(|one| {
                let routes = mesh.routes(one.id, &none);
                view.members.iter().map(move |other| (routes.hops(other.id), &one.name, &other.name))
            });
            let (_, one, other) = pairs.max().expect("a pair");
            return format!("{one} {other}");
        }
        // Those with whom the member of that name has a link of the mesh.
        ["neighbours", name] => {
            let view = store.view().expect("a view");
            let (mesh, members) = (Mesh::new(&view), &view.members);
            let one = members.iter().find(|member| member.name == name).expect("a member");
            let names = members.iter().filter(|other| mesh.has(one.id, other.id)).map(|other| &*other.name);
            return names.collect::<Vec<_>>().join(" ");
        }
        // All members, in the order of the view.
        ["names"] => {
            let view = store.view().expect("a view");
            return view.members.iter().map(|member| member.name.as_str()).collect();
        }
        ["ranks"] => {
            let view = store.view().expect("a view");
            let mut ranks: Vec<_> = view.members.iter().map(|member| member.rank).collect();
            ranks.sort_unstable();
            return format!("{ranks:?}");
        }
        ["members"] => return store.view().map_or(0, |view| view.members.len()).to_string(),
        ref other => panic!("no such order: {other:?}"),
    };
    done.unwrap_or_else(|error| error.to_string())
}

/// The name of something that the member of that name owns.
fn owned_by(store: &Store, name: &str, key: impl Fn(&str) -> Key) -> String {
    let view = store.view().expect("a view");
    let layout = Layout::new((*view).clone());
    let is_its = |text: &String| {
        let owner = layout.owner(bucket(&key(text)));
        view.members.iter().any(|member| Some(member.id) == owner && member.name == name)
    };
    (0..10_000).map(|number| format!("key{number}")).find(is_its).expect("a key")
}

/// A member that was started.
pub(crate) struct Member {
    process: Child,
    orders: ChildStdin,
    lines: Mutex<(mpsc::Receiver<String>, BTreeMap<u64, String>)>,
    number: std::cell::Cell<u64>,
}

/// What came of an order, and how long that took there.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) took: Duration,
}

impl Member {
    /// Started; it joins.
    pub(crate) fn start(role: &Role) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut process = Command::new(program)
            .args(["role", "--exact", "--nocapture"])
            .env(ROLE, role.to_text())
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
        Self { process, orders, lines: Mutex::new((lines, BTreeMap::new())), number: std::cell::Cell::new(0) }
    }

    /// What came of joining.
    pub(crate) fn joined(&self) -> String {
        self.outcome(0).text
    }

    /// Gives an order; what comes of it is an [`outcome`](Self::outcome).
    pub(crate) fn order(&mut self, order: &str) -> u64 {
        self.number.set(self.number.get() + 1);
        let number = self.number.get();
        writeln!(self.orders, "{number} {order}").expect("it reads");
        self.orders.flush().expect("it reads");
        number
    }

    pub(crate) fn outcome(&self, number: u64) -> Outcome {
        self.outcome_within(number, PATIENCE).unwrap_or_else(|| panic!("no outcome of {number}"))
    }

    pub(crate) fn outcome_within(&self, number: u64, patience: Duration) -> Option<Outcome> {
        let deadline = Instant::now() + patience;
        let mut lines = self.lines.lock().expect("a lock");
        loop {
            if let Some(line) = lines.1.remove(&number) {
                let (text, took) = line.rsplit_once(' ').filter(|_| number > 0).unwrap_or((&line, "0"));
                let text: String = serde_json::from_str(text).unwrap_or_else(|_| text.to_owned());
                return Some(Outcome { text, took: Duration::from_millis(took.parse().expect("a number")) });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let line = lines.0.recv_timeout(left).ok()?;
            let (number, rest) = line.split_once(' ').expect("a number first");
            lines.1.insert(number.parse().expect("a number"), rest.to_owned());
        }
    }

    /// An order and what came of it.
    pub(crate) fn done(&mut self, order: &str) -> Outcome {
        let number = self.order(order);
        self.outcome(number)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it is ours");
    }

    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    /// None of its threads runs when this returns.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        wait_until_stopped(self.process.id());
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
