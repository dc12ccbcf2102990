//! `outlast members`: a member of a group that does nothing but be a member.
//!
//! In a terminal it is a live table; without one it prints a line per event, with `--json` an object per event.
//! It leaves politely on `q`, Ctrl-C and SIGTERM. Nothing here decides anything about health: it shows what
//! [`outlast::Membership`] says.

mod options;
mod report;
mod screen;
mod table;

pub(crate) use options::{Args, PresetName, duration};

use super::group_secret::{GroupSecret, HandOver};
use super::json;
use super::stop::StopSignal;
use crate::ExitCode;
use anyhow::Context as _;
use outlast::Membership;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How long the goodbye may take: enough for all its packets, and short enough for an impatient person.
const GOODBYE: Duration = Duration::from_secs(2);
/// How long an idle program waits before it looks whether it was told to stop.
const GLANCE: Duration = Duration::from_millis(100);

/// Runs the daemon until it is told to stop.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    outlast::port::raise_files_max();
    let stop = StopSignal::install()?;
    let secret = GroupSecret::find_or_generate(args.secret_file.as_deref(), !args.join.is_empty())?;
    let membership = args.builder(secret.secret().clone())?.start()?;
    let hand_over = secret.hand_over("members", membership.address())?;
    let join = args.join_command(membership.address(), &hand_over);
    let live = is_live(args);
    announce(&membership, args, &join, &hand_over)?;
    if live {
        screen::run(&membership, args, &join, stop)?;
    } else {
        match print_events(&membership, args, stop) {
            // Whoever read our lines has gone: nothing is left to do but to leave.
            Err(error) if is_broken_pipe(&error) => {}
            outcome => outcome?,
        }
    }
    membership.leave(GOODBYE).context("leaving the group")?;
    if args.json {
        let _ = print_line(&report::stopped_json().to_string());
    } else {
        let _ = print_line("left the group");
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a table fills the screen.
pub(crate) fn is_live(args: &Args) -> bool {
    std::io::stdout().is_terminal() && !args.json && !args.plain
}

/// The first lines: where we are, and what to type elsewhere to join.
fn announce(membership: &Membership, args: &Args, join: &str, hand_over: &HandOver) -> anyhow::Result<()> {
    if args.json {
        let mut started = report::started_json(membership, &membership.info(), args.run_id.as_str(), join);
        started["secret_file"] = hand_over.file().map(|path| path.display().to_string()).into();
        return print_line(&started.to_string());
    }
    print_line(&format!(
        "member {} ({}) at {}, run {}",
        membership.info().name,
        membership.id().short(),
        membership.address(),
        args.run_id
    ))?;
    print_line(&hand_over.explanation())?;
    print_line(&format!("others join with:  {join}"))
}

fn print_events(membership: &Membership, args: &Args, stop: StopSignal) -> anyhow::Result<()> {
    let mut status_due = args.status_every.map(|every| Instant::now() + every);
    while !stop.is_set() {
        let wait = status_due.map_or(GLANCE, |due| due.saturating_duration_since(Instant::now()).min(GLANCE));
        for event in membership.events(wait)? {
            let line =
                if args.json { report::event_json(&event).to_string() } else { report::event_text(&event) };
            print_line(&line)?;
        }
        if let (Some(every), Some(due)) = (args.status_every, status_due)
            && Instant::now() >= due
        {
            status_due = Some(Instant::now() + every);
            print_line(&report::status_json(membership)?.to_string())?;
        }
    }
    Ok(())
}

/// Prints one line and hands it on at once: whoever reads a pipe wants the event now.
fn print_line(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(json::printable_line(line).as_bytes())?;
    out.flush()?;
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
