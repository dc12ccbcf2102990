//! Memory that Python lends: any dense CPU buffer, without a copy.
//!
//! # The problem
//!
//! People hold numpy arrays, torch tensors, bytearrays, arrays of other libraries. All say in one of two ways
//! where their memory is: the buffer protocol (numpy, bytes-like objects) or `DLPack` (torch, jax and others).
//! Both lend: as long as we hold the loan, the memory stays where it is.
//!
//! # The intuition
//!
//! A collective works on a run of elements in memory. Whether the array calls it a matrix, and in which order it
//! counts its axes, does not matter as long as the elements lie dense, without gaps: then any order of axes
//! is the same run of memory. So a transposed array is as good as a plain one, and elements meet in the order
//! of memory. All members must therefore use the same layout, as they must use the same shape.
//!
//! # The invariant
//!
//! A [`Tensor`] describes readable (and, unless `read_only`, writable) memory of `elements` elements for as long
//! as it lives, and it is dropped only with the interpreter at hand.
//!
//! # What it does not do
//!
//! It never copies. What cannot be lent is refused with words about what to do instead. It imports neither
//! numpy nor torch: objects are asked by the names of their methods.

use crate::errors::invalid;
use dlpark::DlpackFlags;
use dlpark::ffi::{DLDataType, DLDeviceType};
use dlpark::python::{ImportRequest, ImportedDlpack};
use outlast::communicator::{DataType, Layout};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::ffi::CStr;
use std::ops::Range;

/// What to do about a type that is not known.
const TYPES: &str = "convert it to integers of 8 to 64 bits, bool, f16, bf16, f32 or f64";

/// The longest piece of another library's error that is repeated.
const ERROR_SHOWN_MAX: usize = 300;

/// A loan by the buffer protocol. Exporters may leave strides out (then the memory is plain) and, without axes,
/// the shape; pyo3's own type does not take such loans.
struct Exported(Box<ffi::Py_buffer>);

impl Exported {
    fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // It must not move while it is lent, and is released exactly once.
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object and the view are valid, and the interpreter is at hand.
        let outcome = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) };
        if outcome == 0 { Ok(Self(view)) } else { Err(PyErr::fetch(object.py())) }
    }

    fn axes<'a>(&'a self, values: *const isize) -> Option<&'a [isize]> {
        let count = usize::try_from(self.0.ndim).unwrap_or(0);
        // SAFETY: the exporter keeps one value per axis for as long as the loan lasts.
        (!values.is_null() && count > 0).then(|| unsafe { std::slice::from_raw_parts::<'a>(values, count) })
    }

    fn shape(&self) -> &[isize] {
        self.axes(self.0.shape).unwrap_or_default()
    }

    fn strides(&self) -> Option<&[isize]> {
        self.axes(self.0.strides)
    }

    /// The letters of the element type; without any, bytes.
    fn format(&self) -> &[u8] {
        if self.0.format.is_null() {
            return b"B";
        }
        // SAFETY: a text with its end mark, which lives as long as the loan.
        unsafe { CStr::from_ptr(self.0.format) }.to_bytes()
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        // SAFETY: got in `get`, given back once, with the interpreter at hand (see the invariant of `Tensor`).
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// What keeps the memory where it is.
enum Loan {
    Buffer(#[expect(dead_code, reason = "held, not read")] Exported),
    Dlpack(#[expect(dead_code, reason = "held, not read")] ImportedDlpack),
}

/// One dense tensor that Python lends.
pub(crate) struct Tensor {
    start: *mut u8,
    elements: usize,
    data_type: DataType,
    read_only: bool,
    /// The order in which memory runs through the axes, the longest stride first; axes of one element are left
    /// out. `0, 1, 2, ..` is the plain layout.
    axes: Vec<(usize, usize)>,
    _loan: Loan,
}

// SAFETY: the memory may be used from any thread while the loan is held, and the loan itself is only dropped,
// which the owner of a tensor does with the interpreter at hand (see the invariant).
unsafe impl Send for Tensor {}
// SAFETY: as above; through a shared reference only plain numbers are read.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Borrows the memory of `object`, whose argument is called `name`.
    pub(crate) fn borrow(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // SAFETY: asks a type whether it has a slot.
        let buffered = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1;
        if buffered { Self::from_buffer(name, object) } else { Self::from_dlpack(name, object) }
    }

    fn from_buffer(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = match Exported::get(object) {
            Ok(buffer) => buffer,
            // An array whose type the buffer protocol has no letter for, such as ml_dtypes' bfloat16.
            Err(_) if type_name(object) == "bfloat16" => {
                let bits = object.call_method1("view", ("uint16",))?;
                let mut tensor = Self::from_buffer(name, &bits)?;
                tensor.data_type = DataType::BF16;
                return Ok(tensor);
            }
            Err(error) => {
                let (what, why) = (describe(object), first_line(&error));
                let text = format!("{name}: {what} lends no memory ({why}): {TYPES}");
                return Err(invalid(text));
            }
        };
        let view = &buffer.0;
        let size = view.itemsize;
        let data_type = of_format(buffer.format(), size.cast_unsigned())
            .map_err(|problem| invalid(format!("{name}: {} {problem}", describe(object))))?;
        let shape: Vec<usize> = buffer.shape().iter().map(|size| size.cast_unsigned()).collect();
        let strides = match buffer.strides() {
            Some(strides) if strides.iter().all(|stride| stride % size == 0) => {
                strides.iter().map(|stride| stride / size).collect()
            }
            Some(_) => return Err(not_dense(name, object)),
            None => plain_strides(&shape),
        };
        let axes = dense_axes(shape.iter().copied().zip(strides)).filter(|_| view.suboffsets.is_null());
        let axes = axes.ok_or_else(|| not_dense(name, object))?;
        Ok(Self {
            start: view.buf.cast(),
            elements: shape.iter().product(),
            data_type,
            read_only: view.readonly != 0,
            axes,
            _loan: Loan::Buffer(buffer),
        })
    }

    fn from_dlpack(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            let text = format!(
                "{name} is None: a parameter without a gradient? leave it out, or pass zeros of its shape"
            );
            return Err(invalid(text));
        }
        if !object.hasattr("__dlpack__")? {
            let text = format!(
                "{name}: {} lends no memory: pass a numpy array, a torch tensor, a bytearray or a memoryview",
                describe(object)
            );
            return Err(invalid(text));
        }
        let refused = |error: PyErr| {
            invalid(format!("{name}: {} cannot be lent: {}", describe(object), first_line(&error)))
        };
        // torch lends no tensor that records gradients; the same memory under another name it does.
        let records = object.getattr("requires_grad").and_then(|flag| flag.is_truthy()).unwrap_or(false);
        let plain = if records { object.call_method0("detach").map_err(refused)? } else { object.clone() };
        if let Ok(layout) = plain.getattr("is_sparse")
            && layout.is_truthy()?
        {
            return Err(invalid(format!("{name}: a sparse tensor has no dense memory; pass x.to_dense()")));
        }
        let request = ImportRequest::new(plain.as_borrowed()).map_err(refused)?;
        if let Ok(device) = request.device()
            && device.device_type != DLDeviceType::CPU
        {
            let text = format!(
                "{name}: {} is on another device than the CPU; pass x.cpu() and copy the result back",
                describe(object)
            );
            return Err(invalid(text));
        }
        let loan = request.import(None, None).map_err(refused)?;
        let read_only = loan.flags().contains(DlpackFlags::READ_ONLY);
        let tensor = loan.validate().map_err(|error| invalid(format!("{name}: {error}")))?;
        let data_type = of_dlpack(tensor.dtype()).ok_or_else(|| {
            let text = "has a type that collectives do not know";
            invalid(format!("{name}: {} {text}: {TYPES}", describe(object)))
        })?;
        let shape: Vec<usize> =
            tensor.shape().iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect();
        let strides = match tensor.strides() {
            Some(strides) => strides.iter().map(|stride| *stride as isize).collect(),
            None => plain_strides(&shape),
        };
        let axes = dense_axes(shape.iter().copied().zip(strides)).ok_or_else(|| not_dense(name, object))?;
        let (elements, start) = (shape.iter().product(), tensor.data_ptr().cast_mut().cast::<u8>());
        Ok(Self { start, elements, data_type, read_only, axes, _loan: Loan::Dlpack(loan) })
    }

    /// The elements' type.
    pub(crate) fn data_type(&self) -> DataType {
        self.data_type
    }

    /// How many elements.
    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    /// Where they start.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// The bytes that it covers, as addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.start.addr();
        start..start + self.elements * self.data_type.size()
    }

    /// The memory itself.
    ///
    /// # Safety
    /// The tensor is writable, and nobody else uses its memory while the result lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is Python's; who may write to it is promised, not borrowed"
    )]
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        let length = self.range().len();
        if length == 0 {
            return &mut [];
        }
        // SAFETY: the loan covers these bytes; exclusiveness is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start, length) }
    }

    /// Whether memory runs through the axes in their order.
    pub(crate) fn is_plain(&self) -> bool {
        self.axes.is_sorted_by_key(|(axis, _)| *axis)
    }

    /// How it lies in memory, as all members' tensors must (rule 7).
    pub(crate) fn layout(&self, name: &str) -> PyResult<Layout> {
        let axes: Vec<_> = self.axes.iter().map(|(axis, _)| *axis).collect();
        let too_many = || format!("{name} has {} axes, the limit is {}", axes.len(), Layout::AXES_MAX);
        Layout::new(&axes).ok_or_else(|| invalid(too_many()))
    }

    /// Whether both run through memory alike, so that elements of the same index meet.
    pub(crate) fn laid_out_like(&self, other: &Self) -> bool {
        self.axes == other.axes || (self.is_plain() && other.is_plain())
    }

    /// Refuses what a result cannot be written to.
    pub(crate) fn writable(self, name: &str) -> PyResult<Self> {
        if self.read_only {
            let text =
                "is read-only, and the result goes there; pass a writable copy, as numpy.array(x) makes";
            return Err(invalid(format!("{name} {text}")));
        }
        Ok(self)
    }
}

/// What somebody else's error says first. torch puts kilobytes of C++ frames behind it, which say nothing to anybody who
/// passed a wrong tensor.
fn first_line(error: &PyErr) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(ERROR_SHOWN_MAX) {
        Some((end, _)) => format!("{}..", &line[..end]),
        None => line.to_owned(),
    }
}

fn not_dense(name: &str, object: &Bound<'_, PyAny>) -> PyErr {
    let text = "has gaps between its elements or runs backwards (a slice or a broadcast view?)";
    let remedy =
        "pass a dense copy, as numpy.ascontiguousarray(x) or x.contiguous() makes, and copy the result back";
    invalid(format!("{name}: {} {text}; {remedy}", describe(object)))
}

/// Name and, where there are such, type and shape, for messages.
fn describe(object: &Bound<'_, PyAny>) -> String {
    let kind = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    let kind = format!("{} {kind}", if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" });
    let shape = object.getattr("shape").and_then(|shape| shape.str()).map(|shape| shape.to_string());
    match (type_name(object), shape) {
        (name, Ok(shape)) if !name.is_empty() => format!("{kind} of {name} {shape}"),
        _ => kind,
    }
}

/// The name of an array's element type, or nothing.
fn type_name(object: &Bound<'_, PyAny>) -> String {
    let name = object.getattr("dtype").and_then(|data_type| data_type.str());
    name.as_ref().map(|name: &Bound<'_, PyString>| name.to_string()).unwrap_or_default()
}

/// The axes with more than one element in the order of memory, if they fill it without gaps. No element, no
/// gap.
fn dense_axes(axes: impl IntoIterator<Item = (usize, isize)>) -> Option<Vec<(usize, usize)>> {
    let mut wide: Vec<(usize, usize, isize)> = Vec::new();
    for (axis, (size, stride)) in axes.into_iter().enumerate() {
        match size {
            0 => return Some(Vec::new()),
            1 => {}
            _ => wide.push((axis, size, stride)),
        }
    }
    wide.sort_by_key(|(_, _, stride)| std::cmp::Reverse(*stride));
    let mut next = 1_isize;
    for (_, size, stride) in wide.iter().rev() {
        if *stride != next {
            return None;
        }
        next = next.checked_mul(isize::try_from(*size).ok()?)?;
    }
    Some(wide.into_iter().map(|(axis, size, _)| (axis, size)).collect())
}

fn plain_strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].cast_signed();
    }
    strides
}

/// The type that a letter of the buffer protocol stands for.
fn of_format(format: &[u8], size: usize) -> Result<DataType, String> {
    let foreign = if cfg!(target_endian = "little") { [b'>', b'!'] } else { [b'<', b'<'] };
    let letter = match format {
        [order, _] if foreign.contains(order) => {
            let remedy = "pass x.astype(x.dtype.newbyteorder('='))";
            return Err(format!("has the byte order of another kind of machine; {remedy}"));
        }
        [b'@' | b'=' | b'<' | b'>' | b'^', letter] | [letter] => *letter,
        _ => b'\0',
    };
    let signed = [DataType::I8, DataType::I16, DataType::I32, DataType::I64];
    let unsigned = [DataType::U8, DataType::U16, DataType::U32, DataType::U64];
    let found = match letter {
        b'e' => Some(DataType::F16),
        b'f' => Some(DataType::F32),
        b'd' => Some(DataType::F64),
        b'?' => Some(DataType::Bool),
        b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => signed.into_iter().find(|known| known.size() == size),
        b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => unsigned.into_iter().find(|known| known.size() == size),
        _ => None,
    };
    found.filter(|known| known.size() == size).ok_or_else(|| {
        let format = String::from_utf8_lossy(format).into_owned();
        format!("has elements {format:?}, which collectives do not know: {TYPES}")
    })
}

fn of_dlpack(data_type: DLDataType) -> Option<DataType> {
    let known = [
        (DLDataType::BOOL, DataType::Bool),
        (DLDataType::U8, DataType::U8),
        (DLDataType::I8, DataType::I8),
        (DLDataType::U16, DataType::U16),
        (DLDataType::I16, DataType::I16),
        (DLDataType::U32, DataType::U32),
        (DLDataType::I32, DataType::I32),
        (DLDataType::U64, DataType::U64),
        (DLDataType::I64, DataType::I64),
        (DLDataType::F16, DataType::F16),
        (DLDataType::BF16, DataType::BF16),
        (DLDataType::F32, DataType::F32),
        (DLDataType::F64, DataType::F64),
    ];
    known.into_iter().find(|(theirs, _)| data_type.matches(*theirs)).map(|(_, ours)| ours)
}
