//! News rides on packets that travel anyway, until everybody has very likely heard it.
//!
//! Each record is sent `factor x log2(group)` times (SWIM §4.1), the least-sent first. Of one member only the
//! newest word is kept; testimony of different accusers is kept apart, because it is counted. The queue is
//! bounded: when it is full the record that was sent most often makes room, since it is the best known.

use crate::id::PeerId;
use crate::time::{Duration, Instant};
use crate::wire::membership::Record;
use std::collections::BTreeMap;

/// Most records that wait to be spread.
const QUEUE_MAX: usize = 1_024;

/// What a record replaces: an older record with the same subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// Alive, Dead or Leave.
    Standing(PeerId),
    Accusation(PeerId, PeerId),
    Vouch(PeerId),
}

impl Subject {
    fn of(record: &Record) -> Self {
        match record {
            Record::Alive { .. } | Record::Dead { .. } | Record::Out { .. } | Record::Leave { .. } => {
                Self::Standing(record.member())
            }
            Record::Suspect { member, accuser, .. } => Self::Accusation(*member, *accuser),
            Record::Vouch { member, .. } => Self::Vouch(*member),
        }
    }
}

#[derive(Clone, Debug)]
struct Item {
    record: Record,
    /// When it was queued; what somebody saw ages from here.
    queued: Instant,
    sent: u32,
    /// Later news has a higher number and goes first among equally often sent.
    serial: u64,
}

/// The queue of news.
#[derive(Clone, Debug, Default)]
pub(super) struct Dissemination {
    items: BTreeMap<Subject, Item>,
    /// Least sent first, then newest first.
    order: BTreeMap<(u32, u64), Subject>,
    serial: u64,
}

impl Dissemination {
    pub(super) fn push(&mut self, now: Instant, record: Record) {
        let subject = Subject::of(&record);
        if matches!(record, Record::Alive { .. } | Record::Dead { .. } | Record::Leave { .. }) {
            // A member's new standing makes what was said about the old one pointless.
            self.forget_doubts(record.member());
        }
        self.remove(subject);
        if self.items.len() >= QUEUE_MAX
            && let Some((_, worn)) = self.order.last_key_value().map(|(key, subject)| (*key, *subject))
        {
            self.remove(worn);
        }
        self.serial += 1;
        self.insert(subject, Item { record, queued: now, sent: 0, serial: self.serial });
    }

    /// Whether a sign of life of that member is being spread.
    pub(super) fn vouches_for(&self, member: PeerId) -> bool {
        self.items.contains_key(&Subject::Vouch(member))
    }

    /// Drops testimony about a member whose case is closed.
    pub(super) fn forget_doubts(&mut self, member: PeerId) {
        let lowest = PeerId::from_bytes([0; 16]);
        let highest = PeerId::from_bytes([0xff; 16]);
        let doubts: Vec<_> = self
            .items
            .range(Subject::Accusation(member, lowest)..=Subject::Accusation(member, highest))
            .map(|(subject, _)| *subject)
            .chain([Subject::Vouch(member)])
            .collect();
        for subject in doubts {
            self.remove(subject);
        }
    }

    /// Moves the next records into `records` while their encodings fit into `room` bytes and `count` places.
    pub(super) fn fill(
        &mut self,
        now: Instant,
        limit: u32,
        room: &mut usize,
        count: usize,
        records: &mut Vec<Record>,
    ) {
        let mut chosen = Vec::new();
        for (key, subject) in &self.order {
            if records.len() + chosen.len() >= count || *room < 24 {
                break;
            }
            let length = minicbor::len(&self.items[subject].record) + 4;
            if length <= *room {
                *room -= length;
                chosen.push((*key, *subject));
            }
        }
        for (key, subject) in chosen {
            self.order.remove(&key);
            let Some(mut item) = self.items.remove(&subject) else { continue };
            records.push(aged(&item.record, now.since(item.queued)));
            item.sent += 1;
            if item.sent < limit {
                self.insert(subject, item);
            }
        }
    }

    fn insert(&mut self, subject: Subject, item: Item) {
        self.order.insert((item.sent, u64::MAX - item.serial), subject);
        self.items.insert(subject, item);
    }

    fn remove(&mut self, subject: Subject) {
        if let Some(item) = self.items.remove(&subject) {
            self.order.remove(&(item.sent, u64::MAX - item.serial));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }
}

/// The record as it is after waiting here for `waited`: what somebody saw grows older, everything else keeps.
fn aged(record: &Record, waited: Duration) -> Record {
    let waited_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
    match record {
        Record::Suspect { member, incarnation, accuser, kind, age_ms } => Record::Suspect {
            member: *member,
            incarnation: *incarnation,
            accuser: *accuser,
            kind: *kind,
            age_ms: age_ms.saturating_add(waited_ms),
        },
        Record::Vouch { member, incarnation, voucher, kind, age_ms, silent_ms } => Record::Vouch {
            member: *member,
            incarnation: *incarnation,
            voucher: *voucher,
            kind: *kind,
            age_ms: age_ms.saturating_add(waited_ms),
            silent_ms: *silent_ms,
        },
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::membership::{SignOfLife, Silence};

    fn peer(number: u8) -> PeerId {
        PeerId::from_bytes([number; 16])
    }

    fn leave(number: u8, incarnation: u32) -> Record {
        Record::Leave { member: peer(number), incarnation }
    }

    fn accuse(number: u8, accuser: u8) -> Record {
        Record::Suspect {
            member: peer(number),
            incarnation: 0,
            accuser: peer(accuser),
            kind: Silence::Silent,
            age_ms: 0,
        }
    }

    fn take(queue: &mut Dissemination, count: usize) -> Vec<Record> {
        let (mut room, mut records) = (1_000, Vec::new());
        queue.fill(Instant::ORIGIN, 3, &mut room, count, &mut records);
        records
    }

    #[test]
    fn the_least_sent_goes_first_and_everything_ends_after_its_share() {
        let mut queue = Dissemination::default();
        queue.push(Instant::ORIGIN, leave(1, 0));
        assert_eq!(take(&mut queue, 1), [leave(1, 0)]);
        queue.push(Instant::ORIGIN, leave(2, 0));
        assert_eq!(take(&mut queue, 1), [leave(2, 0)], "never sent before");
        assert_eq!((0..10).map(|_| take(&mut queue, 1).len()).sum::<usize>(), 4, "two more each");
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn newer_word_replaces_older_and_accusers_are_kept_apart() {
        let mut queue = Dissemination::default();
        queue.push(Instant::ORIGIN, accuse(1, 8));
        queue.push(Instant::ORIGIN, accuse(1, 9));
        assert_eq!(queue.len(), 2);
        queue.push(Instant::ORIGIN, leave(1, 4));
        assert_eq!(take(&mut queue, 9), [leave(1, 4)], "the accusations ended with the member");
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut queue = Dissemination::default();
        for number in 0..3_000u32 {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            queue.push(Instant::ORIGIN, Record::Leave { member: PeerId::from_bytes(bytes), incarnation: 0 });
        }
        assert_eq!(queue.len(), QUEUE_MAX);
        assert_eq!(queue.order.len(), QUEUE_MAX);
    }

    #[test]
    fn a_vouch_ages_while_it_waits() {
        let mut queue = Dissemination::default();
        let vouch = |age_ms| Record::Vouch {
            member: peer(1),
            incarnation: 0,
            voucher: peer(2),
            kind: SignOfLife::Kernel,
            age_ms,
            silent_ms: 50,
        };
        queue.push(Instant::ORIGIN, vouch(100));
        let (mut room, mut records) = (1_000, Vec::new());
        let later = Instant::ORIGIN + Duration::from_millis(30);
        queue.fill(later, 3, &mut room, 9, &mut records);
        assert_eq!(records, [vouch(130)]);
    }
}
