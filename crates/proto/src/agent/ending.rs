//! How a worker ended, how a run ended, and the number that says so.

use super::machine::Life;
use std::fmt;

/// `EX_UNAVAILABLE` of sysexits.
const UNREACHABLE: u8 = 69;
/// `EX_TEMPFAIL` of sysexits.
const TOO_FEW: u8 = 75;
/// What a shell answers for a program that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;
/// A shell adds this to the number of the signal that ended a process.
const BY_SIGNAL: u8 = 128;

/// How a worker's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// By itself, with that number.
    Exited(u8),
    /// By that signal.
    Killed(u8),
    /// It never began: the system's error number, and whether it means that there is no such program.
    NotStarted {
        /// The number.
        errno: i32,
        /// No such file.
        missing: bool,
    },
}

impl Ending {
    /// Whether the worker is done.
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// The number that a shell would give for it.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => BY_SIGNAL.saturating_add(signal),
            Self::NotStarted { missing: true, .. } => NOT_FOUND,
            Self::NotStarted { missing: false, .. } => NOT_RUNNABLE,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with {code}"),
            Self::Killed(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "was killed by {name}"),
                None => write!(f, "was killed by signal {signal}"),
            },
            Self::NotStarted { errno, .. } => write!(f, "could not be started (error {errno})"),
        }
    }
}

/// The signals that end processes, as Linux numbers them on every architecture that we know.
fn signal_name(signal: u8) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// A worker that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub life: Life,
    /// How.
    pub ending: Ending,
    /// Restarts that its slot had used when it failed.
    pub used: u32,
}

/// Why an agent whose workers are well gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// No coordinator answers.
    Unreachable,
    /// Fewer nodes than the run needs came in time.
    TooFewNodes,
    /// Another node ended the run for all.
    Closed,
}

/// How it all ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every worker is done.
    Done,
    /// A worker failed and its budget was used up.
    Failed(Failure),
    /// It was told to stop by that signal. What its workers answered: the first number that is not zero, if any ended
    /// by itself with one; `Some` of nothing better than the signal if some had to be killed; `None` if all ended well.
    Stopped {
        /// The signal.
        signal: u8,
        /// What the first worker that did not end well made of it.
        worst: Option<Ending>,
    },
    /// It gave up for a reason that no worker is to blame for.
    Abandoned(Abandoned),
}

impl Outcome {
    /// The exit code of the agent.
    pub fn code(self) -> u8 {
        match self {
            Self::Done | Self::Stopped { worst: None, .. } => 0,
            Self::Failed(failure) => failure.ending.code(),
            Self::Stopped { worst: Some(Ending::Exited(code)), .. } => code,
            // Whether it died of the signal or was killed because it did not is our affair: the signal is the cause.
            Self::Stopped { signal, .. } => BY_SIGNAL.saturating_add(signal),
            Self::Abandoned(Abandoned::Unreachable) => UNREACHABLE,
            Self::Abandoned(Abandoned::TooFewNodes) => TOO_FEW,
            Self::Abandoned(Abandoned::Closed) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_that_a_shell_would_give() {
        let stopped = |worst| Outcome::Stopped { signal: 15, worst }.code();
        assert_eq!(Ending::Exited(3).code(), 3);
        assert_eq!(Ending::Killed(9).code(), 137);
        assert_eq!(Ending::NotStarted { errno: 2, missing: true }.code(), 127);
        assert_eq!(Ending::NotStarted { errno: 13, missing: false }.code(), 126);
        assert_eq!(stopped(None), 0);
        assert_eq!(stopped(Some(Ending::Exited(7))), 7);
        assert_eq!(stopped(Some(Ending::Killed(15))), 143);
        assert_eq!(
            stopped(Some(Ending::Killed(9))),
            143,
            "killed because it did not end: SIGTERM is the cause"
        );
        assert_eq!(Outcome::Abandoned(Abandoned::TooFewNodes).code(), 75);
        assert_eq!(Outcome::Abandoned(Abandoned::Unreachable).code(), 69);
    }
}
