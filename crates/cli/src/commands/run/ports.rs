//! A free port for whatever the workers of rank 0 want to serve (`MASTER_PORT`).
//!
//! Nobody can keep a port for somebody else. So it is taken where others do not look: below the range from which the
//! kernel gives out ports, and at random, so that two agents on one machine do not meet. What remains is a program that
//! binds the same number in the moment between.

use outlast::security::random_bytes;
use std::net::{Ipv4Addr, TcpListener};

/// Kernels give out ports from 32768 on, as a rule.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;
/// Then the kernel is asked.
const TRIES: usize = 64;

/// A port that nobody listens at now.
pub(super) fn free_port() -> u16 {
    let candidates = (0..TRIES).map(|_| FIRST + u16::from_be_bytes(random_bytes()) % COUNT);
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    let asked = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|listener| listener.local_addr());
    candidates.into_iter().find(free).or_else(|| asked().ok().map(|address| address.port())).unwrap_or(FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_listened_at_is_not_chosen() {
        let port = free_port();
        let _held = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        assert!((0..200).all(|_| free_port() != port));
    }
}
