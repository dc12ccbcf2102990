//! Looking into a store without being a member of it (rule 31).
//!
//! A client asks the coordinator who is in the store, and one of the members to do what it wants. Should that member go
//! away meanwhile another one is asked, under the same name: it is done once (decision 38). The view does not change for
//! it, and nobody holds anything for it.
//!
//! Several threads may ask at once. With every call the store is told which of the earlier ones on that key will not come
//! again, so that it can forget their answers; a call that is still under way in another thread is none of those, or it
//! would be dropped when it arrives after its successor.
//!
//! A call has one deadline, around everything: looking who is there, asking one member after the other, waiting for an
//! answer. That nobody is in the store is said only by a coordinator that waits for nobody, and only of a call that nobody
//! was asked to do: one that has just started knows nothing, and a store without members may have had some.
//!
//! What it does not do: carry values above what one frame holds, 16 MiB. Members do.

use super::shared::random;
use super::within::{bytes, check_value, number, value_key};
use super::{StoreError, TIMEOUT_MAX};
use crate::coordinator::{ControlFrames, Unreached, dial_plane};
use crate::port;
use crate::runtime::{self, Plane};
use crate::security::{Credentials, ProcessKey, TlsIdentity};
use crate::sync::{Mutex, lock};
use outlast_proto::id::RunId;
use outlast_proto::store::Failure;
use outlast_proto::wire::store::client::{FromClient, ToClient};
use outlast_proto::wire::store::mesh::Request;
use outlast_proto::wire::store::operation::{Answer, Key, Operation};
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::store::{CallName, ClientId, View};
use outlast_proto::wire::{decode, encode};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long dialling, the hello and the coordinator's answer may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Between two passes in which no member could be asked.
const PAUSE: Duration = Duration::from_millis(100);
/// A member answers this much after the deadline at the latest, with the reason.
const GRACE: Duration = Duration::from_secs(1);

/// Somebody who asks and is no member. Calls block, each until its timeout.
pub struct Client {
    coordinator: String,
    identity: TlsIdentity,
    client: ClientId,
    numbers: Mutex<Numbers>,
}

/// Which numbers were given to calls, and which of the calls that change a key have not ended.
#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    changing: BTreeMap<Key, BTreeSet<u64>>,
}

impl Numbers {
    /// Every call below this that changes the key has ended, with an answer or because it was given up, and is never sent
    /// again. Calls that wait without changing anything keep nobody from forgetting (decision 38).
    fn ended_below(&self, key: &Key, number: u64) -> u64 {
        self.changing.get(key).and_then(BTreeSet::first).copied().unwrap_or(number)
    }
}

/// A call's number, for as long as it is under way.
struct Numbered<'a> {
    numbers: &'a Mutex<Numbers>,
    number: u64,
    /// What it changes.
    key: Option<Key>,
}

impl<'a> Numbered<'a> {
    fn begin(numbers: &'a Mutex<Numbers>, key: Option<Key>) -> Self {
        let mut given = lock(numbers);
        given.last += 1;
        let number = given.last;
        if let Some(key) = &key {
            given.changing.entry(key.clone()).or_default().insert(number);
        }
        drop(given);
        Self { numbers, number, key }
    }
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        let Some(key) = &self.key else { return };
        let mut given = lock(self.numbers);
        if let Some(under_way) = given.changing.get_mut(key) {
            under_way.remove(&self.number);
            if under_way.is_empty() {
                given.changing.remove(key);
            }
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("coordinator", &self.coordinator).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of that run's store. Nothing is opened yet.
    pub fn new(
        coordinator: impl Into<String>,
        run: &RunId,
        credentials: impl Into<Credentials>,
    ) -> Result<Self, StoreError> {
        let credentials = credentials.into().or_environment()?;
        let keys = credentials.keys(run).ok_or(StoreError::MissingSecret)?;
        let identity = credentials.identity(&keys, &ProcessKey::generate())?;
        let client = ClientId(random());
        Ok(Self { coordinator: coordinator.into(), identity, client, numbers: Mutex::default() })
    }

    /// The value of a key, as soon as it has one.
    pub fn get(&self, key: impl AsRef<[u8]>, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let answer = self.one(value_key(key)?, Operation::Get, timeout)?;
        Ok(bytes(answer).unwrap_or_default())
    }

    /// Gives a key a value.
    pub fn set(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Vec<u8>>,
        timeout: Duration,
    ) -> Result<(), StoreError> {
        self.one(value_key(key)?, Operation::Set(value.into().into()), timeout).map(drop)
    }

    /// Waits until a key has a value.
    pub fn wait(&self, key: impl AsRef<[u8]>, timeout: Duration) -> Result<(), StoreError> {
        self.one(value_key(key)?, Operation::Await, timeout).map(drop)
    }

    /// Adds to the number that a key holds. The sum.
    pub fn add(&self, key: impl AsRef<[u8]>, amount: i64, timeout: Duration) -> Result<i64, StoreError> {
        self.one(value_key(key)?, Operation::Add(amount), timeout).map(number)
    }

    /// See [`Store::compare_set`](super::Store::compare_set).
    pub fn compare_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl Into<Vec<u8>>,
        desired: impl Into<Vec<u8>>,
        timeout: Duration,
    ) -> Result<Vec<u8>, StoreError> {
        let operation = Operation::CompareSet(expected.into().into(), desired.into().into());
        let answer = self.one(value_key(key)?, operation, timeout)?;
        Ok(bytes(answer).unwrap_or_default())
    }

    /// Takes the value of a key away. Whether it had one.
    pub fn delete_key(&self, key: impl AsRef<[u8]>, timeout: Duration) -> Result<bool, StoreError> {
        Ok(self.one(value_key(key)?, Operation::Delete, timeout)? == Answer::Truth(true))
    }

    /// The keys that begin with `prefix`, sorted. Not atomic.
    pub fn keys(&self, prefix: impl AsRef<[u8]>, timeout: Duration) -> Result<Vec<Vec<u8>>, StoreError> {
        let prefix = prefix.as_ref().to_vec();
        let asked =
            |call, patience_ms, _| FromClient::Keys { call, prefix: prefix.clone().into(), patience_ms };
        match self.ask(asked, None, timeout)? {
            Answer::Keys(keys, _) => Ok(keys.into_iter().map(|key| key.to_vec()).collect()),
            _ => Ok(Vec::new()),
        }
    }

    fn one(&self, key: Key, operation: Operation, timeout: Duration) -> Result<Answer, StoreError> {
        check_value(&operation)?;
        let asked = |call: CallName, patience_ms, again| {
            let (key, operation) = (key.clone(), operation.clone());
            let answered_below = lock(&self.numbers).ended_below(&key, call.number);
            FromClient::Ask(Request { call, answered_below, key, operation, patience_ms, seen: None, again })
        };
        let changed = operation.changes().then(|| key.clone());
        match self.ask(asked, changed, timeout)? {
            // The member that was asked knows the value that it was to have.
            Answer::Refused(objection) => Err(StoreError::Told(objection.to_string())),
            answer => Ok(answer),
        }
    }

    fn ask(
        &self,
        asked: impl Fn(CallName, u64, bool) -> FromClient,
        changed: Option<Key>,
        timeout: Duration,
    ) -> Result<Answer, StoreError> {
        let numbered = Numbered::begin(&self.numbers, changed);
        let call = CallName { client: self.client, number: numbered.number };
        let timeout = timeout.min(TIMEOUT_MAX);
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let asking = async {
            let mut cause = "nobody was asked yet".to_owned();
            let (mut was_asked, mut passes) = (false, 0_u32);
            loop {
                passes = passes.saturating_add(1);
                let members = match self.look(left()).await {
                    Ok(Seen::View(view)) => view.members,
                    Ok(Seen::Nobody) if !was_asked => {
                        return Err(StoreError::NoStore { coordinator: self.coordinator.clone() });
                    }
                    Ok(Seen::Nobody) => {
                        cause = String::from("everybody who was in the store is gone");
                        Vec::new()
                    }
                    Ok(Seen::NotYet(waits_for)) => {
                        cause = format!("the store of {} has no view yet: {waits_for}", self.coordinator);
                        Vec::new()
                    }
                    Err(unreached) if unreached.is_final() && !was_asked => {
                        let (coordinator, cause) = (self.coordinator.clone(), unreached.to_string());
                        return Err(StoreError::Refused { coordinator, cause });
                    }
                    Err(unreached) => {
                        // The last question may have had no time for an answer: what was known before says more.
                        if !left().is_zero() || passes == 1 {
                            let coordinator = &self.coordinator;
                            cause = format!("the coordinator {coordinator} cannot be reached: {unreached}");
                        }
                        Vec::new()
                    }
                };
                for member in members {
                    if left().is_zero() {
                        break;
                    }
                    let words = member.words();
                    let asked_of = match self.open(member.address, port::STORE_CLIENT, left()).await {
                        Ok(frames) => {
                            let patience_ms = u64::try_from(left().as_millis()).unwrap_or(u64::MAX);
                            let message = asked(call, patience_ms, was_asked);
                            was_asked = true;
                            ask_over(frames, &message, call, left()).await
                        }
                        Err(error) => Err(error),
                    };
                    match asked_of {
                        Ok(answer) => return answer,
                        Err(error) => cause = format!("{words} cannot be asked: {error}"),
                    }
                }
                if left().is_zero() {
                    return Err(StoreError::Unreachable { timeout, cause });
                }
                tokio::time::sleep(PAUSE.min(left())).await;
            }
        };
        runtime::of(Plane::Store)?.block_on(asking)
    }

    /// Who is in the store, as the coordinator says that decides on views.
    async fn look(&self, left: Duration) -> Result<Seen, Unreached> {
        let patience = TIMEOUT.min(left);
        let asking = async {
            let dialled =
                dial_plane(port::STORE_VIEWS, &self.coordinator, &self.identity, None, patience, TIMEOUT)
                    .await;
            let mut frames = dialled?.frames;
            frames.send(&encode(&ToRegistrar::Look)).await.map_err(|error| error.to_string())?;
            loop {
                let hung_up = || "it hung up".to_owned();
                let bytes = frames.next().await.map_err(|error| error.to_string())?.ok_or_else(hung_up)?;
                let told = decode::<FromRegistrar>(&bytes).map_err(|error| error.to_string())?;
                if let FromRegistrar::Shown { view, waits_for, .. } = told {
                    let nobody = || waits_for.map_or(Seen::Nobody, Seen::NotYet);
                    return Ok(view.map_or_else(nobody, Seen::View));
                }
            }
        };
        let late = |_| Unreached::from(format!("no answer within {patience:?}"));
        tokio::time::timeout(patience, asking).await.map_err(late)?
    }

    async fn open(&self, address: SocketAddr, plane: &[u8], left: Duration) -> Result<ControlFrames, String> {
        let patience = TIMEOUT.min(left);
        let opening = async {
            let stream = port::connect(address, plane, &self.identity, patience).await;
            let stream = stream.map_err(|error| error.to_string())?;
            let greeted = port::greet(stream, self.identity.peer(), patience).await;
            Ok(greeted.map_err(|error| error.to_string())?.frames)
        };
        let late = |_| format!("no answer within {patience:?}");
        tokio::time::timeout(patience, opening).await.map_err(late)?
    }
}

/// What a coordinator says of a store.
enum Seen {
    View(View),
    /// There is no view, and nobody is expected.
    Nobody,
    /// There is none yet: what is waited for.
    NotYet(String),
}

/// An answer of the store, good or bad; or why the member at the other end could not be asked.
async fn ask_over(
    mut frames: ControlFrames,
    message: &FromClient,
    call: CallName,
    left: Duration,
) -> Result<Result<Answer, StoreError>, String> {
    let asking = async {
        frames.send(&encode(message)).await.map_err(|error| error.to_string())?;
        loop {
            let bytes = frames.next().await.map_err(|error| error.to_string())?.ok_or("it hung up")?;
            match decode::<ToClient>(&bytes).map_err(|error| error.to_string())? {
                ToClient::Answered { call: answered, answer } if answered == call => {
                    return Ok(Ok(answer));
                }
                ToClient::Failed { call: failed, timed_out, text } if failed == call => {
                    return Ok(Err(if timed_out {
                        Failure::TimedOut(text).into()
                    } else {
                        StoreError::Told(text)
                    }));
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(left + GRACE, asking).await.map_err(|_| "it does not answer".to_owned())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_under_way_is_never_counted_among_those_that_are_over() {
        let numbers = Mutex::new(Numbers::default());
        let (key, other) = (Key::value("key"), Key::value("other"));
        let ended_below = |key: &Key, number| lock(&numbers).ended_below(key, number);
        let [one, two] = [(); 2].map(|()| Numbered::begin(&numbers, Some(key.clone())));
        let elsewhere = Numbered::begin(&numbers, Some(other.clone()));
        let waits = Numbered::begin(&numbers, None);
        assert_eq!([one.number, two.number, elsewhere.number, waits.number], [1, 2, 3, 4]);
        assert_eq!(ended_below(&key, 2), 1, "the first is still on its way");
        assert_eq!(ended_below(&key, 4), 1, "whoever asks");
        drop(two);
        assert_eq!(ended_below(&key, 5), 1, "its successor's end changes nothing");
        drop(one);
        assert_eq!(ended_below(&key, 5), 5, "nobody waits for what is asked of another key, or only waits");
        assert_eq!(ended_below(&other, 5), 3);
        drop(elsewhere);
        assert!(lock(&numbers).changing.is_empty());
    }
}
