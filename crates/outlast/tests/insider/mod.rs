//! A holder of the run's secret who cheats. It makes its keys by itself, from the protocol's page alone, because the
//! library gives nobody the means to lie.
#![allow(dead_code, reason = "each test binary uses its part of this page")]
#![allow(clippy::allow_attributes, reason = "an expectation would have to name each unused function")]

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::signature::Ed25519KeyPair;
use outlast::security::datagram::{DatagramGuard, Opened};
use outlast::security::{RunKeys, RunSecret, base32, fresh_boot_id};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::wire::encode;
use outlast_proto::wire::membership::{Packet, Record};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        32
    }
}

/// The run's certificate authority, as every holder of the secret can derive it.
fn authority(secret: &RunSecret, run: &RunId) -> Issuer<'static, KeyPair> {
    let text = secret.to_text();
    let bytes = base32::decode(text.split('-').nth(2).expect("the value")).expect("base32");
    let length = [run.as_str().len() as u8];
    let info: [&[u8]; 3] = [b"certificate authority", &length, run.as_str().as_bytes()];
    let mut seed = [0; 32];
    let root = Salt::new(HKDF_SHA256, b"outlast keys 1").extract(&bytes);
    root.expand(&info, Bytes32).expect("32 bytes").fill(&mut seed).expect("32 bytes");
    let document = Ed25519KeyPair::from_seed_unchecked(&seed).expect("a seed").to_pkcs8v1().expect("a key");
    let document = PrivatePkcs8KeyDer::from(document.as_ref().to_vec());
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&document, &rcgen::PKCS_ED25519).expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "outlast run authority");
    Issuer::new(params, key)
}

/// A certificate of the run's authority that bears `name`, for a key that is not that peer's.
pub(crate) fn stolen_name(
    secret: &RunSecret,
    run: &RunId,
    name: PeerId,
) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let mut leaf = CertificateParams::default();
    leaf.subject_alt_names = vec![SanType::URI(format!("outlast:peer:{name}").try_into().expect("a name"))];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let leaf = leaf.signed_by(&key, &authority(secret, run)).expect("a certificate").der().clone();
    (leaf, PrivatePkcs8KeyDer::from(key.serialize_der()).into())
}

/// Says `records` to `told` in one sealed datagram, in the name of `sender`, once it is believed to be that.
pub(crate) fn say(secret: &RunSecret, run: &RunId, sender: PeerId, told: SocketAddr, records: Vec<Record>) {
    let mut guard = DatagramGuard::new(RunKeys::derive(secret, run), sender, fresh_boot_id());
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let send = |guard: &mut DatagramGuard, packet: &Packet| {
        let mut datagram = Vec::new();
        guard.seal(&encode(packet), &mut datagram);
        socket.send_to(&datagram, told).expect("sent");
    };
    let (deadline, mut is_believed) = (Instant::now() + Duration::from_secs(20), false);
    while !is_believed {
        assert!(Instant::now() < deadline, "{told} never challenged us");
        send(&mut guard, &Packet { body: None, records: Vec::new() });
        let mut buffer = [0; 2_000];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            match guard.open(outlast::clock::now(), from, &buffer[..length]) {
                Opened::Reply(reply) | Opened::Packet { reply: Some(reply), .. } => {
                    socket.send_to(&reply, from).expect("echoed");
                    is_believed = true;
                    break;
                }
                _ => {}
            }
        }
    }
    send(&mut guard, &Packet { body: None, records });
}
