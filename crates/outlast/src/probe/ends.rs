//! The two ends of one measurement.

use super::Arrivals;
use super::pump::{Pumped, Task, pump};
use crate::security;
use crate::state::exchange::Stream;
use outlast_proto::id::PeerId;
use outlast_proto::topology::probe::{Course, PROBE_MESSAGE_BYTES, ProbeMessage};
use std::io;
use std::time::{Duration, Instant};

/// Pings that the round trip is the shortest of.
const PINGS: u64 = 5;
/// From this round trip on one stream is not trusted to fill the pipe.
const LONG: Duration = Duration::from_millis(2);
/// Streams that share a long pipe.
const STREAMS_LONG: u8 = 4;
/// How long a message may take, besides the way.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often whoever waits for streams to be opened looks up.
const BEAT: Duration = Duration::from_millis(5);

/// Opens a stream to a member by that moment.
pub(crate) type Open<'a> = &'a (dyn Fn(PeerId, Instant) -> io::Result<Stream> + Sync);
/// Whether a measurement is no longer wanted.
pub(crate) type Off<'a> = &'a (dyn Fn() -> bool + Sync);

/// What one measurement needs to know.
pub(crate) struct Outing<'a> {
    /// With whom.
    pub(crate) peer: PeerId,
    /// By then it must have begun.
    pub(crate) until: Instant,
    /// Most streams that carry bytes.
    pub(crate) streams_max: u8,
    /// Whether it is no longer wanted.
    pub(crate) off: Off<'a>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measured {
    /// Bytes per second from us to the other.
    pub(crate) sends: u64,
    /// Bytes per second from the other to us.
    pub(crate) receives: u64,
    /// The shortest round trip.
    pub(crate) round_trip: Duration,
}

fn say(stream: &mut Stream, message: ProbeMessage, off: &dyn Fn() -> bool) -> io::Result<()> {
    stream.send(&message.encode(), MESSAGE_TIMEOUT, off)
}

fn hear(stream: &mut Stream, patience: Duration, off: &dyn Fn() -> bool) -> io::Result<ProbeMessage> {
    let mut bytes = [0; PROBE_MESSAGE_BYTES];
    if !stream.receive(&mut bytes, patience, off)? {
        return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "it does not measure with us now"));
    }
    ProbeMessage::decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn unexpected(message: ProbeMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{message:?} out of turn"))
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Measures with a member that expects us.
pub(crate) fn dial(open: Open<'_>, outing: &Outing<'_>) -> io::Result<Measured> {
    let Outing { peer, until, streams_max, off } = *outing;
    let token = u64::from_be_bytes(security::random_bytes());
    let mut talk = open(peer, until)?;
    say(&mut talk, ProbeMessage::Hello(token), off)?;
    match hear(&mut talk, left(until), off)? {
        ProbeMessage::Ready(same) if same == token => {}
        message => return Err(unexpected(message)),
    }
    let mut round_trip = Duration::MAX;
    for number in 0..PINGS {
        let sent = Instant::now();
        say(&mut talk, ProbeMessage::Ping(number), off)?;
        match hear(&mut talk, MESSAGE_TIMEOUT, off)? {
            ProbeMessage::Ping(same) if same == number => round_trip = round_trip.min(sent.elapsed()),
            message => return Err(unexpected(message)),
        }
    }
    let streams = if round_trip < LONG { 1 } else { STREAMS_LONG.min(streams_max).max(1) };
    let mut course = Course::new(round_trip);
    while let Some((way, duration)) = course.next_part() {
        // Streams of its own: what still waits in the buffers of the last part was dropped with them.
        let by = Instant::now() + MESSAGE_TIMEOUT + 4 * round_trip;
        let join = || {
            let mut stream = open(peer, by)?;
            say(&mut stream, ProbeMessage::Join(token), off)?;
            Ok(stream)
        };
        let mut bulk = side_by_side(usize::from(streams), &join, off)?;
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        say(&mut talk, ProbeMessage::Go(way, streams, micros), off)?;
        match hear(&mut talk, MESSAGE_TIMEOUT + 2 * round_trip, off)? {
            ProbeMessage::Started => {}
            message => return Err(unexpected(message)),
        }
        let (sends, receives) = (way.goes_out(), way.comes_in());
        let here = pump(&mut bulk, Task { sends, receives, duration, tail: tail(round_trip) }, off)?;
        let there = agree(&mut talk, here, duration, off)?;
        course.note(way, duration, (there.rate, here.loaded), (here.rate, there.loaded));
    }
    // Whoever does not hear it sees us go.
    let _ = say(&mut talk, ProbeMessage::Over, off);
    let (sends, receives) = course.rates();
    Ok(Measured { sends, receives, round_trip })
}

/// Makes that many. There are several where the way is long, and each takes some round trips: one after the other they would
/// take longer than the measurement. Whether it is called off is found out here: elsewhere nobody hears the program.
fn side_by_side<T: Send>(
    count: usize,
    make: &(dyn Fn() -> io::Result<T> + Sync),
    off: &dyn Fn() -> bool,
) -> io::Result<Vec<T>> {
    if count == 1 {
        return Ok(vec![make()?]);
    }
    std::thread::scope(|scope| {
        let thread = |_| std::thread::Builder::new().spawn_scoped(scope, make);
        let threads = (0..count).map(thread).collect::<io::Result<Vec<_>>>()?;
        while threads.iter().any(|thread| !thread.is_finished()) {
            off();
            std::thread::sleep(BEAT);
        }
        let panicked = |_| Err(io::Error::other("opening a stream panicked, which is a bug in outlast"));
        let made: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        made.into_iter().collect()
    })
}

/// Says what has arrived here, and hears what has arrived there. Neither side closes its streams before it knows that the
/// other has counted: under load one of them may begin much later.
fn agree(talk: &mut Stream, here: Pumped, duration: Duration, off: &dyn Fn() -> bool) -> io::Result<Pumped> {
    let loaded = u32::try_from(here.loaded.as_micros()).unwrap_or(u32::MAX);
    say(talk, ProbeMessage::Found(here.rate, loaded), off)?;
    match hear(talk, MESSAGE_TIMEOUT + duration, off)? {
        ProbeMessage::Found(rate, loaded) => {
            Ok(Pumped { rate, loaded: Duration::from_micros(loaded.into()) })
        }
        message => Err(unexpected(message)),
    }
}

/// The other side begins a way later than we, and its bytes need another.
fn tail(round_trip: Duration) -> Duration {
    2 * round_trip + Duration::from_millis(200)
}

/// Measures with a member that dials us. What we find it tells; it is the one that remembers.
pub(crate) fn wait(arrivals: &Arrivals, outing: &Outing<'_>) -> io::Result<()> {
    let Outing { peer, until, off, .. } = *outing;
    loop {
        let Some(mut talk) = arrivals.take(peer, until, off) else {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it did not come"));
        };
        match hear(&mut talk, left(until).min(MESSAGE_TIMEOUT), off) {
            Ok(ProbeMessage::Hello(token)) => return serve(arrivals, talk, token, outing),
            // A stream of a measurement that was given up.
            Ok(_) | Err(_) if !off() && !left(until).is_zero() => {}
            Ok(message) => return Err(unexpected(message)),
            Err(error) => return Err(error),
        }
    }
}

fn serve(arrivals: &Arrivals, mut talk: Stream, token: u64, outing: &Outing<'_>) -> io::Result<()> {
    let off = outing.off;
    let asked = Instant::now();
    say(&mut talk, ProbeMessage::Ready(token), off)?;
    let mut round_trip = Duration::from_millis(1);
    loop {
        match hear(&mut talk, MESSAGE_TIMEOUT + Duration::from_secs(2), off)? {
            ProbeMessage::Ping(number) => {
                if number == 0 {
                    round_trip = asked.elapsed();
                }
                say(&mut talk, ProbeMessage::Ping(number), off)?;
            }
            ProbeMessage::Go(way, streams, micros) => {
                let (sends, receives) = (way.comes_in(), way.goes_out());
                let duration = Duration::from_micros(micros);
                let task = Task { sends, receives, duration, tail: tail(round_trip) };
                serve_part(arrivals, &mut talk, (token, streams), task, outing)?;
            }
            ProbeMessage::Over => return Ok(()),
            message => return Err(unexpected(message)),
        }
    }
}

fn serve_part(
    arrivals: &Arrivals,
    talk: &mut Stream,
    (token, streams): (u64, u8),
    task: Task,
    outing: &Outing<'_>,
) -> io::Result<()> {
    let Outing { peer, off, .. } = *outing;
    let mut bulk = Vec::new();
    let by = Instant::now() + MESSAGE_TIMEOUT;
    while bulk.len() < usize::from(streams) {
        let Some(mut stream) = arrivals.take(peer, by, off) else {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its streams did not come"));
        };
        if matches!(hear(&mut stream, left(by), off), Ok(ProbeMessage::Join(same)) if same == token) {
            bulk.push(stream);
        }
    }
    say(talk, ProbeMessage::Started, off)?;
    let found = pump(&mut bulk, task, off)?;
    agree(talk, found, task.duration, off).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn streams_are_opened_side_by_side_and_one_that_fails_fails_all() {
        let all = Barrier::new(4);
        // Nobody gets past it alone.
        let made = side_by_side(4, &|| Ok(all.wait().is_leader()), &|| false);
        assert_eq!(made.unwrap().into_iter().filter(|is_leader| *is_leader).count(), 1);
        let here = std::thread::current().id();
        assert_eq!(side_by_side(1, &|| Ok(std::thread::current().id()), &|| false).unwrap(), [here]);
        let none: io::Result<Vec<()>> = side_by_side(2, &|| Err(io::ErrorKind::TimedOut.into()), &|| false);
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
