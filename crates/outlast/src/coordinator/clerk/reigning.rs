//! What the clerk does about an election (rule 19): it serves while the coordinator reigns, and lets everybody go when it
//! does not.

use super::{Clerk, Inbox};
use crate::coordinator::backend::Book;
use crate::coordinator::post::Post;
use outlast_proto::coordinator::{Facts, FactsStamp};
use outlast_proto::id::RunId;
use outlast_proto::reign::Appeal;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::Term;
use std::collections::BTreeMap;
use tokio::sync::{mpsc, oneshot};

/// What the clerk hears of the election (rule 19). In a queue of its own, so that letters hold nothing up.
#[derive(Debug)]
#[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "elections need an etcd"))]
pub(in crate::coordinator) enum News {
    /// We reign under that term, and this was written down before it.
    Begun(Term, BTreeMap<RunId, Facts>),
    /// We do not reign any more.
    Ended,
    /// What was to be written down of a run is.
    Written(RunId, FactsStamp),
    /// One that stands by says who looks for us in vain: how many does that leave on our lines?
    Appeal(Appeal, oneshot::Sender<u64>),
}

impl Clerk {
    /// Stands by until there is news that it reigns.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "elections need an etcd"))]
    pub(in crate::coordinator) fn stand_by(&mut self, post: Post, news: mpsc::UnboundedReceiver<News>) {
        (self.post, self.news, self.reigns) = (post, Some(news), false);
    }

    /// The election goes on.
    pub(super) fn hear(&mut self, news: News) {
        match news {
            News::Begun(term, facts) => {
                self.end_reign();
                self.reigns = true;
                tracing::info!(term, "this coordinator reigns");
                #[cfg(feature = "etcd")]
                if let Some(Book::Etcd(seat)) = &mut self.book {
                    seat.begin(term, facts);
                }
                #[cfg(not(feature = "etcd"))]
                drop(facts);
            }
            News::Ended => self.end_reign(),
            News::Appeal(appeal, answer) => {
                // Whoever asked may have thought better of it.
                let _ = answer.send(appeal.served_of(self.guests.values().copied()));
            }
            News::Written(run, stamp) => {
                self.work_for(&run, None, |clerk| {
                    if let Some(served) = clerk.runs.get_mut(&run) {
                        served.note_written(stamp);
                        clerk.carry_out(&run);
                    }
                });
            }
        }
    }

    /// Whether anything may be decided at this moment. If not, nothing of what was is of use any more: the peers are let
    /// go, and find whoever reigns.
    pub(super) fn may_decide(&mut self) -> bool {
        let may = self.reigns && self.post.may_decide();
        if !may {
            self.end_reign();
        }
        may
    }

    fn end_reign(&mut self) {
        if std::mem::take(&mut self.reigns) {
            tracing::warn!("this coordinator reigns no more: it stands by");
        }
        // Every line is closed, because its queue is. Goodbyes on the health plane take a moment, and nobody waits for them.
        let runs = std::mem::take(&mut self.runs);
        self.strangers.clear();
        if !runs.is_empty() {
            tokio::task::spawn_blocking(move || drop(runs));
        }
    }

    /// Whoever came while we stand by is let go, because its queue is dropped; it finds whoever reigns.
    pub(super) fn decline(&mut self, now: Instant, letter: Inbox) {
        match letter {
            Inbox::Opened { id, peer, .. } => {
                self.customers.opened(now, peer);
                self.guests.insert(id, peer);
            }
            Inbox::Closed { id, .. } => {
                if let Some(peer) = self.guests.remove(&id) {
                    self.customers.closed(peer);
                }
                self.cut.remove(&id);
            }
            Inbox::Solved { run, token, .. } => self.solver.answered(&run, token),
            Inbox::Status(_, answer) => {
                let _ = answer.try_send(None);
            }
            Inbox::Message { .. } | Inbox::Connected { .. } => {}
        }
    }
}

/// The next news of an election, `None` if there will be no more of it; never where there is no election.
pub(super) async fn next_of(news: &mut Option<mpsc::UnboundedReceiver<News>>) -> Option<News> {
    match news {
        Some(news) => news.recv().await,
        None => std::future::pending().await,
    }
}
