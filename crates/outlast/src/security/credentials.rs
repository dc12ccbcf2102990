//! What a process brings to prove that it belongs to a run, before it is known which run that is.
//!
//! There are three things: the run's secret; while a secret is rotated, others that are accepted beside it; and, for
//! who does not want every holder of the secret to take part, a certificate of one's own authority for the streams.
//!
//! To rotate a secret, nothing has to stop. Old and new are taken by everybody for a while:
//!
//! ```text
//!                    coordinator          peers                      who may take part
//! 1. before          old                  old                        old
//! 2. coordinator     new, accepts old     old                        old, new (with old accepted)
//! 3. peers in turn   new, accepts old     new, accepts old           old, new
//! 4. after           new                  new, accepts old, in turn: new
//! ```
//!
//! The coordinator is started again in steps 2 and 4, which is a pause for its peers and no more. Its peers are
//! replaced in turn, as they come and go anyway.

use super::identity::ProcessKey;
use super::keys::{GENERATIONS_MAX, RunKeys};
use super::secret::{RunSecret, SecretError};
use super::tls::{TlsError, TlsIdentity};
use outlast_proto::id::RunId;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Longest file that is read as a certificate or a key.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// See the module's essay.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    secret: Option<RunSecret>,
    accepted: Vec<RunSecret>,
    certificate: Option<OwnCertificate>,
}

/// A certificate of one's own authority, with its key: three texts in PEM.
#[derive(Clone)]
pub struct OwnCertificate {
    authority: Vec<u8>,
    chain: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

impl OwnCertificate {
    /// The three texts: the authority's certificate (or several), this process's chain, and its private key.
    pub fn from_pem(authority: &[u8], chain: &[u8], key: &[u8]) -> Self {
        Self { authority: authority.to_vec(), chain: chain.to_vec(), key: Zeroizing::new(key.to_vec()) }
    }

    /// Reads the three texts from files.
    pub fn from_files(
        authority: impl AsRef<Path>,
        chain: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        Ok(Self {
            authority: read("authority's certificate", authority.as_ref())?,
            chain: read("certificate chain", chain.as_ref())?,
            key: Zeroizing::new(read("private key", key.as_ref())?),
        })
    }
}

impl std::fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnCertificate(not shown)")
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read as _;
    let failed = |cause| TlsError::File { what, path: path.to_owned(), cause };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// What every builder takes about proving oneself, for one that has a field `credentials`. Two sentences differ: where a
/// secret comes from that was not given, and what a certificate's name is good for.
macro_rules! credential_settings {
    (secret: $secret:literal, tls: $tls:literal) => {
        /// The run's secret.
        #[doc = $secret]
        pub fn secret(mut self, secret: $crate::security::RunSecret) -> Self {
            self.credentials.set_secret(secret);
            self
        }

        /// One more secret that is accepted beside ours, while a secret is rotated: the old one, or the new one. Default:
        /// `OUTLAST_ACCEPT_SECRET` or `OUTLAST_ACCEPT_SECRET_FILE`.
        pub fn accept_secret(mut self, secret: $crate::security::RunSecret) -> Self {
            self.credentials.accept(secret);
            self
        }

        /// A certificate of one's own authority for the streams, so that not every holder of the secret may take part.
        #[doc = $tls]
        pub fn tls(mut self, certificate: $crate::security::OwnCertificate) -> Self {
            self.credentials.set_certificate(certificate);
            self
        }
    };
}
pub(crate) use credential_settings;

impl From<&RunSecret> for Credentials {
    fn from(secret: &RunSecret) -> Self {
        Self { secret: Some(secret.clone()), ..Self::default() }
    }
}

impl Credentials {
    /// Our secret.
    pub fn set_secret(&mut self, secret: RunSecret) {
        self.secret = Some(secret);
    }

    /// One more secret that is accepted, beside ours.
    pub fn accept(&mut self, secret: RunSecret) {
        self.accepted.push(secret);
    }

    /// What to show on streams.
    pub fn set_certificate(&mut self, certificate: OwnCertificate) {
        self.certificate = Some(certificate);
    }

    /// Our secret, if there is one.
    pub fn secret(&self) -> Option<&RunSecret> {
        self.secret.as_ref()
    }

    /// Our secret and all that are accepted beside it.
    #[cfg(feature = "etcd")]
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &RunSecret> {
        self.secret.iter().chain(&self.accepted)
    }

    /// Whether streams are proved by a certificate of one's own authority.
    pub fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }

    /// Takes what was not given from the environment: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`, and
    /// `OUTLAST_ACCEPT_SECRET` or `OUTLAST_ACCEPT_SECRET_FILE`.
    pub fn or_environment(mut self) -> Result<Self, SecretError> {
        if self.secret.is_none() {
            self.secret = RunSecret::from_environment()?;
        }
        if self.accepted.is_empty() {
            self.accepted.extend(RunSecret::accepted_from_environment()?);
        }
        if self.accepted.len() >= GENERATIONS_MAX {
            return Err(SecretError::TooMany(self.accepted.len() + 1));
        }
        Ok(self)
    }

    /// The keys of `run`; `None` without a secret.
    pub fn keys(&self, run: &RunId) -> Option<Arc<RunKeys>> {
        Some(RunKeys::derive_all(self.secret.as_ref()?, &self.accepted, run))
    }

    /// How the process that has `key` shows itself on streams of the run that `keys` are for.
    pub fn identity(&self, keys: &RunKeys, key: &ProcessKey) -> Result<TlsIdentity, TlsError> {
        match &self.certificate {
            Some(own) => TlsIdentity::from_pem(keys.run(), &own.authority, &own.chain, &own.key),
            None => Ok(TlsIdentity::derived(keys, key)),
        }
    }
}
