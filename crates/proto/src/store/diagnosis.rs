//! Why does a call not end? One cause, drawn from what is known when its time is over.
//!
//! The rule is a table, read from above: the first line whose evidence is there is the cause. Whatever the owner itself
//! says comes before what others say of it, and both before what its kernel answers. Who has heard nothing says so, and
//! claims nothing.
//!
//! What this does not do: find words. Those are in `member/telling.rs`.

use super::registrar::Knocked;
use crate::time::Duration;
use crate::wire::store::account::Account;

/// What is known of the member that should answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    /// This member's own view, and whether one is being prepared that moves the key.
    pub epoch: u64,
    /// See `epoch`.
    pub moving: bool,
    /// What the owner says; this member's own account if it is the owner.
    pub account: Option<&'a Account>,
    /// The owner's answer came over the links, so they work.
    pub by_link: bool,
    /// How its kernel answered a connect.
    pub knocked: Option<Knocked>,
    /// How long ago whoever decides on views heard it.
    pub heard: Option<Duration>,
    /// Silence of the owner that is longer than this means something: it says that it lives this often.
    pub patience: Duration,
}

/// Why a call's time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Another view is being prepared, and the key moves.
    Moving,
    /// The owner is in another view than this member.
    OtherView(Option<u64>),
    /// The owner has not been heard by whoever decides on views for so long that it may not answer.
    LeaseOver,
    /// The key has no value, and the call waits for one at the owner.
    Absent,
    /// The owner has the call and may not answer yet.
    Held,
    /// The owner has done it, and its replica has not acknowledged.
    ReplicaSilent,
    /// The owner lives and tells so by datagrams, but links do not bring the call there or its answer back.
    RouteCut,
    /// The owner lives and can be reached; its answer was not in time.
    Late,
    /// The owner's process is gone.
    Gone,
    /// The owner lives, and everything between this member and it is cut.
    CutFromUs,
    /// The owner's process is stopped.
    Stopped,
    /// The owner's host says nothing at all.
    CutOff,
    /// The owner says nothing, and it is not known why.
    Silent,
}

impl Evidence<'_> {
    /// The cause.
    pub fn cause(&self) -> Cause {
        if self.moving {
            return Cause::Moving;
        }
        match self.account {
            Some(account) if account.moving => Cause::Moving,
            Some(account) if account.epoch != Some(self.epoch) => Cause::OtherView(account.epoch),
            Some(account) if account.lease_ms.is_none() => Cause::LeaseOver,
            Some(account) if account.waits_ms.is_some() => Cause::Absent,
            Some(account) if account.holds => Cause::Held,
            // Whatever else the owner waits for: its answer could not come this way.
            Some(_) if !self.by_link => Cause::RouteCut,
            Some(account) if account.unacknowledged > 0 => Cause::ReplicaSilent,
            Some(_) => Cause::Late,
            None => self.silence(),
        }
    }

    /// Why the owner says nothing.
    fn silence(&self) -> Cause {
        let lives = self.heard.is_some_and(|ago| ago < self.patience);
        match self.knocked {
            Some(Knocked::Refused) => Cause::Gone,
            _ if lives => Cause::CutFromUs,
            Some(Knocked::Accepted) => Cause::Stopped,
            Some(Knocked::Silent) => Cause::CutOff,
            None => Cause::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::store::MemberId;

    fn account() -> Account {
        Account {
            number: 1,
            from: MemberId(2),
            epoch: Some(3),
            owns: true,
            present: Some(false),
            waits_ms: None,
            holds: false,
            lease_ms: Some(700),
            moving: false,
            unacknowledged: 0,
            next: None,
            registrar_away_ms: None,
            links: Vec::new(),
        }
    }

    fn says(change: impl FnOnce(&mut Account), by_link: bool) -> Cause {
        let mut account = account();
        change(&mut account);
        Evidence { epoch: 3, account: Some(&account), by_link, ..Evidence::default() }.cause()
    }

    #[test]
    fn what_the_owner_says_is_the_cause() {
        assert_eq!(says(|account| account.waits_ms = Some(9), true), Cause::Absent);
        assert_eq!(says(|account| account.waits_ms = Some(9), false), Cause::Absent);
        assert_eq!(says(|account| account.lease_ms = None, true), Cause::LeaseOver);
        assert_eq!(says(|account| account.unacknowledged = 1, true), Cause::ReplicaSilent);
        assert_eq!(says(|account| account.unacknowledged = 1, false), Cause::RouteCut);
        assert_eq!(says(|account| account.holds = true, true), Cause::Held);
        assert_eq!(says(|account| account.moving = true, true), Cause::Moving);
        assert_eq!(says(|account| account.epoch = Some(4), true), Cause::OtherView(Some(4)));
        assert_eq!(says(|_| (), false), Cause::RouteCut);
        assert_eq!(says(|_| (), true), Cause::Late);
    }

    #[test]
    fn an_owner_that_says_nothing_is_judged_by_its_kernel_and_by_who_heard_it() {
        let silent = |knocked, heard: Option<u64>| {
            let heard = heard.map(Duration::from_millis);
            Evidence { knocked, heard, patience: Duration::from_millis(600), ..Evidence::default() }.cause()
        };
        assert_eq!(silent(Some(Knocked::Refused), None), Cause::Gone);
        // It was heard a moment before it was killed.
        assert_eq!(silent(Some(Knocked::Refused), Some(100)), Cause::Gone);
        assert_eq!(silent(Some(Knocked::Accepted), None), Cause::Stopped);
        assert_eq!(silent(Some(Knocked::Accepted), Some(900)), Cause::Stopped);
        assert_eq!(silent(Some(Knocked::Accepted), Some(100)), Cause::CutFromUs);
        assert_eq!(silent(Some(Knocked::Silent), Some(100)), Cause::CutFromUs);
        assert_eq!(silent(Some(Knocked::Silent), Some(900)), Cause::CutOff);
        assert_eq!(silent(None, None), Cause::Silent);
    }
}
