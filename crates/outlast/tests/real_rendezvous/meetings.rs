//! What nodes owe each other, whoever serves their register.

use crate::services::{PATIENCE, Service, until};
use outlast::Rendezvous;
use outlast::rendezvous::{RendezvousError, Round, Settings, Snapshot};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A node in this process; its host's name makes the order of nodes what the test says.
fn node(service: &impl Service, name: &str, min: usize, max: usize) -> Arc<Rendezvous> {
    let interval = service.lease() / 3;
    let node = service.node(min, max).host(name).address(format!("{name}:1")).join_timeout(PATIENCE);
    let node = node.configure(|settings| settings.keep_alive_interval = interval);
    Arc::new(node.last_call(Duration::from_millis(200)).start().expect("a node"))
}

type Joining = JoinHandle<Result<Round, RendezvousError>>;

fn next(node: &Arc<Rendezvous>) -> Joining {
    let node = Arc::clone(node);
    std::thread::spawn(move || node.next_rendezvous())
}

fn rounds(joining: Vec<Joining>) -> Vec<Round> {
    let joined = joining.into_iter().map(|joining| joining.join().expect("a node").expect("a round"));
    let rounds: Vec<Round> = joined.collect();
    for round in &rounds {
        assert_eq!((round.round, &round.participants), (rounds[0].round, &rounds[0].participants));
        let me = rounds.iter().filter(|other| other.rank == round.rank).count();
        assert_eq!(me, 1, "two have rank {}", round.rank);
    }
    rounds
}

fn names(round: &Round) -> Vec<&str> {
    round.participants.iter().map(|(node, _)| node.host.as_str()).collect()
}

pub(crate) fn all_nodes_of_a_round_agree_and_survivors_keep_their_order(service: &mut impl Service) {
    let nodes: Vec<_> = ["c", "a", "b"].iter().map(|name| node(service, name, 3, 3)).collect();
    let first = rounds(nodes.iter().map(next).collect());
    assert_eq!(names(&first[0]), ["a", "b", "c"], "sorted by node");
    assert_eq!(first.iter().map(|round| round.rank).collect::<Vec<_>>(), [2, 0, 1]);
    assert_eq!(first[0].participants[1].1, "b:1", "everybody is told everybody's address");
    // a goes, and comes back as another node: b and c keep their order before it.
    let [c, a, b] = nodes.try_into().expect("three nodes");
    a.shutdown().expect("it leaves");
    drop(a);
    until("the others hear of it", || (b.num_nodes_waiting().expect("it is known") > 0).then_some(()));
    let back = node(service, "a", 3, 3);
    let second = rounds(vec![next(&c), next(&back), next(&b)]);
    assert_eq!(names(&second[0]), ["b", "c", "a"]);
    assert!(second[0].round > first[0].round);
    assert_eq!(b.num_nodes_waiting().expect("it is known"), 0);
}

/// Where a coordinator counts members, the participants of a round keep a store that has no key of another round.
pub(crate) fn every_round_has_a_store_of_its_own(service: &mut impl Service) {
    let nodes = ["a", "b"].map(|name| node(service, name, 2, 2));
    let first = rounds(nodes.iter().map(next).collect());
    let joined = |at: usize, round: &Round| nodes[at].join_store(round).expect("a store");
    let (one, two) = (joined(0, &first[0]), joined(1, &first[1]));
    one.set("key", "value").expect("set");
    assert_eq!(two.get("key", Some(PATIENCE)).expect("a value"), b"value");
    drop(one);
    assert_eq!(two.look("key").expect("an answer").as_deref(), Some(&b"value"[..]), "the others go on");
    drop(two);
    let second = rounds(nodes.iter().map(next).collect());
    assert!(!joined(0, &second[0]).check(&["key"]).expect("an answer"), "no key of another round");
}

/// All but the last only say what they want; the last one writes it down for all, and so it is when they meet again.
pub(crate) fn nodes_that_come_together_take_one_write(service: &mut impl Service) {
    let names = ["a", "b", "c", "d", "e", "f"];
    let nodes: Vec<_> = names.iter().map(|name| node(service, name, 6, 6)).collect();
    let register = service.node(1, 1).open_register("rendezvous", None).expect("a register");
    for round in 0..3 {
        let before = register.read(PATIENCE).expect("a snapshot");
        let mut joining: Vec<_> = nodes[..5].iter().map(next).collect();
        until("five have said what they want", || {
            (register.read(PATIENCE).expect("a snapshot").notes.len() >= 5).then_some(())
        });
        let waiting = register.read(PATIENCE).expect("a snapshot");
        assert_eq!(waiting.token, before.token, "{round}: nobody has written yet");
        joining.push(next(&nodes[5]));
        rounds(joining);
        let after = register.read(PATIENCE).expect("a snapshot");
        assert!(after.token > before.token);
        if after.token.era > 0 {
            let writes = after.token.revision - before.token.revision;
            assert_eq!(writes, 1, "{round}: one write for all");
        }
        // Wishes that were granted are taken back with the next heartbeat.
        until("nobody wants anything any more", || {
            register.read(PATIENCE).expect("a snapshot").notes.is_empty().then_some(())
        });
    }
}

pub(crate) fn a_lost_node_is_noticed_and_one_more_is_let_in(service: &mut impl Service) {
    let nodes: Vec<_> = ["a", "b"].iter().map(|name| node(service, name, 1, 3)).collect();
    let first = rounds(nodes.iter().map(next).collect());
    assert_eq!(names(&first[0]), ["a", "b"]);
    let [a, b] = nodes.try_into().expect("two nodes");
    // Its handle is dropped without a goodbye: nothing is written, its lease just ends.
    drop(b);
    until("a hears of the loss", || (a.num_nodes_waiting().expect("it is known") == 1).then_some(()));
    let alone = rounds(vec![next(&a)]);
    assert_eq!(names(&alone[0]), ["a"]);
    let c = node(service, "c", 1, 3);
    let waits = next(&c);
    until("a hears of the newcomer", || (a.num_nodes_waiting().expect("it is known") == 1).then_some(()));
    let second = rounds(vec![next(&a), waits]);
    assert_eq!(names(&second[0]), ["a", "c"]);
}

pub(crate) fn a_round_is_complete_after_the_last_call_with_fewer_than_most(service: &mut impl Service) {
    let nodes: Vec<_> = ["a", "b"].iter().map(|name| node(service, name, 2, 9)).collect();
    let first = rounds(nodes.iter().map(next).collect());
    assert_eq!(first[0].world_size(), 2);
    let events = nodes[0].events().expect("events");
    let names: Vec<_> = events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names, ["joining", "joined"]);
    assert_eq!((events[1].rank, events[1].node_state), (Some(first[0].rank), "SUCCEEDED"));
    assert_eq!(events[1].endpoint, service.backend());
}

pub(crate) fn closing_ends_it_for_all_and_leaving_for_nobody_else(service: &mut impl Service) {
    let [a, b, c] = ["a", "b", "c"].map(|name| node(service, name, 2, 2));
    rounds(vec![next(&a), next(&b)]);
    // The round is full: c is a spare, and a wait for a round is cut short when its own node leaves.
    let spare = next(&c);
    let is_spare = || c.events().expect("events").iter().any(|event| event.message.contains("spare"));
    until("c is a spare", || is_spare().then_some(()));
    c.shutdown().expect("it leaves");
    assert!(matches!(spare.join().expect("a node"), Err(RendezvousError::Cancelled)));
    assert!(!a.is_closed().expect("it is known"), "who leaves does not close");
    let waits = next(&a);
    b.set_closed().expect("closed");
    assert!(matches!(waits.join().expect("a node"), Err(RendezvousError::Closed)));
    until("a hears of it", || a.is_closed().expect("it is known").then_some(()));
    let late = node(service, "late", 1, 2);
    assert!(matches!(late.next_rendezvous(), Err(RendezvousError::Closed)));
    b.set_closed().expect("closing twice is no error");
}

pub(crate) fn a_round_is_agreed_on_although_the_backend_is_killed_in_the_middle(service: &mut impl Service) {
    let nodes: Vec<_> = ["a", "b", "c"].iter().map(|name| node(service, name, 4, 4)).collect();
    let mut joining: Vec<_> = nodes.iter().map(next).collect();
    let told = service.node(1, 1).open_register("rendezvous", None).expect("a register");
    let settings = Settings::new(4, 4);
    let joined = |snapshot: &Snapshot| {
        outlast_proto::rendezvous::picture(snapshot, &settings).expect("a state").participants.len()
    };
    until("three have joined", || (joined(&told.read(PATIENCE).expect("a snapshot")) == 3).then_some(()));
    service.kill();
    let last = node(service, "d", 4, 4);
    joining.push(next(&last));
    service.restart();
    let first = rounds(joining);
    assert_eq!(names(&first[0]), ["a", "b", "c", "d"]);
    // And in the middle of a round that is complete: nobody is disturbed, and the next one works.
    service.kill();
    service.restart();
    let all = [&nodes[0], &nodes[1], &nodes[2], &last];
    let second = rounds(all.into_iter().map(next).collect());
    assert_eq!(names(&second[0]), ["a", "b", "c", "d"]);
    assert!(second[0].round > first[0].round);
}
