//! Who holds what in one view.
//!
//! Keys are dealt into [`STORE_SLOTS`] slots by their hash. Every member draws a number for every slot, by hashing both
//! (highest random weight, Thaler and Ravishankar 1998): the highest owns the slot, and the next on another host is its
//! replica; if all are on one host, the next at all. Whoever knows the view knows the holders, and when a member comes
//! or goes only its own slots move.
//!
//! The invariant: a layout is a function of its view alone, so two members of one epoch never disagree on an owner.

use crate::limits::STORE_SLOTS;
use crate::wire::store::operation::Key;
use crate::wire::store::{MemberId, StoreMember, View};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// A part of the keys.
pub type Slot = u16;

/// Which slot a key is in.
pub fn slot(key: &Key) -> Slot {
    let hash = XxHash3_64::oneshot_with_seed(key.space as u64, &key.name);
    (hash % STORE_SLOTS as u64) as Slot
}

/// A number for a name: the same in every process.
pub fn digest(name: &[u8]) -> u64 {
    XxHash3_64::oneshot(name)
}

/// The two places of a slot's holders in the view's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Places {
    owner: u16,
    /// None if the owner is alone.
    replica: Option<u16>,
}

/// Who holds a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holders {
    /// Answers for it.
    pub owner: MemberId,
    /// Has a copy of all that was acknowledged; none in a store of one.
    pub replica: Option<MemberId>,
}

/// A view, and what follows from it.
#[derive(Clone, Debug)]
pub struct Layout {
    view: Arc<View>,
    places: Arc<[Places]>,
}

/// What follows from a view is no part of what tells two layouts apart.
impl Hash for Layout {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.view.hash(hasher);
    }
}

impl Layout {
    /// What follows from a view.
    pub fn new(view: View) -> Self {
        let members = &view.members;
        let places = if members.is_empty() {
            Arc::default()
        } else {
            (0..STORE_SLOTS as Slot).map(|slot| places(members, slot)).collect()
        };
        Self { view: Arc::new(view), places }
    }

    /// The view.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The view's epoch.
    pub fn epoch(&self) -> u64 {
        self.view.epoch
    }

    /// Who holds a slot; nobody in a view of nobody.
    pub fn holders(&self, slot: Slot) -> Option<Holders> {
        let places = self.places.get(usize::from(slot))?;
        let id = |place: u16| self.view.members[usize::from(place)].id;
        Some(Holders { owner: id(places.owner), replica: places.replica.map(id) })
    }

    /// Who owns a slot.
    pub fn owner(&self, slot: Slot) -> Option<MemberId> {
        self.holders(slot).map(|holders| holders.owner)
    }

    /// Whether `member` owns a slot or has its copy.
    pub fn holds(&self, member: MemberId, slot: Slot) -> bool {
        self.holders(slot).is_some_and(|holders| holders.has(member))
    }

    /// The slots whose holders differ in the view that follows.
    pub fn moved(&self, next: &Self) -> Vec<Slot> {
        (0..STORE_SLOTS as Slot).filter(|slot| self.holders(*slot) != next.holders(*slot)).collect()
    }

    /// Who hands a slot over when this view ends: the owner, or the replica if the owner is gone. None if both are.
    ///
    /// All new holders take the *same* copy: an owner may have done what its replica has not heard of yet, and two who
    /// took different copies would disagree.
    pub fn source(&self, slot: Slot, is_gone: impl Fn(MemberId) -> bool) -> Option<MemberId> {
        let holders = self.holders(slot)?;
        [Some(holders.owner), holders.replica].into_iter().flatten().find(|member| !is_gone(*member))
    }

    /// Slots that nobody is left to hand over.
    pub fn lost(&self, is_gone: impl Fn(MemberId) -> bool) -> usize {
        (0..self.places.len() as Slot).filter(|slot| self.source(*slot, &is_gone).is_none()).count()
    }
}

impl Holders {
    /// Whether it is one of them.
    pub fn has(&self, member: MemberId) -> bool {
        self.owner == member || self.replica == Some(member)
    }
}

fn weight(slot: Slot, member: &StoreMember) -> (u64, MemberId) {
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&member.id.0.to_le_bytes());
    bytes[8..].copy_from_slice(&slot.to_le_bytes());
    (XxHash3_64::oneshot(&bytes), member.id)
}

fn places(members: &[StoreMember], slot: Slot) -> Places {
    let highest = |is_meant: &dyn Fn(usize) -> bool| {
        let meant = (0..members.len()).filter(|place| is_meant(*place));
        meant.max_by_key(|place| weight(slot, &members[*place]))
    };
    let owner = highest(&|_| true).expect("a view with members");
    let elsewhere = highest(&|place| members[place].host != members[owner].host);
    let replica = elsewhere.or_else(|| highest(&|place| place != owner));
    Places { owner: owner as u16, replica: replica.map(|place| place as u16) }
}
