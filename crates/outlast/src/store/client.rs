//! Looking into a store without being a member of it (rule 31).
//!
//! A client asks the coordinator who is in the store, and one of the members to do what it wants. Should that member go
//! away meanwhile another one is asked, under the same name: it is done once (decision 38). The view does not change for
//! it, and nobody holds anything for it.
//!
//! A member that is stopped, or whose host is gone, does not say that it is away. So whoever waits long for an answer calls
//! at the same member a second time now and then, and looks whether it is still in the view. As long as a member is there, the
//! call stays with it: a call that was sent twice may have been done by somebody who has forgotten it, and is then not
//! done any more.
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
use outlast_proto::wire::store::{CallName, ClientId, StoreMember, View};
use outlast_proto::wire::{decode, encode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long dialling, the hello and the coordinator's answer may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Half of the time that is left is enough to open a stream to one member, unless that is less than this.
const OPENS_WITHIN: Duration = Duration::from_secs(1);
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
    /// A call was answered, whatever the answer: there is a store, and it can be reached.
    was_answered: AtomicBool,
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
        Ok(Self {
            coordinator: coordinator.into(),
            identity,
            client,
            numbers: Mutex::default(),
            was_answered: AtomicBool::new(false),
        })
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
        check_value(&key, &operation)?;
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
        let until = Deadline(Instant::now() + timeout);
        let asking = async {
            let mut trouble = Trouble::default();
            let mut was_asked = false;
            while !until.is_over() {
                let members = match self.look(until.left()).await {
                    Ok(Seen::View(view)) => view.members,
                    Ok(Seen::Nobody) if !was_asked => {
                        return Err(StoreError::NoStore { coordinator: self.coordinator.clone() });
                    }
                    Ok(Seen::Nobody) => {
                        trouble.found("everybody who was in the store is gone".to_owned());
                        Vec::new()
                    }
                    Ok(Seen::NotYet(waits_for)) => {
                        let coordinator = &self.coordinator;
                        trouble.found(format!("the store of {coordinator} has no view yet: {waits_for}"));
                        Vec::new()
                    }
                    Err(unreached) if unreached.is_final() && !was_asked => {
                        let (coordinator, cause) = (self.coordinator.clone(), unreached.to_string());
                        return Err(StoreError::Refused { coordinator, cause });
                    }
                    Err(unreached) => {
                        let coordinator = &self.coordinator;
                        trouble.met(
                            format!("the coordinator {coordinator} cannot be reached: {unreached}"),
                            until,
                        );
                        Vec::new()
                    }
                };
                for member in members {
                    if until.is_over() {
                        break;
                    }
                    let asked_of = match self.open(&member, until.left_for_one()).await {
                        Ok(frames) => {
                            let patience_ms = u64::try_from(until.left().as_millis()).unwrap_or(u64::MAX);
                            let message = asked(call, patience_ms, was_asked);
                            was_asked = true;
                            tokio::select! {
                                biased;
                                answered = ask_over(frames, &message, call, until.left()) => answered,
                                why = self.missed(&member, until) => Err(why),
                            }
                        }
                        Err(error) => Err(error),
                    };
                    match asked_of {
                        Ok(answer) => {
                            self.was_answered.store(true, Ordering::Relaxed);
                            return answer;
                        }
                        Err(error) => {
                            trouble.met(format!("{} cannot be asked: {error}", member.words()), until);
                        }
                    }
                }
                tokio::time::sleep(PAUSE.min(until.left())).await;
            }
            Err(trouble.error(timeout, self.was_answered.load(Ordering::Relaxed)))
        };
        runtime::of(Plane::Store)?.block_on(asking)
    }

    /// Returns when a member is missed, with how that was found out: it does not answer another call, or is out of the view.
    /// Where so little time is left that it could be found out only in vain, never.
    async fn missed(&self, member: &StoreMember, until: Deadline) -> String {
        loop {
            tokio::time::sleep(TIMEOUT).await;
            if until.left() < TIMEOUT {
                return std::future::pending().await;
            }
            if let Err(error) = self.open(member, until.left_for_one()).await {
                return error;
            }
            let is_it = |other: &StoreMember| other.id == member.id;
            if let Ok(Seen::View(view)) = self.look(until.left()).await
                && !view.members.iter().any(is_it)
            {
                return "it is not in the view any more".to_owned();
            }
        }
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

    async fn open(&self, member: &StoreMember, patience: Duration) -> Result<ControlFrames, String> {
        let opening = async {
            let stream = port::connect(member.address, port::STORE_CLIENT, &self.identity, patience).await;
            let stream = stream.map_err(|error| error.to_string())?;
            let greeted = port::greet(stream, self.identity.peer(), patience).await;
            Ok(greeted.map_err(|error| error.to_string())?.frames)
        };
        let late = |_| format!("no answer within {patience:?}");
        tokio::time::timeout(patience, opening).await.map_err(late)?
    }
}

/// When a call's time is over.
#[derive(Clone, Copy)]
struct Deadline(Instant);

impl Deadline {
    fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// How much of it one member may take to open a stream: others may have to be asked, too.
    fn left_for_one(self) -> Duration {
        let left = self.left();
        TIMEOUT.min((left / 2).max(left.min(OPENS_WITHIN)))
    }

    fn is_over(self) -> bool {
        self.left().is_zero()
    }
}

/// Why a call has not been answered.
#[derive(Default)]
struct Trouble {
    /// What is known of it.
    cause: Option<String>,
    /// It is not only that there was too little time.
    is_found: bool,
}

impl Trouble {
    fn found(&mut self, cause: String) {
        (self.cause, self.is_found) = (Some(cause), true);
    }

    /// Somebody could not be asked, or did not answer. Whoever had no time left for that tells nothing: what was known before
    /// says more.
    fn met(&mut self, cause: String, until: Deadline) {
        if !until.is_over() {
            self.found(cause);
        } else if self.cause.is_none() {
            self.cause = Some(cause);
        }
    }

    /// The end of a call whose time is over. Of a store that has answered this client before it is not said that it cannot be
    /// reached, only because the last call had too little time for that.
    fn error(self, timeout: Duration, was_answered: bool) -> StoreError {
        let Some(cause) = self.cause else {
            return Failure::TimedOut(format!("no time was left to ask the store: {timeout:?}")).into();
        };
        if was_answered && !self.is_found {
            return Failure::TimedOut(format!("nobody answered within {timeout:?}: {cause}")).into();
        }
        StoreError::Unreachable { timeout, cause }
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
