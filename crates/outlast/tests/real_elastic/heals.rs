//! Donors that are killed while they serve: a heal ends whole, or says that it did not.
//!
//! Each round is a run of its own: three donors and a receiver, all of them processes. When the receiver is about to sync, some
//! of the donors get SIGKILL at a random moment. Whatever the receiver then says of its state is held against what it holds.

use crate::Dice;
use crate::roles::{ADDRESS, NAME, ROUND, SECRET, mind_the_parent, say, setting};
use crate::troupe::{Service, spawn_role};
use outlast::Communicator;
use outlast::communicator::{Error, NextStep, SyncOptions};
use outlast::membership::Preset;
use outlast::state::{LEAF_BYTES, SharedState};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

const DONORS: usize = 3;
const LEAVES: usize = 40;
const REVISION: u64 = 7;
/// No round takes longer, whoever dies.
const PATIENCE: Duration = Duration::from_mins(1);

/// Each leaf is different, and so is each round.
fn state(round: u64, is_trained: bool) -> SharedState {
    let mut state = SharedState::new();
    let mut bytes = vec![0xee; LEAVES * LEAF_BYTES - 9];
    for (leaf, bytes) in bytes.chunks_mut(LEAF_BYTES).enumerate().filter(|_| is_trained) {
        bytes.fill((leaf as u64 * 3 + round * 7) as u8);
    }
    let count = bytes.len() as u64;
    state.insert("w", bytes, &[count]).expect("a tensor");
    state.set_revision(is_trained.then_some(REVISION));
    state
}

fn connected() -> Communicator {
    let comm = Communicator::builder()
        .coordinator(setting(ADDRESS))
        .secret(setting(SECRET).parse().expect("a whole secret"))
        .run_id(format!("heal-{}", setting(ROUND)).parse().expect("a run id"))
        .name(setting(NAME))
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Local)
        .timeout(Duration::from_secs(30))
        .start()
        .expect("a communicator");
    comm.connect(1 + DONORS as u32).expect("admitted");
    comm
}

pub(crate) fn donor() {
    mind_the_parent();
    let mut ours = state(setting(ROUND).parse().expect("a number"), true);
    // The receiver may come again, if it was not healed.
    let comm = connected();
    say("ready");
    while let Err(error) = comm.sync_state(&mut ours, &SyncOptions::new()) {
        if error.action() != NextStep::Retry {
            return say(&format!("fault {error}"));
        }
    }
    say("served");
}

pub(crate) fn receiver() {
    mind_the_parent();
    let round = setting(ROUND).parse().expect("a number");
    let (mut ours, right, before) =
        (state(round, false), state(round, true).digest(), state(round, false).digest());
    let staged = round % 3 == 0;
    let comm = connected();
    loop {
        say("heals");
        match comm.sync_state(&mut ours, &SyncOptions::new().staged(staged)) {
            Ok(report) => {
                assert_eq!(
                    (ours.digest(), ours.revision()),
                    (right, Some(REVISION)),
                    "a success is whole and right"
                );
                return say(&format!("whole {}", report.replaced.len()));
            }
            Err(error) => {
                let is_torn = ours.is_torn();
                assert!(is_torn && !staged || ours.digest() == before || ours.digest() == right, "{error}");
                assert!(
                    ours.revision().is_none() || ours.digest() == right,
                    "nobody takes it for a state: {error}"
                );
                if matches!(error, Error::NoDonor(_)) {
                    return say(if is_torn { "torn" } else { "untouched" });
                }
            }
        }
    }
}

fn lines(process: &mut Child) -> impl Iterator<Item = String> + use<> {
    let output = process.stdout.take().expect("its output");
    let said = BufReader::new(output).lines().map_while(Result::ok);
    said.filter_map(|line| Some(line.strip_prefix('@')?.to_owned()))
}

/// Plays that many rounds.
pub(crate) fn play(rounds: u64, dice: &mut Dice) {
    let secret = outlast::security::RunSecret::generate().to_text();
    let service = Service::start("127.0.0.1:0", &secret);
    let (mut ends, mut kills, mut longest) = (BTreeMap::<String, u64>::new(), 0, Duration::ZERO);
    for round in 0..rounds {
        let start = |role: &str, number: usize| {
            spawn_role(
                role,
                &[
                    (ADDRESS, service.address.clone()),
                    (SECRET, secret.clone()),
                    (ROUND, round.to_string()),
                    (NAME, format!("{role}{number}")),
                ],
            )
        };
        let mut donors: Vec<_> = (0..DONORS).map(|number| start("donor", number)).collect();
        let mut receiver = start("receiver", 0);
        // Held until they have ended: whoever loses its parent ends by itself.
        let held: Vec<_> = donors.iter_mut().chain([&mut receiver]).map(|child| child.stdin.take()).collect();
        let mut said = lines(&mut receiver);
        assert_eq!(said.next().as_deref(), Some("heals"));
        let began = Instant::now();
        let victims = 1 + dice.below(DONORS as u64) as usize;
        for donor in &mut donors[..victims] {
            std::thread::sleep(dice.millis(60));
            donor.kill().expect("a kill");
            donor.wait().expect("an end");
            kills += 1;
        }
        let end = said.find(|line| line != "heals").expect("the receiver says how it ended");
        assert!(receiver.wait().expect("an end").success(), "round {round}: {end}");
        for mut donor in donors.drain(victims..) {
            assert!(donor.wait().expect("an end").success());
        }
        drop(held);
        longest = longest.max(began.elapsed());
        assert!(began.elapsed() < PATIENCE, "round {round} took {:?}", began.elapsed());
        let word = end.split(' ').next().unwrap_or_default().to_owned();
        // With a donor left there is always an end with a whole state.
        assert!(victims == DONORS || word == "whole", "round {round}: {end} with donors left");
        *ends.entry(word).or_default() += 1;
    }
    println!(
        "{rounds} heals, {kills} donors killed: {ends:?}; the longest took {:.1} s",
        longest.as_secs_f64()
    );
}
