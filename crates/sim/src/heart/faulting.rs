//! Faults strike.

use super::fault::Fault;
use super::health::Node;
use super::links::{Broken, CLOSING, SILENCE};
use super::process::Phase;
use super::world::{Event, World};
use outlast_proto::membership::Membership;
use outlast_proto::time::{Duration, Instant};

impl World {
    fn victim(&mut self, fits: impl Fn(&super::Process) -> bool) -> Option<usize> {
        let able: Vec<_> = (0..self.processes.len())
            .filter(|index| self.processes[*index].lives() && self.processes[*index].runs())
            .filter(|index| fits(&self.processes[*index]))
            .collect();
        if able.is_empty() { None } else { Some(able[self.rng.below(able.len())]) }
    }

    /// Lets a fault strike now.
    pub fn strike(&mut self, fault: &Fault) {
        let name = match fault {
            Fault::Kill { .. } => "kill",
            Fault::Stop(_) => "stop",
            Fault::CutControl(_) => "cut control",
            Fault::Isolate(_) => "isolate",
            Fault::CutLink(_) => "cut link",
            Fault::RestartCoordinator(_) => "restart coordinator",
            Fault::Depose => "depose",
            Fault::Relapse(_) => "relapse",
            Fault::Newcomer { .. } => "newcomer",
            Fault::Leave => "leave",
        };
        if self.strike_one(fault) {
            *self.struck.entry(name).or_default() += 1;
        }
    }

    fn strike_one(&mut self, fault: &Fault) -> bool {
        let now = self.now;
        match fault {
            Fault::Kill { group, respawn } => {
                let Some(victim) = self.victim(|process| group.is_none_or(|group| process.group == group))
                else {
                    return false;
                };
                self.kill(victim);
                if let Some(after) = respawn {
                    let group = self.processes[victim].group;
                    self.after(*after, Event::Spawn(group));
                }
            }
            Fault::Stop(time) => {
                let Some(victim) = self.victim(|_| true) else { return false };
                self.line(|| format!("process {victim} is stopped for {time:?}"));
                self.processes[victim].stopped = Some(now);
                self.block(victim, now + *time);
                self.after(*time, Event::Continue(victim));
            }
            Fault::CutControl(time) => {
                let Some(victim) = self.victim(|process| process.connection.is_some()) else { return false };
                self.line(|| format!("control of process {victim} is cut for {time:?}"));
                self.processes[victim].control_cut_until = now + *time;
                self.block(victim, now + *time);
                self.cut_all_wires(victim, Duration::from_millis(500));
            }
            Fault::Isolate(time) => {
                let Some(victim) = self.victim(|_| true) else { return false };
                self.line(|| format!("process {victim} is isolated for {time:?}"));
                self.processes[victim].isolated_until = now + *time;
                self.block(victim, now + *time);
                self.cut_all_wires(victim, Duration::from_secs(2));
                self.break_links(Broken::Silent, SILENCE, |from, to| from == victim || to == victim);
            }
            Fault::CutLink(time) => {
                let Some(a) = self.victim(|process| process.session.record().is_some()) else { return false };
                let ring = self.processes[a].session.record().map(|record| {
                    record.ring.iter().map(|rank| record.roster[*rank as usize].id).collect::<Vec<_>>()
                });
                let me = self.processes[a].id;
                let Some(ring) = ring.filter(|ring| ring.len() > 1) else { return false };
                let Some(at) = ring.iter().position(|peer| *peer == me) else { return false };
                let Some(&b) = self.by_id.get(&ring[(at + 1) % ring.len()]) else { return false };
                self.line(|| format!("the link from process {a} to {b} is cut for {time:?}"));
                self.cut_links.insert((a, b), now + *time);
                self.link_victims.extend([a, b]);
                self.break_links(Broken::Silent, SILENCE, |from, to| (from, to) == (a, b));
            }
            Fault::RestartCoordinator(down) => {
                let Some(index) = self.lose_address() else { return false };
                self.line(|| format!("coordinator {index} is killed"));
                self.coordinators[index].lives = false;
                self.coordinator_trouble_until = now + *down;
                self.cut_wires_of(index, Duration::from_millis(20));
                self.after(*down, Event::StartCoordinator);
            }
            Fault::Depose => {
                let Some(index) = self.lose_address() else { return false };
                self.line(|| format!("coordinator {index} is cut off and lives on"));
                self.coordinators[index].deposed = true;
                self.coordinator_trouble_until = now;
                self.cut_wires_of(index, Duration::from_secs(1));
                self.start_coordinator();
            }
            Fault::Relapse(time) => {
                let deposed = (0..self.coordinators.len())
                    .rev()
                    .find(|index| self.coordinators[*index].lives && self.coordinators[*index].deposed);
                let Some(old) = deposed else { return false };
                let Some(new) = self.lose_address() else { return false };
                self.line(|| format!("the address leads to coordinator {old} again"));
                self.coordinators[new].deposed = true;
                self.come_back(old);
                self.cut_wires_of(new, Duration::from_secs(1));
                self.coordinator_trouble_until = now + *time;
                self.after(*time, Event::EndRelapse(new));
            }
            Fault::Newcomer { group } => {
                self.spawn(*group);
            }
            Fault::Leave => {
                let Some(victim) = self.victim(|process| process.session.record().is_some()) else {
                    return false;
                };
                self.line(|| format!("process {victim} says goodbye"));
                self.processes[victim].phase = Phase::Gone;
                self.processes[victim].session.handle_leave(now, true);
                self.drain_peer(victim);
                self.tell_member(Node::Process(victim), Membership::handle_leave);
            }
        }
        true
    }

    fn block(&mut self, process: usize, until: Instant) {
        let blocked = &mut self.processes[process].blocked_until;
        *blocked = (*blocked).max(until);
    }

    /// The coordinator at the address, which is there no more.
    fn lose_address(&mut self) -> Option<usize> {
        let index = self.at_address.take()?;
        let coordinator = &mut self.coordinators[index];
        coordinator.tenure = self.now.since(coordinator.since);
        Some(index)
    }

    /// A coordinator that was cut off has the address again.
    fn come_back(&mut self, index: usize) {
        let now = self.now;
        let coordinator = &mut self.coordinators[index];
        (coordinator.deposed, coordinator.since) = (false, now);
        coordinator.relapsed = Some(coordinator.run.term());
        self.at_address = Some(index);
    }

    pub(super) fn end_relapse(&mut self, back_to: usize) {
        let Some(old) = self.at_address.filter(|old| *old != back_to && self.coordinators[back_to].lives)
        else {
            return;
        };
        self.line(|| format!("the address leads to coordinator {back_to} again"));
        self.coordinators[old].deposed = true;
        self.come_back(back_to);
        self.coordinator_trouble_until = self.now;
        self.cut_wires_of(old, Duration::from_secs(1));
    }

    fn kill(&mut self, victim: usize) {
        let now = self.now;
        self.line(|| format!("process {victim} is killed"));
        self.processes[victim].killed = Some(now);
        // Its kernel sends what it has, or not, and closes.
        self.cut_all_wires(victim, Duration::from_millis(10));
        let calls = std::mem::take(&mut self.processes[victim].calls);
        for executing in calls.into_values().filter_map(|call| call.executing) {
            if let Some(transfer) =
                self.transfers.get_mut(&executing.transfer).filter(|transfer| !transfer.moved)
            {
                transfer.inputs.remove(&victim);
            }
        }
        self.break_links(Broken::Closed, CLOSING, |from, to| from == victim || to == victim);
    }

    fn cut_all_wires(&mut self, process: usize, notice_max: Duration) {
        let wires: Vec<_> =
            self.wires.iter().filter(|(_, wire)| wire.process == process).map(|(id, _)| *id).collect();
        for wire in wires {
            self.cut_wire(wire, notice_max);
        }
    }

    fn cut_wires_of(&mut self, coordinator: usize, notice_max: Duration) {
        let wires: Vec<_> = self
            .wires
            .iter()
            .filter(|(_, wire)| wire.coordinator == coordinator)
            .map(|(id, _)| *id)
            .collect();
        for wire in wires {
            self.cut_wire(wire, notice_max);
        }
    }

    pub(super) fn continue_process(&mut self, process: usize) {
        let now = self.now;
        let state = &mut self.processes[process];
        let Some(since) = state.stopped.take() else { return };
        state.stopped_total += now.since(since);
        self.line(|| format!("process {process} runs again"));
        let backlog = std::mem::take(&mut self.processes[process].backlog);
        for event in backlog {
            self.queue.push(now, event);
        }
    }

    /// Everything is healed: what is stopped runs, what is cut works, a coordinator is there.
    pub fn heal(&mut self) {
        let now = self.now;
        self.line(|| "everything is healed".to_owned());
        self.healed = true;
        self.cut_links.clear();
        for index in 0..self.processes.len() {
            let process = &mut self.processes[index];
            process.control_cut_until = now;
            process.isolated_until = now.min(process.isolated_until);
            if process.stopped.is_some() {
                process.blocked_until = process.blocked_until.min(now);
                self.continue_process(index);
            }
        }
    }
}
