//! A client of etcd's v3 API: keys, transactions, leases and watches, no more.
//!
//! # The problem
//!
//! What must survive every process of ours can be kept in an etcd that a site runs anyway: the register of a rendezvous,
//! the few durable facts of a coordinator, the lease by which one of several coordinators reigns. All of them need the
//! same four things, and errors that say what is wrong with an etcd: missing, slow, cut off, full, or no etcd at all.
//!
//! # The intuition
//!
//! An [`Etcd`] is one connection to one member. A call takes no longer than its time; whoever gets an error that
//! [may pass](EtcdError::may_pass) connects again, to the next member of the list, and looks how things stand. Nothing is
//! repeated behind the caller's back: a transaction whose answer was lost may have been carried out.
//!
//! # The invariant
//!
//! What a [`Watch`] tells is complete from the revision that it began at, or it ends with an error.
//!
//! # What it does not do
//!
//! It keeps no leases alive by itself and retries nothing: when and how often is a decision, and decisions live elsewhere.

mod connection;
mod error;
mod messages;
mod options;
mod transaction;

pub use error::EtcdError;
pub use options::{EtcdOptions, EtcdOptionsError};
pub use transaction::{Committed, Transaction};

use connection::Connection;
use messages as m;
use options::Security;
use std::time::Duration;
use tokio_stream::StreamExt as _;

/// One connection to a member of etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    connection: Connection,
    timeout: Duration,
}

/// A lease at etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseId(i64);

/// A key and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision that wrote it last.
    pub revision: i64,
    /// The revision that created it.
    pub created: i64,
    /// The lease that it ends with, if any.
    pub lease: Option<LeaseId>,
}

/// All keys of a prefix at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The revision of the whole store.
    pub revision: i64,
    /// What there is, by key.
    pub pairs: Vec<Pair>,
}

/// Something that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Written.
    Put(Pair),
    /// Deleted, by somebody or with its lease.
    Deleted {
        /// The key.
        key: Vec<u8>,
        /// The revision that deleted it.
        revision: i64,
    },
}

/// Changes of a prefix, as they come.
#[derive(Debug)]
pub struct Watch {
    answers: tonic::Streaming<m::WatchResponse>,
    /// Open for as long as the watch: its end would end the stream.
    _questions: tokio::sync::mpsc::Sender<m::WatchRequest>,
}

impl Etcd {
    /// Connects to the first of the endpoints that answers, beginning with number `first` of them.
    pub async fn connect(options: &EtcdOptions, first: usize) -> Result<Self, EtcdError> {
        let mut last = None;
        let count = options.endpoints().len();
        for number in 0..count {
            let endpoint = &options.endpoints()[(first + number) % count];
            let connecting = tokio::time::timeout(options.timeout, Self::connect_to(endpoint, options)).await;
            match connecting.unwrap_or_else(|_| Err(EtcdError::slow(endpoint, options.timeout))) {
                Ok(etcd) => return Ok(etcd),
                // Another endpoint will not know the user either.
                Err(error @ EtcdError::Unauthorized(_)) => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is an endpoint"))
    }

    async fn connect_to(endpoint: &str, options: &EtcdOptions) -> Result<Self, EtcdError> {
        let mut connection = Connection::connect(endpoint, options).await?;
        if let Some((name, password)) = &options.user {
            let asked = m::AuthenticateRequest { name: name.clone(), password: password.to_string() };
            let answered: m::AuthenticateResponse =
                connection.unary("/etcdserverpb.Auth/Authenticate", asked).await?;
            connection.set_token(&answered.token)?;
        }
        Ok(Self { connection, timeout: options.timeout })
    }

    /// All keys that begin with `prefix`, as the whole cluster agrees they are now.
    pub async fn range(&self, prefix: &[u8]) -> Result<Range, EtcdError> {
        let asked = m::RangeRequest { key: prefix.to_vec(), range_end: end_of(prefix) };
        let answered: m::RangeResponse =
            self.in_time(self.connection.unary("/etcdserverpb.KV/Range", asked)).await?;
        Ok(Range { revision: revision(answered.header.as_ref()), pairs: pairs(answered.kvs) })
    }

    /// Carries out a transaction, whole or not at all.
    pub async fn commit(&self, transaction: Transaction) -> Result<Committed, EtcdError> {
        let asked = transaction.into_request();
        let answered: m::TxnResponse =
            self.in_time(self.connection.unary("/etcdserverpb.KV/Txn", asked)).await?;
        Ok(Committed::from_response(answered))
    }

    /// A lease that lasts for `lease` (whole seconds, rounded up), or for as long as etcd grants it at least.
    pub async fn grant(&self, lease: Duration) -> Result<(LeaseId, Duration), EtcdError> {
        let ttl = i64::try_from(lease.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX).max(1);
        let asked = m::LeaseGrantRequest { ttl };
        let granted: m::LeaseGrantResponse =
            self.in_time(self.connection.unary("/etcdserverpb.Lease/LeaseGrant", asked)).await?;
        if granted.error.is_empty() {
            Ok((LeaseId(granted.id), seconds(granted.ttl)))
        } else {
            Err(EtcdError::Refused(granted.error))
        }
    }

    /// Renews a lease; how long it lasts from now, or `None` if it has run out.
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Option<Duration>, EtcdError> {
        let asked = tokio_stream::once(m::LeaseKeepAliveRequest { id: lease.0 });
        let keeping = async {
            let mut answers: tonic::Streaming<m::LeaseKeepAliveResponse> =
                self.connection.streaming("/etcdserverpb.Lease/LeaseKeepAlive", asked).await?;
            let answer = answers.message().await.map_err(|status| EtcdError::from_status(&status))?;
            answer.ok_or_else(|| EtcdError::Broken("etcd ended a keep-alive without an answer".to_owned()))
        };
        let kept = self.in_time(keeping).await?;
        Ok((kept.ttl > 0).then(|| seconds(kept.ttl)))
    }

    /// Ends a lease, and all keys with it. One that has run out is no error.
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        let asked = m::LeaseRevokeRequest { id: lease.0 };
        let revoked: Result<m::LeaseRevokeResponse, _> =
            self.in_time(self.connection.unary("/etcdserverpb.Lease/LeaseRevoke", asked)).await;
        match revoked {
            Ok(_) | Err(EtcdError::LeaseGone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Tells of every change of the keys that begin with `prefix`, from that revision on.
    pub async fn watch(&self, prefix: &[u8], from: i64) -> Result<Watch, EtcdError> {
        let (questions, asked) = tokio::sync::mpsc::channel(1);
        let create =
            m::WatchCreateRequest { key: prefix.to_vec(), range_end: end_of(prefix), start_revision: from };
        let first = m::WatchRequest { request: Some(m::WatchOrder::Create(create)) };
        questions.try_send(first).map_err(|_| EtcdError::Broken("no room for a watch".to_owned()))?;
        let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
        let opening = async {
            let mut watch = Watch {
                answers: self.connection.streaming("/etcdserverpb.Watch/Watch", asked).await?,
                _questions: questions,
            };
            // The first answer says that it watches, so that nothing is missed from here on.
            watch.answer().await?;
            Ok(watch)
        };
        self.in_time(opening).await
    }

    async fn in_time<T>(&self, call: impl Future<Output = Result<T, EtcdError>>) -> Result<T, EtcdError> {
        tokio::time::timeout(self.timeout, call).await.unwrap_or(Err(EtcdError::Slow(self.timeout)))
    }
}

impl Watch {
    /// The next changes. Giving up in the middle loses nothing.
    pub async fn next(&mut self) -> Result<Vec<Change>, EtcdError> {
        loop {
            let changes = self.answer().await?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    async fn answer(&mut self) -> Result<Vec<Change>, EtcdError> {
        let answer = self.answers.next().await;
        let answer = answer.ok_or_else(|| EtcdError::Broken("etcd ended a watch".to_owned()))?;
        let answer = answer.map_err(|status| EtcdError::from_status(&status))?;
        if answer.canceled {
            return Err(if answer.compact_revision > 0 {
                EtcdError::Compacted
            } else {
                EtcdError::Broken(format!("etcd ended a watch: {}", answer.cancel_reason))
            });
        }
        let change = |event: m::Event| {
            let pair = pair(event.kv?);
            Some(if event.kind == m::EventType::Delete as i32 {
                Change::Deleted { key: pair.key, revision: pair.revision }
            } else {
                Change::Put(pair)
            })
        };
        Ok(answer.events.into_iter().filter_map(change).collect())
    }
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(ttl.max(0).unsigned_abs())
}

fn revision(header: Option<&m::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

fn pairs(kvs: Vec<m::KeyValue>) -> Vec<Pair> {
    kvs.into_iter().map(pair).collect()
}

fn pair(kv: m::KeyValue) -> Pair {
    Pair {
        key: kv.key,
        value: kv.value,
        revision: kv.mod_revision,
        created: kv.create_revision,
        lease: (kv.lease != 0).then_some(LeaseId(kv.lease)),
    }
}

/// The first key after all that begin with `prefix`: etcd's ranges are half open.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All keys there are.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_key_that_does_not_begin_with_it() {
        assert_eq!(end_of(b"ab"), b"ac");
        assert_eq!(end_of(&[b'a', 0xff, 0xff]), b"b");
        assert_eq!(end_of(&[0xff]), [0]);
        assert_eq!(end_of(b""), [0]);
    }
}
