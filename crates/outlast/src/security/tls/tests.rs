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
        client.peer_of(opener.peer_certificates()).unwrap(),
        server.peer_of(accepter.peer_certificates()).unwrap(),
    ))
}

#[test]
fn members_of_one_run_know_each_other_by_peer_id() {
    let secret = RunSecret::generate();
    let (a, b) = (ProcessKey::generate(), ProcessKey::generate());
    let client = TlsIdentity::derived(&keys(&secret, "run"), &a);
    let server = TlsIdentity::derived(&keys(&secret, "run"), &b);
    assert_eq!(shake(&client, &server).unwrap(), (b.peer(), a.peer()));
    assert_eq!((client.peer(), server.peer()), (a.peer(), b.peer()));
    let again = TlsIdentity::derived(&keys(&secret, "run"), &a);
    assert_eq!(again.peer(), a.peer(), "a name survives the certificate");
}

#[test]
fn a_holder_of_the_secret_cannot_show_another_peers_name() {
    let keys = keys(&RunSecret::generate(), "run");
    let (victim, thief) = (ProcessKey::generate(), ProcessKey::generate());
    let chain = derive(&keys, &thief, victim.peer()).unwrap().chain;
    let named = Trust::Derived.peer_of(&chain).unwrap_err();
    assert_eq!(named, FalseName::Another { claimed: victim.peer(), proved: thief.peer() });
    let text = named.to_string();
    assert!(text.contains(&victim.peer().to_string()) && text.contains(&thief.peer().to_string()), "{text}");
    let honest = derive(&keys, &thief, thief.peer()).unwrap().chain;
    assert_eq!(Trust::Derived.peer_of(&honest), Ok(thief.peer()));
    assert_eq!(Trust::Derived.peer_of(&[]), Err(FalseName::NoCertificate));
}

#[test]
fn while_a_secret_is_rotated_everybody_meets_except_old_and_new_alone() {
    let (old, new) = (RunSecret::generate(), RunSecret::generate());
    let run: RunId = "run".parse().unwrap();
    let member = |secret: &RunSecret, accepted: &[RunSecret]| {
        TlsIdentity::derived(&RunKeys::derive_all(secret, accepted, &run), &ProcessKey::generate())
    };
    let before = member(&old, &[]);
    let during = [member(&new, std::slice::from_ref(&old)), member(&old, std::slice::from_ref(&new))];
    let after = member(&new, &[]);
    for rotating in &during {
        for other in [&before, &after, &during[0], &during[1]] {
            assert_eq!(shake(rotating, other).unwrap(), (other.peer(), rotating.peer()));
            assert_eq!(shake(other, rotating).unwrap(), (rotating.peer(), other.peer()));
        }
    }
    assert!(shake(&before, &after).is_err());
    assert!(shake(&after, &before).is_err());
    let stranger = member(&RunSecret::generate(), &[]);
    assert!(shake(&stranger, &during[0]).is_err());
    assert!(shake(&during[0], &stranger).is_err());
}

#[test]
fn another_secret_and_another_run_are_refused() {
    let secret = RunSecret::generate();
    let server = TlsIdentity::derived(&keys(&secret, "run"), &ProcessKey::generate());
    for foreign in [keys(&RunSecret::generate(), "run"), keys(&secret, "other")] {
        let client = TlsIdentity::derived(&foreign, &ProcessKey::generate());
        let refused = |error| matches!(error, rustls::Error::InvalidCertificate(_));
        assert!(refused(shake(&client, &server).unwrap_err()));
        assert!(refused(shake(&server, &client).unwrap_err()));
    }
}

#[test]
fn your_own_authority_says_who_everybody_is_and_is_held_against_the_clock() {
    let run: RunId = "run".parse().unwrap();
    let authority = Authority::new();
    let identity = |leaf: &Leaf| {
        let (chain, key) = leaf;
        TlsIdentity::from_pem(&run, authority.pem.as_bytes(), chain.as_bytes(), key.as_bytes()).unwrap()
    };
    let worker = identity(&authority.leaf("worker-1.example"));
    let other = identity(&authority.leaf("worker-2.example"));
    assert_eq!(shake(&worker, &other).unwrap(), (other.peer(), worker.peer()));
    assert_ne!(worker.peer(), other.peer());
    let renewed = identity(&authority.leaf("worker-1.example"));
    assert_eq!(renewed.peer(), worker.peer(), "a name survives the key");
    let expired = identity(&authority.leaf_with(&|params| params.not_after = date_time_ymd(2025, 1, 1)));
    let error = shake(&expired, &worker).unwrap_err();
    assert!(
        matches!(error, rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { .. })),
        "{error:?}"
    );
    let derived = TlsIdentity::derived(&keys(&RunSecret::generate(), "run"), &ProcessKey::generate());
    let (foreign_chain, foreign_key) = Authority::new().leaf("worker-1.example");
    let foreign = [authority.pem.as_bytes(), foreign_chain.as_bytes(), foreign_key.as_bytes()];
    let foreign = TlsIdentity::from_pem(&run, foreign[0], foreign[1], foreign[2]).unwrap();
    for stranger in [derived, foreign] {
        assert!(shake(&stranger, &worker).is_err());
        assert!(shake(&worker, &stranger).is_err());
    }
}

#[test]
fn a_certificate_is_known_by_its_uri_else_its_dns_name_else_its_subject() {
    let authority = Authority::new();
    let name_of = |change: &dyn Fn(&mut CertificateParams)| {
        let (chain, _) = authority.leaf_with(change);
        Trust::OwnAuthority.peer_of(&certificates("chain", chain.as_bytes()).unwrap())
    };
    let uri = || SanType::URI("spiffe://example/worker/1".try_into().unwrap());
    let dns = || SanType::DnsName("worker-1.example".try_into().unwrap());
    assert_eq!(
        name_of(&|params| params.subject_alt_names = vec![dns(), uri()]),
        Ok(peer_of_name(b"spiffe://example/worker/1"))
    );
    assert_eq!(
        name_of(&|params| params.subject_alt_names = vec![dns()]),
        Ok(peer_of_name(b"worker-1.example"))
    );
    let subject = |name: &'static str| {
        name_of(&move |params| {
            params.subject_alt_names.clear();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
        })
    };
    assert!(subject("one").is_ok());
    assert_ne!(subject("one"), subject("two"));
    let nameless = name_of(&|params| {
        params.subject_alt_names.clear();
        params.distinguished_name = rcgen::DistinguishedName::new();
    });
    assert_eq!(nameless, Err(FalseName::Nameless));
}

#[test]
fn derived_certificates_do_not_look_at_the_clock() {
    let keys = keys(&RunSecret::generate(), "run");
    let key = ProcessKey::generate();
    let Derived { mut authorities, mut chain } = derive(&keys, &key, key.peer()).unwrap();
    let (authority, leaf) = (authorities.remove(0), chain.remove(0));
    let mut roots = RootCertStore::empty();
    roots.add(authority).unwrap();
    let roots = Arc::new(roots);
    let provider = Arc::new(provider::default_provider());
    let verifier = |trust| ChainVerifier::new(roots.clone(), trust, &provider).unwrap();
    let name = server_name(keys.run());
    for seconds in [0, 1 << 40] {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        assert!(verifier(Trust::Derived).verify_server_cert(&leaf, &[], &name, &[], now).is_ok());
        assert!(verifier(Trust::Derived).verify_client_cert(&leaf, &[], now).is_ok());
        // The same certificate under a clock that counts: the test would notice.
        assert!(verifier(Trust::OwnAuthority).verify_server_cert(&leaf, &[], &name, &[], now).is_err());
        assert!(verifier(Trust::OwnAuthority).verify_client_cert(&leaf, &[], now).is_err());
    }
}

#[test]
fn useless_pem_is_named() {
    let run: RunId = "run".parse().unwrap();
    let signer = Authority::new();
    let (authority, (chain, key)) = (&signer.pem, signer.leaf("worker.example"));
    let try_it = |authority: &str, chain: &str, key: &str| {
        TlsIdentity::from_pem(&run, authority.as_bytes(), chain.as_bytes(), key.as_bytes())
            .unwrap_err()
            .to_string()
    };
    assert!(try_it("", &chain, &key).contains("authority's certificate holds no certificate"));
    assert!(try_it(authority, "nonsense", &key).contains("certificate chain holds no certificate"));
    assert!(try_it(authority, &chain, "nonsense").contains("private key is not PEM"));
    let other_key = KeyPair::generate().unwrap().serialize_pem();
    assert!(try_it(authority, &chain, &other_key).contains("cannot use"));
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

/// A chain and its key, in PEM.
type Leaf = (String, String);

/// An authority that a user might bring.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = Issuer::new(params.clone(), KeyPair::generate().unwrap());
        let pem = params.self_signed(issuer.key()).unwrap().pem();
        Self { issuer, pem }
    }

    fn leaf(&self, name: &str) -> Leaf {
        self.leaf_with(&|params| {
            params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
        })
    }

    fn leaf_with(&self, change: &dyn Fn(&mut CertificateParams)) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["host.example".to_owned()]).unwrap();
        change(&mut params);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}
