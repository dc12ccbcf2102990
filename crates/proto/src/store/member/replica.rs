//! Replication: from an owner to the replica of a slot, and back.
//!
//! An owner numbers what it tells one replica in one view; the replica does it in that order, and says how far it is.
//! Answers that depend on a change wait in `gated` until the replica has it. When a view begins the numbers begin anew;
//! what was not acknowledged and did not move is told again, and if the replica did it already it remembers the call.
//!
//! The invariant: an answer leaves only when every change that it depends on is with two members, or there is only one.

use super::Member;
use crate::store::layout::{Slot, slot};
use crate::time::{Duration, Instant};
use crate::wire::store::mesh::{Letter, Request};
use crate::wire::store::operation::{Answer, Key};
use crate::wire::store::{CallName, ClientId, MemberId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Replication {
    /// To replicas of ours.
    outgoing: BTreeMap<MemberId, Outgoing>,
    /// Keys whose last change a replica has not acknowledged: which, and its number.
    pending: BTreeMap<Key, (MemberId, u64)>,
    /// From owners whose replica we are: how far we are, and what came too early.
    incoming: BTreeMap<MemberId, (u64, BTreeMap<u64, Request>)>,
    /// Owners that were not told yet how far we are.
    owed: BTreeSet<MemberId>,
}

#[derive(Clone, Debug, Default, Hash)]
struct Outgoing {
    told: u64,
    unacknowledged: VecDeque<(u64, Request)>,
    gated: BTreeMap<u64, Vec<(MemberId, CallName, Answer)>>,
    /// When the replica is told again what it has not acknowledged; none while that is nothing.
    again_at: Option<Instant>,
}

impl Outgoing {
    /// The replica has just said something, or is told the first thing: it may take so long for the next one. What takes
    /// long to send may take longer.
    fn wait_on(&mut self, now: Instant, pause: Duration) {
        let next = self.unacknowledged.front().map(|(_, request)| request.operation.is_long());
        self.again_at = next.map(|is_long| now + if is_long { pause * 10 } else { pause });
    }
}

impl Replication {
    pub(super) fn due(&self) -> Option<Instant> {
        self.outgoing.values().filter_map(|outgoing| outgoing.again_at).min()
    }

    /// Changes that a key's replica has not acknowledged, if it has not acknowledged the last one of that key; of all
    /// keys if none is named.
    pub(super) fn unacknowledged(&self, key: Option<&Key>) -> u64 {
        let replica = match key.map(|key| self.pending.get(key)) {
            Some(None) => return 0,
            Some(Some((replica, _))) => Some(replica),
            None => None,
        };
        let concerned = self.outgoing.iter().filter(|(to, _)| replica.is_none_or(|replica| replica == *to));
        concerned.map(|(_, outgoing)| outgoing.unacknowledged.len() as u64).sum()
    }
}

impl Member {
    /// Tells the replica of a change that was made here.
    pub(super) fn replicate(&mut self, now: Instant, request: Request) {
        let holders = self.active.as_ref().and_then(|layout| layout.holders(slot(&request.key)));
        let Some(replica) = holders.and_then(|holders| holders.replica) else { return };
        let outgoing = self.replication.outgoing.entry(replica).or_default();
        outgoing.told += 1;
        let number = outgoing.told;
        outgoing.unacknowledged.push_back((number, request.clone()));
        if outgoing.again_at.is_none() {
            outgoing.wait_on(now, self.config.resend);
        }
        self.replication.pending.insert(request.key.clone(), (replica, number));
        self.send(now, replica, Letter::Replicate { number, request });
    }

    /// Answers, at once if nothing that the answer depends on is still on its way to a replica.
    pub(super) fn respond(&mut self, now: Instant, to: MemberId, call: CallName, answer: Answer, key: &Key) {
        if let Some((replica, number)) = self.replication.pending.get(key)
            && let Some(outgoing) = self.replication.outgoing.get_mut(replica)
        {
            outgoing.gated.entry(*number).or_default().push((to, call, answer));
            return;
        }
        self.reply(now, to, call, answer);
    }

    /// A replica has everything up to that number.
    pub(super) fn replicated(&mut self, now: Instant, from: MemberId, epoch: u64, number: u64) {
        if epoch != self.epoch() {
            return;
        }
        let Some(outgoing) = self.replication.outgoing.get_mut(&from) else { return };
        while outgoing.unacknowledged.front().is_some_and(|(told, _)| *told <= number) {
            let Some((told, request)) = outgoing.unacknowledged.pop_front() else { break };
            if self.replication.pending.get(&request.key) == Some(&(from, told)) {
                self.replication.pending.remove(&request.key);
            }
        }
        outgoing.wait_on(now, self.config.resend);
        let later = outgoing.gated.split_off(&(number + 1));
        let free = std::mem::replace(&mut outgoing.gated, later);
        for (to, call, answer) in free.into_values().flatten() {
            self.reply(now, to, call, answer);
        }
    }

    /// An owner tells of a change. Only the owner of the slot in this very view is obeyed, and only while no view to come
    /// moves the slot: its new holders may have fetched it already.
    pub(super) fn replicate_heard(&mut self, from: MemberId, epoch: u64, number: u64, request: Request) {
        let Some(layout) = self.active.as_ref().filter(|layout| layout.epoch() == epoch) else { return };
        let part = slot(&request.key);
        let ours = layout
            .holders(part)
            .is_some_and(|holders| holders.owner == from && holders.replica == Some(self.me.id));
        if !ours || self.next.as_ref().is_some_and(|next| next.moves(part)) {
            return;
        }
        let view = std::sync::Arc::clone(layout.view());
        let is_member = |client: ClientId| view.members.iter().any(|member| member.client == client);
        let (done, early) = self.replication.incoming.entry(from).or_default();
        if number > *done {
            early.insert(number, request);
        }
        // What came early may have been frozen since: it waits, and all behind it.
        let next = self.next.as_ref();
        let frozen = |request: &Request| next.is_some_and(|next| next.moves(slot(&request.key)));
        while let Some(request) = early.get(&(*done + 1)).filter(|request| !frozen(request)) {
            self.shelf.apply(request, is_member);
            *done += 1;
            early.remove(done);
        }
        self.replication.owed.insert(from);
    }

    /// Tells owners how far we are: once for all that came at once.
    pub(super) fn acknowledge_changes(&mut self) {
        for owner in std::mem::take(&mut self.replication.owed) {
            let done = self.replication.incoming.get(&owner).map_or(0, |(done, _)| *done);
            let now = self.post.clock();
            self.send(now, owner, Letter::Replicated(done));
        }
    }

    /// A view begins: numbers begin anew. What did not move and is not acknowledged is told again, in its order.
    pub(super) fn replicate_anew(&mut self, now: Instant, moved: impl Fn(Slot) -> bool) {
        let before = std::mem::take(&mut self.replication);
        for (_, mut outgoing) in before.outgoing {
            for (number, request) in outgoing.unacknowledged {
                let gated = outgoing.gated.remove(&number).unwrap_or_default();
                if moved(slot(&request.key)) {
                    continue;
                }
                let key = request.key.clone();
                self.replicate(now, request);
                for (to, call, answer) in gated {
                    self.respond(now, to, call, answer, &key);
                }
            }
        }
    }

    /// Tells replicas again what they have not acknowledged for long: it was in the hands of somebody who died, or came
    /// while the slot was frozen for a view that was given up.
    pub(super) fn replication_due(&mut self, now: Instant) {
        let mut again = Vec::new();
        for (to, outgoing) in &mut self.replication.outgoing {
            if outgoing.again_at.is_some_and(|at| now >= at) {
                outgoing.wait_on(now, self.config.resend);
                again.extend(outgoing.unacknowledged.iter().map(|one| (*to, one.clone())));
            }
        }
        for (to, (number, request)) in again {
            self.send(now, to, Letter::Replicate { number, request });
        }
    }
}
