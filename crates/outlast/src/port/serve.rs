//! Accepting: from a connection to an authenticated stream, or to a counter.
//!
//! Everything up to the proof happens on the door's thread ([`crate::runtime`]): accepting, waiting for the first
//! byte, the handshake. A connection that says something is registered with the runtime that will carry it, so
//! that nothing has to be moved once it is proven; but its handshake is still computed at the door.

use super::places::{Capacity, Entered, Places, Source, Ticket};
use super::streams::Streams;
use super::{
    AuthenticatedStream, KnownSources, NotServed, PortCounters, RefusedConnection, RunIdentities,
    ServeSettings, sockets,
};
use crate::fork::{Creator, Guarded};
use crate::security::RefusalLog;
use crate::security::tls::{FalseName, run_of_server_name};
use crate::sync::{Arc, Mutex, MutexGuard, lock, owned};
use crate::{clock, runtime};
use outlast_proto::coordinator::{PortStatus, RefusalStatus};
use outlast_proto::limits::STATUS_REFUSALS_MAX;
use rustls::server::Acceptor;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio_rustls::LazyConfigAcceptor;

/// After a failed accept, first wait and longest wait before the next.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the end of accepting is waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type Handler = Arc<dyn Fn(AuthenticatedStream) + Send + Sync>;

/// Who takes streams of one kind, and on whose threads.
#[derive(Clone)]
struct Route {
    handler: Handler,
    /// Carries its streams; none: what carries the port's.
    runtime: Option<Handle>,
}

/// Which plane takes which streams.
#[derive(Clone, Default)]
pub struct Routes(BTreeMap<Vec<u8>, Route>);

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
        self.0.insert(alpn.to_vec(), Route { handler: Arc::new(handler), runtime: None });
        self
    }

    /// As [`Routes::route`], for streams that have threads of their own: `runtime` carries them from the handshake on,
    /// and the handler runs there.
    #[must_use]
    pub fn route_on(
        mut self,
        alpn: &[u8],
        runtime: &Handle,
        handler: impl Fn(AuthenticatedStream) + Send + Sync + 'static,
    ) -> Self {
        let route = Route { handler: Arc::new(handler), runtime: Some(runtime.clone()) };
        self.0.insert(alpn.to_vec(), route);
        self
    }

    /// The threads that a stream is for which asks for one of these.
    fn runtime_of<'a>(&self, mut alpn: impl Iterator<Item = &'a [u8]>) -> Option<Handle> {
        alpn.find_map(|alpn| self.0.get(alpn)).and_then(|route| route.runtime.clone())
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
    doorman: Arc<Doorman>,
    accepting: AbortHandle,
    /// Ends when the listener is closed.
    closed: Mutex<mpsc::Receiver<()>>,
    creator: Creator,
}

impl Serving {
    pub(super) fn start(
        runtime: &Handle,
        listener: Guarded<std::net::TcpListener>,
        identities: Arc<dyn RunIdentities>,
        routes: Routes,
        settings: ServeSettings,
    ) -> io::Result<Self> {
        let door = runtime::of(runtime::Plane::Door)?;
        let _inside = door.enter();
        let listener = listener.convert(TcpListener::from_std)?;
        let capacity = Capacity {
            total: settings.handshakes_max,
            kept: settings.handshakes_kept,
            per_source: settings.handshakes_per_source_max,
        };
        let doorman = Arc::new(Doorman {
            identities,
            routes,
            settings,
            runtime: runtime.clone(),
            counters: Arc::default(),
            known: Arc::default(),
            streams: Streams::new(settings.streams_max, settings.streams_per_peer_max),
            under_way: Mutex::new(UnderWay { places: Places::new(capacity), tasks: BTreeMap::new() }),
            log: Mutex::new(RefusalLog::new("connection")),
        });
        let (open, closed) = mpsc::channel();
        let entrance = Entrance { listener, _open: open };
        let accepting = door.spawn(Arc::clone(&doorman).accept_forever(entrance)).abort_handle();
        Ok(Self { doorman, accepting, closed: Mutex::new(closed), creator: Creator::this_process() })
    }

    /// What came to the port.
    pub fn counters(&self) -> &Arc<PortCounters> {
        &self.doorman.counters
    }

    /// Where members are: their handshakes have places of their own.
    pub fn known_sources(&self) -> &Arc<KnownSources> {
        &self.doorman.known
    }

    /// What can be told of the port at any time, by whoever asks.
    pub(crate) fn watch(&self) -> PortWatch {
        PortWatch(Arc::clone(&self.doorman))
    }
}

impl Drop for Serving {
    /// Once it returns, the number is free. (A forked child has a copy of this object and no door.)
    fn drop(&mut self) {
        if self.creator.check().is_ok() {
            self.accepting.abort();
            let _ = owned(&mut self.closed).recv_timeout(CLOSE_TIMEOUT);
        }
    }
}

/// What can be told of a port that is or was served.
#[derive(Clone, Debug)]
pub(crate) struct PortWatch(Arc<Doorman>);

impl PortWatch {
    /// What came here, for people.
    pub(crate) fn status(&self) -> PortStatus {
        let counters = &self.0.counters;
        let recent = self.0.log().recent(clock::now(), STATUS_REFUSALS_MAX).into_iter();
        let recent = recent.map(|refused| RefusalStatus {
            source: refused.source.to_string(),
            cause: refused.cause,
            times: refused.times,
            seconds_ago: (refused.ago.as_secs_f64() * 1_000.0).round() / 1_000.0,
        });
        PortStatus {
            accepted: counters.accepted(),
            authenticated: counters.authenticated(),
            hung_up: counters.hung_up(),
            accept_errors: counters.accept_errors(),
            handshakes: counters.handshakes(),
            // Streams that were handed over and are not closed yet.
            streams: self.0.streams.total() as u64,
            refused: counters.refused_by_cause().into_iter().map(|(word, n)| (word.to_owned(), n)).collect(),
            recent: recent.collect(),
        }
    }
}

/// Lets in who belongs here.
struct Doorman {
    identities: Arc<dyn RunIdentities>,
    routes: Routes,
    settings: ServeSettings,
    /// Carries the streams.
    runtime: Handle,
    counters: Arc<PortCounters>,
    known: Arc<KnownSources>,
    streams: Arc<Streams>,
    under_way: Mutex<UnderWay>,
    log: Mutex<RefusalLog>,
}

impl fmt::Debug for Doorman {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorman").field("routes", &self.routes).finish_non_exhaustive()
    }
}

/// The handshakes under way, and what ends each of them.
struct UnderWay {
    places: Places,
    tasks: BTreeMap<Ticket, (AbortHandle, SocketAddr)>,
}

/// A place among the handshakes under way, given back when dropped.
struct Place {
    doorman: Arc<Doorman>,
    ticket: Ticket,
}

/// What became of a connection that was not refused.
enum Outcome {
    HungUp,
    Admitted(Box<AuthenticatedStream>, Route),
}

/// The listener, and the word that it is closed. Fields are dropped from top to bottom, whether the task that holds
/// them has begun or not. (Two arguments of a task that was ended before it began are dropped in the other order than
/// those of one that waits: the word came before the number was free.)
struct Entrance {
    listener: Guarded<TcpListener>,
    _open: mpsc::Sender<()>,
}

impl Doorman {
    async fn accept_forever(self: Arc<Self>, entrance: Entrance) {
        let mut pause = ACCEPT_PAUSE_MIN;
        loop {
            match entrance.listener.accept().await {
                Ok((stream, address)) => {
                    pause = ACCEPT_PAUSE_MIN;
                    self.counters.count_accepted();
                    // A port that is not served any more would look like a death (rule 40).
                    let received = runtime::guarded("the door", || self.receive(stream, address));
                    if received == Some(true) {
                        // Whoever gave way holds its descriptor until its task is dropped: that comes first.
                        tokio::task::yield_now().await;
                    }
                }
                // The connection was gone before we took it; the next one may be fine.
                Err(error) if is_about_one_connection(&error) => self.counters.count_accept_error(),
                // Out of descriptors or memory: trying again at once would only burn a core.
                Err(error) => {
                    self.counters.count_accept_error();
                    if pause == ACCEPT_PAUSE_MIN {
                        tracing::warn!(%error, "cannot accept connections; trying again until it works");
                    }
                    self.drop_silent();
                    tokio::time::sleep(pause).await;
                    pause = outlast_proto::retry::longer(pause, ACCEPT_PAUSE_MAX);
                }
            }
        }
    }

    /// Gives a connection a place; whether somebody had to give way.
    fn receive(self: &Arc<Self>, stream: TcpStream, address: SocketAddr) -> bool {
        let source = Source::of(address.ip());
        let is_known = self.known.contains(source);
        let displaced = {
            let mut under_way = self.under_way();
            let Entered { ticket, displaced } = under_way.places.enter(source, is_known);
            let place = Place { doorman: Arc::clone(self), ticket };
            let task = tokio::spawn(Arc::clone(self).welcome(stream, address, place)).abort_handle();
            under_way.tasks.insert(ticket, (task, address));
            self.counters.set_handshakes(under_way.places.len());
            displaced.and_then(|(ticket, cause)| Some((under_way.tasks.remove(&ticket)?, cause)))
        };
        let Some(((task, whose), cause)) = displaced else { return false };
        // Its stream is closed when the task is dropped.
        task.abort();
        self.refuse(whose, &cause);
        true
    }

    /// Descriptors are short: whoever says nothing gives his back.
    fn drop_silent(&self) {
        let dropped: Vec<_> = {
            let mut under_way = self.under_way();
            let silent = under_way.places.drop_silent();
            silent.iter().filter_map(|ticket| under_way.tasks.remove(ticket)).collect()
        };
        for (task, whose) in dropped {
            task.abort();
            self.refuse(whose, &RefusedConnection::TooMany);
        }
    }

    async fn welcome(self: Arc<Self>, stream: TcpStream, address: SocketAddr, place: Place) {
        let handshake = self.handshake(stream, address, &place);
        let outcome = tokio::time::timeout(self.settings.handshake_timeout, handshake).await;
        drop(place);
        match outcome.unwrap_or(Err(RefusedConnection::TimedOut)) {
            Ok(Outcome::Admitted(stream, route)) => {
                self.counters.count_authenticated();
                self.known.prove(Source::of(address.ip()));
                self.identities.proven(&stream.run);
                let runtime = route.runtime.as_ref().unwrap_or(&self.runtime);
                runtime.spawn(async move { (route.handler)(*stream) });
            }
            Ok(Outcome::HungUp) => self.counters.count_hung_up(),
            Err(cause) => self.refuse(address, &cause),
        }
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        place: &Place,
    ) -> Result<Outcome, RefusedConnection> {
        let broken = |error: io::Error| RefusedConnection::Broken(error.to_string());
        let stream = sockets::accepted(stream).map_err(broken)?;
        let mut first = [0];
        let first = tokio::time::timeout(self.settings.first_byte_timeout, stream.peek(&mut first)).await;
        // Who hangs up without a word looks at our kernel, not at us (rule 22).
        if !matches!(first.map_err(|_| RefusedConnection::TimedOut)?, Ok(1..)) {
            return Ok(Outcome::HungUp);
        }
        self.under_way().places.spoke(place.ticket);
        let stream = stream.convert(|stream| self.take_over(stream)).map_err(broken)?;
        let mut opening =
            LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(|error| refusal_of(&error))?;
        let (identity, names_no_plane, runtime) = {
            let hello = opening.client_hello();
            let name = hello.server_name().unwrap_or("no run").to_owned();
            let Some(run) = run_of_server_name(&name) else { return Err(RefusedConnection::WrongRun(name)) };
            let identity = self.identities.for_run(&run).map_err(|why| match why {
                NotServed::Unknown => RefusedConnection::WrongRun(format!("run {run}")),
                NotServed::Busy => RefusedConnection::Busy(format!("run {run}")),
            })?;
            let runtime = hello.alpn().and_then(|alpn| self.routes.runtime_of(alpn));
            (identity, hello.alpn().is_none(), runtime)
        };
        if names_no_plane {
            return Err(RefusedConnection::NoSuchPlane("it named none".to_owned()));
        }
        // What comes next is dear, and a flood's hellos wait in the kernel long after whoever sent them has gone.
        if sockets::has_hung_up(&*opening.io) {
            return Err(RefusedConnection::Broken("it hung up after its hello".to_owned()));
        }
        if let Some(runtime) = runtime {
            // Its readiness must not be found out by the threads of another plane.
            opening.io = sockets::moved(&opening.io, &runtime).map_err(broken)?;
        }
        let planes: Vec<&[u8]> = self.routes.0.keys().map(Vec::as_slice).collect();
        let mut stream =
            opening.into_stream(identity.server_config(&planes)).await.map_err(|error| refusal_of(&error))?;
        let (_, session) = stream.get_ref();
        let peer = identity.peer_of(session.peer_certificates()).map_err(|error| match error {
            FalseName::Another { claimed, proved } => RefusedConnection::FalseName { claimed, proved },
            error => RefusedConnection::ForeignCertificate(error.to_string()),
        })?;
        let alpn = session.alpn_protocol().unwrap_or_default().to_vec();
        let route = self.routes.0.get(&alpn).cloned();
        let route = route
            .ok_or_else(|| RefusedConnection::NoSuchPlane(String::from_utf8_lossy(&alpn).into_owned()))?;
        let run = identity.run().clone();
        stream.get_mut().0.lease(self.streams.lease(peer)?);
        let stream = AuthenticatedStream { peer, run, address, alpn, stream: stream.into() };
        Ok(Outcome::Admitted(Box::new(stream), route))
    }

    /// Registers a connection that says something with the runtime that will carry it.
    fn take_over(&self, stream: TcpStream) -> io::Result<TcpStream> {
        let stream = stream.into_std()?;
        let _inside = self.runtime.enter();
        TcpStream::from_std(stream)
    }

    fn refuse(&self, address: SocketAddr, cause: &RefusedConnection) {
        self.counters.count_refused(cause);
        self.log().report(clock::now(), address.ip(), cause);
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        lock(&self.under_way)
    }

    fn log(&self) -> MutexGuard<'_, RefusalLog> {
        lock(&self.log)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut under_way = self.doorman.under_way();
        under_way.places.leave(self.ticket);
        let task = under_way.tasks.remove(&self.ticket);
        self.doorman.counters.set_handshakes(under_way.places.len());
        drop(under_way);
        drop(task);
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
