//! The owner: answers for the keys of its buckets.
//!
//! A request is done when it comes, and answered when the replica has whatever the answer depends on; a change is answered
//! by the replica itself. So the order in
//! which an owner does things is the order of the key's history, nobody ever sees what a death could take back, and many
//! changes of one key can be on their way to the replica at once.
//!
//! What cannot be answered yet is held: a view is about to begin, the bucket is moving, the lease was not renewed yet.
//! Held requests are looked at again when that changes. Those that were held for a view that has passed are dropped:
//! their clients ask again, under the same name.

use super::Member;
use super::replica::Change;
use crate::limits::{STORE_HANDOVER_BYTES, STORE_HELD_MAX, STORE_WAITERS_MAX};
use crate::store::layout::bucket;
use crate::store::record::{Effect, Record};
use crate::time::{Duration, Instant};
use crate::wire::store::mesh::{Letter, Request};
use crate::wire::store::operation::{Answer, Key, Objection, Operation};
use crate::wire::store::{CallName, ClientId, MemberId};
use std::collections::{BTreeMap, VecDeque};

/// How often calls that wait are looked through for those whose time is over.
const SWEEP: Duration = Duration::from_secs(1);

/// What waits at this member.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct WaitingRoom {
    waiters: BTreeMap<Key, BTreeMap<CallName, Waiter>>,
    count: usize,
    held: VecDeque<(MemberId, u64, Letter)>,
    sweep_at: Option<Instant>,
}

#[derive(Clone, Debug, Hash)]
struct Waiter {
    from: MemberId,
    operation: Operation,
    since: Instant,
    until: Instant,
}

/// Why something cannot be done now.
enum Obstacle {
    /// Later, here.
    Held,
    /// Not here.
    Elsewhere,
}

impl WaitingRoom {
    pub(super) fn waiting(&self) -> usize {
        self.count
    }

    /// As many more wait here, whom a test need not make.
    #[cfg(test)]
    pub(super) fn crowd(&mut self, count: usize) {
        self.count += count;
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.sweep_at
    }

    /// Since when a call waits here.
    pub(super) fn waits_since(&self, key: &Key, call: CallName) -> Option<Instant> {
        self.waiters.get(key)?.get(&call).map(|waiter| waiter.since)
    }

    /// Whether a call is here and may not be answered yet.
    pub(super) fn holds(&self, call: CallName) -> bool {
        self.held.iter().any(|(_, _, body)| matches!(body, Letter::Request(request) if request.call == call))
    }

    /// Forgets those who wait for keys that are not `kept`; they will ask elsewhere.
    pub(super) fn keep(&mut self, kept: impl Fn(&Key) -> bool) {
        self.waiters.retain(|key, _| kept(key));
        self.count = self.waiters.values().map(BTreeMap::len).sum();
    }

    pub(super) fn take_held(&mut self) -> VecDeque<(MemberId, u64, Letter)> {
        std::mem::take(&mut self.held)
    }

    fn hold(&mut self, from: MemberId, epoch: u64, body: Letter) {
        if self.held.len() < STORE_HELD_MAX {
            self.held.push_back((from, epoch, body));
        }
    }
}

impl Member {
    /// Whether this member would answer for a key at this moment.
    pub fn answers_for(&self, now: Instant, key: &Key) -> bool {
        self.obstacle(now, self.epoch(), Some(key)).is_none()
    }

    /// What this member has of a key, as owner or as replica, in this view or from an earlier one.
    pub fn has_of(&self, key: &Key) -> Option<Answer> {
        match self.shelf.record(key)?.look(&Operation::Look) {
            Effect::Same(answer) => Some(answer),
            _ => None,
        }
    }

    /// A request, a change for the replica, or a question about keys.
    pub(super) fn serve(&mut self, now: Instant, from: MemberId, epoch: u64, body: Letter) {
        if epoch > self.epoch() {
            return self.waiting_room.hold(from, epoch, body);
        }
        match body {
            Letter::Request(request) => match self.obstacle(now, epoch, Some(&request.key)) {
                None => self.answer(now, from, request),
                Some(Obstacle::Held) => self.waiting_room.hold(from, epoch, Letter::Request(request)),
                Some(Obstacle::Elsewhere) => self.refuse(now, from, request.call),
            },
            Letter::Replicate { number, request, asked_by, is_awaited, after } => {
                let after = after.unwrap_or(number.saturating_sub(1));
                let change = Change { number, request, asked_by, is_awaited, after };
                self.replicate_heard(now, from, epoch, change);
            }
            Letter::ListKeys { call, prefix, after } => match self.obstacle(now, epoch, None) {
                None => {
                    let (me, layout) = (self.me.id, self.active.as_ref());
                    let owned = |bucket| layout.is_some_and(|layout| layout.owner(bucket) == Some(me));
                    let bytes = STORE_HANDOVER_BYTES;
                    let (keys, more) = self.shelf.keys(&prefix, after.as_ref(), bytes, owned);
                    self.reply(now, from, call, Answer::Keys(keys, more));
                }
                Some(Obstacle::Held) => {
                    self.waiting_room.hold(from, epoch, Letter::ListKeys { call, prefix, after });
                }
                Some(Obstacle::Elsewhere) => self.refuse(now, from, call),
            },
            Letter::CountKeys(call) => match self.obstacle(now, epoch, None) {
                None => {
                    let (me, layout) = (self.me.id, self.active.as_ref());
                    let owned = |bucket| layout.is_some_and(|layout| layout.owner(bucket) == Some(me));
                    let count = self.shelf.count(owned);
                    self.reply(now, from, call, Answer::Number(count as i64));
                }
                Some(Obstacle::Held) => self.waiting_room.hold(from, epoch, Letter::CountKeys(call)),
                Some(Obstacle::Elsewhere) => self.refuse(now, from, call),
            },
            _ => {}
        }
    }

    /// What keeps this member from answering about a key, or about all that it owns.
    fn obstacle(&self, now: Instant, epoch: u64, key: Option<&Key>) -> Option<Obstacle> {
        let Some(layout) = self.active.as_ref().filter(|layout| layout.epoch() == epoch) else {
            return Some(Obstacle::Elsewhere);
        };
        let asked = key.map(bucket);
        if asked.is_some_and(|bucket| layout.owner(bucket) != Some(self.me.id)) {
            return Some(Obstacle::Elsewhere);
        }
        let moves = self.next.as_ref().is_some_and(|next| asked.is_none_or(|bucket| next.moves(bucket)));
        (moves || !self.has_lease(now)).then_some(Obstacle::Held)
    }

    fn refuse(&mut self, now: Instant, from: MemberId, call: CallName) {
        let epoch = self.epoch();
        self.send(now, from, Letter::NotHere { call, epoch });
    }

    pub(super) fn reply(&mut self, now: Instant, to: MemberId, call: CallName, answer: Answer) {
        self.send(now, to, Letter::Reply { call, answer });
    }

    /// Does what is asked, and sees to it that the answer goes out when it may.
    fn answer(&mut self, now: Instant, from: MemberId, request: Request) {
        // What is done to a key that is not here leaves a record too, even if it finds nothing.
        let is_new = request.operation.changes() && self.shelf.record(&request.key).is_none();
        let grows = is_new
            || matches!(
                request.operation,
                Operation::Set(_) | Operation::CompareSet(..) | Operation::Append(_) | Operation::Push(_)
            );
        if grows && self.shelf.bytes() >= self.config.bytes_max {
            let refusal = Answer::Refused(Objection::Full);
            return self.reply(now, from, request.call, refusal);
        }
        let members = self.active.as_ref().map(|layout| std::sync::Arc::clone(layout.view()));
        let is_member = |client: ClientId| {
            members.as_ref().is_some_and(|view| view.members.iter().any(|member| member.client == client))
        };
        // Whether it was done is not known, so it is neither done nor refused: its client's time runs out.
        let client = request.call.client;
        let is_forgotten = |record: &Record| !is_member(client) && record.may_have_forgotten(client);
        if request.again
            && request.operation.changes()
            && self.shelf.record(&request.key).is_some_and(is_forgotten)
        {
            return;
        }
        match self.shelf.apply(&request, is_member) {
            Effect::Changed(answer) => {
                let key = request.key.clone();
                let is_awaited = self.waiting_room.waiters.contains_key(&key);
                self.change_made(now, from, request, answer, is_awaited);
                self.wake(now, &key);
            }
            Effect::Same(answer) | Effect::Again(answer) => {
                self.respond(now, from, (request.call, request.seen), answer, &request.key);
            }
            Effect::Waits => self.park(now, from, request),
            Effect::Over => {}
        }
    }

    fn park(&mut self, now: Instant, from: MemberId, request: Request) {
        let Request { call, key, operation, patience_ms, .. } = request;
        if self.waiting_room.count >= STORE_WAITERS_MAX {
            return self.reply(now, from, call, Answer::Refused(Objection::TooManyWait));
        }
        let until = now + Duration::from_millis(patience_ms);
        let waiters = self.waiting_room.waiters.entry(key).or_default();
        // Who asks again waits since it asked first.
        let since = waiters.get(&call).map_or(now, |waiter| waiter.since);
        if waiters.insert(call, Waiter { from, operation, since, until }).is_none() {
            self.waiting_room.count += 1;
        }
        self.waiting_room.sweep_at.get_or_insert(now + SWEEP);
    }

    /// The key changed: whoever waited for it is looked at again.
    fn wake(&mut self, now: Instant, key: &Key) {
        let Some(record) = self.shelf.record(key).filter(|record| record.is_present()) else { return };
        let Some(waiters) = self.waiting_room.waiters.remove(key) else { return };
        self.waiting_room.count -= waiters.len();
        let answers: Vec<_> = waiters
            .into_iter()
            .filter_map(|(call, waiter)| match record.look(&waiter.operation) {
                Effect::Same(answer) => Some((waiter.from, call, answer)),
                _ => None,
            })
            .collect();
        for (from, call, answer) in answers {
            self.respond(now, from, (call, None), answer, key);
        }
    }

    /// The lease is back, or a view began: what was held is looked at again.
    pub(super) fn serve_held(&mut self, now: Instant) {
        for (from, epoch, body) in self.waiting_room.take_held() {
            if epoch >= self.epoch() {
                self.serve(now, from, epoch, body);
            } else if let Letter::Request(Request { call, .. }) = body {
                self.refuse(now, from, call);
            }
        }
    }

    pub(super) fn desk_due(&mut self, now: Instant) {
        if self.waiting_room.sweep_at.is_none_or(|at| now < at) {
            return;
        }
        for waiters in self.waiting_room.waiters.values_mut() {
            waiters.retain(|_, waiter| now < waiter.until);
        }
        self.waiting_room.keep(|_| true);
        self.waiting_room.waiters.retain(|_, waiters| !waiters.is_empty());
        self.waiting_room.sweep_at = (self.waiting_room.count > 0).then(|| now + SWEEP);
    }
}
