//! Questions about calls that do not end, as sealed datagrams.
//!
//! They go over the UDP socket of the member's port, so they arrive when the streams are what broke; sealed as those of
//! the health plane are, so that nobody without the secret asks or tells anything (rule 33). The engine reads them as it
//! reads its links: no thread waits for them, and of a flood it takes [`DRAIN_MAX`] in one turn.
//!
//! The invariant: what is sealed here is never taken for a word of the health plane, nor the other way round. The first
//! byte is one that begins no message of ours.
//!
//! What it does not do: repeat what gets lost. Whoever asks, asks again.

use crate::clock;
use crate::fork::Guarded;
use crate::port::Port;
use crate::security::datagram::{DatagramGuard, Opened};
use crate::security::{RunKeys, fresh_boot_id, fresh_peer_id};
use outlast_proto::limits::DATAGRAM_BYTES_MAX;
use outlast_proto::wire::store::account::Datagram;
use outlast_proto::wire::{decode, encode};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Datagrams that one turn of the engine takes in.
const DRAIN_MAX: usize = 64;
/// In front of every message: in CBOR it ends something, so nothing begins with it.
const MARK: u8 = 0xff;

/// See the module's essay.
pub(super) struct Datagrams {
    socket: Guarded<UdpSocket>,
    guard: DatagramGuard,
    inbound: Box<[u8]>,
}

impl Datagrams {
    /// Over the UDP socket of that port, which nobody else uses.
    pub(super) fn new(port: &Port, keys: Arc<RunKeys>) -> io::Result<Self> {
        let socket = Guarded::new(port.udp().try_clone()?)?;
        socket.set_nonblocking(true)?;
        // A name of its own: a process may have several stores, and an own certificate the same name for all of them.
        let guard = DatagramGuard::new(keys, fresh_peer_id(), fresh_boot_id());
        // One byte more than is allowed, so that an oversized datagram is seen to be one.
        Ok(Self { socket, guard, inbound: vec![0; DATAGRAM_BYTES_MAX + 1].into_boxed_slice() })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends one. What the kernel does not take now is lost, as it might be on the way.
    pub(super) fn send(&mut self, to: SocketAddr, datagram: &Datagram) {
        let mut plaintext = vec![MARK];
        plaintext.extend(encode(datagram));
        // Who is there may have any of our secrets while they are rotated.
        for generation in self.guard.generations_for(None) {
            let mut sealed = Vec::with_capacity(DATAGRAM_BYTES_MAX);
            self.guard.seal_under(generation, &plaintext, &mut sealed);
            self.transmit(to, &sealed);
        }
    }

    /// What has come since, as far as it is from somebody with the secret who lives.
    pub(super) fn receive(&mut self) -> Vec<(SocketAddr, Datagram)> {
        let mut received = Vec::new();
        for _ in 0..DRAIN_MAX {
            let (length, from) = match self.socket.recv_from(&mut self.inbound) {
                Ok(came) => came,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An earlier datagram's ICMP answer, or a signal.
                Err(_) => continue,
            };
            let (plaintext, reply) = match self.guard.open(clock::now(), from, &self.inbound[..length]) {
                Opened::Packet { plaintext, reply, .. } => (Some(plaintext), reply),
                Opened::Reply(reply) => (None, Some(reply)),
                Opened::Settled(_) | Opened::Refused(_) => (None, None),
            };
            if let Some(reply) = reply {
                self.transmit(from, &reply);
            }
            let told = plaintext.as_deref().and_then(<[u8]>::split_first);
            if let Some((&MARK, message)) = told
                && let Ok(datagram) = decode::<Datagram>(message)
            {
                received.push((from, datagram));
            }
        }
        received
    }

    fn transmit(&self, to: SocketAddr, sealed: &[u8]) {
        if let Err(error) = self.socket.send_to(sealed, to) {
            tracing::trace!(%to, %error, "datagram not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::RunSecret;
    use outlast_proto::wire::store::account::Inquiry;
    use outlast_proto::wire::store::{CallName, ClientId, MemberId};
    use std::time::{Duration, Instant};

    fn one(secret: &RunSecret) -> (Port, Datagrams) {
        let port = Port::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let keys = RunKeys::derive_all(secret, &[], &"run".parse().unwrap());
        let datagrams = Datagrams::new(&port, keys).unwrap();
        (port, datagrams)
    }

    fn question(number: u64) -> Datagram {
        let call = CallName { client: ClientId(1), number };
        Datagram::Inquire(Inquiry { number, call, key: None, from: MemberId(1) })
    }

    #[test]
    fn a_question_arrives_once_its_sender_is_believed_and_one_under_another_secret_never_does() {
        let secret = RunSecret::generate();
        let ((_a, mut asks), (there, mut hears)) = (one(&secret), one(&secret));
        let (_c, mut stranger) = one(&RunSecret::generate());
        stranger.send(there.address(), &question(7));
        asks.send(there.address(), &question(3));
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut heard = Vec::new();
        while heard.is_empty() {
            assert!(Instant::now() < deadline, "nothing came");
            heard.extend(hears.receive().into_iter().map(|(_, datagram)| datagram));
            asks.receive();
            stranger.receive();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(heard, [question(3)]);
    }
}
