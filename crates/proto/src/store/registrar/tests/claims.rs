//! What a member says about terms and epochs is a claim (rule 41).

use super::super::{Registrar, ToRegistrar};
use super::{at, bootstrapped, comes, member, restarted, said, says, view};
use crate::limits::COUNT_MAX;
use crate::wire::store::View;
use crate::wire::{InvalidMessage, Message as _};

fn claim(number: u64, view: Option<View>, term: u64, epoch: u64) -> ToRegistrar {
    ToRegistrar::Register { member: member(number), view, term, epoch, next: None, founder: None }
}

/// The next view's epoch is one higher, and its members can read of it.
fn goes_on(registrar: &mut Registrar, now: u64, epoch: u64) {
    said(registrar);
    comes(registrar, at(now), 7, None, None);
    registrar.handle_timeout(at(now + 100));
    let words = said(registrar);
    assert!(words.contains(&format!("7: prepare {epoch}")), "{words:?}");
}

#[test]
fn a_count_that_nobody_can_have_come_to_is_no_message() {
    let check = |term, epoch| claim(1, None, term, epoch).check();
    assert_eq!(check(COUNT_MAX, COUNT_MAX), Ok(()));
    for (term, epoch, wrong) in [(COUNT_MAX + 1, 1, "term"), (1, u64::MAX, "epoch")] {
        let refused = check(term, epoch);
        assert!(
            matches!(&refused, Err(InvalidMessage::OverLimit { field, .. }) if *field == wrong),
            "{refused:?}"
        );
    }
}

#[test]
fn with_a_view_in_force_a_claim_far_above_it_is_turned_away() {
    let mut registrar = bootstrapped(2);
    registrar.found_with(1);
    says(&mut registrar, at(20), 3, claim(3, None, 1, COUNT_MAX));
    assert_eq!(said(&mut registrar), ["3: out"]);
    says(&mut registrar, at(30), 3, claim(3, None, COUNT_MAX, 1));
    assert_eq!(said(&mut registrar), ["3: out"]);
    goes_on(&mut registrar, 40, 2);
}

#[test]
fn one_that_is_near_counts_or_its_member_would_refuse_the_next_view() {
    let mut registrar = bootstrapped(2);
    registrar.found_with(1);
    says(&mut registrar, at(20), 3, claim(3, None, 1, 1_000));
    goes_on(&mut registrar, 40, 1_001);
}

#[test]
fn a_restarted_registrar_counts_what_several_claim_and_not_what_one_claims() {
    let far = 1 << 40;
    let mut registrar = restarted();
    says(&mut registrar, at(10), 3, claim(3, None, COUNT_MAX, COUNT_MAX));
    for number in [1, 2] {
        says(&mut registrar, at(20), number, claim(number, Some(view(5, &[1, 2])), far, far));
    }
    goes_on(&mut registrar, 30, far + 1);
}

#[test]
fn however_high_the_only_claim_is_views_can_follow() {
    let mut registrar = Registrar::new(super::Config::preset(super::Preset::Local), 1);
    registrar.handle_timeout(at(0));
    says(&mut registrar, at(10), 1, claim(1, None, COUNT_MAX, COUNT_MAX));
    registrar.handle_timeout(at(100));
    while let Some(command) = registrar.poll_command() {
        if let super::Command::Send(_, order) = command {
            assert_eq!(order.check(), Ok(()));
        }
    }
    let mut registrar = restarted();
    says(&mut registrar, at(10), 1, claim(1, None, COUNT_MAX, COUNT_MAX));
    registrar.handle_timeout(at(3_000));
    registrar.handle_timeout(at(3_100));
    let mut orders = 0;
    while let Some(command) = registrar.poll_command() {
        if let super::Command::Send(_, order) = command {
            orders += 1;
            assert_eq!(order.check(), Ok(()));
        }
    }
    assert!(orders > 0);
}

#[test]
fn a_rank_that_cannot_be_counted_on_from_panics_nobody() {
    let mut registrar = bootstrapped(2);
    registrar.found_with(1);
    let ranked = |number, rank| {
        let member = super::StoreMember { rank, ..member(number) };
        ToRegistrar::Register { member, view: None, term: 1, epoch: 1, next: None, founder: None }
    };
    says(&mut registrar, at(20), 3, ranked(3, u32::MAX - 1));
    says(&mut registrar, at(20), 4, ranked(4, u32::MAX));
    says(&mut registrar, at(20), 5, ranked(5, u32::MAX));
    goes_on(&mut registrar, 40, 2);
}
