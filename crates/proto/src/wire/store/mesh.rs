//! Between two members.
//!
//! A [`Hop`] is one frame on one link. It holds an [`Envelope`], which may be on its way to somebody else and is not
//! opened before it is there; in it is a [`Letter`], or a piece of one that is too long for a frame.

use super::account::{Account, Inquiry};
use super::operation::{Answer, Key, Operation};
use super::{Blob, CallName, ClientId, MemberId, StoreMember};
use crate::limits::{
    STORE_BUCKETS, STORE_FRAME_BYTES_MAX, STORE_HELD_MAX, STORE_KEY_BYTES_MAX, STORE_MESSAGE_BYTES_MAX,
    STORE_PIECE_BYTES, TEXT_BYTES_MAX,
};
use crate::wire::{InvalidMessage, Message, unknown, within};
use minicbor::{CborLen, Decode, Encode};

/// One frame on a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Hop {
    /// The first one in each direction: who speaks, to whom, and what it has of the other from before.
    #[n(0)]
    Greeting {
        /// Who speaks.
        #[n(0)]
        from: MemberId,
        /// Whom it takes the other for.
        #[n(1)]
        to: MemberId,
        /// Frames of the other that it has, without a gap.
        #[n(2)]
        received: u64,
        /// Which count its own numbers belong to: whoever forgot a link begins another one.
        #[n(3)]
        count: u64,
        /// The other's count, as far as it knows it; zero if it does not.
        #[n(4)]
        others_count: u64,
    },
    /// Something to pass on or to open.
    #[n(1)]
    Carry {
        /// Its number on this link, from one.
        #[n(0)]
        number: u64,
        /// Frames of the other that the sender has, without a gap.
        #[n(1)]
        received: u64,
        /// What is carried.
        #[n(2)]
        envelope: Envelope,
    },
    /// Nothing to carry, but this much has come.
    #[n(2)]
    Received(#[n(0)] u64),
}

/// What is carried, from whoever wrote it to whoever is to read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Envelope {
    /// The view that its writer was in.
    #[n(0)]
    pub epoch: u64,
    /// Who wrote it.
    #[n(1)]
    pub from: MemberId,
    /// Who is to read it; everybody, if nobody is named.
    #[n(2)]
    pub to: Option<MemberId>,
    /// How often it was passed on.
    #[n(3)]
    pub hops: u8,
    /// The number of a broadcast or of a parcel among its writer's.
    #[n(4)]
    pub number: u64,
    /// Which piece this is, and of how many; one of one is a whole [`Letter`].
    #[n(5)]
    pub piece: u32,
    /// See `piece`.
    #[n(6)]
    pub pieces: u32,
    /// A body, or a piece of one.
    #[n(7)]
    pub contents: Blob,
    /// A broadcast that goes to all neighbours, not along a tree: news of broken links and of the store's end, and what a
    /// broken link held up.
    /// If it names a reader, it is a broadcast from there on.
    #[n(8)]
    pub floods: bool,
}

/// What one member says to another, or to all: the contents of an envelope.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Letter {
    /// To a key's owner.
    #[n(0)]
    Request(#[n(0)] Request),
    /// To whoever asked.
    #[n(1)]
    Reply {
        /// Which call.
        #[n(0)]
        call: CallName,
        /// What became of it.
        #[n(1)]
        answer: Answer,
    },
    /// The reader of a request is not the key's owner, or not in that view.
    #[n(2)]
    NotHere {
        /// Which call.
        #[n(0)]
        call: CallName,
        /// The view that the reader is in.
        #[n(1)]
        epoch: u64,
    },
    /// From an owner to its replica: do the same. Numbered from one in every view.
    #[n(3)]
    Replicate {
        /// Its number among those of this owner to this replica in this view.
        #[n(0)]
        number: u64,
        /// What is done.
        #[n(1)]
        request: Request,
        /// Whom the replica answers when it is done; nobody if the owner answers itself.
        #[n(2)]
        asked_by: Option<MemberId>,
        /// Somebody else waits for this too: say at once that it is done.
        #[cbor(n(3), default)]
        is_awaited: bool,
        /// The number of the change that must be done before this one: the last one of the same key that the owner does not
        /// know to be done, zero if there is none. From an owner that does not say: the one before it.
        #[n(4)]
        after: Option<u64>,
    },
    /// From a replica to an owner: everything up to there is done, and of what is behind it these.
    #[n(4)]
    Replicated(#[n(0)] u64, #[cbor(n(1), default)] Vec<u64>),
    /// To somebody who holds buckets in the view that ends: what is in them? Answered with `Records`.
    #[n(5)]
    Pull {
        /// The view that is being prepared.
        #[n(0)]
        epoch: u64,
        /// Which buckets, in order.
        #[n(1)]
        buckets: Vec<u16>,
        /// Go on behind this key of the first of them.
        #[cbor(n(2), decode_with = "unknown::whole")]
        after: Option<Key>,
    },
    /// What is in buckets.
    #[n(6)]
    Records {
        /// The view that is being prepared.
        #[n(0)]
        epoch: u64,
        /// The buckets that this finishes, in the order of the question.
        #[n(1)]
        finished: u32,
        /// The records, in order.
        #[n(2)]
        records: Vec<Carried>,
    },
    /// Pieces of a parcel that have come, all of those before it too.
    #[n(7)]
    Pieces {
        /// The parcel's number.
        #[n(0)]
        parcel: u64,
        /// How many.
        #[n(1)]
        count: u32,
    },
    /// Which keys do you own?
    #[n(8)]
    ListKeys {
        /// Which call.
        #[n(0)]
        call: CallName,
        /// How they begin.
        #[n(1)]
        prefix: Blob,
        /// Go on behind this one.
        #[n(2)]
        after: Option<Blob>,
    },
    /// How many keys do you own?
    #[n(9)]
    CountKeys(#[n(0)] CallName),
    /// A call does not end: what do you know?
    #[n(10)]
    Inquire(#[n(0)] Inquiry),
    /// This.
    #[n(11)]
    Tell(#[n(0)] Account),
    /// Somebody wants the store to end. Everybody who hears it does so too, and says so.
    #[n(12)]
    Shutdown {
        /// Who began.
        #[n(0)]
        by: MemberId,
    },
    /// The reader of a shutdown joins in.
    #[n(13)]
    JoinsIn,
    /// Everybody joined in, or had time enough: the store ends now. Or one that was to end it has gone.
    #[n(14)]
    Exit {
        /// Who was gone without a word, if that is why.
        #[n(0)]
        lost: Option<StoreMember>,
    },
    /// Members that the writer cannot reach directly, of those that it should.
    #[n(15)]
    Broken(#[n(0)] Vec<MemberId>),
    /// For programs that want to tell all members something.
    #[n(16)]
    Payload(#[n(0)] Blob),
    /// From an owner to its replica: somebody waits for what has this number, so say when it is done.
    #[n(17)]
    HowFar(#[n(0)] u64),
}

/// One call, as its key's owner is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Request {
    /// Which call of whom.
    #[n(0)]
    pub call: CallName,
    /// The client has the answers of all its calls on this key that change something and have lower numbers.
    #[n(1)]
    pub answered_below: u64,
    /// Which key.
    #[n(2)]
    pub key: Key,
    /// What is asked.
    #[n(3)]
    pub operation: Operation,
    /// For how long it may wait.
    #[n(4)]
    pub patience_ms: u64,
    /// The last change of this key that the client has the answer of: it is with two members, whether or not the owner
    /// has heard so.
    #[n(5)]
    pub seen: Option<u64>,
    /// It was sent before, perhaps by somebody else, and may have been done.
    #[cbor(n(6), default)]
    pub again: bool,
}

/// A key's record, handed over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Carried {
    /// Which key.
    #[n(0)]
    pub key: Key,
    /// Its value.
    #[n(1)]
    pub value: Option<Blob>,
    /// The elements of a queue.
    #[n(2)]
    pub queue: Vec<Blob>,
    /// Calls that were done to it and may be asked for again.
    #[n(3)]
    pub done: Vec<(ClientId, u64, Answer)>,
    /// Numbers below which the calls of a client are over.
    #[n(4)]
    pub over: Vec<(ClientId, u64)>,
    /// Calls of clients outside the view were forgotten, because there were too many.
    #[cbor(n(5), default)]
    pub forgot: bool,
}

impl Message for Hop {
    const BYTES_MAX: usize = STORE_FRAME_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        let Self::Carry { envelope, .. } = self else { return Ok(()) };
        within("contents", envelope.contents.len(), STORE_PIECE_BYTES)?;
        let most = STORE_MESSAGE_BYTES_MAX.div_ceil(STORE_PIECE_BYTES);
        within("pieces", envelope.pieces as usize, most)?;
        if envelope.piece >= envelope.pieces {
            let value = format!("{} of {}", envelope.piece, envelope.pieces);
            return Err(InvalidMessage::Meaningless { field: "piece", value });
        }
        Ok(())
    }
}

impl Message for Letter {
    const BYTES_MAX: usize = STORE_MESSAGE_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Request(request) | Self::Replicate { request, .. } => request.check(),
            Self::Pull { buckets, after, .. } => {
                within("buckets", buckets.len(), STORE_BUCKETS)?;
                let odd = buckets.iter().find(|bucket| usize::from(**bucket) >= STORE_BUCKETS);
                odd.map_or(Ok(()), |bucket| within("bucket", usize::from(*bucket), STORE_BUCKETS - 1))?;
                after.as_ref().map_or(Ok(()), Key::check)
            }
            Self::Records { records, .. } => records.iter().try_for_each(|record| record.key.check()),
            Self::Replicated(_, beyond) => within("beyond", beyond.len(), STORE_HELD_MAX),
            Self::ListKeys { prefix, after, .. } => {
                within("prefix", prefix.len(), STORE_KEY_BYTES_MAX)?;
                within("after", after.as_ref().map_or(0, |key| key.len()), STORE_KEY_BYTES_MAX)
            }
            Self::Inquire(inquiry) => inquiry.check(),
            Self::Tell(account) => account.check(),
            Self::Exit { lost } => lost.as_ref().map_or(Ok(()), StoreMember::check),
            Self::Broken(members) => within("members", members.len(), TEXT_BYTES_MAX),
            _ => Ok(()),
        }
    }
}

impl Request {
    pub(crate) fn check(&self) -> Result<(), InvalidMessage> {
        self.key.check()?;
        self.operation.check_limits()
    }
}
