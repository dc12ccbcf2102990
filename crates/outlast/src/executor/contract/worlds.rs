//! Groups of data planes in one process, one kind for each transport.

use super::super::plane::{DataPlane, DataSettings, OpSpec};
use super::super::transport::Carrier;
use super::super::transport::board::{Board, Hall};
use crate::fork::Guarded;
use crate::link::{Dial, PlainDialer, TcpSettings, TcpWire, TlsWire, Wire, read_plain_hello};
use outlast_proto::collective::{Attempt, Fingerprint, OpKey, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::wire::control::Decider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long any single thing may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn peer(number: usize) -> PeerId {
    PeerId::from_bytes([number as u8 + 1; 16])
}

/// Makes a connection that came in a wire, and says whose it is.
type Greet = Arc<dyn Fn(TcpStream) -> io::Result<(PeerId, Box<dyn Wire>)> + Send + Sync>;

/// One member: a plane, and a listener that hands it connections.
pub(super) struct Member {
    pub(super) id: PeerId,
    pub(super) plane: Arc<DataPlane>,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Member {
    fn new(number: usize, dialer: Arc<dyn Dial>, greet: Greet, carrier: Carrier) -> Self {
        let id = peer(number);
        let plane = Arc::new(DataPlane::over(carrier, id, DataSettings::default(), dialer, |_| {}).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, taker) = (Arc::clone(&stop), Arc::clone(&plane));
        let listening = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok((peer, wire)) = stream.and_then(|stream| greet(stream)) {
                    taker.accept(peer, wire);
                }
            }
        });
        Self { id, plane, address, stop, listening: Some(listening) }
    }

    /// Ends as a process that is killed does.
    pub(super) fn die(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.plane.shutdown();
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            listening.join().unwrap();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.die();
    }
}

/// A group in one epoch.
pub(super) struct World {
    pub(super) members: Vec<Member>,
    epoch: u64,
}

/// How a group over some transport is made.
pub(super) type Make = fn(usize) -> World;

impl World {
    fn of(members: Vec<Member>) -> Self {
        let mut world = Self { members, epoch: 0 };
        world.open_epoch();
        world
    }

    pub(super) fn tcp(size: usize) -> Self {
        let tcp = TcpSettings::default();
        let greet: Greet = Arc::new(move |mut stream| {
            let hello = read_plain_hello(&mut stream, PATIENCE)?;
            Ok((hello.peer, Box::new(TcpWire::new(Guarded::new(stream)?, &tcp)?)))
        });
        let member = |number| {
            let dialer = Arc::new(PlainDialer { me: peer(number), tcp });
            Member::new(number, dialer, Arc::clone(&greet), Carrier::Links)
        };
        Self::of((0..size).map(member).collect())
    }

    pub(super) fn tls(size: usize) -> Self {
        let identity = Arc::new(Identity::new());
        let server = Arc::clone(&identity.server);
        let greet: Greet = Arc::new(move |stream| accept_tls(stream, &server));
        let member = |number| {
            let dialer = Arc::new(TlsDialer { me: peer(number), identity: Arc::clone(&identity) });
            Member::new(number, dialer, Arc::clone(&greet), Carrier::Links)
        };
        Self::of((0..size).map(member).collect())
    }

    pub(super) fn board(size: usize) -> Self {
        Self::in_hall(&Arc::default(), size)
    }

    /// The same in a hall that the test knows.
    pub(super) fn in_hall(hall: &Arc<Hall>, size: usize) -> Self {
        let nobody: Greet = Arc::new(|_| Err(io::Error::other("no connection is made")));
        let member = |number| {
            let dialer = Arc::new(PlainDialer { me: peer(number), tcp: TcpSettings::default() });
            let board = Carrier::Board(Board::new(peer(number), hall));
            Member::new(number, dialer, Arc::clone(&nobody), board)
        };
        Self::of((0..size).map(member).collect())
    }

    /// The next epoch, among whoever is a member now.
    pub(super) fn open_epoch(&mut self) {
        self.epoch += 1;
        for member in &self.members {
            member.plane.open_epoch(0, self.epoch, self.addresses());
        }
    }

    /// The ring with its members' addresses.
    pub(super) fn addresses(&self) -> Vec<(PeerId, SocketAddr)> {
        self.ring().iter().map(|id| (*id, self.address(*id))).collect()
    }

    fn address(&self, id: PeerId) -> SocketAddr {
        self.members.iter().find(|member| member.id == id).expect("a member").address
    }

    /// A ring that does not follow the order of ranks.
    fn ring(&self) -> Vec<PeerId> {
        let mut ring: Vec<_> = self.members.iter().map(|member| member.id).collect();
        ring[1..].reverse();
        ring
    }

    pub(super) fn spec(&self, call: &Fingerprint, tag: u64, seq: u64) -> OpSpec {
        let attempt = Attempt {
            key: OpKey { group: 0, epoch: self.epoch, scope: Scope::Whole, tag, seq },
            ring: self.ring().into(),
            members: self.members.iter().map(|member| member.id).collect(),
            goes_around: false,
            decider: Decider::Coordinator,
        };
        OpSpec { attempt, fingerprint: call.clone(), deadline: Instant::now() + PATIENCE }
    }

    /// Runs `work` for each member on a thread of its own and returns what they return.
    pub(super) fn everybody<T: Send>(&self, work: impl Fn(usize, &Member) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let members = self.members.iter().enumerate();
            let threads: Vec<_> =
                members.map(|(number, member)| scope.spawn(move || work(number, member))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

/// Certificates of one authority for both ends; who is who is said by a hello of our own.
pub(crate) struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Identity {
    /// Two sockets on this machine, and what both ends have agreed on.
    pub(crate) fn connected(&self) -> ((TcpStream, Connection), (TcpStream, Connection)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let server = Arc::clone(&self.server);
        let shaken = std::thread::spawn(move || {
            let mut session = Connection::from(ServerConnection::new(server).unwrap());
            shake_hands(&mut far, &mut session).unwrap();
            (far, session)
        });
        let name = ServerName::try_from("outlast.test").unwrap();
        let session = ClientConnection::new(Arc::clone(&self.client), name);
        let mut session = Connection::from(session.unwrap());
        shake_hands(&mut near, &mut session).unwrap();
        ((near, session), shaken.join().unwrap())
    }

    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["outlast.test".to_owned()]).unwrap();
        let certificate: CertificateDer<'static> = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let server =
            ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
        Self { client: Arc::new(client), server: Arc::new(server) }
    }
}

struct TlsDialer {
    me: PeerId,
    identity: Arc<Identity>,
}

impl Dial for TlsDialer {
    fn dial(&self, _: PeerId, address: SocketAddr, deadline: Instant) -> io::Result<Box<dyn Wire>> {
        let mut stream = TcpStream::connect_timeout(&address, deadline - Instant::now())?;
        let name = ServerName::try_from("outlast.test").unwrap();
        let session = ClientConnection::new(Arc::clone(&self.identity.client), name);
        let mut session = Connection::from(session.map_err(io::Error::other)?);
        shake_hands(&mut stream, &mut session)?;
        session.writer().write_all(self.me.as_bytes())?;
        // At once: whoever listens reads our name before it does anything else, even if no call ever uses this link.
        while session.wants_write() {
            session.write_tls(&mut stream)?;
        }
        Ok(Box::new(TlsWire::new(Guarded::new(stream)?, session, &TcpSettings::default())?))
    }
}

fn shake_hands(stream: &mut TcpStream, session: &mut Connection) -> io::Result<()> {
    while session.is_handshaking() {
        session.complete_io(stream)?;
    }
    Ok(())
}

fn accept_tls(mut stream: TcpStream, server: &Arc<ServerConfig>) -> io::Result<(PeerId, Box<dyn Wire>)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let session = ServerConnection::new(Arc::clone(server)).map_err(io::Error::other)?;
    let mut session = Connection::from(session);
    shake_hands(&mut stream, &mut session)?;
    let mut id = [0; 16];
    while let Err(error) = session.reader().read_exact(&mut id) {
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        session.complete_io(&mut stream)?;
    }
    let wire = TlsWire::new(Guarded::new(stream)?, session, &TcpSettings::default())?;
    Ok((PeerId::from_bytes(id), Box::new(wire)))
}
