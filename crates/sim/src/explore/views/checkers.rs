//! What must be true of every state, and of every one in which nothing is under way.

use super::Budget;
use super::state::State;
use crate::explore::search::Violation;
use outlast_proto::wire::store::operation::Answer;

/// Jumps of the clock after which somebody hangs.
const JUMPS_MAX: usize = 5_000;

impl State {
    /// What must be true of every state.
    pub(super) fn judge(&self) -> Result<(), Violation> {
        if let Some((member, why)) = &self.put_out {
            let text = format!("member {member} lives, could be heard, and was put out: {why}");
            return Err(Violation::new("nobody_put_out", text));
        }
        if let Some(number) = self.repeated {
            return Err(Violation::new("counted_once", format!("two raises were answered with {number}")));
        }
        let key = &self.scene.key;
        let owners = self.members.iter().filter(|(_, member)| member.answers_for(self.now, key));
        let owners: Vec<_> = owners.collect();
        if owners.len() > 1 {
            let who: Vec<_> = owners.iter().map(|(number, _)| **number).collect();
            return Err(Violation::new("one_owner", format!("members {who:?} would answer for one key")));
        }
        for (number, owner) in owners {
            let has = match owner.has_of(key) {
                Some(Answer::Value(value)) => String::from_utf8_lossy(&value).parse().unwrap_or(i64::MAX),
                _ => 0,
            };
            let acknowledged = self.answers.len() as i64;
            if has < acknowledged || self.answers.last().is_some_and(|last| has < *last) {
                let text = format!(
                    "member {number} would answer {has}; {acknowledged} raises were acknowledged, the last with {:?}",
                    self.answers.last()
                );
                return Err(Violation::new("nothing_lost", text));
            }
            if has > self.begun {
                let text = format!("member {number} would answer {has}; {} raises were begun", self.begun);
                return Err(Violation::new("counted_once", text));
            }
        }
        Ok(())
    }

    /// What must be true once faults have ended and time has gone on.
    pub(super) fn judge_rest(&self) -> Result<(), Violation> {
        let mut state = self.clone();
        state.budget = Budget::default();
        state.cut.clear();
        state.rest();
        state.judge()?;
        let lives = state.members.len();
        if lives > 0 && !state.is_settled() {
            let view = state.registrar.view().map_or(0, |view| view.members.len());
            return Err(Violation::new("no_hang", format!("{lives} live, and {view} are in a view")));
        }
        let waits = state.members.values().any(|member| member.calls_under_way() > 0);
        if waits || state.failed > 0 {
            return Err(Violation::new("no_hang", "a call of somebody who lives has no answer"));
        }
        Ok(())
    }

    /// Everything arrives, and time goes on, until nothing is left to do.
    pub(super) fn rest(&mut self) {
        for _ in 0..JUMPS_MAX {
            while let Some(event) = self.arrivals().first() {
                self.happen(*event);
            }
            let waits = self.members.values().any(|member| member.calls_under_way() > 0);
            if self.is_settled() && !waits && self.leaving.is_empty() {
                return;
            }
            self.jump();
            self.carry_out();
        }
    }
}
