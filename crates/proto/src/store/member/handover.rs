//! From one view to the next (rule 28).
//!
//! ```text
//!  registrar      Prepare(view)            Fetch(gone)              Activate(view)          Settled
//!  member         freezes what moves  ->   fetches what it     ->   takes it in place  ->   forgets what
//!                 Prepared                 will hold: Ready         Activated               it held before
//! ```
//!
//! Between Prepare and Activate nobody answers for what moves, and replicas take no changes of it; so what is fetched is
//! all that was ever acknowledged. The rest is served all the while. Fetched buckets lie beside the shelf until the view
//! begins: should another one be prepared instead, they are thrown away and nothing has happened.
//!
//! What this does not do: decide. A registrar says who is gone, and when each step may be taken.

use super::{Action, Member};
use crate::store::layout::{Bucket, Layout, bucket};
use crate::store::mesh::Mesh;
use crate::time::{Duration, Instant};
use crate::wire::store::mesh::{Carried, Letter};
use crate::wire::store::operation::Key;
use crate::wire::store::views::ToRegistrar;
use crate::wire::store::{MemberId, View};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A source that sends nothing for this long is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(300);

/// A view that is being prepared.
#[derive(Clone, Debug, Hash)]
pub(super) struct Handover {
    layout: Layout,
    /// The view that ends.
    ends: Option<Layout>,
    moved: Arc<BTreeSet<Bucket>>,
    /// Buckets that are still to be fetched, by whom they are fetched from; behind which key of the first.
    wanted: BTreeMap<MemberId, (Vec<Bucket>, Option<Key>)>,
    fetched: BTreeMap<Bucket, Vec<Carried>>,
    /// Messages with records and pieces of such that have come.
    come: u64,
    is_ready: bool,
    ask_at: Option<Instant>,
}

impl Handover {
    /// Whether the holders of a bucket change.
    pub(super) fn moves(&self, bucket: Bucket) -> bool {
        self.moved.contains(&bucket)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.ask_at
    }

    /// How much has come of what is fetched, so that whoever waits for it sees that it goes on.
    pub(super) fn come(&self) -> u64 {
        self.come
    }

    /// Something has come.
    pub(super) fn count(&mut self) {
        self.come += 1;
    }

    pub(super) fn view(&self) -> &Arc<View> {
        self.layout.view()
    }
}

impl Member {
    pub(super) fn prepare(&mut self, now: Instant, view: View, ends: Option<View>) {
        let (epoch, me) = (view.epoch, self.me.id);
        if epoch <= self.epoch() || epoch < self.ordered {
            return;
        }
        if self.next.as_ref().is_some_and(|next| next.layout.epoch() == epoch) {
            return self.tell(ToRegistrar::Prepared(epoch));
        }
        // The view that ends must be the one that we are in, unless we are new.
        let ends_here = ends.as_ref().map_or(0, |ends| ends.epoch);
        if self.active.is_some() && ends_here != self.epoch() {
            // Whoever sent this takes us for a newcomer: then we must be one.
            if ends.as_ref().is_some_and(|ends| ends.place(me).is_none()) {
                self.actions.push_back(Action::Out("others went on without this member".to_owned()));
            }
            return;
        }
        self.ordered = epoch;
        let layout = Layout::new(view);
        let ends = self.active.clone().or_else(|| ends.map(Layout::new));
        let moved =
            ends.as_ref().map_or_else(BTreeSet::new, |ends| ends.moved(&layout).into_iter().collect());
        let moved = Arc::new(moved);
        let (wanted, fetched) = (BTreeMap::new(), BTreeMap::new());
        let is_in = layout.view().place(me).is_some();
        let (come, is_ready, ask_at) = (0, !is_in, None);
        self.next = Some(Handover { layout, ends, moved, wanted, fetched, come, is_ready, ask_at });
        self.lease.ask_at.get_or_insert(now);
        self.renew_lease(now);
        self.rewire(now);
        self.tell(ToRegistrar::Prepared(epoch));
        // What was frozen for another view that will not come may be served again.
        self.thaw(now);
        self.serve_held(now);
    }

    pub(super) fn fetch(&mut self, now: Instant, epoch: u64, gone: &[MemberId]) {
        let me = self.me.id;
        let Some(next) = self.next.as_mut().filter(|next| next.layout.epoch() == epoch) else { return };
        if !next.is_ready && next.wanted.is_empty() && next.fetched.is_empty() {
            let Some(ends) = &next.ends else {
                next.is_ready = true;
                return self.tell(ToRegistrar::Ready(epoch));
            };
            for bucket in next.moved.iter().filter(|bucket| next.layout.holds(me, **bucket)) {
                match ends.source(*bucket, |member| gone.contains(&member)) {
                    Some(source) if source == me => {}
                    Some(source) => next.wanted.entry(source).or_default().0.push(*bucket),
                    // Both holders are gone: for all who hold it now it is empty.
                    None => {
                        next.fetched.entry(*bucket).or_default();
                    }
                }
            }
            let wanted = next.wanted.values().flat_map(|(buckets, _)| buckets);
            wanted.for_each(|bucket| {
                next.fetched.entry(*bucket).or_default();
            });
        }
        self.ask_sources(now);
    }

    /// Asks everybody for what is still wanted of it; if nothing is, this member is ready.
    fn ask_sources(&mut self, now: Instant) {
        let Some(next) = self.next.as_mut() else { return };
        let epoch = next.layout.epoch();
        if next.wanted.is_empty() {
            (next.is_ready, next.ask_at) = (true, None);
            return self.tell(ToRegistrar::Ready(epoch));
        }
        next.ask_at = Some(now + ASK_AGAIN);
        let asked: Vec<_> = next.wanted.iter().map(|(source, wanted)| (*source, wanted.clone())).collect();
        for (source, (buckets, after)) in asked {
            self.send(now, source, Letter::Pull { epoch, buckets, after });
        }
    }

    /// Somebody fetches what it will hold.
    pub(super) fn pulled(
        &mut self,
        now: Instant,
        from: MemberId,
        epoch: u64,
        buckets: &[Bucket],
        after: Option<&Key>,
    ) {
        let is_frozen = self.next.as_ref().is_some_and(|next| {
            next.layout.epoch() == epoch && buckets.iter().all(|bucket| next.moves(*bucket))
        });
        if is_frozen {
            let (records, finished) = self.shelf.export(buckets, after);
            self.send(now, from, Letter::Records { epoch, finished, records });
        }
    }

    /// What was fetched has come.
    pub(super) fn records(
        &mut self,
        now: Instant,
        from: MemberId,
        epoch: u64,
        finished: u32,
        records: Vec<Carried>,
    ) {
        let Some(next) = self.next.as_mut().filter(|next| next.layout.epoch() == epoch) else { return };
        let Some((buckets, after)) = next.wanted.get_mut(&from) else { return };
        // An answer to a question that was asked twice begins where another one began.
        let begins = records.first().map(|record| (bucket(&record.key), &record.key));
        let expected = begins.is_none_or(|(part, key)| {
            buckets.contains(&part)
                && after.as_ref().is_none_or(|after| Some(&part) != buckets.first() || key > after)
        });
        if !expected || finished as usize > buckets.len() {
            return;
        }
        next.come += 1;
        *after = records.last().map(|record| record.key.clone()).or_else(|| after.take());
        buckets.drain(..finished as usize);
        if after.as_ref().is_some_and(|after| buckets.first() != Some(&bucket(after))) {
            *after = None;
        }
        for record in records {
            next.fetched.entry(bucket(&record.key)).or_default().push(record);
        }
        if buckets.is_empty() {
            next.wanted.remove(&from);
        } else {
            let (buckets, after) = (buckets.clone(), after.clone());
            next.ask_at = Some(now + ASK_AGAIN);
            return self.send(now, from, Letter::Pull { epoch, buckets, after });
        }
        if next.wanted.is_empty() {
            self.ask_sources(now);
        }
    }

    /// The view begins.
    pub(super) fn activate(&mut self, now: Instant, view: View) {
        let (epoch, me) = (view.epoch, self.me.id);
        if epoch == self.epoch() {
            // It goes on, so whatever was being prepared will not come: a registrar never says this while it prepares.
            if self.next.take().is_some() {
                self.rewire(now);
            }
            self.waits_for = None;
            self.tell(ToRegistrar::Activated(epoch));
            self.ask_for_lease(now);
            self.thaw(now);
            return self.serve_held(now);
        }
        if epoch < self.epoch() {
            return;
        }
        let is_prepared =
            self.next.as_ref().is_some_and(|next| next.layout.epoch() == epoch && next.is_ready);
        if !is_prepared || view.place(me).is_none() {
            let why = format!("view {epoch} began without this member");
            return self.actions.push_back(Action::Out(why));
        }
        let Some(next) = self.next.take() else { return };
        let moved = next.moved;
        self.shelf.replace(next.fetched);
        self.ordered = self.ordered.max(epoch);
        self.founder = Some(view.founder);
        self.waits_for = None;
        // Who came without a rank was given one.
        self.me.rank = next.layout.view().member(me).map_or(self.me.rank, |member| member.rank);
        self.active = Some(next.layout);
        self.post.begin_view(now, epoch, self.lost_after());
        self.rewire(now);
        self.replicate_anew(now, |bucket| moved.contains(&bucket));
        self.waiting_room.keep(|key| !moved.contains(&bucket(key)));
        self.tell(ToRegistrar::Activated(epoch));
        self.ask_for_lease(now);
        if let Some(view) = self.view() {
            self.actions.push_back(Action::Entered(Arc::clone(view)));
        }
        self.cast_again(now);
        self.call_again(now);
        self.serve_held(now);
    }

    /// Everybody is in that view.
    pub(super) fn settled(&mut self, epoch: u64) {
        let me = self.me.id;
        if let Some(layout) = self.active.as_ref().filter(|layout| layout.epoch() == epoch) {
            self.shelf.forget(|bucket| layout.holds(me, bucket));
        }
    }

    /// The links that this member should have, in the view and in the one to come.
    pub(super) fn wiring(&self) -> Mesh {
        let mut mesh = self.view().map_or_else(Mesh::default, |view| Mesh::new(view));
        if let Some(next) = &self.next {
            mesh.extend(&Mesh::new(next.view()));
        }
        mesh
    }

    pub(super) fn handover_due(&mut self, now: Instant) {
        if self.next.as_ref().and_then(Handover::due).is_some_and(|at| now >= at) {
            self.ask_sources(now);
        }
    }

    fn tell(&mut self, message: ToRegistrar) {
        self.actions.push_back(Action::Tell(message));
    }
}
