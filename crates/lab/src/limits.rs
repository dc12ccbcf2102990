//! Every bound of the lab in one place.

use std::time::Duration;

/// Hosts in one lab. The switch keeps a rule per ordered pair, so this is also the root of its memory.
pub const HOSTS_MAX: usize = 128;
/// Longest name of a lab.
pub const LAB_NAME_BYTES_MAX: usize = 40;
/// Longest name of a host.
pub const HOST_NAME_BYTES_MAX: usize = 24;
/// Smallest packet size that IPv4 must carry whole.
pub const MTU_MIN: u32 = 576;
/// Largest packet size a TUN device takes.
pub const MTU_MAX: u32 = 65_000;
/// Longest delay or jitter of a link. Beyond it TCP itself gives up.
pub const DELAY_MAX: Duration = Duration::from_mins(1);
/// Bytes that are on their way in one lab, all links together. What does not fit is dropped and counted.
pub const IN_FLIGHT_BYTES_MAX: usize = 256 << 20;
/// A queue is never shorter than this: a single burst of one TCP sender fits.
pub const QUEUE_BYTES_MIN: u64 = 64 << 10;
/// Longest line of the control protocol.
pub const LINE_BYTES_MAX: u64 = 16 << 20;
/// How long a change waits for the switch to take it up.
pub const CHANGE_DEADLINE: Duration = Duration::from_secs(5);
/// How long the lab waits for processes to stop or to die.
pub const PROCESS_DEADLINE: Duration = Duration::from_secs(5);
/// How long a lab waits for another one that is being made or taken down.
pub const REGISTRY_DEADLINE: Duration = Duration::from_secs(30);
/// How long a command waits for the lab's process to answer.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
