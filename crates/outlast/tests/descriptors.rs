//! A process that runs out of descriptors stops accepting, and starts again when it has some.
//!
//! The limit belongs to the whole process, so this test is alone in its program.

use outlast::port::{HEALTH, Port, Routes, connect};
use outlast::security::tls::TlsIdentity;
use outlast::security::{ProcessKey, RunKeys, RunSecret};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

const PLENTY: Duration = Duration::from_secs(30);

#[tokio::test]
async fn accepting_survives_a_want_of_descriptors() {
    let keys = RunKeys::derive(&RunSecret::generate(), &"run".parse().unwrap());
    let identity = || TlsIdentity::derived(&keys, &ProcessKey::generate());
    let port = Port::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let routes = Routes::new().route(HEALTH, drop);
    let serving = port.serve(&Handle::current(), identity(), routes).unwrap();

    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: before.maximum }).unwrap();
    let mut hoard = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        hoard.push(file);
    }
    // One descriptor for the caller, none for the callee.
    hoard.pop();
    let caller = TcpStream::connect(port.address()).await.unwrap();
    until("accepting fails", || serving.counters().accept_errors() >= 3).await;
    assert!(serving.counters().accept_errors() < 20, "it tries again and again without a pause");

    drop((hoard, caller));
    connect(port.address(), HEALTH, &identity(), PLENTY).await.unwrap();
    until("served again", || serving.counters().authenticated() == 1).await;
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PLENTY;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
