//! What stands in front of a member, and can be shut for streams, or for everything: a network that drops packets
//! without a word.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a thread that waits looks up.
const TICK: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Shut {
    streams: AtomicBool,
    datagrams: AtomicBool,
    over: AtomicBool,
}

/// One address, TCP and UDP, from which everything is passed on to another.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    shut: Arc<Shut>,
}

impl Relay {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let (listener, datagrams) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            if let Ok(datagrams) = UdpSocket::bind(address) {
                break (listener, datagrams);
            }
        };
        let address = listener.local_addr().expect("an address");
        let shut = Arc::<Shut>::default();
        listener.set_nonblocking(true).expect("a listener");
        let state = Arc::clone(&shut);
        std::thread::spawn(move || {
            // Streams that came while it was shut: their kernel was answered, and nobody ever reads them.
            let mut held = Vec::new();
            while !state.over.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((stream, _)) if state.streams.load(Ordering::SeqCst) => held.push(stream),
                    Ok((stream, _)) => {
                        if let Ok(there) = TcpStream::connect(target) {
                            let copies =
                                (stream.try_clone().expect("a copy"), there.try_clone().expect("a copy"));
                            let (one, two) = (Arc::clone(&state), Arc::clone(&state));
                            std::thread::spawn(move || pass(&stream, &there, &one));
                            std::thread::spawn(move || pass(&copies.1, &copies.0, &two));
                        }
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        let state = Arc::clone(&shut);
        std::thread::spawn(move || pass_datagrams(datagrams, target, &state));
        Self { address, shut }
    }

    /// From now on nothing passes: no streams, and no datagrams either if `all`.
    pub(crate) fn shut(&self, all: bool) {
        self.shut.streams.store(true, Ordering::SeqCst);
        self.shut.datagrams.store(all, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shut.over.store(true, Ordering::SeqCst);
    }
}

/// Passes bytes on, one way, for as long as both ends are there; while it is shut none pass.
fn pass(mut from: &TcpStream, mut to: &TcpStream, shut: &Shut) {
    from.set_nonblocking(false).expect("a stream");
    from.set_read_timeout(Some(TICK)).expect("a stream");
    let mut bytes = vec![0; 64 << 10];
    while !shut.over.load(Ordering::SeqCst) {
        if shut.streams.load(Ordering::SeqCst) {
            std::thread::sleep(TICK);
            continue;
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => {
                // What came in the very moment it was shut does not pass either.
                if !shut.streams.load(Ordering::SeqCst) && to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Passes datagrams on: every sender has a socket of its own towards the target, whose answers go back to it.
fn pass_datagrams(socket: UdpSocket, target: SocketAddr, shut: &Arc<Shut>) {
    socket.set_read_timeout(Some(TICK)).expect("a socket");
    let socket = Arc::new(socket);
    let mut senders = BTreeMap::<SocketAddr, Arc<UdpSocket>>::new();
    let mut bytes = [0; 2_048];
    while !shut.over.load(Ordering::SeqCst) {
        let Ok((count, from)) = socket.recv_from(&mut bytes) else { continue };
        if shut.datagrams.load(Ordering::SeqCst) {
            continue;
        }
        let onward = senders.entry(from).or_insert_with(|| {
            let onward = Arc::new(UdpSocket::bind("127.0.0.1:0").expect("a socket"));
            onward.set_read_timeout(Some(TICK)).expect("a socket");
            let (answers, back, shut) = (Arc::clone(&onward), Arc::clone(&socket), Arc::clone(shut));
            std::thread::spawn(move || {
                let mut bytes = [0; 2_048];
                while !shut.over.load(Ordering::SeqCst) {
                    if let Ok((count, _)) = answers.recv_from(&mut bytes)
                        && !shut.datagrams.load(Ordering::SeqCst)
                    {
                        let _ = back.send_to(&bytes[..count], from);
                    }
                }
            });
            onward
        });
        let _ = onward.send_to(&bytes[..count], target);
    }
}
