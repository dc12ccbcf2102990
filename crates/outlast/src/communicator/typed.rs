//! The collectives on slices: what a Rust program calls.
//!
//! Each is one line over [`Communicator::collective`]. Outputs come first, as in a copy; parts of a whole lie in
//! the order of ranks.

use super::{Call, CallBuffers, Communicator, Element, Error, Receipt, Tensor, TensorMut};
use outlast_proto::collective::{OpKind, ReduceOp};
use outlast_proto::id::PeerId;

impl Communicator {
    /// Reduces `data` in place over the members of the group.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], call: &Call) -> Result<Receipt, Error> {
        self.collective(OpKind::AllReduce, None, CallBuffers::in_place([data]), call)
    }

    /// Reduces `data` over the members of the group into `out`, which has as many elements.
    pub fn all_reduce_into<T: Element>(
        &self,
        out: &mut [T],
        data: &[T],
        call: &Call,
    ) -> Result<Receipt, Error> {
        self.collective(OpKind::AllReduce, None, CallBuffers::out_of_place([data], [out]), call)
    }

    /// Reduces several tensors in place in one transaction: one verdict, the same contributors for each (rule 9). They
    /// may be of several types; all members pass the same types in the same order (rule 7).
    ///
    /// ```no_run
    /// # fn example(comm: &outlast::Communicator) -> Result<(), outlast::communicator::Error> {
    /// use outlast::communicator::{Call, TensorMut};
    ///
    /// let (mut weights, mut count) = (vec![1.0_f32; 1000], [1.0_f64]);
    /// comm.all_reduce_many([TensorMut::from(&mut weights[..]), TensorMut::from(&mut count[..])], &Call::avg())?;
    /// # Ok(()) }
    /// ```
    pub fn all_reduce_many<'a>(
        &self,
        data: impl IntoIterator<Item: Into<TensorMut<'a>>>,
        call: &Call,
    ) -> Result<Receipt, Error> {
        self.collective(OpKind::AllReduceMany, None, CallBuffers::in_place(data), call)
    }

    /// As [`Self::all_reduce_many`], into outputs of the same types and numbers of elements.
    pub fn all_reduce_many_into<'a>(
        &self,
        out: impl IntoIterator<Item: Into<TensorMut<'a>>>,
        data: impl IntoIterator<Item: Into<Tensor<'a>>>,
        call: &Call,
    ) -> Result<Receipt, Error> {
        self.collective(OpKind::AllReduceMany, None, CallBuffers::out_of_place(data, out), call)
    }

    /// Waits until every member of the group has called it.
    pub fn barrier(&self, call: &Call) -> Result<Receipt, Error> {
        self.collective(OpKind::Barrier, None, CallBuffers::none(), call)
    }

    /// Fills `out` with the `data` of every member.
    pub fn all_gather<T: Element>(&self, out: &mut [T], data: &[T], call: &Call) -> Result<Receipt, Error> {
        self.collective(OpKind::AllGather, None, CallBuffers::out_of_place([data], [out]), call)
    }

    /// Reduces `data` over the members, and fills `out` with the part that belongs to this one.
    pub fn reduce_scatter<T: Element>(
        &self,
        out: &mut [T],
        data: &[T],
        call: &Call,
    ) -> Result<Receipt, Error> {
        self.collective(OpKind::ReduceScatter, None, CallBuffers::out_of_place([data], [out]), call)
    }

    /// Fills `data` with that of `root`.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: PeerId, call: &Call) -> Result<Receipt, Error> {
        self.collective(OpKind::Broadcast, Some(root), CallBuffers::in_place([data]), call)
    }

    /// Reduces `data` over the members, in place at `root`; elsewhere it stays as it is.
    pub fn reduce<T: Element>(&self, data: &mut [T], root: PeerId, call: &Call) -> Result<Receipt, Error> {
        self.collective(OpKind::Reduce, Some(root), CallBuffers::in_place([data]), call)
    }

    /// Fills `out` at `root` with the `data` of every member; elsewhere `out` is not looked at.
    pub fn gather<T: Element>(
        &self,
        out: &mut [T],
        data: &[T],
        root: PeerId,
        call: &Call,
    ) -> Result<Receipt, Error> {
        self.collective(OpKind::Gather, Some(root), CallBuffers::out_of_place([data], [out]), call)
    }

    /// Fills `out` with the part of `data` at `root` that belongs to this member; elsewhere `data` is not
    /// looked at.
    pub fn scatter<T: Element>(
        &self,
        out: &mut [T],
        data: &[T],
        root: PeerId,
        call: &Call,
    ) -> Result<Receipt, Error> {
        self.collective(OpKind::Scatter, Some(root), CallBuffers::out_of_place([data], [out]), call)
    }

    /// Sends part i of `data` to the member of rank i, and fills part i of `out` with what that one sends.
    pub fn all_to_all<T: Element>(&self, out: &mut [T], data: &[T], call: &Call) -> Result<Receipt, Error> {
        self.collective(OpKind::AllToAll, None, CallBuffers::out_of_place([data], [out]), call)
    }
}

impl Call {
    /// The sum over all contributors. Also for what reduces nothing.
    pub fn sum() -> Self {
        Self::new(ReduceOp::Sum)
    }

    /// The mean over all contributors.
    pub fn avg() -> Self {
        Self::new(ReduceOp::Avg)
    }
}

/// As [`Call::sum`].
impl Default for Call {
    fn default() -> Self {
        Self::sum()
    }
}
