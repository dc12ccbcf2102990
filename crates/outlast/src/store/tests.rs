//! What becomes of calls when those who are asked do not answer, do not know yet, or cannot be talked to.

use super::shared::Shared;
use super::{Client, Failure, Store, StoreError, engine};
use crate::Coordinator;
use crate::membership::Preset;
use crate::port::{self, Frames, Port, Routes, Serving};
use crate::runtime::{self, Plane};
use crate::security::{ProcessKey, RunKeys, RunSecret, TlsIdentity};
use crate::watch::watched;
use outlast_proto::id::RunId;
use outlast_proto::limits::HELLO_BYTES_MAX;
use outlast_proto::store::layout::digest;
use outlast_proto::wire::encode;
use outlast_proto::wire::hello::{Hello, Version, Versions};
use outlast_proto::wire::store::client::FromClient;
use outlast_proto::wire::store::mesh::Request;
use outlast_proto::wire::store::operation::{Key, Operation};
use outlast_proto::wire::store::{CallName, ClientId, MemberId, StoreMember};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
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

/// As for the second of two keys, when the first came at the last moment.
#[test]
fn a_second_key_without_time_left_is_a_timeout() {
    let secret = RunSecret::generate();
    let coordinator = coordinator(loopback(), &secret);
    let store = member(coordinator.address(), &secret).join().unwrap();
    let client = client(coordinator.address(), &secret);
    store.set("first", "here").unwrap();
    client.wait("first", PATIENCE).unwrap();
    // From no time at all to what looking, dialling and asking may take.
    for left in [0, 1, 1_000, 5_000, 20_000, 50_000].map(Duration::from_micros) {
        let error = client.wait("second", left).unwrap_err();
        assert!(matches!(&error, StoreError::Call(Failure::TimedOut(_))), "{left:?}: {error}");
    }
    // Who finds nobody there is told so, whoever was there before.
    drop(coordinator);
    drop(store);
    let error = client.wait("second", Duration::from_secs(1)).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
}

#[test]
fn a_client_that_hangs_up_leaves_no_call() {
    let secret = RunSecret::generate();
    let coordinator = coordinator(loopback(), &secret);
    let store = member(coordinator.address(), &secret).join().unwrap();
    let address = store.view().unwrap().members[0].address;
    let identity = TlsIdentity::derived(&RunKeys::derive(&secret, &run()), &ProcessKey::generate());
    let asks = async {
        let stream = port::connect(address, port::STORE_CLIENT, &identity, PATIENCE).await.unwrap();
        let mut frames = port::greet(stream, identity.peer(), PATIENCE).await.unwrap().frames;
        let question = FromClient::Ask(Request {
            call: CallName { client: ClientId(7), number: 1 },
            answered_below: 1,
            key: Key::value("never"),
            operation: Operation::Await,
            patience_ms: 86_400_000,
            seen: None,
            again: false,
        });
        frames.send(&encode(&question)).await.unwrap();
        frames
    };
    let frames = runtime::of(Plane::Store).unwrap().block_on(asks);
    until_under_way(&[&store], 1);
    drop(frames);
    until_under_way(&[&store], 0);
}

/// Waits until these members have that many calls under way between them.
fn until_under_way(members: &[&Store], count: usize) {
    let deadline = Instant::now() + PATIENCE;
    let under_way = |store: &&Store| {
        let (counts, counted) = std::sync::mpsc::channel();
        store.shared.post(engine::Letter::CountCalls(counts));
        counted.recv_timeout(PATIENCE).unwrap()
    };
    while members.iter().map(under_way).sum::<usize>() != count {
        assert!(Instant::now() < deadline, "{count} calls were to be under way");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_whose_member_leaves_asks_another_one() {
    let secret = RunSecret::generate();
    let coordinator = coordinator(loopback(), &secret);
    let [first, second, last] = [(); 3].map(|()| member(coordinator.address(), &secret).join().unwrap());
    let client = client(coordinator.address(), &secret);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.get("key", PATIENCE));
        until_under_way(&[&first, &second, &last], 1);
        first.leave().unwrap();
        until_under_way(&[&second, &last], 1);
        second.leave().unwrap();
        until_under_way(&[&last], 1);
        last.set("key", "value").unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), b"value");
    });
}

#[test]
fn a_wait_for_a_broadcast_can_be_given_up() {
    let secret = RunSecret::generate();
    let coordinator = coordinator(loopback(), &secret);
    let store = member(coordinator.address(), &secret).join().unwrap();
    let heard = watched(Duration::from_millis(10), || true, || store.next_broadcast(Some(PATIENCE)));
    assert!(matches!(&heard, Err(StoreError::Cancelled)), "{heard:?}");
    assert!(matches!(store.next_broadcast(Some(Duration::from_millis(1))), Ok(None)));
}

#[test]
fn joining_leaving_and_shutting_down_can_be_given_up() {
    let secret = RunSecret::generate();
    let service = coordinator(loopback(), &secret);
    let described = |address: SocketAddr| member(address, &secret);
    let give_up = |work: &dyn Fn() -> Result<(), StoreError>| {
        let ended = watched(Duration::from_millis(10), || true, work);
        assert!(matches!(&ended, Err(StoreError::Cancelled)), "{ended:?}");
    };
    let stores = [(); 2].map(|()| described(service.address()).join().unwrap());
    let nobody = service.address();
    drop(service);
    give_up(&|| described(nobody).join().map(drop));
    // Nobody lets it go any more.
    give_up(&|| stores[0].leave());
    // Whoever is to be told of the end has gone.
    give_up(&|| stores[1].shutdown());
}

#[test]
fn what_is_too_long_is_named() {
    let secret = RunSecret::generate();
    let coordinator = coordinator(loopback(), &secret);
    let store = member(coordinator.address(), &secret).join().unwrap();
    let error = store.set("k".repeat(70_000), "").unwrap_err().to_string();
    let begins = "k".repeat(32);
    assert_eq!(error, format!("a key of 70000 bytes, which begins with {begins:?}, the limit is 65536"));
    let error = store.multi_set([("short", vec![1]), ("long", vec![0; (1 << 30) + 1])]).unwrap_err();
    assert_eq!(error.to_string(), "a value of 1073741825 bytes for \"long\", the limit is 1073741824");
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
    let (port, serving, _) = of_the_future_in(&run(), secret);
    (port, serving)
}

/// And in that run; how often it has said hello can be looked at.
fn of_the_future_in(run: &RunId, secret: &RunSecret) -> (Port, Serving, Arc<AtomicU32>) {
    let hellos = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&hellos);
    let identity = TlsIdentity::derived(&RunKeys::derive(secret, run), &ProcessKey::generate());
    let me = identity.peer();
    let says_hello = move |opened: port::AuthenticatedStream| {
        counted.fetch_add(1, Ordering::SeqCst);
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
    let routes = Routes::new().route(port::STORE_VIEWS, says_hello.clone()).route(port::CONTROL, says_hello);
    let serving = port.serve(&runtime::of(Plane::Store).unwrap(), identity, routes).unwrap();
    (port, serving, hellos)
}

/// A job without a coordinator is started where an earlier one is still closing.
#[test]
fn a_refusal_where_rank_0_is_to_be_is_waited_out() {
    let secret = RunSecret::generate();
    let described = |address: SocketAddr, rank| {
        let builder = Store::bootstrap(address.to_string(), rank, 2, "job").secret(secret.clone());
        builder.preset(Preset::Local).timeout(PATIENCE)
    };
    let run = format!("static-{:016x}", digest(b"job")).parse().unwrap();
    let (port, serving, hellos) = of_the_future_in(&run, &secret);
    let address = port.address();
    let joins = described(address, 1).listen(loopback());
    let second = std::thread::spawn(move || joins.join());
    // It was told that it will never be let in, and asks again, with longer and longer pauses.
    let deadline = Instant::now() + PATIENCE;
    while hellos.load(Ordering::SeqCst) < 6 {
        assert!(Instant::now() < deadline && !second.is_finished(), "it has given up");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop((serving, port));
    let first = described(address, 0).join().unwrap();
    let second = second.join().unwrap().unwrap();
    first.set("key", "value").unwrap();
    assert_eq!(second.get("key", None).unwrap(), b"value");
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

/// Whoever is dialled says that it refused a connection if the dialler goes in the middle of the handshake.
#[test]
fn a_dial_that_is_under_way_is_waited_for() {
    let identity =
        TlsIdentity::derived(&RunKeys::derive(&RunSecret::generate(), &run()), &ProcessKey::generate());
    let runtime = runtime::of(Plane::Store).unwrap();
    let shared = Arc::new(Shared::new(engine::watch().unwrap(), runtime, identity.clone()));
    assert!(shared.wait_for_dials(Duration::ZERO));
    let mute = TcpListener::bind(loopback()).unwrap();
    let other = StoreMember {
        id: MemberId(2),
        peer: identity.peer(),
        client: ClientId(2),
        rank: 2,
        address: mute.local_addr().unwrap(),
        closed_port: 0,
        name: "other".to_owned(),
        host: 2,
        ends_store: false,
    };
    shared.dial(MemberId(1), other);
    assert!(!shared.wait_for_dials(Duration::ZERO), "it is in the middle of its handshake");
    // It hangs up, and that is the end of it.
    drop((mute.accept().unwrap(), mute));
    assert!(shared.wait_for_dials(PATIENCE));
}
