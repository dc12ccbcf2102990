//! A node keeps its side of the bargain with its driver: every message encodes within its limits and decodes
//! to itself, and a timer that fired is not due again at once, for ever.

use super::{Checker, Phase};
use crate::world::{HealthNode, World};

/// The bargain between a node and its driver.
#[derive(Default)]
pub struct DriverContract {
    reported: usize,
}

impl<N: HealthNode> Checker<N> for DriverContract {
    fn name(&self) -> &'static str {
        "driver_contract"
    }

    fn look(&mut self, world: &World<N>, _phase: Phase) -> Result<(), String> {
        match world.breaches().get(self.reported) {
            Some(breach) => {
                self.reported += 1;
                Err(breach.clone())
            }
            None => Ok(()),
        }
    }
}
