//! What a worker finds in its environment: Outlast's own names, and those that torchrun's users know.

use outlast::agent::{Budget, Life};
use outlast::membership::{PeerId, RunId};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Who takes part in a round, and where this machine is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) round: u32,
    /// This machine's number, and how many there are.
    pub(super) node: usize,
    pub(super) nodes: usize,
    /// The rank of this machine's first worker, and how many workers there are in all.
    pub(super) first_rank: usize,
    pub(super) world_size: usize,
    /// A free port on the machine of rank 0.
    pub(super) master: (String, u16),
}

/// How the secret is handed on.
#[derive(Clone, Debug)]
pub(super) enum Secret {
    Text(String),
    File(PathBuf),
    /// It is in the environment already.
    Inherited,
}

/// What is the same for all workers of this machine.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) coordinator: String,
    pub(super) run: RunId,
    pub(super) secret: Secret,
    pub(super) workers: usize,
    pub(super) budget: Budget,
    pub(super) role: String,
    /// Whether every round has a run of its own: those of before cannot get in its way.
    pub(super) run_per_round: bool,
}

impl Common {
    /// The run that the workers of that round take part in.
    pub(super) fn run_of(&self, round: u32) -> String {
        if self.run_per_round && round > 0 { format!("{}.{round}", self.run) } else { self.run.to_string() }
    }

    /// All variables of one worker, from those of the agent.
    pub(super) fn variables(
        &self,
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
        placement: &Placement,
        life: Life,
        agent: Option<PeerId>,
    ) -> Vec<(OsString, OsString)> {
        let mut all: BTreeMap<OsString, OsString> = inherited.into_iter().collect();
        let rank = placement.first_rank + life.slot;
        // torchrun's default: many workers that each use all processors would be in each other's way.
        if self.workers > 1 && !all.contains_key(OsStr::new("OMP_NUM_THREADS")) {
            all.insert("OMP_NUM_THREADS".into(), "1".into());
        }
        // One number cannot be everybody's: they follow each other.
        let port = all
            .get(OsStr::new(outlast::settings::PORT))
            .and_then(|port| port.to_str()?.trim().parse::<u16>().ok());
        if let Some(port) = port.filter(|port| *port != 0) {
            let own = port.checked_add(life.slot as u16).map(|port| port.to_string()).unwrap_or_default();
            all.insert(outlast::settings::PORT.into(), own.into());
        }
        let mut set = |name: &str, value: String| all.insert(name.into(), value.into());
        set("OUTLAST_COORDINATOR", self.coordinator.clone());
        set("OUTLAST_RUN_ID", self.run_of(placement.round));
        set("RANK", rank.to_string());
        set("WORLD_SIZE", placement.world_size.to_string());
        set("LOCAL_RANK", life.slot.to_string());
        set("LOCAL_WORLD_SIZE", self.workers.to_string());
        set("GROUP_RANK", placement.node.to_string());
        set("GROUP_WORLD_SIZE", placement.nodes.to_string());
        set("ROLE_NAME", self.role.clone());
        set("ROLE_RANK", rank.to_string());
        set("ROLE_WORLD_SIZE", placement.world_size.to_string());
        set("MASTER_ADDR", placement.master.0.clone());
        set("MASTER_PORT", placement.master.1.to_string());
        set("TORCHELASTIC_RESTART_COUNT", life.number.to_string());
        set("TORCHELASTIC_MAX_RESTARTS", self.budget.restarts.to_string());
        set("TORCHELASTIC_RUN_ID", self.run.to_string());
        set("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned());
        match agent {
            Some(agent) => drop(set(outlast::settings::AGENT, agent.to_string())),
            // One of an agent further up is not this worker's.
            None => drop(all.remove(OsStr::new(outlast::settings::AGENT))),
        }
        match &self.secret {
            Secret::Text(text) => {
                all.insert("OUTLAST_SECRET".into(), text.clone().into());
                all.remove(OsStr::new("OUTLAST_SECRET_FILE"));
            }
            Secret::File(path) => {
                all.insert("OUTLAST_SECRET_FILE".into(), path.clone().into());
                all.remove(OsStr::new("OUTLAST_SECRET"));
            }
            Secret::Inherited => {}
        }
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> Common {
        Common {
            coordinator: "10.0.0.1:29400".to_owned(),
            run: "digits".parse().unwrap(),
            secret: Secret::Text("s".to_owned()),
            workers: 4,
            budget: Budget::default(),
            role: "trainer".to_owned(),
            run_per_round: false,
        }
    }

    fn placement(round: u32) -> Placement {
        let master = ("10.0.0.1".to_owned(), 21_000);
        Placement { round, node: 1, nodes: 2, first_rank: 4, world_size: 8, master }
    }

    fn value(all: &[(OsString, OsString)], name: &str) -> Option<String> {
        all.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone().into_string().unwrap())
    }

    #[test]
    fn a_worker_finds_what_torchruns_users_know() {
        let inherited =
            [("HOME", "/h"), ("OUTLAST_SECRET_FILE", "/old"), ("OUTLAST_PORT", "5000"), ("RANK", "99")];
        let inherited = inherited.map(|(name, value)| (name.into(), value.into()));
        let all = common().variables(inherited, &placement(0), Life { slot: 2, number: 1 }, None);
        for (name, expected) in [
            ("HOME", "/h"),
            ("RANK", "6"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "2"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("GROUP_RANK", "1"),
            ("GROUP_WORLD_SIZE", "2"),
            ("ROLE_NAME", "trainer"),
            ("ROLE_RANK", "6"),
            ("ROLE_WORLD_SIZE", "8"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "21000"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_RUN_ID", "digits"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
            ("OUTLAST_COORDINATOR", "10.0.0.1:29400"),
            ("OUTLAST_RUN_ID", "digits"),
            ("OUTLAST_SECRET", "s"),
            ("OUTLAST_PORT", "5002"),
            ("OMP_NUM_THREADS", "1"),
        ] {
            assert_eq!(value(&all, name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(value(&all, "OUTLAST_SECRET_FILE"), None, "a secret that is not this run's");
    }

    #[test]
    fn threads_are_left_alone_where_they_were_chosen_or_where_one_worker_is_alone() {
        let life = Life { slot: 0, number: 0 };
        let chosen = [("OMP_NUM_THREADS".into(), "7".into())];
        assert_eq!(
            value(&common().variables(chosen, &placement(0), life, None), "OMP_NUM_THREADS").as_deref(),
            Some("7")
        );
        let alone = Common { workers: 1, ..common() };
        assert_eq!(value(&alone.variables([], &placement(0), life, None), "OMP_NUM_THREADS"), None);
    }

    #[test]
    fn a_restarted_round_has_a_run_of_its_own() {
        let restarts = Common { run_per_round: true, ..common() };
        let life = Life { slot: 0, number: 3 };
        let all = restarts.variables([], &placement(3), life, None);
        assert_eq!(value(&all, "OUTLAST_RUN_ID").as_deref(), Some("digits.3"));
        assert_eq!(value(&all, "TORCHELASTIC_RUN_ID").as_deref(), Some("digits"));
        assert_eq!(restarts.run_of(0), "digits");
    }
}
