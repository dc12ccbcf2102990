//! What an agent saw end, told to the coordinator at once (rule 20a).
//!
//! An agent knows of a worker's end when it happens; everybody else would have to wait for silence. So it keeps a
//! connection of its own to the coordinator, under a name of its own, and says there which processes it watches and which
//! have ended. Workers find the agent's name in their environment and name it when they register; only then is the agent
//! believed, and only about them.
//!
//! The connection is made by a task of its own, so that a coordinator that does not answer holds up no worker's
//! replacement. When it is lost it is made again, and everything that matters is said again. If it never comes to be, the
//! run is none the worse: a death is found out as it is without an agent.

use crate::coordinator::{dial, superseded};
use crate::runtime::{self, Plane};
use crate::security::tls::TlsError;
use crate::security::{Credentials, ProcessKey, TlsIdentity};
use crate::sync::{Arc, Mutex, lock};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::limits::WITNESSED_MAX;
use outlast_proto::retry;
use outlast_proto::wire::control::{ProcessName, ToCoordinator};
use outlast_proto::wire::encode_for;
use outlast_proto::wire::hello::Version;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// How long one dial may take, and how long the other host may acknowledge nothing.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// The pause after the first failed dial, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Ends that are told again to a coordinator that was not there.
const ENDED_MAX: usize = 256;
/// What waits to be said; more than that and everything is said anew.
const NEWS_MAX: usize = 1_024;

/// Why there is no witness.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WitnessError {
    /// There is no run secret.
    #[error(
        "an agent needs the run's secret to be believed: pass it, or set OUTLAST_SECRET or OUTLAST_SECRET_FILE"
    )]
    MissingSecret,
    /// The certificate of one's own authority cannot be used.
    #[error(transparent)]
    Certificate(#[from] TlsError),
    /// The operating system refused something.
    #[error("cannot start the exit witness: {0}")]
    Start(#[from] io::Error),
}

/// Tells the coordinator of one run which processes have ended. Dropping it hangs up.
#[derive(Debug)]
pub struct ExitWitness {
    name: PeerId,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    facts: Mutex<Facts>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug)]
enum News {
    Watching(ProcessName),
    Ended(ProcessName),
}

#[derive(Debug, Default)]
struct Facts {
    living: BTreeSet<ProcessName>,
    ended: VecDeque<ProcessName>,
    /// What the connection at hand has not said yet.
    news: VecDeque<News>,
    /// Whether everything is to be said anew.
    anew: bool,
}

impl Facts {
    fn tell(&mut self, news: News) {
        if self.news.len() >= NEWS_MAX {
            self.anew = true;
        }
        if !self.anew {
            self.news.push_back(news);
        }
    }

    /// What to say next. Everything, to a coordinator that knows nothing.
    fn take(&mut self) -> Vec<News> {
        if !std::mem::take(&mut self.anew) {
            return self.news.drain(..).collect();
        }
        self.news.clear();
        let ended = self.ended.iter().flat_map(|process| [News::Watching(*process), News::Ended(*process)]);
        self.living.iter().map(|process| News::Watching(*process)).chain(ended).collect()
    }
}

impl ExitWitness {
    /// A witness for one run at the coordinator `addresses`, under a fresh name unless a certificate gives one.
    pub fn start(addresses: &str, credentials: &Credentials, run: &RunId) -> Result<Self, WitnessError> {
        let keys = credentials.keys(run).ok_or(WitnessError::MissingSecret)?;
        let identity = credentials.identity(&keys, &ProcessKey::generate())?;
        let (name, shared) = (identity.peer(), Arc::<Shared>::default());
        lock(&shared.facts).anew = true;
        let (addresses, told) = (addresses.to_owned(), Arc::clone(&shared));
        let task = runtime::of(Plane::Control)?.spawn(async move {
            loop {
                // Whoever relies on a witness hears of exits late without it (rule 40).
                runtime::to_its_end("a witness of exits", testify(&addresses, &identity, &told)).await;
                tokio::time::sleep(PAUSE_MAX).await;
            }
        });
        Ok(Self { name, shared, task })
    }

    /// The name that workers must give for it to be believed.
    pub fn name(&self) -> PeerId {
        self.name
    }

    /// A process of ours lives.
    pub fn watch(&self, pid: u32) -> Option<ProcessName> {
        // It may have ended already; then its end is told by nobody, and is found out as anybody's.
        let process = super::process_name(pid)?;
        let mut facts = lock(&self.shared.facts);
        if facts.living.len() < WITNESSED_MAX {
            facts.living.insert(process);
            facts.tell(News::Watching(process));
        }
        drop(facts);
        self.shared.changed.notify_one();
        Some(process)
    }

    /// It has ended.
    pub fn exited(&self, process: ProcessName) {
        let mut facts = lock(&self.shared.facts);
        if !facts.living.remove(&process) {
            return;
        }
        if facts.ended.len() >= ENDED_MAX {
            facts.ended.pop_front();
        }
        facts.ended.push_back(process);
        facts.tell(News::Ended(process));
        drop(facts);
        self.shared.changed.notify_one();
    }
}

impl Drop for ExitWitness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Says what there is to say, to whoever is the coordinator.
async fn testify(addresses: &str, identity: &TlsIdentity, shared: &Shared) {
    let mut pause = PAUSE;
    loop {
        match dial(addresses, identity, None, DIAL_TIMEOUT, SILENT_AFTER).await {
            Ok(mut dialled) => {
                pause = PAUSE;
                lock(&shared.facts).anew = true;
                // Versions that know no witnesses are not bothered with one.
                let (frames, version) = (&mut dialled.frames, dialled.version);
                // A coordinator that is stopped does not hang up; another may reign since (rule 19).
                let reign = dialled.standing.as_ref().map(|standing| standing.term);
                let watching = superseded(addresses, identity, None, reign, (DIAL_TIMEOUT, SILENT_AFTER));
                let mut watching = Box::pin(watching);
                loop {
                    let letters = letters(&lock(&shared.facts).take(), version);
                    if frames.send_all(letters.iter().map(Vec::as_slice)).await.is_err() {
                        break;
                    }
                    tokio::select! {
                        () = shared.changed.notified() => {}
                        () = &mut watching => break,
                        // It has nothing to tell us but that it is gone, or that we should be.
                        frame = frames.next() => match frame {
                            Ok(Some(_)) => {}
                            Ok(None) | Err(_) => break,
                        },
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "no coordinator to tell of exits yet"),
        }
        tokio::time::sleep(pause).await;
        pause = retry::longer(pause, PAUSE_MAX);
    }
}

fn letters(news: &[News], version: Version) -> Vec<Vec<u8>> {
    let message = |news: &News| match *news {
        News::Watching(process) => ToCoordinator::Watch { process },
        News::Ended(process) => ToCoordinator::Exited { process },
    };
    news.iter().filter_map(|news| encode_for(&message(news), version)).collect()
}
