//! The operations of a store, for a caller who says how long each may take.
//!
//! A call has one deadline, however many messages it takes and however many keys it is about: what is asked side by side
//! shares it, and what is asked one after the other gets what is left. So whoever waits ten seconds for ten keys waits ten
//! seconds.
//!
//! An operation is written down once, with `operations!`, and is there twice: within a time that the caller gives
//! ([`Within`]), and within the default of its [`Store`]. Those that wait for others take a time from the caller of the store
//! too, and are written out.

use super::engine::What;
use super::{Store, StoreError, TIMEOUT_MAX};
use crate::sync::Arc;
use outlast_proto::limits::{STORE_KEY_BYTES_MAX, STORE_VALUE_BYTES_MAX};
use outlast_proto::store::Failure;
use outlast_proto::wire::store::operation::{Answer, Key, Operation};
use std::time::{Duration, Instant};

/// As much of a key that is too long is shown.
const SHOWN_MAX: usize = 32;

/// A store whose calls may each take that long: see [`Store::within`].
#[derive(Clone, Copy, Debug)]
pub struct Within<'a> {
    store: &'a Store,
    timeout: Duration,
}

/// Operations of a [`Store`] and of [`Within`]. The first name stands for the latter.
macro_rules! operations {
    ($(
        $(#[$about:meta])*
        fn $name:ident($within:ident $(, $argument:ident: $kind:ty)* $(,)?) -> $result:ty $body:block
    )*) => {
        impl Within<'_> {
            $(
                $(#[$about])*
                pub fn $name(&self $(, $argument: $kind)*) -> $result {
                    let $within = self;
                    $body
                }
            )*
        }

        impl Store {
            $(
                $(#[$about])*
                pub fn $name(&self $(, $argument: $kind)*) -> $result {
                    self.within(self.timeout).$name($($argument),*)
                }
            )*
        }
    };
}

operations! {
    /// Gives a key a value.
    fn set(within, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        within.one(value_key(key)?, Operation::Set(value.into().into())).map(drop)
    }

    /// The value of a key, if it has one now.
    fn look(within, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
        within.one(value_key(key)?, Operation::Look).map(bytes)
    }

    /// Whether all of these keys have values now.
    fn check(within, keys: &[impl AsRef<[u8]>]) -> Result<bool, StoreError> {
        let calls = keys.iter().map(|key| Ok((value_key(key)?, Operation::Check)));
        let answers = within.all(calls.collect::<Result<_, StoreError>>()?)?;
        Ok(answers.into_iter().all(|answer| answer == Answer::Truth(true)))
    }

    /// Adds to the number that a key holds as decimal text; no value counts as zero. The sum.
    fn add(within, key: impl AsRef<[u8]>, amount: i64) -> Result<i64, StoreError> {
        within.one(value_key(key)?, Operation::Add(amount)).map(number)
    }

    /// Gives a key the value `desired` if it has the value `expected`; one without a value counts as having the empty
    /// one. The value that it has then; `expected` if it has none.
    fn compare_set(
        within,
        key: impl AsRef<[u8]>,
        expected: impl Into<Vec<u8>>,
        desired: impl Into<Vec<u8>>,
    ) -> Result<Vec<u8>, StoreError> {
        let operation = Operation::CompareSet(expected.into().into(), desired.into().into());
        within.one(value_key(key)?, operation).map(|answer| bytes(answer).unwrap_or_default())
    }

    /// Writes behind the value of a key.
    fn append(within, key: impl AsRef<[u8]>, more: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        within.one(value_key(key)?, Operation::Append(more.into().into())).map(drop)
    }

    /// Takes the value of a key away. Whether it had one.
    fn delete_key(within, key: impl AsRef<[u8]>) -> Result<bool, StoreError> {
        within.one(value_key(key)?, Operation::Delete).map(|answer| answer == Answer::Truth(true))
    }

    /// How many keys have values. Not atomic.
    fn num_keys(within) -> Result<u64, StoreError> {
        let answers = within.store.calls(vec![What::Count], within.timeout)?;
        Ok(answers.into_iter().map(|answer| number(answer) as u64).sum())
    }

    /// The keys that begin with `prefix`, sorted. Not atomic.
    fn keys(within, prefix: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>, StoreError> {
        let answers = within.store.calls(vec![What::Keys(prefix.as_ref().to_vec())], within.timeout)?;
        let keys = answers.into_iter().flat_map(|answer| match answer {
            Answer::Keys(keys, _) => keys,
            _ => Vec::new(),
        });
        Ok(keys.map(|key| key.to_vec()).collect())
    }

    /// The values of several keys, as soon as all have one. Not atomic.
    fn multi_get(within, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Vec<u8>>, StoreError> {
        let calls = keys.iter().map(|key| Ok((value_key(key)?, Operation::Get)));
        let answers = within.all(calls.collect::<Result<_, StoreError>>()?)?;
        Ok(answers.into_iter().map(|answer| bytes(answer).unwrap_or_default()).collect())
    }

    /// Gives several keys values. Not atomic.
    fn multi_set(
        within,
        pairs: impl IntoIterator<Item = (impl AsRef<[u8]>, impl Into<Vec<u8>>)>,
    ) -> Result<(), StoreError> {
        let calls =
            pairs.into_iter().map(|(key, value)| Ok((value_key(key)?, Operation::Set(value.into().into()))));
        within.all(calls.collect::<Result<_, StoreError>>()?).map(drop)
    }

    /// Puts an element behind the last of a queue.
    fn queue_push(within, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        within.one(queue_key(key)?, Operation::Push(value.into().into())).map(drop)
    }

    /// Takes the first element of a queue, if there is one now.
    fn queue_try_pop(within, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
        within.one(queue_key(key)?, Operation::Pop).map(bytes)
    }

    /// How many elements a queue has.
    fn queue_len(within, key: impl AsRef<[u8]>) -> Result<u64, StoreError> {
        within.one(queue_key(key)?, Operation::Length).map(|answer| number(answer) as u64)
    }
}

/// Operations that wait for others: how long, each call says; without a time it is the default.
impl Store {
    /// The value of a key, as soon as it has one.
    pub fn get(&self, key: impl AsRef<[u8]>, timeout: Option<Duration>) -> Result<Vec<u8>, StoreError> {
        self.within(timeout.unwrap_or(self.timeout)).get(key)
    }

    /// Waits until all of these keys have values.
    pub fn wait(&self, keys: &[impl AsRef<[u8]>], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.within(timeout.unwrap_or(self.timeout)).wait(keys)
    }

    /// Takes the first element of a queue, as soon as there is one.
    pub fn queue_pop(&self, key: impl AsRef<[u8]>, timeout: Option<Duration>) -> Result<Vec<u8>, StoreError> {
        self.within(timeout.unwrap_or(self.timeout)).queue_pop(key)
    }
}

impl<'a> Within<'a> {
    pub(super) fn new(store: &'a Store, timeout: Duration) -> Self {
        Self { store, timeout: timeout.min(TIMEOUT_MAX) }
    }

    /// See [`Store::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Vec<u8>, StoreError> {
        self.one(value_key(key)?, Operation::Get).map(|answer| bytes(answer).unwrap_or_default())
    }

    /// See [`Store::wait`].
    pub fn wait(&self, keys: &[impl AsRef<[u8]>]) -> Result<(), StoreError> {
        let calls = keys.iter().map(|key| Ok((value_key(key)?, Operation::Await)));
        self.all(calls.collect::<Result<_, StoreError>>()?).map(drop)
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

    fn one(&self, key: Key, operation: Operation) -> Result<Answer, StoreError> {
        let answers = self.all(vec![(key, operation)])?;
        Ok(answers.into_iter().next().unwrap_or(Answer::Nothing))
    }

    fn all(&self, calls: Vec<(Key, Operation)>) -> Result<Vec<Answer>, StoreError> {
        for (key, operation) in &calls {
            check_value(key, operation)?;
        }
        let calls = calls.into_iter().map(|(key, operation)| What::One(key, operation)).collect();
        self.store.calls(calls, self.timeout)
    }
}

pub(super) fn bounded(
    what: &'static str,
    bytes: usize,
    limit: usize,
    of: impl FnOnce() -> String,
) -> Result<(), StoreError> {
    if bytes > limit { Err(StoreError::TooLong { what, of: of(), bytes, limit }) } else { Ok(()) }
}

pub(super) fn value_key(key: impl AsRef<[u8]>) -> Result<Key, StoreError> {
    check_key(key.as_ref())?;
    Ok(Key::value(key.as_ref()))
}

fn queue_key(key: impl AsRef<[u8]>) -> Result<Key, StoreError> {
    check_key(key.as_ref())?;
    Ok(Key::queue(key.as_ref()))
}

fn check_key(key: &[u8]) -> Result<(), StoreError> {
    bounded("a key", key.len(), STORE_KEY_BYTES_MAX, || {
        format!(", which begins with {:?}", Key::value(&key[..SHOWN_MAX.min(key.len())]))
    })
}

pub(super) fn check_value(key: &Key, operation: &Operation) -> Result<(), StoreError> {
    let of = || format!(" for {key:?}");
    match operation {
        Operation::Set(value) | Operation::Append(value) | Operation::Push(value) => {
            bounded("a value", value.len(), STORE_VALUE_BYTES_MAX, of)
        }
        Operation::CompareSet(expected, desired) => {
            bounded("a value", expected.len().max(desired.len()), STORE_VALUE_BYTES_MAX, of)
        }
        _ => Ok(()),
    }
}

pub(super) fn bytes(answer: Answer) -> Option<Vec<u8>> {
    match answer {
        Answer::Value(value) => Some(Arc::unwrap_or_clone(value.0)),
        _ => None,
    }
}

pub(super) fn number(answer: Answer) -> i64 {
    match answer {
        Answer::Number(number) => number,
        _ => 0,
    }
}
