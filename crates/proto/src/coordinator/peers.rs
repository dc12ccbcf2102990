//! What is known of one peer.

use super::claims::Terms;
use super::run::ConnectionId;
use crate::collective::Group;
use crate::time::{Duration, Instant};
use crate::wire::control::{Encryption, Registration, SessionId, ToCoordinator, Witness};
use crate::wire::membership::{DeathReason, MemberInfo};

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
    /// The peer's own, because another says that it cannot reach it.
    Path,
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
    /// When this session registered. What is known from before is about another session (rule 45). Of a member that a rebuild
    /// expects nobody knows when: what is known of it is about the session that is expected.
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
    /// When its port was last tried because another could not reach it, and whether it accepted.
    pub(super) takes_dials: Option<(Instant, bool)>,
    /// When it last sent anything.
    pub(super) heard: Instant,
    pub(super) sign: Sign,
    /// Whether it has answered the health plane in this session. Until then its silence there says nothing: perhaps it
    /// has yet to be asked, and a firewall that refuses for the living would be taken for its death.
    pub(super) answered: bool,
    /// Whether it has answered there after it lost its connection, and too late for a last word: then no end of its process
    /// closed that, but something between us, whose refusals say nothing either.
    pub(super) outlived: bool,
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
            takes_dials: None,
            heard: now,
            sign: Sign::Alive { acked: None },
            answered: false,
            outlived: false,
            last_call: ("connect".to_owned(), now),
            held: Vec::new(),
        }
    }

    /// The same for one of whom only others have told: silent until it resumes or is heard of.
    pub(super) fn absent(now: Instant, registration: &Registration, age: u64) -> Self {
        let mut peer = Self::new(now, registration, age);
        peer.phase = Phase::Accepted;
        peer.registered = Instant::ORIGIN;
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

    /// Whether it gave a sign of life after that moment, or never answered the health plane, which then says nothing about
    /// it. What was on its way then may be read a little later.
    pub(super) fn has_outlived(&self, moment: Instant) -> bool {
        let after = moment + Duration::from_millis(1);
        !self.answered || matches!(self.sign, Sign::Alive { acked: Some(acked) } if acked > after)
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

pub(super) fn other_encryption(wanted: Encryption, agreed: Encryption) -> String {
    format!(
        "the data links of this run have encryption {agreed} and this peer asks for encryption {wanted}: \
         start every peer of a run with the same setting"
    )
}

/// Stands for a session that nobody has told us yet.
pub(super) const UNKNOWN_SESSION: SessionId = SessionId([0; 16]);
