//! The register that a coordinator serves, on the node's side: one stream, opened again whenever it breaks.
//!
//! A coordinator may be killed and started again, and then it has forgotten everything. So this side remembers the last
//! snapshot that it was told, and brings it whenever it opens the stream (see `outlast_proto::rendezvous::Register`).

use super::backend::{
    ANSWER_TIMEOUT, Answer, Ask, Asked, DIAL_TIMEOUT, Opening, PAUSES, Queues, Trouble, TroubleKind,
};
use crate::coordinator::{self, ControlFrames, Unreached};
use crate::port::{self, FrameError};
use crate::security::TlsIdentity;
use outlast_proto::id::PeerId;
use outlast_proto::limits::COUNT_MAX;
use outlast_proto::retry;
use outlast_proto::wire::register::{FromRegister, Note, Snapshot, ToRegister, Token};
use outlast_proto::wire::{decode, encode};
use std::time::Duration;
use tokio::time::Instant;

/// A host that has acknowledged nothing for this long is gone; a process that was merely stopped acknowledges.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// How long last words may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// The token of no write there ever was.
const NOBODYS: Token = Token { era: COUNT_MAX, revision: COUNT_MAX };

pub(super) struct Embedded {
    addresses: String,
    identity: TlsIdentity,
    opening: Opening,
    /// Whom a coordinator must be that keeps its key (rule 39).
    pinned: Option<PeerId>,
    /// How long the lease lasts, while there is one, and the note beside it.
    lease: Option<(Duration, Vec<u8>)>,
    /// What we were told last.
    last: Option<Snapshot>,
    /// Asked and not answered.
    open: Vec<Open>,
    /// A write that waits for the answer to one that was given up.
    later: Option<Asked>,
}

/// Something that was asked, and when it must be answered.
struct Open {
    asked: Asked,
    by: Instant,
}

impl Open {
    /// A coordinator takes one write at a time.
    fn is_write(&self) -> bool {
        self.asked.ask.is_write()
    }
}

/// Why there is no stream.
enum Broken {
    /// The driver is gone.
    Abandoned,
    By(Trouble),
}

impl From<FrameError> for Broken {
    fn from(error: FrameError) -> Self {
        Self::By(Trouble::passing(format!("the connection to the coordinator broke: {error}")))
    }
}

impl Embedded {
    pub(super) fn new(addresses: String, identity: TlsIdentity, opening: Opening) -> Self {
        Self {
            addresses,
            identity,
            opening,
            pinned: None,
            lease: None,
            last: None,
            open: Vec::new(),
            later: None,
        }
    }

    pub(super) async fn run(mut self, mut queues: Queues) {
        let mut pause = PAUSES.0;
        loop {
            let broken = match self.dial(&mut queues).await {
                Ok(mut frames) => {
                    let began = Instant::now();
                    let broken = self.talk(&mut frames, &mut queues).await;
                    // A coordinator that hangs up at once is dialled no faster than one that refuses.
                    if began.elapsed() > PAUSES.1 {
                        pause = PAUSES.0;
                    }
                    broken
                }
                Err(broken) => broken,
            };
            let Broken::By(trouble) = broken else { return };
            let is_final = trouble.is_final();
            // Whoever asked hears of it now; what came of it nobody knows.
            self.open.clear();
            self.later = None;
            if !queues.tell(Answer::Trouble(trouble)).await {
                return;
            }
            // What is refused for good is tried again only when somebody asks again.
            let again = if is_final { None } else { Some(Instant::now() + pause) };
            if !self.rest(again, &mut queues).await {
                return;
            }
            pause = retry::longer(pause, PAUSES.1);
        }
    }

    /// Waits for that moment, or for the next ask. False if the driver is gone.
    async fn rest(&mut self, until: Option<Instant>, queues: &mut Queues) -> bool {
        loop {
            tokio::select! {
                ask = queues.asks.recv() => match ask {
                    Some(ask) => self.hold(ask),
                    None => return false,
                },
                () = at(until) => return true,
            }
            if until.is_none() && !self.open.is_empty() {
                return true;
            }
        }
    }

    /// Notes what is asked, to be said when there is a stream.
    fn hold(&mut self, asked: Asked) {
        match &asked.ask {
            Ask::Beat { lease, note } => self.lease = Some((*lease, note.clone())),
            Ask::Release => {
                self.lease = None;
                return self.open.retain(|open| !matches!(open.asked.ask, Ask::Beat { .. }));
            }
            Ask::Read => {}
            // One before it was given up, and nobody has heard of it.
            Ask::Find | Ask::Write { .. } => self.open.retain(|open| !open.is_write()),
        }
        self.open.push(Open { asked, by: Instant::now() + ANSWER_TIMEOUT });
    }

    async fn dial(&mut self, queues: &mut Queues) -> Result<ControlFrames, Broken> {
        let (addresses, identity, pinned) = (self.addresses.clone(), self.identity.clone(), self.pinned);
        let dialling = coordinator::dial_plane(
            port::REGISTER,
            &addresses,
            &identity,
            pinned,
            DIAL_TIMEOUT,
            SILENT_AFTER,
        );
        tokio::pin!(dialling);
        loop {
            tokio::select! {
                dialled = &mut dialling => {
                    let dialled = dialled.map_err(|error| Broken::By(trouble_of(error)))?;
                    if dialled.is_kept {
                        self.pinned = Some(dialled.coordinator);
                    }
                    return Ok(dialled.frames);
                }
                ask = queues.asks.recv() => match ask {
                    Some(ask) => self.hold(ask),
                    None => return Err(Broken::Abandoned),
                },
            }
        }
    }

    /// Carries questions and answers until the stream breaks.
    async fn talk(&mut self, frames: &mut ControlFrames, queues: &mut Queues) -> Broken {
        match self.talk_on(frames, queues).await {
            Err(broken) => broken,
            Ok(never) => match never {},
        }
    }

    async fn talk_on(
        &mut self,
        frames: &mut ControlFrames,
        queues: &mut Queues,
    ) -> Result<std::convert::Infallible, Broken> {
        let (lease_ms, note) =
            self.lease.as_ref().map_or((0, Vec::new()), |(lease, note)| (millis(*lease), note.clone()));
        let Opening { register, holder } = self.opening.clone();
        let open =
            ToRegister::Open { register, holder, lease_ms, brought: self.last.clone(), note: said(&note) };
        let held: Vec<_> = self.open.iter().map(|open| message_of(&open.asked.ask)).collect();
        let words: Vec<_> = std::iter::once(open).chain(held).map(|message| encode(&message)).collect();
        say(frames, &words).await?;
        // It tells how it is without being asked; that takes no longer than an answer.
        let mut first = Some(Instant::now() + ANSWER_TIMEOUT);
        loop {
            let due = self.open.iter().map(|open| open.by).chain(first).min();
            tokio::select! {
                frame = frames.next() => {
                    let bytes = frame?.ok_or_else(|| passing("the coordinator closed the connection"))?;
                    let message = decode(&bytes).map_err(|error| Broken::By(Trouble::refused(format!(
                        "what the coordinator said is not understood: {error}"
                    ))))?;
                    first = None;
                    let (number, answer) = self.take(message)?;
                    if !queues.answer(number, answer).await {
                        return Err(Broken::Abandoned);
                    }
                    if !self.open.iter().any(Open::is_write)
                        && let Some(next) = self.later.take()
                    {
                        self.pass_on(frames, next).await?;
                    }
                }
                asked = queues.asks.recv() => {
                    let Some(asked) = asked else {
                        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, frames.finish()).await;
                        return Err(Broken::Abandoned);
                    };
                    if asked.ask.is_write() && self.open.iter().any(Open::is_write) {
                        self.later = Some(asked);
                    } else {
                        self.pass_on(frames, asked).await?;
                    }
                }
                () = at(due) => {
                    return Err(passing(format!("no answer from the coordinator within {ANSWER_TIMEOUT:?}")));
                }
            }
        }
    }

    /// Asks the coordinator.
    async fn pass_on(&mut self, frames: &mut ControlFrames, asked: Asked) -> Result<(), Broken> {
        let message = encode(&message_of(&asked.ask));
        self.hold(asked);
        say(frames, &[message]).await
    }

    /// What the coordinator said, as an answer, and to what.
    fn take(&mut self, message: FromRegister) -> Result<(u64, Answer), Broken> {
        let answered: fn(&Ask) -> bool = match &message {
            FromRegister::Told(_) => |ask| matches!(ask, Ask::Read),
            FromRegister::Written(..) => Ask::is_write,
            FromRegister::Beaten => |ask| matches!(ask, Ask::Beat { .. }),
            FromRegister::Refused(_) => |_| false,
        };
        let asked = self.open.iter().position(|open| answered(&open.asked.ask));
        let asked = asked.map(|at| self.open.remove(at).asked);
        let number = asked.as_ref().map_or(0, |asked| asked.number);
        let answer = match message {
            FromRegister::Told(snapshot) => {
                self.last = Some(snapshot.clone());
                Ok(Answer::Told(snapshot))
            }
            FromRegister::Written(fate, snapshot) => {
                self.last = Some(snapshot.clone());
                let finds = asked.is_some_and(|asked| asked.ask == Ask::Find);
                Ok(if finds { Answer::Found(snapshot) } else { Answer::Written(fate, snapshot) })
            }
            FromRegister::Beaten => Ok(Answer::Beaten),
            FromRegister::Refused(text) => {
                Err(Broken::By(Trouble::refused(format!("the coordinator refused: {text}"))))
            }
        };
        Ok((number, answer?))
    }
}

fn passing(text: impl std::fmt::Display) -> Broken {
    Broken::By(Trouble::passing(text))
}

/// A write that takes longer has nobody who reads at its other end.
async fn say(frames: &mut ControlFrames, words: &[Vec<u8>]) -> Result<(), Broken> {
    let writing = frames.send_all(words.iter().map(Vec::as_slice));
    let late = || passing(format!("the coordinator took nothing within {ANSWER_TIMEOUT:?}"));
    Ok(tokio::time::timeout(ANSWER_TIMEOUT, writing).await.map_err(|_| late())??)
}

fn message_of(ask: &Ask) -> ToRegister {
    match ask {
        Ask::Read => ToRegister::Read,
        // The answer to a question looks like news, which may be older. That to a write is nobody else's, and one that must
        // lose changes nothing.
        Ask::Find => ToRegister::Write { expected: NOBODYS, value: Vec::new() },
        Ask::Write { expected, value } => ToRegister::Write { expected: *expected, value: value.clone() },
        Ask::Beat { lease, note } => ToRegister::Beat { lease_ms: millis(*lease), note: said(note) },
        Ask::Release => ToRegister::Release,
    }
}

/// A note as it travels: an empty one does not.
fn said(note: &[u8]) -> Option<Note> {
    (!note.is_empty()).then(|| note.to_vec().into())
}

/// At least one: zero is no lease.
fn millis(lease: Duration) -> u32 {
    u32::try_from(lease.as_millis()).unwrap_or(u32::MAX).max(1)
}

fn trouble_of(error: Unreached) -> Trouble {
    let kind = if error.foreign {
        TroubleKind::Unauthorized
    } else if error.is_final() {
        TroubleKind::Refused
    } else {
        TroubleKind::Passing
    };
    Trouble { kind, text: error.to_string() }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
