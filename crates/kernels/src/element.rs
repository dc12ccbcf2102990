//! What bytes are, and what may be done to two of them.

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 8-bit unsigned integer.
    U8,
    /// 8-bit signed integer.
    I8,
    /// 16-bit unsigned integer.
    U16,
    /// 16-bit signed integer.
    I16,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit signed integer.
    I32,
    /// 64-bit unsigned integer.
    U64,
    /// 64-bit signed integer.
    I64,
    /// One byte; zero is false, anything else is true, and results are 0 or 1.
    Bool,
    /// IEEE 754 half precision: 5 bits of exponent, 10 of fraction.
    F16,
    /// The upper half of an f32: 8 bits of exponent, 7 of fraction.
    BF16,
    /// 32-bit floating point.
    F32,
    /// 64-bit floating point.
    F64,
}

impl Element {
    /// Every element, smallest integers first.
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

    /// Bytes of one.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// What users call it.
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

    /// Whether it is a floating-point number of any width.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// Whether [`divide`](crate::divide) takes it, and so whether it has an average. The average of truths is
    /// no truth: a caller that wants a share converts to a number first.
    pub const fn has_average(self) -> bool {
        !matches!(self, Self::Bool)
    }
}

/// How two elements become one. An average is a [`Sum`](Self::Sum) that is
/// [divided](crate::divide) when it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum; of bools, whether any is true.
    Sum,
    /// The product; of bools, whether all are true.
    Prod,
    /// The smallest; of bools, whether all are true.
    Min,
    /// The largest; of bools, whether any is true.
    Max,
    /// The bits that all have; of bools, whether all are true.
    And,
    /// The bits that any has; of bools, whether any is true.
    Or,
    /// The bits that an odd number have; of bools, whether an odd number are true.
    Xor,
}

impl Reduction {
    /// Every reduction.
    pub const ALL: [Self; 7] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::And, Self::Or, Self::Xor];

    /// Whether it means something for `element`: the bits of a float are nobody's business.
    pub const fn supports(self, element: Element) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Min | Self::Max => true,
            Self::And | Self::Or | Self::Xor => !element.is_float(),
        }
    }

    /// What users call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_floats_are_nobodys_business() {
        let refused = Element::ALL.iter().flat_map(|element| Reduction::ALL.map(|r| (*element, r)));
        let refused: Vec<_> = refused.filter(|(element, reduction)| !reduction.supports(*element)).collect();
        assert_eq!(refused.len(), 4 * 3);
        assert!(refused.iter().all(|(element, _)| element.is_float()));
    }
}
