//! Who is known: every peer, the connection that it speaks on, its address, and whether it waits to be admitted.
//!
//! A peer is in several lists, and they must tell the same story: nobody waits for admission, answers on a connection or
//! owns an address who is not known. So all of them are here, and a peer comes and goes in all of them at once.

use super::peers::{Peer, Phase, UNKNOWN_SESSION};
use super::run::ConnectionId;
use crate::ballot::Lobby;
use crate::collective::Group;
use crate::id::PeerId;
use crate::limits::{META_BYTES_MAX, NAME_BYTES_MAX, NAMED_MAX, ROSTER_BYTES_MAX};
use crate::time::Instant;
use crate::wire::control::{Encryption, Registration, Waiting};
use crate::wire::membership::MemberInfo;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Of a call in words, when it is passed on.
const CALL_CHARS_MAX: usize = 200;

/// Most bytes of a member's encoding besides its name and metadata.
const MEMBER_BYTES_MAX: usize = 64;

/// The peers of a run.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Directory {
    peers: BTreeMap<PeerId, Peer>,
    /// Those of them who wait to be admitted.
    newcomers: Lobby,
    connections: BTreeMap<ConnectionId, PeerId>,
    /// Who said last that it is at an address. Anybody can say so; who is there is asked when it matters (rule 45).
    addresses: BTreeMap<SocketAddr, PeerId>,
    /// Older peers have lower numbers; ties are broken by age.
    next_age: u64,
    /// Whether the data links are encrypted: whoever came first has said, and the others must want the same.
    encryption: Option<Encryption>,
}

impl Directory {
    pub(super) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(&peer)
    }

    pub(super) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&peer)
    }

    pub(super) fn knows(&self, peer: PeerId) -> bool {
        self.peers.contains_key(&peer)
    }

    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (PeerId, &mut Peer)> {
        self.peers.iter_mut().map(|(id, peer)| (*id, peer))
    }

    /// Those who wait to be admitted.
    pub(super) fn newcomers(&self) -> &Lobby {
        &self.newcomers
    }

    /// Whether that peer is an accepted member of that group.
    pub(super) fn is_member(&self, peer: PeerId, group: Group) -> bool {
        self.get(peer).is_some_and(|peer| peer.phase == Phase::Accepted && peer.group == group)
    }

    /// The connection on which a peer speaks, if it has one.
    pub(super) fn connection(&self, peer: PeerId) -> Option<ConnectionId> {
        self.get(peer)?.connection
    }

    /// Whether that peer speaks on that connection.
    pub(super) fn speaks_on(&self, peer: PeerId, at: ConnectionId) -> bool {
        self.connection(peer) == Some(at)
    }

    /// Enters a peer that registers.
    pub(super) fn enter(&mut self, now: Instant, registration: &Registration) -> &mut Peer {
        let (id, address) = (registration.info.id, registration.info.address);
        self.addresses.insert(address, id);
        let age = self.next_age();
        self.peers.entry(id).or_insert_with(|| Peer::new(now, registration, age))
    }

    /// Enters one of whom only others have told.
    pub(super) fn expect(&mut self, now: Instant, registration: &Registration) {
        let age = self.next_age();
        self.peers.insert(registration.info.id, Peer::absent(now, registration, age));
    }

    fn next_age(&mut self) -> u64 {
        self.next_age += 1;
        self.next_age - 1
    }

    /// Strikes a peer out. Whatever connection it had must be closed.
    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Peer> {
        let record = self.peers.remove(&peer)?;
        self.newcomers.remove(peer);
        // Somebody may have come to its address since.
        if self.addresses.get(&record.info.address) == Some(&peer) {
            self.addresses.remove(&record.info.address);
        }
        if let Some(at) = record.connection {
            self.connections.remove(&at);
        }
        Some(record)
    }

    /// Binds a connection to a peer; one that it had before is returned, to be closed.
    pub(super) fn attach(&mut self, peer: PeerId, at: ConnectionId) -> Option<ConnectionId> {
        let record = self.peers.get_mut(&peer)?;
        let old = record.connection.replace(at);
        record.lost_since = None;
        record.outlived = false;
        record.refused_at = None;
        record.knock_at = None;
        self.connections.insert(at, peer);
        if let Some(old) = old {
            self.connections.remove(&old);
        }
        old
    }

    /// A peer that is expected is here, though it is not known yet whether what it says is heard: nobody misses it.
    pub(super) fn wait_aside(&mut self, now: Instant, peer: PeerId) {
        if let Some(record) = self.peers.get_mut(&peer).filter(|record| record.connection.is_none()) {
            record.lost_since = None;
            record.outlived = false;
            record.refused_at = None;
            record.knock_at = None;
            record.heard = now;
        }
    }

    /// A peer that waited aside is away again. False if nobody expects it.
    pub(super) fn step_out(&mut self, now: Instant, peer: PeerId) -> bool {
        let aside = |record: &&mut Peer| record.connection.is_none() && record.lost_since.is_none();
        let Some(record) = self.peers.get_mut(&peer).filter(aside) else { return false };
        record.lost_since = Some(now);
        record.knock_at = Some(now);
        true
    }

    /// A connection is gone: whose it was. The peer itself has not heard of it yet.
    pub(super) fn hang_up(&mut self, at: ConnectionId) -> Option<PeerId> {
        self.connections.remove(&at)
    }

    /// How many connections are held.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// A peer that registered, and is still there, may be admitted from now on. False if there is none.
    pub(super) fn make_admissible(&mut self, peer: PeerId) -> bool {
        let record = self.peers.get(&peer).filter(|record| record.phase == Phase::Registered);
        let Some(record) = record else { return false };
        self.newcomers.insert(peer, record.group, record.wants, record.age);
        true
    }

    /// A newcomer comes in: how many members it asked for.
    pub(super) fn admit(&mut self, peer: PeerId) -> Option<u32> {
        self.newcomers.remove(peer);
        let record = self.peers.get_mut(&peer)?;
        record.phase = Phase::Accepted;
        Some(record.wants)
    }

    /// Whether another peer registered later at the address of this one: then what the kernel says there may be about
    /// that one. A registration proves no address, so it takes nothing from anybody.
    pub(super) fn is_disputed(&self, peer: PeerId) -> bool {
        let address = self.get(peer).map(|record| record.info.address);
        address.and_then(|address| self.addresses.get(&address)).is_some_and(|last| *last != peer)
    }

    /// Whether the record of an epoch would hold all peers and that one, were they all of one group (rule 40).
    pub(super) fn roster_fits(&self, newcomer: &MemberInfo) -> bool {
        let most = NAME_BYTES_MAX + META_BYTES_MAX + MEMBER_BYTES_MAX;
        // As a rule there is no need to look.
        if (self.peers.len() + 1) * most <= ROSTER_BYTES_MAX {
            return true;
        }
        let bytes: usize = self.peers.values().map(|peer| minicbor::len(&peer.info)).sum();
        bytes + minicbor::len(newcomer) <= ROSTER_BYTES_MAX
    }

    /// Whether the data links are encrypted, if anybody has said.
    pub(super) fn encryption(&self) -> Option<Encryption> {
        self.encryption
    }

    /// A newcomer says what it wants of the data links. The first one decides it for all.
    ///
    /// # Errors
    /// What the run has agreed on, if that is something else.
    pub(super) fn ask_encryption(&mut self, wanted: Encryption) -> Result<(), Encryption> {
        if self.peers.is_empty() {
            self.encryption = Some(wanted);
        }
        self.encryption.filter(|agreed| *agreed != wanted).map_or(Ok(()), Err)
    }

    /// The same for a member that resumes. A newcomer that came before it, to a coordinator that knew nothing, cannot
    /// have agreed on anything: it gives way. Those who must are returned.
    ///
    /// # Errors
    /// What the run has agreed on, if that is something else.
    pub(super) fn recall_encryption(&mut self, wanted: Encryption) -> Result<Vec<PeerId>, Encryption> {
        let agreed = |peer: &Peer| peer.phase == Phase::Accepted && peer.session != UNKNOWN_SESSION;
        match self.encryption {
            Some(ours) if ours == wanted => Ok(Vec::new()),
            ours if self.peers.values().any(agreed) => Err(ours.unwrap_or(wanted.other())),
            _ => {
                self.encryption = Some(wanted);
                Ok(self.newcomers.ids().copied().collect())
            }
        }
    }

    /// Nobody is left: whoever comes next decides anew.
    pub(super) fn forget_encryption(&mut self) {
        self.encryption = None;
    }

    /// Whom something waits for: those who are away first, because the others may wait for them, too.
    pub(super) fn waiting_list<'a>(
        &self,
        now: Instant,
        peers: impl Iterator<Item = &'a PeerId>,
    ) -> Vec<Waiting> {
        // A ring waits for everybody once it waits for one: whoever is in doubt is named first.
        let doubtful = |peer: &PeerId| self.get(*peer).is_none_or(Peer::is_doubtful);
        let (mut first, then): (Vec<&PeerId>, Vec<&PeerId>) = peers.partition(|peer| doubtful(peer));
        first.extend(then);
        first.truncate(NAMED_MAX);
        first.into_iter().map(|peer| self.waiting(now, *peer)).collect()
    }

    /// A member as whoever waits for it is told of it.
    pub(super) fn waiting(&self, now: Instant, peer: PeerId) -> Waiting {
        let record = self.get(peer);
        Waiting {
            peer,
            name: record.map_or_else(String::new, |peer| peer.info.name.clone()),
            health: match record {
                Some(peer) if peer.lost_since.is_some() => "disconnected".to_owned(),
                Some(peer) => peer.health_word().to_owned(),
                None => "gone".to_owned(),
            },
            last_call: record.map_or_else(String::new, |peer| clipped(&peer.last_call.0)),
            age_ms: record.map_or(0, |peer| now.since(peer.last_call.1).as_millis() as u64),
        }
    }

    pub(super) fn footprint(&self) -> usize {
        let held: usize = self.peers.values().map(|peer| peer.held.len()).sum();
        self.peers.len() + self.connections.len() + held
    }
}

/// A call in words, as much of it as is passed on.
pub(super) fn clipped(call: &str) -> String {
    call.chars().take(CALL_CHARS_MAX).collect()
}
