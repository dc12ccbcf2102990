//! Whom to believe, and what to show: options of every command that talks or listens.

use outlast::security::{Credentials, OwnCertificate, RunSecret};
use std::path::PathBuf;

/// See `docs/security.md`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TrustArgs {
    /// A file with one more secret that is accepted while the secret is rotated; default: `OUTLAST_ACCEPT_SECRET`
    /// or `OUTLAST_ACCEPT_SECRET_FILE`
    #[arg(long, value_name = "FILE")]
    accept_secret_file: Option<PathBuf>,
    /// The certificate of your own authority (PEM); then a secret alone is not enough to take part
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    tls_ca: Option<PathBuf>,
    /// Its certificate for this process (PEM); each process needs a name of its own in it
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_cert"])]
    tls_key: Option<PathBuf>,
}

impl TrustArgs {
    /// The secret that is accepted beside the command's own.
    pub(crate) fn accepted(&self) -> anyhow::Result<Option<RunSecret>> {
        Ok(self.accept_secret_file.as_ref().map(RunSecret::from_file).transpose()?)
    }

    /// The certificate of one's own authority.
    pub(crate) fn certificate(&self) -> anyhow::Result<Option<OwnCertificate>> {
        let (Some(authority), Some(chain), Some(key)) = (&self.tls_ca, &self.tls_cert, &self.tls_key) else {
            return Ok(None); // All or none: the options require each other.
        };
        Ok(Some(OwnCertificate::from_files(authority, chain, key)?))
    }

    /// All of it, with the command's own secret.
    pub(crate) fn credentials(&self, secret: &RunSecret) -> anyhow::Result<Credentials> {
        let mut credentials = Credentials::from(secret);
        if let Some(accepted) = self.accepted()? {
            credentials.accept(accepted);
        }
        if let Some(certificate) = self.certificate()? {
            credentials.set_certificate(certificate);
        }
        Ok(credentials)
    }
}
