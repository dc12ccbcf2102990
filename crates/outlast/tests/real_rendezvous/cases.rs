//! What a register owes its users, whoever serves it.

use crate::roles::Other;
use crate::services::{PATIENCE, Service, until};
use outlast::rendezvous::{Fate, RemoteRegister, RendezvousError, Snapshot, Token};
use rustix::process::Signal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn read(register: &RemoteRegister) -> Snapshot {
    register.read(PATIENCE).expect("a snapshot")
}

fn write(register: &RemoteRegister, expected: Token, value: &[u8]) -> (Fate, Snapshot) {
    register.write(expected, value.to_vec(), PATIENCE).expect("an answer")
}

/// Waits for a snapshot that looks as it should.
fn watched(register: &RemoteRegister, what: &str, is_it: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let mut known = None;
    until(what, || {
        let news = register.watch(known.as_ref(), Duration::from_millis(100)).expect("news");
        known = news.or(known.take());
        known.clone().filter(|snapshot| is_it(snapshot))
    })
}

pub(crate) fn a_write_counts_only_on_the_last_token(service: &mut impl Service) {
    let (one, two) = (service.register(None), service.register(None));
    let empty = read(&one);
    assert_eq!((empty.value.as_deref(), empty.token), (None, Token::default()));
    let (fate, first) = write(&one, empty.token, b"one");
    assert_eq!((fate, first.value.as_deref()), (Fate::Accepted, Some(&b"one"[..])));
    assert!(first.token > empty.token);
    let (fate, told) = write(&two, empty.token, b"two");
    assert_eq!((fate, told.value.as_deref(), told.token), (Fate::Lost, Some(&b"one"[..]), first.token));
    let (fate, second) = write(&two, told.token, b"");
    assert_eq!((fate, second.value.as_deref()), (Fate::Accepted, Some(&b""[..])), "an empty value is one");
    assert!(second.token > first.token);
    assert_eq!(read(&one), second);
}

pub(crate) fn of_two_that_race_one_wins_each_time(service: &mut impl Service) {
    race(service, service.races());
}

/// Two write as fast as they can, each on what it was told last.
pub(crate) fn race(service: &impl Service, races: u64) {
    let won = AtomicU64::new(0);
    let racer = || {
        let register = service.register(None);
        let mut last = read(&register);
        let mut wins = 0;
        while won.load(Ordering::SeqCst) < races {
            let count = last
                .value
                .as_ref()
                .map_or(0, |value| u64::from_be_bytes(value.as_slice().try_into().expect("a number")));
            let (fate, told) = write(&register, last.token, &(count + 1).to_be_bytes());
            assert!(told.token >= last.token, "tokens go back");
            if fate == Fate::Accepted {
                assert_eq!(told.value.as_deref(), Some(&(count + 1).to_be_bytes()[..]));
                wins += 1;
                won.fetch_add(1, Ordering::SeqCst);
            }
            last = told;
        }
        wins
    };
    let wins: Vec<u64> = std::thread::scope(|scope| {
        let racers = [scope.spawn(racer), scope.spawn(racer)];
        racers.into_iter().map(|racer| racer.join().expect("a racer")).collect()
    });
    let end = read(&service.register(None));
    let count = u64::from_be_bytes(end.value.expect("a value").as_slice().try_into().expect("a number"));
    assert_eq!(count, wins.iter().sum::<u64>(), "each accepted write counted once: {wins:?}");
    assert!(count >= races);
}

pub(crate) fn news_reaches_whoever_watches(service: &mut impl Service) {
    let (one, two) = (service.register(None), service.register(None));
    let mut token = read(&one).token;
    for number in 0..20u8 {
        let began = Instant::now();
        token = write(&one, token, &[number]).1.token;
        let heard = watched(&two, "the write", |told| told.token == token);
        assert_eq!(heard.value, Some(vec![number]));
        assert!(began.elapsed() < PATIENCE);
    }
}

pub(crate) fn a_lease_runs_out_by_the_clock_of_the_backend(service: &mut impl Service) {
    let (holder, other) = (service.register(Some("holder")), service.register(None));
    let lease = service.lease();
    assert_eq!(write(&holder, Token::default(), b"too early").0, Fate::Lapsed, "a lease comes first");
    holder.beat(lease, PATIENCE).expect("a lease");
    let alive = watched(&other, "the holder lives", |told| told.alive.contains("holder"));
    let (fate, written) = write(&holder, alive.token, b"in time");
    assert_eq!(fate, Fate::Accepted);
    let gone = watched(&other, "the lease runs out", |told| told.alive.is_empty());
    assert_eq!((gone.token, gone.value.as_deref()), (written.token, Some(&b"in time"[..])));
    assert_eq!(write(&holder, gone.token, b"too late").0, Fate::Lapsed);
    holder.beat(lease * 100, PATIENCE).expect("a lease");
    assert_eq!(write(&holder, gone.token, b"again").0, Fate::Accepted);
    assert!(read(&other).alive.contains("holder"));
    holder.release().expect("it lives");
    watched(&other, "a release is told at once", |told| told.alive.is_empty());
    holder.beat(lease * 100, PATIENCE).expect("a lease");
    watched(&other, "the holder is back", |told| told.alive.contains("holder"));
    drop(holder);
    watched(&other, "who lets go ends its lease", |told| told.alive.is_empty());
}

pub(crate) fn a_note_is_seen_by_others_for_as_long_as_the_lease_lasts(service: &mut impl Service) {
    let (holder, other) = (service.register(Some("holder")), service.register(Some("other")));
    let note = |told: &Snapshot, name: &str| told.notes.get(name).map(|note| note.to_vec());
    let long = Duration::from_mins(1);
    holder.beat_with(long, b"first".to_vec(), PATIENCE).expect("a lease");
    let first = watched(&other, "the note", |told| note(told, "holder").as_deref() == Some(&b"first"[..]));
    // Who leaves a note sees at once what the others left.
    other.beat_with(long, b"mine".to_vec(), PATIENCE).expect("a lease");
    let seen = other.watch(None, PATIENCE).expect("news").expect("it was told before the answer");
    assert_eq!(
        (note(&seen, "holder").as_deref(), note(&seen, "other").as_deref()),
        (Some(&b"first"[..]), Some(&b"mine"[..]))
    );
    holder.beat_with(long, b"second".to_vec(), PATIENCE).expect("a lease");
    let second =
        watched(&other, "another note", |told| note(told, "holder").as_deref() == Some(&b"second"[..]));
    assert_eq!(second.token, first.token, "a note is no write");
    holder.beat(long, PATIENCE).expect("a lease");
    watched(&other, "it is taken back", |told| note(told, "holder").is_none());
    holder.beat_with(service.lease(), b"third".to_vec(), PATIENCE).expect("a lease");
    watched(&other, "the third", |told| note(told, "holder").is_some());
    let gone = watched(&other, "it goes with the lease", |told| !told.alive.contains("holder"));
    assert_eq!(note(&gone, "holder"), None);
    let error = holder.beat_with(long, vec![7; 577], PATIENCE).unwrap_err().to_string();
    assert!(error.contains("note is 577, the limit is 576"), "{error}");
}

pub(crate) fn a_stopped_process_whose_lease_ran_out_does_not_write(service: &mut impl Service) {
    let other = service.register(None);
    let mut holder = Other::holder(&service.backend(), service.secret(), service.lease());
    assert_eq!(holder.says(), "ready");
    watched(&other, "the holder lives", |told| !told.alive.is_empty());
    holder.signal(Signal::STOP);
    let gone = watched(&other, "the lease runs out", |told| told.alive.is_empty());
    holder.signal(Signal::CONT);
    holder.tell("write");
    assert_eq!(holder.says(), "Ok(Lapsed)");
    assert_eq!(read(&other).token, gone.token, "nothing was written");
}

pub(crate) fn a_backend_that_is_killed_and_started_again_is_found_again_with_what_was_written(
    service: &mut impl Service,
) {
    let lease = Duration::from_mins(1);
    let (one, two) = (service.register(Some("one")), service.register(Some("two")));
    one.beat(lease, PATIENCE).expect("a lease");
    two.beat(lease, PATIENCE).expect("a lease");
    let mut token = read(&one).token;
    for value in [b"1", b"2", b"3"] {
        let (fate, told) = write(&one, token, value);
        assert_eq!(fate, Fate::Accepted);
        token = told.token;
    }
    watched(&two, "the last write", |told| told.token == token);
    for round in 0..2 {
        service.kill();
        let lost = one.write(token, b"lost?".to_vec(), PATIENCE);
        assert!(matches!(lost, Err(RendezvousError::Timeout(_))), "{round}: {lost:?}");
        service.restart();
        let told = read(&two);
        let came_through = service.catches_up() && told.value.as_deref() == Some(b"lost?");
        assert!(came_through || told.value.as_deref() == Some(b"3"), "{round}: {told:?}");
        assert!(told.token >= token, "{round}: {} after {token}", told.token);
        assert_eq!(told.alive.len(), 2, "{round}: the leases last: {told:?}");
        let (mut fate, mut told) = write(&one, told.token, b"3");
        if service.catches_up() && told.value.as_deref() == Some(b"lost?") {
            // It came through between the look and the write.
            (fate, told) = write(&one, told.token, b"3");
        }
        assert_eq!(fate, Fate::Accepted, "{round}");
        token = watched(&two, "the write after", |news| news.token == told.token).token;
    }
}

pub(crate) fn a_stopped_backend_is_an_error_in_time_and_passes(service: &mut impl Service) {
    let register = service.register(None);
    let token = read(&register).token;
    service.stop();
    let began = Instant::now();
    let error = register.write(token, b"slow".to_vec(), Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, RendezvousError::Timeout(_)), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    service.go_on();
    let told = watched(&register, "the write comes through after all", |told| told.token > token);
    assert_eq!(told.value.as_deref(), Some(&b"slow"[..]));
}

pub(crate) fn a_backend_that_is_not_there_is_an_error_in_time_that_names_it(service: &mut impl Service) {
    service.kill();
    let address = service.backend().rsplit('/').next().expect("an address").to_owned();
    let error = service.register(None).read(Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, RendezvousError::Timeout(_)), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    let node = service.node(1, 1).join_timeout(Duration::from_millis(300));
    let node =
        node.configure(|settings| settings.rollback = Duration::from_millis(100)).start().expect("a node");
    let began = Instant::now();
    let error = node.next_rendezvous().unwrap_err();
    assert!(matches!(error, RendezvousError::Timeout(_)), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

pub(crate) fn a_value_that_is_too_large_is_refused_by_name(service: &mut impl Service) {
    let register = service.register(None);
    let error = register.write(Token::default(), vec![0; (4 << 20) + 1], PATIENCE).unwrap_err().to_string();
    assert!(error.contains("value is 4194305, the limit is 4194304"), "{error}");
    let (fate, told) = write(&register, read(&register).token, &vec![7; 1 << 20]);
    assert_eq!((fate, told.value.map(|value| value.len())), (Fate::Accepted, Some(1 << 20)));
}

pub(crate) fn two_runs_do_not_see_each_other(service: &mut impl Service) {
    let other = service.node(1, 1).run_id("another".parse().expect("a run id"));
    let other = other.open_register("case", Some("holder")).expect("a register");
    other.beat(Duration::from_mins(1), PATIENCE).expect("a lease");
    assert_eq!(write(&other, Token::default(), b"theirs").0, Fate::Accepted);
    let sibling = service.node(1, 1).open_register("case2", None).expect("a register");
    for register in [service.register(None), sibling] {
        let told = read(&register);
        assert_eq!((told.value, told.alive.len()), (None, 0));
    }
}
