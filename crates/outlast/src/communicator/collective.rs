//! Every collective, on memory of any type: the one core that typed methods and bindings stand on.
//!
//! A call is checked, described by its fingerprint and handed to the session; from then on the caller's thread
//! does what the session orders until there is a verdict. Which tensors a kind of collective wants is told by
//! its shape; what the program knew of the group when it called goes along where the meaning depends on it, so
//! that a group that changed meanwhile is an error and not another result (rule 8).

use super::detour::Detour;
use super::orders::{Order, Orders};
use super::{Call, CallBuffers, Communicator, Error, LAST_RESORT, Receipt};
use crate::clock;
use crate::executor::{Abort, OpSpec, Performed, Stopped};
use crate::recorder::Entry;
use outlast_proto::collective::{
    Attempt, DataType, Fingerprint, OpKind, Quantisation, ReduceOp, Scope, whole,
};
use outlast_proto::id::PeerId;
use outlast_proto::pace::Like;
use outlast_proto::session::{CallId, Done, Op, Outcome, PerformResult};
use outlast_proto::time::Duration;
use std::sync::Arc;
use twox_hash::XxHash3_128;

impl Communicator {
    /// Performs a collective of any kind on memory of any type. `root` is for the kinds that have one.
    ///
    /// What it reads and writes, in elements, with n members and parts of `count`:
    ///
    /// | kind | inputs | outputs |
    /// |---|---|---|
    /// | `barrier` | - | - |
    /// | `all_reduce`, `all_reduce_many` | any tensors | as the inputs |
    /// | `all_gather` | `count` | n `count` |
    /// | `reduce_scatter` | n `count` | `count` |
    /// | `broadcast` | `count` at the root | `count` elsewhere |
    /// | `reduce` | `count` | `count` at the root |
    /// | `gather` | `count` | n `count` at the root |
    /// | `scatter` | n `count` at the root | `count` |
    /// | `all_to_all` | n `count` | n `count` |
    ///
    /// Parts lie in the order of ranks. A list that this member's role does not use is ignored.
    pub fn collective(
        &self,
        kind: OpKind,
        root: Option<PeerId>,
        mut buffers: CallBuffers<'_>,
        call: &Call,
    ) -> Result<Receipt, Error> {
        self.collective_on(kind, root, &mut buffers, call)
    }

    /// The same, for whoever looks at the memory afterwards.
    pub(crate) fn collective_on(
        &self,
        kind: OpKind,
        root: Option<PeerId>,
        buffers: &mut CallBuffers<'_>,
        call: &Call,
    ) -> Result<Receipt, Error> {
        self.creator.check()?;
        let started = std::time::Instant::now();
        let timeout = call.timeout.unwrap_or(self.timeout);
        let scope = call.members();
        let members = if kind.may_retry() { None } else { Some(self.known_members(&scope)) };
        let fingerprint = self.describe(kind, root, buffers, call, members.as_deref())?;
        let deadline = clock::now() + timeout;
        let op = Op { scope, tag: call.tag, fingerprint: fingerprint.clone(), deadline, members };
        let (mark, stalls) = (self.control.news().mark(), self.membership.stalls());
        let called = |id: CallId| Entry::collective(id, &fingerprint);
        let (id, orders) = self.control.begin(called, |session, now| session.handle_op_call(now, op));
        let control = Arc::downgrade(&self.control);
        let _attached = call.interrupt.as_ref().map(|interrupt| {
            interrupt.attach(move || {
                if let Some(control) = control.upgrade() {
                    control.cancel(id);
                }
            })
        });
        let host_deadline = std::time::Instant::now() + timeout + LAST_RESORT;
        let (mut sent, mut received, mut mean_sent, mut strain) = (0, 0, 0, None);
        let mut detour = None;
        let perform = |attempt: Attempt, abort: &Abort| {
            if kind == OpKind::Barrier {
                return Ok(None);
            }
            let plan = || Detour::plan(&fingerprint, &attempt.members, self.control.me());
            detour = attempt.goes_around.then(plan).transpose()?;
            let detour = detour.as_mut().and_then(Option::as_mut);
            let fingerprint = detour.as_ref().map_or(&fingerprint, |detour| detour.fingerprint()).clone();
            let spec = OpSpec { attempt, fingerprint, deadline: host_deadline };
            // SAFETY: the session orders an attempt only after the last one was reported and undone; a detour
            // lives longer than its attempt.
            let memory = unsafe {
                match detour {
                    Some(detour) => detour.attempt(buffers),
                    None => buffers.attempt(),
                }
            };
            let performed =
                self.data.perform(&spec, memory, abort).inspect_err(|_| strain = abort.strain())?;
            strain = abort.strain();
            (sent, received) = (sent + performed.bytes_sent, received + performed.bytes_received);
            mean_sent = performed.mean_sent;
            Ok(Some(performed))
        };
        let outcome = self.attend_op(id, &orders, timeout, perform)?;
        let done = outcome.map_err(|error| self.diagnosed(error, &fingerprint, call.tag, timeout, strain))?;
        let Done::Committed { key, contributors, rank, world_size, attempts, pending } = done else {
            return Err(Error::Bug("a collective ended as a vote"));
        };
        let mut lost = if attempts > 1 { self.control.news().lost_since(mark) } else { Vec::new() };
        lost.retain(|lost| !contributors.contains(&lost.peer) && call.members().involves(lost.peer));
        let elements = fingerprint.counts.iter().sum();
        let like = Like { kind: kind.name(), tag: key.tag, elements };
        self.mind_the_pace(like, started.elapsed(), |took, usual| {
            let (attempts, since) = (attempts, (mark, stalls));
            self.slow_step((&key, &fingerprint), (took, usual), attempts, &lost, since, strain)
        });
        let detour = detour.flatten();
        if let Some(detour) = &detour {
            detour.deliver(buffers);
        }
        buffers.make_truth_values_plain();
        Ok(Receipt {
            epoch: key.epoch,
            tag: key.tag,
            seq: key.seq,
            rank,
            world_size,
            contributors,
            lost,
            attempts,
            pending,
            algorithm: if detour.is_some() { "detour" } else { algorithm(kind, fingerprint.quantisation) },
            bytes_sent: sent,
            bytes_received: received,
            seconds: started.elapsed().as_secs_f64(),
            predicted_seconds: (detour.is_none() && key.scope == Scope::Whole)
                .then(|| self.predict(&fingerprint, key.epoch, mean_sent))
                .flatten(),
            hash: call.hash.then(|| hash(buffers)),
        })
    }

    /// How long a ring's collective takes that lets each member send so many bytes on average, by the links as they were measured.
    fn predict(&self, call: &Fingerprint, epoch: u64, sent: u64) -> Option<f64> {
        let world = self.control.seen().peers.len();
        let times = match call.kind {
            _ if whole(call, world).is_some() => 1,
            OpKind::AllReduce | OpKind::AllReduceMany => 2,
            OpKind::AllGather | OpKind::ReduceScatter => 1,
            _ => return None,
        };
        let forecast = self.atlas.forecast(epoch, || self.control.ring(epoch))?;
        Some(forecast.carrying(sent, times).as_secs_f64())
    }

    /// The members of a scope as the program knows them, in the order of ranks.
    fn known_members(&self, scope: &Scope) -> Vec<PeerId> {
        let seen = self.control.seen();
        seen.peers.iter().map(|peer| peer.id).filter(|peer| scope.involves(*peer)).collect()
    }

    /// What all members must call alike. Refuses what makes no sense, and drops the lists that this member's
    /// role does not use.
    fn describe(
        &self,
        kind: OpKind,
        root: Option<PeerId>,
        buffers: &mut CallBuffers<'_>,
        call: &Call,
        members: Option<&[PeerId]>,
    ) -> Result<Fingerprint, Error> {
        let invalid = |text: String| Err(Error::InvalidArgument(text));
        let me = self.control.me();
        let scope = call.members();
        scope.check().map_err(|error| Error::InvalidArgument(error.to_string()))?;
        if !scope.involves(me) {
            return invalid(format!("{kind} over a scope that this peer ({}) is not in", me.short()));
        }
        if kind.has_root() != root.is_some() {
            let words = if kind.has_root() { "needs a root" } else { "has no root" };
            return invalid(format!("{kind} {words}"));
        }
        if let (Some(root), Some(members)) = (root, members)
            && !members.is_empty()
            && !members.contains(&root)
        {
            return invalid(format!("the root {} is none of the {} members", root.short(), members.len()));
        }
        let is_root = root == Some(me);
        match kind {
            OpKind::Broadcast => buffers.keep(is_root, !is_root),
            OpKind::Reduce | OpKind::Gather => buffers.keep(true, is_root),
            OpKind::Scatter => buffers.keep(is_root, true),
            OpKind::Barrier => buffers.keep(false, false),
            OpKind::SendReceive => return invalid("send and recv have methods of their own".to_owned()),
            _ => {}
        }
        // Before the first connect there are no members; the session will say so.
        let world = members.map_or(1, |members| members.len().max(1));
        let counts = counts(kind, is_root, buffers, world)?;
        let types = types(kind, buffers)?;
        let reduces = kind.reduces();
        let fingerprint = Fingerprint {
            op: if reduces { call.op } else { ReduceOp::Sum },
            retry: kind.may_retry() && call.retry,
            min_world: call.min_world,
            quantisation: call.quantisation,
            root,
            step: call.step,
            ..Fingerprint::new(kind, data_type(buffers), counts)
        }
        .typed(types)
        .laid_out(buffers.layouts());
        if let Some(quantisation) = call.quantisation.filter(|_| !reduces) {
            return invalid(format!("{kind} moves elements as they are: {quantisation} is for reductions"));
        }
        fingerprint.check().map_err(|error| Error::InvalidArgument(error.to_string()))?;
        fingerprint.legal().map_err(|error| Error::InvalidArgument(error.to_string()))?;
        let (reads, writes) = fingerprint.shape(world, is_root);
        let given = (sum(buffers.inputs()), sum(buffers.outputs()));
        if members.is_none_or(|members| !members.is_empty()) && given != (reads, writes) {
            return invalid(format!(
                "{kind} among {world} members reads {reads} and writes {writes} elements here, not {} and {}",
                given.0, given.1
            ));
        }
        Ok(fingerprint)
    }

    fn attend_op<'a>(
        &self,
        id: CallId,
        orders: &Arc<Orders>,
        timeout: Duration,
        mut perform: impl FnMut(Attempt, &Abort) -> Result<Option<Performed<'a>>, Stopped>,
    ) -> Result<Outcome, Error> {
        let mut performed: Option<Performed<'a>> = None;
        self.attend(id, orders, timeout, |order| match order {
            Order::Perform(attempt, abort) => {
                // One attempt at a time has the caller's memory; the session has undone the last one.
                performed = None;
                let result = match perform(attempt, &abort) {
                    Ok(done) => {
                        performed = done;
                        PerformResult::Done
                    }
                    Err(stopped) => {
                        tracing::debug!(why = %stopped, "an attempt stopped");
                        match stopped {
                            Stopped::LinkBroken(broken) => PerformResult::LinkBroken(broken),
                            Stopped::Mismatch { peer, .. } => PerformResult::Mismatch { peer },
                            Stopped::Aborted => PerformResult::Stopped,
                            // An epoch that ends at this very moment is met again in the next attempt.
                            Stopped::Stale => PerformResult::Failed { why: stopped.to_string(), again: true },
                            _ => PerformResult::Failed { why: stopped.to_string(), again: false },
                        }
                    }
                };
                Some(result)
            }
            Order::Commit => {
                if let Some(done) = performed.take() {
                    done.commit();
                }
                None
            }
            Order::Undo | Order::Finish(_) => {
                // Dropping restores the caller's data.
                if performed.take().is_some() {
                    tracing::debug!(why = "undone", "an attempt stopped");
                }
                None
            }
        })
    }
}

fn sum(tensors: impl Iterator<Item = (DataType, usize)>) -> u64 {
    tensors.map(|(_, count)| count as u64).sum()
}

/// The type of the first tensor; nothing at all is as good as anything.
fn data_type(buffers: &CallBuffers<'_>) -> DataType {
    buffers.inputs().chain(buffers.outputs()).next().map_or(DataType::F32, |(data_type, _)| data_type)
}

/// The type of each tensor that a list of them reduces; nothing for the others, whose tensors are of one type.
fn types(kind: OpKind, buffers: &CallBuffers<'_>) -> Result<Vec<DataType>, Error> {
    if kind == OpKind::AllReduceMany {
        for (at, ((from, _), (to, _))) in buffers.inputs().zip(buffers.outputs()).enumerate() {
            if from != to {
                let (x, out) = (kind.tensor_name("x", at), kind.tensor_name("out", at));
                let text = format!("{x} is {from} and {out} is {to}: give {out} the type of {x}");
                return Err(Error::InvalidArgument(text));
            }
        }
        return Ok(buffers.inputs().map(|(data_type, _)| data_type).collect());
    }
    let first = data_type(buffers);
    match buffers.inputs().chain(buffers.outputs()).find(|(other, _)| *other != first) {
        None => Ok(Vec::new()),
        Some((other, _)) => {
            let text = format!("{kind} takes tensors of one type, not {first} and {other}");
            Err(Error::InvalidArgument(text))
        }
    }
}

/// The numbers of elements that the fingerprint carries: those of the tensors, or of one member's part.
fn counts(kind: OpKind, is_root: bool, buffers: &CallBuffers<'_>, world: usize) -> Result<Vec<u64>, Error> {
    let inputs: Vec<_> = buffers.inputs().map(|(_, count)| count as u64).collect();
    let outputs: Vec<_> = buffers.outputs().map(|(_, count)| count as u64).collect();
    let invalid = |text: String| Err(Error::InvalidArgument(text));
    match kind {
        OpKind::Barrier => Ok(Vec::new()),
        OpKind::AllReduce | OpKind::AllReduceMany => {
            if kind == OpKind::AllReduce && inputs.len() != 1 {
                return invalid(format!("{kind} reduces one tensor, not {}", inputs.len()));
            }
            if inputs.len() != outputs.len() {
                return invalid(format!("{kind} of {} inputs into {} outputs", inputs.len(), outputs.len()));
            }
            let differs = inputs.iter().zip(&outputs).position(|(input, output)| input != output);
            if let Some(at) = differs {
                let (x, out) = (kind.tensor_name("x", at), kind.tensor_name("out", at));
                let (from, to) = (inputs[at], outputs[at]);
                return invalid(format!(
                    "{x} has {from} elements and {out} has {to}: give {out} as many as {x}"
                ));
            }
            Ok(inputs)
        }
        _ => {
            // The list that holds one part; both are one tensor.
            let (part, parts) = match kind {
                OpKind::ReduceScatter | OpKind::Scatter => (&outputs, 1),
                OpKind::Broadcast if !is_root => (&outputs, 1),
                OpKind::AllToAll => (&inputs, world as u64),
                _ => (&inputs, 1),
            };
            match part[..] {
                [elements] if elements % parts == 0 => Ok(vec![elements / parts]),
                [elements] => invalid(format!("{kind} of {elements} elements among {parts} members")),
                _ => {
                    invalid(format!("{kind} wants one tensor to read and one to write where it does either"))
                }
            }
        }
    }
}

fn algorithm(kind: OpKind, quantisation: Option<Quantisation>) -> &'static str {
    match (kind, quantisation) {
        (OpKind::Barrier, _) => "vote",
        (OpKind::Broadcast, _) => "chain",
        (OpKind::Reduce, None) => "chain",
        (OpKind::Reduce, Some(Quantisation::Int8)) => "chain/int8",
        (OpKind::Reduce, Some(_)) => "chain/int4",
        (OpKind::Gather | OpKind::Scatter | OpKind::AllToAll, _) => "direct",
        (_, None) => "ring",
        (_, Some(Quantisation::Int8)) => "ring/int8",
        (_, Some(_)) => "ring/int4",
    }
}

/// XXH3-128 of all outputs, one behind the other.
fn hash(buffers: &mut CallBuffers<'_>) -> u128 {
    let mut hasher = XxHash3_128::new();
    buffers.results().for_each(|bytes| hasher.write(bytes));
    hasher.finish_128()
}
