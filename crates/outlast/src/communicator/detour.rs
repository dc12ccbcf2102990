//! How what goes straight between members gets past a link that cannot be made (rule 16).
//!
//! A gather, a scatter and an all-to-all have a link from member to member of their own. Where one of them is
//! broken for good, all members know it from the epoch's record, and all of them take the ring instead, which
//! avoids it: members in between pass on what is not theirs.
//!
//! ```text
//! gather       as an all-gather; only the root keeps what arrives
//! scatter      as a broadcast of all parts; each keeps its own
//! all_to_all   as an all-gather of whole inputs; each keeps its part of every one
//! ```
//!
//! It costs more: every member holds what passes it, for an all-to-all of n members n times its input. That is the
//! price of going on at all, and the receipt says `detour`.
//!
//! The invariant: the caller's outputs are written after the verdict, from memory of our own, or by a plan that
//! can undo it. So an abort finds nothing to restore that nobody saved.

use super::CallBuffers;
use crate::executor::{Buffers, Stopped};
use outlast_proto::collective::{Fingerprint, OpKind};
use outlast_proto::id::PeerId;

/// One attempt's way around.
#[derive(Debug)]
pub(super) struct Detour {
    /// What is done in place of the call.
    call: Fingerprint,
    kind: OpKind,
    /// Whether this member's output is the substitute's.
    writes_output: bool,
    is_root: bool,
    rank: usize,
    world: usize,
    /// Bytes of one member's part.
    part: usize,
    scratch: Vec<u8>,
}

impl Detour {
    /// The way around for this member, if calls of this kind need one.
    pub(super) fn plan(call: &Fingerprint, members: &[PeerId], me: PeerId) -> Result<Option<Self>, Stopped> {
        let world = members.len();
        let (count, is_root) = (call.elements(), call.root == Some(me));
        let times = |factor: usize| count.checked_mul(factor as u64).ok_or_else(|| too_large(call));
        let (kind, count, root) = match call.kind {
            _ if world < 3 => return Ok(None),
            OpKind::Gather => (OpKind::AllGather, count, None),
            OpKind::Scatter => (OpKind::Broadcast, times(world)?, call.root),
            OpKind::AllToAll => (OpKind::AllGather, times(world)?, None),
            _ => return Ok(None),
        };
        let substitute = Fingerprint { root, ..Fingerprint::new(kind, call.data_type, [count]) };
        let writes_output = call.kind == OpKind::Gather && is_root;
        let (_, writes) = substitute.shape(world, is_root && root.is_some());
        let size = call.data_type.size();
        let bytes =
            |elements: u64| usize::try_from(elements).ok().and_then(|elements| elements.checked_mul(size));
        let part = bytes(call.elements()).ok_or_else(|| too_large(call))?;
        let held = if writes_output { Some(0) } else { bytes(writes) }.ok_or_else(|| too_large(call))?;
        let mut scratch = Vec::new();
        let room = scratch.try_reserve_exact(held);
        room.map_err(|error| Stopped::NoMemory(format!("{held} bytes to go around a broken link: {error}")))?;
        scratch.resize(held, 0);
        let rank = members.iter().position(|peer| *peer == me).unwrap_or(0);
        Ok(Some(Self {
            call: substitute,
            kind: call.kind,
            writes_output,
            is_root,
            rank,
            world,
            part,
            scratch,
        }))
    }

    /// What is done in place of the call.
    pub(super) fn fingerprint(&self) -> &Fingerprint {
        &self.call
    }

    /// The memory for the attempt.
    ///
    /// # Safety
    /// As for [`CallBuffers::attempt`]; and `self` stays where it is until the attempt and its `Performed` are over.
    pub(super) unsafe fn attempt<'a>(&mut self, buffers: &CallBuffers<'a>) -> Buffers<'a> {
        let (inputs, outputs) = buffers.bytes();
        let reads = self.kind != OpKind::Scatter || self.is_root;
        let inputs: Vec<_> = if reads { inputs.collect() } else { Vec::new() };
        let outputs: Vec<_> = match (self.writes_output, self.scratch.len()) {
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
        let Self { rank, world, part, .. } = *self;
        match self.kind {
            OpKind::Scatter if self.is_root => buffers.keep_part_of_input(rank * part, part),
            OpKind::Scatter => {
                let own = &self.scratch[rank * part..(rank + 1) * part];
                buffers.results().for_each(|output| output.copy_from_slice(own));
            }
            OpKind::AllToAll => {
                let whole = world * part;
                for output in buffers.results() {
                    for from in 0..world {
                        let mine = &self.scratch[from * whole + rank * part..][..part];
                        output[from * part..][..part].copy_from_slice(mine);
                    }
                }
            }
            _ => {}
        }
    }
}

fn too_large(call: &Fingerprint) -> Stopped {
    Stopped::NoMemory(format!("{call} is too large to go around a broken link"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_proto::collective::DataType;

    fn peers(count: u8) -> Vec<PeerId> {
        (1..=count).map(|number| PeerId::from_bytes([number; 16])).collect()
    }

    #[test]
    fn only_what_goes_straight_between_three_or_more_needs_a_way_around() {
        let members = peers(3);
        let plan = |kind, members: &[PeerId]| {
            Detour::plan(&Fingerprint::new(kind, DataType::F32, [10]), members, members[0]).unwrap()
        };
        assert!(plan(OpKind::AllReduce, &members).is_none());
        assert!(plan(OpKind::AllToAll, &members[..2]).is_none());
        assert_eq!(plan(OpKind::AllToAll, &members).unwrap().scratch.len(), 3 * 3 * 10 * 4);
    }

    #[test]
    fn what_no_machine_can_hold_is_refused_in_words() {
        let call = Fingerprint::new(OpKind::AllToAll, DataType::F64, [u64::MAX / 2]);
        let refused = Detour::plan(&call, &peers(3), peers(3)[0]);
        assert!(matches!(refused, Err(Stopped::NoMemory(text)) if text.contains("all_to_all")));
    }
}
