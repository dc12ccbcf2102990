//! One contract for every backend of a rendezvous, held by real processes that are killed and stopped.
//!
//! `cases` says what a register owes its users, `meetings` what nodes owe each other; `services` starts, stops and kills
//! backends. Each backend runs the same cases.

mod cases;
#[cfg(feature = "etcd")]
mod etcd_only;
#[cfg(feature = "etcd")]
mod etcds;
mod meetings;
#[path = "../support/ports.rs"]
mod ports;
mod roles;
mod services;
#[path = "../support/stopped.rs"]
mod stopped;

use services::{Coordinator, Members};

/// Another process of a test is this program with this test alone.
#[test]
fn role() {
    roles::play();
}

macro_rules! contract {
    ($backend:ident, $start:expr; $($module:ident::$case:ident),+ $(,)?) => {
        mod $backend {
            use super::*;
            $(
                #[test]
                fn $case() {
                    $module::$case(&mut $start);
                }
            )+
        }
    };
}

contract!(embedded, Coordinator::start();
    cases::a_write_counts_only_on_the_last_token,
    cases::of_two_that_race_one_wins_each_time,
    cases::news_reaches_whoever_watches,
    cases::a_lease_runs_out_by_the_clock_of_the_backend,
    cases::a_note_is_seen_by_others_for_as_long_as_the_lease_lasts,
    cases::a_stopped_process_whose_lease_ran_out_does_not_write,
    cases::a_backend_that_is_killed_and_started_again_is_found_again_with_what_was_written,
    cases::a_stopped_backend_is_an_error_in_time_and_passes,
    cases::a_backend_that_is_not_there_is_an_error_in_time_that_names_it,
    cases::a_value_that_is_too_large_is_refused_by_name,
    cases::two_runs_do_not_see_each_other,
    meetings::all_nodes_of_a_round_agree_and_survivors_keep_their_order,
    meetings::a_lost_node_is_noticed_and_one_more_is_let_in,
    meetings::a_round_is_complete_after_the_last_call_with_fewer_than_most,
    meetings::closing_ends_it_for_all_and_leaving_for_nobody_else,
    meetings::nodes_that_come_together_take_one_write,
    meetings::a_round_is_agreed_on_although_the_backend_is_killed_in_the_middle,
    meetings::every_round_has_a_store_of_its_own,
);

contract!(store, Members::start();
    cases::a_write_counts_only_on_the_last_token,
    cases::of_two_that_race_one_wins_each_time,
    cases::news_reaches_whoever_watches,
    cases::a_lease_runs_out_by_the_clock_of_the_backend,
    cases::a_note_is_seen_by_others_for_as_long_as_the_lease_lasts,
    cases::a_stopped_process_whose_lease_ran_out_does_not_write,
    cases::a_backend_that_is_killed_and_started_again_is_found_again_with_what_was_written,
    cases::a_stopped_backend_is_an_error_in_time_and_passes,
    cases::a_backend_that_is_not_there_is_an_error_in_time_that_names_it,
    cases::a_value_that_is_too_large_is_refused_by_name,
    cases::two_runs_do_not_see_each_other,
    meetings::all_nodes_of_a_round_agree_and_survivors_keep_their_order,
    meetings::a_lost_node_is_noticed_and_one_more_is_let_in,
    meetings::a_round_is_complete_after_the_last_call_with_fewer_than_most,
    meetings::closing_ends_it_for_all_and_leaving_for_nobody_else,
    meetings::nodes_that_come_together_take_one_write,
    meetings::a_round_is_agreed_on_although_the_backend_is_killed_in_the_middle,
    meetings::every_round_has_a_store_of_its_own,
);

#[cfg(feature = "etcd")]
contract!(etcd, etcds::Etcds::start(1);
    cases::a_write_counts_only_on_the_last_token,
    cases::of_two_that_race_one_wins_each_time,
    cases::news_reaches_whoever_watches,
    cases::a_lease_runs_out_by_the_clock_of_the_backend,
    cases::a_note_is_seen_by_others_for_as_long_as_the_lease_lasts,
    cases::a_stopped_process_whose_lease_ran_out_does_not_write,
    cases::a_backend_that_is_killed_and_started_again_is_found_again_with_what_was_written,
    cases::a_stopped_backend_is_an_error_in_time_and_passes,
    cases::a_backend_that_is_not_there_is_an_error_in_time_that_names_it,
    cases::a_value_that_is_too_large_is_refused_by_name,
    cases::two_runs_do_not_see_each_other,
    meetings::all_nodes_of_a_round_agree_and_survivors_keep_their_order,
    meetings::a_lost_node_is_noticed_and_one_more_is_let_in,
    meetings::a_round_is_complete_after_the_last_call_with_fewer_than_most,
    meetings::closing_ends_it_for_all_and_leaving_for_nobody_else,
    meetings::nodes_that_come_together_take_one_write,
    meetings::a_round_is_agreed_on_although_the_backend_is_killed_in_the_middle,
);

#[cfg(feature = "etcd")]
contract!(three_etcds, etcds::Etcds::start(3);
    cases::a_write_counts_only_on_the_last_token,
    meetings::all_nodes_of_a_round_agree_and_survivors_keep_their_order,
    meetings::a_round_is_agreed_on_although_the_backend_is_killed_in_the_middle,
);

/// A node with another secret is told at once, not after its time.
#[test]
fn a_wrong_secret_is_unauthorized_at_once() {
    is_told_at_once(&Coordinator::start());
    is_told_at_once(&Members::start());
}

fn is_told_at_once(service: &impl services::Service) {
    let stranger = outlast::Rendezvous::builder(service.backend(), 1, 1);
    let stranger = stranger.secret(outlast::security::RunSecret::generate()).start().expect("a node");
    let began = std::time::Instant::now();
    let error = stranger.next_rendezvous().unwrap_err();
    assert!(matches!(error, outlast::rendezvous::RendezvousError::Unauthorized(_)), "{error}");
    assert!(stranger.is_closed().is_err());
    assert!(began.elapsed() < services::PATIENCE, "{:?}", began.elapsed());
}

/// Software of another version, or another service of ours, is named by what it does not serve.
#[test]
fn an_address_that_serves_no_registers_is_refused_by_what_it_lacks() {
    let secret = outlast::security::RunSecret::generate();
    let listen = "127.0.0.1:0".parse().expect("an address");
    let member =
        outlast::Membership::builder().secret(secret.clone()).listen(listen).start().expect("a member");
    let node = outlast::Rendezvous::builder(member.address().to_string(), 1, 1);
    let error = node.secret(secret).start().expect("a node").next_rendezvous().unwrap_err().to_string();
    assert!(error.contains("does not serve") && error.contains("outlast-register/1"), "{error}");
    assert!(error.contains("older version"), "{error}");
}
