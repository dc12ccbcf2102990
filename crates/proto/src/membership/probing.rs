//! Asking: pings, relays, and the kernel.
//!
//! A probe goes through up to three stages. *Direct*: a ping, one probe timeout. *Escalated*: relays ping for
//! us, and, if its kernel's word counts for this pair, we knock at its TCP port, three times, staggered,
//! because one lost packet must not look like a dead host. *Concluded*: still nothing, and what the kernel
//! said decides what we testify. Any ack at any stage ends the probe.
//!
//! Before a kernel's word counts for a pair it is tried once while the member lives (rule 22): its own port
//! must accept and a port where nobody listens must refuse. Otherwise something between us answers for
//! others, or refuses for the living.

use super::case::{Case, Shown, Unanswered, testimony_life, vouch_life};
use super::machine::{Membership, Timer};
use super::table::{Entry, KernelTrust, Presence};
use super::{Action, ConnectOutcome, ConnectToken, Event, Path, Source};
use crate::id::PeerId;
use crate::time::{Duration, Instant};
use crate::wire::membership::{Body, Packet, Record, SignOfLife, Silence};
use std::net::SocketAddr;
use std::sync::Arc;

/// Unfinished pings for others; more than a group can ask of one member in a probe timeout.
const RELAYS_MAX: usize = 1_024;
/// Kernels that are tried at the same time.
const TRIALS_MAX: usize = 4;
/// Trying a kernel without an answer is repeated this often before its word is given up.
const TRIAL_ATTEMPTS_MAX: u8 = 5;
/// Members that are remembered as seen or missed lately; a sample is enough (see `Bench`).
const SIGHTINGS_MAX: usize = 256;
/// On this many intervals falls one ping to somebody in the failed list.
const REUNION_TICKS: u64 = 10;
/// Members in doubt that are looked at again per interval, beside the sweep.
const SECOND_LOOKS: usize = 2;
/// Random sweeps leave somebody unasked for long now and then: of many members, for eight intervals once in three thousand
/// deaths. So each member also watches its neighbour. In a group with up to this many others it does so beside its sweep.
const SMALL_GROUP_MAX: usize = 16;
/// On this many intervals falls one look at the neighbour there.
const NEIGHBOUR_TICKS: u64 = 2;
/// In a larger group, where packets count, every so many turns of the sweep are given to the neighbour.
const NEIGHBOUR_TURNS: u64 = 4;

/// One unfinished question to one member.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) target: PeerId,
    sent: Instant,
    /// Relays that have not said anything yet.
    relays: Vec<PeerId>,
    knocks_left: u32,
    /// The direct ping went unanswered, and others and the kernel are asked.
    escalated: bool,
    /// What its kernel said, or what its silence amounted to.
    kernel: Option<Unanswered>,
    /// We could not ask the kernel for want of ports or descriptors: that is no evidence about the target.
    hindered: bool,
    testified: bool,
}

/// A ping that we send for somebody else.
#[derive(Clone, Debug)]
pub(super) struct Relay {
    requester: PeerId,
    probe: u64,
    target: PeerId,
}

/// A kernel that is being tried.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    member: PeerId,
    port: Option<ConnectOutcome>,
    closed: Option<ConnectOutcome>,
}

/// What a connect is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Knock(u64),
    TrialPort(u64),
    TrialClosed(u64),
}

impl Membership {
    /// One interval has passed: probe the next in the sweep, and look again at who is in doubt.
    pub(super) fn tick(&mut self, now: Instant) {
        self.ticks += 1;
        // The interval is not stretched as Lifeguard does it: being heard regularly is what saves a member that
        // cannot hear.
        self.schedule(now + self.config.probe_interval, Timer::Tick);
        // Held against silences that are older than a sighting's life, too, and no longer than this.
        let kept = self.config.sighting_life() * 2;
        self.sightings.retain(|_, (at, _)| now.since(*at) <= kept);
        let forget_after = self.config.forget_after;
        self.failed.retain(|_, failed| now.since(failed.since) < forget_after);

        let is_small = self.table.len() <= SMALL_GROUP_MAX;
        let turns = if is_small { NEIGHBOUR_TICKS } else { NEIGHBOUR_TURNS };
        let is_due = self.ticks.is_multiple_of(turns);
        let neighbour = if is_due { self.neighbour(now) } else { None };
        if (is_small || neighbour.is_none())
            && let Some(target) = self.table.next_in_sweep(&mut self.rng)
        {
            self.look(now, target);
        }
        if let Some(neighbour) = neighbour {
            self.look(now, neighbour);
        }
        let spacing = self.config.probe_interval * 2;
        let mut doubtful: Vec<_> = self
            .cases
            .iter()
            .filter(|(_, case)| case.own.is_some())
            .filter(|(_, case)| case.looked_at.is_none_or(|at| now.since(at) >= spacing))
            .map(|(id, case)| (case.looked_at, *id))
            .collect();
        doubtful.sort_unstable();
        for (_, member) in doubtful.into_iter().take(SECOND_LOOKS) {
            self.look(now, member);
        }
        if self.ticks.is_multiple_of(REUNION_TICKS) {
            self.seek_reunion(now);
        }
    }

    /// The next member in the order of ids who is not known to be stalled: that one is watched anyway, and who comes after it
    /// must not go unwatched meanwhile. As everybody watches one, everybody is watched by one, and a death goes unnoticed
    /// for a few intervals at most, whatever the sweeps drew.
    fn neighbour(&self, now: Instant) -> Option<PeerId> {
        let stalled =
            |entry: &&Entry| self.cases.get(&entry.id()).is_some_and(|case| case.kernel_vouches(now));
        let after = self.table.following(Some(self.me.id)).iter();
        after.chain(self.table.iter()).find(|entry| !stalled(entry)).map(Entry::id)
    }

    /// Starts a probe of that member, unless one is under way.
    pub(super) fn look(&mut self, now: Instant, member: PeerId) {
        if let Some(case) = self.cases.get_mut(&member) {
            case.looked_at = Some(now);
            if let Some(at) = case.look_at.take() {
                self.unschedule(at, Timer::Look(member));
            }
        }
        let Some(entry) = self.table.get(member) else { return };
        let (address, path) = (entry.info.address, entry.path);
        let mut probes = self.probes.iter();
        if let Some((&id, _)) = probes.find(|(_, probe)| probe.target == member && !probe.testified) {
            // One probe at a time. But if nobody answers us we may be deaf, and are saved by being heard: so
            // each tick says something, if only the same again.
            if self.health.patience() > 1 {
                let packet = self.ping(now, id, member);
                self.send_at(address, Some(member), Path::Datagram, packet);
            }
            return;
        }
        let id = self.next_serial();
        self.probes.insert(
            id,
            Probe {
                target: member,
                sent: now,
                relays: Vec::new(),
                knocks_left: self.config.connects,
                kernel: None,
                escalated: false,
                hindered: false,
                testified: false,
            },
        );
        let packet = self.ping(now, id, member);
        if path == Path::Stream && (self.cases.contains_key(&member) || self.ticks.is_multiple_of(8)) {
            // Perhaps UDP passes again: an ack on that way brings the member back to it. And a stream dies of a
            // cut in either direction, so who is in doubt is spoken to by datagram, too: it may be us who is deaf.
            self.send_at(address, Some(member), Path::Datagram, packet.clone());
        }
        self.send_at(address, Some(member), path, packet);
        let patience = self.health.patience() * if path == Path::Stream { 3 } else { 1 };
        self.schedule(now + self.config.probe_timeout * patience, Timer::Escalate(id));
    }

    /// A ping that tells the target who asks and what is said about it, so that it can refute (the buddy
    /// system, Lifeguard §IV-C).
    fn ping(&mut self, now: Instant, id: u64, target: PeerId) -> Packet {
        let mut records = vec![self.alive_record()];
        records.extend(self.doubt_about(now, target));
        self.packet(now, Some(Body::Ping { probe: id, wants_table: false }), records)
    }

    /// What the target should know of the case against it.
    pub(super) fn doubt_about(&self, now: Instant, target: PeerId) -> Option<Record> {
        let case = self.cases.get(&target).filter(|case| case.shown != Shown::Alive)?;
        let doubted_at = self.doubted_at.unwrap_or_default();
        let (member, incarnation) = (target, case.incarnation);
        Some(match case.testimony.first() {
            Some(word) => Record::Suspect {
                member,
                incarnation,
                accuser: word.accuser,
                kind: word.kind,
                age_ms: millis(now.since(word.last)),
            },
            None => Record::Vouch {
                member,
                incarnation,
                voucher: self.me.id,
                kind: SignOfLife::Kernel,
                age_ms: 0,
                silent_ms: millis(now.since(case.stalled_since(&self.config).max(doubted_at))),
            },
        })
    }

    /// No direct answer: ask relays, and the kernel.
    pub(super) fn escalate(&mut self, now: Instant, id: u64) {
        let Some(target) = self.probes.get(&id).map(|probe| probe.target) else { return };
        let Some(entry) = self.table.get(target) else { return };
        let (kernel, presence, path) = (entry.kernel, entry.presence, entry.path);
        let timeout = self.config.probe_timeout * self.health.patience();

        let half_life = vouch_life(&self.config, self.size()) / 2;
        let case = self.cases.get(&target);
        if case.is_some_and(|case| case.kernel_vouches(now + half_life)) {
            // Somebody knocked a moment ago and was let in: one knock is enough for all of us.
            if let Some(probe) = self.probes.get_mut(&id) {
                probe.kernel = Some(Unanswered::Stalled);
                probe.testified = true;
            }
            self.schedule(now + timeout, Timer::Conclude(id));
            return;
        }

        let declared = case.is_some_and(|case| case.declared);
        let count = if declared { 1 } else { self.config.relays };
        let cases = &self.cases;
        let relays = self
            .table
            .sample(count, &mut self.rng, |entry| entry.id() != target && !cases.contains_key(&entry.id()));
        if let Some(probe) = self.probes.get_mut(&id) {
            probe.relays.clone_from(&relays);
            probe.escalated = true;
        }
        for relay in relays {
            let packet = self.packet(now, Some(Body::PingReq { probe: id, target }), Vec::new());
            self.send(relay, packet);
        }
        self.schedule(now + timeout * 3, Timer::Conclude(id));
        if presence == Presence::Replaced {
            self.kernel_said(now, id, Unanswered::Refused);
        } else if kernel == KernelTrust::Trusted {
            self.knock(now, id);
        } else {
            if path == Path::Datagram {
                self.ping_by_stream(now, id, target);
            }
            if matches!(kernel, KernelTrust::Untried(_)) {
                // We know it by hearsay only, perhaps because it was stalled before we came: what its kernel's
                // word is worth can be found out now as well as when it talks.
                self.try_kernel(target);
            }
        }
    }

    /// Opens one TCP connection to the target's port.
    pub(super) fn knock(&mut self, now: Instant, id: u64) {
        let timeout = self.config.probe_timeout * self.health.patience();
        let Some(probe) = self.probes.get_mut(&id) else { return };
        if probe.kernel.is_some() || probe.knocks_left == 0 {
            return;
        }
        probe.knocks_left -= 1;
        let (target, more) = (probe.target, probe.knocks_left > 0);
        let Some(to) = self.table.get(target).map(|entry| entry.info.address) else { return };
        self.connect(to, timeout * 3 / 2, Purpose::Knock(id));
        if more {
            self.schedule(now + timeout / 2, Timer::Knock(id));
        }
    }

    fn connect(&mut self, to: SocketAddr, timeout: Duration, purpose: Purpose) {
        let token = self.next_serial();
        self.connects.insert(token, purpose);
        self.act(Action::Connect { token: ConnectToken(token), to, timeout });
    }

    /// A connect attempt ended.
    pub fn handle_connect(&mut self, now: Instant, token: ConnectToken, outcome: ConnectOutcome) {
        self.guard(now);
        match self.connects.remove(&token.0) {
            Some(Purpose::Knock(id)) => match outcome {
                ConnectOutcome::Accepted => self.kernel_said(now, id, Unanswered::Stalled),
                ConnectOutcome::Refused => self.kernel_said(now, id, Unanswered::Refused),
                ConnectOutcome::Silent => {}
                ConnectOutcome::NotAsked => {
                    if let Some(probe) = self.probes.get_mut(&id) {
                        probe.hindered = true;
                    }
                }
            },
            Some(Purpose::TrialPort(trial)) => self.tried(now, trial, |trial| &mut trial.port, outcome),
            Some(Purpose::TrialClosed(trial)) => self.tried(now, trial, |trial| &mut trial.closed, outcome),
            None => {}
        }
        self.flush_push(now);
    }

    fn kernel_said(&mut self, now: Instant, id: u64, said: Unanswered) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        if probe.kernel.is_some() {
            return;
        }
        probe.kernel = Some(said);
        let (target, sent) = (probe.target, probe.sent);
        match said {
            // Either the process is stopped, or only UDP is blocked: a stream tells (rule 24), and until the
            // probe ends there is time for it.
            Unanswered::Stalled => self.ping_by_stream(now, id, target),
            Unanswered::Refused | Unanswered::Silent => {
                probe.testified = true;
                self.testify(now, target, said, sent);
            }
        }
    }

    fn ping_by_stream(&mut self, now: Instant, id: u64, target: PeerId) {
        let Some(to) = self.table.get(target).map(|entry| entry.info.address) else { return };
        let packet = self.ping(now, id, target);
        self.send_at(to, Some(target), Path::Stream, packet);
    }

    /// The probe is over and nobody had an answer.
    pub(super) fn conclude(&mut self, now: Instant, id: u64) {
        let Some(probe) = self.probes.remove(&id) else { return };
        if !probe.relays.is_empty() {
            // Relays that did not even say "no" hint that the trouble is on our side.
            self.health.worse();
        }
        if !probe.testified && !probe.hindered {
            self.testify(now, probe.target, probe.kernel.unwrap_or(Unanswered::Silent), probe.sent);
        }
    }

    /// Takes down what our own probe showed, and says so to the others.
    fn testify(&mut self, now: Instant, target: PeerId, seen: Unanswered, sent: Instant) {
        if self.health.quiet_until(now).is_some() {
            return;
        }
        let Some(entry) = self.table.get(target) else { return };
        let (incarnation, answered) = (entry.incarnation, entry.acked(now).unwrap_or_default());
        let goodbye = self.cases.get(&target).and_then(|case| case.goodbye);
        if seen == Unanswered::Stalled
            && goodbye.is_some_and(|said| now.since(said) < self.config.suspicion_min)
        {
            // It is about to close its port. (If somebody else said goodbye for it, it answers or is stalled later.)
            return self.schedule(now + self.config.probe_timeout, Timer::Look(target));
        }
        let (me, group) = (self.me.id, self.size());
        let life = vouch_life(&self.config, group);
        // While we heard almost nobody, nobody's silence was worth reporting: a stall that we date too early
        // would be cut short for everybody.
        let doubted_at = self.doubted_at.unwrap_or_default();
        if seen == Unanswered::Silent {
            self.note_sighting(now, target, false);
        }
        let case = self.cases.entry(target).or_insert_with(|| Case::open(now, incarnation, sent));
        let before = case.own.map(|(seen, _)| seen);
        case.note_own(now, sent, testimony_life(&self.config), me, seen);
        let again = before == Some(seen);
        let due = |last: Option<Instant>, spacing: Duration| last.is_none_or(|at| now.since(at) >= spacing);
        let record = match seen {
            Unanswered::Stalled => {
                // That it did not answer now confirms what others say, unless it answered us meanwhile.
                let since = case.dated(&self.config).map_or(sent, |known| known.max(answered).min(sent));
                case.vouch_kernel(me, now, now + life, since);
                due(case.vouched_at, life / 3).then(|| {
                    case.vouched_at = Some(now);
                    Record::Vouch {
                        member: target,
                        incarnation,
                        voucher: me,
                        kind: SignOfLife::Kernel,
                        age_ms: 0,
                        silent_ms: millis(now.since(case.stalled_since(&self.config).max(doubted_at))),
                    }
                })
            }
            Unanswered::Silent | Unanswered::Refused => {
                (!again || due(case.accused_at, self.config.suspicion_min / 2)).then(|| {
                    case.accused_at = Some(now);
                    // A refusal was seen just now. Of silence we only know that the ping was not answered: an
                    // answer to anybody that is younger than the ping refutes it.
                    let (kind, age_ms) = match seen {
                        Unanswered::Refused => (Silence::Refused, 0),
                        _ => (Silence::Silent, millis(now.since(sent))),
                    };
                    Record::Suspect { member: target, incarnation, accuser: me, kind, age_ms }
                })
            }
        };
        if let Some(record) = record {
            self.dissemination.push(now, record);
            self.push_wanted |= !again;
        }
        if seen == Unanswered::Refused && !again {
            self.schedule(now + self.config.probe_timeout, Timer::Look(target));
        }
        self.review(now, target);
    }

    /// Somebody pings a member for somebody else.
    pub(super) fn relay(&mut self, now: Instant, source: Source, probe: u64, target: PeerId) {
        let requester = source.id;
        if self.table.get(target).is_none() || self.relays.len() >= RELAYS_MAX {
            let answer =
                Packet { body: Some(Body::IndirectAck { probe, answered: false }), records: Vec::new() };
            self.send(requester, answer);
            return;
        }
        let id = self.next_serial();
        self.relays.insert(id, Relay { requester, probe, target });
        let packet = self.ping(now, id, target);
        self.send(target, packet);
        self.schedule(now + self.config.probe_timeout * 4 / 5, Timer::RelayOver(id));
    }

    pub(super) fn relay_over(&mut self, id: u64) {
        if let Some(relay) = self.relays.remove(&id) {
            self.answer_relay(&relay, false);
        }
    }

    fn answer_relay(&mut self, relay: &Relay, answered: bool) {
        let body = Body::IndirectAck { probe: relay.probe, answered };
        self.send(relay.requester, Packet { body: Some(body), records: Vec::new() });
    }

    /// An ack arrived: its sender hears and answers, whatever the ack was for.
    pub(super) fn handle_ack(&mut self, now: Instant, source: Source, id: u64) {
        if let Some(relay) = self.relays.get(&id).filter(|relay| relay.target == source.id).cloned() {
            self.relays.remove(&id);
            self.answer_relay(&relay, true);
        }
        let round_trip =
            self.probes.get(&id).filter(|probe| probe.target == source.id).map(|probe| now.since(probe.sent));
        if round_trip.is_some() {
            self.health.better();
        }
        if let Some(entry) = self.table.get_mut(source.id) {
            entry.note_ack(now, round_trip);
            // A datagram that got through settles it; a stream counts when it was the first to answer.
            if source.path == Path::Datagram || round_trip.is_some() {
                entry.path = source.path;
            }
        }
        self.answered(now, source.id);
        self.try_kernel(source.id);
    }

    /// A relay answers for a member. Only who was asked is believed: a datagram does not name its receiver,
    /// so an answer to somebody else's question could be played to us.
    pub(super) fn handle_indirect_ack(&mut self, now: Instant, source: Source, id: u64, answered: bool) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        let Some(place) = probe.relays.iter().position(|relay| *relay == source.id) else { return };
        probe.relays.swap_remove(place);
        let target = probe.target;
        if answered {
            self.answered(now, target);
        }
    }

    /// That member answered us or a relay: its case, if there is one, is closed.
    fn answered(&mut self, now: Instant, member: PeerId) {
        self.note_sighting(now, member, true);
        let Some(case) = self.cases.get(&member) else {
            self.probes.retain(|_, probe| probe.target != member);
            return;
        };
        let others_doubt = case.shown != Shown::Alive || !case.testimony.is_empty();
        let incarnation = case.incarnation;
        self.close_case(now, member);
        if others_doubt {
            let (voucher, kind) = (self.me.id, SignOfLife::Acked);
            self.dissemination
                .push(now, Record::Vouch { member, incarnation, voucher, kind, age_ms: 0, silent_ms: 0 });
            self.want_push();
        }
    }

    /// Ends a case with the member alive.
    pub(super) fn close_case(&mut self, _now: Instant, member: PeerId) {
        let Some(case) = self.cases.get(&member) else { return };
        let (shown, refused) = (case.shown, matches!(case.own, Some((Unanswered::Refused, _))));
        if let Some(entry) = self.table.get_mut(member).filter(|_| refused) {
            // Its kernel refused for the living: try it again before believing it again (rule 22).
            entry.kernel = KernelTrust::Untried(0);
        }
        self.forget_doubts(member);
        if shown != Shown::Alive
            && let Some(info) = self.table.get(member).map(|entry| Arc::clone(&entry.info))
        {
            self.notify(Event::Recovered(info));
        }
    }

    pub(super) fn note_sighting(&mut self, now: Instant, member: PeerId, answered: bool) {
        if self.sightings.len() < SIGHTINGS_MAX || self.sightings.contains_key(&member) {
            self.sightings.insert(member, (now, answered));
        }
    }

    /// Finds out, while the member lives, whether its kernel's word is worth anything.
    pub(super) fn try_kernel(&mut self, member: PeerId) {
        if self.trials.len() >= TRIALS_MAX || self.trials.values().any(|trial| trial.member == member) {
            return;
        }
        let Some(entry) = self.table.get_mut(member) else { return };
        match entry.kernel {
            KernelTrust::Trusted => return,
            // What was between us may be gone: once in a while, try again.
            KernelTrust::Untrusted if self.rng.below(64) != 0 => return,
            KernelTrust::Untried(_) | KernelTrust::Untrusted => {}
        }
        if entry.info.closed_port == 0 {
            entry.kernel = KernelTrust::Untrusted;
            return;
        }
        let port = entry.info.address;
        let closed = SocketAddr::new(port.ip(), entry.info.closed_port);
        let timeout = (self.config.probe_timeout * 4).max(Duration::from_millis(200));
        let id = self.next_serial();
        self.trials.insert(id, Trial { member, port: None, closed: None });
        self.connect(port, timeout, Purpose::TrialPort(id));
        self.connect(closed, timeout, Purpose::TrialClosed(id));
    }

    fn tried(
        &mut self,
        now: Instant,
        id: u64,
        part: impl Fn(&mut Trial) -> &mut Option<ConnectOutcome>,
        outcome: ConnectOutcome,
    ) {
        let Some(trial) = self.trials.get_mut(&id) else { return };
        *part(trial) = Some(outcome);
        let (Some(port), Some(closed)) = (trial.port, trial.closed) else { return };
        let member = trial.member;
        self.trials.remove(&id);
        let asked: Vec<u64> = self
            .probes
            .iter()
            .filter(|(_, probe)| probe.target == member && probe.escalated)
            .map(|(id, _)| *id)
            .collect();
        let in_doubt = self.cases.contains_key(&member) || !asked.is_empty();
        let Some(entry) = self.table.get_mut(member) else { return };
        let attempts = match entry.kernel {
            KernelTrust::Untried(attempts) => attempts,
            KernelTrust::Trusted | KernelTrust::Untrusted => 0,
        };
        entry.kernel = match (port, closed) {
            (ConnectOutcome::Accepted, ConnectOutcome::Refused) => KernelTrust::Trusted,
            (_, ConnectOutcome::Accepted) => KernelTrust::Untrusted,
            // It may be dead or cut off, and that says nothing about what stands between us when it is back.
            _ if in_doubt => entry.kernel,
            (ConnectOutcome::Refused, _) => KernelTrust::Untrusted,
            _ if attempts + 1 < TRIAL_ATTEMPTS_MAX => KernelTrust::Untried(attempts + 1),
            _ => KernelTrust::Untrusted,
        };
        if entry.kernel == KernelTrust::Trusted {
            // A probe that waits for an answer has it: the port accepted a moment ago.
            for id in asked {
                self.kernel_said(now, id, Unanswered::Stalled);
            }
        }
    }
}

pub(super) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
