mod patience;

use super::donor::{STREAMS_MAX, Serving, Stall};
use super::receiver::{Errand, Found, Open, STREAMS_PER_DONOR, Unhealed, difference, heal};
use super::*;
use crate::link::{UnixWire, Wire};
use crate::state::{LEAF_BYTES, SharedState};
use outlast_proto::id::PeerId;
use outlast_proto::state::Digest;
use outlast_proto::state::frame::{Answer, Question, Status, Wanted};
use outlast_proto::state::transfer::{Fault, STALLED};
use outlast_proto::state::tree::root;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const LEAVES: usize = 5;
const ME: PeerId = PeerId::from_bytes([0; 16]);

fn peer(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

fn state(value: u8) -> SharedState {
    let mut state = SharedState::new();
    let large: Vec<u8> =
        (0..LEAVES * LEAF_BYTES - 7).map(|at| value.wrapping_mul((at / 1_000) as u8)).collect();
    state.insert("large", large, &[(LEAVES * LEAF_BYTES - 7) as u64]).unwrap();
    state.insert("small", vec![f32::from(value); 3], &[3]).unwrap();
    state.set_revision(Some(4));
    state.set_extra([value]).unwrap();
    state
}

const BYTES: u64 = (LEAVES * LEAF_BYTES - 7 + 12) as u64;
/// The list of hashes, and the extra byte.
const LIST: u64 = (LEAVES as u64 + 1) * 16 + 1;

fn hashes(state: &SharedState) -> Arc<Vec<Digest>> {
    Arc::new(state.hashes(&|| false).unwrap())
}

fn root_of(state: &SharedState) -> Digest {
    root(state.outline().digest(), state.extra(), &hashes(state))
}

/// How a donor behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Honest,
    /// Flips a bit in everything after the list of hashes.
    Corrupt,
    /// Its stream breaks after that many bytes, all its streams together.
    Dies(i64),
    /// Takes questions and never answers.
    Silent,
    /// Cannot be reached.
    Away,
    /// Closes its stream after that many bytes, as a process does that ends.
    Closes(i64),
    /// The second of its streams, counted without the one for the list, cannot be opened.
    Limps,
    /// Whoever receives from it panics after that many bytes, by the first of its streams that comes so far; the other one goes on
    /// as if nothing had been.
    Panics(i64),
    /// Honest, but no leaf of it arrives before somebody was told that it is busy.
    Crowded,
}

impl Manner {
    /// Whether it does harm that a heal must meet.
    fn is_bad(self) -> bool {
        !matches!(self, Self::Honest | Self::Silent)
    }

    /// How many bytes come before it shows its manner.
    fn bytes(self) -> i64 {
        match self {
            Self::Dies(after) | Self::Closes(after) | Self::Panics(after) => after,
            _ => i64::MAX,
        }
    }

    /// Whether its leaves are held back until the bad one among the donors has shown its manner.
    fn waits(self) -> bool {
        matches!(self, Self::Honest | Self::Limps | Self::Crowded)
    }
}

/// A wire whose incoming bytes are tampered with.
struct Tampered {
    wire: UnixWire,
    manner: Manner,
    left: Arc<AtomicI64>,
    /// How many streams of the bad one among the donors have shown its manner. Before all have no leaf of an honest one
    /// arrives: it could be so quick that the bad one is never asked, and the test would show nothing.
    shown: Arc<AtomicUsize>,
    /// Whether the list comes by it: who fails there is dropped at once.
    is_list: bool,
    has_shown: bool,
}

/// So many must have shown it.
const ALL: usize = STREAMS_PER_DONOR;

impl Tampered {
    /// Whether it is the first stream that shows it, and for the first time.
    fn show(&mut self) -> bool {
        let at_once = self.is_list || matches!(self.manner, Manner::Corrupt | Manner::Panics(_));
        !std::mem::replace(&mut self.has_shown, true)
            && self.shown.fetch_add(if at_once { ALL } else { 1 }, Ordering::SeqCst) == 0
    }
}

impl Wire for Tampered {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.wire.send(pieces)
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.left.load(Ordering::SeqCst) <= 0 {
            let is_first = self.show();
            match self.manner {
                Manner::Closes(_) => return Ok(0),
                Manner::Panics(_) => assert!(!is_first, "planted"),
                _ => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
        if self.manner.waits() && pieces[0].len() > 10_000 && self.shown.load(Ordering::SeqCst) < ALL {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = self.wire.receive(pieces)?;
        self.left.fetch_sub(count as i64, Ordering::SeqCst);
        // Frames and lists are small: what is larger is a leaf.
        if self.manner == Manner::Corrupt && pieces[0].len() > 10_000 {
            pieces[0][0] ^= 1;
            self.show();
        }
        if let Ok(header) = <&[u8; Answer::BYTES]>::try_from(&pieces[0][..])
            && matches!(Answer::decode(header, Wanted::Hashes), Ok(Answer { status: Status::Busy, .. }))
        {
            self.shown.store(ALL, Ordering::SeqCst);
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wire.flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.wire.descriptor()
    }

    fn wants_checksums(&self) -> bool {
        false
    }
}

/// Donors that all hold `state`, each with its manner.
struct Donors<'a> {
    stalls: Vec<Arc<Stall>>,
    servings: Vec<Serving<'a>>,
    ids: Vec<PeerId>,
    open: Open,
}

fn donors<'a>(state: &'a SharedState, manners: &[Manner], stalls: &'a [Arc<Stall>]) -> Donors<'a> {
    let (hashes, root) = (hashes(state), root_of(state));
    let ids: Vec<_> = (1..=manners.len() as u8).map(peer).collect();
    let servings =
        stalls.iter().map(|stall| stall.lend(state, Arc::clone(&hashes), root, [ME], || {})).collect();
    let by_id: BTreeMap<_, _> = ids
        .iter()
        .zip(manners)
        .zip(stalls)
        .map(|((id, manner), stall)| {
            let (left, opened) = (AtomicI64::new(manner.bytes()), AtomicUsize::new(0));
            (*id, (*manner, Arc::new(left), opened, Arc::clone(stall)))
        })
        .collect();
    let is_shown = !manners.iter().any(|manner| manner.is_bad());
    let (shown, first) = (Arc::new(AtomicUsize::new(if is_shown { ALL } else { 0 })), ids[0]);
    let open: Open = Arc::new(move |donor, _| {
        let (manner, left, opened, stall) = &by_id[&donor];
        let place = opened.fetch_add(1, Ordering::SeqCst);
        if *manner == Manner::Away || *manner == Manner::Limps && place == 2 {
            shown.store(ALL, Ordering::SeqCst);
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = UnixStream::pair()?;
        if *manner == Manner::Silent {
            // Nobody serves it; it is open for as long as the process is.
            std::mem::forget(theirs);
        } else {
            stall.accept(ME, Stream::new(Box::new(UnixWire::new(theirs)?)));
        }
        let (left, shown) = (Arc::clone(left), Arc::clone(&shown));
        let (wire, is_list) = (UnixWire::new(ours)?, place == 0 && donor == first);
        let wire = Tampered { wire, manner: *manner, left, shown, is_list, has_shown: false };
        Ok(Stream::new(Box::new(wire)))
    });
    Donors { stalls: stalls.to_vec(), servings, ids, open }
}

fn stalls(count: usize) -> Vec<Arc<Stall>> {
    (0..count).map(|_| Arc::default()).collect()
}

impl Donors<'_> {
    fn errand(&self, root: Digest) -> Errand<'_> {
        let (open, deadline) = (Arc::clone(&self.open), Instant::now() + PATIENCE);
        Errand { root, donors: &self.ids, rank: 0, open, deadline, given_up: &|| false, progress: &|_, _| {} }
    }

    fn sent(&self) -> u64 {
        self.servings.iter().map(Serving::sent).sum()
    }
}

/// Heals a state of `value` from donors that hold 9s.
fn heal_from(value: u8, manners: &[Manner], staged: bool) -> (SharedState, Found, Result<(), Unhealed>, u64) {
    let (elected, stalls) = (state(9), stalls(manners.len()));
    let donors = donors(&elected, manners, &stalls);
    let (mut ours, mut found) = (state(value), Found::default());
    let before = hashes(&ours);
    let outcome = heal(&mut ours, &before, &donors.errand(root_of(&elected)), staged, &mut found);
    let outcome = outcome.map(|staged| {
        if let Some(staged) = staged {
            assert_eq!(hashes(&ours), before, "what is staged has changed nothing yet");
            staged.apply(&mut ours);
        }
    });
    if outcome.is_ok() {
        assert_eq!(ours.digest(), elected.digest(), "to the bit, and the extra bytes too");
        assert!(!ours.is_torn());
    }
    let sent = donors.sent();
    (ours, found, outcome, sent)
}

#[test]
fn everything_comes_once_from_all_donors() {
    for staged in [false, true] {
        let (_, found, outcome, sent) = heal_from(3, &[Manner::Honest; 3], staged);
        assert_eq!(outcome, Ok(()));
        assert_eq!((found.received, found.leaves, sent), (BYTES + LIST, 6, BYTES + LIST));
        assert_eq!((found.donors.values().sum::<u64>(), found.dropped), (6, vec![]));
        assert_eq!(found.differed, ["large", "small"]);
    }
}

#[test]
fn only_what_differs_is_fetched() {
    let (elected, stalls) = (state(9), stalls(2));
    let donors = donors(&elected, &[Manner::Honest; 2], &stalls);
    let (mut ours, mut found) = (state(9), Found::default());
    ours.get_mut::<u8>("large").unwrap()[3 * LEAF_BYTES + 5] ^= 1;
    let before = hashes(&ours);
    heal(&mut ours, &before, &donors.errand(root_of(&elected)), false, &mut found).unwrap();
    assert_eq!(
        (found.received, found.leaves, &found.differed[..]),
        (LEAF_BYTES as u64 + LIST, 1, &["large".to_owned()][..])
    );
    assert_eq!(ours.digest(), elected.digest());
    // And nothing but the list if nothing differs.
    let mut found = Found::default();
    let before = hashes(&ours);
    heal(&mut ours, &before, &donors.errand(root_of(&elected)), false, &mut found).unwrap();
    assert_eq!((found.received, found.leaves), (LIST, 0));
}

#[test]
fn a_donor_that_lies_is_replaced_and_named() {
    let (_, found, outcome, _) = heal_from(3, &[Manner::Corrupt, Manner::Honest], false);
    assert_eq!((outcome, found.dropped), (Ok(()), vec![(peer(1), Fault::Corrupt)]));
    assert_eq!(found.donors.get(&peer(1)), None, "nothing of it was kept");
    let (ours, found, outcome, _) = heal_from(3, &[Manner::Corrupt], false);
    assert_eq!((outcome, found.dropped), (Err(Unhealed::NoDonor), vec![(peer(1), Fault::Corrupt)]));
    assert!(!ours.is_torn() && ours.digest() == state(3).digest(), "no byte of it was used");
}

#[test]
fn a_donor_that_cannot_be_reached_or_breaks_is_replaced() {
    for manner in [Manner::Away, Manner::Dies(0), Manner::Dies(200), Manner::Dies(LEAF_BYTES as i64 + 500)] {
        let (_, found, outcome, _) = heal_from(3, &[manner, Manner::Honest], false);
        assert_eq!(outcome, Ok(()), "{manner:?}");
        assert!(
            matches!(&found.dropped[..], [(donor, Fault::Gone(_))] if *donor == peer(1)),
            "{:?}",
            found.dropped
        );
        assert_eq!(found.donors.values().sum::<u64>(), 6);
    }
}

/// It was said to send wrong bytes, which is a grave thing to say of somebody who just died.
#[test]
fn a_donor_that_ends_between_its_header_and_its_list_is_gone_and_no_liar() {
    let (_, found, outcome, _) = heal_from(3, &[Manner::Closes(Answer::BYTES as i64), Manner::Honest], false);
    assert_eq!(outcome, Ok(()));
    assert!(matches!(&found.dropped[..], [(_, Fault::Gone(_))]), "{:?}", found.dropped);
}

/// One of two streams that failed used to cost the donor its place, though the other went on.
#[test]
fn a_donor_is_kept_as_long_as_one_of_its_streams_works() {
    let (_, found, outcome, _) = heal_from(3, &[Manner::Limps], false);
    assert_eq!((outcome, found.dropped, found.donors.get(&peer(1))), (Ok(()), vec![], Some(&6)));
}

/// Streams beyond the donor's limit used to be closed, and with its only donor gone every receiver failed.
#[test]
fn one_donor_heals_more_receivers_than_it_serves_at_once() {
    const RECEIVERS: usize = STREAMS_MAX / 2 + 8;
    let (elected, stalls) = (state(9), stalls(1));
    let donors = donors(&elected, &[Manner::Crowded], &stalls);
    let (root, digest) = (root_of(&elected), elected.digest());
    std::thread::scope(|scope| {
        for _ in 0..RECEIVERS {
            scope.spawn(|| {
                let (mut ours, mut found) = (state(3), Found::default());
                let before = hashes(&ours);
                let healed = heal(&mut ours, &before, &donors.errand(root), false, &mut found).map(drop);
                assert_eq!((healed, &found.dropped[..]), (Ok(()), &[][..]));
                assert_eq!(ours.digest(), digest);
            });
        }
    });
    assert_eq!(donors.sent(), RECEIVERS as u64 * (BYTES + LIST), "nothing was sent twice");
}

/// Its donor stayed engaged until it counted as stalled, five seconds later; and the panic came through although everything
/// was there. Later a panic counted as one of two broken streams: the donor was kept as long as the other one lived.
#[test]
fn a_panic_in_one_stream_costs_its_donor_at_once_and_nothing_else() {
    // Whoever is let go after patience has ended is said to have stalled.
    let panicked =
        |dropped: &[(PeerId, Fault)]| matches!(dropped, [(_, Fault::Gone(why))] if why.contains("panicked"));
    let (_, found, outcome, _) = heal_from(3, &[Manner::Honest, Manner::Panics(100)], false);
    assert_eq!(outcome, Ok(()));
    assert!(panicked(&found.dropped) && found.dropped[0].0 == peer(2), "{found:?}");
    let (ours, found, outcome, _) = heal_from(3, &[Manner::Panics(3 * LEAF_BYTES as i64)], false);
    assert_eq!(outcome, Err(Unhealed::NoDonor));
    assert!(panicked(&found.dropped), "{found:?}");
    assert!(ours.is_torn() && ours.revision().is_none());
}

/// The state was marked after the fact, which an unwinding thread never came to.
#[test]
fn a_panic_in_the_middle_leaves_a_state_that_is_known_to_be_torn() {
    let (elected, stalls) = (state(9), stalls(2));
    let donors = donors(&elected, &[Manner::Honest, Manner::Silent], &stalls);
    let (mut ours, mut found) = (state(3), Found::default());
    let before = hashes(&ours);
    // It is looked at again and again until everything is here, which the silent one's part never is.
    let looks = AtomicUsize::new(0);
    let given_up = || {
        assert!(looks.fetch_add(1, Ordering::Relaxed) < 5, "planted");
        false
    };
    let errand = Errand { given_up: &given_up, ..donors.errand(root_of(&elected)) };
    let healing = AssertUnwindSafe(|| heal(&mut ours, &before, &errand, false, &mut found).map(drop));
    catch_unwind(healing).expect_err("the panic comes through");
    assert_ne!(ours.digest(), state(3).digest(), "something was written");
    assert_eq!((ours.is_torn(), ours.revision()), (true, None));
}

#[test]
fn a_donor_that_stands_still_holds_up_nobody_for_long() {
    // The list is asked of the first, which answers; leaves are then asked of both.
    let (_, found, outcome, _) = heal_from(3, &[Manner::Honest, Manner::Silent], false);
    assert_eq!((outcome, found.donors.get(&peer(1))), (Ok(()), Some(&6)));
}

#[test]
fn a_donor_whose_tensors_change_says_so() {
    let elected = state(9);
    let (hashes_before, elected_root) = (hashes(&elected), root_of(&elected));
    let mut mutated = state(9);
    mutated.get_mut::<u8>("large").unwrap()[0] ^= 1;
    let stalls = stalls(2);
    let mut donors = donors(&elected, &[Manner::Honest; 2], &stalls);
    // It hashed one thing and serves another.
    donors.servings.remove(0);
    donors.servings.insert(0, stalls[0].lend(&mutated, hashes_before, elected_root, [ME], || {}));
    let (mut ours, mut found) = (state(3), Found::default());
    let before = hashes(&ours);
    let mut errand = donors.errand(elected_root);
    errand.rank = 1;
    heal(&mut ours, &before, &errand, false, &mut found).unwrap();
    assert_eq!(ours.digest(), elected.digest());
    // Whether it was asked for that leaf is a matter of luck; if so, it is named.
    assert!(found.dropped.iter().all(|dropped| *dropped == (peer(1), Fault::Mutated)), "{:?}", found.dropped);
    // Alone, it certainly is.
    donors.ids.truncate(1);
    let (mut ours, mut found) = (state(3), Found::default());
    let outcome = heal(&mut ours, &before, &donors.errand(elected_root), true, &mut found).map(drop);
    assert_eq!((outcome, found.dropped), (Err(Unhealed::NoDonor), vec![(peer(1), Fault::Mutated)]));
    assert_eq!(ours.digest(), state(3).digest());
}

#[test]
fn a_heal_that_ends_at_any_leaf_is_torn_in_place_and_nothing_when_staged() {
    let mut torn = 0;
    for leaf in 0..LEAVES as i64 {
        // The only donor dies a little after that many leaves.
        let after = LIST as i64 + 100 + leaf * (LEAF_BYTES as i64 + 16);
        let (ours, found, outcome, _) = heal_from(3, &[Manner::Dies(after)], false);
        assert_eq!(outcome, Err(Unhealed::NoDonor), "{leaf}");
        let written = found.donors.values().sum::<u64>();
        assert_eq!((ours.is_torn(), ours.revision()), (written > 0, (written == 0).then_some(4)), "{leaf}");
        torn += u32::from(ours.is_torn());
        let (ours, _, outcome, _) = heal_from(3, &[Manner::Dies(after)], true);
        assert_eq!((outcome, ours.digest()), (Err(Unhealed::NoDonor), state(3).digest()));
        assert_eq!((ours.is_torn(), ours.revision()), (false, Some(4)));
    }
    assert!(torn > 0, "the case was met");
}

#[test]
fn a_deviating_outline_is_named_by_its_key() {
    let (elected, stalls) = (state(9), stalls(2));
    let donors = donors(&elected, &[Manner::Away, Manner::Honest], &stalls);
    let mut ours = state(9);
    ours.insert("mine", vec![1_u8], &[1]).unwrap();
    let errand = donors.errand(root_of(&elected));
    let found = difference(&errand, ours.outline(), elected.outline().digest()).unwrap();
    assert_eq!(found.to_string(), "the key \"mine\" is not part of the group's state");
}

#[test]
fn who_was_not_lent_to_gets_nothing_and_what_is_taken_back_is_taken_back_at_once() {
    let (elected, stalls) = (state(9), stalls(1));
    let mut donors = donors(&elected, &[Manner::Honest], &stalls);
    let (mut ours, mut found) = (state(3), Found::default());
    let before = hashes(&ours);
    // A stranger, who is in the run and not in the group.
    let (near, far) = UnixStream::pair().unwrap();
    donors.stalls[0].accept(peer(77), Stream::new(Box::new(UnixWire::new(far).unwrap())));
    let near = std::sync::Mutex::new(Some(near));
    let open: Open = Arc::new(move |_, _| {
        let near = near.lock().unwrap().take().ok_or(io::ErrorKind::ConnectionRefused)?;
        Ok(Stream::new(Box::new(UnixWire::new(near)?)))
    });
    let errand = Errand { open, ..donors.errand(root_of(&elected)) };
    assert!(heal(&mut ours, &before, &errand, false, &mut found).is_err());
    // A receiver that asks for a lot and reads nothing: its donor's thread waits for room, and the tensors are free.
    let mut stream = (donors.open)(peer(1), Instant::now() + PATIENCE).unwrap();
    let question = Question { root: root_of(&elected), wanted: Wanted::Leaf(0) };
    for _ in 0..8 {
        stream.send(&question.encode(), PATIENCE, &|| false).unwrap();
    }
    donors.servings.clear();
    drop(donors);
    drop(elected);
}
