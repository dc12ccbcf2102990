//! What the ledger finds and what it excuses, without a process.

use crate::herd::ledger::{Account, Entry, Key, silent};
use std::collections::BTreeMap;

/// What a worker does that the others do not.
enum Told {
    Commit(Key),
    Out,
}
use Told::{Commit, Out};

/// What is found of `x`, who told that, when `a` has committed all of these with it.
fn found(committed: &[Key], told: &[Told]) -> Vec<Key> {
    let (mut a, mut x) = (Account::default(), Account::default());
    let mut ledger: BTreeMap<Key, Entry> = BTreeMap::new();
    for key in committed {
        a.commit(*key);
        let (contributors, by) = (vec!["a".to_owned(), "x".to_owned()], ["a".to_owned()].into());
        ledger.insert(*key, Entry { contributors, hash: "beef".to_owned(), by });
    }
    for told in told {
        match told {
            Commit(key) => {
                x.commit(*key);
                ledger.get_mut(key).expect("committed by both").by.insert("x".to_owned());
            }
            Out => x.put_out(),
        }
    }
    let found = silent(&ledger, &[("a", &a), ("x", &x)]);
    assert!(found.iter().all(|(_, who)| who == &["x"]), "nobody else: {found:?}");
    found.into_iter().map(|(key, _)| key).collect()
}

#[test]
fn who_stayed_in_and_never_committed_what_another_did_is_found() {
    let calls = [(1, 0, 0), (1, 0, 1), (1, 0, 2)];
    assert_eq!(found(&calls, &[Commit(calls[0]), Commit(calls[1]), Commit(calls[2])]), []);
    assert_eq!(found(&calls, &[Commit(calls[0]), Commit(calls[2])]), [calls[1]]);
    assert_eq!(found(&calls, &[Commit(calls[0]), Commit(calls[1])]), [calls[2]]);
    assert_eq!(found(&calls, &[]), calls);
}

#[test]
fn who_was_no_contributor_misses_nothing() {
    let entry =
        Entry { contributors: vec!["a".to_owned()], hash: String::new(), by: ["a".to_owned()].into() };
    let account = Account::default();
    assert_eq!(silent(&[((1, 0, 0), entry)].into(), &[("a", &account), ("x", &account)]), []);
}

#[test]
fn who_was_put_out_in_a_call_may_miss_that_call_of_each_tag() {
    let calls = [(1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 0, 1), (4, 0, 0)];
    let told = [Commit(calls[0]), Out, Commit(calls[4])];
    // It was in three calls at once, the last of tag 0 among them.
    assert_eq!(found(&calls, &told), []);
    // One of them it had heard of before it was put out.
    assert_eq!(found(&calls, &[Commit(calls[0]), Commit(calls[2]), Out, Commit(calls[4])]), []);
    // It may be told nothing afterwards, and it may be put out in its first call.
    assert_eq!(found(&calls[..1], &[Out]), []);
}

#[test]
fn who_was_put_out_misses_no_second_call_of_that_tag() {
    let calls = [(1, 0, 0), (1, 0, 1), (1, 0, 2), (4, 0, 0)];
    assert_eq!(found(&calls, &[Commit(calls[0]), Out, Commit(calls[3])]), [calls[2]]);
    // Not in another epoch either.
    let calls = [(1, 0, 0), (2, 0, 0), (4, 0, 0)];
    assert_eq!(found(&calls, &[Out, Commit(calls[2])]), [calls[1]]);
    // Who is put out twice may miss two.
    assert_eq!(found(&calls, &[Out, Out, Commit(calls[2])]), []);
}

#[test]
fn who_was_put_out_earlier_or_later_misses_nothing() {
    let calls = [(1, 0, 0), (1, 0, 1), (1, 0, 2), (3, 0, 0), (3, 0, 1)];
    // Earlier: it was in again, and then said nothing of the call after the next one.
    let told = [Commit(calls[0]), Commit(calls[1]), Commit(calls[2]), Out, Commit(calls[3])];
    assert_eq!(found(&calls, &told), [calls[4]]);
    // It was in again in the very epoch of the call that it says nothing of.
    let told = [Commit(calls[0]), Commit(calls[1]), Commit(calls[2]), Out, Commit(calls[4])];
    assert_eq!(found(&calls, &told), [calls[3]]);
    // Later: it had committed what came after that call, of its tag or in a later epoch.
    let told = [Commit(calls[0]), Commit(calls[2]), Out, Commit(calls[3]), Commit(calls[4])];
    assert_eq!(found(&calls, &told), [calls[1]]);
    let told = [Commit(calls[0]), Commit(calls[1]), Commit(calls[3]), Out];
    assert_eq!(found(&calls, &told), [calls[2]]);
}
