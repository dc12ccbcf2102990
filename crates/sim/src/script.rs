//! What one run is: who is there, what goes wrong when, and what must come of it.

use crate::nodes::Founding;
use crate::world::{Conditions, Effect, Fault, HostId};
use outlast_proto::membership::{Config, Preset};
use outlast_proto::time::Duration;

/// What must become of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// It is declared dead by all of `by`, each between these two times after the start of the run.
    DeclaredDead {
        /// Who.
        host: HostId,
        /// Not before this.
        from: Duration,
        /// Not after this.
        until: Duration,
        /// By whom.
        by: Vec<HostId>,
    },
    /// Nobody ever declares it dead.
    Survives {
        /// Who.
        host: HostId,
    },
}

/// One run.
#[derive(Clone, Debug)]
pub struct Script {
    /// How many hosts there are.
    pub members: u32,
    /// How they come to know each other.
    pub founding: Founding,
    /// The settings of every member.
    pub config: Config,
    /// What the network is like at the start.
    pub conditions: Conditions,
    /// What goes wrong, and when.
    pub faults: Vec<(Duration, Fault)>,
    /// How long faults may strike. Then everything is healed.
    pub safety: Duration,
    /// How long all may take to agree after that.
    pub converge_within: Duration,
    /// What must become of whom.
    pub expectations: Vec<Expectation>,
    /// Which marks the faults must leave.
    pub must_fire: Vec<Effect>,
    /// Most packets that a member may send per second, on average over the run.
    pub packets_per_second_max: f64,
}

impl Script {
    /// A quiet group of `members` that know each other, with the `lan` preset.
    pub fn quiet(members: u32) -> Self {
        let config = Config::preset(Preset::Lan);
        // Silence is judged after at most `dead_after` and a stall after at most its budget; a verdict that
        // was under way when all was healed ends within that, and a few rounds of gossip spread it.
        let converge_within = config.dead_after.max(config.stall_budget) + Duration::from_secs(15);
        Self {
            members,
            founding: Founding::Known { members, seeds: seeds(members) },
            config,
            conditions: Conditions::lan(),
            faults: Vec::new(),
            safety: Duration::from_secs(20),
            converge_within,
            expectations: Vec::new(),
            must_fire: Vec::new(),
            packets_per_second_max: 60.0,
        }
    }

    /// The same, but everybody joins through the first host.
    pub fn joining(members: u32) -> Self {
        Self { founding: Founding::Joining { seeds: vec![HostId(0).address()] }, ..Self::quiet(members) }
    }

    /// Something goes wrong.
    #[must_use]
    pub fn fault(mut self, at_ms: u64, fault: Fault) -> Self {
        self.faults.push((Duration::from_millis(at_ms), fault));
        self
    }

    /// How long faults may strike.
    #[must_use]
    pub fn safety_secs(mut self, secs: u64) -> Self {
        self.safety = Duration::from_secs(secs);
        self
    }

    /// A mark that the faults must leave.
    #[must_use]
    pub fn fires(mut self, effects: &[Effect]) -> Self {
        self.must_fire.extend(effects);
        self
    }

    /// `host` must be declared dead by everybody else, between these times.
    #[must_use]
    pub fn dies(self, host: u32, from_ms: u64, until_ms: u64) -> Self {
        let by = (0..self.members).filter(|other| *other != host).collect::<Vec<_>>();
        self.dies_by(host, from_ms, until_ms, &by)
    }

    /// `host` must be declared dead by these, between these times.
    #[must_use]
    pub fn dies_by(mut self, host: u32, from_ms: u64, until_ms: u64, by: &[u32]) -> Self {
        self.expectations.push(Expectation::DeclaredDead {
            host: HostId(host),
            from: Duration::from_millis(from_ms),
            until: Duration::from_millis(until_ms),
            by: by.iter().copied().map(HostId).collect(),
        });
        self
    }

    /// Nobody may ever declare `host` dead.
    #[must_use]
    pub fn survives(mut self, host: u32) -> Self {
        self.expectations.push(Expectation::Survives { host: HostId(host) });
        self
    }

    /// Nobody may ever declare anybody dead.
    #[must_use]
    pub fn all_survive(mut self) -> Self {
        for host in 0..self.members {
            self = self.survives(host);
        }
        self
    }
}

/// Through whom restarted processes join: up to eight hosts, so that one of them is there.
fn seeds(members: u32) -> Vec<std::net::SocketAddr> {
    (0..members.min(8)).map(|host| HostId(host).address()).collect()
}
