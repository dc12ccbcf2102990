//! What must be true, whatever happens.

use super::ProcessNumber;
use super::setup::{BEGINNING, SHORT_TIMEOUT, Setup, TIMEOUT, id_of, process_of};
use super::state::{Data, Ending, State};
use crate::explore::search::Violation;
use outlast_proto::collective::OpKey;
use outlast_proto::coordinator::Note;
use outlast_proto::session::{CallError, Done, OutReason, Outcome};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::{KickReason, LossReason, ToPeer};

/// Without a connection for this long a peer may be put out although it lives (rule 20c, preset local).
const CONTROL_LOST_AFTER: Duration = Duration::from_secs(10);
/// For this long a restarted coordinator waits for those who were in (rule 41, preset local).
const CONTROL_GRACE: Duration = Duration::from_secs(2);

impl Ending {
    pub(super) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Ok(Done::Committed { key, .. }) => Self::Committed(key.clone()),
            Ok(Done::Ballot { .. }) => Self::Voted,
            Err(error) => Self::Failed(match error {
                CallError::PeersLost(_) => "peers lost",
                CallError::LinkBroken(_) => "link broken",
                CallError::NoPath { .. } => "no path",
                CallError::TooFewPeers { .. } => "too few peers",
                CallError::Timeout(_) | CallError::CameTooLate => "timeout",
                // By whomever: the others are told that it was given up.
                CallError::GivenUp(_) | CallError::Cancelled => "given up",
                CallError::Mismatch { .. } => "mismatch",
                CallError::Failed(_) => "failed",
                CallError::Out(_) => "out",
                _ => "otherwise",
            }),
        }
    }
}

impl Ending {
    /// Whether both may be of one call. Who gave it up itself is told that, whatever else has ended it for the others.
    fn agrees_with(&self, other: &Self) -> bool {
        let given_up = |ending: &Self| *ending == Self::Failed("given up");
        match (self, other) {
            (Self::Failed(_), Self::Failed(_)) if given_up(self) || given_up(other) => true,
            _ => self == other,
        }
    }
}

/// One verdict per attempt, whoever hears it and however often (rule 4).
pub(super) fn heard(
    state: &mut State,
    number: ProcessNumber,
    key: &OpKey,
    committed: bool,
) -> Result<(), Violation> {
    let Some(process) = &mut state.processes[usize::from(number)] else { return Ok(()) };
    if !process.session.is_connected() {
        return Ok(()); // It is not listened to.
    }
    let before = *process.heard.entry(key.clone()).or_insert(committed);
    let others = state.present().filter_map(|(other, process)| Some((other, *process.heard.get(key)?)));
    match others.chain([(number, before)]).find(|(_, theirs)| *theirs != committed) {
        Some((other, _)) => {
            let word = |committed| if committed { "commit" } else { "abort" };
            let (told, theirs) = (word(committed), word(!committed));
            let text = format!("{key}: process {number} is told {told}, process {other} was told {theirs}");
            Err(Violation::new("one_verdict", text))
        }
        None => Ok(()),
    }
}

/// A call returned: with what it promised, in the caller's memory as well.
pub(super) fn finished(
    state: &State,
    number: ProcessNumber,
    outcome: &Outcome,
    data: &Data,
) -> Result<(), Violation> {
    let wanted = match outcome {
        Ok(Done::Committed { key, .. }) => Data::Kept(key.clone()),
        _ => Data::AsBefore,
    };
    if *data != wanted {
        let text = format!("process {number}: a call ended with {outcome:?}, its data is {data:?}");
        return Err(Violation::new("exact_values", text));
    }
    let Ok(Done::Committed { key, contributors, .. }) = outcome else { return Ok(()) };
    // Rule 4: every member's Complete, with the same fingerprint. Who died, or gave its session up, while a coordinator
    // was away was not asked (rule 17), nor was whoever did not come back to it before its patience ended.
    let votes = state.completed.get(key);
    let mine = votes.and_then(|votes| votes.get(&number));
    let knows_us = contributors.iter().any(|id| process_of(*id) == number && state.run.knows(*id));
    for (id, member) in contributors.iter().map(|id| (*id, process_of(*id))) {
        let theirs = votes.and_then(|votes| votes.get(&member));
        let gone = state.present().all(|(other, _)| other != member);
        let excused = state.restarted.is_some() && (gone || (knows_us && !state.run.knows(id)));
        if theirs.is_none() && !excused {
            let text =
                format!("{key} is committed at process {number}, and process {member} did not complete it");
            return Err(Violation::new("commit_needs_all", text));
        }
        if theirs.is_some() && theirs != mine {
            let text =
                format!("{key} is committed as {mine:?} at process {number}, as {theirs:?} at {member}");
            return Err(Violation::new("commit_needs_all", text));
        }
    }
    Ok(())
}

/// Everybody is honest: nobody may be told otherwise (rule 20).
pub(super) fn told(now: Instant, restarted: Option<Instant>, message: &ToPeer) -> Result<(), Violation> {
    // Whoever has not spoken, or not promised, when a restarted coordinator's patience ends must join anew (rule 41).
    let late = restarted.is_some_and(|restarted| now.since(restarted) >= CONTROL_GRACE);
    match message {
        ToPeer::Kicked { reason: KickReason::Evicted, .. } => Ok(()), // Judged by its cause.
        ToPeer::Kicked { reason: KickReason::Superseded, .. } if late => Ok(()),
        ToPeer::Kicked { reason, text, .. } => {
            Err(Violation::new("nobody_blamed", format!("kicked ({reason:?}): {text}")))
        }
        _ => Ok(()),
    }
}

/// Who lives is put out for the causes of rule 20 only.
pub(super) fn note(state: &State, note: &Note) -> Result<(), Violation> {
    match note {
        Note::Contradiction(peer) => {
            Err(Violation::new("nobody_blamed", format!("process {} is called a liar", process_of(*peer))))
        }
        Note::Lost(peer, reason) => {
            let number = process_of(*peer);
            let Some(process) = &state.processes[usize::from(number)] else { return Ok(()) };
            let long_enough = state.now.since(BEGINNING) >= CONTROL_LOST_AFTER;
            // Who is not in, as far as it knows, loses nothing and begins again.
            let outside = process.session.record().is_none();
            let fair = match reason {
                LossReason::Left | LossReason::Disconnected if outside => true,
                LossReason::Left => process.out,
                LossReason::NotResumed => long_enough,
                LossReason::Unreachable => state.severed,
                LossReason::Kicked => true, // Judged by what it was told.
                _ => false,
            };
            if fair || process.out {
                return Ok(());
            }
            let text = format!("process {number} lives and is put out: {reason}");
            Err(Violation::new("no_false_eviction", text))
        }
        _ => Ok(()),
    }
}

/// A session ends by itself only when its time has come.
pub(super) fn out(
    setup: &Setup,
    state: &State,
    number: ProcessNumber,
    reason: &OutReason,
) -> Result<(), Violation> {
    let deadline = if setup.has_deadlines() { SHORT_TIMEOUT } else { TIMEOUT };
    let waited = state.now.since(BEGINNING);
    let fair = match reason {
        OutReason::Kicked(..) | OutReason::Left => true,
        OutReason::CoordinatorLost => waited >= CONTROL_LOST_AFTER,
        OutReason::OutcomeUnknown => waited >= deadline,
        _ => false,
    };
    if fair {
        return Ok(());
    }
    Err(Violation::new("no_false_eviction", format!("process {number} ends its session: {reason}")))
}

/// What must be true of every state.
pub(super) fn judge(setup: &Setup, state: &State) -> Result<(), Violation> {
    let mut unlisted = state.run.unlisted();
    if setup.sabotage == Some(super::Sabotage::UnlistMember)
        && state.present().any(|(number, process)| number == 1 && process.wires > 1)
    {
        unlisted.push(id_of(1));
    }
    if let Some(peer) = unlisted.first() {
        let text = format!("process {} is accepted, and no roster lists it", process_of(*peer));
        return Err(Violation::new("everybody_listed", text));
    }
    // Call k is the same thing for all who have the same program, and ends in the same way (rule 8).
    for (first, mine) in state.present() {
        for (other, theirs) in
            state.present().filter(|(other, _)| *other > first && setup.agree(first, *other))
        {
            let mut both = mine.endings.iter().zip(&theirs.endings).enumerate();
            if let Some((at, (a, b))) = both.find(|(_, (a, b))| !a.agrees_with(b)) {
                let text = format!(
                    "call {} ended at process {first} with {a:?}, at process {other} with {b:?}",
                    at + 1
                );
                return Err(Violation::new("same_outcome", text));
            }
        }
    }
    Ok(())
}
