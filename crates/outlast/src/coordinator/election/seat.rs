//! The clerk's side of an election: what was written down before its reign, and where it has things written.

use outlast_proto::coordinator::{Facts, FactsStamp};
use outlast_proto::id::RunId;
use outlast_proto::wire::control::Term;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// What is to be written down, and under which reign.
pub(in crate::coordinator) type Write = (Term, RunId, FactsStamp, Vec<u8>);

/// Where the clerk of one of several coordinators writes.
#[derive(Debug)]
pub(in crate::coordinator) struct Seat {
    term: Option<Term>,
    facts: BTreeMap<RunId, Facts>,
    writes: mpsc::UnboundedSender<Write>,
}

impl Seat {
    pub(in crate::coordinator) fn new(writes: mpsc::UnboundedSender<Write>) -> Self {
        Self { term: None, facts: BTreeMap::new(), writes }
    }

    /// A reign begins, with what was written down before it.
    pub(in crate::coordinator) fn begin(&mut self, term: Term, facts: BTreeMap<RunId, Facts>) {
        (self.term, self.facts) = (Some(term), facts);
    }

    pub(in crate::coordinator) fn term(&self) -> Option<Term> {
        self.term
    }

    pub(in crate::coordinator) fn facts(&self, run: &RunId) -> Option<Facts> {
        self.facts.get(run).cloned()
    }

    pub(in crate::coordinator) fn write(&mut self, run: &RunId, stamp: FactsStamp, facts: Facts) {
        if let Some(term) = self.term {
            // If nobody is there to write, nothing is ever said of it.
            let _ = self.writes.send((term, run.clone(), stamp, facts.to_bytes()));
        }
        self.facts.insert(run.clone(), facts);
    }
}
