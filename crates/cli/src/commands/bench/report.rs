//! What the first member measured, passed on or put into a table.

use anyhow::Context as _;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;

/// Takes the first member's lines and shows them.
#[derive(Debug)]
pub(super) struct Report {
    json: bool,
    /// Over links of a lab, beside plain streams.
    in_lab: bool,
    /// What plain streams carried, in bits per second.
    streams: Vec<f64>,
    /// The sizes so far, and for each what was measured.
    rows: Vec<(u64, Vec<Value>)>,
}

impl Report {
    pub(super) fn new(json: bool, in_lab: bool) -> Self {
        Self { json, in_lab, streams: Vec::new(), rows: Vec::new() }
    }

    /// One line of JSON.
    pub(super) fn add(&mut self, line: &str) -> anyhow::Result<()> {
        if self.json {
            writeln!(std::io::stdout(), "{line}")?;
            return Ok(());
        }
        let figure: Value = serde_json::from_str(line).context("a member said something that is not JSON")?;
        if figure["what"] == "streams" {
            self.streams.extend(figure["bits_per_second"].as_f64());
            return Ok(());
        }
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
            let table = if self.in_lab { self.rates() } else { self.table() };
            write!(std::io::stdout(), "{table}")?;
        }
        Ok(())
    }

    /// Elements per second, and how close f32 comes to what the ring could do at the speed of plain streams.
    fn rates(&self) -> String {
        let goodput = self.streams.iter().sum::<f64>() / self.streams.len().max(1) as f64;
        let mut text = format!("plain streams around the ring: {:.1} Mbit/s each\n", goodput / 1e6);
        let _ = writeln!(
            text,
            "{:>10}  {:>6}  {:>11}  {:>14}  {:>13}  {:>15}",
            "bytes", "type", "median ms", "Melements/s", "times f32", "of the bound"
        );
        for (bytes, figures) in &self.rows {
            let rate =
                |figure: &Value| figure["median"].as_f64().map(|seconds| *bytes as f64 / 4.0 / seconds);
            let plain = figures.iter().find(|figure| figure["type"] == "f32").and_then(rate);
            for figure in figures {
                let (Some(rate), Some(seconds)) = (rate(figure), figure["median"].as_f64()) else { continue };
                let world = figure["world"].as_f64().unwrap_or(1.0);
                let bound = 2.0 * (world - 1.0) / world * *bytes as f64 * 8.0 / goodput;
                let share = if figure["type"] == "f32" {
                    format!("{:.1} %", 100.0 * bound / seconds)
                } else {
                    "-".to_owned()
                };
                let _ = writeln!(
                    text,
                    "{:>10}  {:>6}  {:>11.1}  {:>14.1}  {:>13}  {share:>15}",
                    name(*bytes),
                    figure["type"].as_str().unwrap_or("?"),
                    seconds * 1e3,
                    rate / 1e6,
                    plain.map_or_else(|| "-".to_owned(), |plain| format!("{:.2}", rate / plain)),
                );
            }
        }
        text
    }

    fn table(&self) -> String {
        let heads =
            ["median ms", "best ms", "99 % ms", "GB/s", "CPU s/GB", "ring med.", "ring best", "votes"];
        let heads: Vec<_> = heads.iter().map(|head| format!("{head:>9}")).collect();
        let mut text = format!("{:>10}  {}\n", "bytes", heads.join("  "));
        for (bytes, figures) in &self.rows {
            let find = |what: &str, field: &str| {
                let figure = figures.iter().find(|figure| figure["what"] == what)?;
                figure[field].as_f64().map(|seconds| seconds * 1e3)
            };
            let in_step = figures.iter().any(|figure| figure["what"] == "in step");
            let ring = if in_step { "in step" } else { "ring" };
            let cost = find("votes", "median").zip(find(ring, "median")).map(|(all, ring)| all - ring);
            let measured = if find("votes", "median").is_some() { "votes" } else { ring };
            let speed = find(measured, "median").map(|ms| *bytes as f64 / ms / 1e6);
            let processor = find(measured, "processor").map(|ms| ms * 1e6 / *bytes as f64);
            let cells = [
                find("votes", "median"),
                find("votes", "best"),
                find("votes", "p99"),
                speed,
                processor,
                find(ring, "median"),
                find(ring, "best"),
                cost,
            ];
            let cells = cells.map(|cell| cell.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3}")));
            let cells: Vec<_> = cells.iter().map(|cell| format!("{cell:>9}")).collect();
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
        let mut report = Report::new(false, false);
        for line in [
            r#"{"bytes": 65536, "what": "votes", "median": 0.002, "best": 0.001, "p99": 0.01, "processor": 0.00065536}"#,
            r#"{"bytes": 65536, "what": "ring", "median": 0.0015, "best": 0.001}"#,
            r#"{"bytes": 1048576, "what": "ring", "median": 0.25, "best": 0.125}"#,
        ] {
            report.add(line).unwrap();
        }
        let table = report.table();
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected =
            ["64", "KiB", "2.000", "1.000", "10.000", "0.033", "10.000", "1.500", "1.000", "0.500"];
        assert_eq!(rows[1], expected);
        assert_eq!(rows[2], ["1", "MiB", "-", "-", "-", "0.004", "-", "250.000", "125.000", "-"]);
        assert_eq!(rows[0][8..11], ["GB/s", "CPU", "s/GB"], "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    }

    #[test]
    fn rates_are_held_against_plain_streams() {
        let mut report = Report::new(false, true);
        for line in [
            r#"{"what": "streams", "bits_per_second": 900e6}"#,
            r#"{"world": 4, "bytes": 1000000, "what": "votes", "type": "f32", "median": 0.0125}"#,
            r#"{"world": 4, "bytes": 1000000, "what": "votes", "type": "int8", "median": 0.0031250}"#,
            r#"{"what": "streams", "bits_per_second": 1100e6}"#,
        ] {
            report.add(line).unwrap();
        }
        let table = report.rates();
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0][5..], ["1000.0", "Mbit/s", "each"]);
        assert_eq!(rows[2][2..], ["f32", "12.5", "20.0", "1.00", "96.0", "%"]);
        assert_eq!(rows[3][2..], ["int8", "3.1", "80.0", "4.00", "-"]);
    }
}
