//! Coming back: to a coordinator that remembers, and to one that was restarted.

use crate::net::*;

#[test]
fn a_coordinator_that_is_restarted_between_two_calls_is_only_a_pause() {
    let mut net = Net::of(&[1, 2, 3]);
    let calls = net.all_call(&[1, 2, 3], &reduce(true));
    net.all_done();
    net.restart_coordinator();
    for number in [1, 2, 3] {
        net.redial(number);
    }
    let next = net.all_call(&[1, 2, 3], &reduce(true));
    net.all_done();
    for (number, call) in calls.into_iter().chain(next) {
        assert!(
            matches!(net.outcome(number, call), Some(Ok(Done::Committed { .. }))),
            "{}",
            net.story(number)
        );
    }
}
