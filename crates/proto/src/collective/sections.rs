//! Tensors of several types as one list of bytes.
//!
//! A model's gradients are of several types, and their average is one transaction (rule 9). A ring for each type would
//! multiply the steps of a small list; so all of them go round together, and only the arithmetic knows where one type
//! ends and the next begins.
//!
//! A block must not end within an element. The sizes of elements are powers of two, so it is enough to put the large
//! ones first: then every tensor begins at a multiple of its elements' size, and every multiple of the largest size is
//! the border of an element, whatever its type.
//!
//! ```text
//! called with   bf16[3]  f64[2]  u8[5]  f32[1]  bf16[1]
//! planned as    f64[2]  | f32[1] | bf16[3] bf16[1] | u8[5]       four sections, cut at multiples of eight bytes
//! ```
//!
//! The invariant: order and sections follow from the fingerprint alone, so all members have the same.

use super::{DataType, Fingerprint};
use std::cmp::Reverse;

/// Every element's size divides this.
pub(super) const ELEMENT_BYTES_MAX: u64 = 8;

/// Elements of one type that lie one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Their type.
    pub data_type: DataType,
    /// Where they end in the list of all bytes; they begin where the section before them ends.
    pub end: usize,
}

impl Fingerprint {
    /// What a plan cuts into blocks: how many there are, and the bytes of each. Elements of the one type, or bytes where
    /// there are several.
    pub fn grains(&self) -> (u64, usize) {
        if self.data_types.is_none() {
            return (self.elements(), self.data_type.size());
        }
        let bytes = |(data_type, count): (DataType, &u64)| count.saturating_mul(data_type.size() as u64);
        let tensors = self.tensor_types().zip(&self.counts);
        (tensors.map(bytes).fold(0, u64::saturating_add), 1)
    }

    /// The order in which a plan lays the tensors one behind the other, if it is not that of the call.
    pub fn order(&self) -> Option<Vec<usize>> {
        let data_types = self.data_types.as_ref()?;
        let mut order: Vec<_> = (0..data_types.len()).collect();
        order.sort_by_key(|at| (Reverse(data_types[*at].size()), data_types[*at]));
        Some(order)
    }

    /// Where the types begin and end among the bytes, if there are several.
    pub fn sections(&self) -> Option<Vec<Section>> {
        let (order, data_types) = (self.order()?, self.data_types.as_ref()?);
        let mut sections: Vec<Section> = Vec::new();
        let mut end = 0_usize;
        for at in order {
            let (data_type, count) = (data_types[at], self.counts.get(at).copied().unwrap_or(0));
            end = end.saturating_add((count as usize).saturating_mul(data_type.size()));
            match sections.last_mut() {
                Some(last) if last.data_type == data_type => last.end = end,
                _ => sections.push(Section { data_type, end }),
            }
        }
        Some(sections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::OpKind;
    use crate::collective::plan::{Flow, Plan};
    use crate::id::PeerId;
    use proptest::prelude::*;

    fn call(tensors: &[(DataType, u64)]) -> Fingerprint {
        let counts = tensors.iter().map(|(_, count)| *count);
        let types = tensors.iter().map(|(data_type, _)| *data_type).collect();
        Fingerprint::new(OpKind::AllReduceMany, DataType::F32, counts).typed(types)
    }

    #[test]
    fn large_elements_come_first_and_tensors_of_one_type_together() {
        use DataType::{BF16, F32, F64, U8};
        let call = call(&[(BF16, 3), (F64, 2), (U8, 5), (F32, 1), (BF16, 1)]);
        assert_eq!(call.order(), Some(vec![1, 3, 0, 4, 2]));
        let section = |data_type, end| Section { data_type, end };
        let expected = vec![section(F64, 16), section(F32, 20), section(BF16, 28), section(U8, 33)];
        assert_eq!(call.sections(), Some(expected));
        assert_eq!((call.grains(), call.shape_bytes(4, false)), ((33, 1), (33, 33)));
    }

    #[test]
    fn one_type_needs_no_order() {
        let call = call(&[(DataType::F32, 3), (DataType::F32, 4)]);
        assert_eq!((call.order(), call.sections(), call.grains()), (None, None, (7, 4)));
    }

    #[test]
    fn more_than_anybody_can_mean_is_refused_not_wrapped_around() {
        let call = call(&[(DataType::F64, u64::MAX / 4), (DataType::U8, u64::MAX)]);
        let members = [1, 2].map(|number| PeerId::from_bytes([number; 16]));
        assert!(Plan::new(&call, &members, &members, members[0], 1).is_err());
    }

    proptest! {
        #[test]
        fn no_block_ends_within_an_element(
            tensors in prop::collection::vec((prop::sample::select(DataType::ALL.to_vec()), 0_u64..90_000), 1..20),
            world in 2_usize..6, unit in prop::sample::select(vec![1_u64, 128])
        ) {
            let call = call(&tensors);
            let members: Vec<_> = (1..=world as u8).map(|number| PeerId::from_bytes([number; 16])).collect();
            let plan = Plan::new(&call, &members, &members, members[0], unit).unwrap();
            let Some(sections) = call.sections() else { return Ok(()) };
            let Flow::Ring(ring) = plan.flow() else { return Ok(()) };
            for (lap, step) in (0..ring.laps()).flat_map(|lap| (0..ring.steps()).map(move |step| (lap, step))) {
                let block = plan.sends(0, lap, step);
                let section = sections.partition_point(|section| section.end <= block.input);
                let Some(Section { data_type, .. }) = sections.get(section).copied() else { continue };
                let begin = if section == 0 { 0 } else { sections[section - 1].end };
                prop_assert!((block.input - begin).is_multiple_of(data_type.size()), "{call}: {block:?}");
            }
        }
    }
}
