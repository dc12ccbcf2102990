//! A storm: a script drawn from the seed.
//!
//! Each storm draws the group's size, the weather that lies over everything (loss, delay, repetition,
//! reordering) and a handful of troubles that come and go. Some storms keep to what a member is owed, so that
//! every declared death is a false one; the others go beyond it, so that deaths, rejoins and merges happen.

use crate::script::Script;
use crate::world::{Direction, Fault, Firewall, HostId};
use outlast_proto::rng::Rng;
use outlast_proto::time::Duration;

/// How hard a storm blows.
#[derive(Clone, Debug, PartialEq)]
pub struct Intensity {
    /// Fewest members.
    pub members_min: u32,
    /// Most members.
    pub members_max: u32,
    /// How long it lasts, in seconds.
    pub seconds: u64,
    /// How many troubles come, at most.
    pub troubles_max: usize,
    /// Whether troubles keep within what nobody may die of.
    pub gentle: bool,
}

impl Intensity {
    /// Nobody may die in this one.
    pub fn gentle() -> Self {
        Self { members_min: 2, members_max: 12, seconds: 20, troubles_max: 8, gentle: true }
    }

    /// Everything may happen in this one.
    pub fn wild() -> Self {
        Self { members_min: 2, members_max: 12, seconds: 30, troubles_max: 10, gentle: false }
    }
}

struct Draw<'a> {
    rng: Rng,
    script: Script,
    intensity: &'a Intensity,
    /// Until when each host is busy with a trouble: one at a time keeps the excuses simple to read.
    busy_until_ms: Vec<u64>,
    partition_until_ms: u64,
    /// Who could not reach whom, and from when until when.
    pair_cuts: Vec<PairCut>,
}

struct PairCut {
    hosts: [HostId; 2],
    from_ms: u64,
    until_ms: u64,
}

/// The storm that belongs to `seed`.
pub fn script(seed: u64, intensity: &Intensity) -> Script {
    let mut rng = Rng::from_seed(seed ^ 0x0005_7012_4d00);
    let members = intensity.members_min
        + rng.below((intensity.members_max - intensity.members_min + 1) as usize) as u32;
    let mut script = Script::quiet(members).safety_secs(intensity.seconds);
    script.packets_per_second_max = 80.0;
    let mut draw = Draw {
        rng,
        script,
        intensity,
        busy_until_ms: vec![0; members as usize],
        partition_until_ms: 0,
        pair_cuts: Vec::new(),
    };
    draw.weather();
    let troubles = 1 + draw.rng.below(intensity.troubles_max);
    for _ in 0..troubles {
        draw.trouble();
    }
    draw.script
}

impl Draw<'_> {
    fn add(&mut self, at_ms: u64, fault: Fault) {
        self.script.faults.push((Duration::from_millis(at_ms), fault));
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.rng.below((high - low + 1) as usize) as u64
    }

    fn weather(&mut self) {
        if self.rng.chance(0.5) {
            let loss = self.rng.unit() * 0.1;
            self.add(0, Fault::Loss(loss));
        }
        if self.rng.chance(0.3) {
            let share = self.rng.unit() * 0.2;
            self.add(0, Fault::Duplicate(share));
        }
        if self.rng.chance(0.3) {
            let (share, by) = (self.rng.unit() * 0.2, self.between(1, 60));
            self.add(0, Fault::Reorder(share, Duration::from_millis(by)));
        }
        if self.rng.chance(0.3) {
            let by = self.between(1, 20);
            self.add(0, Fault::Delay(Duration::from_millis(by)));
        }
    }

    /// A host that has no trouble between these times, and is kept free of others until the second.
    fn free_host(&mut self, from_ms: u64, until_ms: u64) -> Option<HostId> {
        let free: Vec<usize> =
            (0..self.busy_until_ms.len()).filter(|host| self.busy_until_ms[*host] < from_ms).collect();
        if free.is_empty() {
            return None;
        }
        let host = free[self.rng.below(free.len())];
        self.busy_until_ms[host] = until_ms;
        Some(HostId(host as u32))
    }

    fn lasting(&mut self, from: u64, lasts: u64, begin: fn(HostId) -> Fault, end: fn(HostId) -> Fault) {
        if let Some(host) = self.free_host(from, from + lasts) {
            self.add(from, begin(host));
            self.add(from + lasts, end(host));
        }
    }

    fn trouble(&mut self) {
        let from = self.between(1_000, self.intensity.seconds * 1_000 - 2_000);
        let kinds = if self.intensity.gentle { 8 } else { 16 };
        match self.rng.below(kinds) {
            0 => {
                let lasts = self.between(200, 12_000);
                self.lasting(from, lasts, Fault::Stall, Fault::Resume);
            }
            1 => self.starvation(from),
            2 => {
                let lasts = self.between(50, 700);
                self.lasting(from, lasts, Fault::Freeze, Fault::Thaw);
            }
            3 => {
                let lasts = self.between(50, 700);
                self.lasting(from, lasts, |host| Fault::CutOff(host, Direction::Both), Fault::Reconnect);
            }
            4 => {
                let by = self.between(10, 60_000);
                if let Some(host) = self.free_host(from, from) {
                    self.add(from, Fault::ClockJump(host, Duration::from_millis(by)));
                }
            }
            5 => self.pair_cut(from),
            6 => {
                let lasts = self.between(500, 6_000);
                let wall = |host| Fault::Firewall(host, Firewall::RejectTcp);
                self.lasting(from, lasts, wall, |host| Fault::Firewall(host, Firewall::Open));
            }
            7 => {
                let lasts = self.between(2_000, 15_000);
                self.lasting(from, lasts, Fault::BlockUdp, Fault::UnblockUdp);
            }
            8 => {
                let lasts = self.between(14_000, 25_000);
                self.lasting(from, lasts, Fault::Stall, Fault::Resume);
            }
            9 => {
                let lasts = self.between(900, 15_000);
                self.lasting(from, lasts, Fault::Freeze, Fault::Thaw);
            }
            10 => {
                let lasts = self.between(900, 15_000);
                self.lasting(from, lasts, |host| Fault::CutOff(host, Direction::Both), Fault::Reconnect);
            }
            11 => {
                let lasts = self.between(500, 15_000);
                let deaf = self.rng.chance(0.5);
                let cut: fn(HostId) -> Fault = if deaf {
                    |host| Fault::CutOff(host, Direction::Inbound)
                } else {
                    |host| Fault::CutOff(host, Direction::Outbound)
                };
                self.lasting(from, lasts, cut, Fault::Reconnect);
            }
            12 | 13 => self.death(from),
            14 => self.partition(from),
            _ => {
                let lasts = self.between(500, 12_000);
                let wall = |host| Fault::Firewall(host, Firewall::RejectAll);
                self.lasting(from, lasts, wall, |host| Fault::Firewall(host, Firewall::Open));
            }
        }
    }

    /// The process gets the processor only now and then.
    fn starvation(&mut self, from: u64) {
        let lasts = self.between(1_000, 8_000);
        let Some(host) = self.free_host(from, from + lasts) else { return };
        let mut at = from;
        while at < from + lasts {
            let (stands, runs) = (self.between(20, 400), self.between(1, 60));
            self.add(at, Fault::Stall(host));
            self.add(at + stands, Fault::Resume(host));
            at += stands + runs;
        }
    }

    fn pair_cut(&mut self, from: u64) {
        // Between two members alone a cut is a partition.
        if self.script.members < 4 {
            return;
        }
        let lasts = self.between(500, 15_000);
        let first = self.rng.below(self.script.members as usize) as u32;
        let second =
            (first + 1 + self.rng.below(self.script.members as usize - 1) as u32) % self.script.members;
        let (first, second) = (HostId(first), HostId(second));
        let both_ways = self.rng.chance(0.5);
        if self.is_cut_enough(first, from, from + lasts) || self.is_cut_enough(second, from, from + lasts) {
            return;
        }
        self.pair_cuts.push(PairCut { hosts: [first, second], from_ms: from, until_ms: from + lasts });
        self.add(from, Fault::CutPair(first, second));
        self.add(from + lasts, Fault::HealPair(first, second));
        if both_ways {
            self.add(from, Fault::CutPair(second, first));
            self.add(from + lasts, Fault::HealPair(second, first));
        }
    }

    /// Whether one more cut could leave that host without enough others to vouch for it: who is cut from each of the
    /// others is cut off, and may be declared dead.
    fn is_cut_enough(&self, host: HostId, from_ms: u64, until_ms: u64) -> bool {
        let meanwhile = |cut: &&PairCut| cut.from_ms <= until_ms && from_ms <= cut.until_ms;
        let cuts = self.pair_cuts.iter().filter(|cut| cut.hosts.contains(&host)).filter(meanwhile).count();
        cuts + 1 > (self.script.members as usize - 1) / 3
    }

    fn death(&mut self, from: u64) {
        // The first host lives on, so that whoever restarts finds somebody.
        let Some(host) = self.free_host(from, u64::MAX).filter(|host| host.0 > 0) else { return };
        let politely = self.rng.chance(0.25);
        self.add(from, if politely { Fault::Leave(host) } else { Fault::Kill(host) });
        if self.rng.chance(0.6) {
            let (after, same_identity) = (self.between(100, 8_000), self.rng.chance(0.5));
            self.add(from + after, Fault::Restart { host, same_identity });
        }
    }

    fn partition(&mut self, from: u64) {
        if from < self.partition_until_ms || self.script.members < 3 {
            return;
        }
        let lasts = self.between(500, 14_000);
        self.partition_until_ms = from + lasts;
        let mut hosts: Vec<HostId> = (0..self.script.members).map(HostId).collect();
        self.rng.shuffle(&mut hosts);
        hosts.truncate(1 + self.rng.below(self.script.members as usize - 1));
        hosts.sort();
        self.add(from, Fault::Partition(hosts));
        self.add(from + lasts, Fault::HealPartition);
    }
}
