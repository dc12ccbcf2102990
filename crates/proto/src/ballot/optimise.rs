//! A better ring: what a group votes on before and after it measures its links (rule 32).
//!
//! Two turns. In the first every member *begins*: it says where it is and brings the speeds that it has measured before;
//! the outcome says who measures with whom, which is nobody if everything is known. Then members measure, which no vote
//! sees. In the second every member tells what it has *measured*; then the coordinator has the solver asked, and if the
//! answer is worth it the ring is rewired, links first. The outcome is the ring, with the speed of its links and what it
//! promises, or why it failed. The old ring stands until the new one is there.
//!
//! ```text
//!   Begin, Begin, ..    ->  Measure: who with whom
//!   Measured, ..        ->  solve -> worth it? -> rewire -> Ring
//!                                      no ------------------> Ring, as it was
//!                                      cannot be wired -----> Failed; the retry avoids that link
//!   both side by side   ->  Again: somebody begins again
//!   Measured, of whom no Begin was heard: a restart in between  ->  Again
//!   given up in between ->  the ballot is over for all, and says who it was
//! ```
//!
//! Every group votes for itself: a ring is a group's, and a group that trains must not wait for another one to pause.
//!
//! A member that is lost in between is not waited for. Its measurements are missing, and what could not be measured costs
//! more than anything that could: it is used only where there is no other way.

use super::{Hall, Reach, Rules, Seats, Step};
use crate::coordinator::ConnectionState;
use crate::id::PeerId;
use crate::limits::{
    LINKS_BROUGHT_MAX, LINKS_TOLD_MAX, NAMED_MAX, OUTCOME_BYTES_MAX, SITE_BYTES_MAX, TEXT_BYTES_MAX,
    WISH_BYTES_MAX,
};
use crate::time::{Duration, Instant};
use crate::topology::{Forecast, Link, MEMBERS_MAX, Question};
use crate::wire::control::BallotKind;
use crate::wire::{InvalidMessage, Message, clip, decode, encode, printable, within};
use minicbor::{CborLen, Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};

/// Its number on the wire.
pub const KIND: BallotKind = BallotKind(3);

/// A new ring is wired only if it is better than the one before it by this much, in percent (rule 32): measurements are
/// not exact, and every new neighbour is a link to be made.
pub const GAIN_PERCENT_MIN: u64 = 5;

/// The largest speed that is believed, in bytes per second.
pub const RATE_MAX: u64 = 1 << 44;

/// What a member knows of its links to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Brought {
    /// The other end.
    #[n(0)]
    pub peer: PeerId,
    /// Bytes per second from us to it; zero if not known.
    #[n(1)]
    pub sends: u64,
    /// Bytes per second from it to us; zero if not known.
    #[n(2)]
    pub receives: u64,
    /// There and back, in microseconds.
    #[n(3)]
    pub round_trip_us: u32,
    /// How long ago that was.
    #[n(4)]
    pub age_ms: u64,
}

/// What a voter says.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum RingWish {
    /// The first turn: where it is, and what it has measured before.
    #[n(0)]
    Begin {
        /// The name of its site; empty if it has none.
        #[n(0)]
        site: String,
        /// Its own measurements.
        #[n(1)]
        known: Vec<Brought>,
    },
    /// The second turn: what it has measured since.
    #[n(1)]
    Measured {
        /// The name of its site, for a coordinator that was restarted since.
        #[n(0)]
        site: String,
        /// Its own measurements.
        #[n(1)]
        found: Vec<Brought>,
        /// Whom it was to dial and could not measure with.
        #[n(2)]
        failed: Vec<PeerId>,
        /// What went wrong first, in words.
        #[n(3)]
        trouble: Option<String>,
    },
}

/// The speed of a link, as everybody is told it. Ends are places in the outcome's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Told {
    /// The end that sends.
    #[n(0)]
    pub from: u32,
    /// The end that receives.
    #[n(1)]
    pub to: u32,
    /// Bytes per second.
    #[n(2)]
    pub rate: u64,
    /// There and back, in microseconds.
    #[n(3)]
    pub round_trip_us: u32,
    /// How long ago it was measured.
    #[n(4)]
    pub age_ms: u64,
}

/// What a ring promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Promise {
    /// Bytes per second over its slowest link.
    #[n(0)]
    pub rate: u64,
    /// The way once around, in microseconds.
    #[n(1)]
    pub around_us: u64,
}

/// What a group agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum RingOutcome {
    /// These measure with each other, heat by heat; who dials comes first. Numbers are places in `members`.
    #[n(0)]
    Measure {
        /// Everybody.
        #[n(0)]
        members: Vec<PeerId>,
        /// In each heat everybody has at most one measurement.
        #[n(1)]
        heats: Vec<Vec<(u32, u32)>>,
    },
    /// That is the ring now.
    #[n(1)]
    Ring {
        /// Everybody, in the ring's order.
        #[n(0)]
        ring: Vec<PeerId>,
        /// What is known of links, those of the ring first.
        #[n(1)]
        links: Vec<Told>,
        /// What it promises, and what the ring before it did; none if a link of it is not known.
        #[n(2)]
        promise: Option<Promise>,
        /// The same of the ring before.
        #[n(3)]
        before: Option<Promise>,
        /// Whether it is another ring than before.
        #[n(4)]
        improved: bool,
        /// Whether the search in the background found it.
        #[n(5)]
        moonshot: bool,
        /// How many pairs were measured for it.
        #[n(6)]
        measured_pairs: u32,
    },
    /// The ring is as it was, and why. A retry avoids what failed.
    #[n(2)]
    Failed {
        /// In words.
        #[n(0)]
        why: String,
    },
    /// Somebody began again: all do.
    #[n(3)]
    Again,
}

impl Message for RingWish {
    const BYTES_MAX: usize = WISH_BYTES_MAX;

    fn check(&self) -> Result<(), InvalidMessage> {
        within("name of the site", self.site().len(), SITE_BYTES_MAX)?;
        printable("name of the site", self.site())?;
        if let Self::Measured { failed, trouble, .. } = self {
            within("pairs that failed", failed.len(), LINKS_BROUGHT_MAX)?;
            within("trouble", trouble.as_ref().map_or(0, String::len), TEXT_BYTES_MAX)?;
        }
        within("links", self.brought().len(), LINKS_BROUGHT_MAX)?;
        match self.brought().iter().find(|link| link.sends.max(link.receives) > RATE_MAX) {
            Some(link) => {
                let value = format!("{} bytes per second", link.sends.max(link.receives));
                Err(InvalidMessage::Meaningless { field: "links", value })
            }
            None => Ok(()),
        }
    }
}

impl RingWish {
    /// Where its voter is.
    pub(crate) fn site(&self) -> &str {
        match self {
            Self::Begin { site, .. } | Self::Measured { site, .. } => site,
        }
    }

    /// What it tells of links.
    pub(crate) fn brought(&self) -> &[Brought] {
        match self {
            Self::Begin { known, .. } => known,
            Self::Measured { found, .. } => found,
        }
    }
}

impl Message for RingOutcome {
    const BYTES_MAX: usize = OUTCOME_BYTES_MAX;

    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Measure { members, heats } => {
                within("members", members.len(), MEMBERS_MAX)?;
                within("heats", heats.len(), LINKS_TOLD_MAX)
            }
            Self::Ring { ring, links, .. } => {
                within("ring", ring.len(), MEMBERS_MAX)?;
                within("links", links.len(), LINKS_TOLD_MAX)
            }
            Self::Failed { why } => within("reason", why.len(), TEXT_BYTES_MAX),
            Self::Again => Ok(()),
        }
    }
}

/// The rules of it.
#[derive(Debug)]
pub(crate) struct Optimise;

/// What one group does next.
enum Next {
    Agree(RingOutcome),
    Ask(Question),
    Rewire(Vec<PeerId>),
    Wait,
}

impl Rules for Optimise {
    fn kind(&self) -> BallotKind {
        KIND
    }

    fn name(&self) -> &'static str {
        "optimize_topology"
    }

    fn state(&self, wish: &[u8]) -> ConnectionState {
        match decode(wish) {
            Ok(RingWish::Measured { .. }) => ConnectionState::OptimizeTopology,
            Ok(RingWish::Begin { .. }) | Err(_) => ConnectionState::VoteOptimizeTopology,
        }
    }

    fn state_after(&self, outcome: &[u8]) -> Option<ConnectionState> {
        match decode(outcome).ok()? {
            RingOutcome::Measure { .. } | RingOutcome::Again => Some(ConnectionState::OptimizeTopology),
            RingOutcome::Failed { .. } => Some(ConnectionState::OptimizeTopologyFailed),
            RingOutcome::Ring { .. } => None,
        }
    }

    fn goes_on(&self, outcome: &[u8]) -> bool {
        matches!(decode(outcome), Ok(RingOutcome::Measure { .. }))
    }

    fn reach(&self) -> Reach {
        Reach::Group
    }

    fn check(&self, wish: &[u8]) -> Result<(), String> {
        decode::<RingWish>(wish).map(drop).map_err(|error| format!("is no vote for a better ring: {error}"))
    }

    fn outcome(&self, _hall: &Hall<'_>, _seats: &Seats<'_>) -> Vec<u8> {
        encode(&RingOutcome::Again)
    }

    fn count(&self, hall: &Hall<'_>) -> Step {
        let Some(counting) = hall.counting() else { return Step::Wait };
        let ready = hall.groups().filter(|seats| seats.is_unanimous() && seats.is_linked);
        let (mut agreed, mut questions, mut rings) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for seats in ready {
            match next(counting, seats) {
                Next::Agree(outcome) => agreed.push((seats.group, encode(&outcome))),
                Next::Ask(question) => {
                    questions.insert(seats.group, question);
                }
                Next::Rewire(ring) => {
                    rings.insert(seats.group, ring);
                }
                Next::Wait => {}
            }
        }
        // What is left is counted again at once.
        match (agreed.is_empty(), questions.is_empty(), rings.is_empty()) {
            (false, ..) => Step::Agree(agreed),
            (true, false, _) => Step::Ask(questions),
            (true, true, false) => Step::Rewire(rings),
            (true, true, true) => Step::Wait,
        }
    }
}

fn next((now, steps): (Instant, u64), seats: &Seats<'_>) -> Next {
    let survey = seats.survey;
    let wishes: Vec<_> =
        seats.wishes().filter_map(|(peer, wish)| Some((peer, decode::<RingWish>(wish).ok()?))).collect();
    let begun = wishes.iter().filter(|(_, wish)| matches!(wish, RingWish::Begin { .. })).count();
    if seats.members.len() > MEMBERS_MAX {
        let why = format!(
            "{} members are too many: the largest ring that is ordered has {MEMBERS_MAX}",
            seats.members.len()
        );
        return Next::Agree(RingOutcome::Failed { why });
    }
    if begun == wishes.len() {
        let heats = survey.plan(now, seats.members, seats.ring);
        let heats =
            heats.into_iter().map(|heat| heat.into_iter().map(|(a, b)| (a as u32, b as u32)).collect());
        return Next::Agree(RingOutcome::Measure { members: seats.members.to_vec(), heats: heats.collect() });
    }
    // One that was told of measurements only, because it was restarted since all began, knows nothing of the other links.
    if begun > 0 || !wishes.iter().all(|(peer, _)| survey.has_begun(*peer)) {
        return Next::Agree(RingOutcome::Again);
    }
    if seats.members.len() < 2 {
        return Next::Agree(ring_outcome(now, seats, seats.ring, false, &wishes));
    }
    let troubles = || {
        let named = wishes.iter().filter_map(|(peer, wish)| match wish {
            RingWish::Measured { trouble: Some(why), .. } => Some(format!("{}: {why}", peer.short())),
            _ => None,
        });
        named.take(NAMED_MAX).collect::<Vec<_>>().join("; ")
    };
    if survey.links.is_empty() {
        let why = format!("no link could be measured ({})", troubles());
        return Next::Agree(RingOutcome::Failed { why: clip(&why, TEXT_BYTES_MAX) });
    }
    if seats.refused_ring.is_some() {
        let why = "a link of the better ring could not be made; the ring is as it was, and the next \
                   optimize_topology looks for one without that link";
        return Next::Agree(RingOutcome::Failed { why: why.to_owned() });
    }
    let question = survey.question(seats.members, &seats.paths.avoided(seats.ring), steps);
    let Some(answer) = survey.answer_to(&question) else {
        return if survey.is_asked(&question) { Next::Wait } else { Next::Ask(question) };
    };
    let places: BTreeMap<_, _> = seats.members.iter().zip(0usize..).collect();
    let key = |ring: &[PeerId]| {
        let ring: Option<Vec<_>> = ring.iter().map(|peer| places.get(peer).copied()).collect();
        question.key(&ring.filter(|ring| ring.len() == places.len())?)
    };
    let named = |ring: &[usize]| ring.iter().map(|at| seats.members[*at]).collect::<Vec<_>>();
    let mut best = answer.ring().map(|ring| (named(ring), false));
    if let Some(found) = survey.moonshot(seats.members).map(named)
        && let Some(cost) = key(&found)
        && best.as_ref().and_then(|(ring, _)| key(ring)).is_none_or(|quick| cost < quick)
    {
        best = Some((found, true));
    }
    let before = survey.ring_before(seats.members).unwrap_or(seats.ring);
    match best {
        Some((ring, moonshot)) if is_worth_it(key(before), key(&ring)) => {
            if is_same(seats.ring, &ring) {
                Next::Agree(ring_outcome(now, seats, before, moonshot, &wishes))
            } else {
                Next::Rewire(ring)
            }
        }
        Some(_) => Next::Agree(ring_outcome(now, seats, before, false, &wishes)),
        None => {
            let why = "no ring avoids the links that are broken; they are being dialled again".to_owned();
            Next::Agree(RingOutcome::Failed { why })
        }
    }
}

pub(crate) type Key = ((usize, usize), crate::topology::RingCost);

/// Whether one ring is enough better than another to be wired.
pub(crate) fn is_worth_it(before: Option<Key>, after: Option<Key>) -> bool {
    let (Some((crossed, before)), Some((crosses, after))) = (before, after) else {
        return after.is_some();
    };
    let is_less =
        |new: u64, old: u64| u128::from(new) * 100 <= u128::from(old) * u128::from(100 - GAIN_PERCENT_MIN);
    match crosses.cmp(&crossed) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Greater => false,
        std::cmp::Ordering::Equal => {
            is_less(after.slowest, before.slowest)
                || (after.slowest <= before.slowest && is_less(after.sum, before.sum))
        }
    }
}

/// Whether two rings are the same, wherever they begin.
pub(super) fn is_same(one: &[PeerId], other: &[PeerId]) -> bool {
    let turned = one.first().and_then(|first| other.iter().position(|peer| peer == first));
    one.len() == other.len()
        && turned
            .is_some_and(|by| other.iter().cycle().skip(by).zip(one).all(|(ours, theirs)| ours == theirs))
}

fn ring_outcome(
    now: Instant,
    seats: &Seats<'_>,
    before: &[PeerId],
    moonshot: bool,
    wishes: &[(PeerId, RingWish)],
) -> RingOutcome {
    let (survey, ring) = (seats.survey, seats.ring.to_vec());
    let place: BTreeMap<_, _> = ring.iter().zip(0u32..).collect();
    let promise = |ring: &[PeerId]| {
        let links = survey.ring_links(seats.members, ring).into_iter().map(|(_, _, link)| link);
        let forecast = Forecast::of(&links.collect::<Option<Vec<_>>>()?)?;
        Some(Promise { rate: forecast.rate, around_us: micros(forecast.around) })
    };
    let told = |from: PeerId, to: PeerId, link: &Link| {
        Some(Told {
            from: *place.get(&from)?,
            to: *place.get(&to)?,
            rate: link.rate,
            round_trip_us: u32::try_from(micros(link.round_trip)).unwrap_or(u32::MAX),
            age_ms: u64::try_from(now.since(link.at).as_millis()).unwrap_or(u64::MAX),
        })
    };
    let own = survey.ring_links(seats.members, &ring);
    let is_own: BTreeSet<_> = own.iter().map(|(from, to, _)| (*from, *to)).collect();
    let of_ring = own.iter().filter_map(|(from, to, link)| told(*from, *to, link.as_ref()?));
    let others = survey.links.iter().filter(|(from, to, _)| !is_own.contains(&(*from, *to)));
    let others = others.filter_map(|(from, to, link)| told(from, to, link));
    let links = of_ring.chain(others).take(LINKS_TOLD_MAX).collect();
    let measured = wishes.iter().map(|(_, wish)| wish.brought().len()).sum::<usize>();
    RingOutcome::Ring {
        links,
        promise: promise(&ring),
        before: promise(before),
        improved: !is_same(&ring, before),
        moonshot,
        measured_pairs: u32::try_from(measured).unwrap_or(u32::MAX),
        ring,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
