//! Where hosts live: 10.77.0.0/16, which exists only inside the lab's namespaces.
//!
//! Each lab has its own switch and its own namespaces, so all labs use the same addresses and never meet.

use std::net::Ipv4Addr;

/// The network's prefix length.
pub(crate) const PREFIX: u8 = 16;
/// Hosts per third byte, so that no host ends in .0 or .255.
const PER_BLOCK: usize = 250;

/// The address of host number `index`, counted from zero.
pub(crate) fn of(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, (index / PER_BLOCK) as u8, (index % PER_BLOCK + 1) as u8)
}

/// Which host has `address`; none if nobody could.
pub(crate) fn index(address: Ipv4Addr, hosts: usize) -> Option<usize> {
    let [10, 77, block, last] = address.octets() else { return None };
    let within = usize::from(last).checked_sub(1).filter(|within| *within < PER_BLOCK)?;
    let index = usize::from(block) * PER_BLOCK + within;
    (index < hosts).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hosts_match_one_to_one() {
        for host in 0..1_000 {
            assert_eq!(index(of(host), 1_000), Some(host));
        }
        assert_eq!(of(0), Ipv4Addr::new(10, 77, 0, 1));
        for nobody in ["10.77.0.0", "10.77.0.5", "10.77.0.255", "10.78.0.1", "224.0.0.1"] {
            assert_eq!(index(nobody.parse().unwrap(), 4), None, "{nobody}");
        }
    }
}
