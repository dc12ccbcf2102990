//! An IPv4 packet as a TUN device hands it over, and how to cut a burst into shorter ones.
//!
//! Each packet comes with the ten-byte header of virtio-net in front: whether its checksum is still to be
//! filled in, and whether it is a burst, that is, one TCP segment that stands for many. Both promises can be
//! handed on unchanged to the receiver's TUN device, so bytes are neither summed nor copied more than needed.
//! A shorter burst needs new lengths, sequence number, identification and two header sums; its payload sum
//! stays the receiver's business.
//!
//! Invariant: whatever [`Packet::parse`] accepts can be sliced without reading outside the packet. Packets
//! that are not IPv4 are not accepted: the lab carries nothing else.

use crate::link::Burst;
use std::net::Ipv4Addr;

/// Length of the virtio-net header in front of each packet.
pub(crate) const VNET_BYTES: usize = 10;
/// The largest read: header and the longest IPv4 packet.
pub(crate) const PACKET_BYTES_MAX: usize = VNET_BYTES + 65_535;

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;

pub(crate) const TCP_FIN: u8 = 0x01;
pub(crate) const TCP_SYN: u8 = 0x02;
pub(crate) const TCP_RST: u8 = 0x04;
pub(crate) const TCP_ACK: u8 = 0x10;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// A parsed view of one packet, virtio-net header included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    bytes: &'a [u8],
    ip_header: usize,
    /// Zero unless the packet is a burst.
    segment_bytes: usize,
    /// Length of the TCP header; zero unless the packet is a burst.
    tcp_header: usize,
}

impl<'a> Packet<'a> {
    /// The packet in `bytes`; none if it is not IPv4, or if a length in it leads outside.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let ip = bytes.get(VNET_BYTES..)?;
        let ip_header = usize::from(ip.first()? & 0x0f) * 4;
        if ip[0] >> 4 != 4 || ip_header < 20 || ip.len() < ip_header {
            return None;
        }
        let mut packet = Self { bytes, ip_header, segment_bytes: 0, tcp_header: 0 };
        if bytes[1] != GSO_NONE {
            let segment_bytes = usize::from(u16::from_ne_bytes([bytes[4], bytes[5]]));
            let tcp_header = usize::from(ip.get(ip_header + 12)? >> 4) * 4;
            let fits = tcp_header >= 20 && ip.len() > ip_header + tcp_header;
            if bytes[1] != GSO_TCP4 || ip[9] != TCP || segment_bytes == 0 || !fits {
                return None;
            }
            packet.segment_bytes = segment_bytes;
            packet.tcp_header = tcp_header;
        }
        Some(packet)
    }

    /// Everything, virtio-net header included, as a TUN device takes it.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The IPv4 packet.
    pub(crate) fn ip(&self) -> &'a [u8] {
        &self.bytes[VNET_BYTES..]
    }

    /// The IPv4 header with its options.
    pub(crate) fn ip_header(&self) -> &'a [u8] {
        &self.ip()[..self.ip_header]
    }

    /// What the IPv4 packet carries.
    pub(crate) fn payload(&self) -> &'a [u8] {
        &self.ip()[self.ip_header..]
    }

    pub(crate) fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.ip()[12..16].try_into().unwrap_or_default())
    }

    pub(crate) fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.ip()[16..20].try_into().unwrap_or_default())
    }

    pub(crate) fn protocol(&self) -> u8 {
        self.ip()[9]
    }

    /// Whether this is the later part of a packet that was too long: it has no ports.
    pub(crate) fn is_later_fragment(&self) -> bool {
        u16::from_be_bytes([self.ip()[6], self.ip()[7]]) & 0x1fff != 0
    }

    /// How many frames this packet stands for, and how long they are on a real cable.
    pub(crate) fn burst(&self) -> Burst {
        let whole = self.ip().len();
        if self.segment_bytes == 0 {
            return Burst { count: 1, full_bytes: whole as u64, last_bytes: whole as u64 };
        }
        let headers = self.ip_header + self.tcp_header;
        let count = (whole - headers).div_ceil(self.segment_bytes);
        let last = whole - headers - (count - 1) * self.segment_bytes;
        Burst {
            count,
            full_bytes: (headers + self.segment_bytes.min(whole - headers)) as u64,
            last_bytes: (headers + last) as u64,
        }
    }

    /// A packet of its own that stands for frames `first..first + count` of this burst.
    pub(crate) fn slice(&self, first: usize, count: usize) -> Vec<u8> {
        let burst = self.burst();
        debug_assert!(count > 0 && first + count <= burst.count, "a slice lies inside its burst");
        if first == 0 && count == burst.count {
            return self.bytes.to_vec();
        }
        let headers = self.ip_header + self.tcp_header;
        let payload = &self.ip()[headers..];
        let start = first * self.segment_bytes;
        let end = ((first + count) * self.segment_bytes).min(payload.len());

        let mut slice = Vec::with_capacity(VNET_BYTES + headers + end - start);
        slice.extend_from_slice(&self.bytes[..VNET_BYTES + headers]);
        slice.extend_from_slice(&payload[start..end]);

        slice[0] = NEEDS_CHECKSUM;
        slice[2..4].copy_from_slice(&(headers as u16).to_ne_bytes());
        if count == 1 {
            slice[1] = GSO_NONE;
            slice[4..6].fill(0);
        }
        slice[6..8].copy_from_slice(&(self.ip_header as u16).to_ne_bytes());
        slice[8..10].copy_from_slice(&16u16.to_ne_bytes());

        let ip = &mut slice[VNET_BYTES..];
        let length = ip.len() as u16;
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        let identification = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(first as u16);
        ip[4..6].copy_from_slice(&identification.to_be_bytes());
        fill_ip_checksum(ip);

        let tcp_length = length - self.ip_header as u16;
        let pseudo = pseudo_sum(ip, TCP, tcp_length);
        let tcp = &mut ip[self.ip_header..];
        let sequence =
            u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(start as u32).to_be_bytes();
        tcp[4..8].copy_from_slice(&sequence);
        if first + count < burst.count {
            tcp[13] &= !(TCP_FIN | TCP_PSH);
        }
        if first > 0 {
            tcp[13] &= !TCP_CWR;
        }
        // With NEEDS_CHECKSUM the field holds the sum of the pseudo header only; the kernel adds the rest.
        tcp[16..18].copy_from_slice(&fold(pseudo).to_be_bytes());
        slice
    }
}

/// Fills in the checksum of the IPv4 header that `ip` opens with.
pub(crate) fn fill_ip_checksum(ip: &mut [u8]) {
    let header = usize::from(ip[0] & 0x0f) * 4;
    ip[10..12].fill(0);
    let sum = !fold(sum(&ip[..header]));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The ones' complement sum of TCP's and UDP's pseudo header, not yet folded.
pub(crate) fn pseudo_sum(ip: &[u8], protocol: u8, length: u16) -> u32 {
    sum(&ip[12..20]) + u32::from(protocol) + u32::from(length)
}

/// The sum of big-endian 16-bit words; an odd byte counts as the high half of a word.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let pairs = bytes.chunks_exact(2);
    let odd = pairs.remainder().first().map_or(0, |&byte| u32::from(byte) << 8);
    pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>() + odd
}

/// Folds the carries of a sum back into 16 bits.
pub(crate) fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A TCP packet from 10.77.0.1:1000 to 10.77.0.2:2000; a burst if `segment_bytes` is not zero.
    pub(crate) fn tcp_packet(payload: &[u8], flags: u8, segment_bytes: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; VNET_BYTES + 40];
        bytes[0] = NEEDS_CHECKSUM;
        bytes[1] = if segment_bytes > 0 { GSO_TCP4 } else { GSO_NONE };
        bytes[4..6].copy_from_slice(&segment_bytes.to_ne_bytes());
        bytes.extend_from_slice(payload);
        let ip = &mut bytes[VNET_BYTES..];
        let length = ip.len() as u16;
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[4..6].copy_from_slice(&500u16.to_be_bytes());
        ip[8] = 64;
        ip[9] = TCP;
        ip[12..16].copy_from_slice(&[10, 77, 0, 1]);
        ip[16..20].copy_from_slice(&[10, 77, 0, 2]);
        fill_ip_checksum(ip);
        ip[20..22].copy_from_slice(&1_000u16.to_be_bytes());
        ip[22..24].copy_from_slice(&2_000u16.to_be_bytes());
        ip[24..28].copy_from_slice(&7_000u32.to_be_bytes());
        ip[28..32].copy_from_slice(&9_000u32.to_be_bytes());
        ip[32] = 0x50;
        ip[33] = flags;
        bytes
    }

    #[test]
    fn slices_of_a_burst_add_up_to_it() {
        let payload: Vec<u8> = (0..3_500u32).map(|i| (i % 251) as u8).collect();
        let bytes = tcp_packet(&payload, TCP_ACK | TCP_PSH | TCP_FIN, 1_000);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.burst(), Burst { count: 4, full_bytes: 1_040, last_bytes: 540 });

        let mut joined = Vec::new();
        for (first, count, flags) in [(0, 1, TCP_ACK), (1, 2, TCP_ACK), (3, 1, TCP_ACK | TCP_PSH | TCP_FIN)] {
            let slice = packet.slice(first, count);
            let part = Packet::parse(&slice).unwrap();
            assert_eq!(part.burst().count, count);
            let ip = part.ip();
            assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
            assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), 500 + first as u16);
            assert_eq!(fold(sum(part.ip_header())), 0xffff, "the header's sum is right");
            let sequence = u32::from_be_bytes([ip[24], ip[25], ip[26], ip[27]]);
            assert_eq!(sequence as usize, 7_000 + joined.len());
            assert_eq!(ip[33], flags);
            joined.extend_from_slice(&ip[40..]);
        }
        assert_eq!(joined, payload);
    }

    #[test]
    fn what_leads_outside_is_not_a_packet() {
        let good = tcp_packet(&[1; 100], TCP_ACK, 50);
        assert!(Packet::parse(&good).is_some());
        for length in 0..VNET_BYTES + 40 {
            assert!(Packet::parse(&good[..length]).is_none(), "{length}");
        }
        let mut long_header = tcp_packet(&[], TCP_ACK, 0);
        long_header[VNET_BYTES] = 0x4f;
        assert!(Packet::parse(&long_header).is_none());
        let mut not_ipv4 = good.clone();
        not_ipv4[VNET_BYTES] = 0x65;
        assert!(Packet::parse(&not_ipv4).is_none());
        let mut endless = good;
        endless[4..6].fill(0);
        assert!(Packet::parse(&endless).is_none(), "a burst of segments without a length");
    }
}
