//! A caller that takes any certificate for good, as an attacker would: what keeps it out is the port alone.
#![allow(dead_code, reason = "each test binary uses its part of this page")]
#![allow(clippy::allow_attributes, reason = "an expectation would have to name each unused function")]

use outlast::port::HEALTH;
use outlast::security::tls::{TlsIdentity, server_name};
use outlast_proto::id::RunId;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Calls with `identity`'s certificate, asks for `run` and `alpn` (none if empty), and is kept out.
pub(super) async fn call(stream: TcpStream, identity: &TlsIdentity, run: &RunId, alpn: &[u8]) {
    let planes = [alpn];
    let planes = if alpn.is_empty() { &planes[..0] } else { &planes[..] };
    let mut config = (*identity.client_config(planes)).clone();
    config.dangerous().set_certificate_verifier(Arc::new(Gullible));
    is_kept_out(stream, config, run).await;
}

/// Calls with this certificate, whoever it names, and is kept out.
pub(super) async fn call_with(
    stream: TcpStream,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    run: &RunId,
    alpn: &[u8],
) {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![alpn.to_vec()];
    is_kept_out(stream, config, run).await;
}

/// Calls without any certificate, and is kept out.
pub(super) async fn call_without_certificate(stream: TcpStream, run: &RunId) {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_no_client_auth();
    config.alpn_protocols = vec![HEALTH.to_vec()];
    is_kept_out(stream, config, run).await;
}

async fn is_kept_out(stream: TcpStream, config: ClientConfig, run: &RunId) {
    let outcome = tokio::time::timeout(Duration::from_secs(30), async {
        let mut stream = TlsConnector::from(Arc::new(config)).connect(server_name(run), stream).await?;
        // In TLS 1.3 the caller is done first; a refusal shows when it reads.
        stream.write_all(b"let me in").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    });
    let answer = outcome.await.expect("the port hangs up in time");
    assert!(answer.is_err(), "the port answered: {answer:?}");
}

#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
