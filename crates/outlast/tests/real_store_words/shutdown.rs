//! Shutting down: everybody is told, everybody returns, whatever happens to one of them meanwhile.

use crate::members::{Links, Member, PATIENCE, Role};
use crate::relay::Relay;
use crate::{all_see, coordinator, free_address, role_at, role_of};
use outlast::coordinator::ask_status;
use outlast::security::RunSecret;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Two seconds for all to join in, two for exit, fifty milliseconds for the last words.
const BOUND: Duration = Duration::from_millis(4_050);
/// How long the first phase takes where somebody does not join in.
const WAIT: Duration = Duration::from_secs(2);
/// What a busy machine may add.
const GRACE: Duration = Duration::from_millis(950);
const SHUT_DOWN: &str = "the store was shut down";

/// What happens to the last of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    Stopped,
    Killed,
    Unreachable,
    /// Its process is there and never came so far as to join.
    NeverStarted,
}

/// When it happens. Each moment is one that was seen, so that a fault never strikes another phase than it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Before anybody says that the store should end.
    Before,
    /// The members are being told, and one of them, who is stopped, has not joined in.
    Shutdown,
    /// Whoever shut it down has woken its own waits: the word for all others is on its way.
    Exit,
}

/// A store of that many, each of whom waits for a key that never comes; the first and the last are behind relays.
struct Waiting {
    coordinator: outlast::Coordinator,
    members: Vec<Member>,
    waits: Vec<u64>,
    relays: Vec<Relay>,
    /// One that the first of them owns, so that it needs nobody else to say what it is.
    own_key: String,
}

impl Waiting {
    /// All of them are in, except for a last one that never starts.
    fn start(count: usize, links: Links, fault: Fault) -> Self {
        let coordinator = coordinator();
        let mut relays = Vec::new();
        let mut members: Vec<_> = (0..count)
            .map(|place| {
                let mut role = Role { links, ..role_at(&coordinator, &format!("m{place}")) };
                if place == 0 || place + 1 == count {
                    let listen = free_address();
                    relays.push(Relay::to(listen));
                    role.listen = Some(listen.to_string());
                    role.advertise = relays.last().map(|relay| relay.address.to_string());
                }
                role.never_starts = place + 1 == count && fault == Fault::NeverStarted;
                Member::start(&role)
            })
            .collect();
        let there = if fault == Fault::NeverStarted { count - 1 } else { count };
        members[..there].iter().for_each(|member| assert_eq!(member.joined(), "in"));
        all_see(&mut members[..there], there);
        let own_key = members[0].done("key-of m0").text;
        assert_eq!(members[0].done(&format!("set {own_key} here")).text, "set");
        let waits = members[..there].iter_mut().map(|member| member.order("get never 60000")).collect();
        Self { coordinator, members, waits, relays, own_key }
    }

    fn strike(&mut self, fault: Fault) {
        let last = self.members.last_mut().expect("a member");
        match fault {
            Fault::Nothing => {}
            Fault::Stopped => last.stop(),
            Fault::Killed => last.kill(),
            // Nobody reaches it. It still reaches those who are behind no relay, so among two nothing passes at all.
            Fault::Unreachable if self.waits.len() == 2 => {
                self.relays.iter().for_each(|relay| relay.shut(true));
            }
            Fault::Unreachable => self.relays.iter().skip(1).for_each(|relay| relay.shut(true)),
            Fault::NeverStarted => {
                assert!(last.outcome_within(0, Duration::ZERO).is_none(), "it came so far as to join");
            }
        }
    }

    /// Waits until the store is being shut down, as its coordinator was told, and sees that this is not at its end: what is
    /// asked of the same member afterwards is answered afterwards, and as by a store that is there.
    fn see_shutdown(&mut self) {
        let run = "default".parse().expect("a run");
        let (address, secret) = (self.coordinator.address().to_string(), self.coordinator.secret());
        let deadline = Instant::now() + PATIENCE;
        let ends = || {
            let status = ask_status(&address, secret, &run, PATIENCE).expect("it lives");
            status.contains("\"change\":\"the store ends\"")
        };
        while !ends() {
            assert!(Instant::now() < deadline, "nobody says that the store ends");
            std::thread::sleep(Duration::from_millis(1));
        }
        let order = format!("get {} 1000", self.own_key);
        assert_eq!(self.members[0].done(&order).text, "here", "the first phase is over already");
    }
}

/// The first of so many shuts the store down; at that moment something happens to the last one.
fn shut_down(count: usize, fault: Fault, moment: Moment) {
    shut_down_linked(count, Links::Direct, fault, moment);
}

fn shut_down_linked(count: usize, links: Links, fault: Fault, moment: Moment) {
    let case = format!("{count} members, {links:?}, {fault:?}, {moment:?}");
    let mut store = Waiting::start(count, links, fault);
    // Whoever is stopped does not join in, so the first phase takes its time.
    let holds = (moment == Moment::Shutdown).then_some(1);
    if let Some(place) = holds {
        store.members[place].stop();
    }
    let begun = Instant::now();
    if moment == Moment::Before {
        store.strike(fault);
    }
    let shut = store.members[0].order("shutdown");
    let left = || (BOUND + GRACE).saturating_sub(begun.elapsed());
    let mut struck = begun;
    let mut woken = None;
    if moment == Moment::Shutdown {
        store.see_shutdown();
        store.strike(fault);
        struck = Instant::now();
        assert!(
            store.members[0].outcome_within(store.waits[0], Duration::ZERO).is_none(),
            "{case}: it came too late"
        );
    } else {
        woken = store.members[0].outcome_within(store.waits[0], left());
        if moment == Moment::Exit {
            store.strike(fault);
            struck = Instant::now();
        }
    }
    println!("{case}: struck {:?} after the order", struck.duration_since(begun));
    let outcome = store.members[0].outcome_within(shut, left()).unwrap_or_else(|| panic!("{case}: no end"));
    assert_eq!(outcome.text, "shut", "{case}");
    let harmed = (fault != Fault::Nothing).then_some(count - 1);
    for place in (0..count).filter(|place| Some(*place) != harmed && Some(*place) != holds) {
        let failed = if place == 0 && woken.is_some() {
            woken.take()
        } else {
            store.members[place].outcome_within(store.waits[place], left())
        };
        let failed = failed.unwrap_or_else(|| panic!("{case}: {place} waits on"));
        assert_eq!(failed.text, SHUT_DOWN, "{case}");
    }
    println!("{case}: all returned after {:?}", begun.elapsed());
    let cannot_join_in = fault == Fault::Stopped || (fault == Fault::Unreachable && count == 2);
    if moment == Moment::Before && cannot_join_in {
        assert!(begun.elapsed() >= WAIT, "{case}: it joined in, so nothing had happened to it");
    }
    // Whoever was stopped finds out when it goes on.
    let stopped = harmed.filter(|_| fault == Fault::Stopped).into_iter().chain(holds);
    for place in stopped {
        store.members[place].signal(Signal::CONT);
        assert_eq!(store.members[place].outcome(store.waits[place]).text, SHUT_DOWN, "{case}");
    }
}

#[test]
fn a_store_of_one_of_two_and_of_nine_ends_for_all() {
    [1, 2, 9].into_iter().for_each(|count| shut_down(count, Fault::Nothing, Moment::Before));
}

#[test]
fn a_member_that_is_stopped_before_or_during_a_shutdown_holds_nobody_up() {
    shut_down(3, Fault::Stopped, Moment::Before);
    shut_down(4, Fault::Stopped, Moment::Shutdown);
    shut_down(3, Fault::Stopped, Moment::Exit);
}

#[test]
fn a_member_that_is_killed_before_or_during_a_shutdown_holds_nobody_up() {
    shut_down(3, Fault::Killed, Moment::Before);
    shut_down(4, Fault::Killed, Moment::Shutdown);
    shut_down(3, Fault::Killed, Moment::Exit);
}

#[test]
fn a_member_that_cannot_be_reached_holds_nobody_up() {
    shut_down(2, Fault::Unreachable, Moment::Before);
    shut_down(3, Fault::Unreachable, Moment::Before);
    shut_down(4, Fault::Unreachable, Moment::Shutdown);
    shut_down(3, Fault::Unreachable, Moment::Exit);
}

#[test]
fn a_member_that_never_started_holds_nobody_up() {
    shut_down(3, Fault::NeverStarted, Moment::Before);
    shut_down(4, Fault::NeverStarted, Moment::Shutdown);
    shut_down(3, Fault::NeverStarted, Moment::Exit);
}

/// Every fault at every moment, without links beside the mesh. Of the faults, each with its moments, all run side by side: they
/// mostly wait.
fn everything_without_direct_links(count: usize) {
    shut_down_linked(count, Links::Mesh, Fault::Nothing, Moment::Before);
    std::thread::scope(|scope| {
        for fault in [Fault::Stopped, Fault::Killed, Fault::Unreachable, Fault::NeverStarted] {
            scope.spawn(move || {
                for moment in [Moment::Before, Moment::Shutdown, Moment::Exit] {
                    shut_down_linked(count, Links::Mesh, fault, moment);
                }
            });
        }
    });
}

#[test]
fn all_of_it_with_three_members_without_direct_links() {
    everything_without_direct_links(3);
}

#[test]
fn all_of_it_with_four_members_without_direct_links() {
    everything_without_direct_links(4);
}

#[test]
#[ignore = "half a minute: make soak"]
fn all_of_it_with_eight_members_without_direct_links() {
    everything_without_direct_links(8);
}

/// One shuts the store down, everybody hears of it, and then it dies with the others' answers on their way.
#[test]
fn whoever_shuts_a_store_down_may_die_meanwhile() {
    let mut store = Waiting::start(4, Links::Direct, Fault::Nothing);
    // Somebody does not answer, so the first phase takes its time.
    store.members[3].stop();
    let begun = Instant::now();
    store.members[0].order("shutdown");
    store.see_shutdown();
    store.members[0].kill();
    for (member, wait) in store.members[1..3].iter().zip(&store.waits[1..3]) {
        let left = (BOUND + GRACE).saturating_sub(begun.elapsed());
        let failed = member.outcome_within(*wait, left).expect("it ends");
        assert_eq!(failed.text, SHUT_DOWN);
    }
}

/// Those between it and whoever shuts down are stopped, so no member tells it.
#[test]
fn who_is_behind_members_that_are_stopped_hears_of_a_shutdown_from_the_coordinator() {
    let mut store = Waiting::start(4, Links::Direct, Fault::Nothing);
    let opposite = store.members[0].done("opposite m0").text;
    let opposite = (0..4).find(|place| format!("m{place}") == opposite).expect("one of them");
    let between: Vec<_> = (1..4).filter(|place| *place != opposite).collect();
    between.iter().for_each(|place| store.members[*place].stop());
    let begun = Instant::now();
    let shut = store.members[0].order("shutdown");
    for (place, order) in [(0, store.waits[0]), (opposite, store.waits[opposite])] {
        let left = (BOUND + GRACE).saturating_sub(begun.elapsed());
        let failed = store.members[place].outcome_within(order, left);
        assert_eq!(failed.unwrap_or_else(|| panic!("{place} waits on")).text, SHUT_DOWN);
    }
    assert_eq!(store.members[0].outcome(shut).text, "shut");
    for place in between {
        store.members[place].signal(Signal::CONT);
        assert_eq!(store.members[place].outcome(store.waits[place]).text, SHUT_DOWN);
    }
}

#[test]
fn whoever_was_to_end_the_store_is_named_with_and_without_a_coordinator() {
    let named = |members: &mut Vec<Member>, place: usize, words: &str| {
        let count = members.len();
        all_see(members, count);
        let waits: Vec<_> = members.iter_mut().map(|member| member.order("get never 60000")).collect();
        members[place].kill();
        for (at, member) in members.iter().enumerate().filter(|(at, _)| *at != place) {
            let text = member.outcome(waits[at]).text;
            assert!(text.starts_with(words), "{words:?} is not what it says: {text}");
        }
    };
    let coordinator = coordinator();
    let mut members: Vec<_> = (0..4_usize)
        .map(|place| {
            let role = role_at(&coordinator, &format!("m{place}"));
            let member = Member::start(&Role { ends_store: place == 3, ..role });
            assert_eq!(member.joined(), "in");
            member
        })
        .collect();
    named(&mut members, 3, "store was shut down on rank 3 (m3, 127.0.0.1:");
    // Without a coordinator: any of them, and the one that decides on views.
    for place in [2, 0] {
        let (address, secret) = (free_address(), RunSecret::generate());
        let start =
            |rank: u32| Member::start(&Role { ends_store: true, ..role_of(address, &secret, rank, 3) });
        let mut members: Vec<_> = (0..3).map(start).collect();
        named(&mut members, place, &format!("store was shut down on rank {place} (m{place}, 127.0.0.1:"));
    }
}

#[test]
#[ignore = "minutes long: make soak"]
fn all_of_it_with_one_to_nine_members() {
    for count in 1..=9 {
        shut_down(count, Fault::Nothing, Moment::Before);
        for fault in [Fault::Stopped, Fault::Killed, Fault::Unreachable, Fault::NeverStarted] {
            // Besides the first and the last somebody is needed who holds up the first phase.
            let moments: &[_] = match count {
                1 => &[],
                2 => &[Moment::Before, Moment::Exit],
                _ => &[Moment::Before, Moment::Shutdown, Moment::Exit],
            };
            moments.iter().for_each(|moment| shut_down(count, fault, *moment));
        }
    }
}
