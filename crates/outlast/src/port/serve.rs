//! Accepting: from a connection to an authenticated stream, or to a counter.

use super::{AuthenticatedStream, PortCounters, RefusedConnection, sockets};
use crate::fork::Guarded;
use crate::security::RefusalLog;
use crate::security::tls::{FalseName, TlsIdentity, run_of_server_name};
use outlast_proto::id::RunId;
use rustls::server::Acceptor;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio_rustls::LazyConfigAcceptor;

/// After a failed accept, first wait and longest wait before the next.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How much strangers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeSettings {
    /// From the connect to the end of the handshake.
    pub handshake_timeout: Duration,
    /// Handshakes at once.
    pub handshakes_max: usize,
    /// Handshakes at once from one address. A host may carry many members, so it is not small.
    pub handshakes_per_source_max: usize,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 1_024,
            handshakes_per_source_max: 256,
        }
    }
}

/// The identities under which a port is served: one for each run.
pub trait RunIdentities: Send + Sync {
    /// The identity for `run`, if it is served here.
    fn for_run(&self, run: &RunId) -> Option<TlsIdentity>;
}

impl RunIdentities for TlsIdentity {
    fn for_run(&self, run: &RunId) -> Option<TlsIdentity> {
        (self.run() == run).then(|| self.clone())
    }
}

type Handler = Arc<dyn Fn(AuthenticatedStream) + Send + Sync>;

/// Which plane takes which streams.
#[derive(Clone, Default)]
pub struct Routes(BTreeMap<Vec<u8>, Handler>);

impl Routes {
    /// No planes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Streams that ask for `alpn` go to `handler`. It runs on the runtime and must not block: it spawns or
    /// hands over.
    #[must_use]
    pub fn route(
        mut self,
        alpn: &[u8],
        handler: impl Fn(AuthenticatedStream) + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(alpn.to_vec(), Arc::new(handler));
        self
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys().map(|alpn| String::from_utf8_lossy(alpn))).finish()
    }
}

/// A port that is being served; dropping it stops accepting. Streams that were handed over live on.
#[derive(Debug)]
pub struct Serving {
    counters: Arc<PortCounters>,
    accepting: AbortHandle,
}

impl Serving {
    pub(super) fn start(
        runtime: &Handle,
        listener: Guarded<std::net::TcpListener>,
        identities: Arc<dyn RunIdentities>,
        routes: Routes,
        settings: ServeSettings,
    ) -> io::Result<Self> {
        let _inside = runtime.enter();
        let listener = listener.convert(TcpListener::from_std)?;
        let counters = Arc::new(PortCounters::default());
        let doorman = Arc::new(Doorman {
            identities,
            routes,
            settings,
            counters: counters.clone(),
            under_way: Mutex::new(BTreeMap::new()),
            log: Mutex::new(RefusalLog::new("connection")),
        });
        let accepting = runtime.spawn(doorman.accept_for_ever(listener)).abort_handle();
        Ok(Self { counters, accepting })
    }

    /// What came to the port.
    pub fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Lets in who belongs here.
struct Doorman {
    identities: Arc<dyn RunIdentities>,
    routes: Routes,
    settings: ServeSettings,
    counters: Arc<PortCounters>,
    /// Handshakes under way by source.
    under_way: Mutex<BTreeMap<IpAddr, usize>>,
    log: Mutex<RefusalLog>,
}

/// A place among the handshakes under way, given back when dropped.
struct Place {
    doorman: Arc<Doorman>,
    source: IpAddr,
}

/// What became of a connection that was not refused.
enum Outcome {
    HungUp,
    Admitted(Box<AuthenticatedStream>, Handler),
}

impl Doorman {
    async fn accept_for_ever(self: Arc<Self>, listener: Guarded<TcpListener>) {
        let mut pause = ACCEPT_PAUSE_MIN;
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    pause = ACCEPT_PAUSE_MIN;
                    self.counters.count_accepted();
                    self.receive(stream, address);
                }
                // The connection was gone before we took it; the next one may be fine.
                Err(error) if is_about_one_connection(&error) => self.counters.count_accept_error(),
                // Out of descriptors or memory: trying again at once would only burn a core.
                Err(error) => {
                    self.counters.count_accept_error();
                    if pause == ACCEPT_PAUSE_MIN {
                        tracing::warn!(%error, "cannot accept connections; trying again until it works");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
                }
            }
        }
    }

    fn receive(self: &Arc<Self>, stream: TcpStream, address: SocketAddr) {
        let place = match self.take_place(address.ip().to_canonical()) {
            Ok(place) => place,
            // Dropping the stream closes it.
            Err(cause) => return self.refuse(address, &cause),
        };
        let doorman = self.clone();
        tokio::spawn(async move {
            let handshake = doorman.handshake(stream, address);
            let outcome = tokio::time::timeout(doorman.settings.handshake_timeout, handshake).await;
            drop(place);
            match outcome.unwrap_or(Err(RefusedConnection::TimedOut)) {
                Ok(Outcome::Admitted(stream, handler)) => {
                    doorman.counters.count_authenticated();
                    handler(*stream);
                }
                Ok(Outcome::HungUp) => doorman.counters.count_hung_up(),
                Err(cause) => doorman.refuse(address, &cause),
            }
        });
    }

    async fn handshake(&self, stream: TcpStream, address: SocketAddr) -> Result<Outcome, RefusedConnection> {
        let broken = |error: io::Error| RefusedConnection::Broken(error.to_string());
        let stream = sockets::accepted(stream).map_err(broken)?;
        // Who hangs up without a word looks at our kernel, not at us (rule 22).
        if !matches!(stream.peek(&mut [0]).await, Ok(1..)) {
            return Ok(Outcome::HungUp);
        }
        let opening =
            LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(|error| refusal_of(&error))?;
        let (identity, names_no_plane) = {
            let hello = opening.client_hello();
            let name = hello.server_name().unwrap_or("no run").to_owned();
            let run = run_of_server_name(&name);
            let identity = run
                .as_ref()
                .and_then(|run| self.identities.for_run(run))
                .ok_or_else(|| RefusedConnection::WrongRun(run.map_or(name, |run| format!("run {run}"))))?;
            (identity, hello.alpn().is_none())
        };
        if names_no_plane {
            return Err(RefusedConnection::NoSuchPlane("it named none".to_owned()));
        }
        let planes: Vec<&[u8]> = self.routes.0.keys().map(Vec::as_slice).collect();
        let stream =
            opening.into_stream(identity.server_config(&planes)).await.map_err(|error| refusal_of(&error))?;
        let (_, session) = stream.get_ref();
        let peer = identity.peer_of(session.peer_certificates()).map_err(|error| match error {
            FalseName::Another { claimed, proved } => RefusedConnection::FalseName { claimed, proved },
            error => RefusedConnection::ForeignCertificate(error.to_string()),
        })?;
        let alpn = session.alpn_protocol().unwrap_or_default().to_vec();
        let handler = self.routes.0.get(&alpn).cloned();
        let handler = handler
            .ok_or_else(|| RefusedConnection::NoSuchPlane(String::from_utf8_lossy(&alpn).into_owned()))?;
        let run = identity.run().clone();
        let stream = AuthenticatedStream { peer, run, address, alpn, stream: stream.into() };
        Ok(Outcome::Admitted(Box::new(stream), handler))
    }

    fn refuse(&self, address: SocketAddr, cause: &RefusedConnection) {
        self.counters.count_refused(cause);
        self.log.lock().expect("nobody panics while holding it").report(address.ip(), cause);
    }

    fn take_place(self: &Arc<Self>, source: IpAddr) -> Result<Place, RefusedConnection> {
        let mut under_way = self.under_way.lock().expect("nobody panics while holding it");
        let total: usize = under_way.values().sum();
        if total >= self.settings.handshakes_max {
            return Err(RefusedConnection::TooMany);
        }
        let of_source = under_way.entry(source).or_default();
        if *of_source >= self.settings.handshakes_per_source_max {
            return Err(RefusedConnection::TooManyFromSource);
        }
        *of_source += 1;
        self.counters.set_handshakes(total + 1);
        drop(under_way);
        Ok(Place { doorman: self.clone(), source })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut under_way = self.doorman.under_way.lock().expect("nobody panics while holding it");
        if let Some(of_source) = under_way.get_mut(&self.source) {
            *of_source -= 1;
            if *of_source == 0 {
                under_way.remove(&self.source);
            }
        }
        self.doorman.counters.set_handshakes(under_way.values().sum());
    }
}

fn is_about_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// What a failed handshake says about the other side.
fn refusal_of(error: &io::Error) -> RefusedConnection {
    let text = error.to_string();
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            RefusedConnection::ForeignCertificate(text)
        }
        Some(rustls::Error::NoApplicationProtocol) => RefusedConnection::NoSuchPlane(text),
        Some(rustls::Error::AlertReceived(_)) | None => RefusedConnection::Broken(text),
        Some(_) => RefusedConnection::NotTls(text),
    }
}
