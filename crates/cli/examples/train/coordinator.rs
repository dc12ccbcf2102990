//! The coordinator in a process of its own, so that it can be killed.
//!
//! It is the coordinator that any program can embed: a builder and a start. It keeps nothing on disk. Started
//! again at the same address with the same secret it learns from the peers what it needs (rule 17).

use crate::said::{Said, say};
use anyhow::{Context as _, Result};
use outlast::Coordinator;
use outlast::membership::Preset;
use outlast::security::RunSecret;
use std::net::SocketAddr;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Where to listen
    #[arg(long)]
    listen: SocketAddr,
}

/// Serves until it is killed.
pub(crate) fn run(options: &Options) -> Result<()> {
    mind_the_director();
    let secret = RunSecret::from_environment()?.context("the director sets OUTLAST_SECRET")?;
    let coordinator =
        Coordinator::builder().listen(options.listen).secret(secret).preset(Preset::Local).start()?;
    say(&Said::Listening { address: coordinator.address().to_string() });
    loop {
        std::thread::park();
    }
}

/// Ends this process when the director is gone: then the other end of its input is closed.
fn mind_the_director() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        std::process::exit(3);
    });
}
