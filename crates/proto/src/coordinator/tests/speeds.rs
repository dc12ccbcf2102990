//! What collectives tell of links: believed where a link had its way for itself, and told when it got slower.

use super::bench::*;
use crate::ballot::optimise::{Brought, KIND, RingWish};
use crate::coordinator::Note;
use crate::wire::control::LinkSpeed;
use crate::wire::encode;

const ALL: [u8; 4] = [1, 2, 3, 4];

fn cast(number: u64, wish: &RingWish) -> ToCoordinator {
    ToCoordinator::Vote { ballot: BallotId { kind: KIND, number }, wish: encode(wish) }
}

fn site(of: u8) -> String {
    if of % 2 == 1 { "odd" } else { "even" }.to_owned()
}

/// Both turns of a vote in which everything is found to carry a hundred megabytes per second.
fn optimise(bench: &mut Bench, first: u64, site: fn(u8) -> String) {
    for number in ALL {
        bench.say(number, cast(first, &RingWish::Begin { site: site(number), known: Vec::new() }));
    }
    for number in ALL {
        let others = ALL.into_iter().filter(|other| *other > number);
        let found = others.map(|other| Brought {
            peer: id(other),
            sends: 100_000_000,
            receives: 100_000_000,
            round_trip_us: 100,
            age_ms: 0,
        });
        let wish = RingWish::Measured {
            site: site(number),
            found: found.collect(),
            failed: Vec::new(),
            trouble: None,
        };
        bench.say(number, cast(first + 1, &wish));
    }
    for (token, question) in std::mem::take(&mut bench.questions) {
        bench.run.handle_solved(bench.now, token, &question.answer(&|| false));
        bench.drain();
    }
    let asked = bench.told(1).into_iter().find_map(|message| match message {
        ToPeer::Prepare { number, .. } => Some(number),
        _ => None,
    });
    if let Some(number) = asked {
        bench.all_say(&ALL, &ToCoordinator::Prepared { group: 0, number, error: None });
        let epoch = bench.run.groups[0].epoch;
        bench.confirm(&ALL, epoch);
    }
    bench.clear();
}

fn tell(bench: &mut Bench, from: u8, to: u8, rate: u64) {
    bench.wait(ms(1)); // The newest figure counts.
    let speed = LinkSpeed { to: id(to), rate, round_trip_us: 100 };
    bench.say(from, ToCoordinator::LinkSpeed(0, speed));
}

fn rate(bench: &Bench, from: u8, to: u8) -> Option<u64> {
    bench.run.groups[0].survey.links.of(id(from), id(to)).map(|link| link.rate)
}

#[test]
fn a_speed_counts_once_it_is_known_where_everybody_is() {
    let mut bench = Bench::of(&ALL);
    tell(&mut bench, 1, 2, 1_000);
    assert_eq!(rate(&bench, 1, 2), None, "what it shares its way with is not known");
    optimise(&mut bench, 1, |_| String::new());
    tell(&mut bench, 1, 2, 90_000_000);
    assert_eq!(rate(&bench, 1, 2), Some(90_000_000));
    assert!(!bench.notes.iter().any(|note| matches!(note, Note::LinkSlowed { .. })));
    tell(&mut bench, 1, 2, 60_000_000);
    let slowed =
        ToPeer::LinkSlowed { group: 0, from: id(1), to: id(2), before: 100_000_000, rate: 60_000_000 };
    bench.assert_told(&ALL, &[slowed]);
    tell(&mut bench, 1, 2, 50_000_000);
    let slowed = |note: &&Note| matches!(note, Note::LinkSlowed { .. });
    assert_eq!(bench.notes.iter().filter(slowed).count(), 1, "told once: {:?}", bench.notes);
}

#[test]
fn what_a_link_carries_on_a_shared_uplink_is_not_its_speed() {
    let mut bench = Bench::of(&ALL);
    optimise(&mut bench, 1, site);
    let ring = bench.run.groups[0].ring.clone();
    let is_odd = |peer: &PeerId| ALL.into_iter().any(|number| number % 2 == 1 && id(number) == *peer);
    assert!(
        ring.iter().zip(ring.iter().cycle().skip(1)).filter(|(a, b)| is_odd(a) != is_odd(b)).count() == 2
    );
    // Nobody else leaves the site.
    let crosses = |(from, to): &(u8, u8)| {
        let place = |number| ring.iter().position(|peer| *peer == id(number)).unwrap();
        site(*from) != site(*to) && place(*to) == (place(*from) + 1) % 4
    };
    let mut pairs = ALL.into_iter().flat_map(|from| ALL.into_iter().map(move |to| (from, to)));
    let (from, to) = pairs.find(crosses).unwrap();
    tell(&mut bench, from, to, 80_000_000);
    assert_eq!(rate(&bench, from, to), Some(80_000_000));
    // By rank it leaves each site twice, and each link gets half of the uplink.
    bench.run.groups.get_mut(0).unwrap().ring = ALL.map(id).to_vec();
    for (from, to) in [(1, 2), (2, 3), (3, 4), (4, 1)] {
        let before = rate(&bench, from, to);
        tell(&mut bench, from, to, 40_000_000);
        assert_eq!(rate(&bench, from, to), before);
    }
}
