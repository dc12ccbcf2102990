//! What one direction of one link does to the packets on it.

use crate::error::LabError;
use crate::limits;
use crate::units::{Rate, show_share, show_time};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// How long packets may wait in front of a limited line before newcomers are dropped, unless a rule says
/// otherwise: the buffer of a middling router.
const QUEUE: Duration = Duration::from_millis(50);

/// One direction of a link. The default is a perfect link: no limit, no delay, no loss.
///
/// Jitter moves each packet's delay evenly within `delay - jitter ..= delay + jitter`, and never reorders:
/// a packet waits for the one before it, as it would in a router's queue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// The line's rate; none is as fast as the machine goes.
    #[serde(rename = "rate_bits_per_second")]
    pub rate: Option<Rate>,
    /// How long a packet travels after its last bit is on the line.
    #[serde(rename = "delay_ms", with = "millis")]
    pub delay: Duration,
    /// How far the delay of one packet may be from `delay`, up or down.
    #[serde(rename = "jitter_ms", with = "millis")]
    pub jitter: Duration,
    /// The share of packets that vanish, each by its own throw of the dice.
    pub loss: f64,
    /// How much line time may be queued before packets are dropped. Only a limited line has a queue.
    #[serde(rename = "queue_ms", with = "millis")]
    pub queue: Duration,
}

impl Default for Rule {
    fn default() -> Self {
        Self { rate: None, delay: Duration::ZERO, jitter: Duration::ZERO, loss: 0.0, queue: QUEUE }
    }
}

impl Rule {
    /// A perfect link.
    pub fn perfect() -> Self {
        Self::default()
    }

    /// The same with this rate.
    #[must_use]
    pub fn rate(self, rate: Rate) -> Self {
        Self { rate: Some(rate), ..self }
    }

    /// The same with this delay.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// The same with this jitter.
    #[must_use]
    pub fn jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }

    /// The same with this share of packets lost, `0.0..=1.0`.
    #[must_use]
    pub fn loss(self, loss: f64) -> Self {
        Self { loss, ..self }
    }

    /// The same with this much line time in the queue.
    #[must_use]
    pub fn queue(self, queue: Duration) -> Self {
        Self { queue, ..self }
    }

    /// Says whether every value lies in its range.
    pub fn check(&self) -> Result<(), LabError> {
        let times = [("delay", self.delay), ("jitter", self.jitter), ("queue", self.queue)];
        for (what, time) in times {
            if time > limits::DELAY_MAX {
                let remedy = "a link holds a packet for 60s at most";
                return Err(LabError::OutOfRange { what, given: show_time(time), remedy });
            }
        }
        if !(0.0..=1.0).contains(&self.loss) {
            let remedy = "a share of packets lies between 0.0 and 1.0";
            return Err(LabError::OutOfRange { what: "loss", given: self.loss.to_string(), remedy });
        }
        Ok(())
    }

    /// The same with what `change` names.
    #[must_use]
    pub fn changed(self, change: &Change) -> Self {
        Self {
            rate: match change.rate {
                None => self.rate,
                Some(NewRate::Unlimited) => None,
                Some(NewRate::Limited(rate)) => Some(rate),
            },
            delay: change.delay.unwrap_or(self.delay),
            jitter: change.jitter.unwrap_or(self.jitter),
            loss: change.loss.unwrap_or(self.loss),
            queue: change.queue.unwrap_or(self.queue),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate.map_or_else(|| "unlimited".to_owned(), |rate| rate.to_string());
        write!(f, "{rate}, delay {}", show_time(self.delay))?;
        if !self.jitter.is_zero() {
            write!(f, " \u{b1}{}", show_time(self.jitter))?;
        }
        if self.loss > 0.0 {
            write!(f, ", loss {}", show_share(self.loss))?;
        }
        Ok(())
    }
}

/// A limit, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewRate {
    /// As fast as the machine goes.
    Unlimited,
    /// This rate.
    Limited(Rate),
}

/// The part of a rule that is to change; what is none stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each field is the field of `Rule` with the same name")]
pub struct Change {
    pub rate: Option<NewRate>,
    pub delay: Option<Duration>,
    pub jitter: Option<Duration>,
    pub loss: Option<f64>,
    pub queue: Option<Duration>,
}

/// Times in JSON are milliseconds, because that is what a reader of `list --json` compares them with.
mod millis {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_nanos() as f64 / 1e6)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let millis = f64::deserialize(from)?;
        Duration::try_from_secs_f64(millis / 1e3).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_survives_json() {
        let rule = Rule::perfect()
            .rate(Rate::mbit(100))
            .delay(Duration::from_micros(20_500))
            .jitter(Duration::from_millis(2))
            .loss(0.01);
        let text = serde_json::to_string(&rule).unwrap();
        assert!(text.contains(r#""delay_ms":20.5"#), "{text}");
        assert_eq!(serde_json::from_str::<Rule>(&text).unwrap(), rule);
    }

    #[test]
    fn a_change_leaves_the_rest_alone() {
        let before = Rule::perfect().rate(Rate::mbit(1)).loss(0.5);
        let after = before.changed(&Change { loss: Some(0.1), ..Change::default() });
        assert_eq!(after, before.loss(0.1));
        let free = after.changed(&Change { rate: Some(NewRate::Unlimited), ..Change::default() });
        assert_eq!(free, Rule::perfect().loss(0.1));
    }

    #[test]
    fn values_out_of_range_are_named() {
        assert!(Rule::perfect().loss(1.5).check().unwrap_err().to_string().starts_with("loss 1.5"));
        assert!(Rule::perfect().loss(f64::NAN).check().is_err());
        let late = Rule::perfect().delay(Duration::from_secs(61)).check().unwrap_err();
        assert!(late.to_string().starts_with("delay 61s"), "{late}");
    }
}
