//! The ring alone, for measurements: the data plane without a coordinator, without votes, without an undo.
//!
//! What do votes cost? The answer needs the same bytes over the same kind of sockets without them. Nothing here
//! survives anything: a ring that breaks stays broken, nobody is proved to be who it says, and a result counts
//! as soon as it is there. `outlast bench` uses it on loopback; no program should.

use crate::executor::{Abort, Buffers, DataPlane, DataSettings, OpSpec};
use crate::fork::Guarded;
use crate::link::{PlainDialer, TcpSettings, TcpWire, read_plain_hello};
use outlast_proto::collective::{Attempt, DataType, Fingerprint, OpKey, OpKind, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::wire::control::Decider;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a caller may take to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one operation may take.
const OPERATION_TIMEOUT: Duration = Duration::from_mins(2);

/// One member of a ring over plaintext TCP on loopback.
#[derive(Debug)]
pub struct BareRing {
    rank: usize,
    address: SocketAddr,
    plane: Arc<DataPlane>,
    members: Arc<[PeerId]>,
    seq: u64,
}

impl BareRing {
    /// Listens. The ring is used after [`BareRing::open`].
    pub fn listen(rank: usize) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let tcp = TcpSettings::default();
        let dialer = Arc::new(PlainDialer { me: peer(rank), tcp });
        let plane = Arc::new(DataPlane::new(peer(rank), DataSettings::default(), dialer, |_| {})?);
        let taker = Arc::downgrade(&plane);
        std::thread::Builder::new().name("outlast-bare-ring".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                let Some(plane) = taker.upgrade() else { return };
                let taken = stream.and_then(|mut stream| {
                    let hello = read_plain_hello(&mut stream, HELLO_TIMEOUT)?;
                    Ok((hello, TcpWire::new(Guarded::new(stream)?, &tcp)?))
                });
                match taken {
                    // Loopback is never striped.
                    Ok((hello, wire)) => plane.accept(hello.peer, Box::new(wire)),
                    Err(error) => tracing::debug!(%error, "a connection to a bare ring came to nothing"),
                }
            }
        })?;
        Ok(Self { rank, address, plane, members: Arc::new([]), seq: 0 })
    }

    /// Where this member listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes the ring: every member's address, by rank. All members must call it.
    pub fn open(&mut self, addresses: &[SocketAddr]) {
        let ring: Vec<_> = addresses.iter().enumerate().map(|(rank, at)| (peer(rank), *at)).collect();
        self.members = ring.iter().map(|(peer, _)| *peer).collect();
        assert!(self.rank < self.members.len(), "a member's address is among them");
        self.plane.open_epoch(0, 1, ring);
    }

    /// Sums `data` over the members, in place.
    pub fn all_reduce(&mut self, data: &mut [f32]) -> io::Result<()> {
        let spec = OpSpec {
            attempt: Attempt {
                key: OpKey { group: 0, epoch: 1, scope: Scope::Whole, tag: 0, seq: self.seq },
                ring: Arc::clone(&self.members),
                members: Arc::clone(&self.members),
                goes_around: false,
                decider: Decider::Coordinator,
            },
            fingerprint: Fingerprint::new(OpKind::AllReduce, DataType::F32, [data.len() as u64]),
            deadline: Instant::now() + OPERATION_TIMEOUT,
        };
        self.seq += 1;
        let bytes = size_of_val(data);
        let pointer = data.as_mut_ptr().cast::<u8>();
        // SAFETY: the slice is borrowed exclusively for this call, and `Performed` ends before it.
        let buffers = unsafe { Buffers::from_raw([(pointer.cast_const(), bytes)], [(pointer, bytes)]) };
        let performed = self.plane.perform(&spec, buffers, &Abort::new()).map_err(io::Error::other)?;
        performed.commit();
        Ok(())
    }
}

fn peer(rank: usize) -> PeerId {
    let mut bytes = [1; 16];
    bytes[..8].copy_from_slice(&(rank as u64).to_be_bytes());
    PeerId::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_members_sum() {
        let mut rings: Vec<_> = (0..3).map(|rank| BareRing::listen(rank).unwrap()).collect();
        let addresses: Vec<_> = rings.iter().map(BareRing::address).collect();
        std::thread::scope(|scope| {
            for (rank, ring) in rings.iter_mut().enumerate() {
                let addresses = &addresses;
                scope.spawn(move || {
                    ring.open(addresses);
                    for count in [1_usize, 7, 100_003] {
                        let mut data = vec![rank as f32; count];
                        ring.all_reduce(&mut data).unwrap();
                        assert!(data.iter().all(|sum| sum.to_bits() == 3.0_f32.to_bits()));
                    }
                });
            }
        });
    }
}
