//! A training in a storm: workers are killed and stopped, newcomers come, the coordinator is killed, everybody dies and is
//! resumed from the checkpoint. Replicas are equal to the bit after every step, every sample number is used exactly once, and
//! the end is what one process alone would have come to.

mod heals;
mod roles;
mod troupe;

use roles::{MIN_WORLD, ROLE, STALL};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use troupe::{Service, Troupe};

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("worker") => roles::worker(),
        Ok("coordinator") => roles::coordinator(),
        Ok("donor") => heals::donor(),
        Ok("receiver") => heals::receiver(),
        _ => {}
    }
}

/// Numbers that follow from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub(crate) fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }

    fn pick(&mut self, from: &[usize]) -> usize {
        from[self.below(from.len() as u64) as usize]
    }
}

fn seed() -> u64 {
    let seed = std::env::var("OUTLAST_STORM_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| outlast::clock::now().as_nanos() / 1_000 % 1_000_000);
    println!("OUTLAST_STORM_SEED={seed}");
    seed
}

const PEERS: usize = 4;

fn storm(faults: u64) {
    let mut dice = Dice(seed());
    let folder = tempfile::tempdir().expect("a folder");
    let secret = outlast::security::RunSecret::generate().to_text();
    let mut service = Service::start("127.0.0.1:0", &secret);
    let mut troupe = Troupe::new(&service, folder.path().to_owned());
    (0..PEERS).for_each(|_| troupe.spawn());
    troupe.all_step(Instant::now(), "the beginning");
    let (began, mut kinds) = (Instant::now(), BTreeMap::<&str, u64>::new());
    for fault in 0..faults {
        troupe.listen(dice.millis(120));
        let alive = troupe.alive();
        // Every kind is among the first ones, so that a short storm has them all.
        let kind = if fault < 5 { fault * 4 } else { dice.below(20) };
        let name = match kind {
            0..4 | 18 if alive.len() > MIN_WORLD as usize => {
                troupe.kill(dice.pick(&alive));
                "kill"
            }
            4..8 => {
                let victim = dice.pick(&alive);
                troupe.signal(victim, libc::SIGSTOP);
                // Mostly within the time for which it is waited for.
                let long = dice.below(4) == 0;
                troupe.listen(if long { STALL + dice.millis(1_000) } else { dice.millis(600) });
                troupe.signal(victim, libc::SIGCONT);
                "stop"
            }
            8..12 if alive.len() < PEERS + 2 => {
                troupe.spawn();
                "join"
            }
            12..16 => {
                service.restart(dice.millis(200));
                "coordinator"
            }
            16 => {
                troupe.alive().into_iter().for_each(|number| troupe.kill(number));
                troupe.listen(dice.millis(100));
                (0..PEERS).for_each(|_| troupe.spawn());
                "everybody"
            }
            _ => {
                // One dies while another comes, and perhaps the one that serves it.
                troupe.spawn();
                troupe.listen(dice.millis(400));
                if alive.len() > MIN_WORLD as usize {
                    troupe.kill(dice.pick(&alive));
                }
                "both"
            }
        };
        *kinds.entry(name).or_default() += 1;
        while troupe.alive().len() < MIN_WORLD as usize + 1 {
            troupe.spawn();
        }
        let since = Instant::now();
        troupe.all_step(since, &format!("after fault {fault}, {name}"));
    }
    troupe.listen(Duration::from_millis(200));
    troupe.finish();
    assert!(kinds.len() >= 5, "every kind of fault happened: {kinds:?}");
    println!(
        "{faults} faults {kinds:?}, {} steps, {} given up with everybody who had them, {} members without a donor, {:.1} s",
        troupe.steps(),
        troupe.given_up,
        troupe.without_donor,
        began.elapsed().as_secs_f64()
    );
}

#[test]
fn twelve_faults_in_one_training() {
    storm(12);
}

#[test]
#[ignore = "minutes long: make soak"]
fn five_hundred_faults_in_one_training() {
    storm(500);
}

#[test]
fn eight_heals_whose_donors_are_killed() {
    heals::play(8, &mut Dice(seed()));
}

#[test]
#[ignore = "minutes long: make soak"]
fn two_hundred_heals_whose_donors_are_killed() {
    heals::play(200, &mut Dice(seed()));
}
