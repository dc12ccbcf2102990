//! Streams under an authority of one's own: the secret alone is not enough to take part.

mod peers;

use outlast::communicator::{Call, Error, NextStep};
use outlast::membership::Preset;
use outlast::security::OwnCertificate;
use outlast::{Communicator, Coordinator};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::thread;

/// An authority as somebody might run it.
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

    /// A certificate for `name`, in three files as an administrator hands them out.
    fn certify(&self, name: &str) -> OwnCertificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
        let chain = params.signed_by(&key, &self.issuer).unwrap().pem();
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (ca, cert) = (file("ca.pem", &self.pem), file("cert.pem", &chain));
        OwnCertificate::from_files(ca, cert, file("key.pem", &key.serialize_pem())).unwrap()
    }
}

fn peer(coordinator: &Coordinator, certificate: Option<OwnCertificate>) -> Communicator {
    let builder = peers::builder(coordinator);
    certificate.into_iter().fold(builder, outlast::communicator::CommunicatorBuilder::tls).start().unwrap()
}

#[test]
fn peers_of_one_authority_reduce_together_and_others_are_refused_with_words() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let coordinator = Coordinator::builder()
        .listen("127.0.0.1:0".parse().unwrap())
        .preset(Preset::Local)
        .tls(ours.certify("coordinator.example"))
        .start()
        .unwrap();
    let start = |name: &str| {
        let comm = peer(&coordinator, Some(ours.certify(name)));
        thread::spawn(move || {
            comm.connect(2).unwrap();
            let mut data = vec![1.5_f32; 100_000];
            comm.all_reduce(&mut data, &Call::sum()).unwrap();
            assert!(data.iter().all(|sum| sum.to_bits() == 3.0_f32.to_bits()));
            comm
        })
    };
    let members: Vec<_> = ["worker-1.example", "worker-2.example"].map(start).into();
    let members: Vec<_> = members.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_ne!(members[0].peer_id(), members[1].peer_id());
    let status = coordinator.status(&"default".parse().unwrap()).unwrap().unwrap();
    assert!(status.contains("\"key_is_kept\":true"), "a name survives restarts: {status}");

    // The right secret, and a certificate of another authority, or none.
    for certificate in [Some(theirs.certify("worker-1.example")), None] {
        let stranger = peer(&coordinator, certificate);
        let error = stranger.connect(1).unwrap_err();
        assert!(matches!(error, Error::Unauthorized(_)), "{error:?}");
        assert_eq!(error.action(), NextStep::Fatal);
        assert!(error.to_string().contains("does not belong to this run"), "{error}");
    }
    thread::scope(|scope| {
        for comm in &members {
            scope.spawn(move || comm.barrier(&Call::default()).unwrap());
        }
    });
}

#[test]
fn a_file_that_is_missing_or_no_certificate_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("ca.pem");
    let error = OwnCertificate::from_files(&missing, &missing, &missing).unwrap_err().to_string();
    assert!(error.contains("authority's certificate") && error.contains("ca.pem"), "{error}");
    let nonsense = OwnCertificate::from_pem(b"ca", b"cert", b"key");
    let builder =
        Communicator::builder().coordinator("127.0.0.1:1").secret(outlast::security::RunSecret::generate());
    let error = builder.tls(nonsense).start().unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    assert!(error.to_string().contains("authority's certificate holds no certificate"), "{error}");
}
