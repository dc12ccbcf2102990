//! Peers: registration, sessions, goodbyes.

use super::claims::Terms;
use super::outbox::Timer;
use super::run::{Action, ConnectionId, Note, Run};
use crate::collective::Group;
use crate::id::PeerId;
use crate::limits::{MEMBERS_MAX, ROSTER_BYTES_MAX};
use crate::time::Instant;
use crate::wire::control::{
    Encryption, KickReason, LossReason, Registration, SessionId, ToCoordinator, ToPeer, Witness,
};
use crate::wire::membership::{DeathReason, MemberInfo};
use std::collections::BTreeMap;

/// What the health plane says of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sign {
    /// It answers; the moment is its last ack.
    Alive {
        /// When it last answered.
        acked: Option<Instant>,
    },
    /// Its kernel answers, the process does not.
    Stalled,
    /// Nothing answers.
    Suspect,
    /// It was declared dead.
    Dead(DeathReason),
}

/// Which port a connect tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Knock {
    /// The peer's own, while it lives: it must accept before its refusal is believed (rule 22).
    TrialPort,
    /// One where nobody listens: it must refuse.
    TrialClosed,
    /// The peer's own, after its connection closed.
    Lost,
}

/// How far a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Connected, not yet admitted.
    Registered,
    /// In the roster of its group.
    Accepted,
}

/// One peer.
#[derive(Clone, Debug, Hash)]
pub(super) struct Peer {
    pub(super) info: MemberInfo,
    pub(super) group: Group,
    pub(super) phase: Phase,
    pub(super) session: SessionId,
    /// Who is believed about the end of its process (rule 20a).
    pub(super) witness: Option<Witness>,
    pub(super) generation: u32,
    /// The terms that it can have from us: if it obeys another, another coordinator reigned since.
    pub(super) terms: Terms,
    pub(super) age: u64,
    /// When this session registered. What is known from before is about another session (rule 45).
    pub(super) registered: Instant,
    pub(super) connection: Option<ConnectionId>,
    /// How many members its group was to have when it registered.
    pub(super) wants: u32,
    /// Since when it has no connection.
    pub(super) lost_since: Option<Instant>,
    /// When its port refused, after its connection closed.
    pub(super) refused_at: Option<Instant>,
    /// When to ask its port again, after its connection closed; none while an answer is awaited.
    pub(super) knock_at: Option<Instant>,
    /// Whether port and closed port behaved while it lived.
    pub(super) accepts: Option<bool>,
    pub(super) refuses: Option<bool>,
    /// When it last sent anything.
    pub(super) heard: Instant,
    pub(super) sign: Sign,
    /// What it last called, and when.
    pub(super) last_call: (String, Instant),
    /// Messages held back while the coordinator is being rebuilt.
    pub(super) held: Vec<ToCoordinator>,
}

impl Peer {
    pub(super) fn new(now: Instant, registration: &Registration, age: u64) -> Self {
        Self {
            info: registration.info.clone(),
            group: registration.group,
            phase: Phase::Registered,
            session: registration.session,
            witness: registration.witness,
            generation: 0,
            terms: Terms::default(),
            age,
            registered: now,
            connection: None,
            wants: registration.min_world.max(1),
            lost_since: None,
            refused_at: None,
            knock_at: None,
            accepts: None,
            refuses: None,
            heard: now,
            sign: Sign::Alive { acked: None },
            last_call: ("connect".to_owned(), now),
            held: Vec::new(),
        }
    }

    /// The same for one of whom only others have told: silent until it resumes or is heard of.
    pub(super) fn absent(now: Instant, registration: &Registration, age: u64) -> Self {
        let mut peer = Self::new(now, registration, age);
        peer.phase = Phase::Accepted;
        peer.lost_since = Some(now);
        peer.sign = Sign::Suspect;
        peer
    }

    pub(super) fn kernel_trusted(&self) -> bool {
        self.accepts == Some(true) && self.refuses == Some(true)
    }

    /// Whether it is away, or the health plane does not call it alive.
    pub(super) fn is_doubtful(&self) -> bool {
        self.lost_since.is_some() || !matches!(self.sign, Sign::Alive { .. })
    }

    pub(super) fn health_word(&self) -> &'static str {
        match self.sign {
            Sign::Alive { .. } => "alive",
            Sign::Stalled => "stalled",
            Sign::Suspect => "suspect",
            Sign::Dead(_) => "dead",
        }
    }
}

impl Run {
    pub(super) fn register(
        &mut self,
        now: Instant,
        at: ConnectionId,
        from: PeerId,
        registration: Registration,
        generation: u32,
    ) {
        if registration.info.id != from {
            let text = format!("registered as {} over a connection of {from}", registration.info.id);
            return self.office.turn_away(at, KickReason::Breach, &text);
        }
        self.forget_rival(from);
        if let Some(known) = self.office.peers.get(from) {
            if known.connection == Some(at) {
                return self.office.kick(from, "registered twice on one connection");
            }
            // Of a member that a rebuild expects only the id is known: it says itself that it is in nothing.
            let expected = known.session == UNKNOWN_SESSION;
            let same = known.session == registration.session && known.generation < generation
                || registration.session.succeeds(known.session);
            if !expected && !same {
                let text = format!("{from} is registered already: every process needs a PeerId of its own");
                return self.office.turn_away(at, KickReason::Duplicate, &text);
            }
            // The same process starts again from the beginning: whatever it was in before is over.
            self.remove_peers(now, &[(from, LossReason::Left)]);
        }
        if self.office.peers.len() >= MEMBERS_MAX {
            let text = format!("this run has {MEMBERS_MAX} peers, which is the limit");
            return self.office.turn_away(at, KickReason::Limit, &text);
        }
        if !self.office.peers.roster_fits(&registration.info) {
            let text = format!(
                "names and metadata of this run's {} peers take {ROSTER_BYTES_MAX} bytes, which is the limit: use \
                 shorter ones",
                self.office.peers.len()
            );
            return self.office.turn_away(at, KickReason::Limit, &text);
        }
        let wanted = registration.encryption;
        if let Err(agreed) = self.office.peers.ask_encryption(wanted) {
            let text = other_encryption(wanted, agreed);
            return self.office.turn_away(at, KickReason::Encryption, &text);
        }
        let peer = self.office.peers.enter(now, &registration);
        peer.generation = generation;
        peer.terms = Terms::new(self.office.term);
        self.attach(from, at);
        self.office.outbox.note(Note::Registered(from));
        self.office.outbox.act(Action::Renew(registration.info));
        self.office.tell(from, ToPeer::Registered { term: self.office.term });
        match self.gate.backoff(&self.config, from).filter(|until| *until > now) {
            // It was evicted lately, perhaps again and again: the others are not disturbed before that (rule 45).
            Some(until) => self.office.outbox.schedule(until, Timer::Admissible(from)),
            None => {
                self.office.peers.make_admissible(from);
            }
        }
        self.inquiry().try_kernel(from);
        self.office.agenda.count_votes();
    }

    /// Binds a connection to a peer; an older one of the same peer is closed.
    pub(super) fn attach(&mut self, peer: PeerId, at: ConnectionId) {
        let old = self.office.peers.attach(peer, at);
        let group = self.office.peers.get(peer).map(|record| record.group);
        if let Some(state) = group.and_then(|group| self.groups.get_mut(group)) {
            state.attendance.came(peer);
        }
        if let Some(old) = old {
            self.office.outbox.act(Action::Close(old));
        }
    }

    /// A connection closed without a goodbye: everything that waits for this peer is aborted at once, and
    /// whether it is dead is another question (rules 4 and 20).
    pub(super) fn disconnected(&mut self, now: Instant, peer: PeerId, at: ConnectionId) {
        let Some(record) = self.office.peers.get_mut(peer).filter(|record| record.connection == Some(at))
        else {
            return;
        };
        record.connection = None;
        if record.phase == Phase::Registered {
            // It was in nothing yet; it registers again when it comes back.
            self.office.agenda.count_votes();
            return self.remove_peers(now, &[(peer, LossReason::Disconnected)]);
        }
        record.lost_since = Some(now);
        record.knock_at = Some(now);
        let group = record.group;
        if let Some(state) = self.groups.get_mut(group) {
            state.attendance.went(peer);
        }
        self.office.outbox.note(Note::Disconnected(peer));
        self.office.outbox.act(Action::Look(peer));
        self.calls().abort_ops_without(group, peer, LossReason::Disconnected);
        self.inquiry().review_lost(now, peer);
    }

    /// Takes peers out of the run for good, and their groups to the next epoch: one for all who go together.
    pub(super) fn remove_peers(&mut self, now: Instant, gone: &[(PeerId, LossReason)]) {
        let mut shrinking: BTreeMap<Group, Vec<(PeerId, LossReason)>> = BTreeMap::new();
        for (peer, reason) in gone {
            let Some(record) = self.office.strike_out(*peer) else { continue };
            self.evidence.forget(*peer);
            if !matches!(reason, LossReason::Left | LossReason::Kicked | LossReason::Disconnected) {
                self.gate.note_eviction(now, *peer);
            }
            self.office.outbox.note(Note::Lost(*peer, *reason));
            if record.phase == Phase::Accepted {
                shrinking.entry(record.group).or_default().push((*peer, *reason));
            }
        }
        if !shrinking.is_empty() {
            self.groups.next_run_epoch();
        }
        for (group, gone) in shrinking {
            self.shrink_group(now, group, gone);
        }
    }
}

pub(super) fn other_encryption(wanted: Encryption, agreed: Encryption) -> String {
    format!(
        "the data links of this run have encryption {agreed} and this peer asks for encryption {wanted}: \
         start every peer of a run with the same setting"
    )
}

/// Stands for a session that nobody has told us yet.
pub(super) const UNKNOWN_SESSION: SessionId = SessionId([0; 16]);
