//! How many there are in the run, as a program sees it that asks for nothing: real processes in two groups, of which one is
//! killed.
//!
//! `global_world_size` once kept what the last vote of the own group had said. After a death in another group it was wrong until
//! somebody called `update_topology`; now every receipt's epoch brings it.

mod peers;

use outlast::communicator::Call;
use outlast::{Communicator, Coordinator};
use peers::{coordinator, each};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const ADDRESS: &str = "OUTLAST_SIZES_ADDRESS";
const SECRET: &str = "OUTLAST_SIZES_SECRET";
const PATIENCE: Duration = Duration::from_secs(30);

/// Not a test by itself: a member of group 1, if the environment says so. It reduces until it is killed, or its input ends.
#[test]
fn role() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    let comm = Communicator::builder()
        .coordinator(address)
        .secret(std::env::var(SECRET).expect("a secret").parse().expect("a whole secret"))
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(outlast::membership::Preset::Local)
        .timeout(PATIENCE)
        .group(1)
        .start()
        .expect("a communicator");
    comm.connect(2).expect("admitted");
    let mut last = 0;
    loop {
        if comm.all_reduce(&mut [1_u32; 4], &Call::sum()).expect("a sum").pending > 0 {
            // Somebody is let in, perhaps in the other group.
            comm.update_topology(1).expect("a vote");
        }
        if comm.world_size() != last {
            last = comm.world_size();
            println!("\n@in a group of {last}");
            std::io::stdout().flush().expect("somebody listens");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Elsewhere {
    process: Child,
    lines: Receiver<String>,
}

impl Elsewhere {
    fn start(coordinator: &Coordinator) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["role", "--exact", "--nocapture"])
            .env(ADDRESS, coordinator.address().to_string())
            .env(SECRET, coordinator.secret().to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (tell, lines) = channel();
        let output = BufReader::new(process.stdout.take().expect("its output"));
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            for line in lines.filter_map(|line| line.strip_prefix('@').map(str::to_owned)) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, lines }
    }

    fn until_a_group_of(&self, size: usize) {
        let said = || self.lines.recv_timeout(PATIENCE).expect("it goes on");
        while said() != format!("in a group of {size}") {}
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_death_in_another_group_is_counted_without_being_asked_for() {
    let coordinator = coordinator();
    let mut others = [(); 2].map(|()| Elsewhere::start(&coordinator));
    others.iter().for_each(|other| other.until_a_group_of(2));
    let ours = |wanted: u32| {
        move |comm: &Arc<Communicator>| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                // All stop after the same call: what one of them sees may be a moment ahead.
                let mut seen = [u32::from(comm.global_world_size() == wanted)];
                comm.all_reduce(&mut seen, &Call::sum()).expect("a sum");
                if seen == [2] {
                    return;
                }
                assert!(Instant::now() < deadline, "{} instead of {wanted}", comm.global_world_size());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    };
    let (ready, is_ready) = channel();
    let program = std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            each(&coordinator, 2, move |_, comm| {
                comm.connect(2).expect("admitted");
                ours(4)(&comm);
                let epoch = comm.all_reduce(&mut [0_u32], &Call::sum()).expect("a sum").epoch;
                ready.send(()).expect("it is waited for");
                ours(3)(&comm);
                let after = comm.all_reduce(&mut [0_u32], &Call::sum()).expect("a sum");
                assert_eq!((after.world_size, after.epoch), (2, epoch), "our own group has not changed");
            })
        });
        for _ in 0..2 {
            is_ready.recv_timeout(PATIENCE).expect("both see all four");
        }
        others[1].process.kill().expect("a kill");
        others[0].until_a_group_of(1);
        running.join()
    });
    program.expect("both see it");
}
