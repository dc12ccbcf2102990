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
mod nodes;
mod options;
mod ports;
mod program;
mod progress;
mod report;
mod signals;
mod standby;

pub(crate) use options::Args;

use super::address::coordinators;
use super::group_secret::GroupSecret;
use crate::ExitCode;
use crew::Workers;
use environment::{Common, Secret};
use logs::Logs;
use nodes::{Door, Introduction, Nodes};
use outlast::agent::{Config, Driver, Elastic, Orders};
use outlast::{Coordinator, Rendezvous};
use program::{Style, program};
use progress::{Progress, Source};
use signals::Signals;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// What shells say of a command that is not there.
const NOT_FOUND: u8 = 127;
/// `EX_USAGE` of sysexits.
const USAGE: u8 = 64;

/// Starts the workers and stays until they are done.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let signals = Signals::install()?;
    let workers = match args.nproc_per_node.number() {
        Ok(count) => count,
        Err(text) => return Ok(usage(&text)),
    };
    let named = std::env::var("OUTLAST_COORDINATOR").ok().filter(|address| !address.is_empty());
    let address = args.coordinator.clone().or(named).filter(|_| !args.standalone);
    if let Some(Err(text)) = address.as_deref().map(coordinators) {
        return Ok(usage(&format!("the coordinator {:?}: {text}", address.unwrap_or_default())));
    }
    if let Some(script) = program::missing_script(&args.command, style(args)) {
        eprintln!("outlast: there is no file {}: name a script, or a module with -m", script.display());
        return Ok(ExitCode::from(NOT_FOUND));
    }
    if address.is_none() && args.nnodes.max > 1 {
        return Ok(usage(
            "several machines need a coordinator: start one with `outlast coordinator`, and give --coordinator HOST:PORT \
             and its secret to each `outlast run`",
        ));
    }
    outlast::port::raise_files_max();
    let secret = GroupSecret::find_or_generate(args.secret_file.as_deref(), address.is_some())?;
    let credentials = args.trust.credentials(secret.secret())?;
    let _standby = match (&address, args.standby.standby) {
        (_, false) => None,
        (Some(addresses), true) => Some(args.standby.start(addresses, &secret, &args.trust)?),
        (None, true) => {
            return Ok(usage("--standby needs --coordinator: the addresses of all machines that carry one"));
        }
    };
    let source = match &address {
        Some(address) => Source::Remote(address.clone(), Box::new(credentials.clone())),
        None => Source::Embedded(Box::new(embedded(args, &secret)?)),
    };
    let elastic = Elastic::from(args.elastic);
    let common = Common {
        coordinator: match &source {
            Source::Embedded(coordinator) => coordinator.address().to_string(),
            Source::Remote(address, _) => address.clone(),
        },
        run: args.run_id.clone(),
        secret: handed_on(args, &secret),
        workers,
        budget: args.max_restarts,
        role: args.role.clone(),
        run_per_round: elastic == Elastic::Restart,
    };
    let config = Config { slots: workers, budget: args.max_restarts, elastic, grace: args.grace };
    let (driver, orders) = Driver::new(config)?;
    signals.pass_on(orders.clone())?;
    let (logs, writer) = Logs::start(args.json)?;
    let round = Arc::<AtomicU32>::default();
    let watched = (common.clone(), Arc::clone(&round));
    let progress = Progress::start(logs.clone(), source, watched, orders.clone())?;
    let processors = if args.numa { devices::near_processors(workers) } else { None };
    let shown = args.redirects.as_ref().map_or_else(|| args.tee.clone(), options::Shown::others);
    let output = (logs.clone(), args.log_dir.clone(), shown);
    let run_and_round = (credentials.clone(), round);
    let mut crew = Workers::new(common, command(args), processors, output, orders.clone(), run_and_round);
    if let Some(address) = address {
        let door = Door { coordinator: address, credentials, run: args.run_id.clone() };
        crew.nodes = Some(nodes(args, door, workers, orders, logs.clone())?);
    }
    let outcome = driver.run(&mut crew);
    drop(progress);
    crew.conclude(outcome);
    logs.end(writer);
    Ok(ExitCode::from(outcome.code()))
}

/// A coordinator for this machine alone.
fn embedded(args: &Args, secret: &GroupSecret) -> anyhow::Result<Coordinator> {
    let mut builder = Coordinator::builder()
        .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .secret(secret.secret().clone());
    if let Some(accepted) = args.trust.accepted()? {
        builder = builder.accept_secret(accepted);
    }
    Ok(builder.start()?)
}

/// Looks for the other machines.
fn nodes(args: &Args, door: Door, workers: usize, orders: Orders, logs: Logs) -> anyhow::Result<Nodes> {
    let times = &args.rdzv_conf;
    // The register is at the one of several coordinators that reigns.
    let backend = format!("embedded://{}", door.coordinator);
    let first = door.coordinator.split([',', '?']).next().unwrap_or_default().trim();
    // Of coordinators that are found at an etcd we know the way to the etcd.
    let first = first.trim_start_matches("etcd:").rsplit('/').next().unwrap_or_default().to_owned();
    let mut builder = Rendezvous::builder(backend, args.nnodes.min, args.nnodes.max)
        .run_id(args.run_id.clone())
        .configure(|settings| {
            settings.join = times.join.unwrap_or(settings.join);
            settings.last_call = times.last_call.unwrap_or(settings.last_call);
            // Nobody waits for long for a goodbye.
            settings.close = times.close.unwrap_or(Duration::from_secs(5));
            settings.keep_alive_interval = times.keep_alive_interval.unwrap_or(settings.keep_alive_interval);
        });
    if let Some(secret) = door.credentials.secret() {
        builder = builder.secret(secret.clone());
    }
    if let Some(accepted) = args.trust.accepted()? {
        builder = builder.accept_secret(accepted);
    }
    if let Some(certificate) = args.trust.certificate()? {
        builder = builder.tls(certificate);
    }
    let rendezvous = builder.start()?;
    let patience = rendezvous.settings().join;
    let host = args.local_addr.clone().unwrap_or_else(|| own_address(&first));
    let introduction = Introduction { host, port: 0, workers };
    Ok(Nodes::start(rendezvous, (introduction, patience), door, args.elastic.into(), orders, logs)?)
}

/// The address from which packets to the coordinator leave: there others reach this machine. Nothing is sent for it.
fn own_address(coordinator: &str) -> String {
    let towards = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(coordinator)?;
        socket.local_addr()
    };
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    towards().map_or_else(|_: std::io::Error| host(), |address| address.ip().to_string())
}

fn usage(text: &str) -> ExitCode {
    eprintln!("outlast: {text}");
    ExitCode::from(USAGE)
}

fn style(args: &Args) -> Style {
    if args.module {
        Style::Module
    } else if args.no_python {
        Style::Plain
    } else {
        Style::Guess
    }
}

fn command(args: &Args) -> program::Program {
    let own = crate::started_with().filter(|command| command.len() > 1);
    let interpreter = own.and_then(|command| command.first().cloned());
    program(&args.command, style(args), &interpreter.unwrap_or_else(|| OsString::from("python3")))
}

/// How workers get the secret: as the user gave it, or as text if it was made here.
fn handed_on(args: &Args, secret: &GroupSecret) -> Secret {
    match &args.secret_file {
        Some(path) => Secret::File(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        None if secret.is_fresh() => Secret::Text(secret.secret().to_text()),
        None => Secret::Inherited,
    }
}
