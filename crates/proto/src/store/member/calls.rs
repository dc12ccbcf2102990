//! The client: calls of this member's own program, and of clients that are no members.
//!
//! A call has a name that it keeps until it ends, so it may be sent as often as it takes: again when a view begins,
//! again when the reader was not the owner, again when nothing was heard for long. It ends with an answer, with the end
//! of the store, or at its deadline with a text that says why; for that text others are asked while there is time
//! (`inquiry.rs`).
//!
//! Questions about all keys go to every member, and begin anew in every view; they are not atomic (rule 30).

use super::inquiry::{Asking, Inquiries};
use super::{Action, Member};
use crate::limits::STORE_CALLS_MAX;
use crate::store::layout::bucket;
use crate::time::{Duration, Instant};
use crate::wire::store::mesh::{Letter, Request};
use crate::wire::store::operation::{Answer, Key, Objection, Operation};
use crate::wire::store::{Blob, CallName, ClientId, MemberId};
use std::collections::{BTreeMap, BTreeSet};

/// A call that is under way here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// Its time is over. Whether a change was made is not known.
    #[error("{0}")]
    TimedOut(String),
    /// The store has ended, by a shutdown.
    #[error("the store was shut down")]
    ShutDown,
    /// The store has ended because that member was gone and was to end it.
    #[error("store was shut down on {0}")]
    ShutDownOn(String),
    /// The owner objects. Nothing was changed.
    #[error("{operation} of {key}: {objection}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// Of which key.
        key: String,
        /// Why not.
        objection: Objection,
    },
    /// This member has left the store.
    #[error("this member has left the store; join again to use it")]
    Left,
    /// Too many calls are under way. Nothing was done.
    #[error("{STORE_CALLS_MAX} calls are in progress, which is the limit")]
    TooMany,
}

/// Keys of which it is known which own change was answered last. Who reads one that was forgotten may wait a little longer.
const SEEN_MAX: usize = 256;
/// What is long is sent again after so many times as long.
const LONG: u32 = 10;
/// So often in a row a call that waits may be sent in vain before its owner forgets that it waits.
const MISSED_MAX: u32 = 3;
/// A member that is behind is asked again soon.
const SOON: Duration = Duration::from_millis(3);

#[derive(Clone, Debug, Hash)]
pub(super) struct Calls {
    client: ClientId,
    number: u64,
    pub(super) under_way: BTreeMap<Ticket, Call>,
    /// What others were asked about them.
    pub(super) inquiries: Inquiries,
    /// Calls of others, by name.
    foreign: BTreeMap<CallName, Ticket>,
    /// Numbers of own calls that change a key and are not answered.
    changing: BTreeMap<Key, BTreeSet<u64>>,
    /// The last own change of a key that was answered; of the keys of late.
    seen: BTreeMap<Key, u64>,
    timers: BTreeSet<(Instant, Ticket)>,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Call {
    pub(super) name: CallName,
    /// What a client that is no member said of its others.
    answered_below: Option<u64>,
    pub(super) what: What,
    pub(super) begun: Instant,
    pub(super) deadline: Instant,
    pub(super) asking: Asking,
    /// To whom it was sent last, in which view, when.
    pub(super) sent: Option<(MemberId, u64, Instant)>,
    pub(super) sends: u32,
    /// Of those, the ones that may have been done for all we know.
    unrefuted: u32,
    send_at: Instant,
}

#[derive(Clone, Debug, Hash)]
pub(super) enum What {
    One(Key, Operation),
    /// Keys that begin so: those found, and of each member that is not through, the last one.
    Keys(Blob, Vec<Blob>, BTreeMap<MemberId, Option<Blob>>),
    /// The number of keys: so far, and who has not told.
    Count(u64, BTreeSet<MemberId>),
}

impl Calls {
    pub(super) fn new(client: ClientId) -> Self {
        Self {
            client,
            number: 0,
            under_way: BTreeMap::new(),
            inquiries: Inquiries::default(),
            foreign: BTreeMap::new(),
            changing: BTreeMap::new(),
            seen: BTreeMap::new(),
            timers: BTreeSet::new(),
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn ticket(&self, name: CallName) -> Option<Ticket> {
        let own = (name.client == self.client).then_some(Ticket(name.number));
        own.or_else(|| self.foreign.get(&name).copied()).filter(|ticket| self.under_way.contains_key(ticket))
    }

    fn set_timer(&mut self, ticket: Ticket) {
        if let Some(call) = self.under_way.get(&ticket) {
            self.timers.insert((call.timer(), ticket));
        }
    }

    /// A call has its answer: what it changed is with two members.
    fn answered(&mut self, ticket: Ticket) {
        let Some(call) = self.remove(ticket) else { return };
        if let What::One(key, operation) = call.what
            && operation.changes()
            && call.name.client == self.client
        {
            if self.seen.len() >= SEEN_MAX {
                self.seen.clear();
            }
            self.seen.insert(key, call.name.number);
        }
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Call> {
        let call = self.under_way.remove(&ticket)?;
        self.timers.remove(&(call.timer(), ticket));
        self.inquiries.close(ticket);
        // A client may have asked again meanwhile: then its name is that of the later call.
        if self.foreign.get(&call.name) == Some(&ticket) {
            self.foreign.remove(&call.name);
        }
        if let What::One(key, operation) = &call.what
            && operation.changes()
            && call.name.client == self.client
            && let Some(numbers) = self.changing.get_mut(key)
        {
            numbers.remove(&call.name.number);
            if numbers.is_empty() {
                self.changing.remove(key);
            }
        }
        Some(call)
    }
}

impl Call {
    fn timer(&self) -> Instant {
        let ask = self.asking.due().unwrap_or(self.deadline);
        self.deadline.min(ask).min(self.send_at)
    }

    pub(super) fn words(&self) -> String {
        match &self.what {
            What::One(key, operation) => format!("{} of {key:?}", operation.word()),
            What::Keys(prefix, ..) => format!("keys that begin with {prefix:?}"),
            What::Count(..) => "num_keys".to_owned(),
        }
    }
}

impl Member {
    /// Begins a call on one key. Its end is an [`Action::Finish`].
    pub fn call(&mut self, now: Instant, key: Key, operation: Operation, timeout: Duration) -> Ticket {
        let ticket = self.begin(now, None, What::One(key, operation), timeout);
        self.settle(now);
        ticket
    }

    /// The same in the name of a client that is no member, gave the call its number and says what it has the answers of.
    pub fn call_for(&mut self, now: Instant, request: Request, timeout: Duration) -> Ticket {
        let Request { call, answered_below, key, operation, again, .. } = request;
        let ticket = self.begin(now, Some((call, answered_below, again)), What::One(key, operation), timeout);
        self.settle(now);
        ticket
    }

    /// Asks for the keys that begin with `prefix`. Not atomic.
    pub fn keys(&mut self, now: Instant, prefix: Vec<u8>, timeout: Duration) -> Ticket {
        let ticket = self.begin(now, None, What::Keys(prefix.into(), Vec::new(), BTreeMap::new()), timeout);
        self.settle(now);
        ticket
    }

    /// Asks how many keys there are. Not atomic.
    pub fn count_keys(&mut self, now: Instant, timeout: Duration) -> Ticket {
        let ticket = self.begin(now, None, What::Count(0, BTreeSet::new()), timeout);
        self.settle(now);
        ticket
    }

    /// How many calls have not ended.
    pub fn calls_under_way(&self) -> usize {
        self.calls.under_way.len()
    }

    /// The program waits no more. A change that was asked for may still be made.
    pub fn abandon(&mut self, ticket: Ticket) {
        self.calls.remove(ticket);
    }

    /// Begins a call: of a client that is no member if it has a name already, with what that client says of its others, and
    /// whether it has sent this one before.
    fn begin(
        &mut self,
        now: Instant,
        of: Option<(CallName, u64, bool)>,
        what: What,
        timeout: Duration,
    ) -> Ticket {
        self.calls.number += 1;
        let ticket = Ticket(self.calls.number);
        let own = CallName { client: self.calls.client, number: ticket.0 };
        if let Some(failure) = self.ending.failure() {
            self.actions.push_back(Action::Finish(ticket, Err(failure)));
            return ticket;
        }
        if self.calls.under_way.len() >= STORE_CALLS_MAX {
            self.actions.push_back(Action::Finish(ticket, Err(Failure::TooMany)));
            return ticket;
        }
        if let Some((name, ..)) = of {
            self.calls.foreign.insert(name, ticket);
        }
        if let What::One(key, operation) = &what
            && operation.changes()
            && of.is_none()
        {
            self.calls.changing.entry(key.clone()).or_default().insert(ticket.0);
        }
        let deadline = now + timeout;
        let call = Call {
            name: of.map_or(own, |(name, ..)| name),
            answered_below: of.map(|(_, below, _)| below),
            what,
            begun: now,
            deadline,
            asking: Asking::before(deadline, timeout),
            sent: None,
            sends: 0,
            unrefuted: u32::from(of.is_some_and(|(.., again)| again)),
            send_at: deadline,
        };
        self.calls.under_way.insert(ticket, call);
        self.calls.set_timer(ticket);
        self.send_call(now, ticket);
        ticket
    }

    /// Sends a call to whom it concerns, if there is a view.
    fn send_call(&mut self, now: Instant, ticket: Ticket) {
        let Some(layout) = self.active.as_ref() else { return };
        let resend = self.config.resend;
        let Some(call) = self.calls.under_way.get_mut(&ticket) else { return };
        let was = call.timer();
        let (name, epoch) = (call.name, layout.epoch());
        let bodies: Vec<_> = match &mut call.what {
            What::One(key, operation) => {
                let Some(owner) = layout.owner(bucket(key)) else { return };
                let changing = self.calls.changing.get(key).and_then(BTreeSet::first).copied();
                // Whoever waits says so again and again. Its owner does not wait for long with one that is not heard any more.
                let patience = call.deadline.since(now).min(resend * LONG * MISSED_MAX);
                let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
                let request = Request {
                    call: name,
                    answered_below: call.answered_below.unwrap_or_else(|| changing.unwrap_or(name.number)),
                    key: key.clone(),
                    operation: operation.clone(),
                    patience_ms: patience,
                    seen: self.calls.seen.get(key).copied().filter(|_| name.client == self.calls.client),
                    again: call.unrefuted > 0,
                };
                call.sent = Some((owner, epoch, now));
                vec![(owner, Letter::Request(request))]
            }
            What::Keys(prefix, found, left) => {
                if call.sent.is_none_or(|(_, sent, _)| sent != epoch) {
                    found.clear();
                    *left = layout.view().members.iter().map(|member| (member.id, None)).collect();
                }
                call.sent = Some((self.me.id, epoch, now));
                let ask = |(member, after): (&MemberId, &Option<Blob>)| {
                    let (prefix, after) = (prefix.clone(), after.clone());
                    (*member, Letter::ListKeys { call: name, prefix, after })
                };
                left.iter().map(ask).collect()
            }
            What::Count(so_far, left) => {
                if call.sent.is_none_or(|(_, sent, _)| sent != epoch) {
                    *so_far = 0;
                    *left = layout.view().members.iter().map(|member| member.id).collect();
                }
                call.sent = Some((self.me.id, epoch, now));
                left.iter().map(|member| (*member, Letter::CountKeys(name))).collect()
            }
        };
        (call.sends, call.unrefuted) = (call.sends + 1, call.unrefuted + 1);
        // What is long takes its time; and whoever waits for a key is known to its owner.
        let is_long = matches!(&call.what, What::One(_, operation) if operation.is_long());
        call.send_at = now + if is_long { resend * LONG } else { resend };
        self.calls.timers.remove(&(was, ticket));
        self.calls.set_timer(ticket);
        bodies.into_iter().for_each(|(to, body)| self.send(now, to, body));
    }

    /// A view begins: everything that is under way is sent again.
    pub(super) fn call_again(&mut self, now: Instant) {
        let all: Vec<_> = self.calls.under_way.keys().copied().collect();
        all.into_iter().for_each(|ticket| self.send_call(now, ticket));
    }

    /// Somebody answers, in that view. An answer of a view that has passed is not taken once the call was sent again: the
    /// new owner may not know of it, and do again what it says.
    pub(super) fn replied(
        &mut self,
        now: Instant,
        from: MemberId,
        epoch: u64,
        name: CallName,
        answer: Answer,
    ) {
        let Some(ticket) = self.calls.ticket(name) else { return };
        let Some(call) = self.calls.under_way.get_mut(&ticket) else { return };
        if call.sent.is_none_or(|(_, sent, _)| epoch < sent) {
            return;
        }
        let finished = match (&mut call.what, answer) {
            (What::One(key, operation), Answer::Refused(objection)) => {
                let (operation, key) = (operation.word(), format!("{key:?}"));
                Err(Failure::Refused { operation, key, objection })
            }
            // The value that it was to have is known here, and need not travel.
            (What::One(_, Operation::CompareSet(_, desired)), Answer::Done) => {
                Ok(Answer::Value(desired.clone()))
            }
            (What::One(..), answer) => Ok(answer),
            (What::Keys(_, found, left), Answer::Keys(keys, more)) => {
                let last = keys.last().cloned();
                let Some(after) = left.get(&from) else { return };
                // An answer that was asked for twice.
                if after.as_ref().zip(keys.first()).is_some_and(|(after, first)| first <= after) {
                    return;
                }
                found.extend(keys);
                if more {
                    left.insert(from, last);
                    return self.send_call(now, ticket);
                }
                left.remove(&from);
                if !left.is_empty() {
                    return;
                }
                found.sort_unstable();
                Ok(Answer::Keys(std::mem::take(found), false))
            }
            (What::Count(so_far, left), Answer::Number(count)) => {
                if !left.remove(&from) {
                    return;
                }
                *so_far += count as u64;
                if !left.is_empty() {
                    return;
                }
                Ok(Answer::Number(*so_far as i64))
            }
            _ => return,
        };
        self.calls.answered(ticket);
        self.actions.push_back(Action::Finish(ticket, finished));
    }

    /// Whoever was asked is not the owner in its view.
    pub(super) fn not_here(&mut self, now: Instant, from: MemberId, name: CallName, epoch: u64) {
        let ours = self.epoch();
        let Some(ticket) = self.calls.ticket(name) else { return };
        let Some(call) = self.calls.under_way.get_mut(&ticket) else { return };
        // It was not done there.
        call.unrefuted = call.unrefuted.saturating_sub(1);
        let is_current =
            call.sent.is_some_and(|(to, sent, _)| sent == ours && (to == from || to == self.me.id));
        // It is ahead of us: our view ends soon, and then the call is sent again anyway.
        if is_current && epoch <= ours {
            let was = call.timer();
            call.send_at = now + SOON;
            self.calls.timers.remove(&(was, ticket));
            self.calls.set_timer(ticket);
        }
    }

    /// The store is over, or this member's part in it.
    pub(super) fn fail_all(&mut self, failure: &Failure) {
        let all: Vec<_> = self.calls.under_way.keys().copied().collect();
        for ticket in all {
            self.calls.remove(ticket);
            self.actions.push_back(Action::Finish(ticket, Err(failure.clone())));
        }
    }

    pub(super) fn calls_due(&mut self, now: Instant) {
        while let Some((at, ticket)) = self.calls.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.calls.timers.remove(&(at, ticket));
            let Some(call) = self.calls.under_way.get_mut(&ticket) else { continue };
            if now >= call.deadline {
                let text = self.diagnosis(now, ticket);
                self.calls.remove(ticket);
                self.actions.push_back(Action::Finish(ticket, Err(Failure::TimedOut(text))));
                continue;
            }
            if call.asking.due().is_some_and(|at| now >= at) {
                call.asking.asked();
                self.calls.set_timer(ticket);
                self.inquire(now, ticket);
                continue;
            }
            call.send_at = now + self.config.resend;
            self.calls.set_timer(ticket);
            self.send_call(now, ticket);
        }
    }
}
