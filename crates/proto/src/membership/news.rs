//! Listening: what packets say, about their senders and about others.
//!
//! Precedence is SWIM's: a higher incarnation beats a lower one, and among equal ones dead beats suspect
//! beats alive. One thing differs: a death that others declare, an exit that they saw, an eviction or a goodbye
//! that they pass on is not copied but checked. A datagram proves that its sender has the run's secret and nothing
//! more, so each of these is at most one accusation, and a reason to look at once (rule 39). A group that was cut
//! off cannot spread its own mistaken list either when it comes back. Only over a stream, which proves its sender,
//! a member's own goodbye is taken at its word.

use super::case::{Case, testimony_life, vouch_life};
use super::machine::{Failed, Membership, Timer};
use super::probing::millis;
use super::table::{Entry, KernelTrust, Presence};
use super::{Event, Path, Source};
use crate::id::PeerId;
use crate::limits::MEMBERS_MAX;
use crate::time::{Duration, Instant};
use crate::wire::membership::{Body, DeathReason, MemberInfo, Packet, Record, SignOfLife, Silence};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// On hearing an accusation, about this many members in the whole group look for themselves.
const CORROBORATORS: f64 = 10.0;
/// Members raise their incarnation by one at a time. Whoever claims one that is so far beyond what is known makes it
/// up, and would leave its owner nothing higher to answer with.
const LEAP_MAX: u32 = 1 << 16;
/// And this many if its kernel is said to refuse: a death by refusal is due within a second, everybody must see
/// it for himself before he believes it, and a refusal costs one packet each way.
const REFUSAL_WITNESSES: f64 = 100.0;

impl Membership {
    /// An authenticated packet arrived.
    pub fn handle_packet(&mut self, now: Instant, source: Source, packet: Packet) {
        if self.left || source.id == self.me.id {
            return;
        }
        self.guard(now);
        let out = self.out_record(now, source.id);
        let leaves = |record: &Record| matches!(record, Record::Leave { member, .. } if *member == source.id);
        let says_goodbye = packet.records.iter().any(leaves);
        for record in packet.records {
            self.handle_record(now, source, record);
        }
        // It came back before anybody could tell it that it was out.
        let out = out.filter(|_| self.table.get(source.id).is_some());
        if self
            .table
            .get(source.id)
            .is_some_and(|entry| entry.presence != Presence::Proven && entry.info.address == source.address)
        {
            self.claim_address(now, source.id);
        }
        let acked = matches!(packet.body, Some(Body::Ack { .. }));
        // A goodbye is no sign of life: others would take it for one that came after it.
        if !acked && !says_goodbye && self.table.get(source.id).is_some() {
            self.heard_from(now, source.id);
        }
        if let Some(out) = out {
            let packet = Packet { body: None, records: vec![out] };
            self.send_at(source.address, Some(source.id), source.path, packet);
        }
        match packet.body {
            Some(Body::Ping { probe, wants_table }) => self.handle_ping(now, source, probe, wants_table),
            Some(Body::Ack { probe }) => self.handle_ack(now, source, probe),
            Some(Body::PingReq { probe, target }) => self.relay(now, source, probe, target),
            Some(Body::IndirectAck { probe, answered }) => {
                self.handle_indirect_ack(now, source, probe, answered);
            }
            None => {}
        }
        self.flush_push(now);
    }

    fn handle_ping(&mut self, now: Instant, source: Source, probe: u64, wants_table: bool) {
        // Whoever is on the failed list, or in doubt, learns it with the answer and can refute it.
        let mut records: Vec<_> = self.word_to_failed(now, source.id).into_iter().collect();
        records.extend(self.doubt_about(now, source.id));
        if wants_table {
            records.push(self.alive_record());
            self.offer_table(now, source);
        }
        let packet = self.packet(now, Some(Body::Ack { probe }), records);
        self.send_at(source.address, Some(source.id), source.path, packet);
    }

    /// A message of its own came from that member: it talks, though that does not prove that it hears.
    fn heard_from(&mut self, now: Instant, member: PeerId) {
        self.note_sighting(now, member, true);
        let Some(case) = self.cases.get_mut(&member) else {
            // It lives: a good moment to find out what its kernel's word is worth.
            return self.try_kernel(member);
        };
        if !case.note_heard(now) {
            return;
        }
        let incarnation = case.incarnation;
        // Often enough for whoever believes two kernels that refuse: it waits a little more than an interval.
        let repeat = self.config.probe_interval / 2;
        if case.vouched_at.is_none_or(|at| now.since(at) >= repeat) {
            case.vouched_at = Some(now);
            let (voucher, kind) = (self.me.id, SignOfLife::Heard);
            self.dissemination
                .push(now, Record::Vouch { member, incarnation, voucher, kind, age_ms: 0, silent_ms: 0 });
            self.push_wanted = true;
        }
        self.look(now, member);
        self.review(now, member);
    }

    fn handle_record(&mut self, now: Instant, source: Source, record: Record) {
        if self.is_far_fetched(&record) {
            return;
        }
        if record.member() == self.me.id {
            return self.handle_word_about_us(now, source, &record);
        }
        match record {
            Record::Alive { info, incarnation } => self.handle_alive(now, info, incarnation),
            Record::Suspect { .. } => self.handle_suspect(now, record),
            Record::Vouch { .. } => self.handle_vouch(now, record),
            Record::Dead { member, incarnation, reason, accusers } => {
                self.handle_dead(now, source.id, member, incarnation, reason, accusers);
            }
            Record::Leave { member, incarnation } => self.handle_goodbye(now, source, member, incarnation),
            // Meant for somebody else.
            Record::Out { .. } => {}
        }
    }

    /// Whether a record claims an incarnation that its member cannot have reached.
    fn is_far_fetched(&self, record: &Record) -> bool {
        let member = record.member();
        let known = if member == self.me.id {
            self.incarnation
        } else if let Some(entry) = self.table.get(member) {
            entry.incarnation
        } else {
            self.failed.get(&member).map_or(0, |failed| failed.incarnation)
        };
        record.incarnation() > known.saturating_add(LEAP_MAX)
    }

    /// Somebody says something about us that a higher incarnation must correct.
    fn handle_word_about_us(&mut self, now: Instant, source: Source, record: &Record) {
        let claimed = match record {
            // An earlier life of ours, or one that we have forgotten: outbid it.
            Record::Alive { info, incarnation }
                if *incarnation > self.incarnation
                    || (*incarnation == self.incarnation && **info != *self.me) =>
            {
                *incarnation
            }
            Record::Alive { .. } | Record::Vouch { kind: SignOfLife::Acked, .. } => return,
            Record::Suspect { incarnation, .. }
            | Record::Vouch { incarnation, .. }
            | Record::Dead { incarnation, .. }
            | Record::Out { incarnation, .. }
            | Record::Leave { incarnation, .. } => *incarnation,
        };
        // A death of an incarnation that we have left behind is still news: we may have refuted the suspicion
        // while the others had given us up already.
        let death = match record {
            Record::Dead { reason, .. } => Some((*reason, now)),
            Record::Out { reason, age_ms, .. } => {
                Some((*reason, now - Duration::from_millis(u64::from(*age_ms))))
            }
            _ => None,
        };
        let mourned = death.is_some() && self.mourned.is_none_or(|last| claimed > last);
        if claimed < self.incarnation && !mourned && !matches!(record, Record::Alive { .. }) {
            return;
        }
        self.incarnation = self.incarnation.max(claimed.saturating_add(1));
        if matches!(record, Record::Suspect { .. }) {
            self.health.worse();
        }
        if let Some((reason, since)) = death {
            self.mourned = Some(claimed);
            self.notify(Event::Rejoined { incarnation: self.incarnation, reason, since });
            // While we were away the others went on: ask what they know.
            self.ask_table(now, source.address, Some(source.id), source.path);
        }
        let alive = self.alive_record();
        self.dissemination.push(now, alive);
        self.want_push();
    }

    fn handle_alive(&mut self, now: Instant, info: Arc<MemberInfo>, incarnation: u32) {
        let member = info.id;
        if self.failed.get(&member).is_some_and(|failed| failed.incarnation >= incarnation) {
            return;
        }
        let is_full = self.size() >= MEMBERS_MAX;
        match self.table.get_mut(member) {
            Some(entry) if incarnation <= entry.incarnation => return,
            Some(entry) => {
                entry.incarnation = incarnation;
                self.describe_anew(now, &info);
                self.close_case(now, member);
            }
            None if is_full => return,
            None => self.hear_of(now, vec![(Arc::clone(&info), incarnation)]),
        }
        self.dissemination.push(now, Record::Alive { info, incarnation });
        self.want_push();
    }

    /// The coordinator told us who is in our group. That is hearsay like any other: whoever is not known here is from now
    /// on, and is probed in its turn, so that one who stopped before it said a word is found by its kernel. Who is on the
    /// failed list stays there until it says itself that it is back.
    pub fn handle_roster(&mut self, now: Instant, roster: &[MemberInfo]) {
        if self.left {
            return;
        }
        self.guard(now);
        let unknown = |info: &&MemberInfo| !self.is_active(info.id) && !self.is_failed(info.id);
        let newcomers = roster.iter().filter(unknown).map(|info| (Arc::new(info.clone()), 0)).collect();
        self.hear_of(now, newcomers);
        self.flush_push(now);
    }

    /// Takes in members of whom others have told.
    fn hear_of(&mut self, now: Instant, newcomers: Vec<(Arc<MemberInfo>, u32)>) {
        let addresses = newcomers.iter().map(|(info, _)| info.address).collect();
        let disputed = self.dispute(now, &addresses);
        for (info, incarnation) in newcomers {
            if self.size() >= MEMBERS_MAX {
                return;
            }
            self.failed.remove(&info.id);
            if disputed.contains(&info.address) {
                self.schedule(now, Timer::Look(info.id));
            }
            let mut entry = Entry::new(Arc::clone(&info), incarnation);
            if info.address == self.me.address {
                // At our own address only our own kernel answers.
                entry.presence = Presence::Replaced;
            }
            self.table.insert(entry, &mut self.rng);
            self.notify(Event::Joined(info));
        }
    }

    /// A member that is known describes itself anew: what was found out about its old address says nothing of another.
    fn describe_anew(&mut self, now: Instant, info: &Arc<MemberInfo>) {
        let Some(entry) = self.table.get(info.id).filter(|entry| *entry.info != **info) else { return };
        let moved = entry.info.address != info.address || entry.info.closed_port != info.closed_port;
        if moved {
            self.dispute(now, &BTreeSet::from([info.address]));
        }
        let Some(entry) = self.table.get_mut(info.id) else { return };
        entry.info = Arc::clone(info);
        if moved {
            entry.kernel = KernelTrust::Untried(0);
            entry.path = Path::Datagram;
            entry.presence = Presence::Said;
        }
    }

    /// Somebody else is said to be at these addresses. Whoever was there before is asked, and has its address again as soon
    /// as it speaks from there; and has lost it when the other one does (rule 45). Returns which of them are disputed.
    fn dispute(&mut self, now: Instant, addresses: &BTreeSet<SocketAddr>) -> BTreeSet<SocketAddr> {
        let (mut disputed, mut asked) = (BTreeSet::new(), Vec::new());
        for entry in self.table.iter_mut().filter(|entry| addresses.contains(&entry.info.address)) {
            if entry.presence == Presence::Proven {
                entry.presence = Presence::Said;
            }
            disputed.insert(entry.info.address);
            asked.push(entry.id());
        }
        for member in asked {
            self.schedule(now, Timer::Look(member));
        }
        disputed
    }

    /// That member spoke from its address: whoever else is said to be there is not (rule 45).
    fn claim_address(&mut self, now: Instant, member: PeerId) {
        let Some(entry) = self.table.get_mut(member) else { return };
        entry.presence = Presence::Proven;
        let address = entry.info.address;
        let mut replaced = Vec::new();
        for entry in self.table.iter_mut().filter(|entry| entry.info.address == address) {
            if entry.id() != member && entry.presence != Presence::Replaced {
                entry.presence = Presence::Replaced;
                replaced.push(entry.id());
            }
        }
        for member in replaced {
            self.schedule(now, Timer::Look(member));
        }
    }

    /// The coordinator saw that member register over an authenticated stream: it lives. What was held against an
    /// earlier session of it is dropped. That it is where it says to be is seen when it answers from there (rule 45).
    pub fn handle_registration(&mut self, now: Instant, info: MemberInfo) {
        if self.left || info.id == self.me.id {
            return;
        }
        self.guard(now);
        let (member, info) = (info.id, Arc::new(info));
        let buried = self.failed.remove(&member).map(|failed| failed.incarnation.saturating_add(1));
        let doubted = self.cases.contains_key(&member);
        self.sightings.remove(&member);
        self.describe_anew(now, &info);
        if let Some(entry) = self.table.get_mut(member) {
            // Whatever is still on its way about the incarnation of before finds a newer one.
            entry.incarnation = entry.incarnation.saturating_add(u32::from(doubted));
            self.close_case(now, member);
        } else {
            self.hear_of(now, vec![(Arc::clone(&info), buried.unwrap_or(0))]);
        }
        if let Some(entry) = self.table.get(member).filter(|_| doubted || buried.is_some()) {
            let record = Record::Alive { info, incarnation: entry.incarnation };
            self.dissemination.push(now, record);
            self.want_push();
        }
        self.look(now, member);
        self.flush_push(now);
    }

    /// The table's incarnation of a member about whom `incarnation` is claimed; `None` if the claim is old
    /// or the member unknown. A claim about a later incarnation than ours teaches us that incarnation.
    fn current(&mut self, member: PeerId, incarnation: u32) -> Option<u32> {
        let entry = self.table.get_mut(member)?;
        if incarnation < entry.incarnation {
            return None;
        }
        entry.incarnation = incarnation;
        Some(incarnation)
    }

    fn case(&mut self, now: Instant, member: PeerId, incarnation: u32, silent_since: Instant) -> &mut Case {
        let case = self.cases.entry(member).or_insert_with(|| Case::open(now, incarnation, silent_since));
        case.incarnation = incarnation;
        case
    }

    /// Whether what is said against the member can only be the echo of a doubt that we have just settled. Were it
    /// news again, it would go round for as long as it takes the refutation to overtake it, and everybody would
    /// look each time.
    fn just_settled(&self, now: Instant, member: PeerId) -> bool {
        let acked = self.table.get(member).and_then(|entry| entry.acked(now));
        let just_acked = acked.is_some_and(|acked| now.since(acked) < self.config.probe_interval);
        just_acked && !self.cases.contains_key(&member)
    }

    /// The member answered us after somebody saw it silent. We may be the only one who can say so.
    fn refute(&mut self, now: Instant, member: PeerId, incarnation: u32, acked: Instant) {
        if !self.dissemination.vouches_for(member) {
            let (voucher, kind) = (self.me.id, SignOfLife::Acked);
            let age_ms = millis(now.since(acked));
            let record = Record::Vouch { member, incarnation, voucher, kind, age_ms, silent_ms: 0 };
            self.dissemination.push(now, record);
            self.want_push();
        }
    }

    fn handle_suspect(&mut self, now: Instant, record: Record) {
        let Record::Suspect { member, incarnation, accuser, kind, age_ms } = record else { return };
        if accuser == self.me.id {
            return;
        }
        let Some(incarnation) = self.current(member, incarnation) else { return };
        let seen = now - Duration::from_millis(u64::from(age_ms));
        let acked = self.table.get(member).and_then(|entry| entry.acked(now));
        let (repeat, life) = (self.config.suspicion_min / 2, testimony_life(&self.config));
        if let Some(acked) = acked.filter(|acked| *acked >= seen) {
            return self.refute(now, member, incarnation, acked);
        }
        if self.just_settled(now, member) || now.since(seen) > life {
            return;
        }
        let case = self.case(now, member, incarnation, now);
        let stale =
            case.testimony.iter().any(|word| word.accuser == accuser && now.since(word.last) >= repeat);
        let news = case.accuse(now, life, accuser, kind);
        let unseen = case.own.is_none();
        let lookers = if kind == Silence::Refused { REFUSAL_WITNESSES } else { CORROBORATORS };
        if news || stale {
            self.dissemination.push(now, Record::Suspect { member, incarnation, accuser, kind, age_ms });
            self.push_wanted |= news;
        }
        if news && unseen && self.rng.chance(lookers / self.size() as f64) {
            self.look(now, member);
        }
        self.review(now, member);
    }

    fn handle_vouch(&mut self, now: Instant, record: Record) {
        let Record::Vouch { member, incarnation, voucher, kind, age_ms, silent_ms } = record else { return };
        if voucher == self.me.id {
            return;
        }
        let Some(incarnation) = self.current(member, incarnation) else { return };
        let seen = now - Duration::from_millis(u64::from(age_ms));
        let life = vouch_life(&self.config, self.size());
        let (repeat, news) = match kind {
            SignOfLife::Acked => {
                // It counts if it is younger than everything we hold against the member.
                let Some(case) = self.cases.get_mut(&member) else { return };
                if seen <= case.silent_since {
                    return;
                }
                if case.own_probe_sent().is_some_and(|sent| seen <= sent) {
                    // It has answered us nothing since. But nor has it been silent for longer than that.
                    return case.note_answered(seen);
                }
                self.close_case(now, member);
                self.dissemination.push(now, record);
                return;
            }
            SignOfLife::Heard => {
                let Some(case) = self.cases.get_mut(&member) else { return };
                (self.config.suspicion_min / 2, case.note_heard(seen))
            }
            SignOfLife::Kernel => {
                let acked = self.table.get(member).and_then(|entry| entry.acked(now));
                if seen + life <= now || acked.is_some_and(|acked| acked >= seen) {
                    return;
                }
                // The voucher may have been deaf, and found stalled what answered us.
                let claimed = seen - Duration::from_millis(u64::from(silent_ms));
                let mut silent_since = acked.map_or(claimed, |acked| claimed.max(acked));
                if !self.cases.contains_key(&member) {
                    // Had it been silent for longer than a sweep of probes, we had found out ourselves.
                    silent_since = silent_since.max(now - self.config.probe_interval * self.size() as u32);
                }
                let case = self.case(now, member, incarnation, silent_since);
                (life / 3, case.vouch_kernel(voucher, seen, seen + life, silent_since))
            }
        };
        if let Some(case) = self.cases.get_mut(&member).filter(|_| news)
            && case.vouched_at.is_none_or(|at| now.since(at) >= repeat)
        {
            self.push_wanted |= case.vouched_at.is_none();
            case.vouched_at = Some(now);
            self.dissemination.push(now, record);
        }
        self.review(now, member);
    }

    /// `by` declares a member dead, or passes it on. That is its accusation, if it says that the member is silent.
    fn handle_dead(
        &mut self,
        now: Instant,
        by: PeerId,
        member: PeerId,
        incarnation: u32,
        reason: DeathReason,
        accusers: Vec<PeerId>,
    ) {
        if self.table.get(member).is_none() {
            // Remembered without a face, so that a stale "alive" does not bring it back.
            if self.failed.get(&member).is_none_or(|failed| failed.incarnation < incarnation) {
                let info = self.failed.get(&member).and_then(|failed| failed.info.clone());
                let (reason, path) = (Some(reason), Path::Datagram);
                self.remember_failed(
                    member,
                    Failed { info, incarnation, reason, accusers, since: now, path },
                );
            }
            return;
        }
        let Some(incarnation) = self.current(member, incarnation) else { return };
        if self.just_settled(now, member) {
            return;
        }
        let life = testimony_life(&self.config);
        let case = self.case(now, member, incarnation, now);
        let mut news = !case.declared;
        case.declared = true;
        match reason {
            DeathReason::Exited | DeathReason::Refused => {
                news |= case.accuse(now, life, by, Silence::Refused);
            }
            DeathReason::Silent | DeathReason::SilentTooLong => {
                news |= case.accuse(now, life, by, Silence::Silent);
            }
            // These were not silent, or not to everybody: that it is out says nothing about what we would see.
            DeathReason::StalledTooLong | DeathReason::Deaf | DeathReason::Evicted => {}
        }
        if news && case.own.is_none() {
            self.look(now, member);
        }
        self.review(now, member);
    }

    fn handle_goodbye(&mut self, now: Instant, source: Source, member: PeerId, incarnation: u32) {
        let Some(incarnation) = self.current(member, incarnation) else {
            if let Some(failed) = self.failed.get_mut(&member)
                && failed.incarnation <= incarnation
            {
                // It said goodbye before it fell silent: the word comes late, and settles why.
                failed.reason = None;
                failed.incarnation = incarnation;
            }
            return;
        };
        if source.id == member && source.path == Path::Stream {
            return self.bury(now, member, None, Vec::new());
        }
        if self.just_settled(now, member) && source.id != member {
            return;
        }
        let case = self.case(now, member, incarnation, now);
        if case.goodbye.is_none() {
            case.goodbye = Some(now);
            // Everybody has to look, so everybody should hear of it now.
            self.dissemination.push(now, Record::Leave { member, incarnation });
            self.want_push();
            self.look(now, member);
        }
        self.review(now, member);
    }

    /// The record that tells a member that we count it as dead.
    fn out_record(&self, now: Instant, member: PeerId) -> Option<Record> {
        let failed = self.failed.get(&member)?;
        let (incarnation, reason, age_ms) =
            (failed.incarnation, failed.reason?, millis(now.since(failed.since)));
        Some(Record::Out { member, incarnation, reason, age_ms })
    }

    /// What somebody on the failed list is told when we speak to it.
    pub(super) fn word_to_failed(&self, now: Instant, member: PeerId) -> Option<Record> {
        self.out_record(now, member).or_else(|| self.failed_record(member))
    }

    /// The record that tells others about somebody on the failed list.
    pub(super) fn failed_record(&self, member: PeerId) -> Option<Record> {
        let failed = self.failed.get(&member)?;
        let incarnation = failed.incarnation;
        Some(match failed.reason {
            Some(reason) => Record::Dead { member, incarnation, reason, accusers: failed.accusers.clone() },
            None => Record::Leave { member, incarnation },
        })
    }
}
