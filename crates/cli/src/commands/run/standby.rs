//! A coordinator that an agent carries along, and that stands by for the others' (rule 19). With one in each of three
//! agents, a run on three machines needs an etcd and no other service.

use super::super::etcd::EtcdArgs;
use super::super::group_secret::GroupSecret;
use super::super::trust::TrustArgs;
use anyhow::Context as _;
use outlast::Coordinator;
use outlast::coordinator::CoordinatorError;
use std::net::{SocketAddr, ToSocketAddrs as _, UdpSocket};

/// Where the standby listens and what it needs.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StandbyArgs {
    /// Carry a coordinator along that stands by: this machine's address must be one of --coordinator's, and all
    /// coordinators at one etcd (--backend) stand by for each other
    #[arg(long, requires = "backend")]
    pub(super) standby: bool,
    /// Where the standby meets the others
    #[arg(long, value_name = "etcd:URL[,URL..]", requires = "standby")]
    backend: Option<String>,
    #[command(flatten)]
    etcd: EtcdArgs,
}

impl StandbyArgs {
    /// Starts it at the first of the addresses that is this machine's and free.
    pub(super) fn start(
        &self,
        addresses: &str,
        secret: &GroupSecret,
        trust: &TrustArgs,
    ) -> anyhow::Result<Coordinator> {
        let backend = self.etcd.backend(self.backend.as_deref().unwrap_or_default())?;
        anyhow::ensure!(
            backend.is_for_several(),
            "--standby with --backend {backend}: one that stands by needs an etcd, as in --backend etcd:HOST:PORT"
        );
        let mut builder = Coordinator::builder().secret(secret.secret().clone()).backend(backend);
        if let Some(accepted) = trust.accepted()? {
            builder = builder.accept_secret(accepted);
        }
        if let Some(certificate) = trust.certificate()? {
            builder = builder.tls(certificate);
        }
        let mut taken = None;
        for name in addresses.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let found =
                name.to_socket_addrs().with_context(|| format!("the address {name} in --coordinator"))?;
            for address in found.filter(is_ours) {
                // Where it is known to the others, unless another name was given.
                let builder = self.etcd.settle(builder.clone().listen(address).advertise(name));
                match builder.start() {
                    Err(CoordinatorError::Port(error)) => taken = Some(error),
                    started => return Ok(started?),
                }
            }
        }
        match taken {
            Some(error) => Err(error).context("--standby: no address of --coordinator is free here"),
            None => anyhow::bail!(
                "--standby: none of the addresses {addresses} is this machine's; give each machine that carries a \
                 standby a place in --coordinator, and leave --standby out on the others"
            ),
        }
    }
}

/// Whether an address is this machine's: whoever can bind it has it. Nothing is sent for it.
fn is_ours(address: &SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}
