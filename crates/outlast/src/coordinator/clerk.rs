//! The clerk: one task that owns the machines of all runs.

use crate::clock;
use crate::membership::{Health, Membership, Preset};
use crate::security::RunSecret;
use outlast_proto::coordinator::{Action, Config, ConnectionId, Run, Sign};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::membership::{ConnectOutcome, ConnectToken};
use outlast_proto::time::Instant;
use outlast_proto::wire::control::{ToCoordinator, ToPeer};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

/// How often the health plane's lists are looked at.
const HEALTH_INTERVAL: Duration = Duration::from_millis(50);
/// How long a run that nobody is in is remembered.
const EMPTY_RUN_LIFE: Duration = Duration::from_mins(10);

/// What the clerk is told.
#[derive(Debug)]
pub(super) enum Inbox {
    Opened { run: RunId, id: ConnectionId, queue: mpsc::Sender<ToPeer> },
    Message { run: RunId, id: ConnectionId, peer: PeerId, message: Box<ToCoordinator> },
    Closed { run: RunId, id: ConnectionId },
    Connected { run: RunId, token: ConnectToken, outcome: ConnectOutcome },
    Status(RunId, oneshot::Sender<Option<String>>),
}

/// One run and what it needs of the world.
struct Desk {
    run: Run,
    lines: BTreeMap<ConnectionId, mpsc::Sender<ToPeer>>,
    membership: Option<Membership>,
    /// Peers whose addresses were given to our member as seeds.
    met: BTreeSet<PeerId>,
    empty_since: Option<std::time::Instant>,
}

impl Desk {
    /// Puts a message into a peer's queue. One that is full belongs to a peer that does not read: it loses its
    /// connection.
    fn send(&mut self, id: ConnectionId, message: ToPeer) {
        if self.lines.get(&id).is_some_and(|line| line.try_send(message).is_err()) {
            self.lines.remove(&id);
        }
    }
}

impl Desk {
    /// What the health plane says of everybody now.
    fn pass_on_health(&mut self, now: Instant) {
        let Some(member) = &self.membership else { return };
        let active = member.active().unwrap_or_default();
        let failed = member.failed().unwrap_or_default();
        for member in active.iter().chain(&failed) {
            let sign = match member.health {
                Health::Alive => Sign::Alive { acked: member.acked },
                Health::Stalled { .. } => Sign::Stalled,
                Health::Suspect { .. } => Sign::Suspect,
                Health::Dead { reason, .. } => Sign::Dead(reason),
                Health::Left { .. } => continue,
            };
            self.run.handle_health(now, member.info.id, sign);
        }
    }
}

/// How the coordinator's own members of the health groups are set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct HealthSettings {
    pub(super) preset: Preset,
    pub(super) stall_budget: Option<Duration>,
}

pub(super) struct Clerk {
    config: Config,
    health: HealthSettings,
    secret: RunSecret,
    address: SocketAddr,
    /// Until then somebody may come back to a coordinator that was here before us.
    fresh_after: Option<Instant>,
    /// Weak, so that the clerk does not keep itself at work.
    inbox: mpsc::WeakSender<Inbox>,
    desks: BTreeMap<RunId, Desk>,
}

impl Clerk {
    pub(super) fn new(
        config: Config,
        health: HealthSettings,
        secret: RunSecret,
        address: SocketAddr,
        fresh_after: Option<Instant>,
        inbox: mpsc::WeakSender<Inbox>,
    ) -> Self {
        Self { config, health, secret, address, fresh_after, inbox, desks: BTreeMap::new() }
    }

    /// Works until the service is dropped; then every line is closed, because its queue is.
    pub(super) async fn run(mut self, mut letters: mpsc::Receiver<Inbox>, mut stop: oneshot::Receiver<()>) {
        let mut health = tokio::time::interval(HEALTH_INTERVAL);
        health.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let next = self.desks.values().filter_map(|desk| desk.run.poll_timeout()).min();
            let sleep = next.map_or(HEALTH_INTERVAL, |at| at.since(clock::now()));
            tokio::select! {
                biased;
                _ = &mut stop => return,
                letter = letters.recv() => {
                    let Some(letter) = letter else { return };
                    self.handle(letter);
                    // Take what waits already before looking at timers: votes beat deadlines.
                    for _ in 0..256 {
                        match letters.try_recv() {
                            Ok(letter) => self.handle(letter),
                            Err(_) => break,
                        }
                    }
                }
                () = tokio::time::sleep(sleep) => self.tick(),
                _ = health.tick() => self.look_at_health(),
            }
        }
    }

    fn tick(&mut self) {
        let now = clock::now();
        let due: Vec<_> = self
            .desks
            .iter()
            .filter(|(_, desk)| desk.run.poll_timeout().is_some_and(|at| at <= now))
            .map(|(run, _)| run.clone())
            .collect();
        for run in due {
            if let Some(desk) = self.desks.get_mut(&run) {
                // Who answered a moment ago must not be evicted for silence in this one.
                desk.pass_on_health(now);
                desk.run.handle_timeout(now);
            }
            self.carry_out(&run);
        }
    }

    fn handle(&mut self, letter: Inbox) {
        let now = clock::now();
        match letter {
            Inbox::Opened { run, id, queue } => {
                let desk = self.desk(&run);
                desk.lines.insert(id, queue);
                desk.empty_since = None;
            }
            Inbox::Message { run, id, peer, message } => {
                if let ToCoordinator::Register(registration, ..) = &*message {
                    self.meet(&run, peer, registration.info.address);
                }
                if let ToCoordinator::Resume(resume) = &*message {
                    self.meet(&run, peer, resume.registration.info.address);
                }
                self.desk(&run).run.handle_message(now, id, peer, *message);
                self.carry_out(&run);
            }
            Inbox::Closed { run, id } => {
                let desk = self.desk(&run);
                desk.lines.remove(&id);
                desk.run.handle_closed(now, id);
                self.carry_out(&run);
            }
            Inbox::Connected { run, token, outcome } => {
                self.desk(&run).run.handle_connect(now, token, outcome);
                self.carry_out(&run);
            }
            Inbox::Status(run, answer) => {
                let status = self.desks.get(&run).map(|desk| desk.run.status(now).to_json());
                let _ = answer.send(status);
            }
        }
    }

    fn desk(&mut self, run: &RunId) -> &mut Desk {
        self.desks.entry(run.clone()).or_insert_with(|| {
            let mut machine = Run::new(self.config.clone());
            if let Some(until) = self.fresh_after {
                machine.expect_old_members(until);
            }
            Desk {
                run: machine,
                lines: BTreeMap::new(),
                membership: None,
                met: BTreeSet::new(),
                empty_since: None,
            }
        })
    }

    /// Our own member of that run's health group gets to know a peer.
    fn meet(&mut self, run: &RunId, peer: PeerId, address: SocketAddr) {
        let (health, secret, listen) =
            (self.health, self.secret.clone(), SocketAddr::new(self.address.ip(), 0));
        let desk = self.desk(run);
        if !desk.met.insert(peer) {
            return;
        }
        if let Some(member) = &desk.membership {
            member.join(&[address]);
            return;
        }
        let mut member = Membership::builder()
            .listen(listen)
            .preset(health.preset)
            .secret(secret)
            .run_id(run.clone())
            .name("coordinator")
            .join([address.to_string()]);
        if let Some(budget) = health.stall_budget {
            member = member.stall_budget(budget);
        }
        match member.start() {
            Ok(member) => desk.membership = Some(member),
            Err(error) => tracing::error!(%run, %error, "no health for this run; evictions will be slower"),
        }
    }

    fn look_at_health(&mut self) {
        let now = clock::now();
        let runs: Vec<_> = self.desks.keys().cloned().collect();
        for run in runs {
            let Some(desk) = self.desks.get_mut(&run) else { continue };
            desk.pass_on_health(now);
            let idle = desk.run.is_empty() && desk.lines.is_empty();
            let since = *desk.empty_since.get_or_insert_with(std::time::Instant::now);
            if !idle {
                desk.empty_since = None;
            } else if since.elapsed() >= EMPTY_RUN_LIFE {
                self.desks.remove(&run);
                continue;
            }
            self.carry_out(&run);
        }
    }

    fn carry_out(&mut self, run: &RunId) {
        let Some(desk) = self.desks.get_mut(run) else { return };
        while let Some(action) = desk.run.poll_action() {
            match action {
                Action::Send(id, message) => desk.send(id, message),
                Action::SendAll(ids, message) => {
                    for id in ids {
                        desk.send(id, message.clone());
                    }
                }
                Action::Close(id) => {
                    desk.lines.remove(&id);
                }
                Action::Connect { token, to, timeout } => {
                    let Some(inbox) = self.inbox.upgrade() else { continue };
                    let run = run.clone();
                    tokio::spawn(async move {
                        let outcome = knock(to, timeout).await;
                        let _ = inbox.send(Inbox::Connected { run, token, outcome }).await;
                    });
                }
                Action::Look(peer) => {
                    if let Some(member) = &desk.membership {
                        member.look(peer);
                    }
                }
                Action::Evict(peer) => {
                    desk.met.remove(&peer);
                    if let Some(member) = &desk.membership {
                        member.evict(peer);
                    }
                }
                Action::Note(note) => tracing::info!(%run, ?note, "run"),
            }
        }
    }
}

/// Asks a kernel.
async fn knock(to: SocketAddr, timeout: Duration) -> ConnectOutcome {
    match tokio::time::timeout(timeout, TcpStream::connect(to)).await {
        Err(_) => ConnectOutcome::Silent,
        Ok(Ok(stream)) => {
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            ConnectOutcome::Accepted
        }
        Ok(Err(error)) => match error.kind() {
            io::ErrorKind::ConnectionRefused => ConnectOutcome::Refused,
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory => ConnectOutcome::NotAsked,
            _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                ConnectOutcome::NotAsked
            }
            _ => ConnectOutcome::Silent,
        },
    }
}
