//! Donors that are slow, late or crowded, and what a receiver's patience does about them.

use super::*;
use crate::state::TensorInfo;
use outlast_proto::collective::DataType;
use std::io::{Read as _, Write as _};
use std::sync::{Mutex, mpsc};

/// A wire that sends so little at a time that one leaf takes longer than a receiver waits for a donor that stands still. After
/// `left` bytes, all wires together, it sends nothing more.
struct Slow {
    wire: UnixWire,
    left: Arc<AtomicI64>,
    /// How many bytes of questions came, by all wires together.
    asked: Arc<AtomicUsize>,
    /// Says nothing, and ends with the test.
    over: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Slow {
    const PAUSE: Duration = Duration::from_millis(250);
    const PIECE: usize = LEAF_BYTES / 24;
}

impl Wire for Slow {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.left.load(Ordering::SeqCst) <= 0 {
            let _ = self.over.lock().unwrap().recv();
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        std::thread::sleep(Self::PAUSE);
        let some = &pieces[0][..pieces[0].len().min(Self::PIECE)];
        let count = self.wire.send(&[IoSlice::new(some)])?;
        self.left.fetch_sub(count as i64, Ordering::SeqCst);
        Ok(count)
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = self.wire.receive(pieces)?;
        self.asked.fetch_add(count, Ordering::SeqCst);
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

/// Opens streams to one donor, whose end of each is what `wrap` makes of it.
fn open_to(stall: &Arc<Stall>, wrap: impl Fn(UnixWire) -> Box<dyn Wire> + Send + Sync + 'static) -> Open {
    let stall = Arc::clone(stall);
    Arc::new(move |_, _| {
        let (ours, theirs) = UnixStream::pair()?;
        stall.accept(ME, Stream::new(wrap(UnixWire::new(theirs)?)));
        Ok(Stream::new(Box::new(UnixWire::new(ours)?)))
    })
}

fn errand(open: Open, donors: &[PeerId], root: Digest) -> Errand<'_> {
    let deadline = Instant::now() + PATIENCE;
    Errand { root, donors, rank: 0, open, deadline, given_up: &|| false, progress: &|_, _| {} }
}

/// Heals one leaf from one slow donor that sends so many bytes. Also how many questions it was asked.
fn heal_slowly(bytes: i64) -> (SharedState, Found, Result<(), Unhealed>, usize) {
    let (elected, stall) = (state(9), Arc::<Stall>::default());
    let root = root_of(&elected);
    let _serving = stall.lend(&elected, hashes(&elected), root, [ME], || {});
    let (end, over) = mpsc::channel();
    let (over, left) = (Arc::new(Mutex::new(over)), Arc::new(AtomicI64::new(bytes)));
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    let open = open_to(&stall, move |wire| {
        let (left, asked, over) = (Arc::clone(&left), Arc::clone(&count), Arc::clone(&over));
        Box::new(Slow { wire, left, asked, over })
    });
    let (mut ours, mut found) = (state(9), Found::default());
    ours.get_mut::<u8>("large").unwrap()[3 * LEAF_BYTES + 5] ^= 1;
    let before = hashes(&ours);
    let outcome = heal(&mut ours, &before, &errand(open, &[peer(1)], root), false, &mut found).map(drop);
    drop(end);
    (ours, found, outcome, asked.load(Ordering::SeqCst) / Question::BYTES)
}

/// Only whole leaves were signs of life: the only donor was dropped before the first was here, and the next sync began
/// from nothing again.
#[test]
fn a_donor_that_is_slow_but_sends_is_not_dropped() {
    let began = Instant::now();
    let (ours, found, outcome, _) = heal_slowly(i64::MAX);
    assert_eq!((outcome, found.dropped, found.donors.get(&peer(1))), (Ok(()), vec![], Some(&1)));
    assert_eq!(ours.digest(), state(9).digest());
    assert!(began.elapsed() > STALLED, "it was slow indeed");
}

#[test]
fn a_donor_that_stops_in_the_middle_of_a_leaf_has_stalled() {
    let (ours, found, outcome, asked) = heal_slowly(LIST as i64 + (LEAF_BYTES / 3) as i64);
    assert_eq!((outcome, found.dropped), (Err(Unhealed::NoDonor), vec![(peer(1), Fault::Stalled)]));
    assert!(found.received < LEAF_BYTES as u64 && !ours.is_torn());
    assert_eq!(asked, 2, "for the list and the leaf: its other stream is not waited for as well");
}

/// A receiver that heard of the election six seconds before its only donor took it for stalled, and the sync failed.
#[test]
fn a_donor_that_hears_of_the_election_late_is_asked_again() {
    let (elected, stall) = (state(9), Arc::<Stall>::default());
    let root = root_of(&elected);
    stall.begin_sync();
    let (opened, openings) = mpsc::channel();
    let donor = open_to(&stall, |wire| Box::new(wire));
    let open: Open = Arc::new(move |peer, deadline| {
        let _ = opened.send(());
        donor(peer, deadline)
    });
    std::thread::scope(|scope| {
        let healing = scope.spawn(|| {
            let (mut ours, mut found) = (state(3), Found::default());
            let before = hashes(&ours);
            let outcome = heal(&mut ours, &before, &errand(open, &[peer(1)], root), false, &mut found);
            assert_eq!((outcome.map(drop), &found.dropped[..]), (Ok(()), &[][..]));
            assert_eq!(ours.digest(), state(9).digest());
        });
        // It comes again before the donor hears of anything.
        let asked_twice = (0..2).all(|_| openings.recv_timeout(PATIENCE).is_ok());
        let _serving = stall.lend(&elected, hashes(&elected), root, [ME], || {});
        healing.join().unwrap();
        assert!(asked_twice);
    });
}

/// Beyond 320 streams were closed without a word, and with its only donor gone every receiver failed.
#[test]
fn however_many_ask_at_once_each_is_told_that_the_donor_is_busy() {
    const ASK: usize = 300;
    let (elected, stall) = (state(9), Arc::<Stall>::default());
    let root = root_of(&elected);
    let _serving = stall.lend(&elected, hashes(&elected), root, [ME], || {});
    let knock = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        stall.accept(ME, Stream::new(Box::new(UnixWire::new(theirs).unwrap())));
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        ours
    };
    // Whoever is served takes its time.
    let served: Vec<_> = (0..STREAMS_MAX).map(|_| knock()).collect();
    let question = Question { root, wanted: Wanted::Hashes }.encode();
    let mut crowd: Vec<_> = (0..ASK).map(|_| knock()).collect();
    for stream in &mut crowd {
        stream.write_all(&question).unwrap();
    }
    for stream in &mut crowd {
        let mut header = [0; Answer::BYTES];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(Answer::decode(&header, Wanted::Hashes).unwrap().status, Status::Busy);
    }
    drop(served);
}

/// Each leaf was verified before it was written, and the second of the two overwrote the first: the member was listed among
/// the holders, with other bits.
#[test]
fn tensors_that_share_memory_are_not_called_healed() {
    let (mut elected, stall) = (SharedState::new(), Arc::<Stall>::default());
    let fill = |state: &mut SharedState, key: &str, value: u8| {
        state.insert(key, vec![value; LEAF_BYTES + 3], &[LEAF_BYTES as u64 + 3]).unwrap();
    };
    fill(&mut elected, "a", 1);
    fill(&mut elected, "b", 2);
    let mut memory = vec![0; LEAF_BYTES + 3];
    let mut tied = SharedState::new();
    for key in ["a", "b"] {
        let info = TensorInfo::new(key, DataType::U8, [LEAF_BYTES as u64 + 3]);
        // SAFETY: the memory outlives the state, and is not used while the state is.
        unsafe { tied.insert_raw(info, memory.as_mut_ptr(), Box::new(())) }.unwrap();
    }
    tied.set_revision(Some(4));
    let mut heal_tied = |elected: &SharedState, staged: bool| {
        let root = root_of(elected);
        let _serving = stall.lend(elected, hashes(elected), root, [ME], || {});
        let (donor, before) = ([peer(1)], hashes(&tied));
        let errand = errand(open_to(&stall, |wire| Box::new(wire)), &donor, root);
        let outcome = heal(&mut tied, &before, &errand, staged, &mut Found::default());
        (outcome.map(drop), tied.is_torn(), tied.revision(), tied.get::<u8>("a").unwrap()[0])
    };
    for staged in [false, true] {
        let (outcome, torn, revision, value) = heal_tied(&elected, staged);
        let Err(Unhealed::Unfit(why)) = outcome else { panic!("{outcome:?}") };
        assert!(why.contains("\"a\" and \"b\" are the same memory here"), "{why}");
        assert_eq!((torn, revision, value), (false, Some(4), 0), "it is as it was");
    }
    // Tied weights are tied everywhere.
    let mut equal = SharedState::new();
    fill(&mut equal, "a", 3);
    fill(&mut equal, "b", 3);
    let (outcome, torn, _, value) = heal_tied(&equal, false);
    assert_eq!((outcome, torn, value), (Ok(()), false, 3));
}
