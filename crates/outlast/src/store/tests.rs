//! What becomes of calls when those who are asked do not answer, do not know yet, or cannot be talked to.

use super::{Client, Store, StoreError};
use crate::Coordinator;
use crate::membership::Preset;
use crate::port::{self, Frames, Port, Routes, Serving};
use crate::runtime::{self, Plane};
use crate::security::{ProcessKey, RunKeys, RunSecret, TlsIdentity};
use outlast_proto::id::RunId;
use outlast_proto::limits::HELLO_BYTES_MAX;
use outlast_proto::wire::encode;
use outlast_proto::wire::hello::{Hello, Version, Versions};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn run() -> RunId {
    "default".parse().unwrap()
}

fn coordinator(listen: SocketAddr, secret: &RunSecret) -> Coordinator {
    let builder = Coordinator::builder().listen(listen).preset(Preset::Local).secret(secret.clone());
    builder.start().unwrap()
}

fn member(coordinator: SocketAddr, secret: &RunSecret) -> super::StoreBuilder {
    let builder = Store::builder().coordinator(coordinator.to_string()).secret(secret.clone());
    builder.listen(loopback()).preset(Preset::Local).timeout(PATIENCE)
}

fn client(coordinator: SocketAddr, secret: &RunSecret) -> Client {
    Client::new(coordinator.to_string(), &run(), secret).unwrap()
}

#[test]
fn a_timeout_beyond_what_the_clock_counts_is_a_long_one() {
    let secret = RunSecret::generate();
    let coordinator = coordinator(loopback(), &secret);
    let store = member(coordinator.address(), &secret).timeout(Duration::MAX).join().unwrap();
    store.set("key", "value").unwrap();
    assert_eq!(store.get("key", Some(Duration::MAX)).unwrap(), b"value");
    store.queue_push("queue", "element").unwrap();
    assert_eq!(store.queue_pop("queue", Some(Duration::MAX)).unwrap(), b"element");
    let client = client(coordinator.address(), &secret);
    assert_eq!(client.get("key", Duration::MAX).unwrap(), b"value");
    assert_eq!(client.get("key", Duration::from_secs(1_000_000_000_000_000_000)).unwrap(), b"value");
}

#[test]
fn a_client_keeps_its_deadline_though_the_members_do_not_answer() {
    let secret = RunSecret::generate();
    let coordinator = coordinator(loopback(), &secret);
    // Its kernel accepts, and nobody says anything.
    let mute = TcpListener::bind(loopback()).unwrap();
    let _store = member(coordinator.address(), &secret).advertise(mute.local_addr().unwrap()).join().unwrap();
    let begun = Instant::now();
    let error = client(coordinator.address(), &secret).get("key", Duration::from_millis(500)).unwrap_err();
    let took = begun.elapsed();
    assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("cannot be asked"), "{error}");
    assert!(took < Duration::from_millis(2_500), "{took:?}");
}

#[test]
fn that_nobody_is_in_the_store_is_not_said_by_a_coordinator_that_has_just_started() {
    let secret = RunSecret::generate();
    // At a port that was asked for somebody may have been before.
    let free = TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    let begun = Instant::now();
    let coordinator = coordinator(free, &secret);
    let client = client(coordinator.address(), &secret);
    let error = client.add("key", 1, Duration::from_millis(300)).unwrap_err();
    let grace = Duration::from_secs(2);
    if begun.elapsed() < grace {
        let text = error.to_string();
        assert!(text.contains("has just started and waits for members to come back"), "{text}");
    }
    let error = client.add("key", 1, PATIENCE).unwrap_err();
    assert!(matches!(&error, StoreError::NoStore { .. }), "{error}");
    assert!(begun.elapsed() >= grace);
}

/// Somebody who belongs to the run and speaks a version that nobody else does.
fn of_the_future(secret: &RunSecret) -> (Port, Serving) {
    let identity = TlsIdentity::derived(&RunKeys::derive(secret, &run()), &ProcessKey::generate());
    let me = identity.peer();
    let says_hello = move |opened: port::AuthenticatedStream| {
        tokio::spawn(async move {
            let hello = Hello {
                versions: Versions::of(Version { major: 77, minor: 0 }),
                run: opened.run.clone(),
                peer: me,
                software: "outlast 77".to_owned(),
                plane: String::from_utf8_lossy(&opened.alpn).into_owned(),
                key_is_kept: false,
                standing: None,
            };
            let mut frames = Frames::new(opened.stream, HELLO_BYTES_MAX);
            let _ = frames.send(&encode(&hello)).await;
            while matches!(frames.next().await, Ok(Some(_))) {}
        });
    };
    let port = Port::bind(loopback()).unwrap();
    let routes = Routes::new().route(port::STORE_VIEWS, says_hello).route(port::CONTROL, says_hello);
    let serving = port.serve(&runtime::of(Plane::Store).unwrap(), identity, routes).unwrap();
    (port, serving)
}

#[test]
fn who_speaks_another_version_is_told_so_at_once() {
    let secret = RunSecret::generate();
    let (port, _serving) = of_the_future(&secret);
    let begun = Instant::now();
    let error = member(port.address(), &secret).join().unwrap_err();
    assert!(matches!(&error, StoreError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("they speak 77.0"), "{error}");
    let error = client(port.address(), &secret).get("key", PATIENCE).unwrap_err();
    assert!(error.to_string().contains("they speak 77.0"), "{error}");
    let builder = crate::Communicator::builder().coordinator(port.address().to_string());
    let communicator = builder.secret(secret).listen(loopback()).start().unwrap();
    let error = communicator.connect_within(1, PATIENCE).unwrap_err();
    assert!(
        matches!(&error, crate::communicator::Error::Incompatible(text) if text.contains("they speak 77.0")),
        "{error}"
    );
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}
