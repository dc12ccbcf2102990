//! A worker: elastic data-parallel training in about a hundred lines.
//!
//! The loop is what a training program on Outlast looks like. Each step averages the gradients in one
//! transaction. If a member is lost in the middle, the call is tried again with the survivors by itself, and the
//! mean is over those who contributed. If somebody waits outside, the receipt says so on every member
//! alike (rule 10), so all of them branch the same way: admit, catch up, go on.
//!
//! *Catching up* is one all-gather and one broadcast. Everybody says how many steps it has behind it; the first
//! of those with the most gives its parameters and its optimiser's memory; the others take them. A member that
//! has them already receives what it has, which costs little and keeps the calls of all members the same. These
//! two do not retry by themselves, because their meaning depends on who is there (rule 8): on a loss the whole
//! exchange begins again.
//!
//! The end is agreed as well: whoever was told to stop says so in a tensor beside the gradients, and all
//! members stop after the same step.

use crate::data::Digits;
use crate::model::Model;
use crate::said::{Commit, Said, micros, say};
use anyhow::{Context as _, Result};
use outlast::Communicator;
use outlast::communicator::{Call, Error, NextStep};
use outlast::membership::Preset;
use std::io::BufRead as _;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// No call takes longer than this.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a replica is tested, in steps.
const TEST_EVERY: u64 = 10;
/// How often in a row a catch-up may fail before the worker gives up.
const CATCH_UPS_MAX: u32 = 20;

static STOP: AtomicBool = AtomicBool::new(false);

/// How a worker is started; the coordinator and the secret are in the environment, as for any program.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Its name
    #[arg(long)]
    name: String,
    /// Members to wait for at the start
    #[arg(long)]
    min_world: u32,
    /// Least time for a step, in milliseconds
    #[arg(long)]
    pace_ms: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    mind_the_director();
    let comm = Communicator::builder()
        .name(&options.name)
        .listen((Ipv4Addr::LOCALHOST, 0).into())
        .preset(Preset::Local)
        .timeout(CALL_TIMEOUT)
        .start()
        .context("a communicator")?;
    say(&Said::Ready { id: comm.peer_id().to_string() });
    let pace = Duration::from_millis(options.pace_ms);
    let mut trainer = Trainer { comm, digits: Digits::load(), model: Model::new(), step: 0, pace };
    let mut min_world = options.min_world;
    loop {
        match trainer.train(min_world) {
            Ok(()) => break,
            // The others went on without us: join again, and catch up with them.
            Err(error) if error.action() == NextStep::Rejoin => say(&Said::Out { why: error.to_string() }),
            Err(error) => {
                say(&Said::Failed { why: error.to_string() });
                return Err(error.into());
            }
        }
        min_world = 1;
    }
    let accuracy = trainer.model.accuracy(&trainer.digits.test);
    say(&Said::Done { step: trainer.step, digest: trainer.model.digest(), accuracy });
    trainer.comm.leave();
    Ok(())
}

/// Notes when the director says stop, and ends this process when it is gone.
pub(crate) fn mind_the_director() {
    std::thread::spawn(|| {
        for line in std::io::stdin().lock().lines() {
            if line.is_ok_and(|line| line == "stop") {
                STOP.store(true, Ordering::Relaxed);
            }
        }
        std::process::exit(3);
    });
}

struct Trainer {
    comm: Communicator,
    digits: Digits,
    model: Model,
    step: u64,
    pace: Duration,
}

impl Trainer {
    /// Joins, catches up, and trains until all agree to stop.
    fn train(&mut self, min_world: u32) -> Result<(), Error> {
        self.comm.connect(min_world)?;
        self.catch_up()?;
        loop {
            let began = Instant::now();
            let (stop, pending) = self.train_step()?;
            if stop {
                return Ok(());
            }
            if pending > 0 {
                self.comm.update_topology(1)?;
                self.catch_up()?;
            }
            std::thread::sleep(self.pace.saturating_sub(began.elapsed()));
        }
    }

    /// One step: our part of the gradient, the mean over all members, and the optimiser. Tells whether
    /// somebody wants to stop and how many wait to come in, both the same on every member.
    fn train_step(&mut self) -> Result<(bool, u32), Error> {
        let shard = self.digits.shard(self.step, self.comm.rank(), self.comm.world_size());
        let mut gradient = self.model.gradient(&shard);
        let mut notes = [gradient.loss, if STOP.load(Ordering::Relaxed) { 1.0 } else { 0.0 }];
        let mut tensors: Vec<&mut [f32]> = gradient.layers.iter_mut().map(Vec::as_mut_slice).collect();
        tensors.push(&mut notes);
        let receipt = self.comm.all_reduce_many(&mut tensors, &Call::avg().hash(true))?;
        let at = micros();
        self.model.step(&gradient);
        self.step += 1;
        let [loss, stop] = notes;
        let accuracy = self.step.is_multiple_of(TEST_EVERY).then(|| self.model.accuracy(&self.digits.test));
        say(&Said::Committed(Commit {
            at,
            step: self.step,
            epoch: receipt.epoch,
            rank: receipt.rank,
            world: receipt.world_size,
            contributors: receipt.contributors.iter().map(ToString::to_string).collect(),
            attempts: receipt.attempts,
            hash: format!("{:032x}", receipt.hash.unwrap_or_default()),
            bytes_sent: receipt.bytes_sent,
            loss,
            accuracy,
            digest: self.model.digest(),
        }));
        Ok((stop > 0.0, receipt.pending))
    }

    /// Takes the state of whoever is furthest. Begins again if a member is lost meanwhile.
    fn catch_up(&mut self) -> Result<(), Error> {
        let mut failures = 0;
        loop {
            match self.take_state() {
                Err(error) if error.action() == NextStep::Retry && failures < CATCH_UPS_MAX => failures += 1,
                outcome => return outcome,
            }
        }
    }

    fn take_state(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        let peers = self.comm.peers();
        let mut steps = vec![0; peers.len()];
        self.comm.all_gather(&mut steps, &[self.step], &Call::default())?;
        let most = steps.iter().copied().max().unwrap_or(self.step);
        let first = steps.iter().position(|step| *step == most).unwrap_or(0);
        let Some(donor) = peers.get(first) else { return Ok(()) };
        let mut state = self.model.state();
        self.comm.broadcast(&mut state, donor.id, &Call::default())?;
        if self.step < most {
            self.model.adopt(&state);
            self.step = most;
            let micros_taken = began.elapsed().as_micros() as u64;
            say(&Said::CaughtUp {
                at: micros(),
                step: most,
                from: donor.id.to_string(),
                bytes: size_of_val(&*state),
                micros: micros_taken,
            });
        }
        Ok(())
    }
}
