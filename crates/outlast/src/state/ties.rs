//! Tensors that are one memory.
//!
//! A model may know one tensor by two names: tied weights are two keys of the same memory, and both are hashed and sent as
//! if they were two. That is fine as long as they are equal in whatever is written there. Another program may have two
//! tensors where this one has one; then no write can make this state that one, and what is written last stays, though every
//! single leaf was verified. So whoever is about to write asks here first, by hashes alone, and nothing was written yet.
//!
//! Memory that is shared in part cannot be judged by hashes of leaves, and is refused when it is added
//! ([`insert_raw`](SharedState::insert_raw)). So two tensors are one memory, or share nothing.

use super::SharedState;
use super::memory::Memory;
use outlast_proto::state::Digest;
use outlast_proto::state::tree::Leaves;
use std::collections::{BTreeMap, BTreeSet};

impl SharedState {
    /// The key of a tensor that has some of this memory, but not exactly all of it.
    pub(super) fn partly_shares(&self, memory: &Memory) -> Option<&str> {
        let ours = memory.range();
        let shares = |other: &Memory| {
            let theirs = other.range();
            let in_part = ours.start < theirs.end && theirs.start < ours.end && ours != theirs;
            in_part && !ours.is_empty() && !theirs.is_empty()
        };
        let place = self.memory.iter().position(shares)?;
        Some(&self.outline.tensors()[place].key)
    }

    /// Why this state cannot hold what has these hashes, if two of its tensors are one memory and differ there.
    pub(super) fn broken_tie(&self, leaves: &Leaves, hashes: &[Digest]) -> Option<String> {
        let mut by_memory = BTreeMap::new();
        let first_of: Vec<_> = (0..self.memory.len())
            .map(|place| *by_memory.entry(self.memory[place].start()).or_insert(place))
            .collect();
        let tied: BTreeSet<_> =
            (0..).zip(&first_of).filter(|(place, first)| place != *first).map(|(_, first)| *first).collect();
        let mut seen = BTreeMap::new();
        let places = (0..leaves.len()).filter_map(|number| leaves.get(number));
        for (leaf, hash) in places.zip(hashes).filter(|(leaf, _)| tied.contains(&first_of[leaf.tensor])) {
            let at = (first_of[leaf.tensor], leaf.bytes.start);
            let (other, its_hash) = *seen.entry(at).or_insert((leaf.tensor, hash));
            if its_hash != hash {
                let key = |place: usize| &self.outline.tensors()[place].key;
                let (one, other) = (key(other), key(leaf.tensor));
                return Some(format!("{one:?} and {other:?} are the same memory here, and differ there"));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::DataType;
    use crate::state::{LEAF_BYTES, StateError, TensorInfo};

    const BYTES: usize = LEAF_BYTES + 5;

    /// Tensors of these keys at these offsets of one memory, each so long.
    fn of(memory: &mut [u8], tensors: &[(&str, usize, usize)]) -> Result<SharedState, StateError> {
        let mut state = SharedState::new();
        for (key, offset, bytes) in tensors {
            let info = TensorInfo::new(*key, DataType::U8, [*bytes as u64]);
            let start = memory[*offset..offset + bytes].as_mut_ptr();
            // SAFETY: the memory outlives every state of these tests, and nobody else uses it meanwhile.
            unsafe { state.insert_raw(info, start, Box::new(())) }?;
        }
        Ok(state)
    }

    fn broken(state: &SharedState, hashes: &[Digest]) -> Option<String> {
        state.broken_tie(&Leaves::of(state.outline()), hashes)
    }

    #[test]
    fn one_memory_of_two_names_holds_only_what_is_equal_there() {
        let mut memory = vec![1; BYTES + 8];
        let tensors = [("a", 0, BYTES), ("b", 0, BYTES), ("c", BYTES, 8), ("d", BYTES, 0)];
        let state = of(&mut memory, &tensors).unwrap();
        let hashes = state.hashes(&|| false).unwrap();
        assert_eq!((hashes.len(), broken(&state, &hashes)), (5, None));
        // The last leaf of b, which is the last of a as well.
        let mut others = hashes.clone();
        others[3] = Digest::of(b"something else");
        let why = broken(&state, &others).expect("it cannot be both");
        assert_eq!(why, "\"a\" and \"b\" are the same memory here, and differ there");
        others[1] = others[3];
        others[4] = Digest::of(b"another thing");
        assert_eq!(broken(&state, &others), None, "whatever both are, and whatever c is");
    }

    #[test]
    fn memory_that_is_shared_in_part_is_refused() {
        let mut memory = vec![0; 100];
        let overlap =
            |key: &str, other: &str| StateError::Overlap { key: key.to_owned(), other: other.to_owned() };
        for (offset, bytes) in [(0, 11), (10, 9), (19, 1), (5, 100 - 5), (12, 3)] {
            let refused = of(&mut memory, &[("x", 90, 1), ("a", 10, 10), ("b", offset, bytes)]).map(drop);
            assert_eq!(refused, Err(overlap("b", "a")), "{offset}");
        }
        // Side by side, nothing at all, and the very same.
        of(&mut memory, &[("a", 10, 10), ("b", 0, 10), ("c", 20, 5), ("d", 15, 0), ("e", 10, 10)]).unwrap();
    }
}
