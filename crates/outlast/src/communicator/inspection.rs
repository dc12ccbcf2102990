//! What a peer tells about itself: `outlast status --peer` and `outlast debug dump --peer`.
//!
//! # The problem
//!
//! The coordinator says who waits for whom. When it is away, or when it and a peer see different things, somebody has to ask
//! the peer; its host may be far, and its program may be stuck in a call.
//!
//! # The intuition
//!
//! One question and one answer over the peer's one port, by a plane of their own. The answer is put together from what is
//! kept anyway: the session's state, what links last reported, the health plane's table, the port's counters, the flight
//! record. Short locks are taken one after the other, none is held while anything is sent, and no call of the program is
//! waited for or disturbed.
//!
//! # The invariant
//!
//! Looking changes nothing. Whoever asks has proved that it belongs to the run, as on every other plane (rule 39), and asks no
//! more often than a coordinator may be asked; the whole conversation has a deadline.

use super::control::Control;
use crate::clock;
use crate::coordinator::Pace;
use crate::executor::Direction;
use crate::membership::{Health, Member, Membership};
use crate::port::{self, AuthenticatedStream};
use crate::runtime::{self, Plane};
use crate::security::tls::TlsError;
use crate::security::{Credentials, ProcessKey, SecretError};
use crate::sync::{Mutex, lock};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::limits::{FRAME_BYTES_MAX, QUESTION_MILLIS, QUESTIONS_BURST, STATUS_PEERS_MAX};
use outlast_proto::session::CallStatus;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::Incident;
use outlast_proto::wire::inspect::{Inspect, Inspected};
use outlast_proto::wire::membership::MemberInfo;
use outlast_proto::wire::{clip, decode, encode};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::sync::{OnceLock, Weak};
use tokio::net::lookup_host;

/// How long one conversation may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// What an answer may hold, with room for what stands around it.
const TEXT_MAX: usize = FRAME_BYTES_MAX - 1_024;

/// Where questions are answered. It is there before the peer is, because the port must know where to take them.
#[derive(Debug, Default)]
pub(super) struct Window {
    peer: OnceLock<Inside>,
    pace: Mutex<Pace>,
}

/// Whom to look at.
#[derive(Debug)]
struct Inside {
    control: Weak<Control>,
    membership: Weak<Membership>,
}

impl Window {
    pub(super) fn open(&self, control: Weak<Control>, membership: Weak<Membership>) {
        let _ = self.peer.set(Inside { control, membership });
    }

    /// One conversation, to its end.
    pub(super) async fn serve(&self, stream: AuthenticatedStream, me: PeerId) {
        let conversation = Box::pin(async {
            let mut greeted = port::greet(stream, me, PATIENCE).await.map_err(|error| error.to_string())?;
            let bytes = greeted.frames.next().await.map_err(|error| error.to_string())?;
            let Some(bytes) = bytes else { return Ok(()) };
            let answer = match decode::<Inspect>(&bytes) {
                Ok(question) => self.answer(question),
                Err(error) => Inspected::Refused(format!("this peer cannot read the question: {error}")),
            };
            greeted.frames.send(&encode(&answer)).await.map_err(|error| error.to_string())?;
            greeted.frames.finish().await.map_err(|error| error.to_string())
        });
        match tokio::time::timeout(PATIENCE, conversation).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a question about this peer was not answered"),
            Err(_) => tracing::debug!("a question about this peer took too long"),
        }
    }

    fn answer(&self, question: Inspect) -> Inspected {
        let every = Duration::from_millis(QUESTION_MILLIS);
        if let Err(wait) = lock(&self.pace).take(clock::now(), QUESTIONS_BURST, every) {
            let seconds = wait.as_secs_f64();
            return Inspected::Refused(format!("it was asked too often: ask again in {seconds:.1} s"));
        }
        let inside = self
            .peer
            .get()
            .and_then(|inside| Some((inside.control.upgrade()?, inside.membership.upgrade()?)));
        let Some((control, membership)) = inside else {
            return Inspected::Refused("this peer is starting or closing".to_owned());
        };
        match question {
            Inspect::View => Inspected::View(clip(&account(&control, &membership).to_string(), TEXT_MAX)),
            Inspect::Flight => {
                Inspected::Flight(control.recorder().flight("asked over the network", TEXT_MAX))
            }
        }
    }
}

/// What became of the links of the ring, as they last reported it.
#[derive(Debug, Default)]
pub(super) struct LinkBoard(BTreeMap<(PeerId, Direction), LinkReport>);

#[derive(Debug)]
struct LinkReport {
    since: Instant,
    /// Why it is down, if it is.
    error: Option<String>,
    /// Bytes per second that it carried in the last large call.
    rate: Option<u64>,
}

impl LinkBoard {
    pub(super) fn note(&mut self, now: Instant, peer: PeerId, direction: Direction, error: Option<String>) {
        let before = self.0.remove(&(peer, direction));
        let rate = before.as_ref().and_then(|before| before.rate);
        let unchanged = before.filter(|before| before.error.is_some() == error.is_some());
        let since = unchanged.map_or(now, |before| before.since);
        self.0.insert((peer, direction), LinkReport { since, error, rate });
    }

    pub(super) fn carried(&mut self, peer: PeerId, rate: u64) {
        if let Some(report) = self.0.get_mut(&(peer, Direction::Towards)) {
            report.rate = Some(rate);
        }
    }

    /// Forgets links to whoever is no member any more.
    pub(super) fn retain(&mut self, is_member: impl Fn(PeerId) -> bool) {
        self.0.retain(|(peer, _), _| is_member(*peer));
    }

    pub(super) fn describe(&self, now: Instant, name: impl Fn(PeerId) -> String) -> Vec<Value> {
        let row = |((peer, direction), report): (&(PeerId, Direction), &LinkReport)| {
            json!({
                "peer": peer.to_string(),
                "name": name(*peer),
                "direction": match direction { Direction::Towards => "to", Direction::From => "from" },
                "state": if report.error.is_some() { "down" } else { "up" },
                "error": report.error,
                "seconds": seconds(now.since(report.since)),
                "rate": report.rate,
            })
        };
        self.0.iter().take(STATUS_PEERS_MAX).map(row).collect()
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

/// How the run stands as this peer sees it.
fn account(control: &Control, membership: &Membership) -> Value {
    let now = clock::now();
    let (active, failed) = (membership.active().unwrap_or_default(), membership.failed().unwrap_or_default());
    let mut object = of_session(control, now, |peer| {
        let member = active.iter().chain(&failed).find(|member| member.info.id == peer);
        member.map_or("unknown", |member| member.health.word())
    });
    let health = active.iter().chain(&failed).take(STATUS_PEERS_MAX).map(|member| health_row(now, member));
    object["peer"]["listen"] = json!(membership.listen_address().to_string());
    object["health"] = health.collect();
    object["late_seconds_max"] = json!(seconds(membership.counters().lateness_max));
    object["port"] = json!(membership.port_watch().status());
    object
}

/// The part of it that the session knows; `health` says what the health plane calls a member.
fn of_session(control: &Control, now: Instant, health: impl Fn(PeerId) -> &'static str) -> Value {
    let state = lock(&control.state);
    let session = state.session.status(now);
    let name = |peer: PeerId| {
        let member = state.roster.iter().find(|info| info.id == peer);
        member.map_or_else(|| peer.short(), |info| info.name.clone())
    };
    let member = |(rank, info): (usize, &MemberInfo)| {
        json!({
            "rank": rank,
            "id": info.id.to_string(),
            "name": info.name,
            "address": info.address.to_string(),
            "health": health(info.id),
        })
    };
    let call = |call: &CallStatus| {
        let mut object = json!(call);
        let since = state.calls.get(&call.id).map(|call| call.since);
        object["age_seconds"] = json!(since.map(|since| seconds(now.since(since))));
        object
    };
    let event = |incident: &Incident| json!({ "time": incident.at_us as f64 / 1e6, "text": incident.text });
    let me = &state.session.registration().info;
    json!({
        "peer": {
            "id": me.id.to_string(),
            "name": me.name,
            "address": me.address.to_string(),
            "pid": std::process::id(),
            "preset": control.preset,
            "software": concat!("outlast ", env!("CARGO_PKG_VERSION")),
        },
        "standing": session.standing,
        "term": session.term,
        "group": session.group,
        "coordinator": {
            "address": control.coordinator(),
            "connected": session.coordinator_connected,
            "away_seconds": state.alone_since.map(|since| seconds(now.since(since))),
            "last_error": state.unreached.as_ref().map(ToString::to_string),
        },
        "view": session.known,
        "members": state.roster.iter().take(STATUS_PEERS_MAX).enumerate().map(member).collect::<Vec<_>>(),
        "links": state.links.describe(now, name),
        "calls": session.calls.iter().map(call).collect::<Vec<_>>(),
        "events": state.session.annals().iter().rev().map(event).collect::<Vec<_>>(),
    })
}

fn health_row(now: Instant, member: &Member) -> Value {
    let since = match member.health {
        Health::Alive => None,
        Health::Stalled { since }
        | Health::Suspect { since, .. }
        | Health::Dead { since, .. }
        | Health::Left { since } => Some(since),
    };
    json!({
        "id": member.info.id.to_string(),
        "name": member.info.name,
        "address": member.info.address.to_string(),
        "health": member.health.word(),
        "seconds": since.map(|since| seconds(now.since(since))),
        "round_trip_ms": member.round_trip.map(|time| (time.as_secs_f64() * 1e6).round() / 1e3),
        "answered_seconds_ago": member.acked.map(|acked| seconds(now.since(acked))),
        "kernel_trusted": member.kernel_trusted,
    })
}

/// Why a peer told nothing about itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// There is no run secret.
    #[error(
        "a question about a peer needs the run's secret: pass it, or set OUTLAST_SECRET or OUTLAST_SECRET_FILE"
    )]
    MissingSecret,
    /// A secret in the environment is damaged, or there are too many.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The certificate of one's own authority cannot be used.
    #[error(transparent)]
    Certificate(#[from] TlsError),
    /// The operating system refused something.
    #[error("cannot ask: {0}")]
    Start(#[from] io::Error),
    /// Nobody that belongs to the run answers there.
    #[error("the peer {address} cannot be reached: {cause}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// What went wrong.
        cause: String,
    },
    /// It does not tell.
    #[error("the peer {address} refuses to answer: {why}")]
    Refused {
        /// Where it is.
        address: String,
        /// Its words.
        why: String,
    },
}

/// How a run stands as one of its peers sees it: a JSON object. `address` is the peer's one port, `host:port`;
/// `credentials` are a secret, or all of [`Credentials`].
pub fn ask_account(
    address: &str,
    credentials: impl Into<Credentials>,
    run: &RunId,
    timeout: Duration,
) -> Result<String, InspectError> {
    ask(address, credentials.into(), run, timeout, Inspect::View)
}

/// What a peer did lately: its flight record, as JSON lines. The arguments are those of [`ask_account`].
pub fn ask_flight(
    address: &str,
    credentials: impl Into<Credentials>,
    run: &RunId,
    timeout: Duration,
) -> Result<String, InspectError> {
    ask(address, credentials.into(), run, timeout, Inspect::Flight)
}

fn ask(
    address: &str,
    credentials: Credentials,
    run: &RunId,
    timeout: Duration,
    question: Inspect,
) -> Result<String, InspectError> {
    let credentials = credentials.or_environment()?;
    let keys = credentials.keys(run).ok_or(InspectError::MissingSecret)?;
    let identity = credentials.identity(&keys, &ProcessKey::generate())?;
    let asking = async {
        let mut cause = "no address".to_owned();
        // A name may stand for several addresses, and not all of them need to lead there.
        for found in lookup_host(address).await.map_err(|error| error.to_string())? {
            let stream = match port::connect(found, port::INSPECT, &identity, timeout).await {
                Ok(stream) => stream,
                Err(error) => {
                    cause = error.to_string();
                    continue;
                }
            };
            let greeted = port::greet(stream, identity.peer(), timeout).await;
            let mut frames = greeted.map_err(|error| error.to_string())?.frames;
            frames.send(&encode(&question)).await.map_err(|error| error.to_string())?;
            let bytes = frames.next().await.map_err(|error| error.to_string())?;
            let bytes = bytes.ok_or("it closed the connection without an answer")?;
            return decode::<Inspected>(&bytes).map_err(|error| error.to_string());
        }
        Err(cause)
    };
    let answer = runtime::of(Plane::Control)?.block_on(async { tokio::time::timeout(timeout, asking).await });
    let unreachable = |cause| InspectError::Unreachable { address: address.to_owned(), cause };
    match answer.map_err(|_| unreachable(format!("no answer within {timeout:?}")))?.map_err(unreachable)? {
        Inspected::View(text) | Inspected::Flight(text) => Ok(text),
        Inspected::Refused(why) => Err(InspectError::Refused { address: address.to_owned(), why }),
    }
}
