//! What one coordinator does, step by step; `world` plays two of them against each other.

use super::*;
use crate::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(5);

fn at(millis: u64) -> Instant {
    Instant::ORIGIN + Duration::from_millis(millis)
}

fn actions(reign: &mut Reign) -> Vec<Action> {
    std::iter::from_fn(|| reign.poll_action()).collect()
}

/// One that holds a lease since the beginning, and reigns with term 7.
fn reigning() -> Reign {
    let mut reign = Reign::new(Config::new(TTL));
    reign.handle_connected(at(0), None);
    assert_eq!(actions(&mut reign), [Action::Grant(TTL)]);
    reign.handle_granted(at(10), TTL);
    assert_eq!(actions(&mut reign), [Action::Campaign]);
    reign.handle_campaigned(at(20), Campaign::Won(7));
    assert_eq!(actions(&mut reign), [Action::Begin(7)]);
    reign
}

#[test]
fn it_decides_until_a_fifth_before_the_end_counted_from_when_it_asked() {
    let reign = reigning();
    assert_eq!(reign.may_decide(at(3_999)), Some(7));
    assert_eq!(
        reign.may_decide(at(4_000)),
        None,
        "by the clock alone, whether or not anybody woke the machine"
    );
}

#[test]
fn a_renewal_counts_from_when_it_was_asked_for_however_late_the_answer_is() {
    let mut reign = reigning();
    reign.handle_timeout(at(1_250));
    assert_eq!(actions(&mut reign), [Action::Renew]);
    reign.handle_renewed(at(3_000), Some(TTL));
    assert_eq!(reign.good_until(), Some(at(5_250)));
    assert_eq!(actions(&mut reign), [Action::Renew], "a quarter of it is over already");
}

#[test]
fn an_answer_after_the_end_does_not_bring_a_reign_back() {
    let mut reign = reigning();
    reign.handle_timeout(at(1_250));
    actions(&mut reign);
    // Stopped, and continued: the answer lies in the socket.
    reign.handle_renewed(at(4_100), Some(TTL));
    assert_eq!(actions(&mut reign), [Action::End(7), Action::GiveBack, Action::Grant(TTL)]);
    assert_eq!(reign.may_decide(at(4_100)), None);
    // Its own key of before is there still; it is waited for like anybody's.
    reign.handle_granted(at(4_110), TTL);
    assert_eq!(actions(&mut reign), []);
    reign.handle_vacant(at(5_000), 9);
    assert_eq!(actions(&mut reign), [Action::Campaign]);
    reign.handle_campaigned(at(5_010), Campaign::Won(10));
    assert_eq!(actions(&mut reign), [Action::Begin(10)]);
}

#[test]
fn a_lease_that_ran_out_at_etcd_ends_the_reign_at_once() {
    let mut reign = reigning();
    reign.handle_timeout(at(1_250));
    actions(&mut reign);
    reign.handle_renewed(at(1_260), None);
    assert_eq!(actions(&mut reign)[..2], [Action::End(7), Action::GiveBack]);
}

#[test]
fn another_key_a_missing_key_or_a_refused_write_end_the_reign() {
    let another = |reign: &mut Reign| reign.handle_leader(at(100), Leader { term: 9, is_ours: false });
    let missing = |reign: &mut Reign| reign.handle_vacant(at(100), 9);
    let refused = |reign: &mut Reign| reign.handle_refused(at(100), 7);
    let moved = |reign: &mut Reign| reign.handle_connected(at(100), None);
    let ends: [fn(&mut Reign); 4] = [another, missing, refused, moved];
    for end in ends {
        let mut reign = reigning();
        end(&mut reign);
        assert_eq!(actions(&mut reign)[..2], [Action::End(7), Action::GiveBack]);
        assert_eq!(reign.may_decide(at(100)), None);
    }
}

#[test]
fn news_from_before_the_reign_is_no_news() {
    let mut reign = reigning();
    reign.handle_vacant(at(100), 6);
    reign.handle_leader(at(100), Leader { term: 5, is_ours: false });
    reign.handle_refused(at(100), 3);
    assert_eq!((actions(&mut reign), reign.may_decide(at(100))), (vec![], Some(7)));
}

#[test]
fn a_campaign_whose_answer_was_lost_is_found_to_be_won() {
    let mut reign = Reign::new(Config::new(TTL));
    reign.handle_connected(at(0), None);
    reign.handle_granted(at(1), TTL);
    actions(&mut reign);
    reign.handle_disconnected(at(500));
    assert_eq!(actions(&mut reign), []);
    reign.handle_connected(at(600), Some(Leader { term: 4, is_ours: true }));
    assert_eq!(actions(&mut reign), [Action::Begin(4)]);
    // The lease still counts from when it was asked for.
    assert_eq!((reign.may_decide(at(3_999)), reign.may_decide(at(4_000))), (Some(4), None));
}

#[test]
fn who_stands_by_renews_its_lease_and_campaigns_when_the_key_is_gone() {
    let mut reign = Reign::new(Config::new(TTL));
    reign.handle_connected(at(0), Some(Leader { term: 3, is_ours: false }));
    reign.handle_granted(at(1), TTL);
    assert_eq!(actions(&mut reign), [Action::Grant(TTL)]);
    assert_eq!(reign.poll_timeout(), Some(at(1_250)));
    reign.handle_timeout(at(1_250));
    assert_eq!(actions(&mut reign), [Action::Renew]);
    reign.handle_vacant(at(1_300), 8);
    assert_eq!(actions(&mut reign), [], "one question at a time");
    reign.handle_renewed(at(1_310), Some(TTL));
    assert_eq!(actions(&mut reign), [Action::Campaign]);
    reign.handle_campaigned(at(1_320), Campaign::Lost(9));
    assert_eq!((actions(&mut reign), reign.leader().map(|leader| leader.term)), (vec![], Some(9)));
}

#[test]
fn a_question_that_failed_is_asked_again_after_a_pause_that_grows() {
    let mut reign = reigning();
    reign.handle_timeout(at(1_250));
    assert_eq!(actions(&mut reign), [Action::Renew]);
    reign.handle_failed(at(1_300), false);
    let first = reign.poll_timeout().unwrap();
    assert!(first > at(1_300));
    reign.handle_timeout(first);
    assert_eq!(actions(&mut reign), [Action::Renew]);
    reign.handle_failed(first, false);
    let second = reign.poll_timeout().unwrap();
    assert!(second.since(first) > first.since(at(1_300)));
    assert_eq!(reign.may_decide(at(3_999)), Some(7), "the lease lasts meanwhile");
}

#[test]
fn whoever_stops_gives_the_lease_back_and_asks_for_nothing_more() {
    let mut reign = reigning();
    reign.handle_stop();
    assert_eq!(actions(&mut reign), [Action::End(7), Action::GiveBack]);
    reign.handle_vacant(at(50), 8);
    reign.handle_timeout(at(9_000));
    assert_eq!((actions(&mut reign), reign.poll_timeout()), (vec![], None));
}

#[test]
fn a_leader_steps_down_for_one_that_more_peers_reach_and_leaves_the_next_election_to_others() {
    let mut reign = reigning();
    assert!(!reign.handle_appeal(at(100), 6, 4, 0), "that was about another reign");
    assert!(!reign.handle_appeal(at(100), 7, 4, 4), "as many reach us");
    assert_eq!((actions(&mut reign), reign.may_decide(at(100))), (vec![], Some(7)));
    assert!(reign.handle_appeal(at(100), 7, 4, 3));
    assert_eq!(actions(&mut reign), [Action::End(7), Action::GiveBack, Action::Grant(TTL)]);
    assert_eq!(reign.may_decide(at(100)), None);
    reign.handle_granted(at(110), TTL);
    reign.handle_vacant(at(120), 8);
    assert_eq!(actions(&mut reign), [], "it abstains");
    // Nobody else came: it renews its lease meanwhile, and campaigns in the end.
    let mut now = at(120);
    while actions(&mut reign) != [Action::Campaign] {
        now = reign.poll_timeout().expect("it wakes up by itself");
        reign.handle_timeout(now);
        if now < at(10_100) {
            assert_eq!(actions(&mut reign), [Action::Renew]);
            reign.handle_renewed(now, Some(TTL));
        }
    }
    assert_eq!(now, at(10_100));
    reign.handle_campaigned(at(10_200), Campaign::Won(9));
    assert_eq!(actions(&mut reign), [Action::Begin(9), Action::Renew], "and renews what is due by now");
}
