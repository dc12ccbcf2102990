//! `outlast run`: workers that stay up.
//!
//! What torchrun users know, without its traps: one command starts the workers of a machine and watches them. Who dies
//! is replaced alone, or all are started again together; who is told to stop gets time to finish its step; and nothing
//! that a worker started outlives the agent, however that ends.
//!
//! This file puts the parts together. What an agent decides is in `outlast_proto::agent`; processes are in
//! [`outlast::agent`]; here are the command line, the environment, the logs and the words.

mod crew;
mod devices;
mod environment;
mod logs;
mod options;
mod ports;
mod program;
mod progress;
mod report;
mod signals;

pub(crate) use options::Args;

use super::group_secret::GroupSecret;
use crate::ExitCode;
use crew::Workers;
use environment::{Common, Secret};
use logs::Logs;
use outlast::Coordinator;
use outlast::agent::{Config, Driver};
use program::{Style, program};
use progress::Progress;
use signals::Signals;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};

/// `EX_USAGE` of sysexits.
const USAGE: u8 = 64;

/// Starts the workers and stays until they are done.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let signals = Signals::install()?;
    let workers = match args.nproc_per_node.number() {
        Ok(count) => count,
        Err(text) => return Ok(usage(&text)),
    };
    let coordinator = std::env::var("OUTLAST_COORDINATOR").ok().filter(|address| !address.is_empty());
    let coordinator = args.coordinator.clone().or(coordinator).filter(|_| !args.standalone);
    if coordinator.is_some() || args.nnodes.max > 1 {
        return Ok(usage("several machines are not built yet: use --standalone"));
    }
    outlast::port::raise_files_max();
    let secret = GroupSecret::find_or_generate(args.secret_file.as_deref(), coordinator.is_some())?;
    let mut builder = Coordinator::builder()
        .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .secret(secret.secret().clone());
    if let Some(accepted) = args.trust.accepted()? {
        builder = builder.accept_secret(accepted);
    }
    let embedded = builder.start()?;
    let common = Common {
        coordinator: embedded.address().to_string(),
        run: args.run_id.clone(),
        secret: handed_on(args, &secret),
        workers,
        budget: args.max_restarts,
        role: args.role.clone(),
        run_per_round: matches!(args.elastic, options::ElasticName::Restart),
    };
    let config =
        Config { slots: workers, budget: args.max_restarts, elastic: args.elastic.into(), grace: args.grace };
    let (driver, orders) = Driver::new(config)?;
    signals.pass_on(orders.clone())?;
    let (logs, writer) = Logs::start(args.json)?;
    let progress = Progress::start(logs.clone(), embedded, common.clone())?;
    let processors = if args.numa { devices::near_processors(workers) } else { None };
    let shown = args.redirects.as_ref().map_or_else(|| args.tee.clone(), options::Shown::others);
    let output = (logs.clone(), args.log_dir.clone(), shown);
    let credentials = args.trust.credentials(secret.secret())?;
    let mut crew = Workers::new(common, command(args), processors, output, orders, credentials);
    let outcome = driver.run(&mut crew);
    drop(progress);
    crew.conclude(outcome);
    logs.end(writer);
    Ok(ExitCode::from(outcome.code()))
}

fn usage(text: &str) -> ExitCode {
    eprintln!("outlast: {text}");
    ExitCode::from(USAGE)
}

fn command(args: &Args) -> program::Program {
    let style = if args.module {
        Style::Module
    } else if args.no_python {
        Style::Plain
    } else {
        Style::Guess
    };
    let own = crate::started_with().filter(|command| command.len() > 1);
    let interpreter = own.and_then(|command| command.first().cloned());
    program(&args.command, style, &interpreter.unwrap_or_else(|| OsString::from("python3")))
}

/// How workers get the secret: as the user gave it, or as text if it was made here.
fn handed_on(args: &Args, secret: &GroupSecret) -> Secret {
    match &args.secret_file {
        Some(path) => Secret::File(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        None if secret.is_fresh() => Secret::Text(secret.secret().to_text()),
        None => Secret::Inherited,
    }
}
