//! The machine itself: what happened goes in, what to do comes out.

use super::{Action, Config, ConnectOutcome, ConnectToken, Member, Source};
use crate::id::PeerId;
use crate::rng::Rng;
use crate::time::Instant;
use crate::wire::membership::{MemberInfo, Packet};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// One member's view of the group.
#[derive(Debug)]
pub struct Membership {
    config: Config,
    me: Arc<MemberInfo>,
    actions: VecDeque<Action>,
}

impl Membership {
    /// A group of one.
    pub fn new(_now: Instant, config: Config, me: MemberInfo, _rng: Rng) -> Self {
        Self { config, me: Arc::new(me), actions: VecDeque::new() }
    }

    /// Starts with a table that is known already, as the simulator does for large groups.
    pub fn seed_table(&mut self, _now: Instant, _members: &[Arc<MemberInfo>]) {}

    /// Join through any of these members; repeated by itself until one answers.
    pub fn handle_join(&mut self, _now: Instant, _seeds: &[SocketAddr]) {}

    /// An authenticated packet arrived.
    pub fn handle_packet(&mut self, _now: Instant, _source: Source, _packet: Packet) {}

    /// A connect attempt ended.
    pub fn handle_connect(&mut self, _now: Instant, _token: ConnectToken, _outcome: ConnectOutcome) {}

    /// Say goodbye. Afterwards the machine answers nothing.
    pub fn handle_leave(&mut self, _now: Instant) {}

    /// Time has passed: call at or after `poll_timeout`, once everything that arrived has been handed in.
    pub fn handle_timeout(&mut self, _now: Instant) {}

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call `handle_timeout`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Ourselves.
    pub fn me(&self) -> &Arc<MemberInfo> {
        &self.me
    }

    /// Our settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Everybody who is in the group, ourselves included, in the order of their ids.
    pub fn active(&self) -> Vec<Member> {
        Vec::new()
    }

    /// Everybody who died or left and is not forgotten yet.
    pub fn failed(&self) -> Vec<Member> {
        Vec::new()
    }

    /// How that member is, if we have heard of it.
    pub fn member(&self, _id: PeerId) -> Option<Member> {
        None
    }
}
