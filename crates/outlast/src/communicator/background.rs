//! Collectives that run while the program does something else.
//!
//! A call needs a thread to move its bytes on, so one in the background has a thread of its own. What it works on
//! is given to it and comes back with the receipt: nobody can look at a tensor that is half reduced. Every form
//! is [`Communicator::in_background`] around the call that blocks, so the two can never mean different things;
//! a quantised one differs by its [`Call`], as it does there.
//!
//! The invariant: the data comes back from [`Handle::wait`] whatever happened, with the result if the call was
//! committed and as it was otherwise. A handle that is dropped gives up the data, not the call: the others count
//! on it.

use super::{Call, Communicator, Element, Error, Receipt, TensorList};
use crate::sync::{Arc, Mutex, lock, unlocked};
use outlast_proto::id::PeerId;
use std::any::Any;
use std::thread::JoinHandle;

impl Communicator {
    /// Makes `call` on a thread of its own. Any collective can be made so, also several in a row:
    ///
    /// ```no_run
    /// # use outlast::communicator::{Call, Communicator, Error};
    /// # use std::sync::Arc;
    /// # fn example(comm: Arc<Communicator>, parts: Vec<f32>) -> Result<(), Error> {
    /// let out = vec![0.0_f32; parts.len()];
    /// let handle = comm.in_background((out, parts), |comm, (out, parts)| {
    ///     comm.all_to_all(out, parts, &Call::default().tag(3))
    /// });
    /// // .. something else ..
    /// let ((out, _), receipt) = handle.wait();
    /// # receipt?; drop(out); Ok(()) }
    /// ```
    pub fn in_background<D: Send + 'static>(
        self: &Arc<Self>,
        data: D,
        call: impl FnOnce(&Self, &mut D) -> Result<Receipt, Error> + Send + 'static,
    ) -> Handle<D> {
        let (comm, data) = (Arc::clone(self), Arc::new(Mutex::new(data)));
        let given = Arc::clone(&data);
        let work = move || {
            // Held for the whole call. Nobody waits for it: the handle looks only after this thread has ended.
            let mut data = lock(&given);
            call(&comm, &mut data)
        };
        let thread = std::thread::Builder::new().name("outlast-call".to_owned()).spawn(work);
        Handle { data, thread: thread.map_err(Error::Start) }
    }

    /// As [`Self::all_reduce`], in the background.
    pub fn all_reduce_async<T: Element>(self: &Arc<Self>, data: Vec<T>, call: Call) -> Handle<Vec<T>> {
        self.in_background(data, move |comm, data| comm.all_reduce(data, &call))
    }

    /// As [`Self::all_reduce_many`], in the background. Tensors of several types are lists side by side:
    ///
    /// ```no_run
    /// # use outlast::communicator::{Call, Communicator, Error};
    /// # use std::sync::Arc;
    /// # fn example(comm: Arc<Communicator>, weights: Vec<Vec<f32>>, counts: Vec<u64>) -> Result<(), Error> {
    /// let handle = comm.all_reduce_many_async((weights, counts), Call::sum());
    /// let ((weights, counts), receipt) = handle.wait();
    /// # receipt?; drop((weights, counts)); Ok(()) }
    /// ```
    pub fn all_reduce_many_async<L: TensorList + Send + 'static>(
        self: &Arc<Self>,
        data: L,
        call: Call,
    ) -> Handle<L> {
        self.in_background(data, move |comm, data| comm.all_reduce_many(data.tensors(), &call))
    }

    /// As [`Self::all_gather`], in the background; `out` and `data` come back.
    pub fn all_gather_async<T: Element>(
        self: &Arc<Self>,
        out: Vec<T>,
        data: Vec<T>,
        call: Call,
    ) -> Handle<(Vec<T>, Vec<T>)> {
        self.in_background((out, data), move |comm, (out, data)| comm.all_gather(out, data, &call))
    }

    /// As [`Self::reduce_scatter`], in the background; `out` and `data` come back.
    pub fn reduce_scatter_async<T: Element>(
        self: &Arc<Self>,
        out: Vec<T>,
        data: Vec<T>,
        call: Call,
    ) -> Handle<(Vec<T>, Vec<T>)> {
        self.in_background((out, data), move |comm, (out, data)| comm.reduce_scatter(out, data, &call))
    }

    /// As [`Self::broadcast`], in the background.
    pub fn broadcast_async<T: Element>(
        self: &Arc<Self>,
        data: Vec<T>,
        root: PeerId,
        call: Call,
    ) -> Handle<Vec<T>> {
        self.in_background(data, move |comm, data| comm.broadcast(data, root, &call))
    }

    /// As [`Self::barrier`], in the background.
    pub fn barrier_async(self: &Arc<Self>, call: Call) -> Handle<()> {
        self.in_background((), move |comm, ()| comm.barrier(&call))
    }
}

/// A collective in the background, and what it works on.
#[derive(Debug)]
pub struct Handle<D> {
    data: Arc<Mutex<D>>,
    thread: Result<JoinHandle<Result<Receipt, Error>>, Error>,
}

impl<D> Handle<D> {
    /// Whether it is over.
    pub fn done(&self) -> bool {
        self.thread.as_ref().map_or(true, JoinHandle::is_finished)
    }

    /// Waits for the end; the data comes back in either case.
    ///
    /// # Panics
    /// Never: the thread, which alone shares the data, has ended.
    pub fn wait(self) -> (D, Result<Receipt, Error>) {
        let receipt = self.thread.and_then(|thread| {
            thread.join().unwrap_or_else(|panic| Err(Error::Panicked(words_of(panic.as_ref()))))
        });
        let data = Arc::into_inner(self.data).expect("the thread has ended and dropped its share");
        (unlocked(data), receipt)
    }
}

/// What a panic said.
fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it said nothing that can be shown").to_owned()
}
