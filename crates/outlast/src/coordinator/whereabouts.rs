//! Where the coordinators are: what a peer is given for them, as addresses to dial.
//!
//! It is given their addresses, separated by commas; or the etcd at which they stand by for each other,
//! `etcd:HOST:PORT[,HOST:PORT..][?cluster=NAME&ca=FILE..]`. There each of them is written down with its lease, so whoever
//! asks finds those that live, also those that came after the peer was started.
//!
//! An etcd that does not answer must not keep a peer from a coordinator that does: what it said last is remembered.

use super::ask::Unreached;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::lookup_host;

/// Whether a text names an etcd at which coordinators are looked for.
pub(super) fn is_etcd(text: &str) -> bool {
    let text = text.trim();
    text.starts_with("etcd:") || text.starts_with("etcds:")
}

/// Refuses what is neither addresses separated by commas nor an etcd; the words say what to write.
///
/// Whether anybody answers there is found out by connecting.
pub fn check_addresses(text: &str) -> Result<(), String> {
    if is_etcd(text) {
        return at_etcd::check(text.trim());
    }
    let is_address = |part: &str| {
        let parts = part.trim().rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    let remedy = "write host:port, or several separated by commas";
    text.split(',').all(is_address).then_some(()).ok_or_else(|| remedy.to_owned())
}

/// What the text stands for, and what of it could not be found out.
pub(super) async fn resolve(text: &str, timeout: Duration) -> (Vec<SocketAddr>, Vec<Unreached>) {
    if is_etcd(text) {
        return match at_etcd::addresses(text.trim(), timeout).await {
            Ok(addresses) => look_up(&addresses.join(",")).await,
            Err(cause) => (Vec::new(), vec![cause.into()]),
        };
    }
    look_up(text).await
}

/// What these addresses, separated by commas, stand for.
pub(super) async fn look_up(addresses: &str) -> (Vec<SocketAddr>, Vec<Unreached>) {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for address in addresses.split(',').map(str::trim).filter(|address| !address.is_empty()) {
        match lookup_host(address).await {
            Ok(addresses) => found.extend(addresses),
            Err(cause) => failures.push(format!("{address}: {cause}").into()),
        }
    }
    (found, failures)
}

#[cfg(not(feature = "etcd"))]
mod at_etcd {
    use std::time::Duration;

    #[expect(clippy::unused_async, reason = "builds with etcd wait for it")]
    pub(super) async fn addresses(text: &str, _: Duration) -> Result<Vec<String>, String> {
        Err(format!("{text}: {}", super::super::backend::BackendError::NoEtcd))
    }

    pub(super) fn check(_: &str) -> Result<(), String> {
        Err(super::super::backend::BackendError::NoEtcd.to_string())
    }
}

#[cfg(feature = "etcd")]
mod at_etcd {
    use crate::coordinator::election::Keys;
    use crate::etcd::{Etcd, EtcdOptions};
    use crate::sync::{Mutex, lock};
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// What was said last, by the text that was asked for.
    static LAST: Mutex<BTreeMap<String, Vec<String>>> = Mutex::new(BTreeMap::new());
    /// One process knows a few clusters at most.
    const LAST_MAX: usize = 64;

    pub(super) async fn addresses(text: &str, timeout: Duration) -> Result<Vec<String>, String> {
        let asking = tokio::time::timeout(timeout, ask(text, timeout)).await;
        let answer = asking.unwrap_or_else(|_| Err(format!("{text}: no answer within {timeout:?}")));
        let mut last = lock(&LAST);
        match answer {
            Ok(found) => {
                if last.len() < LAST_MAX || last.contains_key(text) {
                    last.insert(text.to_owned(), found.clone());
                }
                Ok(found)
            }
            Err(cause) => last.get(text).cloned().ok_or(cause),
        }
    }

    async fn ask(text: &str, timeout: Duration) -> Result<Vec<String>, String> {
        let (options, cluster) = read(text)?;
        let keys = Keys::of(&cluster);
        // One member that does not answer leaves time for the others.
        let each = timeout / u32::try_from(options.endpoints().len() + 1).unwrap_or(u32::MAX);
        let first = usize::from(u16::from_ne_bytes(crate::security::random_bytes()));
        let failed = |cause: &dyn std::fmt::Display| format!("{text}: {cause}");
        let etcd = Etcd::connect(&options.timeout(each), first).await.map_err(|error| failed(&error))?;
        let range = etcd.range(&keys.members_prefix()).await.map_err(|error| failed(&error))?;
        let found: Vec<_> =
            range.pairs.into_iter().filter_map(|pair| String::from_utf8(pair.value).ok()).collect();
        if found.is_empty() {
            return Err(failed(&format!(
                "no coordinator of the cluster {cluster:?} is there: start some with --backend etcd:.., or name another \
                 with ?cluster=NAME"
            )));
        }
        Ok(found)
    }

    pub(super) fn check(text: &str) -> Result<(), String> {
        read(text).map(drop)
    }

    /// The etcd, and which coordinators are meant of those that are there.
    pub(super) fn read(text: &str) -> Result<(EtcdOptions, String), String> {
        let (address, settings) = text.split_once('?').unwrap_or((text, ""));
        let (mut cluster, mut others) = ("default", Vec::new());
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            match setting.strip_prefix("cluster=") {
                Some(name) => cluster = name,
                None => others.push(setting),
            }
        }
        // As a coordinator's --backend, or as a URL.
        let address = match address.strip_prefix("etcd:") {
            Some(rest) if !rest.starts_with("//") => rest,
            _ => address,
        };
        let joint = if others.is_empty() { "" } else { "?" };
        let options = EtcdOptions::parse(&format!("{address}{joint}{}", others.join("&")));
        Ok((options.map_err(|error| error.to_string())?, cluster.to_owned()))
    }

    #[cfg(test)]
    mod tests {
        use super::read;

        #[test]
        fn an_etcd_is_named_as_for_a_coordinator_or_as_a_url() {
            for (text, endpoints, cluster) in [
                ("etcd:a:2379,b:2379", &["a:2379", "b:2379"][..], "default"),
                ("etcd://a:2379", &["a:2379"], "default"),
                ("etcd:http://a:2379?cluster=two&user=u:p", &["a:2379"], "two"),
            ] {
                let (options, name) = read(text).unwrap();
                assert_eq!(options.endpoints(), endpoints, "{text}");
                assert_eq!(name, cluster, "{text}");
            }
            assert!(read("etcd:nowhere").is_err() && read("etcd:a:1?colour=red").is_err());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check_addresses;

    #[test]
    fn what_is_no_address_is_refused_with_words() {
        for right in ["localhost:29400", " a:1, b:2", "[::1]:7"] {
            assert_eq!(check_addresses(right), Ok(()), "{right}");
        }
        for odd in ["", "localhost", "29400", ":29400", "a:1,", "a:port", "a:70000"] {
            let error = check_addresses(odd).expect_err(odd);
            assert!(error.starts_with("write host:port"), "{odd}: {error}");
        }
        let etcd = check_addresses("etcd:a:2379,b:2379?cluster=two&user=u:p");
        assert_eq!(etcd.is_ok(), cfg!(feature = "etcd"), "{etcd:?}");
        assert!(check_addresses("etcd:nowhere").is_err() && check_addresses("etcd:a:1?colour=red").is_err());
    }
}
