//! Why a call failed, in one sentence with its evidence.
//!
//! # The problem
//!
//! "Timed out waiting for p3" says whom, not why. A person then asks the same questions each time: is it dead, does it stand
//! still, did it never make the call, is the network slow or cut, is the coordinator away? The runtime knows most answers at
//! the moment of the failure, and nobody does an hour later.
//!
//! # The intuition
//!
//! Evidence is ranked by how much it explains. A process that itself stood still saw everybody late, so that comes first.
//! Without a coordinator nothing is decided, whoever else is slow. Then the dead, the stalled, those that several members
//! cannot hear at once (a cut), those who never made the call; if all made it and all are well, their links are slow.
//!
//! # The invariant
//!
//! A pure function of the evidence: the same evidence gives the same sentence, and every sentence carries what it rests on.
//!
//! # What it does not do
//!
//! It decides nothing: who is evicted follows from the rules, never from this. It names no cause that nobody saw: without
//! evidence it says so.

use crate::time::Duration;
use crate::wire::control::LossReason;
use crate::wire::membership::DeathReason;
use std::fmt;

/// A link that was busy for this share of a call is what the call waited for.
const BUSY_SHARE: f64 = 0.75;
/// Being late by less than this explains nothing.
const STOOD_STILL_MIN: Duration = Duration::from_millis(500);

/// Somebody that a call waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// What people call it.
    pub name: String,
    /// What the health plane says of it, in its word.
    pub health: String,
    /// What it last called.
    pub last_call: String,
    /// How long ago.
    pub age: Duration,
}

/// What the link to the next member did while the call lasted, as the kernel measured it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labour {
    /// The other end, which receives; a name for people.
    pub to: String,
    /// Bytes that arrived there.
    pub bytes: u64,
    /// For how long there was anything to send, and room for it at the other end.
    pub busy: Duration,
    /// How long all of it took.
    pub elapsed: Duration,
}

impl Labour {
    /// Whether the way was what the call waited for.
    fn is_slow(&self) -> bool {
        self.busy >= self.elapsed.mul_f64(BUSY_SHARE)
    }
}

/// Whose link is slow, as far as this member can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowLink {
    /// Its own to the next member.
    Own(Labour),
    /// Not that one: it had little to carry.
    NotOwn(Labour),
    /// Nothing was measured: the call is small, or all members are on one host.
    Unmeasured,
}

/// What this process knows when a call's deadline has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The call, in the words of [`Party::last_call`].
    pub call: String,
    /// Whom it waited for.
    pub waited_for: Vec<Party>,
    /// How many members the group has besides this one.
    pub others: usize,
    /// Since when there has been no coordinator.
    pub coordinator_away: Option<Duration>,
    /// The longest that this process stood still during the call.
    pub stood_still: Option<Duration>,
    /// What its link to the next member did, if that was measured.
    pub labour: Option<Labour>,
}

/// What this process knows of a call that ended well and took much longer than its like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowCall {
    /// How long it took.
    pub took: Duration,
    /// How long its like usually take.
    pub usual: Duration,
    /// How many attempts it took.
    pub attempts: u32,
    /// Who was lost meanwhile, and why.
    pub lost: Vec<(String, LossReason)>,
    /// For how long there was no coordinator.
    pub coordinator_away: Duration,
    /// For how long this process stood still.
    pub stood_still: Duration,
    /// Who made the call last, and how long after the first.
    pub called_last: Option<(String, Duration)>,
    /// What its link to the next member did, if that was measured.
    pub labour: Option<Labour>,
}

/// What is to blame, with its evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Diagnosis {
    /// This process stood still.
    StoodStill(Duration),
    /// Nobody decides.
    CoordinatorAway(Duration),
    /// A member is dead, and on what grounds.
    Dead(String, String),
    /// A member's process does not run, though its kernel answers.
    Stalled(String),
    /// A member's process did not run for longer than it may.
    StalledTooLong(String),
    /// Members that nothing is heard from: their hosts are gone, or the network between them and the others is cut.
    Partition(Vec<String>),
    /// A member is well and has not made the call; what it called last, and how long ago.
    NotCalling(String, String, Duration),
    /// All have made the call and are well: the bytes do not move fast enough. Who has not finished, and whose link it is.
    SlowLink(Vec<String>, SlowLink),
    /// A call ended well and late: for so long nobody could decide.
    CoordinatorWasAway(Duration),
    /// A call ended well and late: a member made it so long after the first.
    CalledLate(String, Duration),
    /// A call ended well and late: the link from this member to the next had to carry for most of it.
    OwnLinkSlow(Labour),
    /// A call ended well and late: it was another member's link, or what it waits for.
    OthersSlow(Labour),
    /// A call ended well and late: attempts failed first, and nobody was lost.
    SeveralAttempts(u32),
    /// A link between two members that are both here.
    BrokenLink(String, String),
    /// A member left of its own accord.
    Left(String),
    /// Nothing was seen that would explain it.
    Unknown,
}

impl Diagnosis {
    /// A deadline passed.
    pub fn of_timeout(evidence: &Evidence) -> Self {
        if let Some(time) = evidence.stood_still.filter(|time| *time >= STOOD_STILL_MIN) {
            return Self::StoodStill(time);
        }
        if let Some(away) = evidence.coordinator_away {
            return Self::CoordinatorAway(away);
        }
        let all = &evidence.waited_for;
        let with = |words: &[&str]| -> Vec<&Party> {
            all.iter().filter(|party| words.contains(&party.health.as_str())).collect()
        };
        let names =
            |parties: &[&Party]| -> Vec<_> { parties.iter().map(|party| party.name.clone()).collect() };
        if let Some(party) = with(&["dead", "gone"]).first() {
            return Self::Dead(party.name.clone(), format!("the health plane calls it {}", party.health));
        }
        if let Some(party) = with(&["stalled"]).first() {
            return Self::Stalled(party.name.clone());
        }
        let silent = names(&with(&["suspect", "disconnected"]));
        if !silent.is_empty() {
            return Self::Partition(silent);
        }
        if let Some(party) = all.iter().find(|party| party.last_call != evidence.call) {
            return Self::NotCalling(party.name.clone(), party.last_call.clone(), party.age);
        }
        if all.is_empty() {
            return Self::Unknown;
        }
        let link = match &evidence.labour {
            Some(labour) if labour.is_slow() => SlowLink::Own(labour.clone()),
            Some(labour) => SlowLink::NotOwn(labour.clone()),
            None => SlowLink::Unmeasured,
        };
        Self::SlowLink(names(&all.iter().collect::<Vec<_>>()), link)
    }

    /// A link broke, between two members whose health is told in the words of [`Party::health`]. If one of them is silent to
    /// everybody, it is not this link that is cut.
    pub fn of_broken_link(from: (String, &str), to: (String, &str)) -> Self {
        let ends = [&from, &to];
        let with = |word: &str| ends.iter().find(|end| end.1 == word).map(|end| end.0.clone());
        if let Some(name) = with("dead") {
            return Self::Dead(name, "the health plane calls it dead".to_owned());
        }
        if let Some(name) = with("suspect") {
            return Self::Partition(vec![name]);
        }
        match with("stalled") {
            Some(name) => Self::Stalled(name),
            None => Self::BrokenLink(from.0, to.0),
        }
    }

    /// Members were lost; the first that explains most.
    pub fn of_loss(lost: &[(String, LossReason)]) -> Self {
        let silent = |reason: &LossReason| {
            use DeathReason::{Deaf, Silent, SilentTooLong};
            matches!(
                reason,
                LossReason::NotResumed
                    | LossReason::Unreachable
                    | LossReason::Dead(Silent | SilentTooLong | Deaf)
            )
        };
        for (name, reason) in lost {
            match reason {
                LossReason::Killed | LossReason::Disconnected => {
                    return Self::Dead(name.clone(), reason.to_string());
                }
                LossReason::Dead(DeathReason::Exited | DeathReason::Refused) => {
                    return Self::Dead(name.clone(), reason.to_string());
                }
                LossReason::Dead(DeathReason::StalledTooLong) => return Self::StalledTooLong(name.clone()),
                _ => {}
            }
        }
        let cut: Vec<_> =
            lost.iter().filter(|(_, reason)| silent(reason)).map(|(name, _)| name.clone()).collect();
        if !cut.is_empty() {
            return Self::Partition(cut);
        }
        match lost.iter().find(|(_, reason)| *reason == LossReason::Left) {
            Some((name, _)) => Self::Left(name.clone()),
            None => Self::Unknown,
        }
    }

    /// A call ended well and took much longer than its like. A cause must explain at least half of what it took more.
    pub fn of_slow_call(slow: &SlowCall) -> Self {
        let explains = |time: Duration| time >= slow.took.saturating_sub(slow.usual) / 2;
        if slow.stood_still >= STOOD_STILL_MIN && explains(slow.stood_still) {
            return Self::StoodStill(slow.stood_still);
        }
        if slow.attempts > 1 {
            return match Self::of_loss(&slow.lost) {
                Self::Unknown if explains(slow.coordinator_away) => {
                    Self::CoordinatorWasAway(slow.coordinator_away)
                }
                Self::Unknown => Self::SeveralAttempts(slow.attempts),
                loss => loss,
            };
        }
        if explains(slow.coordinator_away) {
            return Self::CoordinatorWasAway(slow.coordinator_away);
        }
        if let Some((name, behind)) = slow.called_last.as_ref().filter(|(_, behind)| explains(*behind)) {
            return Self::CalledLate(name.clone(), *behind);
        }
        match &slow.labour {
            Some(labour) if labour.is_slow() => Self::OwnLinkSlow(labour.clone()),
            Some(labour) => Self::OthersSlow(labour.clone()),
            None => Self::Unknown,
        }
    }

    /// One word for tables.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::StoodStill(_) => "stood still",
            Self::CoordinatorAway(_) | Self::CoordinatorWasAway(_) => "coordinator away",
            Self::Dead(..) => "dead",
            Self::Stalled(_) | Self::StalledTooLong(_) => "stalled",
            Self::Partition(_) => "partition",
            Self::NotCalling(..) => "not calling",
            Self::CalledLate(..) => "called late",
            Self::SlowLink(..) | Self::OwnLinkSlow(_) | Self::OthersSlow(_) => "slow link",
            Self::SeveralAttempts(_) => "several attempts",
            Self::BrokenLink(..) => "broken link",
            Self::Left(_) => "left",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: &Duration| (time.as_secs_f64() * 10.0).round() / 10.0;
        match self {
            Self::StoodStill(time) => {
                write!(
                    f,
                    "this process stood still for {} s (stopped, or starved of processors)",
                    seconds(time)
                )
            }
            Self::CoordinatorAway(time) => {
                write!(f, "the coordinator is away: its connection has been gone for {} s", seconds(time))
            }
            Self::CoordinatorWasAway(time) => {
                write!(f, "the coordinator was away for {} s of it", seconds(time))
            }
            Self::CalledLate(name, behind) => write!(
                f,
                "{name} made the call {} s after the first, as the coordinator heard it",
                seconds(behind)
            ),
            Self::OwnLinkSlow(Labour { to, bytes, busy, elapsed }) => {
                let rate = *bytes as f64 / busy.as_secs_f64().max(1e-3) / 1e6;
                let (busy, elapsed) = (seconds(busy), seconds(elapsed));
                write!(
                    f,
                    "the link from this member to {to} was slow: it carried {rate:.2} MB/s and had bytes waiting for \
                     {busy} of {elapsed} s"
                )
            }
            Self::OthersSlow(Labour { to, busy, elapsed, .. }) => {
                let (busy, elapsed) = (seconds(busy), seconds(elapsed));
                write!(
                    f,
                    "another member or its link was slow: all called in time, and this member's own link to {to} had bytes \
                     waiting for {busy} of {elapsed} s only"
                )
            }
            Self::SeveralAttempts(attempts) => {
                write!(
                    f,
                    "it took {attempts} attempts, because links broke or connections were lost for a moment"
                )
            }
            Self::Dead(name, why) => write!(f, "{name} is dead: {why}"),
            Self::Stalled(name) => {
                write!(
                    f,
                    "{name} is stalled: its kernel answers, its process does not (stopped, or a long pause)"
                )
            }
            Self::StalledTooLong(name) => {
                write!(
                    f,
                    "{name} was stalled for longer than the stall budget: its kernel answered, its process did not"
                )
            }
            Self::Partition(names) => write!(
                f,
                "nothing is heard from {}: a cut network, or a host that is gone (neither its process nor its kernel answers)",
                names.join(", ")
            ),
            Self::NotCalling(name, last, age) => write!(
                f,
                "{name} is alive and has not made this call; it last called {last}, {} s ago",
                seconds(age)
            ),
            Self::SlowLink(names, link) => {
                let have = if names.len() == 1 { "has" } else { "have" };
                let names = names.join(", ");
                write!(f, "all have made the call and are alive, and {names} {have} not finished: ")?;
                match link {
                    SlowLink::Own(Labour { to, bytes, busy, elapsed }) => {
                        let rate = *bytes as f64 / busy.as_secs_f64().max(1e-3) / 1e6;
                        let (busy, elapsed) = (seconds(busy), seconds(elapsed));
                        write!(
                            f,
                            "the link from this member to {to} is slow; it carried {rate:.2} MB/s and had bytes waiting for \
                             {busy} of {elapsed} s"
                        )
                    }
                    SlowLink::NotOwn(Labour { to, busy, elapsed, .. }) => {
                        let (busy, elapsed) = (seconds(busy), seconds(elapsed));
                        write!(
                            f,
                            "a link among them is slow, and it is not this member's own to {to}, which had bytes waiting for \
                             {busy} of {elapsed} s only"
                        )
                    }
                    SlowLink::Unmeasured => f.write_str("a link among them is slow"),
                }
            }
            Self::BrokenLink(from, to) => {
                write!(
                    f,
                    "{from} and {to} are both here: the network between them is cut, or a firewall refuses it"
                )
            }
            Self::Left(name) => write!(f, "{name} left of its own accord"),
            Self::Unknown => f.write_str("nothing was seen that would explain it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = "all_reduce(f32[3], sum) under tag 0";

    fn party(name: &str, health: &str, last_call: &str) -> Party {
        let (name, health, last_call) = (name.to_owned(), health.to_owned(), last_call.to_owned());
        Party { name, health, last_call, age: Duration::from_millis(2_340) }
    }

    fn evidence(parties: &[Party]) -> Evidence {
        Evidence { call: CALL.to_owned(), waited_for: parties.to_vec(), others: 3, ..Evidence::default() }
    }

    fn timeout(parties: &[Party]) -> Diagnosis {
        Diagnosis::of_timeout(&evidence(parties))
    }

    #[test]
    fn what_explains_most_comes_first() {
        let idle = party("idle", "alive", "barrier() under tag 0");
        let stopped = party("stopped", "stalled", CALL);
        let killed = party("killed", "dead", CALL);
        assert_eq!(timeout(&[idle.clone(), stopped.clone(), killed]).word(), "dead");
        assert_eq!(timeout(&[idle.clone(), stopped]), Diagnosis::Stalled("stopped".to_owned()));
        assert_eq!(timeout(&[idle.clone(), party("far", "suspect", CALL)]).word(), "partition");
        let text = timeout(std::slice::from_ref(&idle)).to_string();
        assert_eq!(
            text,
            "idle is alive and has not made this call; it last called barrier() under tag 0, 2.3 s ago"
        );
        assert_eq!(timeout(&[party("a", "alive", CALL), party("b", "alive", CALL)]).word(), "slow link");
        let away = Evidence {
            coordinator_away: Some(Duration::from_secs(3)),
            ..evidence(std::slice::from_ref(&idle))
        };
        assert_eq!(Diagnosis::of_timeout(&away).word(), "coordinator away");
        let still = Evidence { stood_still: Some(Duration::from_secs(4)), ..away };
        assert_eq!(Diagnosis::of_timeout(&still).word(), "stood still");
        let blink = Evidence { stood_still: Some(Duration::from_millis(90)), ..evidence(&[idle]) };
        assert_eq!(Diagnosis::of_timeout(&blink).word(), "not calling");
    }

    #[test]
    fn a_link_to_somebody_whom_nobody_hears_is_not_what_is_cut() {
        let of = |one: &str, other: &str| {
            Diagnosis::of_broken_link(("a".to_owned(), one), ("b".to_owned(), other))
        };
        assert_eq!(of("alive", "alive").word(), "broken link");
        assert_eq!(of("alive", "suspect"), Diagnosis::Partition(vec!["b".to_owned()]));
        assert_eq!(of("dead", "suspect").word(), "dead");
        assert_eq!(of("stalled", "alive"), Diagnosis::Stalled("a".to_owned()));
    }

    #[test]
    fn a_slow_link_is_named_by_the_member_that_sends_over_it() {
        let waited_for = vec![party("a", "alive", CALL), party("b", "alive", CALL)];
        let labour = |busy: u64| Labour {
            to: "b".to_owned(),
            bytes: 1_000_000,
            busy: Duration::from_millis(busy),
            elapsed: Duration::from_secs(5),
        };
        let of =
            |busy| Evidence { labour: Some(labour(busy)), waited_for: waited_for.clone(), ..evidence(&[]) };
        let own = Diagnosis::of_timeout(&of(4_000));
        assert_eq!(
            own.to_string(),
            "all have made the call and are alive, and a, b have not finished: the link from this member to b is slow; it \
             carried 0.25 MB/s and had bytes waiting for 4 of 5 s"
        );
        let other = Diagnosis::of_timeout(&of(1_000));
        assert_eq!(other.word(), "slow link");
        assert!(other.to_string().contains("it is not this member's own to b"), "{other}");
        let idle = Evidence { waited_for: vec![party("a", "alive", "barrier() under tag 0")], ..of(4_000) };
        assert_eq!(Diagnosis::of_timeout(&idle).word(), "not calling", "nobody's link is slow then");
    }

    #[test]
    fn a_slow_call_is_blamed_on_what_explains_at_least_half_of_it() {
        let second = Duration::from_secs(1);
        let slow = || SlowCall { took: 4 * second, usual: second / 10, attempts: 1, ..SlowCall::default() };
        let of = |slow: SlowCall| Diagnosis::of_slow_call(&slow);
        assert_eq!(of(slow()), Diagnosis::Unknown);
        let late = Some(("bob".to_owned(), 3 * second));
        let called = of(SlowCall { called_last: late.clone(), ..slow() });
        assert_eq!(called.to_string(), "bob made the call 3 s after the first, as the coordinator heard it");
        let a_little = Some(("bob".to_owned(), second));
        assert_eq!(of(SlowCall { called_last: a_little, ..slow() }), Diagnosis::Unknown);
        let away = of(SlowCall { coordinator_away: 2 * second, called_last: late.clone(), ..slow() });
        assert_eq!(away.to_string(), "the coordinator was away for 2 s of it");
        assert_eq!(
            of(SlowCall { stood_still: 3 * second, called_last: late, ..slow() }).word(),
            "stood still"
        );
        let lost = vec![("bob".to_owned(), LossReason::Killed)];
        assert_eq!(of(SlowCall { attempts: 2, lost, ..slow() }).word(), "dead");
        assert_eq!(of(SlowCall { attempts: 3, ..slow() }), Diagnosis::SeveralAttempts(3));
        let labour = |busy| Labour { to: "bob".to_owned(), bytes: 4_000_000, busy, elapsed: 4 * second };
        let own = of(SlowCall { labour: Some(labour(4 * second)), ..slow() });
        assert_eq!(
            own.to_string(),
            "the link from this member to bob was slow: it carried 1.00 MB/s and had bytes waiting for 4 of 4 s"
        );
        let others = of(SlowCall { labour: Some(labour(second)), ..slow() });
        assert!(others.to_string().starts_with("another member or its link was slow"), "{others}");
    }

    #[test]
    fn without_evidence_nobody_is_blamed() {
        assert_eq!(timeout(&[]), Diagnosis::Unknown);
        assert_eq!(Diagnosis::of_loss(&[]), Diagnosis::Unknown);
        assert_eq!(Diagnosis::of_loss(&[("p".to_owned(), LossReason::NotKnown)]), Diagnosis::Unknown);
    }

    #[test]
    fn losses_are_told_apart_by_their_reasons() {
        let of = |reasons: &[LossReason]| {
            let lost: Vec<_> =
                reasons.iter().enumerate().map(|(at, reason)| (format!("p{at}"), *reason)).collect();
            Diagnosis::of_loss(&lost).word()
        };
        assert_eq!(of(&[LossReason::Killed]), "dead");
        assert_eq!(of(&[LossReason::Dead(DeathReason::Exited)]), "dead");
        assert_eq!(of(&[LossReason::Dead(DeathReason::StalledTooLong)]), "stalled");
        assert_eq!(of(&[LossReason::Dead(DeathReason::Silent), LossReason::NotResumed]), "partition");
        assert_eq!(of(&[LossReason::Left]), "left");
        assert_eq!(of(&[LossReason::Left, LossReason::Killed]), "dead");
    }
}
