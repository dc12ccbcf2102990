//! What one peer may ask of the coordinator, and all of them together (rule 39).
//!
//! Whoever holds the secret may register, resume and ask. One that does so without end, by mistake or on purpose,
//! must cost itself its turn and nobody else theirs. So what is dear is counted by identity: connections, runs,
//! registrations, questions about the status. What is over is refused with the limit and the remedy in words.
//!
//! Not promised: anything against one holder with many identities, beyond the bounds on everything together.

use outlast_proto::id::PeerId;
use outlast_proto::limits::{
    CONTROL_CONNECTIONS_PER_PEER_MAX, MEMBERS_MAX, QUESTION_MILLIS, QUESTION_MILLIS_ALL, QUESTIONS_BURST,
    QUESTIONS_BURST_ALL, REGISTRATION_MS, REGISTRATIONS_BURST,
};
use outlast_proto::time::{Duration, Instant};
use std::collections::BTreeMap;

/// Identities that are remembered although they have no connection.
const ABSENT_MAX: usize = MEMBERS_MAX;

/// A burst, and then one at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Until when everything that was taken is paid for.
    paid: Option<Instant>,
}

impl Pace {
    /// Takes one; the error says how long to wait.
    pub(crate) fn take(&mut self, now: Instant, burst: u32, every: Duration) -> Result<(), Duration> {
        let paid = self.paid.map_or(now, |paid| paid.max(now));
        let debt = paid.since(now) + every;
        if debt > every * burst {
            return Err(debt.saturating_sub(every * burst));
        }
        self.paid = Some(now + debt);
        Ok(())
    }

    fn is_paid(&self, now: Instant) -> bool {
        self.paid.is_none_or(|paid| paid <= now)
    }
}

/// What one identity has and asked for.
#[derive(Debug, Default)]
struct Customer {
    connections: usize,
    registrations: Pace,
    questions: Pace,
}

/// Everybody who came.
#[derive(Debug, Default)]
pub(super) struct Customers {
    by_peer: BTreeMap<PeerId, Customer>,
    questions: Pace,
}

impl Customers {
    pub(super) fn opened(&mut self, now: Instant, peer: PeerId) {
        if self.by_peer.len() >= ABSENT_MAX {
            self.by_peer.retain(|_, customer| {
                customer.connections > 0
                    || !customer.registrations.is_paid(now)
                    || !customer.questions.is_paid(now)
            });
        }
        self.by_peer.entry(peer).or_default().connections += 1;
    }

    pub(super) fn closed(&mut self, peer: PeerId) {
        if let Some(customer) = self.by_peer.get_mut(&peer) {
            customer.connections = customer.connections.saturating_sub(1);
        }
    }

    /// Whether the peer may speak on one more connection.
    pub(super) fn may_speak(&self, peer: PeerId) -> Result<(), String> {
        let connections = self.by_peer.get(&peer).map_or(0, |customer| customer.connections);
        if connections <= CONTROL_CONNECTIONS_PER_PEER_MAX {
            return Ok(());
        }
        Err(format!(
            "peer {} has {connections} control connections, the limit is {CONTROL_CONNECTIONS_PER_PEER_MAX}: \
             close some, or give every process a PeerId of its own",
            peer.short()
        ))
    }

    /// Whether the peer may register once more.
    pub(super) fn may_register(&mut self, now: Instant, peer: PeerId) -> Result<(), String> {
        let every = Duration::from_millis(REGISTRATION_MS);
        let pace = &mut self.by_peer.entry(peer).or_default().registrations;
        pace.take(now, REGISTRATIONS_BURST, every).map_err(|wait| {
            format!(
                "peer {} registered more than {REGISTRATIONS_BURST} times in a row, the limit is then one in \
                 {every:?}: connect again in {} ms",
                peer.short(),
                wait.as_millis().max(1)
            )
        })
    }

    /// Whether the peer may ask for the status once more.
    pub(super) fn may_ask(&mut self, now: Instant, peer: PeerId) -> Result<(), String> {
        let (every, every_all) =
            (Duration::from_millis(QUESTION_MILLIS), Duration::from_millis(QUESTION_MILLIS_ALL));
        let pace = &mut self.by_peer.entry(peer).or_default().questions;
        pace.take(now, QUESTIONS_BURST, every).map_err(|wait| {
            format!(
                "more than {QUESTIONS_BURST} questions about the status in a row by one peer, the limit is then \
                 one in {every:?}: ask again in {:.1} s",
                wait.as_secs_f64()
            )
        })?;
        self.questions.take(now, QUESTIONS_BURST_ALL, every_all).map_err(|wait| {
            format!(
                "more than {QUESTIONS_BURST_ALL} questions about the status in a row by all peers together, the \
                 limit is then one in {every_all:?}: ask again in {:.1} s",
                wait.as_secs_f64()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_fine_and_then_the_pace_holds() {
        let (mut pace, every) = (Pace::default(), Duration::from_secs(1));
        let now = Instant::ORIGIN + Duration::from_secs(10);
        for _ in 0..3 {
            assert_eq!(pace.take(now, 3, every), Ok(()));
        }
        assert_eq!(pace.take(now, 3, every), Err(every));
        assert_eq!(pace.take(now + every, 3, every), Ok(()));
        assert_eq!(pace.take(now + every, 3, every), Err(every));
        assert!(
            (0..3).all(|_| pace.take(now + 100 * every, 3, every).is_ok()),
            "who waits has a burst again"
        );
    }

    #[test]
    fn one_peer_that_asks_without_end_is_refused_and_another_is_not() {
        let (one, two) = (PeerId::from_bytes([1; 16]), PeerId::from_bytes([2; 16]));
        let (mut customers, now) = (Customers::default(), Instant::ORIGIN + Duration::from_secs(10));
        let answered = (0..1_000).filter(|_| customers.may_ask(now, one).is_ok()).count();
        assert_eq!(answered, QUESTIONS_BURST as usize);
        let refusal = customers.may_ask(now, one).unwrap_err();
        assert!(refusal.contains("20 questions") && refusal.contains("again in 0.1 s"), "{refusal}");
        assert_eq!(customers.may_ask(now, two), Ok(()));
        let registered = (0..10_000).filter(|_| customers.may_register(now, one).is_ok()).count();
        assert_eq!(registered, REGISTRATIONS_BURST as usize);
        assert_eq!(customers.may_register(now, two), Ok(()));
    }

    #[test]
    fn many_peers_that_ask_together_are_refused_together_and_answered_again_at_the_pace_of_all() {
        let (mut customers, now) = (Customers::default(), Instant::ORIGIN + Duration::from_secs(10));
        let peer = |number: u32| {
            let mut bytes = [9; 16];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            PeerId::from_bytes(bytes)
        };
        let crowd: Vec<_> = (0..2 * QUESTIONS_BURST_ALL).map(peer).collect();
        for asker in &crowd[..QUESTIONS_BURST_ALL as usize] {
            assert_eq!(customers.may_ask(now, *asker), Ok(()), "none of them has asked before");
        }
        let refusal = customers.may_ask(now, crowd[QUESTIONS_BURST_ALL as usize]).unwrap_err();
        assert!(
            refusal.contains("200 questions") && refusal.contains("by all peers together"),
            "it is told that it was not it alone: {refusal}"
        );
        let later = now + 5 * Duration::from_millis(QUESTION_MILLIS_ALL);
        let rest = &crowd[QUESTIONS_BURST_ALL as usize + 1..];
        assert_eq!(rest.iter().filter(|asker| customers.may_ask(later, **asker).is_ok()).count(), 5);
    }

    #[test]
    fn connections_are_counted_by_peer_and_forgotten() {
        let peer = PeerId::from_bytes([1; 16]);
        let mut customers = Customers::default();
        for _ in 0..CONTROL_CONNECTIONS_PER_PEER_MAX {
            customers.opened(Instant::ORIGIN, peer);
        }
        assert_eq!(customers.may_speak(peer), Ok(()));
        customers.opened(Instant::ORIGIN, peer);
        assert!(customers.may_speak(peer).unwrap_err().contains("the limit is 8"));
        customers.closed(peer);
        assert_eq!(customers.may_speak(peer), Ok(()));
        for number in 0..ABSENT_MAX + 10 {
            let mut bytes = [9; 16];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            customers.opened(Instant::ORIGIN, PeerId::from_bytes(bytes));
            customers.closed(PeerId::from_bytes(bytes));
        }
        assert!(customers.by_peer.len() <= ABSENT_MAX);
        assert!(customers.by_peer.contains_key(&peer), "whoever is here is remembered");
    }
}
