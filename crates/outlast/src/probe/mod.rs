//! Measuring a link: how many bytes per second, in each direction, alone and with the other one busy.
//!
//! # The problem
//!
//! What a ring needs to know is what a collective will get: encrypted, by a member that sends and receives, over as many
//! streams as it takes. A ping says nothing about that, and a minute of copying costs more than it tells.
//!
//! # The intuition
//!
//! Two members send each other as fast as they can, one way, the other, and both at once, each for max(0.2 s, 10 round
//! trips), and each counts what *arrives*: what waits in buffers on the way is not speed. The first half is for the streams
//! to get up to speed and does not count. Which way bytes go next is decided in [`outlast_proto::topology::probe`].
//! Where a round trip is long one stream cannot fill the pipe, so several share it. Streams are those of the data plane,
//! with a purpose of their own: the same sockets, the same encryption. Nothing of it touches the links of collectives.
//!
//! Who measures with whom and when is decided elsewhere ([`outlast_proto::topology::schedule`]); here are the two ends of
//! one measurement.
//!
//! # The invariant
//!
//! Every wait has a deadline and can be called off. At most [`BYTES_MAX`] go each way in each part. What comes from a member that we
//! do not expect is closed unread; nothing is kept for anybody while no call is open.

mod arrivals;
mod ends;
mod pump;

pub(crate) use arrivals::Arrivals;
pub(crate) use ends::{Outing, dial, wait};

/// Most bytes in one direction of one part of a measurement.
pub(crate) const BYTES_MAX: u64 = 256 << 20;
