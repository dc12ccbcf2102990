//! Data links in the clear, when asked for (rule 34): values, `status`, deviating peers, forked children.

mod peers;

use outlast::communicator::{Call, Encryption, NextStep};
use outlast::{Communicator, Coordinator};
use peers::{builder, coordinator};
use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

fn peer(coordinator: &Coordinator, encryption: Encryption) -> Communicator {
    builder(coordinator).encryption(encryption).start().unwrap()
}

/// Three connected peers that have reduced once.
fn trio(coordinator: &Coordinator, encryption: Encryption) -> Vec<Communicator> {
    let start = |number: u16| {
        let comm = peer(coordinator, encryption);
        thread::spawn(move || {
            comm.connect(3).unwrap();
            let mut data: Vec<f32> = (0..300_007_u32).map(|at| at as f32 + f32::from(number)).collect();
            comm.all_reduce(&mut data, &Call::sum()).unwrap();
            let right = |(at, sum): (usize, &f32)| sum.to_bits() == (3.0 * at as f32 + 3.0).to_bits();
            assert!(data.iter().enumerate().all(right));
            comm
        })
    };
    let threads: Vec<_> = (0..3).map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn plaintext_links_carry_the_same_sums_and_status_shows_them() {
    let coordinator = coordinator();
    let run = "default".parse().unwrap();
    for (encryption, shown) in
        [(Encryption::Off, r#""encryption":"off""#), (Encryption::On, r#""encryption":"on""#)]
    {
        let peers = trio(&coordinator, encryption);
        let status = coordinator.status(&run).unwrap().unwrap();
        assert!(status.contains(shown), "{status}");
        drop(peers);
        // The last goodbye is on its way; only then the run is free to agree anew.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while coordinator.status(&run).unwrap().is_some_and(|status| !status.contains(r#""peers":[]"#)) {
            assert!(std::time::Instant::now() < deadline, "the peers do not go");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_peer_that_asks_for_the_other_setting_is_refused_with_both_named() {
    let coordinator = coordinator();
    let members = trio(&coordinator, Encryption::On);
    let deviating = peer(&coordinator, Encryption::Off);
    let error = deviating.connect(1).unwrap_err();
    assert_eq!(error.action(), NextStep::Fatal, "{error}");
    let text = error.to_string();
    assert!(text.contains("encryption on") && text.contains("encryption off"), "{text}");
    // Nobody else is disturbed.
    let epochs: Vec<_> = members.iter().map(Communicator::epoch).collect();
    thread::scope(|scope| {
        for comm in &members {
            scope.spawn(move || comm.barrier(&Call::sum()).unwrap());
        }
    });
    assert_eq!(epochs, members.iter().map(Communicator::epoch).collect::<Vec<_>>());
}

/// The inodes of sockets that a process holds.
fn sockets(process: &Path) -> BTreeSet<String> {
    let links = std::fs::read_dir(process.join("fd"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().path().read_link().ok());
    let names = links.filter_map(|link| link.to_str().map(str::to_owned));
    names.filter_map(|name| Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect()
}

/// The inodes of all TCP sockets of this network.
fn tcp_sockets() -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(9)).map(str::to_owned).collect()
}

#[test]
fn a_forked_child_holds_no_plaintext_link() {
    let coordinator = coordinator();
    let _members = trio(&coordinator, Encryption::Off);
    // SAFETY: the child only pauses; the alarm ends it.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(60);
            loop {
                libc::pause();
            }
        }
        child
    };
    assert!(child > 0);
    let tcp = tcp_sockets();
    let ours = sockets(Path::new("/proc/self"));
    let theirs = sockets(Path::new(&format!("/proc/{child}")));
    // SAFETY: a child of ours that nobody has waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    // Three listeners and closed ports, links in both directions, control connections.
    assert!(ours.intersection(&tcp).count() >= 12, "{ours:?}");
    assert_eq!(theirs.intersection(&tcp).collect::<Vec<_>>(), Vec::<&String>::new());
}
