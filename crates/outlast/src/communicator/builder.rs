//! Describes a communicator before it starts.

use super::atlas::SharedAtlas;
use super::control::{Control, Settings};
use super::inspection::Window;
use super::links::{self, Links};
use super::{Communicator, Error};
use crate::agent;
use crate::executor::{DataPlane, DataSettings, LinkEvent};
use crate::fork::Creator;
use crate::link::TcpSettings;
use crate::membership::{Membership, Preset};
use crate::port::{self, Routes};
use crate::presets;
use crate::probe::Arrivals;
use crate::runtime::{self, Plane};
use crate::security::credentials::credential_settings;
use crate::security::{self, Credentials, ProcessKey};
use crate::settings;
use crate::state::exchange::Stream;
use crate::state::exchange::donor::Stall;
use crate::sync::Mutex;
use outlast_proto::collective::striping::STREAMS_MAX;
use outlast_proto::id::RunId;
use outlast_proto::limits::SITE_BYTES_MAX;
use outlast_proto::session;
pub use outlast_proto::wire::control::Encryption;
use outlast_proto::wire::control::{Registration, SessionId, Witness};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;

/// Describes a communicator. What is not set comes from `OUTLAST_*` in the environment, or from the preset.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct CommunicatorBuilder {
    coordinator: Option<String>,
    run: Option<RunId>,
    group: Option<u32>,
    credentials: Credentials,
    name: Option<String>,
    listen: Option<SocketAddr>,
    advertise: Option<SocketAddr>,
    preset: Preset,
    stall_budget: Option<Duration>,
    dead_after: Option<Duration>,
    control_lost_after: Option<Duration>,
    timeout: Duration,
    encryption: Encryption,
    streams_max: u8,
    site: String,
}

impl CommunicatorBuilder {
    pub(super) fn new() -> Self {
        Self {
            coordinator: std::env::var("OUTLAST_COORDINATOR").ok(),
            run: None,
            group: None,
            credentials: Credentials::default(),
            name: None,
            listen: None,
            advertise: None,
            preset: Preset::Lan,
            stall_budget: None,
            dead_after: None,
            control_lost_after: None,
            timeout: Duration::from_mins(1),
            encryption: Encryption::On,
            streams_max: STREAMS_MAX,
            site: String::new(),
        }
    }

    /// The coordinator's address, `host:port`; several, separated by commas, are tried in turn.
    pub fn coordinator(mut self, address: impl Into<String>) -> Self {
        self.coordinator = Some(address.into());
        self
    }

    /// The run to take part in; otherwise `OUTLAST_RUN_ID`, or `default`.
    pub fn run_id(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    /// The group within the run; otherwise `OUTLAST_GROUP`, or 0.
    pub fn group(mut self, group: u32) -> Self {
        self.group = Some(group);
        self
    }

    credential_settings! {
        secret: "Default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`.",
        tls: "This peer's id follows from the certificate's name."
    }

    /// A name for people.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The one port; port 0 takes any. Otherwise every address, and port `OUTLAST_PORT` or a free one.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// The address that others should use, if it is not the one that we listen on.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    /// The kind of network.
    pub fn preset(mut self, preset: Preset) -> Self {
        self.preset = preset;
        self
    }

    /// How long a stopped process is waited for.
    pub fn stall_budget(mut self, budget: Duration) -> Self {
        self.stall_budget = Some(budget);
        self
    }

    /// How long silence must last to be a death whoever testified. The coordinator evicts, so its word counts; peers
    /// should be told the same.
    pub fn dead_after(mut self, silence: Duration) -> Self {
        self.dead_after = Some(silence);
        self
    }

    /// How long this peer goes on without a coordinator before it counts itself out.
    pub fn control_lost_after(mut self, time: Duration) -> Self {
        self.control_lost_after = Some(time);
        self
    }

    /// The time limit of calls that have none of their own.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether tensors are encrypted on their way between peers. Off makes them faster and readable for whoever
    /// sees the network; peers prove themselves and the coordinator is spoken to under TLS either way. All peers
    /// of a run must say the same, and `outlast status` shows it (rule 34). The default is on.
    pub fn encryption(mut self, encryption: Encryption) -> Self {
        self.encryption = encryption;
        self
    }

    /// At most so many streams per data link to another host; the default is 8. How many there are is measured: one,
    /// unless more made calls faster. `1` for a network that wants it so.
    pub fn streams_max(mut self, streams: u8) -> Self {
        self.streams_max = streams;
        self
    }

    /// The name of the place that this host shares an uplink with others in, at most 64 bytes; none by default. The ring
    /// crosses between places as seldom as it can, and the way between two of them is measured once
    /// (`optimize_topology`).
    pub fn site(mut self, site: impl Into<String>) -> Self {
        self.site = site.into();
        self
    }

    /// Opens the port and starts the health plane. Nothing is joined before `connect`.
    pub fn start(self) -> Result<Communicator, Error> {
        if self.site.len() > SITE_BYTES_MAX {
            let text =
                format!("site {:?} has {} bytes, at most {SITE_BYTES_MAX}", self.site, self.site.len());
            return Err(Error::InvalidArgument(text));
        }
        let credentials = self.credentials.or_environment()?;
        if credentials.secret().is_none() {
            return Err(Error::MissingSecret);
        }
        let coordinator = self.coordinator.ok_or_else(|| {
            Error::InvalidArgument(
                "no coordinator: pass its host:port, or set OUTLAST_COORDINATOR".to_owned(),
            )
        })?;
        let run = settings::run_or_default(self.run)?;
        let mut config = session::Config::preset(self.preset);
        if let Some(time) = self.control_lost_after {
            settings::check_control_lost_after(self.preset, time).map_err(Error::InvalidArgument)?;
            config.control_lost_after = time;
        }
        let group = self.group.map_or_else(settings::group, |group| Ok(Some(group)))?.unwrap_or(0);
        let listen = match self.listen {
            Some(listen) => listen,
            None => (Ipv4Addr::UNSPECIFIED, settings::port()?.unwrap_or(0)).into(),
        };
        // Only if this very process is what the agent watches will its word count (rule 20a).
        let own = || agent::process_name(std::process::id());
        let witness = settings::agent()?.and_then(|agent| Some(Witness { agent, process: own()? }));
        // One key for as long as the object lives: who connects again is the same peer (rule 39).
        let key = ProcessKey::generate();
        let keys = credentials.keys(&run).ok_or(Error::MissingSecret)?;
        let identity =
            credentials.identity(&keys, &key).map_err(|error| Error::InvalidArgument(error.to_string()))?;
        let me = identity.peer();

        // The port must know where data streams go before there is a data plane to take them.
        let plane: Arc<OnceLock<Arc<DataPlane>>> = Arc::default();
        let encryption = self.encryption;
        let links = Arc::new(Links {
            identity: identity.clone(),
            runtime: runtime::of(Plane::Links)?,
            tcp: TcpSettings::default(),
            encryption,
            silent_after: self.preset.times().link_silent_after,
            plane: Arc::default(),
        });
        let watched = Arc::clone(&links.plane);
        let dialer = Arc::clone(&links);
        let mut routes = Routes::new().route(port::PATH, drop);
        for is_stripe in [false, true] {
            let (taker, links) = (Arc::clone(&plane), Arc::clone(&links));
            routes = routes.route(links::plane(encryption, is_stripe), move |stream| {
                let Some(plane) = taker.get().cloned() else { return };
                let (peer, links) = (stream.peer, Arc::clone(&links));
                links.runtime.clone().spawn(async move {
                    match links.accept(stream).await {
                        Ok(wire) if is_stripe => plane.accept_stripe(peer, wire),
                        Ok(wire) => plane.accept(peer, wire),
                        Err(error) => tracing::debug!(%peer, %error, "a data stream could not be taken over"),
                    }
                });
            });
        }
        let stall = Arc::<Stall>::default();
        let (lender, state_links) = (Arc::clone(&stall), Arc::clone(&links));
        routes = routes.route(links::state_plane(encryption), move |stream| {
            let (peer, links, stall) = (stream.peer, Arc::clone(&state_links), Arc::clone(&lender));
            links.runtime.clone().spawn(async move {
                match links.accept(stream).await {
                    Ok(wire) => stall.accept(peer, Stream::new(wire)),
                    Err(error) => {
                        tracing::debug!(%peer, %error, "a stream for the state could not be taken over");
                    }
                }
            });
        });
        let window = Arc::<Window>::default();
        let (asked, answering) = (Arc::clone(&window), runtime::of(Plane::Control)?);
        routes = routes.route(port::INSPECT, move |stream| {
            let window = Arc::clone(&asked);
            answering.spawn(async move { window.serve(stream, me).await });
        });
        let arrivals = Arc::<Arrivals>::default();
        let (taker, probe_links) = (Arc::clone(&arrivals), Arc::clone(&links));
        routes = routes.route(links::probe_plane(encryption), move |stream| {
            let (peer, links, arrivals) = (stream.peer, Arc::clone(&probe_links), Arc::clone(&taker));
            links.runtime.clone().spawn(async move {
                match links.accept(stream).await {
                    Ok(wire) => arrivals.accept(peer, Stream::new(wire)),
                    Err(error) => tracing::debug!(%peer, %error, "a measurement could not be taken over"),
                }
            });
        });
        let mut member = Membership::builder()
            .listen(listen)
            .preset(self.preset)
            .credentials(credentials)
            .run_id(run.clone())
            .key(key)
            .meta(presets::mark(self.preset))
            .routes(routes);
        if let Some(name) = self.name {
            member = member.name(name);
        }
        if let Some(budget) = self.stall_budget {
            member = member.stall_budget(budget);
        }
        if let Some(silence) = self.dead_after {
            member = member.dead_after(silence);
        }
        if let Some(address) = self.advertise {
            member = member.advertise(address);
        }
        // Where packets to the coordinator leave from is where others reach us.
        if listen.ip().is_unspecified() {
            member = member.advertise_towards(&coordinator);
        }
        let membership = Arc::new(member.start()?);

        let (events, link_events) = mpsc::unbounded_channel::<LinkEvent>();
        let dial_timeout = links::dial_timeout(self.preset);
        let data_settings =
            DataSettings { streams_max: self.streams_max, dial_timeout, ..DataSettings::default() };
        let data = DataPlane::new(me, data_settings, dialer, move |event| {
            let _ = events.send(event);
        })?;
        let data = Arc::new(data);
        let _ = plane.set(Arc::clone(&data));
        let _ = watched.set(Arc::downgrade(&data));
        let registration = Registration {
            info: (*membership.info()).clone(),
            group,
            session: SessionId(security::random_bytes()),
            min_world: 1,
            encryption,
            witness,
        };
        let silent_after = self.preset.times().link_silent_after;
        let known = Arc::clone(membership.known_sources());
        let runtime = runtime::of(Plane::Control)?;
        let redials = links.runtime.clone();
        let shared_atlas = SharedAtlas::default();
        let atlas = Arc::clone(&shared_atlas);
        let settings = Settings {
            coordinator,
            identity,
            registration,
            run: run.as_str().to_owned(),
            preset: presets::name(self.preset),
            config,
            runtime,
            redials,
            silent_after,
            known,
            rosters: membership.rosters(),
            atlas,
        };
        let control = Control::start(settings, Arc::clone(&data), link_events);
        membership.record_in(control.recorder());
        window.open(Arc::downgrade(&control), Arc::downgrade(&membership));
        let creator = Creator::this_process();
        let (timeout, agreed) = (self.timeout, super::sync::Agreed::default());
        let (atlas, site, streams_max) = (shared_atlas, self.site, self.streams_max);
        Ok(Communicator {
            control,
            data,
            membership,
            timeout,
            creator,
            links,
            stall,
            agreed,
            atlas,
            arrivals,
            site,
            streams_max,
            pace: Mutex::default(),
        })
    }
}
