//! All records that one member holds, by bucket.
//!
//! A view that begins brings whole buckets: what was fetched for it replaces whatever was in them before. What a member
//! does not hold any more stays where it is until everybody is in the new view, and is then forgotten; nobody asks for it
//! in the meantime, because who hands a bucket over follows from the view that ends.

use super::layout::{Bucket, bucket};
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
    buckets: BTreeMap<Bucket, Records>,
    bytes: u64,
}

impl Shelf {
    /// How many bytes it holds, roughly.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A record, if there is one.
    pub fn record(&self, key: &Key) -> Option<&Record> {
        self.buckets.get(&bucket(key))?.get(key)
    }

    /// Does what is asked; see [`Record::apply`].
    pub fn apply(&mut self, request: &Request, is_member: impl Fn(ClientId) -> bool) -> Effect {
        if !request.operation.changes() {
            let nothing = Record::default();
            return self.record(&request.key).unwrap_or(&nothing).look(&request.operation);
        }
        let records = self.buckets.entry(bucket(&request.key)).or_default();
        let record = records.entry(request.key.clone()).or_default();
        let before = cost(&request.key, record);
        let effect = record.apply(request, is_member);
        self.bytes = self.bytes + cost(&request.key, record) - before;
        if record.is_empty() {
            records.remove(&request.key);
        }
        effect
    }

    /// How many keys with values there are in buckets that `is_meant`.
    pub fn count(&self, is_meant: impl Fn(Bucket) -> bool) -> u64 {
        let meant = self.buckets.iter().filter(|(bucket, _)| is_meant(**bucket));
        let present = |(key, record): &(&Key, &Record)| key.space == Space::Values && record.is_present();
        meant.map(|(_, records)| records.iter().filter(present).count() as u64).sum()
    }

    /// Keys with values, in buckets that `is_meant`, that begin so and come behind `after`; sorted, about `bytes` of them.
    /// And whether there are more.
    pub fn keys(
        &self,
        prefix: &[u8],
        after: Option<&Blob>,
        bytes: usize,
        is_meant: impl Fn(Bucket) -> bool,
    ) -> (Vec<Blob>, bool) {
        let meant =
            self.buckets.iter().filter(|(bucket, _)| is_meant(**bucket)).flat_map(|(_, records)| records);
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

    /// What is in these buckets, behind `after` in the first of them, up to the size of a message; and how many of the
    /// buckets that finishes.
    pub fn export(&mut self, buckets: &[Bucket], after: Option<&Key>) -> (Vec<Carried>, u32) {
        let (mut records, mut bytes, mut from) = (Vec::new(), 0, after);
        for (finished, bucket) in buckets.iter().enumerate() {
            let lower = from.take().map_or(Bound::Unbounded, Bound::Excluded);
            let held = self.buckets.get_mut(bucket);
            for (key, record) in held.into_iter().flat_map(|held| held.range_mut((lower, Bound::Unbounded))) {
                // One that is larger travels alone: with others it might be more than a message holds.
                bytes += cost(key, record);
                if bytes > STORE_HANDOVER_BYTES as u64 && !records.is_empty() {
                    return (records, finished as u32);
                }
                records.push(record.carried(key));
            }
        }
        (records, buckets.len() as u32)
    }

    /// Takes what was fetched for these buckets in place of what was in them.
    pub fn replace(&mut self, fetched: BTreeMap<Bucket, Vec<Carried>>) {
        for (bucket, carried) in fetched {
            let fresh: Records = carried.into_iter().map(Record::received).collect();
            self.bytes += fresh.iter().map(|(key, record)| cost(key, record)).sum::<u64>();
            if let Some(old) = self.buckets.insert(bucket, fresh) {
                self.bytes -= old.iter().map(|(key, record)| cost(key, record)).sum::<u64>();
            }
        }
    }

    /// Forgets buckets that are not `kept`.
    pub fn forget(&mut self, is_kept: impl Fn(Bucket) -> bool) {
        let mut freed = 0;
        self.buckets.retain(|bucket, records| {
            let kept = is_kept(*bucket);
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
