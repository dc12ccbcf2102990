//! Which address to tell the others.
//!
//! A member that listens on every interface (`0.0.0.0`) must still name one address. The operating system
//! knows it: connecting a UDP socket sends nothing and fixes the source address that the routing table gives.
//! Towards a seed that is the very address the seed will see; without a seed, the one of the default route;
//! without a default route, loopback, because then nobody else can be reached anyway.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Addresses reserved for documentation: nobody has them, so the default route is asked.
const NOBODY_V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);
const NOBODY_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9);

/// The address to advertise for a socket that is bound to `bound`, given the seeds to join through.
pub(crate) fn advertised(bound: SocketAddr, seeds: &[SocketAddr]) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    let nobody = if bound.is_ipv4() { NOBODY_V4 } else { NOBODY_V6 };
    let ip = seeds.iter().chain([&nobody]).find_map(|to| source_towards(*to)).unwrap_or({
        if bound.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) }
    });
    SocketAddr::new(ip, bound.port())
}

/// The address that packets to `to` would carry, if there is a route.
fn source_towards(to: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr =
        if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_address_is_kept_and_an_open_one_is_what_the_seed_will_see() {
        let given = "127.0.0.1:4000".parse().unwrap();
        assert_eq!(advertised(given, &[]), given);
        let open = "0.0.0.0:4000".parse().unwrap();
        assert_eq!(advertised(open, &["127.0.0.1:9".parse().unwrap()]), given);
        assert!(!advertised(open, &[]).ip().is_unspecified());
    }
}
