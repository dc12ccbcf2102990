//! What the machines want is done, and small talk is heard. Planted bugs live here: machines are never touched.

use super::Sabotage;
use super::event::MemberNumber;
use super::state::{State, id, number, stream_of};
use outlast_proto::store::registrar::{Command, Knocked};
use outlast_proto::store::{Action, Member, Registrar};
use outlast_proto::wire::store::mesh::{Hop, Letter};
use outlast_proto::wire::store::operation::{Answer, Operation};
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::{decode, encode};
use std::collections::VecDeque;

impl State {
    /// Does what the machines want, until they want nothing. Only who was touched can want something.
    pub(super) fn carry_out(&mut self) {
        loop {
            if std::mem::take(&mut self.registrar_touched) {
                while let Some(command) = self.registrar.change(Registrar::poll_command) {
                    self.obey(command);
                }
            } else if let Some(member) = self.touched.pop_first() {
                while let Some(action) =
                    self.members.get_mut(&member).and_then(|machine| machine.change(Member::poll_action))
                {
                    self.act(member, action);
                }
            } else if !self.hear_small_talk() {
                return;
            }
        }
    }

    fn obey(&mut self, command: Command) {
        let now = self.now;
        match command {
            Command::Send(stream, order) => {
                let name = stream_of(stream);
                let order = match (self.scene.sabotage, order) {
                    (Some(Sabotage::DropActivate), FromRegistrar::Activate { .. }) => return,
                    (Some(Sabotage::OldViewGoesOn), FromRegistrar::Activate { term, view }) => {
                        let before = self.members.get(&name.0).and_then(|machine| machine.view());
                        let view = before.map_or(view, |before| (**before).clone());
                        FromRegistrar::Activate { term, view }
                    }
                    (Some(Sabotage::LongLease), FromRegistrar::Granted { number, lease_ms }) => {
                        FromRegistrar::Granted { number, lease_ms: lease_ms * 3 }
                    }
                    (_, order) => order,
                };
                if let Some(stream) = self.streams.get_mut(&name).filter(|stream| stream.member_holds) {
                    stream.down.push_back(order);
                }
            }
            Command::Close(stream) => {
                if let Some(stream) = self.streams.get_mut(&stream_of(stream)) {
                    stream.registrar_holds = false;
                    stream.up.clear();
                }
                self.forget_streams();
            }
            Command::Note(_) => {}
            Command::Knock(member, _, _) => {
                let lives = self.members.contains_key(&number(member))
                    && self.scene.sabotage != Some(Sabotage::FalseDeath);
                let knocked = match lives {
                    _ if self.cut.contains(&number(member)) => Knocked::Silent,
                    true => Knocked::Accepted,
                    false => Knocked::Refused,
                };
                self.with_registrar(|registrar| registrar.handle_knock(now, member, knocked));
            }
            Command::Decide(view) => {
                self.with_registrar(|registrar| registrar.handle_decided(now, view.epoch));
            }
        }
    }

    fn act(&mut self, member: MemberNumber, action: Action) {
        let now = self.now;
        match action {
            Action::Connect(other) => self.connect(member, number(other.id)),
            Action::Disconnect(other) => {
                let other = number(other);
                self.links.remove(&(other, member));
                if self.links.remove(&(member, other)).is_some() {
                    self.with(other, |machine| machine.handle_disconnected(now, id(member)));
                }
            }
            Action::Send(other, hop) => {
                let hop = self.spoiled(hop);
                if let Some(frames) = self.links.get_mut(&(member, number(other))) {
                    frames.push_back(hop);
                }
            }
            Action::Tell(word) => {
                let stream = self.stream(member).and_then(|name| self.streams.get_mut(&name));
                if let Some(stream) = stream.filter(|stream| stream.registrar_holds) {
                    stream.up.push_back(word);
                }
            }
            Action::Finish(_, Ok(Answer::Number(number))) => {
                if !self.answers.insert(number) {
                    self.repeated = Some(number);
                }
            }
            Action::Finish(..) => self.failed += 1,
            // Who has said goodbye goes. Who was cut off may be done without, and would be reborn as somebody else.
            Action::Out(why) => {
                if !self.leaving.contains(&member) && !self.was_cut.contains(&member) {
                    self.put_out = Some((member, why));
                }
                self.vanish(member);
            }
            Action::Ended(_) => self.vanish(member),
            Action::Entered(_) | Action::Deliver(..) | Action::Datagram(..) | Action::Knock(..) => {}
        }
    }

    /// A dial succeeds or fails at once. Who is dialled by somebody anew notices that the connection before is gone.
    fn connect(&mut self, member: MemberNumber, other: MemberNumber) {
        let now = self.now;
        if !self.members.contains_key(&other) {
            return self.with(member, |machine| machine.handle_unreachable(now, id(other)));
        }
        if self.links.contains_key(&(member, other)) {
            if self.links.contains_key(&(other, member)) {
                return;
            }
            self.with(other, |machine| machine.handle_disconnected(now, id(member)));
        }
        self.links.insert((member, other), VecDeque::new());
        self.links.insert((other, member), VecDeque::new());
        self.with(member, |machine| machine.handle_connected(now, id(other)));
        self.with(other, |machine| machine.handle_connected(now, id(member)));
    }

    /// Takes what is first in its queue and decides nothing; false if there is none.
    fn hear_small_talk(&mut self) -> bool {
        let is_talk = |frame: &Hop| match frame {
            Hop::Received(_) | Hop::Greeting { .. } => true,
            Hop::Carry { envelope, .. } => {
                envelope.floods && matches!(decode::<Letter>(&envelope.contents), Ok(Letter::Broken(_)))
            }
        };
        let heads = self.links.iter().filter(|(_, frames)| frames.front().is_some_and(is_talk));
        let heads: Vec<_> = heads.map(|(link, _)| *link).collect();
        for (from, to) in &heads {
            self.frame(*from, *to);
        }
        let slow = self.scene.slow_leases;
        let open = || self.streams.iter().filter(|((member, _), _)| !self.cut.contains(member));
        let asks = |word: &ToRegistrar| matches!(word, ToRegistrar::Renew { .. }) && !slow;
        let asking =
            open().filter(|(_, stream)| stream.registrar_holds && stream.up.front().is_some_and(asks));
        let asking: Vec<_> = asking.map(|(name, _)| *name).collect();
        let tells = |order: &FromRegistrar| match order {
            FromRegistrar::Granted { .. } => !slow,
            FromRegistrar::Waits(_) => true,
            _ => false,
        };
        let told = open().filter(|(_, stream)| stream.member_holds && stream.down.front().is_some_and(tells));
        let told: Vec<_> = told.map(|((member, _), _)| *member).collect();
        asking.iter().for_each(|name| self.tell_registrar(*name));
        told.iter().for_each(|member| self.order(*member));
        !(heads.is_empty() && asking.is_empty() && told.is_empty())
    }

    /// A planted bug in what travels between members.
    fn spoiled(&self, mut hop: Hop) -> Hop {
        let Some(sabotage) = self.scene.sabotage else { return hop };
        if let Hop::Carry { envelope, .. } = &mut hop
            && envelope.pieces == 1
            && let Ok(mut letter) = decode::<Letter>(&envelope.contents)
        {
            match (sabotage, &mut letter) {
                (Sabotage::EmptyFetch, Letter::Records { records, .. }) => records.clear(),
                (Sabotage::ForgottenCalls, Letter::Records { records, .. }) => {
                    records.iter_mut().for_each(|record| {
                        record.done.clear();
                        record.over.clear();
                    });
                }
                (Sabotage::HollowReplica, Letter::Replicate { request, .. }) => {
                    request.operation = Operation::Add(0);
                }
                _ => return hop,
            }
            envelope.contents = encode(&letter).into();
        }
        hop
    }

    /// The same in what a member says of itself.
    pub(super) fn spoiled_registration(&self, mut word: ToRegistrar) -> ToRegistrar {
        if self.scene.sabotage == Some(Sabotage::HiddenFreeze)
            && let ToRegistrar::Register { next, .. } = &mut word
        {
            *next = None;
        }
        word
    }
}

/// A frame, for people.
pub(super) fn words(hop: &Hop) -> String {
    let Hop::Carry { envelope, .. } = hop else { return format!("{hop:?}") };
    match decode::<Letter>(&envelope.contents) {
        Ok(Letter::Pull { epoch, buckets, .. }) => {
            format!("Pull {{ epoch: {epoch}, {} buckets }}", buckets.len())
        }
        Ok(letter) => format!("{letter:?}"),
        Err(_) => "a piece".to_owned(),
    }
}
