//! Says who was refused, now and then.
//!
//! A port that is open to a network is knocked at. Each refusal is counted where it happens; a person should
//! hear of a source soon, with its cause, and again while it goes on, and neither the log nor this table may grow
//! with the number of knocks. So a source has a line at most every [`SAY_EVERY`], which says how many refusals it
//! stands for, and all sources together have at most [`LINES_MAX`] in that time. The latest are remembered for
//! `outlast status`.

use outlast_proto::text::printable;
use outlast_proto::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;

/// Sources that are told apart; when there are more, those of which nothing was heard for [`SAY_EVERY`] are
/// forgotten, and until then further ones are only counted.
pub const SOURCES_MAX: usize = 1_024;
/// Between two lines about one source.
pub const SAY_EVERY: Duration = Duration::from_mins(1);
/// Lines about all sources together in that time.
pub const LINES_MAX: usize = 20;

/// What is known of one source.
#[derive(Debug)]
struct Source {
    cause: String,
    times: u64,
    /// Refusals since the last line.
    unsaid: u64,
    last: Instant,
    said: Option<Instant>,
}

/// The sources that were refused.
#[derive(Debug)]
pub struct RefusalLog {
    /// What was refused, for the log line: "datagram", "connection".
    what: &'static str,
    sources: BTreeMap<IpAddr, Source>,
    swept: Option<Instant>,
    /// Since when lines are counted, and how many there were.
    lines: Option<(Instant, usize)>,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// A line was logged.
    Logged,
    /// There was a line about this source, or there were enough lines, a moment ago: counted.
    Counted,
    /// The table is full: not even remembered.
    Full,
}

/// A source that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentRefusal {
    /// Where it came from.
    pub source: IpAddr,
    /// A cause; the first one since the last line.
    pub cause: String,
    /// How often it was refused since it is remembered.
    pub times: u64,
    /// How long ago it was refused last.
    pub ago: Duration,
}

impl RefusalLog {
    /// A log for refusals of `what`.
    pub fn new(what: &'static str) -> Self {
        Self { what, sources: BTreeMap::new(), swept: None, lines: None }
    }

    /// Reports that something from `source` was refused because of `cause`.
    pub fn report(&mut self, now: Instant, source: IpAddr, cause: &dyn Display) -> Reported {
        let address = source.to_canonical();
        if !self.sources.contains_key(&address) && !self.has_room(now) {
            return Reported::Full;
        }
        let may_say = self.may_say(now);
        let source = self.sources.entry(address).or_insert_with(|| Source {
            cause: String::new(),
            times: 0,
            unsaid: 0,
            last: now,
            said: None,
        });
        source.last = now;
        source.times += 1;
        source.unsaid += 1;
        if source.cause.is_empty() {
            source.cause = printable(&cause.to_string()).into_owned();
        }
        if !may_say || source.said.is_some_and(|said| now.since(said) < SAY_EVERY) {
            return Reported::Counted;
        }
        source.cause = printable(&cause.to_string()).into_owned();
        let (cause, refused) = (&source.cause, source.unsaid);
        tracing::warn!(source = %address, %cause, refused, "refused a {}; more are counted for a while", self.what);
        source.said = Some(now);
        source.unsaid = 0;
        if let Some((_, lines)) = &mut self.lines {
            *lines += 1;
        }
        Reported::Logged
    }

    /// The sources that were refused last, the latest first.
    pub fn recent(&self, now: Instant, most: usize) -> Vec<RecentRefusal> {
        let mut sources: Vec<_> = self.sources.iter().collect();
        sources.sort_by_key(|(_, source)| std::cmp::Reverse(source.last));
        let recent = |(address, source): (&IpAddr, &Source)| RecentRefusal {
            source: *address,
            cause: source.cause.clone(),
            times: source.times,
            ago: now.since(source.last),
        };
        sources.into_iter().take(most).map(recent).collect()
    }

    /// How many sources are remembered.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }

    fn has_room(&mut self, now: Instant) -> bool {
        if self.sources.len() < SOURCES_MAX {
            return true;
        }
        if self.swept.is_some_and(|swept| now.since(swept) < SAY_EVERY) {
            return false;
        }
        self.swept = Some(now);
        self.sources.retain(|_, source| now.since(source.last) < SAY_EVERY);
        self.sources.len() < SOURCES_MAX
    }

    fn may_say(&mut self, now: Instant) -> bool {
        match &mut self.lines {
            Some((since, lines)) if now.since(*since) < SAY_EVERY => *lines < LINES_MAX,
            lines => {
                *lines = Some((now, 0));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn source(n: usize) -> IpAddr {
        IpAddr::from(Ipv4Addr::from(u32::try_from(n).unwrap()))
    }

    #[test]
    fn a_source_is_logged_again_after_a_while_and_not_before() {
        let mut log = RefusalLog::new("datagram");
        let now = Instant::ORIGIN + SAY_EVERY;
        assert_eq!(log.report(now, source(1), &"no reason"), Reported::Logged);
        assert_eq!(log.report(now, source(1), &"another"), Reported::Counted);
        assert_eq!(log.report(now + SAY_EVERY, source(1), &"another"), Reported::Logged);
        let recent = log.recent(now + 2 * SAY_EVERY, 8);
        assert_eq!((recent.len(), recent[0].times, recent[0].ago), (1, 3, SAY_EVERY));
        assert_eq!(recent[0].cause, "another");
    }

    #[test]
    fn many_sources_cost_few_lines_and_bounded_memory() {
        let mut log = RefusalLog::new("datagram");
        let now = Instant::ORIGIN + SAY_EVERY;
        let logged = (0..2 * SOURCES_MAX)
            .filter(|n| log.report(now, source(*n), &"no reason") == Reported::Logged)
            .count();
        assert_eq!((logged, log.sources()), (LINES_MAX, SOURCES_MAX));
        assert_eq!(log.report(now, source(SOURCES_MAX + 1), &"no reason"), Reported::Full);
        // Once those are old, others are told again.
        assert_eq!(log.report(now + SAY_EVERY, source(SOURCES_MAX + 1), &"no reason"), Reported::Logged);
        assert_eq!(log.sources(), 1);
    }

    #[test]
    fn what_strangers_wrote_does_not_reach_a_terminal() {
        let mut log = RefusalLog::new("connection");
        log.report(Instant::ORIGIN, source(1), &"it asked for \u{1b}[2J");
        assert_eq!(log.recent(Instant::ORIGIN, 1)[0].cause, "it asked for \\u{1b}[2J");
    }
}
