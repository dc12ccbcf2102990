//! The memory of a way around a broken link. What is done, and whose bytes are whose, is decided by
//! [`outlast_proto::collective::detour`]; the receipt says `detour`.

use super::CallBuffers;
use crate::executor::{Buffers, Stopped};
use outlast_proto::collective::Fingerprint;
use outlast_proto::collective::detour::{self, Delivery};
use outlast_proto::id::PeerId;

/// One attempt's way around.
#[derive(Debug)]
pub(super) struct Detour {
    plan: detour::Detour,
    scratch: Vec<u8>,
}

impl Detour {
    /// The way around for this member, if calls of this kind need one.
    pub(super) fn plan(call: &Fingerprint, members: &[PeerId], me: PeerId) -> Result<Option<Self>, Stopped> {
        let plan = detour::Detour::plan(call, members, me);
        let Some(plan) = plan.map_err(|error| Stopped::NoMemory(error.to_string()))? else { return Ok(None) };
        let (held, mut scratch) = (plan.held(), Vec::new());
        let room = scratch.try_reserve_exact(held);
        room.map_err(|error| Stopped::NoMemory(format!("{held} bytes to go around a broken link: {error}")))?;
        scratch.resize(held, 0);
        Ok(Some(Self { plan, scratch }))
    }

    /// What is done in place of the call.
    pub(super) fn fingerprint(&self) -> &Fingerprint {
        &self.plan.call
    }

    /// The memory for the attempt.
    ///
    /// # Safety
    /// As for [`CallBuffers::attempt`]; and `self` stays where it is until the attempt and its `Performed` are over.
    pub(super) unsafe fn attempt<'a>(&mut self, buffers: &CallBuffers<'a>) -> Buffers<'a> {
        let (inputs, outputs) = buffers.bytes();
        let inputs: Vec<_> = if self.plan.reads_input() { inputs.collect() } else { Vec::new() };
        let outputs: Vec<_> = match (self.plan.writes_output(), self.scratch.len()) {
            (true, _) => outputs.collect(),
            (false, 0) => Vec::new(),
            (false, bytes) => vec![(self.scratch.as_mut_ptr(), bytes)],
        };
        // SAFETY: what was promised for the caller's memory; the scratch is ours and lives as long as the caller
        // of this promises.
        unsafe { Buffers::from_raw(inputs, outputs) }
    }

    /// The verdict is commit: gives this member what is its own.
    pub(super) fn deliver(&self, buffers: &mut CallBuffers<'_>) {
        let piece = self.plan.piece();
        match self.plan.delivery() {
            Delivery::Nothing => {}
            Delivery::Input(at) => buffers.keep_part_of_input(at, piece),
            Delivery::Scratch(pieces) => {
                for output in buffers.results() {
                    for (place, from) in pieces.iter().enumerate() {
                        output[place * piece..][..piece].copy_from_slice(&self.scratch[*from..][..piece]);
                    }
                }
            }
        }
    }
}
