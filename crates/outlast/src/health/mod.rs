//! The health plane: one thread that answers for this process and asks after the others.
//!
//! # The problem
//!
//! A training process computes for seconds at a time, fills its links with gigabytes and holds locks while it
//! does. Whoever judged its health by the same threads and sockets would call it dead at the first busy step.
//!
//! # The intuition
//!
//! Health has a thread, a socket and a clock of its own, and shares no fate with anything else (the first of
//! the four planes in `ARCHITECTURE.md`). The decisions are `outlast_proto`'s; here is what they need from
//! the world:
//!
//! ```text
//!              datagrams                connects               letters
//!    UDP <------------------> plane <-------------> prober      ^   |
//!                              |  ^                             |   v
//!                       actions|  |what happened          stream lanes (tokio) <---> TLS
//!                              v  |
//!                            machine ---> lists and events ---> the program
//! ```
//!
//! - [`plane`]: the thread's loop, and why its order matters.
//! - [`prober`]: asking other kernels by TCP connects.
//! - [`stream`] and [`dial`]: health over TLS where UDP is blocked.
//! - [`shared`]: the little that crosses threads.
//!
//! # The invariant
//!
//! The thread waits in one `poll` and nowhere else, and no other thread ever holds something it needs for
//! longer than it takes to push or swap. So a late timer means that this process or host was not running.

mod dial;
mod plane;
mod prober;
mod shared;
mod stream;

pub(crate) use shared::{Ending, Shared};
pub use shared::{Happening, TimedEvent};

use crate::clock;
use crate::membership::Counters;
use crate::port::{self, KnownSources, Port, PortCounters, PortWatch, Routes, Serving};
use crate::runtime::{self, Plane as RuntimePlane};
use crate::security::datagram::DatagramGuard;
use crate::security::{self, RunKeys, TlsIdentity};
use dial::TlsDialler;
use outlast_proto::id::PeerId;
use outlast_proto::membership::{Config, Membership};
use outlast_proto::rng::Rng;
use outlast_proto::time::Duration;
use outlast_proto::wire::membership::MemberInfo;
use plane::Plane;
use shared::Lists;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use stream::Streams;
use tokio::runtime::Handle;

/// What a member is made of.
pub(crate) struct Launch {
    pub(crate) config: Config,
    pub(crate) info: MemberInfo,
    pub(crate) keys: Arc<RunKeys>,
    pub(crate) identity: TlsIdentity,
    pub(crate) port: Port,
    pub(crate) seeds: Vec<SocketAddr>,
    /// Other planes on the same port.
    pub(crate) routes: Routes,
}

/// A running health plane.
#[derive(Debug)]
pub(crate) struct HealthPlane {
    bound: SocketAddr,
    shared: Arc<Shared>,
    connections: Arc<PortCounters>,
    known: Arc<KnownSources>,
    port: PortWatch,
}

/// Where a health plane is told who is in its group. It keeps nobody alive.
#[derive(Clone, Debug)]
pub(crate) struct RosterPost(Arc<Shared>);

impl RosterPost {
    /// These are the members: whoever is unknown is asked after from now on.
    pub(crate) fn tell(&self, members: &[MemberInfo]) {
        self.0.post(shared::Letter::Roster(members.to_vec()));
    }
}

impl HealthPlane {
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Where members are, for the port that they knock at.
    pub(crate) fn known_sources(&self) -> &Arc<KnownSources> {
        &self.known
    }

    /// What came to the port.
    pub(crate) fn port_watch(&self) -> &PortWatch {
        &self.port
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.shared.tally.counters();
        counters.connections_refused = self.connections.refused_total();
        counters
    }

    pub(crate) fn join(&self, seeds: &[SocketAddr]) {
        self.shared.post(shared::Letter::Join(seeds.to_vec()));
    }

    pub(crate) fn look(&self, member: PeerId) {
        self.shared.post(shared::Letter::Look(member));
    }

    pub(crate) fn renew(&self, member: MemberInfo) {
        self.shared.post(shared::Letter::Renew(member));
    }

    pub(crate) fn evict(&self, member: PeerId) {
        self.shared.post(shared::Letter::Evict(member));
    }

    pub(crate) fn rosters(&self) -> RosterPost {
        RosterPost(Arc::clone(&self.shared))
    }

    /// Asks the thread to say goodbye and waits for its end; false if `timeout` passed first.
    pub(crate) fn leave(&self, timeout: Duration) -> bool {
        // Nobody empties the mailbox of a thread that has ended.
        if self.shared.wait_ended(Duration::ZERO) {
            return true;
        }
        self.shared.post(shared::Letter::Leave(clock::now() + timeout));
        self.shared.wait_ended(timeout)
    }
}

/// Starts the thread.
pub(crate) fn start(launch: Launch) -> io::Result<(HealthPlane, Arc<MemberInfo>)> {
    let Launch { config, info, keys, identity, port, seeds, routes } = launch;
    let shared = Arc::new(Shared::new()?);
    let runtime = runtime::of(RuntimePlane::Health)?;
    port.udp().set_nonblocking(true)?;
    let guard = DatagramGuard::new(Arc::clone(&keys), info.id, security::fresh_boot_id());
    let rng = Rng::from_seed(u64::from_ne_bytes(security::random_bytes()));
    let now = clock::now();
    let mut machine = Membership::new(now, config, info, rng);
    machine.handle_join(now, &seeds);
    let info = Arc::clone(machine.me());
    // Whoever asks before the thread's first turn finds ourselves.
    shared.publish(Lists { active: machine.active(now), failed: Vec::new() });
    let dialler = TlsDialler { identity: identity.clone() };
    let streams = Streams::new(Arc::clone(&shared), runtime.clone(), dialler);
    let serving = serve(&port, &runtime, identity, &streams, routes)?;
    let (connections, known) = (Arc::clone(serving.counters()), Arc::clone(serving.known_sources()));
    let (bound, watch) = (port.address(), serving.watch());
    let plane = Plane::new(machine, port, guard, streams, Arc::clone(&shared), Arc::clone(&known));
    std::thread::Builder::new().name("outlast-health".to_owned()).spawn(move || {
        plane.run();
        // The port is served until the goodbye is said: a refusal before it would look like a death.
        drop(serving);
    })?;
    Ok((HealthPlane { bound, shared, connections, known, port: watch }, info))
}

/// Lets other members open lanes to us.
fn serve(
    port: &Port,
    runtime: &Handle,
    identity: TlsIdentity,
    streams: &Arc<Streams<TlsDialler>>,
    routes: Routes,
) -> io::Result<Serving> {
    let me = identity.peer();
    let (streams, lanes) = (Arc::clone(streams), runtime.clone());
    let routes = routes.route(port::HEALTH, move |stream| {
        let streams = Arc::clone(&streams);
        lanes.spawn(async move {
            match port::greet(stream, me, dial::STEP_MAX).await {
                Ok(greeted) => streams.serve(greeted.peer, greeted.address, greeted.frames).await,
                Err(error) => tracing::debug!(%error, "no hello on a health stream"),
            }
        });
    });
    port.serve(runtime, identity, routes).map_err(io::Error::other)
}
