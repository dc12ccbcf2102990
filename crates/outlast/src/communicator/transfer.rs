//! Send and receive: two members, no vote (rule 8).
//!
//! A transfer lives as long as both ends are members, whoever else comes or goes meanwhile. If it ends before its
//! time, its two ends are told why, and nobody else: an end that is lost is named. It is not retried: whether the
//! other end got its part done is known to the other end alone.

use super::control::Control;
use super::{Call, CallBuffers, Communicator, Element, Error, Tensor, TensorMut};
use crate::executor::{Abort, Stopped, TransferSpec};
use crate::watch;
use outlast_proto::collective::{BrokenLink, Fingerprint, OpKind, Seq};
use outlast_proto::id::PeerId;
use outlast_proto::session::{CallError, TransferName};
use outlast_proto::wire::control::{LossReason, Waiting};

/// A transfer under way.
pub(super) struct Transferring<'a> {
    pub(super) control: &'a Control,
    pub(super) name: TransferName,
    pub(super) number: Seq,
}

impl Drop for Transferring<'_> {
    fn drop(&mut self) {
        self.control.end_transfer(self.name);
    }
}

impl Communicator {
    /// Sends `data` to a member that receives as many elements. Returns when they are there. Of `call` only the
    /// tag, the time limit and the interrupt count.
    pub fn send<T: Element>(&self, data: &[T], to: PeerId, call: &Call) -> Result<(), Error> {
        self.send_buffers(CallBuffers::out_of_place([data], [] as [TensorMut<'_>; 0]), to, call)
    }

    /// Fills `data` with what a member sends.
    pub fn recv<T: Element>(&self, data: &mut [T], from: PeerId, call: &Call) -> Result<(), Error> {
        self.recv_buffers(CallBuffers::out_of_place([] as [Tensor<'_>; 0], [data]), from, call)
    }

    /// As [`Self::send`], from memory of any type: one input.
    pub fn send_buffers(&self, mut buffers: CallBuffers<'_>, to: PeerId, call: &Call) -> Result<(), Error> {
        buffers.keep(true, false);
        self.transfer(buffers, to, false, call)
    }

    /// As [`Self::recv`], into memory of any type: one output.
    pub fn recv_buffers(&self, mut buffers: CallBuffers<'_>, from: PeerId, call: &Call) -> Result<(), Error> {
        buffers.keep(false, true);
        self.transfer(buffers, from, true, call)
    }

    fn transfer(
        &self,
        buffers: CallBuffers<'_>,
        peer: PeerId,
        receives: bool,
        call: &Call,
    ) -> Result<(), Error> {
        self.creator.check()?;
        let tensors: Vec<_> = buffers.inputs().chain(buffers.outputs()).collect();
        let [(data_type, elements)] = tensors[..] else {
            return Err(Error::InvalidArgument(format!(
                "a transfer of {} tensors instead of one",
                tensors.len()
            )));
        };
        let me = self.control.me();
        let (group, members) = self.control.present()?;
        if peer == me || !members.contains(&peer) {
            // The program may have seen it, or another of its threads may have seen it go.
            let known = self.control.seen().peers.iter().any(|known| known.id == peer);
            if peer != me && (known || self.control.departure(peer).is_some()) {
                return Err(self.control.why_lost(peer).into());
            }
            let text = format!("{} is not another member of this group: see peers()", peer.short());
            return Err(Error::InvalidArgument(text));
        }
        let timeout = call.timeout.unwrap_or(self.timeout);
        let transferring = self.control.begin_transfer(TransferName { peer, tag: call.tag, receives })?;
        let spec = TransferSpec {
            group,
            peer,
            tag: call.tag,
            receives: receives.then_some(transferring.number),
            fingerprint: Fingerprint::new(OpKind::SendReceive, data_type, [elements as u64])
                .laid_out(buffers.layouts()),
            deadline: std::time::Instant::now() + timeout,
        };
        let abort = Abort::new();
        let trigger = abort.clone();
        let _attached = call.interrupt.as_ref().map(|interrupt| interrupt.attach(move || trigger.trigger()));
        let trigger = abort.clone();
        let _cancels = watch::cancels(move || trigger.trigger());
        // SAFETY: this is the only attempt.
        let outcome = self.data.transfer(&spec, unsafe { buffers.attempt() }, &abort);
        let outcome = outcome.map(crate::executor::Performed::commit);
        self.control.refresh();
        outcome.map_err(|stopped| {
            let error = self.control.explained(self.why_stopped(&spec, &abort, stopped));
            let (word, tag) = (if receives { "recv from" } else { "send to" }, call.tag);
            error.of_call(format_args!("{word} {} under tag {tag}", self.control.name_of(peer)), timeout)
        })
    }

    /// What the program is told of a transfer that stopped.
    fn why_stopped(&self, spec: &TransferSpec, abort: &Abort, stopped: Stopped) -> Error {
        let (me, peer) = (self.control.me(), spec.peer);
        let error = match stopped {
            _ if abort.is_triggered() => CallError::Cancelled,
            Stopped::Deadline => CallError::Timeout(vec![self.waiting_for(peer)]),
            // A link is missed before its end is: what there is to know of the end comes in a moment.
            Stopped::LinkBroken(_) if self.control.is_gone_soon(peer, spec.deadline) => {
                self.control.why_lost(peer)
            }
            Stopped::LinkBroken(BrokenLink { from, to, error }) => {
                if self.control.is_broken(me, peer) {
                    return CallError::NoPath { from, to }.into();
                }
                let known =
                    self.control.seen().peers.iter().find(|known| known.id == to).map(|to| to.address);
                let address = known.map_or_else(String::new, |address| format!(" ({address})"));
                let remedy =
                    "do it again; a transfer has no other way than this link, a collective goes around it";
                let error = format!("{error}{address}: {remedy}");
                CallError::LinkBroken(BrokenLink { from, to, error })
            }
            Stopped::Mismatch { theirs, .. } => CallError::Mismatch {
                ours: spec.fingerprint.to_string(),
                others: format!("another type or count (fingerprint {theirs:016x})"),
            },
            Stopped::GivenUp(why) => CallError::GivenUp(why.to_owned()),
            // The other end is no member any more, or the session is over.
            Stopped::Aborted | Stopped::Stale | Stopped::Closed => match self.control.present() {
                Err(error) => return error,
                Ok((_, members)) if !members.contains(&peer) => self.control.why_lost(peer),
                Ok(_) => CallError::GivenUp("the group was changing when it began".to_owned()),
            },
            Stopped::NoMemory(why) => return Error::Start(std::io::Error::other(why)),
        };
        error.into()
    }

    fn waiting_for(&self, peer: PeerId) -> Waiting {
        let known = self.peers().into_iter().find(|known| known.id == peer);
        Waiting {
            peer,
            name: known.as_ref().map_or_else(String::new, |known| known.name.clone()),
            health: known.map_or("gone", |known| known.health).to_owned(),
            last_call: "nothing that answers".to_owned(),
            age_ms: 0,
        }
    }
}

impl super::control::Control {
    /// Why a peer that was a member is none any more.
    pub(super) fn why_lost(&self, peer: PeerId) -> CallError {
        if let Err(Error::Call(failure)) = self.present() {
            return failure.cause().clone();
        }
        CallError::PeersLost(vec![(peer, self.departure(peer).unwrap_or(LossReason::NotResumed))])
    }
}
