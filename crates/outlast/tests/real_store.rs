//! The store with real processes that are killed or stopped: nothing that was acknowledged is lost, nothing is done twice.
//!
//! Eight members call without pause, each for itself. Again and again one of them is killed and another one started in
//! its place, as soon as every key is with two members again: what is lost when both holders die before a third has
//! fetched a key is stated in the guide, not tested here. In the end somebody who was not there before reads everything.
//!
//! Besides what stays where it was written, they take from queues what others put there, make one chain of compare-and-sets
//! in which every link has one winner, and wait for keys that come only after the next kill.
//!
//! Whoever is stopped in place of that goes on after a while, and nobody is put out for it: then every change counts exactly
//! once, for nobody has died who could not tell.

#[path = "support/stopped.rs"]
mod stopped;

use outlast::coordinator::ask_status;
use outlast::membership::Preset;
use outlast::store::{Client, StoreError};
use outlast::{Coordinator, Store};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stopped::wait_until_stopped;

const ROLE: &str = "OUTLAST_STORE_ROLE";
const ADDRESS: &str = "OUTLAST_STORE_ADDRESS";
const SECRET: &str = "OUTLAST_STORE_SECRET";
const DIRECT: &str = "OUTLAST_STORE_DIRECT";
const MEMBERS: usize = 8;
/// How long one call may take.
const DEADLINE: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(40);
/// How long members are stopped, by turns, in milliseconds: within their leases and the patience of links, and beyond both.
const PAUSES_MS: [u64; 6] = [200, 3_000, 700, 1_500, 400, 2_200];

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@{line}");
    let _ = out.flush();
}

fn builder(address: &str, secret: &str) -> outlast::store::StoreBuilder {
    Store::builder()
        .coordinator(address)
        .secret(secret.parse().expect("a secret"))
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Local)
        .timeout(DEADLINE)
}

/// Not a test by itself: what the members do, when the environment says so.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let setting = |name| std::env::var(name).expect("a setting");
    let (kind, name) = role.split_once(' ').expect("a kind and a name");
    let builder = builder(&setting(ADDRESS), &setting(SECRET)).name(name);
    let builder = builder.configure(|config| config.direct = setting(DIRECT) == "true");
    if kind == "load" {
        return load(&builder.join().expect("in the store"), name);
    }
    // Whoever ends the store with it, and whoever waits for what never comes.
    let store = builder.shutdown_on_exit(kind == "anchor").join().expect("in the store");
    say("in");
    let error = store.get("never", Some(PATIENCE)).expect_err("nobody sets it");
    say(&format!("failed {error}"));
}

/// Changes this and that until somebody says stop, and tells of every change that it was done.
fn load(store: &Store, name: &str) {
    say("in");
    std::thread::scope(|scope| {
        scope.spawn(|| wait_for_ticks(store, name));
        for number in 0_u64.. {
            let token = format!("{name}/{number}");
            say(&format!("begins {token}"));
            done(&format!("add {token}"), || store.add("counter", 1));
            done(&format!("set {token}"), || store.set(&token, token.clone()));
            done(&format!("append {token}"), || {
                store.append(format!("log/{}", number % 7), format!("{token},"))
            });
            let queue = format!("queue/{}", number % 5);
            done(&format!("push {token}"), || store.queue_push(&queue, token.clone()));
            // Every second round, so that something is left. Whoever pops has pushed, so nobody waits in vain.
            if number % 2 == 0 {
                say(&format!("tries pop {token}"));
                if let Some(element) = done(&format!("pop {token}"), || store.queue_pop(&queue, None)) {
                    say(&format!("popped {token} {}", text(element)));
                }
            }
            forge(store, &token);
            if store.check(&["stop"]).unwrap_or(false) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    store.leave().expect("it lets go");
    say("left");
}

/// Makes a call, and tells how long it took or that nobody knows what became of it.
fn done<R>(what: &str, call: impl FnOnce() -> Result<R, StoreError>) -> Option<R> {
    let begun = Instant::now();
    let result = call();
    let took = begun.elapsed().as_millis();
    match result {
        Ok(answer) => {
            say(&format!("{what} {took}"));
            Some(answer)
        }
        Err(error) => {
            say(&format!("unknown {what} {took} {error}"));
            None
        }
    }
}

/// Tries to make the next link of a chain: its number, and who made it.
fn forge(store: &Store, token: &str) {
    let Ok(last) = store.look("chain").map(Option::unwrap_or_default) else { return };
    let last = text(last);
    let number = last.split_once(' ').map_or(0, |(number, _)| number.parse::<u64>().expect("a number")) + 1;
    let link = format!("{number} {token}");
    say(&format!("tries link {link}"));
    if let Some(found) = done(&format!("link {token}"), || store.compare_set("chain", last, link.clone())) {
        let fate = if text(found) == link { "linked" } else { "outrun" };
        say(&format!("{fate} {link}"));
    }
}

/// Waits for one key after the other. They are written by somebody who is no member, each after another kill.
fn wait_for_ticks(store: &Store, name: &str) {
    let (_, first) = name.split_once('.').expect("which one it is in its place");
    for tick in first.parse::<u64>().expect("a number").max(1).. {
        match store.wait(&[format!("tick/{tick}")], Some(PATIENCE)) {
            Ok(()) => say(&format!("woken {tick}")),
            Err(error) => say(&format!("unknown wait {tick} {error}")),
        }
        if store.check(&["stop"]).unwrap_or(true) {
            return;
        }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

struct Worker {
    process: Child,
    lines: Option<JoinHandle<Vec<String>>>,
    is_in: std::sync::mpsc::Receiver<()>,
}

impl Worker {
    fn start(coordinator: &Coordinator, role: &str) -> Self {
        Self::start_linked(coordinator, role, true)
    }

    /// With direct links, or with those of the mesh only.
    fn start_linked(coordinator: &Coordinator, role: &str, direct: bool) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut process = Command::new(program)
            .args(["role", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env(ADDRESS, coordinator.address().to_string())
            .env(SECRET, coordinator.secret().to_text())
            .env(DIRECT, direct.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (tells, is_in) = std::sync::mpsc::channel();
        let lines = std::thread::spawn(move || {
            let said = output.lines().map_while(Result::ok);
            let said = said.filter_map(|line| line.split_once('@').map(|(_, said)| said.to_owned()));
            said.inspect(|said| {
                if said == "in" {
                    let _ = tells.send(());
                }
            })
            .collect()
        });
        Self { process, lines: Some(lines), is_in }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it is ours");
    }

    /// It stands still for so long, and goes on.
    fn pause(&self, lasts: Duration) {
        self.signal(Signal::STOP);
        wait_until_stopped(self.process.id());
        std::thread::sleep(lasts);
        self.signal(Signal::CONT);
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// All that it said, once it has ended.
    fn said(&mut self) -> Vec<String> {
        self.lines.take().expect("heard once").join().expect("its lines")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn coordinator() -> Coordinator {
    let listen = "127.0.0.1:0".parse().expect("an address");
    Coordinator::builder().listen(listen).preset(Preset::Local).start().expect("a coordinator")
}

/// Waits until so many are in the view and no other view is being prepared: then every key is with two of them. Which view it is.
fn wait_for_view(coordinator: &Coordinator, members: usize) -> u64 {
    let (address, deadline) = (coordinator.address().to_string(), Instant::now() + PATIENCE);
    let run = "default".parse().expect("a run id");
    loop {
        let answer = ask_status(&address, coordinator.secret(), &run, PATIENCE).expect("a status");
        let status: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        let store = &status["store"];
        let there = store["members"].as_array().into_iter().flatten();
        let there = there.filter(|member| member["state"] == "member").count();
        let all = store["members"].as_array().map_or(0, Vec::len);
        if there == members && all == members && store["change"] == "" {
            return store["epoch"].as_u64().expect("a number");
        }
        assert!(Instant::now() < deadline, "{members} members were waited for: {store}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[derive(Default)]
struct Tally {
    /// What was acknowledged, by kind.
    done: BTreeMap<String, BTreeSet<String>>,
    /// Rounds that were begun; each may have done one of everything.
    begun: BTreeSet<String>,
    /// What was taken from queues, by whoever was told so.
    popped: Vec<String>,
    /// Pops of those who were killed before they could tell what they had taken.
    untold_pops: usize,
    /// Links of the chain, by number: who made it, and who tried and was killed before it could tell.
    linked: BTreeMap<u64, Vec<String>>,
    untold_links: BTreeMap<u64, BTreeSet<String>>,
    /// How long every acknowledged call took, in milliseconds.
    took: Vec<u64>,
}

impl Tally {
    /// Takes in all that one process said.
    fn take(&mut self, lines: &[String]) {
        let (mut pops, mut links) = (BTreeSet::new(), BTreeSet::new());
        let mut ticks = Vec::new();
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            let number = |text: &str| text.parse::<u64>().expect("a number");
            match words[..] {
                ["begins", token] => drop(self.begun.insert(token.to_owned())),
                ["unknown", ..] => panic!("a call of a living member failed: {line}"),
                ["tries", "pop", token] => drop(pops.insert(token.to_owned())),
                ["popped", token, element] => {
                    assert!(pops.remove(token));
                    self.popped.push(element.to_owned());
                }
                ["tries", "link", at, token] => drop(links.insert((number(at), token.to_owned()))),
                ["linked", at, token] => {
                    assert!(links.remove(&(number(at), token.to_owned())));
                    self.linked.entry(number(at)).or_default().push(token.to_owned());
                }
                ["outrun", at, token] => assert!(links.remove(&(number(at), token.to_owned()))),
                ["woken", tick] => ticks.push(number(tick)),
                [what, token, took] => {
                    self.done.entry(what.to_owned()).or_default().insert(token.to_owned());
                    self.took.push(number(took));
                }
                _ => {}
            }
        }
        assert!(pops.len() <= 1 && links.len() <= 1, "one thing after the other: {pops:?}, {links:?}");
        self.untold_pops += pops.len();
        for (at, token) in links {
            self.untold_links.entry(at).or_default().insert(token);
        }
        assert!(ticks.windows(2).all(|pair| pair[0] + 1 == pair[1]), "a wait was never woken: {ticks:?}");
    }

    /// What was found must be all that was acknowledged, each once, and nothing that nobody began. As much may be missing
    /// as was taken by those who were killed before they could tell.
    fn compare(&self, what: &str, found: &[String], untold: usize) {
        let distinct: BTreeSet<_> = found.iter().cloned().collect();
        assert_eq!(distinct.len(), found.len(), "{what}: something was done twice");
        let lost: Vec<_> = self.done[what].difference(&distinct).collect();
        assert!(lost.len() <= untold, "{what}: acknowledged and lost: {lost:?}, {untold} of them may be");
        assert!(distinct.is_subset(&self.begun), "{what}: somebody did what nobody asked for");
    }

    /// Every link up to the last has one maker: one who was told so, or else one who was killed while it tried.
    fn check_chain(&self, last: &str) {
        let (number, token) = last.split_once(' ').expect("a number and a maker");
        let number: u64 = number.parse().expect("a number");
        for at in 1..=number {
            let makers = self.linked.get(&at).map_or(&[][..], Vec::as_slice);
            let tried = self.untold_links.get(&at).is_some_and(|tried| !tried.is_empty());
            assert!(makers.len() <= 1, "link {at} was made by several: {makers:?}");
            assert!(makers.len() == 1 || tried, "link {at} was made by nobody");
        }
        let beyond: Vec<_> = self.linked.range(number + 1..).collect();
        assert!(beyond.is_empty(), "links were acknowledged and lost: {beyond:?}");
        let told = self.linked.get(&number).is_some_and(|makers| makers == &[token]);
        let untold = self.untold_links.get(&number).is_some_and(|tried| tried.contains(token));
        assert!(told || untold, "the last link is {last:?}, and that is not who was told so");
    }
}

/// What happens to one member after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Killed, and another one is started in its place.
    Killed,
    /// Stopped for a while.
    Stopped,
}

/// How a storm differs from the usual one.
#[derive(Clone, Copy)]
struct Storm {
    lasts: Duration,
    members: usize,
    direct: bool,
    fault: Fault,
    /// Nearly every call is to be as fast as a failover. That holds on a machine that has nothing else to do.
    on_a_quiet_machine: bool,
}

impl Storm {
    const SHORT: Self = Self {
        lasts: Duration::from_secs(15),
        members: MEMBERS,
        direct: true,
        fault: Fault::Killed,
        on_a_quiet_machine: false,
    };
    const LONG: Self = Self { lasts: Duration::from_mins(2), on_a_quiet_machine: true, ..Self::SHORT };
}

fn storm(storm: Storm) {
    let Storm { lasts, members, direct, fault, on_a_quiet_machine } = storm;
    let coordinator = coordinator();
    let started = Instant::now();
    let mut workers: Vec<_> = (0..members)
        .map(|place| Worker::start_linked(&coordinator, &format!("load {place}.0"), direct))
        .collect();
    let epoch = wait_for_view(&coordinator, members);
    let (mut tally, mut faults) = (Tally::default(), 0);
    let run = "default".parse().expect("a run id");
    let client =
        Client::new(coordinator.address().to_string(), &run, coordinator.secret()).expect("a client");
    let tick = |number: usize| client.set(format!("tick/{number}"), "", DEADLINE).expect("a tick");
    let began = Instant::now();
    while began.elapsed() < lasts {
        let round = Instant::now();
        let place = (faults * 5 + 3) % members;
        faults += 1;
        match fault {
            Fault::Killed => {
                let role = format!("load {place}.{faults}");
                let next = Worker::start_linked(&coordinator, &role, direct);
                let mut killed = std::mem::replace(&mut workers[place], next);
                killed.kill();
                tally.take(&killed.said());
                workers[place].is_in.recv_timeout(PATIENCE).expect("the next one is let in");
            }
            Fault::Stopped => {
                workers[place].pause(Duration::from_millis(PAUSES_MS[faults % PAUSES_MS.len()]));
            }
        }
        let now = wait_for_view(&coordinator, members);
        assert!(fault == Fault::Killed || now == epoch, "somebody was put out for a pause");
        tick(faults);
        if fault == Fault::Killed {
            std::thread::sleep(Duration::from_secs(1).saturating_sub(round.elapsed()));
        }
    }
    let store =
        builder(&coordinator.address().to_string(), &coordinator.secret().to_text()).join().expect("in");
    store.set("stop", "now").expect("set");
    tick(faults + 1);
    for mut worker in workers {
        let said = worker.said();
        assert_eq!(said.last().map(String::as_str), Some("left"), "it ends by itself: {:?}", said.last());
        assert!(said.contains(&format!("woken {}", faults + 1)), "its last wait was not woken");
        tally.take(&said);
    }
    let counted = store.add("counter", 0).expect("a number") as usize;
    let (done, begun) = (tally.done["add"].len(), tally.begun.len());
    assert!(
        (done..=begun).contains(&counted),
        "{done} adds were acknowledged of {begun}, {counted} were counted"
    );
    assert!(fault == Fault::Killed || done == begun, "nobody died, and {begun} adds were begun, {done} done");
    let keys: Vec<_> = tally.done["set"].iter().collect();
    for some in keys.chunks(500) {
        let values =
            store.multi_get(&some.iter().map(|key| key.as_bytes()).collect::<Vec<_>>()).expect("values");
        assert!(
            some.iter().zip(&values).all(|(key, value)| key.as_bytes() == value),
            "a value is another one"
        );
    }
    let logs = (0..7).map(|log| text(store.look(format!("log/{log}")).expect("a log").unwrap_or_default()));
    let logged: Vec<_> =
        logs.flat_map(|log| log.split_terminator(',').map(str::to_owned).collect::<Vec<_>>()).collect();
    tally.compare("append", &logged, 0);
    tally.check_chain(&text(store.look("chain").expect("a chain").expect("a link")));
    let mut popped = tally.popped.clone();
    for queue in 0..5 {
        while let Some(value) = store.queue_try_pop(format!("queue/{queue}")).expect("an element or none") {
            popped.push(text(value));
        }
    }
    tally.compare("push", &popped, tally.untold_pops);
    tally.took.sort_unstable();
    let quantile = |part: f64| tally.took[((tally.took.len() - 1) as f64 * part) as usize];
    let (half, most, slowest) = (quantile(0.5), quantile(0.999), quantile(1.0));
    assert!(u128::from(slowest) < DEADLINE.as_millis(), "a call took {slowest} ms");
    let held_up = tally.took.len() - tally.took.partition_point(|took| *took <= 300);
    let what = if fault == Fault::Killed { "kills" } else { "pauses" };
    println!(
        "{faults} {what} in {:?}: {done} rounds of add, set, append and push acknowledged, {} pops and {} links of a chain; \
         half of the calls took up to {half} ms, 999 of 1,000 up to {most} ms, {held_up} of {} more than 300 ms, the \
         slowest {slowest} ms",
        started.elapsed(),
        tally.popped.len(),
        tally.linked.len(),
        tally.took.len(),
    );
    assert!(!on_a_quiet_machine || (most <= 300 && slowest <= 2_000), "survivors were blocked for longer");
}

#[test]
fn nothing_is_lost_or_done_twice_while_members_are_killed() {
    storm(Storm::SHORT);
}

#[test]
fn nothing_is_lost_or_done_twice_while_members_are_stopped() {
    storm(Storm { lasts: Duration::from_secs(7), fault: Fault::Stopped, ..Storm::SHORT });
}

#[test]
#[ignore = "two minutes; make soak"]
fn nothing_is_lost_or_done_twice_in_two_minutes_of_kills() {
    storm(Storm::LONG);
}

#[test]
#[ignore = "two minutes; make soak"]
fn nothing_is_lost_or_done_twice_in_two_minutes_of_kills_without_direct_links() {
    storm(Storm { direct: false, ..Storm::LONG });
}

#[test]
#[ignore = "two minutes; make soak"]
fn nothing_is_lost_or_done_twice_in_two_minutes_of_kills_among_thirty_two_without_direct_links() {
    storm(Storm { members: 32, direct: false, on_a_quiet_machine: false, ..Storm::LONG });
}

/// Calls on keys of whoever is stopped wait for it, so there is no such bound on them.
#[test]
#[ignore = "two minutes; make soak"]
fn nothing_is_lost_or_done_twice_in_two_minutes_of_pauses() {
    storm(Storm { fault: Fault::Stopped, on_a_quiet_machine: false, ..Storm::LONG });
}

#[test]
#[ignore = "two minutes; make soak"]
fn nothing_is_lost_or_done_twice_in_two_minutes_of_pauses_without_direct_links() {
    storm(Storm { fault: Fault::Stopped, direct: false, on_a_quiet_machine: false, ..Storm::LONG });
}

/// Each call of a client goes its own way, so later ones often come first.
#[test]
fn threads_that_share_a_client_lose_no_call() {
    const THREADS: i64 = 8;
    const EACH: i64 = 25;
    let coordinator = coordinator();
    let (address, secret) = (coordinator.address().to_string(), coordinator.secret().to_text());
    let members = [(); 2].map(|()| builder(&address, &secret).join().expect("in"));
    let run = "default".parse().expect("a run id");
    let client = Client::new(address, &run, coordinator.secret()).expect("a client");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    client.add("counter", 1, DEADLINE).expect("a sum");
                }
            });
        }
    });
    assert_eq!(members[0].add("counter", 0).expect("a number"), THREADS * EACH);
}

#[test]
fn a_member_that_was_to_end_the_store_is_named_when_it_is_killed() {
    let coordinator = coordinator();
    let mut anchor = Worker::start(&coordinator, "anchor mainstay");
    anchor.is_in.recv_timeout(PATIENCE).expect("it is in");
    let mut others: Vec<_> = (0..2).map(|_| Worker::start(&coordinator, "waits other")).collect();
    others.iter().for_each(|other| other.is_in.recv_timeout(PATIENCE).expect("it is in"));
    anchor.kill();
    for other in &mut others {
        let said = other.said();
        let failed = said.iter().find(|line| line.starts_with("failed")).expect("its call fails");
        assert!(failed.starts_with("failed store was shut down on rank 0 (mainstay, 127.0.0.1:"), "{failed}");
    }
}

#[test]
fn whoever_waits_is_told_when_another_process_shuts_the_store_down() {
    let coordinator = coordinator();
    let mut others: Vec<_> = (0..3).map(|at| Worker::start(&coordinator, &format!("waits {at}"))).collect();
    others.iter().for_each(|other| other.is_in.recv_timeout(PATIENCE).expect("it is in"));
    let store = builder(&coordinator.address().to_string(), &coordinator.secret().to_text());
    let store = store.timeout(PATIENCE).join().expect("in");
    wait_for_view(&coordinator, 4);
    // One of them can neither hear nor answer: the others do not wait for it beyond the bound.
    others[2].signal(Signal::STOP);
    let begun = Instant::now();
    store.shutdown().expect("shut down");
    println!("shutting down beside a stopped member took {:?}", begun.elapsed());
    for other in &mut others[..2] {
        let said = other.said();
        assert!(said.contains(&"failed the store was shut down".to_owned()), "{said:?}");
    }
    others[2].signal(Signal::CONT);
    let said = others[2].said();
    assert!(said.contains(&"failed the store was shut down".to_owned()), "{said:?}");
}
