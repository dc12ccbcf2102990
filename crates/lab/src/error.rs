//! What can go wrong in the lab, split by who can mend it: the person at the keyboard (not root, a wrong
//! name, a wrong value), another lab that is in the way, or the machine.

use crate::units::UnitError;
use std::io;

/// Why the lab refused or failed. A message names the thing, the value and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The caller is not root. Nothing was changed. Tests skip on this one, loudly.
    #[error("the lab needs root to make network namespaces: run with sudo")]
    NotRoot,
    /// The kernel offers no TUN devices. Nothing was changed.
    #[error(
        "/dev/net/tun is missing: load the module with `modprobe tun`, or give the container that device"
    )]
    NoTun,
    /// A lab of this name is up.
    #[error(
        "a lab named '{name}' is up already (process {pid}): take another name or `outlast lab down {name}`"
    )]
    NameInUse {
        /// The name that was asked for.
        name: String,
        /// The process that owns the lab.
        pid: u32,
    },
    /// No lab of this name is up.
    #[error("no lab '{name}'; {}", listed("labs up are", labs))]
    NoLab {
        /// The name that was asked for.
        name: String,
        /// The labs that are up.
        labs: Vec<String>,
    },
    /// No lab was named, and it is not clear which one is meant.
    #[error("{}", which_lab(labs))]
    WhichLab {
        /// The labs that are up: none, or more than one.
        labs: Vec<String>,
    },
    /// The lab belongs to a running test or bench, which alone may change it.
    #[error("lab '{name}' belongs to process {pid} and takes no commands; wait for it to end, or end it")]
    NotServed {
        /// The lab.
        name: String,
        /// Its owner.
        pid: u32,
    },
    /// The lab has no host of this name.
    #[error("no host '{host}'; hosts are {}", hosts.join(", "))]
    NoHost {
        /// The name that was asked for.
        host: String,
        /// The hosts that exist.
        hosts: Vec<String>,
    },
    /// A link leads from a host to another one, never to itself.
    #[error("'{host}' is both ends of the link: name two different hosts")]
    SameHost {
        /// The host that was named twice.
        host: String,
    },
    /// A name that could not be a file name and a host name at once.
    #[error("'{given}' cannot name a {what}: use 1 to {max} of a-z, 0-9 and '-', starting with a letter")]
    BadName {
        /// "lab" or "host".
        what: &'static str,
        /// What was given.
        given: String,
        /// The longest name.
        max: usize,
    },
    /// Two hosts with the same name.
    #[error("two hosts are named '{host}': give each its own name")]
    HostTwice {
        /// The name.
        host: String,
    },
    /// A lab has at least one host and at most [`crate::limits::HOSTS_MAX`].
    #[error("{given} hosts: a lab has 1 to {max}")]
    HostCount {
        /// How many were asked for.
        given: usize,
        /// How many are possible.
        max: usize,
    },
    /// A value outside its range.
    #[error("{what} {given}: {remedy}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// The value.
        given: String,
        /// What would be accepted.
        remedy: &'static str,
    },
    /// A rate, a time or a share that cannot be read.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// The host's processes are stopped, so a new one would be the only one that runs.
    #[error("host '{host}' is frozen: thaw it first")]
    Frozen {
        /// The host.
        host: String,
    },
    /// Something did not happen within its deadline. What it was doing may be half done; `lab down` cleans up.
    #[error("{what} took longer than {seconds} s: look for what holds it up, then `outlast lab down --all`")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
    },
    /// The lab's own process refused a request, in its words. Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The lab's process could not start, or ended before it was ready.
    #[error("the lab's process did not start: {0}")]
    NotStarted(String),
    /// A system call failed.
    #[error("cannot {action}: {cause}")]
    System {
        /// What was attempted, on what.
        action: String,
        /// The system's word. It is part of the message, and so not also a source.
        cause: io::Error,
    },
}

impl LabError {
    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |cause| Self::System { action, cause }
    }

    pub(crate) fn errno(action: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let action = action.into();
        move |errno| Self::System { action, cause: errno.into() }
    }
}

fn listed(words: &str, names: &[String]) -> String {
    if names.is_empty() {
        "no lab is up, start one with `outlast lab up`".to_owned()
    } else {
        format!("{words} {}", names.join(", "))
    }
}

fn which_lab(labs: &[String]) -> String {
    if labs.is_empty() {
        "no lab is up: start one with `outlast lab up --hosts 4`".to_owned()
    } else {
        format!("several labs are up: say which with --name ({})", labs.join(", "))
    }
}
