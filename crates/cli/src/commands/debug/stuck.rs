//! Calls that were not over when their processes were asked, and what they wait for.

use super::flight::{Event, Flight, Place};
use std::collections::{BTreeMap, BTreeSet};

/// A call that is not over.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) actor: usize,
    pub(super) call: u64,
    pub(super) name: String,
    pub(super) since_us: i64,
    /// The attempt at hand.
    pub(super) place: Option<Place>,
    pub(super) stage: &'static str,
    /// Members that have not said what is waited for, by label.
    pub(super) waits_for: Vec<String>,
}

/// Every call that is not over, in the order of actors.
pub(super) fn open_calls(flight: &Flight) -> Vec<Open> {
    let mut open: BTreeMap<(usize, u64), Open> = BTreeMap::new();
    for event in &flight.events {
        let Some(call) = event.number("subject") else { continue };
        let key = (event.actor, call);
        match (event.text("what"), event.text("name")) {
            ("called", name) => {
                let (name, since_us) = (name.to_owned(), event.time_us);
                let stage = "it has not begun: the group is not ready";
                let fresh = Open {
                    actor: event.actor,
                    call,
                    name,
                    since_us,
                    place: None,
                    stage,
                    waits_for: Vec::new(),
                };
                open.insert(key, fresh);
            }
            ("ordered", "perform") => {
                if let Some(open) = open.get_mut(&key) {
                    (open.place, open.stage) = (event.place(), "moves bytes");
                }
            }
            ("moved", "done") => {
                if let Some(open) = open.get_mut(&key) {
                    open.stage = "holds its result and waits for the verdict";
                }
            }
            ("moved", _) | ("ordered", "undo") => {
                if let Some(open) = open.get_mut(&key) {
                    open.stage = "gave an attempt up and waits for the next";
                }
            }
            ("ended", _) => {
                open.remove(&key);
            }
            _ => {}
        }
    }
    let mut open: Vec<_> = open.into_values().collect();
    for call in &mut open {
        call.waits_for = missing(flight, call);
    }
    open
}

/// Who has not said what a call waits for, as far as the records tell.
fn missing(flight: &Flight, call: &Open) -> Vec<String> {
    let Some(place) = call.place else { return Vec::new() };
    // Whoever holds its result waits for votes; whoever moves bytes may wait for one who never made the call.
    let said = |name: &str| -> BTreeSet<String> {
        let of_place = flight.events.iter().filter(|event| event.place() == Some(place));
        of_place.filter_map(|event| speaker(flight, event, name)).collect()
    };
    let (begun, complete) = (said("Initiate"), said("Complete"));
    let everybody = members(flight, place);
    let silent: Vec<_> =
        everybody.difference(&begun).filter(|who| !complete.contains(*who)).cloned().collect();
    if !silent.is_empty() {
        return silent;
    }
    everybody.difference(&complete).cloned().collect()
}

/// Who said that, in a record of its own or in the coordinator's.
fn speaker(flight: &Flight, event: &Event, name: &str) -> Option<String> {
    let actor = &flight.actors[event.actor];
    if event.is("sent", name) && !actor.is_coordinator() {
        return Some(actor.label.clone());
    }
    (event.is("heard", name) && actor.is_coordinator()).then(|| flight.peer(event.text("peer")))
}

/// The members of that epoch, as far as somebody recorded them: whoever connected in it or spoke in it.
fn members(flight: &Flight, place: Place) -> BTreeSet<String> {
    let in_epoch =
        |event: &&Event| event.number("group") == Some(place[0]) && event.number("epoch") == Some(place[1]);
    let spoke = flight.events.iter().filter(in_epoch);
    let names = ["Connected", "Initiate", "Complete", "Acknowledge"];
    spoke.filter_map(|event| names.iter().find_map(|name| speaker(flight, event, name))).collect()
}
