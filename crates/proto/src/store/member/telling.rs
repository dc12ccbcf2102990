//! Why does this call not end? What this member makes of what it knows and of what others said, in words.
//!
//! The text is for a person at three in the morning. Its first line names the operation, the key, the time, and one cause
//! (`diagnosis.rs`). The lines behind it are what the cause was drawn from: the view and who decides on it, the owner and
//! the replica and what they say, the way there with the state of every link that is known, members that were never
//! connected. Every time is told twice: how long before the timeout, and when after the store's start.

use super::Member;
use super::calls::{Call, Ticket, What};
use super::inquiry::{Heard, Said, link_account};
use crate::limits::TEXT_BYTES_MAX;
use crate::store::diagnosis::{Cause, Evidence};
use crate::store::layout::{Holders, bucket};
use crate::store::registrar::Knocked;
use crate::time::{Duration, Instant};
use crate::wire::clip;
use crate::wire::store::account::{Account, LinkAccount};
use crate::wire::store::{MemberId, StoreMember};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Members that one line names.
const NAMED_MAX: usize = 8;

impl Member {
    /// Why a call's time is over.
    pub(super) fn diagnosis(&self, now: Instant, ticket: Ticket) -> String {
        let Some(call) = self.calls.under_way.get(&ticket) else { return String::new() };
        let said: BTreeMap<_, _> = self.calls.inquiries.said(ticket).collect();
        let told = Told { member: self, now, ticket, call, said };
        let took = words(now.since(call.begun));
        let mut text = format!("{} timed out after {took}: {}", call.words(), told.cause());
        told.lines().into_iter().for_each(|line| text.extend(["\n  ", &line]));
        clip(&text, 2 * TEXT_BYTES_MAX)
    }

    fn name(&self, member: MemberId) -> String {
        if member == self.me.id {
            return format!("this member, rank {}", self.me.rank);
        }
        self.post.known(member).map_or_else(|| format!("member {member}"), StoreMember::words)
    }
}

/// What is known of one call whose time is over.
struct Told<'a> {
    member: &'a Member,
    now: Instant,
    ticket: Ticket,
    call: &'a Call,
    said: BTreeMap<MemberId, &'a Said>,
}

impl Told<'_> {
    fn holders(&self) -> Option<Holders> {
        let What::One(key, _) = &self.call.what else { return None };
        self.member.active.as_ref()?.holders(bucket(key))
    }

    /// Those who have not answered a question about all keys.
    fn left(&self) -> Vec<MemberId> {
        match &self.call.what {
            What::One(..) => Vec::new(),
            What::Keys(_, _, left) => left.keys().copied().collect(),
            What::Count(_, left) => left.iter().copied().collect(),
        }
    }

    /// What is known of the member that should have answered.
    fn evidence<'e>(&self, whom: MemberId, own: Option<&'e Account>) -> Evidence<'e> {
        let said = self.said.get(&whom);
        let inquiries = &self.member.calls.inquiries;
        let part = match &self.call.what {
            What::One(key, _) => Some(bucket(key)),
            What::Keys(..) | What::Count(..) => None,
        };
        let moving = self.member.next.as_ref().is_some_and(|next| part.is_none_or(|part| next.moves(part)));
        Evidence {
            epoch: self.member.epoch(),
            moving,
            account: own,
            by_link: said.is_none_or(|said| said.by_link),
            knocked: inquiries.knocked(whom),
            heard: match inquiries.heard(self.now, whom) {
                Some(Heard::Ago(ago)) => Some(ago),
                Some(Heard::NoStream) | None => None,
            },
            patience: self.member.config.view_lease * 3 / 5,
        }
    }

    /// What the owner says: this member itself if it is the owner.
    fn account_of(&self, whom: MemberId) -> Option<Account> {
        if whom == self.member.me.id {
            return Some(self.member.account(self.now, &self.member.inquiry(self.ticket, self.call)));
        }
        self.said.get(&whom).map(|said| said.account.clone())
    }

    /// The first line's conclusion.
    fn cause(&self) -> String {
        let mut text = if self.member.active.is_none() {
            let unknown =
                || "this member is in no view: nobody who decides on views has answered yet".to_owned();
            self.member.waits_for.clone().unwrap_or_else(unknown)
        } else if let Some(holders) = self.holders() {
            self.cause_at(holders.owner, holders.replica)
        } else {
            let left = self.left();
            let first = left.first().map(|member| self.cause_at(*member, None)).unwrap_or_default();
            format!("{} members have not answered; {first}", left.len())
        };
        let registrar = &self.member.registrar;
        if !registrar.is_open {
            let _ = write!(text, "; {}", self.registrar());
        }
        if let Some(waits_for) = self.member.waits_for.as_ref().filter(|_| self.member.active.is_some()) {
            let _ = write!(text, "; {waits_for}");
        }
        text
    }

    fn cause_at(&self, owner: MemberId, replica: Option<MemberId>) -> String {
        let account = self.account_of(owner);
        let evidence = self.evidence(owner, account.as_ref());
        let is_own = owner == self.member.me.id;
        let name = self.member.name(owner);
        let owner_words = match &self.call.what {
            What::One(..) => format!("the key's owner, {name},"),
            What::Keys(..) | What::Count(..) => name.clone(),
        };
        match evidence.cause() {
            Cause::Moving => "the key is moving to other members: a view is being prepared".to_owned(),
            Cause::OtherView(Some(epoch)) => {
                format!("{owner_words} is in view {epoch}, and this member in view {}", evidence.epoch)
            }
            Cause::OtherView(None) => format!("{owner_words} is in no view at present"),
            Cause::LeaseOver if is_own => {
                "this member owns the key, but has not been heard by whoever decides on views: \
                 its lease has run out"
                    .to_owned()
            }
            Cause::LeaseOver => format!(
                "{owner_words} lives, but has not been heard by whoever decides on views: its lease has run out"
            ),
            Cause::Absent if is_own => "the key is absent; this member owns it".to_owned(),
            Cause::Absent => format!("the key is absent; the call waits at its owner, {name}"),
            Cause::Held => format!("{owner_words} has the call and may not answer yet"),
            Cause::ReplicaSilent => {
                let replica =
                    replica.map_or_else(|| "nobody".to_owned(), |replica| self.member.name(replica));
                format!("the owner, {name}, waits for its replica, {replica}, to acknowledge")
            }
            Cause::RouteCut => {
                format!("{owner_words} lives and answers datagrams, but {}", self.gap(owner))
            }
            Cause::Late => format!("{owner_words} lives and can be reached; its answer was not in time"),
            Cause::Gone => format!("{owner_words} is gone: its kernel refuses connections"),
            Cause::CutFromUs => {
                let heard = evidence.heard.map(words).unwrap_or_default();
                format!(
                    "{owner_words} lives, for it was heard by whoever decides on views {heard} ago, but nothing passes \
                     between this member and it: the network between them is cut"
                )
            }
            Cause::Stopped => {
                format!(
                    "{owner_words} is stopped: its kernel accepts connections, and its process answers nothing"
                )
            }
            Cause::CutOff => format!(
                "{owner_words} answers neither over its links nor to datagrams, and its host answers no connect: it is \
                 cut off or down"
            ),
            Cause::Silent => format!("{owner_words} answers neither over its links nor to datagrams"),
        }
    }

    /// Where the way to the owner is cut.
    fn gap(&self, owner: MemberId) -> String {
        for (from, to, link) in self.hops(owner) {
            let Some(link) = link else { continue };
            if !link.carries || link.silent_ms.is_some_and(|ms| ms >= 100) {
                let (from, to) = (self.member.name(from), self.member.name(to));
                return format!("the route is cut: {from} to {to}: {}", self.link(&link, self.now));
            }
        }
        "its answers do not come over the route".to_owned()
    }

    /// The way to the owner, hop by hop, as each of those on it tells.
    fn hops(&self, owner: MemberId) -> Vec<(MemberId, MemberId, Option<LinkAccount>)> {
        let (me, post) = (self.member.me.id, &self.member.post);
        let mut way = post.way_or_cut(me, owner);
        if way.is_empty() {
            way.push(owner);
        }
        let mut hops = Vec::new();
        let mut from = me;
        for to in way.into_iter().take(NAMED_MAX) {
            let link = if from == me {
                post.links().get(&to).map(|link| link_account(self.now, to, link))
            } else {
                // Who is stopped says nothing; then whoever is at the other end tells.
                let tells =
                    |one, other| self.said.get(&one).and_then(|said| said.account.link(other).cloned());
                tells(from, to).or_else(|| tells(to, from))
            };
            hops.push((from, to, link));
            from = to;
        }
        hops
    }

    /// The lines behind the first.
    fn lines(&self) -> Vec<String> {
        let (member, now) = (self.member, self.now);
        let up = words(now.since(member.started));
        let mut lines = vec![format!(
            "times: the store began {up} before the timeout; +0.5 s is so long after its begin"
        )];
        if let Some(layout) = &member.active {
            let view = layout.view();
            lines.push(format!(
                "view {} of {} members; {}",
                view.epoch,
                view.members.len(),
                self.registrar()
            ));
        } else {
            lines.push(format!("in no view; {}", self.registrar()));
        }
        if let Some(Holders { owner, replica }) = self.holders() {
            lines.push(format!("owner {}", self.says(owner)));
            lines.extend(replica.map(|replica| format!("replica {}", self.says(replica))));
            if owner != member.me.id {
                lines.push(self.route(owner));
            }
            let others = self.said.keys().filter(|other| **other != owner && Some(**other) != replica);
            lines.extend(others.map(|other| format!("on the way: {}", self.says(*other))));
        }
        lines.extend(
            self.left().into_iter().take(NAMED_MAX).map(|left| format!("no answer of {}", self.says(left))),
        );
        lines.extend(self.never_connected());
        lines
    }

    /// What somebody says, or how it is silent.
    fn says(&self, whom: MemberId) -> String {
        let name = self.member.name(whom);
        if whom == self.member.me.id {
            let account = self.account_of(whom);
            return account
                .map_or(name.clone(), |account| format!("{name}: {}", self.account(&account, self.now)));
        }
        let Some(said) = self.said.get(&whom) else {
            let kernel = match self.member.calls.inquiries.knocked(whom) {
                Some(Knocked::Accepted) => "; its kernel accepts connections",
                Some(Knocked::Refused) => "; its kernel refuses connections",
                Some(Knocked::Silent) => "; its kernel does not answer connects",
                None => "",
            };
            let heard = match self.member.calls.inquiries.heard(self.now, whom) {
                Some(Heard::Ago(ago)) => format!("; whoever decides on views heard it {} ago", words(ago)),
                Some(Heard::NoStream) => "; it has no stream to whoever decides on views".to_owned(),
                None => String::new(),
            };
            return format!("{name} says nothing{kernel}{heard}");
        };
        let by = match (said.by_link, said.by_datagram) {
            (true, true) => "over links and by datagram",
            (true, false) => "over links",
            _ => "by datagram",
        };
        format!("{name} says ({by}): {}", self.account(&said.account, said.at))
    }

    fn account(&self, account: &Account, at: Instant) -> String {
        let mut text =
            account.epoch.map_or_else(|| "in no view".to_owned(), |epoch| format!("in view {epoch}"));
        match account.present {
            Some(true) => text.push_str(", key present"),
            Some(false) => text.push_str(", key absent"),
            None => {}
        }
        if let Some(ms) = account.waits_ms {
            let _ = write!(text, ", the call waits there {}", self.span(at, ms));
        }
        if account.holds {
            text.push_str(", holds the call until it may answer");
        }
        if account.owns && account.lease_ms.is_none() {
            text.push_str(", its lease has run out");
        }
        if account.moving {
            text.push_str(", the key moves");
        }
        if account.unacknowledged > 0 {
            let _ = write!(text, ", {} changes not acknowledged by its replica", account.unacknowledged);
        }
        if let Some(ms) = account.registrar_away_ms {
            let _ = write!(text, ", no stream to whoever decides on views {}", self.span(at, ms));
        }
        for link in account.links.iter().filter(|link| !link.carries).take(NAMED_MAX) {
            let _ = write!(text, ", to {}: {}", self.member.name(link.to), self.link(link, at));
        }
        text
    }

    fn route(&self, owner: MemberId) -> String {
        let mut text = format!("route (call sent {} times): this member", self.call.sends);
        for (_, to, link) in self.hops(owner) {
            let state = link.map_or_else(|| "not known".to_owned(), |link| self.link(&link, self.now));
            let _ = write!(text, " -> [{state}] {}", self.member.name(to));
        }
        text
    }

    fn never_connected(&self) -> Option<String> {
        let links = self.member.post.links().iter().filter(|(_, link)| !link.was_up());
        let known = links.filter(|(to, _)| self.member.post.known(**to).is_some());
        let named: Vec<_> = known
            .take(NAMED_MAX)
            .map(|(to, link)| {
                let state = self.link(&link_account(self.now, *to, link), self.now);
                format!("{}: {state}", self.member.name(*to))
            })
            .collect();
        (!named.is_empty()).then(|| format!("never connected with this member: {}", named.join("; ")))
    }

    fn registrar(&self) -> String {
        let registrar = &self.member.registrar;
        let since = self.since(registrar.since);
        if registrar.is_open {
            format!("whoever decides on views is connected {since}")
        } else {
            format!("whoever decides on views is not connected {since}{}", registrar.why)
        }
    }

    fn link(&self, link: &LinkAccount, at: Instant) -> String {
        let state = match (link.carries, link.carried) {
            (true, _) => "connected",
            (false, true) => "disconnected",
            (false, false) => "never connected, tried",
        };
        let mut text = format!("{state} {}, {} messages pending", self.span(at, link.since_ms), link.pending);
        if let Some(ms) = link.silent_ms.filter(|ms| *ms >= 100) {
            let _ = write!(text, ", nothing acknowledged {}", self.span(at, ms));
        }
        text
    }

    /// How long something has lasted that was told `at` that moment.
    fn span(&self, at: Instant, ms: u64) -> String {
        self.since(at - Duration::from_millis(ms).min(at.since(Instant::ORIGIN)))
    }

    fn since(&self, at: Instant) -> String {
        let started = self.member.started;
        let (sign, after) = if at >= started { ('+', at.since(started)) } else { ('-', started.since(at)) };
        format!("for {} (since {sign}{})", words(self.now.since(at)), words(after))
    }
}

/// A span as people say it.
fn words(span: Duration) -> String {
    match span.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1_000.0),
        seconds => format!("{seconds:.1} s"),
    }
}
