//! Where things are at an etcd, and the key that all coordinators of a cluster have.

use crate::coordinator::backend::BackendError;
use crate::etcd::{Etcd, EtcdOptions, Pair, Transaction};
use crate::security::{Credentials, ProcessKey, random_bytes, sealing};
use outlast_proto::coordinator::Facts;
use outlast_proto::id::RunId;
use std::path::Path;

/// What the sealed key is sealed for.
const LABEL: &[u8] = b"coordinator's key";

/// The names of what one cluster keeps.
#[derive(Clone, Debug)]
pub(in crate::coordinator) struct Keys {
    prefix: String,
    /// Of this process.
    id: String,
}

impl Keys {
    pub(in crate::coordinator) fn of(cluster: &str) -> Self {
        let id = u64::from_ne_bytes(random_bytes());
        Self { prefix: format!("outlast-coordinators/{cluster}/"), id: format!("{id:016x}") }
    }

    pub(super) fn prefix(&self) -> Vec<u8> {
        self.prefix.clone().into_bytes()
    }

    fn name(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    pub(super) fn leader(&self) -> Vec<u8> {
        self.name("leader")
    }

    pub(super) fn member(&self) -> Vec<u8> {
        self.name(&format!("member/{}", self.id))
    }

    /// Where all of them are.
    pub(in crate::coordinator) fn members_prefix(&self) -> Vec<u8> {
        self.name("member/")
    }

    pub(super) fn is_member(&self, key: &[u8]) -> bool {
        key.starts_with(&self.name("member/"))
    }

    /// What one that stands by says to whoever reigns.
    pub(super) fn appeal(&self) -> Vec<u8> {
        self.name(&format!("appeal/{}", self.id))
    }

    pub(super) fn is_appeal(&self, key: &[u8]) -> bool {
        key.starts_with(&self.name("appeal/"))
    }

    pub(super) fn facts_prefix(&self) -> Vec<u8> {
        self.name("facts/")
    }

    pub(super) fn facts(&self, run: &RunId) -> Vec<u8> {
        self.name(&format!("facts/{run}"))
    }

    /// What is kept of which run. What cannot be read is as if it were not there: the run is rebuilt from its peers.
    pub(super) fn read_facts(&self, pair: &Pair) -> Option<(RunId, Facts)> {
        let name = pair.key.strip_prefix(self.facts_prefix().as_slice())?;
        let run: RunId = std::str::from_utf8(name).ok()?.parse().ok()?;
        match Facts::from_bytes(&pair.value) {
            Ok(facts) => Some((run, facts)),
            Err(error) => {
                tracing::error!(%run, %error, "what etcd holds of this run cannot be read");
                None
            }
        }
    }
}

/// The key that all coordinators of a cluster have, so that peers know each of them for the same (rule 39). Whoever comes
/// first makes it. It is sealed with the run secret: an etcd may be read by others.
pub(in crate::coordinator) async fn common_key(
    options: &EtcdOptions,
    cluster: &str,
    credentials: &Credentials,
) -> Result<ProcessKey, BackendError> {
    let keys = Keys::of(cluster);
    let etcd = Etcd::connect(options, 0).await?;
    let name = keys.name("key");
    let secret = credentials.secret().expect("a coordinator has a secret");
    let (fresh, text) = ProcessKey::generate_kept();
    let sealed = sealing::seal(secret, LABEL, text.as_bytes());
    let written =
        etcd.commit(Transaction::new().when_created(&name, 0).put(&name, &sealed, None).read(&name)).await?;
    if written.held {
        return Ok(fresh);
    }
    let other = || BackendError::OtherSecret { cluster: cluster.to_owned(), etcd: options.to_string() };
    let kept = written.pairs.first().ok_or_else(other)?;
    let mut opened = credentials.secrets().map(|secret| (secret, sealing::open(secret, LABEL, &kept.value)));
    let (opener, text) = opened.find_map(|(secret, text)| Some((secret, text?))).ok_or_else(other)?;
    let text = std::str::from_utf8(&text).map_err(|_| other())?;
    let key = ProcessKey::from_pem(Path::new("etcd"), text)?;
    if opener != secret {
        // The secret is being rotated: the next one to start may not know the old one any more.
        let sealed = sealing::seal(secret, LABEL, text.as_bytes());
        etcd.commit(Transaction::new().when_revision(&name, kept.revision).put(&name, &sealed, None)).await?;
    }
    Ok(key)
}
