//! Describes a member before it starts.

use super::address::advertised;
use super::{Membership, MembershipError};
use crate::health::{self, Launch};
use crate::port::{Port, Routes};
use crate::security::credentials::credential_settings;
use crate::security::{Credentials, ProcessKey};
use outlast_proto::id::RunId;
use outlast_proto::limits::NAME_BYTES_MAX;
use outlast_proto::membership::{Config, Preset};
use outlast_proto::text::is_printable;
use outlast_proto::wire::membership::MemberInfo;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

/// A member to be started. Every setting has a default except the secret, which comes from the environment if
/// it is not given.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct MembershipBuilder {
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    seeds: Vec<String>,
    config: Config,
    credentials: Credentials,
    run: RunId,
    key: Option<ProcessKey>,
    name: Option<String>,
    meta: Vec<u8>,
    routes: Routes,
    towards: Option<String>,
}

impl MembershipBuilder {
    pub(super) fn new() -> Self {
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
            advertise: None,
            seeds: Vec::new(),
            config: Config::preset(Preset::Lan),
            credentials: Credentials::default(),
            run: "default".parse().expect("a valid run id"),
            key: None,
            name: None,
            meta: Vec::new(),
            routes: Routes::new(),
            towards: None,
        }
    }

    /// Where to listen, TCP and UDP. Port 0 takes a free one. Default: any address, a free port.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// The address that others should use, if it differs from the one we listen on. Default: the one we listen
    /// on, or the one that routes to the seeds.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    /// Members to join through (`host:port`); any one of them is enough, and they may start later. Default:
    /// none, a new group.
    pub fn join(mut self, seeds: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.seeds.extend(seeds.into_iter().map(Into::into));
        self
    }

    /// Times for one kind of network; replaces all of them. Default: `lan`.
    pub fn preset(mut self, preset: Preset) -> Self {
        self.config = Config::preset(preset);
        self
    }

    /// Changes single settings, after [`Self::preset`].
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// How long a stalled process is waited for.
    pub fn stall_budget(self, budget: Duration) -> Self {
        self.configure(|config| config.stall_budget = budget)
    }

    /// How long silence must last to be a death whoever testified.
    pub fn dead_after(self, silence: Duration) -> Self {
        self.configure(|config| config.dead_after = silence)
    }

    credential_settings! {
        secret: "Default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`.",
        tls: "Our id follows from the certificate's name."
    }

    /// All of what proves that we belong to the run.
    pub(crate) fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// The run; members of different runs never meet. Default: `default`.
    pub fn run_id(mut self, run: RunId) -> Self {
        self.run = run;
        self
    }

    /// The key that our id follows from (rule 39), if we have one already. Default: a fresh one.
    pub fn key(mut self, key: ProcessKey) -> Self {
        self.key = Some(key);
        self
    }

    /// A name for people. Default: the host's name and the process id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// A few bytes that every member sees beside this one.
    pub fn meta(mut self, meta: impl Into<Vec<u8>>) -> Self {
        self.meta = meta.into();
        self
    }

    /// Advertise the address from which `target` is reached, as if it were a seed.
    pub(crate) fn advertise_towards(mut self, target: &str) -> Self {
        self.towards = target.split(',').next().map(|address| address.trim().to_owned());
        self
    }

    /// Other planes that share the port.
    pub(crate) fn routes(mut self, routes: Routes) -> Self {
        self.routes = routes;
        self
    }

    /// Starts the member. Joining goes on in the background: its success is the first `Joined` event.
    pub fn start(self) -> Result<Membership, MembershipError> {
        check(&self.config)?;
        let credentials = self.credentials.or_environment()?;
        let keys = credentials.keys(&self.run).ok_or(MembershipError::MissingSecret)?;
        let key = self.key.unwrap_or_else(ProcessKey::generate);
        let identity = credentials.identity(&keys, &key)?;
        let seeds = resolve(&self.seeds)?;
        let mut towards = seeds.clone();
        // A name that does not resolve yet may do so later, and then is reached: DNS often comes after the process.
        match resolve(self.towards.as_slice()) {
            Ok(found) => towards.extend(found),
            Err(error) => {
                tracing::warn!(%error, "others are told the address of the default route; pass advertise if it is another");
            }
        }
        let port = Port::bind(self.listen)?;
        let info = MemberInfo {
            id: identity.peer(),
            address: self.advertise.unwrap_or_else(|| advertised(port.address(), &towards)),
            closed_port: port.closed_port(),
            name: self.name.unwrap_or_else(default_name),
            meta: self.meta,
        };
        info.check()?;
        let routes = self.routes;
        health::start(Launch { config: self.config, info, keys, identity, port, seeds, routes })
            .map(|(plane, info)| Membership::new(plane, info))
            .map_err(MembershipError::Start)
    }
}

/// Refuses settings that would make a member spin, or never decide.
fn check(config: &Config) -> Result<(), MembershipError> {
    let refuse = |setting, value: String, rule| Err(MembershipError::Setting { setting, value, rule });
    let shortest = Duration::from_millis(1);
    if config.probe_interval < shortest {
        return refuse("probe_interval", format!("{:?}", config.probe_interval), "it must be at least 1 ms");
    }
    if config.probe_timeout < shortest || config.probe_timeout > config.probe_interval {
        let rule = "it must be at least 1 ms and at most probe_interval";
        return refuse("probe_timeout", format!("{:?}", config.probe_timeout), rule);
    }
    for (setting, time) in [
        ("suspicion_min", config.suspicion_min),
        ("stall_budget", config.stall_budget),
        ("dead_after", config.dead_after),
    ] {
        if time < config.probe_interval {
            return refuse(setting, format!("{time:?}"), "it must be at least probe_interval");
        }
    }
    if config.connects == 0 {
        return refuse("connects", "0".to_owned(), "at least one connect must ask a silent member's kernel");
    }
    Ok(())
}

fn resolve(seeds: &[String]) -> Result<Vec<SocketAddr>, MembershipError> {
    let mut addresses = Vec::new();
    for seed in seeds {
        let found =
            seed.to_socket_addrs().map_err(|cause| MembershipError::Seed { seed: seed.clone(), cause })?;
        addresses.extend(found);
    }
    Ok(addresses)
}

pub(crate) fn default_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let suffix = format!("-{}", std::process::id());
    let host = host.split('.').next().unwrap_or_default();
    let mut name: String = host.chars().filter(|character| is_printable(*character)).collect();
    while name.len() + suffix.len() > NAME_BYTES_MAX {
        name.pop();
    }
    name + &suffix
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::RunSecret;

    fn refused(change: impl FnOnce(&mut Config)) -> String {
        Membership::builder().secret(RunSecret::generate()).configure(change).start().unwrap_err().to_string()
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        assert!(refused(|config| config.probe_interval = Duration::ZERO).contains("probe_interval"));
        assert!(refused(|config| config.probe_timeout = Duration::from_secs(9)).contains("probe_timeout"));
        assert!(refused(|config| config.dead_after = Duration::ZERO).contains("dead_after"));
        assert!(refused(|config| config.connects = 0).contains("connects"));
    }

    #[test]
    fn a_seed_that_is_no_address_is_named() {
        let builder = Membership::builder().secret(RunSecret::generate()).join(["nowhere"]);
        assert!(builder.start().unwrap_err().to_string().contains("\"nowhere\""));
    }

    #[test]
    fn a_default_name_keeps_within_its_limit() {
        assert!(default_name().len() <= NAME_BYTES_MAX);
        assert!(default_name().ends_with(&std::process::id().to_string()));
    }
}
