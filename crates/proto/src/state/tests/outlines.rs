//! Keys, shapes, leaves, roots.

use crate::collective::{DataType, Layout};
use crate::limits::{STATE_KEY_BYTES_MAX, STATE_TENSORS_MAX};
use crate::state::tree::{Leaf, Leaves, root};
use crate::state::{Difference, Digest, InvalidOutline, LEAF_BYTES, Outline, TensorInfo};
use crate::wire::{decode, encode};
use proptest::prelude::*;

fn outline(tensors: &[(&str, &[u64])]) -> Outline {
    Outline::new(tensors.iter().map(|(key, shape)| TensorInfo::new(*key, DataType::F32, shape.to_vec())))
        .unwrap()
}

#[test]
fn the_order_of_keys_does_not_matter() {
    let (a, b) = (outline(&[("a", &[1]), ("b", &[2])]), outline(&[("b", &[2]), ("a", &[1])]));
    assert_eq!((&a, a.digest()), (&b, b.digest()));
    assert_eq!(decode::<Outline>(&encode(&a)), Ok(a));
}

#[test]
fn everything_that_matters_is_bound_in() {
    let base = TensorInfo::new("w", DataType::F32, [6]);
    let others = [
        TensorInfo { key: "v".to_owned(), ..base.clone() },
        TensorInfo { data_type: DataType::I32, ..base.clone() },
        TensorInfo { shape: vec![2, 3], ..base.clone() },
        TensorInfo { shape: vec![7], ..base.clone() },
        TensorInfo { layout: Layout::new(&[1, 0]).unwrap(), ..base.clone() },
        TensorInfo { may_differ: true, ..base.clone() },
    ];
    let digest = |tensor: &TensorInfo| Outline::new([tensor.clone()]).unwrap().digest();
    let leaves = [Digest::of(b"leaf")];
    for other in others {
        assert_ne!(digest(&other), digest(&base), "{other:?}");
        assert_ne!(root(digest(&other), b"", &leaves), root(digest(&base), b"", &leaves));
    }
    let outline = digest(&base);
    assert_ne!(root(outline, b"extra", &leaves), root(outline, b"", &leaves));
    assert_ne!(root(outline, b"", &[]), root(outline, b"", &leaves));
    assert_ne!(root(outline, b"", &[Digest::of(b"other")]), root(outline, b"", &leaves));
    // Pinned: peers of different versions must agree on it.
    assert_eq!(root(outline, b"extra", &leaves).to_string(), "42cad4e8aa43c132ff8fb522811ec316");
}

#[test]
fn a_difference_names_the_key_and_both_sides() {
    let ours = outline(&[("a", &[1]), ("b", &[2, 3]), ("d", &[])]);
    let differs = |theirs: &[(&str, &[u64])]| ours.difference(&outline(theirs)).unwrap();
    assert_eq!(ours.difference(&ours), None);
    assert_eq!(differs(&[("a", &[1]), ("d", &[])]), Difference::Unknown("b".to_owned()));
    assert_eq!(
        differs(&[("a", &[1]), ("b", &[2, 3]), ("c", &[]), ("d", &[])]),
        Difference::Missing("c".to_owned())
    );
    assert_eq!(differs(&[("a", &[1]), ("b", &[2, 3]), ("d", &[]), ("e", &[])]).key(), "e");
    let text = differs(&[("a", &[1]), ("b", &[3, 2]), ("d", &[])]).to_string();
    assert_eq!(text, "\"b\" is f32[2, 3] here and f32[3, 2] in the group's state");
}

#[test]
fn what_cannot_be_a_state_is_refused() {
    let new = |tensors: Vec<TensorInfo>| Outline::new(tensors).unwrap_err();
    let tensor = |key: &str, shape: &[u64]| TensorInfo::new(key, DataType::F64, shape.to_vec());
    assert_eq!(new(vec![tensor("a", &[1]), tensor("a", &[2])]), InvalidOutline::Twice("a".to_owned()));
    for key in ["", "a\nb", &"k".repeat(STATE_KEY_BYTES_MAX + 1)] {
        assert!(matches!(new(vec![tensor(key, &[1])]), InvalidOutline::Key(_)), "{key:?}");
    }
    for shape in [&[u64::MAX][..], &[1 << 32, 1 << 32], &[1 << 40], &[1; 65]] {
        assert!(matches!(new(vec![tensor("a", shape)]), InvalidOutline::Shape { .. }), "{shape:?}");
    }
    let many = (0..=STATE_TENSORS_MAX).map(|key| tensor(&key.to_string(), &[])).collect();
    assert!(matches!(new(many), InvalidOutline::TooLarge { what: "tensors", .. }));
    let large = (0..3).map(|key| tensor(&key.to_string(), &[1 << 38])).collect();
    assert!(matches!(new(large), InvalidOutline::TooLarge { what: "leaves of 1 MiB", .. }));
}

#[test]
fn an_outline_from_outside_is_checked() {
    let raw = |tensors: Vec<TensorInfo>| minicbor::to_vec(tensors).unwrap();
    let tensor = |key: &str| TensorInfo::new(key, DataType::U8, [1]);
    assert!(decode::<Outline>(&raw(vec![tensor("a"), tensor("b")])).is_ok());
    assert!(decode::<Outline>(&raw(vec![tensor("b"), tensor("a")])).is_err(), "not in their order");
    assert!(decode::<Outline>(&raw(vec![tensor("a"), tensor("a")])).is_err());
    assert!(decode::<Outline>(&raw(vec![tensor("a\u{1b}")])).is_err());
    assert!(decode::<Outline>(&[0x9f]).is_err());
}

#[test]
fn leaves_are_numbered_through_all_tensors_that_have_some() {
    let tensor = |key: &str, bytes: usize| TensorInfo::new(key, DataType::U8, [bytes as u64]);
    let own = TensorInfo { may_differ: true, ..tensor("b", 5) };
    let tensors =
        [tensor("a", 2 * LEAF_BYTES + 1), own, tensor("c", 0), tensor("d", LEAF_BYTES), tensor("e", 1)];
    let leaves = Leaves::of(&Outline::new(tensors).unwrap());
    let at = |number| leaves.get(number).map(|Leaf { tensor, bytes }| (tensor, bytes.start, bytes.end));
    assert_eq!((leaves.len(), leaves.bytes()), (5, 3 * LEAF_BYTES as u64 + 2));
    assert_eq!(at(0), Some((0, 0, LEAF_BYTES)));
    assert_eq!(at(2), Some((0, 2 * LEAF_BYTES, 2 * LEAF_BYTES + 1)));
    assert_eq!((at(3), at(4), at(5)), (Some((3, 0, LEAF_BYTES)), Some((4, 0, 1)), None));
    let empty = Leaves::of(&Outline::default());
    assert!(empty.is_empty() && empty.get(0).is_none());
}

proptest! {
    #[test]
    fn leaves_cover_every_byte_once(sizes in prop::collection::vec(0_usize..(3 * LEAF_BYTES), 0..8)) {
        let tensors = sizes.iter().enumerate();
        let tensors = tensors.map(|(key, bytes)| TensorInfo::new(key.to_string(), DataType::U8, [*bytes as u64]));
        let leaves = Leaves::of(&Outline::new(tensors).unwrap());
        let mut covered = vec![0; sizes.len()];
        for number in 0..leaves.len() {
            let leaf = leaves.get(number).unwrap();
            prop_assert_eq!(leaf.bytes.start, covered[leaf.tensor]);
            prop_assert!(!leaf.bytes.is_empty() && leaf.bytes.len() <= LEAF_BYTES);
            covered[leaf.tensor] = leaf.bytes.end;
        }
        prop_assert_eq!(covered, sizes);
    }

    #[test]
    fn bytes_from_anywhere_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<Outline>(&bytes);
    }
}
