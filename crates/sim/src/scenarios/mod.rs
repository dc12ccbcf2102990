//! Every scenario by its name. A bug that a storm finds is pinned here as a scenario of its own.

mod faults;
mod groups;

use crate::script::Script;
use crate::storm::{self, Intensity};

/// A named way to make a script from a seed.
pub struct Scenario {
    /// What `make sim SCENARIO=..` takes.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// Its script; scripted scenarios are the same for every seed, storms are not.
    pub script: fn(u64) -> Script,
}

/// All scenarios: storms first, then faults one by one, then groups as a whole.
pub fn all() -> Vec<Scenario> {
    let mut all = vec![
        Scenario {
            name: "gentle",
            about: "a storm of what nobody may die of",
            script: |seed| storm::script(seed, &Intensity::gentle()),
        },
        Scenario {
            name: "mixed",
            about: "a storm of everything",
            script: |seed| storm::script(seed, &Intensity::wild()),
        },
        Scenario {
            name: "mixed-64",
            about: "a storm of everything over a larger group",
            script: |seed| {
                let intensity =
                    Intensity { members_min: 24, members_max: 64, troubles_max: 24, ..Intensity::wild() };
                storm::script(seed, &intensity)
            },
        },
    ];
    all.extend(faults::all());
    all.extend(groups::all());
    all
}

/// The scenario of that name.
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().find(|scenario| scenario.name == name)
}
