//! One thing that happens in an election, and how it is written in a schedule.

use std::fmt;
use std::str::FromStr;

/// One thing that happens. Coordinators and peers count from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The question of a coordinator reaches etcd.
    Ask(u8),
    /// The answer reaches it.
    Answer(u8),
    /// The next piece of news reaches it.
    News(u8),
    /// Its connection breaks, and there is another.
    Break(u8),
    /// Whoever reigns hears that more peers reach another.
    Appeal(u8),
    /// That lease runs out.
    Expire(u8),
    /// A coordinator looks at its clock.
    Clock(u8),
    /// A fifth of a lease passes.
    Time,
    /// A coordinator that reigns is promised its term by a peer.
    Promise(u8, u8),
    /// A coordinator gives its verdict on the attempt.
    Decide(u8),
    /// A peer hears the verdict of a term.
    Hear(u8, u8),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(side) => write!(f, "ask {side}"),
            Self::Answer(side) => write!(f, "answer {side}"),
            Self::News(side) => write!(f, "news {side}"),
            Self::Break(side) => write!(f, "break {side}"),
            Self::Appeal(side) => write!(f, "appeal {side}"),
            Self::Expire(lease) => write!(f, "expire {lease}"),
            Self::Clock(side) => write!(f, "clock {side}"),
            Self::Time => write!(f, "time"),
            Self::Promise(side, peer) => write!(f, "promise {side}.{peer}"),
            Self::Decide(side) => write!(f, "decide {side}"),
            Self::Hear(peer, term) => write!(f, "hear {peer}.{term}"),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no event of an election: write it as the explorer prints it, such as \"ask 0\""
            )
        };
        let mut words = text.split_whitespace();
        let verb = words.next().ok_or_else(wrong)?;
        let object = words.next().unwrap_or_default();
        let one = || object.parse::<u8>().map_err(|_| wrong());
        let two = || -> Result<(u8, u8), String> {
            let (first, second) = object.split_once('.').ok_or_else(wrong)?;
            Ok((first.parse().map_err(|_| wrong())?, second.parse().map_err(|_| wrong())?))
        };
        match verb {
            "ask" => one().map(Self::Ask),
            "answer" => one().map(Self::Answer),
            "news" => one().map(Self::News),
            "break" => one().map(Self::Break),
            "appeal" => one().map(Self::Appeal),
            "expire" => one().map(Self::Expire),
            "clock" => one().map(Self::Clock),
            "time" => Ok(Self::Time),
            "promise" => two().map(|(side, peer)| Self::Promise(side, peer)),
            "decide" => one().map(Self::Decide),
            "hear" => two().map(|(peer, term)| Self::Hear(peer, term)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::search::{parse_schedule, write_schedule};

    #[test]
    fn a_schedule_reads_back() {
        let all = [
            Event::Ask(0),
            Event::Answer(1),
            Event::News(0),
            Event::Break(1),
            Event::Appeal(0),
            Event::Expire(3),
            Event::Clock(1),
            Event::Time,
            Event::Promise(1, 0),
            Event::Decide(1),
            Event::Hear(0, 4),
        ];
        assert_eq!(parse_schedule(&write_schedule(&all)).as_deref(), Ok(&all[..]));
        assert!(parse_schedule::<Event>("ask 0, beg 3").unwrap_err().contains("beg 3"));
    }
}
