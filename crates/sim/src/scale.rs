//! How large a world fits into one machine: a group of ten thousand that lose one.

use crate::nodes::{Candidate, Founding, MembershipNode};
use crate::world::{Conditions, Fault, HostId, What, World};
use outlast_proto::membership::{Config, Preset};
use outlast_proto::time::{Duration, Instant};

/// What a large world came to.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How many members.
    pub members: u32,
    /// World time.
    pub simulated: Duration,
    /// Events.
    pub events: u64,
    /// How many learned of the death.
    pub informed: usize,
    /// How long until the last of them did.
    pub known_after: Option<Duration>,
    /// Packets per member and second.
    pub packets: f64,
}

/// Runs `members` for some seconds, kills one in the middle.
pub fn run(members: u32, seed: u64) -> Scale {
    let config = Config::preset(Preset::Lan);
    let seeds = vec![HostId(0).address()];
    let recipe = MembershipNode::recipe(&config, &Founding::Known { members, seeds });
    let mut world = World::new(seed, Conditions::lan(), recipe);
    world.add_hosts(members);
    let struck = Instant::ORIGIN + Duration::from_secs(2);
    world.run_until(struck);
    world.inject(&Fault::Kill(HostId(members / 2)));
    let (mut informed, mut known_after) = (0, None);
    for _ in 0..80 {
        world.run_until(world.now() + Duration::from_millis(100));
        for (at, _, notice) in world.take_notices() {
            if matches!(notice.what, What::Died(_)) {
                informed += 1;
                known_after = Some(at.since(struck));
            }
        }
        if informed + 1 >= members as usize {
            break;
        }
    }
    let simulated = world.now().since(Instant::ORIGIN);
    let sent: u64 = world.hosts().map(|(_, host)| host.traffic().packets()).sum();
    let packets = sent as f64 / simulated.as_secs_f64() / f64::from(members);
    Scale { members, simulated, events: world.trace().events(), informed, known_after, packets }
}
