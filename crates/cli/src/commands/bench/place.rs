//! Where a measurement happens: on loopback, or on hosts of a lab.

use anyhow::Context as _;
use outlast::Coordinator;
use outlast::coordinator::DEFAULT_PORT;
use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast_lab::{Change, Lab, Rule};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

/// A place for the processes of one measurement. Dropping it ends the coordinator, and the lab.
pub(super) enum Place {
    /// The coordinator lives in this process.
    Loopback { coordinator: Coordinator, address: String },
    /// A host for each member and one for the coordinator, all links alike.
    Lab { coordinator: Child, address: String, secret: RunSecret, lab: Lab },
}

impl Place {
    /// Loopback unless `link` says how links should be.
    pub(super) fn new(link: &Change, world: u32, congestion: Option<&str>) -> anyhow::Result<Self> {
        if *link == Change::default() {
            let listen = (Ipv4Addr::LOCALHOST, 0).into();
            let coordinator = Coordinator::builder().listen(listen).preset(Preset::Local).start()?;
            let address = coordinator.address().to_string();
            return Ok(Self::Loopback { coordinator, address });
        }
        let hosts = (0..world).map(host).chain([COORDINATOR.to_owned()]);
        let rule = Rule::perfect().changed(link);
        let lab = Lab::builder("bench").hosts(hosts).rule(rule).start()?;
        if let Some(name) = congestion {
            for number in 0..world {
                // Which network the file is about depends on who opens it.
                let set = || std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", name);
                lab.host(&host(number))?
                    .enter(set)?
                    .with_context(|| format!("cannot use {name:?} for congestion control"))?;
            }
        }
        let place = lab.host(COORDINATOR)?;
        let address = format!("{}:{DEFAULT_PORT}", place.address());
        let secret = RunSecret::generate();
        let program = crate::itself().context("cannot find this program's own file")?;
        let coordinator = place
            .command(program.get_program())
            .args(["coordinator", "--listen", &address, "--preset", "lan", "--forget-key"])
            .env("OUTLAST_SECRET", secret.to_text())
            .env_remove("OUTLAST_SECRET_FILE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the coordinator")?;
        Ok(Self::Lab { coordinator, address, secret, lab })
    }

    pub(super) fn is_lab(&self) -> bool {
        matches!(self, Self::Lab { .. })
    }

    /// Where the coordinator is.
    pub(super) fn coordinator(&self) -> &str {
        match self {
            Self::Loopback { address, .. } | Self::Lab { address, .. } => address,
        }
    }

    pub(super) fn secret(&self) -> &RunSecret {
        match self {
            Self::Loopback { coordinator, .. } => coordinator.secret(),
            Self::Lab { secret, .. } => secret,
        }
    }

    /// This program again, where that member lives.
    pub(super) fn command(&self, member: u32) -> anyhow::Result<Command> {
        let itself = crate::itself().context("cannot find this program's own file")?;
        Ok(match self {
            Self::Loopback { .. } => itself,
            Self::Lab { lab, .. } => lab.host(&host(member))?.command(itself.get_program()),
        })
    }

    /// Where that member listens.
    pub(super) fn listen(&self, member: u32) -> anyhow::Result<String> {
        let address = match self {
            Self::Loopback { .. } => Ipv4Addr::LOCALHOST,
            Self::Lab { lab, .. } => lab.host(&host(member))?.address(),
        };
        Ok(format!("{address}:0"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Lab { coordinator, .. } = self {
            // One that has ended already is what we want.
            let _ = coordinator.kill();
            let _ = coordinator.wait();
        }
    }
}

/// The coordinator's host.
const COORDINATOR: &str = "coordinator";

fn host(member: u32) -> String {
    format!("member-{member}")
}
