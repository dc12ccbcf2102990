//! How a run stands as one peer sees it: said at any moment, in words.
//!
//! The coordinator's status says who waits for whom. When it is away, or when it and a peer see different things, one wants to
//! know what the peer itself believes: which epoch it is in, what its calls wait for.

use super::attempts::{Call, Stage};
use super::calls::CallId;
use super::machine::Session;
use crate::ballot;
use crate::limits::STATUS_PEERS_MAX;
use crate::time::{Duration, Instant};
use serde::Serialize;

/// What a session is about. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionStatus {
    /// `in`, `joining`, or why it is out.
    pub standing: String,
    /// Whether a coordinator that it obeys is on the line.
    pub coordinator_connected: bool,
    /// The highest term that it has obeyed.
    pub term: u64,
    /// Its group.
    pub group: u32,
    /// The group as it knows it; none while it is not in.
    #[serde(rename = "view")]
    pub known: Option<KnownGroupStatus>,
    /// The calls of its program that are not over.
    pub calls: Vec<CallStatus>,
}

/// A group as one of its members knows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KnownGroupStatus {
    /// The run's epoch.
    pub run_epoch: u64,
    /// The group's.
    pub epoch: u64,
    /// Its own rank.
    pub rank: Option<usize>,
    /// Members of the group.
    pub world_size: usize,
    /// Members of all groups.
    pub global_world_size: u32,
    /// Whether its link to the next member of the ring is up.
    pub linked: bool,
    /// Ranks in the order of the ring.
    pub ring: Vec<u32>,
    /// Ranks at both ends of each link that counts as broken.
    pub broken_links: Vec<(u32, u32)>,
}

/// A call that is not over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallStatus {
    /// Its number.
    #[serde(skip)]
    pub id: CallId,
    /// What was called.
    pub call: String,
    /// Under which tag, if it is a collective.
    pub tag: Option<u64>,
    /// What it does or waits for, in words.
    pub state: String,
    /// Until its deadline; negative once that has passed.
    pub deadline_seconds: f64,
}

impl Session {
    /// What this session is about. Of a large group only the first members' places are told (rule 40).
    pub fn status(&self, now: Instant) -> SessionStatus {
        let standing = match self.out() {
            Some(reason) => reason.to_string(),
            None if self.record().is_some() => "in".to_owned(),
            None => "joining".to_owned(),
        };
        let known = self.record().map(|record| KnownGroupStatus {
            run_epoch: record.run_epoch,
            epoch: record.epoch,
            rank: record.rank_of(self.registration.info.id),
            world_size: record.roster.len(),
            global_world_size: self.global_world_size(),
            linked: self.is_linked(),
            ring: record.ring.iter().take(STATUS_PEERS_MAX).copied().collect(),
            broken_links: record.broken.iter().take(STATUS_PEERS_MAX).copied().collect(),
        });
        let mut calls: Vec<_> = self
            .calls
            .iter()
            .map(|(id, call)| CallStatus {
                id: *id,
                call: call.op.fingerprint.to_string(),
                tag: Some(call.op.tag),
                state: self.words(call),
                deadline_seconds: until(now, call.op.deadline),
            })
            .collect();
        if let Some(call) = self.ballots.call() {
            let name = ballot::name(call.kind());
            calls.push(CallStatus {
                id: call.id,
                call: if call.connects { "connect".to_owned() } else { name.to_owned() },
                tag: None,
                state: match self.obstacle() {
                    Some(obstacle) => format!("waits for {obstacle}"),
                    None if call.connects => "waits to be let in".to_owned(),
                    None => "has voted and waits for the others".to_owned(),
                },
                deadline_seconds: until(now, call.deadline),
            });
        }
        SessionStatus {
            standing,
            coordinator_connected: self.is_connected(),
            term: self.term(),
            group: self.registration.group,
            known,
            calls,
        }
    }

    /// What stands in the way of everything.
    fn obstacle(&self) -> Option<&'static str> {
        if !self.is_up() {
            return Some("the coordinator");
        }
        self.resuming.then_some("the coordinator to tell what happened meanwhile")
    }

    fn words(&self, call: &Call) -> String {
        match &call.stage {
            Stage::Waiting => match self.obstacle() {
                Some(obstacle) => format!("waits for {obstacle}"),
                None if self.hold => {
                    "waits for word to go on: the coordinator finds out who is here".to_owned()
                }
                None => "waits for its next attempt".to_owned(),
            },
            Stage::Performing { aborted: Some(_), .. } => "lets go of an attempt that was aborted".to_owned(),
            Stage::Performing { key, .. } => {
                format!("moves bytes, number {} in epoch {}", key.seq, key.epoch)
            }
            Stage::Complete { key } => {
                format!(
                    "holds its result and waits for the verdict on number {} in epoch {}",
                    key.seq, key.epoch
                )
            }
            Stage::Refused { .. } => "gave the attempt up and waits for the verdict".to_owned(),
            Stage::Settling { .. } => {
                "was ended by a broken link and waits to hear whether somebody died".to_owned()
            }
        }
    }
}

/// Seconds until then.
fn until(now: Instant, then: Instant) -> f64 {
    let seconds = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
    if now > then { -seconds(now.since(then)) } else { seconds(then.since(now)) }
}
