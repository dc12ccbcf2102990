//! Samples of what travels inside the votes of `sync_state`, and of what all agree on.

use super::families::peer;
use crate::ballot::sync::{Outcome, Wish};
use crate::state::Digest;
use crate::state::election::{Elected, Healed, NoDonor, Offer, Strategy};

pub(super) fn offer(strategy: Strategy) -> Offer {
    let (outline, root) = (Digest::of(b"outline"), Digest::of(b"root"));
    Offer { revision: Some(6), strategy, outline, root, was_agreed: true }
}

pub(super) fn healed() -> Healed {
    Healed { keys: vec!["layer.0.weight".to_owned()], count: 3 }
}

pub(super) fn elected() -> Elected {
    let Offer { outline, root, .. } = offer(Strategy::Popular);
    Elected { last: Some(5), revision: 6, outline, root, unremembered: true, was_agreed: true }
}

pub(super) fn wishes() -> Vec<Wish> {
    vec![
        Wish::Offer(offer(Strategy::SendOnly), Some(5)),
        Wish::Offer(Offer { revision: None, ..offer(Strategy::Popular) }, None),
        Wish::Done(elected().root, healed()),
        Wish::Failed(elected().root, "no donor is left".to_owned()),
        Wish::Healing(elected().root, 3, 10),
        Wish::Apart(elected().root),
    ]
}

pub(super) fn no_donors() -> Vec<NoDonor> {
    vec![
        NoDonor::NothingToGive,
        NoDonor::Behind { best: 4, last: 5 },
        NoDonor::AllAhead { last: 5 },
        NoDonor::NotKnown,
        NoDonor::OthersOutside,
    ]
}

pub(super) fn no_donor(why: NoDonor) -> Outcome {
    Outcome::NoDonor { last: Some(5), why }
}

pub(super) fn outcomes() -> Vec<Outcome> {
    vec![
        Outcome::Elected { elected: elected(), donors: vec![peer(1), peer(2)], diverged: vec![peer(3)] },
        no_donor(NoDonor::NothingToGive),
        Outcome::Finished { revision: 6, healed: vec![(peer(3), healed())], members: vec![peer(1), peer(3)] },
        Outcome::Failed { last: None, reasons: vec![(peer(2), "it began again".to_owned())] },
    ]
}
