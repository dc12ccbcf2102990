//! A lab leaves nothing behind: not when it is dropped, and not for long when its owner is killed.

use crate::common::{PATIENCE, alone, lab, wait_until};
use outlast_lab::{Lab, LabError, registry};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn namespaces(lab: &str) -> Vec<String> {
    std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(&format!("olab-{lab}.")))
        .collect()
}

fn is_alive(process: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn leaves_no_trace(lab: &str) -> bool {
    namespaces(lab).is_empty() && !Path::new("/run/outlast-lab").join(lab).exists()
}

#[test]
fn a_dropped_lab_leaves_nothing() {
    let _alone = alone();
    let Some(lab) = lab("drop", &["a", "b"]) else { return };
    let name = lab.name().to_owned();
    assert_eq!(namespaces(&name).len(), 2);
    let mut child = lab.host("a").unwrap().command("sleep").arg("600").spawn().unwrap();
    drop(lab);
    wait_until("the process inside to be ended", || child.try_wait().unwrap().is_some());
    assert!(leaves_no_trace(&name));
}

#[test]
fn labs_do_not_meet() {
    let _alone = alone();
    let Some(one) = lab("meet", &["a", "b"]) else { return };
    let Some(other) = lab("meet", &["a", "b"]) else { return };
    assert_ne!(one.name(), other.name());
    let (from, _) = crate::common::udp(one.host("a").unwrap());
    let (to, address) = crate::common::udp(other.host("b").unwrap());
    assert!(
        !crate::common::arrives(&from, (&to, address), crate::common::SILENCE),
        "same address, another lab"
    );
    let name = other.name().to_owned();
    let taken = Lab::builder(&name).exact_name().hosts(["a"]).start().unwrap_err();
    assert!(matches!(taken, LabError::NameInUse { pid, .. } if pid == std::process::id()), "{taken}");
    drop(one);
    assert_eq!(namespaces(&name).len(), 2, "the other lab is still there");
}

/// Not a test of its own: the owner that [`a_killed_owner_leaves_nothing_for_long`] kills.
#[test]
#[ignore = "waits to be killed by another test"]
fn owner_to_be_killed() {
    let lab = lab("killed", &["a", "b"]).expect("only started as root");
    let mut child = lab.host("b").unwrap().command("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap();
    println!("\nOWNS {} {}", lab.name(), child.id());
    let deadline = Instant::now() + PATIENCE * 3;
    while Instant::now() < deadline && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn owner() -> (Child, String, i32) {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cleanup::owner_to_be_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("OWNS ")).expect("the owner speaks");
    let mut words = line.split(' ').skip(1);
    let name = words.next().unwrap().to_owned();
    (owner, name, words.next().unwrap().parse().unwrap())
}

#[test]
fn a_killed_owner_leaves_nothing_for_long() {
    let _alone = alone();
    let Some(probe) = lab("probe", &["a"]) else { return };
    let (mut owner, name, inside) = owner();
    assert!(!registry::sweep().unwrap().contains(&name), "a living owner's lab is nobody's leftover");
    assert!(is_alive(inside) && namespaces(&name).len() == 2);
    owner.kill().unwrap();
    owner.wait().unwrap();
    // Any lab that comes up on this machine sweeps as well, and may have been faster: the result counts.
    registry::sweep().unwrap();
    assert!(leaves_no_trace(&name));
    wait_until("the process inside to be gone", || !is_alive(inside));
    assert_eq!(namespaces(probe.name()).len(), 1, "a living lab was not touched");
}

#[test]
fn the_next_lab_removes_what_a_killed_one_left() {
    let _alone = alone();
    if lab("probe", &["a"]).is_none() {
        return;
    }
    let (mut owner, name, _) = owner();
    owner.kill().unwrap();
    owner.wait().unwrap();
    let next = Lab::builder(&name).exact_name().hosts(["a"]).start().unwrap();
    assert_eq!(namespaces(&name), [format!("olab-{name}.a")]);
    drop(next);
    assert!(leaves_no_trace(&name));
}

#[test]
fn who_is_not_root_is_told_so() {
    // Credentials belong to a thread; this one gives root up and ends.
    let outcome = std::thread::spawn(|| {
        let nobody = rustix::fs::Uid::from_raw(65_534);
        if rustix::process::geteuid().is_root() {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        Lab::new("rootless", ["a"]).map(drop)
    });
    let error = outcome.join().unwrap().unwrap_err();
    assert!(matches!(error, LabError::NotRoot), "{error}");
    assert!(error.to_string().contains("sudo"));
}
