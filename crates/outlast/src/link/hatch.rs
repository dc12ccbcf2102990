//! A hatch between two processes of one host.
//!
//! # The problem
//!
//! Two processes of one host that talk over TCP and TLS pay for a network that is not there: the kernel takes every small
//! message through all of TCP, and both ends seal and open what nobody can read. A message of the store costs about twice as
//! much that way as it has to.
//!
//! # The intuition
//!
//! Both ends have proved who they are on a TLS stream already (rule 39). On that stream whoever dialled tells the other of a
//! Unix socket that it listens at, its *hatch*, and of a proof that nobody else knows. The other one comes to the hatch, shows
//! the proof and hands over one end of a pair of sockets; from there on they talk over the pair. Who is at the other end
//! was proved by TLS, that both are on one host is proved by the descriptor that was passed (rule 34): no relay can pass
//! one on.
//!
//! ```text
//!   dialler                                          listener
//!      |---- TLS: Hatch::Open { name, proof, from, to } -->|
//!      |<--- at the hatch: proof, one end of a pair ------|
//!      |<--- TLS: Hatch::Through -------------------------|   (or Stays: both go on over TLS)
//!      |---- TLS: Hatch::Through ------------------------>|   (the same)
//!      |<================== the pair ===================>|
//! ```
//!
//! # The invariant
//!
//! What goes through a hatch goes between the two processes that proved themselves, or both stay where they are. Names of
//! hatches can be seen by everybody on the host, and a name that is free again can be taken by somebody else. So the guest shows a
//! proof to whoever listens there, whoever listens there says on the TLS stream that it has what the guest brought, and neither goes
//! on over the pair before. Both also look at whose process is there, which must be of the same user: that keeps
//! others from seeing the proof. Hatches are in the abstract namespace: a name lasts as long as its socket, leaves no file behind,
//! and is known only within one network namespace, so that hosts of the lab stay hosts.
//!
//! A descriptor that came from another process is that process's, too: it can change what the two share. So sockets of a pair are
//! never waited in, whatever they are set to ([`UnixWire`](super::UnixWire)), and what is no such socket is not taken.
//!
//! # What it does not do
//!
//! It decides nothing about who may talk. And it leaves a way alone that somebody stands in the middle of, a relay or a forwarded
//! port: whoever put that there wants what is said to pass it. Both ends know their addresses of the stream that they have; if these
//! are not the same two, somebody is in between.

use crate::fork::Guarded;
use crate::security::random_bytes;
use outlast_proto::wire::hatch::{HATCH_NAME_BYTES, HATCH_PROOF_BYTES, Hatch};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Who comes to a hatch before its guest does is sent away; so many may wait there, and the guest is among them when it says that
/// it has come.
const BACKLOG: i32 = 8;
/// A hatch that is open for one guest. It is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct OpenHatch {
    listener: Guarded<OwnedFd>,
    name: [u8; HATCH_NAME_BYTES],
    proof: [u8; HATCH_PROOF_BYTES],
}

impl OpenHatch {
    /// Opens one.
    pub(crate) fn open() -> io::Result<Self> {
        let (name, proof) = (random_bytes(), random_bytes());
        let listener = Guarded::new(socket()?)?;
        rustix::net::bind(&*listener, &address(&name)?)?;
        rustix::net::listen(&*listener, BACKLOG)?;
        Ok(Self { listener, name, proof })
    }

    /// What the guest is told, on a stream that goes from `from` to `to`.
    pub(crate) fn invitation(&self, from: SocketAddr, to: SocketAddr) -> Hatch {
        Hatch::Open { name: self.name.into(), proof: self.proof.into(), from, to }
    }

    /// The guest's end of the way between the two. It has come already when it says so: this never waits.
    pub(crate) fn admit(&self) -> io::Result<Guarded<UnixStream>> {
        // The kernel lets one more wait than it was told to.
        for _ in 0..=BACKLOG {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&*self.listener, flags) {
                Ok(visitor) => {
                    if let Some(stream) = self.receive(&visitor)? {
                        return Ok(stream);
                    }
                }
                Err(rustix::io::Errno::WOULDBLOCK) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::other("whoever was invited has not come"))
    }

    /// What a visitor brings; nothing if it is not the guest.
    fn receive(&self, visitor: &OwnedFd) -> io::Result<Option<Guarded<UnixStream>>> {
        if !is_of_this_user(visitor) {
            return Ok(None);
        }
        let mut shown = [0; HATCH_PROOF_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(visitor, &mut [IoSliceMut::new(&mut shown)], &mut ancillary, flags);
        let passed = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let passed: Vec<OwnedFd> = passed.flatten().collect();
        if !received.is_ok_and(|received| received.bytes == shown.len()) || shown != self.proof {
            return Ok(None);
        }
        let end = passed.into_iter().find(is_end_of_a_pair);
        end.map(|end| Guarded::new(UnixStream::from(end))).transpose()
    }
}

/// Goes through a hatch: our end of the way between the two.
pub(crate) fn go_through(
    name: &[u8; HATCH_NAME_BYTES],
    proof: &[u8; HATCH_PROOF_BYTES],
) -> io::Result<Guarded<UnixStream>> {
    let visitor = Guarded::new(socket()?)?;
    rustix::net::connect(&*visitor, &address(name)?)?;
    if !is_of_this_user(&visitor) {
        return Err(io::Error::other("somebody else is at that hatch"));
    }
    let (ours, theirs) = UnixStream::pair()?;
    let (ours, theirs) = (Guarded::new(ours)?, Guarded::new(theirs)?);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let handed = [(*theirs).as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&handed));
    let sent = rustix::net::sendmsg(&*visitor, &[IoSlice::new(proof)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == proof.len() { Ok(ours) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Messages keep their bounds and never wait.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn address(name: &[u8; HATCH_NAME_BYTES]) -> io::Result<SocketAddrUnix> {
    let name = format!("outlast-hatch-{:032x}", u128::from_be_bytes(*name));
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// Whether that is a stream of Unix sockets, and nothing that can be waited in for ever.
fn is_end_of_a_pair(end: &OwnedFd) -> bool {
    sockopt::socket_domain(end) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(end) == Ok(SocketType::STREAM)
}

/// Whether the process at the other end is one of our own user.
fn is_of_this_user(socket: &OwnedFd) -> bool {
    let there = sockopt::socket_peercred(socket);
    there.is_ok_and(|there| there.uid == rustix::process::geteuid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{UnixWire, Wire as _};
    use std::io::{Read as _, Write as _};

    fn told(hatch: &OpenHatch) -> ([u8; HATCH_NAME_BYTES], [u8; HATCH_PROOF_BYTES]) {
        (hatch.name, hatch.proof)
    }

    #[test]
    fn both_ends_of_a_hatch_talk_over_the_pair() {
        let hatch = OpenHatch::open().unwrap();
        let (name, proof) = told(&hatch);
        let mut there = go_through(&name, &proof).unwrap();
        let mut here = hatch.admit().unwrap();
        drop(hatch);
        there.write_all(b"from there").unwrap();
        here.write_all(b"from here!").unwrap();
        let mut words = [0; 10];
        here.read_exact(&mut words).unwrap();
        assert_eq!(&words, b"from there");
        there.read_exact(&mut words).unwrap();
        assert_eq!(&words, b"from here!");
    }

    #[test]
    fn nobody_at_the_hatch_is_an_error_and_no_wait() {
        let hatch = OpenHatch::open().unwrap();
        assert!(hatch.admit().unwrap_err().to_string().contains("has not come"));
    }

    #[test]
    fn who_knows_only_the_name_is_passed_over() {
        let hatch = OpenHatch::open().unwrap();
        let (name, proof) = told(&hatch);
        let mut false_one = go_through(&name, &[7; HATCH_PROOF_BYTES]).unwrap();
        assert!(hatch.admit().is_err(), "that was no proof");
        let _empty_handed = {
            let visitor = socket().unwrap();
            rustix::net::connect(&visitor, &address(&name).unwrap()).unwrap();
            rustix::net::send(&visitor, &proof, SendFlags::NOSIGNAL).unwrap();
            visitor
        };
        let silent = socket().unwrap();
        rustix::net::connect(&silent, &address(&name).unwrap()).unwrap();
        let mut there = go_through(&name, &proof).unwrap();
        let mut here = hatch.admit().unwrap();
        there.write_all(b"it").unwrap();
        let mut words = [0; 2];
        here.read_exact(&mut words).unwrap();
        assert_eq!(&words, b"it");
        assert_eq!(false_one.read(&mut words).unwrap(), 0, "its pair was dropped");
    }

    /// Whoever listens at a hatch could be kept busy with visitors for ever.
    #[test]
    fn no_more_visitors_are_looked_at_than_could_wait_before_the_guest() {
        let hatch = OpenHatch::open().unwrap();
        let (name, _) = told(&hatch);
        let visitors: Vec<_> = (0..100)
            .map(|_| socket().unwrap())
            .take_while(|visitor| rustix::net::connect(visitor, &address(&name).unwrap()).is_ok())
            .collect();
        assert!(visitors.len() <= BACKLOG as usize + 1, "{}", visitors.len());
        assert!(hatch.admit().unwrap_err().to_string().contains("has not come"));
    }

    /// A pipe can be waited in for ever, and so can a file of somebody's own making.
    #[test]
    fn what_is_no_pair_of_sockets_is_not_taken() {
        let hatch = OpenHatch::open().unwrap();
        let (name, proof) = told(&hatch);
        let visitor = socket().unwrap();
        rustix::net::connect(&visitor, &address(&name).unwrap()).unwrap();
        let (_read, write) = std::io::pipe().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let handed = [write.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&handed));
        rustix::net::sendmsg(&visitor, &[IoSlice::new(&proof)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        assert!(hatch.admit().is_err());
    }

    /// Both processes hold the end that was passed, and each can set it to wait for both.
    #[test]
    fn nobody_is_made_to_wait_in_a_pair_by_the_other_one() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let of_the_other = ours.try_clone().unwrap();
        let mut wire = UnixWire::new(ours).unwrap();
        of_the_other.set_nonblocking(false).unwrap();
        let mut room = [0; 8];
        let read = wire.receive(&mut [IoSliceMut::new(&mut room)]);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let much = vec![0; 1 << 20];
        let full = (0..64).map(|_| wire.send(&[IoSlice::new(&much)])).find_map(Result::err);
        assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_hatch_that_is_shut_leads_nowhere() {
        let hatch = OpenHatch::open().unwrap();
        let (name, proof) = told(&hatch);
        drop(hatch);
        assert_eq!(go_through(&name, &proof).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
