//! A transport between threads of one process, for tests: what shared memory will be, on a heap.
//!
//! Every member pins its contribution to a board that all can read, and when all are there each makes its own result
//! from them, in memory of the board's. So it settles by copying out, and a contribution outlives whoever pinned it
//! (rule 13). Who receives from one other member pins that it is ready, and a sender that finds it leaves its bytes there
//! ([`exchange`]). It waits at an eventfd, as anything may that an [`Abort`](super::super::Abort) can ring.
//!
//! It is no measure of speed. It is small, so that the contract can be read off it.

mod exchange;

use super::super::Stopped;
use super::super::abort::Abort;
use super::super::arithmetic::Arithmetic;
use super::super::memory::{Buffers, Region};
use super::super::settlement::{CopyOut, Results, Settlement};
use super::super::slots::Slots;
use super::super::transfer::TransferSpec;
use super::{Job, Moved, Transport};
use crate::bell::Bell;
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::watch;
use outlast_proto::collective::plan::Block;
use outlast_proto::collective::{BrokenLink, Fingerprint, Group, GroupEpoch, OpKey, OpKind};
use outlast_proto::id::PeerId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The longest single wait.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// What all members of a test see.
#[derive(Debug, Default)]
pub(in crate::executor) struct Hall {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of each member: the epoch that it has opened, and with whom.
    open: BTreeMap<(PeerId, Group), (GroupEpoch, Vec<PeerId>)>,
    gone: BTreeSet<PeerId>,
    places: BTreeMap<OpKey, Place>,
    exchanges: exchange::Exchanges,
}

impl State {
    fn is_open(&self, me: PeerId, group: Group, epoch: GroupEpoch) -> bool {
        self.open.get(&(me, group)).is_some_and(|(open, _)| *open == epoch)
    }
}

/// One attempt on the board.
#[derive(Debug, Default)]
struct Place {
    pinned: BTreeMap<PeerId, (u64, Arc<Vec<u8>>)>,
    waiting: Vec<(PeerId, Arc<Bell>)>,
    /// Who has copied out, or will not.
    finished: BTreeSet<PeerId>,
}

impl Place {
    fn ring(&self) {
        self.waiting.iter().for_each(|(_, bell)| bell.ring());
    }
}

impl Hall {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Attempts that still have a place.
    pub(in crate::executor) fn places(&self) -> usize {
        self.state().places.len()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        state.places.values().for_each(Place::ring);
        state.exchanges.ring();
    }
}

/// One member's place in the hall.
#[derive(Debug)]
pub(in crate::executor) struct Board {
    me: PeerId,
    hall: Arc<Hall>,
}

impl Board {
    pub(in crate::executor) fn new(me: PeerId, hall: &Arc<Hall>) -> Self {
        Self { me, hall: Arc::clone(hall) }
    }

    /// Pins this member's contribution where the others find it.
    fn pin(&self, job: &Job<'_>) -> Result<Pinned, Stopped> {
        let key = &job.spec.attempt.key;
        let bell = Arc::new(Bell::new().map_err(|error| Stopped::NoMemory(error.to_string()))?);
        let mut input = vec![0; job.region.input_bytes()];
        job.region.gather_input(&(0..input.len()), &mut input);
        let mut state = self.hall.state();
        if state.gone.contains(&self.me) {
            return Err(Stopped::Closed);
        }
        let is_open = state.is_open(self.me, key.group, key.epoch);
        let is_used_up = state.places.get(key).is_some_and(|place| place.pinned.contains_key(&self.me));
        if !is_open || is_used_up {
            return Err(Stopped::Stale);
        }
        let place = state.places.entry(key.clone()).or_default();
        place.pinned.insert(self.me, (job.spec.fingerprint.digest(), Arc::new(input)));
        place.waiting.push((self.me, Arc::clone(&bell)));
        place.ring();
        let (hall, members) = (Arc::clone(&self.hall), job.spec.attempt.members.len());
        Ok(Pinned { hall, me: self.me, key: key.clone(), members, bell })
    }

    /// All contributions in the order of ranks, if they are there; an error if they never will be.
    fn look(&self, job: &Job<'_>) -> Result<Option<Vec<Arc<Vec<u8>>>>, Stopped> {
        let (attempt, call) = (&job.spec.attempt, job.spec.fingerprint.digest());
        let state = self.hall.state();
        if state.gone.contains(&self.me) {
            return Err(Stopped::Closed);
        }
        let is_open = state.is_open(self.me, attempt.key.group, attempt.key.epoch);
        if job.abort.is_triggered() || !is_open {
            return Err(Stopped::Aborted);
        }
        let Some(place) = state.places.get(&attempt.key) else { return Err(Stopped::Aborted) };
        let mut all = Vec::new();
        for peer in attempt.members.iter().copied() {
            match place.pinned.get(&peer) {
                Some((theirs, _)) if *theirs != call => {
                    return Err(Stopped::Mismatch { peer, theirs: *theirs });
                }
                Some((_, input)) => all.push(Arc::clone(input)),
                None if state.gone.contains(&peer) => {
                    let broken = BrokenLink::back_from(self.me, peer, "it left the board");
                    return Err(Stopped::LinkBroken(broken));
                }
                None => {}
            }
        }
        Ok((all.len() == attempt.members.len()).then_some(all))
    }
}

impl Transport for Board {
    fn perform(&self, job: Job<'_>) -> Result<Moved, Stopped> {
        let pinned = self.pin(&job)?;
        let inputs = wait(&pinned.bell, job.abort, job.spec.deadline, || self.look(&job))?;
        let received = inputs.iter().map(|input| input.len() as u64).sum();
        let bytes = result(&job, &inputs, self.me);
        let Job { region, .. } = job;
        let bytes_sent = region.input_bytes() as u64;
        let settlement = Settlement::CopyOut(CopyOut::new(region, Box::new(Made { bytes, _pinned: pinned })));
        Ok(Moved { bytes_sent, bytes_received: received, mean_sent: bytes_sent, settlement })
    }

    fn transfer(&self, job: Job<'_, TransferSpec>) -> Result<Moved, Stopped> {
        if job.spec.receives.is_some() { self.receive(job) } else { self.send(job) }
    }

    fn epoch_opened(&self, group: Group, epoch: GroupEpoch, members: &[PeerId]) {
        self.hall.change(|state| {
            state.open.insert((self.me, group), (epoch, members.to_vec()));
        });
    }

    fn group_left(&self, group: Group) {
        self.hall.change(|state| {
            state.open.remove(&(self.me, group));
        });
    }

    fn shut_down(&self) {
        self.hall.change(|state| {
            state.gone.insert(self.me);
        });
    }
}

/// Looks, and waits at the bell between two looks, until there is what was looked for or there never will be.
fn wait<T>(
    bell: &Arc<Bell>,
    abort: &Abort,
    deadline: Instant,
    mut look: impl FnMut() -> Result<Option<T>, Stopped>,
) -> Result<T, Stopped> {
    let _listening = abort.listen(bell);
    loop {
        watch::look();
        bell.answer();
        if let Some(found) = look()? {
            return Ok(found);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Stopped::Deadline);
        }
        let patience = watch::patience(left.min(WAIT_MAX));
        let timeout = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut polled = [PollFd::from_borrowed_fd(bell.descriptor(), PollFlags::IN)];
        if poll(&mut polled, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            bell.heard();
        }
    }
}

/// A contribution on the board. Dropping it says that its owner needs the place no more.
#[derive(Debug)]
struct Pinned {
    hall: Arc<Hall>,
    me: PeerId,
    key: OpKey,
    members: usize,
    bell: Arc<Bell>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut state = self.hall.state();
        let Some(place) = state.places.get_mut(&self.key) else { return };
        place.finished.insert(self.me);
        place.waiting.retain(|(peer, _)| *peer != self.me);
        if place.finished.len() == self.members {
            state.places.remove(&self.key);
        }
    }
}

/// A result on the board.
#[derive(Debug)]
struct Made {
    bytes: Vec<u8>,
    _pinned: Pinned,
}

impl Results for Made {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What `me` ends with, from the contributions of all in the order of ranks.
fn result(job: &Job<'_>, inputs: &[Arc<Vec<u8>>], me: PeerId) -> Vec<u8> {
    let (attempt, call) = (&job.spec.attempt, &job.spec.fingerprint);
    let rank_of = |peer: PeerId| attempt.members.iter().position(|member| *member == peer).unwrap_or(0);
    let (rank, root) = (rank_of(me), call.root.map(rank_of));
    let (grains, size) = call.grains();
    let part = grains as usize * size;
    let my_part = |whole: &[u8]| whole[rank * part..(rank + 1) * part].to_vec();
    let whole = || inputs.iter().flat_map(|input| input.iter().copied()).collect::<Vec<u8>>();
    match call.kind {
        OpKind::AllReduce | OpKind::AllReduceMany => reduced(call, inputs),
        OpKind::ReduceScatter => my_part(&reduced(call, inputs)),
        OpKind::Reduce if root == Some(rank) => reduced(call, inputs),
        OpKind::AllGather => whole(),
        OpKind::Gather if root == Some(rank) => whole(),
        OpKind::Broadcast if root != Some(rank) => inputs[root.unwrap_or(0)].to_vec(),
        OpKind::Scatter => my_part(&inputs[root.unwrap_or(0)]),
        OpKind::AllToAll => inputs.iter().flat_map(|input| my_part(input)).collect(),
        _ => Vec::new(),
    }
}

/// The reduction over all contributions. Nothing is packed here: no wire is to be spared.
fn reduced(call: &Fingerprint, inputs: &[Arc<Vec<u8>>]) -> Vec<u8> {
    let arithmetic = Arithmetic::new(&Fingerprint { quantisation: None, ..call.clone() }, inputs.len());
    let mut slots = Slots::default();
    let mut partial = inputs[0].to_vec();
    let mut output = vec![0; partial.len()];
    let block = Block { input: 0, output: 0, bytes: partial.len() };
    let region = |input: &[u8], output: &mut [u8]| -> Region {
        let outputs = [(output.as_mut_ptr(), output.len())];
        // SAFETY: both outlive the region, which is dropped within this function.
        unsafe { Buffers::from_raw([(input.as_ptr(), input.len())], outputs) }.into_region()
    };
    let (last, others) = inputs[1..].split_last().expect("there is somebody to talk to");
    for other in others {
        arithmetic.join(&region(other, &mut output), &block, &mut partial, &mut slots);
    }
    arithmetic.finish(&mut region(last, &mut output), &block, &partial);
    output
}
