//! Programs that train: each holds a state with a revision, syncs it when somebody came, and changes it with each commit.
//!
//! What to do next is decided by the course of a training loop, as in the runtime. A state is a number here that depends on
//! every commit which made it, so two states are equal only if the same steps made them. A heal takes a moment, in which the
//! state is torn; it succeeds if a donor still runs and holds what was elected. One member saves now and then to a disk
//! that outlives everybody; whoever finds no donor, or a state that is not of this training, begins again from there. Every
//! second process is started without a look at that disk: it brings what nobody ever agreed on.

use super::data::Buffer;
use super::facts::Fact;
use super::process::Phase;
use super::program::Planned;
use super::world::{Event, World};
use outlast_proto::ballot::sync::{KIND, Outcome, Wish};
use outlast_proto::collective::{OpKey, OpKind, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::rng::Rng;
use outlast_proto::session::{CallError, OutReason};
use outlast_proto::state::course::{Course, Failure, Move};
use outlast_proto::state::election::{Elected, Healed, NoDonor, Offer, Role, Strategy};
use outlast_proto::state::{Digest, Revision};
use outlast_proto::time::Duration;

/// How long a sync may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Steps from one checkpoint to the next.
const EVERY: Revision = 5;

/// A member's training.
#[derive(Debug)]
pub(super) struct Training {
    course: Course,
    /// What the state holds.
    contents: u64,
    /// None while it is torn.
    revision: Option<Revision>,
    was_agreed: bool,
    /// The last revision that this session took part in agreeing on.
    known: Option<Revision>,
    sync: Option<Syncing>,
}

/// A sync under way.
#[derive(Debug)]
struct Syncing {
    offer: Offer,
    elected: Option<(Elected, Vec<PeerId>)>,
    /// Whether we hold what was elected.
    whole: bool,
}

impl Training {
    /// One that holds what a disk holds, or nothing that anybody agreed on.
    pub(super) fn new(saved: Option<(Revision, u64)>) -> Self {
        let (revision, contents) = saved.unwrap_or_default();
        Self {
            course: Course::new(revision, None, false),
            contents,
            revision: Some(revision),
            was_agreed: saved.is_some(),
            known: None,
            sync: None,
        }
    }

    /// That of a process which was just started.
    pub(super) fn of(process: usize, saved: Option<(Revision, u64)>) -> Self {
        Self::new(saved.filter(|_| process.is_multiple_of(2)))
    }

    /// The last revision that this session took part in agreeing on.
    pub(super) fn known(&self) -> Option<Revision> {
        self.known
    }

    /// Whether nobody may take its state for one.
    fn is_torn(&self) -> bool {
        self.revision.is_none()
    }

    /// The session is over.
    pub(super) fn out(&mut self) {
        self.course.handle_failed(Move::Step, Failure::Out);
        (self.known, self.sync) = (None, None);
    }

    fn root(&self) -> Digest {
        Digest::of(&self.contents.to_be_bytes())
    }

    fn offer(&self) -> Offer {
        let (revision, strategy, outline) = (self.revision, Strategy::Popular, Digest::of(b"outline"));
        Offer { revision, strategy, outline, root: self.root(), was_agreed: self.was_agreed }
    }

    /// A step of these was committed.
    fn commit(&mut self, contributors: &[PeerId], pending: u32) {
        let mix = |sum: u64, peer: &PeerId| {
            let bytes = peer.as_bytes().iter().fold(sum, |sum, byte| sum.rotate_left(9) ^ u64::from(*byte));
            Rng::from_seed(bytes ^ self.course.number()).next_u64()
        };
        self.contents = contributors.iter().fold(self.contents, mix);
        self.course.handle_committed(contributors, pending);
        self.agreed(self.course.number());
    }

    /// It holds what was elected, whatever becomes of the sync. A copy of what a group agreed on was agreed on, too.
    fn holds(&mut self, elected: &Elected) {
        self.was_agreed &= self.revision == Some(elected.revision);
        (self.revision, self.was_agreed) = (Some(elected.revision), self.was_agreed || elected.was_agreed);
    }

    fn agreed(&mut self, revision: Revision) {
        (self.revision, self.known, self.was_agreed) = (Some(revision), Some(revision), true);
    }
}

impl World {
    fn training(&mut self, process: usize) -> &mut Training {
        self.processes[process].training.as_mut().expect("this world's programs train")
    }

    /// The last revision that any member of a group took part in agreeing on, of those who are with that coordinator.
    pub(super) fn known_with(&self, coordinator: usize, group: u32) -> Option<Revision> {
        let is_with = |process: &usize| {
            let with = self.talks_to(*process).map(|(_, with)| std::ptr::from_ref(with));
            with == Some(std::ptr::from_ref(&self.coordinators[coordinator]))
        };
        let here = (0..self.processes.len()).filter(is_with).map(|process| &self.processes[process]);
        here.filter(|process| process.group() == group)
            .filter_map(|process| process.training.as_ref()?.known())
            .max()
    }

    /// The program takes its next step.
    pub(super) fn train_on(&mut self, process: usize) {
        match self.processes[process].phase {
            Phase::Connecting => {
                self.training(process).course.handle_connected();
                self.pursue(process);
            }
            Phase::Voting => {
                self.training(process).course.handle_admitted();
                self.pursue(process);
            }
            Phase::Thinking => self.pursue(process),
            Phase::Healing => self.fetch_state(process),
            _ => {}
        }
    }

    /// Does what the course says.
    fn pursue(&mut self, process: usize) {
        let training = self.training(process);
        let (next, number) = (training.course.next(), training.course.number());
        let peer = &mut self.processes[process];
        match next {
            Move::Connect => self.go_out(process),
            Move::Admit => {
                peer.phase = Phase::Voting;
                self.vote(process);
            }
            Move::Sync => {
                let training = self.training(process);
                let (offer, known) = (training.offer(), training.known);
                training.sync = Some(Syncing { offer, elected: None, whole: false });
                self.say_in_sync(process, &Wish::Offer(offer, known));
            }
            Move::Step => {
                (peer.phase, peer.open, peer.step) = (Phase::Stepping, 1, Some(number));
                let (kind, scope, timeout) =
                    (OpKind::AllReduce, Scope::Whole, self.settings.habits.timeout.1);
                let (tag, root, retry, turn) = (0, None, true, 0);
                let (moves_on, deviates, step) = (false, false, Some(number));
                self.call(
                    process,
                    Planned { kind, tag, scope, root, retry, timeout, moves_on, deviates, turn, step },
                );
            }
        }
    }

    fn go_out(&mut self, process: usize) {
        let now = self.now;
        self.processes[process].session.handle_leave(now, false);
        self.drain_peer(process);
        self.out(process, OutReason::Left);
    }

    fn say_in_sync(&mut self, process: usize, wish: &Wish) {
        let (now, deadline) = (self.now, self.now + PATIENCE);
        let peer = &mut self.processes[process];
        peer.phase = Phase::Syncing;
        let id = match wish {
            Wish::Offer(..) => peer.session.handle_ballot_call(now, KIND, wish.encode(), deadline),
            _ => peer.session.handle_next_turn(now, KIND, wish.encode(), deadline),
        };
        self.begin_call(process, id, None, deadline, Buffer::default());
        self.drain_peer(process);
    }

    /// A vote or a sync ended without an agreement, here or for all.
    pub(super) fn ballot_failed(&mut self, process: usize, error: &CallError) {
        let at = if self.processes[process].phase == Phase::Voting { Move::Admit } else { Move::Sync };
        self.training(process).course.handle_failed(at, Failure::of_vote(at, error));
        self.pursue(process);
    }

    /// A turn of a sync was agreed on.
    pub(super) fn synced(&mut self, process: usize, outcome: Vec<u8>) {
        let told = Outcome::decode(&outcome).expect("an outcome of ours");
        match told {
            Outcome::Elected { elected, donors, .. } => self.elected(process, elected, donors),
            Outcome::Finished { revision, members, .. } => {
                let training = self.training(process);
                let whole = training.sync.take().filter(|sync| sync.whole);
                let Some(sync) = whole else { return self.begin_again(process) };
                training.agreed(revision);
                training.course.handle_synced(revision, &members);
                let (contents, held) = (training.contents, sync.offer.revision);
                let was_agreed = sync.elected.is_some_and(|(elected, _)| elected.was_agreed);
                let peer = &mut self.processes[process];
                peer.members = members;
                let (id, founder) = (peer.id, peer.session.record().map_or(peer.id, |record| record.founder));
                // What a training begins with is saved before its first step: without it nobody could go on who has nothing.
                let group = peer.group;
                self.disk.entry(group).or_insert((revision, contents));
                self.fact(Fact::Synced { peer: id, founder, outcome, revision, contents, held, was_agreed });
                self.pursue(process);
            }
            Outcome::Failed { .. } => {
                self.training(process).course.handle_failed(Move::Sync, Failure::Again);
                self.pursue(process);
            }
            Outcome::NoDonor { why: NoDonor::OthersOutside, .. } => {
                let training = self.training(process);
                training.sync = None;
                training.course.handle_failed(Move::Sync, Failure::Outside);
                self.pursue(process);
            }
            Outcome::NoDonor { .. } => self.begin_again(process),
        }
    }

    fn elected(&mut self, process: usize, elected: Elected, donors: Vec<PeerId>) {
        let is_torn = |world: &Self, peer: &PeerId| {
            let process = world.by_id.get(peer).map(|index| &world.processes[*index]);
            process.and_then(|process| process.training.as_ref()).is_some_and(Training::is_torn)
        };
        let torn = donors.iter().copied().filter(|peer| is_torn(self, peer)).collect();
        let peer = self.processes[process].id;
        self.fact(Fact::Elected { peer, revision: elected.revision, torn });
        if self.gives_sync_up(process) {
            return;
        }
        let delay = self.some(Duration::from_millis(300));
        let training = self.training(process);
        let Some(sync) = &mut training.sync else { return };
        let role = elected.role(&sync.offer);
        sync.whole = role == Role::Donor || role == Role::Receiver && sync.offer.root == elected.root;
        let whole = sync.whole;
        sync.elected = Some((elected, donors));
        if role == Role::Receiver && !whole {
            // In place: until everything is here it is neither the old nor the new.
            (training.revision, training.was_agreed) = (None, false);
            self.processes[process].phase = Phase::Healing;
            return self.after(delay, Event::Program(process));
        }
        if whole {
            training.holds(&elected);
        }
        let wish = match role {
            Role::Deviates(_) => Wish::Apart(elected.root),
            _ => Wish::Done(elected.root, Healed::default()),
        };
        self.say_in_sync(process, &wish);
    }

    /// Some programs give a sync up between its two votes, and begin again.
    fn gives_sync_up(&mut self, process: usize) -> bool {
        let peer = &mut self.processes[process];
        let mixed = self.settings.seed ^ self.now.as_nanos() ^ (process as u64) << 48;
        if !Rng::from_seed(mixed).chance(self.settings.habits.gives_syncs_up) {
            return false;
        }
        peer.session.handle_turn_given_up();
        *self.struck.entry("sync given up").or_default() += 1;
        self.line(|| format!("process {process} gives its sync up"));
        self.drain_peer(process);
        let training = self.training(process);
        training.sync = None;
        training.course.handle_failed(Move::Sync, Failure::Again);
        self.pursue(process);
        true
    }

    fn fetch_state(&mut self, process: usize) {
        let now = self.now;
        let Some(Syncing { elected: Some((elected, donors)), .. }) = &self.training(process).sync else {
            return;
        };
        let (elected, donors) = (*elected, donors.clone());
        let gives = |peer: &PeerId| {
            let donor = &self.processes[*self.by_id.get(peer)?];
            let training = donor.training.as_ref()?;
            let reached = donor.runs() && donor.lives() && !donor.is_isolated(now) && donor.id == *peer;
            let holds = training.root() == elected.root && training.revision == Some(elected.revision);
            (reached && holds).then_some(training.contents)
        };
        let given = donors.iter().find_map(gives);
        let training = self.training(process);
        let wish = match given {
            Some(contents) => {
                training.contents = contents;
                training.holds(&elected);
                if let Some(sync) = &mut training.sync {
                    sync.whole = true;
                }
                Wish::Done(elected.root, Healed::default())
            }
            None => Wish::Failed(elected.root, "no donor is left".to_owned()),
        };
        self.say_in_sync(process, &wish);
    }

    /// Nobody gives, or ours is not of this training: the process is started again, with what is on the disk.
    fn begin_again(&mut self, process: usize) {
        let saved = self.disk.get(&self.processes[process].group).copied();
        self.line(|| format!("process {process} begins again from {saved:?}"));
        self.go_out(process);
        self.processes[process].training = Some(Training::new(saved));
    }

    /// A step was committed.
    pub(super) fn trained(&mut self, process: usize, key: OpKey, contributors: &[PeerId], pending: u32) {
        self.training(process).commit(contributors, pending);
        let peer = &self.processes[process];
        let (id, group) = (peer.id, peer.group);
        let founder = peer.session.record().map_or(id, |record| record.founder);
        let training = self.training(process);
        let (revision, contents) = (training.course.number(), training.contents);
        if revision.is_multiple_of(EVERY) && contributors.first() == Some(&id) {
            let saved = self.disk.entry(group).or_default();
            *saved = (*saved).max((revision, contents));
        }
        self.fact(Fact::Trained { peer: id, founder, key, revision, contents });
    }
}
