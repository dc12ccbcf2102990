//! `outlast store`: look into the store of a run, and change something in it.
//!
//! The command is a client and never a member (rule 31): it asks the coordinator who is in the store, and one of them to
//! do what it wants. A call that waits does so until `--timeout`, and then says why.

use super::address::coordinators;
use super::json;
use super::run_id::run_id;
use super::trust::TrustArgs;
use crate::ExitCode;
use anyhow::Context as _;
use outlast::coordinator::DEFAULT_PORT;
use outlast::membership::RunId;
use outlast::security::RunSecret;
use outlast::store::{Client, Failure, StoreError};
use outlast::text::printable;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

/// `EX_UNAVAILABLE` of sysexits: the service is not there.
const UNREACHABLE: u8 = 69;
/// `EX_TEMPFAIL`: what was waited for did not come in time.
const TIMED_OUT: u8 = 75;

const EXAMPLES: &str = "\
Example: what is there, and what does it say?
  outlast store keys --coordinator 10.0.0.1:29400 --secret-file run.secret
  outlast store get address/0
  outlast store wait ready --timeout 60 && echo go

Example: bytes from a file
  outlast store set config - < config.json

Exit code: 0 if it was done, 75 if its time was over, 69 if there is no store or nobody who can be asked.";

/// Look into the store of a run, as a client that is not a member.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    /// The coordinator, host:port
    #[arg(long, global = true, value_name = "ADDR", env = "OUTLAST_COORDINATOR", value_parser = coordinators,
          default_value_t = format!("127.0.0.1:{DEFAULT_PORT}"))]
    coordinator: String,
    /// The run whose store it is
    #[arg(long, global = true, env = "OUTLAST_RUN_ID", default_value = "default", value_name = "ID", value_parser = run_id)]
    run_id: RunId,
    /// A file that holds the run secret; default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`
    #[arg(long, global = true, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
    /// How long it may take, in seconds
    #[arg(long, global = true, default_value_t = 10.0, value_name = "SECONDS")]
    timeout: f64,
    /// Print one JSON object; bytes that are not text come as `value_hex`
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print the value of a key, as soon as it has one
    Get {
        /// The key
        key: String,
    },
    /// Give a key a value
    Set {
        /// The key
        key: String,
        /// The value; `-` reads it from standard input
        value: String,
    },
    /// Wait until keys have values
    Wait {
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Add to the number that a key holds, and print the sum
    Add {
        /// The key
        key: String,
        /// How much
        #[arg(allow_negative_numbers = true)]
        amount: i64,
    },
    /// Give a key a value if it has the expected one, and print the value that it has then
    Cas {
        /// The key
        key: String,
        /// The value that it must have; empty for a key without one
        expected: String,
        /// The value that it gets
        desired: String,
    },
    /// Delete the value of a key
    Del {
        /// The key
        key: String,
    },
    /// Print the keys that have values, one per line
    Keys {
        /// Only keys that begin with this
        #[arg(default_value = "")]
        prefix: String,
    },
}

/// Asks and shows.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let secret = match &args.secret_file {
        Some(path) => RunSecret::from_file(path)?,
        None => RunSecret::from_environment()?.context(
            "the store of a run is open to those who have its secret: set OUTLAST_SECRET or OUTLAST_SECRET_FILE, or \
             give --secret-file (the coordinator printed where it wrote it)",
        )?,
    };
    let timeout = Duration::try_from_secs_f64(args.timeout)
        .with_context(|| format!("--timeout {}: write a number of seconds, as in 10 or 0.5", args.timeout))?;
    let client = Client::new(args.coordinator.clone(), &args.run_id, args.trust.credentials(&secret)?)?;
    match ask(&client, &args.what, timeout) {
        Ok(shown) => {
            let mut out = std::io::stdout().lock();
            let bytes = if args.json {
                json::printable_line(&shown.object.to_string()).into_bytes()
            } else {
                shown.text
            };
            // Whoever should read it may have gone.
            let _ = out.write_all(&bytes).and_then(|()| out.flush());
            Ok(ExitCode::SUCCESS)
        }
        Err(Trouble::Store(error)) => {
            eprintln!("outlast: {}", printable(&error.to_string()));
            Ok(match error {
                StoreError::Call(Failure::TimedOut(_)) => ExitCode::from(TIMED_OUT),
                StoreError::NoStore { .. } | StoreError::Unreachable { .. } | StoreError::Refused { .. } => {
                    ExitCode::from(UNREACHABLE)
                }
                _ => ExitCode::FAILURE,
            })
        }
        Err(Trouble::Other(error)) => Err(error),
    }
}

enum Trouble {
    Store(StoreError),
    Other(anyhow::Error),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What came of it, for people and for programs.
struct Shown {
    text: Vec<u8>,
    object: Value,
}

fn ask(client: &Client, what: &What, timeout: Duration) -> Result<Shown, Trouble> {
    let line = |text: String| format!("{text}\n").into_bytes();
    Ok(match what {
        What::Get { key } => value(key, client.get(key, timeout)?),
        What::Set { key, value } => {
            let bytes =
                if value == "-" { standard_input().map_err(Trouble::Other)? } else { value.clone().into() };
            let length = bytes.len();
            client.set(key, bytes, timeout)?;
            Shown { text: Vec::new(), object: json!({"key": key, "bytes": length}) }
        }
        What::Wait { keys } => {
            let begun = std::time::Instant::now();
            for key in keys {
                client.wait(key, timeout.saturating_sub(begun.elapsed()))?;
            }
            Shown { text: Vec::new(), object: json!({"keys": keys}) }
        }
        What::Add { key, amount } => {
            let sum = client.add(key, *amount, timeout)?;
            Shown { text: line(sum.to_string()), object: json!({"key": key, "sum": sum}) }
        }
        What::Cas { key, expected, desired } => {
            value(key, client.compare_set(key, expected.as_str(), desired.as_str(), timeout)?)
        }
        What::Del { key } => {
            let deleted = client.delete_key(key, timeout)?;
            let text = line(if deleted { "deleted" } else { "there was none" }.to_owned());
            Shown { text, object: json!({"key": key, "deleted": deleted}) }
        }
        What::Keys { prefix } => {
            let keys = client.keys(prefix, timeout)?;
            let text = keys.iter().map(|key| printable(&String::from_utf8_lossy(key)).into_owned() + "\n");
            let objects: Vec<_> = keys.iter().map(|key| object("key", key)).collect();
            Shown { text: text.collect::<String>().into_bytes(), object: json!({"keys": objects}) }
        }
    })
}

/// A value: its bytes as they are and a line's end for people; text or hexadecimal digits for programs.
fn value(key: &str, bytes: Vec<u8>) -> Shown {
    let mut object = object("value", &bytes);
    object["key"] = json!(key);
    let text = [bytes.as_slice(), b"\n"].concat();
    Shown { text, object }
}

fn object(name: &str, bytes: &[u8]) -> Value {
    let (name, text) = match std::str::from_utf8(bytes) {
        Ok(text) => (name.to_owned(), text.to_owned()),
        Err(_) => (format!("{name}_hex"), digits(bytes)),
    };
    Value::Object([(name, Value::String(text))].into_iter().collect())
}

fn digits(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn standard_input() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_shown_as_digits() {
        assert_eq!(value("k", b"text".to_vec()).object, json!({"key": "k", "value": "text"}));
        assert_eq!(value("k", vec![0xff, 0]).object, json!({"key": "k", "value_hex": "ff00"}));
        assert_eq!(value("k", vec![0xff]).text, [0xff, b'\n']);
    }
}
