//! Three coordinators at a real etcd (rule 19): whatever happens to the one that reigns, the run goes on, nobody who
//! lives is lost, and no sum is wrong.

mod coordinators;
#[path = "../../../outlast/tests/support/etcds.rs"]
mod etcds;
#[path = "../../../outlast/tests/support/ports.rs"]
mod ports;
mod relay;
mod run;
mod store;
mod storm;

use coordinators::{Coordinators, until};
use run::Run;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// More than the leases of these tests last, as granted by etcd.
const LONGER_THAN_A_LEASE: Duration = Duration::from_secs(4);

#[test]
fn a_run_outlasts_leaders_that_are_killed_stopped_and_told_to_go() {
    let mut all = Coordinators::start(1);
    let run = Run::start(&all);
    let term = |all: &Coordinators| all.status(&all.addresses()).and_then(|status| status["term"].as_u64());
    let first = term(&all);

    let leader = all.leader();
    let killed = Instant::now();
    all.end(leader, Signal::KILL);
    run.goes_on("another one reigns after a kill");
    println!("SIGKILL of the leader to the next commit: {:?}", run.first_commit_after(killed));
    assert!(until("a status", || term(&all)) > first.expect("a term"), "the term only grows");
    all.launch(leader);

    // One that does not know that its time is over.
    let leader = all.leader();
    all.signal(leader, Signal::STOP);
    run.goes_on("another one reigns while the leader is stopped");
    std::thread::sleep(LONGER_THAN_A_LEASE);
    all.signal(leader, Signal::CONT);
    run.goes_on("the one that was stopped disturbs nobody");
    until("it stands by", || {
        let told = all.status(&all.address(leader))?;
        // It knows where the one is that reigns, so that is who answers.
        (told["reign"]["leader"] != all.address(leader) && told["reign"]["leads"] == true).then_some(())
    });

    // One that says goodbye: nobody waits for its lease.
    let leader = all.leader();
    let told = Instant::now();
    all.end(leader, Signal::TERM);
    run.goes_on("another one reigns after a goodbye");
    println!("SIGTERM of the leader to the next commit: {:?}", run.first_commit_after(told));
    println!("{} commits", run.finish());
}

#[test]
fn a_leader_that_is_cut_off_from_etcd_stops_before_another_begins() {
    let all = Coordinators::start(1);
    // These peers find the coordinators there.
    let run = Run::start_at(&all, &all.etcds.url());
    let leader = all.leader();
    let cut = Instant::now();
    all.cut(leader, true);
    until("another one reigns", || {
        let status = all.status(&all.addresses())?;
        (status["reign"]["leads"] == true && status["reign"]["leader"] != all.address(leader)).then_some(())
    });
    println!("the leader cut off from etcd to another's reign: {:?}", cut.elapsed());
    run.goes_on("another one reigns");
    all.cut(leader, false);
    run.goes_on("it is back, and stands by");
    let status = until("all are there", || {
        let status = all.status(&all.addresses())?;
        (status["reign"]["standbys"].as_array()?.len() == 2).then_some(status)
    });
    let reign = &status["reign"];
    assert!(reign["lease_seconds"].as_f64() >= Some(1.0) && reign["term"].as_u64() > Some(1), "{reign}");
    assert_eq!(status["key_is_kept"], true);
    run.finish();
}
