//! From one member to another, over the board (see [`transfer`](super::super::super::transfer)).
//!
//! Whoever receives pins that it is ready; whoever sends waits for that, and leaves its bytes there. They outlive the
//! sender, so with that they are received.

use super::super::super::Stopped;
use super::super::super::abort::Abort;
use super::super::super::settlement::{CopyOut, Results, Settlement};
use super::super::super::transfer::TransferSpec;
use super::super::{Job, Moved};
use super::{Board, Hall, State, wait};
use crate::bell::Bell;
use outlast_proto::collective::{BrokenLink, Group, Seq, Tag};
use outlast_proto::id::PeerId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The group, who sends, who receives, and the tag.
type Name = (Group, PeerId, PeerId, Tag);

/// All transfers that somebody waits in.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    ready: BTreeMap<Name, Ready>,
    /// Who waits for a receiver, or for news of it.
    senders: Vec<(Name, Arc<Bell>)>,
}

/// A receive that waits.
#[derive(Debug)]
struct Ready {
    number: Seq,
    call: u64,
    bell: Arc<Bell>,
    /// What a sender left: its bytes, or that it makes another call.
    left: Option<Result<Vec<u8>, u64>>,
}

impl Exchanges {
    pub(super) fn ring(&self) {
        self.ready.values().for_each(|ready| ready.bell.ring());
        self.senders.iter().for_each(|(_, bell)| bell.ring());
    }

    fn ring_senders(&self, name: &Name) {
        self.senders.iter().filter(|(other, _)| other == name).for_each(|(_, bell)| bell.ring());
    }
}

impl State {
    fn is_with(&self, me: PeerId, spec: &TransferSpec) -> bool {
        self.open.get(&(me, spec.group)).is_some_and(|(_, members)| members.contains(&spec.peer))
    }

    /// Whether a transfer with that peer may begin.
    fn admit(&self, me: PeerId, spec: &TransferSpec, abort: &Abort) -> Result<(), Stopped> {
        if self.is_with(me, spec) || self.gone.contains(&me) {
            return self.check(me, spec, abort);
        }
        Err(Stopped::Stale)
    }

    /// Whether a transfer with that peer can still come to its end.
    fn check(&self, me: PeerId, spec: &TransferSpec, abort: &Abort) -> Result<(), Stopped> {
        let peer = spec.peer;
        if self.gone.contains(&me) {
            return Err(Stopped::Closed);
        }
        if abort.is_triggered() || !self.is_with(me, spec) {
            return Err(Stopped::Aborted);
        }
        if self.gone.contains(&peer) {
            let error = "it left the board";
            return Err(Stopped::LinkBroken(match spec.receives {
                None => BrokenLink::towards(me, peer, error),
                Some(_) => BrokenLink::back_from(me, peer, error),
            }));
        }
        Ok(())
    }
}

impl Board {
    pub(super) fn receive(&self, job: Job<'_, TransferSpec>) -> Result<Moved, Stopped> {
        let Job { spec, region, abort, .. } = job;
        let (name, number) = ((spec.group, spec.peer, self.me, spec.tag), spec.receives.unwrap_or_default());
        let bell = Arc::new(Bell::new().map_err(|error| Stopped::NoMemory(error.to_string()))?);
        {
            let mut state = self.hall.state();
            state.admit(self.me, spec, abort)?;
            let (call, bell) = (spec.fingerprint.digest(), Arc::clone(&bell));
            if state.exchanges.ready.contains_key(&name) {
                return Err(Stopped::Stale);
            }
            state.exchanges.ready.insert(name, Ready { number, call, bell, left: None });
            state.exchanges.ring_senders(&name);
        }
        let pinned = Waits { hall: &self.hall, name, number };
        let bytes = wait(&bell, abort, spec.deadline, || {
            let mut state = self.hall.state();
            // What is there counts, whatever became of its sender.
            match state.exchanges.ready.get_mut(&name).and_then(|ready| ready.left.take()) {
                Some(Ok(bytes)) => Ok(Some(bytes)),
                Some(Err(theirs)) => Err(Stopped::Mismatch { peer: spec.peer, theirs }),
                None => state.check(self.me, spec, abort).map(|()| None),
            }
        })?;
        drop(pinned);
        let bytes_received = bytes.len() as u64;
        let settlement = Settlement::CopyOut(CopyOut::new(region, Box::new(Left(bytes))));
        Ok(Moved { bytes_sent: 0, bytes_received, mean_sent: 0, settlement })
    }

    pub(super) fn send(&self, job: Job<'_, TransferSpec>) -> Result<Moved, Stopped> {
        let Job { spec, region, abort, .. } = job;
        let (name, call) = ((spec.group, self.me, spec.peer, spec.tag), spec.fingerprint.digest());
        let bell = Arc::new(Bell::new().map_err(|error| Stopped::NoMemory(error.to_string()))?);
        let mut bytes = vec![0; region.input_bytes()];
        region.gather_input(&(0..bytes.len()), &mut bytes);
        let (mut bytes, bytes_sent) = (Some(bytes), region.input_bytes() as u64);
        {
            let mut state = self.hall.state();
            state.admit(self.me, spec, abort)?;
            state.exchanges.senders.push((name, Arc::clone(&bell)));
        }
        let _offers = Offers { hall: &self.hall, bell: &bell };
        wait(&bell, abort, spec.deadline, || {
            let mut state = self.hall.state();
            state.check(self.me, spec, abort)?;
            let Some(ready) = state.exchanges.ready.get_mut(&name).filter(|ready| ready.left.is_none())
            else {
                return Ok(None);
            };
            let (theirs, agree) = (ready.call, ready.call == call);
            ready.left = if agree { bytes.take().map(Ok) } else { Some(Err(call)) };
            ready.bell.ring();
            if agree { Ok(Some(())) } else { Err(Stopped::Mismatch { peer: spec.peer, theirs }) }
        })?;
        let settlement = Settlement::CopyOut(CopyOut::new(region, Box::new(Left(Vec::new()))));
        Ok(Moved { bytes_sent, bytes_received: 0, mean_sent: bytes_sent, settlement })
    }
}

/// A receive on the board. Dropping it takes back that it waits.
struct Waits<'a> {
    hall: &'a Hall,
    name: Name,
    number: Seq,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut state = self.hall.state();
        if state.exchanges.ready.get(&self.name).is_some_and(|ready| ready.number == self.number) {
            state.exchanges.ready.remove(&self.name);
        }
    }
}

/// A send on the board.
struct Offers<'a> {
    hall: &'a Hall,
    bell: &'a Arc<Bell>,
}

impl Drop for Offers<'_> {
    fn drop(&mut self) {
        self.hall.state().exchanges.senders.retain(|(_, bell)| !Arc::ptr_eq(bell, self.bell));
    }
}

/// What a sender left.
#[derive(Debug)]
struct Left(Vec<u8>);

impl Results for Left {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
