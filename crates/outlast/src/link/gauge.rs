//! What the kernel measures about a stream while it carries bytes.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

/// A reading of a stream; two of them give what happened between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    /// Bytes that the other kernel has acknowledged so far.
    pub acknowledged: u64,
    /// For how long there was anything to send or to be acknowledged, so far.
    pub busy: Duration,
    /// For how much of that the other end had no room, so far: what was slow then was not the way.
    pub held_up: Duration,
    /// The shortest round trip of late: the way without its queues.
    pub round_trip: Duration,
    /// The round trip as it is now, with its queues.
    pub loaded: Duration,
    /// Bytes that were handed over and are not acknowledged: on the way, or still waiting for their turn.
    pub waiting: u64,
}

/// The part of the kernel's `struct tcp_info` up to what is wanted here. The kernel fills as much of it as it
/// knows, and its layout only ever grows at the end.
#[repr(C)]
struct TcpInfo {
    states: [u8; 8],
    timeouts: [u32; 2],
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    others: [u32; 10],
    rtt: u32,
    more: [u32; 8],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segments: [u32; 2],
    notsent_bytes: u32,
    min_rtt: u32,
    data_segments: [u32; 2],
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
}

/// Reads the gauge of a TCP connection.
pub(super) fn read(socket: &TcpStream) -> io::Result<Gauge> {
    // SAFETY: all of its fields are numbers, for which zero is a value.
    let mut info: TcpInfo = unsafe { std::mem::zeroed() };
    let mut length = size_of::<TcpInfo>() as libc::socklen_t;
    let place = (&raw mut info).cast();
    // SAFETY: the kernel writes at most `length` bytes to a struct of that size; the descriptor is open.
    let outcome = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut length)
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    // A kernel that has never seen a round trip says so with the largest number.
    let round_trip = if info.min_rtt == u32::MAX { 0 } else { info.min_rtt };
    Ok(Gauge {
        acknowledged: info.bytes_acked,
        busy: Duration::from_micros(info.busy_time),
        held_up: Duration::from_micros(info.rwnd_limited),
        round_trip: Duration::from_micros(round_trip.into()),
        loaded: Duration::from_micros(info.rtt.into()),
        waiting: u64::from(info.notsent_bytes) + u64::from(info.unacked) * u64::from(info.snd_mss),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::time::Instant;

    #[test]
    fn a_reading_counts_what_was_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let before = read(&near).unwrap();
        near.write_all(&vec![7; 100_000]).unwrap();
        far.read_exact(&mut vec![0; 100_000]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while read(&near).unwrap().acknowledged - before.acknowledged != 100_000 {
            assert!(Instant::now() < deadline, "{:?}", read(&near));
            std::thread::yield_now();
        }
        let after = read(&near).unwrap();
        assert_eq!(after.waiting, 0, "all of it has arrived");
        let round_trip = after.round_trip;
        assert!(round_trip <= after.loaded && after.loaded < Duration::from_secs(5), "{after:?}");
        assert!(Duration::ZERO < round_trip && round_trip < Duration::from_secs(5), "{round_trip:?}");
    }
}
