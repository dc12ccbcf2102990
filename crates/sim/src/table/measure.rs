//! One cell of the table: one group size, one loss, one trouble, many trials.

use crate::nodes::{Candidate, Founding};
use crate::world::{Conditions, Direction, Fault, HostId, What, World};
use outlast_proto::membership::{Config, Preset};
use outlast_proto::rng::Rng;
use outlast_proto::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// What strikes the victims of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing; the traffic of a quiet group.
    None,
    /// One process is killed.
    Kill,
    /// One host is cut off and stays so.
    CutOff,
    /// The processes of 5 % of the hosts, at least one, stop for that many milliseconds.
    Stall(u64),
    /// One host stands still for that many milliseconds.
    Freeze(u64),
}

impl Trouble {
    /// All rows of the table.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Kill,
        Self::CutOff,
        Self::Freeze(5_000),
        Self::Freeze(500),
        Self::Stall(1_000),
        Self::Stall(2_000),
        Self::Stall(5_000),
    ];

    /// Whether the victims are to be declared dead.
    pub fn is_deadly(self) -> bool {
        matches!(self, Self::Kill | Self::CutOff | Self::Freeze(5_000))
    }
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// For each death that was due: how long until everybody knew.
    pub known_after: Vec<Duration>,
    /// Deaths that were due and not known to everybody after half a minute, or before the victim was back.
    pub never_known: usize,
    /// Victims that must not die: stops and short freezes.
    pub protected: usize,
    /// Victims among them, and bystanders, that somebody declared dead.
    pub false_deaths: usize,
    /// Packets per living member and second.
    pub packets: f64,
    /// World time spent.
    pub seconds: f64,
}

const WARM_UP: Duration = Duration::from_secs(3);
const SETTLE: Duration = Duration::from_secs(5);
const GIVE_UP: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(100);

struct Trial<'a, N: Candidate> {
    world: &'a mut World<N>,
    victims: BTreeSet<HostId>,
    /// Hosts that are dead or cut off since an earlier trial: neither subjects nor observers.
    gone: &'a BTreeSet<HostId>,
    /// When each observer declared a host dead.
    declared: BTreeMap<HostId, BTreeMap<HostId, Instant>>,
}

impl<N: Candidate> Trial<'_, N> {
    fn run(&mut self, by: Duration) {
        self.world.run_until(self.world.now() + by);
        for (at, observer, notice) in self.world.take_notices() {
            if matches!(notice.what, What::Died(_)) {
                self.declared.entry(notice.subject.host).or_default().entry(observer).or_insert(at);
            }
        }
    }

    fn observers(&self) -> usize {
        self.world.hosts().len() - self.gone.len() - self.victims.len()
    }

    /// When the last of those who should know learned of the victim's death.
    fn known_at(&self, victim: HostId) -> Option<Instant> {
        let by = self.declared.get(&victim)?;
        let mut at: Vec<Instant> = by
            .iter()
            .filter(|(observer, _)| !self.gone.contains(observer) && !self.victims.contains(observer))
            .map(|(_, at)| *at)
            .collect();
        at.sort();
        (at.len() >= self.observers()).then(|| at.last().copied()).flatten()
    }

    /// Who was declared dead by somebody in his right mind and should not have been.
    fn false_deaths(&self, deadly: bool) -> usize {
        let counts =
            |observer: &HostId| !(self.gone.contains(observer) || deadly && self.victims.contains(observer));
        self.declared
            .iter()
            .filter(|(host, by)| !self.gone.contains(host) && by.keys().any(counts))
            .filter(|(host, _)| !(deadly && self.victims.contains(host)))
            .count()
    }
}

/// Plays `trials` trials of `trouble` and measures.
pub fn cell<N: Candidate>(members: u32, loss: f64, trouble: Trouble, trials: usize) -> Cell {
    let mut cell = Cell::default();
    let per_world = if trouble.is_deadly() { (members as usize / 8).max(1) } else { trials };
    let (mut played, mut seed) = (0, 1);
    let mut rates = Vec::new();
    while played < trials {
        let now = per_world.min(trials - played);
        rates.push(play_world::<N>(&mut cell, members, loss, trouble, now, seed));
        played += now;
        seed += 1;
    }
    cell.packets = rates.iter().sum::<f64>() / rates.len() as f64;
    cell
}

fn play_world<N: Candidate>(
    cell: &mut Cell,
    members: u32,
    loss: f64,
    trouble: Trouble,
    trials: usize,
    seed: u64,
) -> f64 {
    let config = Config::preset(Preset::Lan);
    let seeds = (0..members.min(8)).map(|host| HostId(host).address()).collect();
    let founding = Founding::Known { members, seeds };
    let conditions = Conditions { loss, ..Conditions::lan() };
    let mut world = World::new(seed, conditions, N::recipe(&config, &founding));
    world.add_hosts(members);
    world.run_until(Instant::ORIGIN + WARM_UP);
    let mut rng = Rng::from_seed(seed ^ 0x7ab1e);
    let mut gone = BTreeSet::new();
    let sent_before: u64 = world.hosts().map(|(_, host)| host.traffic().packets()).sum();
    let mut member_seconds = 0.0;
    for _ in 0..trials {
        let begun = world.now();
        play_once(cell, &mut world, trouble, &mut gone, &mut rng);
        member_seconds += world.now().since(begun).as_secs_f64() * (world.hosts().len() - gone.len()) as f64;
        cell.seconds += world.now().since(begun).as_secs_f64();
    }
    let sent: u64 = world.hosts().map(|(_, host)| host.traffic().packets()).sum();
    (sent - sent_before) as f64 / member_seconds
}

fn play_once<N: Candidate>(
    cell: &mut Cell,
    world: &mut World<N>,
    trouble: Trouble,
    gone: &mut BTreeSet<HostId>,
    rng: &mut Rng,
) {
    let mut candidates: Vec<HostId> =
        world.hosts().map(|(id, _)| id).filter(|id| !gone.contains(id)).collect();
    rng.shuffle(&mut candidates);
    let count = match trouble {
        Trouble::None => 0,
        Trouble::Stall(_) => (candidates.len() / 20).max(1),
        Trouble::Kill | Trouble::CutOff | Trouble::Freeze(_) => 1,
    };
    let victims: BTreeSet<HostId> = candidates.into_iter().take(count).collect();
    // Trials must not keep step with anybody's probes.
    world.run_until(world.now() + Duration::from_micros(rng.below(400_000) as u64));
    drop(world.take_notices());
    let struck = world.now();
    for &victim in &victims {
        world.inject(&match trouble {
            Trouble::None => continue,
            Trouble::Kill => Fault::Kill(victim),
            Trouble::CutOff => Fault::CutOff(victim, Direction::Both),
            Trouble::Stall(_) => Fault::Stall(victim),
            Trouble::Freeze(_) => Fault::Freeze(victim),
        });
    }
    let mut trial = Trial { world, victims, gone, declared: BTreeMap::new() };
    match trouble {
        Trouble::Kill | Trouble::CutOff => {
            while trial.known_at(*trial.victims.first().expect("one victim")).is_none()
                && trial.world.now().since(struck) < GIVE_UP
            {
                trial.run(STEP);
            }
        }
        Trouble::Stall(ms) | Trouble::Freeze(ms) => {
            trial.run(Duration::from_millis(ms));
            for victim in trial.victims.clone() {
                let stall = matches!(trouble, Trouble::Stall(_));
                trial.world.inject(&if stall { Fault::Resume(victim) } else { Fault::Thaw(victim) });
            }
            trial.run(SETTLE);
        }
        Trouble::None => trial.run(SETTLE),
    }
    if trouble.is_deadly() {
        for &victim in &trial.victims {
            match trial.known_at(victim) {
                Some(at) => cell.known_after.push(at.since(struck)),
                None => cell.never_known += 1,
            }
        }
    } else {
        cell.protected += trial.victims.len();
    }
    cell.false_deaths += trial.false_deaths(trouble.is_deadly());
    let victims = trial.victims;
    if matches!(trouble, Trouble::Kill | Trouble::CutOff) {
        gone.extend(victims);
    }
}
