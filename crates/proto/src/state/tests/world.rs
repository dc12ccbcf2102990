//! Members that hold bytes and sync them without a network.

use crate::collective::DataType;
use crate::id::PeerId;
use crate::state::election::{Count, Elected, NoDonor, Offer, Role, Strategy, elect};
use crate::state::transfer::Transfer;
use crate::state::tree::{Leaves, differing, root};
use crate::state::{Digest, Outline, Revision, TensorInfo};
use crate::time::Instant;

pub(super) fn peer(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

/// One member: its tensors are in the order of their keys.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) id: PeerId,
    pub(super) revision: Option<Revision>,
    pub(super) strategy: Strategy,
    pub(super) extra: Vec<u8>,
    pub(super) tensors: Vec<(TensorInfo, Vec<u8>)>,
    /// Payload bytes of leaves that came in the last sync.
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) differed: Vec<String>,
}

impl Member {
    pub(super) fn new(number: u8, revision: impl Into<Option<Revision>>) -> Self {
        let (id, revision, strategy) = (peer(number), revision.into(), Strategy::Popular);
        let (extra, tensors, differed) = (Vec::new(), Vec::new(), Vec::new());
        Self { id, revision, strategy, extra, tensors, received: 0, sent: 0, differed }
    }

    /// One more tensor, of that many bytes, all of that value.
    pub(super) fn with(self, key: &str, bytes: usize, value: u8) -> Self {
        self.with_info(TensorInfo::new(key, DataType::U8, [bytes as u64]), value)
    }

    pub(super) fn with_info(mut self, info: TensorInfo, value: u8) -> Self {
        let bytes = vec![value; info.bytes().unwrap() as usize];
        self.tensors.push((info, bytes));
        self.tensors.sort_by(|a, b| a.0.key.cmp(&b.0.key));
        self
    }

    pub(super) fn strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }

    pub(super) fn extra(self, extra: &[u8]) -> Self {
        Self { extra: extra.to_vec(), ..self }
    }

    pub(super) fn tensor(&mut self, key: &str) -> &mut Vec<u8> {
        &mut self.tensors.iter_mut().find(|(info, _)| info.key == key).unwrap().1
    }

    pub(super) fn outline(&self) -> Outline {
        Outline::new(self.tensors.iter().map(|(info, _)| info.clone())).unwrap()
    }

    pub(super) fn leaves(&self) -> Vec<Digest> {
        let leaves = Leaves::of(&self.outline());
        let places = (0..leaves.len()).map(|number| leaves.get(number).unwrap());
        places.map(|leaf| Digest::of(&self.tensors[leaf.tensor].1[leaf.bytes])).collect()
    }

    pub(super) fn root(&self) -> Digest {
        root(self.outline().digest(), &self.extra, &self.leaves())
    }

    pub(super) fn offer(&self) -> (PeerId, Offer) {
        let (revision, strategy) = (self.revision, self.strategy);
        let (outline, root) = (self.outline().digest(), self.root());
        (self.id, Offer { revision, strategy, outline, root, was_agreed: false })
    }
}

/// An election, and everybody's part in it.
#[derive(Debug, PartialEq)]
pub(super) struct Election {
    pub(super) elected: Elected,
    pub(super) roles: Vec<(PeerId, Role)>,
    pub(super) diverged: Vec<PeerId>,
}

impl Election {
    pub(super) fn of(last: Option<Revision>, offers: &[(PeerId, Offer)]) -> Result<Self, NoDonor> {
        let elected = elect(
            Count { last, remembered: last.is_some(), others_wait: false },
            offers.iter().map(|(_, offer)| offer),
        )?;
        let roles = offers.iter().map(|(peer, offer)| (*peer, elected.role(offer))).collect();
        let diverged = offers.iter().filter(|(_, offer)| elected.is_diverged(offer)).map(|(peer, _)| *peer);
        Ok(Self { elected, roles, diverged: diverged.collect() })
    }

    pub(super) fn donors(&self) -> Vec<PeerId> {
        self.roles.iter().filter(|(_, role)| *role == Role::Donor).map(|(peer, _)| *peer).collect()
    }

    pub(super) fn role(&self, peer: PeerId) -> Role {
        self.roles.iter().find(|(id, _)| *id == peer).unwrap().1
    }
}

/// Syncs all members: those who deviate are left as they are.
pub(super) fn sync(last: Option<Revision>, members: &mut [Member]) -> Result<Election, NoDonor> {
    let offers: Vec<_> = members.iter().map(Member::offer).collect();
    let election = Election::of(last, &offers)?;
    for rank in 0..members.len() {
        let role = election.role(members[rank].id);
        if role == Role::Receiver {
            heal(members, rank, &election);
        }
        if !matches!(role, Role::Deviates(_)) {
            members[rank].revision = Some(election.elected.revision);
        }
    }
    Ok(election)
}

fn heal(members: &mut [Member], rank: usize, election: &Election) {
    let (donors, elected) = (election.donors(), election.elected);
    let place = |id: PeerId, members: &[Member]| members.iter().position(|member| member.id == id).unwrap();
    let giver = members[place(donors[0], members)].clone();
    let hashes = giver.leaves();
    assert_eq!(root(elected.outline, &giver.extra, &hashes), elected.root, "the list is what was elected");
    let leaves = Leaves::of(&members[rank].outline());
    let wanted = differing(&members[rank].leaves(), &hashes);
    let mut plan = Transfer::new(wanted, &donors, rank);
    let mut engaged = Vec::new();
    let now = Instant::ORIGIN;
    while !plan.is_done() {
        engaged.extend(std::iter::from_fn(|| plan.engage()));
        for donor in engaged.clone() {
            let Some(number) = plan.next(now, donor) else { continue };
            let leaf = leaves.get(number).unwrap();
            let bytes = members[place(donor, members)].tensors[leaf.tensor].1[leaf.bytes.clone()].to_vec();
            assert_eq!(Digest::of(&bytes), hashes[number]);
            assert!(plan.delivered(now, donor, number));
            let length = bytes.len() as u64;
            let giver = place(donor, members);
            members[giver].sent += length;
            let member = &mut members[rank];
            member.received += length;
            let (info, tensor) = &mut member.tensors[leaf.tensor];
            tensor[leaf.bytes].copy_from_slice(&bytes);
            if member.differed.last() != Some(&info.key) {
                member.differed.push(info.key.clone());
            }
        }
    }
    members[rank].extra.clone_from(&giver.extra);
    assert_eq!(members[rank].root(), elected.root);
}
