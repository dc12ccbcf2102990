//! The operations of a store, for a caller who says how long each may take.
//!
//! A call has one deadline, however many messages it takes and however many keys it is about: what is asked side by side
//! shares it, and what is asked one after the other gets what is left. So whoever waits ten seconds for ten keys waits ten
//! seconds.
//!
//! The operations are written down here; those of [`Store`] are the same ones within its default.

use super::engine::What;
use super::{Store, StoreError, TIMEOUT_MAX, bytes, check_value, number, queue_key, value_key};
use outlast_proto::store::Failure;
use outlast_proto::wire::store::operation::{Answer, Key, Operation};
use std::time::{Duration, Instant};

/// A store whose calls may each take that long: see [`Store::within`].
#[derive(Clone, Copy, Debug)]
pub struct Within<'a> {
    store: &'a Store,
    timeout: Duration,
}

impl<'a> Within<'a> {
    pub(super) fn new(store: &'a Store, timeout: Duration) -> Self {
        Self { store, timeout: timeout.min(TIMEOUT_MAX) }
    }

    /// See [`Store::set`].
    pub fn set(&self, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        self.one(value_key(key)?, Operation::Set(value.into().into())).map(drop)
    }

    /// See [`Store::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Vec<u8>, StoreError> {
        self.one(value_key(key)?, Operation::Get).map(|answer| bytes(answer).unwrap_or_default())
    }

    /// See [`Store::look`].
    pub fn look(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
        self.one(value_key(key)?, Operation::Look).map(bytes)
    }

    /// See [`Store::wait`].
    pub fn wait(&self, keys: &[impl AsRef<[u8]>]) -> Result<(), StoreError> {
        let calls = keys.iter().map(|key| Ok((value_key(key)?, Operation::Await)));
        self.all(calls.collect::<Result<_, StoreError>>()?).map(drop)
    }

    /// See [`Store::check`].
    pub fn check(&self, keys: &[impl AsRef<[u8]>]) -> Result<bool, StoreError> {
        let calls = keys.iter().map(|key| Ok((value_key(key)?, Operation::Check)));
        let answers = self.all(calls.collect::<Result<_, StoreError>>()?)?;
        Ok(answers.into_iter().all(|answer| answer == Answer::Truth(true)))
    }

    /// See [`Store::add`].
    pub fn add(&self, key: impl AsRef<[u8]>, amount: i64) -> Result<i64, StoreError> {
        self.one(value_key(key)?, Operation::Add(amount)).map(number)
    }

    /// See [`Store::compare_set`].
    pub fn compare_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl Into<Vec<u8>>,
        desired: impl Into<Vec<u8>>,
    ) -> Result<Vec<u8>, StoreError> {
        let operation = Operation::CompareSet(expected.into().into(), desired.into().into());
        self.one(value_key(key)?, operation).map(|answer| bytes(answer).unwrap_or_default())
    }

    /// See [`Store::append`].
    pub fn append(&self, key: impl AsRef<[u8]>, more: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        self.one(value_key(key)?, Operation::Append(more.into().into())).map(drop)
    }

    /// See [`Store::delete_key`].
    pub fn delete_key(&self, key: impl AsRef<[u8]>) -> Result<bool, StoreError> {
        self.one(value_key(key)?, Operation::Delete).map(|answer| answer == Answer::Truth(true))
    }

    /// See [`Store::num_keys`].
    pub fn num_keys(&self) -> Result<u64, StoreError> {
        let answers = self.store.calls(vec![What::Count], self.timeout)?;
        Ok(answers.into_iter().map(|answer| number(answer) as u64).sum())
    }

    /// See [`Store::keys`].
    pub fn keys(&self, prefix: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>, StoreError> {
        let answers = self.store.calls(vec![What::Keys(prefix.as_ref().to_vec())], self.timeout)?;
        let keys = answers.into_iter().flat_map(|answer| match answer {
            Answer::Keys(keys, _) => keys,
            _ => Vec::new(),
        });
        Ok(keys.map(|key| key.to_vec()).collect())
    }

    /// See [`Store::multi_get`].
    pub fn multi_get(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Vec<u8>>, StoreError> {
        let calls = keys.iter().map(|key| Ok((value_key(key)?, Operation::Get)));
        let answers = self.all(calls.collect::<Result<_, StoreError>>()?)?;
        Ok(answers.into_iter().map(|answer| bytes(answer).unwrap_or_default()).collect())
    }

    /// See [`Store::multi_set`].
    pub fn multi_set(
        &self,
        pairs: impl IntoIterator<Item = (impl AsRef<[u8]>, impl Into<Vec<u8>>)>,
    ) -> Result<(), StoreError> {
        let calls =
            pairs.into_iter().map(|(key, value)| Ok((value_key(key)?, Operation::Set(value.into().into()))));
        self.all(calls.collect::<Result<_, StoreError>>()?).map(drop)
    }

    /// See [`Store::queue_push`].
    pub fn queue_push(&self, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        self.one(queue_key(key)?, Operation::Push(value.into().into())).map(drop)
    }

    /// See [`Store::queue_try_pop`].
    pub fn queue_try_pop(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
        self.one(queue_key(key)?, Operation::Pop).map(bytes)
    }

    /// See [`Store::queue_pop`].
    pub fn queue_pop(&self, key: impl AsRef<[u8]>) -> Result<Vec<u8>, StoreError> {
        let deadline = Instant::now() + self.timeout;
        let left = || Self::new(self.store, deadline.saturating_duration_since(Instant::now()));
        loop {
            left().one(queue_key(&key)?, Operation::Await)?;
            let left = left();
            if left.timeout.is_zero() {
                // An element that is taken now would be nobody's: the caller is told that its time was over.
                let text = format!(
                    "pop of {:?} timed out after {:?}: others took what came, and what came last came too late",
                    queue_key(&key)?,
                    self.timeout
                );
                return Err(Failure::TimedOut(text).into());
            }
            // Somebody else may have been faster.
            if let Some(value) = left.queue_try_pop(&key)? {
                return Ok(value);
            }
        }
    }

    /// See [`Store::queue_len`].
    pub fn queue_len(&self, key: impl AsRef<[u8]>) -> Result<u64, StoreError> {
        self.one(queue_key(key)?, Operation::Length).map(|answer| number(answer) as u64)
    }

    fn one(&self, key: Key, operation: Operation) -> Result<Answer, StoreError> {
        let answers = self.all(vec![(key, operation)])?;
        Ok(answers.into_iter().next().unwrap_or(Answer::Nothing))
    }

    fn all(&self, calls: Vec<(Key, Operation)>) -> Result<Vec<Answer>, StoreError> {
        for (_, operation) in &calls {
            check_value(operation)?;
        }
        let calls = calls.into_iter().map(|(key, operation)| What::One(key, operation)).collect();
        self.store.calls(calls, self.timeout)
    }
}
