//! What only etcd can do, and what can only go wrong with it.

use crate::etcds::Etcds;
use crate::services::{PATIENCE, Service as _, until};
use outlast::Rendezvous;
use outlast::rendezvous::{Fate, RendezvousError};
use std::net::TcpListener;
use std::time::{Duration, Instant};

#[test]
fn the_leader_of_three_is_killed_again_and_again_and_no_accepted_write_is_lost() {
    let mut etcds = Etcds::start(3);
    let register = etcds.register(None);
    let mut accepted = 0u64;
    for _ in 0..3 {
        etcds.kill();
        let before = accepted;
        // A write whose answer was lost may have been carried out: what counts is read.
        until("writes go on", || {
            let told = register.read(PATIENCE).ok()?;
            let value = told
                .value
                .as_deref()
                .map_or(0, |value| u64::from_be_bytes(value.try_into().expect("a number")));
            assert!(value >= accepted, "{accepted} writes were accepted, {value} are there");
            let written = register.write(told.token, (value + 1).to_be_bytes().to_vec(), PATIENCE);
            accepted = if matches!(written, Ok((Fate::Accepted, _))) { value + 1 } else { value };
            (accepted >= before + 20).then_some(())
        });
        etcds.restart();
    }
}

#[test]
fn an_etcd_without_a_majority_is_an_error_in_time_and_passes() {
    let mut etcds = Etcds::start(3);
    let register = etcds.register(None);
    let token = register.read(PATIENCE).expect("a snapshot").token;
    etcds.kill_member(1);
    etcds.kill_member(2);
    let began = Instant::now();
    let error = register.write(token, b"cut off".to_vec(), Duration::from_secs(15)).unwrap_err();
    assert!(matches!(error, RendezvousError::Timeout(_)), "{error}");
    // Which of the words it is depends on what the member that is left finds out first.
    let words = ["majority", "no leader", "cannot be reached", "the connection to etcd broke"];
    assert!(words.iter().any(|word| error.to_string().contains(word)), "{error}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    let node = etcds.node(1, 1).join_timeout(Duration::from_secs(6));
    let node = node.configure(|settings| settings.rollback = Duration::ZERO).start().expect("a node");
    let error = node.next_rendezvous().unwrap_err();
    assert!(matches!(error, RendezvousError::Timeout(_)), "{error}");
    assert!(words.iter().any(|word| error.to_string().contains(word)), "{error}");
    etcds.restart_member(1);
    until("a majority is enough", || {
        let token = register.read(PATIENCE).ok()?.token;
        register.write(token, b"again".to_vec(), PATIENCE).ok().filter(|(fate, _)| *fate == Fate::Accepted)
    });
}

#[test]
fn a_user_needs_its_password_and_is_told_so_at_once() {
    let etcds = Etcds::start(1);
    let ask = |path: &str, body: &str| {
        let answer = etcds.http(0, "POST", &format!("/v3/auth/{path}"), body).expect("an answer");
        assert!(answer.contains("200 OK"), "{path}: {answer}");
    };
    ask("user/add", r#"{"name":"root","password":"p:w"}"#);
    ask("role/add", r#"{"name":"root"}"#);
    ask("user/grant", r#"{"user":"root","role":"root"}"#);
    ask("enable", "{}");
    let node = |user: &str| {
        let address = format!("{}{user}", etcds.backend());
        Rendezvous::builder(address, 1, 1).start().expect("a node").next_rendezvous()
    };
    assert_eq!(node("?user=root:p:w").expect("a round").world_size(), 1);
    for wrong in ["?user=root:wrong", ""] {
        let error = node(wrong).unwrap_err();
        assert!(matches!(error, RendezvousError::Unauthorized(_)), "{wrong}: {error}");
        assert!(error.to_string().contains("--etcd-user") && !error.to_string().contains("p:w"), "{error}");
    }
}

#[test]
fn connections_to_etcd_are_encrypted_and_both_ends_prove_themselves() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let make = |name: &str, issuer: &rcgen::Issuer<'_, rcgen::KeyPair>| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        let cert = params.signed_by(&key, issuer).expect("a certificate");
        std::fs::write(path(&format!("{name}.pem")), cert.pem()).expect("a file");
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem()).expect("a file");
    };
    let authority = |name: &str| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new([]).expect("no names");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let cert = params.self_signed(&key).expect("a certificate");
        std::fs::write(path(&format!("{name}.pem")), cert.pem()).expect("a file");
        rcgen::Issuer::new(params, key)
    };
    let (ours, other) = (authority("ca"), authority("other"));
    make("server", &ours);
    make("client", &ours);
    make("stranger", &other);
    let arguments = [
        "--cert-file",
        &path("server.pem"),
        "--key-file",
        &path("server.key"),
        "--client-cert-auth",
        "--trusted-ca-file",
        &path("ca.pem"),
    ]
    .map(str::to_owned);
    let etcds = Etcds::with(1, "https", &arguments);
    let node = |ca: &str, who: &str, time: Duration| {
        let address = format!(
            "{}?ca={}&cert={}&key={}",
            etcds.backend(),
            path(&format!("{ca}.pem")),
            path(&format!("{who}.pem")),
            path(&format!("{who}.key"))
        );
        let node = Rendezvous::builder(address, 1, 1).join_timeout(time);
        node.configure(|settings| settings.rollback = Duration::ZERO)
            .start()
            .expect("a node")
            .next_rendezvous()
    };
    assert_eq!(node("ca", "client", PATIENCE).expect("a round").world_size(), 1);
    let error = node("other", "client", PATIENCE).unwrap_err();
    assert!(matches!(error, RendezvousError::Unauthorized(_)), "{error}");
    assert!(error.to_string().contains("--etcd-ca"), "{error}");
    // In TLS 1.3 a server refuses a certificate after we have begun: it looks like a connection that breaks.
    assert!(node("ca", "stranger", Duration::from_secs(1)).is_err());
}

#[test]
fn whoever_is_no_etcd_is_called_so() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut bytes = [0; 1_024];
            let _ = stream.read(&mut bytes);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let node = Rendezvous::builder(format!("etcd://{address}"), 1, 1).join_timeout(Duration::from_secs(2));
    let node = node.configure(|settings| settings.rollback = Duration::ZERO).start().expect("a node");
    let error = node.next_rendezvous().unwrap_err().to_string();
    assert!(
        error.contains("does not speak etcd's v3 API") || error.contains("the connection to etcd broke"),
        "{error}"
    );
}

/// A full cluster raises an alarm that stays until somebody has made room and takes it back.
#[test]
fn a_full_cluster_says_so_to_nodes_and_works_again_when_it_has_room() {
    let etcds = Etcds::with(3, "http", &["--quota-backend-bytes".to_owned(), "400000".to_owned()]);
    let register = etcds.register(None);
    until("it is full", || {
        let token = register.read(PATIENCE).expect("a snapshot").token;
        register.write(token, vec![7; 100_000], PATIENCE).err()
    });
    let began = Instant::now();
    let meet = || etcds.node(1, 1).join_timeout(PATIENCE).start().expect("a node").next_rendezvous();
    let error = meet().unwrap_err();
    assert!(matches!(error, RendezvousError::Refused(_)), "{error}");
    assert!(
        error.to_string().contains("etcd is full") && error.to_string().contains("alarm disarm"),
        "{error}"
    );
    assert!(began.elapsed() < PATIENCE, "a full etcd is not waited for: {:?}", began.elapsed());
    // What the message says to do.
    let ask = |number: usize, path: &str, body: &str| {
        let answer = etcds.http(number, "POST", &format!("/v3/{path}"), body).expect("an answer");
        assert!(answer.contains("200 OK"), "{path}: {answer}");
        answer
    };
    let revision = register.read(PATIENCE).expect("a snapshot").token.revision;
    ask(0, "kv/compaction", &format!(r#"{{"revision":"{revision}","physical":true}}"#));
    for number in 0..3 {
        ask(number, "maintenance/defragment", "{}");
    }
    // Each member has raised an alarm of its own.
    let alarms = ask(0, "maintenance/alarm", r#"{"action":"GET"}"#);
    let members: Vec<_> =
        alarms.split(r#""memberID":""#).skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(!members.is_empty(), "{alarms}");
    for member in members {
        let disarm = format!(r#"{{"action":"DEACTIVATE","memberID":"{member}","alarm":"NOSPACE"}}"#);
        ask(0, "maintenance/alarm", &disarm);
    }
    until("there is room", || meet().ok());
}

/// As often as the coordinator's register is raced for; etcd takes longer over each.
#[test]
#[ignore = "minutes long: make soak"]
fn of_two_that_race_ten_thousand_times_one_wins_each_time() {
    crate::cases::race(&Etcds::start(3), 10_000);
}

#[test]
fn a_full_etcd_says_so_and_what_to_do() {
    let etcds = Etcds::with(1, "http", &["--quota-backend-bytes".to_owned(), "200000".to_owned()]);
    let register = etcds.register(None);
    let error = until("it is full", || {
        let token = register.read(PATIENCE).expect("a snapshot").token;
        register.write(token, vec![7; 100_000], PATIENCE).err()
    });
    assert!(matches!(error, RendezvousError::Refused(_)), "{error}");
    assert!(error.to_string().contains("etcd is full") && error.to_string().contains("defrag"), "{error}");
}
