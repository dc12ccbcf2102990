//! What quantising loses, kept for the next time.

use crate::buffer::Tensor;
use crate::errors::invalid;
use crate::visit::Visit;
use outlast::communicator::DataType;
use outlast::sync::lock;
use outlast_kernels::{Element, Quantisation, error_feedback};
use pyo3::prelude::*;
use std::sync::Mutex;

/// What was lost of one tensor, in its own type and in the order of memory.
struct Residual {
    data_type: DataType,
    bytes: Vec<u8>,
}

/// The memory of one tensor's losses.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct ErrorFeedback {
    quantisation: Quantisation,
    residual: Mutex<Option<Residual>>,
}

#[pymethods]
impl ErrorFeedback {
    #[new]
    fn new(quantize: &str) -> PyResult<Self> {
        let quantisation = match quantize {
            "int8" => Quantisation::Int8,
            "int4" => Quantisation::Int4,
            other => return Err(invalid(format!("quantize={other:?}: write \"int8\" or \"int4\""))),
        };
        Ok(Self { quantisation, residual: Mutex::new(None) })
    }

    /// Adds to `x` what was lost before, and remembers what quantising the sum will lose.
    fn apply(&self, py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<()> {
        let visit = Visit::begin(py);
        let x = Tensor::borrow("x", x)?.writable("x")?;
        let data_type = x.data_type();
        let element = match data_type {
            DataType::F16 => Element::F16,
            DataType::BF16 => Element::BF16,
            DataType::F32 => Element::F32,
            DataType::F64 => Element::F64,
            other => return Err(invalid(format!("x has elements of {other}; only floats are quantised"))),
        };
        let length = x.range().len();
        // Taken while it is used: with the interpreter let go nobody may wait for a lock of ours.
        let known = lock(&self.residual).take();
        let mut residual = known.unwrap_or_else(|| Residual { data_type, bytes: vec![0; length] });
        let fits = residual.data_type == data_type && residual.bytes.len() == length;
        if fits {
            visit.away(py, || {
                // SAFETY: the loan lasts until the end of this call, is writable, and the residual is our own.
                let values = unsafe { x.bytes_mut() };
                error_feedback(self.quantisation, element, values, &mut residual.bytes);
            });
        }
        *lock(&self.residual) = Some(residual);
        if fits {
            return Ok(());
        }
        Err(invalid("x has another size or type than before; use one ErrorFeedback per tensor".to_owned()))
    }

    /// Forgets what was lost.
    fn reset(&self) {
        *lock(&self.residual) = None;
    }
}
