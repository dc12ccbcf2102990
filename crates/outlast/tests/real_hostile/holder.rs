//! Somebody who holds the secret and speaks the control protocol by hand.

use crate::cast::PATIENCE;
use outlast::port::{self, CONTROL, Frames};
use outlast::security::tls::TlsIdentity;
use outlast::security::{ProcessKey, RunKeys, RunSecret, random_bytes};
use outlast_proto::id::PeerId;
use outlast_proto::wire::control::{
    Encryption, EpochRecord, Registration, Resume, SessionId, TagReport, Term, ToCoordinator, ToPeer,
};
use outlast_proto::wire::membership::MemberInfo;
use outlast_proto::wire::{decode, encode};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// Sooner than a connection is closed on which nothing is said: that takes ten seconds.
const AT_ONCE: Duration = Duration::from_secs(5);

pub(crate) struct Holder {
    runtime: std::sync::Arc<Runtime>,
    address: SocketAddr,
    identity: TlsIdentity,
    key: ProcessKey,
    session: SessionId,
    frames: Frames<tokio_rustls::TlsStream<outlast::fork::Guarded<TcpStream>>>,
}

impl Holder {
    pub(crate) fn connect(address: SocketAddr, secret: &RunSecret, run: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (keys, key) = (RunKeys::derive(secret, &run.parse().expect("a run")), ProcessKey::generate());
        let identity = TlsIdentity::derived(&keys, &key);
        Self::open(std::sync::Arc::new(runtime), address, (identity, key), SessionId(random_bytes()))
            .expect("a coordinator answers")
    }

    /// As soon as somebody listens there.
    pub(crate) fn connect_first(address: SocketAddr, secret: &RunSecret, run: &str) -> Self {
        let deadline = std::time::Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            assert!(std::time::Instant::now() < deadline, "nobody listens at {address}");
        }
        Self::connect(address, secret, run)
    }

    /// One more connection under the same identity.
    pub(crate) fn again(&self) -> Self {
        Self::open(
            self.runtime.clone(),
            self.address,
            (self.identity.clone(), self.key.clone()),
            self.session,
        )
        .expect("a coordinator answers")
    }

    /// The same identity in another run of that secret.
    pub(crate) fn again_in(&self, secret: &RunSecret, run: &str) -> Self {
        let keys = RunKeys::derive(secret, &run.parse().expect("a run"));
        let identity = TlsIdentity::derived(&keys, &self.key);
        assert_eq!(identity.peer(), self.peer(), "a key has one name");
        Self::open(self.runtime.clone(), self.address, (identity, self.key.clone()), self.session)
            .expect("a coordinator answers")
    }

    fn open(
        runtime: std::sync::Arc<Runtime>,
        address: SocketAddr,
        (identity, key): (TlsIdentity, ProcessKey),
        session: SessionId,
    ) -> Option<Self> {
        let frames = runtime.block_on(async {
            let stream = port::connect(address, CONTROL, &identity, PATIENCE).await.ok()?;
            Some(port::greet(stream, identity.peer(), PATIENCE).await.ok()?.frames)
        })?;
        Some(Self { runtime, address, identity, key, session, frames })
    }

    /// Who this is.
    pub(crate) fn peer(&self) -> PeerId {
        self.identity.peer()
    }

    /// What it says of itself.
    pub(crate) fn info(&self, name: &str) -> MemberInfo {
        MemberInfo {
            id: self.identity.peer(),
            address: SocketAddr::from(([127, 0, 0, 1], 9)),
            closed_port: 0,
            name: name.to_owned(),
            meta: Vec::new(),
        }
    }

    fn registration(&self, name: &str, group: u32, min_world: u32) -> Registration {
        let (info, session, encryption) = (self.info(name), self.session, Encryption::On);
        Registration { info, group, session, min_world, encryption, witness: None }
    }

    fn say(&mut self, messages: &[ToCoordinator]) {
        let payloads: Vec<_> = messages.iter().map(encode).collect();
        // Nothing is said to somebody who has closed.
        let _ = self.runtime.block_on(self.frames.send_all(payloads.iter().map(Vec::as_slice)));
    }

    /// Registers under a name, and would like a group of so many.
    pub(crate) fn register(&mut self, name: &str, min_world: u32) {
        self.register_under(name, min_world, 0);
    }

    /// The same, having obeyed that term.
    pub(crate) fn register_under(&mut self, name: &str, min_world: u32, term: Term) {
        self.say(&[ToCoordinator::Register(self.registration(name, 0, min_world), 1, term)]);
    }

    /// Claims to come back to what the record says, having obeyed that term.
    pub(crate) fn resume(&mut self, record: EpochRecord, term: Term, tags: Vec<TagReport>) {
        let resume = Resume {
            registration: self.registration("usurper", record.group, 1),
            generation: 2,
            term,
            record,
            tags,
            ballots: Vec::new(),
            behind_from: None,
            remembers_from: 0,
            revision: None,
        };
        self.say(&[ToCoordinator::Resume(resume)]);
    }

    /// Writes bytes that need not be a frame, and waits until the other side closes the connection for them.
    pub(crate) fn shout(self, bytes: &[u8]) {
        let (mut stream, _) = self.frames.into_parts();
        let ended = self.runtime.block_on(async {
            // How much of it is taken does not matter.
            let _ = stream.write_all(bytes).await;
            tokio::time::timeout(AT_ONCE, stream.read_to_end(&mut Vec::new())).await
        });
        assert!(ended.is_ok(), "the connection is closed");
    }

    /// Asks for the status so many times at once.
    pub(crate) fn ask(&mut self, times: usize) {
        self.say(&vec![ToCoordinator::AskStatus; times]);
    }

    /// The next message; `None` at the end.
    pub(crate) fn hear_message(&mut self) -> Option<ToPeer> {
        let next = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.frames.next()).await });
        let bytes = next.expect("an answer in time").ok()??;
        Some(decode::<ToPeer>(&bytes).expect("a message"))
    }

    /// Everything until the connection is closed.
    pub(crate) fn hear_all(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.hear()).collect()
    }

    /// What comes next: a word, the text of a refusal or a status; `None` at the end.
    pub(crate) fn hear(&mut self) -> Option<String> {
        Some(match self.hear_message()? {
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
