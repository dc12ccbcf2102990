//! `outlast bench topology`: how good are the rings that the solver finds, and how soon?
//!
//! It reads squares of costs, from TSPLIB files or plain text, and orders their members three times: by the sum of
//! costs for a moment (*quick*) and for long (*moonshot*), which is what published tours are compared by; and by the
//! slowest link first, which is what a ring's speed depends on. Steps are taken in portions until the time is up, so
//! the figures depend on the machine; what a number of steps finds does not.

use super::super::json::printable_line;
use crate::ExitCode;
use anyhow::{Context as _, bail, ensure};
use outlast::text::printable;
use outlast::topology::{Costs, MEMBERS_MAX, NO_LINK, Objective, Search};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Steps between two looks at the clock: well below a millisecond.
const PORTION: u64 = 2_000;

const EXAMPLES: &str = "\
A plain file holds a square of numbers, a row per line: what the link from the row's member to the column's member
costs (seconds per gigabyte, say); '-' where there is none. TSPLIB files are read as they are (EXPLICIT, FULL_MATRIX).

Example:
  outlast bench topology links.txt
  outlast bench topology --json ftv170.atsp rbg403.atsp | jq .moonshot_cost";

/// Find rings in matrices of costs, quickly and with a long search.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Topology {
    /// TSPLIB files, or squares of numbers
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Time for the quick answer, in milliseconds
    #[arg(long, default_value_t = 100, value_name = "MS")]
    quick: u64,
    /// Time for the long search, in seconds
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    moonshot: f64,
    /// The seed of the search: the same seed and number of steps give the same ring
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Topology) -> anyhow::Result<ExitCode> {
    let moonshot = Duration::try_from_secs_f64(args.moonshot)
        .with_context(|| format!("--moonshot {}: give seconds, as in 10", args.moonshot))?;
    let quick = Duration::from_millis(args.quick);
    if !args.json {
        println!(
            "{:<14} {:>5} {:>12} {:>8} {:>12} {:>8} {:>11}",
            "file", "n", "quick", "s", "moonshot", "s", "bottleneck"
        );
    }
    for path in &args.files {
        let (name, costs) = read(path)?;
        let len = costs.len();
        let mut timed = Timed::new(costs.clone(), Objective::Sum, args.seed);
        let (quick_cost, quick_seconds) = timed.until(quick);
        let (moonshot_cost, moonshot_seconds) = timed.until(moonshot.max(quick));
        let mut slowest = Timed::new(costs, Objective::SlowestThenSum, args.seed);
        slowest.until(quick);
        let bottleneck = slowest.search.cost().map(|cost| cost.slowest);
        if args.json {
            let line = json!({
                "name": name, "n": len,
                "quick_cost": quick_cost, "quick_seconds": quick_seconds,
                "moonshot_cost": moonshot_cost, "moonshot_seconds": moonshot_seconds,
                "bottleneck": bottleneck,
            });
            print!("{}", printable_line(&line.to_string()));
        } else {
            let or_none =
                |cost: Option<u64>| cost.map_or_else(|| "no ring".to_owned(), |cost| cost.to_string());
            println!(
                "{:<14} {len:>5} {:>12} {quick_seconds:>8.3} {:>12} {moonshot_seconds:>8.3} {:>11}",
                printable(&name),
                or_none(quick_cost),
                or_none(moonshot_cost),
                or_none(bottleneck)
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A search, and when its answer last got better.
struct Timed {
    search: Search,
    began: Instant,
    better: Duration,
}

impl Timed {
    fn new(costs: Costs, objective: Objective, seed: u64) -> Self {
        let began = Instant::now();
        let search = Search::new(costs, objective, seed);
        Self { search, began, better: began.elapsed() }
    }

    /// Searches until that long after the beginning. The sum, and when it was found.
    fn until(&mut self, time: Duration) -> (Option<u64>, f64) {
        let mut cost = self.search.cost();
        while self.began.elapsed() < time && !self.search.is_over() {
            self.search.run(PORTION);
            if self.search.cost() != cost {
                cost = self.search.cost();
                self.better = self.began.elapsed();
            }
        }
        (cost.map(|cost| cost.sum), self.better.as_secs_f64())
    }
}

/// A file's name and its costs.
fn read(path: &Path) -> anyhow::Result<(String, Costs)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let parsed = if text.contains("EDGE_WEIGHT_SECTION") { tsplib(&text) } else { square(&text) };
    let costs = parsed.with_context(|| format!("{} is not a square of costs", path.display()))?;
    Ok((name, costs))
}

/// A TSPLIB file with its matrix written out.
fn tsplib(text: &str) -> anyhow::Result<Costs> {
    let (head, body) = text.split_once("EDGE_WEIGHT_SECTION").context("it has no EDGE_WEIGHT_SECTION")?;
    let field = |key: &str| {
        let fields = head.lines().filter_map(|line| line.split_once(':'));
        fields.into_iter().find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    };
    if let Some(format) = field("EDGE_WEIGHT_FORMAT").filter(|format| *format != "FULL_MATRIX") {
        bail!("EDGE_WEIGHT_FORMAT {format} is not read; write the matrix out (FULL_MATRIX)");
    }
    let len: usize = field("DIMENSION").context("it has no DIMENSION")?.parse().context("its DIMENSION")?;
    ensure_size(len)?;
    let numbers = body.split_whitespace().take_while(|word| *word != "EOF");
    let cells: Vec<u64> = numbers.map(cost).collect::<Result<_, _>>()?;
    ensure!(cells.len() == len * len, "{} numbers, DIMENSION {len} needs {}", cells.len(), len * len);
    Ok(Costs::new(len, |from, to| cells[from * len + to]))
}

/// A row of numbers per line.
fn square(text: &str) -> anyhow::Result<Costs> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split =
        |line: &str| line.replace(',', " ").split_whitespace().map(cost).collect::<Result<Vec<_>, _>>();
    let rows: Vec<Vec<u64>> = lines.map(split).collect::<Result<_, _>>()?;
    ensure_size(rows.len())?;
    for (at, row) in rows.iter().enumerate() {
        ensure!(
            row.len() == rows.len(),
            "row {} has {} numbers, and there are {} rows",
            at + 1,
            row.len(),
            rows.len()
        );
    }
    Ok(Costs::new(rows.len(), |from, to| rows[from][to]))
}

fn ensure_size(len: usize) -> anyhow::Result<()> {
    ensure!((2..=MEMBERS_MAX).contains(&len), "{len} members: give 2 to {MEMBERS_MAX}");
    Ok(())
}

fn cost(word: &str) -> anyhow::Result<u64> {
    if word == "-" {
        return Ok(NO_LINK);
    }
    word.parse().with_context(|| format!("'{word}' is not a cost: give a whole number, or - for no link"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read() {
        let plain = square("# three members\n0 3 9\n9, 0, 4\n5 - 0\n").unwrap();
        let text = "NAME: x\nTYPE: ATSP\nDIMENSION:  3\nEDGE_WEIGHT_FORMAT: FULL_MATRIX\nEDGE_WEIGHT_SECTION\n \
                    0 3 9 9\n 0 4 5 9999999999999 0\nEOF\n";
        assert_eq!(tsplib(text).unwrap(), plain, "what is larger than any cost is no link");
        assert_eq!((plain.of(0, 1), plain.of(2, 1)), (3, NO_LINK));
    }

    #[test]
    fn what_is_no_square_is_named() {
        let text = |result: anyhow::Result<Costs>| format!("{:#}", result.unwrap_err());
        assert!(text(square("1 2\n3\n")).contains("row 2 has 1 numbers"));
        assert!(text(square("1 x\n3 4\n")).contains("'x' is not a cost"));
        assert!(text(square("1\n")).contains("1 members: give 2 to"));
        let upper = "DIMENSION: 3\nEDGE_WEIGHT_FORMAT: UPPER_ROW\nEDGE_WEIGHT_SECTION\n1 2 3";
        assert!(text(tsplib(upper)).contains("UPPER_ROW is not read"));
        let short = "DIMENSION: 3\nEDGE_WEIGHT_SECTION\n1 2 3";
        assert!(text(tsplib(short)).contains("3 numbers, DIMENSION 3 needs 9"));
    }
}
