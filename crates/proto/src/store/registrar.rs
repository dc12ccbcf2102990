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
//! A member that is only stopped does not lose its place for that. But if another view is needed meanwhile, and its lease
//! has run out, it is left out of that one, unless it is the last holder of something; it comes back by itself.
//!
//! # The invariant
//!
//! A view begins only when every member of the one before froze what moves, or has no lease any more, or is dead; and
//! when everybody in it has what it will hold. So no two members ever answer for one key.

mod seat;
mod standing;

pub use standing::{SeatStatus, StoreStatus};

use super::config::Config;
use super::layout::Layout;
use crate::id::PeerId;
use crate::limits::STORE_SLOTS;
use crate::time::{Duration, Instant};
use crate::wire::store::views::{FromRegistrar, ToRegistrar};
use crate::wire::store::{MemberId, StoreMember, View};
use seat::{Fate, Seat};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;

/// A stream to a member, as its driver numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// How a kernel answered a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knocked {
    /// It accepted: the process is there, though it may be stopped.
    Accepted,
    /// It refused.
    Refused,
    /// It said nothing.
    Silent,
}

/// What a registrar wants of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Debug)]
struct Next {
    layout: Layout,
    /// Members of the view that ends who take no part.
    gone: BTreeSet<MemberId>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Preparing,
    Fetching,
    Deciding,
}

/// See the module's essay.
#[derive(Debug)]
pub struct Registrar {
    config: Config,
    term: u64,
    founder: u64,
    /// How many must be there before the first view; in a static store all.
    founders: usize,
    /// Until when members of a registrar before us may bring their views.
    listens_until: Option<Instant>,
    active: Option<Layout>,
    next: Option<Next>,
    seats: BTreeMap<MemberId, Seat>,
    streams: BTreeMap<StreamId, MemberId>,
    epoch: u64,
    ranks: u32,
    /// Since when newcomers wait to be let in.
    gathering: Option<Instant>,
    /// The store ends: nobody is missed any more.
    ends: bool,
    settled: u64,
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
            listens_until: None,
            active: None,
            next: None,
            seats: BTreeMap::new(),
            streams: BTreeMap::new(),
            epoch: 0,
            ranks: 0,
            gathering: None,
            ends: false,
            settled: 0,
            looked: Instant::ORIGIN,
            commands: VecDeque::new(),
        }
    }

    /// Members of one that was here before us may bring their views until then; nothing is decided before.
    pub fn listen(&mut self, until: Instant) {
        self.listens_until = Some(until);
    }

    /// The first view needs that many.
    pub fn found_with(&mut self, members: usize) {
        self.founders = members;
    }

    /// Goes on from a view that is in force, under a term: who leads a static store does.
    pub fn go_on(&mut self, now: Instant, view: View, term: u64, epoch: u64) {
        (self.term, self.founder) = (term, view.founder);
        self.epoch = self.epoch.max(epoch).max(view.epoch);
        for member in &view.members {
            let seat = self.seats.entry(member.id).or_insert_with(|| Seat::absent(now, member.clone()));
            // Whoever was registrar before us may have given it a lease a moment ago.
            seat.lease_until = Some(now + self.config.view_lease);
        }
        self.active = Some(Layout::new(view));
    }

    /// The view in force.
    pub fn view(&self) -> Option<&View> {
        self.active.as_ref().map(|layout| &**layout.view())
    }

    /// Whether nobody is here.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty() && self.streams.is_empty()
    }

    /// Somebody who proved to be `peer` says something over a stream.
    pub fn handle_message(&mut self, now: Instant, stream: StreamId, peer: PeerId, message: ToRegistrar) {
        match message {
            ToRegistrar::Register { member, view, term, epoch } => {
                self.register(now, stream, peer, member, view, (term, epoch));
            }
            ToRegistrar::Look => {
                let shown = self.shown();
                self.commands.push_back(Command::Send(stream, shown));
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
        view: Option<View>,
        (term, epoch): (u64, u64),
    ) {
        if member.peer != peer {
            // Who speaks for another's id is refused (rule 39).
            let text = format!("this stream is {}'s, not {}'s", peer.short(), member.peer.short());
            self.commands.push_back(Command::Send(stream, FromRegistrar::Out(text)));
            return self.commands.push_back(Command::Close(stream));
        }
        let id = member.id;
        let is_in = |layout: &Option<Layout>| layout.as_ref().is_some_and(|l| l.view().place(id).is_some());
        if self.active.is_none() && view.is_some() && self.listens_until.is_none() {
            self.listens_until = Some(now + self.config.control_grace);
        }
        let brought_view = view.is_some();
        self.term = self.term.max(term + u64::from(self.listens_until.is_some()));
        self.epoch = self.epoch.max(epoch);
        if self.listens_until.is_some() {
            if let Some(view) = view.filter(|view| view.place(id).is_some()) {
                let newer = self.active.as_ref().is_none_or(|active| active.epoch() < view.epoch);
                if newer {
                    let (term, epoch) = (self.term, self.epoch);
                    self.go_on(now, view, term, epoch);
                }
            }
        } else if view.is_some() && !is_in(&self.active) {
            let text = "this member was given up while it was away".to_owned();
            return self.commands.push_back(Command::Send(stream, FromRegistrar::Out(text)));
        }
        if member.rank == u32::MAX {
            let known = self.seats.get(&id).map(|seat| seat.member.rank);
            member.rank = known.unwrap_or_else(|| {
                self.ranks += 1;
                self.ranks - 1
            });
        } else {
            self.ranks = self.ranks.max(member.rank + 1);
        }
        if !is_in(&self.active) {
            self.gathering.get_or_insert(now);
        }
        let seat = self.seats.entry(id).or_insert_with(|| Seat::absent(now, member));
        seat.brought_view = brought_view;
        if let Some(old) = seat.attach(now, stream) {
            self.streams.remove(&old);
            self.commands.push_back(Command::Close(old));
        }
        self.streams.insert(stream, id);
        self.tell_who_is_missing();
        // What it may have missed.
        if self.listens_until.is_none() && is_in(&self.active) {
            self.order(id, self.activation());
        }
        if let Some(next) = self.next.as_ref() {
            let gone: Vec<_> = next.gone.iter().copied().collect();
            let (epoch, fetches) = (next.layout.epoch(), next.phase != Phase::Preparing);
            self.order(id, self.preparation());
            if fetches {
                let term = self.term;
                self.order(id, Some(FromRegistrar::Fetch { term, epoch, gone }));
            }
        }
    }

    fn heard(&mut self, now: Instant, id: MemberId, message: ToRegistrar) {
        let is_put_out = self.next.as_ref().is_some_and(|next| next.gone.contains(&id));
        let lease = self.config.view_lease;
        let Some(seat) = self.seats.get_mut(&id) else { return };
        seat.hear(now);
        match message {
            ToRegistrar::Renew { number, keys, bytes, waits } => {
                seat.holds = (keys, bytes, waits);
                // Whoever is to be done without must not be given more time: its end is being waited for.
                if !is_put_out {
                    seat.lease_until = Some(now + lease);
                    let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
                    self.order(id, Some(FromRegistrar::Granted { number, lease_ms }));
                }
            }
            ToRegistrar::Prepared(epoch) => seat.prepared = seat.prepared.max(epoch),
            ToRegistrar::Ready(epoch) => seat.ready = seat.ready.max(epoch),
            ToRegistrar::Activated(epoch) => seat.activated = seat.activated.max(epoch),
            ToRegistrar::Leave => seat.leaves = true,
            ToRegistrar::Ends => self.ends = true,
            ToRegistrar::Register { .. } | ToRegistrar::Look => {}
        }
    }

    /// A stream has closed.
    pub fn handle_closed(&mut self, now: Instant, stream: StreamId) {
        let Some(id) = self.streams.remove(&stream) else { return };
        let is_member = self.is_member(id);
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
        seats.chain(self.listens_until).chain(gathering).filter(|at| *at > self.looked).min()
    }

    fn is_member(&self, id: MemberId) -> bool {
        let is_in = |layout: &Layout| layout.view().place(id).is_some();
        self.active.as_ref().is_some_and(is_in) || self.next.as_ref().is_some_and(|next| is_in(&next.layout))
    }

    /// Takes every step that can be taken now.
    fn advance(&mut self, now: Instant) {
        self.doubt_ourselves(now);
        if self.listens_until.is_some_and(|until| now >= until) {
            self.listens_until = None;
            self.gathering = Some(now);
            self.turn_away_strangers();
            let active: Vec<_> =
                self.view().map(|view| view.members.iter().map(|m| m.id).collect()).unwrap_or_default();
            for id in active {
                self.order(id, self.activation());
            }
        }
        self.knock(now);
        self.forget_the_ended();
        if self.listens_until.is_some() || self.ends {
            return;
        }
        self.end_with_the_lost(now);
        while self.step(now) {}
        self.settle();
    }

    /// One step; false if there is none to take.
    fn step(&mut self, now: Instant) -> bool {
        let Some(next) = &self.next else { return self.begin_change(now) };
        let epoch = next.layout.epoch();
        let (concerned, out): (BTreeSet<_>, _) = (self.ids(next).collect(), self.out(now));
        let lost =
            |id: &MemberId| (out.contains(id) || !self.seats.contains_key(id)) && !next.gone.contains(id);
        if next.phase != Phase::Deciding && concerned.iter().any(lost) {
            self.next = None;
            return self.begin_change(now);
        }
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
                    next.phase = Phase::Fetching;
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

    /// Who is to be done without. Whoever was given up and alone holds something is waited for once more as long.
    fn out(&self, now: Instant) -> BTreeSet<MemberId> {
        let fate = |id: &MemberId| self.seats.get(id).map_or(Fate::Dead, |seat| seat.fate(now, &self.config));
        let next = self.next.iter().flat_map(|next| &next.layout.view().members);
        let members = self.active.iter().flat_map(|layout| &layout.view().members).chain(next);
        let members: BTreeSet<_> = members.map(|member| member.id).collect();
        let mut out: BTreeSet<_> = members.iter().copied().filter(|id| fate(id) == Fate::Dead).collect();
        for id in members.into_iter().filter(|id| fate(id) == Fate::GivenUp) {
            let overdue = self.seats.get(&id).is_none_or(|seat| seat.is_overdue(now, &self.config));
            let loses = self.active.as_ref().is_some_and(|active| {
                active.lost(|member| member == id || out.contains(&member))
                    > active.lost(|m| out.contains(&m))
            });
            if overdue || !loses {
                out.insert(id);
            }
        }
        out
    }

    fn ids<'a>(&'a self, next: &'a Next) -> impl Iterator<Item = MemberId> + 'a {
        let active = self.active.iter().flat_map(|layout| &layout.view().members);
        active.chain(&next.layout.view().members).map(|member| member.id)
    }

    /// Prepares another view, if the members are not those of the one in force.
    fn begin_change(&mut self, now: Instant) -> bool {
        let members = |layout: &Layout| -> BTreeSet<MemberId> {
            layout.view().members.iter().map(|member| member.id).collect()
        };
        let current = self.active.as_ref().map(members).unwrap_or_default();
        let mut gone: BTreeSet<_> = self.out(now).intersection(&current).copied().collect();
        let leaves = |id: &MemberId| self.seats.get(id).is_some_and(|seat| seat.leaves);
        let newcomers: BTreeSet<_> = self
            .seats
            .iter()
            .filter(|(id, seat)| !current.contains(id) && seat.is_attached() && !seat.leaves)
            .map(|(id, _)| *id)
            .collect();
        let gathered = self.gathering.is_none_or(|since| now >= since + self.config.gathering);
        if self.active.is_none() {
            if newcomers.is_empty() || newcomers.len() < self.founders || !gathered {
                return false;
            }
        } else if gone.is_empty() && !current.iter().any(leaves) && (newcomers.is_empty() || !gathered) {
            return false;
        }
        // Another view is needed anyway: whoever does not answer is left out of it, unless it alone holds something.
        for id in &current {
            let is_absent = self.seats.get(id).is_none_or(|seat| seat.is_absent(now));
            if is_absent && !gone.contains(id) && !gone.is_empty() | !newcomers.is_empty() {
                let without = |member: MemberId| member == *id || gone.contains(&member);
                if self
                    .active
                    .as_ref()
                    .is_some_and(|active| active.lost(without) == active.lost(|m| gone.contains(&m)))
                {
                    gone.insert(*id);
                }
            }
        }
        let stays = current.iter().filter(|id| !gone.contains(id) && !leaves(id));
        let ids: BTreeSet<_> = stays.chain(&newcomers).copied().collect();
        self.gathering = None;
        if ids.is_empty() {
            self.end_view_of_nobody();
            return false;
        }
        self.epoch += 1;
        let members =
            ids.iter().filter_map(|id| self.seats.get(id)).map(|seat| seat.member.clone()).collect();
        let view = View { epoch: self.epoch, founder: self.founder, members };
        let lost = self.active.as_ref().map_or(0, |active| active.lost(|id| gone.contains(&id)));
        let words = |ids: &BTreeSet<MemberId>| {
            let name =
                |id: &MemberId| self.seats.get(id).map_or_else(|| id.to_string(), |seat| seat.member.words());
            ids.iter().take(8).map(name).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("store view {} of {} members", view.epoch, view.members.len());
        if !newcomers.is_empty() {
            let _ = write!(text, "; new: {}", words(&newcomers));
        }
        if !gone.is_empty() {
            let _ = write!(text, "; gone: {}", words(&gone));
        }
        if lost > 0 {
            let _ =
                write!(text, "; LOST: both holders of {lost} of {STORE_SLOTS} parts of the keys are gone");
        }
        self.commands.push_back(Command::Note(text));
        let next = Next { layout: Layout::new(view), gone, phase: Phase::Preparing };
        let concerned: BTreeSet<_> = self.ids(&next).filter(|id| !next.gone.contains(id)).collect();
        self.next = Some(next);
        for id in concerned {
            self.order(id, self.preparation());
        }
        true
    }

    fn begin_view(&mut self, now: Instant) {
        let Some(next) = self.next.take() else { return };
        let before: Vec<_> =
            self.active.iter().flat_map(|layout| &layout.view().members).map(|m| m.id).collect();
        self.active = Some(next.layout);
        let out: Vec<_> = before.into_iter().filter(|id| !self.is_member(*id)).collect();
        for id in out {
            self.order(id, Some(FromRegistrar::Out("a view began without this member".to_owned())));
            if let Some(stream) = self.seats.remove(&id).and_then(|seat| seat.stream()) {
                self.streams.remove(&stream);
                self.commands.push_back(Command::Close(stream));
            }
        }
        let members: Vec<_> =
            self.view().map(|view| view.members.iter().map(|m| m.id).collect()).unwrap_or_default();
        for id in members {
            self.order(id, self.activation());
        }
        let waiting = |(id, seat): (&MemberId, &Seat)| seat.is_attached() && !self.is_member(*id);
        self.gathering = self.seats.iter().any(waiting).then_some(now);
    }

    /// Whoever came with a view in which others went on without it joins anew.
    fn turn_away_strangers(&mut self) {
        let stranger = |(id, seat): (&MemberId, &Seat)| {
            (seat.brought_view && !self.is_member(*id)).then(|| (*id, seat.stream()))
        };
        let strangers: Vec<_> = self.seats.iter().filter_map(stranger).collect();
        for (id, stream) in strangers {
            self.seats.remove(&id);
            if let Some(stream) = stream {
                self.streams.remove(&stream);
                let text = "others went on without this member while it was away".to_owned();
                self.commands.push_back(Command::Send(stream, FromRegistrar::Out(text)));
                self.commands.push_back(Command::Close(stream));
            }
        }
    }

    /// The last member is gone: whoever comes next begins a new store.
    fn end_view_of_nobody(&mut self) {
        (self.active, self.next) = (None, None);
        for (_, seat) in std::mem::take(&mut self.seats) {
            if let Some(stream) = seat.stream() {
                self.streams.remove(&stream);
                let text = "this member was the last one".to_owned();
                self.commands.push_back(Command::Send(stream, FromRegistrar::Out(text)));
                self.commands.push_back(Command::Close(stream));
            }
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
