//! The loop around the live table: keys in, frames out, the terminal given back whatever happens.

use super::super::stop::StopSignal;
use super::options::Args;
use super::table::{Screen, draw};
use outlast::Membership;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::time::{Duration, Instant};

/// Ages tick in tenths of a second; more frames would show nothing new.
const FRAME: Duration = Duration::from_millis(100);

/// Shows the table until the user has seen enough.
pub(super) fn run(membership: &Membership, args: &Args, join: &str, stop: StopSignal) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let outcome = frames(&mut terminal, membership, args, join, stop);
    ratatui::restore();
    outcome
}

fn frames(
    terminal: &mut DefaultTerminal,
    membership: &Membership,
    args: &Args,
    join: &str,
    stop: StopSignal,
) -> anyhow::Result<()> {
    let mut view = Screen {
        own_id: membership.id().to_string(),
        run: args.run_id.to_string(),
        preset: args.preset.word().to_owned(),
        join: join.to_owned(),
        ..Screen::default()
    };
    loop {
        membership.events(Duration::ZERO)?.into_iter().for_each(|event| view.remember(event));
        view.now = membership.now();
        view.active = membership.active()?;
        view.failed = membership.failed()?;
        view.rates.update(view.now, &membership.counters());
        view.leaving = stop.is_set() || leave_key(Instant::now() + FRAME)?;
        terminal.draw(|frame| draw(frame, &view))?;
        if view.leaving {
            return Ok(());
        }
    }
}

/// Waits for keys until `until`; true if one of them means "leave". In raw mode Ctrl-C is a key like others.
fn leave_key(until: Instant) -> anyhow::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if !event::poll(left)? {
            return Ok(false);
        }
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(true);
            }
        }
    }
}
