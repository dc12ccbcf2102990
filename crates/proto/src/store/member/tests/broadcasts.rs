//! Broadcasts where links are broken, or members die (rule 30): whoever is there all the time hears each once.
//!
//! ```text
//!        origin             The ring of four. Whoever is opposite is told by one of the two beside the origin, and not by
//!        /    \             the other; which one that is follows from the members alone.
//!    teller   idler
//!        \    /
//!       opposite
//! ```

use super::{Circle, Mesh};
use crate::time::Duration;
use crate::wire::store::MemberId;
use crate::wire::store::mesh::{Envelope, Hop};
use std::collections::BTreeSet;

/// The numbers of who is where on a ring of four.
struct Ring {
    origin: u64,
    teller: u64,
    idler: u64,
    opposite: u64,
}

impl Ring {
    fn of(circle: &Circle) -> Self {
        let (origin, mesh) = (MemberId(1), Mesh::new(&circle.view(1)));
        let opposite = (2..=4).find(|other| !mesh.has(origin, MemberId(*other))).unwrap();
        let tree = mesh.routes(origin, &BTreeSet::new());
        let is_teller = |other: &MemberId| tree.children(*other).count() > 0;
        let (tells, idles): (Vec<_>, Vec<_>) = mesh.neighbours(origin).partition(is_teller);
        Self { origin: 1, teller: tells[0].0, idler: idles[0].0, opposite }
    }
}

impl Circle {
    /// The link between two breaks. They dial again when some time has passed.
    fn break_link(&mut self, one: u64, other: u64) {
        let now = self.now;
        self.under_way.retain(|(from, to, _)| ![(one, other), (other, one)].contains(&(*from, *to)));
        for (here, there) in [(one, other), (other, one)] {
            self.members.get_mut(&here).unwrap().handle_disconnected(now, MemberId(there));
            self.carry_out(here);
        }
    }

    fn broadcast(&mut self, number: u64) {
        let now = self.now;
        self.members.get_mut(&number).unwrap().broadcast(now, b"word"[..].into());
        self.carry_out(number);
    }

    fn who_heard(&self) -> Vec<u64> {
        let mut heard: Vec<_> = self.heard.iter().map(|(number, _)| *number).collect();
        heard.sort_unstable();
        heard
    }
}

#[test]
fn whoever_there_is_no_way_to_hears_it_when_there_is_one() {
    let mut circle = Circle::new(4);
    let Ring { origin, teller, idler, opposite } = Ring::of(&circle);
    circle.break_link(origin, teller);
    circle.break_link(idler, opposite);
    circle.settle();
    circle.broadcast(origin);
    circle.settle();
    assert_eq!(circle.who_heard(), [idler], "the others are parted from it");
    circle.pass(Duration::from_secs(1));
    assert_eq!(circle.who_heard(), [2, 3, 4]);
}

#[test]
fn whoever_one_leaves_to_another_that_has_not_heard_of_the_broken_link_hears_it() {
    let mut circle = Circle::new(4);
    let Ring { origin, teller, idler, opposite } = Ring::of(&circle);
    circle.broadcast(origin);
    circle.break_link(teller, opposite);
    let is_next = |(from, to, _): &&(u64, u64, Hop)| *from == origin && [teller, idler].contains(to);
    assert_eq!(circle.under_way.iter().take(2).filter(is_next).count(), 2, "before all news of the link");
    circle.settle();
    assert_eq!(circle.who_heard(), [2, 3, 4]);
}

#[test]
fn whoever_carries_it_to_another_member_hears_it_too() {
    let mut circle = Circle::new(4);
    let Ring { origin, teller, idler, opposite } = Ring::of(&circle);
    // What goes to the teller goes around by the other two; and the one beside the origin does not know that it is news.
    circle.break_link(origin, teller);
    circle.settle();
    circle.broadcast(origin);
    let is_for_all = |hop: &Hop| matches!(hop, Hop::Carry { envelope: Envelope { to: None, .. }, .. });
    circle.under_way.retain(|(_, to, hop)| *to != idler || !is_for_all(hop));
    circle.settle();
    let heard = circle.who_heard();
    assert!(heard.contains(&teller) && heard.contains(&opposite), "{heard:?}");
}

#[test]
fn whoever_is_behind_a_hand_that_dies_with_it_hears_it_in_the_next_view() {
    let word = |(_, _, hop): &(u64, u64, Hop)| matches!(hop, Hop::Carry { envelope, .. } if envelope.from == MemberId(1));
    let mut kept_from_somebody = 0;
    for hand in 2..=12 {
        let mut circle = Circle::new(12);
        circle.broadcast(1);
        while !circle.under_way.is_empty() {
            circle.under_way.retain(|carried| carried.0 != hand || !word(carried));
            circle.deliver_one();
        }
        kept_from_somebody += u32::from(circle.heard.len() < 11);
        circle.kill(hand, 2);
        circle.pass(Duration::from_secs(3));
        let left: Vec<_> = (2..=12).filter(|number| *number != hand).collect();
        let mut heard = circle.who_heard();
        heard.retain(|number| *number != hand);
        assert_eq!(heard, left, "{hand} died");
    }
    assert!(kept_from_somebody > 1, "nobody hangs on anybody but the origin");
}

/// Once nobody remembers what was heard of it, a copy that was on another way all the while would be taken for news.
#[test]
fn a_late_copy_of_what_somebody_said_who_is_gone_is_not_heard_again() {
    let mut circle = Circle::new(4);
    circle.broadcast(1);
    let copy = circle.under_way.iter().find_map(|(_, _, hop)| match hop {
        Hop::Carry { envelope, .. } => Some(envelope.clone()),
        _ => None,
    });
    circle.settle();
    circle.kill(1, 2);
    assert_eq!(circle.who_heard(), [2, 3, 4]);
    let envelope = Envelope { to: Some(MemberId(2)), floods: true, ..copy.unwrap() };
    let now = circle.now;
    let hop = Hop::Carry { number: u64::MAX / 2, received: 0, envelope };
    circle.members.get_mut(&2).unwrap().handle_hop(now, MemberId(3), hop);
    circle.carry_out(2);
    circle.settle();
    assert_eq!(circle.who_heard(), [2, 3, 4]);
}
