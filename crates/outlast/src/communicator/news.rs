//! What happens to the group, told to whoever asks.
//!
//! Whoever reads the control connection notices who came, who went and why, and whether the coordinator is there. It puts
//! that here, after it has let go of the session, and goes on: nothing waits for a program that does not read. So the queue
//! is bounded, and what is dropped is counted. Losses are also kept for receipts: a call that went on without somebody
//! says without whom.
//!
//! What the health plane says of members (stalled, recovered) is read when the program asks; it is kept over there.

use super::{Communicator, Error};
use crate::clock;
use crate::membership::{self, Happening, TimedEvent};
use crate::sync::{Condvar, Mutex, lock, sleep_while};
use outlast_proto::blame::Diagnosis;
use outlast_proto::id::PeerId;
use outlast_proto::session::SlowLink;
use outlast_proto::wire::control::{EpochRecord, LossReason};
use outlast_proto::wire::membership::MemberInfo;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

/// Events that wait for the program; beyond it the oldest go.
const EVENTS_MAX: usize = 1_024;
/// Losses that receipts may still name.
const LOSSES_MAX: usize = 256;
/// How often the health plane's events are looked at while nothing else comes.
const GLANCE: Duration = Duration::from_millis(50);

/// Somebody who is no member any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Who.
    pub peer: PeerId,
    /// What people call it.
    pub name: String,
    /// Why.
    pub reason: LossReason,
}

/// A link of the ring that carries much less than it did, in bytes per second.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Slowed {
    /// The end that sends.
    pub from: MemberInfo,
    /// The end that receives.
    pub to: MemberInfo,
    /// When the ring was made.
    pub before: u64,
    /// Of late.
    pub rate: u64,
}

/// A call that ended well and took much longer than calls like it usually do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowStep {
    /// What was called, with its tag.
    pub call: String,
    /// How long it took.
    pub took: Duration,
    /// The median of those before it.
    pub usual: Duration,
    /// What is to blame.
    pub diagnosis: Diagnosis,
}

/// What happened to the group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A member came.
    Joined(MemberInfo),
    /// A member is gone.
    Lost(Lost),
    /// A member does not answer, and its kernel does: it is stopped or starved.
    Stalled(MemberInfo),
    /// A member answers again.
    Recovered(MemberInfo),
    /// The group has another epoch, of that many members.
    EpochChanged(u64, usize),
    /// A link of the ring carries much less than when the ring was made: a better one may be worth looking for.
    LinkSlowed(Slowed),
    /// A call ended well and took much longer than its like: what is to blame.
    SlowStep(SlowStep),
    /// The connection to the coordinator is gone; it is looked for.
    CoordinatorLost,
    /// The coordinator is back.
    CoordinatorBack,
    /// This member fetches what its state lacks: leaves of 1 MiB that are here, and
    /// how many there are. Equal numbers are the end.
    Healing(u64, u64),
    /// So many events were dropped, because nobody read them.
    Lagged(u64),
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Happened {
    /// When.
    pub at: SystemTime,
    /// What.
    pub what: Event,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined(info) => write!(f, "{} joined", named(&info.name, info.id)),
            Self::Lost(lost) => write!(f, "{} was lost: {}", named(&lost.name, lost.peer), lost.reason),
            Self::Stalled(info) => write!(f, "{} is stalled", named(&info.name, info.id)),
            Self::Recovered(info) => write!(f, "{} answers again", named(&info.name, info.id)),
            Self::EpochChanged(epoch, world) => write!(f, "epoch {epoch} has {world} members"),
            Self::LinkSlowed(Slowed { from, to, before, rate }) => {
                let (from, to) = (named(&from.name, from.id), named(&to.name, to.id));
                let megabytes = |rate: &u64| *rate as f64 / 1e6;
                let (now, then) = (megabytes(rate), megabytes(before));
                write!(
                    f,
                    "the link {from} -> {to} carries {now:.1} MB/s, {then:.1} when the ring was made: \
                     optimize_topology may find a better one"
                )
            }
            Self::SlowStep(SlowStep { call, took, usual, diagnosis }) => {
                let seconds = |time: &Duration| time.as_secs_f64();
                let (took, usual) = (seconds(took), seconds(usual));
                write!(f, "slow step: {call} took {took:.2} s, {usual:.2} s is usual; {diagnosis}")
            }
            Self::CoordinatorLost => f.write_str("the connection to the coordinator is gone; looking for it"),
            Self::CoordinatorBack => f.write_str("the coordinator is back"),
            Self::Healing(have, all) => write!(f, "healing the state: {have} of {all} leaves are here"),
            Self::Lagged(count) => write!(f, "{count} events were dropped unread"),
        }
    }
}

fn named(name: &str, id: PeerId) -> String {
    format!("{} {}", outlast_proto::text::printable(name), id.short())
}

/// A point in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    lost: u64,
    away: Duration,
}

#[derive(Default)]
struct Kept {
    queue: VecDeque<Happened>,
    dropped: u64,
    /// The latest losses, each with its number.
    losses: VecDeque<(u64, Lost)>,
    /// How many losses there were.
    lost: u64,
    /// For how long there was no coordinator, all in all, and since when there is none.
    away: Duration,
    away_since: Option<SystemTime>,
}

/// See the module's essay.
#[derive(Default)]
pub(super) struct News {
    kept: Mutex<Kept>,
    came: Condvar,
}

impl News {
    /// Puts events into the log and before the program. To be called without a lock.
    pub(super) fn tell(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let at = SystemTime::now();
        for event in &events {
            match event {
                Event::Lost(Lost { reason: LossReason::Left, .. }) => tracing::info!("{event}"),
                Event::Lost(_) | Event::CoordinatorLost | Event::LinkSlowed(_) | Event::SlowStep(_) => {
                    tracing::warn!("{event}");
                }
                _ => tracing::info!("{event}"),
            }
        }
        let mut kept = lock(&self.kept);
        for what in events {
            if let Event::Lost(lost) = &what {
                kept.lost += 1;
                let number = kept.lost;
                kept.losses.push_back((number, lost.clone()));
            }
            match &what {
                Event::CoordinatorLost => kept.away_since = kept.away_since.or(Some(at)),
                Event::CoordinatorBack => {
                    if let Some(since) = kept.away_since.take() {
                        kept.away += at.duration_since(since).unwrap_or_default();
                    }
                }
                _ => {}
            }
            kept.queue.push_back(Happened { at, what });
        }
        let old = kept.losses.len().saturating_sub(LOSSES_MAX);
        kept.losses.drain(..old);
        let old = kept.queue.len().saturating_sub(EVENTS_MAX);
        kept.queue.drain(..old);
        kept.dropped += old as u64;
        drop(kept);
        self.came.notify_all();
    }

    /// A point in time, for [`Self::lost_since`] and [`Self::away_since`].
    pub(super) fn mark(&self) -> Mark {
        let kept = lock(&self.kept);
        Mark { lost: kept.lost, away: kept.away }
    }

    /// For how long there was no coordinator since then.
    pub(super) fn away_since(&self, mark: Mark) -> Duration {
        lock(&self.kept).away.saturating_sub(mark.away)
    }

    /// Who was lost since then.
    pub(super) fn lost_since(&self, mark: Mark) -> Vec<Lost> {
        let kept = lock(&self.kept);
        kept.losses.iter().filter(|(number, _)| *number > mark.lost).map(|(_, lost)| lost.clone()).collect()
    }

    /// The name of somebody who was lost.
    pub(super) fn name_of(&self, peer: PeerId) -> Option<String> {
        let kept = lock(&self.kept);
        kept.losses.iter().rev().find(|(_, lost)| lost.peer == peer).map(|(_, lost)| lost.name.clone())
    }

    fn take(&self, patience: Duration) -> Vec<Happened> {
        let kept = lock(&self.kept);
        let mut kept =
            sleep_while(&self.came, kept, patience, |kept| kept.queue.is_empty() && kept.dropped == 0);
        let dropped = std::mem::take(&mut kept.dropped);
        let lagged = (dropped > 0).then(|| Happened { at: SystemTime::now(), what: Event::Lagged(dropped) });
        lagged.into_iter().chain(std::mem::take(&mut kept.queue)).collect()
    }
}

/// Who came and who went between two rosters; `before` is empty for the first.
pub(super) fn changes(before: &[MemberInfo], record: &EpochRecord) -> Vec<Event> {
    let reason = |peer: PeerId| {
        let told = record.left.iter().find(|(gone, _)| *gone == peer);
        told.map_or(LossReason::NotResumed, |(_, reason)| *reason)
    };
    let is_in = |roster: &[MemberInfo], peer: PeerId| roster.iter().any(|info| info.id == peer);
    let gone = before.iter().filter(|info| !is_in(&record.roster, info.id));
    let gone = gone.map(|info| Lost { peer: info.id, name: info.name.clone(), reason: reason(info.id) });
    let came = record.roster.iter().filter(|info| !before.is_empty() && !is_in(before, info.id));
    let mut events: Vec<_> = gone.map(Event::Lost).collect();
    events.extend(came.cloned().map(Event::Joined));
    events.push(Event::EpochChanged(record.epoch, record.roster.len()));
    events
}

impl Communicator {
    /// What happened to the group since the last call, the oldest first. Waits up to `timeout` for the first event, and
    /// returns nothing if none came.
    pub fn events(&self, timeout: Duration) -> Result<Vec<Happened>, Error> {
        self.creator.check()?;
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut happened = self.health_news();
            let patience = if happened.is_empty() { left.min(GLANCE) } else { Duration::ZERO };
            happened.extend(self.control.news().take(patience));
            if !happened.is_empty() || left.is_zero() {
                happened.sort_by_key(|event| event.at);
                return Ok(happened);
            }
        }
    }

    /// What the health plane said of members of the group.
    fn health_news(&self) -> Vec<Happened> {
        let told = self.membership.events(Duration::ZERO).unwrap_or_default();
        let now = (clock::now(), SystemTime::now());
        let of_group = |info: &MemberInfo| self.control.address(info.id).is_some();
        let translate = |event: TimedEvent| {
            let what = match event.what {
                Happening::Event(membership::Event::Stalled(info)) if of_group(&info) => {
                    Event::Stalled(MemberInfo::clone(&info))
                }
                Happening::Event(membership::Event::Recovered(info)) if of_group(&info) => {
                    Event::Recovered(MemberInfo::clone(&info))
                }
                _ => return None,
            };
            Some(Happened { at: now.1 - now.0.since(event.at), what })
        };
        told.into_iter().filter_map(translate).collect()
    }
}

/// What is told of a link that got slower; nothing if an end of it is no member any more.
pub(super) fn slowed(roster: &[MemberInfo], link: SlowLink) -> Option<Event> {
    let member = |peer: PeerId| roster.iter().find(|info| info.id == peer).cloned();
    let (from, to) = (member(link.from)?, member(link.to)?);
    Some(Event::LinkSlowed(Slowed { from, to, before: link.before, rate: link.rate }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(number: u8) -> Event {
        let peer = PeerId::from_bytes([number; 16]);
        Event::Lost(Lost { peer, name: format!("p{number}"), reason: LossReason::Killed })
    }

    #[test]
    fn what_nobody_reads_is_dropped_and_counted() {
        let news = News::default();
        for _ in 0..EVENTS_MAX + 3 {
            news.tell(vec![Event::CoordinatorBack]);
        }
        let taken = news.take(Duration::ZERO);
        assert_eq!(taken.len(), EVENTS_MAX + 1);
        assert_eq!(taken[0].what, Event::Lagged(3));
        assert!(news.take(Duration::ZERO).is_empty(), "each is told once");
    }

    #[test]
    fn a_receipt_names_those_who_were_lost_since_its_call_began_read_or_not() {
        let news = News::default();
        news.tell(vec![lost(1)]);
        let mark = news.mark();
        news.tell(vec![lost(2), Event::CoordinatorLost, lost(3)]);
        news.take(Duration::ZERO);
        let names: Vec<_> = news.lost_since(mark).into_iter().map(|lost| lost.name).collect();
        assert_eq!(names, ["p2", "p3"]);
        assert!(news.lost_since(news.mark()).is_empty());
    }

    #[test]
    fn events_say_who_and_why() {
        assert_eq!(lost(7).to_string(), "p7 07070707 was lost: its connection closed and its port refuses");
    }
}
