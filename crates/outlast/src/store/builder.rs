//! Describes a member of a store, and lets it join.
//!
//! A member is a machine, an engine that drives it, a port that others reach it at, and a stream to whoever decides on views.
//! All of them are started here, and joining is over when a first view has this member in it. In a store without a coordinator
//! the member of rank 0 decides on views: it serves the same registrar as a coordinator does, for this store alone (rule 29).

use super::datagrams::Datagrams;
use super::engine::{self, Engine, Letter};
use super::shared::{Shared, random};
use super::{Config, Store, StoreError, TIMEOUT_MAX, guests, links, standin, views};
use crate::baton::Baton;
use crate::bell::Bell;
use crate::coordinator::registry::Registry;
use crate::fork::Creator;
use crate::membership::{Preset, advertised, default_name};
use crate::port::{self, Port, Routes};
use crate::runtime::{self, Plane};
use crate::security::credentials::credential_settings;
use crate::security::{Credentials, ProcessKey};
use crate::sync::Arc;
use crate::{clock, watch};
use outlast_proto::id::RunId;
use outlast_proto::store::Member;
use outlast_proto::wire::store::{ClientId, MemberId, StoreMember};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

/// Describes a member before it joins.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it joins"]
pub struct StoreBuilder {
    coordinator: Option<String>,
    run: RunId,
    credentials: Credentials,
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    name: Option<String>,
    config: Config,
    timeout: Duration,
    ends_store: bool,
    /// Our rank and the number of members, if there is no coordinator.
    bootstrap: Option<(u32, u32)>,
}

impl StoreBuilder {
    pub(super) fn new() -> Self {
        Self {
            coordinator: None,
            run: "default".parse().expect("a valid run id"),
            credentials: Credentials::default(),
            listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
            advertise: None,
            name: None,
            config: Config::preset(Preset::Lan),
            timeout: Duration::from_mins(5),
            ends_store: false,
            bootstrap: None,
        }
    }

    /// See [`Store::bootstrap`].
    pub(super) fn without_coordinator(address: String, rank: u32, world_size: u32, key: &str) -> Self {
        let run = format!("static-{:016x}", outlast_proto::store::layout::digest(key.as_bytes()));
        Self {
            coordinator: Some(address),
            run: run.parse().expect("letters and digits"),
            bootstrap: Some((rank, world_size)),
            ..Self::new()
        }
    }

    /// The coordinator of the run, `host:port`; several are separated by commas.
    pub fn coordinator(mut self, address: impl Into<String>) -> Self {
        self.coordinator = Some(address.into());
        self
    }

    /// The run. Default: `default`.
    pub fn run_id(mut self, run: RunId) -> Self {
        self.run = run;
        self
    }

    credential_settings! {
        secret: "Default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`.",
        tls: "This member's id follows from the certificate's name."
    }

    /// How this member shows itself, all of it.
    pub(crate) fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// Where to listen. Default: any address, a free port.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// The address that others should use, if it is not the one listened on.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    /// A name for people. Default: the host's name and the process id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Times for one kind of network; replaces all of them. Default: `lan`.
    pub fn preset(mut self, preset: Preset) -> Self {
        self.config = Config { direct: self.config.direct, ..Config::preset(preset) };
        self
    }

    /// Changes single settings, after [`Self::preset`].
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// How long a call may take unless it says otherwise, and joining too. Default: 300 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The store ends for all when this member is gone without a goodbye. Default: it goes on without it.
    pub fn shutdown_on_exit(mut self, ends: bool) -> Self {
        self.ends_store = ends;
        self
    }

    /// Joins the store: returns once this member is in a view. Who gives that up is no member.
    pub fn join(self) -> Result<Store, StoreError> {
        let coordinator = match self.coordinator {
            Some(address) => address,
            None => std::env::var("OUTLAST_COORDINATOR").map_err(|_| StoreError::MissingCoordinator)?,
        };
        let credentials = self.credentials.or_environment()?;
        let keys = credentials.keys(&self.run).ok_or(StoreError::MissingSecret)?;
        let identity = credentials.identity(&keys, &ProcessKey::generate())?;
        let runtime = runtime::of(Plane::Store)?;
        let decides = matches!(self.bootstrap, Some((0, _)));
        let listen = if decides { bootstrap_address(&coordinator)? } else { self.listen };
        let port = Port::bind(listen)?;
        let towards: Vec<SocketAddr> = coordinator
            .split(',')
            .filter_map(|address| address.trim().to_socket_addrs().ok())
            .flatten()
            .collect();
        let address = self.advertise.unwrap_or_else(|| advertised(port.address(), &towards));
        let me = StoreMember {
            id: MemberId(random()),
            peer: identity.peer(),
            client: ClientId(random()),
            rank: self.bootstrap.map_or(u32::MAX, |(rank, _)| rank),
            address,
            closed_port: port.closed_port(),
            name: self.name.unwrap_or_else(default_name),
            host: host(address),
            ends_store: self.ends_store,
        };
        me.check().map_err(|error| io::Error::other(error.to_string()))?;
        let shared = Arc::new(Shared::new(engine::watch()?, runtime.clone(), identity.clone()));
        let bell = Arc::new(Bell::new()?);
        let peer = identity.peer();
        let member = Member::new(clock::now(), self.config.clone(), me);
        let datagrams = Datagrams::new(&port, keys)?;
        let engine = Engine::new(member, datagrams, Arc::clone(&shared), Arc::clone(&bell))?;
        let baton = Arc::new(Baton::new(Box::new(engine), bell));
        shared.set_baton(&baton);
        let (spawner, acceptor) = (runtime.clone(), Arc::downgrade(&shared));
        let routes = Routes::new().route(port::STORE, move |stream| {
            let acceptor = acceptor.clone();
            spawner.spawn(async move {
                let accepting = Box::pin(links::accept(stream, peer));
                let accepting = runtime::to_its_end("a link of the store", accepting);
                match (accepting.await, acceptor.upgrade()) {
                    (Some(Ok(linked)), Some(shared)) => shared.post(Letter::Linked(Box::new(linked))),
                    (Some(Err(error)), _) => tracing::debug!(%error, "a link to the store was not taken"),
                    _ => {}
                }
            });
        });
        let (spawner, acceptor) = (runtime.clone(), Arc::downgrade(&shared));
        let routes = routes.route(port::STORE_CLIENT, move |stream| {
            let serving = Box::pin(guests::serve(acceptor.clone(), stream, peer));
            spawner.spawn(async move {
                runtime::to_its_end("a client of the store", serving).await;
            });
        });
        let routes = match self.bootstrap {
            Some((0, members)) => {
                let config = self.config.clone();
                let registry = Registry::alone(&runtime, config, members as usize);
                routes.route(port::STORE_VIEWS, move |stream| registry.serve(stream, peer, false))
            }
            _ => routes,
        };
        let serving = port.serve(&runtime, identity, routes)?;
        standin::start(Arc::clone(&shared), Arc::clone(&baton))?;
        let silent_after = self.config.control_grace;
        // Twice this is what a shutdown takes, and a busy machine a little longer.
        let closes_within = self.config.shutdown_wait * 3;
        let leader = match self.bootstrap {
            Some(_) => views::Leader::Member { closes_within },
            None => views::Leader::Coordinator,
        };
        let addresses = coordinator.clone();
        runtime.spawn(views::keep_always(Arc::clone(&shared), addresses, silent_after, leader));
        let store = Store {
            shared,
            baton,
            timeout: self.timeout,
            wait: self.config.shutdown_wait,
            creator: Creator::this_process(),
            _serving: serving,
            _port: port,
        };
        let deadline = Instant::now() + self.timeout.min(TIMEOUT_MAX);
        let waiting = watch::Waiting::begin();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if store.shared.wait_for_view(watch::patience(left.min(Duration::from_millis(50)))) {
                return Ok(store);
            }
            if let Some(cause) = store.shared.refusal() {
                store.shared.post(Letter::Gone);
                return Err(StoreError::Refused { coordinator, cause });
            }
            if left.is_zero() {
                let unknown = || "whoever decides on views does not answer".to_owned();
                let cause = store.shared.waits_for().unwrap_or_else(unknown);
                store.shared.post(Letter::Gone);
                return Err(StoreError::NotJoined { timeout: self.timeout, cause });
            }
            if waiting.is_given_up() {
                store.shared.post(Letter::Gone);
                return Err(StoreError::Cancelled);
            }
        }
    }
}

fn bootstrap_address(address: &str) -> io::Result<SocketAddr> {
    let mut found = address.to_socket_addrs()?;
    found.next().ok_or_else(|| io::Error::other(format!("{address:?} names no address; write host:port")))
}

/// Members with one address are on one host, in whichever of the two ways an address of IPv4 is written.
fn host(address: SocketAddr) -> u64 {
    use std::hash::{Hash as _, Hasher as _};
    let mut hasher = std::hash::DefaultHasher::new();
    address.ip().to_canonical().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn one_address_is_one_host_however_it_is_written() {
        let host = |address: &str| host(address.parse().unwrap());
        assert_eq!(host("127.0.0.2:4000"), host("[::ffff:127.0.0.2]:5000"));
        assert_ne!(host("127.0.0.1:4000"), host("127.0.0.2:4000"));
    }
}
