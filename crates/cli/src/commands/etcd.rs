//! Several coordinators at one etcd: how it is reached, and what they call themselves there.

use super::members::duration;
use outlast::coordinator::{Backend, BackendError, CoordinatorBuilder};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// See `docs/guide/high-availability.md`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EtcdArgs {
    /// The certificate of the authority that signed etcd's (PEM); needed for https
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Our certificate for etcd (PEM), if it asks for one
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// The user at etcd, name:password; default: `OUTLAST_ETCD_USER`, which other users of this machine cannot read
    #[arg(long, value_name = "NAME:PASSWORD", env = "OUTLAST_ETCD_USER", hide_env_values = true)]
    etcd_user: Option<String>,
    /// The name of the coordinators that stand by for each other, if several groups of them use one etcd
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
    /// How long a reign lasts without a word from etcd (2s or more); default: 2s, 5s or 10s, by the preset
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
    /// Where peers reach this coordinator, host:port; default: where it listens, or its address towards etcd
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,
}

impl EtcdArgs {
    /// The backend of that name, reached as the options say.
    pub(crate) fn backend(&self, text: &str) -> Result<Backend, BackendError> {
        let Some(address) = text.strip_prefix("etcd:") else { return text.parse() };
        let file = |name: &str, path: &Path| format!("{name}={}", path.display());
        let settings = [
            self.etcd_ca.as_deref().map(|path| file("ca", path)),
            self.etcd_cert.as_deref().map(|path| file("cert", path)),
            self.etcd_key.as_deref().map(|path| file("key", path)),
        ];
        let settings: Vec<_> = settings.into_iter().flatten().collect();
        let joint = match (settings.is_empty(), address.contains('?')) {
            (true, _) => "",
            (false, true) => "&",
            (false, false) => "?",
        };
        let backend: Backend = format!("etcd:{address}{joint}{}", settings.join("&")).parse()?;
        match (backend, &self.etcd_user) {
            #[cfg(feature = "etcd")]
            (Backend::Etcd(options), Some(user)) => Ok(Backend::Etcd(Box::new(options.user(user)?))),
            (backend, _) => Ok(backend),
        }
    }

    /// What else there is to say to a coordinator.
    pub(crate) fn settle(&self, builder: CoordinatorBuilder) -> CoordinatorBuilder {
        let mut builder = builder.cluster(self.cluster.clone());
        if let Some(lease) = self.lease {
            builder = builder.lease(lease);
        }
        if let Some(address) = &self.advertise {
            builder = builder.advertise(address.clone());
        }
        builder
    }
}
