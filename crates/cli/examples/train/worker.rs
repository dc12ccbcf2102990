//! A worker: elastic data-parallel training in about a hundred lines.
//!
//! The loop is what a training program on Outlast looks like. `Elastic` comes in and comes back, lets newcomers in and brings
//! them up to date, takes the mean over whoever contributed, and hands out samples so that none is used twice. What is left
//! to the program is what only it knows: what a sample is, what a gradient is, how the optimiser steps.
//!
//! The end is agreed as well: whoever was told to stop says so in a tensor beside the gradients, and all
//! members stop after the same step.

use crate::data::{BATCH, Digits};
use crate::model::{self, Model};
use crate::said::{Commit, Said, micros, say};
use crate::stop::StopSignal;
use anyhow::{Context as _, Result};
use outlast::communicator::Error;
use outlast::elastic::{ElasticOptions, Step};
use outlast::membership::Preset;
use outlast::{Communicator, Elastic};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No call takes longer than this.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a replica is tested, in steps.
const TEST_EVERY: u64 = 10;

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
    // The agent passes SIGTERM on when it is time to go.
    let stop = StopSignal::install()?;
    let comm = Communicator::builder()
        .name(&options.name)
        .listen((Ipv4Addr::LOCALHOST, 0).into())
        .preset(Preset::Local)
        .timeout(CALL_TIMEOUT)
        .start()
        .context("a communicator")?;
    say(&Said::Ready { id: comm.peer_id().to_string() });
    // The founders wait for each other; whoever is left later goes on.
    comm.connect(options.min_world)?;
    let (pace, digits) = (Duration::from_millis(options.pace_ms), Digits::load());
    let mut elastic = Elastic::new(Arc::new(comm), model::fresh()?, ElasticOptions::new())?;
    let mut syncs = 0;
    loop {
        let began = Instant::now();
        let mut committed = match elastic.step(|step| train_step(step, &digits, stop)) {
            Ok(committed) => committed,
            Err(error) => {
                say(&Said::Failed { why: error.to_string() });
                return Err(error.into());
            }
        };
        tell_catch_up(&elastic, &mut syncs);
        let model = Model::of(elastic.state());
        let tested = elastic.number().is_multiple_of(TEST_EVERY);
        committed.commit.accuracy = tested.then(|| model.accuracy(&digits.test));
        committed.commit.digest = digest(&elastic);
        say(&Said::Committed(committed.commit));
        if committed.stop {
            break;
        }
        std::thread::sleep(pace.saturating_sub(began.elapsed()));
    }
    let accuracy = Model::of(elastic.state()).accuracy(&digits.test);
    say(&Said::Done { step: elastic.number(), digest: digest(&elastic), accuracy });
    elastic.communicator().leave();
    Ok(())
}

fn digest(elastic: &Elastic) -> String {
    format!("{:032x}", elastic.state().digest())
}

/// Tells what the last sync brought, if it brought anything.
fn tell_catch_up(elastic: &Elastic, syncs: &mut u64) {
    let Some(report) = elastic.last_sync().filter(|_| elastic.syncs() > *syncs) else { return };
    *syncs = elastic.syncs();
    let Some((donor, _)) = report.donors.first() else { return };
    say(&Said::CaughtUp {
        at: micros(),
        step: report.revision,
        from: donor.to_string(),
        bytes: report.received as usize,
        micros: (report.seconds * 1e6) as u64,
    });
}

/// A step that counts, and whether all stop after it.
struct Committed {
    commit: Commit,
    stop: bool,
}

/// One step: our part of the gradient, the mean over all members, and the optimiser. What is told of it, except for what
/// the replica comes to.
fn train_step(step: &mut Step<'_>, digits: &Digits, stop: StopSignal) -> Result<Committed, Error> {
    let numbers = step.samples((BATCH / step.world_size()) as u64)?;
    let mut gradient = Model::of(step.state()).gradient(&digits.images(&numbers));
    let mut notes = [gradient.loss, if stop.is_set() { 1.0 } else { 0.0 }];
    let mut tensors: Vec<&mut [f32]> = gradient.layers.iter_mut().map(Vec::as_mut_slice).collect();
    tensors.push(&mut notes);
    let receipt = step.average(&mut tensors, numbers.len() as f64)?;
    let at = micros();
    model::descend(step.state_mut()?, &gradient);
    let [loss, stop] = notes;
    let commit = Commit {
        at,
        step: step.number() + 1,
        epoch: receipt.epoch,
        rank: receipt.rank,
        world: receipt.world_size,
        contributors: receipt.contributors.iter().map(ToString::to_string).collect(),
        attempts: receipt.attempts,
        hash: gradient.digest(),
        bytes_sent: receipt.bytes_sent,
        loss,
        accuracy: None,
        digest: String::new(),
    };
    Ok(Committed { commit, stop: stop > 0.0 })
}
