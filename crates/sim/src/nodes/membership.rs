//! Our membership machine as a node: the production driver's work, without its sockets.

use super::{Candidate, Founding};
use crate::world::{
    Birth, HealthNode, HealthNotice, HostId, Identity, Lists, Node, Output, Row, Sender, What,
};
use outlast_proto::id::PeerId;
use outlast_proto::membership::{
    Action, Config, ConnectOutcome, ConnectToken, Event, Health, Member, Membership, Source,
};
use outlast_proto::time::Instant;
use outlast_proto::wire::membership::{MemberInfo, Packet};
use outlast_proto::wire::{Message as _, decode, encode};
use std::net::SocketAddr;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// A packet and its sender, whom the seal proves in production.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// Who sealed it.
    pub sender: PeerId,
    /// What is inside.
    pub packet: Packet,
}

/// A process that runs the membership machine.
#[derive(Debug)]
pub struct MembershipNode {
    machine: Membership,
    me: Identity,
}

impl MembershipNode {
    /// The machine inside.
    pub fn machine(&self) -> &Membership {
        &self.machine
    }

    fn notice(&self, event: &Event) -> HealthNotice {
        let subject = event.about().map_or(self.me, |info| Identity::of(info.id));
        let what = match event {
            Event::Joined(_) => What::Joined,
            Event::Stalled(_) => What::Stalled,
            Event::Suspected(_) => What::Suspected,
            Event::Recovered(_) => What::Recovered,
            Event::Died { reason, .. } => What::Died(Some(*reason)),
            Event::Left(_) => What::Left,
            Event::Rejoined { .. } => What::Rejoined,
        };
        HealthNotice { subject, what }
    }
}

/// What a member of this world says of itself.
pub(crate) fn member_info(identity: Identity) -> MemberInfo {
    MemberInfo {
        id: identity.peer_id(),
        address: identity.host.address(),
        closed_port: identity.host.closed_port(),
        name: identity.to_string(),
        meta: Vec::new(),
    }
}

impl Candidate for MembershipNode {
    const NAME: &'static str = "outlast";

    fn recipe(config: &Config, founding: &Founding) -> Box<dyn FnMut(Birth) -> Self> {
        let config = config.clone();
        let (known, seeds): (Vec<_>, Vec<SocketAddr>) = match founding {
            Founding::Known { members, seeds } => {
                let info = |host| Arc::new(member_info(Identity { host: HostId(host), generation: 0 }));
                ((0..*members).map(info).collect(), seeds.clone())
            }
            Founding::Joining { seeds } => (Vec::new(), seeds.clone()),
        };
        Box::new(move |birth| {
            let me = birth.identity;
            let mut machine = Membership::new(birth.now, config.clone(), member_info(me), birth.rng);
            if birth.boot == 0 && !known.is_empty() {
                machine.seed_table(&known);
            } else {
                let others: Vec<_> =
                    seeds.iter().copied().filter(|seed| *seed != me.host.address()).collect();
                if !others.is_empty() {
                    machine.handle_join(birth.now, &others);
                }
            }
            Self { machine, me }
        })
    }
}

impl Node for MembershipNode {
    type Message = Sealed;
    type Notice = HealthNotice;

    fn handle_message(&mut self, now: Instant, from: Sender, message: Sealed) {
        let source = Source { id: message.sender, address: from.address, path: from.path };
        self.machine.handle_packet(now, source, message.packet);
    }

    fn handle_connect(&mut self, now: Instant, token: ConnectToken, outcome: ConnectOutcome) {
        self.machine.handle_connect(now, token, outcome);
    }

    fn handle_leave(&mut self, now: Instant) {
        self.machine.handle_leave(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.machine.handle_timeout(now);
    }

    fn poll_output(&mut self) -> Option<Output<Sealed, HealthNotice>> {
        Some(match self.machine.poll_action()? {
            Action::Send { to, path, packet, .. } => {
                Output::Send { to, path, message: Sealed { sender: self.me.peer_id(), packet } }
            }
            Action::Connect { token, to, timeout } => Output::Connect { token, to, timeout },
            Action::Notify(event) => Output::Notice(self.notice(&event)),
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout()
    }

    fn audit(message: &Sealed) -> Result<u64, String> {
        message.packet.check().map_err(|why| why.to_string())?;
        let bytes = encode(&message.packet);
        match decode::<Packet>(&bytes) {
            Ok(packet) if packet == message.packet => Ok(XxHash3_64::oneshot(&bytes)),
            Ok(packet) => Err(format!("{:?} decodes to {packet:?}", message.packet)),
            Err(why) => Err(why.to_string()),
        }
    }
}

impl HealthNode for MembershipNode {
    fn lists(&self) -> Lists {
        let row = |member: Member| Row {
            member: Identity::of(member.info.id),
            incarnation: member.incarnation,
            alive: matches!(member.health, Health::Alive),
        };
        Lists {
            // The moment only dates the last ack, which no checker reads.
            active: self.machine.active(Instant::ORIGIN).into_iter().map(row).collect(),
            failed: self.machine.failed().into_iter().map(row).collect(),
        }
    }

    /// The length of everything the machine holds when it is written out: crude, but no queue can hide.
    fn footprint(&self) -> usize {
        struct Count(usize);
        impl std::fmt::Write for Count {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                self.0 += text.len();
                Ok(())
            }
        }
        let mut count = Count(0);
        std::fmt::Write::write_fmt(&mut count, format_args!("{:?}", self.machine))
            .expect("counting cannot fail");
        count.0
    }
}
