//! What happened to a run, as coordinator and members tell each other (see [`crate::annals`]).

use crate::limits::{INCIDENT_CHARS_MAX, INCIDENTS_MAX};
use crate::wire::{InvalidMessage, within};
use minicbor::{CborLen, Decode, Encode};

/// Something that happened to a run. Equal ones are the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub struct Incident {
    /// When, by the clock of the coordinator that noted it: microseconds since 1970.
    #[n(0)]
    pub at_us: u64,
    /// What, in words for people.
    #[n(1)]
    pub text: String,
}

/// Holds their number and lengths against the limits.
pub(super) fn check(incidents: &[Incident]) -> Result<(), InvalidMessage> {
    within("incidents", incidents.len(), INCIDENTS_MAX)?;
    let longest = incidents.iter().map(|incident| incident.text.chars().count()).max();
    within("incident", longest.unwrap_or(0), INCIDENT_CHARS_MAX)
}
