//! What a run's machine wants done, and does not do itself.
//!
//! A machine leaves its decisions as actions. They are carried out here, after every call to it, in the order in which it made
//! them, and none of them waits for anybody: a message goes into a queue, a question to a kernel or to the solver comes back as a
//! letter.
//!
//! The invariant: nothing is said of a decision before it is written down, where there is something to write in (decision 58).
//! While it is being written, the actions stay in the machine, and the run stands still; other runs do not.

use super::served::Record;
use super::{Clerk, Inbox};
use crate::clock;
use crate::coordinator::backend::Written;
use crate::coordinator::knock::{identity_in, knock, knock_for};
use crate::recorder::{Entry, What};
use outlast_proto::coordinator::{Action, Note};
use outlast_proto::id::RunId;
use outlast_proto::wire::control::{LossReason, ToPeer};

impl Clerk {
    /// Carries out everything that the machine of that run has left to do.
    pub(super) fn carry_out(&mut self, run: &RunId) {
        if !self.may_decide() || !self.write_down(run) {
            return;
        }
        let Some(served) = self.runs.get_mut(run) else { return };
        let number = served.number();
        let mut told_to_go = Vec::new();
        while let Some(action) = served.machine_mut().poll_action() {
            match action {
                Action::Send(id, message) => {
                    if let (ToPeer::Kicked { text, .. }, Some(peer)) = (&message, self.guests.get(&id)) {
                        told_to_go.push((*peer, text.clone()));
                    }
                    let sent = Entry::to_peer(What::Sent, &message).about(number);
                    self.recorder.note(&match self.guests.get(&id) {
                        Some(peer) => sent.about_peer(*peer),
                        None => sent,
                    });
                    served.send(id, message);
                }
                Action::SendAll(ids, message) => {
                    let sent = Entry::to_peer(What::Sent, &message).about(number);
                    self.recorder.note(&sent.amount(ids.len() as u64));
                    for id in ids {
                        served.send(id, message.clone());
                    }
                }
                Action::Close(id) => drop(served.hang_up(id)),
                Action::Connect { token, to, timeout, disputed } => {
                    let Some(inbox) = self.inbox.upgrade() else { continue };
                    let disputed =
                        disputed.and_then(|peer| Some((peer, identity_in(&self.credentials, run)?)));
                    let (run, token) = (run.clone(), (number, token));
                    tokio::spawn(async move {
                        let outcome = match disputed {
                            None => knock(to, timeout).await,
                            Some((peer, identity)) => knock_for(peer, to, &identity, timeout).await,
                        };
                        let _ = inbox.send(Inbox::Connected { run, token, outcome }).await;
                    });
                }
                Action::Look(peer) => served.health().look(peer),
                Action::Renew(info) => served.health().renew(info),
                Action::Evict(peer) => served.health().evict(peer),
                Action::Solve { token, question } => {
                    self.solver.ask(run.clone(), (number, token), question);
                }
                Action::CallOff(token) => self.solver.call_off(run, (number, token)),
                Action::Note(note) => {
                    let text = served.remember(&note);
                    if let Some(text) = &text {
                        let decided = Entry::new(What::Decided, "note").about(number);
                        self.recorder.note(&decided.saying(text.as_str()));
                    }
                    let is_loss = matches!(note, Note::Lost(_, reason) if reason != LossReason::Left);
                    match text {
                        Some(text) if is_loss => {
                            if self.log_pace.allows_a_line(clock::now()) {
                                tracing::warn!(%run, "{text}");
                            }
                        }
                        Some(text) => tracing::info!(%run, "{text}"),
                        None => tracing::debug!(%run, ?note, "run"),
                    }
                }
            }
        }
        for (peer, text) in told_to_go {
            self.remember_refusal(clock::now(), run, peer, &text);
        }
    }

    /// Writes down what has changed. False if it is not written: then nothing may be said of it, and the run stands still
    /// until it is.
    fn write_down(&mut self, run: &RunId) -> bool {
        let (Some(book), Some(served)) = (&mut self.book, self.runs.get_mut(run)) else { return true };
        let stamp = match served.record() {
            Record::Written => return true,
            Record::BeingWritten => return false,
            Record::Due(stamp) => stamp,
        };
        match book.write(run, stamp, served.machine().facts()) {
            Ok(Written::Now) => {
                served.note_written(stamp);
                true
            }
            Ok(Written::Later) => {
                served.note_writing(stamp);
                false
            }
            Err(error) => {
                if self.log_pace.allows_a_line(clock::now()) {
                    tracing::error!(%run, %error, "the run stands still: what it decides cannot be written down");
                }
                false
            }
        }
    }
}
