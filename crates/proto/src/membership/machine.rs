//! The machine itself: its state, its face and its timers. What it does with them is in the files beside it:
//! `probing` asks, `news` listens, `joining` brings groups together.

use super::case::{Bench, Case, Judgement, Shown};
use super::dissemination::Dissemination;
use super::joining::{Joining, TableJob};
use super::local_health::LocalHealth;
use super::probing::{Probe, Purpose, Relay, Trial};
use super::table::{Entry, KernelTrust, Presence, Table};
use super::{Action, Config, Event, Health, Member, Path};
use crate::id::PeerId;
use crate::limits::{FAILED_MAX, PACKET_BYTES_MAX, PACKET_RECORDS_MAX};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::wire::membership::{Body, DeathReason, MemberInfo, Packet, Record};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// What a timer is for. Each names what it belongs to, so one that outlived it is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Start the next probe.
    Tick,
    /// That probe was not answered directly.
    Escalate(u64),
    /// Ask the target's kernel once more for that probe.
    Knock(u64),
    /// That probe is over.
    Conclude(u64),
    /// That relayed ping was not answered.
    RelayOver(u64),
    /// Judge that member again.
    Review(PeerId),
    /// Look for ourselves at that member.
    Look(PeerId),
    /// Try the seeds again.
    Join,
    /// Send the next part of a table to somebody who asked.
    SendTable,
    /// Push fresh news.
    Push,
}

/// Somebody who died or left.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    /// Unknown if we only ever heard of the death.
    pub(super) info: Option<Arc<MemberInfo>>,
    pub(super) incarnation: u32,
    /// `None`: it left.
    pub(super) reason: Option<DeathReason>,
    pub(super) accusers: Vec<PeerId>,
    pub(super) since: Instant,
    pub(super) path: Path,
}

/// The group as one member knows it.
///
/// Calling contract: hand in everything that arrived (`handle_packet`, `handle_connect`) *before* calling
/// `handle_timeout`, or answers that lie unread in a socket count as silence; then drain `poll_action`, then
/// sleep until `poll_timeout` or the next arrival.
#[derive(Debug)]
pub struct Membership {
    pub(super) config: Config,
    pub(super) me: Arc<MemberInfo>,
    pub(super) incarnation: u32,
    /// The last incarnation of ours that others declared dead.
    pub(super) mourned: Option<u32>,
    pub(super) rng: Rng,
    pub(super) table: Table,
    pub(super) failed: BTreeMap<PeerId, Failed>,
    pub(super) cases: BTreeMap<PeerId, Case>,
    pub(super) probes: BTreeMap<u64, Probe>,
    pub(super) relays: BTreeMap<u64, Relay>,
    pub(super) trials: BTreeMap<u64, Trial>,
    /// What each unfinished connect is for.
    pub(super) connects: BTreeMap<u64, Purpose>,
    pub(super) dissemination: Dissemination,
    pub(super) health: LocalHealth,
    /// Members that answered us or were silent to us lately.
    pub(super) sightings: BTreeMap<PeerId, (Instant, bool)>,
    /// When we last had nobody, or too few, to confirm what we see.
    pub(super) doubted_at: Option<Instant>,
    pub(super) joining: Option<Joining>,
    pub(super) table_jobs: VecDeque<TableJob>,
    pub(super) left: bool,
    pub(super) serial: u64,
    pub(super) ticks: u64,
    pub(super) push_wanted: bool,
    pub(super) last_push: Option<Instant>,
    /// Where background records of the failed list go on.
    pub(super) failed_cursor: Option<PeerId>,
    timers: BTreeSet<(Instant, Timer)>,
    actions: VecDeque<Action>,
}

impl Membership {
    /// A group of one, which others may join.
    ///
    /// # Panics
    /// If `me` breaks a limit: check it first, it is the program's own.
    pub fn new(now: Instant, config: Config, me: MemberInfo, mut rng: Rng) -> Self {
        assert!(me.check().is_ok(), "our own description breaks a limit: {:?}", me.check());
        // Members that start together must not probe in step.
        let first = now + config.probe_interval.mul_f64(rng.unit());
        let mut machine = Self {
            config,
            me: Arc::new(me),
            incarnation: 0,
            mourned: None,
            rng,
            table: Table::default(),
            failed: BTreeMap::new(),
            cases: BTreeMap::new(),
            probes: BTreeMap::new(),
            relays: BTreeMap::new(),
            trials: BTreeMap::new(),
            connects: BTreeMap::new(),
            dissemination: Dissemination::default(),
            health: LocalHealth::default(),
            sightings: BTreeMap::new(),
            doubted_at: None,
            joining: None,
            table_jobs: VecDeque::new(),
            left: false,
            serial: 0,
            ticks: 0,
            push_wanted: false,
            last_push: None,
            failed_cursor: None,
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
        };
        machine.schedule(first, Timer::Tick);
        machine
    }

    /// Starts with a table that is known already and whose kernels were tried, as the simulator does for
    /// groups that are too large to join one by one.
    pub fn seed_table(&mut self, members: &[Arc<MemberInfo>]) {
        let others = members.iter().filter(|info| info.id != self.me.id);
        self.table.fill(
            others
                .map(|info| {
                    let mut entry = Entry::new(Arc::clone(info), 0);
                    entry.kernel = KernelTrust::Trusted;
                    entry.presence = Presence::Proven;
                    entry
                })
                .collect(),
        );
    }

    /// The coordinator took that member out of the run: here it is dead, whatever it answers (rule 20).
    pub fn handle_eviction(&mut self, now: Instant, member: PeerId) {
        self.bury(now, member, Some(DeathReason::Evicted), Vec::new());
        self.flush_push(now);
    }

    /// Somebody has evidence against that member: it is probed now, so that its answer is heard in time.
    pub fn handle_evidence(&mut self, now: Instant, member: PeerId) {
        if !self.left {
            self.guard(now);
            self.look(now, member);
            self.flush_push(now);
        }
    }

    /// Says goodbye. Afterwards the machine answers nothing and wants nothing.
    pub fn handle_leave(&mut self, _now: Instant) {
        if self.left {
            return;
        }
        self.left = true;
        let record = Record::Leave { member: self.me.id, incarnation: self.incarnation };
        let listeners = self.table.sample(self.config.fanout * 2, &mut self.rng, |_| true);
        for listener in listeners {
            self.send(listener, Packet { body: None, records: vec![record.clone()] });
        }
        self.timers.clear();
        self.probes.clear();
        self.cases.clear();
        self.connects.clear();
    }

    /// Time has passed: call at or after `poll_timeout`, once everything that arrived has been handed in.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some(&(due, _)) = self.timers.first() else { return };
        if due > now {
            return;
        }
        self.guard(now);
        while let Some(&(due, timer)) = self.timers.first().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, timer));
            self.fire(now, timer);
        }
        self.flush_push(now);
    }

    fn fire(&mut self, now: Instant, timer: Timer) {
        match timer {
            Timer::Tick => self.tick(now),
            Timer::Escalate(probe) => self.escalate(now, probe),
            Timer::Knock(probe) => self.knock(now, probe),
            Timer::Conclude(probe) => self.conclude(now, probe),
            Timer::RelayOver(relay) => self.relay_over(relay),
            Timer::Review(member) => {
                if let Some(case) = self.cases.get_mut(&member) {
                    case.review_at = None;
                }
                self.review(now, member);
            }
            Timer::Look(member) => self.look(now, member),
            Timer::Join => self.try_seeds(now),
            Timer::SendTable => self.send_table_part(now),
            Timer::Push => self.push_wanted = true,
        }
    }

    /// First of all in every `handle_*`: were we running? What lay in the socket is handed in before the timers
    /// run, and it must not be judged with a clock that leapt while we stood still.
    pub(super) fn guard(&mut self, now: Instant) {
        if let Some(&(due, _)) = self.timers.first()
            && self.health.observe_timer(now, due, self.config.probe_timeout, self.config.probe_interval)
        {
            self.doubt_ourselves(now);
        }
    }

    /// We were not running. Whatever silence we noted is our own; every wait starts again.
    fn doubt_ourselves(&mut self, now: Instant) {
        self.probes.clear();
        self.trials.clear();
        self.connects.clear();
        self.sightings.clear();
        let me = self.me.id;
        let members: Vec<_> = self.cases.keys().copied().collect();
        self.cases.values_mut().for_each(|case| case.restart(now, me));
        for member in members {
            self.review(now, member);
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call `handle_timeout`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Ourselves.
    pub fn me(&self) -> &Arc<MemberInfo> {
        &self.me
    }

    /// Our settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How often our own timers were so late that we kept silent about others.
    pub fn stalls(&self) -> u64 {
        self.health.stalls()
    }

    /// Everybody who is in the group, ourselves included, in the order of their ids.
    pub fn active(&self, now: Instant) -> Vec<Member> {
        let me = Member {
            info: Arc::clone(&self.me),
            incarnation: self.incarnation,
            health: Health::Alive,
            path: Path::Datagram,
            round_trip: None,
            acked: None,
            kernel_trusted: None,
        };
        let mut members: Vec<_> = self.table.iter().map(|entry| self.member_of(now, entry)).collect();
        if !self.left {
            let place = members.partition_point(|member| member.info.id < self.me.id);
            members.insert(place, me);
        }
        members
    }

    /// Everybody who died or left and is not forgotten yet.
    pub fn failed(&self) -> Vec<Member> {
        self.failed
            .values()
            .filter_map(|failed| {
                let since = failed.since;
                Some(Member {
                    info: Arc::clone(failed.info.as_ref()?),
                    incarnation: failed.incarnation,
                    health: match failed.reason {
                        Some(reason) => Health::Dead { since, reason },
                        None => Health::Left { since },
                    },
                    path: failed.path,
                    round_trip: None,
                    acked: None,
                    kernel_trusted: None,
                })
            })
            .collect()
    }

    /// How many are in the group, ourselves included.
    pub fn size(&self) -> usize {
        self.table.len() + usize::from(!self.left)
    }

    /// Whether that member is in the active list.
    pub fn is_active(&self, id: PeerId) -> bool {
        self.table.get(id).is_some() || (id == self.me.id && !self.left)
    }

    /// Whether that member is in the failed list.
    pub fn is_failed(&self, id: PeerId) -> bool {
        self.failed.contains_key(&id)
    }

    /// How many active members are shown as anything but alive.
    pub fn in_doubt(&self) -> usize {
        self.cases.values().filter(|case| case.shown != Shown::Alive).count()
    }

    /// How many records and unfinished probes are held: bounded, and zero or small in a quiet group.
    pub fn backlog(&self) -> usize {
        self.dissemination.len()
            + self.probes.len()
            + self.relays.len()
            + self.trials.len()
            + self.table_jobs.len()
    }

    fn member_of(&self, now: Instant, entry: &Entry) -> Member {
        let health = match self.cases.get(&entry.id()).map(|case| (case, case.shown)) {
            None | Some((_, Shown::Alive)) => Health::Alive,
            Some((case, Shown::Stalled)) => Health::Stalled { since: case.stalled_since(&self.config) },
            Some((case, Shown::Suspect)) => {
                Health::Suspect { since: case.shown_since, accusers: case.testimony.len() }
            }
        };
        Member {
            info: Arc::clone(&entry.info),
            incarnation: entry.incarnation,
            health,
            path: entry.path,
            round_trip: entry.round_trip(),
            acked: entry.acked(now),
            kernel_trusted: match entry.kernel {
                KernelTrust::Untried(_) => None,
                KernelTrust::Trusted => Some(true),
                KernelTrust::Untrusted => Some(false),
            },
        }
    }

    // What the files beside this one share.

    pub(super) fn unschedule(&mut self, at: Instant, timer: Timer) {
        self.timers.remove(&(at, timer));
    }

    pub(super) fn schedule(&mut self, at: Instant, timer: Timer) {
        self.timers.insert((at, timer));
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn notify(&mut self, event: Event) {
        self.act(Action::Notify(event));
    }

    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(super) fn alive_record(&self) -> Record {
        Record::Alive { info: Arc::clone(&self.me), incarnation: self.incarnation }
    }

    /// How many packets one record rides on.
    pub(super) fn retransmit_limit(&self) -> u32 {
        self.config.retransmit_factor * (usize::BITS - self.size().leading_zeros())
    }

    /// Sends a packet to a member on the way that works for it.
    pub(super) fn send(&mut self, to: PeerId, packet: Packet) {
        if let Some(entry) = self.table.get(to) {
            let (address, path) = (entry.info.address, entry.path);
            self.send_at(address, Some(to), path, packet);
        }
    }

    pub(super) fn send_at(&mut self, to: SocketAddr, peer: Option<PeerId>, path: Path, packet: Packet) {
        self.act(Action::Send { to, peer, path, packet });
    }

    /// A packet with this body, these records, and as much news as fits.
    pub(super) fn packet(&mut self, now: Instant, body: Option<Body>, mut records: Vec<Record>) -> Packet {
        let used =
            minicbor::len(&body) + records.iter().map(|record| minicbor::len(record) + 4).sum::<usize>();
        let mut room = PACKET_BYTES_MAX.saturating_sub(used + 16);
        let limit = self.retransmit_limit();
        self.dissemination.fill(now, limit, &mut room, PACKET_RECORDS_MAX, &mut records);
        self.add_background(&mut room, &mut records);
        Packet { body, records }
    }

    /// Pushes news to a few random members at once, instead of waiting for packets that travel anyway.
    pub(super) fn want_push(&mut self) {
        self.push_wanted = true;
    }

    /// At the end of every `handle_*`: pushes what was found out, at most ten times per probe interval.
    pub(super) fn flush_push(&mut self, now: Instant) {
        if !self.push_wanted || self.left {
            return;
        }
        let spacing = self.config.probe_interval / 10;
        if let Some(next) = self.last_push.map(|last| last + spacing).filter(|next| now < *next) {
            self.push_wanted = false;
            self.schedule(next, Timer::Push);
            return;
        }
        self.push_wanted = false;
        self.last_push = Some(now);
        let cases = &self.cases;
        let listeners =
            self.table.sample(self.config.fanout, &mut self.rng, |entry| !cases.contains_key(&entry.id()));
        for listener in listeners {
            let packet = self.packet(now, None, Vec::new());
            if packet.records.is_empty() {
                break;
            }
            self.send(listener, packet);
        }
    }

    /// What the judge knows besides a case.
    fn bench(&self, now: Instant, about: PeerId) -> Bench<'_> {
        let life = self.config.sighting_life();
        let answers = self.sightings.iter().filter(|(_, (at, answered))| *answered && now.since(*at) <= life);
        let answered = answers.filter(|(id, _)| **id != about).count();
        let is_silent = |id: &PeerId| self.cases.get(id).is_some_and(|case| case.is_silent(now));
        let in_doubt = self.cases.values().filter(|case| case.is_silent(now));
        let (silent, began) = in_doubt.fold((0, None), |(silent, began): (usize, Option<Instant>), case| {
            let since = case.silent_since;
            (silent + 1, Some(began.map_or(since, |began| began.min(since))))
        });
        // Of a large group, or in the first moment, only some were asked: those stand for all. A silence that has
        // lasted for a while is held against all that was heard since it began.
        let reach = life.max(began.map_or(life, |began| now.since(began)));
        let (mut missed, mut heard) = (silent, 0);
        for (id, (_, answered)) in self.sightings.iter().filter(|(_, (at, _))| now.since(*at) <= reach) {
            match (*answered, is_silent(id)) {
                (true, true) => (heard, missed) = (heard + 1, missed - 1),
                (true, false) => heard += 1,
                (false, true) => {}
                (false, false) => missed += 1,
            }
        }
        let hears_few = missed > heard + 1;
        Bench {
            config: &self.config,
            now,
            // Rule 21, with ourselves among the members heard.
            needed: answered.clamp(1, 3),
            alone: answered == 0,
            isolated: silent * 2 > self.size() || hears_few,
            doubted_at: self.doubted_at,
            quiet_until: self.health.quiet_until(now),
            patience: self.health.patience(),
        }
    }

    /// Judges a member in doubt, tells the user what changed, and arranges to judge again.
    pub(super) fn review(&mut self, now: Instant, member: PeerId) {
        let Some(case) = self.cases.get(&member) else { return };
        let bench = self.bench(now, member);
        let (judgement, next) = case.judge(&bench);
        if bench.isolated || bench.alone {
            self.doubted_at = Some(now);
        }
        let shown = match judgement {
            Judgement::Dead(reason) => return self.declare_dead(now, member, reason),
            Judgement::Left => return self.bury(now, member, None, Vec::new()),
            Judgement::Stalled => Shown::Stalled,
            // Who said goodbye is waited for, not suspected; who is said to be dead is looked at first.
            Judgement::Suspect
                if case.shown == Shown::Alive
                    && (case.goodbye.is_some() || (case.declared && case.own.is_none())) =>
            {
                Shown::Alive
            }
            Judgement::Suspect if case.testimony.is_empty() && case.shown == Shown::Alive => Shown::Alive,
            Judgement::Suspect => Shown::Suspect,
        };
        if let (Some(case), Some(entry)) = (self.cases.get_mut(&member), self.table.get(member))
            && case.shown != shown
        {
            (case.shown, case.shown_since) = (shown, now);
            let info = Arc::clone(&entry.info);
            let event = match shown {
                Shown::Stalled => Event::Stalled(info),
                Shown::Suspect => Event::Suspected(info),
                Shown::Alive => Event::Recovered(info),
            };
            self.actions.push_back(Action::Notify(event));
        }
        let Some(case) = self.cases.get_mut(&member) else { return };
        let unseen = case.own.is_none() || shown == Shown::Stalled;
        if unseen && !case.kernel_vouches(now) && case.look_at.is_none() {
            // Only hearsay, or a word that has expired: after a while, and not all at once, look for ourselves.
            let spread = self.config.suspicion_min.mul_f64(self.rng.unit());
            let at = now + self.config.probe_interval + spread;
            case.look_at = Some(at);
            self.timers.insert((at, Timer::Look(member)));
        }
        let next = next.max(now + Duration::from_millis(1));
        if case.review_at.is_none_or(|at| next < at) {
            if let Some(at) = case.review_at.replace(next) {
                self.timers.remove(&(at, Timer::Review(member)));
            }
            self.timers.insert((next, Timer::Review(member)));
        }
    }

    fn declare_dead(&mut self, now: Instant, member: PeerId, reason: DeathReason) {
        let Some(case) = self.cases.get(&member) else { return };
        let accusers = case.accusers();
        self.bury(now, member, Some(reason), accusers);
    }

    /// Moves a member to the failed list, tells the user and spreads the word.
    pub(super) fn bury(
        &mut self,
        now: Instant,
        member: PeerId,
        reason: Option<DeathReason>,
        accusers: Vec<PeerId>,
    ) {
        let Some(entry) = self.table.remove(member) else { return };
        self.forget_doubts(member);
        self.sightings.remove(&member);
        let incarnation = entry.incarnation;
        let info = entry.info;
        let record = if let Some(reason) = reason {
            self.notify(Event::Died { info: Arc::clone(&info), reason, accusers: accusers.clone() });
            Record::Dead { member, incarnation, reason, accusers: accusers.clone() }
        } else {
            self.notify(Event::Left(Arc::clone(&info)));
            Record::Leave { member, incarnation }
        };
        let path = entry.path;
        self.remember_failed(
            member,
            Failed { info: Some(info), incarnation, reason, accusers, since: now, path },
        );
        self.dissemination.push(now, record);
        self.want_push();
    }

    pub(super) fn remember_failed(&mut self, member: PeerId, failed: Failed) {
        if self.failed.len() >= FAILED_MAX && !self.failed.contains_key(&member) {
            let oldest = self.failed.iter().min_by_key(|(_, failed)| failed.since).map(|(id, _)| *id);
            oldest.map(|id| self.failed.remove(&id));
        }
        self.failed.insert(member, failed);
    }

    /// Ends everything that was doubtful about a member.
    pub(super) fn forget_doubts(&mut self, member: PeerId) {
        if let Some(case) = self.cases.remove(&member) {
            // A case that is opened and closed again and again must not leave a trail of looks behind.
            let look = case.look_at.map(|at| (at, Timer::Look(member)));
            let review = case.review_at.map(|at| (at, Timer::Review(member)));
            for timer in look.into_iter().chain(review) {
                self.timers.remove(&timer);
            }
        }
        self.dissemination.forget_doubts(member);
        self.probes.retain(|_, probe| probe.target != member);
    }
}
