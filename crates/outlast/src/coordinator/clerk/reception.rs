//! Who comes to the clerk, who is let in, and who is told to go.
//!
//! A line is opened for a run by its name, and anybody who holds the secret may name any run. So a run is served only from the
//! moment on in which somebody registers, resumes or watches there; until then its lines are *strangers*, whom the clerk keeps
//! itself. What is dear, a place in the list of runs above all, is given by quotas (rule 39), and whoever is over one hears
//! the limit and the remedy before its line is closed.
//!
//! Everything here that is said to a run's machine is said within [`Clerk::work_for`].

use super::Clerk;
use super::served::ServedRun;
use crate::clock;
use crate::coordinator::backend::Book;
use crate::coordinator::{history, strikes};
use crate::presets;
use crate::recorder::{Entry, What, key_of};
use outlast_proto::coordinator::{ConnectionId, Run};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::limits::{RUNS_MAX, RUNS_PER_PEER_MAX};
use outlast_proto::time::Instant;
use outlast_proto::wire::InvalidMessage;
use outlast_proto::wire::control::{KickReason, Term, ToCoordinator, ToPeer};

impl Clerk {
    /// Somebody said something on a line of that run.
    pub(super) fn listen(
        &mut self,
        now: Instant,
        run: &RunId,
        id: ConnectionId,
        peer: PeerId,
        message: ToCoordinator,
    ) {
        let (info, term) = match &message {
            ToCoordinator::AskStatus => return self.answer(now, run, id, peer),
            ToCoordinator::Register(registration, _, term) => (Some(registration.info.clone()), *term),
            ToCoordinator::Resume(resume) => (Some(resume.registration.info.clone()), resume.term),
            // An agent may be here before its workers are.
            ToCoordinator::Watch { .. } => {
                if let Err(text) = self.admit(now, run, peer, false) {
                    return self.turn_away(now, run, id, peer, (KickReason::Limit, text, 0));
                }
                self.serve(run);
                (None, 0)
            }
            _ => (None, 0),
        };
        if let Some(info) = info {
            let registers = matches!(message, ToCoordinator::Register(..));
            if let Err(text) = self.admit(now, run, peer, registers) {
                return self.turn_away(now, run, id, peer, (KickReason::Limit, text, term));
            }
            self.recorder.name(key_of(peer), &info.name);
            self.serve(run);
            if let Some(served) = self.runs.get_mut(run) {
                served.health().meet(&self.health, run, peer, &info);
                let preset = presets::name(self.health.preset());
                if let Some(warning) = served.introduce(now, peer, &info, preset) {
                    tracing::warn!(%run, "{warning}");
                }
            }
        }
        self.seat(run, id);
        let Some(served) = self.runs.get_mut(run) else {
            let text = "not a peer of this run any more: connect again".to_owned();
            return self.turn_away(now, run, id, peer, (KickReason::Evicted, text, term));
        };
        let heard = Entry::to_coordinator(What::Heard, &message).about(served.number());
        self.recorder.note(&heard.about_peer(peer));
        served.machine_mut().handle_message(now, id, peer, message);
        self.carry_out(run);
    }

    /// What a connection said cannot be read: whoever it is hears why and goes.
    pub(super) fn part(
        &mut self,
        now: Instant,
        run: &RunId,
        id: ConnectionId,
        peer: PeerId,
        error: &InvalidMessage,
    ) {
        self.seat(run, id);
        if let Some(served) = self.runs.get_mut(run) {
            served.machine_mut().handle_unreadable(now, id, peer, error);
            return self.carry_out(run);
        }
        let text = format!("the coordinator cannot read what this peer said: {error}");
        self.turn_away(now, run, id, peer, (KickReason::Breach, text, 0));
    }

    /// A line of that run is closed.
    pub(super) fn line_closed(&mut self, now: Instant, run: &RunId, id: ConnectionId, peer: Option<PeerId>) {
        let Some(served) = self.runs.get_mut(run) else { return };
        if let Some(peer) = peer {
            self.recorder.note(&Entry::new(What::Line, "closed").about(served.number()).with(peer));
        }
        served.hang_up(id);
        served.machine_mut().handle_closed(now, id);
        self.carry_out(run);
    }

    /// Gives a line to its run, if that is served.
    pub(super) fn seat(&mut self, run: &RunId, id: ConnectionId) {
        if let Some(served) = self.runs.get_mut(run)
            && let Some(line) = self.strangers.remove(&id)
        {
            served.seat(id, line);
        }
    }

    /// Whether there is room for this peer in this run (rule 39).
    fn admit(&mut self, now: Instant, run: &RunId, peer: PeerId, registers: bool) -> Result<(), String> {
        if let Some(left) = self.strikes.given_up_for(now, run) {
            return Err(strikes::reason(run, left));
        }
        self.customers.may_speak(peer)?;
        if registers {
            self.customers.may_register(now, peer)?;
        }
        let is_in_another =
            |(other, served): &(&RunId, &ServedRun)| *other != run && served.machine().knows(peer);
        let others = self.runs.iter().filter(is_in_another).count();
        if others >= RUNS_PER_PEER_MAX {
            let peer = peer.short();
            return Err(format!(
                "peer {peer} is in {others} runs, the limit is {RUNS_PER_PEER_MAX}: leave one of them, or give \
                 every process a PeerId of its own"
            ));
        }
        if !self.runs.contains_key(run) && self.runs.len() >= RUNS_MAX && !self.forget_an_empty_run() {
            return Err(format!(
                "this coordinator serves {RUNS_MAX} runs, which is its limit: wait until one of them has ended, \
                 or start another coordinator for run {run}"
            ));
        }
        Ok(())
    }

    /// Forgets the run that nobody is in for longest; false if there is none.
    fn forget_an_empty_run(&mut self) -> bool {
        let empty = self.runs.iter().filter(|(_, served)| served.is_empty());
        let longest = empty.min_by_key(|(_, served)| (served.empty_since().is_none(), served.empty_since()));
        let longest = longest.map(|(run, _)| run.clone());
        longest.is_some_and(|run| self.runs.remove(&run).is_some())
    }

    /// Tells a connection why it is refused, under a term that its peer obeys, and closes it.
    fn turn_away(
        &mut self,
        now: Instant,
        run: &RunId,
        id: ConnectionId,
        peer: PeerId,
        (reason, text, term): (KickReason, String, Term),
    ) {
        let known = self.runs.get_mut(run).and_then(|served| served.hang_up(id));
        if let Some(line) = known.or_else(|| self.strangers.remove(&id)) {
            let _ = line.try_send(ToPeer::Kicked { reason, text: text.clone(), term });
        }
        self.remember_refusal(now, run, peer, &text);
    }

    /// Serves that run from now on, if it does not yet: with what was written down of it, or as one whose members of before
    /// may come back.
    fn serve(&mut self, run: &RunId) {
        if self.runs.contains_key(run) {
            return;
        }
        self.served += 1;
        self.recorder.name(self.served, run.as_str());
        let now = clock::now();
        let mut machine = Run::new(self.config.clone());
        let term = self.book.as_ref().and_then(Book::term);
        // After a panic everybody who was in is an old member.
        let struck = self.strikes.last(now, run).map(|last| last + self.config.control_grace);
        match self.book.as_ref().map(|book| book.facts(run)) {
            // Whoever was ever let in is written down: in a run that is not, nobody can have been.
            Some(Ok(None)) => {}
            Some(Ok(Some(facts))) => machine.succeed(&facts, now + self.config.control_grace),
            Some(Err(error)) => {
                tracing::error!(%run, %error, "nothing is known of this run; it is rebuilt from its peers");
                machine.expect_old_members(now + self.config.control_grace);
            }
            None => {
                if let Some(until) = self.fresh_after.max(struck) {
                    machine.expect_old_members(until);
                }
            }
        }
        if let Some(term) = term {
            machine.reign_under(term);
        }
        machine.handle_wall_clock(now, history::unix_us());
        if struck.is_some() {
            machine
                .handle_incident(now, "what decides for this run panicked, and began anew: report this bug");
        }
        self.runs.insert(run.clone(), ServedRun::new(machine, self.served));
    }
}
