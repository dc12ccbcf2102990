//! Threads that look for rings, so that the clerk never does.
//!
//! Two lanes, each a thread of its own that is made for the first question: one for answers that a vote waits for, and
//! one for searches in the background, which runs at a lower priority and may take ten seconds for each. So a vote never
//! queues behind a moonshot, and votes of all runs together never behind more than a few milliseconds of each other.
//!
//! Every question gets an answer: what was found, or `Unknown` if the lane is full, has no thread, or panicked over it.
//! Only one that was called off may get none. The lanes end with the clerk.

use super::clerk::{Asked, Inbox};
use outlast_proto::coordinator::SolveToken;
use outlast_proto::id::RunId;
use outlast_proto::topology::{Answer, Question};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tokio::sync::mpsc;

/// Questions that wait in one lane.
const WAITING_MAX: usize = 64;

struct Job {
    run: RunId,
    token: Asked<SolveToken>,
    question: Question,
    is_off: Arc<AtomicBool>,
}

/// The two lanes.
pub(super) struct Solver {
    inbox: mpsc::WeakSender<Inbox>,
    /// More steps than this are for the background.
    quick_steps: u64,
    quick: Option<SyncSender<Job>>,
    background: Option<SyncSender<Job>>,
    open: BTreeMap<(RunId, Asked<SolveToken>), Arc<AtomicBool>>,
}

impl Solver {
    pub(super) fn new(inbox: mpsc::WeakSender<Inbox>, quick_steps: u64) -> Self {
        Self { inbox, quick_steps, quick: None, background: None, open: BTreeMap::new() }
    }

    /// Has a question worked on. The answer comes to the inbox.
    pub(super) fn ask(&mut self, run: RunId, token: Asked<SolveToken>, question: Question) {
        let (name, lane) = if question.steps <= self.quick_steps {
            ("outlast-rings", &mut self.quick)
        } else {
            ("outlast-moonshot", &mut self.background)
        };
        let is_off = Arc::<AtomicBool>::default();
        self.open.insert((run.clone(), token), Arc::clone(&is_off));
        let mut job = Job { run, token, question, is_off };
        // A lane whose thread is gone is made anew, once.
        for _ in 0..2 {
            let Some(sender) = lane.clone().or_else(|| start(name, self.inbox.clone())) else {
                break;
            };
            *lane = Some(sender.clone());
            match sender.try_send(job) {
                Ok(()) => return,
                Err(std::sync::mpsc::TrySendError::Disconnected(back)) => (*lane, job) = (None, back),
                Err(std::sync::mpsc::TrySendError::Full(back)) => {
                    job = back;
                    break;
                }
            }
        }
        tracing::warn!(run = %job.run, "too many rings are looked for at once: one is not");
        let inbox = self.inbox.clone();
        tokio::spawn(async move { tell(&inbox, job.run, job.token, Answer::Unknown).await });
    }

    /// Nobody waits for that answer any more.
    pub(super) fn call_off(&mut self, run: &RunId, token: Asked<SolveToken>) {
        if let Some(flag) = self.open.remove(&(run.clone(), token)) {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// The machine of that number is gone, and whatever it asked.
    pub(super) fn forget(&mut self, run: &RunId, number: u64) {
        self.open.retain(|(asked_for, (asker, _)), flag| {
            let stays = asked_for != run || *asker != number;
            flag.fetch_or(!stays, Ordering::Relaxed);
            stays
        });
    }

    /// An answer came.
    pub(super) fn answered(&mut self, run: &RunId, token: Asked<SolveToken>) {
        self.open.remove(&(run.clone(), token));
    }
}

impl Drop for Solver {
    fn drop(&mut self) {
        self.open.values().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }
}

async fn tell(inbox: &mpsc::WeakSender<Inbox>, run: RunId, token: Asked<SolveToken>, answer: Answer) {
    if let Some(inbox) = inbox.upgrade() {
        let _ = inbox.send(Inbox::Solved { run, token, answer }).await;
    }
}

/// Starts a lane; none if there is no thread for it.
fn start(name: &'static str, inbox: mpsc::WeakSender<Inbox>) -> Option<SyncSender<Job>> {
    let (sender, jobs) = sync_channel(WAITING_MAX);
    let work = move || work(name, &jobs, &inbox);
    std::thread::Builder::new().name(name.to_owned()).spawn(work).ok().map(|_| sender)
}

fn work(name: &'static str, jobs: &Receiver<Job>, inbox: &mpsc::WeakSender<Inbox>) {
    if name == "outlast-moonshot" {
        crate::runtime::be_nice();
    }
    while let Ok(Job { run, token, question, is_off }) = jobs.recv() {
        let off = || is_off.load(Ordering::Relaxed);
        // Every question is answered, one that was called off before its turn too.
        let solve = || if off() { Answer::Unknown } else { question.answer(&off) };
        let answer = catch_unwind(AssertUnwindSafe(solve)).unwrap_or(Answer::Unknown);
        let Some(inbox) = inbox.upgrade() else { return };
        let _ = inbox.blocking_send(Inbox::Solved { run, token, answer });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_proto::topology::Costs;
    use std::time::Duration;

    fn question(members: usize, steps: u64) -> Question {
        let costs = Costs::new(members, |from, to| 1 + ((from * 7 + to * 13) % 17) as u64);
        Question { costs, clusters: (0..members as u32).map(|host| (host, 0)).collect(), seed: 1, steps }
    }

    async fn next(letters: &mut mpsc::Receiver<Inbox>) -> (Asked<SolveToken>, Answer) {
        let letter = tokio::time::timeout(Duration::from_mins(1), letters.recv()).await;
        match letter.expect("an answer in time").expect("the inbox is open") {
            Inbox::Solved { token, answer, .. } => (token, answer),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_vote_does_not_queue_behind_a_moonshot_and_a_moonshot_can_be_called_off() {
        let (inbox, mut letters) = mpsc::channel(8);
        let mut solver = Solver::new(inbox.downgrade(), 1_000);
        let run: RunId = "run".parse().unwrap();
        // One that was called off before its thread has looked at it has found nothing: then once more.
        let mut answer = Answer::Unknown;
        let mut number = 1;
        while answer.ring().is_none() {
            let (moonshot, vote) = ((1, SolveToken(number)), (1, SolveToken(number + 1)));
            // It would take forever.
            solver.ask(run.clone(), moonshot, question(60, u64::MAX));
            solver.ask(run.clone(), vote, question(8, 1_000));
            let (token, best) = next(&mut letters).await;
            assert!(token == vote && matches!(best, Answer::Best(_)), "{token:?} {best:?}");
            solver.call_off(&run, moonshot);
            let token;
            (token, answer) = next(&mut letters).await;
            assert_eq!(token, moonshot);
            number += 2;
            assert!(number < 200, "what was found so far is told");
        }
    }

    #[tokio::test]
    async fn a_question_over_which_the_solver_panics_is_answered_too() {
        let (inbox, mut letters) = mpsc::channel(8);
        let mut solver = Solver::new(inbox.downgrade(), 1_000);
        let run: RunId = "run".parse().unwrap();
        let mut wrong = question(8, 1_000);
        wrong.clusters = vec![(0, 0), (0, 0), (1, 1)]; // Fewer than members: an index beyond its end.
        solver.ask(run.clone(), (1, SolveToken(1)), wrong);
        assert_eq!(next(&mut letters).await, ((1, SolveToken(1)), Answer::Unknown));
        solver.ask(run, (1, SolveToken(2)), question(5, 1_000));
        assert_eq!(next(&mut letters).await.0, (1, SolveToken(2)), "the lane goes on");
    }
}
