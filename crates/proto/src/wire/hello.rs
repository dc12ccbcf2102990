//! The first words on every stream, and on which version the two sides agree.
//!
//! Members of a long run are updated one after the other, so for a while two versions talk to each other. Each
//! side says which versions it can speak, from its oldest to its newest; both compute the same answer from the
//! same two ranges, the newest version that both can speak, and go on with it. That is the older one of the two
//! newest versions; if one side has given it up, they part with an error that names both ranges.
//!
//! ```text
//!   ours     1.2 ----- 1.3                ours     1.4 ----- 1.5
//!   theirs         1.3 ----- 1.4          theirs   1.2 ----- 1.3
//!   agree          1.3                    part: no version in common
//! ```
//!
//! The rule for releases: a version speaks at least its predecessor's newest version ([`Versions::of`]), so
//! that a run can be updated without stopping.
//!
//! The hello itself never changes its shape: fields are only added, with new numbers, and an older reader skips
//! them. It carries no proof. Who is at the other end was proved before ([`negotiate`] compares the two), the
//! hello only turns a mix-up into a clear error.

use super::control::Term;
use super::{InvalidMessage, Message, within};
use crate::id::{PeerId, RunId};
use crate::limits::{HELLO_BYTES_MAX, HELLO_NAME_BYTES_MAX, NODE_ADDRESS_BYTES_MAX};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;

/// A version of the protocol. The major number grows when the hello's rule cannot bridge a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, CborLen)]
pub struct Version {
    /// Compared first.
    #[n(0)]
    pub major: u16,
    /// Compared second.
    #[n(1)]
    pub minor: u16,
}

/// The versions that one side can speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub struct Versions {
    /// The oldest one.
    #[n(0)]
    pub oldest: Version,
    /// The newest one.
    #[n(1)]
    pub newest: Version,
}

/// The first message on a stream, in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub struct Hello {
    /// What the sender can speak.
    #[n(0)]
    pub versions: Versions,
    /// The run that it takes part in.
    #[cbor(n(1), with = "run_id")]
    pub run: RunId,
    /// Who it is.
    #[n(2)]
    pub peer: PeerId,
    /// Name and version of its software, for people.
    #[n(3)]
    pub software: String,
    /// What the stream is for.
    #[n(4)]
    pub plane: String,
    /// A later start of it will have the same key, and so the same name (rule 39). Coordinators that keep theirs say so.
    #[cbor(n(5), default)]
    pub key_is_kept: bool,
    /// How it stands among several coordinators (rule 19); one that is alone says nothing, nor does a peer that is served. One
    /// that looks for whoever reigns says [`Standing::seeking`]. (6 and 7 are fields of the future in seeds and tests that are
    /// older.)
    #[n(8)]
    pub standing: Option<Standing>,
}

/// How a coordinator stands among several. Whoever stands by keeps the stream open and says nothing more; it closes the
/// stream when that has changed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub struct Standing {
    /// The reign that it knows of; 0: none.
    #[n(0)]
    pub term: Term,
    /// Whether that is its own, and lasts.
    #[n(1)]
    pub leads: bool,
    /// Where whoever reigns can be reached, `host:port`; empty if nobody does.
    #[n(2)]
    pub leader: String,
}

impl Standing {
    /// What a peer says that looks for the coordinator that reigns.
    pub fn seeking() -> Self {
        Self { term: 0, leads: false, leader: String::new() }
    }
}

/// Why two sides part. Nothing was agreed; the stream is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Incompatible {
    /// No version in common.
    #[error("we speak versions {ours}, they speak {theirs} ({software}); update the older side")]
    Versions {
        /// What we can speak.
        ours: Versions,
        /// What they can speak.
        theirs: Versions,
        /// Their software.
        software: String,
    },
    /// They take part in another run.
    #[error("we take part in run {ours}, they in run {theirs}")]
    Run {
        /// Our run.
        ours: RunId,
        /// Their run.
        theirs: RunId,
    },
    /// They opened the stream for something else.
    #[error("we opened the stream for {ours:?}, they for {theirs:?}")]
    Plane {
        /// What we want.
        ours: String,
        /// What they want.
        theirs: String,
    },
    /// They are not who their certificate says.
    #[error("they call themselves {said}, their certificate says {proved}")]
    Peer {
        /// Who the hello says they are.
        said: PeerId,
        /// Who the certificate says they are.
        proved: PeerId,
    },
}

impl Version {
    /// The first one.
    pub const FIRST: Self = Self { major: 1, minor: 0 };
    /// What this software speaks. Since 2 all votes besides collectives are ballots; before, there were only those for
    /// newcomers, in messages of their own. Since 3 small all-reduces go whole around the ring, and a replica of the store
    /// answers whoever asked for a change; since 3.1 a goodbye says whether it is for good, and a resume how far the state of
    /// its group had come; since 3.2 whoever dials a member of the store tells it first of a hatch, or that there is none
    /// ([`super::hatch`]); since 3.3 a resume says from which epoch on its member may lack verdicts.
    pub const CURRENT: Self = Self { major: 3, minor: 3 };
}

impl Versions {
    /// What this software can speak.
    pub const CURRENT: Self = Self::of(Version::CURRENT);

    /// What software of version `newest` speaks: that version and its predecessor.
    pub const fn of(newest: Version) -> Self {
        let oldest = Version { major: newest.major, minor: newest.minor.saturating_sub(1) };
        Self { oldest, newest }
    }

    /// The newest version that both can speak, if there is one. Both sides get the same answer.
    pub fn in_common(&self, other: &Self) -> Option<Version> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest && newest >= other.oldest).then_some(newest)
    }
}

/// On which version two sides agree, or why they part. The caller knows from the certificate who `theirs`
/// came from: `proved`.
pub fn negotiate(ours: &Hello, theirs: &Hello, proved: PeerId) -> Result<Version, Incompatible> {
    if theirs.peer != proved {
        return Err(Incompatible::Peer { said: theirs.peer, proved });
    }
    if ours.run != theirs.run {
        return Err(Incompatible::Run { ours: ours.run.clone(), theirs: theirs.run.clone() });
    }
    if ours.plane != theirs.plane {
        return Err(Incompatible::Plane { ours: ours.plane.clone(), theirs: theirs.plane.clone() });
    }
    ours.versions.in_common(&theirs.versions).ok_or_else(|| Incompatible::Versions {
        ours: ours.versions,
        theirs: theirs.versions,
        software: theirs.software.clone(),
    })
}

impl Message for Hello {
    const BYTES_MAX: usize = HELLO_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        within("software", self.software.len(), HELLO_NAME_BYTES_MAX)?;
        within("plane", self.plane.len(), HELLO_NAME_BYTES_MAX)?;
        // These are shown to people, in logs and tables.
        let leader = self.standing.as_ref().map(|standing| &standing.leader);
        within("leader", leader.map_or(0, String::len), NODE_ADDRESS_BYTES_MAX)?;
        let shown = [("software", &self.software), ("plane", &self.plane)];
        for (field, text) in shown.into_iter().chain(leader.map(|leader| ("leader", leader))) {
            if text.chars().any(char::is_control) {
                return Err(InvalidMessage::Meaningless { field, value: text.escape_default().to_string() });
            }
        }
        let Versions { oldest, newest } = self.versions;
        if oldest > newest {
            let value = format!("{oldest} to {newest}");
            return Err(InvalidMessage::Meaningless { field: "versions", value });
        }
        Ok(())
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "{}", self.newest)
        } else {
            write!(f, "{} to {}", self.oldest, self.newest)
        }
    }
}

/// CBOR of a run id is its text; whatever is not a run id does not decode.
mod run_id {
    use crate::id::RunId;
    use minicbor::decode::Error as DecodeError;
    use minicbor::encode::{Error as EncodeError, Write};
    use minicbor::{CborLen, Decoder, Encoder};

    pub(super) fn encode<C, W: Write>(
        run: &RunId,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.str(run.as_str())?.ok()
    }

    pub(super) fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<RunId, DecodeError> {
        decoder.str()?.parse().map_err(DecodeError::message)
    }

    pub(super) fn cbor_len<C>(run: &RunId, context: &mut C) -> usize {
        run.as_str().cbor_len(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    fn hello() -> Hello {
        Hello {
            versions: Versions::CURRENT,
            run: "run".parse().unwrap(),
            peer: PeerId::from_bytes([1; 16]),
            software: "outlast 0.1.0".to_owned(),
            plane: "health".to_owned(),
            key_is_kept: false,
            standing: None,
        }
    }

    fn versions(text: &str) -> Versions {
        let version = |text: &str| {
            let (major, minor) = text.split_once('.').expect("a version");
            Version { major: major.parse().expect("a number"), minor: minor.parse().expect("a number") }
        };
        let (oldest, newest) = text.split_once('-').unwrap_or((text, text));
        Versions { oldest: version(oldest), newest: version(newest) }
    }

    /// Each line of the file is a case: our versions, their versions, the outcome.
    #[test]
    fn versions_agree_as_the_text_cases_say() {
        let mut cases = 0;
        for line in include_str!("hello_cases.txt").lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let [ours, theirs, expected]: [&str; 3] =
                line.split('|').map(str::trim).collect::<Vec<_>>().try_into().expect("three columns");
            let (mut us, mut them) = (hello(), hello());
            (us.versions, them.versions) = (versions(ours), versions(theirs));
            let outcome = |ours: &Hello, theirs: &Hello| match negotiate(ours, theirs, theirs.peer) {
                Ok(version) => version.to_string(),
                Err(Incompatible::Versions { .. }) => "part".to_owned(),
                Err(other) => panic!("{line}: {other}"),
            };
            assert_eq!(outcome(&us, &them), expected, "{line}");
            assert_eq!(outcome(&them, &us), expected, "{line}, seen from the other side");
            cases += 1;
        }
        assert!(cases >= 10, "only {cases} cases were read");
    }

    #[test]
    fn the_error_names_both_ranges() {
        let (mut ours, mut theirs) = (hello(), hello());
        (ours.versions, theirs.versions) = (versions("1.4-1.5"), versions("1.2-1.3"));
        assert_eq!(
            negotiate(&ours, &theirs, theirs.peer).unwrap_err().to_string(),
            "we speak versions 1.4 to 1.5, they speak 1.2 to 1.3 (outlast 0.1.0); update the older side"
        );
    }

    #[test]
    fn each_minor_version_speaks_its_predecessors() {
        for minor in 1..100 {
            let (old, new) = (Version { major: 1, minor: minor - 1 }, Version { major: 1, minor });
            assert_eq!(Versions::of(new).in_common(&Versions::of(old)), Some(old));
        }
    }

    #[test]
    fn mix_ups_are_named() {
        let ours = hello();
        let other = Hello { run: "other".parse().unwrap(), ..hello() };
        assert!(matches!(negotiate(&ours, &other, other.peer), Err(Incompatible::Run { .. })));
        let other = Hello { plane: "data".to_owned(), ..hello() };
        assert!(matches!(negotiate(&ours, &other, other.peer), Err(Incompatible::Plane { .. })));
        let proved = PeerId::from_bytes([2; 16]);
        assert!(matches!(negotiate(&ours, &hello(), proved), Err(Incompatible::Peer { .. })));
    }

    #[test]
    fn a_hello_with_fields_of_the_future_is_read() {
        let bytes = encode(&hello());
        assert_eq!(decode::<Hello>(&bytes).unwrap(), hello());
        // The same array with two more elements: a number and a text.
        assert_eq!(bytes[0], 0x86, "an array of six");
        let mut newer = bytes.clone();
        newer[0] = 0x88;
        newer.extend_from_slice(&[0x18, 0x2a, 0x63, b'n', b'e', b'w']);
        assert_eq!(decode::<Hello>(&newer).unwrap(), hello());
    }

    #[test]
    fn a_hello_of_the_past_keeps_no_key() {
        let bytes = encode(&Hello { key_is_kept: true, ..hello() });
        assert!(decode::<Hello>(&bytes).unwrap().key_is_kept);
        // The array of five that was sent before keys were kept.
        let mut older = bytes;
        older[0] = 0x85;
        older.pop();
        assert_eq!(decode::<Hello>(&older).unwrap(), hello());
    }

    #[test]
    fn a_coordinator_among_several_says_how_it_stands_and_others_read_over_it() {
        let standing = Standing { term: 7, leads: false, leader: "10.0.0.1:29400".to_owned() };
        let ours = Hello { standing: Some(standing), ..hello() };
        let bytes = encode(&ours);
        assert_eq!(decode::<Hello>(&bytes).unwrap(), ours);
        assert_eq!(bytes[0], 0x89, "fields more, which an older reader skips");
        let odd = Standing { term: 7, leads: true, leader: "\u{1b}[2J".to_owned() };
        let odd = minicbor::to_vec(Hello { standing: Some(odd), ..hello() }).unwrap();
        assert!(matches!(decode::<Hello>(&odd), Err(InvalidMessage::Meaningless { field: "leader", .. })));
    }

    #[test]
    fn the_encoding_does_not_change() {
        let expected = [
            &[0x86, 0x82, 0x82, 0x01, 0x00, 0x82, 0x01, 0x00, 0x63][..],
            b"run",
            &[0x50],
            &[1; 16],
            &[0x6d],
            b"outlast 0.1.0",
            &[0x66],
            b"health",
            &[0xf4],
        ];
        let versions = Versions::of(Version { major: 1, minor: 0 });
        assert_eq!(encode(&Hello { versions, ..hello() }), expected.concat());
    }

    #[test]
    fn meaningless_hellos_are_refused() {
        let refused = |hello: Hello| decode::<Hello>(&minicbor::to_vec(hello).unwrap()).unwrap_err();
        let long = Hello { software: "x".repeat(65), ..hello() };
        assert!(matches!(refused(long), InvalidMessage::OverLimit { field: "software", value: 65, .. }));
        let reversed = Hello { versions: versions("1.3-1.2"), ..hello() };
        assert!(matches!(refused(reversed), InvalidMessage::Meaningless { field: "versions", .. }));
        let control = Hello { plane: "\u{1b}[2J".to_owned(), ..hello() };
        assert!(matches!(refused(control), InvalidMessage::Meaningless { field: "plane", .. }));
        let mut bytes = encode(&hello());
        let run = bytes.windows(3).position(|window| window == b"run").unwrap();
        bytes[run] = b' ';
        assert!(matches!(decode::<Hello>(&bytes), Err(InvalidMessage::Malformed(_))));
    }

    #[test]
    fn the_longest_hello_fits_its_limit() {
        let longest = Hello {
            versions: versions("65535.65535"),
            run: "r".repeat(crate::limits::RUN_ID_BYTES_MAX).parse().unwrap(),
            peer: PeerId::from_bytes([0xff; 16]),
            software: "s".repeat(HELLO_NAME_BYTES_MAX),
            plane: "p".repeat(HELLO_NAME_BYTES_MAX),
            key_is_kept: true,
            standing: Some(Standing {
                term: u64::MAX,
                leads: true,
                leader: "a".repeat(NODE_ADDRESS_BYTES_MAX),
            }),
        };
        assert!(encode(&longest).len() <= HELLO_BYTES_MAX);
    }
}
