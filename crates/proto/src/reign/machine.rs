//! The machine: when to ask for a lease, when to campaign, when to stop.

use crate::retry;
use crate::time::{Duration, Instant};
use crate::wire::control::Term;
use std::collections::VecDeque;

/// The times of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long a lease should last. What is granted counts, and may be longer.
    pub lease: Duration,
    /// First and longest pause after a question that failed.
    pub retry: (Duration, Duration),
}

impl Config {
    /// For a lease of that length.
    pub fn new(lease: Duration) -> Self {
        let longest = (lease / 8).clamp(Duration::from_millis(50), Duration::from_secs(1));
        Self { lease, retry: (Duration::from_millis(50).min(longest), longest) }
    }
}

/// Whoever the key says reigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leader {
    /// The revision that created the key.
    pub term: Term,
    /// Whether the key ends with the lease that we hold now.
    pub is_ours: bool,
}

/// How a campaign ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Campaign {
    /// The key was created for us, by that revision.
    Won(Term),
    /// Somebody else's is there.
    Lost(Term),
}

/// What the driver is asked to do. Questions are asked one at a time; each is answered by the handler that it names, or
/// by [`Reign::handle_failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask for a lease of that length: [`Reign::handle_granted`].
    Grant(Duration),
    /// Renew the lease: [`Reign::handle_renewed`].
    Renew,
    /// Create the key with our lease if there is none: [`Reign::handle_campaigned`].
    Campaign,
    /// We reign: read what was written down, and decide.
    Begin(Term),
    /// We do not reign any more: decide nothing, and let the peers go.
    End(Term),
    /// Give the lease back if that is possible; nobody waits for it.
    GiveBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Question {
    Grant,
    Renew,
    Campaign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    granted: Duration,
    /// Nothing is decided from here on.
    good_until: Instant,
    renew_at: Instant,
}

impl Lease {
    /// A lease that was asked for at `asked`.
    fn new(asked: Instant, granted: Duration) -> Self {
        Self { granted, good_until: asked + granted * 4 / 5, renew_at: asked + granted / 4 }
    }
}

/// One coordinator's part in an election.
///
/// Calling contract: the clock must go on while the host sleeps (`CLOCK_BOOTTIME`). Drain `poll_action` after every call;
/// a question replaces the one before, whose answer is not handed in any more, and so does [`Action::GiveBack`]. Ask
/// [`Self::may_decide`] whenever something is about to be decided.
#[derive(Clone, Debug, Hash)]
pub struct Reign {
    config: Config,
    /// Whether there is somebody to ask, and we know whose the key was when we began.
    connected: bool,
    lease: Option<Lease>,
    /// The question at hand, and when it was asked: time counts from there.
    asked: Option<(Question, Instant)>,
    leader: Option<Leader>,
    reigning: Option<Term>,
    /// No key of ours can have been created by a revision below this.
    newest: Term,
    pause: Duration,
    pause_until: Instant,
    /// Who stepped down leaves the next reign to others until then.
    abstains_until: Instant,
    stopped: bool,
    actions: VecDeque<Action>,
}

impl Reign {
    /// Somebody who stands by.
    pub fn new(config: Config) -> Self {
        let pause = config.retry.0;
        Self {
            config,
            connected: false,
            lease: None,
            asked: None,
            leader: None,
            reigning: None,
            newest: 0,
            pause,
            pause_until: Instant::ORIGIN,
            abstains_until: Instant::ORIGIN,
            stopped: false,
            actions: VecDeque::new(),
        }
    }

    /// There is somebody to ask, who says whose the key is.
    pub fn handle_connected(&mut self, now: Instant, leader: Option<Leader>) {
        self.connected = true;
        // Whatever was asked before was lost with the connection.
        self.asked = None;
        self.pause_until = now;
        self.see(leader);
        self.look(now);
    }

    /// There is nobody to ask until `handle_connected`.
    pub fn handle_disconnected(&mut self, now: Instant) {
        self.connected = false;
        self.asked = None;
        self.look(now);
    }

    /// A lease was granted.
    pub fn handle_granted(&mut self, now: Instant, granted: Duration) {
        if let Some(asked) = self.answered(Question::Grant) {
            self.lease = Some(Lease::new(asked, granted));
        }
        self.look(now);
    }

    /// The lease was renewed for that long, or had run out.
    pub fn handle_renewed(&mut self, now: Instant, granted: Option<Duration>) {
        if let Some(asked) = self.answered(Question::Renew) {
            match granted {
                // An answer that came after the end of what we counted on is too late: the reign is over.
                Some(granted) if self.lasts(now) => self.lease = Some(Lease::new(asked, granted)),
                Some(_) => {}
                None => self.lose_lease(),
            }
        }
        self.look(now);
    }

    /// A campaign ended.
    pub fn handle_campaigned(&mut self, now: Instant, campaign: Campaign) {
        if self.answered(Question::Campaign).is_some() {
            self.see(Some(match campaign {
                Campaign::Won(term) => Leader { term, is_ours: true },
                Campaign::Lost(term) => Leader { term, is_ours: false },
            }));
        }
        self.look(now);
    }

    /// The question at hand was not answered; it may be asked again after a pause. `lease_gone`: because our lease is.
    pub fn handle_failed(&mut self, now: Instant, lease_gone: bool) {
        self.asked = None;
        if lease_gone {
            self.lose_lease();
        }
        self.pause_until = now + self.pause;
        self.pause = retry::longer(self.pause, self.config.retry.1);
        self.look(now);
    }

    /// The key was created.
    pub fn handle_leader(&mut self, now: Instant, leader: Leader) {
        self.see(Some(leader));
        self.look(now);
    }

    /// The key was deleted, by that revision.
    pub fn handle_vacant(&mut self, now: Instant, revision: Term) {
        if self.leader.is_none_or(|leader| leader.term < revision) && self.newest < revision {
            self.newest = revision;
            self.see(None);
        }
        self.look(now);
    }

    /// What we wanted to write under that term was refused, because the key is not ours.
    pub fn handle_refused(&mut self, now: Instant, term: Term) {
        if self.reigning == Some(term) {
            self.lose_lease();
        }
        self.look(now);
    }

    /// Somebody who stands by says that so many peers reach it; of those on our own lines so many are left who do not look
    /// for us in vain ([`Appeal`](super::Appeal)). Whether that ends the reign: then another one can be reached by more of
    /// them, and has two leases' time to be elected, whoever of the others it is.
    pub fn handle_appeal(&mut self, now: Instant, term: Term, reached: u64, served: u64) -> bool {
        let steps_down = self.may_decide(now) == Some(term) && reached > served;
        if steps_down {
            self.abstains_until = now + 2 * self.config.lease.max(self.granted().unwrap_or_default());
            self.lose_lease();
        }
        self.look(now);
        steps_down
    }

    /// Resigns, for good.
    pub fn handle_stop(&mut self) {
        self.stopped = true;
        self.lose_lease();
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.look(now);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call `handle_timeout`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let lease = self.lease.map(|lease| lease.good_until);
        let ask = match (self.connected && self.asked.is_none() && !self.stopped, self.lease) {
            (false, _) => None,
            (true, None) => Some(self.pause_until),
            // Who lost a campaign, or failed to hold one, waits for its pause as well.
            (true, Some(lease)) => {
                let renew_at = lease.renew_at.max(self.pause_until);
                let campaign_at = self.pause_until.max(self.abstains_until);
                Some(if self.wants_to_campaign() { renew_at.min(campaign_at) } else { renew_at })
            }
        };
        lease.into_iter().chain(ask).min()
    }

    /// The term under which something may be decided at this moment.
    pub fn may_decide(&self, now: Instant) -> Option<Term> {
        self.reigning.filter(|_| self.lasts(now))
    }

    /// Until when that is so unless the lease is renewed.
    pub fn good_until(&self) -> Option<Instant> {
        self.reigning.and(self.lease).map(|lease| lease.good_until)
    }

    /// How long the lease was granted for.
    pub fn granted(&self) -> Option<Duration> {
        self.lease.map(|lease| lease.granted)
    }

    /// Whoever reigns, as far as is known.
    pub fn leader(&self) -> Option<Leader> {
        self.leader
    }

    fn lasts(&self, now: Instant) -> bool {
        self.lease.is_some_and(|lease| now < lease.good_until)
    }

    fn wants_to_campaign(&self) -> bool {
        self.reigning.is_none() && self.leader.is_none()
    }

    /// When the question was asked that is answered now; none if nobody waits for that answer any more.
    fn answered(&mut self, question: Question) -> Option<Instant> {
        let (_, at) = self.asked.take_if(|(asked, _)| *asked == question)?;
        self.pause = self.config.retry.0;
        Some(at)
    }

    /// What is told of the key; what is older than what is known is no news.
    fn see(&mut self, leader: Option<Leader>) {
        match leader {
            Some(leader) if leader.term < self.newest => {}
            Some(leader) => {
                self.newest = leader.term;
                self.leader = Some(leader);
                if self.reigning.is_some_and(|term| term != leader.term) {
                    self.lose_lease();
                }
            }
            None => {
                self.leader = None;
                if self.reigning.is_some() {
                    self.lose_lease();
                }
            }
        }
    }

    /// Our lease is over, or is of no use any more. A reign goes with it.
    fn lose_lease(&mut self) {
        if let Some(term) = self.reigning.take() {
            self.actions.push_back(Action::End(term));
        }
        if self.lease.take().is_some() {
            self.actions.push_back(Action::GiveBack);
        }
        self.asked = None;
        // The key that ends with it is not ours any more: it is waited for like anybody's.
        if let Some(leader) = &mut self.leader {
            leader.is_ours = false;
        }
    }

    /// Looks at the clock, and at what is to be asked next.
    fn look(&mut self, now: Instant) {
        if self.lease.is_some() && !self.lasts(now) {
            self.lose_lease();
        }
        if self.stopped {
            return;
        }
        if let Some(Leader { term, is_ours: true }) = self.leader
            && self.reigning.is_none()
            && self.lasts(now)
        {
            self.reigning = Some(term);
            self.actions.push_back(Action::Begin(term));
        }
        if !self.connected || self.asked.is_some() || now < self.pause_until {
            return;
        }
        let question = match self.lease {
            None => Question::Grant,
            Some(_) if self.wants_to_campaign() && now >= self.abstains_until => Question::Campaign,
            Some(lease) if now >= lease.renew_at => Question::Renew,
            Some(_) => return,
        };
        self.asked = Some((question, now));
        self.actions.push_back(match question {
            Question::Grant => Action::Grant(self.config.lease),
            Question::Renew => Action::Renew,
            Question::Campaign => Action::Campaign,
        });
    }
}
