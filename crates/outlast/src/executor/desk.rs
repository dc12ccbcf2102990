//! The operations under way, and what the frames of others are to them.

use super::operation::{End, Operation};
use super::slots::Slots;
use super::{ConnId, Stopped};
use outlast_proto::collective::frame::OpName;
use outlast_proto::collective::{Group, GroupEpoch, Seq, Tag};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Names whose last number is remembered per group; the least recently ended is forgotten first.
const ENDED_MAX: usize = 4_096;

/// Payloads that have no effect any more are drained in pieces of this size.
pub(super) const DRAIN_BYTES: usize = 32 << 10;

/// One operation on the desk. The serial makes a reused place tell its tenants apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpId {
    index: usize,
    serial: u64,
}

/// What a group's past left behind: frames of earlier epochs have no effect (rule 15), nor have those of what ended.
#[derive(Debug, Default)]
struct GroupState {
    epoch: GroupEpoch,
    /// Of this epoch's collectives.
    collectives: Ended,
    /// Of transfers, which no epoch ends.
    transfers: Ended,
}

/// The highest number that ended here under each name, and when (by a count of endings).
#[derive(Debug, Default)]
struct Ended {
    last: BTreeMap<(u64, Tag), (Seq, u64)>,
    endings: u64,
}

impl Ended {
    fn contains(&self, name: &OpName) -> bool {
        self.last.get(&(name.scope, name.tag)).is_some_and(|(seq, _)| name.seq <= *seq)
    }

    fn note(&mut self, name: &OpName) {
        self.endings += 1;
        let endings = self.endings;
        let entry = self.last.entry((name.scope, name.tag)).or_insert((name.seq, endings));
        *entry = (entry.0.max(name.seq), endings);
        if self.last.len() > ENDED_MAX
            && let Some(oldest) = self.last.iter().min_by_key(|(_, (_, when))| *when).map(|(key, _)| *key)
        {
            self.last.remove(&oldest);
        }
    }
}

/// Operations by id and by name.
#[derive(Debug)]
pub(super) struct Desk {
    operations: Vec<Option<(u64, Box<Operation>)>>,
    serial: u64,
    groups: BTreeMap<Group, GroupState>,
    pub(super) slots: Slots,
    /// Where drained bytes go; never looked at.
    pub(super) drain: Box<[u8]>,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self {
            operations: Vec::new(),
            serial: 0,
            groups: BTreeMap::new(),
            slots: Slots::default(),
            drain: vec![0; DRAIN_BYTES].into_boxed_slice(),
        }
    }

    pub(super) fn add(&mut self, operation: Box<Operation>) -> OpId {
        self.serial += 1;
        let serial = self.serial;
        let index = self.operations.iter().position(Option::is_none).unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        self.operations[index] = Some((serial, operation));
        OpId { index, serial }
    }

    pub(super) fn remove(&mut self, id: OpId) -> Option<Box<Operation>> {
        let place = self.operations.get_mut(id.index)?;
        place.take_if(|(serial, _)| *serial == id.serial).map(|(_, operation)| operation)
    }

    pub(super) fn get_mut(&mut self, id: OpId) -> Option<&mut Operation> {
        self.parts_mut(id).map(|(operation, _)| operation)
    }

    /// The operation, and the scratch it takes from.
    pub(super) fn parts_mut(&mut self, id: OpId) -> Option<(&mut Operation, &mut Slots)> {
        match self.operations.get_mut(id.index)? {
            Some((serial, operation)) if *serial == id.serial => Some((operation, &mut self.slots)),
            _ => None,
        }
    }

    /// The operation of this name.
    pub(super) fn find(&self, name: &OpName) -> Option<OpId> {
        self.iter().find(|(_, operation)| operation.parts.name == *name).map(|(id, _)| id)
    }

    /// The operation that this credit is for. The sender of a transfer takes whatever number its receiver
    /// waits under.
    pub(super) fn find_granted(&self, name: &OpName) -> Option<OpId> {
        self.find(name).or_else(|| {
            let fits = |operation: &Operation| {
                operation.parts.end == Some(End::Sends)
                    && operation.ending.is_none()
                    && operation.parts.name.same_sequence(name)
            };
            self.iter().find(|(_, operation)| fits(operation)).map(|(id, _)| id)
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OpId, &Operation)> {
        self.operations.iter().enumerate().filter_map(|(index, place)| {
            let (serial, operation) = place.as_ref()?;
            Some((OpId { index, serial: *serial }, &**operation))
        })
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (OpId, &mut Operation)> {
        self.operations.iter_mut().enumerate().filter_map(|(index, place)| {
            let (serial, operation) = place.as_mut()?;
            Some((OpId { index, serial: *serial }, &mut **operation))
        })
    }

    /// The operation after `last`, in a circle, that `wanted` agrees to: fairness among tags.
    pub(super) fn next_after(&self, last: Option<OpId>, wanted: impl Fn(&Operation) -> bool) -> Option<OpId> {
        let start = last.map_or(0, |id| id.index + 1);
        let places = self.operations.len();
        (0..places).map(|step| (start + step) % places).find_map(|index| {
            let (serial, operation) = self.operations[index].as_ref()?;
            wanted(operation).then_some(OpId { index, serial: *serial })
        })
    }

    /// See [`Operation::stop`].
    pub(super) fn stop(&mut self, id: OpId, why: Stopped) {
        if let Some(operation) = self.get_mut(id) {
            operation.stop(why);
        }
    }

    /// Whether any operation that uses `conn` for receiving waits for blocks.
    pub(super) fn awaits_blocks(&self, conn: ConnId) -> bool {
        self.iter().any(|(_, op)| op.awaits_blocks(conn))
    }

    /// Whether any operation that uses `conn` for sending waits for credit.
    pub(super) fn awaits_credit(&self, conn: ConnId) -> bool {
        self.iter().any(|(_, op)| op.awaits_credit(conn))
    }

    /// Whether a frame of this name can have no effect any more.
    pub(super) fn is_stale(&self, name: &OpName) -> bool {
        let Some(group) = self.groups.get(&name.group) else { return false };
        match name.epoch.cmp(&group.epoch) {
            _ if name.is_transfer() => group.transfers.contains(name),
            Ordering::Less => true,
            Ordering::Equal => group.collectives.contains(name),
            Ordering::Greater => false,
        }
    }

    /// The number of this name is used up.
    pub(super) fn note_end(&mut self, name: &OpName) {
        let group = self.groups.entry(name.group).or_default();
        if name.seq == Seq::MAX {
            return; // A sender that never heard of a number has used none up.
        }
        if name.is_transfer() {
            group.transfers.note(name);
        } else if name.epoch == group.epoch {
            group.collectives.note(name);
        }
    }

    /// A group's frames count from `epoch` on.
    pub(super) fn open_epoch(&mut self, group: Group, epoch: GroupEpoch) {
        let state = self.groups.entry(group).or_default();
        if epoch > state.epoch {
            (state.epoch, state.collectives) = (epoch, Ended::default());
        }
    }

    /// A group's epochs are counted anew.
    pub(super) fn forget_group(&mut self, group: Group) {
        self.groups.remove(&group);
    }

    /// Ids of operations for which `wanted` holds.
    pub(super) fn ids(&self, wanted: impl Fn(&Operation) -> bool) -> Vec<OpId> {
        self.iter().filter(|(_, operation)| wanted(operation)).map(|(id, _)| id).collect()
    }
}
