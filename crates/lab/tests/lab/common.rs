//! What the lab's tests share: a lab or a loud skip, sockets inside hosts, and a clock.

use outlast_lab::{Host, Lab, LabError};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for anything that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing must happen before a test believes that nothing will.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);

/// One lab at a time: the tests measure time, and the machine may have two cores.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lab with these hosts; none, and a loud word, if we are not root.
pub(crate) fn lab(label: &str, hosts: &[&str]) -> Option<Lab> {
    match Lab::new(label, hosts.iter().copied()) {
        Ok(lab) => Some(lab),
        Err(LabError::NotRoot) => {
            eprintln!("SKIPPED {label}: {}", LabError::NotRoot);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A UDP socket in `host`, on a port of the kernel's choice.
pub(crate) fn udp(host: &Host) -> (UdpSocket, SocketAddr) {
    let address = host.address();
    let socket = host.enter(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A TCP listener in `host`.
pub(crate) fn listener(host: &Host) -> (TcpListener, SocketAddr) {
    let address = host.address();
    let listener = host.enter(|| TcpListener::bind((address, 0))).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A TCP connection from `host`.
pub(crate) fn connect(host: &Host, to: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    host.enter(|| TcpStream::connect_timeout(&to, patience)).unwrap()
}

/// Both ends of a TCP connection from one host to another.
pub(crate) fn stream(from: &Host, to: &Host) -> (TcpStream, TcpStream) {
    let (listener, address) = listener(to);
    let near = connect(from, address, PATIENCE).unwrap();
    let (far, _) = listener.accept().unwrap();
    for end in [&near, &far] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (near, far)
}

/// Whether a datagram from one socket reaches the other within `patience`.
pub(crate) fn arrives(from: &UdpSocket, to: (&UdpSocket, SocketAddr), patience: Duration) -> bool {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let word = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_be_bytes();
    from.send_to(&word, to.1).unwrap();
    to.0.set_read_timeout(Some(patience)).unwrap();
    let deadline = Instant::now() + patience;
    let mut buffer = [0; 64];
    while Instant::now() < deadline {
        match to.0.recv(&mut buffer) {
            Ok(length) if buffer[..length] == word => return true,
            _ => {}
        }
    }
    false
}

/// Bytes repeat with this period, which divides no packet size: a byte out of place is noticed.
const PATTERN: usize = 251;

/// Sends `bytes` through the connection; returns how long the receiver waited for the last one.
pub(crate) fn transfer(mut near: TcpStream, mut far: TcpStream, bytes: usize) -> Duration {
    let start = Instant::now();
    let sender = std::thread::spawn(move || {
        let chunk: Vec<u8> = (0..PATTERN * 1_000).map(|place| (place % PATTERN) as u8).collect();
        let mut left = bytes;
        while left > 0 {
            let now = left.min(chunk.len());
            near.write_all(&chunk[..now]).unwrap();
            left -= now;
        }
        near
    });
    let mut buffer = vec![0u8; 1 << 20];
    let mut received = 0;
    while received < bytes {
        let length = far.read(&mut buffer).unwrap();
        assert!(length > 0, "the sender closed early");
        let right = |(place, byte): (usize, &u8)| usize::from(*byte) == (received + place) % PATTERN;
        assert!(buffer[..length].iter().enumerate().all(right), "bytes changed on the way");
        received += length;
    }
    sender.join().unwrap();
    start.elapsed()
}

/// Waits until `condition` holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
