//! Looking into a store without being a member of it (rule 31).
//!
//! A client asks the coordinator who is in the store, and one of the members to do what it wants. Should that member go
//! away meanwhile another one is asked, under the same name: it is done once (decision 38). The view does not change for
//! it, and nobody holds anything for it.
//!
//! What it does not do: carry values above what one frame holds, 16 MiB. Members do.

use super::engine::Letter;
use super::shared::{Shared, random};
use super::{StoreError, check_value, value_key};
use crate::coordinator::{ControlFrames, dial_plane};
use crate::port::{self, AuthenticatedStream};
use crate::runtime::{self, Plane};
use crate::security::{Credentials, ProcessKey, TlsIdentity};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::limits::FRAME_BYTES_MAX;
use outlast_proto::store::Failure;
use outlast_proto::wire::store::client::{FromClient, ToClient};
use outlast_proto::wire::store::mesh::Request;
use outlast_proto::wire::store::operation::{Answer, Key, Operation};
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::store::{CallName, ClientId, StoreMember, View};
use outlast_proto::wire::{decode, encode};
use std::net::SocketAddr;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long dialling, the hello and the coordinator's answer may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Between two passes in which no member could be asked.
const PAUSE: Duration = Duration::from_millis(100);
/// A member answers this much after the deadline at the latest, with the reason.
const GRACE: Duration = Duration::from_secs(1);
/// Answers that wait for one client to read them.
const ANSWERS_MAX: usize = 64;

/// Somebody who asks and is no member. Calls block, each until its timeout.
pub struct Client {
    coordinator: String,
    identity: TlsIdentity,
    client: ClientId,
    number: AtomicU64,
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
        Ok(Self { coordinator: coordinator.into(), identity, client, number: AtomicU64::new(0) })
    }

    /// The value of a key, as soon as it has one.
    pub fn get(&self, key: impl AsRef<[u8]>, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let answer = self.one(value_key(key)?, Operation::Get, timeout)?;
        Ok(super::bytes(answer).unwrap_or_default())
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
        self.one(value_key(key)?, Operation::Add(amount), timeout).map(super::number)
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
        Ok(super::bytes(answer).unwrap_or_default())
    }

    /// Takes the value of a key away. Whether it had one.
    pub fn delete_key(&self, key: impl AsRef<[u8]>, timeout: Duration) -> Result<bool, StoreError> {
        Ok(self.one(value_key(key)?, Operation::Delete, timeout)? == Answer::Truth(true))
    }

    /// The keys that begin with `prefix`, sorted. Not atomic.
    pub fn keys(&self, prefix: impl AsRef<[u8]>, timeout: Duration) -> Result<Vec<Vec<u8>>, StoreError> {
        let prefix = prefix.as_ref().to_vec();
        let asked = |call, patience_ms| FromClient::Keys { call, prefix: prefix.clone().into(), patience_ms };
        match self.ask(asked, timeout)? {
            Answer::Keys(keys, _) => Ok(keys.into_iter().map(|key| key.to_vec()).collect()),
            _ => Ok(Vec::new()),
        }
    }

    fn one(&self, key: Key, operation: Operation, timeout: Duration) -> Result<Answer, StoreError> {
        check_value(&operation)?;
        let asked = |call: CallName, patience_ms| {
            let (key, operation) = (key.clone(), operation.clone());
            FromClient::Ask(Request {
                call,
                answered_below: call.number,
                key,
                operation,
                patience_ms,
                seen: None,
            })
        };
        match self.ask(asked, timeout)? {
            // The member that was asked knows the value that it was to have.
            Answer::Refused(objection) => Err(StoreError::Told(objection.to_string())),
            answer => Ok(answer),
        }
    }

    fn ask(
        &self,
        asked: impl Fn(CallName, u64) -> FromClient,
        timeout: Duration,
    ) -> Result<Answer, StoreError> {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let call = CallName { client: self.client, number };
        let deadline = Instant::now() + timeout;
        let asking = async {
            let mut cause = "nobody was asked yet".to_owned();
            loop {
                let view = self.look().await;
                let members = match view {
                    Ok(Some(view)) => view.members,
                    Ok(None) => return Err(StoreError::NoStore { coordinator: self.coordinator.clone() }),
                    Err(unreachable) => {
                        cause =
                            format!("the coordinator {} cannot be reached: {unreachable}", self.coordinator);
                        Vec::new()
                    }
                };
                for member in members {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let patience_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                    match self.ask_member(&member, &asked(call, patience_ms), call, left).await {
                        Ok(answer) => return answer,
                        Err(error) => cause = format!("{} cannot be asked: {error}", member.words()),
                    }
                }
                if Instant::now() >= deadline {
                    return Err(StoreError::Unreachable { timeout, cause });
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        runtime::of(Plane::Store)?.block_on(asking)
    }

    /// Who is in the store, as the coordinator says that decides on views.
    async fn look(&self) -> Result<Option<View>, String> {
        let asking = async {
            let dialled =
                dial_plane(port::STORE_VIEWS, &self.coordinator, &self.identity, None, TIMEOUT, TIMEOUT)
                    .await;
            let mut frames = dialled.map_err(|error| error.to_string())?.frames;
            frames.send(&encode(&ToRegistrar::Look)).await.map_err(|error| error.to_string())?;
            loop {
                let bytes = frames.next().await.map_err(|error| error.to_string())?.ok_or("it hung up")?;
                let told = decode::<FromRegistrar>(&bytes).map_err(|error| error.to_string())?;
                if let FromRegistrar::Shown { view, .. } = told {
                    return Ok(view);
                }
            }
        };
        let late = |_| format!("no answer within {TIMEOUT:?}");
        tokio::time::timeout(TIMEOUT, asking).await.map_err(late)?
    }

    /// An answer of the store, good or bad; or why this member could not be asked.
    async fn ask_member(
        &self,
        member: &StoreMember,
        message: &FromClient,
        call: CallName,
        left: Duration,
    ) -> Result<Result<Answer, StoreError>, String> {
        let mut frames = self.open(member.address, port::STORE_CLIENT).await?;
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

    async fn open(&self, address: SocketAddr, plane: &[u8]) -> Result<ControlFrames, String> {
        let stream = port::connect(address, plane, &self.identity, TIMEOUT).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let greeted = port::greet(stream, self.identity.peer(), TIMEOUT).await;
        Ok(greeted.map_err(|error| error.to_string())?.frames)
    }
}

/// Serves a client on its stream, until it hangs up.
pub(super) async fn serve(shared: Weak<Shared>, stream: AuthenticatedStream, me: PeerId) {
    let mut frames = match port::greet(stream, me, TIMEOUT).await {
        Ok(greeted) => greeted.frames,
        Err(error) => return tracing::debug!(%error, "no hello on a stream of the store's clients"),
    };
    let (answers, mut answered) = mpsc::channel::<ToClient>(ANSWERS_MAX);
    loop {
        tokio::select! {
            frame = frames.next() => {
                let Ok(Some(bytes)) = frame else { break };
                let (Ok(message), Some(shared)) = (decode::<FromClient>(&bytes), shared.upgrade()) else { break };
                shared.post(Letter::Foreign(Box::new(message), answers.clone()));
            }
            answer = answered.recv() => {
                let Some(answer) = answer else { break };
                let mut bytes = encode(&answer);
                if bytes.len() > FRAME_BYTES_MAX {
                    let (ToClient::Answered { call, .. } | ToClient::Failed { call, .. }) = answer;
                    let text = format!("the value has more than {FRAME_BYTES_MAX} bytes: only a member can get it");
                    bytes = encode(&ToClient::Failed { call, timed_out: false, text });
                }
                if !matches!(tokio::time::timeout(TIMEOUT, frames.send(&bytes)).await, Ok(Ok(()))) {
                    break;
                }
            }
        }
    }
}
