//! Streams: mutual TLS 1.3, with an authority that every member can derive for itself.
//!
//! TLS wants certificates, certificates want an authority, and an authority usually wants somebody to run it.
//! Here the authority's key follows from the run secret and the run id (rule 33): each process derives it,
//! signs a certificate for a key that it just made up, and forgets nothing that it would have to store. Both
//! sides show a certificate; who cannot show one of this run's authority has another secret or another run.
//!
//! ```text
//! secret, run id --HKDF--> authority key --signs--> leaf: fresh key of this process,
//!                                                         URI outlast:peer:<peer id>
//! ```
//!
//! Clocks on rented machines are wrong often enough, so a derived certificate is not bound to the wall clock:
//! its dates are wide and it is verified at a fixed date. What it proves is possession of the secret, and that
//! does not expire. Certificates of an authority that you bring yourself are held against the clock as usual.
//!
//! The run id travels as the TLS server name (in base32, because case does not count there), so that a process
//! which serves several runs can pick the right authority before anything is proved.
//!
//! The invariant: a finished handshake means that the other side holds a key certified by this run's
//! authority; [`peer_id_of`] then says which peer it is.
//!
//! It does not tell holders of the secret apart: each of them can sign for any peer id. Bring your own
//! authority for that ([`TlsIdentity::from_pem`]). There is no TLS 1.2, no resumption and no early data: a
//! handshake costs a millisecond and each of these costs an argument.

use super::{RunKeys, base32};
use aws_lc_rs::digest;
use aws_lc_rs::signature::Ed25519KeyPair;
use outlast_proto::id::{PeerId, RunId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Put before the peer id in a certificate's URI.
const PEER_URI: &str = "outlast:peer:";
/// Put after the run id in a server name.
const NAME_SUFFIX: &str = ".run.outlast";
/// Longest label of a DNS name.
const LABEL_BYTES_MAX: usize = 63;
/// The date at which derived certificates are verified; any date between theirs would do.
const FIXED_DATE: UnixTime = UnixTime::since_unix_epoch(Duration::from_hours(24 * 365 * 50));

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A PEM text cannot be read.
    #[error("the {what} is not PEM: {cause}")]
    Pem {
        /// Which of the three texts.
        what: &'static str,
        /// What is wrong.
        cause: rustls::pki_types::pem::Error,
    },
    /// A PEM text holds no certificate.
    #[error("the {0} holds no certificate")]
    NoCertificate(&'static str),
    /// The certificates or the key cannot be used.
    #[error("cannot use the certificate, its key or its authority: {0}")]
    Unusable(String),
}

/// How this process shows itself on streams of one run, and whom it lets in.
#[derive(Clone)]
pub struct TlsIdentity {
    run: RunId,
    peer: PeerId,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl TlsIdentity {
    /// The identity of `me` under the run's derived authority.
    pub fn derived(keys: &RunKeys, me: PeerId) -> Self {
        let (authority, leaf, key) = derive(keys, me).expect("the derivation takes no input from outside");
        let mut roots = RootCertStore::empty();
        roots.add(authority).expect("the authority just made is well formed");
        Self::new(keys.run(), roots, vec![leaf], key, Clock::Fixed)
            .expect("the certificate just made is usable")
    }

    /// The identity that a certificate of your own authority gives, for streams of `run`. The texts are PEM:
    /// the authority's certificate (or several), this process's certificate chain, and its private key.
    ///
    /// The peer id is the certificate's URI `outlast:peer:<32 hexadecimal digits>`, or a hash of its key.
    pub fn from_pem(run: &RunId, authority: &[u8], chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("authority's certificate", authority)? {
            roots.add(certificate).map_err(|error| TlsError::Unusable(error.to_string()))?;
        }
        let chain = certificates("certificate chain", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|cause| TlsError::Pem { what: "private key", cause })?;
        Self::new(run, roots, chain, key, Clock::Wall)
    }

    fn new(
        run: &RunId,
        roots: RootCertStore,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        clock: Clock,
    ) -> Result<Self, TlsError> {
        let unusable = |error: rustls::Error| TlsError::Unusable(error.to_string());
        let peer = peer_id_of(&chain).ok_or(TlsError::NoCertificate("certificate chain"))?;
        let provider = Arc::new(provider::default_provider());
        let verifier = Arc::new(ChainVerifier::new(Arc::new(roots), clock, &provider)?);
        let versions = [&rustls::version::TLS13];
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions)
            .map_err(unusable)?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)?;
        client.resumption = Resumption::disabled();
        Ok(Self { run: run.clone(), peer, server: Arc::new(server), client: Arc::new(client) })
    }

    /// The run whose streams this identity is for.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// The peer that others see.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// For accepting streams of these planes.
    pub fn server_config(&self, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        let mut config = (*self.server).clone();
        config.alpn_protocols = alpn.iter().map(|plane| plane.to_vec()).collect();
        Arc::new(config)
    }

    /// For opening a stream of one of these planes.
    pub fn client_config(&self, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let mut config = (*self.client).clone();
        config.alpn_protocols = alpn.iter().map(|plane| plane.to_vec()).collect();
        Arc::new(config)
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsIdentity({:?} in run {})", self.peer, self.run)
    }
}

/// The peer that a certificate chain belongs to. Meaningful only after a handshake has verified the chain.
/// `None` if there is no certificate or it cannot be read.
pub fn peer_id_of(chain: &[CertificateDer<'_>]) -> Option<PeerId> {
    let certificate = webpki::EndEntityCert::try_from(chain.first()?).ok()?;
    if let Some(named) = certificate.valid_uri_names().find_map(peer_id_from_uri) {
        return Some(named);
    }
    let hash = digest::digest(&digest::SHA256, &certificate.subject_public_key_info());
    Some(PeerId::from_bytes(*hash.as_ref().first_chunk()?))
}

/// The TLS server name under which `run` is asked for.
pub fn server_name(run: &RunId) -> ServerName<'static> {
    let mut text = base32::encode(run.as_str().as_bytes());
    if text.len() > LABEL_BYTES_MAX {
        text.insert(LABEL_BYTES_MAX, '.');
    }
    text.push_str(NAME_SUFFIX);
    ServerName::try_from(text).expect("a run id of legal length fits into two labels")
}

/// The run that a TLS server name asks for.
pub fn run_of_server_name(name: &str) -> Option<RunId> {
    let labels = name.strip_suffix(NAME_SUFFIX)?;
    let bytes = base32::decode(&labels.replace('.', "")).ok()?;
    String::from_utf8(bytes).ok()?.parse().ok()
}

/// The authority's certificate, and a leaf with its key.
type Derived = (CertificateDer<'static>, CertificateDer<'static>, PrivateKeyDer<'static>);

fn derive(keys: &RunKeys, me: PeerId) -> Result<Derived, rcgen::Error> {
    let seed = Ed25519KeyPair::from_seed_unchecked(keys.authority_seed())
        .map_err(|_| rcgen::Error::RingUnspecified)?;
    let document = seed.to_pkcs8v1().map_err(|_| rcgen::Error::RingUnspecified)?;
    let authority_key = KeyPair::from_pkcs8_der_and_sign_algo(
        &PrivatePkcs8KeyDer::from(document.as_ref()),
        &rcgen::PKCS_ED25519,
    )?;
    let mut authority = CertificateParams::default();
    authority.distinguished_name = rcgen::DistinguishedName::new();
    authority.distinguished_name.push(DnType::CommonName, "outlast run authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));

    let leaf_key = KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let mut leaf = CertificateParams::default();
    leaf.distinguished_name = rcgen::DistinguishedName::new();
    leaf.distinguished_name.push(DnType::CommonName, "outlast peer");
    leaf.subject_alt_names = vec![SanType::URI(format!("{PEER_URI}{me}").try_into()?)];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

    let authority_certificate = authority.self_signed(&authority_key)?.der().clone();
    let leaf = leaf.signed_by(&leaf_key, &Issuer::new(authority, authority_key))?.der().clone();
    Ok((authority_certificate, leaf, PrivatePkcs8KeyDer::from(leaf_key.serialize_der()).into()))
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|cause| TlsError::Pem { what, cause })?;
    if found.is_empty() { Err(TlsError::NoCertificate(what)) } else { Ok(found) }
}

fn peer_id_from_uri(uri: &str) -> Option<PeerId> {
    let digits = uri.strip_prefix(PEER_URI)?.as_bytes();
    if digits.len() != 32 || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let number = u128::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    Some(PeerId::from_bytes(number.to_be_bytes()))
}

/// Which date certificates are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    /// [`FIXED_DATE`]: derived certificates do not expire.
    Fixed,
    /// Today.
    Wall,
}

/// Lets in whoever shows a chain to one of the roots. Names are not compared: each member is known by address
/// and peer id, and the root itself stands for the run. All of X.509 is left to `webpki`.
#[derive(Debug)]
struct ChainVerifier {
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    clock: Clock,
    algorithms: rustls::crypto::WebPkiSupportedAlgorithms,
}

impl ChainVerifier {
    fn new(
        roots: Arc<RootCertStore>,
        clock: Clock,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| TlsError::Unusable(error.to_string()))?;
        Ok(Self { roots, clients, clock, algorithms: provider.signature_verification_algorithms })
    }

    fn date(&self, now: UnixTime) -> UnixTime {
        match self.clock {
            Clock::Fixed => FIXED_DATE,
            Clock::Wall => now,
        }
    }
}

impl ServerCertVerifier for ChainVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            self.date(now),
            self.algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(tls12_is_not_spoken())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for ChainVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A hint would only tell strangers what our authority is called.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.clients.verify_client_cert(end_entity, intermediates, self.date(now))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(tls12_is_not_spoken())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn tls12_is_not_spoken() -> rustls::Error {
    rustls::Error::General("TLS 1.2 is not spoken here".to_owned())
}

#[cfg(test)]
mod tests;
