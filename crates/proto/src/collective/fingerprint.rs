//! What must be equal in the calls of all members (rule 7).
//!
//! Peers start to move bytes before anybody has compared their calls, so every data frame carries a digest of
//! its sender's fingerprint, and every vote the whole of it. What is in it is exactly what would make the
//! members' plans differ, or other elements meet. What may differ between them is not: where the memory is, whether it
//! is in place, how long the caller waits.

use super::{DataType, Quantisation, ReduceOp, types};
use crate::id::PeerId;
use crate::limits::{AXES_MAX, COUNT_MAX, TENSORS_MAX};
use crate::wire::{InvalidMessage, unknown, within};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum OpKind {
    /// Nothing but waiting for each other.
    #[n(0)]
    Barrier,
    /// Every member ends with the reduction over all contributions.
    #[n(1)]
    AllReduce,
    /// Several tensors reduced in one transaction (rule 9).
    #[n(2)]
    AllReduceMany,
    /// Every member ends with all contributions, in the order of ranks.
    #[n(3)]
    AllGather,
    /// Every member ends with the part of the reduction that belongs to its rank.
    #[n(4)]
    ReduceScatter,
    /// Every member ends with the root's data.
    #[n(5)]
    Broadcast,
    /// The root ends with the reduction over all contributions.
    #[n(6)]
    Reduce,
    /// The root ends with all contributions, in the order of ranks.
    #[n(7)]
    Gather,
    /// Every member ends with the part of the root's data that belongs to its rank.
    #[n(8)]
    Scatter,
    /// Every member ends with the part of each contribution that belongs to its rank.
    #[n(9)]
    AllToAll,
    /// One member's data, to one other. Not a transaction: nobody votes on it (rule 8).
    #[n(10)]
    SendReceive,
}

impl OpKind {
    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::AllReduce => "all_reduce",
            Self::AllReduceMany => "all_reduce_many",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::SendReceive => "send/recv",
        }
    }

    /// Whether it may be tried again with other members and still mean the same (rule 8).
    pub const fn may_retry(self) -> bool {
        matches!(self, Self::Barrier | Self::AllReduce | Self::AllReduceMany)
    }

    /// What a message calls the tensor at that place of a list of arguments: by its number, if the call takes several.
    pub fn tensor_name(self, list: &str, at: usize) -> String {
        if self == Self::AllReduceMany { format!("{list}[{at}]") } else { list.to_owned() }
    }

    /// Whether it combines elements rather than only moving them.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllReduceMany | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether one member plays a part of its own.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether it goes straight from member to member, beside the ring.
    pub const fn goes_straight(self) -> bool {
        matches!(self, Self::Gather | Self::Scatter | Self::AllToAll | Self::SendReceive)
    }

    /// Whether its bytes pass over every link of the ring.
    pub const fn uses_whole_ring(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllReduceMany | Self::AllGather | Self::ReduceScatter)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Tensors of a list that a message shows.
const TENSORS_SHOWN: usize = 8;

/// One call, as all members must make it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub struct Fingerprint {
    /// The operation.
    #[n(0)]
    pub kind: OpKind,
    /// The elements' type.
    #[n(1)]
    pub data_type: DataType,
    /// Elements of each tensor; where members hold parts of a whole, the elements of one part.
    #[n(2)]
    pub counts: Vec<u64>,
    /// How they are joined.
    #[n(3)]
    pub op: ReduceOp,
    /// Whether the call retries by itself (rule 8).
    #[n(4)]
    pub retry: bool,
    /// Fewest members that the caller accepts.
    #[n(5)]
    pub min_world: u32,
    /// How the elements are made smaller on the wire.
    #[cbor(n(6), decode_with = "unknown::whole")]
    pub quantisation: Option<Quantisation>,
    /// The member that plays a part of its own.
    #[n(7)]
    pub root: Option<PeerId>,
    /// How each tensor lies in memory; none if all are flat.
    #[n(8)]
    pub layouts: Option<Vec<Layout>>,
    /// The type of each tensor, in the order of the list; none if all are of `data_type`.
    #[cbor(n(9), decode_with = "unknown::whole")]
    pub data_types: Option<Vec<DataType>>,
    /// Which step of a training loop it is, counted from zero: steps never mix, and its commit agrees on the next
    /// revision of the group's state.
    #[n(10)]
    pub step: Option<u64>,
}

/// Why a call has no meaning, and which of its tensors is to blame. Nothing has happened yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tensor}: {why}")]
pub struct IllegalCall {
    /// Its name.
    pub tensor: String,
    /// What is wrong.
    pub why: types::IllegalReduction,
}

/// The order in which memory runs through the axes of a tensor, the longest stride first. Elements meet in the order of
/// memory, so a matrix and its transpose must not be added (rule 7). Axes of one element are left out, because they make no
/// difference; in plain (C) order the tensor counts as flat, and so agrees with its flattened self.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct Layout(#[cbor(with = "minicbor::bytes")] Vec<u8>);

impl Layout {
    /// Most axes that a tensor may have, those of one element not counted.
    pub const AXES_MAX: usize = AXES_MAX;

    /// The layout of a tensor whose memory runs through these of its axes, in this order; those of one element are not
    /// among them. None if there are more than anybody has.
    pub fn new(axes: &[usize]) -> Option<Self> {
        let place = |axis: &usize| axes.iter().filter(|other| *other < axis).count() as u8;
        match axes {
            _ if axes.len() > AXES_MAX => None,
            _ if axes.is_sorted() => Some(Self::default()),
            _ => Some(Self(axes.iter().map(place).collect())),
        }
    }

    /// The axes in the order of memory, as places among the axes of more than one element; none in plain order.
    pub fn order(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is in plain order.
    pub fn is_flat(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_flat() { f.write_str("flat") } else { write!(f, "{:?}", self.0) }
    }
}

impl Fingerprint {
    /// A call of that kind over tensors of that many elements, with everything else as usual.
    pub fn new(kind: OpKind, data_type: DataType, counts: impl IntoIterator<Item = u64>) -> Self {
        Self {
            kind,
            data_type,
            counts: counts.into_iter().collect(),
            op: ReduceOp::Sum,
            retry: kind.may_retry(),
            min_world: 1,
            quantisation: None,
            root: None,
            layouts: None,
            data_types: None,
            step: None,
        }
    }

    /// The same over tensors of these types, one for each.
    #[must_use]
    pub fn typed(self, data_types: Vec<DataType>) -> Self {
        let data_type = data_types.first().copied().unwrap_or(self.data_type);
        let mixed = data_types.iter().any(|other| *other != data_type);
        Self { data_type, data_types: mixed.then_some(data_types), ..self }
    }

    /// The type of each tensor, in the order of the list.
    pub fn tensor_types(&self) -> impl ExactSizeIterator<Item = DataType> {
        let of = |at: usize| match &self.data_types {
            Some(data_types) => data_types.get(at).copied().unwrap_or(self.data_type),
            None => self.data_type,
        };
        (0..self.counts.len()).map(of)
    }

    /// The same over tensors that lie in memory like this.
    #[must_use]
    pub fn laid_out(self, layouts: Vec<Layout>) -> Self {
        let flat = layouts.iter().all(Layout::is_flat);
        Self { layouts: (!flat).then_some(layouts), ..self }
    }

    /// Holds the number of tensors, of their types and of their axes against their limits.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        within("tensors", self.counts.len(), TENSORS_MAX)?;
        if let Some(step) = self.step.filter(|step| *step >= COUNT_MAX) {
            return Err(InvalidMessage::Meaningless { field: "step", value: step.to_string() });
        }
        within("types", self.data_types.as_ref().map_or(0, Vec::len), self.counts.len())?;
        let layouts = self.layouts.as_deref().unwrap_or_default();
        within("layouts", layouts.len(), self.counts.len())?;
        layouts.iter().try_for_each(|layout| within("axes", layout.0.len(), AXES_MAX))
    }

    /// How much room its description takes: one for a tensor, and one for every eight axes of a layout.
    pub fn weight(&self) -> usize {
        let axes = |layout: &Layout| layout.0.len().div_ceil(8);
        self.counts.len() + self.layouts.iter().flatten().map(axes).sum::<usize>()
    }

    /// Whether the reduction, if it is one, has a meaning for each of its tensors.
    pub fn legal(&self) -> Result<(), IllegalCall> {
        if !self.kind.reduces() {
            return Ok(());
        }
        self.tensor_types().enumerate().try_for_each(|(at, data_type)| {
            let illegal = |why| IllegalCall { tensor: self.kind.tensor_name("x", at), why };
            types::legal(self.op, data_type, self.quantisation).map_err(illegal)
        })
    }

    /// Elements of all tensors together, as far as they can be counted.
    pub fn elements(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Elements that a member reads and elements that it writes, in a world of that size.
    pub fn shape(&self, world: usize, is_root: bool) -> (u64, u64) {
        self.shape_of(self.elements(), world, is_root)
    }

    /// The same in bytes, as far as they can be counted.
    pub fn shape_bytes(&self, world: usize, is_root: bool) -> (u64, u64) {
        let (grains, size) = self.grains();
        let (reads, writes) = self.shape_of(grains, world, is_root);
        (reads.saturating_mul(size as u64), writes.saturating_mul(size as u64))
    }

    /// The same for a part of so many grains.
    pub(super) fn shape_of(&self, part: u64, world: usize, is_root: bool) -> (u64, u64) {
        let whole = part.saturating_mul(world as u64);
        let at_root = |elements: u64| if is_root { elements } else { 0 };
        match self.kind {
            OpKind::Barrier => (0, 0),
            OpKind::AllReduce | OpKind::AllReduceMany | OpKind::SendReceive => (part, part),
            OpKind::AllGather => (part, whole),
            OpKind::ReduceScatter => (whole, part),
            OpKind::Broadcast => (at_root(part), part - at_root(part)),
            OpKind::Reduce => (part, at_root(part)),
            OpKind::Gather => (part, at_root(whole)),
            OpKind::Scatter => (at_root(whole), part),
            OpKind::AllToAll => (whole, whole),
        }
    }

    /// In words, for somebody who made that other call: where lists of tensors differ, it says which tensor does.
    pub fn beside(&self, other: &Self) -> String {
        let tensors = |call: &Self| call.tensor_types().zip(call.counts.clone()).collect::<Vec<_>>();
        let (ours, theirs) = (tensors(self), tensors(other));
        let differs = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        match differs {
            Some(at) if self.kind == OpKind::AllReduceMany => {
                let (data_type, count) = ours[at];
                format!("{self} whose x[{at}] is {data_type}[{count}]")
            }
            _ => self.to_string(),
        }
    }

    /// A short form for data frames: 64 bits over the encoding (FNV-1a), enough to notice a mistake in a
    /// program. Whether two calls really agree is judged by the decider on the whole fingerprint.
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        minicbor::encode(self, &mut bytes).expect("a Vec takes every byte");
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, data_type, counts, op, retry, min_world, quantisation, root, layouts, .. } = self;
        // Thousands of tensors are possible; a person needs to see the first ones and how many there are.
        let shown = &counts[..counts.len().min(TENSORS_SHOWN)];
        let more = counts.len() - shown.len();
        write!(f, "{kind}(")?;
        if self.data_types.is_some() {
            for (at, (data_type, count)) in self.tensor_types().zip(shown).enumerate() {
                write!(f, "{}{data_type}[{count}]", if at > 0 { ", " } else { "" })?;
            }
        } else {
            write!(f, "{data_type}{shown:?}")?;
        }
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        if kind.reduces() {
            write!(f, ", {op}")?;
        }
        if let Some(quantisation) = quantisation {
            write!(f, ", {quantisation}")?;
        }
        if let Some(root) = root {
            write!(f, ", root={}", root.short())?;
        }
        if let Some((at, layout)) = layouts.iter().flatten().enumerate().find(|(_, layout)| !layout.is_flat())
        {
            write!(f, ", memory of x[{at}] in the order of axes {layout}")?;
        }
        if let Some(step) = self.step {
            write!(f, ", step={step}")?;
        }
        write!(f, ", retry={retry}, min_world={min_world})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_makes_plans_differ_is_in_the_digest() {
        let call = Fingerprint::new(OpKind::AllReduce, DataType::F32, [7]);
        let others = [
            Fingerprint { kind: OpKind::AllReduceMany, ..call.clone() },
            Fingerprint { data_type: DataType::I32, ..call.clone() },
            Fingerprint { counts: vec![8], ..call.clone() },
            Fingerprint { op: ReduceOp::Max, ..call.clone() },
            Fingerprint { retry: false, ..call.clone() },
            Fingerprint { min_world: 2, ..call.clone() },
            Fingerprint { quantisation: Some(Quantisation::Int8), ..call.clone() },
            Fingerprint { root: Some(PeerId::from_bytes([1; 16])), ..call.clone() },
            call.clone().laid_out(vec![Layout::new(&[1, 0]).unwrap()]),
            Fingerprint { data_types: Some(vec![DataType::F64]), ..call.clone() },
            Fingerprint { step: Some(0), ..call.clone() },
            Fingerprint { step: Some(1), ..call.clone() },
        ];
        for other in others {
            assert_ne!(other.digest(), call.digest(), "{other}");
            assert_ne!(other.to_string(), "");
            let bytes = minicbor::to_vec(&other).unwrap();
            assert_eq!(minicbor::decode::<Fingerprint>(&bytes).unwrap(), other);
        }
    }

    #[test]
    fn a_fingerprint_of_before_quantisation_still_decodes() {
        #[derive(Encode)]
        struct Old {
            #[n(0)]
            kind: OpKind,
            #[n(1)]
            data_type: DataType,
            #[n(2)]
            counts: Vec<u64>,
            #[n(3)]
            op: ReduceOp,
            #[n(4)]
            retry: bool,
            #[n(5)]
            min_world: u32,
        }
        let (kind, data_type, op) = (OpKind::AllReduce, DataType::F32, ReduceOp::Sum);
        let old = Old { kind, data_type, counts: vec![7], op, retry: true, min_world: 1 };
        let read: Fingerprint = minicbor::decode(&minicbor::to_vec(&old).unwrap()).unwrap();
        assert_eq!(read, Fingerprint::new(kind, data_type, [7]));
    }

    #[test]
    fn layouts_differ_where_other_elements_would_meet() {
        let call = |axes: &[usize]| {
            let layout = Layout::new(axes).unwrap();
            Fingerprint::new(OpKind::AllReduce, DataType::F32, [24]).laid_out(vec![layout])
        };
        // A matrix, its flattened self and one with axes of one element between agree.
        let flat = Fingerprint::new(OpKind::AllReduce, DataType::F32, [24]);
        assert_eq!([call(&[]), call(&[0]), call(&[0, 1]), call(&[1, 3])], [(); 4].map(|()| flat.clone()));
        assert_eq!(call(&[0, 1]).digest(), flat.digest());
        // Its transpose does not; and axes of one element do not change which transpose it is.
        assert_ne!(call(&[1, 0]).digest(), flat.digest());
        assert_eq!(call(&[1, 0]), call(&[5, 2]));
        assert_ne!(call(&[2, 0, 1]), call(&[1, 2, 0]));
        assert!(call(&[1, 0]).to_string().contains("memory of x[0] in the order of axes [1, 0]"));
        assert_eq!(Layout::new(&[0; AXES_MAX + 1]), None);
        let bytes = minicbor::to_vec(call(&[2, 0, 1])).unwrap();
        assert_eq!(minicbor::decode::<Fingerprint>(&bytes).unwrap(), call(&[2, 0, 1]));
    }

    #[test]
    fn people_see_what_matters() {
        let call =
            Fingerprint { op: ReduceOp::Avg, ..Fingerprint::new(OpKind::AllReduce, DataType::BF16, [7]) };
        assert_eq!(call.to_string(), "all_reduce(bf16[7], avg, retry=true, min_world=1)");
    }
    #[test]
    fn the_types_of_a_list_count_in_their_order() {
        let [f32, bf16] = [DataType::F32, DataType::BF16];
        let call = |types: &[DataType]| {
            Fingerprint::new(OpKind::AllReduceMany, types[0], [3, 3]).typed(types.to_vec())
        };
        assert_ne!(call(&[f32, bf16]).digest(), call(&[bf16, f32]).digest());
        // A list of one type is what it was before lists could mix.
        assert_eq!(call(&[f32, f32]), Fingerprint::new(OpKind::AllReduceMany, f32, [3, 3]));
        let mixed = call(&[f32, bf16]);
        assert_eq!(minicbor::decode::<Fingerprint>(&minicbor::to_vec(&mixed).unwrap()).unwrap(), mixed);
        assert_eq!(mixed.to_string(), "all_reduce_many(f32[3], bf16[3], sum, retry=true, min_world=1)");
        let surplus = Fingerprint { data_types: Some(vec![f32; 3]), ..mixed };
        assert!(surplus.check().is_err(), "more types than tensors");
    }

    #[test]
    fn what_is_wrong_with_one_tensor_names_it() {
        let types = vec![DataType::F32, DataType::Bool, DataType::I64];
        let call = Fingerprint::new(OpKind::AllReduceMany, DataType::F32, [1, 2, 3]).typed(types);
        assert_eq!(call.legal(), Ok(()));
        let average = Fingerprint { op: ReduceOp::Avg, ..call.clone() };
        assert!(average.legal().unwrap_err().to_string().starts_with("x[1]: avg of bool"));
        let packed = Fingerprint { quantisation: Some(Quantisation::Int8), ..call };
        assert!(packed.legal().unwrap_err().to_string().starts_with("x[1]: int8 of sum of bool"));
        let alone = Fingerprint::new(OpKind::AllReduce, DataType::Bool, [1]);
        let alone = Fingerprint { op: ReduceOp::Avg, ..alone };
        assert!(alone.legal().unwrap_err().to_string().starts_with("x: avg of bool"));
    }

    #[test]
    fn the_tensor_that_differs_is_named_however_long_the_list() {
        let mut types = vec![DataType::F32; 100];
        types[3] = DataType::BF16;
        let call = Fingerprint::new(OpKind::AllReduceMany, DataType::F32, [7; 100]).typed(types.clone());
        types[57] = DataType::F64;
        let other = call.clone().typed(types);
        assert!(call.beside(&other).ends_with("whose x[57] is f32[7]"), "{}", call.beside(&other));
        assert!(other.beside(&call).ends_with("whose x[57] is f64[7]"));
        assert_eq!(call.beside(&call), call.to_string());
    }
}
