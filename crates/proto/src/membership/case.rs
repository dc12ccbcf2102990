//! One member in doubt: the testimony for and against it, and the judgement.
//!
//! A case is opened by a probe that nobody answered, or by the word of another member. It is closed only by a
//! sign that the member heard somebody (an ack to us, to a relay or to a voucher, or a higher incarnation),
//! or by a death. What others say makes us look for ourselves; to declare a death a member needs evidence of
//! its own beside enough testimony of others, so nobody is dead by hearsay, and a lone accuser in trouble
//! convinces nobody. That others have declared it dead is no more than that: every holder of the secret can say so
//! in anybody's name (rule 39).
//!
//! The judgement is a pure function of the case, the time and the [`Bench`]. In order:
//!
//! 1. Somebody passed its goodbye on, nothing came from it since, and it does not answer us either: left.
//! 2. Its kernel accepts connects: stalled, until `stall_budget` ends (rules 20d, 22).
//! 3. Its kernel refuses, confirmed, and nothing came from it for a probe timeout since: dead (rule 20b).
//! 4. Silence, from enough accusers, for the suspicion time: dead (rules 20e, 21).
//! 5. Silence for `dead_after`: dead whoever testified (rules 20e, 21).
//! 6. Otherwise suspect.

use super::{Config, PairPolicy};
use crate::id::PeerId;
use crate::limits::ACCUSERS_MAX;
use crate::time::{Duration, Instant};
use crate::wire::membership::{DeathReason, Silence};

/// Testimony that was not repeated for this many suspicion times no longer counts: suspicion that nobody
/// upholds lapses.
const TESTIMONY_LIFE: u32 = 3;

/// One accuser's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Testimony {
    pub(super) accuser: PeerId,
    pub(super) kind: Silence,
    /// When it first said so, and when it last repeated it, by our clock.
    pub(super) first: Instant,
    pub(super) last: Instant,
}

/// What our own last probe of the member showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    Silent,
    Refused,
    Stalled,
}

/// What the user was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Alive,
    Stalled,
    Suspect,
}

/// Everything known about one member in doubt.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) incarnation: u32,
    /// Since when nobody is known to have had an answer.
    pub(super) silent_since: Instant,
    /// Since when its kernel answers and the process does not, by the two vouchers who date that earliest.
    stalled: Vec<(PeerId, Instant)>,
    pub(super) testimony: Vec<Testimony>,
    /// Our own last probe: what it showed, and when it was sent.
    pub(super) own: Option<(Unanswered, Instant)>,
    /// How often its kernel refused us in this case, and when first.
    refusals: u32,
    /// The last authenticated message of its own that reached somebody, though it answers nobody.
    heard: Option<Instant>,
    /// Until when an accepting kernel vouches for it.
    vouched_until: Option<Instant>,
    /// Somebody declared it dead: many look now, so each asks few relays.
    pub(super) declared: bool,
    /// When its goodbye was heard, whoever passed it on.
    pub(super) goodbye: Option<Instant>,
    pub(super) shown: Shown,
    /// Since when it is shown so.
    pub(super) shown_since: Instant,
    /// When our accusation was last sent out.
    pub(super) accused_at: Option<Instant>,
    /// When the newest vouch was last passed on.
    pub(super) vouched_at: Option<Instant>,
    /// When we last started to look for ourselves, and when we shall next.
    pub(super) looked_at: Option<Instant>,
    pub(super) look_at: Option<Instant>,
    /// When the case will be judged again if nothing happens.
    pub(super) review_at: Option<Instant>,
}

/// What the judge knows besides the case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bench<'a> {
    pub(super) config: &'a Config,
    pub(super) now: Instant,
    /// Accusers that corroborated silence needs (rule 21).
    pub(super) needed: usize,
    /// No third member was heard of lately: we are two, or as good as two.
    pub(super) alone: bool,
    /// More than half of the group is silent at once: more likely it is us (rule 21).
    pub(super) isolated: bool,
    /// When we were last alone or isolated: until then our own testimony was worth nothing.
    pub(super) doubted_at: Option<Instant>,
    /// Our own timers were late: we testify nothing until then.
    pub(super) quiet_until: Option<Instant>,
    /// Lifeguard's multiplier: how much longer we wait because we doubt ourselves.
    pub(super) patience: u32,
}

/// The judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Stalled,
    Suspect,
    Left,
    Dead(DeathReason),
}

impl Case {
    pub(super) fn open(now: Instant, incarnation: u32, silent_since: Instant) -> Self {
        Self {
            incarnation,
            silent_since,
            stalled: Vec::new(),
            testimony: Vec::new(),
            own: None,
            refusals: 0,
            heard: None,
            vouched_until: None,
            declared: false,
            goodbye: None,
            shown: Shown::Alive,
            shown_since: now,
            accused_at: None,
            vouched_at: None,
            looked_at: None,
            look_at: None,
            review_at: None,
        }
    }

    /// Takes down what `accuser` says, which counts for `life`. True if it is a new accuser or a new accusation.
    pub(super) fn accuse(&mut self, now: Instant, life: Duration, accuser: PeerId, kind: Silence) -> bool {
        if let Some(known) = self.testimony.iter_mut().find(|known| known.accuser == accuser) {
            let news = known.kind != kind;
            let first = if news { now } else { known.first };
            *known = Testimony { accuser, kind, first, last: now };
            return news;
        }
        if self.testimony.len() == ACCUSERS_MAX {
            // More voices than a decision needs. Only one that has gone quiet makes room: if every new voice
            // drove out an older one, the earliest would never grow old enough to convict, and every repetition
            // would be news to be spread again.
            let Some(quiet) = self.testimony.iter().position(|word| now.since(word.last) > life) else {
                return false;
            };
            self.testimony.swap_remove(quiet);
        }
        self.testimony.push(Testimony { accuser, kind, first: now, last: now });
        true
    }

    /// Takes down what our own probe showed.
    pub(super) fn note_own(
        &mut self,
        now: Instant,
        sent: Instant,
        life: Duration,
        me: PeerId,
        seen: Unanswered,
    ) {
        self.own = Some((seen, sent));
        match seen {
            Unanswered::Silent => {
                self.refusals = 0;
                self.accuse(now, life, me, Silence::Silent);
            }
            Unanswered::Refused => {
                self.refusals += 1;
                self.accuse(now, life, me, Silence::Refused);
            }
            Unanswered::Stalled => {
                self.refusals = 0;
                self.testimony.retain(|word| word.accuser != me);
            }
        }
    }

    /// Its kernel accepted a connect by `voucher` at `seen`, which counts until `until`, and the process has not answered
    /// since `stalled_since`. True if that is news. What was testified before says nothing any more.
    pub(super) fn vouch_kernel(
        &mut self,
        voucher: PeerId,
        seen: Instant,
        until: Instant,
        stalled_since: Instant,
    ) -> bool {
        match self.stalled.iter_mut().find(|(known, _)| *known == voucher) {
            Some((_, since)) => *since = stalled_since.min(*since),
            None => self.stalled.push((voucher, stalled_since)),
        }
        self.stalled.sort_unstable_by_key(|(voucher, since)| (*since, *voucher));
        self.stalled.truncate(2);
        self.testimony.retain(|word| word.last > seen);
        self.testimony.iter_mut().for_each(|word| word.first = word.first.max(seen));
        let news = self.vouched_until.is_none_or(|known| until > known);
        if news {
            self.vouched_until = Some(until);
        }
        news
    }

    /// Since when the process is stalled. A member that was cut off itself may have opened the case long before
    /// the stall began; that is silence, and must not use up the stall's budget for everybody. Nor may what one alone
    /// missed, while a firewall kept answers from it: of dates far from each other the second counts.
    pub(super) fn stalled_since(&self, config: &Config) -> Instant {
        self.dated(config).unwrap_or(self.silent_since)
    }

    /// The same, if anybody has vouched for its kernel.
    pub(super) fn dated(&self, config: &Config) -> Option<Instant> {
        match self.stalled[..] {
            [] => None,
            [(_, first), (_, second), ..] if second.since(first) > config.suspicion_min => Some(second),
            [(_, first), ..] => Some(first),
        }
    }

    /// It answered somebody at `when`: it has not been silent since before, to us alone at most.
    pub(super) fn note_answered(&mut self, when: Instant) {
        self.silent_since = self.silent_since.max(when);
        self.stalled.iter_mut().for_each(|(_, since)| *since = when.max(*since));
    }

    /// A message of its own reached somebody at `when`. What was testified before says nothing any more.
    pub(super) fn note_heard(&mut self, when: Instant) -> bool {
        if self.heard.is_some_and(|known| known >= when) {
            return false;
        }
        self.heard = Some(when);
        // Who talks has not left: somebody else said so.
        self.goodbye = self.goodbye.filter(|said| when <= *said);
        self.testimony.retain(|word| word.first > when);
        self.refusals = 0;
        true
    }

    /// We were not running ourselves until `now`: what we measured means nothing, and every wait restarts.
    pub(super) fn restart(&mut self, now: Instant, me: PeerId) {
        self.silent_since = now;
        self.stalled.clear();
        self.heard = self.heard.map(|_| now);
        self.own = None;
        self.refusals = 0;
        self.testimony.retain(|word| word.accuser != me);
        self.testimony.iter_mut().for_each(|word| (word.first, word.last) = (now, now));
        self.declared = false;
        self.goodbye = self.goodbye.map(|_| now);
    }

    pub(super) fn own_probe_sent(&self) -> Option<Instant> {
        self.own.map(|(_, sent)| sent)
    }

    pub(super) fn kernel_vouches(&self, now: Instant) -> bool {
        self.vouched_until.is_some_and(|until| now < until)
    }

    /// Whether the member and its kernel were silent to somebody, and nobody has seen a sign of life since.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        !self.kernel_vouches(now) && self.testimony.iter().any(|word| word.kind == Silence::Silent)
    }

    pub(super) fn accusers(&self) -> Vec<PeerId> {
        self.testimony.iter().map(|word| word.accuser).collect()
    }

    /// What is the case, and when may the answer change without anything happening?
    pub(super) fn judge(&self, bench: &Bench<'_>) -> (Judgement, Instant) {
        let (now, config) = (bench.now, bench.config);
        let quiet = bench.quiet_until.is_some_and(|until| now < until);
        let mut next = bench.quiet_until.filter(|_| quiet).unwrap_or(now + config.suspicion_min);

        if !quiet && self.has_left(bench, &mut next) {
            return (Judgement::Left, now);
        }
        let verdict = if quiet { None } else { self.death(bench, &mut next) };
        if let Some(reason) = verdict {
            // Whatever it looks like: it had said goodbye.
            return (if self.goodbye.is_some() { Judgement::Left } else { Judgement::Dead(reason) }, now);
        }
        if let Some(until) = self.vouched_until.filter(|&until| now < until) {
            return (Judgement::Stalled, next.min(until));
        }
        // A stall stays a stall until somebody has looked again: an expired word is not an accusation.
        let still_stalled = self.shown == Shown::Stalled && self.testimony.is_empty();
        (if still_stalled { Judgement::Stalled } else { Judgement::Suspect }, next)
    }

    /// Whether it said goodbye and is gone. The goodbye may be somebody else's invention, so we look first: a kernel
    /// that refuses settles it, silence does after a while, and any word of its own since contradicts it.
    fn has_left(&self, bench: &Bench<'_>, next: &mut Instant) -> bool {
        let (Some(said), Some((own, sent))) = (self.goodbye, self.own) else { return false };
        match own {
            Unanswered::Refused => sent >= said,
            Unanswered::Silent => {
                let due = said + bench.config.suspicion_min;
                if bench.now < due {
                    *next = (*next).min(due);
                }
                bench.now >= due && sent >= said
            }
            Unanswered::Stalled => false,
        }
    }

    /// The death that the evidence amounts to, if any; lowers `next` to the moment when it might.
    fn death(&self, bench: &Bench<'_>, next: &mut Instant) -> Option<DeathReason> {
        let (now, config) = (bench.now, bench.config);
        let (own, own_sent) = self.own?;
        let mut due = |at: Instant| {
            if now >= at {
                return true;
            }
            *next = (*next).min(at);
            false
        };

        let vouched = self.kernel_vouches(now);
        let talks = self.heard.is_some_and(|heard| !due(heard + testimony_life(config)));
        if vouched || own == Unanswered::Stalled {
            // What we saw while we heard almost nobody does not count against it.
            let since = self.stalled_since(config).max(bench.doubted_at.unwrap_or_default());
            return due(since + config.stall_budget).then_some(DeathReason::StalledTooLong);
        }
        if talks {
            // It cannot hear us, or a firewall keeps us out; but it lives, and was heard of late. Testimony has
            // no date and travels slowly, so what arrives now may be older than what was heard.
            return due(self.silent_since + config.dead_after).then_some(DeathReason::Deaf);
        }
        let fresh = |word: &&Testimony| now.since(word.last) <= testimony_life(config);
        // While its kernel answered somebody it was stalled, whatever others saw: every silence begins after.
        let vouched_until = self.vouched_until.unwrap_or(self.silent_since);
        let refused = self.testimony.iter().filter(fresh).filter(|word| word.kind == Silence::Refused);
        if refused.clone().count() >= 2 || (bench.alone && self.refusals >= 2) {
            let first = refused.map(|word| word.first).min().unwrap_or(now);
            // A living member says something to somebody in every interval, whatever a firewall does to what
            // it should hear, and whoever has heard of the accusation and hears the member vouches.
            if due(first + config.probe_interval + config.probe_timeout * bench.patience) {
                return Some(DeathReason::Refused);
            }
        }
        let patient = bench.isolated || (bench.alone && config.pair_policy == PairPolicy::Patient);
        let accusers = self.testimony.iter().filter(fresh);
        if !patient && accusers.clone().count() >= bench.needed {
            let first = accusers.map(|word| word.first).min().unwrap_or(now);
            let first = first.max(vouched_until).max(bench.doubted_at.unwrap_or(first));
            // Our own last look must be one of this time: a cut that was short is over by now.
            let confirmed = own_sent >= first + config.suspicion_min / 3;
            if due(first + config.suspicion_min * bench.patience) && confirmed {
                return Some(DeathReason::Silent);
            }
        }
        // A stall may last longer than `dead_after`.
        due(self.silent_since.max(vouched_until) + config.dead_after).then_some(DeathReason::SilentTooLong)
    }
}

/// How long an accusation counts if it is not repeated.
pub(super) fn testimony_life(config: &Config) -> Duration {
    config.suspicion_min * TESTIMONY_LIFE
}

/// How long an accepting kernel's word is believed: long enough to reach everybody on packets that travel
/// anyway, which takes about log2 of the group's size in intervals.
pub(super) fn vouch_life(config: &Config, group: usize) -> Duration {
    let intervals = 2 * (usize::BITS - group.leading_zeros());
    (config.probe_interval * intervals.max(config.vouch_intervals)).min(config.stall_budget)
}
