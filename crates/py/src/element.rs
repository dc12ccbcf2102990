//! temporary
use outlast_proto::collective as runtime;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    Bool,
    F16,
    BF16,
    F32,
    F64,
}
impl DataType {
    pub(crate) fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
    pub(crate) fn runtime(self) -> Option<runtime::DataType> {
        match self {
            Self::F32 => Some(runtime::DataType::F32),
            Self::I64 => Some(runtime::DataType::I64),
            _ => None,
        }
    }
}
