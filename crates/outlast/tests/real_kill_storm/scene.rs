//! A storm's scene: a coordinator in this process, and a herd of workers in theirs.

use crate::PEERS;
use crate::herd::{Herd, PATIENCE};
use crate::roles::{STALL_MS, TIMEOUT_MS};
use outlast::Coordinator;
use outlast::coordinator::CoordinatorBuilder;
use outlast::membership::Preset;
use std::time::Duration;

/// Long storms run for minutes beside whatever else the machine does. One that starves its processes must not
/// look like one whose processes hang, or are stopped for longer than anybody should wait.
const STARVATION_MAX: Duration = Duration::from_mins(2);

pub(crate) fn builder() -> CoordinatorBuilder {
    Coordinator::builder().listen("127.0.0.1:0".parse().expect("an address")).preset(Preset::Local)
}

pub(crate) struct Scene {
    pub(crate) herd: Herd,
    pub(crate) coordinator: Coordinator,
}

impl Scene {
    /// Nobody has come yet: settings for the workers can still be made.
    pub(crate) fn of(coordinator: CoordinatorBuilder, bytes_max: usize) -> Self {
        let coordinator = coordinator.start().expect("a coordinator");
        let (address, secret) = (coordinator.address().to_string(), coordinator.secret().to_text());
        Self { herd: Herd::new(address, secret, bytes_max), coordinator }
    }

    pub(crate) fn new(bytes_max: usize) -> Self {
        Self::of(builder(), bytes_max)
    }

    /// One that puts up with a machine that is busy otherwise.
    pub(crate) fn long(bytes_max: usize) -> Self {
        let mut scene = Self::of(builder().stall_budget(STARVATION_MAX), bytes_max);
        scene.herd.set(TIMEOUT_MS, STARVATION_MAX.as_millis());
        scene.herd.set(STALL_MS, STARVATION_MAX.as_millis());
        scene.herd.patience = PATIENCE + STARVATION_MAX;
        scene
    }

    /// The first workers.
    pub(crate) fn all_come(&mut self) {
        self.herd.spawn_all(PEERS);
    }

    /// What the coordinator says.
    pub(crate) fn status(&self) -> String {
        status_of(&self.coordinator)
    }

    /// As [`all_commit`].
    pub(crate) fn all_commit(&mut self, since: u64, world: usize) {
        let coordinator = &self.coordinator;
        all_commit(&mut self.herd, since, world, || status_of(coordinator));
    }

    /// All stop, and the books agree.
    pub(crate) fn finish(&mut self) {
        self.herd.finish();
        self.herd.check("at the end");
    }
}

pub(crate) fn status_of(coordinator: &Coordinator) -> String {
    format!("{:?}", coordinator.status(&"default".parse().expect("a run id")))
}

/// Waits until all who live have committed something since that moment, in a world of that many.
pub(crate) fn all_commit(herd: &mut Herd, since: u64, world: usize, status: impl Fn() -> String) {
    let alive = herd.alive();
    let committed = |herd: &Herd, number: &usize| {
        let commits = herd.commits(*number);
        commits.last().is_some_and(|commit| commit.at > since && commit.contributors.len() == world)
    };
    let all = |herd: &Herd| !herd.faults.is_empty() || alive.iter().all(|number| committed(herd, number));
    let happened = herd.until(herd.patience, all);
    herd.check("while waiting for everybody's next commit");
    assert!(happened, "a hang:\n{}\n{}", herd.describe(), status());
}
