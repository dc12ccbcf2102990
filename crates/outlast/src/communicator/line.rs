//! The control connection: a line that is driven by whoever waits on it.
//!
//! # The problem
//!
//! A vote is one small message, its verdict another. If a thread of its own has the connection, both are handed
//! from thread to thread on their way, and to wake a thread costs more than to carry the message.
//!
//! # The intuition
//!
//! The socket never blocks, so anybody may use it for a moment. The thread of a call writes its vote by itself,
//! and reads what has come when the socket is ready; `reader` says who does. A first word that is only news
//! ("this call has begun") waits a moment for the vote that follows it, and then both are one packet.
//!
//! # The invariant
//!
//! Messages are handed over in the order in which they came, because taking one off the line and handing it over
//! happen under one lock; they leave in the order in which they were put. Nothing waits under a lock. What could
//! not be written, or was put off, is written by the next who looks; the connection's task always does.

use crate::coordinator::ControlFrames;
use crate::executor::Beside;
use crate::link::Wire;
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use outlast_proto::limits::FRAME_BYTES_MAX;
use outlast_proto::wire::control::ToCoordinator;
use outlast_proto::wire::encode_for;
use outlast_proto::wire::frame::{self, FrameBuffer};
use outlast_proto::wire::hello::Version;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// How long a message that needs no answer may wait for the next one: most collectives are shorter.
const LINGER: Duration = Duration::from_millis(10);
/// Bytes that wait for the connection; more means that it does not move.
const OUTGOING_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// Read at once; the frames in it are cut out before the next read.
const READ_BYTES: usize = 8_192;

/// See the module's essay.
pub(crate) struct Line {
    /// What both sides agreed to speak.
    version: Version,
    /// The same socket as the wire's, to be polled while somebody else reads or writes.
    socket: Arc<dyn AsFd + Send + Sync>,
    pipe: Mutex<Pipe>,
    incoming: Mutex<Incoming>,
    /// Something waits to be sent.
    waits: AtomicBool,
    /// The socket took less than it was given.
    blocked: AtomicBool,
    /// It broke, or the other side closed it.
    over: AtomicBool,
    /// We are done with it; what was put before is still sent.
    hung_up: AtomicBool,
    /// Rings when the connection's task is wanted.
    task: Notify,
}

struct Incoming {
    frames: FrameBuffer,
    /// What is read goes here first.
    bytes: Box<[u8]>,
}

struct Pipe {
    wire: Box<dyn Wire>,
    outgoing: Vec<u8>,
    sent: usize,
    /// Since when the oldest message waits.
    waits_since: Option<Instant>,
}

impl Pipe {
    fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            self.sent += self.wire.send(&[IoSlice::new(&self.outgoing[self.sent..])])?;
        }
        self.wire.flush()?;
        self.outgoing.clear();
        (self.sent, self.waits_since) = (0, None);
        Ok(())
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line")
            .field("blocked", &self.blocked)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

impl Line {
    /// Takes over a connection on which both sides said hello.
    pub(crate) fn new(frames: ControlFrames, version: Version, silent_after: Duration) -> io::Result<Self> {
        let (wire, incoming) = super::links::control_wire(frames, silent_after)?;
        Ok(Self::over(wire.socket(), Box::new(wire), incoming, version))
    }

    /// A line over any wire, with what was read of it already.
    pub(crate) fn over(
        socket: Arc<dyn AsFd + Send + Sync>,
        wire: Box<dyn Wire>,
        incoming: FrameBuffer,
        version: Version,
    ) -> Self {
        let pipe = Pipe { wire, outgoing: Vec::new(), sent: 0, waits_since: None };
        Self {
            version,
            socket,
            pipe: Mutex::new(pipe),
            incoming: Mutex::new(Incoming { frames: incoming, bytes: vec![0; READ_BYTES].into() }),
            waits: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            over: AtomicBool::new(false),
            hung_up: AtomicBool::new(false),
            task: Notify::new(),
        }
    }

    fn pipe(&self) -> MutexGuard<'_, Pipe> {
        lock(&self.pipe)
    }

    /// Puts a message behind those that wait; [`Self::flush`] sends it. `false` if too much waits already.
    pub(crate) fn put(&self, message: &ToCoordinator) -> bool {
        let Some(payload) = encode_for(message, self.version) else {
            // Whoever decided should have known: the coordinator would put us out for it.
            tracing::error!(version = %self.version, ?message, "kept from the coordinator");
            return true;
        };
        self.put_frame(&payload)
    }

    /// The same with the message as the bytes of its frame.
    pub(crate) fn put_frame(&self, bytes: &[u8]) -> bool {
        let mut pipe = self.pipe();
        pipe.waits_since.get_or_insert_with(Instant::now);
        self.waits.store(true, Ordering::Release);
        frame::append(bytes, &mut pipe.outgoing);
        pipe.outgoing.len() - pipe.sent <= OUTGOING_BYTES_MAX
    }

    /// Sends what waits, as far as the socket takes it. The connection's task sends the rest.
    pub(crate) fn flush(&self) {
        // Whether something is left is said before the next may put more behind it.
        let mut pipe = self.pipe();
        match pipe.flush() {
            Ok(()) => {
                self.waits.store(false, Ordering::Release);
                self.blocked.store(false, Ordering::Release);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !self.blocked.swap(true, Ordering::AcqRel) {
                    self.task.notify_one();
                }
            }
            Err(error) => self.end(&error),
        }
    }

    /// Sends what has waited long enough.
    pub(crate) fn flush_if_due(&self) {
        if self.due().is_some_and(|left| left.is_zero()) {
            self.flush();
        }
    }

    /// Hands every message over that is there, each as the bytes of its frame. `hand_over` says whether it was
    /// one; after one that was not, the line is over.
    pub(crate) fn receive(&self, mut hand_over: impl FnMut(&[u8]) -> bool) {
        let mut incoming = lock(&self.incoming);
        let Incoming { frames, bytes } = &mut *incoming;
        let mut is_drained = false;
        loop {
            loop {
                match frames.take() {
                    Ok(Some(frame)) if hand_over(&frame) => {}
                    Ok(None) => break,
                    Ok(Some(_)) => return self.end(&"it sent what is no message"),
                    Err(error) => return self.end(&error),
                }
            }
            if is_drained || self.is_over() {
                return;
            }
            let mut pipe = self.pipe();
            let read = pipe.wire.receive(&mut [IoSliceMut::new(bytes)]);
            is_drained = pipe.wire.is_drained();
            drop(pipe);
            match read {
                Ok(0) => return self.end(&"the coordinator closed it"),
                Ok(count) => {
                    is_drained &= count < bytes.len();
                    frames.push(&bytes[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.end(&error),
            }
        }
    }

    fn end(&self, why: &dyn std::fmt::Display) {
        if !self.over.swap(true, Ordering::AcqRel) {
            tracing::debug!(%why, "the control connection is over");
            self.task.notify_one();
        }
    }

    /// Whether nothing comes from it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    /// We are done with it: its task sends what waits and closes it.
    pub(crate) fn hang_up(&self) {
        self.hung_up.store(true, Ordering::Release);
        self.task.notify_one();
    }

    pub(crate) fn is_hung_up(&self) -> bool {
        self.hung_up.load(Ordering::Acquire)
    }

    /// Until the connection's task is wanted.
    pub(crate) async fn wanted(&self) {
        self.task.notified().await;
    }

    /// Says goodbye and closes, after a last look: a socket that is closed with unread bytes in it takes back what
    /// it has just sent.
    pub(crate) fn close(&self) {
        self.receive(|_| true);
        self.pipe().wire.say_goodbye();
        // It fails only if the other side closed first.
        let _ = socket2::SockRef::from(&self.socket).shutdown(Shutdown::Both);
        self.over.store(true, Ordering::Release);
    }

    /// Lets the runtime poll it, for as long as the result lives.
    pub(crate) fn watch(self: &Arc<Self>, interest: Interest) -> io::Result<AsyncFd<Watched>> {
        // SAFETY: the socket is the same and open for as long as the line lives, which the result keeps alive.
        Ok(unsafe { AsyncFd::register_with_interest(Watched(Arc::clone(self)), interest) }?)
    }
}

impl Beside for Line {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// How long the oldest message may still wait; `None` if nothing does, or if it waits for the socket.
    fn due(&self) -> Option<Duration> {
        if !self.waits.load(Ordering::Acquire) || self.is_blocked() || self.is_over() {
            return None;
        }
        Some(LINGER.saturating_sub(self.pipe().waits_since?.elapsed()))
    }
}

/// A line that the runtime polls.
pub(crate) struct Watched(Arc<Line>);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.socket.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator;
    use crate::port::{self, Port, Routes, Serving};
    use crate::runtime::{self, Plane};
    use crate::security::{ProcessKey, RunKeys, RunSecret, TlsIdentity};
    use outlast_proto::wire::decode;
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A line, and the coordinator's end of it.
    fn line() -> (Line, ControlFrames, Serving) {
        let keys = RunKeys::derive(&RunSecret::generate(), &"run".parse().unwrap());
        let server = TlsIdentity::derived(&keys, &ProcessKey::generate());
        let (runtime, peer) = (runtime::of(Plane::Control).unwrap(), server.peer());
        let port = Port::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (taken, greeted) = mpsc::channel();
        let spawner = runtime.clone();
        let routes = Routes::new().route(port::CONTROL, move |stream| {
            let taken = taken.clone();
            spawner.spawn(async move {
                let greeted = port::greet(stream, peer, PATIENCE).await.unwrap();
                taken.send(greeted.frames).unwrap();
            });
        });
        let serving = port.serve(&runtime, server, routes).unwrap();
        let identity = TlsIdentity::derived(&keys, &ProcessKey::generate());
        let address = port.address().to_string();
        let dialled =
            runtime.block_on(coordinator::dial(&address, &identity, None, PATIENCE, PATIENCE)).unwrap();
        let line = {
            let _inside = runtime.enter();
            Line::new(dialled.frames, dialled.version, PATIENCE).unwrap()
        };
        (line, greeted.recv_timeout(PATIENCE).unwrap(), serving)
    }

    fn next(frames: &mut ControlFrames) -> Option<Vec<u8>> {
        let reading = async { tokio::time::timeout(PATIENCE, frames.next()).await };
        runtime::of(Plane::Control).unwrap().block_on(reading).expect("something came").unwrap()
    }

    /// Receives until there are so many frames or the line is over.
    fn receive(line: &Line, count: usize) -> Vec<Vec<u8>> {
        let (deadline, mut all) = (Instant::now() + PATIENCE, Vec::new());
        while all.len() < count && !line.is_over() {
            assert!(Instant::now() < deadline, "only {} frames came", all.len());
            line.receive(|frame| {
                all.push(frame.to_vec());
                true
            });
            std::thread::yield_now();
        }
        all
    }

    #[test]
    fn what_is_put_waits_for_the_flush_and_keeps_its_order() {
        let (line, mut frames, _serving) = line();
        assert_eq!(line.due(), None, "nothing waits");
        for _ in 0..3 {
            assert!(line.put(&ToCoordinator::AskStatus));
        }
        assert!(line.due().is_some_and(|left| left <= LINGER));
        line.flush();
        assert_eq!(line.due(), None);
        for _ in 0..3 {
            let message: ToCoordinator = decode(&next(&mut frames).unwrap()).unwrap();
            assert_eq!(message, ToCoordinator::AskStatus);
        }
    }

    #[test]
    fn what_waited_long_enough_is_due() {
        let (line, mut frames, _serving) = line();
        assert!(line.put(&ToCoordinator::AskStatus));
        let deadline = Instant::now() + PATIENCE;
        while line.due().is_some() {
            assert!(Instant::now() < deadline);
            line.flush_if_due();
        }
        assert!(next(&mut frames).is_some());
    }

    #[test]
    fn frames_come_whole_and_in_order_however_they_are_cut() {
        let (line, mut frames, _serving) = line();
        let sent: Vec<Vec<u8>> =
            (0..40_u32).map(|number| vec![number as u8; number as usize * 997]).collect();
        let sending = frames.send_all(sent.iter().map(Vec::as_slice));
        runtime::of(Plane::Control).unwrap().block_on(sending).unwrap();
        assert_eq!(receive(&line, sent.len()), sent);
    }

    #[test]
    fn a_socket_that_takes_no_more_blocks_the_line_until_it_does() {
        let (line, mut frames, _serving) = line();
        let message = ToCoordinator::AskStatus;
        let mut put = 0_usize;
        while !line.is_blocked() {
            for _ in 0..100_000 {
                assert!(line.put(&message), "the socket takes less than may wait");
                put += 1;
            }
            line.flush();
        }
        assert_eq!(line.due(), None, "it waits for the socket, not for the clock");
        for _ in 0..put {
            if line.is_blocked() {
                line.flush();
            }
            assert!(next(&mut frames).is_some());
        }
        line.flush();
        assert!(!line.is_blocked());
    }

    #[test]
    fn a_closed_or_senseless_connection_is_over() {
        let (line, frames, _serving) = line();
        drop(frames);
        receive(&line, 1);
        assert!(line.is_over());

        let (line, mut frames, _serving) = self::line();
        runtime::of(Plane::Control).unwrap().block_on(frames.send(b"?")).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !line.is_over() {
            assert!(Instant::now() < deadline);
            line.receive(|_| false);
        }
    }

    #[test]
    fn a_goodbye_comes_after_what_was_put() {
        let (line, mut frames, _serving) = line();
        assert!(line.put(&ToCoordinator::AskStatus));
        line.flush();
        line.close();
        assert!(line.is_over());
        assert!(next(&mut frames).is_some());
        assert_eq!(next(&mut frames), None);
    }
}
