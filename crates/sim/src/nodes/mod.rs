//! Who lives in the world.

#[cfg(feature = "baseline")]
mod foca;
mod membership;

#[cfg(feature = "baseline")]
pub use foca::FocaNode;
pub use membership::{MembershipNode, Sealed};

use crate::world::{Birth, HealthNode};
use outlast_proto::membership::Config;
use std::net::SocketAddr;

/// How a group comes into being.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Founding {
    /// Everybody knows everybody from the start; whoever restarts joins through these seeds.
    Known {
        /// How many members there are.
        members: u32,
        /// Through whom restarted processes join.
        seeds: Vec<SocketAddr>,
    },
    /// Everybody joins through these seeds.
    Joining {
        /// Through whom.
        seeds: Vec<SocketAddr>,
    },
}

/// A health plane that a group can be founded with.
pub trait Candidate: HealthNode + Sized + 'static {
    /// What the tables call it.
    const NAME: &'static str;
    /// The recipe for its processes.
    fn recipe(config: &Config, founding: &Founding) -> Box<dyn FnMut(Birth) -> Self>;
}
