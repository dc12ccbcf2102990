//! Data links through the one port, driven by the executor's threads.
//!
//! A link opens like every stream of ours: TLS 1.3, both ends prove that they belong to the run. Then it stays
//! TLS, or, where the run asked for it, goes on in the clear over the same socket (rule 34). Which of the two is
//! part of what the stream asks for (its ALPN), under the handshake's protection: a peer serves one of them, so
//! nobody is talked into plaintext, and nobody without the run secret gets a plaintext link either.
//!
//! ```text
//!  dialler                          acceptor
//!     | <------ TLS handshake -------> |   whoever belongs to the run, for "outlast-data-plain/1"
//!     | <------- one record: GO ------ |   all that comes later is plaintext
//!     | <======= frames ============> |
//! ```
//!
//! The handover must not lose a byte: the session reads ahead, and what it has read cannot be put back. So the
//! dialler says nothing until it has GO, and reads that record to its last byte and not beyond.
//!
//! What this does not do: protect frames against whoever can change packets on the way. That is what was given
//! up; the frames' checksums find accidents only.

use crate::clock;
use crate::coordinator::ControlFrames;
use crate::executor::DataPlane;
use crate::fork::Guarded;
use crate::link::split;
use crate::link::{Dial, TcpSettings, TcpWire, TlsWire, Wire};
use crate::membership::Preset;
use crate::port::{self, AuthenticatedStream, ConnectError};
use crate::security::TlsIdentity;
use outlast_proto::id::PeerId;
use outlast_proto::retry::{self, AfterDial, DialFailure};
use outlast_proto::wire::control::Encryption;
use outlast_proto::wire::frame::FrameBuffer;
use rustls::Connection;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::Handle;

/// How long the acceptor tries to say [`GO`]. One record fits the buffer of a fresh connection.
const GO_TIMEOUT: Duration = Duration::from_secs(5);
/// The one thing that is said under TLS on a link that goes on in the clear.
const GO: u8 = b'P';
/// The header of a TLS record, and the most that may follow it (RFC 8446, 5.2).
const RECORD_HEADER_BYTES: usize = 5;
const RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// How often a dial that may be called off looks whether it is still wanted.
const BEAT: Duration = Duration::from_millis(20);

/// What a data stream asks for, by the run's setting: a link, or one more stream of one.
pub(super) fn plane(encryption: Encryption, is_stripe: bool) -> &'static [u8] {
    match (encryption, is_stripe) {
        (Encryption::On, false) => port::DATA,
        (Encryption::Off, false) => port::DATA_PLAIN,
        (Encryption::On, true) => port::DATA_STRIPE,
        (Encryption::Off, true) => port::DATA_PLAIN_STRIPE,
    }
}

/// What a stream asks for on which a shared state is fetched.
pub(super) fn state_plane(encryption: Encryption) -> &'static [u8] {
    match encryption {
        Encryption::On => port::STATE,
        Encryption::Off => port::STATE_PLAIN,
    }
}

/// What a stream asks for on which the way between two peers is measured: as the run's data links are.
pub(super) fn probe_plane(encryption: Encryption) -> &'static [u8] {
    match encryption {
        Encryption::On => port::PROBE,
        Encryption::Off => port::PROBE_PLAIN,
    }
}

/// Dials data links to other peers' ports.
pub(super) struct Links {
    pub(super) identity: TlsIdentity,
    pub(super) runtime: Handle,
    pub(super) tcp: TcpSettings,
    pub(super) encryption: Encryption,
    pub(super) silent_after: Duration,
    /// Who is to look at its links when one is found silent.
    pub(super) plane: Arc<OnceLock<Weak<DataPlane>>>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("encryption", &self.encryption).finish_non_exhaustive()
    }
}

/// How long a link is dialled that is refused, or closed at once: its other end may be starting, or full, or behind
/// a firewall for a moment (rule 44).
pub(super) fn dial_timeout(preset: Preset) -> Duration {
    preset.times().control_grace
}

/// Whether `peer` can be reached at `address`: it is dialled, proves itself, and is let go. Why not, if not.
pub(super) async fn reach(
    identity: &TlsIdentity,
    peer: PeerId,
    address: SocketAddr,
    patience: Duration,
) -> Option<String> {
    match port::connect(address, port::PATH, identity, patience).await {
        Ok(stream) if stream.peer == peer => None,
        Ok(stream) => Some(other_peer(address, stream.peer, peer)),
        Err(error) => Some(error.to_string()),
    }
}

fn other_peer(address: SocketAddr, there: PeerId, wanted: PeerId) -> String {
    format!("{address} is {}, not {}", there.short(), wanted.short())
}

impl Dial for Links {
    fn dial(&self, peer: PeerId, address: SocketAddr, deadline: Instant) -> io::Result<Box<dyn Wire>> {
        self.open(plane(self.encryption, false), peer, address, deadline, &|| false)
    }

    fn dial_stripe(&self, peer: PeerId, address: SocketAddr, deadline: Instant) -> io::Result<Box<dyn Wire>> {
        self.open(plane(self.encryption, true), peer, address, deadline, &|| false)
    }
}

impl Links {
    /// A stream on which a peer's state is fetched.
    pub(super) fn dial_state(
        &self,
        peer: PeerId,
        address: SocketAddr,
        deadline: Instant,
    ) -> io::Result<Box<dyn Wire>> {
        self.open(state_plane(self.encryption), peer, address, deadline, &|| false)
    }

    /// A stream on which the way to a peer is measured, unless `off` says that it is no longer wanted.
    pub(super) fn dial_probe(
        &self,
        peer: PeerId,
        address: SocketAddr,
        deadline: Instant,
        off: &dyn Fn() -> bool,
    ) -> io::Result<Box<dyn Wire>> {
        self.open(probe_plane(self.encryption), peer, address, deadline, off)
    }

    fn teller(&self) -> impl FnOnce() + Send + 'static {
        let plane = Arc::clone(&self.plane);
        move || {
            if let Some(plane) = plane.get().and_then(Weak::upgrade) {
                plane.look_at_links();
            }
        }
    }

    fn open(
        &self,
        plane: &[u8],
        peer: PeerId,
        address: SocketAddr,
        deadline: Instant,
        off: &dyn Fn() -> bool,
    ) -> io::Result<Box<dyn Wire>> {
        let called_off = || io::Error::new(io::ErrorKind::Interrupted, "called off");
        let stream = loop {
            let patience = deadline.saturating_duration_since(Instant::now()).min(self.silent_after);
            let dialling = port::connect(address, plane, &self.identity, patience);
            let dialled = self.unless(off, dialling).ok_or_else(called_off)?;
            let error = match dialled {
                Ok(stream) => break stream,
                Err(error) => error,
            };
            let (failure, kind) = match &error {
                ConnectError::NoSuchPlane { .. } => (DialFailure::Unfit, io::ErrorKind::Unsupported),
                ConnectError::TimedOut { .. } => (DialFailure::Silent, io::ErrorKind::TimedOut),
                _ => (DialFailure::Refused, io::ErrorKind::Other),
            };
            let now = clock::now();
            let by = now + deadline.saturating_duration_since(Instant::now());
            match retry::after_dial(now, failure, by) {
                AfterDial::Again(at) => {
                    tracing::debug!(%address, %error, "a data link is dialled again");
                    self.unless(off, async { tokio::time::sleep(at.since(now)).await })
                        .ok_or_else(called_off)?;
                }
                AfterDial::GivenUp if failure == DialFailure::Unfit => {
                    let text = format!(
                        "{address} takes no data links with encryption {}: start every peer of a run with the \
                         same setting",
                        self.encryption
                    );
                    return Err(io::Error::new(kind, text));
                }
                AfterDial::GivenUp => return Err(io::Error::new(kind, error)),
            }
        };
        if stream.peer != peer {
            return Err(io::Error::new(io::ErrorKind::InvalidData, other_peer(address, stream.peer, peer)));
        }
        let (socket, mut session) = parts(stream)?;
        if self.encryption == Encryption::Off {
            socket.set_nonblocking(false)?;
            await_go(&mut &*socket, &mut session, |left| socket.set_read_timeout(Some(left)), deadline)?;
        }
        self.wire(socket, session)
    }

    /// Waits for it on this thread; none once `off` says that nobody wants it any more. Whoever is asked may run a
    /// program's handler of signals, so it is asked outside the runtime.
    fn unless<T>(&self, off: &dyn Fn() -> bool, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        while !off() {
            let beat = async { tokio::time::timeout(BEAT, &mut work).await };
            if let Ok(done) = self.runtime.block_on(beat) {
                return Some(done);
            }
        }
        None
    }

    fn wire(&self, socket: Guarded<TcpStream>, session: Connection) -> io::Result<Box<dyn Wire>> {
        Ok(match self.encryption {
            Encryption::On => {
                let wire = TlsWire::new(socket, session, &self.tcp)?;
                wire.break_when_silent(&self.runtime, self.silent_after, self.teller());
                Box::new(wire)
            }
            Encryption::Off => {
                let wire = TcpWire::new(socket, &self.tcp)?;
                wire.break_when_silent(&self.runtime, self.silent_after, self.teller());
                Box::new(wire)
            }
        })
    }

    /// Makes a wire of a stream that somebody else has opened to us.
    pub(super) async fn accept(&self, mut stream: AuthenticatedStream) -> io::Result<Box<dyn Wire>> {
        if self.encryption == Encryption::Off {
            let saying = async {
                stream.stream.write_all(&[GO]).await?;
                stream.stream.flush().await
            };
            tokio::time::timeout(GO_TIMEOUT, saying).await.map_err(|_| io::ErrorKind::TimedOut)??;
        }
        let (socket, session) = parts(stream)?;
        self.wire(socket, session)
    }
}

/// Takes a stream out of the runtime's hands.
fn parts(stream: AuthenticatedStream) -> io::Result<(Guarded<TcpStream>, Connection)> {
    split(stream.stream)
}

/// Takes the control connection out of the runtime's hands, with what was read of it already. It breaks by itself
/// once the other host has acknowledged nothing for `silent_after`.
pub(super) fn control_wire(
    frames: ControlFrames,
    silent_after: Duration,
) -> io::Result<(TlsWire, FrameBuffer)> {
    let (stream, incoming) = frames.into_parts();
    let (socket, session) = split(stream)?;
    // The kernel counts keep-alive in whole seconds.
    let keepalive = (silent_after / 2).max(Duration::from_secs(1));
    let settings = TcpSettings { user_timeout: silent_after, keepalive };
    Ok((TlsWire::new(socket, session, &settings)?, incoming))
}

/// Reads up to the record that says [`GO`], and not a byte further. `set_timeout` bounds the next read.
fn await_go(
    socket: &mut impl Read,
    session: &mut Connection,
    set_timeout: impl Fn(Duration) -> io::Result<()>,
    deadline: Instant,
) -> io::Result<()> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut record = vec![0; RECORD_HEADER_BYTES + RECORD_BYTES_MAX];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        set_timeout(left)?;
        let (header, body) = record.split_at_mut(RECORD_HEADER_BYTES);
        socket.read_exact(header)?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let body =
            body.get_mut(..length).ok_or_else(|| invalid(format!("a TLS record of {length} bytes")))?;
        socket.read_exact(body)?;
        let mut whole = &record[..RECORD_HEADER_BYTES + length];
        while !whole.is_empty() {
            session.read_tls(&mut whole)?;
        }
        let state = session.process_new_packets().map_err(|error| invalid(error.to_string()))?;
        match state.plaintext_bytes_to_read() {
            // A message of TLS itself.
            0 if !state.peer_has_closed() => {}
            0 => return Err(io::ErrorKind::ConnectionAborted.into()),
            _ => {
                let mut said = [0; 2];
                let length = session.reader().read(&mut said)?;
                return match &said[..length] {
                    [GO] => Ok(()),
                    other => Err(invalid(format!("{other:?} instead of the word to go on in the clear"))),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Port, Routes, Serving};
    use crate::runtime::{self, Plane};
    use crate::security::{ProcessKey, RunKeys, RunSecret};
    use std::io::{IoSlice, IoSliceMut, Write};
    use std::net::TcpListener;
    use std::sync::{Mutex, mpsc};

    const PATIENCE: Duration = Duration::from_secs(20);
    /// What a tensor might hold; not to be found in an encrypted stream.
    const SECRET_WEIGHTS: &[u8] = b"the weights of the model are 1.5 and 2.5";

    struct Acceptor {
        peer: PeerId,
        port: Port,
        wires: mpsc::Receiver<Box<dyn Wire>>,
        _serving: Serving,
    }

    fn acceptor(keys: &RunKeys, encryption: Encryption) -> Acceptor {
        let handle = runtime::of(Plane::Links).unwrap();
        let identity = TlsIdentity::derived(keys, &ProcessKey::generate());
        let (peer, port) = (identity.peer(), Port::bind("127.0.0.1:0".parse().unwrap()).unwrap());
        let (taken, wires) = mpsc::channel();
        let links = Arc::new(links(keys, encryption));
        let spawner = handle.clone();
        let routes = Routes::new().route(plane(encryption, false), move |stream| {
            let (taken, links) = (taken.clone(), Arc::clone(&links));
            spawner.spawn(async move {
                let mut wire = links.accept(stream).await.unwrap();
                // At once, so that it follows the handshake's last bytes closely.
                assert_eq!(wire.send(&[IoSlice::new(SECRET_WEIGHTS)]).unwrap(), SECRET_WEIGHTS.len());
                taken.send(wire).unwrap();
            });
        });
        let serving = port.serve(&handle, identity, routes).unwrap();
        Acceptor { peer, port, wires, _serving: serving }
    }

    fn links(keys: &RunKeys, encryption: Encryption) -> Links {
        let identity = TlsIdentity::derived(keys, &ProcessKey::generate());
        let (runtime, tcp) = (runtime::of(Plane::Links).unwrap(), TcpSettings::default());
        Links {
            identity,
            runtime,
            tcp,
            encryption,
            silent_after: Duration::from_secs(1),
            plane: Arc::default(),
        }
    }

    fn keys() -> Arc<RunKeys> {
        RunKeys::derive(&RunSecret::generate(), &"run".parse().unwrap())
    }

    /// Passes one connection on and remembers what the acceptor's side said.
    fn wiretap(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, heard) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let record = Arc::clone(&heard);
        std::thread::spawn(move || {
            let (mut near, _) = listener.accept().unwrap();
            let mut far = TcpStream::connect(to).unwrap();
            let (mut back, mut forth) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || io::copy(&mut back, &mut forth));
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = far.read(&mut buffer) {
                record.lock().unwrap().extend_from_slice(&buffer[..length]);
                near.write_all(&buffer[..length]).unwrap();
            }
        });
        (address, heard)
    }

    fn receive(wire: &mut dyn Wire) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        let (mut all, mut buffer) = (Vec::new(), [0; 64]);
        while all.len() < SECRET_WEIGHTS.len() {
            assert!(Instant::now() < deadline, "only {all:?} came");
            match wire.receive(&mut [IoSliceMut::new(&mut buffer)]) {
                Ok(length) => all.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        all
    }

    /// Dials through a wiretap; whether the acceptor's words were readable on the way.
    fn is_readable_on_the_way(encryption: Encryption) -> bool {
        let keys = keys();
        let other = acceptor(&keys, encryption);
        let (tapped, heard) = wiretap(other.port.address());
        let mut wire = links(&keys, encryption).dial(other.peer, tapped, Instant::now() + PATIENCE).unwrap();
        assert_eq!(receive(&mut *wire), SECRET_WEIGHTS, "not a byte is lost in the handover");
        let mut theirs = other.wires.recv_timeout(PATIENCE).unwrap();
        assert_eq!(wire.send(&[IoSlice::new(SECRET_WEIGHTS)]).unwrap(), SECRET_WEIGHTS.len());
        assert_eq!(receive(&mut *theirs), SECRET_WEIGHTS, "nor in the other direction");
        let heard = heard.lock().unwrap();
        heard.windows(SECRET_WEIGHTS.len()).any(|window| window == SECRET_WEIGHTS)
    }

    #[test]
    fn links_are_unreadable_unless_plaintext_was_asked_for() {
        assert!(!is_readable_on_the_way(Encryption::On));
        assert!(is_readable_on_the_way(Encryption::Off));
    }

    #[test]
    fn nobody_is_talked_into_the_other_setting() {
        let keys = keys();
        for (theirs, ours) in [(Encryption::On, Encryption::Off), (Encryption::Off, Encryption::On)] {
            let other = acceptor(&keys, theirs);
            let dialled =
                links(&keys, ours).dial(other.peer, other.port.address(), Instant::now() + PATIENCE);
            let error = dialled.err().expect("they do not agree").to_string();
            assert!(error.contains(&format!("encryption {ours}")), "{error}");
        }
    }

    /// It used to be repeated until its deadline, which grows with the number of measurements before it.
    #[test]
    fn a_measurement_that_is_refused_or_met_with_silence_can_be_called_off() {
        let keys = keys();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let links = Links { silent_after: PATIENCE, ..links(&keys, Encryption::On) };
        for address in [closed, silent.local_addr().unwrap()] {
            let (began, asked) = (Instant::now(), std::cell::Cell::new(0));
            let off = || {
                asked.set(asked.get() + 1);
                began.elapsed() > Duration::from_millis(200)
            };
            let dialled = links.dial_probe(links.identity.peer(), address, began + PATIENCE, &off);
            assert_eq!(dialled.err().expect("it was called off").kind(), io::ErrorKind::Interrupted);
            assert!(began.elapsed() < PATIENCE / 4, "{address} took {:?}", began.elapsed());
            assert!(asked.get() > 1, "it was dialled for a while");
        }
    }

    #[test]
    fn a_plaintext_link_needs_the_run_secret() {
        let other = acceptor(&keys(), Encryption::Off);
        let deadline = Instant::now() + Duration::from_millis(300);
        assert!(links(&keys(), Encryption::Off).dial(other.peer, other.port.address(), deadline).is_err());
        assert!(other.wires.try_recv().is_err());
    }
}
