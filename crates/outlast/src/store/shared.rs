//! What the handle, the engine and the tasks of a store share.

use super::engine::{Engine, Inbox, Letter};
use super::links;
use crate::baton::{Baton, Seat};
use crate::clock;
use crate::fork::Guarded;
use crate::security::TlsIdentity;
use crate::sync::{Arc, Condvar, Mutex, lock, sleep_while};
use outlast_proto::store::{Ending, Failure};
use outlast_proto::time::Instant as Moment;
use outlast_proto::wire::store::operation::Answer;
use outlast_proto::wire::store::{MemberId, StoreMember, View};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

/// One call that waits for its end.
pub(super) struct Pending {
    result: Mutex<Option<Result<Answer, Failure>>>,
    seat: Arc<Seat<Engine>>,
}

impl Pending {
    pub(super) fn new(seat: Arc<Seat<Engine>>) -> Self {
        Self { result: Mutex::new(None), seat }
    }

    pub(super) fn finish(&self, result: Result<Answer, Failure>) {
        *lock(&self.result) = Some(result);
        self.seat.notify();
    }

    pub(super) fn take(&self) -> Option<Result<Answer, Failure>> {
        lock(&self.result).take()
    }
}

/// See the module's essay.
pub(super) struct Shared {
    pub(super) inbox: Inbox,
    /// Readable when any link is.
    pub(super) watch: Guarded<OwnedFd>,
    pub(super) runtime: Handle,
    pub(super) identity: TlsIdentity,
    /// When the engine wants a turn, in nanoseconds of our clock.
    due: AtomicU64,
    standing: Mutex<Standing>,
    changed: Condvar,
    baton: OnceLock<Weak<Baton<Engine>>>,
}

#[derive(Default)]
struct Standing {
    view: Option<Arc<View>>,
    ending: Option<Ending>,
    /// What whoever decides on views waits for.
    waits_for: Option<String>,
    /// Why it will never let us in, as it said last.
    refusal: Option<String>,
    /// Broadcasts that the program has not asked for yet, oldest first, and how many bytes that is.
    heard: VecDeque<(MemberId, Vec<u8>)>,
    heard_bytes: usize,
    /// Dials to members that are under way.
    dials: usize,
}

/// A program that does not listen to broadcasts does not pay for them: beyond this the oldest are forgotten.
const HEARD_BYTES_MAX: usize = 64 << 20;

impl Shared {
    pub(super) fn new(watch: Guarded<OwnedFd>, runtime: Handle, identity: TlsIdentity) -> Self {
        Self {
            inbox: Inbox::default(),
            watch,
            runtime,
            identity,
            due: AtomicU64::new(u64::MAX),
            standing: Mutex::default(),
            changed: Condvar::new(),
            baton: OnceLock::new(),
        }
    }

    pub(super) fn set_baton(&self, baton: &Arc<Baton<Engine>>) {
        let _ = self.baton.set(Arc::downgrade(baton));
    }

    /// Leaves a letter for the engine, and sees to it that it is read.
    pub(super) fn post(&self, letter: Letter) {
        self.inbox.put(letter);
        if let Some(baton) = self.baton.get().and_then(Weak::upgrade) {
            baton.nudge();
        }
    }

    pub(super) fn set_due(&self, due: Option<Moment>) {
        self.due.store(due.map_or(u64::MAX, Moment::as_nanos), Ordering::Relaxed);
    }

    /// How long it is until the engine wants a turn.
    pub(super) fn due_in(&self) -> Duration {
        Moment::from_nanos(self.due.load(Ordering::Relaxed)).since(clock::now())
    }

    pub(super) fn entered(&self, view: Arc<View>) {
        lock(&self.standing).view = Some(view);
        self.changed.notify_all();
    }

    pub(super) fn left_view(&self) {
        lock(&self.standing).view = None;
    }

    pub(super) fn ended(&self, ending: Ending) {
        lock(&self.standing).ending = Some(ending);
        self.changed.notify_all();
    }

    pub(super) fn ending(&self) -> Option<Ending> {
        lock(&self.standing).ending.clone()
    }

    pub(super) fn view(&self) -> Option<Arc<View>> {
        lock(&self.standing).view.clone()
    }

    /// Keeps a broadcast for the program. What alone is larger than the limit is kept too.
    pub(super) fn heard(&self, from: MemberId, payload: Vec<u8>) {
        let mut standing = lock(&self.standing);
        standing.heard_bytes += payload.len();
        standing.heard.push_back((from, payload));
        while standing.heard_bytes > HEARD_BYTES_MAX && standing.heard.len() > 1 {
            let forgotten = standing.heard.pop_front().map_or(0, |(_, payload)| payload.len());
            standing.heard_bytes -= forgotten;
        }
        self.changed.notify_all();
    }

    /// The oldest broadcast that the program has not had; waits for one. None if none came in time or the store is over.
    pub(super) fn next_heard(&self, timeout: Duration) -> Option<(MemberId, Vec<u8>)> {
        let standing = lock(&self.standing);
        let waits = |standing: &mut Standing| standing.heard.is_empty() && standing.ending.is_none();
        let mut standing = sleep_while(&self.changed, standing, timeout, waits);
        let (from, payload) = standing.heard.pop_front()?;
        standing.heard_bytes -= payload.len();
        Some((from, payload))
    }

    pub(super) fn set_waits_for(&self, text: String) {
        lock(&self.standing).waits_for = Some(text);
    }

    pub(super) fn set_refusal(&self, why: Option<String>) {
        lock(&self.standing).refusal = why;
    }

    pub(super) fn refusal(&self) -> Option<String> {
        lock(&self.standing).refusal.clone()
    }

    pub(super) fn waits_for(&self) -> Option<String> {
        lock(&self.standing).waits_for.clone()
    }

    /// Waits until this member is in a view, or the store is over. False if neither came in time.
    pub(super) fn wait_for_view(&self, timeout: Duration) -> bool {
        let standing = lock(&self.standing);
        let waits = |standing: &mut Standing| standing.view.is_none() && standing.ending.is_none();
        let standing = sleep_while(&self.changed, standing, timeout, waits);
        standing.view.is_some() || standing.ending.is_some()
    }

    /// Waits until this member's part is over. False if it was not in time.
    pub(super) fn wait_for_end(&self, timeout: Duration) -> bool {
        let standing = lock(&self.standing);
        sleep_while(&self.changed, standing, timeout, |standing| standing.ending.is_none()).ending.is_some()
    }

    /// Waits until no dial is under way: whoever is dialled counts one that ends in the middle of its handshake as a
    /// connection that it refused, and says so. False if that was not in time.
    pub(super) fn wait_for_dials(&self, timeout: Duration) -> bool {
        let standing = lock(&self.standing);
        sleep_while(&self.changed, standing, timeout, |standing| standing.dials > 0).dials == 0
    }

    /// A number for a new name. Names only have to differ.
    pub(super) fn random(&self) -> u64 {
        random()
    }

    /// Opens a link to a member, and tells the engine what came of it.
    pub(super) fn dial(self: &Arc<Self>, me: MemberId, member: StoreMember) {
        let shared = Arc::clone(self);
        lock(&self.standing).dials += 1;
        self.runtime.spawn(async move {
            let id = member.id;
            let dialled =
                crate::runtime::to_its_end("a dial of the store", links::dial(&shared.identity, me, member));
            match dialled.await {
                Some(Ok(linked)) => shared.post(Letter::Linked(Box::new(linked))),
                Some(Err(error)) => {
                    tracing::debug!(%id, %error, "no link to a member of the store");
                    shared.post(Letter::Unreachable(id));
                }
                None => shared.post(Letter::Unreachable(id)),
            }
            lock(&shared.standing).dials -= 1;
            shared.changed.notify_all();
        });
    }

    /// Asks the kernel of a member, and tells the engine how it answered.
    pub(super) fn knock(self: &Arc<Self>, member: MemberId, address: SocketAddr, timeout: Duration) {
        let shared = Arc::clone(self);
        self.runtime.spawn(async move {
            let knocked = crate::coordinator::registry::knocked(address, timeout).await;
            shared.post(Letter::Knocked(member, knocked));
        });
    }
}

/// A random number of the operating system's.
pub(super) fn random() -> u64 {
    let key = *crate::security::ProcessKey::generate().peer().as_bytes();
    u64::from_le_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]]) >> 4
}
