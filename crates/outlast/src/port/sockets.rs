//! The only place where the port's descriptors are made.
//!
//! All of them are closed on exec. A child that is forked without exec must not hold them either (rule 23), so
//! each leaves this page guarded (see [`crate::fork`]): the two listeners, the closed port, what was accepted
//! and what was dialled.

use crate::fork::Guarded;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Connects that the kernel completes while nobody accepts. Kernel evidence relies on it: a stopped process
/// must keep accepting for as long as others may ask (rule 22).
pub(super) const BACKLOG: i32 = 4_096;

/// A TCP listener and a UDP socket on one number.
pub(super) fn listener_and_datagrams(
    address: SocketAddr,
) -> io::Result<(Guarded<TcpListener>, Guarded<UdpSocket>)> {
    let listener = tcp_socket(address)?;
    // A restarted process gets its number back while old connections linger.
    listener.set_reuse_address(true)?;
    listener.bind(&SockAddr::from(address))?;
    let bound = local_address(&listener)?;
    let datagrams = Guarded::new(datagrams(bound)?)?;
    // Guarded before it listens: from then on its kernel would vouch for whoever holds it.
    let listener = Guarded::new(listener)?;
    listener.listen(BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok((listener.convert(|socket| Ok(socket.into()))?, datagrams))
}

/// A TCP socket that holds a number and never listens on it: connects are refused by the kernel, and nobody
/// else can start listening there. (So no address reuse.)
pub(super) fn closed(address: SocketAddr) -> io::Result<(Guarded<Socket>, u16)> {
    let socket = Guarded::new(tcp_socket(address)?)?;
    socket.bind(&SockAddr::from(SocketAddr::new(address.ip(), 0)))?;
    let port = local_address(&socket)?.port();
    Ok((socket, port))
}

/// What every accepted connection passes.
pub(super) fn accepted(stream: TcpStream) -> io::Result<Guarded<TcpStream>> {
    let stream = Guarded::new(stream)?;
    // Fails if the other side has hung up already; then the first read will say so.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// The same connection, registered with another runtime; the one at hand is for dropping.
pub(super) fn moved(stream: &TcpStream, runtime: &Handle) -> io::Result<Guarded<TcpStream>> {
    let copy = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?);
    let copy = Guarded::new(copy)?;
    let _inside = runtime.enter();
    copy.convert(TcpStream::from_std)
}

/// Whether the other side has closed its end, even if what it said before is still unread. Our diallers close
/// nothing before they are done.
pub(super) fn has_hung_up(stream: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(stream, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut asked, Some(&at_once)), Ok(1..))
}

/// A connection to `address`. The caller bounds the time.
pub(super) async fn dialled(address: SocketAddr) -> io::Result<Guarded<TcpStream>> {
    let stream = Guarded::new(TcpStream::connect(address).await?)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    share_with_ipv4(&socket, address)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket.into())
}

fn tcp_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    share_with_ipv4(&socket, address)?;
    Ok(socket)
}

/// Bound to every IPv6 address, a socket also serves IPv4, whatever the host's default is.
fn share_with_ipv4(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() {
        socket.set_only_v6(address.ip() != Ipv6Addr::UNSPECIFIED)?;
    }
    Ok(())
}

fn local_address(socket: &Socket) -> io::Result<SocketAddr> {
    let address = socket.local_addr()?.as_socket();
    Ok(address.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))))
}
