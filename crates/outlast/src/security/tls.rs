//! Streams: mutual TLS 1.3, with an authority that every member can derive for itself.
//!
//! TLS wants certificates, certificates want an authority, and an authority usually wants somebody to run it.
//! Here the authority's key follows from the run secret and the run id (rule 33): each process derives it,
//! signs a certificate for a key that it just made up, and forgets nothing that it would have to store. Both
//! sides show a certificate; who cannot show one of this run's authority has another secret or another run.
//!
//! ```text
//! secret, run id --HKDF--> authority key --signs--> leaf: key of this process
//!                                                            |
//!                                                            +--SHA-256--> PeerId (rule 39)
//! ```
//!
//! The authority says who may take part. It does not say who somebody is, because every holder of the secret
//! could say so of anybody: the name follows from the key itself ([`super::identity`]). A leaf also spells its
//! owner's name out (`URI outlast:peer:<peer id>`), so that who shows a key of its own under another's name is
//! found out and named.
//!
//! While a secret is rotated a process has two authorities. It takes leaves of both, and shows its own with a
//! second certificate: its authority's, signed by the other one. So who has only one of the secrets finds a
//! chain to what it trusts, and nobody has to ask first.
//!
//! Clocks on rented machines are wrong often enough, so a derived certificate is not bound to the wall clock:
//! its dates are wide and it is verified at a fixed date. What it proves is possession of the secret, and that
//! does not expire. Certificates of an authority that you bring yourself are held against the clock as usual.
//!
//! The run id travels as the TLS server name (in base32, because case does not count there), so that a process
//! which serves several runs can pick the right authority before anything is proved.
//!
//! The invariant: a finished handshake means that the other side holds a key certified by this run's
//! authority; [`TlsIdentity::peer_of`] then says which peer it is, and nobody else can be that peer.
//!
//! There is no TLS 1.2, no resumption and no early data: a handshake costs a millisecond and each of these costs
//! an argument.

use super::identity::{ProcessKey, peer_of_name, peer_of_public_key};
use super::{RunKeys, base32};
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
use std::path::PathBuf;
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
    /// A file cannot be read.
    #[error("cannot read the {what} from {}: {cause}", path.display())]
    File {
        /// Which of the three.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The certificate gives its owner no name.
    #[error(
        "the certificate names nobody: a peer is known by its first URI or DNS name, or by its subject; put one into it"
    )]
    Nameless,
}

/// Somebody showed a certificate from which no name follows that could be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FalseName {
    /// It showed none, or one that cannot be read.
    #[error("it showed no certificate")]
    NoCertificate,
    /// It has a key of its own, and calls itself somebody else.
    #[error("its certificate says that it is {claimed}, its key is that of {proved}")]
    Another {
        /// Whose name it claims.
        claimed: PeerId,
        /// Who it is.
        proved: PeerId,
    },
    /// Its certificate gives no name.
    #[error("its certificate names nobody")]
    Nameless,
}

/// How this process shows itself on streams of one run, and whom it lets in.
#[derive(Clone)]
pub struct TlsIdentity {
    run: RunId,
    peer: PeerId,
    trust: Trust,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl TlsIdentity {
    /// The identity of the process that has `key`, under the run's derived authority.
    pub fn derived(keys: &RunKeys, key: &ProcessKey) -> Self {
        let derived = derive(keys, key, key.peer()).expect("the derivation takes no input from outside");
        let mut roots = RootCertStore::empty();
        for authority in derived.authorities {
            roots.add(authority).expect("an authority just made is well formed");
        }
        let document = key.document().clone_key().into();
        Self::new(keys.run(), roots, derived.chain, document, Trust::Derived)
            .expect("the certificate just made is usable")
    }

    /// The identity that a certificate of your own authority gives, for streams of `run`. The texts are PEM:
    /// the authority's certificate (or several), this process's certificate chain, and its private key.
    ///
    /// The peer id follows from the certificate's name: its first URI, else its first DNS name, else its
    /// subject. So a renewed certificate is the same peer, and two processes need two names.
    pub fn from_pem(run: &RunId, authority: &[u8], chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("authority's certificate", authority)? {
            roots.add(certificate).map_err(|error| TlsError::Unusable(error.to_string()))?;
        }
        let chain = certificates("certificate chain", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|cause| TlsError::Pem { what: "private key", cause })?;
        Self::new(run, roots, chain, key, Trust::OwnAuthority)
    }

    fn new(
        run: &RunId,
        roots: RootCertStore,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        trust: Trust,
    ) -> Result<Self, TlsError> {
        let unusable = |error: rustls::Error| TlsError::Unusable(error.to_string());
        let peer = trust.peer_of(&chain).map_err(|cause| match cause {
            FalseName::Nameless => TlsError::Nameless,
            other => TlsError::Unusable(other.to_string()),
        })?;
        let provider = Arc::new(provider::default_provider());
        let verifier = Arc::new(ChainVerifier::new(Arc::new(roots), trust, &provider)?);
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
        Ok(Self { run: run.clone(), peer, trust, server: Arc::new(server), client: Arc::new(client) })
    }

    /// The run whose streams this identity is for.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// The peer that others see.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Whether a later start of this process will be the same peer, without a key that it keeps: its name is in
    /// the certificate.
    pub fn is_of_own_authority(&self) -> bool {
        self.trust == Trust::OwnAuthority
    }

    /// Who is at the other end of a stream whose handshake with this identity is finished (rule 39).
    pub fn peer_of(&self, chain: Option<&[CertificateDer<'_>]>) -> Result<PeerId, FalseName> {
        self.trust.peer_of(chain.unwrap_or_default())
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

/// What follows from the run's secrets and a process's key.
struct Derived {
    /// Whom to trust: one for each secret.
    authorities: Vec<CertificateDer<'static>>,
    /// What to show: the leaf, and our authority as each of the others certifies it.
    chain: Vec<CertificateDer<'static>>,
}

/// `named` is whom the leaf spells out; only a test that cheats gives another than the key's.
fn derive(keys: &RunKeys, key: &ProcessKey, named: PeerId) -> Result<Derived, rcgen::Error> {
    let mut authority = CertificateParams::default();
    authority.distinguished_name = rcgen::DistinguishedName::new();
    authority.distinguished_name.push(DnType::CommonName, "outlast run authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));

    let leaf_key = KeyPair::from_pkcs8_der_and_sign_algo(&key.document(), &rcgen::PKCS_ED25519)?;
    let mut leaf = CertificateParams::default();
    leaf.distinguished_name = rcgen::DistinguishedName::new();
    leaf.distinguished_name.push(DnType::CommonName, "outlast peer");
    leaf.subject_alt_names = vec![SanType::URI(format!("{PEER_URI}{named}").try_into()?)];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

    let (mut authorities, mut issuers) = (Vec::new(), Vec::new());
    for seed in keys.authority_seeds() {
        let key = authority_key(seed)?;
        authorities.push(authority.self_signed(&key)?.der().clone());
        issuers.push(Issuer::new(authority.clone(), key));
    }
    let Some((ours, others)) = issuers.split_first() else { return Err(rcgen::Error::RingUnspecified) };
    let mut chain = vec![leaf.signed_by(&leaf_key, ours)?.der().clone()];
    for other in others {
        chain.push(authority.signed_by(ours.key(), other)?.der().clone());
    }
    Ok(Derived { authorities, chain })
}

fn authority_key(seed: &[u8; 32]) -> Result<KeyPair, rcgen::Error> {
    let seed = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| rcgen::Error::RingUnspecified)?;
    let document = seed.to_pkcs8v1().map_err(|_| rcgen::Error::RingUnspecified)?;
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(document.as_ref()), &rcgen::PKCS_ED25519)
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

/// What a certificate proves, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// The authority is derived from the secret: a name follows from the key, and nothing expires
    /// ([`FIXED_DATE`]).
    Derived,
    /// Somebody's own authority says who everybody is, and until when.
    OwnAuthority,
}

impl Trust {
    /// The peer that a verified chain belongs to.
    fn peer_of(self, chain: &[CertificateDer<'_>]) -> Result<PeerId, FalseName> {
        let leaf = chain.first().ok_or(FalseName::NoCertificate)?;
        let leaf = webpki::EndEntityCert::try_from(leaf).map_err(|_| FalseName::NoCertificate)?;
        match self {
            Self::Derived => {
                let proved = peer_of_public_key(&leaf.subject_public_key_info());
                match leaf.valid_uri_names().find_map(peer_id_from_uri) {
                    Some(claimed) if claimed != proved => Err(FalseName::Another { claimed, proved }),
                    _ => Ok(proved),
                }
            }
            Self::OwnAuthority => {
                let name = leaf.valid_uri_names().next().or_else(|| leaf.valid_dns_names().next());
                match name.map_or(leaf.subject(), str::as_bytes) {
                    [] => Err(FalseName::Nameless),
                    name => Ok(peer_of_name(name)),
                }
            }
        }
    }
}

/// Lets in whoever shows a chain to one of the roots. Names are not compared: each member is known by address
/// and peer id, and the root itself stands for the run. All of X.509 is left to `webpki`.
#[derive(Debug)]
struct ChainVerifier {
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    trust: Trust,
    algorithms: rustls::crypto::WebPkiSupportedAlgorithms,
}

impl ChainVerifier {
    fn new(
        roots: Arc<RootCertStore>,
        trust: Trust,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| TlsError::Unusable(error.to_string()))?;
        Ok(Self { roots, clients, trust, algorithms: provider.signature_verification_algorithms })
    }

    fn date(&self, now: UnixTime) -> UnixTime {
        match self.trust {
            Trust::Derived => FIXED_DATE,
            Trust::OwnAuthority => now,
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
