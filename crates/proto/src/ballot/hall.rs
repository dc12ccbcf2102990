//! What the rules of a kind see when votes are counted: every group with its votes of that kind, and who waits outside.

use super::Lobby;
use crate::collective::Group;
use crate::coordinator::paths::Paths;
use crate::coordinator::survey::Survey;
use crate::id::PeerId;
use crate::state::Revision;
use crate::time::Instant;
use std::collections::BTreeMap;

/// One group, and how it has voted.
#[derive(Clone, Debug)]
pub(crate) struct Seats<'a> {
    /// Which group.
    pub(crate) group: Group,
    /// Its members in the order of ranks.
    pub(crate) members: &'a [PeerId],
    /// The ring that it has.
    pub(crate) ring: &'a [PeerId],
    /// A ring that was asked for since the ballot began, and could not be wired.
    pub(crate) refused_ring: Option<&'a [PeerId]>,
    /// Which of its links cannot be used.
    pub(crate) paths: &'a Paths,
    /// What is known of its links.
    pub(crate) survey: &'a Survey,
    /// What each voter asks for; none if nobody has voted.
    pub(crate) votes: Option<&'a BTreeMap<PeerId, Vec<u8>>>,
    /// What its last ballot of that kind agreed on, if anybody who is left knows it.
    pub(crate) agreed: Option<&'a [u8]>,
    /// How far its shared state has come by committed steps, and by what those before it had reached.
    pub(crate) revision: Option<Revision>,
    /// Whether it is in no collective and not being rebuilt.
    pub(crate) is_quiet: bool,
    /// Whether all members have their links of this epoch, and no other ring is being prepared.
    pub(crate) is_linked: bool,
}

impl Seats<'_> {
    /// What a member asks for, if it has voted.
    pub(crate) fn wish(&self, member: PeerId) -> Option<&[u8]> {
        self.votes?.get(&member).map(Vec::as_slice)
    }

    /// All wishes in the order of ranks.
    pub(crate) fn wishes(&self) -> impl Iterator<Item = (PeerId, &[u8])> {
        self.members.iter().filter_map(|member| Some((*member, self.wish(*member)?)))
    }

    /// Whether every member has voted and nothing else goes on. Only members' votes stand, so it is enough to count.
    pub(crate) fn is_unanimous(&self) -> bool {
        self.is_quiet
            && !self.members.is_empty()
            && self.votes.is_some_and(|votes| votes.len() == self.members.len())
    }
}

/// The whole run, as far as one kind of ballot is concerned.
#[derive(Clone, Debug)]
pub(crate) struct Hall<'a> {
    /// Every group, in order.
    groups: Vec<Seats<'a>>,
    /// Who waits to be admitted; none while nobody may be.
    lobby: Option<&'a Lobby>,
    /// When votes are counted, and how much work a search for a ring may take; none if somebody only looks.
    counted: Option<(Instant, u64)>,
}

impl<'a> Hall<'a> {
    pub(crate) fn new(groups: Vec<Seats<'a>>, lobby: Option<&'a Lobby>) -> Self {
        Self { groups, lobby, counted: None }
    }

    /// The same when votes are counted.
    #[must_use]
    pub(crate) fn counted(mut self, now: Instant, ring_steps: u64) -> Self {
        self.counted = Some((now, ring_steps));
        self
    }

    /// When votes are counted, and how much work a search for a ring may take.
    pub(crate) fn counting(&self) -> Option<(Instant, u64)> {
        self.counted
    }

    /// Every group, in order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Seats<'a>> {
        self.groups.iter()
    }

    /// A group, if it has members.
    pub(crate) fn group(&self, group: Group) -> Option<&Seats<'a>> {
        self.groups.iter().find(|seats| seats.group == group)
    }

    /// Who waits to be admitted; none while nobody may be.
    pub(crate) fn lobby(&self) -> Option<&'a Lobby> {
        self.lobby
    }
}
