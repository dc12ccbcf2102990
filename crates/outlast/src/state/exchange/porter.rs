//! Turns away whom a donor cannot serve now: each is told that it is *busy*, and comes again.
//!
//! One checkpoint may have to heal thousands of empty members, who all ask at the same moment. A thread for each of those
//! who must wait is too much, and to close their streams without a word looks like a donor that is gone. So one thread
//! says the word on all of their streams. It waits for no question: the word is the answer to whatever is asked. What is
//! asked is read and dropped until the receiver has gone, because a stream that is closed with something unread may lose
//! the word on its way.
//!
//! How many there are at once is the door's business: it lets only so many streams into this process.

use super::Stream;
use crate::sync::lock;
use outlast_proto::id::PeerId;
use outlast_proto::state::frame::{Answer, Status};
use std::io::{self, IoSliceMut};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// Who is turned away has this long to ask, and to go.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often the thread looks who has gone.
const BEAT: Duration = Duration::from_millis(20);

/// Says on any number of streams that the donor is busy.
#[derive(Debug, Default)]
pub(super) struct Porter {
    /// To its thread, which begins with the first that is turned away.
    arrivals: Mutex<Option<mpsc::Sender<Guest>>>,
}

impl Porter {
    /// Tells the receiver at the other end to come again. Does not wait.
    pub(super) fn turn_away(&self, peer: PeerId, stream: Stream) {
        tracing::debug!(%peer, "a stream for the state is told to come again");
        let guest = Guest { stream, until: Instant::now() + FAREWELL, is_told: false };
        let mut arrivals = lock(&self.arrivals);
        if arrivals.is_none() {
            let (arrive, arrived) = mpsc::channel();
            let thread = std::thread::Builder::new().name("outlast-porter".to_owned());
            // Without a thread the stream is closed, and the receiver takes another donor.
            *arrivals = thread.spawn(move || attend(&arrived)).ok().map(|_| arrive);
        }
        if let Some(arrive) = &*arrivals
            && arrive.send(guest).is_err()
        {
            *arrivals = None;
        }
    }
}

/// A stream that is turned away.
struct Guest {
    stream: Stream,
    until: Instant,
    is_told: bool,
}

impl Guest {
    /// Tells it, and drops what it says. False once it has gone, or its time is up.
    fn stays(&mut self) -> bool {
        let word = Answer { status: Status::Busy, bytes: 0 }.encode();
        // There is room for a word on a stream on which nothing was said yet.
        if !self.is_told && self.stream.send(&word, Duration::ZERO, &|| false).is_err() {
            return false;
        }
        self.is_told = true;
        let mut dropped = [0; 512];
        while Instant::now() < self.until {
            match self.stream.wire_mut().receive(&mut [IoSliceMut::new(&mut dropped)]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        false
    }
}

/// Until nobody can come any more.
fn attend(arrived: &mpsc::Receiver<Guest>) {
    let mut guests = Vec::new();
    loop {
        let next = if guests.is_empty() {
            arrived.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
        } else {
            arrived.recv_timeout(BEAT)
        };
        match next {
            Ok(guest) => guests.push(guest),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        guests.extend(arrived.try_iter());
        guests.retain_mut(Guest::stays);
    }
}
