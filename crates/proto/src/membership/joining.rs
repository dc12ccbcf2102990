//! Bringing groups together: joining through any member, passing tables on, and finding each other again.
//!
//! A newcomer pings its seeds until one answers, with a stream in turn with datagrams in case UDP is
//! blocked; the answer starts a transfer of the table in parts, and a second one a little later from somebody
//! else fills what was lost. Two halves of a group that lost sight of each other list each other as failed;
//! each pings somebody on that list now and then, so they meet again by themselves once the path is back.
//! And every packet that has room carries a record of the failed list and one of the active list: whoever
//! missed a death or a join in the storm learns of it in the calm.

use super::machine::{Membership, Timer};
use super::{Path, Source};
use crate::id::PeerId;
use crate::limits::{PACKET_BYTES_MAX, PACKET_RECORDS_MAX};
use crate::time::Instant;
use crate::wire::membership::{Body, Packet, Record};
use std::net::SocketAddr;
use std::sync::Arc;

/// Tables that are being sent at the same time; one more newcomer is asked to try again by silence.
const TABLE_JOBS_MAX: usize = 16;
/// Packets of a table that are sent at once.
const TABLE_BURST: usize = 8;
/// How often a newcomer asks for the table after it is in, each time somebody else.
const SECOND_TABLES: u32 = 2;

/// An unfinished join.
#[derive(Clone, Debug)]
pub(super) struct Joining {
    seeds: Vec<SocketAddr>,
    attempt: u32,
    second_tables: u32,
}

/// A table on its way to somebody.
#[derive(Clone, Debug)]
pub(super) struct TableJob {
    to: SocketAddr,
    peer: PeerId,
    path: Path,
    after: Option<PeerId>,
}

impl Membership {
    /// Joins through any of these members; repeated by itself until one answers.
    pub fn handle_join(&mut self, now: Instant, seeds: &[SocketAddr]) {
        let seeds: Vec<_> = seeds.iter().copied().filter(|seed| *seed != self.me.address).collect();
        if !seeds.is_empty() {
            self.joining = Some(Joining { seeds, attempt: 0, second_tables: SECOND_TABLES });
            self.try_seeds(now);
        }
    }

    pub(super) fn try_seeds(&mut self, now: Instant) {
        let Some(mut joining) = self.joining.take() else { return };
        if self.table.len() == 0 || joining.attempt == 0 {
            // Every second attempt goes over a stream as well: perhaps UDP is blocked (rule 24).
            for seed in &joining.seeds {
                self.ask_table(now, *seed, None, Path::Datagram);
                if joining.attempt % 2 == 1 {
                    self.ask_table(now, *seed, None, Path::Stream);
                }
            }
            joining.attempt += 1;
        } else {
            if joining.second_tables == 0 {
                return;
            }
            joining.second_tables -= 1;
            let helper = self.table.sample(1, &mut self.rng, |_| true).pop();
            if let Some(entry) = helper.and_then(|helper| self.table.get(helper)) {
                let (address, peer, path) = (entry.info.address, entry.id(), entry.path);
                self.ask_table(now, address, Some(peer), path);
            }
        }
        let wait = self.config.probe_interval * (joining.attempt + 1).min(5);
        self.joining = Some(joining);
        self.schedule(now + wait, Timer::Join);
    }

    pub(super) fn ask_table(&mut self, _now: Instant, to: SocketAddr, peer: Option<PeerId>, path: Path) {
        let body = Some(Body::Ping { probe: self.next_serial(), wants_table: true });
        let records = vec![self.alive_record()];
        self.send_at(to, peer, path, Packet { body, records });
    }

    pub(super) fn offer_table(&mut self, now: Instant, source: Source) {
        if self.table_jobs.len() >= TABLE_JOBS_MAX || self.table_jobs.iter().any(|job| job.peer == source.id)
        {
            return;
        }
        let (to, peer, path) = (source.address, source.id, source.path);
        self.table_jobs.push_back(TableJob { to, peer, path, after: None });
        self.schedule(now, Timer::SendTable);
    }

    pub(super) fn send_table_part(&mut self, now: Instant) {
        let Some(mut job) = self.table_jobs.pop_front() else { return };
        let mut finished = false;
        for _ in 0..TABLE_BURST {
            let mut room = PACKET_BYTES_MAX - 32;
            let mut records = Vec::new();
            for entry in self.table.following(job.after) {
                let record = Record::Alive { info: Arc::clone(&entry.info), incarnation: entry.incarnation };
                let length = minicbor::len(&record) + 4;
                if length > room || records.len() == PACKET_RECORDS_MAX {
                    break;
                }
                room -= length;
                job.after = Some(entry.id());
                records.push(record);
            }
            if records.is_empty() {
                finished = true;
                break;
            }
            self.send_at(job.to, Some(job.peer), job.path, Packet { body: None, records });
        }
        if !finished {
            self.table_jobs.push_back(job);
        }
        if !self.table_jobs.is_empty() {
            self.schedule(now + self.config.probe_interval / 20, Timer::SendTable);
        }
    }

    /// Pings somebody on the failed list. Whoever lives learns from our record that we count it as dead,
    /// and comes back under a higher incarnation.
    pub(super) fn seek_reunion(&mut self, now: Instant) {
        let lost: Vec<_> = self
            .failed
            .iter()
            .filter(|(_, failed)| failed.reason.is_some())
            .filter_map(|(id, failed)| Some((*id, failed.info.as_ref()?.address, failed.path)))
            .collect();
        if lost.is_empty() {
            return;
        }
        let (member, address, path) = lost[self.rng.below(lost.len())];
        let mut records = vec![self.alive_record()];
        records.extend(self.word_to_failed(now, member));
        let body = Some(Body::Ping { probe: self.next_serial(), wants_table: false });
        let packet = self.packet(now, body, records);
        self.send_at(address, Some(member), path, packet);
    }

    /// Fills a packet that has room with one record of the failed list and one of the active list.
    pub(super) fn add_background(&mut self, room: &mut usize, records: &mut Vec<Record>) {
        let mut add = |record: Record| {
            let length = minicbor::len(&record) + 4;
            if length <= *room && records.len() < PACKET_RECORDS_MAX {
                *room -= length;
                records.push(record);
            }
        };
        let next = match self.failed_cursor {
            Some(cursor) => {
                self.failed.range((std::ops::Bound::Excluded(cursor), std::ops::Bound::Unbounded)).next()
            }
            None => None,
        };
        self.failed_cursor = next.or_else(|| self.failed.first_key_value()).map(|(id, _)| *id);
        if let Some(record) = self.failed_cursor.and_then(|id| self.failed_record(id)) {
            add(record);
        }
        let cases = &self.cases;
        let someone = self.table.sample(1, &mut self.rng, |entry| !cases.contains_key(&entry.id())).pop();
        if let Some(entry) = someone.and_then(|id| self.table.get(id)) {
            add(Record::Alive { info: Arc::clone(&entry.info), incarnation: entry.incarnation });
        }
    }
}
