//! Health is cheap: what a member sends stays within a rate, whatever happens around it.

use super::{Checker, Phase};
use crate::world::{HealthNode, HostId, World};
use outlast_proto::time::{Duration, Instant};

/// Most packets that one member may send in one second, in the worst second of its life, per member of the
/// average bound. News comes in bursts: a death is pushed to a few at once, and relays are asked.
const BURST_FACTOR: f64 = 5.0;
const WINDOW: Duration = Duration::from_secs(1);

/// Sends stay within a rate.
pub struct BoundedPackets {
    per_second_max: f64,
    window_from: Instant,
    sent_before: Vec<u64>,
}

impl BoundedPackets {
    /// A checker of this average rate.
    pub fn new(per_second_max: f64) -> Self {
        Self { per_second_max, window_from: Instant::ORIGIN, sent_before: Vec::new() }
    }
}

impl<N: HealthNode> Checker<N> for BoundedPackets {
    fn name(&self) -> &'static str {
        "bounded_packets"
    }

    fn look(&mut self, world: &World<N>, _phase: Phase) -> Result<(), String> {
        if world.now().since(self.window_from) < WINDOW {
            return Ok(());
        }
        self.window_from = world.now();
        let sent: Vec<u64> = world.hosts().map(|(_, host)| host.traffic().packets()).collect();
        let before = std::mem::replace(&mut self.sent_before, sent);
        for (index, (now, then)) in self.sent_before.iter().zip(before).enumerate() {
            if (now - then) as f64 > self.per_second_max * BURST_FACTOR {
                return Err(format!("{} sent {} packets in one second", HostId(index as u32), now - then));
            }
        }
        Ok(())
    }

    fn finish(&mut self, world: &World<N>) -> Result<(), String> {
        let seconds = world.now().since(Instant::ORIGIN).as_secs_f64();
        let sent: u64 = world.hosts().map(|(_, host)| host.traffic().packets()).sum();
        let rate = sent as f64 / seconds / world.hosts().len() as f64;
        if rate > self.per_second_max {
            return Err(format!(
                "{rate:.1} packets per member and second, the bound is {}",
                self.per_second_max
            ));
        }
        Ok(())
    }
}
