//! Where etcd is, and how to be let in.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// How long connecting to one member, or one call, may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where etcd is, and how to be let in.
#[derive(Clone)]
pub struct EtcdOptions {
    endpoints: Vec<String>,
    pub(super) security: Security,
    /// Name and password.
    pub(super) user: Option<(String, Zeroizing<String>)>,
    pub(super) timeout: Duration,
}

/// Whether the connection is encrypted.
#[derive(Clone)]
pub(super) enum Security {
    Plain,
    Tls(Config),
}

/// A TLS configuration; two of them are never compared.
#[derive(Clone)]
pub(super) struct Config(pub(super) Arc<ClientConfig>);

/// Why etcd cannot be reached like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdOptionsError {
    /// No address that could be dialled.
    #[error("{0:?} is not an address of etcd: write host:port, or several separated by commas")]
    Address(String),
    /// TLS was asked for, and there is nobody to trust.
    #[error(
        "https to etcd needs the certificate of its authority: give it with --etcd-ca, or ca=FILE in the address"
    )]
    NoAuthority,
    /// A certificate without its key, or the other way round.
    #[error("a certificate for etcd needs its key, and a key its certificate: give both")]
    HalfACertificate,
    /// A file cannot be used.
    #[error("the {what} {path:?} cannot be used: {cause}")]
    File {
        /// Which.
        what: &'static str,
        /// Where.
        path: String,
        /// Why.
        cause: String,
    },
    /// A setting in the address that nobody knows.
    #[error("{0:?} is not a setting of an etcd address: use ca, cert, key or user")]
    Setting(String),
    /// A user without a password.
    #[error("a user of etcd is written name:password")]
    User,
}

impl EtcdOptions {
    /// Reads `host:port[,host:port..][?ca=FILE&cert=FILE&key=FILE&user=NAME:PASSWORD]`. With `https://` before it, or
    /// with a `ca`, connections are encrypted.
    pub fn parse(text: &str) -> Result<Self, EtcdOptionsError> {
        let (address, settings) = text.trim().split_once('?').unwrap_or((text.trim(), ""));
        let mut is_encrypted = false;
        let mut endpoints = Vec::new();
        for part in address.trim_end_matches('/').split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let endpoint = match part.split_once("://") {
                Some(("https" | "etcds", rest)) => {
                    is_encrypted = true;
                    rest
                }
                Some(("http" | "etcd", rest)) => rest,
                Some(_) => return Err(EtcdOptionsError::Address(part.to_owned())),
                None => part,
            };
            let port = endpoint.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.and_then(|(_, port)| port.parse::<u16>().ok()).is_none() {
                return Err(EtcdOptionsError::Address(endpoint.to_owned()));
            }
            endpoints.push(endpoint.to_owned());
        }
        if endpoints.is_empty() {
            return Err(EtcdOptionsError::Address(address.to_owned()));
        }
        let mut options = Self { endpoints, security: Security::Plain, user: None, timeout: TIMEOUT };
        let (mut ca, mut cert, mut key) = (None, None, None);
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=') {
                Some(("ca", path)) => ca = Some(path),
                Some(("cert", path)) => cert = Some(path),
                Some(("key", path)) => key = Some(path),
                Some(("user", user)) => options = options.user(user)?,
                _ => return Err(EtcdOptionsError::Setting(setting.to_owned())),
            }
        }
        match (ca, is_encrypted) {
            (Some(ca), _) => options.tls(ca, cert, key),
            (None, true) => Err(EtcdOptionsError::NoAuthority),
            (None, false) => Ok(options),
        }
    }

    /// The members to try, in turn.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Who to be: `name:password`.
    pub fn user(mut self, user: &str) -> Result<Self, EtcdOptionsError> {
        let (name, password) = user.split_once(':').ok_or(EtcdOptionsError::User)?;
        self.user = Some((name.to_owned(), Zeroizing::new(password.to_owned())));
        Ok(self)
    }

    /// How long connecting to one member, or one call, may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Encrypts, trusts that authority, and shows that certificate if there is one. All are files in PEM.
    pub fn tls(
        mut self,
        ca: impl AsRef<Path>,
        cert: Option<impl AsRef<Path>>,
        key: Option<impl AsRef<Path>>,
    ) -> Result<Self, EtcdOptionsError> {
        let mut roots = RootCertStore::empty();
        for authority in certificates("authority's certificate", ca.as_ref())? {
            roots.add(authority).map_err(|error| wrong("authority's certificate", ca.as_ref(), error))?;
        }
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|error| wrong("authority's certificate", ca.as_ref(), error))?
                .with_root_certificates(roots);
        let mut config = match (cert, key) {
            (Some(cert), Some(key)) => {
                let chain = certificates("certificate", cert.as_ref())?;
                let private = PrivateKeyDer::from_pem_file(key.as_ref())
                    .map_err(|error| wrong("private key", key.as_ref(), error))?;
                builder
                    .with_client_auth_cert(chain, private)
                    .map_err(|error| wrong("certificate", cert.as_ref(), error))?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => return Err(EtcdOptionsError::HalfACertificate),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        self.security = Security::Tls(Config(Arc::new(config)));
        Ok(self)
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdOptionsError> {
    let found = CertificateDer::pem_file_iter(path).map_err(|error| wrong(what, path, error))?;
    let found: Result<Vec<_>, _> = found.collect();
    let found = found.map_err(|error| wrong(what, path, error))?;
    if found.is_empty() { Err(wrong(what, path, "there is no certificate in it")) } else { Ok(found) }
}

fn wrong(what: &'static str, path: &Path, cause: impl fmt::Display) -> EtcdOptionsError {
    EtcdOptionsError::File { what, path: path.display().to_string(), cause: cause.to_string() }
}

/// Never with the password.
impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdOptions({self})")
    }
}

impl fmt::Display for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if matches!(self.security, Security::Tls(_)) { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.endpoints.join(","))
    }
}

impl PartialEq for EtcdOptions {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string() && self.user == other.user
    }
}

impl Eq for EtcdOptions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_with_its_settings_and_a_password_is_never_shown() {
        let options = EtcdOptions::parse("etcd://a:2379,http://b:1?user=me:secret:with:colons").unwrap();
        assert_eq!(options.endpoints(), ["a:2379", "b:1"]);
        assert_eq!(
            options.user.as_ref().map(|(name, password)| (name.as_str(), password.as_str())),
            Some(("me", "secret:with:colons"))
        );
        assert_eq!(options.to_string(), "http://a:2379,b:1");
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |text: &str| EtcdOptions::parse(text).unwrap_err();
        for text in ["", "a", ":1", "a:b", "ftp://a:1"] {
            assert!(matches!(refused(text), EtcdOptionsError::Address(_)), "{text}");
        }
        assert_eq!(refused("https://a:1"), EtcdOptionsError::NoAuthority);
        assert_eq!(refused("a:1?user=me"), EtcdOptionsError::User);
        assert_eq!(refused("a:1?cats=2"), EtcdOptionsError::Setting("cats=2".to_owned()));
        let missing = refused("https://a:1?ca=/nowhere/ca.pem").to_string();
        assert!(missing.contains("authority's certificate \"/nowhere/ca.pem\" cannot be used"), "{missing}");
    }
}
