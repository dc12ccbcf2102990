//! Why does this call not end? What this member can say about itself, and what it makes of what others said.
//!
//! The text is for a person at three in the morning. It names the operation and the key, who should answer and who has
//! the copy, the way there with the state of every link that we know of, what the owner says if it says anything, and
//! draws one conclusion. Times are relative: to the store's start and to the call's begin.

use super::Member;
use super::calls::{Call, Ticket, What};
use crate::limits::{STORE_ACCOUNT_LINKS_MAX, TEXT_BYTES_MAX};
use crate::store::layout::{Layout, slot};
use crate::store::record::Record;
use crate::time::{Duration, Instant};
use crate::wire::clip;
use crate::wire::store::account::{Account, Inquiry};
use crate::wire::store::{MemberId, StoreMember};
use std::fmt::Write as _;

impl Member {
    /// What this member knows of a call.
    pub(super) fn account(&self, now: Instant, inquiry: &Inquiry) -> Account {
        let part = inquiry.key.as_ref().map(slot);
        let owner = part.and_then(|part| self.active.as_ref()?.owner(part));
        let present = inquiry.key.as_ref().map(|key| self.shelf.record(key).is_some_and(Record::is_present));
        let since = inquiry.key.as_ref().and_then(|key| self.desk.waits_since(key, inquiry.call));
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let links = self.post.links().iter().take(STORE_ACCOUNT_LINKS_MAX);
        Account {
            number: inquiry.number,
            from: self.me.id,
            epoch: self.active.as_ref().map(Layout::epoch),
            owns: owner == Some(self.me.id),
            present,
            waits_ms: since.map(|since| millis(now.since(since))),
            lease_ms: self.lease.until.filter(|until| now < *until).map(|until| millis(until.since(now))),
            moving: self.next.as_ref().is_some_and(|next| part.is_none_or(|part| next.moves(part))),
            unacknowledged: self.replication.unacknowledged(),
            links: links.map(|(to, link)| (*to, link.is_up(), millis(now.since(link.since())))).collect(),
        }
    }

    fn name(&self, member: MemberId) -> String {
        if member == self.me.id {
            return format!("this member, rank {}", self.me.rank);
        }
        self.post.known(member).map_or_else(|| format!("member {member}"), StoreMember::words)
    }

    fn link_words(&self, now: Instant, to: MemberId) -> String {
        match self.post.links().get(&to) {
            Some(link) if link.is_up() => {
                format!(
                    "connected for {}, {} messages pending",
                    words(now.since(link.since())),
                    link.pending()
                )
            }
            Some(link) if link.was_up() => format!("disconnected for {}", words(now.since(link.since()))),
            Some(link) => format!("not connected yet, tried for {}", words(now.since(link.since()))),
            None => "no link of ours".to_owned(),
        }
    }

    /// Why a call's time is over.
    pub(super) fn diagnosis(&self, now: Instant, ticket: Ticket) -> String {
        let Some((_, call)) = self.calls.under_way().find(|(other, _)| *other == ticket) else {
            return String::new();
        };
        let mut text = format!("{} timed out after {}: ", call.words(), words(now.since(call.begun)));
        let (cause, details) = self.explain(now, call);
        text.push_str(&cause);
        let _ = write!(text, " [store up for {}; {details}]", words(now.since(self.started)));
        clip(&text, 4 * TEXT_BYTES_MAX)
    }

    /// The conclusion, and what it is drawn from.
    fn explain(&self, now: Instant, call: &Call) -> (String, String) {
        let Some(layout) = self.active.as_ref() else {
            let cause = self.waits_for.clone().unwrap_or_else(|| {
                "this member is in no view: nobody who decides on views has answered yet".to_owned()
            });
            return (cause, "no view".to_owned());
        };
        let view = layout.view();
        let mut details = format!("view {} of {} members", view.epoch, view.members.len());
        let What::One(key, operation) = &call.what else {
            return ("not every member has answered".to_owned(), details);
        };
        let Some(holders) = layout.holders(slot(key)) else { return ("no members".to_owned(), details) };
        let owner = self.name(holders.owner);
        let _ = write!(details, "; owner {owner}");
        if let Some(replica) = holders.replica {
            let _ = write!(details, "; replica {}", self.name(replica));
        }
        if holders.owner != self.me.id {
            let way = self.post.way(holders.owner);
            let shown = way
                .first()
                .copied()
                .into_iter()
                .chain(Some(holders.owner).filter(|o| way.first() != Some(o)));
            for hop in shown {
                let _ = write!(details, "; link to {}: {}", self.name(hop), self.link_words(now, hop));
            }
            let _ = write!(details, "; {} hops; sent {} times", way.len().max(1), call.sends);
        }
        for (member, (_, account)) in &call.accounts {
            let _ = write!(details, "; {} says: {}", self.name(*member), account_words(account));
        }
        let said = call.accounts.get(&holders.owner).map(|(_, account)| account);
        let is_own = holders.owner == self.me.id;
        let cause = match said {
            _ if self.next.as_ref().is_some_and(|next| next.moves(slot(key))) => {
                "the key is moving to other members: a view is being prepared".to_owned()
            }
            _ if is_own && !self.has_lease(now) => {
                "this member owns the key, but has not been heard by whoever decides on views: its lease has run out"
                    .to_owned()
            }
            Some(account) if account.lease_ms.is_none() => format!(
                "the key's owner, {owner}, lives but has lost its lease: it cannot reach whoever decides on views"
            ),
            Some(account) if account.waits_ms.is_some() && account.present == Some(false) => {
                format!("the key is absent; the call waits at its owner, {owner}")
            }
            Some(account) if account.present == Some(false) && operation.waits() => {
                format!("the key is absent at its owner, {owner}, which has not got this call: the way there is cut")
            }
            Some(account) if account.unacknowledged > 0 => {
                let replica = holders.replica.map_or_else(|| "nobody".to_owned(), |replica| self.name(replica));
                format!("the owner, {owner}, waits for its replica, {replica}, to acknowledge")
            }
            Some(_) => format!("the owner, {owner}, lives, but its answers do not come over the route"),
            None if is_own && operation.waits() => "the key is absent; this member owns it".to_owned(),
            None if is_own => {
                let replica = holders.replica.map_or_else(|| "nobody".to_owned(), |replica| self.name(replica));
                format!("this member owns the key and waits for its replica, {replica}, to acknowledge")
            }
            None => {
                let link = self.link_words(now, holders.owner);
                format!("the key's owner, {owner}, does not answer, neither over its links nor to datagrams ({link})")
            }
        };
        let cause = match (&self.waits_for, view.members.len()) {
            (Some(waits_for), _) => format!("{cause}; {waits_for}"),
            _ => cause,
        };
        (cause, details)
    }
}

fn account_words(account: &Account) -> String {
    let epoch = account.epoch.map_or_else(|| "in no view".to_owned(), |epoch| format!("in view {epoch}"));
    let present = match account.present {
        Some(true) => ", key present",
        Some(false) => ", key absent",
        None => "",
    };
    let waits = account
        .waits_ms
        .map_or_else(String::new, |ms| format!(", call waiting for {}", words(Duration::from_millis(ms))));
    let lease = account.lease_ms.map_or(", no lease", |_| "");
    let moving = if account.moving { ", key moving" } else { "" };
    let down = account.links.iter().filter(|(_, up, _)| !up).count();
    let links =
        if down > 0 { format!(", {down} of {} links down", account.links.len()) } else { String::new() };
    format!("{epoch}{present}{waits}{lease}{moving}{links}")
}

/// A span as people say it.
fn words(span: Duration) -> String {
    match span.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1_000.0),
        seconds => format!("{seconds:.1} s"),
    }
}
