//! What calls take and give.

use super::{Interrupt, Lost};
use outlast_proto::collective::{Quantisation, ReduceOp, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::time::Duration;
use outlast_proto::wire::control::LossReason;
use std::net::SocketAddr;

/// How a collective is called. All members must call it alike (rule 7).
#[derive(Clone, Debug)]
#[must_use]
pub struct Call {
    pub(super) op: ReduceOp,
    pub(super) tag: u64,
    pub(super) retry: bool,
    pub(super) min_world: u32,
    pub(super) timeout: Option<Duration>,
    pub(super) scope: Option<Vec<PeerId>>,
    pub(super) quantisation: Option<Quantisation>,
    pub(super) hash: bool,
    pub(super) interrupt: Option<Interrupt>,
    pub(super) step: Option<u64>,
}

impl Call {
    /// A call that joins contributions like this, with everything else as usual.
    pub fn new(op: ReduceOp) -> Self {
        Self {
            op,
            tag: 0,
            retry: true,
            min_world: 1,
            timeout: None,
            scope: None,
            quantisation: None,
            hash: false,
            interrupt: None,
            step: None,
        }
    }

    /// The name that tells concurrent collectives apart.
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Whether to try again with the survivors when peers are lost. The default is yes.
    pub fn retry(mut self, retry: bool) -> Self {
        self.retry = retry;
        self
    }

    /// Fewest members with which the result is wanted.
    pub fn min_world(mut self, members: u32) -> Self {
        self.min_world = members;
        self
    }

    /// Time for all attempts together; the communicator's default otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Only these members of the group take part.
    pub fn scope(mut self, members: impl IntoIterator<Item = PeerId>) -> Self {
        self.scope = Some(members.into_iter().collect());
        self
    }

    /// Move fewer bits per element, for an error with a bound. For sums and means of floating-point numbers.
    pub fn quantise(mut self, quantisation: Quantisation) -> Self {
        self.quantisation = Some(quantisation);
        self
    }

    /// Whether the receipt carries a hash of the result.
    pub fn hash(mut self, wanted: bool) -> Self {
        self.hash = wanted;
        self
    }

    /// What gives the call up from another thread.
    pub fn interrupt(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// It is that step of a training loop: steps never mix.
    pub(crate) fn step(mut self, number: u64) -> Self {
        self.step = Some(number);
        self
    }

    /// Whom it involves.
    pub(super) fn members(&self) -> Scope {
        self.scope.clone().map_or(Scope::Whole, |mut members| {
            members.sort_unstable();
            members.dedup();
            Scope::Members(members)
        })
    }
}

/// Proof of a committed collective.
///
/// Agreed, the same on every contributor even if the coordinator was restarted meanwhile: `epoch`, `tag`, `seq`,
/// `world_size`, `contributors`, `pending`, and `hash` where all hold the same result. A program may branch on these. The
/// others are this member's own.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Receipt {
    /// The group's epoch in which it was committed. Agreed.
    pub epoch: u64,
    /// Its name. Agreed.
    pub tag: u64,
    /// Its number under that name. Agreed.
    pub seq: u64,
    /// Our rank.
    pub rank: usize,
    /// Members of the group. Agreed.
    pub world_size: usize,
    /// Whose data is in the result, in the order of ranks. Agreed. After a sum, divide by their number.
    pub contributors: Vec<PeerId>,
    /// Who was lost while the call was under way, and why: the result is without them. This member's own.
    pub lost: Vec<Lost>,
    /// How many attempts it took here. This member's own: one that began after another's first attempt had failed, or
    /// that an attempt never reached, counts fewer.
    pub attempts: u32,
    /// Newcomers whom a vote would let in (rule 10). Agreed.
    pub pending: u32,
    /// How the bytes went here.
    pub algorithm: &'static str,
    /// Payload bytes that we sent, over all attempts.
    pub bytes_sent: u64,
    /// Payload bytes that we received, over all attempts.
    pub bytes_received: u64,
    /// From our call to its return.
    pub seconds: f64,
    /// How long the plan was expected to take, if the links were measured.
    pub predicted_seconds: Option<f64>,
    /// XXH3-128 of this member's result, if it was asked for. Agreed where all members end with the same data.
    pub hash: Option<u128>,
}

/// What a vote for newcomers changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopologyChange {
    /// The run's epoch.
    pub run_epoch: u64,
    /// The group's epoch.
    pub epoch: u64,
    /// Who came.
    pub joined: Vec<PeerId>,
    /// Who went, and why.
    pub left: Vec<(PeerId, LossReason)>,
}

/// One member of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its id.
    pub id: PeerId,
    /// Its rank.
    pub rank: usize,
    /// Its group.
    pub group: u32,
    /// Its name.
    pub name: String,
    /// Its one port.
    pub address: SocketAddr,
    /// Its health, in a word.
    pub health: &'static str,
}
