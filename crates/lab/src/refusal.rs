//! What a firewall that says no sends back.
//!
//! A firewall can drop silently (that is a cut, or `block_udp`) or refuse aloud. What it says decides what
//! the other side believes: a TCP reset or "port unreachable" looks exactly like a host that is alive and
//! has nobody listening, and "administratively prohibited" like a host that nobody may reach. Detectors
//! that trust such evidence must be tested against all three.
//!
//! It keeps no memory of connections: while it refuses TCP, answers to connections that the host itself
//! opened are refused as well.

use crate::packet::{
    ICMP, Packet, TCP, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN, UDP, VNET_BYTES, fill_ip_checksum, fold,
    pseudo_sum, sum,
};
use serde::{Deserialize, Serialize};

/// How a refusal is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// TCP gets a reset, UDP gets "port unreachable": what a host without a listener says.
    #[default]
    Reset,
    /// Both get "port unreachable": what iptables' REJECT says by default. Open TCP connections survive it.
    PortUnreachable,
    /// Both get "host administratively prohibited": what firewalld says. Connects fail with no route.
    Prohibited,
}

/// Which protocols a host's firewall refuses, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Refuse TCP.
    pub tcp: bool,
    /// Refuse UDP.
    pub udp: bool,
    /// What to say.
    pub answer: Answer,
}

impl Refusal {
    /// Refuses TCP and UDP the way a host without a listener does.
    pub fn everything() -> Self {
        Self { tcp: true, udp: true, answer: Answer::Reset }
    }

    /// Refuses TCP only.
    pub fn tcp() -> Self {
        Self { udp: false, ..Self::everything() }
    }

    /// Refuses UDP only.
    pub fn udp() -> Self {
        Self { tcp: false, ..Self::everything() }
    }

    /// The same with another answer.
    #[must_use]
    pub fn answer(self, answer: Answer) -> Self {
        Self { answer, ..self }
    }

    /// Whether this packet is stopped.
    pub(crate) fn stops(self, packet: &Packet<'_>) -> bool {
        match packet.protocol() {
            TCP => self.tcp,
            UDP => self.udp,
            _ => false,
        }
    }

    /// What goes back to the sender of a stopped packet, virtio-net header included. None where the rules of
    /// TCP and ICMP forbid an answer: to a reset, and to a fragment without ports.
    pub(crate) fn reply(self, packet: &Packet<'_>) -> Option<Vec<u8>> {
        if packet.is_later_fragment() {
            return None;
        }
        let is_reset = packet.protocol() == TCP && packet.payload().get(13)? & TCP_RST != 0;
        match (self.answer, packet.protocol()) {
            _ if is_reset => None,
            (Answer::Reset, TCP) => reset(packet),
            (Answer::Reset | Answer::PortUnreachable, _) => Some(unreachable(packet, 3)),
            (Answer::Prohibited, _) => Some(unreachable(packet, 10)),
        }
    }
}

/// The reset that RFC 9293 section 3.5.2 prescribes for a segment to a connection that does not exist.
fn reset(packet: &Packet<'_>) -> Option<Vec<u8>> {
    let segment = packet.payload();
    let header = usize::from(segment.get(12)? >> 4) * 4;
    if header < 20 || segment.len() < header {
        return None;
    }
    let flags = segment[13];
    let sequence = u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]);
    let mut tcp = [0u8; 20];
    tcp[0..2].copy_from_slice(&segment[2..4]);
    tcp[2..4].copy_from_slice(&segment[0..2]);
    if flags & TCP_ACK != 0 {
        tcp[4..8].copy_from_slice(&segment[8..12]);
        tcp[13] = TCP_RST;
    } else {
        let occupied = (segment.len() - header) as u32
            + u32::from(flags & TCP_SYN != 0)
            + u32::from(flags & TCP_FIN != 0);
        tcp[8..12].copy_from_slice(&sequence.wrapping_add(occupied).to_be_bytes());
        tcp[13] = TCP_RST | TCP_ACK;
    }
    tcp[12] = 0x50;
    let mut reply = answer_header(packet, TCP, tcp.len());
    let checksum = !fold(pseudo_sum(&reply[VNET_BYTES..], TCP, 20) + sum(&tcp));
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    reply.extend_from_slice(&tcp);
    Some(reply)
}

/// "Destination unreachable" with this code; it quotes the IP header and the first eight bytes (RFC 792).
fn unreachable(packet: &Packet<'_>, code: u8) -> Vec<u8> {
    let payload = packet.payload();
    let mut icmp = vec![3, code, 0, 0, 0, 0, 0, 0];
    icmp.extend_from_slice(packet.ip_header());
    icmp.extend_from_slice(&payload[..payload.len().min(8)]);
    let checksum = !fold(sum(&icmp));
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut reply = answer_header(packet, ICMP, icmp.len());
    reply.extend_from_slice(&icmp);
    reply
}

/// An empty virtio-net header and the IPv4 header of an answer to `packet`.
fn answer_header(packet: &Packet<'_>, protocol: u8, payload_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; VNET_BYTES + 20];
    let ip = &mut bytes[VNET_BYTES..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(20 + payload_bytes as u16).to_be_bytes());
    ip[6] = 0x40; // Do not fragment: identification zero is then legal (RFC 6864).
    ip[8] = 64;
    ip[9] = protocol;
    ip[12..16].copy_from_slice(&packet.destination().octets());
    ip[16..20].copy_from_slice(&packet.source().octets());
    fill_ip_checksum(ip);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::tcp_packet;

    fn reply(refusal: Refusal, bytes: &[u8]) -> Option<Vec<u8>> {
        refusal.reply(&Packet::parse(bytes).unwrap())
    }

    #[test]
    fn an_opening_is_answered_with_a_reset_that_acknowledges_it() {
        let bytes = reply(Refusal::tcp(), &tcp_packet(&[], TCP_SYN, 0)).unwrap();
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.source().octets(), [10, 77, 0, 2]);
        assert_eq!(packet.destination().octets(), [10, 77, 0, 1]);
        let tcp = packet.payload();
        assert_eq!(tcp[0..4], [2_000u16.to_be_bytes(), 1_000u16.to_be_bytes()].concat());
        assert_eq!(tcp[8..12], 7_001u32.to_be_bytes());
        assert_eq!(tcp[13], TCP_RST | TCP_ACK);
        assert_eq!(fold(pseudo_sum(packet.ip(), TCP, 20) + sum(tcp)), 0xffff);
    }

    #[test]
    fn a_segment_of_a_connection_is_reset_where_it_acknowledges() {
        let bytes = reply(Refusal::tcp(), &tcp_packet(b"hello", TCP_ACK, 0)).unwrap();
        let tcp = Packet::parse(&bytes).unwrap().payload();
        assert_eq!(tcp[4..8], 9_000u32.to_be_bytes());
        assert_eq!(tcp[13], TCP_RST);
    }

    #[test]
    fn unreachable_quotes_what_was_refused() {
        for (answer, code) in [(Answer::PortUnreachable, 3), (Answer::Prohibited, 10)] {
            let asked = tcp_packet(b"hello", TCP_SYN, 0);
            let bytes = reply(Refusal::tcp().answer(answer), &asked).unwrap();
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!((packet.protocol(), packet.payload()[0], packet.payload()[1]), (ICMP, 3, code));
            assert_eq!(packet.payload()[8..36], asked[VNET_BYTES..VNET_BYTES + 28]);
            assert_eq!(fold(sum(packet.payload())), 0xffff);
        }
    }

    #[test]
    fn nobody_answers_a_reset() {
        assert_eq!(reply(Refusal::everything(), &tcp_packet(&[], TCP_RST, 0)), None);
    }

    #[test]
    fn only_the_named_protocols_are_stopped() {
        let bytes = tcp_packet(&[], TCP_SYN, 0);
        let packet = Packet::parse(&bytes).unwrap();
        assert!(Refusal::tcp().stops(&packet) && Refusal::everything().stops(&packet));
        assert!(!Refusal::udp().stops(&packet));
    }
}
