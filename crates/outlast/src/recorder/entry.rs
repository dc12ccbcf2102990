//! One record: what it holds, how it becomes words, and what of a message is worth keeping.

use crate::executor::{Direction, LinkEvent};
use outlast_proto::collective::{Fingerprint, OpKey};
use outlast_proto::id::PeerId;
use outlast_proto::membership::Event;
use outlast_proto::session::{CallId, Command, PerformResult};
use outlast_proto::time::Instant;
use outlast_proto::topology::Figure;
use outlast_proto::wire::control::{AbortReason, BallotEnd, BallotId, ToCoordinator, ToPeer, Verdict};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a record: nine of numbers, two of its name, ten of its text.
pub(super) const WORDS: usize = NUMBERS + NAME_WORDS + TEXT_WORDS;
const NUMBERS: usize = 8;
const NAME_WORDS: usize = 2;
const TEXT_WORDS: usize = 10;

const HAS_SUBJECT: u8 = 1;
const HAS_PLACE: u8 = 2;
const HAS_PEER: u8 = 4;
const HAS_AMOUNT: u8 = 8;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum What {
    /// The program made a call.
    Called,
    /// The session told the thread of a call what to do.
    Ordered,
    /// The bytes of an attempt have moved, or have not.
    Moved,
    /// A call is over.
    Ended,
    /// A message was sent over the control connection.
    Sent,
    /// A message came over the control connection.
    Heard,
    /// A data link came up, broke, or became slow.
    Link,
    /// The control connection itself.
    Line,
    /// What the health plane says of a member.
    Health,
    /// What the coordinator decided, in words.
    Decided,
}

impl What {
    const ALL: [Self; 10] = [
        Self::Called,
        Self::Ordered,
        Self::Moved,
        Self::Ended,
        Self::Sent,
        Self::Heard,
        Self::Link,
        Self::Line,
        Self::Health,
        Self::Decided,
    ];

    const fn word(self) -> &'static str {
        match self {
            Self::Called => "called",
            Self::Ordered => "ordered",
            Self::Moved => "moved",
            Self::Ended => "ended",
            Self::Sent => "sent",
            Self::Heard => "heard",
            Self::Link => "link",
            Self::Line => "line",
            Self::Health => "health",
            Self::Decided => "decided",
        }
    }
}

/// The attempt that something belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    group: u32,
    epoch: u64,
    tag: u64,
    seq: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    what: What,
    /// At most sixteen bytes are kept.
    name: &'a str,
    /// The number of a call; at a coordinator, of a run.
    subject: Option<u64>,
    place: Option<Place>,
    peer: Option<PeerId>,
    amount: Option<u64>,
    text: Cow<'a, str>,
}

impl<'a> Entry<'a> {
    pub(crate) const fn new(what: What, name: &'a str) -> Self {
        let text = Cow::Borrowed("");
        Self { what, name, subject: None, place: None, peer: None, amount: None, text }
    }

    pub(crate) const fn about(mut self, subject: u64) -> Self {
        self.subject = Some(subject);
        self
    }

    pub(crate) const fn with(mut self, peer: PeerId) -> Self {
        self.peer = Some(peer);
        self
    }

    /// The other end of the line, which may be another than whom the message is about: that one is then in the text.
    pub(crate) fn about_peer(mut self, peer: PeerId) -> Self {
        if let Some(other) = self.peer.replace(peer)
            && other != peer
        {
            self.text = format!("about {}: {}", other.short(), self.text).into();
        }
        self
    }

    pub(crate) const fn amount(mut self, amount: u64) -> Self {
        self.amount = Some(amount);
        self
    }

    pub(crate) fn saying(mut self, text: impl Into<Cow<'a, str>>) -> Self {
        self.text = text.into();
        self
    }

    fn at(mut self, key: &OpKey) -> Self {
        self.place = Some(Place { group: key.group, epoch: key.epoch, tag: key.tag, seq: key.seq });
        self
    }

    fn in_epoch(mut self, group: u32, epoch: u64) -> Self {
        self.place = Some(Place { group, epoch, ..Place::default() });
        self
    }

    fn ballot(self, ballot: BallotId) -> Self {
        self.amount(ballot.number).saying(ballot_name(ballot))
    }

    /// The program calls a collective.
    pub(crate) fn collective(id: CallId, fingerprint: &Fingerprint) -> Self {
        let elements = fingerprint.counts.iter().sum();
        let entry = Self::new(What::Called, fingerprint.kind.name()).about(id.0).amount(elements);
        entry.saying(fingerprint.data_type.name())
    }

    /// What a thread is told; nothing of it is lost, because how a call ends is a record of its own.
    pub(crate) fn order(id: CallId, command: &Command) -> Self {
        let order = |name| Self::new(What::Ordered, name).about(id.0);
        match command {
            Command::Perform(attempt) => order("perform").at(&attempt.key),
            Command::Abort => order("abort"),
            Command::Commit => order("commit"),
            Command::Undo => order("undo"),
            Command::Finish(Ok(_)) => Self::new(What::Ended, "ok").about(id.0),
            Command::Finish(Err(error)) => {
                Self::new(What::Ended, "error").about(id.0).saying(error.to_string())
            }
        }
    }

    /// What became of a data link.
    pub(crate) fn link(event: &'a LinkEvent) -> Self {
        let link = |name, peer: PeerId| Self::new(What::Link, name).with(peer);
        let way = |direction| if direction == Direction::Towards { "to it" } else { "from it" };
        match event {
            LinkEvent::Up { group, epoch, peer, direction } => {
                link("up", *peer).in_epoch(*group, *epoch).saying(way(*direction))
            }
            LinkEvent::Carried { peer, figure: Figure::Exactly(rate), .. } => {
                link("carried", *peer).amount(*rate)
            }
            LinkEvent::Carried { peer, figure: Figure::AtLeast(rate), .. } => {
                link("carried", *peer).amount(*rate).saying("at least")
            }
            LinkEvent::Down { group, epoch, peer, direction, error, .. } => {
                let text = format!("{}: {error}", way(*direction));
                link("down", *peer).in_epoch(*group, *epoch).saying(text)
            }
        }
    }

    /// What the health plane says of a member.
    pub(crate) fn health(event: &Event) -> Self {
        let name = match event {
            Event::Joined(_) => "joined",
            Event::Stalled(_) => "stalled",
            Event::Suspected(_) => "suspected",
            Event::Recovered(_) => "recovered",
            Event::Died { .. } => "died",
            Event::Left(_) => "left",
            Event::Rejoined { .. } => "rejoined",
        };
        let entry = Self::new(What::Health, name).saying(event.to_string());
        match event.about() {
            Some(info) => entry.with(info.id),
            None => entry,
        }
    }

    /// How the executor's part of an attempt ended.
    pub(crate) fn moved(id: CallId, result: &PerformResult) -> Self {
        let moved = |name| Self::new(What::Moved, name).about(id.0);
        match result {
            PerformResult::Done => moved("done"),
            PerformResult::Stopped => moved("stopped"),
            PerformResult::LinkBroken(broken) => {
                moved("link broken").with(broken.to).saying(broken.error.clone())
            }
            PerformResult::Failed { why, .. } => moved("failed").saying(why.clone()),
            PerformResult::Mismatch { peer } => moved("mismatch").with(*peer),
        }
    }

    /// What a peer says to the coordinator.
    pub(crate) fn to_coordinator(what: What, message: &'a ToCoordinator) -> Self {
        use ToCoordinator as To;
        let new = |name| Self::new(what, name);
        let failed = |error: &'a Option<String>| error.as_deref().unwrap_or_default();
        match message {
            To::Register(registration, generation, _) => {
                new("Register").amount((*generation).into()).saying(registration.info.name.as_str())
            }
            To::Resume(resume) => new("Resume").in_epoch(resume.record.group, resume.record.epoch),
            To::Connected { group, epoch } => new("Connected").in_epoch(*group, *epoch),
            To::LinkBroken { group, epoch, to, error, .. } => {
                new("LinkBroken").in_epoch(*group, *epoch).with(*to).saying(error.as_str())
            }
            To::Initiate { key, fingerprint, .. } => new("Initiate").at(key).saying(fingerprint.kind.name()),
            To::Complete { key } => new("Complete").at(key),
            To::Refuse { key, reason } => new("Refuse").at(key).saying(format!("{reason:?}")),
            To::Acknowledge { key } => new("Acknowledge").at(key),
            To::Leave { .. } => new("Leave"),
            To::AskStatus => new("AskStatus"),
            To::Promise { term } => new("Promise").amount(*term),
            To::Redialled { to, error, .. } => new("Redialled").with(*to).saying(failed(error)),
            To::Prepared { number, error, .. } => new("Prepared").amount(*number).saying(failed(error)),
            To::LinkSpeed(_, speed) => new("LinkSpeed").with(speed.to).amount(speed.rate),
            To::Remembered(incidents) => new("Remembered").amount(incidents.len() as u64),
            To::Vote { ballot, .. } => new("Vote").ballot(*ballot),
            To::TakeBack { ballot } => new("TakeBack").ballot(*ballot),
            To::Expired { ballot } => new("Expired").ballot(*ballot),
            To::Watch { .. } => new("Watch"),
            To::Exited { .. } => new("Exited"),
        }
    }

    /// What the coordinator says to a peer.
    pub(crate) fn to_peer(what: What, message: &'a ToPeer) -> Self {
        let new = |name| Self::new(what, name);
        match message {
            ToPeer::Registered { term } => new("Registered").amount(*term),
            ToPeer::Resumed { term } => new("Resumed").amount(*term),
            ToPeer::Epoch(record) => {
                new("Epoch").in_epoch(record.group, record.epoch).amount(record.roster.len() as u64)
            }
            ToPeer::Verdict { key, verdict: Verdict::Commit { .. } } => new("Commit").at(key),
            ToPeer::Verdict { key, verdict: Verdict::Abort(reason) } => {
                new("Abort").at(key).saying(abort_words(reason))
            }
            ToPeer::Proceed { group, epoch } => new("Proceed").in_epoch(*group, *epoch),
            ToPeer::Kicked { text, .. } => new("Kicked").saying(text.as_str()),
            ToPeer::Status(text) => new("Status").amount(text.len() as u64),
            ToPeer::Denied { key, peer, .. } => new("Denied").at(key).with(*peer),
            ToPeer::World { run_epoch, global_world_size } => {
                new("World").in_epoch(0, *run_epoch).amount((*global_world_size).into())
            }
            ToPeer::Redial { to, .. } => new("Redial").with(*to),
            ToPeer::Prepare { record, number } => {
                new("Prepare").in_epoch(record.group, record.epoch).amount(*number)
            }
            ToPeer::LinkSlowed { from, to, rate, .. } => {
                new("LinkSlowed").with(*to).amount(*rate).saying(from.short())
            }
            ToPeer::CalledLast { key, peer, behind_ms } => {
                new("CalledLast").at(key).with(*peer).amount(*behind_ms)
            }
            ToPeer::Annals(incidents) => new("Annals").amount(incidents.len() as u64),
            ToPeer::BallotEnded { ballot, end, .. } => {
                let (name, end) = (ballot_name(*ballot), ballot_words(end));
                new("BallotEnded").amount(ballot.number).saying(format!("{name}: {end}"))
            }
        }
    }

    /// Puts it into the words of a cell.
    pub(super) fn write(&self, now: Instant, words: &[AtomicU64; WORDS]) {
        let put = |at: usize, word: u64| words[at].store(word, Ordering::Relaxed);
        let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
        let flags = flag(self.subject.is_some(), HAS_SUBJECT)
            | flag(self.place.is_some(), HAS_PLACE)
            | flag(self.peer.is_some(), HAS_PEER)
            | flag(self.amount.is_some(), HAS_AMOUNT);
        let place = self.place.unwrap_or_default();
        let text = clip(&self.text);
        let [a, b, c, d] = place.group.to_le_bytes();
        put(0, now.as_nanos());
        put(1, u64::from_le_bytes([self.what as u8, flags, text.len() as u8, 0, a, b, c, d]));
        put(2, self.subject.unwrap_or(0));
        put(3, place.epoch);
        put(4, place.tag);
        put(5, place.seq);
        put(6, self.peer.map_or(0, key_of));
        put(7, self.amount.unwrap_or(0));
        let name = self.name.as_bytes();
        let name = name.get(..8 * NAME_WORDS).unwrap_or(name);
        for at in 0..NAME_WORDS {
            put(NUMBERS + at, word(name, at));
        }
        for at in 0..text.len().div_ceil(8) {
            put(NUMBERS + NAME_WORDS + at, word(text.as_bytes(), at));
        }
    }

    /// The words of a cell as a JSON object without a time; `None` if they make no sense.
    pub(super) fn read(words: &[u64; WORDS]) -> Option<Map<String, Value>> {
        let [what, flags, length, _, group @ ..] = words[1].to_le_bytes();
        let what = What::ALL.get(usize::from(what))?;
        let bytes = |from: usize, to: usize| -> Vec<u8> {
            words[from..to].iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        let name = bytes(NUMBERS, NUMBERS + NAME_WORDS);
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        put("what", json!(what.word()));
        put("name", json!(string(&name[..end])));
        if flags & HAS_SUBJECT != 0 {
            put("subject", json!(words[2]));
        }
        if flags & HAS_PLACE != 0 {
            put("group", json!(u32::from_le_bytes(group)));
            put("epoch", json!(words[3]));
            put("tag", json!(words[4]));
            put("seq", json!(words[5]));
        }
        if flags & HAS_PEER != 0 {
            put("peer", json!(format!("{:016x}", words[6])));
        }
        if flags & HAS_AMOUNT != 0 {
            put("amount", json!(words[7]));
        }
        if length > 0 {
            let text = bytes(NUMBERS + NAME_WORDS, WORDS);
            put("text", json!(string(text.get(..usize::from(length))?)));
        }
        Some(object)
    }
}

/// The first half of a peer's id, which is what a record has room for.
pub(crate) fn key_of(peer: PeerId) -> u64 {
    let (half, _) = peer.as_bytes().split_at(8);
    half.iter().fold(0, |key, byte| (key << 8) | u64::from(*byte))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let rest = bytes.get(8 * at..).unwrap_or_default();
    let taken = rest.len().min(8);
    word[..taken].copy_from_slice(&rest[..taken]);
    u64::from_le_bytes(word)
}

/// As much of a text as a record has room for, in whole characters.
fn clip(text: &str) -> &str {
    let mut end = text.len().min(8 * TEXT_WORDS);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn ballot_name(ballot: BallotId) -> &'static str {
    use outlast_proto::ballot;
    match ballot.kind {
        ballot::admission::KIND => "admission",
        ballot::sync::KIND => "sync",
        ballot::optimise::KIND => "optimise",
        _ => "ballot",
    }
}

fn ballot_words(end: &BallotEnd) -> &'static str {
    match end {
        BallotEnd::Agreed(_) => "agreed",
        BallotEnd::TimedOut(_) => "timed out",
        BallotEnd::Void => "void",
        BallotEnd::Mismatch { .. } => "mismatch",
        BallotEnd::GivenUp(_) => "given up",
        _ => "unknown",
    }
}

/// A verdict's reason, short; only aborts pay for it.
fn abort_words(reason: &AbortReason) -> String {
    format!("{reason:?}")
}
