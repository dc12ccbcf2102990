//! All records that one member holds, by slot.
//!
//! A view that begins brings whole slots: what was fetched for it replaces whatever was in them before. What a member
//! does not hold any more stays where it is until everybody is in the new view, and is then forgotten; nobody asks for it
//! in the meantime, because who hands a slot over follows from the view that ends.

use super::layout::{Slot, slot};
use super::record::{Effect, Record};
use crate::limits::STORE_HANDOVER_BYTES;
use crate::wire::store::mesh::{Carried, Request};
use crate::wire::store::operation::{Key, Space};
use crate::wire::store::{Blob, ClientId};
use std::collections::BTreeMap;
use std::ops::Bound;

type Records = BTreeMap<Key, Record>;

/// See the module's essay.
#[derive(Clone, Debug, Default, Hash)]
pub struct Shelf {
    slots: BTreeMap<Slot, Records>,
    bytes: u64,
}

impl Shelf {
    /// How many bytes it holds, roughly.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A record, if there is one.
    pub fn record(&self, key: &Key) -> Option<&Record> {
        self.slots.get(&slot(key))?.get(key)
    }

    /// Does what is asked; see [`Record::apply`].
    pub fn apply(&mut self, request: &Request, is_member: impl Fn(ClientId) -> bool) -> Effect {
        if !request.operation.changes() {
            let nothing = Record::default();
            return self.record(&request.key).unwrap_or(&nothing).look(&request.operation);
        }
        let records = self.slots.entry(slot(&request.key)).or_default();
        let record = records.entry(request.key.clone()).or_default();
        let before = cost(&request.key, record);
        let effect = record.apply(request, is_member);
        self.bytes = self.bytes + cost(&request.key, record) - before;
        if record.is_empty() {
            records.remove(&request.key);
        }
        effect
    }

    /// How many keys with values there are in slots that `is_meant`.
    pub fn count(&self, is_meant: impl Fn(Slot) -> bool) -> u64 {
        let meant = self.slots.iter().filter(|(slot, _)| is_meant(**slot));
        let present = |(key, record): &(&Key, &Record)| key.space == Space::Values && record.is_present();
        meant.map(|(_, records)| records.iter().filter(present).count() as u64).sum()
    }

    /// Keys with values, in slots that `is_meant`, that begin so and come behind `after`; sorted, about `bytes` of them.
    /// And whether there are more.
    pub fn keys(
        &self,
        prefix: &[u8],
        after: Option<&Blob>,
        bytes: usize,
        is_meant: impl Fn(Slot) -> bool,
    ) -> (Vec<Blob>, bool) {
        let meant = self.slots.iter().filter(|(slot, _)| is_meant(**slot)).flat_map(|(_, records)| records);
        let mut found: Vec<_> = meant
            .filter(|(key, record)| key.space == Space::Values && record.is_present())
            .map(|(key, _)| &key.name)
            .filter(|name| name.starts_with(prefix) && after.is_none_or(|after| *name > after))
            .collect();
        found.sort_unstable();
        let mut left = bytes;
        let fits = |name: &&&Blob| {
            let fits = left > 0;
            left = left.saturating_sub(name.len() + 16);
            fits
        };
        let all = found.len();
        let taken: Vec<Blob> = found.iter().take_while(fits).map(|name| (*name).clone()).collect();
        let more = taken.len() < all;
        (taken, more)
    }

    /// What is in these slots, behind `after` in the first of them, up to the size of a message; and how many of the
    /// slots that finishes.
    pub fn export(&self, slots: &[Slot], after: Option<&Key>) -> (Vec<Carried>, u32) {
        let (mut records, mut bytes, mut from) = (Vec::new(), 0, after);
        for (finished, slot) in slots.iter().enumerate() {
            let lower = from.take().map_or(Bound::Unbounded, Bound::Excluded);
            let held = self.slots.get(slot);
            for (key, record) in held.iter().flat_map(|held| held.range((lower, Bound::Unbounded))) {
                // One that is larger travels alone: with others it might be more than a message holds.
                bytes += cost(key, record);
                if bytes > STORE_HANDOVER_BYTES as u64 && !records.is_empty() {
                    return (records, finished as u32);
                }
                records.push(record.carried(key));
            }
        }
        (records, slots.len() as u32)
    }

    /// Takes what was fetched for these slots in place of what was in them.
    pub fn replace(&mut self, fetched: BTreeMap<Slot, Vec<Carried>>) {
        for (slot, carried) in fetched {
            let fresh: Records = carried.into_iter().map(Record::received).collect();
            self.bytes += fresh.iter().map(|(key, record)| cost(key, record)).sum::<u64>();
            if let Some(old) = self.slots.insert(slot, fresh) {
                self.bytes -= old.iter().map(|(key, record)| cost(key, record)).sum::<u64>();
            }
        }
    }

    /// Forgets slots that are not `kept`.
    pub fn forget(&mut self, is_kept: impl Fn(Slot) -> bool) {
        let mut freed = 0;
        self.slots.retain(|slot, records| {
            let kept = is_kept(*slot);
            if !kept {
                freed += records.iter().map(|(key, record)| cost(key, record)).sum::<u64>();
            }
            kept
        });
        self.bytes -= freed;
    }
}

fn cost(key: &Key, record: &Record) -> u64 {
    if record.is_empty() { 0 } else { key.name.len() as u64 + record.bytes() }
}
