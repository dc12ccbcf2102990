//! Who decides on views, and brings everybody from one to the next.
//!
//! One registrar per store: at the coordinator of a run, or at the member that leads a static store. Members have a
//! stream to it each, renew their leases over it, and obey its orders.
//!
//! ```text
//!             somebody came or went                all froze, or are gone          all have what they need
//!  (a view) ------------------------> preparing ---------------------> fetching ---------------------> (the next view)
//!                                        ^  somebody died meanwhile: another view is prepared instead  |
//!                                        '-------------------------------------------------------------'
//! ```
//!
//! # When a member is gone
//!
//! - its stream closed, connects are refused, and nothing was heard of it for one probe timeout after that (rule 20b).
//!   Such a member cannot answer anybody, so nothing is waited for;
//! - it did not come back for `control_grace` though its kernel accepts connects, was stopped for `stall_budget`, or
//!   silent for `dead_after`. Before it is done without, its lease must have run out.
//!
//! A newcomer that is heard but reaches no member is not waited for either (`unreached.rs`).
//!
//! A member that is only stopped does not lose its place for that. But if another view is needed meanwhile, and its lease
//! has run out, it is left out of that one, unless it is the last holder of something; it comes back by itself.
//!
//! # The invariant
//!
//! A view begins only when every member of the one before froze what moves, or has no lease any more, or is dead; and
//! when everybody in it has what it will hold. Only who is in the view in force is given a lease. So no two members ever
//! answer for one key. What a registrar that was restarted must find out first is in `recovery.rs`.

mod change;
mod recovery;
mod seat;
mod standing;
#[cfg(test)]
mod tests;
mod unreached;

pub use standing::{SeatStatus, StoreStatus};

use super::config::Config;
use super::layout::Layout;
use crate::id::PeerId;
use crate::time::{Duration, Instant};
use crate::wire::store::views::{FromRegistrar, ToRegistrar};
use crate::wire::store::{MemberId, StoreMember, View};
use recovery::{Brought, Recovery};
use seat::Seat;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use unreached::Unreached;

/// A stream to a member, as its driver numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// How a kernel answered a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Knocked {
    /// It accepted: the process is there, though it may be stopped.
    Accepted,
    /// It refused.
    Refused,
    /// It said nothing.
    Silent,
}

/// What a registrar wants of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Say that over a stream.
    Send(StreamId, FromRegistrar),
    /// Close a stream, once what was said is on its way.
    Close(StreamId),
    /// Connect to a member's port, hang up, and tell how its kernel answered.
    Knock(MemberId, SocketAddr, Duration),
    /// Everybody is ready: have it decided that this view follows. Answered with [`Registrar::handle_decided`].
    Decide(View),
    /// For the log.
    Note(String),
}

/// A view on its way.
#[derive(Clone, Debug, Hash)]
struct Next {
    layout: Layout,
    /// Members of the view that ends who take no part.
    gone: BTreeSet<MemberId>,
    phase: Phase,
    /// Since when it is in this phase and everybody who was in the view before is heard.
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Preparing,
    Fetching,
    Deciding,
}

/// See the module's essay.
#[derive(Clone, Debug, Hash)]
pub struct Registrar {
    config: Config,
    term: u64,
    founder: u64,
    /// How many must be there before the first view; in a static store all.
    founders: usize,
    /// What members of a registrar before us have brought; none if we know how things stand.
    recovery: Option<Recovery>,
    active: Option<Layout>,
    next: Option<Next>,
    seats: BTreeMap<MemberId, Seat>,
    streams: BTreeMap<StreamId, MemberId>,
    unreached: Unreached,
    epoch: u64,
    ranks: u32,
    /// Since when newcomers wait to be let in.
    gathering: Option<Instant>,
    /// The store ends: nobody is missed any more, and whoever has not heard of it by then is told. With whom, if a member was
    /// to end it.
    ends_at: Option<Instant>,
    ended_with: Option<StoreMember>,
    /// Stores that have ended here, by their founders, for members that come back late.
    ended: VecDeque<(u64, Option<StoreMember>)>,
    settled: u64,
    /// Too few are left to go on without the others.
    lacks_majority: bool,
    /// When everything was last looked at.
    looked: Instant,
    commands: VecDeque<Command>,
}

impl Registrar {
    /// A registrar of a store that nobody can have known before, with a random number for its name.
    pub fn new(config: Config, founder: u64) -> Self {
        Self {
            config,
            term: 1,
            founder,
            founders: 1,
            recovery: None,
            active: None,
            next: None,
            seats: BTreeMap::new(),
            streams: BTreeMap::new(),
            unreached: Unreached::default(),
            epoch: 0,
            ranks: 0,
            gathering: None,
            ends_at: None,
            ended_with: None,
            ended: VecDeque::new(),
            settled: 0,
            lacks_majority: false,
            looked: Instant::ORIGIN,
            commands: VecDeque::new(),
        }
    }

    /// The first view needs that many. If it is more than one there is no coordinator: views need a majority (rule 29).
    pub fn found_with(&mut self, members: usize) {
        self.founders = members;
    }

    /// Its orders carry that term, or a higher one if members have obeyed a higher one.
    pub fn reign_under(&mut self, term: u64) {
        self.term = self.term.max(term);
    }

    /// The view in force.
    pub fn view(&self) -> Option<&View> {
        self.active.as_ref().map(|layout| &**layout.view())
    }

    /// Whether nobody is here.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty() && self.streams.is_empty()
    }

    /// Whether nobody is here, and nobody who comes late has to be told of an end.
    pub fn is_forgettable(&self) -> bool {
        self.is_empty() && self.ended.is_empty()
    }

    /// Somebody who proved to be `peer` says something over a stream.
    pub fn handle_message(&mut self, now: Instant, stream: StreamId, peer: PeerId, message: ToRegistrar) {
        match message {
            ToRegistrar::Register { member, view, term, epoch, next, founder } => {
                if let Some(ended) = founder.and_then(|founder| self.how_it_ended(founder)) {
                    self.commands.push_back(Command::Send(stream, ended));
                } else {
                    self.register(now, stream, peer, member, Brought { view, next, term, epoch });
                }
            }
            ToRegistrar::Look => {
                let shown = self.shown();
                self.commands.push_back(Command::Send(stream, shown));
            }
            ToRegistrar::Ask(member) => {
                let heard_ms = self.heard_ms(now, member);
                self.commands.push_back(Command::Send(stream, FromRegistrar::Standing { member, heard_ms }));
            }
            message => {
                let Some(id) = self.streams.get(&stream).copied() else { return };
                self.heard(now, id, message);
            }
        }
        self.advance(now);
    }

    fn register(
        &mut self,
        now: Instant,
        stream: StreamId,
        peer: PeerId,
        mut member: StoreMember,
        brought: Brought,
    ) {
        if member.peer != peer {
            // Who speaks for another's id is refused (rule 39).
            let text = format!("this stream is {}'s, not {}'s", peer.short(), member.peer.short());
            return self.turn_away(stream, text);
        }
        let id = member.id;
        let (was_in, prepared) = (brought.view.as_ref().map(|view| view.epoch), brought.next.is_some());
        if let Err(why) = self.hear_out(now, peer, id, brought) {
            return self.turn_away(stream, why);
        }
        // A process that comes under a new name has forgotten all that it held under the one before. And who listens where
        // somebody else did has its port because that one is gone: its kernel would refuse, were it asked. That holds too if
        // the one who is gone is heard of later, from a member of its view.
        let here: BTreeSet<_> =
            self.seats.values().filter(|seat| seat.is_attached()).map(|seat| seat.member.address).collect();
        let others = self.seats.iter_mut().filter(|(other, _)| **other != id).map(|(_, seat)| seat);
        for seat in others {
            let (address, is_hearsay) = (seat.member.address, seat.brought.is_none());
            let is_taken = address == member.address || (is_hearsay && here.contains(&address));
            seat.is_forgotten |= seat.member.peer == peer || (is_taken && !seat.is_attached());
        }
        if member.rank == u32::MAX {
            let known = self.seats.get(&id).map(|seat| seat.member.rank);
            member.rank = known.unwrap_or(self.ranks);
        }
        // At the bound of what can be counted ranks are no longer different; they are for people.
        self.ranks = self.ranks.max(member.rank.saturating_add(1)).min(u32::MAX - 1);
        let is_in = self.active.as_ref().is_some_and(|active| active.view().place(id).is_some());
        if !is_in {
            self.gathering.get_or_insert(now);
        }
        let seat = self.seats.entry(id).or_insert_with(|| Seat::absent(now, member));
        seat.brought = Some((was_in.unwrap_or(0), prepared));
        if let Some(old) = seat.attach(now, stream) {
            self.streams.remove(&old);
            self.commands.push_back(Command::Close(old));
        }
        self.streams.insert(stream, id);
        self.hold_back(now, id);
        self.tell_who_is_missing();
        if self.recovery.is_none() {
            self.tell_what_it_missed(id, is_in, was_in);
        }
    }

    fn tell_what_it_missed(&mut self, id: MemberId, is_in: bool, was_in: Option<u64>) {
        let (epoch, prepares) = (self.active.as_ref().map(Layout::epoch), self.next.is_some());
        // That its view goes on also tells it that no other is being prepared.
        if is_in && (!prepares || was_in != epoch) {
            self.order(id, self.activation());
        }
        if let Some(next) = self.next.as_ref().filter(|next| !next.gone.contains(&id)) {
            let gone: Vec<_> = next.gone.iter().copied().collect();
            let (epoch, fetches) = (next.layout.epoch(), next.phase != Phase::Preparing);
            self.order(id, self.preparation());
            if fetches {
                let term = self.term;
                self.order(id, Some(FromRegistrar::Fetch { term, epoch, gone }));
            }
        }
    }

    fn turn_away(&mut self, stream: StreamId, text: String) {
        self.streams.remove(&stream);
        self.commands.push_back(Command::Send(stream, FromRegistrar::Out(text)));
        self.commands.push_back(Command::Close(stream));
    }

    fn heard(&mut self, now: Instant, id: MemberId, message: ToRegistrar) {
        let is_put_out = self.next.as_ref().is_some_and(|next| next.gone.contains(&id));
        let in_force = self.active.as_ref().filter(|_| self.recovery.is_none()).map(Layout::epoch);
        let lease = self.config.view_lease;
        let Some(seat) = self.seats.get_mut(&id) else { return };
        seat.hear(now);
        match message {
            ToRegistrar::Renew { number, keys, bytes, waits, fetched } => {
                seat.holds = (keys, bytes, waits);
                seat.told_of(now, fetched);
                // Whoever is to be done without must not be given more time: its end is being waited for. And who is
                // still in another view than the one in force may hold what has changed since.
                let is_in_force = in_force.is_some_and(|epoch| seat.activated >= epoch);
                if is_in_force && !is_put_out {
                    seat.lease_until = Some(now + lease);
                    let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
                    self.order(id, Some(FromRegistrar::Granted { number, lease_ms }));
                }
            }
            ToRegistrar::Prepared(epoch) => seat.prepared = seat.prepared.max(epoch),
            ToRegistrar::Ready(epoch) => seat.ready = seat.ready.max(epoch),
            ToRegistrar::Activated(epoch) => seat.activated = seat.activated.max(epoch),
            ToRegistrar::Leave => seat.leaves = true,
            // Who comes back from an earlier store speaks for that one.
            ToRegistrar::Ends if self.is_member(id) => self.end_by(now),
            ToRegistrar::Ends => {}
            ToRegistrar::Register { .. } | ToRegistrar::Look | ToRegistrar::Ask(_) => {}
        }
    }

    /// A stream has closed.
    pub fn handle_closed(&mut self, now: Instant, stream: StreamId) {
        let Some(id) = self.streams.remove(&stream) else { return };
        let is_member = self.is_member(id) || self.is_prospect(id);
        if let Some(seat) = self.seats.get_mut(&id)
            && seat.detach(now, stream)
            && !is_member
        {
            // Nothing depends on somebody who was not let in yet.
            self.seats.remove(&id);
        }
        self.advance(now);
    }

    /// How a member's kernel answered.
    pub fn handle_knock(&mut self, now: Instant, id: MemberId, knocked: Knocked) {
        if let Some(seat) = self.seats.get_mut(&id) {
            seat.knocked(now, knocked, self.config.probe_interval);
        }
        self.advance(now);
    }

    /// It is decided that the view of that epoch follows.
    pub fn handle_decided(&mut self, now: Instant, epoch: u64) {
        let decided = |next: &Next| next.phase == Phase::Deciding && next.layout.epoch() == epoch;
        if self.next.as_ref().is_some_and(decided) {
            self.begin_view(now);
        }
        self.advance(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// What to do next.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let seats = self.seats.values().flat_map(|seat| seat.dues(&self.config));
        let gathering = self.gathering.map(|since| since + self.config.gathering);
        seats
            .chain(self.recovery.as_ref().map(|r| r.until))
            .chain(gathering)
            .chain(self.ends_at)
            .chain(self.patience_ends().map(|(_, end)| end))
            .filter(|at| *at > self.looked)
            .min()
    }

    fn is_member(&self, id: MemberId) -> bool {
        let is_in = |layout: &Layout| layout.view().place(id).is_some();
        self.active.as_ref().is_some_and(is_in) || self.next.as_ref().is_some_and(|next| is_in(&next.layout))
    }

    /// Takes every step that can be taken now.
    fn advance(&mut self, now: Instant) {
        self.doubt_ourselves(now);
        self.knock(now);
        self.tell_of_the_end(now);
        self.forget_the_ended();
        if self.ends_at.is_some() || !self.knows_how_things_stand(now) {
            return;
        }
        self.end_with_the_lost(now);
        if self.ends_at.is_some() {
            return;
        }
        while self.step(now) {}
        self.tell_if_too_few(now);
        self.settle();
    }

    /// One step; false if there is none to take.
    fn step(&mut self, now: Instant) -> bool {
        let Some(next) = &self.next else { return self.begin_change(now) };
        let epoch = next.layout.epoch();
        let (concerned, mut out): (BTreeSet<_>, _) = (self.ids(next).collect(), self.out(now));
        // Also who was stopped in the middle of it: its lease is over, and the others need not wait.
        out.extend(self.and_the_absent(now, next.gone.clone()));
        let lost =
            |id: &MemberId| (out.contains(id) || !self.seats.contains_key(id)) && !next.gone.contains(id);
        if next.phase != Phase::Deciding && concerned.iter().any(lost) {
            return self.give_up_next(now);
        }
        if self.put_out_the_unreached(now) {
            return self.give_up_next(now);
        }
        let Some(next) = &self.next else { return false };
        let seat = |id: &MemberId| self.seats.get(id);
        match next.phase {
            Phase::Preparing => {
                let froze = |id: &MemberId| {
                    seat(id).is_some_and(|seat| {
                        let powerless = || seat.is_dead(now, &self.config) || seat.lease_over(now);
                        if next.gone.contains(id) { powerless() } else { seat.prepared >= epoch }
                    })
                };
                if !concerned.iter().all(froze) {
                    return false;
                }
                let (term, gone) = (self.term, next.gone.iter().copied().collect::<Vec<_>>());
                let members: Vec<_> = next.layout.view().members.iter().map(|member| member.id).collect();
                if let Some(next) = &mut self.next {
                    (next.phase, next.since) = (Phase::Fetching, now);
                }
                for id in members {
                    let gone = gone.clone();
                    self.order(id, Some(FromRegistrar::Fetch { term, epoch, gone }));
                }
                true
            }
            Phase::Fetching => {
                let view = std::sync::Arc::clone(next.layout.view());
                if !view.members.iter().all(|member| seat(&member.id).is_some_and(|seat| seat.ready >= epoch))
                {
                    return false;
                }
                if let Some(next) = &mut self.next {
                    next.phase = Phase::Deciding;
                }
                self.commands.push_back(Command::Decide((*view).clone()));
                false
            }
            Phase::Deciding => false,
        }
    }

    /// The view that was being prepared will not come; another one may. Whether one does.
    fn give_up_next(&mut self, now: Instant) -> bool {
        self.next = None;
        let begins = self.begin_change(now);
        if !begins {
            // Nothing follows: what was frozen for the view that was given up is served again.
            self.activate_all();
        }
        begins
    }

    fn ids<'a>(&'a self, next: &'a Next) -> impl Iterator<Item = MemberId> + 'a {
        let active = self.active.iter().flat_map(|layout| &layout.view().members);
        active.chain(&next.layout.view().members).map(|member| member.id)
    }

    /// Tells everybody that the view in force is in force, and that no other is being prepared.
    fn activate_all(&mut self) {
        let members = self.active.iter().flat_map(|layout| &layout.view().members);
        let members: Vec<_> = members.map(|member| member.id).collect();
        for id in members {
            self.order(id, self.activation());
        }
    }

    fn activation(&self) -> Option<FromRegistrar> {
        let view = self.view()?.clone();
        Some(FromRegistrar::Activate { term: self.term, view })
    }

    fn preparation(&self) -> Option<FromRegistrar> {
        let view = (**self.next.as_ref()?.layout.view()).clone();
        let ends = self.view().cloned();
        Some(FromRegistrar::Prepare { term: self.term, view, ends })
    }

    fn order(&mut self, id: MemberId, order: Option<FromRegistrar>) {
        if let Some(stream) = self.seats.get(&id).and_then(Seat::stream)
            && let Some(order) = order
        {
            self.commands.push_back(Command::Send(stream, order));
        }
    }
}
