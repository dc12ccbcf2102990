//! The run as a drawing: loss and accuracy over time, the faults, and who was there.
//!
//! Plain SVG text, written by hand: two curves above, a bar per process below, and a dashed line through both
//! for each thing that was done to the run. A gap in the curves is time in which nobody could commit.

use crate::crew::{Condition, Crew};
use crate::ledger::Ledger;
use crate::show::Event;
use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 900.0;
const TOP: f64 = 90.0;
const BOTTOM: f64 = 360.0;
const BAR: f64 = 22.0;
const LOSS_COLOUR: &str = "#c2410c";
const ACCURACY_COLOUR: &str = "#1d4ed8";
/// Steps further apart than this are not joined by a line.
const GAP_US: u64 = 250_000;

/// Draws the run into a file, and says where.
pub(crate) fn draw(ledger: &Ledger, crew: &Crew, events: &[Event], file: &Path) -> Result<PathBuf> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let text = Drawing::of(ledger, crew, events).text(ledger, crew, events)?;
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    Ok(file.to_owned())
}

/// The scales.
struct Drawing {
    begin: u64,
    end: u64,
    loss_max: f64,
}

impl Drawing {
    fn of(ledger: &Ledger, crew: &Crew, events: &[Event]) -> Self {
        let starts = crew.workers.iter().map(|worker| worker.started);
        let begin = starts.chain(events.iter().map(|event| event.at)).min().unwrap_or(0);
        let end = events.iter().map(|event| event.at).max().unwrap_or(begin).max(begin + 1);
        let losses = ledger.entries().map(|entry| f64::from(entry.commit.loss));
        Self { begin, end, loss_max: losses.fold(0.1, f64::max) }
    }

    fn x(&self, at: u64) -> f64 {
        let part = at.saturating_sub(self.begin) as f64 / (self.end - self.begin) as f64;
        LEFT + part.min(1.0) * (RIGHT - LEFT)
    }

    fn text(&self, ledger: &Ledger, crew: &Crew, events: &[Event]) -> Result<String> {
        let bars_end = BOTTOM + 46.0 + BAR * (crew.workers.len() + 1) as f64;
        let height = bars_end + 20.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"28\" font-size=\"17\" font-weight=\"bold\">Training that outlasts its machines: {} steps on handwritten digits</text>\n",
            ledger.last_step()
        );
        self.axes(&mut svg)?;
        self.marks(&mut svg, events, bars_end)?;
        let loss =
            ledger.entries().map(|entry| (entry.first_at(), f64::from(entry.commit.loss) / self.loss_max));
        self.curve(&mut svg, loss, GAP_US, LOSS_COLOUR)?;
        let accuracy =
            ledger.entries().filter_map(|entry| Some((entry.first_at(), f64::from(entry.accuracy?))));
        self.curve(&mut svg, accuracy, u64::MAX, ACCURACY_COLOUR)?;
        self.bars(&mut svg, crew, events)?;
        svg.push_str("</svg>\n");
        Ok(svg)
    }

    fn axes(&self, svg: &mut String) -> Result<()> {
        writeln!(svg, "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}V{TOP}\" fill=\"none\" stroke=\"#888\"/>")?;
        for quarter in 0..=4 {
            let part = f64::from(quarter) / 4.0;
            let y = BOTTOM - part * (BOTTOM - TOP);
            writeln!(svg, "<path d=\"M{LEFT} {y}H{RIGHT}\" stroke=\"#eee\"/>")?;
            let loss = part * self.loss_max;
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"{LOSS_COLOUR}\">{loss:.2}</text>",
                LEFT - 6.0,
                y + 4.0
            )?;
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" fill=\"{ACCURACY_COLOUR}\">{:.0} %</text>",
                RIGHT + 6.0,
                y + 4.0,
                part * 100.0
            )?;
        }
        writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\" fill=\"{LOSS_COLOUR}\">training loss</text>", TOP - 10.0)?;
        writeln!(
            svg,
            "<text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\" fill=\"{ACCURACY_COLOUR}\">test accuracy</text>",
            TOP - 10.0
        )?;
        let seconds = (self.end - self.begin) / 1_000_000;
        let every = (seconds / 12).max(1);
        for second in (0..=seconds).step_by(every as usize) {
            let x = self.x(self.begin + second * 1_000_000);
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{second} s</text>",
                BOTTOM + 16.0
            )?;
        }
        Ok(())
    }

    /// A dashed line for each fault; labels take turns in height so that neighbours do not cover each other.
    fn marks(&self, svg: &mut String, events: &[Event], bottom: f64) -> Result<()> {
        for (number, event) in events.iter().filter(|event| event.marked).enumerate() {
            let (x, y) = (self.x(event.at), 48.0 + 14.0 * (number % 2) as f64);
            writeln!(
                svg,
                "<path d=\"M{x:.1} {}V{bottom}\" stroke=\"#444\" stroke-dasharray=\"4 3\"/>",
                y + 4.0
            )?;
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", label(event))?;
        }
        Ok(())
    }

    /// A line through points of (time, height from 0 to 1).
    fn curve(
        &self,
        svg: &mut String,
        points: impl Iterator<Item = (u64, f64)>,
        gap: u64,
        colour: &str,
    ) -> Result<()> {
        let mut path = String::new();
        let mut before = None;
        for (at, part) in points {
            let joined = before.is_some_and(|before| at.saturating_sub(before) < gap);
            let y = BOTTOM - part.clamp(0.0, 1.0) * (BOTTOM - TOP);
            write!(path, "{}{:.1} {y:.1}", if joined { 'L' } else { 'M' }, self.x(at))?;
            before = Some(at);
        }
        writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>")?;
        Ok(())
    }

    /// Who was there, from when to when; pale where it was stopped or away.
    fn bars(&self, svg: &mut String, crew: &Crew, events: &[Event]) -> Result<()> {
        let moment = |kind: &str| events.iter().find(|event| event.kind == kind).map(|event| event.at);
        let away = (moment("coordinator_killed"), moment("coordinator_back"));
        let away: Vec<_> = away.0.zip(away.1).into_iter().collect();
        let mut row = BOTTOM + 40.0;
        self.bar(svg, "coordinator", row, (self.begin, self.end), &away, "#a3a3a3")?;
        for worker in &crew.workers {
            row += BAR;
            let ended = worker.ended.unwrap_or(self.end);
            self.bar(svg, &worker.name, row, (worker.started, ended), &worker.stops, "#4ade80")?;
            if worker.condition == Condition::Killed {
                let x = self.x(ended) + 8.0;
                writeln!(svg, "<text x=\"{x:.1}\" y=\"{}\" fill=\"#b91c1c\">killed</text>", row + 12.0)?;
            }
        }
        Ok(())
    }

    fn bar(
        &self,
        svg: &mut String,
        name: &str,
        y: f64,
        whole: (u64, u64),
        gaps: &[(u64, u64)],
        colour: &str,
    ) -> Result<()> {
        writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>", LEFT - 6.0, y + 12.0)?;
        let mut rect = |(from, to): (u64, u64), fill: &str| {
            let (x, width) = (self.x(from), self.x(to) - self.x(from));
            writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{fill}\"/>",
                BAR - 8.0
            )
        };
        rect(whole, colour)?;
        for gap in gaps {
            rect(*gap, "#e5e7eb")?;
        }
        Ok(())
    }
}

/// A few words for a mark.
fn label(event: &Event) -> String {
    let about = event.about.as_deref().unwrap_or_default();
    match event.kind {
        "killed" => format!("SIGKILL {about}"),
        "stopped" => format!("SIGSTOP {about}"),
        "joining" => format!("{about} joins"),
        "coordinator_killed" => "SIGKILL coordinator".to_owned(),
        other => other.to_owned(),
    }
}
