//! Ends and beginnings at one address: a port is free when its owner has ended, and who is silent is called so.

mod peers;

use outlast::communicator::Error;
use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast::{Communicator, Coordinator};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

#[test]
fn a_coordinators_port_is_free_as_soon_as_it_has_ended() {
    let secret = RunSecret::generate();
    let start = |address: SocketAddr| {
        Coordinator::builder().listen(address).secret(secret.clone()).preset(Preset::Local).start()
    };
    let mut coordinator = start("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = coordinator.address();
    let comm = peers::peer(&coordinator, "a");
    comm.connect(1).unwrap();
    for round in 0..100 {
        drop(coordinator);
        coordinator = start(address).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

/// Something that accepts connections and never says a word: another service, or a coordinator that is stopped.
#[test]
fn who_never_answered_is_not_said_to_have_registered_us() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let comm = Communicator::builder()
        .coordinator(&*address)
        .secret(RunSecret::generate())
        .listen("127.0.0.1:0".parse().unwrap())
        .preset(Preset::Local)
        .start()
        .unwrap();
    // Shorter and longer than one attempt to reach it.
    for timeout in [Duration::from_millis(500), Duration::from_secs(7)] {
        let began = Instant::now();
        let error = comm.connect_within(1, timeout).unwrap_err();
        assert!(began.elapsed() < timeout + Duration::from_secs(3), "{:?}", began.elapsed());
        let text = error.to_string();
        assert!(matches!(error, Error::NoCoordinator { .. }), "{text}");
        assert!(text.contains(&address) && text.contains("answer"), "{text}");
        assert!(!text.contains("registered with"), "{text}");
    }
}
