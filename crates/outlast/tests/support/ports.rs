//! Ports to be used in a moment, by somebody who has to know the number before.

use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below those that the system gives away: one that it gave a moment ago it may give to somebody else in the next.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;
/// Processes begin that far from each other.
const STRIDE: u32 = 101;

/// Ports of this process's own that are free for TCP and UDP on 127.0.0.1.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let ours = std::process::id().wrapping_mul(STRIDE);
    let port = || {
        let number = ours.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        u16::try_from(FIRST + number % COUNT).expect("below the largest")
    };
    let is_free = |port: &u16| {
        let address = ("127.0.0.1", *port);
        TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
    };
    std::iter::repeat_with(port).take(COUNT as usize).filter(is_free).take(count).collect()
}
