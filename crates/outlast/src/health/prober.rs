//! Asking a silent member's kernel, by connecting to its port.
//!
//! Every connect is made without blocking, in the health thread's own poll set, closed as soon as it is
//! answered. `SO_LINGER` of zero turns that close into a reset, so that thousands of questions leave no
//! `TIME_WAIT` behind and use up no local ports.
//!
//! What the operating system says means what [`ConnectOutcome::of`] says. A connect beyond [`CONNECTS_MAX`] is not
//! made ([`ConnectOutcome::NotAsked`]), because a question that waits in a queue is answered about another moment than
//! the one it was asked for.

use crate::fork::Guarded;
use outlast_proto::membership::{ConnectOutcome, ConnectToken};
use outlast_proto::time::{Duration, Instant};
use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;

/// Most connects under way at once. A member asks about few others at a time (rule 22), three connects each.
pub(super) const CONNECTS_MAX: usize = 96;

struct Connect {
    token: ConnectToken,
    deadline: Instant,
    socket: Guarded<Socket>,
}

/// The connects that are under way.
#[derive(Default)]
pub(super) struct Prober {
    connects: Vec<Connect>,
}

impl Prober {
    /// Starts a connect. Returns the outcome if it is known already; otherwise it comes from [`Self::finish`].
    pub(super) fn start(
        &mut self,
        now: Instant,
        token: ConnectToken,
        to: SocketAddr,
        timeout: Duration,
    ) -> Option<ConnectOutcome> {
        if self.connects.len() >= CONNECTS_MAX {
            return Some(ConnectOutcome::NotAsked);
        }
        match begin(to) {
            Ok((socket, true)) => Some(verdict(&socket)),
            Ok((socket, false)) => {
                self.connects.push(Connect { token, deadline: now + timeout, socket });
                None
            }
            Err(error) => Some(ConnectOutcome::of(Err(error.kind()))),
        }
    }

    /// What to wait for, in the order that [`Self::finish`] expects.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.connects.iter().map(|connect| PollFd::new(&*connect.socket, PollFlags::OUT))
    }

    /// When the next connect runs out of time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.connects.iter().map(|connect| connect.deadline).min()
    }

    /// Ends the connects that were answered (`ready`, one flag per connect) or that ran out of time.
    pub(super) fn finish(&mut self, now: Instant, ready: &[bool]) -> Vec<(ConnectToken, ConnectOutcome)> {
        let mut outcomes = Vec::new();
        let mut index = 0;
        self.connects.retain(|connect| {
            let answered = ready.get(index).copied().unwrap_or(false);
            index += 1;
            if answered {
                outcomes.push((connect.token, verdict(&connect.socket)));
            } else if connect.deadline <= now {
                outcomes.push((connect.token, ConnectOutcome::Silent));
            }
            !answered && connect.deadline > now
        });
        outcomes
    }
}

/// Begins a connect; true if it has ended already.
fn begin(to: SocketAddr) -> io::Result<(Guarded<Socket>, bool)> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    let socket = Guarded::new(socket)?;
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(&SockAddr::from(to)) {
        Ok(()) => Ok((socket, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok((socket, false)),
        Err(error) => Err(error),
    }
}

/// What an answered connect says.
fn verdict(socket: &Socket) -> ConnectOutcome {
    let ended = match socket.take_error() {
        Ok(None) => ends(socket),
        Ok(Some(error)) | Err(error) => Err(error),
    };
    ConnectOutcome::of(ended.map_err(|error| error.kind()))
}

fn ends(socket: &Socket) -> io::Result<(SocketAddr, SocketAddr)> {
    let known = |address: SockAddr| address.as_socket().ok_or(io::Error::from(io::ErrorKind::Unsupported));
    Ok((known(socket.local_addr()?)?, known(socket.peer_addr()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use rustix::event::{Timespec, poll};
    use std::net::TcpListener;

    /// Starts one connect and waits for its outcome, at most five seconds.
    fn ask(to: SocketAddr, timeout: Duration) -> ConnectOutcome {
        let mut prober = Prober::default();
        if let Some(outcome) = prober.start(clock::now(), ConnectToken(1), to, timeout) {
            return outcome;
        }
        let give_up = clock::now() + Duration::from_secs(5);
        while clock::now() < give_up {
            let mut fds: Vec<_> = prober.poll_fds().collect();
            let wait = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            poll(&mut fds, Some(&wait)).unwrap();
            let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if let Some((_, outcome)) = prober.finish(clock::now(), &ready).pop() {
                assert!(prober.connects.is_empty());
                return outcome;
            }
        }
        panic!("no outcome");
    }

    #[test]
    fn a_listener_that_never_accepts_is_vouched_for_by_its_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(ask(address, Duration::from_secs(2)), ConnectOutcome::Accepted);
        drop(listener);
        assert_eq!(ask(address, Duration::from_secs(2)), ConnectOutcome::Refused);
    }

    #[test]
    fn a_bound_port_that_does_not_listen_refuses() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(ask(address, Duration::from_secs(2)), ConnectOutcome::Refused);
    }

    #[test]
    fn a_full_backlog_is_silent_and_not_refused() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let _fill: Vec<_> = (0..4).map(|_| begin(address).unwrap()).collect();
        assert_eq!(ask(address, Duration::from_millis(50)), ConnectOutcome::Silent);
    }

    #[test]
    fn errors_of_our_own_are_no_evidence() {
        let meaning = |errno| ConnectOutcome::of(Err(io::Error::from_raw_os_error(errno).kind()));
        for errno in [libc::EADDRNOTAVAIL, libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
            assert_eq!(meaning(errno), ConnectOutcome::NotAsked, "{errno}");
        }
        for errno in [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EACCES, libc::EPERM] {
            assert_eq!(meaning(errno), ConnectOutcome::Silent, "{errno}");
        }
        assert_eq!(meaning(libc::ECONNREFUSED), ConnectOutcome::Refused);
        assert_eq!(meaning(libc::ECONNRESET), ConnectOutcome::Accepted);
    }

    #[test]
    fn a_connect_that_met_itself_proves_that_nobody_listens() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let own = socket.local_addr().unwrap();
        socket.connect(&own).unwrap();
        assert_eq!(verdict(&socket), ConnectOutcome::Refused);
    }

    #[test]
    fn attempts_are_bounded_and_the_excess_is_no_evidence() {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let (mut prober, now) = (Prober::default(), clock::now());
        let mut token = 0;
        let refused = (0..2 * CONNECTS_MAX)
            .filter_map(|_| {
                token += 1;
                prober.start(now, ConnectToken(token), address, Duration::from_secs(1))
            })
            .filter(|outcome| *outcome == ConnectOutcome::NotAsked)
            .count();
        assert!(prober.connects.len() <= CONNECTS_MAX);
        assert!(refused > 0);
        let late = prober.finish(now + Duration::from_secs(2), &[]);
        assert!(prober.connects.is_empty());
        assert!(late.iter().all(|(_, outcome)| *outcome == ConnectOutcome::Silent));
    }
}
