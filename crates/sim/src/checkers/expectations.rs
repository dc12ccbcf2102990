//! What the script says must become of whom.

use super::Checker;
use crate::script::Expectation;
use crate::world::{HealthNode, HealthNotice, HostId, What, World};
use outlast_proto::time::Instant;
use std::collections::BTreeMap;

/// The script's expectations.
pub struct Expectations {
    expected: Vec<Expectation>,
    /// When an observer first declared a host dead.
    declared: BTreeMap<(HostId, HostId), Instant>,
}

impl Expectations {
    /// A checker of these.
    pub fn new(expected: Vec<Expectation>) -> Self {
        Self { expected, declared: BTreeMap::new() }
    }
}

impl<N: HealthNode> Checker<N> for Expectations {
    fn name(&self) -> &'static str {
        "expectations"
    }

    fn hear(
        &mut self,
        _: &World<N>,
        at: Instant,
        observer: HostId,
        notice: HealthNotice,
    ) -> Result<(), String> {
        let What::Died(reason) = notice.what else { return Ok(()) };
        let host = notice.subject.host;
        let earliest = self.expected.iter().find_map(|expected| match expected {
            Expectation::Survives { host: protected } if *protected == host => Some(None),
            Expectation::DeclaredDead { host: doomed, from, .. } if *doomed == host => Some(Some(*from)),
            _ => None,
        });
        if self.declared.insert((observer, host), at).is_some() {
            return Ok(());
        }
        match earliest {
            Some(None) => Err(format!("{observer} declared {host} dead ({reason:?}), and it was to survive")),
            Some(Some(from)) if at < Instant::ORIGIN + from => {
                Err(format!("{observer} declared {host} dead ({reason:?}) before {from:?}"))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _: &World<N>) -> Result<(), String> {
        for expected in &self.expected {
            let Expectation::DeclaredDead { host, until, by, .. } = expected else { continue };
            for observer in by {
                match self.declared.get(&(*observer, *host)) {
                    Some(at) if *at <= Instant::ORIGIN + *until => {}
                    Some(at) => {
                        return Err(format!(
                            "{observer} learned of {host}'s death at {at:?}, after {until:?}"
                        ));
                    }
                    None => return Err(format!("{observer} never declared {host} dead, due by {until:?}")),
                }
            }
        }
        Ok(())
    }
}
