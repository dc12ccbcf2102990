//! The store's own thread: it looks after the links while no call of the program waits for them.
//!
//! It does not hold the baton while it waits, so a call takes it without waking anybody. While calls drive, it looks up
//! once in a while and goes back to sleep; so what comes in the gap between two calls waits for [`PAUSE`] at most.

use super::engine::Engine;
use super::shared::Shared;
use crate::baton::Baton;
use crate::sync::Arc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::time::Duration;

/// How long after a call the next one may take the baton by itself.
const PAUSE: Duration = Duration::from_micros(500);
/// The longest sleep: timers may have been set by others meanwhile.
const SLEEP_MAX: Duration = Duration::from_millis(20);

pub(super) fn start(shared: Arc<Shared>, baton: Arc<Baton<Engine>>) -> io::Result<()> {
    let stand_in = move || {
        while shared.ending().is_none() {
            if baton.is_driven(PAUSE) {
                std::thread::sleep(PAUSE);
                continue;
            }
            let left = shared.due_in().min(SLEEP_MAX);
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&*shared.watch, PollFlags::IN)], Some(&timeout));
            baton.nudge();
        }
    };
    std::thread::Builder::new().name("outlast-store".to_owned()).spawn(stand_in).map(drop)
}
