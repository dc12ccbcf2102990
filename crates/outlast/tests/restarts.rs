//! Ends and beginnings at one address: a port is free when its owner has ended, and who is silent is called so.

mod peers;

use outlast::communicator::{Error, ask_account};
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

/// What happened before a restart was lost with the coordinator, just when people wanted to know it.
#[test]
fn the_last_events_outlive_the_coordinator() {
    let (secret, run) = (RunSecret::generate(), "default".parse().unwrap());
    let start = |address: SocketAddr| {
        let coordinator = Coordinator::builder().listen(address).secret(secret.clone());
        coordinator.preset(Preset::Local).start().unwrap()
    };
    let coordinator = start("127.0.0.1:0".parse().unwrap());
    let address = coordinator.address();
    let events = |coordinator: &Coordinator| -> Vec<String> {
        let status = coordinator.status(&run).unwrap().unwrap_or_else(|| "{}".to_owned());
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let text = |event: &serde_json::Value| event["text"].as_str().unwrap().to_owned();
        status["events"].as_array().into_iter().flatten().map(text).collect()
    };
    let wait_for = |coordinator: &Coordinator, wanted: &dyn Fn(&[String]) -> bool| -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let events = events(coordinator);
            if wanted(&events) {
                return events;
            }
            assert!(Instant::now() < deadline, "{events:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let [ada, bob, cyd] = ["ada", "bob", "cyd"].map(|name| peers::peer(&coordinator, name));
    std::thread::scope(|scope| {
        for comm in [&ada, &bob, &cyd] {
            scope.spawn(|| comm.connect(3).unwrap());
        }
    });
    let gone = cyd.peer_id().short();
    drop(cyd);
    let left = format!("cyd {gone} was lost: it said goodbye");
    let without = |text: &String| text.ends_with("with 2 members");
    let before = wait_for(&coordinator, &|events| events.contains(&left) && events.iter().any(without));
    // They hear it within a moment.
    let deadline = Instant::now() + Duration::from_secs(20);
    for member in [&ada, &bob] {
        let address = member.peers()[member.rank()].address.to_string();
        loop {
            let account = ask_account(&address, &secret, &run, Duration::from_secs(5)).unwrap();
            let account: serde_json::Value = serde_json::from_str(&account).unwrap();
            if account["events"].as_array().unwrap().len() >= before.len() {
                break;
            }
            assert!(Instant::now() < deadline, "{account:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    drop(coordinator);
    let coordinator = start(address);
    let rebuilt = |text: &String| text.starts_with("a coordinator took over");
    let after = wait_for(&coordinator, &|events| events.iter().any(rebuilt) && events.contains(&left));
    // In their old order, each once, and behind what happened since.
    let older: Vec<_> = after.iter().filter(|text| before.contains(text)).cloned().collect();
    assert_eq!(older, before);
    assert!(after.iter().position(rebuilt) < after.iter().position(|text| *text == left), "{after:#?}");
    drop((ada, bob));
}
