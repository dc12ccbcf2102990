//! Those who wait to be admitted.

use crate::collective::Group;
use crate::id::PeerId;
use std::collections::BTreeMap;

/// One who waits.
#[derive(Clone, Copy, Debug, Hash)]
struct Newcomer {
    group: Group,
    /// How many members it asks for.
    wants: u32,
    /// When it came, in the order of arrivals.
    age: u64,
}

/// Those who wait to be admitted, and how many of each group wait for how large a group.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Lobby {
    newcomers: BTreeMap<PeerId, Newcomer>,
    wanted: BTreeMap<Group, BTreeMap<u32, usize>>,
}

impl Lobby {
    pub(crate) fn insert(&mut self, peer: PeerId, group: Group, wants: u32, age: u64) {
        self.remove(peer);
        self.newcomers.insert(peer, Newcomer { group, wants, age });
        *self.wanted.entry(group).or_default().entry(wants).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, peer: PeerId) {
        let Some(Newcomer { group, wants, .. }) = self.newcomers.remove(&peer) else { return };
        let Some(wanted) = self.wanted.get_mut(&group) else { return };
        if let Some(count) = wanted.get_mut(&wants) {
            *count -= 1;
            if *count == 0 {
                wanted.remove(&wants);
            }
        }
        if wanted.is_empty() {
            self.wanted.remove(&group);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.newcomers.is_empty()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &PeerId> {
        self.newcomers.keys()
    }

    /// Those of one group, and how many members each asks for.
    pub(crate) fn of(&self, group: Group) -> impl Iterator<Item = (PeerId, u32)> {
        let ours = move |(_, newcomer): &(&PeerId, &Newcomer)| newcomer.group == group;
        self.newcomers.iter().filter(ours).map(|(peer, newcomer)| (*peer, newcomer.wants))
    }

    /// The groups for which anybody waits.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group> {
        self.wanted.keys().copied()
    }

    /// How large a group of now `size` can become if everybody comes in who does not ask for more than that;
    /// and the most that those ask for.
    pub(crate) fn prospect(&self, group: Group, size: usize) -> (usize, u32) {
        let Some(wanted) = self.wanted.get(&group) else { return (size, 0) };
        let mut prospect = size + wanted.values().sum::<usize>();
        for (wants, count) in wanted.iter().rev() {
            if *wants as usize <= prospect {
                return (prospect, *wants);
            }
            prospect -= count;
        }
        (size, 0)
    }

    /// Those of a group who ask for at most that many members, in the order of their arrival.
    pub(crate) fn modest(&self, group: Group, most: u32) -> Vec<PeerId> {
        let fits = |newcomer: &Newcomer| newcomer.group == group && newcomer.wants <= most;
        let mut modest: Vec<_> = self
            .newcomers
            .iter()
            .filter(|(_, newcomer)| fits(newcomer))
            .map(|(peer, newcomer)| (newcomer.age, *peer))
            .collect();
        modest.sort_unstable();
        modest.into_iter().map(|(_, peer)| peer).collect()
    }
}
