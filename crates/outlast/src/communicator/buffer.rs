//! What can be reduced.

use outlast_proto::collective::DataType;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for i64 {}
}

/// An element type that the kernels know.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its name on the wire.
    const DATA_TYPE: DataType;
}

impl Element for f32 {
    const DATA_TYPE: DataType = DataType::F32;
}

impl Element for i64 {
    const DATA_TYPE: DataType = DataType::I64;
}
