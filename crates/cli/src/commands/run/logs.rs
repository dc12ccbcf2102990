//! What workers say: on the terminal with a mark in front, in files as it is, and the last of it in memory.
//!
//! Each stream has a thread that reads it, and one more thread writes. A terminal that is held (Ctrl-S) or a disk that
//! does not answer stops the writer, then the readers, then the workers that go on talking, as a pipe to the terminal
//! would; it never stops the agent, which only puts its own lines into the queue, and drops them if that is full.
//!
//! The last lines of each worker are kept, because a failure is explained by them: what a Python program dies of is the
//! last thing that it prints.

use super::super::json::printable_line;
use outlast::agent::{Life, Streams};
use outlast::sync::lock;
use rustix::io::read;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What waits for the writer; beyond it workers wait.
const QUEUE_MAX: usize = 512;
/// The most that is read at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// A line that is longer is shown in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// How often a line is shown that others write over.
const DRAFT_EVERY: Duration = Duration::from_secs(1);
/// What is kept of each stream.
const TAIL_LINES_MAX: usize = 200;
const TAIL_LINE_BYTES_MAX: usize = 2 * 1024;
/// Workers whose last lines are kept.
const TAILS_MAX: usize = 64;
/// How long the last words are waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Colours that can be read on light and on dark ground.
const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];

/// Which stream of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stream {
    Output,
    Errors,
}

/// Where a worker's words go.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) life: Life,
    /// What it is called: its rank.
    pub(super) rank: usize,
    /// Whether stdout and stderr are shown.
    pub(super) shown: (bool, bool),
    /// A folder for its files.
    pub(super) folder: Option<PathBuf>,
}

enum Item {
    Opened(Source),
    Chunk(Life, Stream, Vec<u8>),
    Closed(Life, Stream),
    /// The agent's own words, for people and for programs.
    Said(String, serde_json::Value),
    /// A line that stays at the bottom of a terminal.
    Progress(String),
    Tail(Life, SyncSender<Tail>),
    End,
}

/// The last lines of a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    pub(super) output: Vec<String>,
    pub(super) errors: Vec<String>,
}

/// The way to the writer.
#[derive(Clone, Debug)]
pub(super) struct Logs {
    queue: SyncSender<Item>,
    followed: Followed,
}

/// Workers whose streams have not both ended. Whoever is followed is in it from that moment on: a worker may have ended, and
/// all others with it, before the first word of it has reached the writer.
type Followed = Arc<Mutex<BTreeSet<Life>>>;

impl Logs {
    /// Begins to write. `json`: one object per line, on stdout.
    pub(super) fn start(json: bool) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (queue, items) = sync_channel(QUEUE_MAX);
        let coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let writer = Writer {
            json,
            coloured: coloured && std::io::stdout().is_terminal(),
            live: !json && std::io::stderr().is_terminal(),
            progress: String::new(),
            workers: BTreeMap::new(),
            followed: Arc::default(),
        };
        let followed = Arc::clone(&writer.followed);
        let thread =
            std::thread::Builder::new().name("outlast-logs".to_owned()).spawn(move || writer.run(items))?;
        Ok((Self { queue, followed }, thread))
    }

    /// Reads a worker's streams until they end.
    pub(super) fn follow(&self, source: Source, streams: Streams) {
        let (life, queue) = (source.life, self.queue.clone());
        let Streams { output, errors } = streams;
        lock(&self.followed).insert(life);
        let reading = spawn(life, move || {
            // Whoever is read must be known to the writer, and the agent must not wait for it.
            let _ = queue.send(Item::Opened(source));
            let other = queue.clone();
            let reading = spawn(life, move || read_all(life, Stream::Errors, &errors, &other));
            if reading.is_err() {
                let _ = queue.send(Item::Closed(life, Stream::Errors));
            }
            read_all(life, Stream::Output, &output, &queue);
        });
        if reading.is_err() {
            lock(&self.followed).remove(&life);
        }
    }

    /// The agent says something. Never waits.
    pub(super) fn say(&self, words: String, facts: serde_json::Value) {
        let _ = self.queue.try_send(Item::Said(words, facts));
    }

    /// Shows how it stands. Never waits.
    pub(super) fn progress(&self, words: String) {
        let _ = self.queue.try_send(Item::Progress(words));
    }

    /// The last lines of a worker, once its streams have ended or a moment has passed.
    pub(super) fn tail(&self, life: Life) -> Tail {
        let (answer, answered) = sync_channel(1);
        let _ = self.queue.send(Item::Tail(life, answer));
        answered.recv_timeout(LAST_WORDS + Duration::from_secs(1)).unwrap_or_default()
    }

    /// Writes what is left, and ends.
    pub(super) fn end(self, thread: JoinHandle<()>) {
        let _ = self.queue.send(Item::End);
        let _ = thread.join();
    }
}

/// Without a thread nobody reads it: its end is closed, and the worker hears of it when it writes.
fn spawn(life: Life, read: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = std::thread::Builder::new().name(format!("outlast-log-{}", life.slot));
    let spawned = builder.spawn(read).map(drop);
    spawned.inspect_err(|error| {
        eprintln!("outlast: no thread to read what worker {} says: {error}", life.slot);
    })
}

fn read_all(life: Life, stream: Stream, descriptor: &OwnedFd, queue: &SyncSender<Item>) {
    let mut buffer = vec![0_u8; CHUNK_BYTES];
    loop {
        match read(descriptor, &mut buffer) {
            Ok(length) if length > 0 => {
                if queue.send(Item::Chunk(life, stream, buffer[..length].to_vec())).is_err() {
                    return;
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => break,
        }
    }
    let _ = queue.send(Item::Closed(life, stream));
}

/// One stream on its way to a terminal and a file.
#[derive(Default)]
struct Channel {
    shown: bool,
    file: Option<File>,
    part: Vec<u8>,
    /// Whether the last line was ended by a carriage return: a line feed that follows belongs to it.
    returned: bool,
    /// What a carriage return has ended, and the next text may write over: a progress bar.
    draft: Option<Vec<u8>>,
    drafted_at: Option<Instant>,
    tail: VecDeque<String>,
    closed: bool,
}

impl Channel {
    /// The lines that are to be shown now. Of those that write over each other one is shown each second, and the last.
    fn cut(&mut self, now: Instant, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let (draft, returned) = (self.draft.take(), std::mem::take(&mut self.returned));
            if piece == b"\n" && (draft.is_some() || returned) {
                lines.extend(draft);
                continue;
            }
            self.part.extend_from_slice(piece);
            if piece.ends_with(b"\r") {
                let line = std::mem::take(&mut self.part);
                if self.drafted_at.is_none_or(|at| now.duration_since(at) >= DRAFT_EVERY) {
                    (self.drafted_at, self.returned) = (Some(now), true);
                    lines.push(line);
                } else {
                    self.draft = Some(line);
                }
            } else if piece.ends_with(b"\n") || self.part.len() >= LINE_BYTES_MAX {
                lines.push(std::mem::take(&mut self.part));
            }
        }
        lines
    }

    /// What is left at the end.
    fn rest(&mut self) -> Vec<Vec<u8>> {
        let part = Some(std::mem::take(&mut self.part)).filter(|part| !part.is_empty());
        self.draft.take().into_iter().chain(part).collect()
    }
}

struct Worker {
    rank: usize,
    output: Channel,
    errors: Channel,
}

impl Worker {
    fn channel(&mut self, stream: Stream) -> &mut Channel {
        match stream {
            Stream::Output => &mut self.output,
            Stream::Errors => &mut self.errors,
        }
    }

    fn is_closed(&self) -> bool {
        self.output.closed && self.errors.closed
    }

    fn tail(&self) -> Tail {
        let lines = |channel: &Channel| {
            let rest = String::from_utf8_lossy(&channel.part).into_owned();
            let rest = Some(rest).filter(|rest| !rest.is_empty());
            channel.tail.iter().cloned().chain(rest).collect()
        };
        Tail { output: lines(&self.output), errors: lines(&self.errors) }
    }
}

struct Writer {
    json: bool,
    coloured: bool,
    live: bool,
    progress: String,
    workers: BTreeMap<Life, Worker>,
    followed: Followed,
}

impl Writer {
    fn run(mut self, items: Receiver<Item>) {
        let mut asked: Vec<(Life, SyncSender<Tail>, Instant)> = Vec::new();
        let mut end: Option<Instant> = None;
        loop {
            let until = asked.iter().map(|(_, _, until)| *until).chain(end).min();
            let patience = until
                .map_or(Duration::from_hours(1), |until| until.saturating_duration_since(Instant::now()));
            match items.recv_timeout(patience) {
                Ok(Item::End) => end = Some(Instant::now() + LAST_WORDS),
                Ok(Item::Tail(life, answer)) => asked.push((life, answer, Instant::now() + LAST_WORDS)),
                Ok(item) => self.take(item),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => end = Some(Instant::now()),
            }
            asked.retain(|(life, answer, until)| {
                let worker = self.workers.get(life);
                let ready = !lock(&self.followed).contains(life) || *until <= Instant::now();
                if ready {
                    let _ = answer.try_send(worker.map(Worker::tail).unwrap_or_default());
                }
                !ready
            });
            if end.is_some_and(|end| lock(&self.followed).is_empty() || end <= Instant::now()) {
                self.clear();
                return;
            }
        }
    }

    fn take(&mut self, item: Item) {
        match item {
            Item::Opened(source) => self.opened(source),
            Item::Chunk(life, stream, bytes) => self.write(life, stream, &bytes),
            Item::Closed(life, stream) => {
                self.flush(life, stream);
                if let Some(worker) = self.workers.get_mut(&life) {
                    let channel = worker.channel(stream);
                    (channel.closed, channel.file) = (true, None);
                    if worker.is_closed() {
                        lock(&self.followed).remove(&life);
                    }
                }
            }
            Item::Said(words, facts) => self.say(&words, &facts),
            Item::Progress(words) => {
                if self.live && words != self.progress {
                    self.progress = words;
                    self.clear();
                    self.draw();
                }
            }
            Item::Tail(..) | Item::End => {}
        }
    }

    fn worker(&mut self, life: Life) -> &mut Worker {
        if !self.workers.contains_key(&life) {
            // The oldest who have ended are forgotten.
            while self.workers.len() >= TAILS_MAX {
                let Some(old) =
                    self.workers.iter().find(|(_, worker)| worker.is_closed()).map(|(life, _)| *life)
                else {
                    break;
                };
                self.workers.remove(&old);
            }
        }
        self.workers.entry(life).or_insert_with(|| Worker {
            rank: life.slot,
            output: Channel::default(),
            errors: Channel::default(),
        })
    }

    fn opened(&mut self, source: Source) {
        let (life, (output, errors)) = (source.life, source.shown);
        let file = |name: &str| {
            let folder = source.folder.as_ref()?;
            let made = std::fs::create_dir_all(folder).and_then(|()| File::create(folder.join(name)));
            made.map_err(|error| eprintln!("outlast: no log file {}: {error}", folder.join(name).display()))
                .ok()
        };
        let (output_file, errors_file) = (file("stdout.log"), file("stderr.log"));
        let worker = self.worker(life);
        worker.rank = source.rank;
        (worker.output.shown, worker.output.file) = (output, output_file);
        (worker.errors.shown, worker.errors.file) = (errors, errors_file);
    }

    fn write(&mut self, life: Life, stream: Stream, bytes: &[u8]) {
        let worker = self.worker(life);
        let rank = worker.rank;
        let channel = worker.channel(stream);
        if let Some(file) = &mut channel.file
            && let Err(error) = file.write_all(bytes)
        {
            eprintln!("outlast: the log of worker {rank} ends here: {error}");
            channel.file = None;
        }
        let lines = channel.cut(Instant::now(), bytes);
        self.lines(life, stream, lines);
    }

    /// What was not ended by a line feed is shown too.
    fn flush(&mut self, life: Life, stream: Stream) {
        let rest = self.worker(life).channel(stream).rest();
        self.lines(life, stream, rest);
    }

    fn lines(&mut self, life: Life, stream: Stream, lines: Vec<Vec<u8>>) {
        let worker = self.worker(life);
        let (rank, channel) = (worker.rank, worker.channel(stream));
        let mut texts = Vec::new();
        for line in lines {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\n', '\r']).to_owned();
            if channel.tail.len() >= TAIL_LINES_MAX {
                channel.tail.pop_front();
            }
            channel.tail.push_back(text.chars().take(TAIL_LINE_BYTES_MAX).collect());
            texts.push(text);
        }
        if !channel.shown || texts.is_empty() {
            return;
        }
        let name = if stream == Stream::Output { "stdout" } else { "stderr" };
        let mut shown = String::new();
        for text in texts {
            if self.json {
                let line = json!({ "event": "line", "rank": rank, "worker": life.slot, "life": life.number, "stream": name, "text": text });
                shown += &printable_line(&line.to_string());
            } else if self.coloured {
                let colour = COLOURS[rank % COLOURS.len()];
                let _ = writeln!(shown, "\x1b[{colour}m[{rank}]\x1b[0m {text}");
            } else {
                let _ = writeln!(shown, "[{rank}] {text}");
            }
        }
        self.show(&shown, stream == Stream::Errors && !self.json);
    }

    fn say(&mut self, words: &str, facts: &serde_json::Value) {
        if self.json {
            self.show(&printable_line(&facts.to_string()), false);
        } else if !words.is_empty() {
            let mut lines = String::new();
            for line in words.lines() {
                let _ = writeln!(lines, "outlast: {line}");
            }
            self.show(&lines, true);
        }
    }

    /// Writes above the line that stays. Whoever read it may have gone: then nobody is shown anything, and the run goes on.
    fn show(&mut self, text: &str, errors: bool) {
        self.clear();
        let _ = if errors {
            std::io::stderr().write_all(text.as_bytes())
        } else {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
        self.draw();
    }

    fn clear(&mut self) {
        if self.live && !self.progress.is_empty() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn draw(&mut self) {
        if self.live && !self.progress.is_empty() {
            let _ = write!(std::io::stderr(), "\x1b[2m{}\x1b[0m", self.progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;

    /// A worker that said something and has ended.
    fn streams(said: &str) -> Streams {
        let (output, says) = pipe().unwrap();
        let (errors, _) = pipe().unwrap();
        assert_eq!(rustix::io::write(&says, said.as_bytes()), Ok(said.len()));
        Streams { output, errors }
    }

    /// One in some hundred runs of three short workers lost a line.
    #[test]
    fn nobody_is_forgotten_who_ended_before_its_first_word_was_read() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..100_u32 {
            let (logs, thread) = Logs::start(false).unwrap();
            let life = Life { slot: 0, number: round };
            let place = folder.path().join(round.to_string());
            let source = Source { life, rank: 0, shown: (false, false), folder: Some(place.clone()) };
            logs.follow(source, streams("last words\n"));
            if round.is_multiple_of(2) {
                assert_eq!(logs.tail(life).output, ["last words"], "what a failure is explained by");
            }
            logs.end(thread);
            assert_eq!(std::fs::read_to_string(place.join("stdout.log")).unwrap(), "last words\n");
        }
    }

    #[test]
    fn of_lines_that_write_over_each_other_one_is_shown_each_second_and_the_last() {
        let (mut channel, start) = (Channel::default(), Instant::now());
        let mut shown = |millis: u64, text: &str| {
            let lines = channel.cut(start + Duration::from_millis(millis), text.as_bytes());
            lines.iter().map(|line| String::from_utf8_lossy(line).trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(shown(0, "a\r\nb\r\nc\n"), ["a", "b", "c"], "ends of lines of another system");
        assert_eq!(shown(100, "1%\r2%\r3"), [""; 0]);
        assert_eq!(shown(1_000, "%\r"), ["3%"]);
        assert_eq!(shown(1_100, "4%\r5%\r"), [""; 0]);
        assert_eq!(shown(1_200, "\nd"), ["5%"], "the last one stays");
        assert_eq!(shown(1_300, "one\n6%\r7%\r"), ["done"]);
        assert_eq!(channel.rest(), [b"7%\r".to_vec()]);
    }
}
