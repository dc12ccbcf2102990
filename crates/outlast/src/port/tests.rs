//! A port on loopback, and who comes to it.

use super::*;
use crate::security::{ProcessKey, RunKeys, RunSecret, fresh_peer_id};
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

const PLENTY: Duration = Duration::from_secs(20);

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn identity(secret: &RunSecret, run: &str) -> TlsIdentity {
    TlsIdentity::derived(&RunKeys::derive(secret, &run.parse().unwrap()), &ProcessKey::generate())
}

/// A plane that tells each caller who the caller is.
fn mirror() -> Routes {
    Routes::new().route(HEALTH, |mut incoming| {
        tokio::spawn(async move {
            let text = incoming.peer.to_string();
            incoming.stream.write_all(text.as_bytes()).await.ok();
            incoming.stream.shutdown().await.ok();
        });
    })
}

async fn ask(address: SocketAddr, identity: &TlsIdentity) -> String {
    let mut opened = connect(address, HEALTH, identity, PLENTY).await.unwrap();
    let mut text = String::new();
    opened.stream.read_to_string(&mut text).await.unwrap();
    text
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PLENTY;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn one_number_serves_both_and_the_other_number_refuses() {
    let port = Port::bind(loopback()).unwrap();
    assert_eq!(port.udp().local_addr().unwrap(), port.address());
    assert_ne!(port.closed_port(), port.address().port());
    assert!(std::net::TcpStream::connect(port.address()).is_ok(), "the kernel accepts before anybody serves");
    let closed = SocketAddr::new(port.address().ip(), port.closed_port());
    let error = std::net::TcpStream::connect(closed).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(std::net::TcpListener::bind(closed).is_err(), "nobody else can listen there");
    let taken = Port::bind(port.address()).unwrap_err();
    assert!(taken.to_string().contains("choose another port"), "{taken}");
}

#[test]
fn a_port_on_every_address_serves_ipv4_too() {
    let Ok(port) = Port::bind("[::]:0".parse().unwrap()) else {
        eprintln!("skipped: this host has no IPv6");
        return;
    };
    let ipv4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    assert!(std::net::TcpStream::connect(ipv4(port.address().port())).is_ok());
    let refused = std::net::TcpStream::connect(ipv4(port.closed_port())).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    let sender = UdpSocket::bind(ipv4(0)).unwrap();
    sender.send_to(b"x", ipv4(port.address().port())).unwrap();
    port.udp().set_read_timeout(Some(PLENTY)).unwrap();
    let (_, from) = port.udp().recv_from(&mut [0; 8]).unwrap();
    assert_eq!(from.port(), sender.local_addr().unwrap().port());
}

#[test]
fn a_number_that_is_taken_for_udp_is_not_taken() {
    let datagrams = UdpSocket::bind(loopback()).unwrap();
    assert!(matches!(Port::bind(datagrams.local_addr().unwrap()), Err(PortError::Bind { .. })));
}

#[tokio::test]
async fn members_are_routed_with_their_peer_id() {
    let secret = RunSecret::generate();
    let port = Port::bind(loopback()).unwrap();
    let serving = port.serve(&Handle::current(), identity(&secret, "run"), mirror()).unwrap();
    let caller = identity(&secret, "run");
    assert_eq!(ask(port.address(), &caller).await, caller.peer().to_string());
    until("counted", || serving.counters().authenticated() == 1).await;
    assert_eq!(serving.counters().refused_total(), 0);
    assert!(matches!(port.serve(&Handle::current(), caller, mirror()), Err(PortError::AlreadyServed(_))));
}

#[tokio::test]
async fn strangers_are_refused_by_cause() {
    let secret = RunSecret::generate();
    let port = Port::bind(loopback()).unwrap();
    let serving = port.serve(&Handle::current(), identity(&secret, "run"), mirror()).unwrap();
    let counted = |cause: RefusedConnection| serving.counters().refused(&cause);

    let other_run = connect(port.address(), HEALTH, &identity(&secret, "other"), PLENTY).await;
    assert!(matches!(other_run, Err(ConnectError::Closed { .. })), "{other_run:?}");
    until("wrong run", || counted(RefusedConnection::WrongRun(String::new())) == 1).await;

    // Our own dialler notices the foreign authority first; the server sees the alert.
    let other_secret =
        connect(port.address(), HEALTH, &identity(&RunSecret::generate(), "run"), PLENTY).await;
    assert!(matches!(other_secret, Err(ConnectError::Foreign { .. })), "{other_secret:?}");
    until("gave up", || counted(RefusedConnection::Broken(String::new())) == 1).await;

    let other_plane = connect(port.address(), b"outlast-nothing/1", &identity(&secret, "run"), PLENTY).await;
    assert!(matches!(other_plane, Err(ConnectError::NoSuchPlane { .. })), "{other_plane:?}");
    until("no such plane", || counted(RefusedConnection::NoSuchPlane(String::new())) == 1).await;

    assert_eq!(serving.counters().authenticated(), 0);
    let member = identity(&secret, "run");
    assert_eq!(ask(port.address(), &member).await, member.peer().to_string());
}

#[tokio::test]
async fn a_visitor_without_a_word_is_counted_and_nothing_else() {
    let port = Port::bind(loopback()).unwrap();
    let serving = port.serve(&Handle::current(), identity(&RunSecret::generate(), "run"), mirror()).unwrap();
    for _ in 0..20 {
        drop(TcpStream::connect(port.address()).await.unwrap());
    }
    until("hung up", || serving.counters().hung_up() == 20).await;
    assert_eq!(serving.counters().refused_total(), 0);
}

/// Opens `count` connections and sends the beginning of a TLS record on each, and then nothing.
async fn slow_openers(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut slow = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&[22, 3, 1]).await.ok();
        slow.push(stream);
    }
    slow
}

#[tokio::test]
async fn slow_openers_lose_their_place_in_time() {
    let secret = RunSecret::generate();
    let port = Port::bind(loopback()).unwrap();
    let settings =
        ServeSettings { handshake_timeout: Duration::from_millis(300), ..ServeSettings::default() };
    let us = Arc::new(identity(&secret, "run"));
    let serving = port.serve_runs(&Handle::current(), us, mirror(), settings).unwrap();
    let _slow = slow_openers(port.address(), 10).await;
    until("timed out", || serving.counters().refused(&RefusedConnection::TimedOut) == 10).await;
    assert_eq!(serving.counters().handshakes(), 0);
}

#[tokio::test]
async fn one_source_cannot_take_all_places() {
    let secret = RunSecret::generate();
    let port = Port::bind(loopback()).unwrap();
    let settings = ServeSettings {
        first_byte_timeout: PLENTY,
        handshake_timeout: PLENTY,
        handshakes_max: 6,
        handshakes_kept: 0,
        handshakes_per_source_max: 4,
        ..ServeSettings::default()
    };
    let us = Arc::new(identity(&secret, "run"));
    let serving = port.serve_runs(&Handle::current(), us, mirror(), settings).unwrap();
    let counters = serving.counters();
    let first = slow_openers(port.address(), 10).await;
    until("six too many", || counters.refused(&RefusedConnection::TooManyFromSource) == 6).await;
    assert_eq!(counters.handshakes(), 4);
    // Another source of the same host takes what is left, and no more.
    let mut second = Vec::new();
    for _ in 0..4 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        second.push(socket.connect(port.address()).await.unwrap());
    }
    until("two too many", || counters.refused(&RefusedConnection::TooMany) == 2).await;
    assert_eq!(counters.handshakes(), 6);
    drop((first, second));
    until("places given back", || counters.handshakes() == 0).await;
    let member = identity(&secret, "run");
    assert_eq!(ask(port.address(), &member).await, member.peer().to_string());
}

#[tokio::test]
async fn who_says_nothing_is_put_out_long_before_the_handshakes_end() {
    let port = Port::bind(loopback()).unwrap();
    let settings = ServeSettings {
        first_byte_timeout: Duration::from_millis(100),
        handshake_timeout: 10 * PLENTY,
        ..ServeSettings::default()
    };
    let us = Arc::new(identity(&RunSecret::generate(), "run"));
    let serving = port.serve_runs(&Handle::current(), us, mirror(), settings).unwrap();
    let _silent = TcpStream::connect(port.address()).await.unwrap();
    until("timed out", || serving.counters().refused(&RefusedConnection::TimedOut) == 1).await;
}

/// The fault: whoever held all places and said nothing kept every member out for ten seconds, and a member whose
/// link could not be dialled was evicted.
#[tokio::test]
async fn a_crowd_that_holds_every_place_does_not_keep_a_member_out() {
    let secret = RunSecret::generate();
    let port = Port::bind(loopback()).unwrap();
    let settings = ServeSettings {
        first_byte_timeout: 10 * PLENTY,
        handshake_timeout: 10 * PLENTY,
        handshakes_max: 8,
        handshakes_kept: 2,
        handshakes_per_source_max: 8,
        ..ServeSettings::default()
    };
    let us = Arc::new(identity(&secret, "run"));
    let serving = port.serve_runs(&Handle::current(), us, mirror(), settings).unwrap();
    let (counters, member) = (serving.counters(), identity(&secret, "run"));
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(port.address()).await.unwrap());
    }
    until("places are full", || counters.refused(&RefusedConnection::TooMany) == 34).await;
    assert_eq!(ask(port.address(), &member).await, member.peer().to_string());
    // Now its address is known, and those who trickle bytes do no better.
    let trickling = slow_openers(port.address(), 40).await;
    until("they came", || counters.accepted() == 81).await;
    assert_eq!(ask(port.address(), &member).await, member.peer().to_string());
    assert!(counters.handshakes() <= 8);
    drop((silent, trickling));
}

/// A flood's hellos wait in the kernel after whoever sent them has gone; the signatures are for those who are there.
#[tokio::test]
async fn a_hello_whose_sender_has_gone_costs_no_handshake() {
    let secret = RunSecret::generate();
    let port = Port::bind(loopback()).unwrap();
    let caller = identity(&secret, "run");
    let mut session = rustls::ClientConnection::new(
        caller.client_config(&[HEALTH]),
        crate::security::tls::server_name(caller.run()),
    )
    .unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    let mut gone = Vec::new();
    // Before anybody serves: all of it waits in the kernel.
    for _ in 0..50 {
        let mut stream = std::net::TcpStream::connect(port.address()).unwrap();
        stream.write_all(&hello).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        gone.push(stream);
    }
    let serving = port.serve(&Handle::current(), identity(&secret, "run"), mirror()).unwrap();
    until("all are refused", || serving.counters().refused_total() == 50).await;
    let recent = serving.watch().status().recent;
    assert!(recent[0].cause.contains("it hung up after its hello"), "{recent:?}");
    assert_eq!(ask(port.address(), &caller).await, caller.peer().to_string());
}

/// One holder of the secret cannot take all descriptors of a process either.
#[tokio::test]
async fn one_peer_has_its_share_of_streams_and_gets_it_back() {
    let secret = RunSecret::generate();
    let port = Port::bind(loopback()).unwrap();
    let settings = ServeSettings { streams_per_peer_max: 3, ..ServeSettings::default() };
    let us = Arc::new(identity(&secret, "run"));
    let (handed, mut streams) = mpsc::unbounded_channel();
    let routes = Routes::new().route(HEALTH, move |stream| drop(handed.send(stream)));
    let serving = port.serve_runs(&Handle::current(), us, routes, settings).unwrap();
    let (greedy, other) = (identity(&secret, "run"), identity(&secret, "run"));
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(connect(port.address(), HEALTH, &greedy, PLENTY).await.unwrap());
    }
    let refused = || serving.counters().refused(&RefusedConnection::TooManyStreamsOfPeer(String::new(), 0));
    until("two are refused", || refused() == 2).await;
    let theirs = connect(port.address(), HEALTH, &other, PLENTY).await.unwrap();
    let mut open: Vec<_> = Vec::new();
    while open.len() < 4 {
        open.push(streams.recv().await.unwrap());
    }
    assert_eq!(serving.watch().status().streams, 4);
    // Closed by its owner, whatever it has become meanwhile.
    drop(open);
    assert_eq!(serving.watch().status().streams, 0);
    drop((held, theirs));
}

#[tokio::test]
async fn a_port_that_is_no_longer_served_is_free_at_once() {
    let port = Port::bind(loopback()).unwrap();
    let address = port.address();
    let serving = port.serve(&Handle::current(), identity(&RunSecret::generate(), "run"), mirror()).unwrap();
    for _ in 0..20 {
        drop(TcpStream::connect(address).await.unwrap());
    }
    drop(serving);
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[tokio::test]
async fn one_port_serves_several_runs() {
    struct Two([TlsIdentity; 2]);
    impl RunIdentities for Two {
        fn for_run(&self, run: &RunId) -> Result<TlsIdentity, NotServed> {
            self.0.iter().find(|identity| identity.run() == run).cloned().ok_or(NotServed::Unknown)
        }
    }
    let (one, two) = (RunSecret::generate(), RunSecret::generate());
    let port = Port::bind(loopback()).unwrap();
    let both = Arc::new(Two([identity(&one, "one"), identity(&two, "two")]));
    let _serving = port.serve_runs(&Handle::current(), both, mirror(), ServeSettings::default()).unwrap();
    for caller in [identity(&one, "one"), identity(&two, "two")] {
        assert_eq!(ask(port.address(), &caller).await, caller.peer().to_string());
    }
    let crossed = connect(port.address(), HEALTH, &identity(&one, "two"), PLENTY).await;
    assert!(matches!(crossed, Err(ConnectError::Foreign { .. })), "{crossed:?}");
}

#[tokio::test]
async fn dialling_nobody_and_dialling_something_else_are_told_apart() {
    let me = identity(&RunSecret::generate(), "run");
    let port = Port::bind(loopback()).unwrap();
    let nobody = SocketAddr::new(port.address().ip(), port.closed_port());
    assert!(matches!(connect(nobody, HEALTH, &me, PLENTY).await, Err(ConnectError::Unreachable { .. })));
    // Accepted by the kernel, answered by nobody: the process is stopped.
    let stopped = connect(port.address(), HEALTH, &me, Duration::from_millis(200)).await;
    assert!(matches!(stopped, Err(ConnectError::TimedOut { .. })), "{stopped:?}");
    let http = std::net::TcpListener::bind(loopback()).unwrap();
    let address = http.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = http.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        stream.read_to_end(&mut Vec::new()).ok();
    });
    let other = connect(address, HEALTH, &me, PLENTY).await;
    assert!(matches!(other, Err(ConnectError::NotOurs { .. })), "{other:?}");
    server.join().unwrap();
}

/// A port whose health plane says hello, echoes frames and reports how the hello went.
fn greeter(secret: &RunSecret) -> (Port, Serving, mpsc::UnboundedReceiver<Result<PeerId, GreetError>>) {
    let port = Port::bind(loopback()).unwrap();
    let (report, reports) = mpsc::unbounded_channel();
    let us = identity(secret, "run");
    let me = us.peer();
    let routes = Routes::new().route(HEALTH, move |incoming| {
        let report = report.clone();
        tokio::spawn(async move {
            match greet(incoming, me, PLENTY).await {
                Ok(mut greeted) => {
                    report.send(Ok(greeted.peer)).ok();
                    while let Ok(Some(frame)) = greeted.frames.next().await {
                        greeted.frames.send(&frame).await.ok();
                    }
                }
                Err(error) => drop(report.send(Err(error))),
            }
        });
    });
    let serving = port.serve(&Handle::current(), us, routes).unwrap();
    (port, serving, reports)
}

#[tokio::test]
async fn both_sides_say_hello_and_then_exchange_frames() {
    let secret = RunSecret::generate();
    let (port, _serving, mut reports) = greeter(&secret);
    let caller = identity(&secret, "run");
    let opened = connect(port.address(), HEALTH, &caller, PLENTY).await.unwrap();
    let mut greeted = greet(opened, caller.peer(), PLENTY).await.unwrap();
    assert_eq!(greeted.version, outlast_proto::wire::hello::Version::CURRENT);
    assert_eq!(reports.recv().await.unwrap().unwrap(), caller.peer());
    for length in [0, 1, 100_000, outlast_proto::limits::FRAME_BYTES_MAX] {
        let frame = vec![7; length];
        greeted.frames.send(&frame).await.unwrap();
        assert_eq!(greeted.frames.next().await.unwrap().unwrap(), frame);
    }
}

#[tokio::test]
async fn members_that_misbehave_after_the_handshake_are_told_apart() {
    let secret = RunSecret::generate();
    let (port, _serving, mut reports) = greeter(&secret);
    let caller = identity(&secret, "run");
    let open = async || connect(port.address(), HEALTH, &caller, PLENTY).await.unwrap();

    // Another name than the certificate's.
    let error = greet(open().await, fresh_peer_id(), PLENTY).await;
    assert!(error.is_ok(), "the other side is honest");
    let error = reports.recv().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("their certificate says"), "{error}");

    // A hello that is longer than hellos are.
    let mut opened = open().await;
    opened.stream.write_all(&2_000u32.to_be_bytes()).await.unwrap();
    opened.stream.flush().await.unwrap();
    let error = reports.recv().await.unwrap().unwrap_err();
    assert!(matches!(error, GreetError::Frame { cause: FrameError::Invalid(_), .. }), "{error}");

    // A frame that is not a hello, and half a frame.
    let mut opened = open().await;
    opened.stream.write_all(&[0, 0, 0, 1, 0xff]).await.unwrap();
    opened.stream.flush().await.unwrap();
    let error = reports.recv().await.unwrap().unwrap_err();
    assert!(matches!(error, GreetError::Invalid { .. }), "{error}");
    let mut opened = open().await;
    opened.stream.write_all(&[0, 0, 0, 9, 0xff]).await.unwrap();
    opened.stream.shutdown().await.unwrap();
    let error = reports.recv().await.unwrap().unwrap_err();
    assert!(matches!(error, GreetError::Frame { cause: FrameError::CutOff(5), .. }), "{error}");

    // Nothing at all.
    let mut opened = open().await;
    opened.stream.shutdown().await.unwrap();
    let error = reports.recv().await.unwrap().unwrap_err();
    assert!(matches!(error, GreetError::Closed(_)), "{error}");
}
