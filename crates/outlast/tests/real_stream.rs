//! Where UDP does not get through, health travels over TLS streams (rule 24).
//!
//! A member is told to advertise the address of a forwarder that passes on TCP and nothing else: whatever the
//! others send it by UDP is lost, as behind a firewall that drops UDP.

use outlast::Membership;
use outlast::membership::{Event, Happening, Health, MembershipBuilder, Path, Preset, TimedEvent};
use outlast::security::RunSecret;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(15);

/// Passes on TCP connections to the address that is set later. Its threads end with the test's process.
struct Forwarder {
    address: SocketAddr,
    target: Arc<OnceLock<SocketAddr>>,
}

impl Forwarder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, target) = (listener.local_addr().unwrap(), Arc::new(OnceLock::<SocketAddr>::new()));
        let to = Arc::clone(&target);
        thread::spawn(move || {
            for inner in listener.incoming().map_while(Result::ok) {
                let Some(Ok(outer)) = to.get().map(TcpStream::connect) else { continue };
                let (inner_copy, outer_copy) = (inner.try_clone().unwrap(), outer.try_clone().unwrap());
                thread::spawn(move || pass_on(inner, outer));
                thread::spawn(move || pass_on(outer_copy, inner_copy));
            }
        });
        Self { address, target }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4_096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn member(secret: &RunSecret, name: &str) -> MembershipBuilder {
    let listen = "127.0.0.1:0".parse().unwrap();
    Membership::builder().listen(listen).preset(Preset::Local).secret(secret.clone()).name(name)
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {SOON:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_member_that_udp_does_not_reach_is_alive_over_streams() {
    let secret = RunSecret::generate();
    let forwarder = Forwarder::start();
    let open = member(&secret, "open").start().unwrap();
    let third = member(&secret, "third").join([open.address().to_string()]).start().unwrap();
    // Its UDP socket is on another number than the one it advertises: nothing sent there arrives.
    let shut = member(&secret, "shut").advertise(forwarder.address).join([open.address().to_string()]);
    let shut = shut.start().unwrap();
    forwarder.target.set(shut.listen_address()).unwrap();
    let path_of_shut = |from: &Membership| {
        let active = from.active().unwrap();
        let row = active.iter().find(|row| row.info.id == shut.id());
        row.map(|row| (row.path, row.health, row.round_trip))
    };
    for from in [&open, &third] {
        wait_until("the stream is used and answered", || {
            matches!(path_of_shut(from), Some((Path::Stream, Health::Alive, Some(_))))
        });
    }
    for from in [&open, &third] {
        from.events(Duration::ZERO).unwrap();
    }
    // Many probe intervals later: still alive, nobody died, and streams carried it.
    thread::sleep(Duration::from_secs(3));
    for from in [&open, &third] {
        assert!(matches!(path_of_shut(from), Some((Path::Stream, Health::Alive, _))));
        let events = from.events(Duration::ZERO).unwrap();
        let died = |event: &TimedEvent| matches!(event.what, Happening::Event(Event::Died { .. }));
        assert!(!events.iter().any(died), "{events:?}");
    }
    assert!(shut.counters().stream_packets_received > 0);
    assert!(open.counters().stream_packets_sent > 0);
}
