//! Four peers that add up numbers without pause, and check every sum.

use crate::coordinators::{Coordinators, PATIENCE, until};
use outlast::Communicator;
use outlast::communicator::Call;
use outlast::membership::Preset;
use outlast::sync::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PEERS: i64 = 4;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// When the first peer's calls committed.
    commits: Mutex<Vec<Instant>>,
}

pub(crate) struct Run {
    shared: Arc<Shared>,
    peers: Vec<JoinHandle<()>>,
}

impl Run {
    pub(crate) fn start(coordinators: &Coordinators) -> Self {
        Self::start_at(coordinators, &coordinators.addresses())
    }

    /// The same with peers that are told something else than the addresses.
    pub(crate) fn start_at(coordinators: &Coordinators, place: &str) -> Self {
        let shared = Arc::<Shared>::default();
        let peers = (0..PEERS).map(|number| {
            let comm = Communicator::builder()
                .coordinator(place)
                .secret(coordinators.etcds.secret.clone())
                .listen("127.0.0.1:0".parse().expect("an address"))
                .preset(Preset::Local)
                .timeout(PATIENCE);
            let (comm, shared) = (comm.start().expect("a communicator"), Arc::clone(&shared));
            std::thread::spawn(move || work(&comm, number, &shared))
        });
        let run = Self { peers: peers.collect(), shared };
        run.goes_on("the first commits");
        run
    }

    /// Waits until twenty more calls have committed.
    pub(crate) fn goes_on(&self, what: &str) {
        let then = self.commits().len();
        until(what, || {
            assert!(!self.peers.iter().any(JoinHandle::is_finished), "a peer failed: {what}");
            (self.commits().len() >= then + 20).then_some(())
        });
    }

    /// How long after that moment the first call committed that nobody can have decided before it.
    pub(crate) fn first_commit_after(&self, moment: Instant) -> Duration {
        // What was decided before is with the peers by now.
        let settled = moment + Duration::from_millis(50);
        let commits = self.commits();
        let first = commits.iter().find(|commit| **commit > settled).expect("a commit");
        first.duration_since(moment)
    }

    /// The longest time between two commits since that moment.
    pub(crate) fn longest_pause_since(&self, moment: Instant) -> Duration {
        let commits = self.commits();
        let later: Vec<_> =
            std::iter::once(moment).chain(commits.iter().copied().filter(|at| *at > moment)).collect();
        later.windows(2).map(|pair| pair[1].duration_since(pair[0])).max().unwrap_or_default()
    }

    fn commits(&self) -> MutexGuard<'_, Vec<Instant>> {
        lock(&self.shared.commits)
    }

    /// Ends it after the same step for all. How many calls committed.
    pub(crate) fn finish(self) -> usize {
        self.shared.stop.store(true, Ordering::Relaxed);
        let commits = Arc::clone(&self.shared);
        for peer in self.peers {
            peer.join().expect("a peer saw what it must not see");
        }
        lock(&commits.commits).len()
    }
}

fn work(comm: &Communicator, number: i64, shared: &Shared) {
    comm.connect(u32::try_from(PEERS).expect("few")).expect("admitted");
    for step in 0.. {
        let stops = i64::from(shared.stop.load(Ordering::Relaxed));
        let mut sums: Vec<i64> = vec![stops, 1 << (16 * number), step * (number + 1)];
        let receipt = comm.all_reduce(&mut sums, &Call::sum()).expect("a commit");
        assert_eq!(receipt.contributors.len() as i64, PEERS, "a live peer was lost at step {step}");
        // Everybody's number once, and everybody at the same step.
        assert_eq!(sums[1], (0..PEERS).map(|peer| 1 << (16 * peer)).sum::<i64>(), "wrong at step {step}");
        assert_eq!(sums[2], step * (1..=PEERS).sum::<i64>(), "wrong at step {step}");
        if number == 0 {
            lock(&shared.commits).push(Instant::now());
        }
        if sums[0] > 0 {
            return;
        }
    }
}
