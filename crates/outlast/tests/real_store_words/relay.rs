//! What stands in front of a member, and can be shut for streams, or for everything: a network that drops packets
//! without a word. It can also be shut for the streams of one process only: then just one link is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a thread that waits looks up.
const TICK: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Shut {
    streams: AtomicBool,
    datagrams: AtomicBool,
    /// Streams that come from now on pass nothing.
    closed: AtomicBool,
    over: AtomicBool,
    /// Which port every stream came from.
    passing: Mutex<Vec<(u16, Arc<Passing>)>>,
}

/// What becomes of one stream.
#[derive(Default)]
struct Passing {
    cut: AtomicBool,
    ended: AtomicBool,
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
                let shut = || state.streams.load(Ordering::SeqCst) || state.closed.load(Ordering::SeqCst);
                match listener.accept() {
                    Ok((stream, _)) if shut() => held.push(stream),
                    Ok((stream, from)) => {
                        let passing = Arc::<Passing>::default();
                        state.passing.lock().expect("a lock").push((from.port(), Arc::clone(&passing)));
                        if let Ok(there) = TcpStream::connect(target) {
                            let copies =
                                (stream.try_clone().expect("a copy"), there.try_clone().expect("a copy"));
                            let (one, two) = (Arc::clone(&state), Arc::clone(&state));
                            let back = Arc::clone(&passing);
                            std::thread::spawn(move || pass(&stream, &there, &one, &passing));
                            std::thread::spawn(move || pass(&copies.1, &copies.0, &two, &back));
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

    /// From now on no new streams pass. Those that are there do.
    pub(crate) fn close(&self) {
        self.shut.closed.store(true, Ordering::SeqCst);
    }

    /// From now on nobody listens here.
    pub(crate) fn vanish(&self) {
        self.shut.over.store(true, Ordering::SeqCst);
    }

    /// From now on nothing passes on the streams of that process either. Datagrams do.
    pub(crate) fn cut_from(&self, process: u32) {
        self.close();
        self.of(process).iter().for_each(|passing| passing.cut.store(true, Ordering::SeqCst));
    }

    /// The streams of that process end.
    pub(crate) fn hang_up(&self, process: u32) {
        self.of(process).iter().for_each(|passing| passing.ended.store(true, Ordering::SeqCst));
    }

    fn of(&self, process: u32) -> Vec<Arc<Passing>> {
        let ports = ports_of(process);
        let passing = self.shut.passing.lock().expect("a lock");
        let its = passing.iter().filter(|(port, _)| ports.contains(port));
        its.map(|(_, passing)| Arc::clone(passing)).collect()
    }
}

/// The TCP ports of that process, at this end.
fn ports_of(process: u32) -> BTreeSet<u16> {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it lives");
    let sockets: BTreeSet<_> = open
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{process}/net/tcp")).expect("it lives");
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The second column is our end, the tenth the socket's number.
    let ours = rows.filter(|row| row.get(9).is_some_and(|socket| sockets.contains(*socket)));
    let port = |row: Vec<&str>| u16::from_str_radix(row[1].rsplit_once(':')?.1, 16).ok();
    ours.filter_map(port).collect()
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.vanish();
    }
}

/// Passes bytes on, one way, for as long as both ends are there; while it is shut or this stream is cut none pass.
fn pass(mut from: &TcpStream, mut to: &TcpStream, shut: &Shut, passing: &Passing) {
    from.set_nonblocking(false).expect("a stream");
    from.set_read_timeout(Some(TICK)).expect("a stream");
    let mut bytes = vec![0; 64 << 10];
    let is_shut = || shut.streams.load(Ordering::SeqCst) || passing.cut.load(Ordering::SeqCst);
    while !shut.over.load(Ordering::SeqCst) && !passing.ended.load(Ordering::SeqCst) {
        if is_shut() {
            std::thread::sleep(TICK);
            continue;
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => {
                // What came in the very moment it was shut does not pass either.
                if !is_shut() && to.write_all(&bytes[..count]).is_err() {
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
