//! Links that one stream does not fill: more are opened, every value stays right, and a stream that is cut in the
//! middle of a call or a worker that is killed costs a retry.
//!
//! Packets are lost now and then on a way of a few milliseconds, and the hosts use a congestion control that takes
//! each loss for a full line.

use crate::herd::PATIENCE;
use crate::roles::{BYTES_MAX, BYTES_MIN, micros};
use crate::run::{HOSTS, PORT, Run, SECOND, run_with};
use outlast_lab::{Lab, Rate, Rule};
use rustix::net::{Shutdown, getpeername, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Large enough to be worth several streams.
const BYTES: usize = 4 << 20;

fn lossy(lab: &Lab) {
    for host in HOSTS {
        // Which network the file is about depends on who opens it.
        let set = || std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
        lab.host(host).expect("a host").enter(set).expect("inside").expect("reno is everywhere");
    }
    let rule = Rule::perfect().rate(Rate::mbit(500)).delay(Duration::from_millis(2)).loss(0.0005);
    lab.set_all(rule).expect("a rule");
}

/// The sockets of a worker that it has opened to the port of another.
fn streams(run: &Run, from: usize, to: usize) -> Vec<OwnedFd> {
    let pid = run.herd.pid(from);
    let target = SocketAddr::from((run.lab.host(HOSTS[to]).expect("a host").address(), PORT));
    let process = pidfd_open(Pid::from_raw(pid).expect("a process"), PidfdFlags::empty()).expect("a pidfd");
    let numbers = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    let numbers = numbers.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok())
        .filter(|socket| {
            let peer = getpeername(socket).ok().flatten();
            peer.is_some_and(|peer| SocketAddr::try_from(peer) == Ok(target))
        })
        .collect()
}

#[test]
fn a_lossy_link_gets_more_streams_and_survives_a_cut_stream_and_a_kill() {
    let workers = [(BYTES_MIN, BYTES.to_string()), (BYTES_MAX, BYTES.to_string())];
    let Some(mut run) = run_with("hstream", "lan", lossy, &workers) else { return };
    let kept = |run: &Run, number: usize| {
        run.herd.streams(number).iter().rposition(|decision| decision.contains("Keep"))
    };
    let all = [0, 1, 2, 3];
    let happened = run.herd.until(PATIENCE + 20 * SECOND, |herd| {
        !herd.faults.is_empty()
            || all.iter().any(|number| herd.streams(*number).iter().any(|said| said.contains("Keep")))
    });
    run.herd.check("while links learn");
    let said: Vec<_> = all.iter().map(|number| run.herd.streams(*number)).collect();
    assert!(happened, "no link found that more streams help: {said:?}");
    println!("{said:?}");
    let striped = all.into_iter().find(|number| kept(&run, *number).is_some()).expect("one that kept them");
    // The ring may have any order: the next member is whom several streams lead to.
    let open = || all.into_iter().filter(|to| *to != striped).map(|to| streams(&run, striped, to));
    let several = open().max_by_key(Vec::len).expect("others");
    assert!(several.len() >= 2, "it keeps {} streams", several.len());
    let aborts = run.herd.aborts(striped).len();
    shutdown(several.last().expect("a stream"), Shutdown::Both).expect("a cut");
    drop(several);
    let cut = micros();
    run.all_commit(&all, cut, 4);
    run.all_commit(&all, micros(), 4);
    assert!(run.herd.aborts(striped).len() > aborts, "the cut hit nothing");
    println!("after the cut: {:.2} s", run.first_commits(&all, cut, |commit| commit.attempts > 1));
    run.assert_nobody_out();
    let victim = (striped + 1) % 4;
    let killed = run.herd.kill(victim);
    let survivors: Vec<_> = all.into_iter().filter(|number| *number != victim).collect();
    run.all_commit(&survivors, killed, 3);
    println!("after the kill: {:.2} s", run.first_commits(&survivors, killed, |c| c.contributors.len() == 3));
    run.assert_nobody_out();
    run.finish();
}
