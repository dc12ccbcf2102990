//! Yesterday's messages, tomorrow's messages, and today's reader.
//!
//! `tests/corpus/<version>.hex` holds one line per message, and per variant of every enum inside messages, as the
//! software of that version wrote them. Three things are held against it:
//!
//! - today's writer still writes the file of today's version, byte by byte. Who changes a message raises
//!   [`Version::CURRENT`] and writes the next file: the minor number if software of the version before can read what is
//!   written now (new fields, new variants with a policy other than *part*), the major number if it cannot;
//! - today's reader reads the files of all versions that it claims to speak ([`Versions::CURRENT`]), and of older ones
//!   the hello, which is what the error that names both versions is made from;
//! - what a version of the future might add, fields and variants, is met as each enum's policy says.
//!
//! `OUTLAST_CORPUS=write cargo test -p outlast-proto evolution` writes the file of today's version. It adds lines and
//! changes none: to change one before any release speaks that version, delete the file first.

mod families;
mod future;
mod register;
mod store;
mod sync;

use super::hello::{Hello, Incompatible, Version, Versions, negotiate};
use super::{InvalidMessage, Message, encode_for};
use families::{Family, families};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn file(version: Version) -> PathBuf {
    folder().join(format!("{version}.hex"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    (0..text.len()).step_by(2).map(digit).collect()
}

/// The messages of one version, by name: family, variant, and a number if there are several.
type Corpus = BTreeMap<String, Vec<u8>>;

fn read(version: Version) -> Option<Corpus> {
    let text = fs::read_to_string(file(version)).ok()?;
    let line = |line: &str| {
        let (name, bytes) = line.split_once(' ').expect("a name and bytes");
        (name.to_owned(), unhex(bytes))
    };
    Some(text.lines().map(line).collect())
}

fn of_today() -> Corpus {
    families().iter().flat_map(Family::lines).collect()
}

/// Every version that ever had a file.
fn versions() -> Vec<Version> {
    let version = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("the folder can be read").file_name().into_string().expect("a plain name");
        let (major, minor) = name.strip_suffix(".hex")?.split_once('.')?;
        Some(Version { major: major.parse().expect("a number"), minor: minor.parse().expect("a number") })
    };
    let mut versions: Vec<_> = fs::read_dir(folder()).expect("the corpus").filter_map(version).collect();
    versions.sort();
    versions
}

fn write(version: Version, today: &Corpus) {
    for (name, bytes) in read(version).unwrap_or_default() {
        assert_eq!(
            today.get(&name).map(|bytes| hex(bytes)),
            Some(hex(&bytes)),
            "{name} of version {version} is written in another way now. Raise Version::CURRENT; or, if no release \
             speaks {version}, delete {} and write it again",
            file(version).display()
        );
    }
    let lines: Vec<_> = today.iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    fs::write(file(version), lines.concat()).expect("the corpus can be written");
}

#[test]
fn todays_writer_writes_what_the_corpus_of_its_version_holds() {
    let (version, today) = (Version::CURRENT, of_today());
    #[expect(clippy::disallowed_methods, reason = "a wish of whoever runs the tests, not a setting")]
    let wish = std::env::var("OUTLAST_CORPUS");
    if wish.is_ok_and(|wish| wish == "write") {
        write(version, &today);
    }
    let held = read(version).unwrap_or_default();
    let differs = |name: &&String| held.get(*name) != today.get(*name);
    let differing: Vec<_> = today.keys().chain(held.keys()).filter(differs).collect();
    assert!(
        differing.is_empty(),
        "version {version} is not written as before: {differing:?}. Raise Version::CURRENT if messages changed \
         (crates/proto/src/wire/evolution/mod.rs says how), then run: OUTLAST_CORPUS=write cargo test -p \
         outlast-proto evolution"
    );
}

#[test]
fn today_reads_every_version_that_it_claims_to_speak() {
    let families = families();
    let Versions { oldest, newest } = Versions::CURRENT;
    let spoken: Vec<_> =
        versions().into_iter().filter(|version| (oldest..=newest).contains(version)).collect();
    assert!(spoken.contains(&newest), "no corpus of {newest}, only of {:?}", versions());
    for version in spoken {
        for (name, bytes) in read(version).expect("it was listed") {
            let family = name.split('.').next().expect("a family");
            let family = families.iter().find(|known| known.name == family);
            let family =
                family.unwrap_or_else(|| panic!("{version} has {name}, which nobody reads any more"));
            if let Err(error) = (family.reread)(&bytes) {
                panic!("{name} of version {version} is not read any more: {error}");
            }
        }
    }
}

#[test]
fn with_versions_that_are_not_spoken_any_more_we_part_in_words() {
    for version in versions().into_iter().filter(|version| *version < Versions::CURRENT.oldest) {
        for (name, bytes) in
            read(version).expect("it was listed").into_iter().filter(|(name, _)| is_hello(name))
        {
            let theirs: Hello =
                super::decode(&bytes).unwrap_or_else(|error| panic!("{version} {name}: {error}"));
            let ours = Hello { versions: Versions::CURRENT, ..theirs.clone() };
            let parted = negotiate(&ours, &theirs, theirs.peer).expect_err("no version in common");
            assert!(matches!(parted, Incompatible::Versions { .. }), "{version} {name}: {parted}");
            assert!(parted.to_string().contains("update the older side"), "{parted}");
        }
    }
}

fn is_hello(name: &str) -> bool {
    name.starts_with("Hello")
}

#[test]
fn every_version_of_the_corpus_has_a_hello_of_its_own() {
    for version in versions() {
        let held = read(version).expect("it was listed");
        let hellos: Vec<_> = held.iter().filter(|(name, _)| is_hello(name)).collect();
        assert!(!hellos.is_empty(), "{version}");
        for (name, bytes) in hellos {
            let hello: Hello = super::decode(bytes).expect("a hello never changes its shape");
            assert_eq!(hello.versions.newest, version, "{name}");
        }
    }
}

#[test]
fn every_variant_of_every_enum_is_in_the_corpus() {
    for family in families().iter().filter(|family| family.policy.is_some()) {
        let held: Vec<_> = family.lines().map(|(_, bytes)| future::variant_of(&bytes)).collect();
        for variant in 0..=future::VARIANTS_TRIED {
            let knows = (family.knows)(variant);
            assert_eq!(held.contains(&variant), knows, "{} {variant}: add a sample", family.name);
        }
    }
}

/// A message that came with the version after the first.
#[derive(Debug, minicbor::Encode, minicbor::Decode, minicbor::CborLen)]
struct Later(#[n(0)] u8);

impl Message for Later {
    const BYTES_MAX: usize = 16;
    fn since(&self) -> Version {
        Version { minor: Version::FIRST.minor + 1, ..Version::FIRST }
    }
    fn check(&self) -> Result<(), InvalidMessage> {
        Ok(())
    }
}

#[test]
fn what_the_other_side_cannot_know_is_not_sent_to_it() {
    assert_eq!(encode_for(&Later(7), Version::FIRST), None);
    assert_eq!(encode_for(&Later(7), Later(7).since()), Some(vec![0x81, 0x07]));
}
