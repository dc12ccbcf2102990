//! One thing that happens, and how it is written in a schedule.

use std::fmt;
use std::str::FromStr;

/// A process, by its number; they count from zero.
pub type ProcessNumber = u8;

/// One thing that happens. Up to `Dead` they happen by themselves; from `BreakAtPeer` on they are faults, each paid
/// for from the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A program makes its next call.
    Call(ProcessNumber),
    /// The next message on a connection of that process arrives at the coordinator.
    Up(ProcessNumber, u8),
    /// The next message arrives at a process.
    Down(ProcessNumber),
    /// The coordinator notices that a connection is gone; what is still under way on it is lost.
    CoordinatorSees(ProcessNumber, u8),
    /// A process notices that its connection is gone; what is still under way on it is lost.
    PeerSees(ProcessNumber),
    /// An executor holds the result.
    Done(ProcessNumber),
    /// An executor that was told to stop has stopped.
    Stopped(ProcessNumber),
    /// An executor notices that a neighbour is dead.
    Missed(ProcessNumber),
    /// The next timer of all, the coordinator's or a process's: the clock jumps to it.
    Fire(Option<ProcessNumber>),
    /// The health plane tells the coordinator that a process is dead.
    Dead(ProcessNumber),
    /// A connection breaks, and the process notices first.
    BreakAtPeer(ProcessNumber),
    /// A connection breaks, and the coordinator notices first.
    BreakAtCoordinator(ProcessNumber),
    /// A process is killed.
    Kill(ProcessNumber),
    /// The coordinator is killed, and a new one that knows nothing is at its place.
    Restart,
    /// A data link of the attempt at hand breaks between two who live; its sending end notices.
    Sever(ProcessNumber),
    /// A program gives its call up.
    Cancel(ProcessNumber),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(process) => write!(f, "call {process}"),
            Self::Up(process, wire) => write!(f, "up {process}.{wire}"),
            Self::Down(process) => write!(f, "down {process}"),
            Self::CoordinatorSees(process, wire) => write!(f, "closed {process}.{wire}"),
            Self::PeerSees(process) => write!(f, "lost {process}"),
            Self::Done(process) => write!(f, "done {process}"),
            Self::Stopped(process) => write!(f, "stopped {process}"),
            Self::Missed(process) => write!(f, "missed {process}"),
            Self::Fire(None) => write!(f, "fire c"),
            Self::Fire(Some(process)) => write!(f, "fire {process}"),
            Self::Dead(process) => write!(f, "dead {process}"),
            Self::BreakAtPeer(process) => write!(f, "break {process}"),
            Self::BreakAtCoordinator(process) => write!(f, "drop {process}"),
            Self::Kill(process) => write!(f, "kill {process}"),
            Self::Restart => write!(f, "restart"),
            Self::Sever(process) => write!(f, "sever {process}"),
            Self::Cancel(process) => write!(f, "cancel {process}"),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no event: write it as the explorer prints it, such as \"up 0.1\"");
        let mut words = text.split_whitespace();
        let verb = words.next().ok_or_else(wrong)?;
        let object = words.next().unwrap_or_default();
        let process = || object.parse::<u8>().map_err(|_| wrong());
        let wire = || -> Result<(u8, u8), String> {
            let (process, wire) = object.split_once('.').ok_or_else(wrong)?;
            Ok((process.parse().map_err(|_| wrong())?, wire.parse().map_err(|_| wrong())?))
        };
        match verb {
            "call" => Ok(Self::Call(process()?)),
            "up" => wire().map(|(process, wire)| Self::Up(process, wire)),
            "down" => Ok(Self::Down(process()?)),
            "closed" => wire().map(|(process, wire)| Self::CoordinatorSees(process, wire)),
            "lost" => Ok(Self::PeerSees(process()?)),
            "done" => Ok(Self::Done(process()?)),
            "stopped" => Ok(Self::Stopped(process()?)),
            "missed" => Ok(Self::Missed(process()?)),
            "fire" if object == "c" => Ok(Self::Fire(None)),
            "fire" => Ok(Self::Fire(Some(process()?))),
            "dead" => Ok(Self::Dead(process()?)),
            "break" => Ok(Self::BreakAtPeer(process()?)),
            "drop" => Ok(Self::BreakAtCoordinator(process()?)),
            "kill" => Ok(Self::Kill(process()?)),
            "restart" => Ok(Self::Restart),
            "sever" => Ok(Self::Sever(process()?)),
            "cancel" => Ok(Self::Cancel(process()?)),
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
            Event::Call(0),
            Event::Up(1, 2),
            Event::Down(1),
            Event::CoordinatorSees(2, 1),
            Event::PeerSees(0),
            Event::Done(1),
            Event::Stopped(1),
            Event::Missed(2),
            Event::Fire(None),
            Event::Fire(Some(1)),
            Event::Dead(2),
            Event::BreakAtPeer(0),
            Event::BreakAtCoordinator(0),
            Event::Kill(2),
            Event::Restart,
            Event::Sever(1),
            Event::Cancel(2),
        ];
        assert_eq!(parse_schedule(&write_schedule(&all)).as_deref(), Ok(&all[..]));
        assert!(parse_schedule::<Event>("call 0, jump 3").unwrap_err().contains("jump 3"));
    }
}
