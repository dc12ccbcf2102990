//! Who reads the control socket.
//!
//! | when | who | how |
//! |---|---|---|
//! | somebody waits for anything: bytes, a verdict, an admission | whoever has the [baton](crate::baton) | polls it beside the data links; its turn is [`Companion::turn`] |
//! | nobody does | the *stand-in*: the connection's task | [`Control::stand_in`] |
//!
//! So a vote wakes nobody on its way out, and its verdict only the thread that waits for it. The stand-in comes once
//! nobody has driven for a moment: a program that makes one call after the other keeps the socket to itself between
//! them. While calls drive, the stand-in still asks now and then, for what no call can see to: a socket that takes no
//! more, a driver that is held up, the end of the connection.
//!
//! The invariant: whoever reads hands over what it read in order, because reading and handing over happen under the
//! line's own lock. So two who read at once do no harm; that somebody reads is all that must be settled.

use super::control::Control;
use super::line::Line;
use super::orders::{Order, Orders};
use crate::clock;
use crate::executor::{Beside, Companion};
use crate::recorder::{Entry, What};
use crate::sync::{Arc, lock};
use outlast_proto::time::Duration;
use outlast_proto::wire::control::ToPeer;
use outlast_proto::wire::decode;
use std::io;
use tokio::io::Interest;

/// How long the last messages may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// The stand-in comes when nobody has driven for this long.
const PAUSE: Duration = Duration::from_millis(5);
/// While calls drive it asks ever less often, down to this: each time costs them a moment of a core, and all that waits
/// for it is news that no call waits for.
const PAUSE_MAX: Duration = Duration::from_millis(40);

/// Whoever drives the data links looks after the line as well.
impl Companion for Control {
    fn beside(&self) -> Option<Arc<dyn Beside>> {
        Some(self.line()?)
    }

    fn turn(&self) {
        if let Some(line) = self.line() {
            line.flush_if_due();
            self.take_in(&line);
        }
    }
}

impl Control {
    /// The line, unless nothing comes from it any more.
    pub(super) fn line(&self) -> Option<Arc<Line>> {
        lock(&self.state).line.clone().filter(|line| !line.is_over())
    }

    /// Hands the session what has come on the line.
    fn take_in(&self, line: &Arc<Line>) {
        line.receive(|frame| {
            let message = decode::<ToPeer>(frame);
            let is_message = message.is_ok();
            let mut state = lock(&self.state);
            // What a line says that was hung up is no news.
            if state.line.as_ref().is_some_and(|present| Arc::ptr_eq(present, line)) {
                state.heard = true;
                if let Ok(message) = &message {
                    self.recorder().note(&Entry::to_peer(What::Heard, message));
                }
                match message {
                    Ok(message) => state.session.handle_message(clock::now(), message),
                    Err(error) => state.session.handle_unreadable(&error),
                }
                self.carry_out(state);
            }
            is_message
        });
    }

    /// Waits for the next order to a call; `None` if none came within `patience`.
    pub(super) fn wait(&self, orders: &Orders, patience: Duration) -> Option<Order> {
        if let Some(order) = orders.take() {
            return Some(order);
        }
        // What was put off goes out before anybody waits for its answer.
        if let Some(line) = self.line() {
            line.flush();
        }
        orders.wait(std::time::Instant::now() + patience)
    }

    /// Looks after a line until it is over: reads while nobody drives, writes what the socket did not take.
    pub(super) async fn talk(&self, dial: u64, line: Arc<Line>) {
        {
            let mut state = lock(&self.state);
            if state.dials != dial || state.session.out().is_some() {
                return;
            }
            state.line = Some(Arc::clone(&line));
            (state.connecting, state.unreached) = (None, None);
            self.recorder().note(&Entry::new(What::Line, "connected").amount(dial));
            state.session.handle_connected(clock::now());
            self.carry_out(state);
        }
        // Whoever drives has a line to look at now.
        self.data.baton().bell().ring();
        let mut pause = PAUSE;
        while !line.is_over() && !line.is_hung_up() {
            if self.data.baton().is_driven(PAUSE) && !line.is_blocked() {
                tokio::select! {
                    () = line.wanted() => {}
                    () = tokio::time::sleep(pause) => pause = (2 * pause).min(PAUSE_MAX),
                }
                // Whoever drives may be held up: its process is stopped, or its thread is.
                line.flush_if_due();
                self.take_in(&line);
                continue;
            }
            pause = PAUSE;
            if let Err(error) = self.stand_in(&line).await {
                tracing::warn!(%error, "cannot wait for the coordinator");
                break;
            }
        }
        if line.is_hung_up() {
            let _ = tokio::time::timeout(WRITE_TIMEOUT, finish(&line)).await;
        }
        line.close();
    }

    /// Waits for the socket and reads it, until somebody drives or the line is over.
    async fn stand_in(&self, line: &Arc<Line>) -> io::Result<()> {
        let socket = line.watch(Interest::READABLE | Interest::WRITABLE)?;
        // What came, or was put off, before the socket was watched.
        line.flush();
        self.take_in(line);
        while !line.is_over() && !line.is_hung_up() {
            tokio::select! {
                () = line.wanted() => {}
                ready = socket.readable() => {
                    ready?.clear_ready();
                    line.flush_if_due();
                    self.take_in(line);
                }
                ready = socket.writable(), if line.is_blocked() => {
                    ready?.clear_ready();
                    line.flush();
                }
            }
            if self.data.baton().is_driven(Duration::ZERO) && !line.is_blocked() {
                break;
            }
        }
        Ok(())
    }
}

/// Sends the last messages of a line.
async fn finish(line: &Arc<Line>) -> io::Result<()> {
    let socket = line.watch(Interest::WRITABLE)?;
    loop {
        line.flush();
        if !line.is_blocked() || line.is_over() {
            return Ok(());
        }
        socket.writable().await?.clear_ready();
    }
}
