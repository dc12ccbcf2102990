//! Which state counts, and who gives or gets it (rule 25).
//!
//! The highest *legal* revision wins: the last one that the group agreed on, or the next; where none was agreed on yet,
//! any. Among the holders of that revision the most popular state wins, outline and contents together; a tie goes to
//! the state of the holder with the lowest rank, who has been here longest. So newcomers never outvote a checkpoint,
//! however many they are, and one flipped bit is outvoted by the others.
//!
//! | a member's offer | what becomes of it |
//! |---|---|
//! | the elected revision and state | *donor*, unless it only receives |
//! | a lower revision, none, or the elected one with other contents | *receiver* |
//! | a revision beyond the next | an error for it alone; the others go on |
//! | another outline than the elected one | an error for it alone, which names the key |
//! | `send_only`, and not elected | an error for it alone: nobody overwrites it |
//!
//! **Where nobody remembers.** What is possible is judged by members who took part in an agreement. If none of those
//! who vote did (all of them came since, after the others died), the count is only a floor: whoever is at or above it may
//! be elected. Below it only a state that *was agreed on* once may be, because it comes from a checkpoint or from a member
//! that lost its session: it is the best that is left of the training. A copy of such a state was agreed on as much as the
//! original: an election says whether what it elected was, and whoever is healed to it keeps that mark although the sync may
//! fail for somebody else. What was never agreed on, as a newcomer's first numbers, never goes on below what the group had
//! reached. And nobody goes on below the floor, or is told that nobody can give, while others wait to be let in: they may be those
//! who had it, on their way back. First they are let in.
//!
//! **Strategies.** `popular` gives and gets. `receive_only` never gives, and its revision counts for nothing.
//! `send_only` is never written to: of the holders of the highest revision, those who only send are heard before
//! the others, and popularity decides among their states. A revision it does not outweigh.
//!
//! A vote to *finish* follows: every member says when it has all it needs, and donors serve until the last one has said
//! so. Who is lost is no longer asked. Where somebody cannot be healed the sync fails for all, and the revision that the
//! group agreed on stays what it was.

use super::{Digest, Revision};
use crate::limits::{NAMED_MAX, STATE_KEY_BYTES_MAX};
use crate::wire::unknown::Vague;
use crate::wire::{InvalidMessage, within};
use minicbor::{CborLen, Decode, Encode};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What a member is willing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub enum Strategy {
    /// Give or get, whatever the group needs.
    #[default]
    #[n(0)]
    Popular,
    /// Give, and never be overwritten.
    #[n(1)]
    SendOnly,
    /// Get, and never give.
    #[n(2)]
    ReceiveOnly,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: [Self; 3] = [Self::Popular, Self::SendOnly, Self::ReceiveOnly];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Popular => "popular",
            Self::SendOnly => "send_only",
            Self::ReceiveOnly => "receive_only",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a strategy: write popular, send_only or receive_only")]
pub struct UnknownStrategy(String);

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(word: &str) -> Result<Self, UnknownStrategy> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == word);
        found.ok_or_else(|| UnknownStrategy(word.chars().take(32).collect()))
    }
}

/// What a member brings to a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Offer {
    /// The version of what it holds; none if it has nothing to give, or if a heal was torn (rule 26).
    #[n(0)]
    pub revision: Option<Revision>,
    /// What it is willing to do.
    #[n(1)]
    pub strategy: Strategy,
    /// Its outline's digest.
    #[n(2)]
    pub outline: Digest,
    /// Its root.
    #[n(3)]
    pub root: Digest,
    /// Whether a group has agreed on what it holds: by a sync, by a committed step, or before it was saved.
    #[cbor(n(4), default)]
    pub was_agreed: bool,
}

/// What a group knows of its revisions before a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The last that was agreed on.
    pub last: Option<Revision>,
    /// Whether any of those who vote took part in an agreement, and so knows what is possible.
    pub remembered: bool,
    /// Whether others wait to be let in, who may hold what those who vote do not.
    pub others_wait: bool,
}

impl Count {
    /// Whether a revision is beyond the next.
    fn is_ahead(self, revision: Revision) -> bool {
        self.remembered && self.last.is_some_and(|last| revision > last.saturating_add(1))
    }

    /// Whether it may be elected.
    fn allows(self, offer: &Offer, revision: Revision) -> bool {
        let reached = self.last.is_none_or(|last| revision >= last);
        let is_left_over = !self.remembered && !self.others_wait && offer.was_agreed;
        !self.is_ahead(revision) && (reached || is_left_over)
    }
}

/// A member's part in a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It holds what was elected, and serves it.
    Donor,
    /// It makes its state what was elected. Perhaps it is already.
    Receiver,
    /// It gets an error, and the others go on without it.
    Deviates(Deviation),
}

/// Why a member cannot take part. Its data is untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Deviation {
    /// Its revision is beyond what the group can have.
    #[error(
        "revision {offered} is ahead of what the group can have: it last agreed on {last}, so {last} and the \
         next one are possible; sync after each change, or give revision=None to receive"
    )]
    Ahead {
        /// What it offered.
        offered: Revision,
        /// The last that was agreed on.
        last: Revision,
    },
    /// Its keys, types or shapes are not those of the elected state.
    #[error("the keys, types or shapes of this state are not those of the group's")]
    Outline,
    /// It only sends, and something else was elected.
    #[error(
        "this member only sends, and the group elected another state (revision {elected}): bring it up to \
         date with strategy popular or receive_only"
    )]
    Outvoted {
        /// The revision that was elected.
        elected: Revision,
    },
}

/// What was elected. Every member finds its own part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Elected {
    /// The revision that the group had agreed on before.
    #[n(0)]
    pub last: Option<Revision>,
    /// The elected revision.
    #[n(1)]
    pub revision: Revision,
    /// The elected outline.
    #[n(2)]
    pub outline: Digest,
    /// The elected root.
    #[n(3)]
    pub root: Digest,
    /// Whether nobody who voted remembered what is possible.
    #[cbor(n(4), default)]
    pub unremembered: bool,
    /// Whether a group has agreed on it before: one of its holders says so. Whoever is healed to it holds what was agreed
    /// on, even if this sync comes to nothing.
    #[cbor(n(5), default)]
    pub was_agreed: bool,
}

impl Elected {
    /// The part of the member that made this offer.
    pub fn role(&self, offer: &Offer) -> Role {
        match offer.gives() {
            Some(offered) if self.count().is_ahead(offered) => {
                Role::Deviates(Deviation::Ahead { offered, last: self.last.unwrap_or_default() })
            }
            _ if offer.outline != self.outline => Role::Deviates(Deviation::Outline),
            Some(offered) if offered == self.revision && offer.root == self.root => Role::Donor,
            _ if offer.strategy == Strategy::SendOnly => {
                Role::Deviates(Deviation::Outvoted { elected: self.revision })
            }
            _ => Role::Receiver,
        }
    }

    fn count(&self) -> Count {
        Count { last: self.last, remembered: !self.unremembered, others_wait: false }
    }

    /// Whether that member holds the elected revision with other contents, though nothing told it so.
    pub fn is_diverged(&self, offer: &Offer) -> bool {
        let same_revision = offer.revision == Some(self.revision);
        same_revision && offer.root != self.root && self.role(offer) == Role::Receiver
    }
}

impl Offer {
    /// The revision that this member could give.
    fn gives(&self) -> Option<Revision> {
        self.revision.filter(|_| self.strategy != Strategy::ReceiveOnly)
    }
}

/// Why nobody can give. An error for all; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen, thiserror::Error)]
#[non_exhaustive]
pub enum NoDonor {
    /// No member has a revision, or those that have one only receive.
    #[error(
        "no member has a state to give: every one has revision None, is torn, or only receives; give a \
         revision at the member whose state is right, or load a checkpoint"
    )]
    #[n(0)]
    NothingToGive,
    /// Those that could give are behind what the group agreed on.
    #[error(
        "the group last agreed on revision {last}, and the best that any member has is {best}: everybody who had \
         it is gone; bring back a member or a checkpoint with revision {last}, or begin anew in another run"
    )]
    #[n(1)]
    Behind {
        /// The highest revision that is there.
        #[n(0)]
        best: Revision,
        /// The last that was agreed on.
        #[n(1)]
        last: Revision,
    },
    /// Every member is ahead of what is possible.
    #[error("every revision that was offered is ahead of what the group can have: it last agreed on {last}")]
    #[n(2)]
    AllAhead {
        /// The last that was agreed on.
        #[n(0)]
        last: Revision,
    },
    /// For a reason that a later version gives.
    #[error("no member can give a state, for a reason that this version does not know: update this side")]
    #[n(3)]
    NotKnown,
    /// Nobody who is in can give what the group had reached, and others wait outside.
    #[error(
        "nobody here has the state that the group had reached, and others wait outside who may: let them in with \
         update_topology, then sync again"
    )]
    #[n(4)]
    OthersOutside,
}

impl Vague for NoDonor {
    const UNKNOWN: Self = Self::NotKnown;
}

/// Elects. `count` is what the group knows of its revisions; `offers` are in the order of ranks.
pub fn elect<'a>(count: Count, offers: impl Iterator<Item = &'a Offer> + Clone) -> Result<Elected, NoDonor> {
    let last = count.last;
    let offered = || offers.clone().filter_map(Offer::gives);
    let legal = |offer: &'a Offer| offer.gives().filter(|revision| count.allows(offer, *revision));
    let Some(revision) = offers.clone().filter_map(legal).max() else {
        let behind = offered().filter(|revision| !count.is_ahead(*revision)).max();
        return Err(match (behind, last) {
            (None, Some(last)) if offered().next().is_some() => NoDonor::AllAhead { last },
            _ if count.others_wait => NoDonor::OthersOutside,
            (Some(best), Some(last)) => NoDonor::Behind { best, last },
            _ => NoDonor::NothingToGive,
        });
    };
    let holders = || offers.clone().filter(|offer| legal(offer) == Some(revision));
    let any_sender = holders().any(|offer| offer.strategy == Strategy::SendOnly);
    // Votes for each state, and the place of the first holder who is heard.
    let mut states: BTreeMap<(Digest, Digest), (usize, Option<usize>)> = BTreeMap::new();
    for (place, offer) in holders().enumerate() {
        let (votes, first) = states.entry((offer.outline, offer.root)).or_default();
        *votes += 1;
        if !any_sender || offer.strategy == Strategy::SendOnly {
            first.get_or_insert(place);
        }
    }
    let heard =
        states.into_iter().filter_map(|(state, (votes, first))| Some((votes, Reverse(first?), state)));
    let (_, _, (outline, root)) = heard.max().ok_or(NoDonor::NothingToGive)?;
    let was_agreed =
        holders().any(|offer| offer.was_agreed && (offer.outline, offer.root) == (outline, root));
    Ok(Elected { last, revision, outline, root, unremembered: !count.remembered, was_agreed })
}

/// What a member found when it was healed; told to all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Healed {
    /// Keys whose contents differed; the first few.
    #[n(0)]
    pub keys: Vec<String>,
    /// How many there were.
    #[n(1)]
    pub count: u32,
}

impl Healed {
    /// What to tell of these keys.
    pub fn of<'a>(keys: impl ExactSizeIterator<Item = &'a str>) -> Self {
        let count = keys.len() as u32;
        Self { keys: keys.take(NAMED_MAX).map(str::to_owned).collect(), count }
    }

    /// Holds the keys against their limits.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        within("keys", self.keys.len(), NAMED_MAX)?;
        self.keys.iter().try_for_each(|key| within("key", key.len(), STATE_KEY_BYTES_MAX))
    }
}
