//! One collective, ready to run: its memory is borrowed, its arguments are checked.

use crate::arguments;
use crate::buffer::Tensor;
use crate::element::DataType;
use crate::errors::invalid;
use crate::in_flight::Place;
use outlast::communicator::{Call, Error, Receipt, View};
use outlast::membership::PeerId;
use outlast_proto::collective as runtime;
use pyo3::prelude::*;

/// What every collective may be told beside its tensors.
#[derive(FromPyObject)]
pub(crate) struct Options<'py>(
    String,                         // op
    i64,                            // tag
    bool,                           // retry
    i64,                            // min_world
    Option<f64>,                    // timeout
    Option<Vec<Bound<'py, PyAny>>>, // scope
);

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AllReduce,
    AllReduceMany,
    Barrier,
}

/// Memory as the runtime takes it.
#[derive(Clone, Copy)]
struct Span {
    start: *mut u8,
    elements: usize,
}

/// One collective, ready to run.
pub(crate) struct Job {
    kind: Kind,
    data_type: Option<DataType>,
    spans: Vec<Span>,
    tensors: Vec<Tensor>,
    place: Place,
    call: Call,
}

// SAFETY: the spans point into memory that the tensors borrow; whoever runs the job on another thread keeps
// them until it is over.
unsafe impl Send for Job {}
// SAFETY: as above; it is run once at a time.
unsafe impl Sync for Job {}

impl Job {
    pub(crate) fn new(
        kind: &str,
        inputs: &[Bound<'_, PyAny>],
        _outputs: Option<&[Bound<'_, PyAny>]>,
        options: Options<'_>,
        seen: &View,
    ) -> PyResult<Self> {
        let Options(op, tag, retry, min_world, timeout, scope) = options;
        let kind = match kind {
            "all_reduce" => Kind::AllReduce,
            "all_reduce_many" => Kind::AllReduceMany,
            "barrier" => Kind::Barrier,
            other => return Err(invalid(format!("there is no collective {other:?}"))),
        };
        let tensors = inputs
            .iter()
            .map(|input| Tensor::borrow("x", input)?.writable("x"))
            .collect::<PyResult<Vec<_>>>()?;
        let tag = arguments::tag(tag)?;
        let mut call = match op.as_str() {
            "sum" => Call::sum(),
            "avg" => Call::avg(),
            other => return Err(invalid(format!("op={other:?}: write \"sum\" or \"avg\""))),
        };
        call = call.tag(tag).retry(retry).min_world(arguments::members("min_world", min_world)?);
        if let Some(timeout) = arguments::seconds("timeout", timeout)? {
            call = call.timeout(timeout);
        }
        let scope = scope.map(|scope| resolve_all(seen, &scope)).transpose()?;
        if let Some(members) = &scope {
            call = call.scope(members.iter().copied());
        }
        let data_type = tensors.first().map(Tensor::data_type);
        let spans = tensors
            .iter()
            .map(|tensor| Span { start: tensor.start(), elements: tensor.elements() })
            .collect();
        Ok(Self { kind, data_type, spans, tensors, place: (scope, tag), call })
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Hands the loans over; whoever takes them keeps them until the job is over.
    pub(crate) fn take_tensors(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.tensors)
    }

    /// Runs it on this thread.
    pub(crate) fn perform(&self, comm: &outlast::Communicator) -> Result<Receipt, Error> {
        match self.data_type.and_then(DataType::runtime) {
            _ if self.kind == Kind::Barrier => comm.barrier(&self.call),
            Some(runtime::DataType::F32) => self.reduce::<f32>(comm),
            Some(runtime::DataType::I64) => self.reduce::<i64>(comm),
            _ => Err(Error::InvalidArgument("this type is not known yet".to_owned())),
        }
    }

    fn reduce<T: outlast::communicator::Element>(
        &self,
        comm: &outlast::Communicator,
    ) -> Result<Receipt, Error> {
        let slices = self.spans.iter().map(|span| {
            // SAFETY: the loans last until the job is over, and nothing else in flight touches this memory.
            unsafe { std::slice::from_raw_parts_mut(span.start.cast::<T>(), span.elements) }
        });
        let mut slices: Vec<&mut [T]> = slices.collect();
        match (&mut slices[..], self.kind) {
            ([data], Kind::AllReduce) => comm.all_reduce(data, &self.call),
            (data, _) => comm.all_reduce_many(data, &self.call),
        }
    }
}

/// A member as people name it: by id, by name, or by its rank at the time of the call.
fn resolve(seen: &View, who: &Bound<'_, PyAny>) -> PyResult<PeerId> {
    if let Ok(rank) = who.extract::<i64>() {
        let peer = usize::try_from(rank).ok().and_then(|rank| seen.peers.get(rank));
        let text = || format!("rank {rank}: the group has ranks 0 to {}", seen.peers.len().saturating_sub(1));
        return peer.map(|peer| peer.id).ok_or_else(|| invalid(text()));
    }
    let text: String = who.extract()?;
    if let Some(id) = arguments::peer_id(&text) {
        return Ok(id);
    }
    let mut named = seen.peers.iter().filter(|peer| peer.name == text).map(|peer| peer.id);
    match (named.next(), named.next()) {
        (Some(id), None) => Ok(id),
        (Some(_), Some(_)) => Err(invalid(format!("several members are called {text:?}: use the peer's id"))),
        _ => Err(invalid(format!("no member of the group is called {text:?}"))),
    }
}

fn resolve_all(seen: &View, scope: &[Bound<'_, PyAny>]) -> PyResult<Vec<PeerId>> {
    if scope.is_empty() {
        return Err(invalid("scope=[]: name the members that take part, this one included".to_owned()));
    }
    let mut members = scope.iter().map(|who| resolve(seen, who)).collect::<PyResult<Vec<_>>>()?;
    members.sort_unstable();
    members.dedup();
    Ok(members)
}
