//! A register as a program sees it: read, compare and set, wait for news.
//!
//! It is what a rendezvous is built on, without the rendezvous: for whoever brings rules of his own, such as torch's
//! dynamic rendezvous on our backend. A task speaks with the backend; calls are queued and answered one after another.

use super::backend::{Answer, Ask, BackendEnd, Trouble, TroubleKind};
use super::{Fate, RendezvousError, Snapshot, Token};
use crate::fork::Creator;
use crate::runtime;
use crate::sync::{Arc, Condvar, Mutex, lock, sleep};
use crate::watch;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Calls that wait for the task.
const COMMANDS_MAX: usize = 64;
/// Between two attempts of a read at a backend in trouble.
const PAUSE: Duration = Duration::from_millis(100);

/// A register at a backend. Dropping it ends its lease.
#[derive(Debug)]
pub struct RemoteRegister {
    commands: mpsc::Sender<Command>,
    news: Arc<News>,
    creator: Creator,
}

#[derive(Debug)]
struct Command {
    ask: Ask,
    reply: SyncSender<Answer>,
}

#[derive(Debug, Default)]
struct News {
    last: Mutex<Option<Snapshot>>,
    came: Condvar,
    /// What is wrong with the backend at the moment.
    trouble: Mutex<Option<String>>,
}

impl RemoteRegister {
    pub(super) fn start(runtime: &Handle, backend: BackendEnd) -> Self {
        let (commands, commanded) = mpsc::channel(COMMANDS_MAX);
        let news = Arc::<News>::default();
        let serving = serve(backend, commanded, Arc::clone(&news));
        runtime.spawn(runtime::to_its_end("the task of a register", serving));
        Self { commands, news, creator: Creator::this_process() }
    }

    /// How the register is now. Trouble that may pass is waited out for `timeout`.
    pub fn read(&self, timeout: Duration) -> Result<Snapshot, RendezvousError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.ask(Ask::Find, deadline)? {
                Answer::Found(snapshot) => return Ok(snapshot),
                Answer::Trouble(trouble) if trouble.is_final() || Instant::now() + PAUSE >= deadline => {
                    return Err(error_of(trouble));
                }
                _ => pause(PAUSE)?,
            }
        }
    }

    /// Writes if `expected` is the last token. After an error of the kind that may pass, nobody knows whether it was
    /// written: read.
    pub fn write(
        &self,
        expected: Token,
        value: Vec<u8>,
        timeout: Duration,
    ) -> Result<(Fate, Snapshot), RendezvousError> {
        super::builder::check_value(&value)?;
        match self.ask(Ask::Write { expected, value }, Instant::now() + timeout)? {
            Answer::Written(fate, snapshot) => Ok((fate, snapshot)),
            Answer::Trouble(trouble) => Err(error_of(trouble)),
            _ => Err(RendezvousError::Bug("a write was answered by something else")),
        }
    }

    /// Renews the holder's lease.
    pub fn beat(&self, lease: Duration, timeout: Duration) -> Result<(), RendezvousError> {
        self.beat_with(lease, Vec::new(), timeout)
    }

    /// Renews the holder's lease, and leaves a note beside it in place of the one before; empty: none.
    pub fn beat_with(
        &self,
        lease: Duration,
        note: Vec<u8>,
        timeout: Duration,
    ) -> Result<(), RendezvousError> {
        super::builder::check_note(&note)?;
        match self.ask(Ask::Beat { lease, note }, Instant::now() + timeout)? {
            Answer::Beaten => Ok(()),
            Answer::Trouble(trouble) => Err(error_of(trouble)),
            _ => Err(RendezvousError::Bug("a heartbeat was answered by something else")),
        }
    }

    /// Ends the holder's lease.
    pub fn release(&self) -> Result<(), RendezvousError> {
        self.creator.check()?;
        let (reply, _) = sync_channel(1);
        let asked = self.commands.try_send(Command { ask: Ask::Release, reply });
        asked.map_err(|_| RendezvousError::Bug("the task of a register has ended"))
    }

    /// Waits until the register differs from `known` (none: until it is known at all); `None` if it does not in time.
    pub fn watch(
        &self,
        known: Option<&Snapshot>,
        timeout: Duration,
    ) -> Result<Option<Snapshot>, RendezvousError> {
        self.creator.check()?;
        let deadline = Instant::now() + timeout;
        let waiting = watch::Waiting::begin();
        loop {
            let last = lock(&self.news.last);
            if last.is_some() && last.as_ref() != known {
                return Ok(last.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            drop(sleep(&self.news.came, last, watch::patience(left)));
            if waiting.is_given_up() {
                return Err(RendezvousError::Cancelled);
            }
        }
    }

    fn ask(&self, ask: Ask, deadline: Instant) -> Result<Answer, RendezvousError> {
        self.creator.check()?;
        let (reply, answer) = sync_channel(1);
        let waiting = watch::Waiting::begin();
        let asked = self.commands.try_send(Command { ask, reply });
        asked.map_err(|_| RendezvousError::Bug("the task of a register has ended, or does not keep up"))?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answer.recv_timeout(watch::patience(left)) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RendezvousError::Bug("the task of a register has ended"));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    let cause = lock(&self.news.trouble).clone().map(|cause| format!(": {cause}"));
                    let text = "the backend of the register did not answer in time";
                    return Err(RendezvousError::Timeout(text.to_owned() + &cause.unwrap_or_default()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if waiting.is_given_up() {
                return Err(RendezvousError::Cancelled);
            }
        }
    }
}

fn pause(time: Duration) -> Result<(), RendezvousError> {
    let waiting = watch::Waiting::begin();
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::thread::sleep(watch::patience(until.saturating_duration_since(Instant::now())));
        if waiting.is_given_up() {
            return Err(RendezvousError::Cancelled);
        }
    }
    Ok(())
}

pub(super) fn error_of(trouble: Trouble) -> RendezvousError {
    match trouble.kind {
        TroubleKind::Passing => RendezvousError::Timeout(trouble.text),
        TroubleKind::Unauthorized => RendezvousError::Unauthorized(trouble.text),
        TroubleKind::Refused => RendezvousError::Refused(trouble.text),
    }
}

/// Serves calls, one after another, until the program lets go of its end.
async fn serve(mut backend: BackendEnd, mut commands: mpsc::Receiver<Command>, news: Arc<News>) {
    let mut current: Option<Command> = None;
    loop {
        tokio::select! {
            command = commands.recv(), if current.is_none() => {
                let Some(command) = command else { break };
                if !backend.ask(command.ask.clone()) {
                    return;
                }
                if command.ask != Ask::Release {
                    current = Some(command);
                }
            }
            answer = backend.next() => {
                if let Answer::Told(snapshot) | Answer::Found(snapshot) | Answer::Written(_, snapshot) = &answer {
                    *lock(&news.last) = Some(snapshot.clone());
                    *lock(&news.trouble) = None;
                    news.came.notify_all();
                }
                if let Answer::Trouble(trouble) = &answer {
                    *lock(&news.trouble) = Some(trouble.text.clone());
                }
                let answers = |command: &mut Command| matches!(
                    (&command.ask, &answer),
                    (Ask::Find, Answer::Found(_))
                        | (Ask::Write { .. }, Answer::Written(..))
                        | (Ask::Beat { .. }, Answer::Beaten)
                        | (_, Answer::Trouble(_))
                );
                if let Some(command) = current.take_if(answers) {
                    let _ = command.reply.try_send(answer);
                }
            }
        }
    }
    backend.ask(Ask::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_before_a_read_is_not_its_answer() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (backend, mut queues) = BackendEnd::with_queues();
        let register = RemoteRegister::start(runtime.handle(), backend);
        let at = |revision| Snapshot { token: Token { era: 1, revision }, ..Snapshot::default() };
        let serving = runtime.spawn(async move {
            let asked = queues.asks.recv().await.unwrap();
            assert_eq!(asked.ask, Ask::Find);
            // News that was on its way when the question came.
            assert!(queues.tell(Answer::Told(at(3))).await);
            assert!(queues.answer(asked.number, Answer::Found(at(4))).await);
            queues.asks.recv().await.map(|asked| asked.ask)
        });
        assert_eq!(register.read(Duration::from_secs(30)).unwrap().token.revision, 4);
        drop(register);
        assert_eq!(runtime.block_on(serving).unwrap(), Some(Ask::Release));
    }

    #[test]
    fn a_write_that_was_given_up_does_not_answer_the_next() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (backend, mut queues) = BackendEnd::with_queues();
        let register = RemoteRegister::start(runtime.handle(), backend);
        let at = |revision| Snapshot { token: Token { era: 1, revision }, ..Snapshot::default() };
        let serving = runtime.spawn(async move {
            // What goes wrong is about something else; the write is carried out a moment later.
            let first = queues.asks.recv().await.unwrap();
            assert!(queues.tell(Answer::Trouble(Trouble::passing("a look came to nothing"))).await);
            let second = queues.asks.recv().await.unwrap();
            assert!(queues.answer(first.number, Answer::Written(Fate::Accepted, at(2))).await);
            assert!(queues.answer(second.number, Answer::Written(Fate::Lost, at(2))).await);
            queues
        });
        let patience = Duration::from_secs(30);
        let token = |revision| Token { era: 1, revision };
        assert!(matches!(register.write(token(1), vec![1], patience), Err(RendezvousError::Timeout(_))));
        let (fate, told) = register.write(token(1), vec![2], patience).unwrap();
        assert_eq!((fate, told), (Fate::Lost, at(2)));
        drop(runtime.block_on(serving).unwrap());
    }
}
