//! A second death, before the store has mended the first; or two who are cut off for longer than anybody waits.
//!
//! What just those two held may be lost, and nothing else: such a key is empty from then on, and its history begins anew.
//! Who held it follows from the view that is in force in that moment (the guide states how long this window is). It is not
//! lost if everybody had fetched what the next view needs, and only the last word about that was on its way.

use super::history::{self, Event, Verdict};
use super::world::{Process, World};
use outlast_proto::store::layout::{Holders, Layout, bucket};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::store::{MemberId, View};
use std::collections::BTreeSet;

/// How soon after the first death the second one comes: until that one is known of, while its keys are copied, or a little later.
pub(super) const SOON: Duration = Duration::from_millis(120);

impl World {
    pub(super) fn die_too(&mut self) {
        let Some(view) = self.registrar.view().cloned().filter(|_| !self.is_calm) else { return };
        let runs = |process: &Process| process.member.is_some() && !process.stopped && !process.leaving;
        let is_in = |process: &Process| view.place(process.id).is_some();
        let all = self.processes.iter().enumerate();
        let may_die: Vec<_> =
            all.filter(|(_, process)| runs(process) && is_in(process)).map(|(at, _)| at).collect();
        // Somebody is left.
        if may_die.len() < 2 {
            return;
        }
        let number = may_die[self.rng.below(may_die.len())];
        self.trace.line(self.now, &format!("process {number} is killed, too"));
        self.vanish(number);
        self.second_deaths += 1;
        self.lose(view, |process| process.member.is_some());
    }

    /// The registrar goes on without both holders of some keys, and says so. That is as bad as two deaths, if it is true that
    /// neither of them could be reached.
    pub(super) fn may_lose(&mut self) {
        let Some(view) = self.registrar.view().cloned() else { return };
        let cut: BTreeSet<_> = self.cuts.iter().flat_map(|(one, two)| [Some(*one), *two]).flatten().collect();
        let cut: BTreeSet<_> =
            cut.iter().filter_map(|number| Some(self.processes.get(*number)?.id)).collect();
        self.lose(view, |process| process.member.is_some() && !process.stopped && !cut.contains(&process.id));
    }

    /// What just those hold who are not there may be lost.
    fn lose(&mut self, view: View, is_there: impl Fn(&Process) -> bool) {
        let is_gone =
            |id: MemberId| !self.processes.iter().any(|process| process.id == id && is_there(process));
        let layout = Layout::new(view);
        let is_lost = |Holders { owner, replica }: Holders| is_gone(owner) && replica.is_none_or(is_gone);
        let keys = self.histories.keys().cloned();
        let lost: Vec<_> = keys.filter(|key| layout.holders(bucket(key)).is_some_and(is_lost)).collect();
        for key in lost {
            self.trace.line(self.now, &format!("{key:?} may be lost"));
            self.lost.entry(key).or_default().push(self.now);
            self.keys_lost += 1;
        }
    }
}

/// Whether the calls of a key could have had these answers, if it may have been lost at each of those moments.
pub(super) fn check(lost: &[Instant], events: &[Event]) -> Verdict {
    let verdict = history::check(events);
    // The last loss of several is the one that shows.
    let begun_anew = lost.iter().rev().map(|at| history::check(&since(*at, events)));
    std::iter::once(verdict.clone())
        .chain(begun_anew)
        .find(|verdict| *verdict != Verdict::Impossible)
        .unwrap_or(verdict)
}

/// What is left of a key's history when everything was lost at that moment. What was on its way then may have been done
/// before, and be lost, or come to be done afterwards.
fn since(lost: Instant, events: &[Event]) -> Vec<Event> {
    let is_over = |event: &Event| event.ended.as_ref().is_some_and(|(at, _)| *at <= lost);
    let left = events.iter().filter(|event| event.begun > lost || !is_over(event));
    left.filter(|event| event.begun > lost || event.operation.changes())
        .cloned()
        .map(|event| if event.begun > lost { event } else { Event { ended: None, ..event } })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_proto::wire::store::operation::{Answer, Operation};

    #[test]
    fn after_a_loss_only_what_was_not_over_counts() {
        let at = Instant::from_nanos;
        let add = |begun, ended: Option<(u64, i64)>| Event {
            operation: Operation::Add(1),
            begun: at(begun),
            ended: ended.map(|(ended, sum)| (at(ended), Answer::Number(sum))),
        };
        let look = Event { operation: Operation::Look, begun: at(3), ended: Some((at(9), Answer::Nothing)) };
        let events =
            vec![add(1, Some((2, 1))), look, add(4, Some((8, 2))), add(4, None), add(6, Some((7, 1)))];
        let left: Vec<_> =
            since(at(5), &events).iter().map(|event| (event.begun, event.ended.is_some())).collect();
        assert_eq!(left, [(at(4), false), (at(4), false), (at(6), true)]);
    }
}
