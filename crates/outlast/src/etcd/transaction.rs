//! Transactions: if all conditions hold, do this, otherwise that; at one revision.

use super::messages as m;
use super::{LeaseId, Pair, end_of, pairs, revision};

/// A transaction that is being described.
#[derive(Clone, Debug, Default)]
#[must_use = "a transaction does nothing until it is committed"]
pub struct Transaction(m::TxnRequest);

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Whether the conditions held.
    pub held: bool,
    /// The revision of the whole store afterwards.
    pub revision: i64,
    /// What was read, after what was written.
    pub pairs: Vec<Pair>,
}

impl Transaction {
    /// One without conditions.
    pub fn new() -> Self {
        Self::default()
    }

    /// If that revision wrote the key last; zero: if there is no such key.
    pub fn when_revision(self, key: &[u8], revision: i64) -> Self {
        self.when(key, m::CompareTarget::Mod, m::CompareWith::ModRevision(revision))
    }

    /// If that revision created the key; zero: if there is no such key.
    pub fn when_created(self, key: &[u8], revision: i64) -> Self {
        self.when(key, m::CompareTarget::Create, m::CompareWith::CreateRevision(revision))
    }

    /// If the key is there, and ends with that lease.
    pub fn when_lease(self, key: &[u8], lease: LeaseId) -> Self {
        self.when(key, m::CompareTarget::Lease, m::CompareWith::Lease(lease.0))
    }

    fn when(mut self, key: &[u8], target: m::CompareTarget, with: m::CompareWith) -> Self {
        self.0.compare.push(m::Compare {
            result: m::CompareResult::Equal as i32,
            target: target as i32,
            key: key.to_vec(),
            with: Some(with),
        });
        self
    }

    /// Then write the key, to end with that lease if there is one.
    pub fn put(mut self, key: &[u8], value: &[u8], lease: Option<LeaseId>) -> Self {
        let (key, value, lease) = (key.to_vec(), value.to_vec(), lease.map_or(0, |lease| lease.0));
        self.0.success.push(op(m::Operation::Put(m::PutRequest { key, value, lease })));
        self
    }

    /// Then delete the key.
    pub fn delete(mut self, key: &[u8]) -> Self {
        let request = m::DeleteRangeRequest { key: key.to_vec(), range_end: Vec::new() };
        self.0.success.push(op(m::Operation::DeleteRange(request)));
        self
    }

    /// In either case read all keys that begin with `prefix`.
    pub fn read(mut self, prefix: &[u8]) -> Self {
        let request = m::RangeRequest { key: prefix.to_vec(), range_end: end_of(prefix) };
        self.0.success.push(op(m::Operation::Range(request.clone())));
        self.0.failure.push(op(m::Operation::Range(request)));
        self
    }

    pub(super) fn into_request(self) -> m::TxnRequest {
        self.0
    }
}

impl Committed {
    pub(super) fn from_response(response: m::TxnResponse) -> Self {
        let read = response.responses.into_iter().filter_map(|response| match response.response {
            Some(m::OperationResponse::Range(range)) => Some(pairs(range.kvs)),
            _ => None,
        });
        Self {
            held: response.succeeded,
            revision: revision(response.header.as_ref()),
            pairs: read.flatten().collect(),
        }
    }
}

fn op(operation: m::Operation) -> m::RequestOp {
    m::RequestOp { request: Some(operation) }
}
