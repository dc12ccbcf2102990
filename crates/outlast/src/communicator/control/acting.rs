//! What the session wants done, and does not do itself.
//!
//! The session leaves its decisions as actions. Whoever handed something in carries them out, under the same lock, and waits
//! for nothing there: a message is put on the line, an order where its call waits, a dial is a task of its own. What may take
//! a moment, writing to the socket and telling the program what happened, comes after the lock.

use super::{Control, State};
use crate::clock;
use crate::communicator::news::{self, Event};
use crate::communicator::orders::Order;
use crate::executor::Abort;
use crate::recorder::{Entry, What, key_of};
use crate::sync::{Arc, MutexGuard};
use outlast_proto::session::{Action, CallId, Command};
use outlast_proto::wire::control::{EpochRecord, ToCoordinator};

/// Late callers that are remembered until their calls have ended.
const CALLED_LAST_MAX: usize = 64;

impl Control {
    pub(in crate::communicator) fn carry_out(&self, mut state: MutexGuard<'_, State>) {
        let (mut urgent, mut events, mut warnings) = (None, Vec::new(), Vec::new());
        while let Some(action) = state.session.poll_action() {
            match action {
                Action::Dial => {
                    state.dials += 1;
                    let dial = state.dials;
                    self.recorder.note(&Entry::new(What::Line, "dialling").amount(dial));
                    if let Some(this) = self.this.upgrade() {
                        self.runtime.spawn(this.converse(dial));
                    }
                }
                Action::HangUp => {
                    if let Some(line) = state.line.take() {
                        line.hang_up();
                    }
                    if state.session.out().is_some() {
                        // Transfers have no session to stop them.
                        state.roster.clear();
                        self.data.leave_group(self.group);
                        self.epoch_opened.notify_all();
                    }
                }
                Action::Send(message) => {
                    let Some(line) = &state.line else { continue };
                    self.recorder.note(&Entry::to_coordinator(What::Sent, &message));
                    let fits = line.put(&message);
                    // That a call has begun is news which may go with the next message; one without time left
                    // is a vote that nothing follows.
                    if !matches!(message, ToCoordinator::Initiate { timeout_ms: 1.., .. }) {
                        urgent = Some(Arc::clone(line));
                    }
                    if !fits {
                        line.hang_up();
                        state.line = None;
                    }
                }
                Action::OpenEpoch(record) => {
                    events.extend(news::changes(&state.roster, &record));
                    state.roster.clone_from(&record.roster);
                    state.links.retain(|peer| record.rank_of(peer).is_some());
                    for info in &record.roster {
                        self.recorder.name(key_of(info.id), &info.name);
                        warnings.extend(state.warned.of(info, self.preset, "this peer"));
                    }
                    self.open_epoch(&mut state, &record);
                }
                Action::Prepare(record, number) => self.prepare(&record, number),
                Action::Redial(peer, address) => self.redial(peer, address),
                Action::Relink(peer) => self.data.want_link(self.group, peer),
                Action::CalledLast(key, peer, behind) => {
                    state.called_last.truncate(CALLED_LAST_MAX - 1);
                    state.called_last.push_front((key, peer, behind));
                }
                Action::Slowed(link) => events.extend(news::slowed(&state.roster, link)),
                Action::Call(id, command) => self.order(&mut state, id, command),
            }
        }
        let is_alone = state.session.record().is_some() && !state.session.is_connected();
        match (is_alone, state.alone_since) {
            (true, None) => {
                state.alone_since = Some(clock::now());
                events.push(Event::CoordinatorLost);
            }
            (false, Some(since)) => {
                state.alone_since = None;
                state.alone_at_end = state.session.out().map(|_| clock::now().since(since));
                // Whoever is out is told so by its call.
                events.extend(state.session.record().map(|_| Event::CoordinatorBack));
            }
            _ => {}
        }
        let sooner = state.session.poll_timeout().is_some_and(|at| at < state.timer);
        drop(state);
        if let Some(line) = urgent {
            line.flush();
        }
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        self.news.tell(events);
        if sooner {
            self.timers.notify_one();
        }
    }

    fn order(&self, state: &mut State, id: CallId, command: Command) {
        self.recorder.note(&Entry::order(id, &command));
        let Some(call) = state.calls.get_mut(&id) else { return };
        let order = match command {
            Command::Perform(attempt) => {
                let abort = Abort::new();
                call.abort = Some(abort.clone());
                Order::Perform(attempt, abort)
            }
            Command::Abort => {
                if let Some(abort) = &call.abort {
                    abort.trigger();
                }
                return;
            }
            Command::Commit => Order::Commit,
            Command::Undo => Order::Undo,
            Command::Finish(outcome) => Order::Finish(outcome),
        };
        call.orders.put(order);
    }

    fn open_epoch(&self, state: &mut State, record: &EpochRecord) {
        let place = |rank: &u32| {
            let info = &record.roster[*rank as usize];
            (info.id, info.address)
        };
        let ring: Vec<_> = record.ring.iter().map(place).collect();
        if ring.len() == 1 {
            state.session.handle_links_up(record.epoch);
        }
        self.known.expect(record.roster.iter().map(|member| member.address.ip()));
        self.rosters.tell(&record.roster);
        self.data.open_epoch(record.group, record.epoch, ring);
        self.epoch_opened.notify_all();
    }
}
