//! What a state consists of: keys, types, shapes. All members of a group must have the same.

use super::Digest;
use super::tree::{self, LEAF_BYTES};
use crate::collective::{DataType, Layout};
use crate::limits::{
    AXES_MAX, STATE_KEY_BYTES_MAX, STATE_LEAVES_MAX, STATE_OUTLINE_BYTES_MAX, STATE_TENSORS_MAX,
};
use crate::text::{first_unprintable, printable};
use crate::wire::{InvalidMessage, Message, within};
use minicbor::{CborLen, Decode, Encode};
use std::cmp::Ordering;
use std::fmt;

/// One tensor, without its contents.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct TensorInfo {
    /// Its name.
    #[n(0)]
    pub key: String,
    /// What its elements are.
    #[n(1)]
    pub data_type: DataType,
    /// The length of each axis; none for a single number.
    #[n(2)]
    pub shape: Vec<u64>,
    /// How it lies in memory: hashes are over memory, and so a matrix differs from its transpose.
    #[n(3)]
    pub layout: Layout,
    /// Its contents are each member's own affair: they are neither compared nor moved.
    #[n(4)]
    pub may_differ: bool,
}

impl TensorInfo {
    /// A tensor in plain order whose contents must agree.
    pub fn new(key: impl Into<String>, data_type: DataType, shape: impl IntoIterator<Item = u64>) -> Self {
        let (key, shape) = (key.into(), shape.into_iter().collect());
        Self { key, data_type, shape, layout: Layout::default(), may_differ: false }
    }

    /// How many bytes it has. `None` if that is more than can be counted.
    pub fn bytes(&self) -> Option<u64> {
        let elements = self.shape.iter().try_fold(1_u64, |product, axis| product.checked_mul(*axis));
        // A zero after a large axis makes an empty tensor, whatever overflowed before it.
        let elements = if self.shape.contains(&0) { Some(0) } else { elements };
        elements?.checked_mul(self.data_type.size() as u64)
    }

    /// Its bytes, if its key and its shape keep the limits.
    fn validate(&self) -> Result<u64, InvalidOutline> {
        let key = &self.key;
        let shown = || printable(key).chars().take(80).collect::<String>();
        if key.is_empty() || key.len() > STATE_KEY_BYTES_MAX || first_unprintable(key).is_some() {
            return Err(InvalidOutline::Key(shown()));
        }
        let shape = |what, limit| InvalidOutline::Shape { key: shown(), what, limit };
        if self.shape.len() > AXES_MAX {
            return Err(shape(format!("{} axes", self.shape.len()), AXES_MAX as u64));
        }
        let limit = (STATE_LEAVES_MAX * LEAF_BYTES) as u64;
        let bytes = self.bytes().filter(|bytes| *bytes <= limit);
        bytes.ok_or_else(|| shape(format!("the shape {:?}", self.shape), limit))
    }
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.data_type, self.shape)?;
        if !self.layout.is_flat() {
            write!(f, " with memory in the order of axes {}", self.layout)?;
        }
        if self.may_differ { write!(f, ", may differ") } else { Ok(()) }
    }
}

/// Why tensors make no state. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOutline {
    /// Two tensors have one name.
    #[error("the key {0:?} is there twice: give each tensor a key of its own")]
    Twice(String),
    /// A name that no tensor has.
    #[error("there is no tensor of the key {0:?}")]
    Unknown(String),
    /// A name that cannot be used.
    #[error("the key {0:?} cannot be used: 1 to {STATE_KEY_BYTES_MAX} bytes of printable text")]
    Key(String),
    /// A shape that no tensor has.
    #[error("{key:?} has {what}, the limit is {limit}")]
    Shape {
        /// Which tensor.
        key: String,
        /// What is too much.
        what: String,
        /// What is possible.
        limit: u64,
    },
    /// More than fits.
    #[error("the state has {value} {what}, the limit is {limit}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        value: u64,
        /// How much there may be.
        limit: u64,
    },
}

/// How one state's outline differs from another's, said to the side that deviates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// The group's state has a key that ours has not.
    #[error("the key {0:?} is missing here")]
    Missing(String),
    /// Ours has a key that the group's has not.
    #[error("the key {0:?} is not part of the group's state")]
    Unknown(String),
    /// One key, two descriptions.
    #[error("{key:?} is {ours} here and {theirs} in the group's state")]
    Tensor {
        /// The key.
        key: String,
        /// What we have.
        ours: String,
        /// What counts.
        theirs: String,
    },
}

impl Difference {
    /// The key that it is about.
    pub fn key(&self) -> &str {
        match self {
            Self::Missing(key) | Self::Unknown(key) | Self::Tensor { key, .. } => key,
        }
    }
}

/// The tensors of a state, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct Outline(#[n(0)] Vec<TensorInfo>);

impl Outline {
    /// The outline of these tensors, in whatever order they come.
    pub fn new(tensors: impl IntoIterator<Item = TensorInfo>) -> Result<Self, InvalidOutline> {
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        tensors.sort_by(|a, b| a.key.cmp(&b.key));
        let outline = Self(tensors);
        if let Some(pair) = outline.0.windows(2).find(|pair| pair[0].key == pair[1].key) {
            return Err(InvalidOutline::Twice(pair[0].key.clone()));
        }
        outline.validate()?;
        Ok(outline)
    }

    /// Adds a tensor, and says where in the order of keys. Whether all tensors together are too much is for
    /// [`Self::validate`] to say, once.
    pub fn insert(&mut self, tensor: TensorInfo) -> Result<usize, InvalidOutline> {
        tensor.validate()?;
        match self.place(&tensor.key) {
            Ok(_) => Err(InvalidOutline::Twice(tensor.key)),
            Err(place) => {
                self.0.insert(place, tensor);
                Ok(place)
            }
        }
    }

    /// Where a key is, or where it would be.
    pub fn place(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|tensor| tensor.key.as_str().cmp(key))
    }

    /// The tensor of that key, to be described differently.
    pub fn set_may_differ(&mut self, key: &str) -> Result<(), InvalidOutline> {
        let place = self.place(key).map_err(|_| InvalidOutline::Unknown(key.to_owned()))?;
        self.0[place].may_differ = true;
        Ok(())
    }

    /// Whether all tensors together keep the limits.
    pub fn validate(&self) -> Result<(), InvalidOutline> {
        let limited = |what, value: usize, limit: usize| {
            let (value, limit) = (value as u64, limit as u64);
            if value <= limit { Ok(()) } else { Err(InvalidOutline::TooLarge { what, value, limit }) }
        };
        limited("tensors", self.0.len(), STATE_TENSORS_MAX)?;
        let mut leaves = 0_usize;
        for tensor in &self.0 {
            leaves += tree::leaves_of(tensor.validate()? as usize);
            limited("leaves of 1 MiB", leaves, STATE_LEAVES_MAX)?;
        }
        limited("bytes of keys and shapes", minicbor::len(self), STATE_OUTLINE_BYTES_MAX)
    }

    /// The tensors, in the order of their keys.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.0
    }

    /// The same with all contents compared: what a checkpoint is checked by.
    #[must_use]
    pub fn strict(&self) -> Self {
        Self(self.0.iter().map(|tensor| TensorInfo { may_differ: false, ..tensor.clone() }).collect())
    }

    /// What is compared: equal digests mean equal outlines.
    pub fn digest(&self) -> Digest {
        let mut bytes = Vec::with_capacity(minicbor::len(self));
        minicbor::encode(self, &mut bytes).expect("a Vec takes every byte");
        Digest::of(&bytes)
    }

    /// The first key, in their order, in which ours differs from `theirs`, which counts.
    pub fn difference(&self, theirs: &Self) -> Option<Difference> {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), theirs.0.iter().peekable());
        loop {
            let order = match (ours.peek(), theirs.peek()) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(our), Some(their)) => our.key.cmp(&their.key),
            };
            match order {
                Ordering::Less => return ours.next().map(|tensor| Difference::Unknown(tensor.key.clone())),
                Ordering::Greater => {
                    return theirs.next().map(|tensor| Difference::Missing(tensor.key.clone()));
                }
                Ordering::Equal => {}
            }
            let (our, their) = (ours.next()?, theirs.next()?);
            if our != their {
                let (ours, theirs) = (our.to_string(), their.to_string());
                return Some(Difference::Tensor { key: our.key.clone(), ours, theirs });
            }
        }
    }
}

impl Message for Outline {
    const BYTES_MAX: usize = STATE_OUTLINE_BYTES_MAX;

    fn check(&self) -> Result<(), InvalidMessage> {
        within("tensors", self.0.len(), STATE_TENSORS_MAX)?;
        let meaningless = |value: String| InvalidMessage::Meaningless { field: "outline", value };
        if !self.0.is_sorted_by(|a, b| a.key < b.key) {
            return Err(meaningless("keys that are not in their order".to_owned()));
        }
        self.validate().map_err(|error| meaningless(error.to_string()))
    }
}
