//! One state of the model, and what may happen in it.

use super::event::Event;
use super::{Budget, Judge, ReignModel};
use crate::explore::search::Violation;
use outlast_proto::reign::{Action, Campaign, Config, Leader, Reign};
use outlast_proto::time::{Duration, Instant};
use std::collections::{BTreeSet, VecDeque};

const STEP: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Hash)]
enum Question {
    Grant,
    Renew(u8),
    Campaign(u8),
}

#[derive(Clone, Debug, Hash)]
enum Word {
    Granted(u8),
    Renewed(bool),
    Won(u64),
    Lost(u64),
    LeaseGone,
    Created { term: u64, lease: u8 },
    Vacant(u64),
}

/// A coordinator and its connection to etcd.
#[derive(Clone, Debug, Hash)]
struct Side {
    reign: Reign,
    lease: Option<u8>,
    question: Option<Question>,
    /// Answers and news, each in its own order.
    answer: Option<Word>,
    news: VecDeque<Word>,
    answered_at: Instant,
    serving: Option<Serving>,
}

/// What a coordinator that reigns knows of the attempt.
#[derive(Clone, Debug, Hash)]
struct Serving {
    term: u64,
    /// Who has promised this term.
    promised: [Option<Promise>; 2],
    decided: bool,
}

/// What a peer tells with its promise.
#[derive(Clone, Copy, Debug, Hash)]
struct Promise {
    /// The verdict that it has heard.
    heard: Option<u64>,
}

/// A peer: the term that it promised, and the verdict that it obeyed. A verdict is named by the term that gave it first:
/// two terms that decide for themselves may decide differently.
#[derive(Clone, Debug, Default, Hash)]
struct Peer {
    promised: u64,
    verdict: Option<u64>,
}

/// See the module's essay.
#[derive(Clone, Debug, Hash)]
pub struct World {
    now: Instant,
    revision: u64,
    /// The lease that the key ends with, and the revision that created it.
    key: Option<(u8, u64)>,
    /// When each lease may run out.
    leases: Vec<(u8, Instant)>,
    next_lease: u8,
    sides: [Side; 2],
    peers: [Peer; 2],
    /// Verdicts under way: to whom, of which term, which.
    verdicts: BTreeSet<(u8, u64, u64)>,
    /// A verdict that differs from one that the same peer obeyed.
    contradicted: Option<(u8, u64, u64)>,
    left: Budget,
    /// The one that stands by hears and answers etcd at once.
    second_is_quick: bool,
}

impl World {
    /// Nobody reigns, and both have just found etcd.
    pub(super) fn vacant(model: &ReignModel) -> Self {
        let side = || Side {
            reign: Reign::new(Config::new(LEASE)),
            lease: None,
            question: None,
            answer: None,
            news: VecDeque::new(),
            answered_at: Instant::ORIGIN,
            serving: None,
        };
        let mut world = Self {
            now: Instant::ORIGIN,
            revision: 1,
            key: None,
            leases: Vec::new(),
            next_lease: 1,
            sides: [side(), side()],
            peers: [Peer::default(), Peer::default()],
            verdicts: BTreeSet::new(),
            contradicted: None,
            left: model.budget,
            second_is_quick: false,
        };
        for side in 0..2 {
            world.sides[side].reign.handle_connected(Instant::ORIGIN, None);
            world.carry_out(side);
        }
        world
    }

    /// The first reigns, both peers have promised to obey it, and the second stands by.
    pub(super) fn reigned(model: &ReignModel) -> Self {
        let mut world = Self::vacant(model);
        while world.talk_at_once(0) {}
        while world.talk_at_once(1) {}
        for peer in 0..2 {
            world.promise(true, 0, peer);
        }
        assert!(world.sides[0].serving.is_some() && world.key.is_some(), "the first reigns");
        world.second_is_quick = true;
        world
    }

    /// A question is asked, answered or heard of without delay; false if there is none.
    fn talk_at_once(&mut self, side: usize) -> bool {
        if self.sides[side].question.is_some() {
            self.ask(side);
        }
        let at = &mut self.sides[side];
        let Some(word) = at.answer.take().or_else(|| at.news.pop_front()) else { return false };
        self.hear(side, &word);
        true
    }

    /// The one that stands by looks at its clock, asks and hears all that there is.
    fn let_the_second_act(&mut self) {
        if self.sides[1].reign.poll_timeout().is_some_and(|due| due <= self.now) {
            self.sides[1].reign.handle_timeout(self.now);
            self.carry_out(1);
        }
        while self.talk_at_once(1) {}
    }

    fn carry_out(&mut self, side: usize) {
        while let Some(action) = self.sides[side].reign.poll_action() {
            let at = &mut self.sides[side];
            match action {
                Action::Grant(_) => at.question = Some(Question::Grant),
                Action::Renew => at.question = at.lease.map(Question::Renew),
                Action::Campaign => at.question = at.lease.map(Question::Campaign),
                Action::Begin(term) => {
                    at.serving = Some(Serving { term, promised: [None; 2], decided: false });
                    continue;
                }
                Action::End(_) => {
                    at.serving = None;
                    continue;
                }
                // Not given back: the world is harder without it.
                Action::GiveBack => (at.lease, at.question) = (None, None),
            }
            at.answer = None;
        }
    }

    pub(super) fn events(&self, model: &ReignModel) -> Vec<Event> {
        let mut events = Vec::new();
        if self.now < Instant::ORIGIN + STEP * model.steps {
            events.push(Event::Time);
        }
        for (number, side) in (0u8..).zip(&self.sides) {
            let mut may = |is_so: bool, event: Event| events.extend(is_so.then_some(event));
            may(side.question.is_some(), Event::Ask(number));
            may(side.answer.is_some(), Event::Answer(number));
            may(!side.news.is_empty(), Event::News(number));
            may(self.left.breaks > 0, Event::Break(number));
            let may_decide = side.reign.may_decide(self.now).is_some();
            may(self.left.appeals > 0 && may_decide, Event::Appeal(number));
            let is_due = side.reign.poll_timeout().is_some_and(|due| due <= self.now);
            may(is_due, Event::Clock(number));
            if let Some(serving) = side.serving.as_ref().filter(|_| model.is_takeover) {
                for (peer, at) in (0u8..).zip(&self.peers) {
                    let hears_it = at.promised <= serving.term || !model.keeps_promises;
                    let is_new = serving.promised[usize::from(peer)].is_none();
                    may(hears_it && is_new, Event::Promise(number, peer));
                }
                let all = serving.promised.iter().all(Option::is_some);
                let decides = self.decides(usize::from(number), model.judge).is_some();
                may(all && !serving.decided && decides, Event::Decide(number));
            }
        }
        let due = self.leases.iter().filter(|(_, until)| *until <= self.now);
        events.extend(due.map(|(lease, _)| Event::Expire(*lease)));
        events.extend(self.verdicts.iter().map(|(peer, term, _)| Event::Hear(*peer, *term as u8)));
        events
    }

    pub(super) fn happen(&mut self, model: &ReignModel, event: Event) -> Result<(), Violation> {
        let now = self.now;
        match event {
            Event::Time => self.now += STEP,
            Event::Ask(side) => self.ask(side.into()),
            Event::Answer(side) => {
                if let Some(word) = self.sides[usize::from(side)].answer.take() {
                    self.hear(side.into(), &word);
                }
            }
            Event::News(side) => {
                if let Some(word) = self.sides[usize::from(side)].news.pop_front() {
                    self.hear(side.into(), &word);
                }
            }
            Event::Break(side) => {
                self.left.breaks -= 1;
                let key = self.key;
                let at = &mut self.sides[usize::from(side)];
                (at.question, at.answer) = (None, None);
                at.news.clear();
                at.reign.handle_disconnected(now);
                let is_ours = |lease| at.lease == Some(lease);
                let leader = key.map(|(lease, term)| Leader { term, is_ours: is_ours(lease) });
                at.reign.handle_connected(now, leader);
                self.carry_out(side.into());
            }
            Event::Appeal(side) => {
                self.left.appeals -= 1;
                let reign = &mut self.sides[usize::from(side)].reign;
                let term = reign.may_decide(now).unwrap_or_default() - u64::from(model.appeals_late);
                if !reign.handle_appeal(now, term, 2, 1) {
                    return Err(Violation::new("appeal", "a leader that few reach does not step down"));
                }
                self.carry_out(side.into());
            }
            Event::Expire(lease) => {
                self.leases.retain(|(other, _)| *other != lease);
                if self.key.is_some_and(|(holder, _)| holder == lease) {
                    self.key = None;
                    self.revision += 1;
                    self.tell(&Word::Vacant(self.revision));
                }
            }
            Event::Clock(side) => {
                self.sides[usize::from(side)].reign.handle_timeout(now);
                self.carry_out(side.into());
            }
            Event::Promise(side, peer) => self.promise(model.keeps_promises, side.into(), peer.into()),
            Event::Decide(side) => self.decide(side.into()),
            Event::Hear(peer, term) => self.hear_verdict(model.keeps_promises, peer, term.into()),
        }
        if self.second_is_quick {
            self.let_the_second_act();
        }
        Ok(())
    }

    fn promise(&mut self, keeps: bool, side: usize, peer: usize) {
        let Some(serving) = &mut self.sides[side].serving else { return };
        serving.promised[peer] = Some(Promise { heard: self.peers[peer].verdict });
        if keeps {
            self.peers[peer].promised = serving.term;
        }
    }

    fn decide(&mut self, side: usize) {
        let Some(serving) = &mut self.sides[side].serving else { return };
        serving.decided = true;
        let heard = serving.promised.iter().flatten().find_map(|promise| promise.heard);
        let verdict = heard.unwrap_or(serving.term);
        self.verdicts.extend((0..2).map(|peer| (peer, serving.term, verdict)));
    }

    fn hear_verdict(&mut self, keeps: bool, to: u8, term: u64) {
        let meant = self.verdicts.iter().find(|(peer, of, _)| *peer == to && *of == term).copied();
        let Some((_, _, verdict)) = meant.filter(|verdict| self.verdicts.remove(verdict)) else { return };
        let peer = &mut self.peers[usize::from(to)];
        if keeps && term < peer.promised {
            return;
        }
        let obeyed = *peer.verdict.get_or_insert(verdict);
        if obeyed != verdict {
            self.contradicted = Some((to, obeyed, verdict));
        }
    }

    fn tell(&mut self, word: &Word) {
        self.sides.iter_mut().for_each(|side| side.news.push_back(word.clone()));
    }

    /// A question reaches etcd.
    fn ask(&mut self, side: usize) {
        let Some(question) = self.sides[side].question.take() else { return };
        let until = self.now + LEASE;
        let answer = match question {
            Question::Grant => {
                let lease = self.next_lease;
                self.next_lease += 1;
                self.leases.push((lease, until));
                Word::Granted(lease)
            }
            Question::Renew(lease) => match self.leases.iter_mut().find(|(other, _)| *other == lease) {
                Some(found) => {
                    found.1 = until;
                    Word::Renewed(true)
                }
                None => Word::Renewed(false),
            },
            Question::Campaign(lease) if self.leases.iter().any(|(other, _)| *other == lease) => {
                if let Some((_, term)) = self.key {
                    Word::Lost(term)
                } else {
                    self.revision += 1;
                    let term = self.revision;
                    self.key = Some((lease, term));
                    self.tell(&Word::Created { term, lease });
                    Word::Won(term)
                }
            }
            Question::Campaign(_) => Word::LeaseGone,
        };
        self.sides[side].answer = Some(answer);
    }

    fn hear(&mut self, side: usize, word: &Word) {
        let now = self.now;
        let at = &mut self.sides[side];
        match *word {
            Word::Granted(lease) => {
                at.lease = Some(lease);
                at.answered_at = now;
                at.reign.handle_granted(now, LEASE);
            }
            Word::Renewed(lasts) => {
                at.answered_at = now;
                at.reign.handle_renewed(now, lasts.then_some(LEASE));
            }
            Word::Won(term) => at.reign.handle_campaigned(now, Campaign::Won(term)),
            Word::Lost(term) => at.reign.handle_campaigned(now, Campaign::Lost(term)),
            Word::LeaseGone => at.reign.handle_failed(now, true),
            Word::Created { term, lease } => {
                at.reign.handle_leader(now, Leader { term, is_ours: at.lease == Some(lease) });
            }
            Word::Vacant(revision) => at.reign.handle_vacant(now, revision),
        }
        self.carry_out(side);
    }

    /// The term under which a side decides at this moment.
    fn decides(&self, side: usize, judge: Judge) -> Option<u64> {
        let side = &self.sides[side];
        let reigns = || side.reign.good_until().zip(side.reign.leader());
        let until = |end: Instant| reigns().filter(|_| self.now < end).map(|(_, leader)| leader.term);
        match judge {
            Judge::Machine => side.reign.may_decide(self.now),
            Judge::FromTheAnswer => until(side.answered_at + LEASE),
            Judge::WithoutAClock => reigns().map(|(_, leader)| leader.term),
            Judge::AFifthLate => reigns().and_then(|(good_until, _)| until(good_until + LEASE * 2 / 5)),
        }
    }

    /// Who may decide, and after whom.
    pub(super) fn check_reigns(&self, judge: Judge) -> Result<(), Violation> {
        let deciding = [self.decides(0, judge), self.decides(1, judge)];
        if let [Some(a), Some(b)] = deciding {
            return Err(Violation::new("one_decides", format!("both decide, under terms {a} and {b}")));
        }
        for term in deciding.into_iter().flatten() {
            if self.key.map(|(_, term)| term) != Some(term) {
                let text = format!("term {term} decides, and the key is {:?}", self.key);
                return Err(Violation::new("key_is_there", text));
            }
        }
        Ok(())
    }

    /// The attempt has one verdict.
    pub(super) fn check_verdicts(&self) -> Result<(), Violation> {
        if let Some((peer, one, other)) = self.contradicted {
            let text = format!("peer {peer} obeyed the verdict of term {one} and hears that of term {other}");
            return Err(Violation::new("one_verdict", text));
        }
        match (self.peers[0].verdict, self.peers[1].verdict) {
            (Some(one), Some(other)) if one != other => {
                let text = format!("the peers obey verdicts of terms {one} and {other}");
                Err(Violation::new("one_verdict", text))
            }
            _ => Ok(()),
        }
    }
}
