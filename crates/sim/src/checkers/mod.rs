//! What must be true, always. One invariant per file; each is proven by a planted bug in `tests/planted_bugs.rs`.

mod bounded_memory;
mod bounded_packets;
mod convergence;
mod death_known_to_all;
mod driver_contract;
mod expectations;
mod incarnation_monotonic;
mod no_false_death;
mod self_consistency;

pub use bounded_memory::BoundedMemory;
pub use bounded_packets::BoundedPackets;
pub use convergence::{CONVERGENCE, Convergence};
pub use death_known_to_all::DeathKnownToAll;
pub use driver_contract::DriverContract;
pub use expectations::Expectations;
pub use incarnation_monotonic::IncarnationMonotonic;
pub use no_false_death::NoFalseDeath;
pub use self_consistency::SelfConsistency;

use crate::report::Violation;
use crate::script::Script;
use crate::world::{HealthNode, HealthNotice, HostId, World};
use outlast_proto::time::Instant;

/// Which half of a run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Faults strike.
    Safety,
    /// Everything is healed.
    Liveness,
}

/// One invariant.
pub trait Checker<N: HealthNode> {
    /// Its name, as reports give it.
    fn name(&self) -> &'static str;

    /// A node told its user something.
    fn hear(
        &mut self,
        _world: &World<N>,
        _at: Instant,
        _observer: HostId,
        _notice: HealthNotice,
    ) -> Result<(), String> {
        Ok(())
    }

    /// A moment passed.
    fn look(&mut self, _world: &World<N>, _phase: Phase) -> Result<(), String> {
        Ok(())
    }

    /// Everything was healed just now.
    fn healed(&mut self, _world: &World<N>) {}

    /// The run is over.
    fn finish(&mut self, _world: &World<N>) -> Result<(), String> {
        Ok(())
    }
}

/// All checkers of one run.
pub struct Suite<N: HealthNode> {
    checkers: Vec<Box<dyn Checker<N>>>,
    violations: Vec<Violation>,
}

impl<N: HealthNode> Suite<N> {
    /// The checkers that a script calls for.
    pub fn for_script(script: &Script) -> Self {
        Self {
            checkers: vec![
                Box::new(NoFalseDeath::new(script.config.clone())),
                Box::new(Expectations::new(script.expectations.clone())),
                Box::new(DeathKnownToAll::default()),
                Box::new(IncarnationMonotonic::default()),
                Box::new(SelfConsistency::default()),
                Box::new(BoundedPackets::new(script.packets_per_second_max)),
                Box::new(BoundedMemory::default()),
                Box::new(DriverContract::default()),
            ],
            violations: Vec::new(),
        }
    }

    pub(crate) fn look(&mut self, world: &mut World<N>, phase: Phase) {
        for (at, observer, notice) in world.take_notices() {
            for checker in &mut self.checkers {
                if let Err(what) = checker.hear(world, at, observer, notice) {
                    self.violations.push(Violation { checker: checker.name(), at, what });
                }
            }
        }
        for checker in &mut self.checkers {
            if let Err(what) = checker.look(world, phase) {
                self.violations.push(Violation { checker: checker.name(), at: world.now(), what });
            }
        }
    }

    pub(crate) fn healed(&mut self, world: &World<N>) {
        self.checkers.iter_mut().for_each(|checker| checker.healed(world));
    }

    pub(crate) fn finish(&mut self, world: &World<N>) {
        for checker in &mut self.checkers {
            if let Err(what) = checker.finish(world) {
                self.violations.push(Violation { checker: checker.name(), at: world.now(), what });
            }
        }
    }

    pub(crate) fn report(&mut self, at: Instant, checker: &'static str, what: String) {
        self.violations.push(Violation { checker, at, what });
    }

    pub(crate) fn violations(&self) -> usize {
        self.violations.len()
    }

    pub(crate) fn into_violations(self) -> Vec<Violation> {
        self.violations
    }
}

/// Which hosts to look at this time: all of a small world, a few in turn of a large one, where looking at
/// everybody costs the square of the group.
struct Looks {
    next: u32,
}

impl Looks {
    const AT_ONCE: u32 = 24;

    fn new() -> Self {
        Self { next: 0 }
    }

    fn hosts(&mut self, count: usize) -> impl Iterator<Item = HostId> + use<> {
        let (count, first) = (count as u32, self.next);
        self.next = if count == 0 { 0 } else { (first + Self::AT_ONCE) % count };
        (0..count.min(Self::AT_ONCE)).map(move |i| HostId((first + i) % count))
    }
}
