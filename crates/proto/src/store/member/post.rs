//! Links, routes, parcels: how a message gets to its reader.
//!
//! A link that is up is taken at once. Otherwise the message goes to the next member on the way; a link that breaks is
//! taken out of the map in the same moment, what it had not carried goes another way, and the others are told, so that
//! they go around it too. With `direct`, somebody to whom there is something to say is also dialled, and from then on
//! spoken to without hands between.
//!
//! A cut says nothing: a connection may look open for a minute while nothing passes. So a link on which nothing was
//! acknowledged for `link_silent_after` is given up as one that broke, and dialled again.
//!
//! What gets lost: whatever was in the hands of a member that died. It is asked for again (calls, replication, fetches).

use super::seen::Seen;
use super::{Action, Member};
use crate::limits::{STORE_HELD_MAX, STORE_HOPS_MAX, STORE_MESSAGE_BYTES_MAX, STORE_PIECE_BYTES};
use crate::retry;
use crate::store::hop::{HopLink, HopLinks};
use crate::store::mesh::{Link, Mesh, Routes, link};
use crate::time::{Duration, Instant};
use crate::wire::store::mesh::{Envelope, Hop, Letter};
use crate::wire::store::{Blob, CallName, MemberId, StoreMember};
use crate::wire::{decode, encode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long an acknowledgement may wait for something to ride on.
const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(20);
/// Pauses between dials.
const DIAL_PAUSE: Duration = Duration::from_millis(20);
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(500);
/// The member with the higher id waits this long for the other to dial.
const DIAL_PATIENCE: Duration = Duration::from_millis(300);
/// Pieces of one parcel that are on their way to their reader at once.
const PIECES_AHEAD: u32 = 128;
/// Pieces after which their reader says how many it has.
const PIECES_TOLD: u32 = 32;
/// In a view of more members than this, somebody is dialled only after so many messages.
const DIALS_ALL: usize = 32;
const WORTH_DIALLING: u32 = 8;
/// Own broadcasts that are sent again in a new view.
const CASTS_KEPT: usize = 16;

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Post {
    links: HopLinks,
    mesh: Mesh,
    /// Those of the view and of the one to come, by their epochs.
    meshes: BTreeMap<u64, Mesh>,
    routes: Routes,
    known: BTreeMap<MemberId, StoreMember>,
    dials: BTreeMap<MemberId, Dial>,
    /// Messages for members beside the mesh.
    wants: BTreeMap<MemberId, u32>,
    /// Neighbours that we cannot reach, and what others said of theirs.
    broken: BTreeSet<MemberId>,
    reports: BTreeMap<MemberId, Report>,
    /// The last number of a parcel or a broadcast.
    number: u64,
    outgoing: BTreeMap<(MemberId, u64), Outgoing>,
    incoming: BTreeMap<(MemberId, u64), Incoming>,
    /// Broadcasts of each origin that are here, all of their pieces.
    seen: BTreeMap<MemberId, Seen>,
    casts: VecDeque<(u64, Letter)>,
    /// What there was no way for.
    stranded: VecDeque<Envelope>,
    clock: Instant,
    acknowledge_at: Option<Instant>,
    dial_at: Option<Instant>,
    /// When links are looked through for those that carry nothing.
    silent_at: Option<Instant>,
}

/// Neighbours that a member said it cannot reach, and the number of the broadcast in which it did.
#[derive(Clone, Debug, Default, Hash)]
struct Report {
    number: u64,
    broken: BTreeSet<MemberId>,
}

#[derive(Clone, Debug, Default, Hash)]
struct Dial {
    under_way: bool,
    failures: u32,
    at: Instant,
}

/// A long message on its way.
#[derive(Clone, Debug, Hash)]
struct Outgoing {
    about: Option<About>,
    waiting: VecDeque<Envelope>,
    pieces: u32,
    sent: u32,
    taken: u32,
    /// When its reader last said that it has more of it.
    progress: Instant,
}

/// What a long message is about. Whoever waits long for one asks again; while it is on its way that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum About {
    Request(CallName),
    Reply(CallName),
    Replicate(CallName),
    Records(u64),
}

impl About {
    fn of(body: &Letter) -> Option<Self> {
        match body {
            Letter::Request(request) => Some(Self::Request(request.call)),
            Letter::Reply { call, .. } => Some(Self::Reply(*call)),
            Letter::Replicate { request, .. } => Some(Self::Replicate(request.call)),
            Letter::Records { epoch, .. } => Some(Self::Records(*epoch)),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Hash)]
struct Incoming {
    /// The view that its writer was in; none of a broadcast, which is the same in all of them.
    epoch: Option<u64>,
    pieces: Vec<Option<Blob>>,
    missing: u32,
    told: u32,
    /// When a piece of it last came.
    progress: Instant,
}

impl Post {
    pub(super) fn clock(&self) -> Instant {
        self.clock
    }

    pub(super) fn due(&self) -> Option<Instant> {
        [self.acknowledge_at, self.dial_at, self.silent_at].into_iter().flatten().min()
    }

    /// Those with whom there is a link.
    pub(super) fn linked(&self) -> impl Iterator<Item = MemberId> {
        self.links.keys().copied()
    }

    /// Whether a long message about the same is on its way to its reader. One that has left our links and of which nothing
    /// was heard for long is taken for lost.
    fn is_on_its_way(
        &mut self,
        now: Instant,
        to: MemberId,
        about: Option<About>,
        patience: Duration,
    ) -> bool {
        if self.outgoing.is_empty() || about.is_none() {
            return false;
        }
        let same = |(_, outgoing): &(&(MemberId, u64), &Outgoing)| outgoing.about == about;
        let mut of_reader = self.outgoing.range((to, 0)..=(to, u64::MAX));
        let Some((key, outgoing)) = of_reader.find(same) else { return false };
        let key = *key;
        let is_held = || self.links.values().any(|link| link.holds_pieces(key.1));
        if now < outgoing.progress + patience || is_held() {
            return true;
        }
        self.outgoing.remove(&key);
        false
    }

    /// Numbers of a reborn member go on above those of any earlier life.
    pub(super) fn numbers_from(&mut self, now: Instant) {
        self.number = now.as_nanos();
    }

    /// What was said in views that have passed is said anew. But whoever is in the new view already may have begun to speak,
    /// and will not begin again while it hears that its pieces are taken; and of a broadcast only the pieces that are missing
    /// are taken again. One of which nothing has come for long lacks pieces that somebody took along when it died, and its
    /// origin tells only its latest ones again.
    pub(super) fn begin_view(&mut self, now: Instant, epoch: u64, patience: Duration) {
        self.outgoing.clear();
        self.incoming.retain(|_, parcel| match parcel.epoch {
            Some(of) => of >= epoch,
            None => now < parcel.progress + patience,
        });
        self.stranded.retain(|envelope| envelope.floods || envelope.epoch >= epoch);
    }

    /// Whether this piece of a broadcast is not here yet.
    fn is_news(&self, envelope: &Envelope) -> bool {
        let is_here =
            |parcel: &Incoming| parcel.pieces.get(envelope.piece as usize).is_none_or(Option::is_some);
        match self.incoming.get(&(envelope.from, envelope.number)) {
            // However many shorter ones have overtaken it.
            Some(parcel) => !is_here(parcel),
            None => !self.seen.get(&envelope.from).is_some_and(|seen| seen.has(envelope.number)),
        }
    }

    /// A broadcast is here.
    fn remember(&mut self, from: MemberId, number: u64) {
        self.seen.entry(from).or_default().add(number);
    }

    /// How many long messages are here in part.
    #[cfg(test)]
    pub(super) fn parcels(&self) -> usize {
        self.incoming.len()
    }

    pub(super) fn links(&self) -> &HopLinks {
        &self.links
    }

    pub(super) fn known(&self, member: MemberId) -> Option<&StoreMember> {
        self.known.get(&member)
    }

    /// The way to somebody, the first hop first.
    pub(super) fn way(&self, to: MemberId) -> Vec<MemberId> {
        if self.links.get(&to).is_some_and(HopLink::is_up) {
            return vec![to];
        }
        let mut way: Vec<_> = self.routes.path(to).collect();
        way.reverse();
        way
    }

    /// The way to somebody; if every way is cut, the one that the mesh has for it. What is to be found out about a cut is found
    /// out there.
    pub(super) fn way_or_cut(&self, me: MemberId, to: MemberId) -> Vec<MemberId> {
        let mut way = self.way(to);
        if way.is_empty() {
            way = self.mesh.routes(me, &BTreeSet::new()).path(to).collect();
            way.reverse();
        }
        way
    }

    /// The links of the mesh that do not carry, for all we know.
    pub(super) fn broken_links(&self, me: MemberId) -> BTreeSet<Link> {
        let ours = self.broken.iter().map(|other| link(me, *other));
        let theirs = self
            .reports
            .iter()
            .flat_map(|(one, report)| report.broken.iter().map(|other| link(*one, *other)));
        ours.chain(theirs).collect()
    }
}

impl Member {
    /// Sends a body to its reader.
    pub(super) fn send(&mut self, now: Instant, to: MemberId, body: Letter) {
        self.post.clock = now;
        let epoch = self.epoch();
        if to == self.me.id {
            return self.local.push_back((epoch, body));
        }
        // An acknowledgement that nobody waits for rides along.
        if let Some(letter) = self.replication.take_acknowledgement(to) {
            self.send(now, to, letter);
        }
        let about = About::of(&body);
        if self.post.is_on_its_way(now, to, about, self.lost_after()) {
            return;
        }
        let contents = encode(&body);
        if contents.len() <= STORE_PIECE_BYTES {
            let envelope = self.envelope(Some(to), 0, (0, 1), contents.into());
            return self.route(now, envelope);
        }
        self.post.number += 1;
        let (number, pieces) = (self.post.number, contents.len().div_ceil(STORE_PIECE_BYTES) as u32);
        let cut = contents.chunks(STORE_PIECE_BYTES).enumerate();
        let waiting = cut
            .map(|(at, piece)| self.envelope(Some(to), number, (at as u32, pieces), piece.into()))
            .collect();
        let outgoing = Outgoing { about, waiting, pieces, sent: 0, taken: 0, progress: now };
        self.post.outgoing.insert((to, number), outgoing);
        self.push_parcel(now, to, number);
    }

    /// Something long of which nothing was heard for this time is lost, unless it is still on our own links.
    pub(super) fn lost_after(&self) -> Duration {
        self.config.resend * 10
    }

    fn envelope(
        &self,
        to: Option<MemberId>,
        number: u64,
        (piece, pieces): (u32, u32),
        contents: Blob,
    ) -> Envelope {
        let (epoch, from) = (self.epoch(), self.me.id);
        Envelope { epoch, from, to, hops: 0, number, piece, pieces, contents, floods: false }
    }

    fn push_parcel(&mut self, now: Instant, to: MemberId, number: u64) {
        let Some(parcel) = self.post.outgoing.get_mut(&(to, number)) else { return };
        let room = (parcel.taken + PIECES_AHEAD).saturating_sub(parcel.sent) as usize;
        let ready: Vec<_> = parcel.waiting.drain(..room.min(parcel.waiting.len())).collect();
        parcel.sent += ready.len() as u32;
        ready.into_iter().for_each(|piece| self.route(now, piece));
    }

    pub(super) fn pieces_taken(&mut self, now: Instant, from: MemberId, parcel: u64, count: u32) {
        if let Some(outgoing) = self.post.outgoing.get_mut(&(from, parcel)) {
            outgoing.taken = outgoing.taken.max(count);
            outgoing.progress = now;
            if outgoing.taken >= outgoing.pieces {
                self.post.outgoing.remove(&(from, parcel));
                return;
            }
            self.push_parcel(now, from, parcel);
        }
    }

    /// A program tells all other members of the view something. Each hears it once, along a tree, as an
    /// [`Action::Deliver`]; whoever comes or goes meanwhile may hear it or not (rule 30).
    pub fn broadcast(&mut self, now: Instant, payload: Blob) {
        self.post.clock = now;
        self.cast(now, Letter::Payload(payload));
        self.settle(now);
    }

    /// Tells everybody, each once.
    pub(super) fn cast(&mut self, now: Instant, body: Letter) {
        self.post.number += 1;
        let number = self.post.number;
        if self.post.casts.len() >= CASTS_KEPT {
            self.post.casts.pop_front();
        }
        self.post.casts.push_back((number, body.clone()));
        self.cast_numbered(now, number, &body);
    }

    fn cast_numbered(&mut self, now: Instant, number: u64, body: &Letter) {
        let contents = encode(body);
        let pieces = contents.len().div_ceil(STORE_PIECE_BYTES).max(1) as u32;
        for (at, piece) in contents.chunks(STORE_PIECE_BYTES).enumerate() {
            let mut envelope = self.envelope(None, number, (at as u32, pieces), piece.into());
            // A tree needs all of its members: one that is stopped would keep these from everybody behind it.
            envelope.floods =
                matches!(body, Letter::Broken(_) | Letter::Shutdown { .. } | Letter::Exit { .. });
            self.pass_cast_on(now, None, envelope);
        }
    }

    /// In a new view what was told before is told again: whoever heard it drops it.
    pub(super) fn cast_again(&mut self, now: Instant) {
        for (number, body) in self.post.casts.clone() {
            self.cast_numbered(now, number, &body);
        }
    }

    /// Passes a broadcast on that is news here. Along the tree of its origin; news of broken links, which is what trees are
    /// made of, and of the store's end to all.
    ///
    /// Not everybody has heard of the same broken links, and by two such trees each of two members may leave a third one to
    /// the other. So whoever hangs on us in the tree of all links is told by us, whatever is broken. The tree of the links
    /// that carry is for those who hang on somebody who is stopped.
    fn pass_cast_on(&mut self, now: Instant, came_from: Option<MemberId>, envelope: Envelope) {
        let me = self.me.id;
        if envelope.floods {
            // Its origin says it over every link that it has: neighbours may be stopped, and keep it from those behind them.
            let links = self.post.links.iter().filter(|(_, link)| envelope.from == me && link.is_up());
            let others: BTreeSet<_> =
                self.post.mesh.neighbours(me).chain(links.map(|(other, _)| *other)).collect();
            let others = others.into_iter().filter(|other| Some(*other) != came_from);
            return others.for_each(|other| self.put_on_link(now, other, envelope.clone()));
        }
        let mut children: BTreeSet<_> = self.whole_tree(&envelope).children(me).collect();
        let broken = self.post.broken_links(me);
        if !broken.is_empty() {
            let carries = self.mesh_of(envelope.epoch).routes(envelope.from, &broken);
            children.extend(carries.children(me).filter(|child| Some(*child) != came_from));
        }
        children.into_iter().for_each(|child| self.pass_down(now, child, envelope.clone()));
    }

    /// Passes a broadcast on that was heard here before. In a new view its origin tells it again, for those who hung on somebody
    /// who took it along; whoever is between has heard it. All see the same tree of a view, so each passes it on once.
    fn pass_again(&mut self, now: Instant, came_from: Option<MemberId>, envelope: &Envelope) {
        let me = self.me.id;
        let tree = self.whole_tree(envelope);
        if !envelope.floods && came_from.is_some() && came_from == tree.parent(me) {
            tree.children(me).for_each(|child| self.pass_down(now, child, envelope.clone()));
        }
    }

    /// The tree of a broadcast over all links of the view that it is told in.
    fn whole_tree(&self, envelope: &Envelope) -> Routes {
        self.mesh_of(envelope.epoch).routes(envelope.from, &BTreeSet::new())
    }

    fn mesh_of(&self, epoch: u64) -> &Mesh {
        self.post.meshes.get(&epoch).unwrap_or(&self.post.mesh)
    }

    /// To one who hangs on us: if our link to it is broken, on another way, or when there is one.
    fn pass_down(&mut self, now: Instant, child: MemberId, envelope: Envelope) {
        if self.post.broken.contains(&child) {
            self.route(now, by_another_way(child, envelope));
        } else {
            self.put_on_link(now, child, envelope);
        }
    }

    /// Puts an envelope on its way.
    fn route(&mut self, now: Instant, envelope: Envelope) {
        let Some(to) = envelope.to else { return };
        if !self.post.known.contains_key(&to) {
            return;
        }
        let is_direct = self.post.links.get(&to).is_some_and(HopLink::is_up);
        if !is_direct && self.config.direct && !self.post.mesh.has(self.me.id, to) {
            let count = self.post.wants.entry(to).or_default();
            *count += 1;
            if *count == 1 || *count == WORTH_DIALLING {
                self.ensure_links(now);
            }
        }
        let hop = if is_direct { Some(to) } else { self.post.routes.next_hop(to) };
        match hop {
            Some(hop) => self.put_on_link(now, hop, envelope),
            None if self.post.stranded.len() < STORE_HELD_MAX => self.post.stranded.push_back(envelope),
            None => {}
        }
    }

    fn put_on_link(&mut self, now: Instant, hop: MemberId, envelope: Envelope) {
        let me = self.me.id;
        let link = self.post.links.entry(hop).or_insert_with(|| HopLink::new(now, me, hop));
        let mut out = Vec::new();
        link.send(now, envelope, &mut out);
        self.post.silent_at.get_or_insert(now + self.config.link_silent_after);
        self.put_out(hop, out);
    }

    fn put_out(&mut self, to: MemberId, out: Vec<Hop>) {
        self.actions.extend(out.into_iter().map(|hop| Action::Send(to, hop)));
    }

    pub(super) fn connected(&mut self, now: Instant, member: MemberId) {
        self.post.clock = now;
        let me = self.me.id;
        let link = self.post.links.entry(member).or_insert_with(|| HopLink::new(now, me, member));
        let greeting = link.handle_connected(now);
        self.actions.push_back(Action::Send(member, greeting));
        let dial = self.post.dials.entry(member).or_default();
        (dial.under_way, dial.failures) = (false, 0);
    }

    pub(super) fn disconnected(&mut self, now: Instant, member: MemberId) {
        self.post.clock = now;
        if let Some(link) = self.post.links.get_mut(&member) {
            link.handle_disconnected(now);
            let dial = self.post.dials.entry(member).or_default();
            (dial.under_way, dial.at) = (false, now + DIAL_PAUSE);
            self.go_around(now, member);
        }
    }

    pub(super) fn unreachable(&mut self, now: Instant, member: MemberId) {
        self.post.clock = now;
        let dial = self.post.dials.entry(member).or_default();
        dial.under_way = false;
        dial.failures += 1;
        dial.at = now + retry::nth(DIAL_PAUSE, dial.failures, DIAL_PAUSE_MAX);
        if !self.post.links.get(&member).is_some_and(HopLink::is_connected) {
            self.go_around(now, member);
        }
    }

    /// The link with a member does not carry: everything on it goes another way.
    fn go_around(&mut self, now: Instant, member: MemberId) {
        if self.post.mesh.has(self.me.id, member) && self.post.broken.insert(member) {
            self.report_broken(now);
        }
        self.find_routes();
        let held = self.post.links.get_mut(&member).map(HopLink::hand_back).unwrap_or_default();
        held.into_iter().for_each(|envelope| self.route(now, by_another_way(member, envelope)));
        self.ensure_links(now);
    }

    fn report_broken(&mut self, now: Instant) {
        let broken = self.post.broken.iter().copied().collect();
        self.post.casts.retain(|(_, body)| !matches!(body, Letter::Broken(_)));
        self.cast(now, Letter::Broken(broken));
    }

    /// What a member says of its links. An earlier report may have taken a longer way than the one that took it back.
    fn broken_reported(&mut self, now: Instant, from: MemberId, number: u64, members: Vec<MemberId>) {
        let report = self.post.reports.entry(from).or_default();
        if number < report.number {
            return;
        }
        *report = Report { number, broken: members.into_iter().collect() };
        self.find_routes();
        self.unstrand(now);
    }

    fn find_routes(&mut self) {
        let me = self.me.id;
        self.post.routes = self.post.mesh.routes(me, &self.post.broken_links(me));
    }

    fn unstrand(&mut self, now: Instant) {
        for envelope in std::mem::take(&mut self.post.stranded) {
            self.route(now, envelope);
        }
    }

    pub(super) fn arrived(&mut self, now: Instant, from: MemberId, hop: Hop) {
        self.post.clock = now;
        let Some(link) = self.post.links.get_mut(&from) else { return };
        let (mut out, was_up) = (Vec::new(), link.is_up());
        let envelope = link.handle(now, hop, &mut out);
        let (is_up, owes) = (link.is_up(), link.owes());
        self.put_out(from, out);
        if owes {
            self.post.acknowledge_at.get_or_insert(now + ACKNOWLEDGE_AFTER);
        }
        if is_up && !was_up {
            if self.post.broken.remove(&from) {
                self.report_broken(now);
            }
            self.find_routes();
            self.unstrand(now);
        }
        if let Some(envelope) = envelope {
            self.accept(now, from, envelope);
        }
    }

    fn accept(&mut self, now: Instant, hop: MemberId, mut envelope: Envelope) {
        let me = self.me.id;
        match envelope.to {
            Some(to) if to == me && !envelope.floods => self.assemble(now, envelope),
            Some(to) if to != me => {
                envelope.hops += 1;
                if envelope.hops < STORE_HOPS_MAX {
                    self.route(now, envelope);
                }
            }
            _ => {
                // Who carried it for us on another way has not read it.
                let came_from = envelope.to.take().is_none().then_some(hop);
                // What was heard of a member that is gone is forgotten: a late copy must not be taken for news.
                if envelope.from == me || !self.post.known.contains_key(&envelope.from) {
                    return;
                }
                envelope.hops = envelope.hops.saturating_add(1);
                let goes_on = envelope.hops < STORE_HOPS_MAX;
                if !self.post.is_news(&envelope) {
                    // Its other pieces are on their way, too.
                    if let Some(parcel) = self.post.incoming.get_mut(&(envelope.from, envelope.number)) {
                        parcel.progress = now;
                    }
                    if goes_on {
                        self.pass_again(now, came_from, &envelope);
                    }
                    return;
                }
                if goes_on {
                    self.pass_cast_on(now, came_from, envelope.clone());
                }
                self.assemble(now, envelope);
            }
        }
    }

    /// Puts pieces together, and opens what is whole. What cannot be read is dropped: whoever wrote it is a member and
    /// harms nobody but itself.
    fn assemble(&mut self, now: Instant, envelope: Envelope) {
        let Envelope { epoch, from, to, number, piece, pieces, contents, .. } = envelope;
        if pieces == 1 {
            if to.is_none() {
                self.post.remember(from, number);
            }
            return self.read(now, from, (epoch, number), &contents);
        }
        let parcel = self.post.incoming.entry((from, number)).or_insert_with(|| {
            let most = STORE_MESSAGE_BYTES_MAX.div_ceil(STORE_PIECE_BYTES);
            let pieces = (pieces as usize).min(most);
            let of = to.map(|_| epoch);
            let missing = pieces as u32;
            Incoming { epoch: of, pieces: vec![None; pieces], missing, told: 0, progress: now }
        });
        parcel.progress = now;
        let Some(place) = parcel.pieces.get_mut(piece as usize) else { return };
        if place.replace(contents).is_none() {
            parcel.missing -= 1;
            // A newcomer is sent nothing long but what it fetches.
            if let Some(next) = self.next.as_mut().filter(|_| to.is_some()) {
                next.count();
            }
        }
        let have = parcel.pieces.len() as u32 - parcel.missing;
        let tells = to.is_some() && (have - parcel.told >= PIECES_TOLD || parcel.missing == 0);
        if tells {
            parcel.told = have;
        }
        let is_whole = parcel.missing == 0;
        if tells {
            self.send(now, from, Letter::Pieces { parcel: number, count: have });
        }
        if is_whole && let Some(parcel) = self.post.incoming.remove(&(from, number)) {
            if to.is_none() {
                self.post.remember(from, number);
            }
            let pieces: Vec<_> = parcel.pieces.iter().flatten().map(|piece| &piece[..]).collect();
            let contents = pieces.concat();
            self.read(now, from, (epoch, number), &contents);
        }
    }

    fn read(&mut self, now: Instant, from: MemberId, (epoch, number): (u64, u64), contents: &[u8]) {
        match decode::<Letter>(contents) {
            Ok(Letter::Broken(members)) => self.broken_reported(now, from, number, members),
            Ok(body) => self.open(now, from, epoch, body),
            Err(_) => {}
        }
    }

    /// The members, and with them the links that there should be, have changed.
    pub(super) fn rewire(&mut self, now: Instant) {
        self.post.clock = now;
        let me = self.me.id;
        let mesh = self.wiring();
        let views = self.view().into_iter().chain(self.next.as_ref().map(super::Handover::view));
        let meshes = views.clone().map(|view| (view.epoch, Mesh::new(view))).collect();
        let known: BTreeMap<_, _> = views
            .flat_map(|view| &view.members)
            .filter(|member| member.id != me)
            .map(|member| (member.id, member.clone()))
            .collect();
        (self.post.mesh, self.post.meshes) = (mesh, meshes);
        let gone: Vec<_> = self.post.linked().filter(|member| !known.contains_key(member)).collect();
        for member in gone {
            self.post.links.remove(&member);
            self.actions.push_back(Action::Disconnect(member));
        }
        let post = &mut self.post;
        post.wants.retain(|member, _| known.contains_key(member));
        post.dials.retain(|member, _| known.contains_key(member));
        post.reports.retain(|member, _| known.contains_key(member));
        post.seen.retain(|member, _| known.contains_key(member));
        post.incoming.retain(|(from, _), _| known.contains_key(from));
        post.broken.retain(|member| known.contains_key(member) && post.mesh.has(me, *member));
        post.known = known;
        for neighbour in post.mesh.neighbours(me) {
            post.links.entry(neighbour).or_insert_with(|| HopLink::new(now, me, neighbour));
        }
        self.find_routes();
        self.unstrand(now);
        self.ensure_links(now);
    }

    /// Dials whoever should be linked and is not.
    fn ensure_links(&mut self, now: Instant) {
        let (me, all) = (self.me.id, self.post.known.len() < DIALS_ALL);
        let wanted = self.post.wants.iter().filter(|(_, count)| all || **count >= WORTH_DIALLING);
        let wanted: BTreeSet<_> = wanted.map(|(member, _)| *member).collect();
        let needed: Vec<_> = self.post.mesh.neighbours(me).chain(wanted.iter().copied()).collect();
        self.post.dial_at = None;
        for member in needed {
            let link = self.post.links.entry(member).or_insert_with(|| HopLink::new(now, me, member));
            if link.is_connected() {
                continue;
            }
            let patience =
                if me < member || wanted.contains(&member) { Duration::ZERO } else { DIAL_PATIENCE };
            let dial = self.post.dials.entry(member).or_default();
            let at = dial.at.max(link.since() + patience);
            if dial.under_way {
                continue;
            }
            if at > now {
                self.post.dial_at = Some(self.post.dial_at.map_or(at, |other| other.min(at)));
            } else if let Some(member) = self.post.known.get(&member) {
                dial.under_way = true;
                self.actions.push_back(Action::Connect(member.clone()));
            }
        }
    }

    pub(super) fn post_due(&mut self, now: Instant) {
        if self.post.acknowledge_at.is_some_and(|at| now >= at) {
            self.post.acknowledge_at = None;
            for (member, link) in &mut self.post.links {
                let hop = link.acknowledge().map(|hop| Action::Send(*member, hop));
                self.actions.extend(hop);
            }
        }
        if self.post.dial_at.is_some_and(|at| now >= at) {
            self.ensure_links(now);
        }
        if self.post.silent_at.is_some_and(|at| now >= at) {
            self.give_up_silent_links(now);
        }
    }

    fn give_up_silent_links(&mut self, now: Instant) {
        let limit = self.config.link_silent_after;
        let ends = |link: &HopLink| link.silent_since().filter(|_| link.is_up()).map(|since| since + limit);
        let links = || self.post.links.iter().filter_map(|(member, link)| Some((*member, ends(link)?)));
        let silent: Vec<_> = links().filter(|(_, end)| now >= *end).map(|(member, _)| member).collect();
        self.post.silent_at = links().map(|(_, end)| end).filter(|end| now < *end).min();
        for member in silent {
            self.actions.push_back(Action::Disconnect(member));
            self.disconnected(now, member);
        }
    }
}

/// What was for a neighbour goes to it another way. Those behind it in the tree of a broadcast wait for it too, whoever is
/// before them by now: from there on it goes to all.
fn by_another_way(neighbour: MemberId, mut envelope: Envelope) -> Envelope {
    if envelope.to.is_none() {
        (envelope.to, envelope.floods) = (Some(neighbour), true);
    }
    envelope
}
