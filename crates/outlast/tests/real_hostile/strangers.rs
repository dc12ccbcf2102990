//! The others: people without the secret, and with time.

use outlast::membership::RunId;
use outlast::port::CONTROL;
use outlast::security::tls::{TlsIdentity, server_name};
use outlast::security::{ProcessKey, RunKeys, RunSecret};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Addresses that the crowd comes from, the members' own among them.
const SOURCES: u8 = 4;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Stops its thread and waits for it.
struct Busy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    fn start(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        Self { stop, thread: Some(std::thread::spawn(move || work(&told))) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connections that say nothing, or one byte, each opened again once it is closed.
pub(crate) struct Crowd {
    opened: Arc<AtomicUsize>,
    _busy: Busy,
}

impl Crowd {
    /// Comes to each of these, with so many connections; returns once all have come.
    pub(crate) fn gather(targets: &[SocketAddr], each: usize) -> Self {
        let opened = Arc::new(AtomicUsize::new(0));
        let (count, targets_given) = (Arc::clone(&opened), targets.to_vec());
        let busy = Busy::start(move |stop| {
            let mut held: Vec<(SocketAddr, Option<TcpStream>)> =
                targets_given.iter().flat_map(|target| (0..each).map(|_| (*target, None))).collect();
            while !stop.load(Ordering::Relaxed) {
                for (number, (target, place)) in held.iter_mut().enumerate() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if place.as_mut().is_none_or(is_closed) {
                        *place = knock(*target, number);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
                // Not to be a flood: this is about who holds on.
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let deadline = Instant::now() + crate::cast::PATIENCE;
        while opened.load(Ordering::Relaxed) < targets.len() * each {
            assert!(Instant::now() < deadline, "only {} have come", opened.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { opened, _busy: busy }
    }

    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

/// A connection from one of several addresses; every third says the first byte of a TLS record and no more.
fn knock(target: SocketAddr, number: usize) -> Option<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).ok()?;
    let source = SocketAddr::from(([127, 0, 0, 1 + (number as u8 % SOURCES)], 0));
    socket.bind(&source.into()).ok()?;
    socket.connect_timeout(&target.into(), CONNECT_TIMEOUT).ok()?;
    let mut stream = TcpStream::from(socket);
    if number.is_multiple_of(3) {
        let _ = stream.write_all(&[22]);
    }
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

fn is_closed(stream: &mut TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 16]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// TLS hellos for the run, one after the other; nobody waits for the answers.
pub(crate) struct Flood {
    hellos: Arc<AtomicUsize>,
    _busy: Busy,
}

impl Flood {
    /// Begins, with so many at once.
    pub(crate) fn start(targets: &[SocketAddr], at_once: usize) -> Self {
        let (hello, targets, hellos) = (hello(), targets.to_vec(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&hellos);
        let busy = Busy::start(move |stop| {
            let mut under_way: Vec<TcpStream> = Vec::new();
            for target in targets.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(mut stream) = TcpStream::connect_timeout(target, CONNECT_TIMEOUT)
                    && stream.write_all(&hello).is_ok()
                {
                    count.fetch_add(1, Ordering::Relaxed);
                    under_way.push(stream);
                }
                if under_way.len() >= at_once {
                    under_way.remove(0);
                }
            }
        });
        Self { hellos, _busy: busy }
    }

    pub(crate) fn hellos(&self) -> usize {
        self.hellos.load(Ordering::Relaxed)
    }

    pub(crate) fn wait_for_hellos(&self, count: usize) -> usize {
        let deadline = Instant::now() + crate::cast::PATIENCE;
        while self.hellos() < count {
            assert!(Instant::now() < deadline, "only {} hellos went out", self.hellos());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.hellos()
    }
}

/// The first message of a handshake for the run "default", by somebody who knows its name and no more.
fn hello() -> Vec<u8> {
    let run: RunId = "default".parse().expect("a run");
    let keys = RunKeys::derive(&RunSecret::generate(), &run);
    let identity = TlsIdentity::derived(&keys, &ProcessKey::generate());
    let config = identity.client_config(&[CONTROL]);
    let mut session = rustls::ClientConnection::new(config, server_name(&run)).expect("a session");
    let mut bytes = Vec::new();
    session.write_tls(&mut bytes).expect("a hello");
    bytes
}
