//! Around a broken link.
//!
//! What goes straight from member to member cannot, where a link between two of them is broken and others could pass
//! things on (rule 16). Then the call is done in another way, over the ring, which avoids the link: members in between
//! pass on what is not theirs.
//!
//! ```text
//! gather       as an all-gather; only the root keeps what arrives
//! scatter      as a broadcast of all parts; each keeps its own
//! all_to_all   as an all-gather of whole inputs; each keeps its part of every one
//! ```
//!
//! It costs more: every member holds what passes it, for an all-to-all of n members n times its input. That is the
//! price of going on at all.
//!
//! The invariant: the caller's outputs are written after the verdict, from the scratch memory that [`Detour::held`] asks
//! for, or by a plan that can undo it. So an abort finds nothing to restore that nobody saved.

use super::{Fingerprint, OpKind};
use crate::id::PeerId;

/// One member's part in the way around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// What is done in place of the call.
    pub call: Fingerprint,
    kind: OpKind,
    is_root: bool,
    rank: usize,
    world: usize,
    /// Bytes of one member's part.
    part: usize,
    held: usize,
}

/// The call moves more than can be counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is too large to go around a broken link")]
pub struct TooLarge(String);

/// What becomes the caller's output after the verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Nothing: it is there, or this member has none.
    Nothing,
    /// The bytes from this place of the caller's own input.
    Input(usize),
    /// Pieces of the scratch memory, one after the other: where each begins.
    Scratch(Vec<usize>),
}

impl Detour {
    /// The way around for this member, if calls of this kind need one.
    pub fn plan(call: &Fingerprint, members: &[PeerId], me: PeerId) -> Result<Option<Self>, TooLarge> {
        let world = members.len();
        let too_large = || TooLarge(call.to_string());
        let (count, is_root) = (call.elements(), call.root == Some(me));
        let times = |factor: usize| count.checked_mul(factor as u64).ok_or_else(too_large);
        let (kind, count, root) = match call.kind {
            _ if world < 3 => return Ok(None),
            OpKind::Gather => (OpKind::AllGather, count, None),
            OpKind::Scatter => (OpKind::Broadcast, times(world)?, call.root),
            OpKind::AllToAll => (OpKind::AllGather, times(world)?, None),
            _ => return Ok(None),
        };
        let substitute = Fingerprint { root, ..Fingerprint::new(kind, call.data_type, [count]) };
        let (_, writes) = substitute.shape(world, is_root && root.is_some());
        let size = call.data_type.size();
        let bytes = |elements: u64| {
            let bytes = usize::try_from(elements).ok().and_then(|elements| elements.checked_mul(size));
            bytes.ok_or_else(too_large)
        };
        let part = bytes(call.elements())?;
        let rank = members.iter().position(|peer| *peer == me).unwrap_or(0);
        let mut detour = Self { call: substitute, kind: call.kind, is_root, rank, world, part, held: 0 };
        if !detour.writes_output() {
            detour.held = bytes(writes)?;
        }
        Ok(Some(detour))
    }

    /// Whether the substitute writes straight into the caller's output.
    pub fn writes_output(&self) -> bool {
        self.kind == OpKind::Gather && self.is_root
    }

    /// Whether the substitute reads the caller's input.
    pub fn reads_input(&self) -> bool {
        self.kind != OpKind::Scatter || self.is_root
    }

    /// Bytes of scratch memory for what the substitute writes.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Bytes of each piece of a [`Delivery`].
    pub fn piece(&self) -> usize {
        self.part
    }

    /// The verdict is commit: what is this member's own.
    pub fn delivery(&self) -> Delivery {
        let Self { rank, world, part, .. } = *self;
        match self.kind {
            OpKind::Scatter if self.is_root => Delivery::Input(rank * part),
            OpKind::Scatter => Delivery::Scratch(vec![rank * part]),
            OpKind::AllToAll => {
                Delivery::Scratch((0..world).map(|from| (from * world + rank) * part).collect())
            }
            _ => Delivery::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::DataType;

    fn peers(count: u8) -> Vec<PeerId> {
        (1..=count).map(|number| PeerId::from_bytes([number; 16])).collect()
    }

    fn plan(call: &Fingerprint, members: &[PeerId], rank: usize) -> Option<Detour> {
        Detour::plan(call, members, members[rank]).unwrap()
    }

    /// What everybody puts in: byte `from` times sixteen plus the place, so that each byte tells where it came from.
    fn input(rank: usize, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (16 * rank + at) as u8).collect()
    }

    /// Plays the substitute as its name says, and delivers; the result of each member.
    fn around(call: &Fingerprint, members: &[PeerId], part: usize) -> Vec<Vec<u8>> {
        let world = members.len();
        let plans: Vec<_> = (0..world).map(|rank| plan(call, members, rank).unwrap()).collect();
        let whole = call.kind != OpKind::Gather;
        let inputs: Vec<_> =
            (0..world).map(|rank| input(rank, if whole { world * part } else { part })).collect();
        let root = members.iter().position(|peer| call.root == Some(*peer));
        assert!(plans.iter().all(|plan| plan.call == plans[0].call), "all members make the same call");
        let written: Vec<u8> = match plans[0].call.kind {
            OpKind::AllGather => inputs.concat(),
            OpKind::Broadcast => inputs[root.unwrap()].clone(),
            other => panic!("{other}"),
        };
        let result = |(rank, plan): (usize, &Detour)| {
            let scratch = if plan.held() == 0 { &[][..] } else { &written[..] };
            assert!(plan.held() == scratch.len(), "{} bytes for {}", plan.held(), scratch.len());
            match plan.delivery() {
                Delivery::Nothing if plan.writes_output() => written.clone(),
                Delivery::Nothing => Vec::new(),
                Delivery::Input(at) => inputs[rank][at..at + plan.piece()].to_vec(),
                Delivery::Scratch(pieces) => {
                    pieces.into_iter().flat_map(|at| scratch[at..at + plan.piece()].to_vec()).collect()
                }
            }
        };
        plans.iter().enumerate().map(result).collect()
    }

    #[test]
    fn the_way_around_ends_where_the_straight_way_would() {
        for (world, part) in [(3, 1), (3, 4), (5, 2)] {
            let members = peers(world);
            let world = usize::from(world);
            let call = |kind, root: Option<usize>| Fingerprint {
                root: root.map(|rank| members[rank]),
                ..Fingerprint::new(kind, DataType::U8, [part as u64])
            };
            for root in 0..world {
                let gathered = around(&call(OpKind::Gather, Some(root)), &members, part);
                let all: Vec<u8> = (0..world).flat_map(|rank| input(rank, part)).collect();
                for (rank, result) in gathered.into_iter().enumerate() {
                    assert_eq!(result, if rank == root { all.clone() } else { Vec::new() });
                }
                let scattered = around(&call(OpKind::Scatter, Some(root)), &members, part);
                let whole = input(root, world * part);
                assert_eq!(scattered, whole.chunks(part).map(<[u8]>::to_vec).collect::<Vec<_>>());
            }
            let exchanged = around(&call(OpKind::AllToAll, None), &members, part);
            for (rank, result) in exchanged.into_iter().enumerate() {
                let mine = |from: usize| input(from, world * part)[rank * part..(rank + 1) * part].to_vec();
                assert_eq!(result, (0..world).flat_map(mine).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn only_what_goes_straight_between_three_or_more_needs_a_way_around() {
        let members = peers(3);
        let call = |kind| Fingerprint::new(kind, DataType::F32, [10]);
        assert_eq!(plan(&call(OpKind::AllReduce), &members, 0), None);
        assert_eq!(plan(&call(OpKind::AllToAll), &members[..2], 0), None);
        assert_eq!(plan(&call(OpKind::AllToAll), &members, 0).unwrap().held(), 3 * 3 * 10 * 4);
    }

    #[test]
    fn what_cannot_be_counted_is_refused_in_words() {
        let call = Fingerprint::new(OpKind::AllToAll, DataType::F64, [u64::MAX / 2]);
        let refused = Detour::plan(&call, &peers(3), peers(3)[0]).unwrap_err();
        assert!(refused.to_string().contains("all_to_all"), "{refused}");
    }
}
