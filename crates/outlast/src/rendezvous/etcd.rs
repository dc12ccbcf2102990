//! A register that etcd keeps.
//!
//! ```text
//! outlast/<run>/register/<name>/value            what was written last; its revision is the token
//! outlast/<run>/register/<name>/alive/<holder>   there while the holder's lease lasts: it ends with it; holds its note
//! ```
//!
//! A write is one transaction: if that revision wrote the value last, and if our own key is there with our own lease,
//! then write. So etcd's clock decides whose lease lasts, and a process that was stopped for longer writes nothing. Every
//! transaction also reads both kinds of keys at its revision; in between a watch tells of changes. What comes by the watch
//! and is older than what was read is dropped, so nothing that is told goes back.

use super::backend::{Answer, Ask, Asked, Opening, PAUSES, Queues, Trouble, TroubleKind};
use crate::etcd::{Change, Committed, Etcd, EtcdError, EtcdOptions, LeaseId, Pair, Transaction, Watch};
use outlast_proto::id::RunId;
use outlast_proto::retry;
use outlast_proto::wire::register::{Fate, Snapshot, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// How long last words may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct EtcdRegister {
    options: EtcdOptions,
    prefix: String,
    holder: String,
    /// How long the lease should last, while there is one, and the note beside it.
    lease: Option<(Duration, Vec<u8>)>,
    /// The lease that was granted, and for how long.
    granted: Option<(LeaseId, Duration)>,
    /// Asked and not answered, while there is no connection.
    open: Vec<Asked>,
    /// What there is, at which revision.
    pairs: BTreeMap<Vec<u8>, Pair>,
    revision: i64,
    /// Which endpoint is tried first.
    first: usize,
}

/// Why there is no connection.
enum Broken {
    /// The driver is gone.
    Abandoned,
    By(Trouble),
}

impl From<EtcdError> for Broken {
    fn from(error: EtcdError) -> Self {
        let kind = match &error {
            error if error.may_pass() => TroubleKind::Passing,
            EtcdError::Unauthorized(_) | EtcdError::Tls { .. } => TroubleKind::Unauthorized,
            _ => TroubleKind::Refused,
        };
        Self::By(Trouble { kind, text: error.to_string() })
    }
}

impl EtcdRegister {
    pub(super) fn new(options: EtcdOptions, run: &RunId, opening: Opening) -> Self {
        let prefix = format!("outlast/{run}/register/{}/", opening.register);
        // Not everybody begins with the same member.
        let first = usize::from(u16::from_ne_bytes(crate::security::random_bytes()));
        Self {
            options,
            prefix,
            holder: opening.holder,
            lease: None,
            granted: None,
            open: Vec::new(),
            pairs: BTreeMap::new(),
            revision: 0,
            first,
        }
    }

    pub(super) async fn run(mut self, mut queues: Queues) {
        let mut pause = PAUSES.0;
        loop {
            let began = Instant::now();
            let Err(Broken::By(trouble)) = self.connect(&mut queues).await else { return };
            // What worked for a while is tried again at once.
            if began.elapsed() > PAUSES.1 {
                pause = PAUSES.0;
            }
            let is_final = trouble.is_final();
            self.open.clear();
            if !queues.tell(Answer::Trouble(trouble)).await {
                return;
            }
            let until = if is_final { None } else { Some(Instant::now() + pause) };
            if !self.rest(until, &mut queues).await {
                return;
            }
            pause = retry::longer(pause, PAUSES.1);
            self.first = self.first.wrapping_add(1);
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
            // The lease runs out by itself.
            self.lease = None;
            self.open.retain(|asked| !matches!(asked.ask, Ask::Beat { .. }));
        } else {
            self.open.push(asked);
        }
    }

    /// Connects, and serves until that breaks. Never ends well.
    async fn connect(&mut self, queues: &mut Queues) -> Result<(), Broken> {
        let (options, first, prefix) = (self.options.clone(), self.first, self.prefix.clone());
        let connecting = async move {
            let etcd = Etcd::connect(&options, first).await?;
            let range = etcd.range(prefix.as_bytes()).await?;
            let watch = etcd.watch(prefix.as_bytes(), range.revision + 1).await?;
            Ok::<_, EtcdError>((etcd, range, watch))
        };
        tokio::pin!(connecting);
        let (etcd, range, watch) = loop {
            tokio::select! {
                connected = &mut connecting => break connected?,
                ask = queues.asks.recv() => match ask {
                    Some(ask) => self.hold(ask),
                    None => return Err(Broken::Abandoned),
                },
            }
        };
        self.adopt(range.revision, range.pairs);
        if let Some((lease, note)) = self.lease.clone() {
            self.beat(&etcd, lease, note).await?;
        }
        self.tell(Answer::Told(self.snapshot()), queues).await?;
        for ask in std::mem::take(&mut self.open) {
            self.answer(&etcd, ask, queues).await?;
        }
        self.serve(&etcd, watch, queues).await
    }

    async fn serve(&mut self, etcd: &Etcd, mut watch: Watch, queues: &mut Queues) -> Result<(), Broken> {
        loop {
            tokio::select! {
                ask = queues.asks.recv() => {
                    let Some(ask) = ask else {
                        self.release(etcd).await;
                        return Err(Broken::Abandoned);
                    };
                    self.answer(etcd, ask, queues).await?;
                }
                changes = watch.next() => {
                    if self.take(changes?) {
                        self.tell(Answer::Told(self.snapshot()), queues).await?;
                    }
                }
            }
        }
    }

    /// Does what is asked. What fails is answered by the trouble that follows.
    async fn answer(&mut self, etcd: &Etcd, asked: Asked, queues: &mut Queues) -> Result<(), Broken> {
        let Asked { number, ask } = asked;
        let answer = match ask {
            Ask::Read | Ask::Find => {
                let range = etcd.range(self.prefix.as_bytes()).await?;
                self.adopt(range.revision, range.pairs);
                let snapshot = self.snapshot();
                if ask == Ask::Find { Answer::Found(snapshot) } else { Answer::Told(snapshot) }
            }
            Ask::Write { expected, value } => {
                let fate = self.write(etcd, expected, &value).await?;
                Answer::Written(fate, self.snapshot())
            }
            Ask::Beat { lease, note } => {
                if self.beat(etcd, lease, note).await? {
                    self.tell(Answer::Told(self.snapshot()), queues).await?;
                }
                Answer::Beaten
            }
            Ask::Release => {
                self.release(etcd).await;
                return Ok(());
            }
        };
        if queues.answer(number, answer).await { Ok(()) } else { Err(Broken::Abandoned) }
    }

    async fn write(&mut self, etcd: &Etcd, expected: Token, value: &[u8]) -> Result<Fate, EtcdError> {
        let revision = i64::try_from(expected.revision).unwrap_or(i64::MAX);
        let (key, alive) = (self.key("value"), self.alive_key());
        let mut transaction = Transaction::new().when_revision(&key, revision);
        match (self.holder.is_empty(), self.granted) {
            (true, _) => {}
            (false, Some((lease, _))) => transaction = transaction.when_lease(&alive, lease),
            // Without a lease nothing is written; what there is is told all the same.
            (false, None) => {
                let range = etcd.range(self.prefix.as_bytes()).await?;
                self.adopt(range.revision, range.pairs);
                return Ok(Fate::Lapsed);
            }
        }
        let transaction = transaction.put(&key, value, None).read(self.prefix.as_bytes());
        let Committed { held, revision, pairs } = etcd.commit(transaction).await?;
        self.adopt(revision, pairs);
        let lasts = self
            .granted
            .is_some_and(|(lease, _)| self.pairs.get(&alive).is_some_and(|pair| pair.lease == Some(lease)));
        Ok(match held {
            true => Fate::Accepted,
            false if self.holder.is_empty() || lasts => Fate::Lost,
            false => {
                self.granted = None;
                Fate::Lapsed
            }
        })
    }

    /// Renews the lease, or takes a new one if there is none or it has run out. True if what there is was read with it.
    async fn beat(&mut self, etcd: &Etcd, lease: Duration, note: Vec<u8>) -> Result<bool, EtcdError> {
        self.lease = Some((lease, note.clone()));
        let is_left = self.pairs.get(&self.alive_key()).is_some_and(|pair| pair.value == note);
        if let Some((id, wanted)) = self.granted
            && wanted == lease
        {
            match self.renew(etcd, id, note.clone(), is_left).await {
                Ok(true) => return Ok(!is_left),
                Ok(false) | Err(EtcdError::LeaseGone) => self.granted = None,
                Err(error) => return Err(error),
            }
        }
        let before = self.granted.take();
        let (id, _) = etcd.grant(lease).await?;
        self.leave(etcd, id, note).await?;
        self.granted = Some((id, lease));
        // The key has moved to the new lease by now, so the end of the old one takes nothing along.
        if let Some((id, _)) = before {
            etcd.revoke(id).await?;
        }
        Ok(true)
    }

    /// Renews a lease that may last, and leaves another note beside it at the same time. False if it has run out.
    async fn renew(
        &mut self,
        etcd: &Etcd,
        id: LeaseId,
        note: Vec<u8>,
        is_left: bool,
    ) -> Result<bool, EtcdError> {
        if is_left {
            return Ok(etcd.keep_alive(id).await?.is_some());
        }
        let (kept, left) = tokio::join!(etcd.keep_alive(id), self.leave(etcd, id, note));
        left?;
        Ok(kept?.is_some())
    }

    /// Writes the holder's key with its note, and reads what there is then.
    async fn leave(&mut self, etcd: &Etcd, id: LeaseId, note: Vec<u8>) -> Result<(), EtcdError> {
        let leaving = Transaction::new().put(&self.alive_key(), &note, Some(id));
        let Committed { revision, pairs, .. } = etcd.commit(leaving.read(self.prefix.as_bytes())).await?;
        self.adopt(revision, pairs);
        Ok(())
    }

    async fn release(&mut self, etcd: &Etcd) {
        self.lease = None;
        if let Some((id, _)) = self.granted.take() {
            // If that fails the lease runs out by itself.
            let _ = tokio::time::timeout(GOODBYE_TIMEOUT, etcd.revoke(id)).await;
        }
    }

    async fn tell(&self, answer: Answer, queues: &Queues) -> Result<(), Broken> {
        if queues.tell(answer).await { Ok(()) } else { Err(Broken::Abandoned) }
    }

    /// What was read at a revision is what there is.
    fn adopt(&mut self, revision: i64, pairs: Vec<Pair>) {
        self.revision = revision;
        self.pairs = pairs.into_iter().map(|pair| (pair.key.clone(), pair)).collect();
    }

    /// Changes that came by the watch. Whether any of them was news.
    fn take(&mut self, changes: Vec<Change>) -> bool {
        let mut is_news = false;
        let read = self.revision;
        for change in changes {
            let revision = match &change {
                Change::Put(pair) => pair.revision,
                Change::Deleted { revision, .. } => *revision,
            };
            if revision <= read {
                continue;
            }
            self.revision = self.revision.max(revision);
            is_news |= match change {
                Change::Put(pair) => {
                    let written = pair.value.clone();
                    let before = self.pairs.insert(pair.key.clone(), pair);
                    // A lease that was taken anew over one that lasted is no news; a value is, and another note.
                    before.is_none_or(|before| before.key == self.key("value") || before.value != written)
                }
                Change::Deleted { key, .. } => self.pairs.remove(&key).is_some(),
            };
        }
        is_news
    }

    fn snapshot(&self) -> Snapshot {
        let prefix = self.key("alive/");
        let (mut alive, mut notes) = (BTreeSet::new(), BTreeMap::new());
        for (key, pair) in &self.pairs {
            let holder = key.strip_prefix(prefix.as_slice()).map(<[u8]>::to_vec);
            let Some(holder) = holder.and_then(|name| String::from_utf8(name).ok()) else { continue };
            if !pair.value.is_empty() {
                notes.insert(holder.clone(), pair.value.clone().into());
            }
            alive.insert(holder);
        }
        let value = self.pairs.get(&self.key("value"));
        let revision = value.map_or(0, |pair| pair.revision.max(0).unsigned_abs());
        let token = Token { era: 0, revision };
        Snapshot { value: value.map(|pair| pair.value.clone()), token, alive, notes }
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    fn alive_key(&self) -> Vec<u8> {
        self.key(&format!("alive/{}", self.holder))
    }
}
