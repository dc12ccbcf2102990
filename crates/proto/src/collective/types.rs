//! What can be combined, and how: the names that calls, fingerprints and people use.
//!
//! A type is a size and a meaning; most collectives move elements and need the size alone. A reduction needs
//! both, and not every pair makes sense: bits of a floating-point number have no "and", a truth value has no
//! mean. [`legal`] is the one place that says so, and it says so before a byte moves.
//!
//! Each name has a number on the wire, which is never used again, and a word for people, which parses back.

use minicbor::{CborLen, Decode, Encode};
use std::fmt;
use std::str::FromStr;

/// What the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum DataType {
    /// 32-bit floating point.
    #[n(0)]
    F32,
    /// 64-bit signed integer.
    #[n(1)]
    I64,
    /// 64-bit floating point.
    #[n(2)]
    F64,
    /// 16-bit floating point (IEEE 754 binary16).
    #[n(3)]
    F16,
    /// 16-bit floating point with the range of `F32`.
    #[n(4)]
    BF16,
    /// 8-bit unsigned integer.
    #[n(5)]
    U8,
    /// 8-bit signed integer.
    #[n(6)]
    I8,
    /// 16-bit unsigned integer.
    #[n(7)]
    U16,
    /// 16-bit signed integer.
    #[n(8)]
    I16,
    /// 32-bit unsigned integer.
    #[n(9)]
    U32,
    /// 32-bit signed integer.
    #[n(10)]
    I32,
    /// 64-bit unsigned integer.
    #[n(11)]
    U64,
    /// A truth value in a byte: zero or one.
    #[n(12)]
    Bool,
}

impl DataType {
    /// Every type, in the order of the documentation.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::Bool,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
    ];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Whether it has a fraction and an exponent.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::Bool => "bool",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
}

/// How contributions are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; integers wrap around, truth values say whether any was true.
    #[n(0)]
    Sum,
    /// The sum divided by the number of contributors; integers round towards zero.
    #[n(1)]
    Avg,
    /// The product; integers wrap around, truth values say whether all were true.
    #[n(2)]
    Prod,
    /// The smallest; not a number if any is not.
    #[n(3)]
    Min,
    /// The largest; not a number if any is not.
    #[n(4)]
    Max,
    /// Bits that are set in all.
    #[n(5)]
    BitAnd,
    /// Bits that are set in any.
    #[n(6)]
    BitOr,
    /// Bits that are set in an odd number of contributions.
    #[n(7)]
    BitXor,
}

impl ReduceOp {
    /// Every operation.
    pub const ALL: [Self; 8] =
        [Self::Sum, Self::Avg, Self::Prod, Self::Min, Self::Max, Self::BitAnd, Self::BitOr, Self::BitXor];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::BitAnd => "band",
            Self::BitOr => "bor",
            Self::BitXor => "bxor",
        }
    }
}

/// How a reduction is made smaller on the wire: integers in blocks that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum Quantisation {
    /// Eight bits per element.
    #[n(0)]
    Int8,
    /// Four bits per element.
    #[n(1)]
    Int4,
}

impl Quantisation {
    /// Every form.
    pub const ALL: [Self; 2] = [Self::Int8, Self::Int4];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

/// A word that names nothing here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not a known {what}: write one of {choices}")]
pub struct UnknownName {
    what: &'static str,
    word: String,
    choices: String,
}

fn parse<T: Copy>(
    what: &'static str,
    word: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T, UnknownName> {
    all.iter().copied().find(|value| name(*value) == word).ok_or_else(|| UnknownName {
        what,
        word: word.chars().take(32).collect(),
        choices: all.iter().map(|value| name(*value)).collect::<Vec<_>>().join(", "),
    })
}

impl FromStr for DataType {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        parse("element type", word, &Self::ALL, Self::name)
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        parse("reduction", word, &Self::ALL, Self::name)
    }
}

impl FromStr for Quantisation {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        parse("quantisation", word, &Self::ALL, Self::name)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why a reduction has no meaning. Nothing has happened yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IllegalReduction {
    /// Bits of numbers with a fraction.
    #[error("{op} of {data_type}: bitwise reductions are for integers and bool")]
    BitsOfFloat {
        /// The operation.
        op: ReduceOp,
        /// The type.
        data_type: DataType,
    },
    /// The mean of truth values.
    #[error("avg of bool has no meaning: use sum (any), prod (all), or convert to a number")]
    MeanOfBool,
    /// Only sums and means of floating-point numbers can be quantised.
    #[error(
        "{quantisation} of {op} of {data_type}: only sum and avg of f16, bf16, f32 and f64 are quantised"
    )]
    NotQuantisable {
        /// The form.
        quantisation: Quantisation,
        /// The operation.
        op: ReduceOp,
        /// The type.
        data_type: DataType,
    },
}

/// Whether this reduction has a meaning.
pub fn legal(
    op: ReduceOp,
    data_type: DataType,
    quantisation: Option<Quantisation>,
) -> Result<(), IllegalReduction> {
    match op {
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor if data_type.is_float() => {
            return Err(IllegalReduction::BitsOfFloat { op, data_type });
        }
        ReduceOp::Avg if data_type == DataType::Bool => return Err(IllegalReduction::MeanOfBool),
        _ => {}
    }
    match quantisation {
        Some(quantisation) if !data_type.is_float() || !matches!(op, ReduceOp::Sum | ReduceOp::Avg) => {
            Err(IllegalReduction::NotQuantisable { quantisation, op, data_type })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_parse_back_and_others_are_refused_with_the_choices() {
        for data_type in DataType::ALL {
            assert_eq!(data_type.to_string().parse(), Ok(data_type));
        }
        for op in ReduceOp::ALL {
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        for quantisation in Quantisation::ALL {
            assert_eq!(quantisation.to_string().parse(), Ok(quantisation));
        }
        let error = "mean".parse::<ReduceOp>().unwrap_err().to_string();
        assert!(error.contains("\"mean\"") && error.contains("avg"), "{error}");
    }

    #[test]
    fn numbers_on_the_wire_stay_what_they_were() {
        // A variant is a list of its number and its fields.
        let number = |bytes: Vec<u8>| bytes[1];
        assert_eq!(number(minicbor::to_vec(DataType::F32).unwrap()), 0);
        assert_eq!(number(minicbor::to_vec(DataType::I64).unwrap()), 1);
        assert_eq!(number(minicbor::to_vec(DataType::Bool).unwrap()), 12);
        assert_eq!(number(minicbor::to_vec(ReduceOp::BitXor).unwrap()), 7);
        assert_eq!(number(minicbor::to_vec(Quantisation::Int4).unwrap()), 1);
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        assert_eq!(legal(ReduceOp::Sum, DataType::Bool, None), Ok(()));
        assert_eq!(legal(ReduceOp::Avg, DataType::Bool, None), Err(IllegalReduction::MeanOfBool));
        assert_eq!(legal(ReduceOp::BitXor, DataType::U16, None), Ok(()));
        assert!(legal(ReduceOp::BitXor, DataType::BF16, None).is_err());
        assert_eq!(legal(ReduceOp::Avg, DataType::BF16, Some(Quantisation::Int4)), Ok(()));
        assert!(legal(ReduceOp::Max, DataType::F32, Some(Quantisation::Int8)).is_err());
        assert!(legal(ReduceOp::Sum, DataType::I32, Some(Quantisation::Int8)).is_err());
    }
}
