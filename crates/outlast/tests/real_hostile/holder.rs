//! Somebody who holds the secret and speaks the control protocol by hand.

use crate::cast::PATIENCE;
use outlast::port::{self, CONTROL, Frames};
use outlast::security::tls::TlsIdentity;
use outlast::security::{ProcessKey, RunKeys, RunSecret, random_bytes};
use outlast_proto::wire::control::{Encryption, Registration, SessionId, ToCoordinator, ToPeer};
use outlast_proto::wire::membership::MemberInfo;
use outlast_proto::wire::{decode, encode};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

pub(crate) struct Holder {
    runtime: std::sync::Arc<Runtime>,
    address: SocketAddr,
    identity: TlsIdentity,
    frames: Frames<tokio_rustls::TlsStream<outlast::fork::Guarded<TcpStream>>>,
}

impl Holder {
    pub(crate) fn connect(address: SocketAddr, secret: &RunSecret, run: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let keys = RunKeys::derive(secret, &run.parse().expect("a run"));
        let identity = TlsIdentity::derived(&keys, &ProcessKey::generate());
        Self::open(std::sync::Arc::new(runtime), address, identity)
    }

    /// One more connection under the same identity.
    pub(crate) fn again(&self) -> Self {
        Self::open(self.runtime.clone(), self.address, self.identity.clone())
    }

    fn open(runtime: std::sync::Arc<Runtime>, address: SocketAddr, identity: TlsIdentity) -> Self {
        let frames = runtime.block_on(async {
            let stream = port::connect(address, CONTROL, &identity, PATIENCE).await.expect("a connection");
            port::greet(stream, identity.peer(), PATIENCE).await.expect("a hello").frames
        });
        Self { runtime, address, identity, frames }
    }

    fn say(&mut self, messages: &[ToCoordinator]) {
        let payloads: Vec<_> = messages.iter().map(encode).collect();
        // Nothing is said to somebody who has closed.
        let _ = self.runtime.block_on(self.frames.send_all(payloads.iter().map(Vec::as_slice)));
    }

    /// Registers under a name, and would like a group of so many.
    pub(crate) fn register(&mut self, name: &str, min_world: u32) {
        let info = MemberInfo {
            id: self.identity.peer(),
            address: SocketAddr::from(([127, 0, 0, 1], 9)),
            closed_port: 0,
            name: name.to_owned(),
            meta: Vec::new(),
        };
        let (session, encryption) = (SessionId(random_bytes()), Encryption::On);
        let registration = Registration { info, group: 0, session, min_world, encryption, witness: None };
        self.say(&[ToCoordinator::Register(registration, 1, 0)]);
    }

    /// Asks for the status so many times at once.
    pub(crate) fn ask(&mut self, times: usize) {
        self.say(&vec![ToCoordinator::AskStatus; times]);
    }

    /// What comes next: a word, the text of a refusal or a status; `None` at the end.
    pub(crate) fn hear(&mut self) -> Option<String> {
        let next = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.frames.next()).await });
        let bytes = next.expect("an answer in time").ok()??;
        Some(match decode::<ToPeer>(&bytes).expect("a message") {
            ToPeer::Registered { .. } => "registered".to_owned(),
            ToPeer::Kicked { text, .. } => text,
            ToPeer::Status(text) => text,
            other => format!("{other:?}"),
        })
    }

    /// So many answers, whatever they say.
    pub(crate) fn hear_statuses(&mut self, count: usize) -> Vec<String> {
        (0..count).map_while(|_| self.hear()).collect()
    }
}
