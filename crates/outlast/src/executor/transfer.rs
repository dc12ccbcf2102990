//! From one member to another: send and receive, outside of any transaction (rule 8).
//!
//! Nobody votes on a transfer, so its two ends must find each other and agree on the end by themselves. Each
//! receive has a number; it tells the sender "ready for number 7", and takes that back if it gives up. A sender
//! has no number of its own and serves whatever its receiver waits for. So a call that timed out on one side
//! never leaves the two counting differently: the next send meets the next receive.
//!
//! ```text
//! receiver                      sender
//!    | -- ready, number 7 ------> |      a sender that comes later finds it waiting
//!    | <------- blocks of 7 ----- |
//!    | -- 7 received -----------> |      the sender returns with this, and not before
//! ```
//!
//! The invariant: a send that returned well was received whole, by a receive that returned well or was given up
//! in the moment between. A receive that did not return well leaves its memory as it was.
//!
//! A transfer belongs to no epoch. Who else comes or goes is nothing to it; it ends when one of its ends is no
//! member any more.

use super::Stopped;
use super::abort::Abort;
use super::arithmetic::Arithmetic;
use super::memory::Buffers;
use super::operation::{End, Parts};
use super::plane::{DataPlane, Performed, Shared};
use super::transport::{Job, Moved};
use super::undo::UndoLog;
use outlast_proto::collective::frame::OpName;
use outlast_proto::collective::plan::Plan;
use outlast_proto::collective::{Fingerprint, Group, Seq, Tag};
use outlast_proto::id::PeerId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// One end of a transfer.
#[derive(Clone, Debug)]
pub struct TransferSpec {
    /// The group.
    pub group: Group,
    /// The other end.
    pub peer: PeerId,
    /// Its name among the transfers from the one to the other.
    pub tag: Tag,
    /// The number of a receive: higher than that of the last under this name. None for a send.
    pub receives: Option<Seq>,
    /// What must be equal on both ends.
    pub fingerprint: Fingerprint,
    /// When to stop at the latest.
    pub deadline: Instant,
}

impl DataPlane {
    /// Sends or receives. Returns when the receiver has all of it and the sender knows, or when it stopped; then
    /// memory is as it was. In both cases nobody else holds the memory any more.
    ///
    /// # Panics
    /// If the buffers do not have the size that the fingerprint says.
    pub fn transfer<'a>(
        &self,
        spec: &TransferSpec,
        buffers: Buffers<'a>,
        abort: &Abort,
    ) -> Result<Performed<'a>, Stopped> {
        let started = Instant::now();
        let sends = spec.receives.is_none();
        let call = &spec.fingerprint;
        let plan =
            Plan::transfer(call, spec.peer, sends).map_err(|error| Stopped::NoMemory(error.to_string()))?;
        let region = buffers.into_region();
        let bytes = call.elements() as usize * call.data_type.size();
        let given = (region.input_bytes(), region.output_bytes());
        assert_eq!(given, if sends { (bytes, 0) } else { (0, bytes) }, "buffers as the call says: {call}");
        if abort.is_triggered() {
            return Err(Stopped::Aborted);
        }
        let job = Job { spec, plan, arithmetic: Arithmetic::new(call, 2), region, abort };
        Ok(Performed::of(self.transport().transfer(job)?, started))
    }
}

impl Shared {
    /// A transfer over links: an operation like those of collectives, which the other end steers in place of a decider.
    pub(super) fn transfer_over_links(
        self: &Arc<Self>,
        job: Job<'_, TransferSpec>,
    ) -> Result<Moved, Stopped> {
        let Job { spec, plan, arithmetic, region, abort } = job;
        let undo = UndoLog::new(region, plan.block_bytes(), &self.undo)
            .map_err(|error| Stopped::NoMemory(error.to_string()))?;
        let sends = spec.receives.is_none();
        let ends = if sends { (self.me, spec.peer) } else { (spec.peer, self.me) };
        let number = spec.receives.unwrap_or(Seq::MAX);
        let parts = Parts {
            name: OpName::transfer(spec.group, ends, spec.tag, number),
            fingerprint: spec.fingerprint.digest(),
            plan,
            arithmetic,
            deadline: spec.deadline,
            abort: abort.clone(),
            window_bytes: self.window.load(Ordering::Relaxed),
            end: Some(if sends { End::Sends } else { End::Receives }),
        };
        Ok(Moved::by(*self.run(parts, undo)?))
    }
}
