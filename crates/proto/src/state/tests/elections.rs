//! Revisions, deviations and the vote to finish.

use super::world::{Election, Member, peer, sync};
use crate::state::election::{Deviation, Healed, NoDonor, Role, Strategy};
use crate::state::{Digest, Revision};

fn revisions(last: Option<Revision>, of: &[Option<Revision>]) -> Result<(Revision, Vec<Role>), NoDonor> {
    let members = of.iter().enumerate().map(|(number, revision)| Member::new(number as u8, *revision));
    let offers: Vec<_> = members.map(|member| member.with("w", 4, 1).offer()).collect();
    Election::of(last, &offers).map(|election| {
        (election.elected.revision, election.roles.into_iter().map(|(_, role)| role).collect())
    })
}

#[test]
fn legal_are_the_last_agreed_and_the_next() {
    use Role::{Donor, Receiver};
    assert_eq!(revisions(Some(5), &[Some(5), Some(4), None]), Ok((5, vec![Donor, Receiver, Receiver])));
    assert_eq!(revisions(Some(5), &[Some(5), Some(6)]), Ok((6, vec![Receiver, Donor])));
    let ahead = Role::Deviates(Deviation::Ahead { offered: 7, last: 5 });
    assert_eq!(revisions(Some(5), &[Some(5), Some(7)]), Ok((5, vec![Donor, ahead])));
    assert_eq!(
        revisions(None, &[Some(0), Some(1_000)]),
        Ok((1_000, vec![Receiver, Donor])),
        "the first sync"
    );
    assert_eq!(revisions(Some(u64::MAX), &[Some(u64::MAX)]), Ok((u64::MAX, vec![Donor])));
}

#[test]
fn nobody_to_give_is_a_clear_error_for_all() {
    assert_eq!(revisions(Some(5), &[Some(4), Some(3), None]), Err(NoDonor::Behind { best: 4, last: 5 }));
    assert_eq!(revisions(Some(5), &[None, None]), Err(NoDonor::NothingToGive));
    assert_eq!(revisions(None, &[None]), Err(NoDonor::NothingToGive));
    assert_eq!(revisions(None, &[]), Err(NoDonor::NothingToGive));
    assert_eq!(revisions(Some(5), &[Some(7), Some(9)]), Err(NoDonor::AllAhead { last: 5 }));
    assert_eq!(revisions(Some(5), &[Some(7), Some(2)]), Err(NoDonor::Behind { best: 2, last: 5 }));
    let text = NoDonor::Behind { best: 4, last: 5 }.to_string();
    assert!(text.contains("revision 5") && text.contains("is 4"), "{text}");
}

#[test]
fn the_revision_of_who_only_receives_counts_for_nothing() {
    let ahead = Member::new(1, 99).with("w", 4, 2).strategy(Strategy::ReceiveOnly);
    let mut members = vec![Member::new(0, 5).with("w", 4, 1), ahead];
    let election = sync(Some(5), &mut members).unwrap();
    assert_eq!((election.elected.revision, election.role(peer(1))), (5, Role::Receiver));
    assert_eq!(members[1].revision, Some(5));
}

#[test]
fn a_deviating_outline_is_the_deviants_error_alone() {
    let good = |number| Member::new(number, 5).with("w", 4, 1);
    let mut members =
        vec![good(0), good(1), Member::new(2, 5).with("v", 4, 1), Member::new(3, None).with("w", 5, 1)];
    let election = sync(Some(5), &mut members).unwrap();
    for deviant in [2, 3] {
        assert_eq!(election.role(peer(deviant)), Role::Deviates(Deviation::Outline));
    }
    assert_eq!(election.donors(), [peer(0), peer(1)]);
    // The key set of the elected revision counts, however many newcomers have another.
    let mut members =
        vec![Member::new(0, None).with("v", 4, 1), Member::new(1, None).with("v", 4, 1), good(2)];
    let election = sync(Some(5), &mut members).unwrap();
    assert_eq!(election.donors(), [peer(2)]);
    assert_eq!(election.role(peer(0)), Role::Deviates(Deviation::Outline));
}

#[test]
fn a_torn_state_is_never_elected() {
    // Torn means: no revision. It holds half of the new state, and the only donor is gone.
    let mut members = vec![Member::new(0, None).with("w", 4, 9), Member::new(1, 4).with("w", 4, 1)];
    assert_eq!(sync(Some(5), &mut members), Err(NoDonor::Behind { best: 4, last: 5 }));
    members[1].revision = Some(5);
    sync(Some(5), &mut members).unwrap();
    assert_eq!(members[0].tensor("w")[0], 1);
}

#[test]
fn strategies_have_words() {
    for strategy in Strategy::ALL {
        assert_eq!(strategy.to_string().parse(), Ok(strategy));
    }
    assert!("most".parse::<Strategy>().unwrap_err().to_string().contains("send_only"));
}

#[test]
fn the_first_few_keys_are_told_and_the_rest_counted() {
    let keys: Vec<_> = (0..100).map(|key| key.to_string()).collect();
    let healed = Healed::of(keys.iter().map(String::as_str));
    assert_eq!((healed.keys.len(), healed.count), (32, 100));
    healed.check().unwrap();
    assert!(Healed { keys: vec![String::new(); 33], count: 33 }.check().is_err());
    assert!(Healed { keys: vec!["k".repeat(513)], count: 1 }.check().is_err());
    assert_ne!(Digest::of(b"a"), Digest::of(b"b"));
}
