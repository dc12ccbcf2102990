//! Three coordinators, three etcds and four peers on hosts of a lab (rule 19): links between them are cut, and the run goes
//! on, nobody who lives is lost, and no sum is wrong. Needs root; says SKIPPED otherwise.

mod hosts;
mod peers;
mod storm;

use hosts::Site;
use peers::Run;
use std::time::{Duration, Instant};

/// Etcd hears the leader, and its peers do not: it must not go on reigning for ever.
#[test]
fn a_leader_that_its_peers_cannot_reach_makes_room_for_one_that_they_reach() {
    let Some(mut site) = Site::start("unreached") else { return };
    let run = Run::start(&site);
    // From all of them, then from half of them only.
    for hosts in [&peers::HOSTS[..], &peers::HOSTS[1..]] {
        let (leader, term) = site.leader();
        let cut = Instant::now();
        site.cut_between(leader, hosts, true);
        run.goes_on("another one reigns");
        println!("the leader cut off from {hosts:?} to the next commit: {:?}", run.first_commit_after(cut));
        let (next, later) = site.leader();
        assert!(next != leader && later > term, "{next} under {later} after {leader} under {term}");
        site.cut_between(leader, hosts, false);
        run.goes_on("it is back, and stands by");
        assert_eq!(site.leader(), (next, later), "nobody gives a reign up for it");
    }
    println!("{} commits", run.finish());
}

#[test]
fn a_leader_whose_host_is_cut_off_is_replaced_and_stands_by_when_it_is_back() {
    let Some(mut site) = Site::start("isolated") else { return };
    let run = Run::start(&site);
    let (leader, term) = site.leader();
    let cut = Instant::now();
    site.isolate(leader, true);
    run.goes_on("another one reigns");
    println!("the leader's host cut off to the next commit: {:?}", run.first_commit_after(cut));
    site.isolate(leader, false);
    run.goes_on("it is back, and disturbs nobody");
    let (next, later) = site.leader();
    assert!(next != leader && later > term);
    site.all_are_there();
    println!("{} commits", run.finish());
}

/// How long anything is waited for: longer than etcd is without a majority in the storm.
pub(crate) const PATIENCE: Duration = Duration::from_secs(75);

pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
