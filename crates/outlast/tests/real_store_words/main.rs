//! What the store says when something does not end well, with real processes: a timeout names its true cause, also while
//! streams are blocked; and a store that is shut down ends for everybody within its bounds, in the promised words. Who asks from
//! outside is answered though the member that it asks is stopped.

mod clients;
mod far;
mod hosts;
mod members;
#[path = "../support/ports.rs"]
mod ports;
mod relay;
mod shutdown;
mod static_stores;
#[path = "../support/stopped.rs"]
mod stopped;
mod timeouts;
#[path = "../support/store_waits.rs"]
mod waits;

use members::{Member, PATIENCE, Role};
use outlast::Coordinator;
use outlast::membership::Preset;
use outlast::security::RunSecret;
use ports::free_ports;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Not a test by itself: what the members do, when the environment says so.
#[test]
fn role() {
    members::play();
}

fn coordinator() -> Coordinator {
    let listen = "127.0.0.1:0".parse().expect("an address");
    Coordinator::builder().listen(listen).preset(Preset::Local).start().expect("a coordinator")
}

/// A role in the run of that coordinator.
fn role_at(coordinator: &Coordinator, name: &str) -> Role {
    Role {
        name: name.to_owned(),
        address: coordinator.address().to_string(),
        secret: coordinator.secret().to_text(),
        join_ms: PATIENCE.as_millis() as u64,
        ..Role::default()
    }
}

/// A role in a store without a coordinator.
fn role_of(address: SocketAddr, secret: &RunSecret, rank: u32, world: u32) -> Role {
    Role {
        name: format!("m{rank}"),
        address: address.to_string(),
        bootstrap: Some((rank, world)),
        secret: secret.to_text(),
        join_ms: PATIENCE.as_millis() as u64,
        ..Role::default()
    }
}

/// Members of those names, in a view of all of them.
fn members(coordinator: &Coordinator, names: &[&str]) -> Vec<Member> {
    // One after the other, so that ranks are in that order.
    let mut members = Vec::new();
    for name in names {
        let member = Member::start(&role_at(coordinator, name));
        assert_eq!(member.joined(), "in");
        members.push(member);
    }
    all_see(&mut members, names.len());
    members
}

/// Waits until all of them are in a view of that many.
fn all_see(members: &mut [Member], count: usize) {
    let deadline = Instant::now() + PATIENCE;
    for member in members {
        while member.done("members").text != count.to_string() {
            assert!(Instant::now() < deadline, "no view of {count}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A port that is free for TCP and UDP.
fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_ports(1)[0]))
}
