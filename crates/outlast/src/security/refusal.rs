//! Says once per source that it was refused.
//!
//! A port that is open to a network is knocked at. Each refusal is counted where it happens; a person should
//! hear of a source once, with the first cause, and neither the log nor this table may grow with the number of
//! knocks. After [`SOURCES_MAX`] sources one last line says that further ones are only counted.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;

/// Sources that are told apart.
pub const SOURCES_MAX: usize = 1_024;

/// The sources that were reported already.
#[derive(Debug)]
pub struct RefusalLog {
    /// What was refused, for the log line: "datagram", "connection".
    what: &'static str,
    sources: BTreeSet<IpAddr>,
    full: bool,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// The first one from this source: a line was logged.
    Logged,
    /// This source was reported before.
    Known,
    /// The table is full: only counted.
    Full,
}

impl RefusalLog {
    /// A log for refusals of `what`.
    pub fn new(what: &'static str) -> Self {
        Self { what, sources: BTreeSet::new(), full: false }
    }

    /// Reports that something from `source` was refused because of `cause`.
    pub fn report(&mut self, source: IpAddr, cause: &dyn Display) -> Reported {
        let source = source.to_canonical();
        if self.sources.contains(&source) {
            return Reported::Known;
        }
        if self.sources.len() >= SOURCES_MAX {
            if !self.full {
                self.full = true;
                tracing::warn!(
                    sources = SOURCES_MAX,
                    "refused a {} from many sources; further sources are counted, not logged",
                    self.what
                );
            }
            return Reported::Full;
        }
        self.sources.insert(source);
        tracing::warn!(%source, %cause, "refused a {}; more from this source are counted, not logged", self.what);
        Reported::Logged
    }

    /// How many sources were reported.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_source_is_logged_once_and_the_table_is_bounded() {
        let mut log = RefusalLog::new("datagram");
        let source = |n: usize| IpAddr::from(Ipv4Addr::from(u32::try_from(n).unwrap()));
        assert_eq!(log.report(source(1), &"no reason"), Reported::Logged);
        assert_eq!(log.report(source(1), &"another"), Reported::Known);
        for n in 2..=SOURCES_MAX {
            assert_eq!(log.report(source(n), &"no reason"), Reported::Logged);
        }
        assert_eq!(log.report(source(SOURCES_MAX + 1), &"no reason"), Reported::Full);
        assert_eq!(log.report(source(1), &"no reason"), Reported::Known);
        assert_eq!(log.sources(), SOURCES_MAX);
    }
}
