//! Who is in, who waits for whom, since when and why: said at any moment, in words.

use super::peers::Peer;
use super::run::Run;
use super::states::{CollectiveState, connection_state};
use crate::collective::{Group, Scope};
use crate::id::PeerId;
use crate::limits::{LINKS_TOLD_MAX, NAMED_MAX, STATUS_BYTES_MAX, STATUS_PEERS_MAX};
use crate::store::registrar::StoreStatus;
use crate::time::{Duration, Instant};
use serde::Serialize;
use std::collections::BTreeMap;

/// How a run stands. Ages are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    term: u64,
    run_epoch: u64,
    /// Whether the coordinator's key survives its restarts; if not, whoever holds the secret and answers at its address
    /// is believed (rule 39).
    key_is_kept: bool,
    /// Whether the data links are encrypted, "on" or "off" (rule 34); none while nobody is there.
    encryption: Option<String>,
    /// How many peers there are; large runs list only the first.
    world_size: usize,
    peers: Vec<PeerStatus>,
    groups: Vec<GroupStatus>,
    /// One sentence per thing that somebody waits for; empty if nobody does.
    waiting: Vec<String>,
    commits: u64,
    aborts: u64,
    evictions: u64,
    kicks: u64,
    /// Who was kicked or refused lately, the latest first.
    kicked: Vec<KickStatus>,
    /// Whether anybody has joined this run; if not, its name may be mistyped.
    known: bool,
    /// The runs that this coordinator serves; the first few.
    runs: Vec<RunStatus>,
    /// What happened lately, the latest first.
    events: Vec<EventStatus>,
    /// What came to the coordinator's port, for all runs together; none where nobody counts.
    port: Option<PortStatus>,
    /// The run's store: its view, and what its members hold; none while nobody is in it.
    store: Option<StoreStatus>,
    /// Who reigns, of several coordinators (rule 19); none where one is alone.
    reign: Option<ReignStatus>,
}

/// Which of several coordinators decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReignStatus {
    /// Where others reach whoever answers.
    pub address: String,
    /// Whether it is the one that decides.
    pub leads: bool,
    /// Where whoever decides can be reached; empty if nobody does.
    pub leader: String,
    /// The number of its reign; the run's own term may be higher.
    pub term: u64,
    /// How long a lease lasts.
    pub lease_seconds: f64,
    /// How long the leader's lasts unless it is renewed; only the leader knows.
    pub lease_left_seconds: Option<f64>,
    /// Where those are who stand by.
    pub standbys: Vec<String>,
}

/// A run that the coordinator serves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunStatus {
    /// Its name.
    pub run_id: String,
    /// How many peers it has.
    pub world_size: usize,
}

/// Something that happened to a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventStatus {
    /// When, in seconds since 1970.
    pub time: f64,
    /// How long ago.
    pub seconds_ago: f64,
    /// What, in words.
    pub text: String,
}

/// A peer that was kicked, or a connection that was refused with a reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KickStatus {
    /// Its id.
    pub peer: String,
    /// What it was told.
    pub text: String,
    /// How long ago.
    pub seconds_ago: f64,
}

/// What came to a port since it is served.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PortStatus {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections whose other end proved itself.
    pub authenticated: u64,
    /// Connections that the other side closed without a word: kernel evidence (rule 22), and port scans.
    pub hung_up: u64,
    /// Times that accepting failed, for want of descriptors for example.
    pub accept_errors: u64,
    /// Handshakes that are under way now.
    pub handshakes: u64,
    /// Streams that are open now.
    pub streams: u64,
    /// Refused connections by cause.
    pub refused: BTreeMap<String, u64>,
    /// Sources that were refused lately, the latest first.
    pub recent: Vec<RefusalStatus>,
}

/// A source that was refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusalStatus {
    /// Its address.
    pub source: String,
    /// A cause.
    pub cause: String,
    /// How often.
    pub times: u64,
    /// How long ago the last time was.
    pub seconds_ago: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct PeerStatus {
    id: String,
    name: String,
    address: String,
    group: Group,
    rank: Option<usize>,
    phase: &'static str,
    state: &'static str,
    /// What is legal next, in words.
    next: &'static str,
    /// How far it is in each of its collectives.
    tags: Vec<TagStatus>,
    health: &'static str,
    connected: bool,
    away_seconds: Option<f64>,
    last_call: String,
    last_call_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct TagStatus {
    tag: u64,
    seq: u64,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct GroupStatus {
    group: Group,
    epoch: u64,
    world_size: usize,
    ring: Vec<String>,
    broken_links: Vec<(String, String)>,
    /// What is known of its links; those of the ring first.
    links: Vec<LinkStatus>,
    /// What may be worth doing, in words.
    hints: Vec<String>,
    rebuilding: bool,
    collectives: Vec<CollectiveStatus>,
}

/// A link, and how fast it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LinkStatus {
    pub(super) from: String,
    pub(super) to: String,
    /// Bytes per second.
    pub(super) rate: u64,
    pub(super) round_trip_ms: f64,
    pub(super) age_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct CollectiveStatus {
    tag: u64,
    seq: u64,
    scope: usize,
    call: String,
    /// How far it is: as far as the first of its members.
    state: &'static str,
    age_seconds: f64,
    deadline_seconds: f64,
    not_called: Vec<String>,
    not_complete: Vec<String>,
}

impl Status {
    /// With what the machine cannot know: what came to the port, and whom the driver refused itself.
    #[must_use]
    pub fn with_doors(mut self, port: PortStatus, kicked: Vec<KickStatus>) -> Self {
        self.port = Some(port);
        self.kicked = kicked;
        self
    }

    /// With what the driver keeps: which runs there are besides, and what happened lately.
    #[must_use]
    pub fn with_history(mut self, known: bool, runs: Vec<RunStatus>, events: Vec<EventStatus>) -> Self {
        (self.known, self.runs, self.events) = (known, runs, events);
        self
    }

    /// With who reigns, of several coordinators.
    #[must_use]
    pub fn with_reign(mut self, reign: Option<ReignStatus>) -> Self {
        self.reign = reign;
        self
    }

    /// With how the run's store stands.
    #[must_use]
    pub fn with_store(mut self, store: Option<StoreStatus>) -> Self {
        self.store = store;
        self
    }

    /// The status as one JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

/// The first few names, and how many more there are.
pub(super) fn some<T>(names: impl Iterator<Item = T>, name: impl Fn(T) -> String) -> Vec<String> {
    let mut names = names.peekable();
    let mut list: Vec<_> = names.by_ref().take(NAMED_MAX).map(name).collect();
    let more = names.count();
    if more > 0 {
        list.push(format!("{more} more"));
    }
    list
}

pub(super) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round() / 1_000.0
}

/// How much a status describes.
#[derive(Clone, Copy, Debug)]
struct Detail {
    peers: usize,
    groups: usize,
    links: usize,
}

impl Run {
    /// How the run stands. Of one that is too large to be described in full the first peers and groups are (rule 40).
    pub fn status(&self, now: Instant) -> Status {
        let mut detail = Detail { peers: STATUS_PEERS_MAX, groups: STATUS_PEERS_MAX, links: LINKS_TOLD_MAX };
        loop {
            let status = self.status_in(now, detail);
            if detail.groups == 0 || status.to_json().len() <= STATUS_BYTES_MAX {
                return status;
            }
            let Detail { peers, groups, links } = detail;
            detail = Detail { peers: peers / 2, groups: groups / 2, links: links / 2 };
        }
    }

    fn status_in(&self, now: Instant, detail: Detail) -> Status {
        let name = |id: &PeerId| match self.office.peers.get(*id) {
            Some(peer) if !peer.info.name.is_empty() => peer.info.name.clone(),
            _ => id.short(),
        };
        let mut waiting = Vec::new();
        let mut groups = Vec::new();
        for (group, state) in self.groups.iter().take(detail.groups) {
            let mut collectives = Vec::new();
            for (scope, tag, seq, op) in state.operations.open().take(NAMED_MAX) {
                let members = self.groups.members_in(group, scope);
                let not_called = some(members.iter().filter(|id| !op.votes.contains_key(id)), name);
                let incomplete = |id: &&PeerId| op.votes.get(id).is_some_and(|vote| !vote.complete);
                let not_complete = some(members.iter().filter(incomplete), name);
                let call = op.calls.first().map(ToString::to_string).unwrap_or_default();
                let age = seconds(now.since(op.opened));
                if !not_called.is_empty() {
                    let who = not_called.join(", ");
                    waiting.push(format!(
                        "group {group} tag {tag}: {call} waits since {age} s for {who} to call it"
                    ));
                } else if !not_complete.is_empty() {
                    let who = not_complete.join(", ");
                    waiting.push(format!(
                        "group {group} tag {tag}: {call} waits since {age} s for {who} to finish"
                    ));
                }
                collectives.push(CollectiveStatus {
                    tag,
                    seq,
                    scope: match scope {
                        Scope::Whole => members.len(),
                        Scope::Members(listed) => listed.len(),
                    },
                    call,
                    state: CollectiveState::of_all(op).name(),
                    age_seconds: age,
                    deadline_seconds: seconds(op.deadline.since(now)),
                    not_called,
                    not_complete,
                });
            }
            if state.paths.is_stuck() {
                waiting.push(format!(
                    "group {group}: no ring avoids its broken links; they are being dialled again"
                ));
            }
            if state.is_rebuilding() {
                let missing = some(state.attendance.away(), name);
                waiting.push(if missing.is_empty() {
                    format!("group {group}: rebuilding, waits for other members of before to speak")
                } else {
                    format!("group {group}: rebuilding, waits for {} to resume", missing.join(", "))
                });
            }
            groups.push(GroupStatus {
                group,
                epoch: state.epoch,
                world_size: state.roster.len(),
                ring: state.ring.iter().take(detail.peers).map(name).collect(),
                broken_links: state
                    .paths
                    .broken()
                    .iter()
                    .take(NAMED_MAX)
                    .map(|(a, b)| (name(a), name(b)))
                    .collect(),
                links: state.survey.status(now, (&state.roster, &state.ring), detail.links, name),
                hints: state.survey.hints(name),
                rebuilding: state.is_rebuilding(),
                collectives,
            });
        }
        waiting.extend(self.gate.newcomers_wait(&self.office, &self.groups, now, name));
        Status {
            term: self.office.term,
            run_epoch: self.groups.run_epoch(),
            key_is_kept: self.config.key_is_kept,
            encryption: self.office.peers.encryption().map(|encryption| encryption.to_string()),
            world_size: self.office.peers.len(),
            peers: self
                .office
                .peers
                .iter()
                .take(detail.peers)
                .map(|(id, peer)| self.peer_status(now, id, peer))
                .collect(),
            groups,
            waiting,
            commits: self.office.counters.commits,
            aborts: self.office.counters.aborts,
            evictions: self.office.counters.evictions,
            kicks: self.office.counters.kicks,
            kicked: Vec::new(),
            known: true,
            runs: Vec::new(),
            events: Vec::new(),
            port: None,
            reign: None,
            store: None,
        }
    }

    fn peer_status(&self, now: Instant, id: PeerId, peer: &Peer) -> PeerStatus {
        let state = self.groups.get(peer.group);
        let standing = connection_state(&self.groups, id, peer);
        let tags = state.map_or_else(Vec::new, |state| {
            let mine = state.operations.open().filter_map(|(_, tag, seq, op)| {
                let stage = CollectiveState::of(id, op)?;
                Some(TagStatus { tag, seq, state: stage.name() })
            });
            mine.take(NAMED_MAX).collect()
        });
        PeerStatus {
            id: id.to_string(),
            name: peer.info.name.clone(),
            address: peer.info.address.to_string(),
            group: peer.group,
            rank: state.and_then(|state| state.roster.iter().position(|member| *member == id)),
            phase: peer.phase.name(),
            state: standing.name(),
            next: standing.legal_next(peer.phase),
            tags,
            health: peer.health_word(),
            connected: peer.connection.is_some(),
            away_seconds: peer.lost_since.map(|since| seconds(now.since(since))),
            last_call: peer.last_call.0.clone(),
            last_call_seconds: seconds(now.since(peer.last_call.1)),
        }
    }
}
