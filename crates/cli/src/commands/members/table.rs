//! The live table: what a person sees who runs `outlast members` in a terminal.
//!
//! [`Screen`] is everything that is on the screen, gathered once per frame; [`draw`] turns it into cells and
//! touches nothing else, so that a test can draw it into memory and read it.

use super::report::{event_text, path_word};
use outlast::membership::{Counters, Health, Instant, Member, TimedEvent};
use outlast::text::printable;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};
use std::collections::VecDeque;
use std::time::Duration;

/// Events that the log remembers; more do not fit on any screen.
const LOG_MAX: usize = 500;
const JOIN_LABEL: &str = "join: ";
/// Rows of the failed list that are shown before the table needs the room.
const FAILED_ROWS_MAX: u16 = 6;

/// Everything on the screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    pub(super) own_id: String,
    pub(super) run: String,
    pub(super) preset: String,
    pub(super) join: String,
    pub(super) now: Instant,
    pub(super) active: Vec<Member>,
    pub(super) failed: Vec<Member>,
    pub(super) rates: Rates,
    pub(super) log: VecDeque<(TimedEvent, String)>,
    pub(super) leaving: bool,
}

/// Packets per second, smoothed over about two seconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Rates {
    pub(super) sent: f64,
    pub(super) received: f64,
    pub(super) refused_total: u64,
    last: Option<(Instant, u64, u64)>,
}

impl Rates {
    pub(super) fn update(&mut self, now: Instant, counters: &Counters) {
        self.refused_total = counters.refused + counters.malformed;
        let sent = counters.packets_sent + counters.stream_packets_sent;
        let received = counters.packets_received + counters.stream_packets_received;
        if let Some((then, sent_then, received_then)) = self.last {
            let seconds = now.since(then).as_secs_f64();
            if seconds < 0.1 {
                return;
            }
            let weight = (seconds / 2.0).min(1.0);
            let blend = |old: f64, count: u64| old + weight * (count as f64 / seconds - old);
            self.sent = blend(self.sent, sent.saturating_sub(sent_then));
            self.received = blend(self.received, received.saturating_sub(received_then));
        }
        self.last = Some((now, sent, received));
    }
}

impl Screen {
    pub(super) fn remember(&mut self, event: TimedEvent) {
        if self.log.len() == LOG_MAX {
            self.log.pop_front();
        }
        let text = event_text(&event);
        self.log.push_back((event, text));
    }
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, view: &Screen) {
    let failed_rows = u16::try_from(view.failed.len()).unwrap_or(u16::MAX).min(FAILED_ROWS_MAX);
    let failed_height = if failed_rows == 0 { 0 } else { failed_rows + 3 };
    let members_height = u16::try_from(view.active.len()).unwrap_or(u16::MAX).saturating_add(3);
    let [header, members, failed, log, footer] = Layout::vertical([
        Constraint::Length(3 + join_rows(view, frame.area().width)),
        Constraint::Max(members_height),
        Constraint::Max(failed_height),
        Constraint::Min(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_header(frame, header, view);
    draw_active(frame, members, view);
    if failed_height > 0 {
        draw_failed(frame, failed, view);
    }
    draw_log(frame, log, view);
    let hint = if view.leaving { " saying goodbye .. " } else { " q leaves the group politely " };
    frame.render_widget(Paragraph::new(hint).style(Style::new().fg(Color::DarkGray)), footer);
}

/// Rows that the command to join needs: it is there to be copied, so it is never cut off.
fn join_rows(view: &Screen, width: u16) -> u16 {
    let room = usize::from(width.saturating_sub(2)).max(1);
    u16::try_from((JOIN_LABEL.len() + view.join.chars().count()).div_ceil(room)).unwrap_or(1).clamp(1, 6)
}

fn draw_header(frame: &mut Frame<'_>, area: Rect, view: &Screen) {
    let count = |word: &str| view.active.iter().filter(|member| member.health.word() == word).count();
    let (stalled, suspect) = (count("stalled"), count("suspect"));
    let mut group = vec![
        Span::from(format!("{} active", view.active.len())).bold().fg(Color::Green),
        Span::from(format!("  {} failed", view.failed.len())).fg(Color::DarkGray),
    ];
    if stalled > 0 {
        group.insert(1, Span::from(format!("  {stalled} stalled")).fg(Color::Yellow));
    }
    if suspect > 0 {
        group.insert(1, Span::from(format!("  {suspect} suspect")).fg(Color::Magenta));
    }
    group.push(Span::from(format!(
        "   {:.0} packets/s out, {:.0} in, {} refused",
        view.rates.sent, view.rates.received, view.rates.refused_total
    )));
    let title = format!(" outlast members · run {} · {} ", view.run, view.preset);
    let block = Block::bordered().title(title.bold());
    let lines = vec![
        Line::from(group),
        Line::from(vec![
            Span::from("join: ").fg(Color::DarkGray),
            Span::from(view.join.as_str()).fg(Color::Cyan),
        ]),
    ];
    // Wrapped by the character, not by the word: what is copied must have no spaces of ours in it.
    let room = usize::from(area.width.saturating_sub(2)).max(1);
    let lines: Vec<Line<'_>> = lines.into_iter().flat_map(|line| cut(line, room)).collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A line in pieces of at most `room` characters.
fn cut(line: Line<'_>, room: usize) -> Vec<Line<'_>> {
    let mut pieces = vec![Line::default()];
    let mut left = room;
    for span in line.spans {
        let characters: Vec<char> = span.content.chars().collect();
        let mut rest = characters.as_slice();
        while !rest.is_empty() {
            if left == 0 {
                pieces.push(Line::default());
                left = room;
            }
            let (now, later) = rest.split_at(left.min(rest.len()));
            let piece = Span::styled(now.iter().collect::<String>(), span.style);
            pieces.last_mut().expect("there is always a last piece").push_span(piece);
            left -= now.len();
            rest = later;
        }
    }
    pieces
}

fn draw_active(frame: &mut Frame<'_>, area: Rect, view: &Screen) {
    let header = Row::new(["name", "id", "address", "health", "rtt", "path", "inc"])
        .style(Style::new().fg(Color::DarkGray).add_modifier(Modifier::BOLD));
    // If not everybody fits, those who are not well come first.
    let mut members: Vec<&Member> = view.active.iter().collect();
    members.sort_by_key(|member| {
        (matches!(member.health, Health::Alive), member.info.name.clone(), member.info.id)
    });
    let rows = members.iter().map(|member| {
        let own = member.info.id.to_string() == view.own_id;
        let name = printable(&member.info.name).into_owned();
        let name = if own { format!("{name} (this)") } else { name };
        let (text, colour) = health_cell(member, view.now);
        let trip = if own { "-".to_owned() } else { member.round_trip.map_or("..".to_owned(), milliseconds) };
        Row::new([
            Cell::from(name).bold(),
            Cell::from(member.info.id.short()),
            Cell::from(member.info.address.to_string()),
            Cell::from(text).style(Style::new().fg(colour)),
            Cell::from(trip),
            Cell::from(if own { "-" } else { path_word(member.path) }),
            Cell::from(member.incarnation.to_string()),
        ])
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(8),
        Constraint::Length(21),
        Constraint::Fill(3),
        Constraint::Length(8),
        Constraint::Length(4),
        Constraint::Length(4),
    ];
    let table = Table::new(rows, widths).header(header).block(Block::bordered().title(" active "));
    frame.render_widget(table, area);
}

fn draw_failed(frame: &mut Frame<'_>, area: Rect, view: &Screen) {
    let mut members: Vec<&Member> = view.failed.iter().collect();
    members.sort_by_key(|member| std::cmp::Reverse(since(&member.health)));
    let rows = members.iter().map(|member| {
        let (text, colour) = health_cell(member, view.now);
        Row::new([
            Cell::from(printable(&member.info.name).into_owned()),
            Cell::from(member.info.id.short()),
            Cell::from(member.info.address.to_string()),
            Cell::from(text).style(Style::new().fg(colour)),
        ])
    });
    let widths = [Constraint::Fill(2), Constraint::Length(8), Constraint::Length(21), Constraint::Fill(5)];
    let header = Row::new(["name", "id", "address", "why"])
        .style(Style::new().fg(Color::DarkGray).add_modifier(Modifier::BOLD));
    let table = Table::new(rows, widths).header(header).block(Block::bordered().title(" failed "));
    frame.render_widget(table, area);
}

fn draw_log(frame: &mut Frame<'_>, area: Rect, view: &Screen) {
    let room = usize::from(area.height.saturating_sub(2));
    let lines: Vec<Line<'_>> = view
        .log
        .iter()
        .skip(view.log.len().saturating_sub(room))
        .map(|(event, text)| Line::from(text.as_str()).style(Style::new().fg(event_colour(event))))
        .collect();
    frame
        .render_widget(Paragraph::new(lines).block(Block::bordered().title(" events (times in UTC) ")), area);
}

fn event_colour(event: &TimedEvent) -> Color {
    use outlast::membership::{Event, Happening};
    match &event.what {
        Happening::Event(Event::Joined(_) | Event::Recovered(_)) => Color::Green,
        Happening::Event(Event::Stalled(_)) => Color::Yellow,
        Happening::Event(Event::Suspected(_)) => Color::Magenta,
        Happening::Event(Event::Left(_)) => Color::Blue,
        // Died, rejoined, lagged: what a person should look at.
        _ => Color::Red,
    }
}

fn since(health: &Health) -> Option<Instant> {
    match health {
        Health::Alive => None,
        Health::Stalled { since }
        | Health::Suspect { since, .. }
        | Health::Dead { since, .. }
        | Health::Left { since } => Some(*since),
    }
}

/// The word, for how long, and why; and its colour.
fn health_cell(member: &Member, now: Instant) -> (String, Color) {
    let age = |since: Instant| age_text(now.since(since));
    match member.health {
        Health::Alive => ("● alive".to_owned(), Color::Green),
        Health::Stalled { since } => (format!("◐ stalled {}: its kernel answers", age(since)), Color::Yellow),
        Health::Suspect { since, accusers } => {
            let plural = if accusers == 1 { "" } else { "s" };
            (format!("◌ suspect {}: {accusers} accuser{plural}", age(since)), Color::Magenta)
        }
        Health::Dead { since, reason } => (format!("✖ dead {} ago: {reason}", age(since)), Color::Red),
        Health::Left { since } => (format!("○ left {} ago", age(since)), Color::Blue),
    }
}

fn age_text(age: Duration) -> String {
    match age.as_secs() {
        0..10 => format!("{:.1} s", age.as_secs_f64()),
        10..120 => format!("{} s", age.as_secs()),
        120..7_200 => format!("{} min", age.as_secs() / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}

fn milliseconds(trip: Duration) -> String {
    let ms = trip.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::membership::{DeathReason, Event, Happening, MemberInfo, Path, PeerId};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;

    fn member(number: u8, health: Health) -> Member {
        Member {
            info: Arc::new(MemberInfo {
                id: PeerId::from_bytes([number; 16]),
                address: format!("127.0.0.1:{}", 4_000 + u16::from(number)).parse().unwrap(),
                closed_port: 0,
                name: format!("node{number}"),
                meta: Vec::new(),
            }),
            incarnation: u32::from(number),
            health,
            path: Path::Datagram,
            round_trip: Some(Duration::from_micros(180)),
            acked: None,
            kernel_trusted: Some(true),
        }
    }

    fn screen(view: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal.backend().to_string()
    }

    fn example() -> Screen {
        let now = Instant::from_nanos(10_000_000_000);
        let since = Instant::from_nanos(7_000_000_000);
        let dead = Health::Dead { since, reason: DeathReason::Refused };
        let mut view = Screen {
            own_id: PeerId::from_bytes([1; 16]).to_string(),
            run: "default".into(),
            preset: "lan".into(),
            join: "outlast members --join 127.0.0.1:4001".into(),
            now,
            active: vec![
                member(1, Health::Alive),
                member(2, Health::Alive),
                member(3, Health::Stalled { since }),
                member(4, Health::Suspect { since, accusers: 2 }),
            ],
            failed: vec![member(5, dead), member(6, Health::Left { since })],
            ..Screen::default()
        };
        view.remember(TimedEvent {
            time: UNIX_EPOCH,
            at: now,
            active: 4,
            what: Happening::Event(Event::Stalled(Arc::clone(&view.active[2].info))),
        });
        view
    }

    #[test]
    fn the_screen_tells_who_is_how_and_why() {
        let text = screen(&example(), 120, 30);
        for part in [
            "4 active  1 suspect  1 stalled  2 failed",
            "outlast members --join 127.0.0.1:4001",
            "node1 (this)",
            "● alive",
            "0.18 ms",
            "◐ stalled 3.0 s: its kernel answers",
            "◌ suspect 3.0 s: 2 accusers",
            "✖ dead 3.0 s ago: its port refuses connects",
            "○ left 3.0 s ago",
            "00:00:00.000  node3 (03030303) stalled",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn any_size_of_terminal_is_drawn_without_a_panic() {
        for (width, height) in [(1, 1), (10, 3), (40, 8), (80, 24), (250, 80)] {
            screen(&example(), width, height);
        }
    }

    #[test]
    fn on_a_small_screen_the_unwell_come_first() {
        let text = screen(&example(), 100, 17);
        assert!(text.contains("stalled 3.0 s"), "{text}");
    }

    #[test]
    fn a_long_command_to_join_is_shown_to_its_last_character() {
        let mut view = example();
        view.join =
            format!("OUTLAST_SECRET_FILE=/{}/secret outlast members --join 10.0.0.1:4000", "x".repeat(150));
        let text = screen(&view, 80, 30);
        let shown: String = text.lines().map(|line| line.trim_matches(['"', '│'])).collect();
        assert!(shown.contains(&view.join), "{text}");
    }

    #[test]
    fn the_log_is_bounded() {
        let mut view = example();
        let event = view.log[0].0.clone();
        (0..2 * LOG_MAX).for_each(|_| view.remember(event.clone()));
        assert_eq!(view.log.len(), LOG_MAX);
    }
}
