//! Who holds what in one view.
//!
//! Keys are dealt into [`STORE_BUCKETS`] buckets by their hash. Every member draws a number for every bucket, by hashing both
//! (highest random weight, Thaler and Ravishankar 1998): the highest owns the bucket, and the next on another host is its
//! replica; if all are on one host, the next at all. Whoever knows the view knows the holders, and when a member comes
//! or goes only its own buckets move.
//!
//! The invariant: a layout is a function of its view alone, so two members of one epoch never disagree on an owner.

use crate::limits::STORE_BUCKETS;
use crate::wire::store::operation::Key;
use crate::wire::store::{MemberId, StoreMember, View};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// A part of the keys.
pub type Bucket = u16;

/// Which bucket a key is in.
pub fn bucket(key: &Key) -> Bucket {
    let hash = XxHash3_64::oneshot_with_seed(key.space as u64, &key.name);
    (hash % STORE_BUCKETS as u64) as Bucket
}

/// A number for a name: the same in every process.
pub fn digest(name: &[u8]) -> u64 {
    XxHash3_64::oneshot(name)
}

/// The two places of a bucket's holders in the view's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Places {
    owner: u16,
    /// None if the owner is alone.
    replica: Option<u16>,
}

/// Who holds a bucket.
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
            (0..STORE_BUCKETS as Bucket).map(|bucket| places(members, bucket)).collect()
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

    /// Who holds a bucket; nobody in a view of nobody.
    pub fn holders(&self, bucket: Bucket) -> Option<Holders> {
        let places = self.places.get(usize::from(bucket))?;
        let id = |place: u16| self.view.members[usize::from(place)].id;
        Some(Holders { owner: id(places.owner), replica: places.replica.map(id) })
    }

    /// Who owns a bucket.
    pub fn owner(&self, bucket: Bucket) -> Option<MemberId> {
        self.holders(bucket).map(|holders| holders.owner)
    }

    /// Whether `member` owns a bucket or has its copy.
    pub fn holds(&self, member: MemberId, bucket: Bucket) -> bool {
        self.holders(bucket).is_some_and(|holders| holders.has(member))
    }

    /// The buckets whose holders differ in the view that follows.
    pub fn moved(&self, next: &Self) -> Vec<Bucket> {
        (0..STORE_BUCKETS as Bucket).filter(|bucket| self.holders(*bucket) != next.holders(*bucket)).collect()
    }

    /// Who hands a bucket over when this view ends: the owner, or the replica if the owner is gone. None if both are.
    ///
    /// All new holders take the *same* copy: an owner may have done what its replica has not heard of yet, and two who
    /// took different copies would disagree.
    pub fn source(&self, bucket: Bucket, is_gone: impl Fn(MemberId) -> bool) -> Option<MemberId> {
        let holders = self.holders(bucket)?;
        [Some(holders.owner), holders.replica].into_iter().flatten().find(|member| !is_gone(*member))
    }

    /// Buckets that nobody is left to hand over.
    pub fn lost(&self, is_gone: impl Fn(MemberId) -> bool) -> usize {
        (0..self.places.len() as Bucket).filter(|bucket| self.source(*bucket, &is_gone).is_none()).count()
    }
}

impl Holders {
    /// Whether it is one of them.
    pub fn has(&self, member: MemberId) -> bool {
        self.owner == member || self.replica == Some(member)
    }
}

fn weight(bucket: Bucket, member: &StoreMember) -> (u64, MemberId) {
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&member.id.0.to_le_bytes());
    bytes[8..].copy_from_slice(&bucket.to_le_bytes());
    (XxHash3_64::oneshot(&bytes), member.id)
}

fn places(members: &[StoreMember], bucket: Bucket) -> Places {
    let highest = |is_meant: &dyn Fn(usize) -> bool| {
        let meant = (0..members.len()).filter(|place| is_meant(*place));
        meant.max_by_key(|place| weight(bucket, &members[*place]))
    };
    let owner = highest(&|_| true).expect("a view with members");
    let elsewhere = highest(&|place| members[place].host != members[owner].host);
    let replica = elsewhere.or_else(|| highest(&|place| place != owner));
    Places { owner: owner as u16, replica: replica.map(|place| place as u16) }
}
