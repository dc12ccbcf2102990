//! Carrying out a fault, and writing it into the chronicle.

use super::engine::World;
use super::fault::{Direction, Fault, Firewall};
use super::host::{HostId, ProcessState};
use super::node::Node;
use super::{Ailment, Effect};

impl<N: Node> World<N> {
    /// Lets something go wrong, now. Faults that do not apply (a dead process cannot stop) change nothing.
    pub fn inject(&mut self, fault: &Fault) {
        self.trace.line(self.now, &format!("FAULT {fault}"));
        let now = self.now;
        match *fault {
            Fault::Stall(host) => {
                if self.host(host).process == ProcessState::Live {
                    self.hosts[host.index()].process = ProcessState::Stalled;
                    self.chronicle.begin(host, Ailment::Stalled, now);
                }
            }
            Fault::Resume(host) => {
                if self.host(host).process == ProcessState::Stalled {
                    self.hosts[host.index()].process = ProcessState::Live;
                    self.hosts[host.index()].backlog = 0;
                    self.chronicle.end(host, Ailment::Stalled, now);
                    self.go_on(host);
                }
            }
            Fault::Freeze(host) => {
                self.hosts[host.index()].frozen = true;
                self.chronicle.begin(host, Ailment::Frozen, now);
            }
            Fault::Thaw(host) => {
                if std::mem::take(&mut self.hosts[host.index()].frozen) {
                    self.chronicle.end(host, Ailment::Frozen, now);
                    self.go_on(host);
                }
            }
            Fault::Kill(host) => {
                if self.host(host).is_born() {
                    self.tally.add(Effect::Killed);
                    self.end_process(host);
                }
            }
            Fault::Restart { host, same_identity } => {
                if !self.host(host).is_born() && !self.host(host).frozen {
                    self.tally.add(Effect::Restarted);
                    self.hosts[host.index()].identity.generation += u32::from(!same_identity);
                    self.start_process(host);
                }
            }
            Fault::Leave(host) => {
                if self.host(host).runs() {
                    self.tally.add(Effect::Left);
                    let local = self.local_now(host);
                    self.node_mut(host).handle_leave(local);
                    self.carry_out(host);
                    self.end_process(host);
                }
            }
            Fault::CutOff(host, direction) => {
                self.network.cut_off(host, direction);
                let ailment = match direction {
                    Direction::Inbound => Ailment::Deaf,
                    Direction::Outbound => Ailment::Mute,
                    Direction::Both => Ailment::CutOff,
                };
                self.chronicle.begin(host, ailment, now);
            }
            Fault::Reconnect(host) => {
                self.network.reconnect(host);
                for ailment in [Ailment::Deaf, Ailment::Mute, Ailment::CutOff] {
                    self.chronicle.end(host, ailment, now);
                }
            }
            Fault::CutPair(from, to) => self.network.cut_pair(from, to),
            Fault::HealPair(from, to) => self.network.heal_pair(from, to),
            Fault::Partition(ref side) => {
                self.network.partition(side);
                (0..self.hosts.len())
                    .for_each(|i| self.chronicle.begin(HostId(i as u32), Ailment::Parted, now));
            }
            Fault::HealPartition => {
                self.network.heal_partition();
                (0..self.hosts.len())
                    .for_each(|i| self.chronicle.end(HostId(i as u32), Ailment::Parted, now));
            }
            Fault::Loss(share) => self.network.conditions.loss = share,
            Fault::HostLoss(host, share) => {
                self.network.set_host_loss(host, share);
                self.chronicle.end(host, Ailment::Lossy, now);
                if share > 0.0 {
                    self.chronicle.begin(host, Ailment::Lossy, now);
                }
            }
            Fault::Duplicate(share) => self.network.conditions.duplicate = share,
            Fault::Reorder(share, by) => {
                self.network.conditions.reorder = share;
                self.network.conditions.reorder_by = by;
            }
            Fault::Delay(by) => self.network.delay_by(by),
            Fault::ClockJump(host, by) => {
                self.tally.add(Effect::ClockJumped);
                self.hosts[host.index()].clock_ahead += by;
                // Timers that have come due by the leap fire as soon as the process is scheduled.
                self.hosts[host.index()].timer_at = None;
                self.arm_timer(host);
            }
            Fault::BlockUdp(host) => {
                self.network.set_udp_blocked(host, true);
                self.chronicle.begin(host, Ailment::UdpBlocked, now);
            }
            Fault::UnblockUdp(host) => {
                self.network.set_udp_blocked(host, false);
                self.chronicle.end(host, Ailment::UdpBlocked, now);
            }
            Fault::Firewall(host, wall) => {
                self.network.set_firewall(host, wall);
                self.chronicle.end(host, Ailment::Rejecting, now);
                self.chronicle.end(host, Ailment::RefusingTcp, now);
                match wall {
                    Firewall::Open => {}
                    Firewall::RejectTcp => self.chronicle.begin(host, Ailment::RefusingTcp, now),
                    Firewall::RejectAll => self.chronicle.begin(host, Ailment::Rejecting, now),
                }
            }
            Fault::Proxy(host, present) => self.network.set_proxied(host, present),
            Fault::HealAll => self.heal_all(),
        }
    }

    fn heal_all(&mut self) {
        self.network.heal_all();
        for index in 0..self.hosts.len() {
            let host = HostId(index as u32);
            for ailment in [
                Ailment::Deaf,
                Ailment::Mute,
                Ailment::CutOff,
                Ailment::Parted,
                Ailment::Rejecting,
                Ailment::RefusingTcp,
                Ailment::UdpBlocked,
                Ailment::Lossy,
            ] {
                self.chronicle.end(host, ailment, self.now);
            }
            if self.host(host).frozen {
                self.inject(&Fault::Thaw(host));
            }
            if self.host(host).process == ProcessState::Stalled {
                self.inject(&Fault::Resume(host));
            }
        }
    }
}
