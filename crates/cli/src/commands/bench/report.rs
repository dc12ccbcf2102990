//! What the first member measured, passed on or put into a table.

use anyhow::Context as _;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;

/// Takes the first member's lines and shows them.
#[derive(Debug)]
pub(super) struct Report {
    json: bool,
    /// The sizes so far, and for each what was measured.
    rows: Vec<(u64, Vec<Value>)>,
}

impl Report {
    pub(super) fn new(json: bool) -> Self {
        Self { json, rows: Vec::new() }
    }

    /// One line of JSON.
    pub(super) fn add(&mut self, line: &str) -> anyhow::Result<()> {
        if self.json {
            writeln!(std::io::stdout(), "{line}")?;
            return Ok(());
        }
        let figure: Value = serde_json::from_str(line).context("a member said something that is no JSON")?;
        let bytes = figure["bytes"].as_u64().unwrap_or(0);
        match self.rows.last_mut().filter(|(last, _)| *last == bytes) {
            Some((_, figures)) => figures.push(figure),
            None => self.rows.push((bytes, vec![figure])),
        }
        Ok(())
    }

    /// The table, unless every line was passed on already.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        if !self.json {
            write!(std::io::stdout(), "{}", self.table())?;
        }
        Ok(())
    }

    fn table(&self) -> String {
        let mut text = format!(
            "{:>10}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}\n",
            "bytes", "median ms", "best ms", "99 % ms", "ring median", "ring best", "votes cost"
        );
        for (bytes, figures) in &self.rows {
            let find = |what: &str, field: &str| {
                let figure = figures.iter().find(|figure| figure["what"] == what)?;
                figure[field].as_f64().map(|seconds| seconds * 1e3)
            };
            let cost = find("votes", "median").zip(find("ring", "median")).map(|(all, ring)| all - ring);
            let cells = [
                find("votes", "median"),
                find("votes", "best"),
                find("votes", "p99"),
                find("ring", "median"),
                find("ring", "best"),
                cost,
            ];
            let cells = cells.map(|cell| cell.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3}")));
            let cells: Vec<_> = cells.iter().map(|cell| format!("{cell:>11}")).collect();
            let _ = writeln!(text, "{:>10}  {}", name(*bytes), cells.join("  "));
        }
        text
    }
}

fn name(bytes: u64) -> String {
    let (unit, shift) = match bytes.checked_ilog2().unwrap_or(0) {
        0..10 => ("B", 0),
        10..20 => ("KiB", 10),
        20..30 => ("MiB", 20),
        _ => ("GiB", 30),
    };
    format!("{} {unit}", bytes >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_both_figures_and_their_difference() {
        let mut report = Report::new(false);
        for line in [
            r#"{"bytes": 65536, "what": "votes", "median": 0.002, "best": 0.001, "p99": 0.01}"#,
            r#"{"bytes": 65536, "what": "ring", "median": 0.0015, "best": 0.001}"#,
            r#"{"bytes": 1048576, "what": "ring", "median": 0.25, "best": 0.125}"#,
        ] {
            report.add(line).unwrap();
        }
        let table = report.table();
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["64", "KiB", "2.000", "1.000", "10.000", "1.500", "1.000", "0.500"]);
        assert_eq!(rows[2], ["1", "MiB", "-", "-", "-", "250.000", "125.000", "-"]);
    }
}
