//! What the links of the ring report, and what the coordinator wants to know of ways to other members.

use super::Control;
use crate::communicator::links;
use crate::executor::{Direction, LinkEvent};
use crate::recorder::Entry;
use crate::sync::lock;
use crate::{clock, runtime};
use outlast_proto::collective::BrokenLink;
use outlast_proto::id::PeerId;
use outlast_proto::topology::Figure;
use outlast_proto::wire::control::EpochRecord;
use std::net::SocketAddr;

impl Control {
    /// A link of the ring reports.
    pub(super) fn link(&self, event: LinkEvent) {
        let me = self.me;
        self.recorder.note(&Entry::link(&event));
        match &event {
            LinkEvent::Up { peer, direction, .. } => {
                lock(&self.state).links.note(clock::now(), *peer, *direction, None);
            }
            LinkEvent::Down { peer, direction, error, .. } => {
                lock(&self.state).links.note(clock::now(), *peer, *direction, Some(error.clone()));
            }
            LinkEvent::Carried { peer, figure: Figure::Exactly(rate) | Figure::AtLeast(rate), .. } => {
                lock(&self.state).links.carried(*peer, *rate);
            }
        }
        match event {
            LinkEvent::Up { epoch, direction: Direction::Towards, .. } => {
                self.tell(|session, _| session.handle_links_up(epoch));
            }
            LinkEvent::Up { .. } => {}
            LinkEvent::Carried { peer, figure, round_trip } => {
                if let Some(rate) = self.atlas.note_carried((me, peer), figure) {
                    self.tell(|session, _| session.handle_link_speed(peer, rate, round_trip));
                }
            }
            LinkEvent::Down { epoch, peer, direction, silent, error, .. } => {
                let broken = match direction {
                    Direction::Towards => BrokenLink::towards(me, peer, error),
                    Direction::From => BrokenLink::back_from(me, peer, error),
                };
                self.tell(|session, _| session.handle_link_broken(epoch, broken, silent));
            }
        }
    }

    /// A ring may come in which we dial another member (rule 32): can it be reached? The link itself is made when the
    /// epoch opens; until then every link of the present one stays.
    pub(super) fn prepare(&self, record: &EpochRecord, number: u64) {
        let Some(this) = self.this.upgrade() else { return };
        let next = record.successor_of(self.me).map(|info| (info.id, info.address));
        self.runtime.spawn(async move {
            let error = match next {
                Some((peer, address)) => this.reach(peer, address).await,
                None => None,
            };
            this.tell(|session, _| session.handle_prepared(number, error));
        });
    }

    /// Whether a member can be reached; if not, why. Somebody waits for the answer, so there is one even after a panic (rule 40).
    async fn reach(&self, peer: PeerId, address: SocketAddr) -> Option<String> {
        let reaching = links::reach(&self.identity, peer, address, self.silent_after);
        let panicked = || Some("dialling it panicked, which is a bug in outlast".to_owned());
        runtime::to_its_end("dialling a member", reaching).await.unwrap_or_else(panicked)
    }

    /// The coordinator asks whether a link that counts as broken would carry again (rule 16).
    pub(super) fn redial(&self, peer: PeerId, address: SocketAddr) {
        let Some(this) = self.this.upgrade() else { return };
        self.redials.spawn(async move {
            let error = this.reach(peer, address).await;
            this.tell(|session, _| session.handle_redialled(peer, error));
        });
    }
}
