//! One member of the store, as a machine.
//!
//! It is four things at once, each in a file of its own: the *owner* of some buckets (`owner.rs`), the *replica* of others
//! (`replica.rs`), a *client* with calls of its own program (`calls.rs`), and a *hand* through which messages of others
//! pass (`post.rs`). What view it is in it is told by a registrar, whom it obeys (`handover.rs`). How it all ends is in
//! `ending.rs`, what it says when a call does not end in `telling.rs`.
//!
//! The invariants, each kept in one place:
//!
//! - an owner answers only while its lease lasts, and only what it owns in its view and no view to come moves (rule 28);
//! - a change is answered when the replica has it, and so is whatever was answered from it;
//! - every call has a deadline, and ends by it.

mod calls;
mod ending;
mod handover;
mod inquiry;
mod owner;
mod post;
mod replica;
mod seen;
mod telling;
#[cfg(test)]
mod tests;

pub use calls::{Failure, Ticket};
pub use ending::Ending;

use super::config::Config;
use super::layout::Layout;
use super::shelf::Shelf;
use crate::time::{Duration, Instant};
use crate::wire::store::account::Datagram;
use crate::wire::store::mesh::{Hop, Letter};
use crate::wire::store::operation::Answer;
use crate::wire::store::views::{FromRegistrar, ToRegistrar};
use crate::wire::store::{MemberId, StoreMember, View};
use calls::Calls;
use handover::Handover;
use owner::WaitingRoom;
use post::Post;
use replica::Replication;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// What a member wants of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Open a connection to it; the answer is `handle_connected` or `handle_unreachable`.
    Connect(StoreMember),
    /// Close the connection to it.
    Disconnect(MemberId),
    /// Put this on the connection to it.
    Send(MemberId, Hop),
    /// Tell the registrar, if it can be told; whatever matters is said again.
    Tell(ToRegistrar),
    /// A call is over.
    Finish(Ticket, Result<Answer, Failure>),
    /// The member is in this view from now on.
    Entered(Arc<View>),
    /// A broadcast of a program.
    Deliver(MemberId, Vec<u8>),
    /// The member is in no view any more: to go on it must be [reborn](Member::be_reborn) and register.
    Out(String),
    /// The store is over; so is this machine.
    Ended(Ending),
    /// Send this datagram.
    Datagram(SocketAddr, Datagram),
    /// Connect to a member's port, hang up, and tell how its kernel answered within that time.
    Knock(MemberId, SocketAddr, Duration),
}

/// See the module's essay.
#[derive(Clone, Debug, Hash)]
pub struct Member {
    config: Config,
    me: StoreMember,
    started: Instant,
    /// The highest term that was obeyed, and the highest epoch of any order.
    term: u64,
    ordered: u64,
    /// Whose views those were that it was in.
    founder: Option<u64>,
    active: Option<Layout>,
    next: Option<Handover>,
    lease: Lease,
    shelf: Shelf,
    post: Post,
    replication: Replication,
    waiting_room: WaitingRoom,
    calls: Calls,
    ending: ending::State,
    /// Members that a static store or a registrar waits for, in its words.
    waits_for: Option<String>,
    registrar: Contact,
    /// What this member says to itself.
    local: VecDeque<(u64, Letter)>,
    actions: VecDeque<Action>,
}

/// Whether there is a stream to whoever decides on views.
#[derive(Clone, Debug, Hash)]
struct Contact {
    is_open: bool,
    since: Instant,
    why: String,
    /// Since when connects to it are refused.
    refused_since: Option<Instant>,
}

/// How long this member may answer.
#[derive(Clone, Debug, Default, Hash)]
struct Lease {
    until: Option<Instant>,
    number: u64,
    /// When each question that was not answered was sent.
    asked: BTreeMap<u64, Instant>,
    ask_at: Option<Instant>,
}

impl Member {
    /// A member that is in no view yet.
    pub fn new(now: Instant, config: Config, me: StoreMember) -> Self {
        Self {
            calls: Calls::new(me.client),
            post: Post::default(),
            config,
            me,
            started: now,
            term: 0,
            ordered: 0,
            founder: None,
            active: None,
            next: None,
            lease: Lease::default(),
            shelf: Shelf::default(),
            replication: Replication::default(),
            waiting_room: WaitingRoom::default(),
            ending: ending::State::default(),
            waits_for: None,
            registrar: Contact { is_open: false, since: now, why: String::new(), refused_since: None },
            local: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    /// Who this member is.
    pub fn me(&self) -> &StoreMember {
        &self.me
    }

    /// A member of the view, or of the one to come.
    pub fn knows(&self, member: MemberId) -> Option<&StoreMember> {
        self.post.known(member)
    }

    /// The view that it is in.
    pub fn view(&self) -> Option<&Arc<View>> {
        self.active.as_ref().map(Layout::view)
    }

    /// What it says when it opens a stream to a registrar.
    pub fn registration(&self) -> ToRegistrar {
        let view = self.view().map(|view| (**view).clone());
        let next = self.next.as_ref().map(|next| (**next.view()).clone());
        let (member, term, epoch) = (self.me.clone(), self.term, self.ordered);
        ToRegistrar::Register { member, view, term, epoch, next, founder: self.founder }
    }

    /// Starts again under a new name, with nothing; calls that are under way go on. What it heard of a shutdown was about the
    /// view that it was in, or was to be in.
    pub fn be_reborn(&mut self, now: Instant, id: MemberId) {
        self.me.id = id;
        (self.active, self.next, self.lease) = (None, None, Lease::default());
        (self.shelf, self.replication) = (Shelf::default(), Replication::default());
        self.waiting_room = WaitingRoom::default();
        let linked: Vec<_> = self.post.linked().collect();
        linked.into_iter().for_each(|member| self.actions.push_back(Action::Disconnect(member)));
        self.post = Post::default();
        self.post.numbers_from(now);
        self.local.clear();
        self.forget_the_end(now);
    }

    /// A new address or name, before it registers.
    pub fn set_rank(&mut self, rank: u32) {
        self.me.rank = rank;
    }

    /// A registrar says something. Orders of a lower term than was obeyed, or for an older view, do nothing.
    pub fn handle_order(&mut self, now: Instant, order: FromRegistrar) {
        if let FromRegistrar::Prepare { term, .. }
        | FromRegistrar::Fetch { term, .. }
        | FromRegistrar::Activate { term, .. } = &order
        {
            if *term < self.term {
                return;
            }
            self.term = *term;
        }
        match order {
            FromRegistrar::Granted { number, lease_ms } => self.granted(now, number, lease_ms),
            FromRegistrar::Prepare { view, ends, .. } => self.prepare(now, view, ends),
            FromRegistrar::Fetch { epoch, gone, .. } => self.fetch(now, epoch, &gone),
            FromRegistrar::Activate { view, .. } => self.activate(now, view),
            FromRegistrar::Settled(epoch) => self.settled(epoch),
            FromRegistrar::Out(why) => self.actions.push_back(Action::Out(why)),
            FromRegistrar::Waits(what) => self.waits_for = Some(what),
            FromRegistrar::Ended(lost) => self.end(now, lost),
            FromRegistrar::Standing { member, heard_ms } => self.heard_of(now, member, heard_ms),
            FromRegistrar::Shown { .. } => {}
        }
        self.settle(now);
    }

    /// There is a stream to whoever decides on views, or there is none, and why.
    pub fn handle_registrar(&mut self, now: Instant, open: Result<(), String>) {
        let contact = &mut self.registrar;
        if contact.is_open != open.is_ok() {
            (contact.is_open, contact.since, contact.refused_since) = (open.is_ok(), now, None);
        }
        contact.why = open.err().map(|why| format!(": {why}")).unwrap_or_default();
    }

    /// There is a connection with that member.
    pub fn handle_connected(&mut self, now: Instant, member: MemberId) {
        self.connected(now, member);
        self.settle(now);
    }

    /// The connection with that member is gone.
    pub fn handle_disconnected(&mut self, now: Instant, member: MemberId) {
        self.disconnected(now, member);
        self.settle(now);
    }

    /// That member could not be dialled.
    pub fn handle_unreachable(&mut self, now: Instant, member: MemberId) {
        self.unreachable(now, member);
        self.settle(now);
    }

    /// A frame came over the connection with that member.
    pub fn handle_hop(&mut self, now: Instant, from: MemberId, hop: Hop) {
        self.arrived(now, from, hop);
        self.settle(now);
    }

    /// A datagram came that somebody with the secret sent; it is a question, or an answer that only informs.
    pub fn handle_datagram(&mut self, now: Instant, from: SocketAddr, datagram: Datagram) {
        match datagram {
            Datagram::Inquire(inquiry) => {
                let account = self.account(now, &inquiry);
                self.actions.push_back(Action::Datagram(from, Datagram::Tell(account)));
            }
            Datagram::Tell(account) => self.told(now, account, true),
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.renew_lease(now);
        self.calls_due(now);
        self.post_due(now);
        self.replication_due(now);
        self.handover_due(now);
        self.desk_due(now);
        self.ending_due(now);
        self.settle(now);
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() {
            // Everything that came at once is answered at once.
            self.acknowledge_changes();
        }
        self.actions.pop_front()
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let lease = self.lease.ask_at;
        let timers = [
            lease,
            self.calls.due(),
            self.post.due(),
            self.replication.due(),
            self.next.as_ref().and_then(Handover::due),
            self.waiting_room.due(),
            self.ending.due(),
        ];
        timers.into_iter().flatten().min()
    }

    /// A body for this member.
    fn open(&mut self, now: Instant, from: MemberId, epoch: u64, body: Letter) {
        match body {
            Letter::Request(_)
            | Letter::Replicate { .. }
            | Letter::ListKeys { .. }
            | Letter::CountKeys(_) => {
                self.serve(now, from, epoch, body);
            }
            Letter::Reply { call, answer } => self.replied(now, from, epoch, call, answer),
            Letter::NotHere { call, epoch } => self.not_here(now, from, call, epoch),
            Letter::Replicated(number, beyond) => self.replicated(now, from, epoch, number, &beyond),
            Letter::HowFar(number) => self.how_far(now, from, epoch, number),
            Letter::Pull { epoch, buckets, after } => self.pulled(now, from, epoch, &buckets, after.as_ref()),
            Letter::Records { epoch, finished, records } => {
                self.records(now, from, epoch, finished, records);
            }
            Letter::Pieces { parcel, count } => self.pieces_taken(now, from, parcel, count),
            Letter::Inquire(inquiry) => {
                let account = self.account(now, &inquiry);
                self.send(now, from, Letter::Tell(account));
            }
            Letter::Tell(account) => self.told(now, account, false),
            Letter::Shutdown { by } => self.shutdown_heard(now, by),
            Letter::JoinsIn => self.joined_in(now, from),
            Letter::Exit { lost } => self.end(now, lost),
            // Read with the number of its broadcast (`post.rs`).
            Letter::Broken(_) => {}
            Letter::Payload(bytes) => self.actions.push_back(Action::Deliver(from, bytes.to_vec())),
        }
    }

    /// Handles what this member said to itself meanwhile.
    fn settle(&mut self, now: Instant) {
        while let Some((epoch, body)) = self.local.pop_front() {
            self.open(now, self.me.id, epoch, body);
        }
    }

    fn epoch(&self) -> u64 {
        self.active.as_ref().map_or(0, Layout::epoch)
    }

    fn has_lease(&self, now: Instant) -> bool {
        self.lease.until.is_some_and(|until| now < until)
    }

    /// Asks for a lease now, not only when the last one is about to end.
    fn ask_for_lease(&mut self, now: Instant) {
        self.lease.ask_at = Some(now);
        self.renew_lease(now);
    }

    fn renew_lease(&mut self, now: Instant) {
        if self.lease.ask_at.is_none_or(|at| now < at) {
            return;
        }
        self.lease.ask_at = Some(now + self.config.view_lease / 5);
        self.lease.number += 1;
        let number = self.lease.number;
        self.lease.asked.insert(number, now);
        if self.lease.asked.len() > 16 {
            self.lease.asked.pop_first();
        }
        let (me, layout) = (self.me.id, self.active.as_ref());
        let owned = |bucket| layout.is_some_and(|layout| layout.owner(bucket) == Some(me));
        let keys = self.shelf.count(owned);
        let (bytes, waits) = (self.shelf.bytes(), self.waiting_room.waiting() as u64);
        let fetched = self.next.as_ref().map(Handover::come);
        self.actions.push_back(Action::Tell(ToRegistrar::Renew { number, keys, bytes, waits, fetched }));
    }

    fn granted(&mut self, now: Instant, number: u64, lease_ms: u64) {
        let Some(asked) = self.lease.asked.remove(&number) else { return };
        self.lease.asked = self.lease.asked.split_off(&number);
        // It counts from when the question was sent, and a fifth less: clocks do not run alike.
        let until = asked + Duration::from_millis(lease_ms) * 4 / 5;
        let had = self.has_lease(now);
        self.lease.until = self.lease.until.max(Some(until));
        if !had && self.has_lease(now) {
            self.serve_held(now);
        }
    }
}
