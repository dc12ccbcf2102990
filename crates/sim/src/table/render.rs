//! Numbers into Markdown.

use super::{Cell, Measurement, Outcome, Plan, Trouble};
use std::fmt::Write as _;
use std::time::Duration;

const BEGIN: &str = "<!-- outlast-sim table: begin -->";
const END: &str = "<!-- outlast-sim table: end -->";

/// Puts `tables` between the markers of a page, or at its end if it has none yet.
pub fn write_between_markers(page: &str, tables: &str) -> String {
    let section = format!("{BEGIN}\n{}\n{END}", tables.trim_end());
    match (page.find(BEGIN), page.find(END)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{section}{}", &page[..from], &page[to + END.len()..])
        }
        _ if page.trim().is_empty() => format!("# Measurements\n\n{section}\n"),
        _ => format!("{}\n\n{section}\n", page.trim_end()),
    }
}

macro_rules! put {
    ($text:expr, $($words:tt)*) => { writeln!($text, $($words)*).expect("a String takes every line") };
}

pub(super) fn progress_line(measurement: &Measurement) -> String {
    let cell = &measurement.cell;
    format!(
        "{} n={} loss={} {:?}: median {} worst {} never {} false {}/{} packets {:.1}",
        measurement.candidate,
        measurement.members,
        measurement.loss,
        measurement.trouble,
        median(cell),
        worst(cell),
        cell.never_known,
        cell.false_deaths,
        cell.protected,
        cell.packets
    )
}

pub(super) fn settings(text: &mut String, plan: &Plan) {
    put!(text, "## Membership in the simulator\n");
    put!(
        text,
        "Made by `make bench` (`outlast-sim table`). The same seeds, faults and network for both: one-way latency"
    );
    put!(
        text,
        "0.15 to 0.35 ms, one packet in a hundred up to 2 ms. Ours: the `lan` preset (a probe every 200 ms, 100 ms"
    );
    put!(
        text,
        "for its answer, suspicion 1 s, `dead_after` 10 s, `stall_budget` 15 s). foca 2: its own `new_lan` for the"
    );
    put!(
        text,
        "group's size with the same three times (`probe_period` 200 ms, `probe_rtt` 100 ms, `suspect_to_down_after` 1 s)"
    );
    put!(text, "and identities that renew themselves. Everybody knows everybody at the start.");
    let rounds: Vec<_> = plan.sizes.iter().map(|(n, rounds)| format!("{rounds} at n = {n}")).collect();
    put!(
        text,
        "Rounds of each trouble: {}; a quarter of that for foca from n = 512 on, where a round of it takes minutes.\n",
        rounds.join(", ")
    );
}

fn seconds(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "-".to_owned(), |duration| format!("{:.2}", duration.as_secs_f64()))
}

fn median(cell: &Cell) -> String {
    let mut known = cell.known_after.clone();
    known.sort();
    seconds(known.get(known.len() / 2).copied())
}

fn worst(cell: &Cell) -> String {
    seconds(cell.known_after.iter().max().copied())
}

/// The rows that a table has: one per group size and loss.
fn rows(measured: &[Measurement]) -> Vec<(u32, f64)> {
    let mut rows: Vec<(u32, f64)> = Vec::new();
    for measurement in measured {
        if !rows.iter().any(|(n, loss)| *n == measurement.members && (*loss - measurement.loss).abs() < 1e-9)
        {
            rows.push((measurement.members, measurement.loss));
        }
    }
    rows
}

fn candidates(measured: &[Measurement]) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for measurement in measured {
        if !names.contains(&measurement.candidate) {
            names.push(measurement.candidate);
        }
    }
    names
}

fn find<'a>(
    measured: &'a [Measurement],
    row: (u32, f64),
    trouble: Trouble,
    candidate: &str,
) -> Option<&'a Cell> {
    measured
        .iter()
        .find(|measurement| {
            measurement.members == row.0
                && (measurement.loss - row.1).abs() < 1e-9
                && measurement.trouble == trouble
                && measurement.candidate == candidate
        })
        .map(|measurement| &measurement.cell)
}

fn table(
    text: &mut String,
    measured: &[Measurement],
    troubles: &[(Trouble, &str)],
    content: impl Fn(&Cell) -> String,
) {
    let names = candidates(measured);
    let mut header = String::from("| n | loss |");
    let mut rule = String::from("|--:|--:|");
    for (_, title) in troubles {
        for name in &names {
            write!(header, " {title}, {name} |").expect("a String takes every word");
            rule.push_str("--:|");
        }
    }
    put!(text, "{header}\n{rule}");
    for row in rows(measured) {
        let mut columns = format!("| {} | {:.0} % |", row.0, row.1 * 100.0);
        for (trouble, _) in troubles {
            for name in &names {
                let cell = find(measured, row, *trouble, name).map_or_else(|| "-".to_owned(), &content);
                write!(columns, " {cell} |").expect("a String takes every word");
            }
        }
        put!(text, "{columns}");
    }
    put!(text, "");
}

pub(super) fn detection(text: &mut String, measured: &[Measurement]) {
    put!(text, "### Time until a death is known to all\n");
    put!(
        text,
        "Seconds, median / worst. *+k missed*: k deaths were not known to all within 30 s, or by 5 s after the end of"
    );
    put!(
        text,
        "the freeze. *k false*: so many members that lived were declared dead by healthy ones meanwhile.\n"
    );
    let troubles =
        [(Trouble::Kill, "kill"), (Trouble::CutOff, "cut off"), (Trouble::Freeze(5_000), "host frozen 5 s")];
    table(text, measured, &troubles, |cell| {
        let mut words = format!("{} / {}", median(cell), worst(cell));
        if cell.never_known > 0 {
            write!(words, " +{} missed", cell.never_known).expect("a String takes every word");
        }
        if cell.false_deaths > 0 {
            write!(words, ", {} false", cell.false_deaths).expect("a String takes every word");
        }
        words
    });
}

pub(super) fn stalls(text: &mut String, measured: &[Measurement]) {
    put!(text, "### False deaths: processes that stop and hosts that freeze for a moment\n");
    put!(
        text,
        "5 % of the processes, at least one, stop together; or one host freezes for half a second. Members declared"
    );
    put!(
        text,
        "dead by anybody / members struck. A group that has fallen apart (see its packets below) declares nobody any more.\n"
    );
    let troubles = [
        (Trouble::Stall(1_000), "stall 1 s"),
        (Trouble::Stall(2_000), "stall 2 s"),
        (Trouble::Stall(5_000), "stall 5 s"),
        (Trouble::Freeze(500), "freeze 0.5 s"),
    ];
    table(text, measured, &troubles, |cell| format!("{} / {}", cell.false_deaths, cell.protected));
    for name in candidates(measured) {
        let stalls = measured.iter().filter(|measurement| {
            measurement.candidate == name && matches!(measurement.trouble, Trouble::Stall(_))
        });
        let (mut struck, mut dead) = (0, 0);
        for measurement in stalls {
            struck += measurement.cell.protected;
            dead += measurement.cell.false_deaths;
        }
        put!(text, "In all, {name}: {dead} false deaths in {struck} process stalls.");
    }
    put!(text, "");
}

pub(super) fn traffic(text: &mut String, measured: &[Measurement]) {
    put!(text, "### Packets per member and second\n");
    let troubles = [(Trouble::None, "quiet"), (Trouble::Kill, "kill"), (Trouble::Stall(5_000), "stall 5 s")];
    table(text, measured, &troubles, |cell| format!("{:.1}", cell.packets));
}

pub(super) fn outcome_header(text: &mut String) {
    put!(text, "### What comes of it\n");
    put!(
        text,
        "`make sim SCENARIO=..` replays each. *Declared*: how many of the members that were not struck declared the"
    );
    put!(
        text,
        "struck ones dead, as a share of all such pairs, and when, counted from the fault. *Bystanders*: members not"
    );
    put!(
        text,
        "struck that others not struck declared dead. *Agreed*: runs in which all listed each other again after the"
    );
    put!(text, "heal, and how long the slowest took.\n");
    put!(text, "| scenario | who | declared | when, s | bystanders | agreed |");
    put!(text, "|---|---|--:|--:|--:|--:|");
}

pub(super) fn outcome_row(text: &mut String, scenario: &str, candidate: &str, outcome: &Outcome) {
    let share = 100.0 * outcome.declared as f64 / outcome.pairs.max(1) as f64;
    let when = match (outcome.earliest, outcome.latest) {
        (Some(earliest), Some(latest)) => {
            format!("{:.1} to {:.1}", earliest.as_secs_f64(), latest.as_secs_f64())
        }
        _ => "-".to_owned(),
    };
    let after = outcome.agreed_after.as_secs_f64();
    put!(
        text,
        "| {scenario} | {candidate} | {share:.0} % | {when} | {} | {} of {}, {after:.1} s |",
        outcome.bystanders,
        outcome.agreed,
        outcome.runs
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_table_replaces_the_first_and_nothing_else() {
        let page = write_between_markers("", "one");
        assert!(page.contains("one"));
        let page = write_between_markers(&format!("{page}\nkept\n"), "two");
        assert!(page.contains("two") && page.contains("kept") && !page.contains("one\n"));
        assert_eq!(page.matches(BEGIN).count(), 1);
    }
}
