//! One collective, ready to run: its memory is borrowed, its arguments are checked.
//!
//! What this side must see to is what the runtime cannot know: that the memory is writable where a result goes,
//! that it is laid out so that elements of the same index meet, and that no two tensors of a call share memory
//! except where the collective works in place.

use crate::arguments;
use crate::buffer::Tensor;
use crate::errors::invalid;
use crate::in_flight::Place;
use outlast::communicator::{
    Call, CallBuffers, DataType, Error, Interrupt, Layout, OpKind, Quantisation, Receipt, ReduceOp, SeenGroup,
};
use outlast::membership::PeerId;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyTuple;
use std::ops::Range;

/// What every collective may be told beside its tensors.
pub(crate) struct Options<'py> {
    op: PyBackedStr,
    tag: i64,
    quantize: Option<PyBackedStr>,
    retry: bool,
    min_world: i64,
    timeout: Option<f64>,
    scope: Option<Vec<Bound<'py, PyAny>>>,
    hash: bool,
    root: Option<Bound<'py, PyAny>>,
}

impl<'py> Options<'py> {
    /// From the tuple in which they come, in this order.
    pub(crate) fn new(given: &Bound<'py, PyTuple>) -> PyResult<Self> {
        let quantisations = "\"int8\", \"int4\" or None";
        Ok(Self {
            op: arguments::option(given, 0, "op", "the name of a reduction, such as \"sum\"")?,
            tag: arguments::option(given, 1, "tag", "a whole number from 0 to 2**63 - 1")?,
            quantize: arguments::option(given, 2, "quantize", quantisations)?,
            retry: arguments::option(given, 3, "retry", "True or False")?,
            min_world: arguments::option(given, 4, "min_world", "a whole number of members")?,
            timeout: arguments::option(given, 5, "timeout", "a number of seconds, or None for the default")?,
            scope: arguments::option(given, 6, "scope", "a list of members: ids, names or ranks")?,
            hash: arguments::option(given, 7, "hash", "True or False")?,
            root: arguments::option(given, 8, "root", "a member")?,
        })
    }
}

/// Memory as the runtime takes it.
#[derive(Clone, Copy)]
struct Span {
    data_type: DataType,
    start: *mut u8,
    elements: usize,
}

impl Span {
    fn of(tensor: &Tensor) -> Self {
        Self { data_type: tensor.data_type(), start: tensor.start(), elements: tensor.elements() }
    }

    /// To read from, as the runtime takes it.
    fn source(&self) -> (DataType, *const u8, usize) {
        (self.data_type, self.start.cast_const(), self.elements)
    }

    /// To write to, as the runtime takes it.
    fn target(&self) -> (DataType, *mut u8, usize) {
        (self.data_type, self.start, self.elements)
    }
}

/// One collective, ready to run.
pub(crate) struct Job {
    kind: OpKind,
    root: Option<PeerId>,
    layouts: Vec<Layout>,
    inputs: Vec<Span>,
    outputs: Vec<Span>,
    /// What keeps the spans valid.
    tensors: Vec<Tensor>,
    place: Place,
    call: Call,
}

// SAFETY: the spans point into memory that the tensors borrow; whoever runs the job on another thread keeps
// them until it is over.
unsafe impl Send for Job {}
// SAFETY: as above; a job is run by one thread.
unsafe impl Sync for Job {}

impl Job {
    /// Checks a call and borrows its memory. Without `outputs` the results go where the inputs are.
    pub(crate) fn new(
        kind: &str,
        inputs: &[Bound<'_, PyAny>],
        outputs: Option<&[Bound<'_, PyAny>]>,
        options: Options<'_>,
        seen: &SeenGroup,
    ) -> PyResult<Self> {
        let kind = kind_of(kind)?;
        let Options { op, tag, quantize, retry, min_world, timeout, scope, hash, root } = options;
        let (tag, min_world) = (arguments::tag(tag)?, arguments::members("min_world", min_world)?);
        let op: ReduceOp = op.parse().map_err(|error| invalid(format!("op: {error}")))?;
        let scope = scope.map(|scope| resolve_all(seen, &scope)).transpose()?;
        let root = root.map(|root| resolve(seen, &root)).transpose()?;
        let mut call = Call::new(op).tag(tag).retry(retry).min_world(min_world).hash(hash);
        if let Some(timeout) = arguments::seconds("timeout", timeout)? {
            call = call.timeout(timeout);
        }
        if let Some(word) = quantize {
            let parsed: Quantisation = word.parse().map_err(|error| invalid(format!("quantize: {error}")))?;
            call = call.quantise(parsed);
        }
        if let Some(members) = &scope {
            call = call.scope(members.iter().copied());
        }
        let borrowed = Borrowed::new(kind, inputs, outputs)?;
        borrowed.check(kind, &part_of_rank(seen, scope.as_deref()))?;
        let name = |at| kind.tensor_name("x", at);
        let tensors = borrowed.inputs.iter().enumerate();
        let layouts = tensors.map(|(at, tensor)| tensor.layout(&name(at))).collect::<PyResult<_>>()?;
        let (inputs, outputs, tensors) = borrowed.into_parts();
        Ok(Self { kind, root, layouts, inputs, outputs, tensors, place: (scope, tag), call })
    }

    /// The same, given up when `interrupt` is triggered.
    pub(crate) fn interrupted_by(mut self, interrupt: &Interrupt) -> Self {
        self.call = self.call.interrupt(interrupt);
        self
    }

    /// Tensors that a step of a training loop averages in place. It is run by the loop.
    pub(crate) fn in_place(tensors: &[Bound<'_, PyAny>]) -> PyResult<Self> {
        let kind = OpKind::AllReduceMany;
        let borrowed = Borrowed::new(kind, tensors, None)?;
        borrowed.check(kind, &|whole| whole)?;
        let layouts = borrowed.inputs.iter().enumerate();
        let layouts =
            layouts.map(|(at, tensor)| tensor.layout(&kind.tensor_name("x", at))).collect::<PyResult<_>>()?;
        let (inputs, outputs, tensors) = borrowed.into_parts();
        Ok(Self { kind, root: None, layouts, inputs, outputs, tensors, place: (None, 0), call: Call::avg() })
    }

    /// What tells it apart from others in flight.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The memory that it uses.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Hands the loans over; whoever takes them keeps them until the job is over.
    pub(crate) fn take_tensors(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.tensors)
    }

    /// Runs it on this thread.
    pub(crate) fn perform(&self, comm: &outlast::Communicator) -> Result<Receipt, Error> {
        comm.collective(self.kind, self.root, self.buffers(), &self.call)
    }

    /// Its memory. One run at a time has it.
    pub(crate) fn buffers(&self) -> CallBuffers<'_> {
        let (inputs, outputs) = (self.inputs.iter().map(Span::source), self.outputs.iter().map(Span::target));
        // SAFETY: the loans last until the job is over; overlaps were refused in `Borrowed::check`, and memory of
        // other operations in flight by the communicator.
        let buffers = unsafe { CallBuffers::from_raw(inputs, outputs) };
        buffers.laid_out(self.layouts.iter().cloned())
    }
}

/// A transfer between this member and another, ready to run.
pub(crate) struct Transfer {
    span: Span,
    /// What keeps the span valid.
    tensors: Vec<Tensor>,
    layout: Layout,
    other: PeerId,
    receives: bool,
    call: Call,
}

// SAFETY: the span points into memory that the tensor borrows; whoever runs the transfer on another thread keeps it
// until it is over.
unsafe impl Send for Transfer {}
// SAFETY: as above; a transfer is run by one thread.
unsafe impl Sync for Transfer {}

impl Transfer {
    pub(crate) fn new(
        x: &Bound<'_, PyAny>,
        other: &Bound<'_, PyAny>,
        receives: bool,
        tag: i64,
        timeout: Option<f64>,
        seen: &SeenGroup,
    ) -> PyResult<Self> {
        let other = resolve(seen, other)?;
        let mut call = Call::sum().tag(arguments::tag(tag)?);
        if let Some(timeout) = arguments::seconds("timeout", timeout)? {
            call = call.timeout(timeout);
        }
        let tensor = Tensor::borrow("x", x)?;
        let tensor = if receives { tensor.writable("x")? } else { tensor };
        let layout = tensor.layout("x")?;
        Ok(Self { span: Span::of(&tensor), tensors: vec![tensor], layout, other, receives, call })
    }

    /// The same, given up when `interrupt` is triggered.
    pub(crate) fn interrupted_by(mut self, interrupt: &Interrupt) -> Self {
        self.call = self.call.interrupt(interrupt);
        self
    }

    /// Hands the loan over; whoever takes it keeps it until the transfer is over.
    pub(crate) fn take_tensors(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.tensors)
    }

    /// The memory that it uses.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Runs it on this thread.
    pub(crate) fn perform(&self, comm: &outlast::Communicator) -> Result<(), Error> {
        let input = (!self.receives).then_some(self.span.source());
        let output = self.receives.then_some(self.span.target());
        // SAFETY: the loan lasts until the transfer is over, and no operation in flight uses the memory.
        let buffers = unsafe { CallBuffers::from_raw(input, output) };
        let buffers = buffers.laid_out([self.layout.clone()]);
        if self.receives {
            comm.recv_buffers(buffers, self.other, &self.call)
        } else {
            comm.send_buffers(buffers, self.other, &self.call)
        }
    }
}

fn kind_of(word: &str) -> PyResult<OpKind> {
    Ok(match word {
        "barrier" => OpKind::Barrier,
        "all_reduce" => OpKind::AllReduce,
        "all_reduce_many" => OpKind::AllReduceMany,
        "all_gather" => OpKind::AllGather,
        "reduce_scatter" => OpKind::ReduceScatter,
        "broadcast" => OpKind::Broadcast,
        "reduce" => OpKind::Reduce,
        "gather" => OpKind::Gather,
        "scatter" => OpKind::Scatter,
        "all_to_all" => OpKind::AllToAll,
        other => return Err(invalid(format!("there is no collective {other:?}"))),
    })
}

/// The tensors of one call.
struct Borrowed {
    inputs: Vec<Tensor>,
    /// `None`: in place.
    outputs: Option<Vec<Tensor>>,
}

impl Borrowed {
    fn new(
        kind: OpKind,
        inputs: &[Bound<'_, PyAny>],
        outputs: Option<&[Bound<'_, PyAny>]>,
    ) -> PyResult<Self> {
        if kind == OpKind::AllReduceMany && inputs.is_empty() {
            return Err(invalid("all_reduce_many of no tensors: pass at least one".to_owned()));
        }
        let in_place = outputs.is_none();
        let read = |(at, input): (usize, &Bound<'_, PyAny>)| {
            let name = kind.tensor_name("x", at);
            let tensor = Tensor::borrow(&name, input)?;
            if in_place { tensor.writable(&name) } else { Ok(tensor) }
        };
        let write = |(at, output): (usize, &Bound<'_, PyAny>)| {
            let name = kind.tensor_name("out", at);
            Tensor::borrow(&name, output)?.writable(&name)
        };
        let inputs = inputs.iter().enumerate().map(read).collect::<PyResult<_>>()?;
        let outputs = outputs
            .map(|outputs| outputs.iter().enumerate().map(write).collect::<PyResult<_>>())
            .transpose()?;
        Ok(Self { inputs, outputs })
    }

    fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.inputs.iter().chain(self.outputs.iter().flatten())
    }

    /// Refuses layouts and overlaps that would mix elements up. `part` is where this member's part lies in a
    /// tensor of that many bytes that holds one part per member.
    fn check(&self, kind: OpKind, part: &dyn Fn(Range<usize>) -> Range<usize>) -> PyResult<()> {
        let parts = matches!(
            kind,
            OpKind::AllGather | OpKind::ReduceScatter | OpKind::Gather | OpKind::Scatter | OpKind::AllToAll
        );
        if parts && !self.all().all(Tensor::is_plain) {
            let text = "needs its tensors in plain (C) order, because they are cut into parts";
            return Err(invalid(format!("{kind} {text}: pass numpy.ascontiguousarray(x) or x.contiguous()")));
        }
        let written = self.outputs.as_ref().unwrap_or(&self.inputs);
        for (at, tensor) in written.iter().enumerate() {
            let taken = written[..at].iter().position(|other| overlap(&tensor.range(), &other.range()));
            if let Some(other) = taken {
                let list = if self.outputs.is_some() { "out" } else { "x" };
                let (one, two) = (kind.tensor_name(list, other), kind.tensor_name(list, at));
                let text = format!("two results would go to the same memory: {one} and {two} overlap");
                return Err(invalid(text));
            }
        }
        let Some(outputs) = &self.outputs else { return Ok(()) };
        for (at, input) in self.inputs.iter().enumerate() {
            for (number, output) in outputs.iter().enumerate() {
                let (from, to) = (input.range(), output.range());
                let in_place = match kind {
                    OpKind::AllGather | OpKind::Gather => from == part(to.clone()),
                    OpKind::ReduceScatter | OpKind::Scatter => part(from.clone()) == to,
                    _ => at == number && from == to,
                };
                if overlap(&from, &to) && !in_place {
                    let (x, out) = (kind.tensor_name("x", at), kind.tensor_name("out", number));
                    return Err(invalid(format!("{x} and {out} share memory, but not as in place")));
                }
            }
            if !parts && outputs.get(at).is_some_and(|output| !input.laid_out_like(output)) {
                let (x, out) = (kind.tensor_name("x", at), kind.tensor_name("out", at));
                let remedy = "give out the layout of x, as numpy.empty_like(x) does";
                let text = format!("{x} and {out} have their axes in different orders in memory: {remedy}");
                return Err(invalid(text));
            }
        }
        Ok(())
    }

    fn into_parts(self) -> (Vec<Span>, Vec<Span>, Vec<Tensor>) {
        let inputs: Vec<_> = self.inputs.iter().map(Span::of).collect();
        let outputs = self
            .outputs
            .as_ref()
            .map_or_else(|| inputs.clone(), |outputs| outputs.iter().map(Span::of).collect());
        let tensors = self.inputs.into_iter().chain(self.outputs.into_iter().flatten()).collect();
        (inputs, outputs, tensors)
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Where the part of this member's rank lies in memory that holds one part per member.
fn part_of_rank(seen: &SeenGroup, scope: Option<&[PeerId]>) -> impl Fn(Range<usize>) -> Range<usize> + use<> {
    let takes_part = |id: PeerId| scope.is_none_or(|scope| scope.contains(&id));
    let world = seen.peers.iter().filter(|peer| takes_part(peer.id)).count().max(1);
    let position = seen.peers.iter().take(seen.rank).filter(|peer| takes_part(peer.id)).count();
    move |whole| {
        let bytes = whole.len() / world;
        whole.start + position * bytes..whole.start + (position + 1) * bytes
    }
}

/// A member as people name it: by id, by name, or by its rank at the time of the call.
pub(crate) fn resolve(seen: &SeenGroup, who: &Bound<'_, PyAny>) -> PyResult<PeerId> {
    let nobody = || invalid("not connected: a member is named once this peer is in a run".to_owned());
    if let Ok(rank) = who.extract::<i64>() {
        if seen.peers.is_empty() {
            return Err(nobody());
        }
        let peer = usize::try_from(rank).ok().and_then(|rank| seen.peers.get(rank));
        let text = || format!("rank {rank}: the group has ranks 0 to {}", seen.peers.len().saturating_sub(1));
        return peer.map(|peer| peer.id).ok_or_else(|| invalid(text()));
    }
    let wrong = |_| {
        let text = format!("{}: name a member by its id, its name or its rank", arguments::shown(who));
        PyTypeError::new_err(text)
    };
    let text: PyBackedStr = who.extract().map_err(wrong)?;
    if let Some(id) = arguments::peer_id(&text) {
        return Ok(id);
    }
    if seen.peers.is_empty() {
        return Err(nobody());
    }
    let mut named = seen.peers.iter().filter(|peer| peer.name == *text).map(|peer| peer.id);
    match (named.next(), named.next()) {
        (Some(id), None) => Ok(id),
        (Some(_), Some(_)) => {
            Err(invalid(format!("several members are called {:?}: use the peer's id", &*text)))
        }
        _ => Err(invalid(format!("no member of the group is called {:?}: see comm.peers()", &*text))),
    }
}

fn resolve_all(seen: &SeenGroup, scope: &[Bound<'_, PyAny>]) -> PyResult<Vec<PeerId>> {
    if scope.is_empty() {
        return Err(invalid("scope=[]: name the members that take part, this one included".to_owned()));
    }
    let mut members = scope.iter().map(|who| resolve(seen, who)).collect::<PyResult<Vec<_>>>()?;
    members.sort_unstable();
    members.dedup();
    Ok(members)
}
