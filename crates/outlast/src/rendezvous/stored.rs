//! A register that the nodes keep themselves, in a store that they are the members of.
//!
//! ```text
//! register/<name>/state           the whole register: see `outlast_proto::rendezvous::Record`
//! register/<name>/beat/<holder>   changes for as long as the holder lives: see `outlast_proto::rendezvous::Sentry`
//! register/<name>/bell/<change>   a *chime*, there once the register has changed that often: whoever waits for it is woken
//! ```
//!
//! The store is that of a run of its own (`<run>.rendezvous`), so that a program that ends its run's store does not end
//! what its agents agree by. The coordinator decides who is in it and knows nothing of what it holds: what was written is
//! with two nodes, and outlives any one of them and the coordinator.
//!
//! A chime is only a hint. Its ringer may die before it rings, so everybody also looks by itself once in a while. If the
//! store was lost with all who held the register, the first one that finds it empty brings the last record that it saw.
//!
//! What it does not do: a node that is stopped is a member that is stopped. What it holds waits for it, for the store's
//! stall budget at most.

use super::backend::{
    ANSWER_TIMEOUT, Access, Answer, Ask, Asked, DIAL_TIMEOUT, Opening, PAUSES, Queues, Trouble, TroubleKind,
};
use super::{Fate, Snapshot, Token};
use crate::clock;
use crate::coordinator::{self, Unreached};
use crate::port;
use crate::security::{TlsIdentity, random_bytes};
use crate::store::{Failure, Store, StoreBuilder, StoreError};
use crate::sync::Arc;
use outlast_proto::id::RunId;
use outlast_proto::rendezvous::{Draw, Record, Sentry, beat};
use outlast_proto::retry;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

/// How long one call of the store may take: three of them are within the time of an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A host that has acknowledged nothing for this long is gone.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// How long last words may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
/// How many changes a chime is kept for.
const CHIMES: u64 = 16;
/// How often a change is tried again because others changed something.
const ATTEMPTS: usize = 1_000;

/// The run whose store the register is in.
pub(super) fn run_of(run: &RunId) -> RunId {
    format!("{run}.rendezvous").parse().unwrap_or_else(|_| {
        let digest = outlast_proto::store::layout::digest(run.to_string().as_bytes());
        format!("rendezvous-{digest:016x}").parse().expect("letters and digits")
    })
}

pub(super) struct StoredRegister {
    addresses: String,
    identity: TlsIdentity,
    builder: StoreBuilder,
    keys: String,
    holder: String,
    /// How long the lease should last, while there is one, and the note beside it.
    lease: Option<(Duration, Vec<u8>)>,
    /// When it was last renewed, and how often.
    beaten: Option<Instant>,
    beats: u64,
    /// Asked and not answered, while there is no store.
    open: Vec<Asked>,
    /// What was seen last.
    last: Option<Record>,
    sentry: Sentry,
}

/// Why something was not done.
enum Broken {
    /// The driver is gone.
    Abandoned,
    /// This call came to nothing; the next may not.
    Stalled(String),
    /// There is no store.
    By(Trouble),
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Call(Failure::TimedOut(text)) => Self::Stalled(text),
            StoreError::Call(Failure::TooMany) => Self::Stalled(error.to_string()),
            StoreError::Call(Failure::ShutDown | Failure::ShutDownOn(_) | Failure::Left)
            | StoreError::NotJoined { .. }
            | StoreError::Start(_)
            | StoreError::Port(_) => Self::By(Trouble::passing(error)),
            _ => Self::By(Trouble::refused(error)),
        }
    }
}

/// A member of the store. It leaves when it is dropped, on a thread that nobody waits for: dropping the store itself
/// would end it for all.
struct Tenant(Option<Store>);

impl Tenant {
    fn store(&self) -> &Store {
        self.0.as_ref().expect("it is there until this is dropped")
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let Some(store) = self.0.take() else { return };
        let leave = move || {
            let _ = store.leave();
        };
        if let Err(error) = std::thread::Builder::new().name("outlast-leaves".to_owned()).spawn(leave) {
            tracing::warn!(%error, "a store is not left but ended: no thread");
        }
    }
}

type Home = Arc<Tenant>;

impl StoredRegister {
    pub(super) fn new(addresses: String, run: &RunId, access: Access, opening: Opening) -> Self {
        let Access { identity, credentials } = access;
        let builder = Store::builder().coordinator(addresses.clone()).run_id(run.clone());
        Self {
            addresses,
            identity,
            builder: builder.credentials(credentials).timeout(ANSWER_TIMEOUT),
            keys: format!("register/{}/", opening.register),
            holder: opening.holder,
            lease: None,
            beaten: None,
            beats: 0,
            open: Vec::new(),
            last: None,
            sentry: Sentry::default(),
        }
    }

    pub(super) async fn run(mut self, mut queues: Queues) {
        let mut pause = PAUSES.0;
        loop {
            let began = Instant::now();
            let trouble = match self.live(&mut queues).await {
                Err(Broken::By(trouble)) => trouble,
                Err(Broken::Stalled(text)) => Trouble::passing(text),
                Err(Broken::Abandoned) | Ok(()) => return,
            };
            // What worked for a while is tried again at once.
            if began.elapsed() > PAUSES.1 {
                pause = PAUSES.0;
            }
            let until = (!trouble.is_final()).then(|| Instant::now() + pause);
            self.open.clear();
            if !queues.tell(Answer::Trouble(trouble)).await {
                return;
            }
            if !self.rest(until, &mut queues).await {
                return;
            }
            pause = retry::longer(pause, PAUSES.1);
        }
    }

    /// Waits for that moment, or for the next ask. False if the driver is gone.
    async fn rest(&mut self, until: Option<Instant>, queues: &mut Queues) -> bool {
        let wait = async {
            match until {
                Some(moment) => tokio::time::sleep_until(moment).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(wait);
        loop {
            tokio::select! {
                ask = queues.asks.recv() => match ask {
                    Some(ask) => self.hold(ask),
                    None => return false,
                },
                () = &mut wait => return true,
            }
            if until.is_none() && !self.open.is_empty() {
                return true;
            }
        }
    }

    fn hold(&mut self, asked: Asked) {
        if asked.ask == Ask::Release {
            // The others see the lease run out.
            self.lease = None;
            self.open.retain(|asked| !matches!(asked.ask, Ask::Beat { .. }));
        } else {
            self.open.push(asked);
        }
    }

    /// Joins the store, and serves until it is over.
    async fn live(&mut self, queues: &mut Queues) -> Result<(), Broken> {
        let joining = join(self.addresses.clone(), self.identity.clone(), self.builder.clone());
        tokio::pin!(joining);
        let home = loop {
            tokio::select! {
                joined = &mut joining => break joined?,
                ask = queues.asks.recv() => match ask {
                    Some(ask) => self.hold(ask),
                    None => return Err(Broken::Abandoned),
                },
            }
        };
        self.read(&home).await?;
        if let Some((lease, note)) = self.lease.clone() {
            self.beat(&home, lease, note).await?;
        }
        tell(queues, Answer::Told(self.snapshot())).await?;
        for ask in std::mem::take(&mut self.open) {
            self.answer(&home, ask, queues).await?;
        }
        self.serve(&home, queues).await
    }

    async fn serve(&mut self, home: &Home, queues: &mut Queues) -> Result<(), Broken> {
        // The change that the chime is waited for, and the wait: none while it would tell nothing.
        let mut waited = self.next_change();
        let mut chime = Some(self.wait_for_chime(home, waited));
        let mut look_at = Instant::now();
        loop {
            let told = self.last.clone();
            let done = tokio::select! {
                ask = queues.asks.recv() => {
                    let Some(ask) = ask else {
                        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, self.release(home)).await;
                        return Err(Broken::Abandoned);
                    };
                    self.answer(home, ask, queues).await
                }
                () = heard(&mut chime) => self.read(home).await,
                () = tokio::time::sleep_until(look_at) => {
                    let looked = self.look(home).await;
                    look_at = Instant::now() + self.sentry.interval();
                    // A chime that rang without a change was left by another history, or its time was over.
                    chime = chime.or_else(|| Some(self.wait_for_chime(home, waited)));
                    looked
                }
            };
            match done {
                Ok(()) => {}
                // The store goes on when its members agree again: this one stays in it meanwhile.
                Err(Broken::Stalled(text)) => {
                    tell(queues, Answer::Trouble(Trouble::passing(text))).await?;
                }
                Err(broken) => return Err(broken),
            }
            if self.last != told {
                tell(queues, Answer::Told(self.snapshot())).await?;
            }
            if waited != self.next_change() {
                waited = self.next_change();
                chime = Some(self.wait_for_chime(home, waited));
            }
        }
    }

    /// Does what is asked. What fails is answered by the trouble that follows.
    async fn answer(&mut self, home: &Home, asked: Asked, queues: &Queues) -> Result<(), Broken> {
        let Asked { number, ask } = asked;
        let answer = match ask {
            Ask::Read => {
                self.read(home).await?;
                Answer::Told(self.snapshot())
            }
            Ask::Find => {
                self.read(home).await?;
                Answer::Found(self.snapshot())
            }
            Ask::Write { expected, value } => {
                let fate = self.write(home, expected, value).await?;
                Answer::Written(fate, self.snapshot())
            }
            Ask::Beat { lease, note } => {
                let before = self.last.clone();
                self.beat(home, lease, note).await?;
                if self.last != before {
                    tell(queues, Answer::Told(self.snapshot())).await?;
                }
                Answer::Beaten
            }
            Ask::Release => return self.release(home).await,
        };
        if queues.answer(number, answer).await { Ok(()) } else { Err(Broken::Abandoned) }
    }

    async fn write(&mut self, home: &Home, expected: Token, value: Vec<u8>) -> Result<Fate, Broken> {
        // What is decided on must be what there is: somebody who lost is told the winner's.
        let is_known = self.last.as_ref().is_some_and(|record| record.snapshot.token == expected);
        if !is_known || self.has_lapsed() {
            self.read(home).await?;
        }
        if self.has_lapsed() {
            return Ok(Fate::Lapsed);
        }
        let mut fate = Fate::Accepted;
        self.change(home, |before, holder| {
            match Record::written(before, holder, expected, value.clone(), draw()) {
                Ok(next) => Some(next),
                Err(why) => {
                    fate = why;
                    None
                }
            }
        })
        .await?;
        Ok(fate)
    }

    /// On one's own clock: who was stopped for longer than its lease knows it before anybody tells.
    fn has_lapsed(&self) -> bool {
        match (self.holder.is_empty(), &self.lease, self.beaten) {
            (true, ..) => false,
            (false, Some((lease, _)), Some(beaten)) => beaten.elapsed() >= *lease,
            (false, ..) => true,
        }
    }

    async fn beat(&mut self, home: &Home, lease: Duration, note: Vec<u8>) -> Result<(), Broken> {
        self.lease = Some((lease, note.clone()));
        self.beats += 1;
        let (key, value) = (self.beat_key(&self.holder), beat(lease, self.beats));
        let began = Instant::now();
        call(home, move |store| store.set(key, value)).await?;
        self.change(home, |before, holder| Record::with_lease(before, holder, &note, draw())).await?;
        self.beaten = Some(began);
        Ok(())
    }

    async fn release(&mut self, home: &Home) -> Result<(), Broken> {
        let held = self.lease.take().is_some();
        self.beaten = None;
        if held {
            self.change(home, |before, holder| Record::without_lease(before, holder, draw())).await?;
            let key = self.beat_key(&self.holder);
            call(home, move |store| store.delete_key(key)).await?;
        }
        Ok(())
    }

    /// Looks at the register, and at others' beats, and takes out whoever does not beat any more.
    async fn look(&mut self, home: &Home) -> Result<(), Broken> {
        self.read(home).await?;
        let Some(record) = &self.last else { return Ok(()) };
        let names: Vec<String> =
            Sentry::watched(&record.snapshot.alive, &self.holder).into_iter().map(str::to_owned).collect();
        let began = clock::now();
        let mut beats = Vec::with_capacity(names.len());
        for name in names {
            let key = self.beat_key(&name);
            let beat = call(home, move |store| store.compare_set(key, "", "")).await?;
            beats.push((name, beat));
        }
        for name in self.sentry.handle_look(began, clock::now(), beats) {
            tracing::info!(%name, "the lease of a node has run out");
            self.change(home, |before, _| Record::without_lease(before, &name, draw())).await?;
            let key = self.beat_key(&name);
            call(home, move |store| store.delete_key(key)).await?;
        }
        Ok(())
    }

    /// Puts the next record in the place of the last one, deciding again for as long as others are faster. Nothing is
    /// changed where there is no next one.
    async fn change(
        &mut self,
        home: &Home,
        mut decide: impl FnMut(Option<&Record>, &str) -> Option<Record>,
    ) -> Result<(), Broken> {
        for _ in 0..ATTEMPTS {
            let Some(next) = decide(self.last.as_ref(), &self.holder) else {
                return Ok(());
            };
            if self.replace(home, next).await? {
                return Ok(());
            }
        }
        Err(Broken::Stalled(format!("others changed the register {ATTEMPTS} times meanwhile")))
    }

    /// Whether it was put there. What there is now is known afterwards.
    async fn replace(&mut self, home: &Home, next: Record) -> Result<bool, Broken> {
        let before = self.last.as_ref().map(Record::to_bytes).unwrap_or_default();
        let (key, expected, desired) = (self.key("state"), before.clone(), next.to_bytes());
        let found = call(home, move |store| store.compare_set(key, expected, desired)).await?;
        if found == next.to_bytes() {
            self.ring(home, next.changes);
            self.last = Some(next);
            return Ok(true);
        }
        if found == before && !before.is_empty() {
            // So says a store that has no such key.
            self.read(home).await?;
        } else {
            self.adopt(&found)?;
        }
        Ok(false)
    }

    /// Finds out what there is. Comparing with nothing answers at once; where there was nothing there is an empty value then.
    async fn read(&mut self, home: &Home) -> Result<(), Broken> {
        let key = self.key("state");
        let found = call(home, move |store| store.compare_set(key, "", "")).await?;
        match (&self.last, found.is_empty()) {
            (Some(last), true) => {
                tracing::warn!("the store has lost the register: bringing what was seen last");
                let brought = Record::brought(last, draw());
                let (key, desired) = (self.key("state"), brought.to_bytes());
                let found = call(home, move |store| store.compare_set(key, "", desired)).await?;
                self.adopt(&found)
            }
            _ => self.adopt(&found),
        }
    }

    fn adopt(&mut self, found: &[u8]) -> Result<(), Broken> {
        let record = Record::from_bytes(found).map_err(|error| {
            Broken::By(Trouble::refused(format!("what the store holds is no register of ours: {error}")))
        })?;
        self.last = record;
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        self.last.as_ref().map(|record| record.snapshot.clone()).unwrap_or_default()
    }

    fn next_change(&self) -> u64 {
        self.last.as_ref().map_or(1, |record| record.changes.wrapping_add(1))
    }

    /// Wakes whoever waits for that change, and forgets an old chime. Nobody waits for it to be done.
    fn ring(&self, home: &Home, change: u64) {
        let (chime, old) = (self.chime_key(change), self.chime_key(change.wrapping_sub(CHIMES)));
        let home = Arc::clone(home);
        spawn_blocking(move || {
            let rung = home.store().set(chime, "");
            rung.and_then(|()| home.store().delete_key(old).map(drop))
        });
    }

    fn wait_for_chime(&self, home: &Home, change: u64) -> JoinHandle<()> {
        let (home, chime) = (Arc::clone(home), self.chime_key(change));
        spawn_blocking(move || {
            let _ = home.store().wait(&[chime], Some(CALL_TIMEOUT));
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.keys)
    }

    fn beat_key(&self, holder: &str) -> String {
        self.key(&format!("beat/{holder}"))
    }

    /// The name by which nodes of every version know it.
    fn chime_key(&self, change: u64) -> String {
        self.key(&format!("bell/{change}"))
    }
}

/// Finds out whether the coordinator takes us for one of the run, then joins.
async fn join(addresses: String, identity: TlsIdentity, builder: StoreBuilder) -> Result<Home, Broken> {
    let plane = port::STORE_VIEWS;
    let dialled =
        coordinator::dial_plane(plane, &addresses, &identity, None, DIAL_TIMEOUT, SILENT_AFTER).await;
    let mut dialled = dialled.map_err(|error| Broken::By(trouble_of(&error)))?;
    let _ = tokio::time::timeout(GOODBYE_TIMEOUT, dialled.frames.finish()).await;
    let joining = spawn_blocking(move || {
        let mut store = builder.join()?;
        store.set_timeout(CALL_TIMEOUT);
        Ok(Arc::new(Tenant(Some(store))))
    });
    joined(joining).await
}

/// A call of the store, on a thread that may wait.
async fn call<R: Send + 'static>(
    home: &Home,
    work: impl FnOnce(&Store) -> Result<R, StoreError> + Send + 'static,
) -> Result<R, Broken> {
    let home = Arc::clone(home);
    joined(spawn_blocking(move || work(home.store()))).await
}

async fn joined<R>(work: JoinHandle<Result<R, StoreError>>) -> Result<R, Broken> {
    match work.await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Broken::By(Trouble::refused("a call of the store panicked: this is a bug in outlast"))),
    }
}

/// Waits until the chime has rung, or its time is over. Then there is none.
async fn heard(chime: &mut Option<JoinHandle<()>>) {
    match chime {
        Some(ringing) => {
            let _ = ringing.await;
            *chime = None;
        }
        None => std::future::pending().await,
    }
}

async fn tell(queues: &Queues, answer: Answer) -> Result<(), Broken> {
    if queues.tell(answer).await { Ok(()) } else { Err(Broken::Abandoned) }
}

fn draw() -> Draw {
    let era = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    Draw { writer: u64::from_ne_bytes(random_bytes()), era: u64::try_from(era).unwrap_or(u64::MAX) }
}

fn trouble_of(error: &Unreached) -> Trouble {
    let kind = if error.foreign {
        TroubleKind::Unauthorized
    } else if error.is_final() {
        TroubleKind::Refused
    } else {
        TroubleKind::Passing
    };
    Trouble { kind, text: error.to_string() }
}
