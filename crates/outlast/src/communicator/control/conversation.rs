//! One connection to the coordinator, from dialling to its end.
//!
//! The session says when to dial; there is one connection at a time, and each is a task. A coordinator that keeps its key is
//! known by it from the first registration on, and nobody else is taken for it (rule 39). However a connection ends, by a panic
//! too, the session hears of it, and dials again when it wants to (rule 40).

use super::Control;
use crate::communicator::error::Error;
use crate::communicator::line::Line;
use crate::coordinator::{self, Dialled, Unreached};
use crate::planted::{self, Place};
use crate::recorder::{Entry, What};
use crate::sync::{Arc, lock};
use crate::{clock, runtime};
use outlast_proto::id::PeerId;
use outlast_proto::time::Duration;
use outlast_proto::wire::control::Term;

/// How long dialling and the hello may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

impl Control {
    /// One connection to the coordinator, from dialling to its end. However it ends, the session hears below that it is
    /// disconnected: it would never dial again otherwise (rule 40).
    pub(super) async fn converse(self: Arc<Self>, dial: u64) {
        let opening = async {
            planted::step(|place| matches!(place, Place::Dial(address) if *address == self.coordinator));
            let dialled = self.open().await?;
            let line = Line::new(dialled.frames, dialled.version, self.silent_after);
            let line = line.map_err(|error| Unreached::from(error.to_string()))?;
            let reign = dialled.standing.map(|standing| standing.term);
            Ok((line, dialled.is_kept.then_some(dialled.coordinator), reign))
        };
        let opened = runtime::to_its_end("dialling the coordinator", opening).await;
        let line = opened.unwrap_or_else(|| {
            let address = &self.coordinator;
            Err(Unreached::from(format!("{address}: dialling it panicked, which is a bug in outlast")))
        });
        match line {
            Ok((line, pin, reign)) => {
                let pinned = {
                    let mut state = lock(&self.state);
                    state.pinned = state.pinned.or(pin);
                    state.pinned
                };
                *lock(&self.talks) += 1;
                let line = Arc::new(line);
                let talking = self.talk_until_superseded(dial, &line, pinned, reign);
                if runtime::to_its_end("the control connection", talking).await.is_none() {
                    line.hang_up();
                    line.close();
                }
                *lock(&self.talks) -= 1;
                self.hung_up.notify_all();
            }
            Err(error) => {
                tracing::debug!(coordinator = %self.coordinator, %error, "no coordinator");
                self.recorder.note(&Entry::new(What::Line, "unreached").saying(error.to_string()));
                let mut state = lock(&self.state);
                let is_final = error.is_final();
                state.unreached = Some(error);
                if is_final && let Some(id) = state.connecting {
                    // Trying again would not help: the call that connects ends now.
                    state.session.handle_cancel(clock::now(), id);
                    self.carry_out(state);
                }
            }
        }
        let mut state = lock(&self.state);
        if state.dials == dial {
            self.recorder.note(&Entry::new(What::Line, "gone").amount(dial));
            state.line = None;
            state.session.handle_disconnected(clock::now());
            self.carry_out(state);
        }
    }

    /// Talks on a line until it is over, or until another coordinator reigns under a higher term: one that is stopped does
    /// not hang up (rule 19).
    async fn talk_until_superseded(
        &self,
        dial: u64,
        line: &Arc<Line>,
        pinned: Option<PeerId>,
        reign: Option<Term>,
    ) {
        let times = (DIAL_TIMEOUT, self.silent_after);
        let watching = coordinator::superseded(&self.coordinator, &self.identity, pinned, reign, times);
        let talking = self.talk(dial, Arc::clone(line));
        tokio::pin!(talking);
        tokio::select! {
            () = &mut talking => {}
            () = Box::pin(watching) => {
                tracing::info!(coordinator = %self.coordinator, "another coordinator reigns: moving there");
                line.close();
                talking.await;
            }
        }
    }

    async fn open(&self) -> Result<Dialled, Unreached> {
        let pinned = lock(&self.state).pinned;
        coordinator::dial(&self.coordinator, &self.identity, pinned, DIAL_TIMEOUT, self.silent_after).await
    }

    /// The call that connects is over. Says why it never reached a coordinator, if so.
    pub(in crate::communicator) fn end_connect(&self) -> Option<Unreached> {
        let mut state = lock(&self.state);
        state.connecting = None;
        let silent = || {
            let what = match state.line {
                Some(_) => "it belongs to the run and has not answered our registration",
                None => {
                    "nothing that belongs to the run has answered there; it may be stopped, or something else"
                }
            };
            Unreached::from(format!("{}: {what}", self.coordinator))
        };
        let silent = (!state.heard).then(silent);
        state.unreached.take().or(silent)
    }

    /// Asks the coordinator how the run stands, over a connection of its own.
    pub(in crate::communicator) fn status(&self, timeout: Duration) -> Result<String, Error> {
        let asking = async {
            let mut dialled = self.open().await.map_err(|error| error.to_string())?;
            coordinator::ask(&mut dialled.frames).await
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(timeout, asking).await });
        answer.map_err(|_| Error::Silent(format!("within {timeout:?}")))?.map_err(Error::Silent)
    }
}
