//! Rates, times and shares as people write them: `1gbit`, `20ms`, `1%`.
//!
//! A number without a unit is refused, because the reader's guess and ours would differ one day. `bps` is
//! refused as well: to `tc` it means bytes, to everybody else bits.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A value that cannot be read. The message shows how it would have been right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a {what}: write {remedy}")]
pub struct UnitError {
    /// The kind of value: rate, time, share.
    pub what: &'static str,
    /// What was given.
    pub given: String,
    /// Examples of what would be accepted.
    pub remedy: &'static str,
}

/// How many bits pass in a second. Never zero: a link that carries nothing is a cut one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Rate(u64);

const RATE_REMEDY: &str = "a number and bit, kbit, mbit or gbit, for example 100mbit, 2.5gbit";

impl Rate {
    /// `bits` in a second; none for zero.
    pub const fn bits_per_second(bits: u64) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// `megabits` million bits in a second.
    ///
    /// # Panics
    /// If `megabits` is zero.
    #[must_use]
    pub const fn mbit(megabits: u64) -> Self {
        assert!(megabits > 0, "a rate is never zero: cut the link instead");
        Self(megabits * 1_000_000)
    }

    /// The rate in bits a second.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// How long `bytes` keep the line busy.
    pub(crate) fn time_for(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many whole bytes pass in `time`.
    pub(crate) fn bytes_in(self, time: Duration) -> u64 {
        u64::try_from(time.as_nanos() * u128::from(self.0) / 8_000_000_000).unwrap_or(u64::MAX)
    }
}

impl TryFrom<u64> for Rate {
    type Error = UnitError;
    fn try_from(bits: u64) -> Result<Self, UnitError> {
        Self::bits_per_second(bits).ok_or_else(|| UnitError {
            what: "rate",
            given: bits.to_string(),
            remedy: RATE_REMEDY,
        })
    }
}

impl From<Rate> for u64 {
    fn from(rate: Rate) -> Self {
        rate.0
    }
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(given: &str) -> Result<Self, UnitError> {
        let refused = || UnitError { what: "rate", given: given.to_owned(), remedy: RATE_REMEDY };
        let (number, unit) = split(given).ok_or_else(refused)?;
        let factor = match unit.strip_suffix("/s").unwrap_or(unit) {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(refused()),
        };
        let bits = number * factor;
        // Beyond a terabit the arithmetic would still hold, but no one means it.
        if !(1.0..=1e12).contains(&bits) {
            return Err(refused());
        }
        #[expect(clippy::cast_sign_loss, reason = "the range was checked one line above")]
        Ok(Self(bits.round() as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            1_000_000_000.. => (1e9, "gbit"),
            1_000_000.. => (1e6, "mbit"),
            1_000.. => (1e3, "kbit"),
            _ => (1.0, "bit"),
        };
        write!(f, "{}{name}", trimmed(self.0 as f64 / unit))
    }
}

/// Reads a time: `20ms`, `1.5s`, `250us`, `0`.
pub fn parse_time(given: &str) -> Result<Duration, UnitError> {
    let refused = || UnitError {
        what: "time",
        given: given.to_owned(),
        remedy: "a number and us, ms or s, for example 20ms (at most 60s)",
    };
    if given == "0" {
        return Ok(Duration::ZERO);
    }
    let (number, unit) = split(given).ok_or_else(refused)?;
    let factor = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(refused()),
    };
    let seconds = number * factor;
    if seconds > crate::limits::DELAY_MAX.as_secs_f64() {
        return Err(refused());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Writes a time the way [`parse_time`] reads it.
pub fn show_time(time: Duration) -> String {
    let micros = time.as_nanos() as f64 / 1e3;
    if time.is_zero() {
        "0".to_owned()
    } else if micros < 1e3 {
        format!("{}us", trimmed(micros))
    } else if micros < 1e6 {
        format!("{}ms", trimmed(micros / 1e3))
    } else {
        format!("{}s", trimmed(micros / 1e6))
    }
}

/// Reads a share: `1%`, `0.5%`, `0`. The result lies in `0.0..=1.0`.
pub fn parse_share(given: &str) -> Result<f64, UnitError> {
    let refused =
        || UnitError { what: "share", given: given.to_owned(), remedy: "0% to 100%, for example 1% or 0.5%" };
    if given == "0" {
        return Ok(0.0);
    }
    let (number, unit) = split(given).ok_or_else(refused)?;
    if unit != "%" || number > 100.0 {
        return Err(refused());
    }
    Ok(number / 100.0)
}

/// Writes a share the way [`parse_share`] reads it.
pub fn show_share(share: f64) -> String {
    format!("{}%", trimmed(share * 100.0))
}

/// The number in front and the unit behind; none if there is no number or it is negative or not finite.
fn split(given: &str) -> Option<(f64, &str)> {
    let end = given.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let number: f64 = given[..end].parse().ok()?;
    number.is_finite().then_some((number, given[end..].trim_start()))
}

/// At most three digits after the point, and no zeros that say nothing.
fn trimmed(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_read_again() {
        for text in ["1gbit", "2.5gbit", "100mbit", "64kbit", "800bit"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for text in ["20ms", "1.5s", "250us", "0"] {
            assert_eq!(show_time(parse_time(text).unwrap()), text);
        }
        for text in ["1%", "0.5%", "100%", "0%"] {
            assert_eq!(show_share(parse_share(text).unwrap()), text);
        }
    }

    #[test]
    fn a_guess_is_never_made() {
        for text in ["1", "1gbps", "gbit", "-1mbit", "0mbit", "1e9bit", "9999999gbit", "", "1 . 2mbit"] {
            let error = text.parse::<Rate>().unwrap_err();
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
        for text in ["20", "61s", "ms", "-1ms", "1h", ""] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        for text in ["1", "0.01", "101%", "-1%", "%", ""] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_and_its_times_agree() {
        let rate = Rate::mbit(1_000);
        assert_eq!(rate.time_for(1_500), Duration::from_micros(12));
        assert_eq!(rate.bytes_in(Duration::from_micros(12)), 1_500);
        assert_eq!(Rate::bits_per_second(0), None);
    }
}
