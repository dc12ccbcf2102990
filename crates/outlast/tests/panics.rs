//! What a mistake of ours costs (rule 40): a panic in what decides for one run, in the clerk that serves all of them, in the
//! health of a run, and in a peer that dials. Nobody waits for something that is gone, and whoever has nothing to do with it goes on.

mod peers;

use outlast::communicator::{Call, Error};
use outlast::coordinator::{Backend, CoordinatorError};
use outlast::membership::{Health, Member, PeerId, Preset, RunId};
use outlast::planted::{Place, is_planted, plant};
use outlast::{Communicator, Coordinator, Membership, Store};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long any single thing may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Steps that show that training goes on.
const STEPS: u64 = 50;

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What the members of one run have seen.
#[derive(Default)]
struct Seen {
    over: AtomicBool,
    /// Steps of each member.
    steps: [AtomicU64; 2],
    /// The most attempts that one step took, and the last epoch.
    attempts: AtomicU64,
    epoch: AtomicU64,
}

/// Two members of one run that add numbers up until they are told to stop.
struct Training {
    run: RunId,
    seen: Arc<Seen>,
    members: Vec<JoinHandle<Result<(), Error>>>,
    comms: Vec<Arc<Communicator>>,
}

impl Training {
    fn begin(coordinator: &Coordinator, run: &str) -> Self {
        let (run, seen): (RunId, Arc<Seen>) = (run.parse().unwrap(), Arc::default());
        let comm = |number: u32| {
            let builder = peers::builder(coordinator).run_id(run.clone()).name(format!("{run}-{number}"));
            Arc::new(builder.start().unwrap())
        };
        let comms: Vec<_> = (0..2).map(comm).collect();
        let members = comms.iter().zip(0..).map(|(comm, number)| {
            let (comm, seen) = (Arc::clone(comm), Arc::clone(&seen));
            std::thread::spawn(move || train(&comm, number, &seen))
        });
        let members = members.collect();
        let training = Self { run, seen, members, comms };
        training.goes_on("it begins");
        training
    }

    fn steps(&self) -> [u64; 2] {
        [0, 1].map(|number| self.seen.steps[number].load(Ordering::SeqCst))
    }

    fn goes_on(&self, what: &str) {
        let before = self.steps();
        until(what, || {
            let now = self.steps();
            (0..2).all(|number| now[number] >= before[number] + STEPS)
        });
    }

    fn finish(self) -> Arc<Seen> {
        self.seen.over.store(true, Ordering::SeqCst);
        for member in self.members {
            member.join().unwrap().unwrap();
        }
        self.seen
    }
}

fn train(comm: &Communicator, number: usize, seen: &Seen) -> Result<(), Error> {
    comm.connect(2)?;
    loop {
        // The last element says whether to stop, so that both stop after the same step.
        let stop = u32::from(number == 0 && seen.over.load(Ordering::SeqCst));
        let mut data = [1, 2, 3, stop];
        let receipt = comm.all_reduce(&mut data, &Call::sum())?;
        assert_eq!(
            (&data[..3], receipt.world_size),
            (&[2, 4, 6][..], 2),
            "every sum is right, and nobody is lost"
        );
        seen.attempts.fetch_max(receipt.attempts.into(), Ordering::SeqCst);
        seen.epoch.store(receipt.epoch, Ordering::SeqCst);
        seen.steps[number].fetch_add(1, Ordering::SeqCst);
        if data[3] > 0 {
            return Ok(());
        }
    }
}

fn events(coordinator: &Coordinator, run: &RunId) -> String {
    coordinator.status(run).unwrap().unwrap_or_default()
}

/// What the coordinator has heard of a peer's health.
fn health_of(coordinator: &Coordinator, run: &RunId, peer: PeerId) -> String {
    let status: serde_json::Value = serde_json::from_str(&events(coordinator, run)).unwrap();
    let peers = status["peers"].as_array().unwrap();
    let found = peers.iter().find(|row| row["id"] == peer.to_string()).unwrap();
    found["health"].as_str().unwrap().to_owned()
}

/// One run's assert ended the task that all runs share: every run's peers redialled a coordinator that accepted them and
/// never answered, until they gave up.
#[test]
fn a_panic_in_what_decides_for_one_run_costs_that_run_a_rebuild_and_the_others_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("coordinator.redb");
    for (name, backend) in [("memory", Backend::Memory), ("file", Backend::File(file))] {
        let builder = Coordinator::builder().listen("127.0.0.1:0".parse().unwrap()).preset(Preset::Local);
        let coordinator = builder.backend(backend).start().unwrap();
        let struck = Training::begin(&coordinator, &format!("struck-{name}"));
        let spared = Training::begin(&coordinator, &format!("spared-{name}"));
        let epoch = spared.seen.epoch.load(Ordering::SeqCst);
        for round in 0..2 {
            plant(Place::Machine(struck.run.clone()));
            until("somebody steps on it", || !is_planted(&Place::Machine(struck.run.clone())));
            struck.goes_on(&format!("it is rebuilt, {name}, round {round}"));
        }
        spared.goes_on("nothing happened there");
        let status = events(&coordinator, &struck.run);
        assert!(status.contains("panicked, and began anew"), "the status tells of it: {status}");
        assert!(status.contains("\"evictions\":0") && status.contains("\"kicks\":0"), "{status}");
        assert!(!events(&coordinator, &spared.run).contains("panicked"));
        coordinator.check().unwrap();
        struck.finish();
        let seen = spared.finish();
        let found = (seen.attempts.load(Ordering::SeqCst), seen.epoch.load(Ordering::SeqCst));
        assert_eq!(found, (1, epoch), "no step was taken twice, and the epoch is the same");
    }
}

/// Three looks at `outlast status` could cost a run its place.
#[test]
fn a_panic_in_what_describes_a_run_costs_the_answer_and_the_run_nothing() {
    let coordinator = peers::coordinator();
    let training = Training::begin(&coordinator, "described");
    for _ in 0..2 {
        plant(Place::Status(training.run.clone()));
        let told = events(&coordinator, &training.run);
        assert!(told.contains("what describes this run panicked"), "{told}");
        plant(Place::Status(training.run.clone()));
        let told = training.comms[0].status().unwrap();
        assert!(told.contains("what describes this run panicked"), "{told}");
        // An answer is good for everybody who asks in the same moment.
        std::thread::sleep(Duration::from_millis(60));
    }
    training.goes_on("nothing happened");
    let status = events(&coordinator, &training.run);
    assert!(status.contains("\"world_size\":2") && !status.contains("began anew"), "{status}");
    let seen = training.finish();
    assert_eq!(seen.attempts.load(Ordering::SeqCst), 1, "no step was taken twice");
}

#[test]
fn a_run_that_panics_again_and_again_is_given_up_with_a_reason() {
    let coordinator = peers::coordinator();
    let spared = Training::begin(&coordinator, "spared");
    let mut struck = Training::begin(&coordinator, "hopeless");
    let place = Place::Machine(struck.run.clone());
    for _ in 0..3 {
        plant(place.clone());
    }
    let errors = struck.members.drain(..).map(|member| member.join().unwrap().unwrap_err().to_string());
    let errors: Vec<_> = errors.collect();
    assert!(!is_planted(&place), "all of them were stepped on");
    let reason = "run hopeless is given up: what decides for it broke 3 times within 5 minutes";
    assert!(errors.iter().all(|error| error.contains(reason)), "{errors:?}");
    // Whoever tries again hears the same, and not a silence.
    let began = Instant::now();
    let error = struck.comms[0].connect(1).unwrap_err().to_string();
    assert!(error.contains(reason) && error.contains("another run id"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    spared.goes_on("nothing happened there");
    coordinator.check().unwrap();
    spared.finish();
}

/// The port of a coordinator whose clerk was gone still accepted connections and said hello.
#[test]
fn a_coordinator_whose_clerk_panics_closes_its_port_and_says_so_and_another_goes_on() {
    let coordinator = peers::coordinator();
    let (address, secret) = (coordinator.address(), coordinator.secret().clone());
    let training = Training::begin(&coordinator, "default");
    plant(Place::Clerk(Some(address)));
    until("the handle says so", || coordinator.check().is_err());
    for error in [coordinator.check().unwrap_err(), coordinator.status(&training.run).unwrap_err()] {
        assert!(matches!(error, CoordinatorError::Ended("its clerk")), "{error:?}");
        assert!(error.to_string().contains("Start it again with the same address and secret"), "{error}");
    }
    TcpStream::connect(address).expect_err("nobody listens there any more");
    // The port is free although the handle is still there.
    let next = Coordinator::builder().listen(address).secret(secret).preset(Preset::Local).start().unwrap();
    training.goes_on("the next one rebuilds it");
    next.check().unwrap();
    training.finish();
    drop(coordinator);
    next.check().unwrap();
}

/// What the coordinator hears of one run's health: its own member there, by the eyes of one that only looks on.
struct Onlooker {
    member: Membership,
}

impl Onlooker {
    fn of(coordinator: &Coordinator, comm: &Communicator) -> Self {
        let builder = Membership::builder().secret(coordinator.secret().clone()).preset(Preset::Local);
        let builder = builder.name("onlooker").listen("127.0.0.1:0".parse().unwrap());
        let seeds = comm.peers().into_iter().map(|peer| peer.address.to_string());
        Self { member: builder.join(seeds).start().unwrap() }
    }

    /// The coordinator's members that live.
    fn ears(&self) -> Vec<PeerId> {
        let active = self.member.active().unwrap().into_iter();
        let is_ear = |member: &Member| member.info.name == "coordinator" && member.health == Health::Alive;
        active.filter(is_ear).map(|member| member.info.id).collect()
    }

    /// One of them that is none of those.
    fn ear_beside(&self, known: &[PeerId]) -> PeerId {
        let mut found = None;
        until("the coordinator has an ear in the health group", || {
            found = self.ears().into_iter().find(|ear| !known.contains(ear));
            found.is_some()
        });
        found.unwrap()
    }
}

/// Its last word stood for ever: whoever died after it stayed alive, for as long as its connection was open.
#[test]
fn a_panic_in_a_runs_health_at_its_coordinator_is_told_and_another_one_misses_who_dies() {
    let coordinator = peers::coordinator();
    let run: RunId = "default".parse().unwrap();
    let comms = peers::each(&coordinator, 3, |_, comm| {
        comm.connect(3).unwrap();
        comm
    });
    let onlooker = Onlooker::of(&coordinator, &comms[0]);
    let first = onlooker.ear_beside(&[]);
    plant(Place::Health(first));
    until("it is told", || events(&coordinator, &run).contains("health panicked, and began anew"));
    onlooker.ear_beside(&[first]);
    let status = events(&coordinator, &run);
    assert!(status.contains("\"evictions\":0") && status.contains("\"kicks\":0"), "{status}");
    coordinator.check().unwrap();
    // One that dies is missed by the next ear. It keeps its place, because its connection is open (rule 20b).
    let victim = comms[2].peer_id();
    until("all are heard of", || {
        comms.iter().all(|comm| health_of(&coordinator, &run, comm.peer_id()) == "alive")
    });
    plant(Place::Health(victim));
    until("it is missed", || health_of(&coordinator, &run, victim) == "dead");
    assert_eq!(health_of(&coordinator, &run, comms[1].peer_id()), "alive");
    assert!(!is_planted(&Place::Health(victim)) && !is_planted(&Place::Health(first)));
}

#[test]
fn a_health_that_panics_again_and_again_rests_and_says_so() {
    let coordinator = peers::coordinator();
    let training = Training::begin(&coordinator, "default");
    let onlooker = Onlooker::of(&coordinator, &training.comms[0]);
    let mut known = Vec::new();
    for _ in 0..3 {
        let ear = onlooker.ear_beside(&known);
        known.push(ear);
        plant(Place::Health(ear));
        until("it steps on it", || !is_planted(&Place::Health(ear)));
    }
    until("it is told", || events(&coordinator, &training.run).contains("panicked 3 times, and rests"));
    training.goes_on("nobody is put out for it");
    let status = events(&coordinator, &training.run);
    assert!(status.contains("\"evictions\":0"), "{status}");
    coordinator.check().unwrap();
    training.finish();
}

/// A session waits for the end of the connection that it asked for, and dials again only then.
#[test]
fn a_peer_whose_dial_panics_dials_again() {
    let coordinator = peers::coordinator();
    let comm = peers::peer(&coordinator, "dials");
    let place = Place::Dial(coordinator.address().to_string());
    plant(place.clone());
    comm.connect(1).unwrap();
    assert!(!is_planted(&place), "it was stepped on");
}

#[test]
fn a_panic_in_what_decides_on_one_stores_views_leaves_other_stores_alone() {
    let coordinator = peers::coordinator();
    let join = |run: &str| {
        let builder =
            Store::builder().coordinator(coordinator.address().to_string()).run_id(run.parse().unwrap());
        let builder = builder.secret(coordinator.secret().clone()).listen("127.0.0.1:0".parse().unwrap());
        builder.preset(Preset::Local).timeout(PATIENCE).join().unwrap()
    };
    let (struck, spared) = (join("struck-store"), join("spared-store"));
    struck.set("before", "1").unwrap();
    spared.set("before", "2").unwrap();
    let place = Place::Registrar("struck-store".parse().unwrap());
    plant(place.clone());
    until("somebody steps on it", || !is_planted(&place));
    // Whoever comes needs a view of whoever decides on them.
    let later = [join("struck-store"), join("spared-store")];
    assert_eq!(later[0].get("before", None).unwrap(), b"1");
    assert_eq!(later[1].get("before", None).unwrap(), b"2");
    coordinator.check().unwrap();
}
