//! What happened is remembered by the members, and comes back with them.

use super::bench::*;

fn incident(at_us: u64, text: &str) -> Incident {
    Incident { at_us, text: text.to_owned() }
}

impl Bench {
    fn happens(&mut self, text: &str) -> Incident {
        let incident = self.run.handle_incident(self.now, text);
        self.drain();
        incident
    }

    fn texts(&self) -> Vec<&str> {
        self.run.annals().iter().map(|incident| incident.text.as_str()).collect()
    }
}

#[test]
fn members_hear_at_once_and_then_at_most_ten_times_a_second() {
    let mut bench = Bench::of(&[1, 2]);
    bench.run.handle_wall_clock(bench.now, 5_000_000);
    let first = bench.happens("first");
    assert_eq!(first, incident(5_000_000, "first"));
    bench.assert_told(&[1, 2], &[ToPeer::Annals(vec![first])]);
    let more: Vec<_> = (0..200).map(|number| bench.happens(&format!("number {number}"))).collect();
    bench.assert_told(&[1, 2], &[]);
    bench.wait(ms(100));
    // The latest hundred: what came before them would be forgotten anyway.
    bench.assert_told(&[1, 2], &[ToPeer::Annals(more[100..].to_vec())]);
    bench.wait(ms(1_000));
    bench.assert_told(&[1, 2], &[]);
    assert_eq!(bench.happens("later").at_us, 5_000_000 + 1_100_000);
}

#[test]
fn a_newcomer_hears_what_happened_before_it_came() {
    let mut bench = Bench::of(&[1]);
    let before = bench.happens("before");
    bench.register(2, 0, 1);
    bench.say(1, vote(2, 2));
    let told = bench.told(2);
    assert!(told.contains(&ToPeer::Annals(vec![before])), "{told:?}");
}

#[test]
fn a_restarted_coordinator_knows_what_its_members_remember() {
    let mut bench = Bench::new();
    bench.run.handle_wall_clock(bench.now, 9_000_000);
    for number in [1, 2] {
        bench.resume(number, resume(number, record(1, &[1, 2])));
    }
    let own = bench.happens("it was rebuilt");
    bench.clear();
    let known = [incident(1_000, "p3 was lost"), incident(2_000, "epoch 1"), incident(3_000, "p2 came back")];
    bench.say(1, ToCoordinator::Remembered(known[..2].to_vec()));
    bench.say(2, ToCoordinator::Remembered(known[1..].to_vec()));
    assert_eq!(bench.texts(), ["p3 was lost", "epoch 1", "p2 came back", "it was rebuilt"]);
    // Each is told what it lacks, so that the next coordinator may hear it from either.
    bench.assert_told(&[1], &[ToPeer::Annals(vec![own.clone()])]);
    bench.assert_told(&[2], &[ToPeer::Annals(vec![known[0].clone(), own])]);
    // Once more, and nothing changes.
    bench.say(1, ToCoordinator::Remembered(known[..2].to_vec()));
    assert_eq!(bench.texts().len(), 4);
}

/// While the first to resume waits for the others, it is heard already: that is when people look.
#[test]
fn memories_are_heard_during_a_rebuild_and_from_members_only() {
    let mut bench = Bench::new();
    bench.run.handle_wall_clock(bench.now, 9_000_000);
    bench.resume(1, resume(1, record(1, &[1, 2])));
    bench.say(1, ToCoordinator::Remembered(vec![incident(1_000, "p3 was lost")]));
    assert_eq!(bench.texts(), ["p3 was lost"]);
    let mut bench = Bench::of(&[1]);
    bench.register(2, 0, 1);
    bench.say(2, ToCoordinator::Remembered(vec![incident(1_000, "so it says")]));
    assert_eq!(bench.texts(), [] as [&str; 0], "it is registered, and not let in");
}
