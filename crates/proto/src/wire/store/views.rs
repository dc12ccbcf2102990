//! Between a member and whoever decides on views: the *registrar* of a coordinator, or of the member with rank 0 of a
//! store without one.

use super::{MemberId, StoreMember, View};
use crate::limits::{COUNT_MAX, FRAME_BYTES_MAX, STORE_MEMBERS_MAX, TEXT_BYTES_MAX};
use crate::wire::{InvalidMessage, Message, within};
use minicbor::{CborLen, Decode, Encode};

/// To the registrar.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum ToRegistrar {
    /// The first words of a member.
    #[n(0)]
    Register {
        /// Who it is.
        #[n(0)]
        member: StoreMember,
        /// The view that it is in, for a registrar that has forgotten.
        #[n(1)]
        view: Option<View>,
        /// The highest term and epoch that it was given orders under.
        #[n(2)]
        term: u64,
        /// See `term`.
        #[n(3)]
        epoch: u64,
        /// The view that it froze for, which may have begun for others.
        #[n(4)]
        next: Option<View>,
        /// Whoever founded the store that it was in last, also if it is in no view of it any more.
        #[n(5)]
        founder: Option<u64>,
    },
    /// I live; let me answer for longer. Answered with `Granted`.
    #[n(1)]
    Renew {
        /// Repeated by the answer.
        #[n(0)]
        number: u64,
        /// What the member holds, for people: keys that it owns, bytes, calls that wait with it.
        #[n(1)]
        keys: u64,
        /// See `keys`.
        #[n(2)]
        bytes: u64,
        /// See `keys`.
        #[n(3)]
        waits: u64,
        /// How much has come so far of what it fetches for a view to come, in pieces of any size: it is of interest whether
        /// that grows. None if no view is to come, and from members that do not say.
        #[n(4)]
        fetched: Option<u64>,
    },
    /// What that view moves is frozen here.
    #[n(2)]
    Prepared(#[n(0)] u64),
    /// What this member holds in that view is here.
    #[n(3)]
    Ready(#[n(0)] u64),
    /// The member is in that view.
    #[n(4)]
    Activated(#[n(0)] u64),
    /// The member goes, and has time to hand over.
    #[n(5)]
    Leave,
    /// Somebody who is no member asks for the view.
    #[n(6)]
    Look,
    /// The store ends: members that go are not missed.
    #[n(7)]
    Ends,
    /// When was that member heard last? Answered with `Standing`.
    #[n(8)]
    Ask(#[n(0)] MemberId),
}

/// From the registrar. Orders carry its term; members obey no lower one than they have obeyed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum FromRegistrar {
    /// The lease lasts so long from when the question was *sent*.
    #[n(0)]
    Granted {
        /// The question's number.
        #[n(0)]
        number: u64,
        /// How long.
        #[n(1)]
        lease_ms: u64,
    },
    /// Freeze what this view moves, and say so.
    #[n(1)]
    Prepare {
        /// The registrar's.
        #[n(0)]
        term: u64,
        /// The view to come.
        #[n(1)]
        view: View,
        /// The view that ends; none before the first.
        #[n(2)]
        ends: Option<View>,
    },
    /// All who count have frozen it: fetch what you will hold and do not have, and say when it is here.
    #[n(2)]
    Fetch {
        /// The registrar's.
        #[n(0)]
        term: u64,
        /// The view to come.
        #[n(1)]
        epoch: u64,
        /// Members of the view that ends who are not asked: they are gone.
        #[n(2)]
        gone: Vec<MemberId>,
    },
    /// This view begins.
    #[n(3)]
    Activate {
        /// The registrar's.
        #[n(0)]
        term: u64,
        /// The view.
        #[n(1)]
        view: View,
    },
    /// Everybody is in that view: what was held before it may be forgotten.
    #[n(4)]
    Settled(#[n(0)] u64),
    /// The member is in no view any more; it may register again as a new one.
    #[n(5)]
    Out(#[n(0)] String),
    /// The view at present, for somebody who looks, and what each of its members holds: keys, bytes, waits.
    #[n(6)]
    Shown {
        /// The view; none before the first.
        #[n(0)]
        view: Option<View>,
        /// In the order of the view's members.
        #[n(1)]
        holdings: Vec<(u64, u64, u64)>,
        /// What is waited for before there can be a view, in words; none if nobody is expected.
        #[n(2)]
        waits_for: Option<String>,
    },
    /// The member was heard and will be in a view once this has happened.
    #[n(7)]
    Waits(#[n(0)] String),
    /// The store has ended: by a shutdown, or because this member was gone and was to end it.
    #[n(8)]
    Ended(#[n(0)] Option<StoreMember>),
    /// How a member stands that was asked about.
    #[n(9)]
    Standing {
        /// Whom.
        #[n(0)]
        member: MemberId,
        /// How long ago it was heard; none if it has no stream here.
        #[n(1)]
        heard_ms: Option<u64>,
    },
}

impl Message for ToRegistrar {
    const BYTES_MAX: usize = FRAME_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        let Self::Register { member, view, next, term, epoch, .. } = self else { return Ok(()) };
        member.check()?;
        within("term", *term as usize, COUNT_MAX as usize)?;
        within("epoch", *epoch as usize, COUNT_MAX as usize)?;
        next.as_ref().map_or(Ok(()), View::check)?;
        view.as_ref().map_or(Ok(()), View::check)
    }
}

impl Message for FromRegistrar {
    const BYTES_MAX: usize = FRAME_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Prepare { view, ends, .. } => {
                view.check()?;
                ends.as_ref().map_or(Ok(()), View::check)
            }
            Self::Activate { view, .. } => view.check(),
            Self::Ended(lost) => lost.as_ref().map_or(Ok(()), StoreMember::check),
            Self::Fetch { gone, .. } => within("gone", gone.len(), STORE_MEMBERS_MAX),
            Self::Out(text) | Self::Waits(text) => within("text", text.len(), TEXT_BYTES_MAX),
            Self::Shown { view, holdings, waits_for } => {
                within("text", waits_for.as_ref().map_or(0, String::len), TEXT_BYTES_MAX)?;
                within("holdings", holdings.len(), STORE_MEMBERS_MAX)?;
                view.as_ref().map_or(Ok(()), View::check)
            }
            Self::Granted { .. } | Self::Settled(_) | Self::Standing { .. } => Ok(()),
        }
    }
}
