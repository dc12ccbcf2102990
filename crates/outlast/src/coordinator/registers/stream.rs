//! One stream to a register, on the coordinator's side.

use super::{End, Open, Registers};
use crate::port::{self, AuthenticatedStream};
use crate::runtime;
use crate::sync::Arc;
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::limits::{LEASES_MAX, TEXT_BYTES_MAX};
use outlast_proto::wire::register::{FromRegister, Snapshot, ToRegister, Token};
use outlast_proto::wire::{clip, decode, encode};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// How long the hello may take, and then the first words.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one write may take before the node counts as gone; its kernel takes bytes while it is stopped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How much later changes of leases and notes are told: long enough for all that come together.
const LEASES_LATER: Duration = Duration::from_millis(50);
/// How long a lease lasts that somebody brings who has none itself.
const BROUGHT_LEASE: Duration = Duration::from_secs(15);

/// Carries one stream's questions and answers until either side ends it.
pub(in crate::coordinator) async fn serve(
    stream: AuthenticatedStream,
    me: PeerId,
    key_is_kept: bool,
    registers: Arc<Registers>,
) {
    let (run, standing) = (stream.run.clone(), registers.post.standing());
    let mut greeted = match port::greet_as(stream, me, key_is_kept, standing.clone(), HELLO_TIMEOUT).await {
        Ok(greeted) => greeted,
        Err(error) => return tracing::debug!(%error, "no hello on a stream for a register"),
    };
    if let Some(standing) = standing.filter(|standing| !standing.leads) {
        return registers.post.hold(&mut greeted.frames, &standing, None).await;
    }
    let peer = greeted.peer;
    let frames = &mut greeted.frames;
    let talking = async {
        if let Err(End::Refused(text)) = talk(frames, &run, &registers).await {
            tracing::warn!(%run, peer = %peer.short(), "refused a node at a register: {text}");
            let refusal = encode(&FromRegister::Refused(clip(&text, TEXT_BYTES_MAX)));
            let _ = say(frames, &[refusal.into()]).await;
            let _ = tokio::time::timeout(WRITE_TIMEOUT, frames.finish()).await;
        }
    };
    // However it ends, its place among the register's streams is given back (rule 40).
    runtime::to_its_end("a stream for a register", talking).await;
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut port::Frames<S>,
    run: &RunId,
    registers: &Arc<Registers>,
) -> Result<(), End> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, hear(frames)).await.map_err(|_| End::Gone)??;
    let ToRegister::Open { register, holder, lease_ms, brought, note } = first else {
        return Err(End::Refused("the first words on a stream for a register say which one".to_owned()));
    };
    let open = registers.open(run, &register)?;
    let news = open.0.news.subscribe();
    let mut talk = Conversation {
        open,
        news,
        holder,
        wants_told: true,
        told: None,
        told_token: None,
        tells_at: None,
        write: None,
        beaten: false,
    };
    let note = note.map_or_else(Vec::new, Into::into);
    talk.begin(Duration::from_millis(u64::from(lease_ms)), brought, note)?;
    loop {
        let mut messages = Vec::new();
        while let Some(message) = talk.next()? {
            messages.push(message);
        }
        if !messages.is_empty() {
            say(frames, &messages).await?;
        }
        tokio::select! {
            message = hear(frames) => talk.handle(message?)?,
            changed = talk.news.changed() => {
                changed.map_err(|_| End::Gone)?;
                talk.notice();
            }
            () = at(talk.tells_at) => talk.wants_told = true,
        }
    }
}

/// The next message. Giving up in the middle loses nothing.
async fn hear<S: AsyncRead + AsyncWrite + Unpin>(frames: &mut port::Frames<S>) -> Result<ToRegister, End> {
    let bytes = frames.next().await.map_err(|_| End::Gone)?.ok_or(End::Gone)?;
    decode(&bytes).map_err(|error| End::Refused(error.to_string()))
}

async fn say<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut port::Frames<S>,
    messages: &[Arc<[u8]>],
) -> Result<(), End> {
    let sending = frames.send_all(messages.iter().map(AsRef::as_ref));
    let writing = tokio::time::timeout(WRITE_TIMEOUT, sending).await;
    writing.map_err(|_| End::Gone)?.map_err(|_| End::Gone)
}

/// What a stream has asked for and was told.
struct Conversation {
    open: Open,
    news: watch::Receiver<u64>,
    holder: String,
    /// It wants to be told how the register is, whether that is news or not.
    wants_told: bool,
    /// The change that it was told of last, and the write.
    told: Option<u64>,
    told_token: Option<Token>,
    /// When it is told of changes that are no write.
    tells_at: Option<tokio::time::Instant>,
    /// What it wants written; it waits while the register listens.
    write: Option<(Token, Vec<u8>)>,
    /// Its lease was renewed, and it was not told yet.
    beaten: bool,
}

async fn at(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

impl Conversation {
    /// Takes what the node brings, and begins its lease.
    fn begin(&mut self, lease: Duration, brought: Option<Snapshot>, note: Vec<u8>) -> Result<(), End> {
        if let Some(value) = brought.as_ref().and_then(|snapshot| snapshot.value.as_ref()) {
            self.open.0.check_room(value.len())?;
        }
        let has_room = self.open.0.step(|register, now| {
            if let Some(brought) = brought {
                let lasts = if lease.is_zero() { BROUGHT_LEASE } else { lease };
                register.handle_brought(now, brought, lasts);
            }
            lease.is_zero() || self.holder.is_empty() || register.handle_beat(now, &self.holder, lease, note)
        })?;
        if has_room { Ok(()) } else { Err(too_many_leases()) }
    }

    /// Something was asked.
    fn handle(&mut self, message: ToRegister) -> Result<(), End> {
        match message {
            ToRegister::Open { .. } => {
                Err(End::Refused("a stream is for one register; open another stream".to_owned()))
            }
            ToRegister::Read => {
                self.wants_told = true;
                Ok(())
            }
            ToRegister::Write { expected, value } => {
                if self.write.replace((expected, value)).is_some() {
                    return Err(End::Refused("one write at a time: wait for the answer".to_owned()));
                }
                Ok(())
            }
            ToRegister::Beat { lease_ms, note } => {
                if self.holder.is_empty() || lease_ms == 0 {
                    return Err(End::Refused("a lease needs a holder and a time".to_owned()));
                }
                let lease = Duration::from_millis(u64::from(lease_ms));
                let (holder, note) = (&self.holder, note.map_or_else(Vec::new, Into::into));
                let (has_room, is_news) = self.open.0.step(|register, now| {
                    let changes = register.changes();
                    (register.handle_beat(now, holder, lease, note), register.changes() > changes)
                })?;
                // Whoever left another note sees at once who else did.
                self.wants_told |= is_news;
                self.beaten = true;
                if has_room { Ok(()) } else { Err(too_many_leases()) }
            }
            ToRegister::Release => {
                self.open.0.step(|register, now| register.handle_release(now, &self.holder))
            }
        }
    }

    /// There is news. A write is told at once: somebody may have waited for it. Who came and who went is told a moment
    /// later, all together: whoever decides upon its own coming has been told already.
    fn notice(&mut self) {
        let held = self.open.0.held();
        if held.is_forgotten || self.told_token != Some(held.register.token()) {
            self.wants_told = true;
        } else if self.told != Some(held.register.changes()) {
            self.tells_at.get_or_insert_with(|| tokio::time::Instant::now() + LEASES_LATER);
        }
    }

    /// What is to be said now, encoded: how a write ended first, then how the register is, then that the lease was renewed.
    fn next(&mut self) -> Result<Option<Arc<[u8]>>, End> {
        let beaten = || encode(&FromRegister::Beaten).into();
        if self.open.0.held().register.listens() {
            return Ok(std::mem::take(&mut self.beaten).then(beaten));
        }
        if let Some((expected, value)) = self.write.take() {
            self.open.0.check_room(value.len())?;
            let holder = &self.holder;
            let (fate, snapshot, changes) = self.open.0.step(|register, now| {
                let fate = register.handle_write(now, holder, expected, value);
                (fate, register.snapshot(), register.changes())
            })?;
            // Who does not listen any more does not listen again.
            let (Some(fate), Some(snapshot)) = (fate, snapshot) else { return Err(End::Gone) };
            self.tell(changes, snapshot.token);
            return Ok(Some(encode(&FromRegister::Written(fate, snapshot)).into()));
        }
        let mut held = self.open.0.held();
        if held.is_forgotten {
            return Err(End::Gone);
        }
        let token = held.register.token();
        if self.wants_told || self.told_token != Some(token) {
            let Some((changes, message)) = held.told() else { return Ok(None) };
            drop(held);
            self.tell(changes, token);
            return Ok(Some(message));
        }
        drop(held);
        Ok(std::mem::take(&mut self.beaten).then(beaten))
    }

    /// It is told all that there is.
    fn tell(&mut self, changes: u64, token: Token) {
        (self.told, self.told_token) = (Some(changes), Some(token));
        (self.wants_told, self.tells_at) = (false, None);
    }
}

fn too_many_leases() -> End {
    End::Refused(format!(
        "{LEASES_MAX} leases are held in this register, and no more may be; use fewer nodes or another run id"
    ))
}
