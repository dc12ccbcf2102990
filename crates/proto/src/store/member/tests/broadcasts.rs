//! Broadcasts where links are broken, or members die (rule 30): whoever is there all the time hears each once.
//!
//! ```text
//!        origin             The ring of four. Whoever is opposite is told by one of the two beside the origin, and not by
//!        /    \             the other; which one that is follows from the members alone.
//!    teller   idler
//!        \    /
//!       opposite
//! ```

use super::{Circle, Mesh, is_piece};
use crate::limits::{STORE_CASTS_MAX, STORE_HOPS_MAX, STORE_PIECE_BYTES};
use crate::time::Duration;
use crate::wire::store::mesh::{Envelope, Hop};
use crate::wire::store::{MemberId, View};
use std::collections::{BTreeSet, VecDeque};

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

/// Its first pieces are not taken twice, so those that came before a view began count in it (rule 30).
#[test]
fn a_long_broadcast_is_heard_once_by_whoever_is_there_while_a_view_begins() {
    for pieces_before in [1, 2, 5] {
        let mut circle = Circle::new(4);
        let activate = circle.prepare(2);
        let long = vec![7; 2 * STORE_PIECE_BYTES];
        let now = circle.now;
        circle.members.get_mut(&1).unwrap().broadcast(now, long[..].into());
        circle.carry_out(1);
        circle.deliver_pieces(pieces_before);
        circle.order(&activate);
        circle.settle();
        circle.pass(Duration::from_secs(1));
        circle.heard.sort_unstable();
        assert_eq!(
            circle.heard,
            [(2, long.len()), (3, long.len()), (4, long.len())],
            "{pieces_before} before"
        );
        let third = circle.prepare(3);
        circle.order(&third);
        circle.settle();
        assert_eq!(circle.heard.len(), 3, "it was told again, and everybody had heard it");
    }
}

/// A broadcast that went another way comes when so many later ones are here that nobody remembers it any more.
#[test]
fn a_copy_of_an_old_broadcast_is_neither_heard_again_nor_passed_on() {
    let mut circle = Circle::new(5);
    let mut first = None;
    for length in 1..=STORE_CASTS_MAX + 2 {
        let now = circle.now;
        circle.members.get_mut(&1).unwrap().broadcast(now, vec![7; length][..].into());
        circle.carry_out(1);
        let sent = circle.under_way.iter().find_map(|(_, _, hop)| match hop {
            Hop::Carry { envelope, .. } if envelope.from == MemberId(1) => Some(envelope.clone()),
            _ => None,
        });
        first = first.or(sent);
        circle.settle();
    }
    assert_eq!(circle.heard.len(), 4 * (STORE_CASTS_MAX + 2));
    let mut envelope = first.expect("it was sent");
    for number in 1..=2 {
        (envelope.to, envelope.floods) = (Some(MemberId(2)), true);
        let hop = Hop::Carry { number: u64::MAX / 2 + number, received: 0, envelope: envelope.clone() };
        let now = circle.now;
        circle.members.get_mut(&2).unwrap().handle_hop(now, MemberId(3), hop);
        circle.carry_out(2);
        assert_eq!(circle.under_way.len(), 0, "it is passed on");
    }
    assert_eq!(circle.heard.len(), 4 * (STORE_CASTS_MAX + 2), "it is heard again");
}

#[test]
fn a_long_broadcast_that_many_short_ones_overtake_is_heard() {
    let mut circle = Circle::new(2);
    let now = circle.now;
    let length = 4 * STORE_PIECE_BYTES;
    circle.members.get_mut(&1).unwrap().broadcast(now, vec![7; length][..].into());
    circle.carry_out(1);
    let (mut pieces, others): (VecDeque<_>, _) = circle.under_way.drain(..).partition(is_piece);
    circle.under_way = others;
    circle.under_way.extend(pieces.pop_front());
    circle.settle();
    for _ in 0..STORE_CASTS_MAX + 2 {
        circle.members.get_mut(&1).unwrap().broadcast(now, b"short"[..].into());
        circle.carry_out(1);
        circle.settle();
    }
    assert!(!pieces.is_empty() && !circle.heard.iter().any(|(_, heard)| *heard == length));
    circle.under_way.extend(pieces);
    circle.settle();
    assert_eq!(circle.heard.last(), Some(&(2, length)));
}

/// Whatever is wrong with those who pass it on, it comes to rest.
#[test]
fn a_broadcast_that_has_passed_too_many_hands_is_heard_and_goes_no_further() {
    let mut circle = Circle::new(12);
    let now = circle.now;
    circle.members.get_mut(&1).unwrap().broadcast(now, b"word"[..].into());
    circle.carry_out(1);
    for (_, _, hop) in &mut circle.under_way {
        if let Hop::Carry { envelope, .. } = hop {
            (envelope.floods, envelope.hops) = (true, STORE_HOPS_MAX - 1);
        }
    }
    let told = circle.under_way.len();
    assert!(told < 11, "the others hear it from those");
    circle.settle();
    assert_eq!(circle.heard.len(), told, "only by those whom its origin told");
}

#[test]
fn broadcasts_that_will_never_be_whole_are_forgotten_when_a_view_begins() {
    let mut circle = Circle::new(2);
    let broadcast = |circle: &mut Circle| {
        let now = circle.now;
        circle.members.get_mut(&1).unwrap().broadcast(now, vec![7; 2 * STORE_PIECE_BYTES][..].into());
        circle.carry_out(1);
        // The second piece is in the hands of somebody who dies.
        let (mut pieces, others): (VecDeque<_>, _) = circle.under_way.drain(..).partition(is_piece);
        circle.under_way = others;
        circle.under_way.extend(pieces.pop_front());
        circle.settle();
    };
    broadcast(&mut circle);
    // So many later ones that it is not told again.
    for _ in 0..20 {
        let now = circle.now;
        circle.members.get_mut(&1).unwrap().broadcast(now, b"short"[..].into());
        circle.carry_out(1);
        circle.settle();
    }
    let ends = circle.view(1);
    circle.enter(2, Some(ends.clone()), &[]);
    assert_eq!(circle.members[&2].post.parcels(), 1, "it may still be on its way");
    circle.now += circle.members[&2].lost_after();
    circle.enter(3, Some(View { epoch: 2, ..ends }), &[]);
    assert_eq!(circle.members[&2].post.parcels(), 0);
}
