//! Who is linked with whom, and which way a message goes.
//!
//! Up to four members form a ring. A larger ring would make messages pass many hands, so each member also has two
//! shortcuts to random others; then any two are a few hops apart, and it takes several broken links to part them. Places
//! on the ring and ends of shortcuts are drawn by hashing the member with the founder's number as a seed: the same view
//! gives the same mesh everywhere, and a member that comes or goes changes only what is beside it.
//!
//! Next hops are found by breadth-first search, over the links that are not known to be broken. A broadcast goes along
//! the tree of such a search from its origin: each member passes it on to its children, so each hears it once.
//!
//! The invariant: next hop and children are functions of the view and of the set of broken links.

use crate::wire::store::{MemberId, View};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use twox_hash::XxHash3_64;

/// Members that need no shortcuts.
const RING_ONLY_MAX: usize = 4;
/// Shortcuts that each member draws. (Others draw some that end with it.)
const SHORTCUTS: u64 = 2;

/// A link, the lower id first.
pub type Link = (MemberId, MemberId);

/// The link between two.
pub fn link(one: MemberId, two: MemberId) -> Link {
    (one.min(two), one.max(two))
}

/// The links of one view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mesh {
    neighbours: BTreeMap<MemberId, BTreeSet<MemberId>>,
}

impl Mesh {
    /// The links that belong to a view.
    pub fn new(view: &View) -> Self {
        let draw = |member: MemberId, number: u64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&member.0.to_le_bytes());
            bytes[8..].copy_from_slice(&number.to_le_bytes());
            XxHash3_64::oneshot_with_seed(view.founder, &bytes)
        };
        let mut ring: Vec<_> = view.members.iter().map(|member| (draw(member.id, 0), member.id)).collect();
        ring.sort_unstable();
        let mut mesh = Self::default();
        for member in &view.members {
            mesh.neighbours.entry(member.id).or_default();
        }
        let count = ring.len();
        for (at, (_, member)) in ring.iter().enumerate() {
            mesh.join(*member, ring[(at + 1) % count].1);
            if count <= RING_ONLY_MAX {
                continue;
            }
            for number in 1..=SHORTCUTS {
                let drawn = draw(*member, number);
                let end = ring.partition_point(|(place, _)| *place < drawn) % count;
                mesh.join(*member, ring[end].1);
            }
        }
        mesh
    }

    fn join(&mut self, one: MemberId, two: MemberId) {
        if one != two {
            self.neighbours.entry(one).or_default().insert(two);
            self.neighbours.entry(two).or_default().insert(one);
        }
    }

    /// The links of another one too.
    pub fn extend(&mut self, other: &Self) {
        for (member, neighbours) in &other.neighbours {
            self.neighbours.entry(*member).or_default().extend(neighbours);
        }
    }

    /// Whether two are linked.
    pub fn has(&self, one: MemberId, two: MemberId) -> bool {
        self.neighbours.get(&one).is_some_and(|neighbours| neighbours.contains(&two))
    }

    /// Whom a member is linked with.
    pub fn neighbours(&self, member: MemberId) -> impl Iterator<Item = MemberId> {
        self.neighbours.get(&member).into_iter().flatten().copied()
    }

    /// The way to everybody from `from`, over links that are not broken.
    pub fn routes(&self, from: MemberId, broken: &BTreeSet<Link>) -> Routes {
        let mut parents = BTreeMap::from([(from, (from, 0))]);
        let mut next = VecDeque::from([from]);
        while let Some(member) = next.pop_front() {
            let hops = parents[&member].1;
            for neighbour in self.neighbours(member).filter(|other| !broken.contains(&link(member, *other))) {
                parents.entry(neighbour).or_insert_with(|| {
                    next.push_back(neighbour);
                    (member, hops + 1)
                });
            }
        }
        Routes { from, parents }
    }
}

/// The ways from one member to all others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Routes {
    from: MemberId,
    /// Of each member the one before it, and how many hops it is away.
    parents: BTreeMap<MemberId, (MemberId, u32)>,
}

impl Routes {
    /// The first hop on the way to `to`; none if there is no way.
    pub fn next_hop(&self, to: MemberId) -> Option<MemberId> {
        self.path(to).nth_back(0)
    }

    /// How many hops it is to `to`.
    pub fn hops(&self, to: MemberId) -> Option<u32> {
        self.parents.get(&to).map(|(_, hops)| *hops)
    }

    /// The way to `to`, backwards: the last comes first, the first hop last.
    pub fn path(&self, to: MemberId) -> std::vec::IntoIter<MemberId> {
        let (mut path, mut at) = (Vec::new(), to);
        while at != self.from {
            let Some((parent, _)) = self.parents.get(&at) else { return Vec::new().into_iter() };
            path.push(at);
            at = *parent;
        }
        path.into_iter()
    }

    /// Whom `member` hears a broadcast of the origin from.
    pub fn parent(&self, member: MemberId) -> Option<MemberId> {
        self.parents.get(&member).map(|(parent, _)| *parent)
    }

    /// Whom `member` passes a broadcast of the origin on to.
    pub fn children(&self, member: MemberId) -> impl Iterator<Item = MemberId> {
        let is_child = move |(child, (parent, _)): (&MemberId, &(MemberId, u32))| {
            (*parent == member && *child != self.from).then_some(*child)
        };
        self.parents.iter().filter_map(is_child)
    }

    /// How many can be reached, the origin included.
    pub fn reached(&self) -> usize {
        self.parents.len()
    }
}
