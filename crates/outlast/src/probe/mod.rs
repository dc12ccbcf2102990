//! Measuring a link: how many bytes per second, in both directions at once.
//!
//! # The problem
//!
//! What a ring needs to know is what a collective will get: encrypted, with the other direction busy, over as many streams
//! as it takes. A ping says nothing about that, and a minute of copying costs more than it tells.
//!
//! # The intuition
//!
//! Two members send each other as fast as they can for max(0.3 s, 10 round trips), and each counts what *arrives*: what
//! waits in buffers on the way is not speed. The first half is for the streams to get up to speed and does not count.
//! Where a round trip is long one stream cannot fill the pipe, so several share it. Streams are those of the data plane,
//! with a purpose of their own: the same sockets, the same encryption. Nothing of it touches the links of collectives.
//!
//! Who measures with whom and when is decided elsewhere ([`outlast_proto::topology::schedule`]); here are the two ends of
//! one measurement.
//!
//! # The invariant
//!
//! Every wait has a deadline and can be called off. At most [`BYTES_MAX`] go each way. What comes from a member that we
//! do not expect is closed unread; nothing is kept for anybody while no call is open.

mod desk;
mod ends;
mod pump;

pub(crate) use desk::Desk;
pub(crate) use ends::{Outing, dial, wait};

use std::time::Duration;

/// The shortest measurement.
pub(crate) const DURATION_MIN: Duration = Duration::from_millis(300);
/// In round trips.
pub(crate) const ROUND_TRIPS_MIN: u32 = 10;
/// Most bytes in one direction of one measurement.
pub(crate) const BYTES_MAX: u64 = 256 << 20;
