//! One thing that happens while a view changes, and how it is written in a schedule.

use std::fmt;
use std::str::FromStr;

/// A member, by its number; they count from zero.
pub type MemberNumber = u8;

/// One thing that happens. Up to `Jump` they happen by themselves; from `Join` on each is paid for from the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The registrar reads the next word on a stream of that member.
    Told(MemberNumber, u8),
    /// A member reads the next word of the registrar.
    Order(MemberNumber),
    /// The second reads the next frame of the first.
    Frame(MemberNumber, MemberNumber),
    /// The second notices that the connection with the first is gone.
    Gone(MemberNumber, MemberNumber),
    /// The registrar notices that a stream of that member is gone.
    Closed(MemberNumber, u8),
    /// A member notices that its stream is gone, and registers over another.
    Redial(MemberNumber),
    /// Time passes, up to the next timer.
    Jump,
    /// The program of a member raises the number.
    Call(MemberNumber),
    /// The next member comes.
    Join,
    /// A member says goodbye.
    Leave(MemberNumber),
    /// A member is killed.
    Kill(MemberNumber),
    /// The registrar is killed, and another that knows nothing is at its place.
    Restart,
    /// A stream breaks, and the member notices first.
    BreakAtMember(MemberNumber),
    /// A stream breaks, and the registrar notices first.
    BreakAtRegistrar(MemberNumber),
    /// The connection between two breaks, and the first notices first.
    Sever(MemberNumber, MemberNumber),
    /// Nothing passes between a member and the registrar any more, and neither is told.
    Cut(MemberNumber),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(member, stream) => write!(f, "told {member}.{stream}"),
            Self::Order(member) => write!(f, "order {member}"),
            Self::Frame(from, to) => write!(f, "frame {from}.{to}"),
            Self::Gone(from, to) => write!(f, "gone {from}.{to}"),
            Self::Closed(member, stream) => write!(f, "closed {member}.{stream}"),
            Self::Redial(member) => write!(f, "redial {member}"),
            Self::Jump => write!(f, "jump"),
            Self::Call(member) => write!(f, "call {member}"),
            Self::Join => write!(f, "join"),
            Self::Leave(member) => write!(f, "leave {member}"),
            Self::Kill(member) => write!(f, "kill {member}"),
            Self::Restart => write!(f, "restart"),
            Self::BreakAtMember(member) => write!(f, "break {member}"),
            Self::BreakAtRegistrar(member) => write!(f, "drop {member}"),
            Self::Sever(from, to) => write!(f, "sever {from}.{to}"),
            Self::Cut(member) => write!(f, "cut {member}"),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no event of a view: write it as the explorer prints it, such as \"told 0.1\""
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
            "told" => two().map(|(member, stream)| Self::Told(member, stream)),
            "order" => one().map(Self::Order),
            "frame" => two().map(|(from, to)| Self::Frame(from, to)),
            "gone" => two().map(|(from, to)| Self::Gone(from, to)),
            "closed" => two().map(|(member, stream)| Self::Closed(member, stream)),
            "redial" => one().map(Self::Redial),
            "jump" => Ok(Self::Jump),
            "call" => one().map(Self::Call),
            "join" => Ok(Self::Join),
            "leave" => one().map(Self::Leave),
            "kill" => one().map(Self::Kill),
            "restart" => Ok(Self::Restart),
            "break" => one().map(Self::BreakAtMember),
            "drop" => one().map(Self::BreakAtRegistrar),
            "sever" => two().map(|(from, to)| Self::Sever(from, to)),
            "cut" => one().map(Self::Cut),
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
            Event::Told(0, 1),
            Event::Order(1),
            Event::Frame(0, 2),
            Event::Gone(2, 0),
            Event::Closed(1, 0),
            Event::Redial(2),
            Event::Jump,
            Event::Call(1),
            Event::Join,
            Event::Leave(0),
            Event::Kill(2),
            Event::Restart,
            Event::BreakAtMember(1),
            Event::BreakAtRegistrar(2),
            Event::Sever(0, 1),
            Event::Cut(0),
        ];
        assert_eq!(parse_schedule(&write_schedule(&all)).as_deref(), Ok(&all[..]));
        assert!(parse_schedule::<Event>("call 0, fly 3").unwrap_err().contains("fly 3"));
    }
}
