//! Handshakes in memory, between identities that fit and identities that do not.

use super::*;
use crate::security::{RunSecret, fresh_peer_id};
use rcgen::date_time_ymd;
use rustls::{CertificateError, ClientConnection, ServerConnection};

fn keys(secret: &RunSecret, run: &str) -> Arc<RunKeys> {
    RunKeys::derive(secret, &run.parse().unwrap())
}

/// Runs a handshake in memory. Returns what each side thinks of the other, or the first error.
fn shake(client: &TlsIdentity, server: &TlsIdentity) -> Result<(PeerId, PeerId), rustls::Error> {
    let mut opener = ClientConnection::new(client.client_config(&[b"x"]), server_name(client.run())).unwrap();
    let mut accepter = ServerConnection::new(server.server_config(&[b"x"])).unwrap();
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while opener.wants_write() {
            opener.write_tls(&mut bytes).unwrap();
        }
        accepter.read_tls(&mut bytes.as_slice()).unwrap();
        accepter.process_new_packets()?;
        let mut bytes = Vec::new();
        while accepter.wants_write() {
            accepter.write_tls(&mut bytes).unwrap();
        }
        opener.read_tls(&mut bytes.as_slice()).unwrap();
        opener.process_new_packets()?;
    }
    assert!(!opener.is_handshaking() && !accepter.is_handshaking());
    assert_eq!(opener.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    Ok((
        peer_id_of(opener.peer_certificates().unwrap()).unwrap(),
        peer_id_of(accepter.peer_certificates().unwrap()).unwrap(),
    ))
}

#[test]
fn members_of_one_run_know_each_other_by_peer_id() {
    let secret = RunSecret::generate();
    let (a, b) = (fresh_peer_id(), fresh_peer_id());
    let client = TlsIdentity::derived(&keys(&secret, "run"), a);
    let server = TlsIdentity::derived(&keys(&secret, "run"), b);
    assert_eq!(shake(&client, &server).unwrap(), (b, a));
    assert_eq!((client.peer(), server.peer()), (a, b));
}

#[test]
fn another_secret_and_another_run_are_refused() {
    let secret = RunSecret::generate();
    let server = TlsIdentity::derived(&keys(&secret, "run"), fresh_peer_id());
    for foreign in [keys(&RunSecret::generate(), "run"), keys(&secret, "other")] {
        let client = TlsIdentity::derived(&foreign, fresh_peer_id());
        let refused = |error| matches!(error, rustls::Error::InvalidCertificate(_));
        assert!(refused(shake(&client, &server).unwrap_err()));
        assert!(refused(shake(&server, &client).unwrap_err()));
    }
}

#[test]
fn your_own_authority_gives_per_peer_identity_and_is_held_against_the_clock() {
    let run: RunId = "run".parse().unwrap();
    let peer = fresh_peer_id();
    let (authority, leaves) = authority_and_leaves(peer);
    let identity = |(chain, key): &(String, String)| {
        TlsIdentity::from_pem(&run, authority.as_bytes(), chain.as_bytes(), key.as_bytes()).unwrap()
    };
    let [named, unnamed, expired] = leaves.each_ref().map(identity);
    let (seen_server, seen_client) = shake(&named, &unnamed).unwrap();
    assert_eq!((seen_server, seen_client), (unnamed.peer(), peer));
    assert_ne!(unnamed.peer(), peer, "a certificate without a name is known by its key");
    let error = shake(&expired, &named).unwrap_err();
    assert!(
        matches!(error, rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { .. })),
        "{error:?}"
    );
    let derived = TlsIdentity::derived(&keys(&RunSecret::generate(), "run"), peer);
    assert!(shake(&derived, &named).is_err());
    assert!(shake(&named, &derived).is_err());
}

#[test]
fn derived_certificates_do_not_look_at_the_clock() {
    let keys = keys(&RunSecret::generate(), "run");
    let (authority, leaf, _) = derive(&keys, fresh_peer_id()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(authority).unwrap();
    let roots = Arc::new(roots);
    let provider = Arc::new(provider::default_provider());
    let verifier = |clock| ChainVerifier::new(roots.clone(), clock, &provider).unwrap();
    let name = server_name(keys.run());
    for seconds in [0, 1 << 40] {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        assert!(verifier(Clock::Fixed).verify_server_cert(&leaf, &[], &name, &[], now).is_ok());
        assert!(verifier(Clock::Fixed).verify_client_cert(&leaf, &[], now).is_ok());
        // The same certificate under a clock that counts: the test would notice.
        assert!(verifier(Clock::Wall).verify_server_cert(&leaf, &[], &name, &[], now).is_err());
        assert!(verifier(Clock::Wall).verify_client_cert(&leaf, &[], now).is_err());
    }
}

#[test]
fn useless_pem_is_named() {
    let run: RunId = "run".parse().unwrap();
    let (authority, [(chain, key), ..]) = authority_and_leaves(fresh_peer_id());
    let try_it = |authority: &str, chain: &str, key: &str| {
        TlsIdentity::from_pem(&run, authority.as_bytes(), chain.as_bytes(), key.as_bytes())
            .unwrap_err()
            .to_string()
    };
    assert!(try_it("", &chain, &key).contains("authority's certificate holds no certificate"));
    assert!(try_it(&authority, "nonsense", &key).contains("certificate chain holds no certificate"));
    assert!(try_it(&authority, &chain, "nonsense").contains("private key is not PEM"));
    let other_key = KeyPair::generate().unwrap().serialize_pem();
    assert!(try_it(&authority, &chain, &other_key).contains("cannot use"));
}

#[test]
fn run_ids_survive_the_server_name() {
    for run in ["a", "Llama-70B_v2.1", &"x".repeat(39), &"y".repeat(40), &"Z".repeat(64)] {
        let run: RunId = run.parse().unwrap();
        let name = server_name(&run);
        let ServerName::DnsName(name) = name else { panic!("not a name: {name:?}") };
        assert_eq!(run_of_server_name(name.as_ref()), Some(run));
    }
    for foreign in ["", "localhost", ".run.outlast", "MFRGG.run.outlast", "mfrgg", "aaaaaaaa.run.outlast"] {
        assert_eq!(run_of_server_name(foreign), None, "{foreign}");
    }
}

#[test]
fn only_well_formed_peer_uris_count() {
    let id = fresh_peer_id();
    assert_eq!(peer_id_from_uri(&format!("outlast:peer:{id}")), Some(id));
    for uri in ["", "outlast:peer:", "outlast:peer:12", &format!("outlast:peer:+{}", &id.to_string()[1..])] {
        assert_eq!(peer_id_from_uri(uri), None, "{uri}");
    }
}

/// Certificates of an authority that a user might bring, all PEM: the authority's, then (chain, key) with a
/// peer's name, one without, one that has expired.
fn authority_and_leaves(peer: PeerId) -> (String, [(String, String); 3]) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = Issuer::new(params.clone(), KeyPair::generate().unwrap());
    let authority = params.self_signed(issuer.key()).unwrap().pem();
    let leaf = |change: &dyn Fn(&mut CertificateParams)| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["host.example".to_owned()]).unwrap();
        change(&mut params);
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let uri = SanType::URI(format!("outlast:peer:{peer}").try_into().unwrap());
    let named = leaf(&|params| params.subject_alt_names.push(uri.clone()));
    // Past for the wall clock, still to come at the fixed date of derived certificates.
    let expired = leaf(&|params| params.not_after = date_time_ymd(2025, 1, 1));
    (authority, [named, leaf(&|_| ()), expired])
}
