//! Making everybody's state the same: what a group votes on before and after the bytes move (rules 25 to 27).
//!
//! Two turns. In the first every member *offers* what it holds, and the outcome is what was elected, or that nobody can
//! give ([`crate::state::election`]). Then bytes move between members, which no vote sees. In the second every member says
//! that it is *done*, healed or not, and the outcome is that the sync is finished, or why it failed. A member that is lost
//! in between is not waited for. A member that deviates stands *apart*: it holds up nobody, and is not counted among those
//! who hold the elected state, because whoever goes on with that list deals out work by it. Whoever gives its call up in between says so, and the sync is over for all. Votes of
//! different turns side by side mean that somebody calls again without having said so: then all begin again.
//!
//! The last revision that the group agreed on is in every outcome, and so in every member's memory and in that of a
//! coordinator, also of a restarted one. A member may know a later one: a step of a training loop that was committed
//! agrees on a revision without a sync. So every offer says what its member knows, the coordinator notes the steps that it
//! commits, and the highest counts. An offer can
//! only claim what a group could have reached, because whoever claims more than that blocks only itself and its group,
//! which it could do by not calling.

use super::{Agreement, Hall, Reach, Rules, Seats, Step};
use crate::coordinator::ConnectionState;
use crate::id::PeerId;
use crate::limits::{COUNT_MAX, NAMED_MAX, OUTCOME_BYTES_MAX, TEXT_BYTES_MAX, WISH_BYTES_MAX};
use crate::state::election::{Count, Elected, Healed, NoDonor, Offer, Role, elect};
use crate::state::{Digest, Revision};
use crate::wire::control::BallotKind;
use crate::wire::unknown::vague;
use crate::wire::{self, InvalidMessage, Message, clip, within};
use minicbor::{CborLen, Decode, Encode};

/// Its number on the wire.
pub const KIND: BallotKind = BallotKind(2);

/// Donors that an election names. More would fill no receiver's link.
pub const DONORS_NAMED_MAX: usize = 64;
/// Most members that a finished sync lists. All of them with the names of keys fit an outcome.
pub const CREW_MAX: usize = 4_096;
/// Bytes of keys that a finished sync names, all members together.
const KEY_BYTES_MAX: usize = 32 << 10;

/// What a voter says.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum Wish {
    /// The first turn: what it holds, and the last revision that it knows its group agreed on.
    #[n(0)]
    Offer(#[n(0)] Offer, #[n(1)] Option<Revision>),
    /// The second turn, after the election of that root: it has all it needs.
    #[n(1)]
    Done(#[n(0)] Digest, #[n(1)] Healed),
    /// The second turn: it could not be healed, and why.
    #[n(2)]
    Failed(#[n(0)] Digest, #[n(1)] String),
    /// Between the turns: it is being healed, and has so many of so many leaves. Changed as they come, and in the end
    /// to one of the two above; nothing is counted before.
    #[n(3)]
    Healing(#[n(0)] Digest, #[n(1)] u64, #[n(2)] u64),
    /// The second turn: it deviates, keeps what it has, and is no obstacle to the others.
    #[n(4)]
    Apart(#[n(0)] Digest),
}

/// What a group agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum Outcome {
    /// That state counts, these members give it, and these hold the same revision with other contents.
    #[n(0)]
    Elected {
        /// What was elected.
        #[n(0)]
        elected: Elected,
        /// Who serves it, in the order of ranks.
        #[n(1)]
        donors: Vec<PeerId>,
        /// Who had diverged without knowing it; the first few.
        #[n(2)]
        diverged: Vec<PeerId>,
    },
    /// Nobody can give.
    #[n(1)]
    NoDonor {
        /// The revision that the group had agreed on.
        #[n(0)]
        last: Option<Revision>,
        /// Why.
        #[n(1)]
        #[cbor(decode_with = "vague")]
        why: NoDonor,
    },
    /// Every member holds the elected state, but for those that deviate.
    #[n(2)]
    Finished {
        /// Its revision.
        #[n(0)]
        revision: Revision,
        /// Who was healed, and of what; the first few.
        #[n(1)]
        healed: Vec<(PeerId, Healed)>,
        /// Everybody who holds it, in the order of ranks: whoever hears of this sync knows the same members, also if
        /// some are gone by then. Who deviates is not among them. None if there are more than [`CREW_MAX`].
        #[cbor(n(2), default)]
        members: Vec<PeerId>,
    },
    /// Somebody could not be healed, or began again.
    #[n(3)]
    Failed {
        /// The revision that the group had agreed on.
        #[n(0)]
        last: Option<Revision>,
        /// Who, and why; the first few.
        #[n(1)]
        reasons: Vec<(PeerId, String)>,
    },
}

impl Message for Wish {
    const BYTES_MAX: usize = WISH_BYTES_MAX;

    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Offer(offer, last) => {
                [offer.revision, *last].into_iter().flatten().try_for_each(|revision| {
                    let too_far =
                        || InvalidMessage::Meaningless { field: "revision", value: revision.to_string() };
                    if revision <= COUNT_MAX { Ok(()) } else { Err(too_far()) }
                })
            }
            Self::Done(_, healed) => healed.check(),
            Self::Failed(_, why) => within("reason", why.len(), TEXT_BYTES_MAX),
            Self::Apart(_) => Ok(()),
            Self::Healing(_, have, want) if have <= want => Ok(()),
            Self::Healing(_, have, want) => {
                Err(InvalidMessage::Meaningless { field: "leaves", value: format!("{have} of {want}") })
            }
        }
    }
}

impl Message for Outcome {
    const BYTES_MAX: usize = OUTCOME_BYTES_MAX;

    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Elected { donors, diverged, .. } => {
                within("donors", donors.len(), DONORS_NAMED_MAX)?;
                within("diverged", diverged.len(), NAMED_MAX)
            }
            Self::NoDonor { .. } => Ok(()),
            Self::Finished { healed, members, .. } => {
                within("members", members.len(), CREW_MAX)?;
                within("healed", healed.len(), NAMED_MAX)?;
                healed.iter().try_for_each(|(_, healed)| healed.check())
            }
            Self::Failed { reasons, .. } => {
                within("reasons", reasons.len(), NAMED_MAX)?;
                reasons.iter().try_for_each(|(_, why)| within("reason", why.len(), TEXT_BYTES_MAX))
            }
        }
    }
}

impl Wish {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        wire::decode(bytes).ok()
    }
}

impl Outcome {
    /// What the bytes of an outcome say. They come from the coordinator.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        wire::decode(bytes)
    }

    /// The last revision that the group has agreed on, as of this.
    pub fn last(&self) -> Option<Revision> {
        match self {
            Self::Elected { elected, .. } => elected.last,
            Self::NoDonor { last, .. } | Self::Failed { last, .. } => *last,
            Self::Finished { revision, .. } => Some(*revision),
        }
    }
}

/// The rules of a sync.
#[derive(Debug)]
pub(crate) struct Sync;

impl Rules for Sync {
    fn kind(&self) -> BallotKind {
        KIND
    }

    fn name(&self) -> &'static str {
        "sync_state"
    }

    fn call(&self, wish: &[u8]) -> String {
        match Wish::decode(wish) {
            Some(Wish::Healing(_, have, want)) => format!("sync_state ({have} of {want} leaves are here)"),
            _ => self.name().to_owned(),
        }
    }

    fn state(&self, wish: &[u8]) -> ConnectionState {
        match Wish::decode(wish) {
            Some(Wish::Offer(..)) | None => ConnectionState::VoteSyncState,
            Some(Wish::Healing(..)) => ConnectionState::SyncingState,
            Some(Wish::Done(..) | Wish::Apart(_)) => ConnectionState::VoteSyncComplete,
            Some(Wish::Failed(..)) => ConnectionState::SyncFailed,
        }
    }

    fn state_after(&self, outcome: &[u8]) -> Option<ConnectionState> {
        match Outcome::decode(outcome).ok()? {
            Outcome::Elected { .. } => Some(ConnectionState::SyncingState),
            Outcome::Failed { .. } => Some(ConnectionState::SyncFailed),
            Outcome::NoDonor { .. } | Outcome::Finished { .. } => None,
        }
    }

    fn goes_on(&self, outcome: &[u8]) -> bool {
        matches!(Outcome::decode(outcome), Ok(Outcome::Elected { .. }))
    }

    fn reach(&self) -> Reach {
        Reach::Group
    }

    fn check(&self, wish: &[u8]) -> Result<(), String> {
        wire::decode::<Wish>(wish).map(drop).map_err(|error| format!("is no vote in a sync: {error}"))
    }

    fn agreement(&self, outcome: &[u8]) -> Option<Agreement> {
        match Outcome::decode(outcome) {
            Ok(Outcome::Finished { revision, members, .. }) => {
                Some(Agreement { revision, holders: members.into_iter().collect() })
            }
            _ => None,
        }
    }

    fn is_final(&self, wish: &[u8]) -> bool {
        !matches!(Wish::decode(wish), Some(Wish::Healing(..)))
    }

    fn count(&self, hall: &Hall<'_>) -> Step {
        let ready = |seats: &&Seats<'_>| {
            seats.is_unanimous() && seats.is_linked && seats.wishes().all(|(_, wish)| self.is_final(wish))
        };
        let agreed: Vec<_> =
            hall.groups().filter(ready).map(|seats| (seats.group, self.outcome(hall, seats))).collect();
        if agreed.is_empty() { Step::Wait } else { Step::Agree(agreed) }
    }

    fn outcome(&self, hall: &Hall<'_>, seats: &Seats<'_>) -> Vec<u8> {
        let before = seats.agreed.and_then(|outcome| Outcome::decode(outcome).ok());
        let wishes: Vec<_> =
            seats.wishes().filter_map(|(peer, wish)| Some((peer, Wish::decode(wish)?))).collect();
        let size = seats.members.len();
        let others_wait = hall.lobby().is_some_and(|lobby| lobby.prospect(seats.group, size).0 > size);
        wire::encode(&outcome(before.as_ref(), seats.revision, &wishes, others_wait))
    }
}

/// The last revision that an outcome tells of.
pub(crate) fn last(outcome: &[u8]) -> Option<Revision> {
    Outcome::decode(outcome).ok()?.last()
}

/// `reached`: the revision that the coordinator knows of, by the last sync or the steps that were committed since.
/// `others_wait`: whether a vote for newcomers would let anybody into the group.
fn outcome(
    before: Option<&Outcome>,
    reached: Option<Revision>,
    wishes: &[(PeerId, Wish)],
    others_wait: bool,
) -> Outcome {
    let mut last = reached.or_else(|| before.and_then(Outcome::last));
    let offers: Vec<_> =
        wishes
            .iter()
            .filter_map(|(peer, wish)| {
                if let Wish::Offer(offer, known) = wish { Some((*peer, *offer, *known)) } else { None }
            })
            .collect();
    if !offers.is_empty() {
        last =
            offers.iter().filter_map(|(_, _, known)| *known).fold(last, |last, known| last.max(Some(known)));
    }
    if offers.len() == wishes.len() {
        let remembered = offers.iter().any(|(_, _, known)| known.is_some());
        return election(Count { last, remembered, others_wait }, &offers);
    }
    finish(before, last, wishes)
}

fn election(count: Count, offers: &[(PeerId, Offer, Option<Revision>)]) -> Outcome {
    let elected = match elect(count, offers.iter().map(|(_, offer, _)| offer)) {
        Ok(elected) => elected,
        Err(why) => return Outcome::NoDonor { last: count.last, why },
    };
    let named = |wanted: &dyn Fn(&Offer) -> bool, most: usize| -> Vec<PeerId> {
        offers.iter().filter(|(_, offer, _)| wanted(offer)).map(|(peer, ..)| *peer).take(most).collect()
    };
    let donors = named(&|offer| elected.role(offer) == Role::Donor, DONORS_NAMED_MAX);
    let diverged = named(&|offer| elected.is_diverged(offer), NAMED_MAX);
    Outcome::Elected { elected, donors, diverged }
}

/// The end of a sync that elected `before`.
fn finish(before: Option<&Outcome>, last: Option<Revision>, wishes: &[(PeerId, Wish)]) -> Outcome {
    let elected = match before {
        Some(Outcome::Elected { elected, .. }) => Some(elected),
        _ => None,
    };
    let reason = |wish: &Wish| match wish {
        Wish::Failed(_, why) => Some(clip(why, TEXT_BYTES_MAX)),
        Wish::Offer(..) => Some("it began again".to_owned()),
        Wish::Healing(..) => Some("it is not healed yet".to_owned()),
        Wish::Done(root, _) | Wish::Apart(root) if elected.is_none_or(|elected| elected.root != *root) => {
            Some("it was in another sync".to_owned())
        }
        Wish::Done(..) | Wish::Apart(_) => None,
    };
    let holders: Vec<_> =
        wishes.iter().filter(|(_, wish)| matches!(wish, Wish::Done(..))).map(|(peer, _)| *peer).collect();
    let reasons: Vec<_> =
        wishes.iter().filter_map(|(peer, wish)| Some((*peer, reason(wish)?))).take(NAMED_MAX).collect();
    match elected {
        // What nobody holds any more was not agreed on by those who stand apart.
        Some(elected) if reasons.is_empty() && !holders.is_empty() => {
            let mut room = KEY_BYTES_MAX;
            let mut healed = Vec::new();
            for (peer, wish) in wishes {
                let Wish::Done(_, found) = wish else { continue };
                if found.count == 0 || healed.len() == NAMED_MAX {
                    continue;
                }
                let mut told = found.clone();
                told.keys.retain(|key| {
                    let fits = key.len() <= room;
                    room -= if fits { key.len() } else { 0 };
                    fits
                });
                healed.push((*peer, told));
            }
            let members = if holders.len() > CREW_MAX { Vec::new() } else { holders };
            Outcome::Finished { revision: elected.revision, healed, members }
        }
        _ => Outcome::Failed { last, reasons },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::paths::Paths;
    use crate::coordinator::survey::Survey;

    fn outcome(before: Option<&Outcome>, wishes: &[(PeerId, Wish)]) -> Outcome {
        super::outcome(before, None, wishes, false)
    }
    use crate::state::election::Strategy;

    fn peer(number: u8) -> PeerId {
        PeerId::from_bytes([number; 16])
    }

    fn offer(number: u8, revision: Option<Revision>, contents: u8) -> (PeerId, Wish) {
        let (strategy, outline, root) = (Strategy::Popular, Digest::of(b"outline"), Digest::of(&[contents]));
        (peer(number), Wish::Offer(Offer { revision, strategy, outline, root, was_agreed: false }, None))
    }

    fn done(number: u8, contents: u8, keys: &[&str]) -> (PeerId, Wish) {
        (peer(number), Wish::Done(Digest::of(&[contents]), Healed::of(keys.iter().copied())))
    }

    fn elected(last: Option<Revision>, revision: Revision) -> Outcome {
        let before = last.map(|revision| Outcome::Finished { revision, healed: vec![], members: vec![] });
        outcome(
            before.as_ref(),
            &[offer(1, Some(revision), 1), offer(2, None, 2), offer(3, Some(revision), 3)],
        )
    }

    #[test]
    fn the_first_turn_elects_and_the_second_finishes() {
        let first = elected(Some(5), 5);
        let Outcome::Elected { elected, donors, diverged } = &first else { panic!("{first:?}") };
        assert_eq!((elected.last, elected.revision), (Some(5), 5));
        assert_eq!((&donors[..], &diverged[..]), (&[peer(1)][..], &[peer(3)][..]));
        let second = outcome(Some(&first), &[done(1, 1, &[]), done(2, 1, &["a", "b"]), done(3, 1, &["b"])]);
        let Outcome::Finished { revision: 5, healed, members } = &second else { panic!("{second:?}") };
        assert_eq!(members[..], [peer(1), peer(2), peer(3)]);
        assert_eq!(
            healed.iter().map(|(peer, found)| (*peer, found.count)).collect::<Vec<_>>(),
            [(peer(2), 2), (peer(3), 1)]
        );
        assert_eq!(second.last(), Some(5));
        for told in [first, second] {
            assert_eq!(Outcome::decode(&minicbor::to_vec(&told).unwrap()), Ok(told));
        }
    }

    /// They used to be listed, and `Elastic` dealt samples to them that nobody used.
    #[test]
    fn who_deviates_is_not_among_those_who_hold_the_state() {
        let first = elected(Some(5), 5);
        let apart = |number, contents| (peer(number), Wish::Apart(Digest::of(&[contents])));
        let told = outcome(Some(&first), &[done(1, 1, &[]), apart(2, 1), done(3, 1, &["b"])]);
        let Outcome::Finished { revision: 5, healed, members } = &told else { panic!("{told:?}") };
        assert_eq!((&members[..], healed.len()), (&[peer(1), peer(3)][..], 1));
        // Those who held it are gone: nothing was agreed on.
        let alone = outcome(Some(&first), &[apart(2, 1)]);
        assert_eq!(alone, Outcome::Failed { last: Some(5), reasons: vec![] });
        let other = outcome(Some(&first), &[done(1, 1, &[]), apart(2, 9)]);
        let reasons = vec![(peer(2), "it was in another sync".to_owned())];
        assert_eq!(other, Outcome::Failed { last: Some(5), reasons });
    }

    /// A copy that was healed and then not finished lost the mark, and an older checkpoint was elected in its place.
    #[test]
    fn an_election_says_whether_what_it_elected_was_agreed_on() {
        let agreed = |(peer, wish)| {
            let Wish::Offer(offer, known) = wish else { unreachable!() };
            (peer, Wish::Offer(Offer { was_agreed: true, ..offer }, known))
        };
        let was_agreed = |wishes: &[(PeerId, Wish)]| match outcome(None, wishes) {
            Outcome::Elected { elected, .. } => elected.was_agreed,
            other => panic!("{other:?}"),
        };
        assert!(was_agreed(&[offer(1, Some(6), 1), agreed(offer(2, Some(6), 1)), offer(3, None, 3)]));
        assert!(!was_agreed(&[offer(1, Some(6), 1), agreed(offer(2, Some(5), 2))]), "an older one was");
        let minority = [offer(1, Some(6), 1), offer(2, Some(6), 1), agreed(offer(3, Some(6), 2))];
        assert!(!was_agreed(&minority), "other contents were");
    }

    #[test]
    fn a_sync_that_fails_changes_nothing_in_the_count() {
        let first = elected(Some(5), 6);
        let failed = outcome(
            Some(&first),
            &[done(1, 1, &[]), (peer(2), Wish::Failed(Digest::of(&[1]), "why".to_owned()))],
        );
        assert_eq!(failed, Outcome::Failed { last: Some(5), reasons: vec![(peer(2), "why".to_owned())] });
        assert_eq!(outcome(Some(&failed), &[offer(1, Some(6), 1)]).last(), Some(5), "6 is still the next");
        let nothing = outcome(Some(&failed), &[offer(1, Some(4), 1)]);
        assert_eq!(nothing, Outcome::NoDonor { last: Some(5), why: NoDonor::Behind { best: 4, last: 5 } });
    }

    #[test]
    fn turns_side_by_side_make_all_begin_again() {
        let first = elected(None, 5);
        let mixed = outcome(Some(&first), &[done(1, 1, &[]), offer(2, None, 2)]);
        assert_eq!(
            mixed,
            Outcome::Failed { last: None, reasons: vec![(peer(2), "it began again".to_owned())] }
        );
        let other = outcome(Some(&first), &[done(1, 9, &[]), done(2, 1, &[])]);
        let reasons = vec![(peer(1), "it was in another sync".to_owned())];
        assert_eq!(other, Outcome::Failed { last: None, reasons });
        assert!(matches!(outcome(None, &[done(1, 1, &[])]), Outcome::Failed { .. }), "nothing was elected");
    }

    #[test]
    fn a_revision_that_one_member_knows_of_counts() {
        let (id, Wish::Offer(fresh, _)) = offer(2, Some(0), 2) else { unreachable!() };
        let knowing = (id, Wish::Offer(fresh, Some(1_000)));
        let told = outcome(None, &[offer(1, Some(0), 1), knowing]);
        assert_eq!(
            told,
            Outcome::NoDonor { last: Some(1_000), why: NoDonor::Behind { best: 0, last: 1_000 } }
        );
    }

    #[test]
    fn where_nobody_remembers_a_checkpoint_goes_on_and_a_newcomer_does_not() {
        let before = Outcome::Finished { revision: 700, healed: vec![], members: vec![] };
        let with = |(peer, wish), agreed, known| {
            let Wish::Offer(offer, _) = wish else { unreachable!() };
            (peer, Wish::Offer(Offer { was_agreed: agreed, ..offer }, known))
        };
        let revision = |told: Outcome| match told {
            Outcome::Elected { elected, donors, .. } => Ok((elected.revision, donors)),
            Outcome::NoDonor { why, .. } => Err(why),
            other => panic!("{other:?}"),
        };
        let [fresh, old, newer] = [offer(1, Some(0), 1), offer(2, Some(600), 2), offer(3, Some(900), 3)];
        // Everybody who was there is gone: a fresh member does not begin at zero ..
        let alone = [with(fresh.clone(), false, None)];
        assert_eq!(revision(outcome(Some(&before), &alone)), Err(NoDonor::Behind { best: 0, last: 700 }));
        // .. and not below the steps that were committed since the last sync.
        let told = super::outcome(None, Some(950), &alone, false);
        assert_eq!(told, Outcome::NoDonor { last: Some(950), why: NoDonor::Behind { best: 0, last: 950 } });
        // .. a checkpoint goes on, below or beyond what the coordinator remembers, and the newest of them wins.
        let resumed = [with(fresh.clone(), false, None), with(old.clone(), true, None)];
        assert_eq!(revision(outcome(Some(&before), &resumed)), Ok((600, vec![peer(2)])));
        let both = [resumed[0].clone(), resumed[1].clone(), with(newer.clone(), true, None)];
        assert_eq!(revision(outcome(Some(&before), &both)), Ok((900, vec![peer(3)])));
        // Where somebody was there, its word counts: a checkpoint beyond the next is of another training.
        let beside = [with(offer(1, Some(701), 1), true, Some(701)), with(newer, true, None)];
        let told = outcome(Some(&before), &beside);
        let Outcome::Elected { elected, .. } = &told else { panic!("{told:?}") };
        let Wish::Offer(ahead, _) = &beside[1].1 else { unreachable!() };
        assert!(matches!(elected.role(ahead), Role::Deviates(_)), "{told:?}");
        assert_eq!(revision(told), Ok((701, vec![peer(1)])));
    }

    #[test]
    fn nobody_is_told_that_nobody_can_give_while_others_wait_outside() {
        let told =
            |wishes: &[(PeerId, Wish)], others_wait| super::outcome(None, Some(700), wishes, others_wait);
        let outside = Outcome::NoDonor { last: Some(700), why: NoDonor::OthersOutside };
        let Wish::Offer(old, _) = offer(2, Some(600), 2).1 else { unreachable!() };
        let checkpoint = (peer(2), Wish::Offer(Offer { was_agreed: true, ..old }, None));
        // A checkpoint is what is left of a training, but only if nobody may have more of it.
        assert!(matches!(told(std::slice::from_ref(&checkpoint), false), Outcome::Elected { .. }));
        assert_eq!(told(&[checkpoint], true), outside);
        for lacking in [offer(1, Some(0), 1), offer(1, None, 1)] {
            assert_eq!(told(&[lacking], true), outside);
        }
        // Who holds what was reached waits for nobody; and whoever is ahead is no better off with others beside it.
        assert!(matches!(told(&[offer(1, Some(700), 1)], true), Outcome::Elected { .. }));
        let Wish::Offer(ahead, _) = offer(1, Some(900), 1).1 else { unreachable!() };
        let why = NoDonor::AllAhead { last: 700 };
        let told = told(&[(peer(1), Wish::Offer(ahead, Some(700)))], true);
        assert_eq!(told, Outcome::NoDonor { last: Some(700), why });
    }

    #[test]
    fn nothing_is_counted_while_somebody_is_being_healed() {
        let members = [peer(1), peer(2)];
        let wish = |have| Wish::Healing(Digest::of(&[1]), have, 10);
        let counted = |second: &Wish| {
            let (_, first) = done(1, 1, &[]);
            let votes = [(peer(1), first.encode()), (peer(2), second.encode())].into();
            let seats = Seats {
                group: 0,
                members: &members,
                ring: &members,
                refused_ring: None,
                paths: &Paths::default(),
                survey: &Survey::default(),
                votes: Some(&votes),
                agreed: None,
                revision: None,
                is_quiet: true,
                is_linked: true,
            };
            Sync.count(&Hall::new(vec![seats], None))
        };
        assert_eq!(counted(&wish(3)), Step::Wait);
        assert!(matches!(counted(&done(2, 1, &[]).1), Step::Agree(_)));
        let told = wish(3).encode();
        assert_eq!(Sync.state(&told), ConnectionState::SyncingState);
        assert_eq!(Sync.call(&told), "sync_state (3 of 10 leaves are here)");
        assert!(Sync.check(&wish(11).encode()).is_err(), "more than all");
    }

    #[test]
    fn what_is_no_vote_is_refused_and_outcomes_stay_small() {
        let rules = Sync;
        assert!(rules.check(b"").is_err() && rules.check(&[0xff; 40]).is_err());
        let (_, far) = offer(1, Some(COUNT_MAX + 1), 1);
        assert!(rules.check(&far.encode()).unwrap_err().contains("revision"));
        let (_, near) = offer(1, Some(COUNT_MAX), 1);
        assert_eq!(
            (rules.check(&near.encode()), rules.state(&near.encode())),
            (Ok(()), ConnectionState::VoteSyncState)
        );
        let key = "k".repeat(512);
        let keys = vec![key.as_str(); 32];
        let first = elected(None, 5);
        let crowd = |count: usize| (0..count).map(|_| done(1, 1, &keys)).collect::<Vec<_>>();
        let bytes = minicbor::to_vec(outcome(Some(&first), &crowd(CREW_MAX))).unwrap();
        assert!(bytes.len() < crate::limits::OUTCOME_BYTES_MAX, "{} bytes", bytes.len());
        let more = outcome(Some(&first), &crowd(CREW_MAX + 1));
        let Outcome::Finished { members, .. } = more else { panic!("{more:?}") };
        assert!(members.is_empty(), "who cannot be listed whole is not listed in part");
        let failing = |number| (peer(number), Wish::Failed(Digest::of(&[1]), "w".repeat(TEXT_BYTES_MAX)));
        let wishes: Vec<_> = (0..=255).map(failing).collect();
        assert!(
            minicbor::to_vec(outcome(Some(&first), &wishes)).unwrap().len()
                < crate::limits::OUTCOME_BYTES_MAX
        );
    }
}
