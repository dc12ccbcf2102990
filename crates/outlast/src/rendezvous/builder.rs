//! Describing a node before it starts.

use super::backend::{Access, Backend, Opening};
use super::driver::{Driver, Shared};
use super::event::{Journal, Who};
use super::remote::RemoteRegister;
use super::{COMMANDS_MAX, REGISTER, Rendezvous, RendezvousError};
use crate::fork::Creator;
use crate::runtime::{self, Plane};
use crate::security::credentials::credential_settings;
use crate::security::{Credentials, ProcessKey, random_bytes};
use crate::settings;
use crate::store::Store;
use crate::sync::{Arc, Mutex};
use outlast_proto::id::RunId;
use outlast_proto::limits::{
    HOLDER_BYTES_MAX, HOST_BYTES_MAX, NODE_ADDRESS_BYTES_MAX, NOTE_BYTES_MAX, REGISTER_BYTES_MAX,
    REGISTER_NAME_BYTES_MAX,
};
use outlast_proto::rendezvous::{Machine, Node, Settings};
use outlast_proto::rng::Rng;
use outlast_proto::text::is_printable;
use outlast_proto::wire::InvalidMessage;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Describes a node of a rendezvous, or a register, before it starts.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct RendezvousBuilder {
    backend: String,
    run: Option<RunId>,
    credentials: Credentials,
    settings: Settings,
    host: Option<String>,
    address: String,
}

impl RendezvousBuilder {
    pub(super) fn new(backend: String, min: usize, max: usize) -> Self {
        Self {
            backend,
            run: None,
            credentials: Credentials::default(),
            settings: Settings::new(min, max),
            host: None,
            address: String::new(),
        }
    }

    /// The run; otherwise `OUTLAST_RUN_ID`, or `default`.
    pub fn run_id(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    credential_settings! {
        secret: "Default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`.",
        tls: "Without it streams show one that is derived from the secret."
    }

    /// Changes the times; see [`Settings`] for what there is.
    pub fn configure(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// How long a node tries to get into a round.
    pub fn join_timeout(self, time: Duration) -> Self {
        self.configure(|settings| settings.join = time)
    }

    /// How long a round that has enough participants is held open for more.
    pub fn last_call(self, time: Duration) -> Self {
        self.configure(|settings| settings.last_call = time)
    }

    /// The name of this host, fully qualified if others need that. Default: what the system calls it.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Where this node can be reached, in words of its own; every participant of a round is told.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = address.into();
        self
    }

    /// Starts the node. It connects in the background; calls wait for it.
    pub fn start(self) -> Result<Rendezvous, RendezvousError> {
        self.settings.check()?;
        check_address(&self.address)?;
        let node = Node {
            host: self.host.clone().unwrap_or_else(host_name),
            pid: std::process::id(),
            local_id: local_id(),
        };
        node.check()?;
        let (backend, run, access) = self.reach()?;
        let store = backend.coordinators().zip(access.clone()).map(|(addresses, access)| {
            Store::builder().coordinator(addresses).credentials(access.credentials)
        });
        let known_as = backend.run_of(&run);
        let runtime = runtime::of(Plane::Rendezvous)?;
        let opening = Opening { register: REGISTER.to_owned(), holder: node.to_string() };
        let end = backend.open(&runtime, &known_as, access.as_ref(), opening);
        let who = Who { run_id: run.to_string(), node: node.clone(), endpoint: backend.to_string() };
        let shared = Arc::new(Shared { journal: Mutex::new(Journal::of(who)), ..Shared::default() });
        let seed = u64::from_ne_bytes(random_bytes());
        let machine = Machine::new(self.settings.clone(), node.clone(), self.address, Rng::from_seed(seed));
        let (commands, obeyed) = mpsc::channel(COMMANDS_MAX);
        let driver = Driver::new(machine, end, Arc::clone(&shared));
        runtime.spawn(runtime::to_its_end("the driver of a rendezvous", driver.run(obeyed)));
        let (settings, creator) = (self.settings, Creator::this_process());
        Ok(Rendezvous { settings, run, node, store, commands, shared, creator })
    }

    /// Opens a register of that name in place of a node: for whoever agrees on something of its own. With a `holder`,
    /// writes count only while its lease lasts.
    pub fn open_register(self, name: &str, holder: Option<&str>) -> Result<RemoteRegister, RendezvousError> {
        let holder = holder.unwrap_or_default().to_owned();
        check_name("holder", &holder, HOLDER_BYTES_MAX)?;
        check_name("register", name, REGISTER_NAME_BYTES_MAX)?;
        let (backend, run, access) = self.reach()?;
        let runtime = runtime::of(Plane::Rendezvous)?;
        let opening = Opening { register: name.to_owned(), holder };
        let end = backend.open(&runtime, &backend.run_of(&run), access.as_ref(), opening);
        Ok(RemoteRegister::start(&runtime, end))
    }

    /// Where the register is, of which run, and how we show ourselves there.
    fn reach(&self) -> Result<(Backend, RunId, Option<Access>), RendezvousError> {
        let backend: Backend = self.backend.parse()?;
        let run = settings::run_or_default(self.run.clone())?;
        if !backend.needs_secret() {
            return Ok((backend, run, None));
        }
        let credentials = self.credentials.clone().or_environment()?;
        let keys = credentials.keys(&backend.run_of(&run)).ok_or(RendezvousError::MissingSecret)?;
        let identity = credentials.identity(&keys, &ProcessKey::generate())?;
        Ok((backend, run, Some(Access { identity, credentials })))
    }
}

fn check_name(field: &'static str, value: &str, limit: usize) -> Result<(), InvalidMessage> {
    if value.len() > limit {
        return Err(InvalidMessage::OverLimit { field, value: value.len(), limit });
    }
    match value.chars().find(|character| !is_printable(*character)) {
        Some(character) => Err(InvalidMessage::Unprintable { field, character }),
        None => Ok(()),
    }
}

pub(super) fn check_address(address: &str) -> Result<(), InvalidMessage> {
    check_name("address", address, NODE_ADDRESS_BYTES_MAX)
}

pub(super) fn check_value(value: &[u8]) -> Result<(), InvalidMessage> {
    let (value, limit) = (value.len(), REGISTER_BYTES_MAX);
    if value > limit { Err(InvalidMessage::OverLimit { field: "value", value, limit }) } else { Ok(()) }
}

pub(super) fn check_note(note: &[u8]) -> Result<(), InvalidMessage> {
    let (value, limit) = (note.len(), NOTE_BYTES_MAX);
    if value > limit { Err(InvalidMessage::OverLimit { field: "note", value, limit }) } else { Ok(()) }
}

/// What the system calls this host, as far as it can be told to others.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut name: String = name.chars().filter(|character| is_printable(*character)).collect();
    while name.len() > HOST_BYTES_MAX {
        name.pop();
    }
    name
}

/// Nodes of one process are counted from a number that is another one at every start: in a container the process that
/// replaces a dead one often has its host name and its pid, and must not be taken for it.
fn local_id() -> u32 {
    static FIRST: OnceLock<u32> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = *FIRST.get_or_init(|| u32::from_ne_bytes(random_bytes()) >> 1);
    first + NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::RunSecret;

    fn refused(builder: RendezvousBuilder) -> String {
        builder.secret(RunSecret::generate()).start().unwrap_err().to_string()
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let good = || Rendezvous::builder("127.0.0.1:1", 1, 2);
        assert!(refused(Rendezvous::builder("nowhere", 1, 2)).contains("\"nowhere\" has no address"));
        assert!(refused(Rendezvous::builder("127.0.0.1:1", 3, 2)).contains("min_nodes is 3"));
        assert!(refused(good().join_timeout(Duration::ZERO)).contains("the join timeout"));
        assert!(refused(good().host("a\u{1b}b")).contains("host holds the character"));
        assert!(
            refused(good().host("h".repeat(HOST_BYTES_MAX + 1))).contains("host is 254, the limit is 253")
        );
        assert!(refused(good().address("a\n")).contains("address holds the character"));
        let register = good().secret(RunSecret::generate()).open_register(&"r".repeat(65), None);
        assert!(register.unwrap_err().to_string().contains("register is 65"));
    }

    #[test]
    fn nodes_of_one_process_differ_and_are_in_order() {
        let (first, second) = (local_id(), local_id());
        assert!(first < second);
    }
}
