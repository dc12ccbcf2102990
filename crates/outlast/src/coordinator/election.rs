//! Several coordinators at one etcd, of which one reigns (rule 19).
//!
//! # The problem
//!
//! A run must go on when the host of its coordinator is gone, without anybody who moves an address or starts something.
//! Several coordinators stand ready for that, and at no time may two of them decide.
//!
//! # The intuition
//!
//! What is decided here is in `outlast_proto::reign`: a machine that says when to ask for a lease, when to campaign and
//! when to stop. This is its driver: one task that asks an etcd, one question at a time, and listens to a watch. It tells
//! everybody else in the process through the [`Post`] and the clerk through a queue of its own.
//!
//! ```text
//! outlast-coordinators/<cluster>/key           the key that all of them have, sealed with the run secret
//!                               /leader        where whoever reigns can be reached; ends with its lease; the revision
//!                                              that created it is the term
//!                               /member/<id>   where each of them can be reached; ends with its lease
//!                               /appeal/<id>   whom one of them is reached by, and who of those does not reach the leader
//!                               /facts/<run>   what outlives a reign
//! ```
//!
//! # The invariant
//!
//! Facts are written by a transaction that asks whether the leader's key is the writer's: with its lease, created by its
//! term. So whoever begins to reign reads facts that nobody can change any more, however late a write of its predecessor
//! arrives.
//!
//! # What it does not do
//!
//! It does not wait for the clerk, and the clerk not for it: a run whose facts are not written yet says nothing, and all
//! others go on.

mod keys;
mod seat;

pub(super) use keys::{Keys, common_key};
pub(super) use seat::{Seat, Write};

use super::clerk::News;
use super::post::Post;
use super::registers::Registers;
use crate::clock;
use crate::etcd::{
    Change, Committed, Etcd, EtcdError, EtcdOptions, LeaseId, Pair, Range, Transaction, Watch,
};
use crate::sync::Arc;
use outlast_proto::coordinator::{Facts, FactsStamp};
use outlast_proto::id::RunId;
use outlast_proto::reign::{Action, Appeal, Campaign, Config, Leader, Reign};
use outlast_proto::retry;
use outlast_proto::time::Duration;
use outlast_proto::wire::control::Term;
use std::collections::BTreeMap;
use std::pin::Pin;
use tokio::sync::{mpsc, oneshot};

/// How long giving the lease back may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pauses between two attempts to reach etcd.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// Leases that are remembered until they have surely ended.
const OWED_MAX: usize = 4;
/// Runs whose facts are written in one transaction; etcd takes 128 operations.
const BATCH_MAX: usize = 64;

type Pending<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

/// What a question led to.
enum Answer {
    Granted(LeaseId, Duration),
    Renewed(Option<Duration>),
    Campaigned(Committed),
}

/// What was found when a connection was made.
struct Opened {
    etcd: Etcd,
    watch: Watch,
    range: Range,
}

/// The driver of one coordinator's part in an election.
pub(super) struct Election {
    options: EtcdOptions,
    keys: Keys,
    /// Where others reach us, and how long an old member is waited for.
    own: String,
    grace: Duration,
    reign: Reign,
    lease: Option<LeaseId>,
    /// Leases that were given up while etcd could not be told. Nobody else reigns before they end.
    owed: Vec<LeaseId>,
    /// The term that the clerk serves under.
    begun: Option<Term>,
    members: BTreeMap<Vec<u8>, String>,
    leader: Option<String>,
    post: Post,
    registers: Arc<Registers>,
    clerk: mpsc::UnboundedSender<News>,
    first: usize,
    pause: Duration,
    /// What is to be written, the latest of each run.
    unwritten: BTreeMap<RunId, (FactsStamp, Vec<u8>)>,
    // What is under way.
    etcd: Option<Etcd>,
    watch: Option<Watch>,
    opening: Pending<Result<Opened, EtcdError>>,
    question: Pending<Result<Answer, EtcdError>>,
    reading: Pending<Result<Range, EtcdError>>,
    writing: Pending<Result<bool, EtcdError>>,
    in_writing: Vec<(RunId, FactsStamp)>,
    rest_until: Option<tokio::time::Instant>,
    /// What we say for peers that cannot reach whoever reigns; what is said to us, and how many we serve all the same.
    appealing: Pending<Result<(), EtcdError>>,
    hearing: Pending<Option<(Appeal, u64)>>,
}

/// How long peers look in vain for whoever reigns before they are spoken for: longer than a busy leader takes to answer, shorter
/// than one attempt to find it.
pub(super) fn patience(lease: Duration) -> Duration {
    (lease * 3 / 4).clamp(Duration::from_millis(1_500), Duration::from_millis(2_500))
}

impl Election {
    pub(super) fn new(
        (options, keys): (EtcdOptions, Keys),
        (own, lease, grace): (String, Duration, Duration),
        (post, registers): (Post, Arc<Registers>),
        clerk: mpsc::UnboundedSender<News>,
    ) -> Self {
        // What is not answered in a quarter of a lease is asked of another member.
        let timeout = (lease / 4).clamp(Duration::from_millis(300), Duration::from_secs(5));
        Self {
            options: options.timeout(timeout),
            keys,
            own,
            grace,
            reign: Reign::new(Config::new(lease)),
            lease: None,
            owed: Vec::new(),
            begun: None,
            members: BTreeMap::new(),
            leader: None,
            post,
            registers,
            clerk,
            first: usize::from(u16::from_ne_bytes(crate::security::random_bytes())),
            pause: PAUSES.0,
            unwritten: BTreeMap::new(),
            etcd: None,
            watch: None,
            opening: None,
            question: None,
            reading: None,
            writing: None,
            in_writing: Vec::new(),
            rest_until: None,
            appealing: None,
            hearing: None,
        }
    }

    /// Takes part until it is told to stop, or there is no clerk any more who could serve under a lease (rule 40); then the
    /// lease is given back, and whoever asked hears of it.
    pub(super) async fn run(
        mut self,
        mut writes: mpsc::UnboundedReceiver<Write>,
        mut stop: oneshot::Receiver<std::sync::mpsc::Sender<()>>,
    ) {
        loop {
            self.act();
            if self.etcd.is_none() && self.opening.is_none() && self.rest_until.is_none() {
                self.opening = Some(Box::pin(open(self.options.clone(), self.first, self.keys.prefix())));
            }
            self.read_or_write();
            let appeal_at = self.speak_up();
            let wake = self.reign.poll_timeout().map(|at| {
                tokio::time::Instant::now() + at.since(clock::boot_now()).max(Duration::from_millis(1))
            });
            tokio::select! {
                told = &mut stop => {
                    self.resign().await;
                    if let Ok(done) = told {
                        let _ = done.send(());
                    }
                    return;
                }
                () = self.clerk.closed() => {
                    self.resign().await;
                    return;
                }
                opened = next(&mut self.opening) => self.opened(opened),
                answer = next(&mut self.question) => self.answered(answer),
                range = next(&mut self.reading) => self.have_read(range),
                held = next(&mut self.writing) => self.have_written(held),
                said = next(&mut self.appealing) => if let Err(error) = said {
                    self.broken(&error);
                },
                heard = next(&mut self.hearing) => if let Some((appeal, served)) = heard {
                    self.weigh(&appeal, served);
                },
                () = self.post.visited() => {}
                () = at(appeal_at) => {}
                changes = watched(&mut self.watch) => match changes {
                    Ok(changes) => changes.into_iter().for_each(|change| self.see(change)),
                    Err(error) => self.broken(&error),
                },
                Some((reign, run, stamp, bytes)) = writes.recv() => {
                    // What an earlier reign of ours wanted written is void.
                    if self.begun == Some(reign) {
                        self.unwritten.insert(run, (stamp, bytes));
                    }
                }
                () = at(wake) => self.reign.handle_timeout(clock::boot_now()),
                () = at(self.rest_until) => self.rest_until = None,
            }
        }
    }

    /// Carries out what the machine asks for.
    fn act(&mut self) {
        while let Some(action) = self.reign.poll_action() {
            match action {
                Action::Grant(time) => self.ask(|etcd, keys, own, _| async move {
                    let (lease, granted) = etcd.grant(time).await?;
                    etcd.commit(Transaction::new().put(&keys.member(), own.as_bytes(), Some(lease))).await?;
                    Ok(Answer::Granted(lease, granted))
                }),
                Action::Renew => self.ask(|etcd, _, _, lease| async move {
                    etcd.keep_alive(lease.ok_or(EtcdError::LeaseGone)?).await.map(Answer::Renewed)
                }),
                Action::Campaign => self.ask(|etcd, keys, own, lease| async move {
                    let (lease, key) = (lease.ok_or(EtcdError::LeaseGone)?, keys.leader());
                    let campaign = Transaction::new().when_created(&key, 0);
                    let campaign = campaign.put(&key, own.as_bytes(), Some(lease)).read(&key);
                    etcd.commit(campaign).await.map(Answer::Campaigned)
                }),
                Action::Begin(term) => tracing::info!(term, "elected; what was written down is read"),
                Action::End(term) => self.end(term),
                Action::GiveBack => {
                    self.question = None;
                    self.owed.extend(self.lease.take());
                    self.give_back();
                }
            }
        }
        let until = self.reign.good_until().filter(|_| self.begun.is_some());
        self.post.permit(until);
        self.tell();
    }

    /// Ends the leases that we hold no more, if etcd can be told; otherwise when it can. If that fails they run out.
    fn give_back(&mut self) {
        // One whose end is not certain is named again after the next connection; that costs nothing.
        let oldest = self.owed.len().saturating_sub(OWED_MAX);
        self.owed.drain(..oldest);
        if let Some(etcd) = self.etcd.clone() {
            let leases = self.owed.clone();
            tokio::spawn(tokio::time::timeout(GOODBYE_TIMEOUT, async move {
                for lease in leases {
                    let _ = etcd.revoke(lease).await;
                }
            }));
        }
    }

    fn ask<F>(&mut self, question: impl FnOnce(Etcd, Keys, String, Option<LeaseId>) -> F)
    where
        F: Future<Output = Result<Answer, EtcdError>> + Send + 'static,
    {
        let Some(etcd) = self.etcd.clone() else { return self.question = None };
        self.question = Some(Box::pin(question(etcd, self.keys.clone(), self.own.clone(), self.lease)));
    }

    /// Lets everybody in the process know how things stand.
    fn tell(&self) {
        let leader = self.reign.leader();
        let (term, leads) = (leader.map_or(0, |leader| leader.term), self.begun.is_some());
        let place = if leads { Some(&self.own) } else { self.leader.as_ref() };
        let place = place.filter(|_| leader.is_some()).cloned().unwrap_or_default();
        let standbys = self.members.values().filter(|member| **member != place).cloned().collect();
        let lease = self.reign.granted().unwrap_or_default();
        let other = leader.filter(|_| !leads && !place.is_empty());
        self.post.note_reign(other.map(|leader| leader.term));
        self.post.tell(|situation| {
            (situation.term, situation.leads, situation.leader) = (term, leads, place);
            (situation.standbys, situation.lease) = (standbys, lease);
        });
    }

    fn end(&mut self, term: Term) {
        self.post.permit(None);
        self.reading = None;
        self.writing = None;
        self.hearing = None;
        self.unwritten.clear();
        if self.begun.take().is_some() {
            tracing::warn!(term, "the reign is over");
            self.registers.stop();
            let _ = self.clerk.send(News::Ended);
        }
    }

    fn opened(&mut self, opened: Result<Opened, EtcdError>) {
        let Opened { etcd, watch, range } = match opened {
            Ok(opened) => opened,
            Err(error) => return self.broken(&error),
        };
        self.pause = PAUSES.0;
        (self.etcd, self.watch) = (Some(etcd), Some(watch));
        self.members.clear();
        self.leader = None;
        let mut leader = None;
        for pair in range.pairs {
            if pair.key == self.keys.leader() {
                leader = Some(self.leader_of(&pair));
                self.leader = place(&pair);
            } else {
                self.note_member(pair);
            }
        }
        self.give_back();
        self.reign.handle_connected(clock::boot_now(), leader);
    }

    fn leader_of(&self, pair: &Pair) -> Leader {
        Leader { term: term(pair.created), is_ours: pair.lease.is_some() && pair.lease == self.lease }
    }

    fn note_member(&mut self, pair: Pair) {
        if self.keys.is_member(&pair.key)
            && let Some(place) = place(&pair)
        {
            self.members.insert(pair.key, place);
        }
    }

    fn broken(&mut self, error: &EtcdError) {
        if error.may_pass() {
            tracing::debug!(%error, "no etcd at the moment");
        } else {
            tracing::error!(%error, "etcd does not serve this coordinator");
        }
        (self.etcd, self.watch, self.opening, self.question) = (None, None, None, None);
        (self.reading, self.writing, self.appealing) = (None, None, None);
        self.first = self.first.wrapping_add(1);
        self.rest_until = Some(tokio::time::Instant::now() + self.pause);
        self.pause = retry::longer(self.pause, PAUSES.1);
        self.reign.handle_disconnected(clock::boot_now());
    }

    fn answered(&mut self, answer: Result<Answer, EtcdError>) {
        let now = clock::boot_now();
        match answer {
            Ok(Answer::Granted(lease, granted)) => {
                self.lease = Some(lease);
                self.reign.handle_granted(now, granted);
            }
            Ok(Answer::Renewed(granted)) => self.reign.handle_renewed(now, granted),
            Ok(Answer::Campaigned(Committed { held: true, revision, .. })) => {
                self.reign.handle_campaigned(now, Campaign::Won(term(revision)));
            }
            Ok(Answer::Campaigned(Committed { pairs, .. })) => match pairs.first() {
                // A campaign of ours whose answer was lost.
                Some(pair) if self.leader_of(pair).is_ours => {
                    self.reign.handle_campaigned(now, Campaign::Won(term(pair.created)));
                }
                Some(pair) => {
                    self.leader = place(pair);
                    self.reign.handle_campaigned(now, Campaign::Lost(term(pair.created)));
                }
                None => self.reign.handle_failed(now, false),
            },
            Err(EtcdError::LeaseGone) => self.reign.handle_failed(now, true),
            Err(error) => self.broken(&error),
        }
    }

    /// Something has changed at etcd.
    fn see(&mut self, change: Change) {
        let now = clock::boot_now();
        match change {
            Change::Put(pair) if pair.key == self.keys.leader() => {
                let leader = self.leader_of(&pair);
                self.leader = place(&pair);
                self.reign.handle_leader(now, leader);
            }
            Change::Put(pair) if self.keys.is_appeal(&pair.key) => self.hear(&pair),
            Change::Put(pair) => self.note_member(pair),
            Change::Deleted { key, revision } if key == self.keys.leader() => {
                self.reign.handle_vacant(now, term(revision));
            }
            Change::Deleted { key, .. } => {
                self.members.remove(&key);
            }
        }
    }

    /// Says for the peers that cannot reach whoever reigns that they reach us; when to look again.
    fn speak_up(&mut self) -> Option<tokio::time::Instant> {
        let (appeal, next) = self.post.appeal();
        if let (Some(appeal), Some(etcd), Some(lease), None) =
            (appeal, &self.etcd, self.lease, &self.appealing)
        {
            let (term, reached, seekers) = (appeal.term, appeal.reached, appeal.seekers.len());
            tracing::warn!(
                term,
                reached,
                seekers,
                "peers reach this coordinator and not the one that reigns"
            );
            let (etcd, key) = (etcd.clone(), self.keys.appeal());
            self.appealing = Some(Box::pin(async move {
                etcd.commit(Transaction::new().put(&key, &appeal.to_bytes(), Some(lease))).await.map(drop)
            }));
        }
        next.map(|next| {
            tokio::time::Instant::now() + next.since(clock::boot_now()).max(Duration::from_millis(1))
        })
    }

    /// One that stands by speaks for peers that do not reach us.
    fn hear(&mut self, pair: &Pair) {
        let Some(appeal) = Appeal::from_bytes(&pair.value).filter(|appeal| self.begun == Some(appeal.term))
        else {
            return;
        };
        if self.hearing.is_none() {
            let (asked, answer) = oneshot::channel();
            let _ = self.clerk.send(News::Appeal(appeal.clone(), asked));
            self.hearing = Some(Box::pin(async move { Some((appeal, answer.await.ok()?)) }));
        }
    }

    fn weigh(&mut self, appeal: &Appeal, served: u64) {
        let Appeal { term, reached, .. } = *appeal;
        if self.reign.handle_appeal(clock::boot_now(), term, reached, served) {
            tracing::warn!(
                term,
                reached,
                served,
                "more peers reach another coordinator: this one steps down"
            );
        }
    }

    /// Begins to read what the reign before has written, or to write what this one must.
    fn read_or_write(&mut self) {
        let (Some(etcd), Some(reigning)) = (&self.etcd, self.reign.may_decide(clock::boot_now())) else {
            return;
        };
        if self.begun != Some(reigning) {
            if self.reading.is_none() {
                let (etcd, prefix) = (etcd.clone(), self.keys.facts_prefix());
                self.reading = Some(Box::pin(async move { etcd.range(&prefix).await }));
            }
            return;
        }
        let Some(lease) = self.lease.filter(|_| self.writing.is_none() && !self.unwritten.is_empty()) else {
            return;
        };
        let (etcd, leader) = (etcd.clone(), self.keys.leader());
        let mut write = Transaction::new()
            .when_created(&leader, i64::try_from(reigning).unwrap_or(i64::MAX))
            .when_lease(&leader, lease);
        self.in_writing.clear();
        for (run, (stamp, bytes)) in self.unwritten.iter().take(BATCH_MAX) {
            write = write.put(&self.keys.facts(run), bytes, None);
            self.in_writing.push((run.clone(), *stamp));
        }
        self.writing = Some(Box::pin(async move { etcd.commit(write).await.map(|written| written.held) }));
    }

    fn have_read(&mut self, range: Result<Range, EtcdError>) {
        let range = match range {
            Ok(range) => range,
            Err(error) => return self.broken(&error),
        };
        let Some(term) = self.reign.may_decide(clock::boot_now()) else { return };
        let facts: BTreeMap<RunId, Facts> =
            range.pairs.iter().filter_map(|pair| self.keys.read_facts(pair)).collect();
        tracing::info!(term, runs = facts.len(), "reigns");
        self.begun = Some(term);
        self.registers.begin(clock::now() + self.grace);
        self.post.permit(self.reign.good_until());
        let _ = self.clerk.send(News::Begun(term, facts));
    }

    fn have_written(&mut self, held: Result<bool, EtcdError>) {
        match held {
            Ok(true) => {
                for (run, stamp) in std::mem::take(&mut self.in_writing) {
                    if self.unwritten.get(&run).is_some_and(|(latest, _)| *latest == stamp) {
                        self.unwritten.remove(&run);
                    }
                    let _ = self.clerk.send(News::Written(run, stamp));
                }
            }
            Ok(false) => {
                if let Some(term) = self.begun {
                    self.reign.handle_refused(clock::boot_now(), term);
                }
            }
            Err(error) => self.broken(&error),
        }
    }

    /// Stops deciding, then gives the lease back.
    async fn resign(&mut self) {
        self.end(0);
        let (lease, etcd) = (self.lease.take(), self.etcd.take());
        self.reign.handle_stop();
        if let (Some(lease), Some(etcd)) = (lease, etcd) {
            let _ = tokio::time::timeout(GOODBYE_TIMEOUT, etcd.revoke(lease)).await;
        }
    }
}

/// Connects, and looks at what there is.
async fn open(options: EtcdOptions, first: usize, prefix: Vec<u8>) -> Result<Opened, EtcdError> {
    let etcd = Etcd::connect(&options, first).await?;
    let range = etcd.range(&prefix).await?;
    let watch = etcd.watch(&prefix, range.revision + 1).await?;
    Ok(Opened { etcd, watch, range })
}

fn term(revision: i64) -> Term {
    revision.max(0).unsigned_abs()
}

fn place(pair: &Pair) -> Option<String> {
    String::from_utf8(pair.value.clone()).ok()
}

/// Waits for what is under way, if anything is.
async fn next<T>(pending: &mut Pending<T>) -> T {
    let Some(future) = pending else { return std::future::pending().await };
    let outcome = future.await;
    *pending = None;
    outcome
}

async fn watched(watch: &mut Option<Watch>) -> Result<Vec<Change>, EtcdError> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn at(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
