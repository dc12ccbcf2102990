//! Real etcd processes as a service that is killed and stopped.

#[path = "../support/etcds.rs"]
mod processes;

pub(crate) use processes::Etcds;

use crate::services::Service;
use crate::stopped::wait_until_stopped;
use outlast::security::RunSecret;
use rustix::process::Signal;
use std::time::Duration;

impl Service for Etcds {
    fn backend(&self) -> String {
        self.url()
    }

    fn secret(&self) -> &RunSecret {
        &self.secret
    }

    /// The leader is killed.
    fn kill(&mut self) {
        self.hurt = self.leader();
        self.kill_member(self.hurt);
    }

    fn restart(&mut self) {
        self.restart_member(self.hurt);
    }

    fn stop(&mut self) {
        self.hurt = self.leader();
        self.signal(Signal::STOP);
        wait_until_stopped(self.pid());
    }

    fn go_on(&mut self) {
        self.signal(Signal::CONT);
    }

    fn lease(&self) -> Duration {
        // etcd counts leases in whole seconds.
        Duration::from_secs(1)
    }

    fn races(&self) -> u64 {
        2_000
    }
}
