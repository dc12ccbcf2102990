//! Links do what their rules say: delay, jitter, loss, rate, and changes while they carry traffic.

use crate::common::{alone, arrives, lab, stream, transfer, udp};
use outlast_lab::{Change, LabError, NewRate, Rate, Rule};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

/// Round trips of `count` datagrams, each echoed by hand, in order of length.
fn round_trips(lab: &outlast_lab::Lab, count: usize) -> Vec<Duration> {
    let (near, near_address) = udp(lab.host("a").unwrap());
    let (far, far_address) = udp(lab.host("b").unwrap());
    let mut buffer = [0; 16];
    let mut times: Vec<_> = (0..count)
        .map(|_| {
            let start = Instant::now();
            near.send_to(b"ping", far_address).unwrap();
            far.recv(&mut buffer).unwrap();
            far.send_to(b"pong", near_address).unwrap();
            near.recv(&mut buffer).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    times
}

#[test]
fn a_delay_is_added_each_way_and_can_change_while_running() {
    let _alone = alone();
    let Some(lab) = lab("delay", &["a", "b"]) else { return };
    let perfect = round_trips(&lab, 21)[10];
    assert!(perfect < 5 * MS, "{perfect:?}");
    lab.set("a", "b", Rule::perfect().delay(30 * MS)).unwrap();
    lab.set("b", "a", Rule::perfect().delay(10 * MS)).unwrap();
    let times = round_trips(&lab, 21);
    assert!(times[0] >= 40 * MS, "never early: {times:?}");
    assert!(times[10] < 50 * MS, "rarely late: {times:?}");
    lab.set_all(Rule::perfect()).unwrap();
    assert!(round_trips(&lab, 21)[10] < 5 * MS);
}

#[test]
fn jitter_stays_within_its_bounds() {
    let _alone = alone();
    let Some(lab) = lab("jitter", &["a", "b"]) else { return };
    lab.set("a", "b", Rule::perfect().delay(10 * MS).jitter(8 * MS)).unwrap();
    let times = round_trips(&lab, 60);
    assert!(times[0] >= 2 * MS, "{times:?}");
    assert!(times[0] < 7 * MS && times[50] > 13 * MS, "spread out: {times:?}");
    assert!(times[45] < 25 * MS, "{times:?}");
}

#[test]
fn loss_is_the_share_that_was_asked_for_and_the_seed_repeats_it() {
    const SENT: u16 = 2_000;
    let _alone = alone();
    let Some(probe) = lab("loss", &["a", "b"]) else { return };
    drop(probe);
    let survivors = |seed| {
        let lab = outlast_lab::Lab::builder("loss").hosts(["a", "b"]).seed(seed).start().unwrap();
        lab.set("a", "b", Rule::perfect().loss(0.1)).unwrap();
        let (near, _) = udp(lab.host("a").unwrap());
        let (far, address) = udp(lab.host("b").unwrap());
        let mut arrived = Vec::new();
        let mut buffer = [0; 16];
        for batch in 0..SENT / 50 {
            for number in batch * 50..batch * 50 + 50 {
                near.send_to(&number.to_be_bytes(), address).unwrap();
            }
            // What was sent is judged before the next batch, so no buffer on the way can overflow.
            crate::common::wait_until("the batch to be judged", || {
                let counters = lab.counters("a", "b").unwrap();
                counters.delivered + counters.lost == u64::from(batch * 50 + 50)
            });
            far.set_nonblocking(true).unwrap();
            while let Ok(length) = far.recv(&mut buffer) {
                assert_eq!(length, 2);
                arrived.push(u16::from_be_bytes([buffer[0], buffer[1]]));
            }
        }
        let counters = lab.counters("a", "b").unwrap();
        assert_eq!(counters.delivered, arrived.len() as u64);
        assert_eq!(counters.dropped(), counters.lost);
        arrived
    };
    let first = survivors(7);
    // 10 % of 2,000: four standard deviations are 54.
    let lost = usize::from(SENT) - first.len();
    assert!((146..=254).contains(&lost), "{lost}");
    assert!(first.is_sorted(), "datagrams stay in order");
    assert_eq!(first, survivors(7), "the same seed loses the same datagrams");
    assert_ne!(first, survivors(8));
}

#[test]
fn a_limited_line_carries_its_rate_one_way_only() {
    let _alone = alone();
    let Some(lab) = lab("rate", &["a", "b"]) else { return };
    lab.set("a", "b", Rule::perfect().rate(Rate::mbit(40))).unwrap();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let bytes = 5_000_000;
    let (near, far) = stream(a, b);
    let slow = transfer(near, far, bytes);
    // One second of line time; headers are 4 %, and TCP may lose a little to its own search for the rate.
    assert!(slow > 990 * MS, "faster than the line: {slow:?}");
    assert!(slow < 1_500 * MS, "much slower than the line: {slow:?}");
    let (near, far) = stream(b, a);
    assert!(transfer(near, far, bytes) < slow / 4, "the way back has no limit");

    let free = Change { rate: Some(NewRate::Unlimited), ..Change::default() };
    lab.change(Some("a"), Some("b"), false, &free).unwrap();
    let (near, far) = stream(a, b);
    assert!(transfer(near, far, bytes) < slow / 4, "the limit is gone");
}

#[test]
fn bursts_survive_loss_frame_by_frame() {
    let _alone = alone();
    let Some(lab) = lab("bursts", &["a", "b"]) else { return };
    lab.set_both("a", "b", Rule::perfect().loss(0.005)).unwrap();
    let (near, far) = stream(lab.host("a").unwrap(), lab.host("b").unwrap());
    let bytes = 20_000_000;
    transfer(near, far, bytes);
    let counters = lab.counters("a", "b").unwrap();
    let frames = counters.delivered + counters.lost;
    assert!(frames as usize > bytes / 1_460, "every frame was counted: {counters:?}");
    let share = counters.lost as f64 / frames as f64;
    assert!((0.003..0.007).contains(&share), "{share}: {counters:?}");
}

#[test]
fn pairs_are_independent() {
    let _alone = alone();
    let Some(lab) = lab("pairs", &["a", "b", "c"]) else { return };
    lab.set("a", "b", Rule::perfect().loss(1.0)).unwrap();
    let (a, a_address) = udp(lab.host("a").unwrap());
    let (b, b_address) = udp(lab.host("b").unwrap());
    let (c, c_address) = udp(lab.host("c").unwrap());
    assert!(!arrives(&a, (&b, b_address), crate::common::SILENCE));
    assert_eq!(lab.counters("a", "b").unwrap().lost, 1);
    for (from, to) in
        [(&a, (&c, c_address)), (&b, (&a, a_address)), (&c, (&b, b_address)), (&b, (&c, c_address))]
    {
        assert!(arrives(from, to, crate::common::PATIENCE));
    }
}

#[test]
fn packets_are_as_large_as_the_lab_says() {
    let _alone = alone();
    let large = match outlast_lab::Lab::builder("mtu").hosts(["a", "b"]).mtu(9_000).start() {
        Ok(lab) => lab,
        Err(LabError::NotRoot) => return eprintln!("SKIPPED mtu: {}", LabError::NotRoot),
        Err(error) => panic!("{error}"),
    };
    let (near, far) = stream(large.host("a").unwrap(), large.host("b").unwrap());
    transfer(near, far, 5_000_000);
    let counters = large.counters("a", "b").unwrap();
    let mean = counters.delivered_bytes / counters.delivered;
    assert!((6_000..=9_000).contains(&mean), "{mean}: {counters:?}");
}

#[test]
fn hosts_behind_one_uplink_share_it_and_nothing_else() {
    const BYTES: usize = 500_000;
    let _alone = alone();
    let Some(lab) = lab("uplink", &["a", "b", "c"]) else { return };
    lab.uplink(["a", "b"], Rule::perfect().rate(Rate::mbit(20))).unwrap();
    let host = |name: &str| lab.host(name).unwrap();
    let at_once = |ends: [(&str, &str); 2]| {
        let began = Instant::now();
        let transfers = ends.map(|(from, to)| {
            let (near, far) = stream(host(from), host(to));
            std::thread::spawn(move || transfer(near, far, BYTES))
        });
        for transfer in transfers {
            transfer.join().unwrap();
        }
        began.elapsed()
    };
    // A million bytes at 20 Mbit/s are 0.4 s, out and in; alone each would take half of that.
    for ends in [[("a", "c"), ("b", "c")], [("c", "a"), ("c", "b")]] {
        let together = at_once(ends);
        assert!(together >= 380 * MS, "{ends:?} took {together:?}: they did not share");
    }
    let within = at_once([("a", "b"), ("b", "a")]);
    assert!(within < 380 * MS, "behind the uplink there is no limit: {within:?}");
    assert!(matches!(lab.uplink(["x"], Rule::perfect()), Err(LabError::NoHost { .. })));
}
