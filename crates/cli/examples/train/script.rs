//! The order of events: what the director does to the run, and what it waits for after it.
//!
//! Nothing here waits for time to pass in the hope that something has happened. Each part does one thing to the
//! run and then waits, with a deadline, for what must follow: a step that everybody who lives has committed. How
//! long that took is the *recovery time*, counted from the signal to the moment at which the last
//! worker had its receipt, on the clock that all processes share.

use crate::Options;
use crate::crew::{Condition, Crew};
use crate::ledger::{Entry, Ledger};
use crate::picture;
use crate::said::micros;
use crate::show::{Event, Show};
use crate::stop::StopSignal;
use anyhow::{Context as _, Result, bail, ensure};
use std::time::{Duration, Instant};

const FOUNDERS: [&str; 4] = ["ada", "bob", "cleo", "dan"];
const NEWCOMER: &str = "eve";

/// What the model must reach on the test images.
const ACCURACY_MIN: f32 = 0.95;
/// How long the stopped worker stays stopped: a fifth of its stall budget.
const STOP_TIME: Duration = Duration::from_secs(2);
/// The same on a machine so busy that the coordinator takes longer to notice; still within the budget.
const STOP_TIME_MAX: Duration = Duration::from_secs(8);
/// How long there is no coordinator.
const AWAY_TIME: Duration = Duration::from_millis(500);
/// Nothing that the demo waits for takes this long unless something is broken.
const PATIENCE: Duration = Duration::from_secs(30);
/// Training from one event to the next may take this long on a slow machine.
const TRAINING_PATIENCE: Duration = Duration::from_secs(100);
/// How often the director looks up when it hears nothing.
const GLANCE: Duration = Duration::from_millis(50);

/// Plays the whole demo.
pub(crate) fn play(options: &Options) -> Result<()> {
    let stop = StopSignal::install()?;
    let mut stage = Stage {
        crew: Crew::new(options.pace),
        ledger: Ledger::default(),
        show: Show::new(options.json),
        stop,
        faults: Vec::new(),
    };
    let share = |percent: u64| options.steps * percent / 100;
    stage.form()?;
    stage.train_to(share(20))?;
    let victim = stage.kill_the_first()?;
    stage.train_to(share(40))?;
    stage.stop_one()?;
    stage.train_to(share(55))?;
    stage.let_one_join()?;
    stage.train_to(share(75))?;
    stage.lose_the_coordinator()?;
    stage.train_to(options.steps)?;
    stage.finish(victim)?;
    let picture = picture::draw(&stage.ledger, &stage.crew, stage.show.events(), &options.picture)?;
    stage.show.close(&stage.ledger, &stage.crew, &stage.faults, &picture)
}

/// One line of the closing table.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) recovered: Duration,
    pub(crate) meaning: String,
}

struct Stage {
    crew: Crew,
    ledger: Ledger,
    show: Show,
    stop: StopSignal,
    faults: Vec<Fault>,
}

impl Stage {
    /// A coordinator and four workers that find each other.
    fn form(&mut self) -> Result<()> {
        let began = micros();
        self.crew.start_coordinator()?;
        self.until("the coordinator to listen", PATIENCE, |stage| stage.crew.listening_since.is_some())?;
        self.tell(Event::new(
            "started",
            "A coordinator listens; four workers start, and wait for each other.",
        ));
        for name in FOUNDERS {
            self.crew.start_worker(name, FOUNDERS.len())?;
        }
        let entry = self.until_some("the first step", |stage| stage.shared_after(0).next().cloned())?;
        let took = since(began, entry.last_at());
        self.tell(
            Event::new(
                "formed",
                format!("All four train: the first step was committed after {}.", span(took)),
            )
            .recovery(took),
        );
        Ok(())
    }

    /// SIGKILL to the worker of rank 0. In many systems that is the end of the run.
    fn kill_the_first(&mut self) -> Result<usize> {
        let victim = self.by_rank(0)?;
        let (name, id, pid) = self.describe(victim);
        let at = self.crew.kill(victim)?;
        self.tell(
            Event::new("killed", format!("SIGKILL to {name} (pid {pid}, rank 0)."))
                .about(&name)
                .at(at)
                .mark(),
        );
        let without = |entry: &Entry| !entry.commit.contributors.contains(&id);
        let entry = self.until_some("a step without the killed worker", |stage| {
            stage.shared_after(at).find(|entry| without(entry)).cloned()
        })?;
        let took = since(at, entry.last_at());
        let attempts = counted(entry.commit.attempts.into(), "attempt");
        let text = format!(
            "The other three committed step {} without it {} after the kill, in {attempts}. Nobody restarted.",
            entry.commit.step,
            span(took),
        );
        self.recovered(
            "killed",
            &format!("SIGKILL to {name}, rank 0"),
            took,
            "the kill to a step by the other three",
            text,
            &entry,
        );
        Ok(victim)
    }

    /// SIGSTOP, two seconds, SIGCONT. A stopped process is waited for.
    fn stop_one(&mut self) -> Result<()> {
        let target = self.by_rank(1)?;
        let (name, _, pid) = self.describe(target);
        let stopped = self.crew.stop(target)?;
        let text = format!("SIGSTOP to {name} (pid {pid}, rank 1) for {}.", span(STOP_TIME));
        self.tell(Event::new("stopped", text).about(&name).at(stopped).mark());
        let begun = Instant::now();
        let mut seen = None;
        while begun.elapsed() < STOP_TIME || seen.is_none() {
            ensure!(begun.elapsed() < STOP_TIME_MAX, "the coordinator did not call {name} stalled");
            self.listen_until(Instant::now() + GLANCE.min(STOP_TIME.saturating_sub(begun.elapsed())))?;
            if seen.is_none() {
                seen = self.stalled(&name);
                if let Some(sentence) = &seen {
                    let text = format!("`outlast status` would say: {sentence}");
                    self.tell(Event::new("status", text).about(&name));
                }
            }
        }
        let continued = self.crew.go_on(target)?;
        let entry =
            self.until_some("a step after the stop", |stage| stage.shared_after(continued).next().cloned())?;
        let meanwhile = self.ledger.after(stopped).take_while(|entry| entry.first_at() < continued).count();
        // The step whose votes were in may still commit; the next one needs the stopped worker.
        ensure!(meanwhile <= 1, "{meanwhile} steps were committed without waiting for {name}");
        ensure!(entry.commit.contributors.len() == 3, "somebody was evicted for being stopped");
        let took = since(continued, entry.last_at());
        let text = format!(
            "SIGCONT: all three committed step {} {} later. The others had waited; nobody was thrown out.",
            entry.commit.step,
            span(took)
        );
        let what = format!("SIGSTOP to {name} for {}", span(since(stopped, continued)));
        self.recovered("continued", &what, took, "SIGCONT to a step by all three", text, &entry);
        Ok(())
    }

    /// A new worker comes in while the others train, and catches up.
    fn let_one_join(&mut self) -> Result<()> {
        let at = micros();
        let number = self.crew.start_worker(NEWCOMER, 1)?;
        self.tell(
            Event::new("joining", format!("A new worker, {NEWCOMER}, starts and asks to be let in."))
                .about(NEWCOMER)
                .at(at)
                .mark(),
        );
        let entry = self.until_some("a step with the newcomer", |stage| {
            stage.shared_after(at).find(|entry| entry.by.contains_key(NEWCOMER)).cloned()
        })?;
        let caught_up =
            self.crew.workers[number].caught_up.clone().context("the newcomer never caught up")?;
        let took = since(at, entry.last_at());
        let text = format!(
            "{NEWCOMER} took {} KB of state at step {} from {} in {}, and trains with the others {} after its process started.",
            caught_up.bytes / 1_000,
            caught_up.step,
            self.crew.name_of(&caught_up.from),
            span(caught_up.took),
            span(took),
        );
        self.recovered(
            "joined",
            &format!("{NEWCOMER} joins"),
            took,
            "process start to a step by all four",
            text,
            &entry,
        );
        Ok(())
    }

    /// SIGKILL to the coordinator, and another at the same address.
    fn lose_the_coordinator(&mut self) -> Result<()> {
        let killed = self.crew.kill_coordinator()?;
        self.tell(
            Event::new("coordinator_killed", "SIGKILL to the coordinator. Nobody can commit now.")
                .at(killed)
                .mark(),
        );
        let deadline = Instant::now() + AWAY_TIME;
        while Instant::now() < deadline {
            self.listen_until(deadline.min(Instant::now() + GLANCE))?;
        }
        self.crew.start_coordinator()?;
        self.until("the new coordinator to listen", PATIENCE, |stage| stage.crew.listening_since.is_some())?;
        let listening = self.crew.listening_since.context("a coordinator")?;
        let entry = self.until_some("a step under the new coordinator", |stage| {
            stage.shared_after(listening).next().cloned()
        })?;
        ensure!(entry.commit.contributors.len() == 4, "the new coordinator lost somebody");
        let took = since(listening, entry.last_at());
        let text = format!(
            "Started again {} later with nothing but the secret; the workers told it the rest: step {} was committed after {}.",
            span(since(killed, listening)),
            entry.commit.step,
            span(took)
        );
        self.recovered(
            "coordinator_back",
            "SIGKILL to the coordinator",
            took,
            "its restart to a step by all four",
            text,
            &entry,
        );
        Ok(())
    }

    /// All stop after the same step, and the replicas are compared.
    fn finish(&mut self, victim: usize) -> Result<()> {
        self.crew.tell_stop();
        self.until("everybody to finish", PATIENCE, |stage| {
            stage.crew.living().all(|worker| worker.condition == Condition::Done)
        })?;
        self.crew.see_off()?;
        let finishes: Vec<_> = self.crew.living().filter_map(|worker| worker.finish.clone()).collect();
        let first = finishes.first().context("nobody finished")?;
        ensure!(finishes.len() == FOUNDERS.len(), "{} replicas finished", finishes.len());
        ensure!(
            finishes.iter().all(|finish| finish == first),
            "the replicas differ in the end: {finishes:?}"
        );
        ensure!(first.accuracy >= ACCURACY_MIN, "the model reads {:.1} % right", first.accuracy * 100.0);

        // Who contributed must have changed twice and no more: by the kill, and by the newcomer.
        let names = |phase: &crate::ledger::Phase| -> Vec<String> {
            let mut names: Vec<_> =
                phase.contributors.iter().map(|id| self.crew.name_of(id).to_owned()).collect();
            names.sort();
            names
        };
        let phases: Vec<_> = self.ledger.phases().iter().map(names).collect();
        let founders: Vec<_> = FOUNDERS.map(str::to_owned).to_vec();
        let killed = &self.crew.workers[victim].name;
        let survivors: Vec<_> = founders.iter().filter(|name| *name != killed).cloned().collect();
        let grown = [&*survivors, &[NEWCOMER.to_owned()]].concat();
        ensure!(
            phases == [founders, survivors, grown],
            "the contributors were, one after the other: {phases:?}"
        );
        let text = format!("All four stopped after step {}; the replicas are equal to the bit.", first.step);
        self.tell(Event::new("finished", text));
        Ok(())
    }

    /// Trains until that many steps are done.
    fn train_to(&mut self, step: u64) -> Result<()> {
        self.until("the training to go on", TRAINING_PATIENCE, |stage| stage.ledger.last_step() >= step)
    }

    fn by_rank(&self, rank: usize) -> Result<usize> {
        let has = |worker: &crate::crew::Worker| {
            worker.condition == Condition::Training
                && worker.last.as_ref().is_some_and(|commit| commit.rank == rank)
        };
        self.crew.workers.iter().position(has).with_context(|| format!("nobody has rank {rank}"))
    }

    fn describe(&self, number: usize) -> (String, String, u32) {
        let worker = &self.crew.workers[number];
        (worker.name.clone(), worker.id.clone(), worker.pid())
    }

    /// The steps after that moment which everybody who lives has committed.
    fn shared_after(&self, moment: u64) -> impl Iterator<Item = &Entry> {
        let by_all = |entry: &&Entry| self.crew.living().all(|worker| entry.by.contains_key(&worker.name));
        self.ledger.after(moment).filter(by_all)
    }

    /// What the coordinator says about a worker, if it calls it stalled.
    fn stalled(&self, name: &str) -> Option<String> {
        let status = self.crew.status().ok()?;
        let peers = status["peers"].as_array()?;
        let stalled = peers.iter().any(|peer| peer["name"] == name && peer["health"] == "stalled");
        let sentences = status["waiting"].as_array()?.iter().filter_map(|sentence| sentence.as_str());
        sentences.filter(|_| stalled).find(|sentence| sentence.contains(name)).map(str::to_owned)
    }

    fn tell(&mut self, event: Event) {
        self.show.tell(event, &self.ledger, &self.crew);
    }

    fn recovered(
        &mut self,
        kind: &'static str,
        what: &str,
        took: Duration,
        meaning: &str,
        text: String,
        entry: &Entry,
    ) {
        self.tell(Event::new(kind, text).recovery(took).at(entry.last_at()));
        self.faults.push(Fault { what: what.to_owned(), recovered: took, meaning: meaning.to_owned() });
    }

    fn until(&mut self, what: &str, patience: Duration, met: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !met(self) {
            if Instant::now() >= deadline {
                bail!("waited {} for {what}, in vain. {}", span(patience), self.crew.describe());
            }
            self.listen_until(deadline.min(Instant::now() + GLANCE))?;
        }
        Ok(())
    }

    fn until_some<T>(&mut self, what: &str, find: impl Fn(&Self) -> Option<T>) -> Result<T> {
        self.until(what, PATIENCE, |stage| find(stage).is_some())?;
        find(self).with_context(|| format!("lost sight of {what}"))
    }

    /// Takes a line if one comes, and redraws.
    fn listen_until(&mut self, deadline: Instant) -> Result<()> {
        if self.stop.is_set() {
            bail!("it was interrupted");
        }
        if let Some((number, commit)) = self.crew.listen(deadline)? {
            self.ledger.enter(&self.crew.workers[number].name, &commit)?;
        }
        self.show.refresh(&self.ledger, &self.crew);
        Ok(())
    }
}

fn since(from: u64, to: u64) -> Duration {
    Duration::from_micros(to.saturating_sub(from))
}

/// A number of things.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// A time for people.
pub(crate) fn span(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
