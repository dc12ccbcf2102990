//! What goes around from driver to driver: a member of the store, and its links.
//!
//! As with collectives, whoever waits for an answer drives: it reads and writes the links on behalf of everybody, so an
//! answer wakes nobody (decision 16). While no call waits, a thread of the store's own stands in (`standin.rs`). What
//! other threads want waits in the [`Inbox`].
//!
//! What an operation costs is mostly calls of the kernel, so there are few: a wait tells which links are ready, and they
//! are not asked for again before they are served; a link that was drained is not asked for more, since the next wait
//! returns at once if there is more; everything that a turn has to say to one member goes out in one write.
//!
//! The invariant: the engine never waits inside, and holds no lock while it reads or writes. However short the calls of the
//! program are, links are looked at every [`LOOK_AFTER`].

use super::conn::Conn;
use super::datagrams::Datagrams;
use super::links::Linked;
use super::shared::{Pending, Shared};
use crate::baton::Drive;
use crate::bell::Bell;
use crate::clock;
use crate::fork::Guarded;
use crate::linger;
use crate::sync::{Arc, Mutex, lock};
use outlast_proto::store::registrar::Knocked;
use outlast_proto::store::{Action, Failure, Member, Ticket};
use outlast_proto::time::Instant as Moment;
use outlast_proto::wire::decode;
use outlast_proto::wire::store::client::{FromClient, ToClient};
use outlast_proto::wire::store::mesh::Hop;
use outlast_proto::wire::store::operation::{Answer, Key, Operation};
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::store::{CallName, MemberId};
use rustix::event::{Timespec, epoll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Read at once from one link.
const READ_BYTES: usize = 256 << 10;
/// Reads of one link in one turn, so that others get theirs.
const READS_MAX: usize = 4;
/// What the socket for datagrams is called beside those of the links.
const OF_DATAGRAMS: u64 = 0;
/// And the bell.
const OF_THE_BELL: u64 = u64::MAX;
/// Links are looked at at least that often by a program whose calls end without a wait.
const LOOK_AFTER: Duration = Duration::from_micros(50);
/// The longest single wait.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The longest that a client may wait.
const PATIENCE_MAX: Duration = Duration::from_hours(24);

/// What other threads want of the engine.
pub(super) enum Letter {
    Call(What, Duration, Arc<Pending>),
    Abandon(Arc<Pending>),
    /// A client that is no member asks.
    Foreign(Box<FromClient>, mpsc::Sender<Reply>),
    /// One of them has hung up: nobody takes the answers to its calls.
    HungUp,
    Linked(Box<Linked>),
    Unreachable(MemberId),
    Knocked(MemberId, Knocked),
    /// There is a stream to a registrar.
    Registrar(mpsc::Sender<ToRegistrar>),
    /// There is none any more, or none could be opened, and why.
    NoRegistrar(String),
    /// Without a coordinator: where it should be, connects are refused.
    LeaderRefused,
    Order(Box<FromRegistrar>),
    Broadcast(Vec<u8>),
    Shutdown,
    Leave,
    /// This member goes, whether or not anybody let it.
    Gone,
    /// How many calls are under way?
    #[cfg(test)]
    CountCalls(std::sync::mpsc::Sender<usize>),
}

/// What a client that is no member gets for its question.
pub(super) enum Reply {
    Told(ToClient),
    /// Nothing, from this member: it has left. Another one is to be asked.
    AskAnother,
}

/// What a call is about.
pub(super) enum What {
    One(Key, Operation),
    Keys(Vec<u8>),
    Count,
}

#[derive(Default)]
pub(super) struct Inbox {
    letters: Mutex<Vec<Letter>>,
    is_filled: AtomicBool,
}

impl Inbox {
    pub(super) fn put(&self, letter: Letter) {
        lock(&self.letters).push(letter);
        self.is_filled.store(true, Ordering::SeqCst);
    }

    fn take(&self) -> Vec<Letter> {
        if self.is_filled.load(Ordering::SeqCst) && self.is_filled.swap(false, Ordering::SeqCst) {
            std::mem::take(&mut lock(&self.letters))
        } else {
            Vec::new()
        }
    }
}

/// See the module's essay.
pub(super) struct Engine {
    member: Member,
    conns: BTreeMap<MemberId, Conn>,
    tokens: BTreeMap<u64, MemberId>,
    next_token: u64,
    calls: BTreeMap<Ticket, Arc<Pending>>,
    /// Calls of clients that are no members, by whom they are answered to.
    foreign: BTreeMap<Ticket, (CallName, mpsc::Sender<Reply>)>,
    registrar: Option<mpsc::Sender<ToRegistrar>>,
    /// Until the store is over.
    datagrams: Option<Datagrams>,
    shared: Arc<Shared>,
    bell: Arc<Bell>,
    scratch: Vec<u8>,
    /// What was ready at the last look and has not been served.
    ready: Vec<u64>,
    looked: Moment,
    leaving: bool,
}

/// A descriptor that is readable when any link is.
pub(super) fn watch() -> io::Result<Guarded<OwnedFd>> {
    Guarded::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

impl Engine {
    pub(super) fn new(
        member: Member,
        datagrams: Datagrams,
        shared: Arc<Shared>,
        bell: Arc<Bell>,
    ) -> io::Result<Self> {
        let data = epoll::EventData::new_u64(OF_DATAGRAMS);
        epoll::add(&*shared.watch, datagrams.descriptor(), data, epoll::EventFlags::IN)?;
        let data = epoll::EventData::new_u64(OF_THE_BELL);
        epoll::add(&*shared.watch, bell.descriptor(), data, epoll::EventFlags::IN)?;
        Ok(Self {
            member,
            datagrams: Some(datagrams),
            conns: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next_token: 0,
            calls: BTreeMap::new(),
            foreign: BTreeMap::new(),
            registrar: None,
            shared,
            bell,
            scratch: vec![0; READ_BYTES],
            ready: Vec::new(),
            looked: clock::now(),
            leaving: false,
        })
    }

    /// Does all that can be done now.
    fn work(&mut self) {
        self.bell.answer();
        self.shared.inbox.take().into_iter().for_each(|letter| self.take_in(letter));
        self.act();
        if clock::now().since(self.looked) >= LOOK_AFTER {
            self.look(Duration::ZERO);
        }
        self.serve_ready();
        let now = clock::now();
        if self.member.poll_timeout().is_some_and(|due| due <= now) {
            self.member.handle_timeout(now);
        }
        self.act();
        self.flush();
        self.shared.set_due(self.member.poll_timeout());
    }

    fn take_in(&mut self, letter: Letter) {
        let now = clock::now();
        match letter {
            Letter::Call(what, timeout, pending) => {
                let member = &mut self.member;
                let ticket = match what {
                    What::One(key, operation) => member.call(now, key, operation, timeout),
                    What::Keys(prefix) => member.keys(now, prefix, timeout),
                    What::Count => member.count_keys(now, timeout),
                };
                self.calls.insert(ticket, pending);
            }
            Letter::Abandon(pending) => {
                let ticket = self.calls.iter().find(|(_, other)| Arc::ptr_eq(other, &pending));
                if let Some(ticket) = ticket.map(|(ticket, _)| *ticket) {
                    self.calls.remove(&ticket);
                    self.member.abandon(ticket);
                }
            }
            Letter::Foreign(asked, answers) => self.ask_for(now, *asked, answers),
            Letter::HungUp => self.abandon_foreign(),
            Letter::Linked(linked) => self.link(now, *linked),
            Letter::Unreachable(member) => self.member.handle_unreachable(now, member),
            Letter::Knocked(member, knocked) => self.member.handle_knock(member, knocked),
            Letter::LeaderRefused => self.member.handle_leader_refused(now),
            Letter::NoRegistrar(why) => self.member.handle_registrar(now, Err(why)),
            Letter::Registrar(sender) => {
                self.member.handle_registrar(now, Ok(()));
                let _ = sender.try_send(self.member.registration());
                let leaves = self.leaving.then_some(ToRegistrar::Leave);
                for word in leaves.into_iter().chain(self.member.last_word()) {
                    let _ = sender.try_send(word);
                }
                self.registrar = Some(sender);
            }
            Letter::Order(order) => self.member.handle_order(now, *order),
            Letter::Broadcast(payload) => self.member.broadcast(now, payload.into()),
            Letter::Shutdown => self.member.shutdown(now),
            Letter::Leave => {
                self.leaving = true;
                self.member.leave(now);
            }
            Letter::Gone => self.member.gone(now),
            #[cfg(test)]
            Letter::CountCalls(counted) => drop(counted.send(self.member.calls_under_way())),
        }
    }

    fn ask_for(&mut self, now: Moment, asked: FromClient, answers: mpsc::Sender<Reply>) {
        let (name, ticket) = match asked {
            FromClient::Ask(request) => {
                let patience = Duration::from_millis(request.patience_ms).min(PATIENCE_MAX);
                (request.call, self.member.call_for(now, request, patience))
            }
            FromClient::Keys { call, prefix, patience_ms } => {
                let patience = Duration::from_millis(patience_ms).min(PATIENCE_MAX);
                (call, self.member.keys(now, prefix.to_vec(), patience))
            }
        };
        self.foreign.insert(ticket, (name, answers));
    }

    /// Gives up the calls whose answers nobody takes.
    fn abandon_foreign(&mut self) {
        let member = &mut self.member;
        self.foreign.retain(|ticket, (_, answers)| {
            if answers.is_closed() {
                member.abandon(*ticket);
            }
            !answers.is_closed()
        });
    }

    fn link(&mut self, now: Moment, linked: Linked) {
        let Linked { other, peer, to, wire, incoming, first, dialled } = linked;
        let me = self.member.me().id;
        // Whoever is there must be who it says (rule 39), mean us, and be in a view that we know of.
        let is_known = self.member.knows(other).is_some_and(|member| member.peer == peer);
        if to != me || !is_known {
            if dialled {
                self.member.handle_unreachable(now, other);
            }
            return;
        }
        let dialled_by_lower = dialled == (me < other);
        if let Some(conn) = self.conns.get(&other)
            && conn.dialled_by_lower
            && !dialled_by_lower
        {
            return;
        }
        self.drop_conn(other);
        self.next_token += 1;
        let token = self.next_token;
        let conn = Conn::watched(wire, incoming, dialled_by_lower, token, &self.shared.watch);
        let Ok(conn) = conn else { return self.member.handle_unreachable(now, other) };
        self.tokens.insert(token, other);
        self.conns.insert(other, conn);
        self.member.handle_connected(now, other);
        if let Some(hop) = first {
            self.member.handle_hop(now, other, hop);
        }
        // What came along with the first frame.
        self.read(other);
    }

    fn drop_conn(&mut self, other: MemberId) {
        if let Some(conn) = self.conns.remove(&other) {
            self.tokens.remove(&conn.token);
            conn.unwatch(&self.shared.watch);
        }
    }

    /// Waits until something is ready, and no longer than that. What is ready stays so until it is served.
    fn look(&mut self, left: Duration) {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let found = epoll::wait(&*self.shared.watch, &mut events[..], Some(&timeout));
        self.looked = clock::now();
        self.ready.clear();
        if let Ok((events, _)) = found {
            self.ready.extend(events.iter().map(|event| event.data.u64()));
        }
        if self.ready.contains(&OF_THE_BELL) {
            self.bell.heard();
        }
    }

    fn serve_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        for token in ready.drain(..) {
            match token {
                OF_DATAGRAMS => self.read_datagrams(),
                // It is answered before anything else is done.
                OF_THE_BELL => {}
                token => {
                    let Some(other) = self.tokens.get(&token).copied() else { continue };
                    if let Some(conn) = self.conns.get_mut(&other) {
                        conn.is_ready();
                    }
                    self.read(other);
                }
            }
        }
        self.ready = ready;
    }

    fn read_datagrams(&mut self) {
        let received = self.datagrams.as_mut().map(Datagrams::receive).unwrap_or_default();
        for (from, datagram) in received {
            self.member.handle_datagram(clock::now(), from, datagram);
        }
    }

    fn read(&mut self, other: MemberId) {
        for _ in 0..READS_MAX {
            let Some(conn) = self.conns.get_mut(&other) else { return };
            let ended = match conn.receive(&mut self.scratch) {
                Ok(0) => true,
                Ok(count) => {
                    conn.incoming.push(&self.scratch[..count]);
                    let goes_on = self.take_frames(other);
                    let is_all = count < READ_BYTES;
                    let is_drained = |conn: &Conn| is_all && conn.is_drained();
                    if goes_on && self.conns.get(&other).is_none_or(is_drained) {
                        return;
                    }
                    !goes_on
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Frames that came with the handshake are in the buffer already.
                    let _ = self.take_frames(other) || self.hang_up(other);
                    return;
                }
                Err(_) => true,
            };
            if ended {
                self.hang_up(other);
                return;
            }
        }
    }

    fn hang_up(&mut self, other: MemberId) -> bool {
        self.drop_conn(other);
        self.member.handle_disconnected(clock::now(), other);
        false
    }

    /// Hands over whole frames. False if the stream is not what it should be.
    fn take_frames(&mut self, other: MemberId) -> bool {
        loop {
            let Some(conn) = self.conns.get_mut(&other) else { return true };
            match conn.incoming.take() {
                Ok(Some(bytes)) => match decode::<Hop>(&bytes) {
                    // Time is looked at after the frame came: whatever it asks was asked before.
                    Ok(hop) => self.member.handle_hop(clock::now(), other, hop),
                    Err(error) => {
                        tracing::warn!(%other, %error, "a member of the store says what we cannot read");
                        return false;
                    }
                },
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.member.poll_action() {
            match action {
                Action::Send(other, hop) => {
                    if let Some(conn) = self.conns.get_mut(&other) {
                        conn.say(&hop);
                    }
                }
                Action::Finish(ticket, result) => {
                    if let Some((call, answers)) = self.foreign.remove(&ticket) {
                        // Whoever does not read its answers, or has gone, does without.
                        let _ = answers.try_send(answer_to(call, result));
                    } else if let Some(pending) = self.calls.remove(&ticket) {
                        pending.finish(result);
                    }
                }
                Action::Connect(member) => self.shared.dial(self.member.me().id, member),
                Action::Disconnect(other) => self.drop_conn(other),
                Action::Tell(message) => {
                    // A stream that is full or gone is opened again, and what matters is said again.
                    if self.registrar.as_ref().is_some_and(|queue| queue.try_send(message).is_err()) {
                        self.registrar = None;
                    }
                }
                Action::Entered(view) => self.shared.entered(view),
                Action::Datagram(to, datagram) => {
                    if let Some(datagrams) = &mut self.datagrams {
                        datagrams.send(to, &datagram);
                    }
                }
                Action::Knock(member, address, timeout) => self.shared.knock(member, address, timeout),
                Action::Deliver(from, payload) => self.shared.heard(from, payload),
                Action::Out(why) => {
                    let now = clock::now();
                    if self.leaving {
                        self.member.gone(now);
                        continue;
                    }
                    tracing::info!("this member joins the store anew: {why}");
                    self.shared.left_view();
                    self.member.be_reborn(now, MemberId(self.shared.random()));
                    // The next stream registers the new one.
                    self.registrar = None;
                }
                Action::Ended(ending) => {
                    self.shared.ended(ending);
                    let others: Vec<_> = self.conns.keys().copied().collect();
                    self.flush();
                    others.into_iter().for_each(|other| self.drop_conn(other));
                    self.registrar = None;
                    if let Some(datagrams) = self.datagrams.take() {
                        let _ = epoll::delete(&*self.shared.watch, datagrams.descriptor());
                    }
                }
            }
        }
    }

    fn flush(&mut self) {
        let watch = &*self.shared.watch;
        let is_broken = |conn: &mut Conn| conn.flush(watch).is_err();
        let broken = self.conns.iter_mut().filter_map(|(other, conn)| is_broken(conn).then_some(*other));
        for other in broken.collect::<Vec<_>>() {
            // What it said before it went.
            self.read(other);
            if self.conns.contains_key(&other) {
                self.hang_up(other);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.shared.ending().is_some()
    }
}

impl Drive for Engine {
    fn heed(&mut self) {
        crate::runtime::guarded("the store's engine", || {
            self.look(Duration::ZERO);
            self.work();
        });
    }

    /// Whatever is left to move makes the next wait return at once.
    fn turn(&mut self) -> bool {
        crate::runtime::guarded("the store's engine", || self.work());
        false
    }

    fn wait(&mut self, until: Instant) {
        if self.is_over() {
            return std::thread::yield_now();
        }
        let mut look = || {
            self.look(Duration::ZERO);
            !self.ready.is_empty()
        };
        if linger::finds(linger::BEFORE_AN_ANSWER, &mut look) {
            return;
        }
        let left = until.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        let due = self.member.poll_timeout().map(|due| due.since(clock::now()));
        self.look(due.map_or(left, |due| due.min(left)));
    }
}

/// A call's end, as a client is told of it.
fn answer_to(call: CallName, result: Result<Answer, Failure>) -> Reply {
    Reply::Told(match result {
        Ok(answer) => ToClient::Answered { call, answer },
        Err(Failure::Left) => return Reply::AskAnother,
        Err(failure) => {
            let timed_out = matches!(failure, Failure::TimedOut(_));
            ToClient::Failed { call, timed_out, text: failure.to_string() }
        }
    })
}
