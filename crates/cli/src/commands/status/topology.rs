//! The links of a run: which were measured, how fast they are, and which the ring uses.
//!
//! Everything here is made from the coordinator's answer, so it shows what the coordinator would plan by. A ring runs at
//! the pace of its slowest link; a link's *share* is the part of the ring's time that it is busy: the slowest has 100 %,
//! and what is far below could carry more.

use outlast::text::printable;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Members whose links are drawn as a square; more do not fit a terminal.
const SQUARE_MAX: usize = 16;
/// Characters of a name.
const NAME_MAX: usize = 12;
const GIB: f64 = (1u64 << 30) as f64;
/// A link that was measured longer ago is measured again by the next `optimize_topology`.
const STALE_SECONDS: f64 = 1_800.0;

/// One link, as the coordinator tells it.
#[derive(Clone, Debug, PartialEq)]
struct Link {
    /// Bytes per second.
    rate: f64,
    round_trip_ms: f64,
    age_seconds: f64,
}

/// One group's links.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Picture {
    group: u64,
    ring: Vec<String>,
    /// Whether all of it is told: of very many members a status tells the first.
    is_whole: bool,
    links: BTreeMap<(String, String), Link>,
    hints: Vec<String>,
}

impl Picture {
    /// One for each group.
    pub(super) fn of(status: &Value) -> Vec<Self> {
        status["groups"].as_array().into_iter().flatten().map(Self::of_group).collect()
    }

    fn of_group(group: &Value) -> Self {
        let text = |value: &Value| printable(value.as_str().unwrap_or_default()).into_owned();
        let link = |link: &Value| {
            let number = |field: &str| link[field].as_f64().unwrap_or(0.0);
            let (rate, round_trip_ms, age_seconds) =
                (number("rate"), number("round_trip_ms"), number("age_seconds"));
            ((text(&link["from"]), text(&link["to"])), Link { rate, round_trip_ms, age_seconds })
        };
        let ring: Vec<_> = group["ring"].as_array().into_iter().flatten().map(text).collect();
        Self {
            group: group["group"].as_u64().unwrap_or(0),
            is_whole: group["world_size"].as_u64().is_none_or(|size| size <= ring.len() as u64),
            ring,
            links: group["links"].as_array().into_iter().flatten().map(link).collect(),
            hints: group["hints"].as_array().into_iter().flatten().map(text).collect(),
        }
    }

    fn members(&self) -> Vec<&String> {
        let mut members: Vec<_> = self.ring.iter().collect();
        let others = self.links.keys().flat_map(|(from, to)| [from, to]);
        others.for_each(|name| {
            if !members.contains(&name) {
                members.push(name);
            }
        });
        members
    }

    /// The links of the ring, in its order.
    fn ring_links(&self) -> Vec<(&String, &String, Option<&Link>)> {
        let last = if self.is_whole { self.ring.first() } else { None };
        let next = self.ring.iter().skip(1).chain(last);
        let ends = self.ring.iter().zip(next).filter(|(from, to)| from != to);
        ends.map(|(from, to)| (from, to, self.links.get(&(from.clone(), to.clone())))).collect()
    }

    fn in_ring(&self, from: &str, to: &str) -> bool {
        self.ring_links().iter().any(|(one, other, _)| *one == from && *other == to)
    }

    /// The slowest link of the ring, if all of them are known.
    fn slowest(&self) -> Option<f64> {
        let rates: Option<Vec<f64>> =
            self.ring_links().iter().map(|(_, _, link)| link.map(|link| link.rate)).collect();
        rates?.into_iter().reduce(f64::min).filter(|rate| *rate > 0.0 && self.is_whole)
    }

    /// Seconds for the all-reduce of a gibibyte.
    fn forecast(&self) -> Option<f64> {
        let members = self.ring.len() as f64;
        let way: f64 =
            self.ring_links().iter().filter_map(|(_, _, link)| Some(link.as_ref()?.round_trip_ms)).sum();
        let times = 2.0 * (members - 1.0) / members;
        Some(times * (GIB / self.slowest()? + way / 2_000.0))
    }
}

/// A speed as people say it.
fn speed(rate: f64) -> String {
    let bits = rate * 8.0;
    match bits {
        _ if bits >= 1e10 => format!("{:.0} Gbit/s", bits / 1e9),
        _ if bits >= 1e9 => format!("{:.1} Gbit/s", bits / 1e9),
        _ if bits >= 1e7 => format!("{:.0} Mbit/s", bits / 1e6),
        _ if bits >= 1e6 => format!("{:.1} Mbit/s", bits / 1e6),
        _ => format!("{:.0} kbit/s", bits / 1e3),
    }
}

fn age(seconds: f64) -> String {
    match seconds {
        _ if seconds < 100.0 => format!("{seconds:.0} s ago"),
        _ if seconds < 6_000.0 => format!("{:.0} min ago", seconds / 60.0),
        _ => format!("{:.0} h ago", seconds / 3_600.0),
    }
}

fn short(name: &str) -> String {
    if name.chars().count() <= NAME_MAX {
        return name.to_owned();
    }
    name.chars().take(NAME_MAX - 2).chain("..".chars()).collect()
}

/// All groups, for a terminal.
pub(super) fn render(status: &Value) -> String {
    let mut out = String::new();
    for picture in Picture::of(status) {
        render_group(&picture, &mut out);
    }
    if out.is_empty() {
        out.push_str("nobody is in this run\n");
    }
    out
}

fn render_group(picture: &Picture, out: &mut String) {
    let members = picture.members();
    let _ = writeln!(out, "group {}, {} members", picture.group, members.len());
    if picture.links.is_empty() {
        let _ = writeln!(out, "  no link was measured yet: let every member call optimize_topology\n");
        return;
    }
    if members.len() <= SQUARE_MAX {
        square(picture, &members, out);
    } else {
        let _ =
            writeln!(out, "  {} links are known; --json lists them, --svg draws them", picture.links.len());
    }
    let _ = writeln!(out, "\n  the ring");
    let slowest = picture.slowest();
    for (from, to, link) in picture.ring_links() {
        let ends = format!("{} -> {}", short(from), short(to));
        let Some(link) = link else {
            let _ = writeln!(out, "    {ends:<28} not measured");
            continue;
        };
        let share = slowest.map_or(0.0, |slowest| slowest / link.rate.max(1.0));
        let bar = "#".repeat((share * 20.0).round() as usize);
        let _ = writeln!(
            out,
            "    {ends:<28} {:>11}  {:>8.2} ms  {:>10}  {:>4.0} %  {bar}",
            speed(link.rate),
            link.round_trip_ms,
            age(link.age_seconds),
            share * 100.0
        );
    }
    if let Some(seconds) = picture.forecast() {
        let _ = writeln!(out, "  an all-reduce of 1 GiB takes about {seconds:.2} s on it");
    }
    for hint in &picture.hints {
        let _ = writeln!(out, "  ! {hint}");
    }
    out.push('\n');
}

/// From each to each: the row's member sends.
fn square(picture: &Picture, members: &[&String], out: &mut String) {
    let _ = writeln!(
        out,
        "  Mbit/s from the row to the column; > is in the ring, ~ is old, ! is the ring's slowest"
    );
    let slowest = picture.slowest();
    let _ = write!(out, "    {:NAME_MAX$}", "");
    for to in members {
        let _ = write!(out, " {:>8}", short(to).chars().take(8).collect::<String>());
    }
    out.push('\n');
    for from in members {
        let _ = write!(out, "    {:<NAME_MAX$}", short(from));
        for to in members {
            let cell = match picture.links.get(&((*from).clone(), (*to).clone())) {
                _ if from == to => String::new(),
                None => "-".to_owned(),
                Some(link) => {
                    let mark = match picture.in_ring(from, to) {
                        true if slowest == Some(link.rate) => "!",
                        true => ">",
                        false if link.age_seconds >= STALE_SECONDS => "~",
                        false => "",
                    };
                    let bits = link.rate * 8.0 / 1e6;
                    if bits < 10.0 { format!("{mark}{bits:.1}") } else { format!("{mark}{bits:.0}") }
                }
            };
            let _ = write!(out, " {cell:>8}");
        }
        out.push('\n');
    }
}

/// All groups as one drawing: members around a circle in the ring's order, its links bold, the others thin.
pub(super) fn svg(status: &Value) -> String {
    const SIDE: f64 = 640.0;
    let pictures = Picture::of(status);
    let height = SIDE * pictures.len().max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {SIDE} {height}\" font-family=\"sans-serif\">\n\
         <defs><marker id=\"arrow\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"5\" markerHeight=\"5\" \
         orient=\"auto\"><path d=\"M0,0L10,5L0,10z\" fill=\"#444\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (at, picture) in pictures.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0,{})\">", SIDE * at as f64);
        draw(picture, SIDE, &mut out);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn draw(picture: &Picture, side: f64, out: &mut String) {
    let members = picture.members();
    let place = |name: &String| {
        let at = members.iter().position(|member| *member == name).unwrap_or(0) as f64;
        let angle = std::f64::consts::TAU * at / members.len().max(1) as f64 - std::f64::consts::FRAC_PI_2;
        let radius = side * 0.36;
        (side / 2.0 + radius * angle.cos(), side / 2.0 + radius * angle.sin())
    };
    let fastest = picture.links.values().map(|link| link.rate).fold(1.0, f64::max);
    for ((from, to), link) in picture.links.iter().filter(|((from, to), _)| !picture.in_ring(from, to)) {
        let ((x1, y1), (x2, y2)) = (place(from), place(to));
        let width = 0.3 + 2.0 * link.rate / fastest;
        let _ = writeln!(
            out,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#cfd6dd\" \
             stroke-width=\"{width:.2}\"><title>{}</title></line>",
            title(from, to, link, None)
        );
    }
    let slowest = picture.slowest();
    for (from, to, link) in picture.ring_links() {
        let ((x1, y1), (x2, y2)) = (place(from), place(to));
        let share = link.and_then(|link| Some(slowest? / link.rate.max(1.0)));
        // From green, which could carry more, to red, which everybody waits for.
        let colour =
            share.map_or("#999".to_owned(), |share| format!("hsl({:.0},75%,42%)", 120.0 * (1.0 - share)));
        let words = link.map_or_else(|| "not measured".to_owned(), |link| title(from, to, link, share));
        let _ = writeln!(
            out,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"4\" \
             marker-end=\"url(#arrow)\"><title>{words}</title></line>"
        );
        if let Some(link) = link {
            let (x, y) = (f64::midpoint(x1, x2), f64::midpoint(y1, y2));
            let share = share.map_or(String::new(), |share| format!(", {:.0} %", share * 100.0));
            let _ = writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"11\" text-anchor=\"middle\" stroke=\"#fff\" \
                 stroke-width=\"3\" paint-order=\"stroke\">{}, {}{share}</text>",
                speed(link.rate),
                age(link.age_seconds)
            );
        }
    }
    for name in &members {
        let (x, y) = place(name);
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\" fill=\"#24476b\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
             font-size=\"13\" text-anchor=\"middle\">{}</text>",
            y - 14.0,
            escape(name)
        );
    }
    let promise = picture
        .forecast()
        .map_or_else(String::new, |seconds| format!(": an all-reduce of 1 GiB takes about {seconds:.2} s"));
    let _ = writeln!(
        out,
        "<text x=\"12\" y=\"22\" font-size=\"14\">group {}, {} members{promise}</text>",
        picture.group,
        members.len()
    );
    for (at, hint) in picture.hints.iter().enumerate() {
        let y = side - 12.0 - 16.0 * at as f64;
        let _ =
            writeln!(out, "<text x=\"12\" y=\"{y}\" font-size=\"12\" fill=\"#a33\">{}</text>", escape(hint));
    }
}

fn title(from: &str, to: &str, link: &Link, share: Option<f64>) -> String {
    let share = share.map_or(String::new(), |share| format!(", {:.0} % of the ring's time", share * 100.0));
    escape(&format!(
        "{from} -> {to}: {}, {:.2} ms, {}{share}",
        speed(link.rate),
        link.round_trip_ms,
        age(link.age_seconds)
    ))
}

/// Names come from peers.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status() -> Value {
        let link = |from: &str, to: &str, mbit: f64| json!({"from": from, "to": to, "rate": mbit * 125_000.0, "round_trip_ms": 2.0, "age_seconds": 7.0});
        json!({"groups": [{
            "group": 3,
            "ring": ["a", "c", "b<&"],
            "links": [link("a", "c", 100.0), link("c", "b<&", 50.0), link("b<&", "a", 400.0), link("a", "b<&", 4.0)],
            "hints": ["link a -> c got slower"],
        }]})
    }

    #[test]
    fn the_square_shows_every_link_and_the_ring_its_shares() {
        let text = render(&status());
        assert!(text.contains("group 3, 3 members"), "{text}");
        // The first such line names the columns.
        let mut rows =
            text.lines().filter(|line| line.trim_start().starts_with("a ") && !line.contains("->"));
        let row = rows.nth(1).unwrap();
        assert!(row.contains(">100") && row.contains("4.0"), "{row}");
        let slow = text.lines().find(|line| line.contains("c -> b<&")).unwrap();
        assert!(slow.contains("50 Mbit/s") && slow.contains("100 %") && slow.contains("7 s ago"), "{slow}");
        let fast = text.lines().find(|line| line.contains("b<& -> a")).unwrap();
        assert!(fast.contains(" 12 %") || fast.contains(" 13 %"), "{fast}");
        assert!(text.contains("! link a -> c got slower"));
        // 4/3 of a gibibyte at 6.25 MB/s, and four thirds of three milliseconds.
        assert!(text.contains("about 229.07 s"), "{text}");
    }

    #[test]
    fn a_drawing_is_well_formed_whatever_names_peers_have() {
        let drawing = svg(&status());
        assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
        assert!(drawing.contains("b&lt;&amp;") && !drawing.contains("b<&"));
        assert_eq!(drawing.matches("marker-end").count(), 3, "the ring's links");
        assert_eq!(drawing.matches("<circle").count(), 3);
        assert!(drawing.contains("50 Mbit/s, 7 s ago, 100 %"), "{drawing}");
    }

    #[test]
    fn of_a_ring_that_is_not_told_to_its_end_nothing_is_made_up() {
        let mut status = status();
        status["groups"][0]["world_size"] = json!(4);
        let picture = &Picture::of(&status)[0];
        assert_eq!((picture.ring_links().len(), picture.slowest(), picture.forecast()), (2, None, None));
        status["groups"][0]["world_size"] = json!(3);
        assert_eq!(Picture::of(&status)[0].ring_links().len(), 3);
    }

    #[test]
    fn without_measurements_it_says_what_to_do() {
        let text = render(&json!({"groups": [{"group": 0, "ring": ["a", "b"], "links": []}]}));
        assert!(text.contains("optimize_topology"), "{text}");
        assert_eq!(render(&json!({"groups": []})), "nobody is in this run\n");
        assert!(svg(&json!({})).starts_with("<svg "));
    }
}
