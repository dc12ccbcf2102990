//! The run secret: what a person copies from one machine to the next.
//!
//! A secret that lost a character in a copied line would make a member that nobody understands and that
//! blames the network. So the text has a checked format, and a damaged one is refused where it was typed:
//!
//! ```text
//! outlast-1-<52 characters: 32 random bytes in base32>-<7 characters: first 4 bytes of a SHA-256>
//! ```
//!
//! There are always 256 random bits; a password cannot be put in their place (rule 33), because whoever
//! records one datagram could try passwords at home.
//!
//! The value is never shown by `Debug`, is compared in constant time and overwritten when dropped. That is
//! best effort: copies in a caller's `String` or in the environment are beyond our reach.

use super::base32::{self, Base32Error};
use aws_lc_rs::{constant_time, digest};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use zeroize::Zeroizing;

/// Environment variable that holds the secret's text.
pub const SECRET_VARIABLE: &str = "OUTLAST_SECRET";
/// Environment variable that holds the path of a file with the secret's text.
pub const SECRET_FILE_VARIABLE: &str = "OUTLAST_SECRET_FILE";

/// Environment variable that holds the text of a secret that is accepted beside ours.
pub const ACCEPT_SECRET_VARIABLE: &str = "OUTLAST_ACCEPT_SECRET";
/// Environment variable that holds the path of a file with such a secret.
pub const ACCEPT_SECRET_FILE_VARIABLE: &str = "OUTLAST_ACCEPT_SECRET_FILE";

const PREFIX: &str = "outlast-";
const VERSION: &str = "1";
const SECRET_BYTES: usize = 32;
const CHECK_BYTES: usize = 4;
/// Longest file that is read as a secret: the text is 70 bytes, the rest is room for white space.
const FILE_BYTES_MAX: u64 = 4_096;

/// What all members of a run share, and nobody else has.
#[derive(Clone)]
pub struct RunSecret(Zeroizing<[u8; SECRET_BYTES]>);

/// Why there is no secret. The messages never contain the text that was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Nothing but white space.
    #[error("the run secret is empty; make one with `outlast secret new`")]
    Empty,
    /// Some other text.
    #[error(
        "this is not a run secret: it does not start with \"{PREFIX}\"; make one with `outlast secret new`"
    )]
    Prefix,
    /// A format that this version does not know.
    #[error(
        "the run secret has format {0:?}, this version knows format {VERSION}; update, or make a new secret"
    )]
    Version(String),
    /// The middle part or the check is too long or too short.
    #[error("the run secret's {part} has {found} characters instead of {expected}; copy the whole line")]
    Length {
        /// Which part.
        part: &'static str,
        /// What it had.
        found: usize,
        /// What it needs.
        expected: usize,
    },
    /// A character that does not occur in secrets.
    #[error("the run secret's {part} is damaged: {cause}; copy the whole line again")]
    Encoding {
        /// Which part.
        part: &'static str,
        /// What is wrong there.
        cause: Base32Error,
    },
    /// The check does not fit: a character was changed or swapped.
    #[error("the run secret does not match its checksum: a character was changed; copy the whole line again")]
    Checksum,
    /// The file cannot be read.
    #[error("cannot read the run secret from {}: {cause}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The file is too long to be a secret.
    #[error("{} is longer than {FILE_BYTES_MAX} bytes and so not a run secret", .0.display())]
    FileTooLong(PathBuf),
    /// The file holds something that is not a secret.
    #[error("in {}: {cause}", path.display())]
    InFile {
        /// Which file.
        path: PathBuf,
        /// What is wrong with its content.
        cause: Box<SecretError>,
    },
    /// Both variables are set.
    #[error("both {0} and {1} are set; unset one of them")]
    Ambiguous(&'static str, &'static str),
    /// More than an old one and a new one.
    #[error("{0} secrets at once are too many: give the new one, and accept the old one")]
    TooMany(usize),
    /// The variable is not text.
    #[error("{0} is not valid text")]
    NotText(&'static str),
}

impl RunSecret {
    /// A new secret from the operating system's random source.
    pub fn generate() -> Self {
        Self(Zeroizing::new(super::random_bytes()))
    }

    /// The text to copy to other machines.
    pub fn to_text(&self) -> String {
        let check = base32::encode(&check(&self.0));
        format!("{PREFIX}{VERSION}-{}-{check}", base32::encode(&*self.0))
    }

    /// Reads the secret from a file, and warns if others on this machine can read that file too. (Refusing it
    /// would shut out mounted secrets, whose mode their owner cannot choose.)
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SecretError> {
        let path = path.as_ref();
        let unreadable = |cause| SecretError::File { path: path.to_owned(), cause };
        let file = File::open(path).map_err(unreadable)?;
        warn_if_open_to_others(path, &file, "run secret");
        let mut text = Zeroizing::new(String::new());
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(SecretError::FileTooLong(path.to_owned()));
        }
        text.parse().map_err(|cause| SecretError::InFile { path: path.to_owned(), cause: Box::new(cause) })
    }

    /// The secret named by `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`; `None` if neither is set.
    pub fn from_environment() -> Result<Option<Self>, SecretError> {
        Self::from_variables([SECRET_VARIABLE, SECRET_FILE_VARIABLE].map(read))
    }

    /// The secret named by `OUTLAST_ACCEPT_SECRET` or `OUTLAST_ACCEPT_SECRET_FILE`, which is taken beside ours while
    /// a secret is rotated; `None` if neither is set.
    pub fn accepted_from_environment() -> Result<Option<Self>, SecretError> {
        Self::from_variables([ACCEPT_SECRET_VARIABLE, ACCEPT_SECRET_FILE_VARIABLE].map(read))
    }

    fn from_variables([text, file]: [Variable; 2]) -> Result<Option<Self>, SecretError> {
        let ((text_name, text), (file_name, file)) = (text, file);
        // A variable that is set to nothing is how shells and unit files unset one.
        let given = |value: &OsString| !value.is_empty();
        match (text.filter(given), file.filter(given)) {
            (Some(_), Some(_)) => Err(SecretError::Ambiguous(text_name, file_name)),
            (Some(text), None) => text.to_str().ok_or(SecretError::NotText(text_name))?.parse().map(Some),
            (None, Some(path)) => Self::from_file(PathBuf::from(path)).map(Some),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

/// A variable's name and what it is set to.
type Variable = (&'static str, Option<OsString>);

fn read(name: &'static str) -> Variable {
    (name, std::env::var_os(name))
}

impl FromStr for RunSecret {
    type Err = SecretError;
    fn from_str(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SecretError::Empty);
        }
        let rest = text.strip_prefix(PREFIX).ok_or(SecretError::Prefix)?;
        let mut parts = rest.split('-');
        let version = parts.next().unwrap_or_default();
        if version != VERSION {
            return Err(SecretError::Version(version.chars().take(8).collect()));
        }
        let value: Zeroizing<[u8; SECRET_BYTES]> = part("value", parts.next())?;
        let given: Zeroizing<[u8; CHECK_BYTES]> = part("checksum", parts.next())?;
        // A part too many would otherwise be ignored: whoever glued two secrets together should hear of it.
        let extra = parts.map(|part| part.len() + 1).sum::<usize>();
        if extra > 0 {
            let expected = base32::encoded_len(CHECK_BYTES);
            return Err(SecretError::Length { part: "checksum", found: expected + extra, expected });
        }
        if check(&value) != *given {
            return Err(SecretError::Checksum);
        }
        Ok(Self(value))
    }
}

impl PartialEq for RunSecret {
    fn eq(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&*self.0, &*other.0).is_ok()
    }
}

impl Eq for RunSecret {}

impl fmt::Debug for RunSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunSecret(not shown)")
    }
}

fn part<const N: usize>(part: &'static str, text: Option<&str>) -> Result<Zeroizing<[u8; N]>, SecretError> {
    let text = text.unwrap_or_default();
    let (found, expected) = (text.chars().count(), base32::encoded_len(N));
    if found != expected {
        return Err(SecretError::Length { part, found, expected });
    }
    let bytes = base32::decode(text).map_err(|cause| SecretError::Encoding { part, cause })?;
    let bytes = Zeroizing::new(bytes);
    // The length of the text fixes the length of the bytes, so this cannot fail.
    let array = <[u8; N]>::try_from(bytes.as_slice());
    Ok(Zeroizing::new(array.map_err(|_| SecretError::Length { part, found, expected })?))
}

/// Protects against typing errors, not against attackers: whoever knows the secret can make one up.
fn check(value: &[u8; SECRET_BYTES]) -> [u8; CHECK_BYTES] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"outlast run secret 1");
    context.update(value);
    let hash = context.finish();
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hash.as_ref()[..CHECK_BYTES]);
    check
}

pub(super) fn warn_if_open_to_others(path: &Path, file: &File, what: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = file.metadata().map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(),
            mode = %format_args!("{:03o}", mode & 0o777),
            "others on this machine can read the {what}; `chmod 600` the file"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_returns_the_secret() {
        let secret = RunSecret::generate();
        let text = secret.to_text();
        assert_eq!(text.len(), 70, "{} characters", text.len());
        assert_eq!(text.parse::<RunSecret>().unwrap(), secret);
        assert_eq!(format!(" {text}\n").parse::<RunSecret>().unwrap(), secret);
        assert_ne!(RunSecret::generate(), secret);
    }

    #[test]
    fn the_format_does_not_change() {
        let text = RunSecret(Zeroizing::new([7; 32])).to_text();
        assert_eq!(text, "outlast-1-a4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dq-3zby4ni");
    }

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", RunSecret::generate()), "RunSecret(not shown)");
    }

    #[test]
    fn every_changed_character_and_every_swap_is_noticed() {
        let text = RunSecret::generate().to_text();
        for position in 0..text.len() {
            let mut changed: Vec<u8> = text.bytes().collect();
            changed[position] = if changed[position] == b'a' { b'b' } else { b'a' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(changed.parse::<RunSecret>().is_err(), "position {position}");
            let mut swapped: Vec<u8> = text.bytes().collect();
            swapped.swap(position, (position + 1) % text.len());
            let swapped = String::from_utf8(swapped).unwrap();
            assert!(swapped == text || swapped.parse::<RunSecret>().is_err(), "position {position}");
        }
        for length in 0..text.len() {
            assert!(text[..length].parse::<RunSecret>().is_err(), "length {length}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong_and_never_the_secret() {
        let text = RunSecret::generate().to_text();
        let value = text.split('-').nth(2).unwrap().to_owned();
        let cases = [
            (String::new(), "is empty"),
            ("hunter2".to_owned(), "does not start with"),
            (text.replacen("-1-", "-2-", 1), "has format \"2\""),
            (text[..60].to_owned(), "value has 50 characters instead of 52"),
            (text.to_uppercase().replacen("OUTLAST", "outlast", 1), "only a-z and 2-7"),
            (format!("{text}-aaaa"), "checksum has 12 characters instead of 7"),
            (text.replace(&value, &"a".repeat(52)), "does not match its checksum"),
        ];
        for (text, expected) in cases {
            let message = text.parse::<RunSecret>().unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            assert!(!message.contains(&value[..10]), "{message}");
        }
    }

    #[test]
    fn files_are_read_and_their_errors_name_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let secret = RunSecret::generate();
        std::fs::write(&path, secret.to_text() + "\n").unwrap();
        assert_eq!(RunSecret::from_file(&path).unwrap(), secret);
        std::fs::write(&path, "x".repeat(5_000)).unwrap();
        assert!(matches!(RunSecret::from_file(&path), Err(SecretError::FileTooLong(_))));
        std::fs::write(&path, "nothing").unwrap();
        assert!(RunSecret::from_file(&path).unwrap_err().to_string().contains("/secret: this is not"));
        assert!(matches!(RunSecret::from_file(folder.path().join("none")), Err(SecretError::File { .. })));
    }

    #[test]
    fn the_environment_names_at_most_one_secret() {
        use std::os::unix::ffi::OsStringExt as _;
        let secret = RunSecret::generate();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, secret.to_text()).unwrap();
        let (text, file) = (OsString::from(secret.to_text()), path.into_os_string());
        let from = |text: Option<&OsString>, file: Option<&OsString>| {
            RunSecret::from_variables([("TEXT", text.cloned()), ("FILE", file.cloned())])
        };
        assert_eq!(from(None, None).unwrap(), None);
        assert_eq!(from(Some(&OsString::new()), Some(&OsString::new())).unwrap(), None);
        assert_eq!(from(Some(&text), Some(&OsString::new())).unwrap(), Some(secret.clone()));
        assert_eq!(from(None, Some(&file)).unwrap(), Some(secret));
        assert!(matches!(from(Some(&text), Some(&file)), Err(SecretError::Ambiguous("TEXT", "FILE"))));
        let odd = OsString::from_vec(vec![0xff]);
        assert!(matches!(from(Some(&odd), None), Err(SecretError::NotText("TEXT"))));
    }
}
