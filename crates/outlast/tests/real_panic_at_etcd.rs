//! Two coordinators at a real etcd, and a panic in the clerk of the one that reigns (rules 19, 40).
#![cfg(feature = "etcd")]

#[path = "support/etcds.rs"]
mod etcds;
#[path = "support/ports.rs"]
mod ports;

use etcds::Etcds;
use outlast::Coordinator;
use outlast::coordinator::ask_status;
use outlast::membership::Preset;
use outlast::planted::{Place, plant};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than anything is waited for here.
const LEASE: Duration = Duration::from_mins(2);

/// It renewed its lease for ever, and no other could reign.
#[test]
fn a_leader_whose_clerk_panics_gives_its_lease_back_though_nobody_drops_it() {
    let etcds = Etcds::start(1);
    let start = || {
        let builder = Coordinator::builder().listen("127.0.0.1:0".parse().unwrap()).preset(Preset::Local);
        let builder = builder.secret(etcds.secret.clone()).lease(LEASE);
        builder.backend(etcds.url().parse().unwrap()).start().unwrap()
    };
    let wait_for_reign = |coordinator: &Coordinator| {
        let (address, run) = (coordinator.address().to_string(), "default".parse().unwrap());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status =
                ask_status(&address, &etcds.secret, &run, Duration::from_secs(2)).unwrap_or_default();
            let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
            if status["reign"]["leads"] == true && status["reign"]["leader"] == address.as_str() {
                return;
            }
            assert!(Instant::now() < deadline, "{address} does not reign: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let first = start();
    wait_for_reign(&first);
    let second = start();
    plant(Place::Clerk(Some(first.address())));
    wait_for_reign(&second);
    assert!(first.check().is_err());
    second.check().unwrap();
}
