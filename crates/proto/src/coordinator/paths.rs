//! Paths: which links count as broken, how they heal, and who must leave when no ring avoids them.
//!
//! # The problem
//!
//! A link that breaks says little: its other end may be dead, stopped or busy, the path may be cut for a second or
//! for good. To take it for usable costs every collective that is tried over it; to take it for broken may leave no
//! ring, and that costs somebody its place.
//!
//! # The intuition
//!
//! Two questions with two answers (rule 44). *Is a path usable?* is answered quickly and is cheap to take back: a
//! link that was blamed twice, could not be dialled, or on which the other host is silent counts as broken, whatever
//! health says, and the next ring avoids it. Its sending end dials it again in the background, with growing pauses;
//! it is forgiven when it carries. *Must somebody leave?* is answered slowly: only when it is proved that no ring
//! avoids what is broken, and has been for `dead_after`, counted anew after every change of the roster, at which all
//! broken links are dialled, and after every link that healed. While a process is stopped or away nobody else leaves
//! on its account: it takes no dials, which says nothing about paths, and its health decides (rule 20).
//!
//! That a link is broken is at first one end's word, and that end may lie. To plan around it costs nobody anything; a place
//! must not hang on it (rule 20: "a link report alone: never"). So while there is no ring the far ends are asked to dial,
//! too. A link that neither end can make counts for both. One that only one end misses is word against word. It counts for
//! an end that misses, or is missed by, several; or that takes no dial of the coordinator's either; and puts nobody out
//! by itself.
//!
//! ```text
//!            blamed twice, silent, undialled             no ring avoids it          dead_after, proved
//!  usable ------------------------------------> broken -------------------> stuck ------------------> one leaves
//!     ^                                           |  ^                        |
//!     +------ a dial carries ---------------------+  +---- a ring is found ---+
//! ```
//!
//! # The invariant
//!
//! The members of one epoch plan by one list: what its record tells. While the group is stuck its collectives wait
//! within their deadlines; no attempt is made over a ring that is known to be broken.
//!
//! # What it does not do
//!
//! It does not search for rings ([`around`]), looks for one only for some milliseconds, and has what that does not decide
//! worked out by whoever has a thread to spare ([`Action::Solve`]). It dials nobody: members do, when they are asked.

use super::directory::Directory;
use super::epochs::Epochs;
use super::groups::GroupState;
use super::outbox::Timer;
use super::peers::{Peer, Sign};
use super::run::Action;
use super::survey::{SolveToken, Survey};
use crate::collective::around::{self, Plan};
use crate::collective::circuit::Budget;
use crate::collective::{BrokenLink, Group, GroupEpoch, Scope};
use crate::id::PeerId;
use crate::limits::NAMED_MAX;
use crate::retry;
use crate::time::{Duration, Instant};
use crate::topology;
use crate::wire::control::{AbortReason, LossReason, ToPeer};
use std::collections::{BTreeMap, BTreeSet};

/// A link that was blamed this often for an abort counts as broken.
const BLAMES_MAX: u32 = 2;
/// Links that one peer dials at the same time.
const REDIALS_MAX: usize = 8;
/// The longest pause between two dials, in units of `dead_after`, for a link that heals and breaks in turn.
const PAUSE_MAX: u32 = 64;

type Link = (PeerId, PeerId);

/// Links that were reported broken a moment ago.
#[derive(Clone, Debug, Hash)]
struct Settling {
    until: Instant,
    links: BTreeMap<Link, Break>,
    /// Who reported one, and when last, has outlived it.
    reporters: BTreeMap<PeerId, Instant>,
}

/// When a link was first reported, and what the system said of it.
#[derive(Clone, Debug, Hash)]
struct Break {
    at: Instant,
    error: String,
}

impl Settling {
    /// When the last of the links broke, among those that are not `excepted`, whose end has given no sign of life since, though
    /// it could. A process that is being killed closes its links before anybody misses it.
    fn awaits(&self, excepted: &BTreeSet<Link>, peers: &Directory) -> Option<Instant> {
        let proved = |end: &PeerId, at: Instant| {
            self.reporters.get(end).is_some_and(|reported| *reported >= at)
                || peers.get(*end).is_none_or(|peer| peer.has_outlived(at))
        };
        let links = self.links.iter().filter(|(link, _)| !excepted.contains(link));
        let unproved = links.filter(|((a, b), broke)| !proved(a, broke.at) || !proved(b, broke.at));
        unproved.map(|(_, broke)| broke.at).max()
    }
}

/// What is done to mend one link.
#[derive(Clone, Copy, Debug, Hash)]
struct Redial {
    /// When it is dialled again, or given up as unanswered.
    due: Instant,
    pause: Duration,
    /// Whether its sending end was asked and has not answered yet.
    asked: bool,
}

/// How a dial ended that a member was asked for.
#[derive(Clone, Copy, Debug, Hash)]
struct Answer {
    at: Instant,
    well: bool,
}

/// No ring is known that avoids what is broken.
#[derive(Clone, Copy, Debug, Hash)]
struct Stuck {
    since: Instant,
    /// For the next search, and when that is due: it may be long.
    budget: Budget,
    search_at: Instant,
}

/// A ring that is looked for elsewhere, because a look was not enough.
#[derive(Clone, Debug, Hash)]
struct Search {
    /// None once it is answered: there is no such ring.
    token: Option<SolveToken>,
    /// Whom its numbers stand for, and what it does without.
    members: Vec<PeerId>,
    broken: BTreeSet<Link>,
}

/// The links of one group.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Paths {
    broken: BTreeSet<Link>,
    /// Those that this epoch's record tells: all its members plan by the same list.
    told: BTreeSet<Link>,
    blames: BTreeMap<Link, u32>,
    settling: Option<Settling>,
    /// Of broken links, and of their other directions while no ring is known.
    redials: BTreeMap<Link, Redial>,
    /// While no ring is known: how the last dial ended that each member was asked for.
    answers: BTreeMap<Link, Answer>,
    /// How long the last pause was for links that answered a dial and have carried no collective since.
    grudges: BTreeMap<Link, Duration>,
    stuck: Option<Stuck>,
    search: Option<Search>,
    /// Since when links are told to be broken that are not.
    healed: Option<Instant>,
}

impl Paths {
    pub(super) fn footprint(&self) -> usize {
        let settling = self.settling.as_ref().map_or(0, |settling| settling.links.len());
        let known = self.broken.len() + self.told.len() + self.blames.len();
        known + settling + self.redials.len() + self.answers.len() + self.grudges.len()
    }

    /// The links that count as broken.
    pub(super) fn broken(&self) -> &BTreeSet<Link> {
        &self.broken
    }

    /// A test plants what counts as broken.
    #[cfg(test)]
    pub(super) fn take_for_broken(&mut self, link: Link) {
        self.broken.insert(link);
    }

    /// Those that this epoch's record tells.
    pub(super) fn told(&self) -> &BTreeSet<Link> {
        &self.told
    }

    pub(super) fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// Peers went.
    pub(super) fn forget(&mut self, gone: &BTreeSet<PeerId>) {
        let stays = |(a, b): &Link| !gone.contains(a) && !gone.contains(b);
        self.broken.retain(stays);
        self.blames.retain(|link, _| stays(link));
        self.redials.retain(|link, _| stays(link));
        self.answers.retain(|link, _| stays(link));
        self.grudges.retain(|link, _| stays(link));
    }

    /// A coordinator that was restarted learns what counted as broken.
    pub(super) fn recall(&mut self, broken: BTreeSet<Link>) {
        self.told.clone_from(&broken);
        self.broken = broken;
    }

    /// All links of the ring carried a collective to its end: what they were blamed for is forgiven. What goes
    /// straight between members uses other links, too, and of those nothing was shown.
    pub(super) fn forgive(&mut self, ring: &[PeerId]) {
        if self.blames.is_empty() && self.grudges.is_empty() {
            return;
        }
        for (at, from) in ring.iter().enumerate() {
            let link = (*from, ring[(at + 1) % ring.len()]);
            self.blames.remove(&link);
            self.grudges.remove(&link);
        }
    }

    /// Whoever looks for a ring need not, if somebody does.
    pub(super) fn end_search(&mut self) -> Option<SolveToken> {
        self.search.take().and_then(|search| search.token)
    }

    fn uses_broken(&self, ring: &[PeerId]) -> bool {
        ring.len() > 1
            && (0..ring.len()).any(|at| self.broken.contains(&(ring[at], ring[(at + 1) % ring.len()])))
    }

    /// A new epoch of these members, whose order is preferred, begins: its ring.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        order: Vec<PeerId>,
        changed: bool,
        survey: &Survey,
    ) -> Vec<PeerId> {
        let budget = self.stuck.filter(|_| !changed).map_or(Budget::FIRST, |stuck| stuck.budget);
        let plan = self.plan(&order, budget, survey);
        self.settling = None;
        self.healed = None;
        self.told.clone_from(&self.broken);
        if changed {
            // Whatever is broken gets its chance before anything is concluded from it (rule 44).
            self.redials.values_mut().filter(|redial| !redial.asked).for_each(|redial| redial.due = now);
        }
        if let Plan::Ring(ring) = plan {
            self.stuck = None;
            return ring;
        }
        self.stuck = Some(Stuck { since: now, budget: budget.next(), search_at: now });
        order
    }

    /// Whether that ring would be taken as it is: it avoids what is broken as well as any.
    pub(super) fn takes(&self, ring: &[PeerId], survey: &Survey) -> bool {
        matches!(self.plan(ring, Budget::FIRST, survey), Plan::Ring(planned) if planned == ring)
    }

    /// What a better ring of these members must do without, to be [taken](Self::takes).
    pub(crate) fn avoided(&self, ring: &[PeerId]) -> BTreeSet<Link> {
        let shunned = self.shunned();
        match around::look(ring, &shunned, Budget::FIRST) {
            Plan::Ring(_) => shunned,
            Plan::None | Plan::Unknown => self.broken.clone(),
        }
    }

    /// A stream needs both directions of a path: the way back of a broken link is used only if it must be.
    fn shunned(&self) -> BTreeSet<Link> {
        self.broken.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect()
    }

    /// The ring in that order if it avoids what is broken; without the ways back of it, if there is such a ring. Where the order
    /// cannot be kept, the fastest ring of those that are left is taken, as far as speeds are known.
    fn plan(&self, order: &[PeerId], budget: Budget, survey: &Survey) -> Plan {
        let shunned = self.shunned();
        let fastest = |ring: Vec<PeerId>, avoided: &BTreeSet<Link>| {
            let faster = if ring == order { None } else { survey.ring_around(order, avoided) };
            Plan::Ring(faster.unwrap_or(ring))
        };
        match around::look(order, &shunned, Budget::FIRST) {
            Plan::Ring(ring) => fastest(ring, &shunned),
            Plan::None | Plan::Unknown => match around::look(order, &self.broken, budget) {
                Plan::Ring(ring) => fastest(ring, &self.broken),
                plan => plan,
            },
        }
    }

    fn count_as_broken(&mut self, now: Instant, link: Link, first_pause: Duration, pause_max: Duration) {
        if self.broken.insert(link) {
            let pause = match self.grudges.remove(&link) {
                Some(before) => retry::longer(before, PAUSE_MAX * pause_max),
                None => first_pause,
            };
            self.redials.insert(link, Redial { due: now + pause, pause, asked: false });
            // Where everything is as it was told, there is no healing to tell of.
            self.healed = self.healed.filter(|_| !self.told.is_subset(&self.broken));
        }
    }

    /// Which dials are to be asked for: those of broken links; and, where somebody may have to leave, those of their far
    /// ends, because an end that lies could say that it reaches nobody.
    fn list_redials(&mut self, now: Instant, first_pause: Duration) {
        let Self { broken, redials, answers, stuck, .. } = self;
        let back = |(from, to): &Link| (*to, *from);
        redials.retain(|link, _| broken.contains(link) || (stuck.is_some() && broken.contains(&back(link))));
        let others = broken.iter().filter(|_| stuck.is_some()).map(back);
        for link in broken.iter().copied().chain(others) {
            redials.entry(link).or_insert(Redial { due: now, pause: first_pause, asked: false });
        }
        if stuck.is_none() {
            answers.clear();
        }
    }

    /// A dial went well. False if nobody waited for it.
    fn heal(&mut self, link: Link) -> bool {
        let Some(redial) = self.redials.remove(&link) else { return false };
        self.blames.remove(&link);
        self.grudges.insert(link, redial.pause);
        self.broken.remove(&link)
    }
}

impl GroupState {
    /// Whether the members in scope may have a ring among themselves that avoids the broken links.
    fn has_way(&self, scope: &Scope) -> bool {
        let members: Vec<_> = self.ring.iter().copied().filter(|peer| scope.involves(*peer)).collect();
        around::look(&members, &self.paths.broken, Budget::FIRST) != Plan::None
    }

    /// Why an attempt in this scope could not succeed now, if so.
    pub(super) fn unsettled(&self, scope: &Scope) -> Option<AbortReason> {
        let away = self.attendance.away().filter(|peer| scope.involves(**peer));
        let lost: Vec<_> = away.map(|peer| (*peer, LossReason::Disconnected)).collect();
        if !lost.is_empty() {
            return Some(AbortReason::PeersLost(lost));
        }
        let within = |(a, b): &Link| scope.involves(*a) && scope.involves(*b);
        let mut links = self.paths.settling.iter().flat_map(|settling| &settling.links);
        if let Some(((from, to), broke)) = links.find(|(link, _)| within(link)) {
            return Some(AbortReason::LinkBroken { from: *from, to: *to, error: broke.error.clone() });
        }
        let (from, to) = self.paths.broken.iter().find(|link| self.paths.is_stuck() && within(link))?;
        let error = "no ring avoids the links that are broken; they are being dialled again".to_owned();
        Some(AbortReason::LinkBroken { from: *from, to: *to, error })
    }
}

impl Epochs<'_> {
    /// A data link broke. The attempts that use it are aborted; nobody is condemned.
    pub(super) fn link_broken(
        &mut self,
        now: Instant,
        reporter: PeerId,
        (group, epoch): (Group, GroupEpoch),
        broken: BrokenLink,
        dialling: bool,
    ) {
        let BrokenLink { from, to, error } = broken;
        let link = (from, to);
        if (reporter != from && reporter != to) || from == to || !self.office.peers.is_member(reporter, group)
        {
            return self.office.kick(reporter, "reported a link that is not its own");
        }
        let both = self.office.peers.is_member(from, group) && self.office.peers.is_member(to, group);
        // A link that broke while one of its ends is in doubt was perhaps not at fault: that is no blame.
        let doubtful =
            [from, to].iter().any(|end| self.office.peers.get(*end).is_some_and(Peer::is_doubtful));
        let until = now + self.config.link_settle;
        let (first_pause, pause_max) = (2 * self.config.probe_timeout, self.config.dead_after);
        let Some(state) = self.groups.get_mut(group).filter(|state| state.epoch == epoch && both) else {
            self.office.count_stale();
            return;
        };
        let paths = &mut state.paths;
        // Known to be broken before it was tried now.
        let known = !doubtful && paths.broken.contains(&link);
        let settling = paths.settling.get_or_insert_with(|| Settling {
            until,
            links: BTreeMap::new(),
            reporters: BTreeMap::new(),
        });
        let until = settling.until;
        settling.reporters.insert(reporter, now);
        let is_new = settling.links.len() < NAMED_MAX && !settling.links.contains_key(&link);
        if is_new {
            settling.links.insert(link, Break { at: now, error: error.clone() });
            // Whether its other end is still there is asked at once.
            let other = if reporter == from { to } else { from };
            self.office.outbox.act(Action::Look(other));
            // One break is reported by both ends and by every collective on it: that is one blame.
            let blames = paths.blames.entry(link).or_default();
            *blames += u32::from(!doubtful);
            if *blames >= BLAMES_MAX {
                paths.count_as_broken(now, link, first_pause, pause_max);
            }
        }
        if dialling {
            // Silent, or not to be had for long: planned around, whatever health says (rule 44).
            paths.count_as_broken(now, link, first_pause, pause_max);
        }
        let reason = AbortReason::LinkBroken { from, to, error };
        for key in self.groups.open_keys(group, |scope, _| scope.involves(from) && scope.involves(to)) {
            if known && key.scope != Scope::Whole && !self.groups[group].has_way(&key.scope) {
                self.calls().abort(&key, AbortReason::NoPath { from, to });
            } else {
                self.calls().abort(&key, reason.clone());
            }
        }
        self.office.outbox.schedule(until, Timer::LinkSettle(group));
        self.watch_paths(now, group);
    }

    /// The ends of a broken link had their time to be noticed as lost. If they are all here, go on: with the
    /// same ring once, with another one if the link is broken for good. As long as the health plane doubts an end of
    /// a link that merely broke, an attempt would only fail again, and nobody could say yet whether a link or a peer
    /// was lost (rule 8): the doubt is waited for, and no longer than it can last. So is a sign of life of an end that
    /// did not report the break itself.
    pub(super) fn settle(&mut self, now: Instant, group: Group) {
        let Some(state) = self.groups.get_mut(group).filter(|state| state.is_served()) else { return };
        if let Some(settling) = &state.paths.settling {
            let doubtful = |end: &PeerId| self.office.peers.get(*end).is_some_and(Peer::is_doubtful);
            let usable = settling.links.keys().filter(|link| !state.paths.broken.contains(link));
            let in_doubt = usable.into_iter().any(|(a, b)| doubtful(a) || doubtful(b));
            let until = if in_doubt {
                settling.until + self.config.dead_after
            } else if let Some(broke) = settling.awaits(&state.paths.broken, &self.office.peers) {
                settling.until.max(broke + self.config.link_settle + 3 * self.config.probe_timeout)
            } else {
                settling.until
            };
            if now < until {
                return self.office.outbox.schedule(until, Timer::LinkSettle(group));
            }
        }
        state.paths.settling = None;
        if !state.attendance.is_full() {
            return; // They resume or are evicted; either settles it.
        }
        // What goes straight between members must go around it, too, and all must know (rule 16).
        let untold = !state.paths.broken.is_subset(&state.paths.told);
        if state.paths.is_stuck() {
            return self.watch_paths(now, group); // What is broken besides makes no ring.
        }
        if untold || state.paths.uses_broken(&state.ring) {
            return self.replan(now, group);
        }
        self.release(group);
    }

    /// Looks for a ring that avoids what is broken now. If there is one it is taken; if it is proved for `dead_after`
    /// that there is none, somebody leaves.
    pub(super) fn replan(&mut self, now: Instant, group: Group) {
        let excused = self.without_excused(group);
        let dead_after = self.config.dead_after;
        let Some(state) = self.groups.get_mut(group).filter(|state| state.is_served()) else { return };
        let (ring, paths) = (&state.ring, &mut state.paths);
        let is_searched =
            paths.search.as_ref().filter(|search| search.members == *ring && search.broken == paths.broken);
        let is_disproved = is_searched.is_some_and(|search| search.token.is_none());
        // Often enough to notice in time that somebody who was stopped is back.
        let search_at = now + dead_after / 4;
        let (since, budget) = paths.stuck.map_or((now, Budget::FIRST), |stuck| (stuck.since, stuck.budget));
        let plan = match paths.plan(ring, budget, &state.survey) {
            Plan::Unknown if is_disproved => Plan::None,
            plan => plan,
        };
        match plan {
            // What stood in its way is gone before anybody was told of it.
            Plan::Ring(planned) if planned == *ring && paths.broken == paths.told => {
                paths.stuck = None;
                let off = paths.end_search();
                off.into_iter().for_each(|token| self.office.outbox.act(Action::CallOff(token)));
                return self.settle(now, group);
            }
            Plan::Ring(_) => {
                let roster = state.roster.clone();
                return self.open_epoch(now, group, roster, Vec::new(), Vec::new());
            }
            // The search goes on, and until it ends nothing is proved against anybody (rule 16).
            Plan::Unknown if ring.len() > topology::MEMBERS_MAX => {
                paths.stuck = Some(Stuck { since: now, budget: budget.next(), search_at });
            }
            Plan::Unknown if is_searched.is_some() => {
                paths.stuck = Some(Stuck { since: now, budget: budget.again(), search_at });
            }
            Plan::Unknown => {
                paths.stuck = Some(Stuck { since: now, budget: budget.again(), search_at });
                let off = paths.end_search();
                off.into_iter().for_each(|token| self.office.outbox.act(Action::CallOff(token)));
                // Each time it may take twice as long, at last as long as what runs in the background.
                let (quick, most) = self.config.ring_steps;
                let steps = quick.saturating_mul(1 << budget.tries.min(16)).min(most);
                let question = around::question(ring, &paths.broken, (u64::from(budget.tries) + 1, steps));
                let token = SolveToken(self.office.outbox.number());
                let (members, broken) = (ring.clone(), paths.broken.clone());
                paths.search = Some(Search { token: Some(token), members, broken });
                self.office.outbox.act(Action::Solve { token, question });
            }
            // There would be a ring if those who are stopped or away took dials: health decides first.
            Plan::None
                if excused.len() < paths.broken.len()
                    && around::look(ring, &excused, Budget::FIRST) != Plan::None =>
            {
                paths.stuck = Some(Stuck { since: now, budget, search_at });
            }
            Plan::None if now.since(since) < dead_after => {
                paths.stuck = Some(Stuck { since, budget, search_at: search_at.min(since + dead_after) });
            }
            Plan::None => {
                paths.stuck = Some(Stuck { since, budget, search_at });
                // Whoever is asked to dial many has its time to do so.
                if self.all_were_asked(group, since) || now.since(since) >= 2 * dead_after {
                    match self.least_reached(now, group, since) {
                        Ok(victim) => return self.office.lose(victim, LossReason::Unreachable),
                        Err(undecided) => self.office.agenda.knock(undecided),
                    }
                }
            }
        }
        self.watch_paths(now, group);
    }

    /// Whoever looked for a ring has answered. False if that is not what was asked here.
    pub(super) fn searched(&mut self, now: Instant, token: SolveToken, answer: &topology::Answer) -> bool {
        let is_asked =
            |paths: &Paths| paths.search.as_ref().is_some_and(|search| search.token == Some(token));
        let Some(group) =
            self.groups.iter().find(|(_, state)| is_asked(&state.paths)).map(|(group, _)| group)
        else {
            return false;
        };
        let Some(state) = self.groups.get_mut(group) else { return false };
        let Some(search) = state.paths.search.take() else { return false };
        // Links may have broken or healed meanwhile, and then it is another question.
        let is_same = search.members == state.ring && search.broken == state.paths.broken;
        match answer.ring() {
            Some(found) if is_same && state.is_served() => {
                state.ring = found.iter().map(|at| search.members[*at]).collect();
                let roster = state.roster.clone();
                self.open_epoch(now, group, roster, Vec::new(), Vec::new());
            }
            Some(_) => self.replan(now, group),
            None if *answer == topology::Answer::None => {
                state.paths.search = Some(Search { token: None, ..search });
                self.replan(now, group);
            }
            // It is asked again when a look is due: whoever answers may have no thread to spare.
            None => self.watch_paths(now, group),
        }
        true
    }

    /// Whether both ends of every broken link have said, or failed to say in time, if they reach each other.
    fn all_were_asked(&self, group: Group, since: Instant) -> bool {
        let paths = &self.groups[group].paths;
        let asked = |link: Link| {
            self.office.peers.connection(link.0).is_none()
                || paths.answers.get(&link).is_some_and(|answer| answer.at >= since)
        };
        paths.broken.iter().all(|(a, b)| asked((*a, *b)) && asked((*b, *a)))
    }

    /// The broken links whose ends could all be asked: whoever is stopped or away answers no dial.
    fn without_excused(&self, group: Group) -> BTreeSet<Link> {
        let Some(state) = self.groups.get(group) else { return BTreeSet::new() };
        let excused = |end: &PeerId| {
            self.office
                .peers
                .get(*end)
                .is_none_or(|peer| peer.lost_since.is_some() || peer.sign == Sign::Stalled)
        };
        state.paths.broken.iter().copied().filter(|(a, b)| !excused(a) && !excused(b)).collect()
    }

    /// No ring exists since then: of the ends of broken links, the one that fewest can reach leaves.
    ///
    /// # Errors
    /// Whom to ask first, if there is only one member's word against another's.
    fn least_reached(&self, now: Instant, group: Group, since: Instant) -> Result<PeerId, BTreeSet<PeerId>> {
        let state = &self.groups[group];
        let members: BTreeSet<_> = state.roster.iter().copied().collect();
        let doubtful = |peer: PeerId| self.office.peers.get(peer).is_none_or(Peer::is_doubtful);
        let recent = self.config.dead_after / 2;
        // Who says so and has fallen silent since says nothing about now.
        let reaches = |from: PeerId, to: PeerId| {
            let answer = state.paths.answers.get(&(from, to)).filter(|answer| answer.well);
            answer.is_some_and(|answer| now.since(answer.at) <= recent || !doubtful(from))
        };
        // Whom a broken link in either direction separates it from; and from whom, if only one of the two says so.
        let mut cut_from: BTreeMap<PeerId, BTreeSet<PeerId>> = BTreeMap::new();
        let mut one_sided: BTreeMap<PeerId, BTreeSet<PeerId>> = BTreeMap::new();
        for (a, b) in state.paths.broken.iter().filter(|(a, b)| members.contains(a) && members.contains(b)) {
            let separated = if reaches(*a, *b) || reaches(*b, *a) { &mut one_sided } else { &mut cut_from };
            separated.entry(*a).or_default().insert(*b);
            separated.entry(*b).or_default().insert(*a);
        }
        let undecided: BTreeSet<_> = one_sided.keys().copied().collect();
        let turns_away = |peer: PeerId| {
            let tried = self.office.peers.get(peer).and_then(|peer| peer.takes_dials);
            tried.is_some_and(|(at, accepted)| at >= since && !accepted)
        };
        for (peer, others) in one_sided {
            // What several say, or we see ourselves, is no longer one word against one.
            if others.len() > 1 || turns_away(peer) {
                cut_from.entry(peer).or_default().extend(others);
            }
        }
        // Of whom there are doubts already, because it is away or the health plane does not call it alive, is
        // reached by fewer still.
        let victim = cut_from.iter().max_by_key(|(peer, cut)| {
            let age = self.office.peers.get(**peer).map_or(0, |peer| peer.age);
            (doubtful(**peer), cut.len(), age)
        });
        victim.map(|(peer, _)| *peer).ok_or(undecided)
    }

    /// Asks for the dials that are due, and to be woken for what comes next.
    pub(super) fn watch_paths(&mut self, now: Instant, group: Group) {
        let (first_pause, patience) = (2 * self.config.probe_timeout, self.config.control_grace);
        let (dead_after, settle) = (self.config.dead_after, self.config.link_settle);
        let Some(state) = self.groups.get_mut(group).filter(|state| state.is_served()) else { return };
        state.paths.list_redials(now, first_pause);
        let Paths { redials, answers, stuck, healed, .. } = &mut state.paths;
        let mut busy: BTreeMap<PeerId, usize> = BTreeMap::new();
        for ((from, _), _) in redials.iter().filter(|(_, redial)| redial.asked && redial.due > now) {
            *busy.entry(*from).or_default() += 1;
        }
        // While calls are open a quiet moment may come at any time.
        let pause = if state.operations.is_quiet() { settle } else { first_pause };
        let mut wake = healed.map(|since| (since + settle).max(now + pause).min(since + dead_after));
        if let Some(stuck) = stuck {
            wake = Some(earlier(wake, stuck.search_at));
        }
        let mut asks = Vec::new();
        for ((from, to), redial) in redials.iter_mut() {
            if stuck.is_some() && !redial.asked {
                // What may cost somebody its place is dialled several times before.
                redial.due = redial.due.min(now + dead_after / 8);
            }
            if redial.due <= now {
                if std::mem::take(&mut redial.asked) {
                    // Nobody answered: that went wrong, too.
                    if stuck.is_some() {
                        answers.insert((*from, *to), Answer { at: now, well: false });
                    }
                    redial.pause = retry::longer(redial.pause, dead_after);
                    redial.due = now + redial.pause;
                } else if self.office.peers.connection(*from).is_none() {
                    redial.due = now + redial.pause;
                } else if let Some(address) = self.office.peers.get(*to).map(|peer| peer.info.address) {
                    let dials = busy.entry(*from).or_default();
                    if *dials < REDIALS_MAX {
                        *dials += 1;
                        redial.asked = true;
                        redial.due = now + patience;
                        asks.push((*from, ToPeer::Redial { group, to: *to, address }));
                    } else {
                        redial.due = now + first_pause;
                    }
                }
            }
            wake = Some(earlier(wake, redial.due));
        }
        for (from, ask) in asks {
            self.office.tell(from, ask);
        }
        if let Some(wake) = wake {
            // Never in the past: whoever is woken would come here again at once.
            self.office.outbox.schedule(wake.max(now + Duration::from_millis(1)), Timer::Paths(group));
        }
    }

    /// It is time to look at the broken links of a group again.
    pub(super) fn review_paths(&mut self, now: Instant, group: Group) {
        let (dead_after, settle) = (self.config.dead_after, self.config.link_settle);
        let Some(state) = self.groups.get(group) else { return };
        if state.paths.stuck.is_some_and(|stuck| now >= stuck.search_at) {
            return self.replan(now, group);
        }
        if let Some(since) = state.paths.healed {
            // What goes straight between members may use the link again. Telling it costs whoever calls right now an
            // attempt, so it waits for a quiet moment; but not for ever.
            let waited = now.since(since);
            let quiet =
                state.operations.is_quiet() && !state.paths.is_settling() && state.attendance.is_full();
            if state.is_served() && ((quiet && waited >= settle) || waited >= dead_after) {
                let roster = state.roster.clone();
                self.open_epoch(now, group, roster, Vec::new(), Vec::new());
            }
        }
        self.watch_paths(now, group);
    }

    /// A member dialled a link that counts as broken.
    pub(super) fn redialled(&mut self, now: Instant, from: PeerId, group: Group, to: PeerId, well: bool) {
        let dead_after = self.config.dead_after;
        // An answer may come after the session that it was asked of, which says nothing against its sender.
        let member = self.office.peers.is_member(from, group);
        let Some(state) = self.groups.get_mut(group).filter(|_| member) else {
            self.office.count_stale();
            return;
        };
        let paths = &mut state.paths;
        let link = (from, to);
        let Some(redial) = paths.redials.get_mut(&link).filter(|redial| redial.asked) else {
            self.office.count_stale();
            return;
        };
        if paths.stuck.is_some() {
            paths.answers.insert(link, Answer { at: now, well });
        }
        if !well || !paths.broken.contains(&link) {
            redial.asked = false;
            redial.pause = retry::longer(redial.pause, dead_after);
            redial.due = now + redial.pause;
        } else if paths.heal(link) {
            if let Some(stuck) = &mut paths.stuck {
                stuck.since = now; // Counted anew after any success (rule 44).
                return self.replan(now, group);
            }
            if paths.told.contains(&link) {
                paths.healed.get_or_insert(now);
            }
        }
        self.watch_paths(now, group);
    }
}

fn earlier(a: Option<Instant>, b: Instant) -> Instant {
    a.map_or(b, |a| a.min(b))
}
