//! The header before every payload on a data link.
//!
//! A data link carries the blocks of many collectives, of several epochs, from a peer whose memory may be as
//! old or as new as ours. So each frame says in full what it belongs to; nothing is inferred from what came
//! before it on the link. The layout is fixed, little-endian, 64 bytes: one cache line, no parser.
//!
//! ```text
//!  0 magic   2 version 3 kind   4 length         8 group          12 checksum
//! 16 epoch                     24 scope digest
//! 32 tag                       40 seq
//! 48 fingerprint digest        56 lap           60 step          62 flags
//! ```
//!
//! The invariant: a [`Header`] that came out of [`Header::parse`] has a known kind, a payload within
//! [`BLOCK_BYTES_MAX`] and no flag without a meaning. Whether its lap and step make sense is for the plan
//! of its collective to say.

use super::{Group, GroupEpoch, OpKey, Scope, Seq, Tag};
use crate::id::PeerId;
use crate::limits::{BLOCK_BYTES_MAX, FRAME_HEADER_BYTES};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header on the wire.
pub const HEADER_BYTES: usize = FRAME_HEADER_BYTES;
/// The first two bytes of every frame: "OL".
const MAGIC: u16 = 0x4c4f;
/// The only layout so far.
const VERSION: u8 = 1;
/// Tells the name of a transfer from that of a scope with the same two members.
const TRANSFER: u8 = 0x54;
/// What stands for the epoch of transfers, which belong to two members and to no epoch: it never ends.
const TRANSFER_EPOCH: GroupEpoch = GroupEpoch::MAX;
/// The checksum field is filled in.
const CHECKSUMMED: u16 = 1;

/// Why 64 bytes are not a header. The link they came from cannot be trusted any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// The bytes do not start like a frame: the stream is out of step or not ours.
    #[error("a frame starts with {0:#06x} instead of {MAGIC:#06x}")]
    Magic(u16),
    /// A version that this peer does not speak.
    #[error("a frame of version {0}, this peer speaks {VERSION}")]
    Version(u8),
    /// A kind that does not exist.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// A credit for a transfer with a signal that does not exist.
    #[error("a credit with the unknown signal {0}")]
    Signal(u16),
    /// Flags that do not exist.
    #[error("a frame with unknown flags {0:#06x}")]
    Flags(u16),
    /// A payload that is longer than any block, or that this kind may not have.
    #[error("a {kind:?} frame of {length} bytes, the limit is {limit}")]
    Length {
        /// What the frame is.
        kind: FrameKind,
        /// How long its payload claims to be.
        length: u32,
        /// How long it may be.
        limit: usize,
    },
    /// Header or payload changed on the way.
    #[error("a frame's checksum is {found:#010x}, its bytes give {computed:#010x}")]
    Checksum {
        /// What the header says.
        found: u32,
        /// What the bytes say.
        computed: u32,
    },
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A block, towards the next member of the ring.
    Block,
    /// Credit, back to the sender: my own call is made, send on (rule 14). `lap` holds how many laps may be
    /// under way, or up to which number blocks may come. `step` holds a [`Signal`], which only transfers use.
    Credit,
    /// A question, towards the next member of the ring: nothing more may be sent to you before your call, so say
    /// when it is made. The answer is a credit.
    Ask,
}

/// What the credit of a transfer between two members says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// I wait for it under this number.
    Ready,
    /// I do not wait for it any more.
    Withdrawn,
    /// All of it is here.
    Received,
}

impl Signal {
    /// The word in the header of a transfer's credit; [`Header::parse`] lets no other pass.
    pub fn of(header: &Header) -> Self {
        match header.step {
            1 => Self::Withdrawn,
            2 => Self::Received,
            _ => Self::Ready,
        }
    }

    /// How it is written there.
    pub fn step(self) -> u16 {
        match self {
            Self::Ready => 0,
            Self::Withdrawn => 1,
            Self::Received => 2,
        }
    }
}

/// A collective's name in frames: an [`OpKey`] of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpName {
    /// The group.
    pub group: Group,
    /// The epoch it runs under; of a transfer the highest number there is.
    pub epoch: GroupEpoch,
    /// The scope's digest; zero is the whole group.
    pub scope: u64,
    /// Its name.
    pub tag: Tag,
    /// Its number under that name.
    pub seq: Seq,
}

impl OpName {
    /// The name of what `to` receives from `from` as number `seq` under `tag`. The receiver numbers; a sender
    /// learns the number from the credit.
    pub fn transfer(group: Group, (from, to): (PeerId, PeerId), tag: Tag, seq: Seq) -> Self {
        let ends = from.as_bytes().iter().chain(to.as_bytes());
        let scope = digest(std::iter::once(&TRANSFER).chain(ends));
        Self { group, epoch: TRANSFER_EPOCH, scope, tag, seq }
    }

    /// Whether it names a transfer, not a collective.
    pub fn is_transfer(&self) -> bool {
        self.epoch == TRANSFER_EPOCH
    }

    /// Whether both are numbers under the same name.
    pub fn same_sequence(&self, other: &Self) -> bool {
        (self.group, self.epoch, self.scope, self.tag) == (other.group, other.epoch, other.scope, other.tag)
    }
}

impl From<&OpKey> for OpName {
    fn from(key: &OpKey) -> Self {
        let OpKey { group, epoch, ref scope, tag, seq } = *key;
        Self { group, epoch, scope: scope_digest(scope), tag, seq }
    }
}

fn scope_digest(scope: &Scope) -> u64 {
    let Scope::Members(members) = scope else { return 0 };
    digest(members.iter().flat_map(PeerId::as_bytes))
}

/// FNV-1a, as for fingerprints; never zero, which stands for the whole group.
fn digest<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    let digest = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    digest.max(1)
}

/// One frame's header, as the program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: FrameKind,
    /// Bytes of payload that follow.
    pub length: u32,
    /// The collective it belongs to.
    pub op: OpName,
    /// Digest of the sender's fingerprint (rule 7).
    pub fingerprint: u64,
    /// The lap of the plan, or a credit's laps.
    pub lap: u32,
    /// The step within the lap.
    pub step: u16,
    /// CRC-32 over the header with this field empty, then the payload, if the sender made one.
    pub checksum: Option<u32>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: U16,
    version: u8,
    kind: u8,
    length: U32,
    group: U32,
    checksum: U32,
    epoch: U64,
    scope: U64,
    tag: U64,
    seq: U64,
    fingerprint: U64,
    lap: U32,
    step: U16,
    flags: U16,
}

impl Header {
    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let layout = Layout {
            magic: MAGIC.into(),
            version: VERSION,
            kind: match self.kind {
                FrameKind::Block => 0,
                FrameKind::Credit => 1,
                FrameKind::Ask => 2,
            },
            length: self.length.into(),
            group: self.op.group.into(),
            checksum: self.checksum.unwrap_or(0).into(),
            epoch: self.op.epoch.into(),
            scope: self.op.scope.into(),
            tag: self.op.tag.into(),
            seq: self.op.seq.into(),
            fingerprint: self.fingerprint.into(),
            lap: self.lap.into(),
            step: self.step.into(),
            flags: self.checksum.map_or(0, |_| CHECKSUMMED).into(),
        };
        zerocopy::transmute!(layout)
    }

    /// The header in these bytes, if it is one.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, BadFrame> {
        let layout: Layout = zerocopy::transmute!(*bytes);
        if layout.magic.get() != MAGIC {
            return Err(BadFrame::Magic(layout.magic.get()));
        }
        if layout.version != VERSION {
            return Err(BadFrame::Version(layout.version));
        }
        let (kind, limit) = match layout.kind {
            0 => (FrameKind::Block, BLOCK_BYTES_MAX),
            1 => (FrameKind::Credit, 0),
            2 => (FrameKind::Ask, 0),
            unknown => return Err(BadFrame::Kind(unknown)),
        };
        let length = layout.length.get();
        if length as usize > limit {
            return Err(BadFrame::Length { kind, length, limit });
        }
        let (epoch, step) = (layout.epoch.get(), layout.step.get());
        if kind == FrameKind::Credit && epoch == TRANSFER_EPOCH && step > Signal::Received.step() {
            return Err(BadFrame::Signal(step));
        }
        let flags = layout.flags.get();
        if flags & !CHECKSUMMED != 0 {
            return Err(BadFrame::Flags(flags));
        }
        Ok(Self {
            kind,
            length,
            op: OpName {
                group: layout.group.get(),
                epoch,
                scope: layout.scope.get(),
                tag: layout.tag.get(),
                seq: layout.seq.get(),
            },
            fingerprint: layout.fingerprint.get(),
            lap: layout.lap.get(),
            step,
            checksum: (flags & CHECKSUMMED != 0).then(|| layout.checksum.get()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: FrameKind, length: u32, checksum: Option<u32>) -> Header {
        let op = OpName { group: 1, epoch: 2, scope: 3, tag: u64::MAX, seq: 5 };
        Header { kind, length, op, fingerprint: 6, lap: 7, step: 8, checksum }
    }

    #[test]
    fn a_header_survives_the_wire() {
        for checksum in [None, Some(0), Some(u32::MAX)] {
            let block = header(FrameKind::Block, BLOCK_BYTES_MAX as u32, checksum);
            assert_eq!(Header::parse(&block.to_bytes()), Ok(block));
            for kind in [FrameKind::Credit, FrameKind::Ask] {
                let word = header(kind, 0, checksum);
                assert_eq!(Header::parse(&word.to_bytes()), Ok(word));
            }
        }
    }

    #[test]
    fn each_field_is_held_against_its_bounds() {
        let good = header(FrameKind::Block, 4, None).to_bytes();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Header::parse(&bytes)
        };
        assert!(matches!(with(0, 0), Err(BadFrame::Magic(_))));
        assert_eq!(with(2, 9), Err(BadFrame::Version(9)));
        assert_eq!(with(3, 3), Err(BadFrame::Kind(3)));
        assert_eq!(with(62, 2), Err(BadFrame::Flags(2)));
        let credit = |op, step| Header { op, step, ..header(FrameKind::Credit, 0, None) };
        let (peers, collective) =
            ([1, 2].map(|n| PeerId::from_bytes([n; 16])), header(FrameKind::Ask, 0, None).op);
        let transfer = OpName::transfer(1, (peers[0], peers[1]), 2, 3);
        assert_eq!(Header::parse(&credit(transfer, 3).to_bytes()), Err(BadFrame::Signal(3)));
        for credit in [credit(transfer, Signal::Received.step()), credit(collective, 3)] {
            assert_eq!(Header::parse(&credit.to_bytes()), Ok(credit));
        }
        assert!(matches!(with(7, 1), Err(BadFrame::Length { .. })));
        for kind in [FrameKind::Credit, FrameKind::Ask] {
            let word = header(kind, 1, None).to_bytes();
            assert!(matches!(Header::parse(&word), Err(BadFrame::Length { limit: 0, .. })));
        }
    }

    #[test]
    fn scopes_have_names_of_their_own() {
        let key = |scope| OpKey { group: 0, epoch: 1, scope, tag: 2, seq: 3 };
        let peers = |n: u8| Scope::Members((0..n).map(|i| PeerId::from_bytes([i; 16])).collect());
        let whole = OpName::from(&key(Scope::Whole));
        let two = OpName::from(&key(peers(2)));
        assert_eq!(whole.scope, 0);
        assert_ne!(two.scope, OpName::from(&key(peers(3))).scope);
        assert!(!whole.same_sequence(&two));
        let (a, b) = (PeerId::from_bytes([0; 16]), PeerId::from_bytes([1; 16]));
        let there = OpName::transfer(0, (a, b), 2, 3);
        assert_ne!(there.scope, two.scope, "a transfer is no collective of its ends");
        assert!(there.is_transfer() && !two.is_transfer());
        assert_ne!(there.scope, OpName::transfer(0, (b, a), 2, 3).scope);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in prop::array::uniform32(any::<u8>()), rest in prop::array::uniform32(any::<u8>())) {
            let mut whole = [0; HEADER_BYTES];
            whole[..32].copy_from_slice(&bytes);
            whole[32..].copy_from_slice(&rest);
            whole[..3].copy_from_slice(&[0x4f, 0x4c, 1]);
            if let Ok(header) = Header::parse(&whole) {
                prop_assert!(header.length as usize <= BLOCK_BYTES_MAX);
            }
        }
    }
}
