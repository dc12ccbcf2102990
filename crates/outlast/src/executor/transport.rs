//! How the bytes of an attempt get to the others: one contract, several transports.
//!
//! A data plane checks a call and plans it, and then it has a [`Job`]: a plan, arithmetic and the caller's memory. It is an
//! attempt at a collective, or one end of a transfer between two members. Who carries the bytes is a matter of where the
//! members are. Between hosts they go over links, streams that whoever
//! drives looks after. Inside a host they will be left where all members can read them. A transport is one file, a line
//! in [`Carrier`], and what it says about the end of an attempt ([`Settlement`]; decision 37).
//!
//! The contract, which `contract` holds against every transport:
//!
//! - It returns well only when this member's result is complete and what others need of it no longer needs this call:
//!   it is in the kernel's hands, or in memory that outlives the call.
//! - Otherwise the caller's memory is as it was. In both cases, and when it unwinds, nobody else holds that memory any
//!   more (rule 15), nor what the settlement needs.
//! - Every wait ends at an abort, at the deadline, when the attempt's epoch is left and when the plane is shut down.
//!   It asks [`watch::look`](crate::watch::look) between two waits, so that a person can give the call up.
//! - Nothing of a call with another fingerprint is used (rule 7); nothing of an epoch that is not open has an effect.
//! - A peer that is gone is a link that broke, with its name. Nobody is condemned for it (rule 20).
//! - Calls under different tags never wait for each other, in whatever order members make them (rule 14).
//!
//! Of a transfer, which nobody votes on and which belongs to no epoch (rule 8):
//!
//! - A send returns well only when a receive that waits for it has all of it, and a receive returns well only with all of
//!   it. One that returns well is committed at once.
//! - A receive that is given up takes back that it waits: the next send meets the next receive.
//! - It ends when one of its two ends is no member any more. Who else comes or goes does not disturb it.

#[cfg(test)]
pub(super) mod board;

use super::Stopped;
use super::abort::Abort;
use super::arithmetic::Arithmetic;
use super::memory::Region;
use super::operation::Operation;
use super::plane::{OpSpec, Shared};
use super::settlement::Settlement;
use super::transfer::TransferSpec;
use super::undo::UndoLog;
use outlast_proto::collective::plan::Plan;
use outlast_proto::collective::{Group, GroupEpoch};
use outlast_proto::id::PeerId;
use std::sync::Arc;

/// One attempt, or one end of a transfer (`Job<TransferSpec>`), checked and planned, with the caller's memory. There is
/// somebody to talk to.
pub(super) struct Job<'a, Spec = OpSpec> {
    pub(super) spec: &'a Spec,
    pub(super) plan: Plan,
    pub(super) arithmetic: Arithmetic,
    pub(super) region: Region,
    pub(super) abort: &'a Abort,
}

/// An attempt whose bytes have moved.
#[derive(Debug)]
pub(super) struct Moved {
    /// Payload bytes that this peer sent.
    pub(super) bytes_sent: u64,
    /// Payload bytes that this peer received.
    pub(super) bytes_received: u64,
    /// Payload bytes that each peer sent on average.
    pub(super) mean_sent: u64,
    pub(super) settlement: Settlement,
}

impl Moved {
    /// Nothing had to.
    pub(super) fn at_once(undo: UndoLog) -> Self {
        Self { bytes_sent: 0, bytes_received: 0, mean_sent: 0, settlement: Settlement::Undo(undo) }
    }

    /// Over links.
    pub(super) fn by(operation: Operation) -> Self {
        let mean_sent = operation.mean_sent();
        let Operation { undo, bytes_sent, bytes_received, .. } = operation;
        Self { bytes_sent, bytes_received, mean_sent, settlement: Settlement::Undo(undo) }
    }
}

/// See the module's essay. What happens to epochs is told to every transport, in the order in which it happens.
pub(super) trait Transport {
    /// Runs one attempt on the caller's thread.
    fn perform(&self, job: Job<'_>) -> Result<Moved, Stopped>;

    /// Runs one end of a transfer on the caller's thread.
    fn transfer(&self, job: Job<'_, TransferSpec>) -> Result<Moved, Stopped>;

    /// A group has a new epoch of these members. What is under way in earlier ones of it ends, and so do transfers with
    /// whoever is none of them.
    fn epoch_opened(&self, _group: Group, _epoch: GroupEpoch, _members: &[PeerId]) {}

    /// The group has no open epoch any more.
    fn group_left(&self, _group: Group) {}

    /// Everything ends, for good.
    fn shut_down(&self) {}
}

/// Who carries the bytes of a plane.
#[derive(Debug, Default)]
pub(super) enum Carrier {
    /// Links between peers. They learn of epochs by the engine's commands, since rings are linked before anybody calls.
    #[default]
    Links,
    /// Threads of one process, for tests.
    #[cfg(test)]
    Board(board::Board),
}

impl Carrier {
    /// Who carries this attempt or transfer. The choice may follow from an attempt's epoch alone, which is the same on all
    /// members, and from a transfer's two ends, which both know.
    pub(super) fn of<'a>(&'a self, links: &'a Arc<Shared>) -> &'a dyn Transport {
        match self {
            Self::Links => links,
            #[cfg(test)]
            Self::Board(board) => board,
        }
    }
}
