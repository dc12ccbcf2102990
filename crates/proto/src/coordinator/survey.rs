//! What the coordinator knows of a group's links, and what it has had worked out about them.
//!
//! # The problem
//!
//! The best ring takes milliseconds to find for a few members and as long as one likes for many. The clerk, which counts
//! votes for everybody, must not stand still for it.
//!
//! # The intuition
//!
//! The machine asks: [`Action::Solve`] hands a [`Question`] to whoever has a thread to spare, and
//! [`Run::handle_solved`] takes the answer. A question is a value, and equal questions have equal answers, so whoever
//! counts votes later only looks whether *this* question was answered. If the links have changed meanwhile, it is another
//! question, and is asked anew.
//!
//! After every agreement whose ring is not proved to be the best, the same question is asked again with a hundred times the
//! work, in the background: the *moonshot*. Its answer waits for the next vote. It is held against the links as they
//! are then (rule 32), and dropped when anybody came or went.
//!
//! # What it does not do
//!
//! Nothing of it outlives the coordinator: members bring what they have measured (`topology::links`).

use super::epochs::Epochs;
use super::outbox::Outbox;
use super::run::{Action, Note, Run};
use super::status::{LinkStatus, seconds};
use crate::ballot::optimise::{self, Brought, RingWish};
use crate::collective::Group;
use crate::id::PeerId;
use crate::limits::{LINKS_MAX, NAMED_MAX};
use crate::time::{Duration, Instant};
use crate::topology::schedule::{self, Map, Pair, Place};
use crate::topology::{Answer, COST_MAX, Costs, Link, Links, NO_LINK, Question, name_sites};
use crate::wire::control::{BallotKind, LinkSpeed, ToPeer};
use crate::wire::decode;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

/// Names a question that is being worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SolveToken(pub u64);

/// One byte per femtosecond costs this much: the slowest link that is told apart carries some thousand bytes per second.
const COST_OF_BYTE: u64 = 1_000_000_000_000_000;

/// Most members for whom the coordinator looks for a fast ring itself: exact, and within some milliseconds.
const AROUND_MAX: usize = 12;

/// What one group's links are like.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Survey {
    pub(crate) links: Links,
    /// Where members are.
    hosts: BTreeMap<PeerId, IpAddr>,
    sites: BTreeMap<PeerId, String>,
    /// Pairs that could not be measured: who dialled, and whom.
    failed: BTreeSet<(PeerId, PeerId)>,
    /// Who has begun here: what it brought is known. A coordinator that was restarted has heard nobody begin.
    begun: BTreeSet<PeerId>,
    /// Links of a better ring that could not be made. Forgiven when they are measured again, or when the ring needs them.
    refused: BTreeSet<(PeerId, PeerId)>,
    asked: Option<(SolveToken, Question)>,
    answered: Option<(Question, Answer)>,
    moonshot: Option<Moonshot>,
    /// What the links of the ring carried when it was agreed on.
    expected: BTreeMap<(PeerId, PeerId), u64>,
    /// Those that carry much less now.
    slowed: BTreeSet<(PeerId, PeerId)>,
    /// The ring before the one that the ballot at hand has asked for.
    before: Option<Vec<PeerId>>,
}

/// A search in the background, and what it has found.
#[derive(Clone, Debug, Hash)]
struct Moonshot {
    token: SolveToken,
    /// Whom its numbers stand for.
    members: Vec<PeerId>,
    /// What is asked, and what the ring that stands is worth by that.
    question: Question,
    standing: Option<optimise::Key>,
    ring: Option<Vec<usize>>,
}

impl Moonshot {
    /// Whether it has found what the next vote would take, as things were when it was asked.
    fn is_better(&self) -> bool {
        let found = self.ring.as_ref().and_then(|ring| self.question.key(ring));
        found.is_some() && optimise::is_worth_it(self.standing, found)
    }
}

impl Survey {
    /// A member tells where it is and what it has measured. Of strangers nothing is remembered.
    fn note(&mut self, now: Instant, (from, host): (PeerId, IpAddr), roster: &[PeerId], wish: &RingWish) {
        let members: BTreeSet<_> = roster.iter().collect();
        self.hosts.insert(from, host);
        self.sites.insert(from, wish.site().to_owned());
        match wish {
            RingWish::Begin { .. } => drop(self.begun.insert(from)),
            RingWish::Measured { failed, .. } => {
                self.failed.retain(|(dials, _)| *dials != from);
                let failed: Vec<_> = failed.iter().filter(|peer| members.contains(peer)).collect();
                if self.failed.len() + failed.len() <= LINKS_MAX {
                    self.failed.extend(failed.into_iter().map(|dialled| (from, *dialled)));
                }
            }
        }
        let brought = wish.brought().iter().filter(|link| members.contains(&link.peer));
        for Brought { peer, sends, receives, round_trip_us, age_ms } in brought.copied() {
            let round_trip = Duration::from_micros(round_trip_us.into());
            let at = now - Duration::from_millis(age_ms);
            for (one, other, rate) in [(from, peer, sends), (peer, from, receives)] {
                if rate > 0 {
                    self.links.note(one, other, Link { rate, round_trip, at });
                    if matches!(wish, RingWish::Measured { .. }) {
                        self.refused.remove(&(one, other));
                    }
                }
            }
            self.failed.remove(&(from, peer));
            self.failed.remove(&(peer, from));
        }
    }

    /// Where members are. Sites that nobody has named are found by what was measured.
    fn places(&self, members: &[PeerId]) -> Vec<Place> {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let place = |peer: &PeerId| Place {
            peer: *peer,
            host: self.hosts.get(peer).copied().unwrap_or(nowhere),
            site: self.sites.get(peer).cloned().unwrap_or_default(),
        };
        let mut places: Vec<_> = members.iter().map(place).collect();
        name_sites(&mut places, &self.links);
        places
    }

    /// Who is to measure with whom.
    pub(crate) fn plan(&self, now: Instant, members: &[PeerId], ring: &[PeerId]) -> Vec<Vec<Pair>> {
        schedule::plan(now, &self.places(members), ring, &self.links, &self.failed)
    }

    /// The links of a ring, each with what is known of it, from itself or from others on the same way.
    pub(crate) fn ring_links(
        &self,
        members: &[PeerId],
        ring: &[PeerId],
    ) -> Vec<(PeerId, PeerId, Option<Link>)> {
        let ends = ring.iter().zip(ring.iter().cycle().skip(1)).filter(|(from, to)| from != to);
        if self.links.is_empty() {
            return ends.map(|(from, to)| (*from, *to, None)).collect();
        }
        let places = self.places(members);
        let ways = Map::new(&places).ways(&self.links);
        let rank: BTreeMap<_, _> = members.iter().zip(0usize..).collect();
        let known = |from: &PeerId, to: &PeerId| ways.link(*rank.get(from)?, *rank.get(to)?).copied();
        ends.map(|(from, to)| (*from, *to, known(from, to))).collect()
    }

    /// What the solver is to be asked. A link that could not be measured costs more than any that could.
    pub(crate) fn question(
        &self,
        members: &[PeerId],
        broken: &BTreeSet<(PeerId, PeerId)>,
        steps: u64,
    ) -> Question {
        let places = self.places(members);
        let map = Map::new(&places);
        let ways = map.ways(&self.links);
        let cost = |link: &Link| (COST_OF_BYTE / link.rate.max(1)).clamp(1, COST_MAX / 4);
        let dearest = self.links.iter().map(|(_, _, link)| cost(link)).max().unwrap_or(1);
        let costs = Costs::new(members.len(), |from, to| {
            let ends = (members[from], members[to]);
            if broken.contains(&ends) || self.refused.contains(&ends) {
                return NO_LINK;
            }
            ways.link(from, to).map_or(2 * dearest, cost)
        });
        Question { costs, clusters: map.clusters(), seed: 1, steps }
    }

    /// The fastest ring of these members over none of those links, if speeds are known and it can be told at once: whoever
    /// asks plans around a broken link, with calls waiting (rule 16).
    pub(super) fn ring_around(
        &self,
        members: &[PeerId],
        avoided: &BTreeSet<(PeerId, PeerId)>,
    ) -> Option<Vec<PeerId>> {
        if self.links.is_empty() || members.len() > AROUND_MAX {
            return None;
        }
        let question = self.question(members, avoided, 0);
        let answer = question.answer(&|| false);
        answer.ring().map(|ring| ring.iter().map(|at| members[*at]).collect())
    }

    /// The answer to that question, if it is known.
    pub(crate) fn answer_to(&self, question: &Question) -> Option<&Answer> {
        self.answered.as_ref().filter(|(answered, _)| answered == question).map(|(_, answer)| answer)
    }

    /// Whether somebody works on that question.
    pub(crate) fn is_asked(&self, question: &Question) -> bool {
        self.asked.as_ref().is_some_and(|(_, asked)| asked == question)
    }

    /// Whether a member has begun here, and so has brought what it knows.
    pub(crate) fn has_begun(&self, peer: PeerId) -> bool {
        self.begun.contains(&peer)
    }

    /// What the search in the background has found for these members.
    pub(crate) fn moonshot(&self, members: &[PeerId]) -> Option<&[usize]> {
        self.moonshot.as_ref().filter(|moonshot| moonshot.members == members)?.ring.as_deref()
    }

    /// The ring of these members before the ballot at hand changed it.
    pub(crate) fn ring_before(&self, members: &[PeerId]) -> Option<&[PeerId]> {
        let is_theirs = |ring: &&Vec<PeerId>| {
            ring.len() == members.len() && ring.iter().all(|peer| members.contains(peer))
        };
        self.before.as_ref().filter(is_theirs).map(Vec::as_slice)
    }

    pub(super) fn footprint(&self) -> usize {
        let promised = self.expected.len() + self.slowed.len();
        let told = self.hosts.len() + self.begun.len();
        self.links.len() + self.failed.len() + self.refused.len() + told + promised
    }
}

/// A link of the ring that carries less than this much of what it did, in percent, is worth a hint.
const SLOWED_PERCENT: u64 = 70;

/// What votes and members change.
impl Survey {
    /// A vote tells of links, if it is one for a better ring.
    pub(super) fn note_vote(
        &mut self,
        now: Instant,
        from: (PeerId, IpAddr),
        roster: &[PeerId],
        kind: BallotKind,
        wish: &[u8],
    ) {
        if kind == optimise::KIND
            && let Ok(wish) = decode::<RingWish>(wish)
        {
            self.note(now, from, roster, &wish);
        }
    }

    /// A ballot is about to change the ring.
    pub(super) fn note_rewiring(&mut self, kind: BallotKind, ring: &[PeerId]) {
        if kind == optimise::KIND {
            self.before.get_or_insert_with(|| ring.to_vec());
        }
    }

    /// A member could not make its link in a ring that was to come: the next one is looked for without it. If it is a link of
    /// the ring that stands, that says nothing: this one is in use, and whether it is broken is found out there.
    pub(super) fn note_refused(&mut self, from: PeerId, ring: &[PeerId], standing: &[PeerId]) {
        let refused = successor(ring, from).filter(|to| successor(standing, from) != Some(*to));
        self.refused.extend(refused.map(|to| (from, to)));
    }

    /// That is the ring now. Its links are made, or found to be broken: what was refused before says nothing of them.
    pub(super) fn note_ring(&mut self, ring: &[PeerId]) {
        self.refused.retain(|(from, to)| successor(ring, *from) != Some(*to));
    }

    /// Has a ring looked for.
    pub(super) fn ask(&mut self, outbox: &mut Outbox, question: Question) {
        let token = SolveToken(outbox.number());
        self.asked = Some((token, question.clone()));
        outbox.act(Action::Solve { token, question });
    }

    /// Whether that answer was waited for: by a vote (`Some(true)`), or for the next one.
    fn answered(&mut self, token: SolveToken, answer: &Answer) -> Option<bool> {
        if let Some((_, question)) = self.asked.take_if(|(asked, _)| *asked == token) {
            self.answered = Some((question, answer.clone()));
            return Some(true);
        }
        let moonshot = self.moonshot.as_mut().filter(|moonshot| moonshot.token == token)?;
        moonshot.ring = answer.ring().map(<[usize]>::to_vec);
        if moonshot.ring.is_none() {
            self.moonshot = None; // It found nothing: the next agreement may begin another one.
        }
        Some(false)
    }

    /// A ballot is over. If the best ring is not known for sure, the search goes on in the background.
    pub(super) fn note_end(
        &mut self,
        outbox: &mut Outbox,
        kind: BallotKind,
        agreed: bool,
        (members, ring): (&[PeerId], &[PeerId]),
        steps: u64,
    ) {
        if kind != optimise::KIND {
            return;
        }
        self.before = None;
        if !agreed && let Some((token, _)) = self.asked.take() {
            outbox.act(Action::CallOff(token));
        }
        // An agreement on who measures comes without an answer: the search of before goes on.
        let Some((mut question, answer)) = self.answered.take().filter(|_| agreed) else { return };
        let links = self.ring_links(members, ring).into_iter();
        self.expected = links.filter_map(|(from, to, link)| Some(((from, to), link?.rate))).collect();
        self.slowed.clear();
        if matches!(answer, Answer::Found(_)) && question.costs.len() == members.len() {
            question.steps = steps;
            let place: BTreeMap<_, _> = members.iter().zip(0usize..).collect();
            let standing: Option<Vec<_>> = ring.iter().map(|peer| place.get(peer).copied()).collect();
            let standing = standing.and_then(|ring| question.key(&ring));
            // Whoever calls more often than a search takes would never see its end if each began it anew.
            if let Some(same) =
                self.moonshot.as_mut().filter(|it| it.members == members && it.question == question)
            {
                same.standing = standing;
                return;
            }
            let token = SolveToken(outbox.number());
            let asked = question.clone();
            let moonshot =
                Moonshot { token, members: members.to_vec(), question: asked, standing, ring: None };
            if let Some(replaced) = self.moonshot.replace(moonshot) {
                outbox.act(Action::CallOff(replaced.token));
            }
            outbox.act(Action::Solve { token, question });
        }
    }

    /// Members came or went: what was searched for others is worth nothing (rule 32).
    pub(super) fn note_members(&mut self, outbox: &mut Outbox, members: &BTreeSet<PeerId>) {
        let both = |one: &PeerId, other: &PeerId| members.contains(one) && members.contains(other);
        self.links.keep(|peer| members.contains(&peer));
        self.hosts.retain(|peer, _| members.contains(peer));
        self.sites.retain(|peer, _| members.contains(peer));
        self.begun.retain(|peer| members.contains(peer));
        self.failed.retain(|(one, other)| both(one, other));
        self.refused.retain(|(one, other)| both(one, other));
        self.expected.retain(|(one, other), _| both(one, other));
        self.slowed.retain(|(one, other)| both(one, other));
        (self.before, self.answered) = (None, None);
        let off = self.asked.take().map(|(token, _)| token);
        let searching = self.moonshot.take().map(|moonshot| moonshot.token);
        off.into_iter().chain(searching).for_each(|token| outbox.act(Action::CallOff(token)));
    }

    /// Whether a link of a ring has its way for itself: nobody else of the ring leaves or enters the same host or site there.
    /// Not known, and so not believed, before everybody has told where it is.
    fn is_alone(&self, ring: &[PeerId], from: PeerId, to: PeerId) -> bool {
        if !ring.iter().all(|peer| self.hosts.contains_key(peer)) {
            return false;
        }
        let places = self.places(ring);
        let places: Vec<_> = places.iter().map(|place| (place.host, place.site.as_str())).collect();
        let at = |peer| ring.iter().position(|other| *other == peer).map(|at| places[at]);
        let (Some(one), Some(other)) = (at(from), at(to)) else { return false };
        let edges = || places.iter().zip(places.iter().cycle().skip(1));
        let hosts = edges().filter(|(from, to)| from != to && (**from == one || **to == other));
        let sites = edges().filter(|(from, to)| from.1 != to.1 && (from.1 == one.1 || to.1 == other.1));
        // The link itself is one of them, if it crosses at all; it may leave one boundary and enter another.
        (one == other || hosts.count() == 1) && (one.1 == other.1 || sites.count() == 1)
    }

    /// What a link carried in a collective of late: measured for nothing. Says what to tell whoever watches, once. What a link
    /// carried that shared an uplink with others of the ring is the speed of neither.
    fn note_speed(&mut self, now: Instant, ring: &[PeerId], from: PeerId, speed: LinkSpeed) -> Option<Note> {
        let LinkSpeed { to, rate, round_trip_us } = speed;
        if !self.is_alone(ring, from, to) {
            return None;
        }
        let round_trip = Duration::from_micros(round_trip_us.into());
        let rate = rate.clamp(1, optimise::RATE_MAX);
        self.links.note(from, to, Link { rate, round_trip, at: now });
        let before = *self.expected.get(&(from, to))?;
        if u128::from(rate) * 100 >= u128::from(before) * u128::from(SLOWED_PERCENT) {
            self.slowed.remove(&(from, to));
            return None;
        }
        self.slowed.insert((from, to)).then_some(Note::LinkSlowed { from, to, before, rate })
    }

    /// What is known of a group's links, those of the ring first.
    pub(super) fn status(
        &self,
        now: Instant,
        (members, ring): (&[PeerId], &[PeerId]),
        most: usize,
        name: impl Fn(&PeerId) -> String,
    ) -> Vec<LinkStatus> {
        let tell = |from: PeerId, to: PeerId, link: &Link| LinkStatus {
            from: name(&from),
            to: name(&to),
            rate: link.rate,
            round_trip_ms: link.round_trip.as_micros() as f64 / 1_000.0,
            age_seconds: seconds(now.since(link.at)),
        };
        let ring = self.ring_links(members, ring);
        let is_of_ring: BTreeSet<_> = ring.iter().map(|(from, to, _)| (*from, *to)).collect();
        let of_ring = ring.iter().filter_map(|(from, to, link)| Some(tell(*from, *to, link.as_ref()?)));
        let others = self.links.iter().filter(|(from, to, _)| !is_of_ring.contains(&(*from, *to)));
        of_ring.chain(others.map(|(from, to, link)| tell(from, to, link))).take(most).collect()
    }

    /// What may be worth doing about the links, in words.
    pub(super) fn hints(&self, name: impl Fn(&PeerId) -> String) -> Vec<String> {
        let mbit = |rate: u64| rate as f64 * 8.0 / 1e6;
        let slowed = self.slowed.iter().filter_map(|(from, to)| {
            let (before, now) = (self.expected.get(&(*from, *to))?, self.links.of(*from, *to)?.rate);
            Some(format!(
                "{} -> {} carries {:.1} Mbit/s now, {:.1} when the ring was made: optimize_topology may find a \
                 better one",
                name(from),
                name(to),
                mbit(now),
                mbit(*before)
            ))
        });
        let better = self.moonshot.as_ref().filter(|moonshot| moonshot.is_better()).map(|_| {
            "a better ring was found in the background: the next optimize_topology takes it".to_owned()
        });
        slowed.take(NAMED_MAX).chain(better).collect()
    }
}

/// Who comes after a member in a ring.
fn successor(ring: &[PeerId], of: PeerId) -> Option<PeerId> {
    let at = ring.iter().position(|peer| *peer == of)?;
    Some(ring[(at + 1) % ring.len()])
}

impl Run {
    /// The answer to [`Action::Solve`]. One that nobody waits for any more changes nothing.
    pub fn handle_solved(&mut self, now: Instant, token: SolveToken, answer: &Answer) {
        let answered = self.groups.values_mut().find_map(|state| state.survey.answered(token, answer));
        if answered == Some(true) {
            self.office.agenda.count_votes();
        } else if answered.is_none() {
            self.epochs().searched(now, token, answer);
        }
        self.finish(now);
    }
}

impl Epochs<'_> {
    /// What a link carried in a collective of late.
    pub(super) fn note_speed(&mut self, now: Instant, group: Group, from: PeerId, speed: LinkSpeed) {
        let peers = &self.office.peers;
        let are_members = peers.is_member(from, group) && peers.is_member(speed.to, group);
        let Some(state) = self.groups.get_mut(group).filter(|_| are_members && from != speed.to) else {
            return self.office.count_stale(); // It may have gone meanwhile.
        };
        if let Some(note) = state.survey.note_speed(now, &state.ring, from, speed) {
            if let Note::LinkSlowed { from, to, before, rate } = note {
                self.office.tell_all(&state.roster, ToPeer::LinkSlowed { group, from, to, before, rate });
            }
            self.office.outbox.note(note);
        }
    }
}
