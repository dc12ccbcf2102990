//! The baseline: foca 2, driven as its documentation asks, under the same faults and seeds.
//!
//! Settings: foca's own `new_lan` for the group's size (retransmissions, gossip to three members every 200 ms,
//! down members are told), with the times of our `lan` preset: a probe every 200 ms, 100 ms for the answer,
//! down after one second of suspicion. Identities renew themselves, so whoever is declared down comes back.

use super::{Candidate, Founding};
use crate::world::{
    Birth, HealthNode, HealthNotice, HostId, Identity, Lists, Node, Output, Row, Sender, What,
};
use ::foca::{
    AccumulatingRuntime, Codec, Foca, Header, Member, Message, NoCustomBroadcast, OwnedNotification, State,
    Timer,
};
use bytes::{Buf, BufMut};
use outlast_proto::membership::{Config, ConnectOutcome, ConnectToken, Path};
use outlast_proto::time::Instant;
use rand_core::SeedableRng as _;
use rand_xoshiro::Xoshiro256PlusPlus;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// Who a foca process is. Foca renews the number when it was declared down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    host: u32,
    /// The world's generation in the upper half, foca's own renewals in the lower.
    number: u32,
}

impl Name {
    fn identity(self) -> Identity {
        Identity { host: HostId(self.host), generation: self.number >> 16 }
    }
}

impl ::foca::Identity for Name {
    type Addr = u32;

    fn renew(&self) -> Option<Self> {
        Some(Self { number: self.number + 1, ..*self })
    }

    fn addr(&self) -> u32 {
        self.host
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.number > adversary.number
    }
}

/// Fixed-width fields: eight bytes a name.
struct Fixed;

#[derive(Debug, thiserror::Error)]
#[error("not a foca packet of this world")]
struct NotOurs;

fn put_name(name: Name, buffer: &mut impl BufMut) {
    buffer.put_u32(name.host);
    buffer.put_u32(name.number);
}

fn take_name(buffer: &mut impl Buf) -> Result<Name, NotOurs> {
    if buffer.remaining() < 8 {
        return Err(NotOurs);
    }
    Ok(Name { host: buffer.get_u32(), number: buffer.get_u32() })
}

const NOBODY: Name = Name { host: u32::MAX, number: 0 };

impl Codec<Name> for Fixed {
    type Error = NotOurs;

    fn encode_header(&mut self, header: &Header<Name>, mut buffer: impl BufMut) -> Result<(), NotOurs> {
        let (kind, number, other) = match &header.message {
            Message::Ping(number) => (0, *number, NOBODY),
            Message::Ack(number) => (1, *number, NOBODY),
            Message::PingReq { target, probe_number } => (2, *probe_number, *target),
            Message::IndirectPing { origin, probe_number } => (3, *probe_number, *origin),
            Message::IndirectAck { target, probe_number } => (4, *probe_number, *target),
            Message::ForwardedAck { origin, probe_number } => (5, *probe_number, *origin),
            Message::Announce => (6, 0, NOBODY),
            Message::Feed => (7, 0, NOBODY),
            Message::Gossip => (8, 0, NOBODY),
            Message::Broadcast => (9, 0, NOBODY),
            Message::TurnUndead => (10, 0, NOBODY),
        };
        put_name(header.src, &mut buffer);
        buffer.put_u16(header.src_incarnation);
        put_name(header.dst, &mut buffer);
        buffer.put_u8(kind);
        buffer.put_u16(u16::from(number));
        put_name(other, &mut buffer);
        Ok(())
    }

    fn decode_header(&mut self, mut buffer: impl Buf) -> Result<Header<Name>, NotOurs> {
        if buffer.remaining() < 29 {
            return Err(NotOurs);
        }
        let src = take_name(&mut buffer)?;
        let src_incarnation = buffer.get_u16();
        let dst = take_name(&mut buffer)?;
        let kind = buffer.get_u8();
        let probe_number = buffer.get_u16() as u8;
        let other = take_name(&mut buffer)?;
        let message = match kind {
            0 => Message::Ping(probe_number),
            1 => Message::Ack(probe_number),
            2 => Message::PingReq { target: other, probe_number },
            3 => Message::IndirectPing { origin: other, probe_number },
            4 => Message::IndirectAck { target: other, probe_number },
            5 => Message::ForwardedAck { origin: other, probe_number },
            6 => Message::Announce,
            7 => Message::Feed,
            8 => Message::Gossip,
            9 => Message::Broadcast,
            10 => Message::TurnUndead,
            _ => return Err(NotOurs),
        };
        Ok(Header { src, src_incarnation, dst, message })
    }

    fn encode_member(&mut self, member: &Member<Name>, mut buffer: impl BufMut) -> Result<(), NotOurs> {
        if buffer.remaining_mut() < 11 {
            return Err(NotOurs);
        }
        put_name(*member.id(), &mut buffer);
        buffer.put_u16(member.incarnation());
        buffer.put_u8(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Ok(())
    }

    fn decode_member(&mut self, mut buffer: impl Buf) -> Result<Member<Name>, NotOurs> {
        if buffer.remaining() < 11 {
            return Err(NotOurs);
        }
        let name = take_name(&mut buffer)?;
        let incarnation = buffer.get_u16();
        let state = match buffer.get_u8() {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            _ => return Err(NotOurs),
        };
        Ok(Member::new(name, incarnation, state))
    }
}

struct Due {
    at: Instant,
    sequence: u64,
    timer: Timer<Name>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// Foca asks that timers that are due together come in the order of their kinds.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at
            .cmp(&other.at)
            .then_with(|| self.timer.cmp(&other.timer))
            .then(self.sequence.cmp(&other.sequence))
    }
}

/// A process that runs foca.
pub struct FocaNode {
    foca: Foca<Name, Fixed, Xoshiro256PlusPlus, NoCustomBroadcast>,
    runtime: AccumulatingRuntime<Name>,
    timers: BinaryHeap<Reverse<Due>>,
    sequence: u64,
    outputs: VecDeque<Output<Arc<[u8]>, HealthNotice>>,
}

impl FocaNode {
    /// Moves what foca asked for to where the world finds it.
    fn collect(&mut self, now: Instant) {
        while let Some((to, data)) = self.runtime.to_send() {
            let to = HostId(to.host).address();
            self.outputs.push_back(Output::Send { to, path: Path::Datagram, message: Arc::from(&data[..]) });
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.timers.push(Reverse(Due { at: now + after, sequence: self.sequence, timer }));
            self.sequence += 1;
        }
        while let Some(notification) = self.runtime.to_notify() {
            let (name, what) = match notification {
                OwnedNotification::MemberUp(name) => (name, What::Joined),
                OwnedNotification::MemberDown(name) => (name, What::Died(None)),
                OwnedNotification::Rejoin(name) => (name, What::Rejoined),
                _ => continue,
            };
            self.outputs.push_back(Output::Notice(HealthNotice { subject: name.identity(), what }));
        }
    }
}

fn settings(config: &Config, members: u32) -> ::foca::Config {
    let size = NonZeroU32::new(members.max(1)).expect("at least one");
    ::foca::Config {
        probe_period: config.probe_interval,
        probe_rtt: config.probe_timeout,
        suspect_to_down_after: config.suspicion_min,
        ..::foca::Config::new_lan(size)
    }
}

impl Candidate for FocaNode {
    const NAME: &'static str = "foca 2";

    fn recipe(config: &Config, founding: &Founding) -> Box<dyn FnMut(Birth) -> Self> {
        let (members, seeds): (u32, Vec<SocketAddr>) = match founding {
            Founding::Known { members, seeds } => (*members, seeds.clone()),
            Founding::Joining { seeds } => (0, seeds.clone()),
        };
        let settings = settings(config, members.max(8));
        Box::new(move |mut birth| {
            let host = birth.identity.host;
            let name = Name { host: host.0, number: birth.identity.generation << 16 | birth.boot };
            let rng = Xoshiro256PlusPlus::seed_from_u64(birth.rng.next_u64());
            let mut node = Self {
                foca: Foca::new(name, settings.clone(), rng, Fixed),
                runtime: AccumulatingRuntime::new(),
                timers: BinaryHeap::new(),
                sequence: 0,
                outputs: VecDeque::new(),
            };
            let first = |host| Name { host, number: 0 };
            if birth.boot == 0 && members > 0 {
                let others =
                    (0..members).filter(|other| *other != host.0).map(|other| Member::alive(first(other)));
                node.foca.apply_many(others, false, &mut node.runtime).expect("a fresh table takes members");
            } else {
                for seed in seeds.iter().filter_map(|seed| HostId::of(*seed)).filter(|seed| *seed != host) {
                    node.foca
                        .announce(first(seed.0), &mut node.runtime)
                        .expect("an announcement fits a packet");
                }
            }
            // Whoever was in the table from the start is no news.
            node.collect(birth.now);
            node.outputs.retain(|output| !matches!(output, Output::Notice(_)));
            node
        })
    }
}

impl Node for FocaNode {
    type Message = Arc<[u8]>;
    type Notice = HealthNotice;

    fn handle_message(&mut self, now: Instant, _from: Sender, message: Arc<[u8]>) {
        // Foca reports stale and misdirected packets as errors that change nothing.
        let _harmless = self.foca.handle_data(&message, &mut self.runtime);
        self.collect(now);
    }

    fn handle_connect(&mut self, _now: Instant, _token: ConnectToken, _outcome: ConnectOutcome) {}

    fn handle_leave(&mut self, now: Instant) {
        let _harmless = self.foca.leave_cluster(&mut self.runtime);
        self.collect(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        while self.timers.peek().is_some_and(|Reverse(due)| due.at <= now) {
            let Reverse(due) = self.timers.pop().expect("just seen");
            let _harmless = self.foca.handle_timer(due.timer, &mut self.runtime);
            self.collect(now);
        }
    }

    fn poll_output(&mut self) -> Option<Output<Arc<[u8]>, HealthNotice>> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse(due)| due.at)
    }

    fn audit(message: &Arc<[u8]>) -> Result<u64, String> {
        Ok(XxHash3_64::oneshot(message))
    }
}

impl HealthNode for FocaNode {
    fn lists(&self) -> Lists {
        let row = |member: &Member<Name>| Row {
            member: member.id().identity(),
            incarnation: u32::from(member.incarnation()),
            alive: member.state() == State::Alive,
        };
        let mut lists = Lists::default();
        lists.active.push(Row { member: self.foca.identity().identity(), incarnation: 0, alive: true });
        for member in self.foca.iter_membership_state() {
            if member.state() == State::Down {
                lists.failed.push(row(member));
            } else {
                lists.active.push(row(member));
            }
        }
        lists
    }

    fn footprint(&self) -> usize {
        self.timers.len() + self.foca.updates_backlog() + self.foca.iter_membership_state().len()
    }
}
