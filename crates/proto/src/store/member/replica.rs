//! Replication: from an owner to the replica of a bucket, and from there to whoever asked.
//!
//! ```text
//!   caller  --Request-->  owner  --Replicate-->  replica  --Reply-->  caller
//!                               <..Replicated..           along with something else, or a little later
//! ```
//!
//! An owner numbers what it tells one replica in one view, and says of each change which one of the same key comes before
//! it. The replica does changes of one key in their order, and those of different keys as they come: one that takes long to
//! arrive, or whose bucket is frozen, holds up nobody but who is behind it on its own key. It answers the caller, and says
//! which are done. What the owner answers itself and what depends on a change waits in `gated` until the replica has
//! it: calls of its own, reads of the key, whoever waited for it. When a view begins the numbers begin anew; what was not
//! acknowledged and did not move is told again, and if the replica did it already it remembers the call.
//!
//! That the replica is done is of no interest to the owner while nobody waits there, so the acknowledgement rides on
//! the next message, or comes after [`ACKNOWLEDGE_AFTER`]. An owner that lets somebody wait asks for it; and whoever
//! reads what it wrote itself brings the proof along (`Request::seen`): it has the answer, so the replica has the change.
//!
//! The invariant: an answer leaves only when every change that it depends on is with two members, or there is only one.
//! An answer that is lost is asked for again, under the same name, and the owner has it (decision 85).

use super::Member;
use crate::limits::{STORE_AHEAD_MAX, STORE_HELD_MAX};
use crate::store::layout::{Bucket, bucket};
use crate::store::record::Effect;
use crate::time::{Duration, Instant};
use crate::wire::store::mesh::{Letter, Request};
use crate::wire::store::operation::{Answer, Key};
use crate::wire::store::{CallName, ClientId, MemberId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long an acknowledgement that nobody waits for may wait for something to ride on.
const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(20);
/// Changes after which it waits no longer: an owner keeps what is not acknowledged.
const UNACKNOWLEDGED_MAX: usize = 64;
/// Changes ahead of others that one acknowledgement names.
const NAMED_MAX: usize = 1_024;

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Replication {
    /// To replicas of ours.
    outgoing: BTreeMap<MemberId, Outgoing>,
    /// Keys whose last change a replica has not acknowledged.
    pending: BTreeMap<Key, Pending>,
    /// From owners whose replica we are.
    incoming: BTreeMap<MemberId, Incoming>,
    /// Owners that are told how far we are as soon as everything is done that came at once.
    hurried: BTreeSet<MemberId>,
    /// When the others are told.
    acknowledge_at: Option<Instant>,
}

/// The last change of a key that is on its way to a replica: to whom, its number there, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pending {
    replica: MemberId,
    number: u64,
    call: CallName,
}

#[derive(Clone, Debug, Default, Hash)]
struct Outgoing {
    told: u64,
    /// The replica was asked to say when these are done.
    asked: BTreeSet<u64>,
    unacknowledged: VecDeque<Told>,
    gated: BTreeMap<u64, Vec<Gated>>,
    /// When the replica is told again what it has not acknowledged; none while that is nothing.
    again_at: Option<Instant>,
}

/// A change, as a replica was told of it.
#[derive(Clone, Debug, Hash)]
struct Told {
    number: u64,
    request: Request,
    asked_by: Option<MemberId>,
    after: u64,
}

/// A change that an owner tells of.
#[derive(Clone, Debug, Hash)]
pub(super) struct Change {
    pub(super) number: u64,
    pub(super) request: Request,
    /// Whom its replica answers.
    pub(super) asked_by: Option<MemberId>,
    pub(super) is_awaited: bool,
    /// Which one must be done before it.
    pub(super) after: u64,
}

/// An answer that waits for a replica.
type Gated = (MemberId, CallName, Answer);

#[derive(Clone, Debug, Default, Hash)]
struct Incoming {
    /// Everything up to there is done, and of what is behind it, these.
    done: u64,
    beyond: BTreeSet<u64>,
    /// What came before the one that it must follow, by the number of that one.
    early: BTreeMap<u64, Change>,
    /// What came while a view to come moves its bucket. If that view is given up it is done.
    frozen: BTreeMap<u64, Change>,
    /// What the owner knows of what is done: up to there, and not these.
    told: u64,
    untold: BTreeSet<u64>,
    /// The owner wants to know when these are done.
    wanted: BTreeSet<u64>,
}

impl Incoming {
    fn is_done(&self, number: u64) -> bool {
        number <= self.done || self.beyond.contains(&number)
    }

    /// Whether another one may be done that is not the next.
    fn has_room_for(&self, number: u64) -> bool {
        number == self.done + 1 || self.beyond.len() < STORE_AHEAD_MAX
    }

    fn did(&mut self, number: u64) {
        self.beyond.insert(number);
        self.untold.insert(number);
        while self.beyond.remove(&(self.done + 1)) {
            self.done += 1;
            self.untold.remove(&self.done);
        }
    }

    /// The owner does not know that this is done, though it may have been told: that may be lost.
    fn tell_again(&mut self, number: u64) {
        if number <= self.done {
            self.told = self.told.min(number.saturating_sub(1));
        } else if self.beyond.contains(&number) {
            self.untold.insert(number);
        }
    }

    fn want(&mut self, number: u64) {
        if self.wanted.len() < STORE_HELD_MAX {
            self.wanted.insert(number);
        }
    }

    fn owes(&self) -> bool {
        self.told < self.done || !self.untold.is_empty()
    }
}

impl Outgoing {
    /// The replica has just said something, or is told the first thing: it may take so long for the next one. What takes
    /// long to send may take longer.
    fn wait_on(&mut self, now: Instant, pause: Duration) {
        let next = self.unacknowledged.front().map(|told| told.request.operation.is_long());
        self.again_at = next.map(|is_long| now + if is_long { pause * 10 } else { pause });
    }
}

impl Told {
    fn letter(&self, is_awaited: bool) -> Letter {
        let Self { number, request, asked_by, after } = self.clone();
        Letter::Replicate { number, request, asked_by, is_awaited, after: Some(after) }
    }
}

impl Replication {
    pub(super) fn due(&self) -> Option<Instant> {
        let again = self.outgoing.values().filter_map(|outgoing| outgoing.again_at);
        again.chain(self.acknowledge_at).min()
    }

    /// Changes that a key's replica has not acknowledged, if it has not acknowledged the last one of that key; of all
    /// keys if none is named.
    pub(super) fn unacknowledged(&self, key: Option<&Key>) -> u64 {
        let replica = match key.map(|key| self.pending.get(key)) {
            Some(None) => return 0,
            Some(Some(pending)) => Some(pending.replica),
            None => None,
        };
        let concerned = self.outgoing.iter().filter(|(to, _)| replica.is_none_or(|replica| replica == **to));
        concerned.map(|(_, outgoing)| outgoing.unacknowledged.len() as u64).sum()
    }

    /// What there is to acknowledge to an owner; from now on it counts as told.
    pub(super) fn take_acknowledgement(&mut self, owner: MemberId) -> Option<Letter> {
        let incoming = self.incoming.get_mut(&owner).filter(|incoming| incoming.owes())?;
        incoming.told = incoming.done;
        let beyond: Vec<_> = std::iter::from_fn(|| incoming.untold.pop_first()).take(NAMED_MAX).collect();
        if incoming.untold.is_empty() {
            self.hurried.remove(&owner);
        } else {
            self.hurried.insert(owner);
        }
        Some(Letter::Replicated(incoming.done, beyond))
    }
}

impl Member {
    /// Tells the replica of a change that was made here, which answers `asked_by`. False if there is no replica.
    pub(super) fn replicate(
        &mut self,
        now: Instant,
        request: Request,
        asked_by: Option<MemberId>,
        is_awaited: bool,
    ) -> bool {
        let holders = self.active.as_ref().and_then(|layout| layout.holders(bucket(&request.key)));
        let Some(replica) = holders.and_then(|holders| holders.replica) else { return false };
        let outgoing = self.replication.outgoing.entry(replica).or_default();
        outgoing.told += 1;
        let number = outgoing.told;
        if is_awaited {
            outgoing.asked.insert(number);
        }
        let pending = Pending { replica, number, call: request.call };
        let before = self.replication.pending.insert(request.key.clone(), pending);
        let after = before.filter(|before| before.replica == replica).map_or(0, |before| before.number);
        let told = Told { number, request, asked_by, after };
        let letter = told.letter(is_awaited);
        outgoing.unacknowledged.push_back(told);
        if outgoing.again_at.is_none() {
            outgoing.wait_on(now, self.config.resend);
        }
        self.send(now, replica, letter);
        true
    }

    /// A change was made here: tells the replica, which answers whoever asked for it.
    pub(super) fn change_made(
        &mut self,
        now: Instant,
        from: MemberId,
        request: Request,
        answer: Answer,
        is_awaited: bool,
    ) {
        let (call, key) = (request.call, request.key.clone());
        let asked_by = (from != self.me.id).then_some(from);
        if !self.replicate(now, request, asked_by, is_awaited || asked_by.is_none()) {
            self.reply(now, from, call, answer);
        } else if asked_by.is_none() {
            self.gate(&key, (from, call, answer));
        }
    }

    /// Keeps an answer until the replica has the last change of the key. Where, if there is such a change.
    fn gate(&mut self, key: &Key, gated: Gated) -> Option<Pending> {
        let pending = *self.replication.pending.get(key)?;
        let outgoing = self.replication.outgoing.get_mut(&pending.replica)?;
        outgoing.gated.entry(pending.number).or_default().push(gated);
        Some(pending)
    }

    /// Answers, at once if nothing that the answer depends on is still on its way to a replica. Whoever has `seen` the
    /// answer of the last change proves that it is not.
    pub(super) fn respond(
        &mut self,
        now: Instant,
        to: MemberId,
        (call, seen): (CallName, Option<u64>),
        answer: Answer,
        key: &Key,
    ) {
        let Some(pending) = self.replication.pending.get(key) else {
            return self.reply(now, to, call, answer);
        };
        if pending.call.client == call.client && Some(pending.call.number) == seen {
            return self.reply(now, to, call, answer);
        }
        let Some(Pending { replica, number, .. }) = self.gate(key, (to, call, answer)) else { return };
        let Some(outgoing) = self.replication.outgoing.get_mut(&replica) else { return };
        if outgoing.asked.insert(number) {
            self.send(now, replica, Letter::HowFar(number));
        }
    }

    /// A replica has done everything up to that number, and these.
    pub(super) fn replicated(
        &mut self,
        now: Instant,
        from: MemberId,
        epoch: u64,
        number: u64,
        beyond: &[u64],
    ) {
        if epoch != self.epoch() {
            return;
        }
        let Some(outgoing) = self.replication.outgoing.get_mut(&from) else { return };
        let first = |outgoing: &Outgoing| outgoing.unacknowledged.front().map(|told| told.number);
        let (before, mut done) = (first(outgoing), Vec::new());
        while outgoing.unacknowledged.front().is_some_and(|told| told.number <= number) {
            done.extend(outgoing.unacknowledged.pop_front());
        }
        for number in beyond {
            let at = outgoing.unacknowledged.binary_search_by_key(number, |told| told.number);
            done.extend(at.ok().and_then(|at| outgoing.unacknowledged.remove(at)));
        }
        for Told { number, request, .. } in done {
            outgoing.asked.remove(&number);
            let pending = self.replication.pending.get(&request.key);
            if pending.is_some_and(|pending| pending.replica == from && pending.number == number) {
                self.replication.pending.remove(&request.key);
            }
        }
        // While others are done the first one must not be forgotten.
        if first(outgoing) != before {
            outgoing.wait_on(now, self.config.resend);
        }
        let later = outgoing.gated.split_off(&number.saturating_add(1));
        let free = std::mem::replace(&mut outgoing.gated, later).into_values();
        let free: Vec<_> =
            free.chain(beyond.iter().filter_map(|number| outgoing.gated.remove(number))).collect();
        for (to, call, answer) in free.into_iter().flatten() {
            self.reply(now, to, call, answer);
        }
    }

    /// An owner tells of a change. Only the owner of the bucket in this very view is obeyed, and only while no view to come
    /// moves the bucket: its new holders may have fetched it already.
    pub(super) fn replicate_heard(&mut self, now: Instant, from: MemberId, epoch: u64, change: Change) {
        let Some(layout) = self.active.as_ref().filter(|layout| layout.epoch() == epoch) else { return };
        let ours = layout
            .holders(bucket(&change.request.key))
            .is_some_and(|holders| holders.owner == from && holders.replica == Some(self.me.id));
        if !ours {
            return;
        }
        let view = std::sync::Arc::clone(layout.view());
        let is_member = |client: ClientId| view.members.iter().any(|member| member.client == client);
        let next = self.next.as_ref();
        let is_frozen = |change: &Change| next.is_some_and(|next| next.moves(bucket(&change.request.key)));
        let incoming = self.replication.incoming.entry(from).or_default();
        let number = change.number;
        // Who answers itself waits for every word.
        if change.is_awaited || change.asked_by.is_none() || incoming.is_done(number) {
            incoming.want(number);
        }
        let mut answers = Vec::new();
        let mut doable = None;
        if incoming.is_done(number) {
            incoming.tell_again(number);
        } else if incoming.is_done(change.after) {
            doable = Some(change);
        } else if incoming.early.len() < STORE_HELD_MAX {
            // What does not fit is told again.
            incoming.early.insert(change.after, change);
        }
        // And whatever waited for it, if that was not frozen since.
        while let Some(change) = doable.take().filter(|change| incoming.has_room_for(change.number)) {
            if is_frozen(&change) {
                if incoming.frozen.len() < STORE_HELD_MAX {
                    incoming.frozen.insert(change.number, change);
                }
                break;
            }
            let effect = self.shelf.apply(&change.request, is_member);
            if let (Some(to), Effect::Changed(answer) | Effect::Same(answer) | Effect::Again(answer)) =
                (change.asked_by, effect)
            {
                answers.push((to, change.request.call, answer));
            }
            incoming.did(change.number);
            doable = incoming.early.remove(&change.number);
        }
        self.owe(now, from);
        for (to, call, answer) in answers {
            self.reply(now, to, call, answer);
        }
    }

    /// What was frozen for a view that will not come is done, unless another one moves it.
    pub(super) fn thaw(&mut self, now: Instant) {
        let epoch = self.epoch();
        let owners = self.replication.incoming.iter_mut();
        let thawed: Vec<_> =
            owners.map(|(owner, incoming)| (*owner, std::mem::take(&mut incoming.frozen))).collect();
        for (owner, changes) in thawed {
            changes.into_values().for_each(|change| self.replicate_heard(now, owner, epoch, change));
        }
    }

    /// An owner lets somebody wait for what has this number.
    pub(super) fn how_far(&mut self, now: Instant, from: MemberId, epoch: u64, number: u64) {
        if epoch != self.epoch() {
            return;
        }
        let Some(incoming) = self.replication.incoming.get_mut(&from) else { return };
        incoming.want(number);
        // The word that it is done may be on its way; or be lost.
        incoming.tell_again(number);
        self.owe(now, from);
    }

    /// Sees to it that an owner is told how far we are: at once, if it wants to know or should.
    fn owe(&mut self, now: Instant, owner: MemberId) {
        let Some(incoming) = self.replication.incoming.get_mut(&owner) else { return };
        let (done, wanted): (BTreeSet<_>, _) =
            std::mem::take(&mut incoming.wanted).into_iter().partition(|number| incoming.is_done(*number));
        incoming.wanted = wanted;
        if !incoming.owes() {
            return;
        }
        let many = incoming.done - incoming.told >= UNACKNOWLEDGED_MAX as u64
            || incoming.untold.len() >= UNACKNOWLEDGED_MAX;
        if !done.is_empty() || many {
            self.replication.hurried.insert(owner);
        } else {
            self.replication.acknowledge_at.get_or_insert(now + ACKNOWLEDGE_AFTER);
        }
    }

    /// Tells owners that wait for it how far we are: once for all that came at once.
    pub(super) fn acknowledge_changes(&mut self) {
        while let Some(owner) = self.replication.hurried.pop_first() {
            let now = self.post.clock();
            if let Some(letter) = self.replication.take_acknowledgement(owner) {
                self.send(now, owner, letter);
            }
        }
    }

    /// A view begins: numbers begin anew. What did not move and is not acknowledged is told again, in its order.
    pub(super) fn replicate_anew(&mut self, now: Instant, moved: impl Fn(Bucket) -> bool) {
        let before = std::mem::take(&mut self.replication);
        for (_, mut outgoing) in before.outgoing {
            for Told { number, request, asked_by, .. } in outgoing.unacknowledged {
                let gated = outgoing.gated.remove(&number).unwrap_or_default();
                if moved(bucket(&request.key)) {
                    continue;
                }
                // Buckets whose replica is gone have moved: there is one.
                let key = request.key.clone();
                self.replicate(now, request, asked_by, !gated.is_empty());
                for gated in gated {
                    self.gate(&key, gated);
                }
            }
        }
    }

    /// Tells replicas again what they have not acknowledged for long: it was in the hands of somebody who died, or came
    /// while the bucket was frozen for a view that was given up. And owners what they have not asked for.
    pub(super) fn replication_due(&mut self, now: Instant) {
        if self.replication.acknowledge_at.is_some_and(|at| now >= at) {
            self.replication.acknowledge_at = None;
            let owners = self.replication.incoming.iter();
            let owed = owners.filter(|(_, incoming)| incoming.owes()).map(|(owner, _)| *owner);
            self.replication.hurried.extend(owed);
        }
        let mut again = Vec::new();
        for (to, outgoing) in &mut self.replication.outgoing {
            if outgoing.again_at.is_some_and(|at| now >= at) {
                outgoing.wait_on(now, self.config.resend);
                again.extend(outgoing.unacknowledged.iter().map(|told| (*to, told.letter(true))));
            }
        }
        for (to, letter) in again {
            self.send(now, to, letter);
        }
    }
}
