//! The lab: hosts as network namespaces on one machine, and links between them that can be slow, late,
//! lossy, cut and healed while everything runs.
//!
//! What only shows on real networks (a cut that is one way, a firewall that refuses, a line that is full)
//! must be testable on one machine, with real processes, real kernels' TCP, and nothing simulated but the
//! cable. So each host is a network namespace with a TUN device as its card, and one thread, the *switch*,
//! carries packets between the cards by rules that can change at any moment.
//!
//! ```no_run
//! use outlast_lab::{Lab, Rate, Rule};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), outlast_lab::LabError> {
//! let lab = Lab::new("example", ["a", "b"])?;
//! lab.set_both("a", "b", Rule::perfect().rate(Rate::mbit(100)).delay(Duration::from_millis(20)).loss(0.01))?;
//! let mut server = lab.host("b")?.command("sleep").arg("60").spawn().expect("sleep is everywhere");
//! lab.cut("a", "b")?; // b still reaches a
//! lab.heal_all()?;
//! # server.kill().ok();
//! # Ok(())
//! # } // dropping the lab ends the server and removes every trace
//! ```
//!
//! What it does not do: IPv6, multicast, several cards per host, links that reorder. Files, processes and
//! users are the machine's; only the network, the host name and `/etc/hosts` belong to a host.
//!
//! Where to look: `switch` is the loop, `link` the arithmetic of one direction, `packet` and `refusal` the
//! bytes; `namespace`, `device` and `processes` talk to the kernel; `registry` finds what is left after a
//! SIGKILL; `daemon` and `control` serve `outlast lab`.

#![cfg(target_os = "linux")]

mod address;
pub mod control;
mod counters;
pub mod daemon;
mod device;
mod error;
mod host;
mod lab;
pub mod limits;
mod link;
mod namespace;
mod packet;
mod plan;
mod processes;
mod refusal;
pub mod registry;
mod rule;
mod schedule;
mod switch;
pub mod units;

pub use counters::LinkCounters;
pub use error::LabError;
pub use host::Host;
pub use lab::{Lab, LabBuilder, host_names};
pub use refusal::{Answer, Refusal};
pub use rule::{Change, NewRate, Rule};
pub use units::Rate;
