//! The same ring over encrypted links: TLS sessions driven by the calling threads.

mod support;

use outlast::executor::{DataPlane, DataSettings};
use outlast::fork::Guarded;
use outlast::link::{Dial, TcpSettings, TlsWire, Wire};
use outlast_proto::collective::{DataType, ReduceOp};
use outlast_proto::id::PeerId;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;
use support::{Cluster, bytes_of_mut, contribution_f32, peer, sum_f32};

/// Certificates of one authority for both ends; who is who is said by the test's own hello.
struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Identity {
    fn new() -> Self {
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

fn handshake(stream: &mut TcpStream, session: &mut Connection) -> io::Result<()> {
    while session.is_handshaking() {
        session.complete_io(stream)?;
    }
    Ok(())
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
        handshake(&mut stream, &mut session)?;
        session.writer().write_all(self.me.as_bytes())?;
        Ok(Box::new(TlsWire::new(Guarded::new(stream)?, session, &TcpSettings::default())?))
    }
}

#[test]
fn sums_are_exact_over_tls() {
    let world = 3;
    let identity = Arc::new(Identity::new());
    let mut ring = Vec::new();
    let mut planes = Vec::new();
    for number in 0..world {
        let dialer = Arc::new(TlsDialer { me: peer(number), identity: Arc::clone(&identity) });
        let plane = Arc::new(DataPlane::new(peer(number), DataSettings::default(), dialer, |_| {}).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        ring.push((peer(number), listener.local_addr().unwrap()));
        let (taker, server) = (Arc::clone(&plane), Arc::clone(&identity.server));
        std::thread::spawn(move || {
            // One predecessor, one connection.
            let (mut stream, _) = listener.accept().unwrap();
            let mut session = Connection::from(ServerConnection::new(server).unwrap());
            handshake(&mut stream, &mut session).unwrap();
            let mut id = [0; 16];
            while let Err(error) = session.reader().read_exact(&mut id) {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                session.complete_io(&mut stream).unwrap();
            }
            let wire = TlsWire::new(Guarded::new(stream).unwrap(), session, &TcpSettings::default()).unwrap();
            taker.accept(PeerId::from_bytes(id), Box::new(wire));
        });
        planes.push(plane);
    }
    for plane in &planes {
        plane.open_epoch(0, 1, ring.clone());
    }
    let names = Cluster { members: Vec::new(), ring: ring.iter().map(|(peer, _)| *peer).collect(), epoch: 1 };
    for (seq, count) in [1, 1_023, 1_000_000].into_iter().enumerate() {
        let spec = names.spec(0, seq as u64, DataType::F32, ReduceOp::Sum, &[count]);
        std::thread::scope(|scope| {
            for (number, plane) in planes.iter().enumerate() {
                let spec = &spec;
                scope.spawn(move || {
                    let mut tensor = contribution_f32(number, count, 0);
                    let buffers = outlast::executor::Buffers::in_place([bytes_of_mut(&mut tensor)]);
                    plane.perform(spec, buffers, &outlast::executor::Abort::new()).unwrap().commit();
                    assert!(tensor == sum_f32(world, count, 0), "{count} elements");
                });
            }
        });
    }
}
