//! Labs as tables for people and as JSON for programs.

use outlast::text::printable;
use outlast_lab::control::{HostStatus, LinkStatus, Status};
use outlast_lab::registry::Found;
use outlast_lab::{Answer, Refusal, Rule};
use serde_json::{Value, json};

/// A lab that takes commands. Links that are like most others are summed up, unless `all_links`.
pub(super) fn lab(status: &Status, all_links: bool) {
    println!(
        "lab {}   {} hosts   mtu {}   process {}",
        printable(&status.name),
        status.hosts.len(),
        status.mtu,
        status.pid
    );
    println!();
    let mut rows = vec![["HOST", "ADDRESS", "PROCESSES", "STATE"].map(str::to_owned)];
    rows.extend(status.hosts.iter().map(|host| {
        [host.name.clone(), host.address.to_string(), host.processes.to_string(), host_state(host)]
    }));
    table(&rows);
    println!();

    let common = most_common(&status.links);
    let special = |link: &&LinkStatus| all_links || link.cut || Some(link.rule) != common;
    let mut rows = vec![
        ["FROM", "TO", "RULE", "STATE", "DELIVERED", "LOST", "QUEUE FULL", "STOPPED"].map(str::to_owned),
    ];
    rows.extend(status.links.iter().filter(special).map(|link| {
        let counters = &link.counters;
        [
            link.from.clone(),
            link.to.clone(),
            link.rule.to_string(),
            if link.cut { "cut" } else { "up" }.to_owned(),
            counters.delivered.to_string(),
            counters.lost.to_string(),
            counters.overflowed.to_string(),
            (counters.cut + counters.udp_blocked + counters.refused).to_string(),
        ]
    }));
    let others = status.links.len() - (rows.len() - 1);
    if rows.len() > 1 {
        table(&rows);
    }
    if let Some(rule) = common.filter(|_| others > 0) {
        let word = if rows.len() > 1 { "other links" } else { "links" };
        println!("{others} {word}: {rule}");
    }
    for uplink in &status.uplinks {
        println!("uplink of {}: {}", uplink.hosts.join(", "), uplink.rule);
    }
}

/// A lab that takes no commands: a running test's, or a leftover.
pub(super) fn other(found: &Found) {
    let hosts = found.card.as_ref().map_or(0, |card| card.hosts.len());
    let rest = match (&found.card, found.alive) {
        (Some(card), true) if card.served => format!("{hosts} hosts   process {} does not answer", card.pid),
        (Some(card), true) => format!("{hosts} hosts   belongs to process {}", card.pid),
        (None, true) => "coming up".to_owned(),
        (_, false) => format!("left behind; `outlast lab down {}` removes it", found.name),
    };
    println!("lab {}   {}", printable(&found.name), printable(&rest));
}

/// Everything, for programs. `state` is `up` (takes commands), `silent` (should take commands and does not
/// answer), `owned` (a running test's) or `leftover`.
pub(super) fn json(labs: &[Found], details: &[Option<Status>]) -> Value {
    let one = |(found, details): (&Found, &Option<Status>)| {
        let state = match (details, found.alive) {
            (Some(_), _) => "up",
            (None, true) if found.card.as_ref().is_some_and(|card| card.served) => "silent",
            (None, true) => "owned",
            (None, false) => "leftover",
        };
        let mut value = match (details, &found.card) {
            (Some(status), _) => json!(status),
            (None, Some(card)) => json!(card),
            (None, None) => json!({ "name": found.name }),
        };
        value["state"] = state.into();
        value
    };
    labs.iter().zip(details).map(one).collect()
}

fn host_state(host: &HostStatus) -> String {
    let mut words = Vec::new();
    if host.halted {
        words.push("halted".to_owned());
    } else if host.processes > 0 && host.stopped == host.processes {
        words.push("frozen".to_owned());
    } else if host.stopped > 0 {
        words.push(format!("{} stopped", host.stopped));
    }
    if host.udp_blocked {
        words.push("udp blocked".to_owned());
    }
    words.extend(host.refusal.map(refusal));
    if words.is_empty() { "up".to_owned() } else { words.join(", ") }
}

/// What a host's firewall does.
pub(super) fn refusal(refusal: Refusal) -> String {
    let what = match (refusal.tcp, refusal.udp) {
        (true, false) => "rejects tcp",
        (false, true) => "rejects udp",
        _ => "rejects tcp and udp",
    };
    let how = match refusal.answer {
        Answer::Reset => "reset",
        Answer::PortUnreachable => "unreachable",
        Answer::Prohibited => "prohibited",
    };
    format!("{what} ({how})")
}

/// A link or several: `a <-> b`, `a -> all`.
pub(super) fn ends(from: &str, to: &str, one_way: bool) -> String {
    format!("{from} {} {to}", if one_way { "->" } else { "<->" })
}

/// The rule that most links have; the first one of several.
fn most_common(links: &[LinkStatus]) -> Option<Rule> {
    let count = |rule: &Rule| links.iter().filter(|link| link.rule == *rule).count();
    let mut best: Option<(usize, Rule)> = None;
    // Few rules differ, however many links there are: each is counted once.
    let mut seen: Vec<Rule> = Vec::new();
    for link in links {
        if !seen.contains(&link.rule) {
            seen.push(link.rule);
            let count = count(&link.rule);
            if best.is_none_or(|(most, _)| count > most) {
                best = Some((count, link.rule));
            }
        }
    }
    best.map(|(_, rule)| rule)
}

/// Columns as wide as their widest cell; the first row is the heading.
fn table<const N: usize>(rows: &[[String; N]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        println!("{}", printable(cells.join("  ").trim_end()));
    }
}
