//! A better ring between real communicators: who measures, what it promises, newcomers, losses.
//!
//! Every peer listens at a loopback address of its own, so that each counts as a host.

mod peers;

use outlast::communicator::{Call, Error, Interrupt, NextStep, TopologyReport};
use outlast::{Communicator, Coordinator};
use outlast_proto::rng::Rng;
use outlast_proto::topology::{Costs, Objective, RingCost, solve};
use peers::{builder, coordinator};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Option<Duration> = Some(Duration::from_mins(1));

fn at_host(coordinator: &Coordinator, host: usize, site: &str) -> Arc<Communicator> {
    let listen = format!("127.0.7.{}:0", host + 1).parse().unwrap();
    let builder = builder(coordinator).listen(listen).site(site).name(format!("h{host}"));
    Arc::new(builder.start().expect("a communicator"))
}

/// Does it as all of them at once.
fn each<T: Send + 'static>(
    comms: &[Arc<Communicator>],
    act: impl Fn(&Arc<Communicator>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let act = Arc::new(act);
    let threads: Vec<_> = comms
        .iter()
        .map(|comm| {
            let (comm, act) = (Arc::clone(comm), Arc::clone(&act));
            thread::spawn(move || act(&comm))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("a peer's program")).collect()
}

fn connected(coordinator: &Coordinator, hosts: std::ops::Range<usize>) -> Vec<Arc<Communicator>> {
    let world = hosts.len() as u32;
    let comms: Vec<_> = hosts.map(|host| at_host(coordinator, host, "")).collect();
    each(&comms, move |comm| comm.connect(world).expect("connected"));
    comms
}

fn optimised(comms: &[Arc<Communicator>]) -> Vec<TopologyReport> {
    each(comms, |comm| comm.optimize_topology(PATIENCE).expect("a ring"))
}

fn sums(comms: &[Arc<Communicator>]) {
    let sum = (comms.len() as f32).to_bits();
    each(comms, move |comm| {
        let mut x = vec![1.0f32; 100_000];
        comm.all_reduce(&mut x, &Call::sum()).expect("an all-reduce");
        assert!(x.iter().all(|value| value.to_bits() == sum));
    });
}

/// Waits until they are between the two votes.
fn until_measuring(coordinator: &Coordinator) {
    let run = "default".parse().expect("a run id");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !coordinator.status(&run).expect("an answer").expect("a run").contains("\"OptimizeTopology\"") {
        assert!(Instant::now() < deadline, "they measure");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_pair_is_measured_once_and_a_newcomer_only_with_the_others() {
    let coordinator = coordinator();
    let mut comms = connected(&coordinator, 0..4);
    let (epoch, ranks) = (comms[0].epoch(), each(&comms, |comm| comm.rank()));
    let reports = optimised(&comms);
    let mut members: Vec<_> = comms.iter().map(|comm| comm.peer_id()).collect();
    members.sort_unstable();
    for report in &reports {
        assert_eq!((report.measured_pairs, report.moonshot), (6, false));
        assert_eq!(report.ring, reports[0].ring, "agreed");
        let mut ring = report.ring.clone();
        ring.sort_unstable();
        assert_eq!(ring, members);
        assert!(report.predicted.is_some_and(|seconds| seconds > 0.0) && report.before.is_some());
        assert_eq!(report.improved, comms[0].epoch() != epoch, "a new ring is a new epoch");
    }
    assert_eq!(each(&comms, |comm| comm.rank()), ranks, "ranks stay (rule 3)");
    sums(&comms);
    // Everything is known now.
    for report in optimised(&comms) {
        assert_eq!((report.measured_pairs, report.ring.len()), (0, 4));
    }
    let newcomer = at_host(&coordinator, 8, "");
    let joining = Arc::clone(&newcomer);
    let connecting = thread::spawn(move || joining.connect(5).expect("connected"));
    each(&comms, |comm| comm.update_topology(5).expect("admitted"));
    connecting.join().unwrap();
    comms.push(newcomer);
    for report in optimised(&comms) {
        assert_eq!((report.measured_pairs, report.ring.len()), (4, 5), "only its pairs");
    }
    sums(&comms);
}

#[test]
fn receipts_carry_a_prediction_once_links_are_measured() {
    let coordinator = coordinator();
    let comms = connected(&coordinator, 10..13);
    let predicted = |comm: &Arc<Communicator>| {
        comm.all_reduce(&mut vec![1.0f32; 1 << 20], &Call::sum()).expect("an all-reduce").predicted_seconds
    };
    assert_eq!(each(&comms, predicted), [None; 3]);
    let reports = optimised(&comms);
    let forecast = reports[0].predicted.expect("measured");
    let seconds = each(&comms, predicted);
    for seconds in &seconds {
        // 4 MiB of the gibibyte that the report is about, and the way, which does not shrink. Three members cannot share
        // 4 MiB evenly: one of them sends 1.6 % less than the others, and expects the same.
        let seconds = seconds.expect("measured");
        assert!(
            seconds >= forecast / 256.0 * 0.999 && seconds < forecast / 256.0 + 0.1,
            "{seconds} {forecast}"
        );
    }
    assert!(seconds.iter().all(|other| *other == seconds[0]), "one ring, one prediction: {seconds:?}");
    let barrier = each(&comms, |comm| comm.barrier(&Call::sum()).expect("a barrier").predicted_seconds);
    assert_eq!(barrier, [None; 3], "nothing is planned for it");
}

#[test]
fn sites_are_crossed_once_each_way_and_their_way_is_measured_once() {
    let coordinator = coordinator();
    let sites = ["a", "b", "a", "b", "a", "b"];
    let comms: Vec<_> =
        sites.iter().zip(20..).map(|(site, host)| at_host(&coordinator, host, site)).collect();
    // One after another, because ranks and the first ring go by arrival: it crosses six times.
    for (arrived, comm) in comms.iter().enumerate() {
        let (newcomer, world) = (Arc::clone(comm), arrived as u32 + 1);
        let connecting = thread::spawn(move || newcomer.connect(world).expect("connected"));
        each(&comms[..arrived], move |comm| comm.update_topology(world).expect("admitted"));
        connecting.join().unwrap();
    }
    assert_eq!(each(&comms, |comm| comm.rank()), [0, 1, 2, 3, 4, 5]);
    let reports = optimised(&comms);
    // Three pairs in each site, and one between them.
    assert_eq!(reports[0].measured_pairs, 7);
    let site = |peer| sites[comms.iter().position(|comm| comm.peer_id() == peer).unwrap()];
    let ring = &reports[0].ring;
    let crossings = (0..6).filter(|at| site(ring[*at]) != site(ring[(at + 1) % 6])).count();
    assert_eq!(crossings, 2, "{:?}", ring.iter().map(|peer| site(*peer)).collect::<Vec<_>>());
    assert!(reports[0].improved, "by rank it had crossed six times");
    sums(&comms);
}

#[test]
fn processes_of_one_host_are_measured_with_the_first_of_them_only() {
    let coordinator = coordinator();
    let comms: Vec<_> = (0..4).map(|_| at_host(&coordinator, 30, "")).collect();
    each(&comms, |comm| comm.connect(4).expect("connected"));
    assert_eq!(optimised(&comms)[0].measured_pairs, 3);
    sums(&comms);
}

#[test]
fn one_alone_has_a_ring_and_a_call_that_is_given_up_ends_at_once() {
    let coordinator = coordinator();
    let comms = connected(&coordinator, 40..42);
    let interrupt = Interrupt::new();
    let (stopper, comm) = (interrupt.clone(), Arc::clone(&comms[0]));
    let waiting = thread::spawn(move || comm.optimize_topology_unless(PATIENCE, &stopper));
    thread::sleep(Duration::from_millis(100)); // It does not matter where it is by then.
    let began = Instant::now();
    interrupt.trigger();
    let error = waiting.join().unwrap().expect_err("it was given up");
    assert!(began.elapsed() < Duration::from_secs(10) && error.to_string().contains("cancel"), "{error}");
    // Nobody is held up by it.
    assert_eq!(optimised(&comms)[0].measured_pairs, 1);
    comms[1].leave();
    let deadline = Instant::now() + Duration::from_secs(30);
    while comms[0].world_size() > 1 {
        assert!(Instant::now() < deadline, "it said goodbye");
        comms[0].update_topology(1).expect("a vote");
    }
    let report = comms[0].optimize_topology(PATIENCE).expect("a ring");
    assert_eq!((report.ring, report.predicted, report.improved), (vec![comms[0].peer_id()], None, false));
}

#[test]
fn a_member_that_does_not_call_is_named_when_the_time_is_up() {
    let coordinator = coordinator();
    let comms = connected(&coordinator, 50..52);
    let error = comms[0].optimize_topology(Some(Duration::from_millis(300))).expect_err("nobody else calls");
    assert_eq!(error.action(), NextStep::Retry);
    let Error::Call(error) = error else { panic!("{error}") };
    assert!(error.to_string().contains("h51"), "{error}");
    sums(&comms);
    assert_eq!(optimised(&comms)[0].measured_pairs, 1, "and the next call works");
}

#[test]
fn who_leaves_while_all_measure_costs_the_others_nothing_but_its_links() {
    let coordinator = coordinator();
    let mut comms = connected(&coordinator, 60..64);
    let leaver = comms.pop().unwrap();
    let going = thread::spawn(move || {
        // It votes, measures for a moment, and is gone. Its call is not given up before: then the others would be told so.
        let leaving = Arc::clone(&leaver);
        let stopping = thread::spawn(move || {
            thread::sleep(Duration::from_millis(250));
            leaving.leave();
        });
        let _ = leaver.optimize_topology(PATIENCE);
        stopping.join().unwrap();
    });
    for report in optimised(&comms) {
        assert_eq!(report.ring.len(), 3);
    }
    going.join().unwrap();
    sums(&comms);
    assert_eq!(optimised(&comms)[0].ring.len(), 3);
}

#[test]
fn who_comes_while_all_measure_is_let_in_afterwards_and_measured_then() {
    let coordinator = coordinator();
    let mut comms = connected(&coordinator, 130..133);
    let measuring = {
        let comms = comms.clone();
        thread::spawn(move || optimised(&comms))
    };
    until_measuring(&coordinator);
    let newcomer = at_host(&coordinator, 134, "");
    let joining = Arc::clone(&newcomer);
    let connecting = thread::spawn(move || joining.connect(4).expect("connected"));
    let reports = measuring.join().unwrap();
    for report in &reports {
        assert_eq!((report.measured_pairs, report.ring.len()), (3, 3), "it is no part of that vote");
        assert_eq!(report.ring, reports[0].ring);
    }
    let pending = each(&comms, |comm| comm.barrier(&Call::sum()).expect("a barrier").pending);
    assert_eq!(pending, [1; 3], "it waits outside");
    each(&comms, |comm| comm.update_topology(4).expect("admitted"));
    connecting.join().unwrap();
    comms.push(newcomer);
    for report in optimised(&comms) {
        assert_eq!((report.measured_pairs, report.ring.len()), (3, 4), "only its pairs");
    }
    sums(&comms);
}

/// Nobody used to hear of it, and waited until its deadline.
#[test]
fn who_gives_up_while_all_measure_ends_it_for_all_at_once_and_is_named() {
    let coordinator = coordinator();
    let comms = connected(&coordinator, 70..73);
    let interrupt = Interrupt::new();
    let (stopper, quitter) = (interrupt.clone(), Arc::clone(&comms[2]));
    let others = comms[..2].to_vec();
    let waiting = thread::spawn(move || each(&others, |comm| comm.optimize_topology(PATIENCE)));
    let quitting = thread::spawn(move || quitter.optimize_topology_unless(PATIENCE, &stopper));
    until_measuring(&coordinator);
    interrupt.trigger();
    let error = quitting.join().unwrap().expect_err("it was given up");
    assert!(error.to_string().contains("cancel"), "{error}");
    let began = Instant::now();
    for outcome in waiting.join().unwrap() {
        let error = outcome.expect_err("one gave up");
        assert_eq!(error.action(), NextStep::Retry);
        assert!(matches!(error, Error::TopologyFailed(_)) && error.to_string().contains("h72"), "{error}");
    }
    // Far less than the minute that they would have waited for; a measurement under way ends first.
    assert!(began.elapsed() < Duration::from_secs(30));
    sums(&comms);
    assert_eq!(optimised(&comms)[0].ring.len(), 3, "the next call works");
}

/// Speeds by rank, drawn from a seed, for which a quick look finds a slower ring than a long search.
#[derive(Clone, Copy)]
struct Instance {
    size: usize,
    seed: u64,
}

/// What the quick search may do, and the one in the background.
const STEPS: (u64, u64) = (1, 300_000);

impl Instance {
    fn rate(&self, from: usize, to: usize) -> u64 {
        let mixed = self.seed << 32 | (from as u64) << 16 | to as u64;
        5_000_000 + Rng::from_seed(mixed).below(95) as u64 * 1_000_000
    }

    fn costs(&self) -> Costs {
        Costs::new(self.size, |from, to| 1_000_000_000_000_000 / self.rate(from, to))
    }

    fn cost(&self, ring: &[usize]) -> RingCost {
        self.costs().ring(ring).expect("every link is there")
    }

    /// The slowest link by a search of so many steps.
    fn slowest(&self, steps: u64) -> u64 {
        let answer = solve(&self.costs(), Objective::SlowestThenSum, 1, steps);
        self.cost(answer.ring().expect("a ring")).slowest
    }

    /// One for which the search in the background is better by a tenth than the quick look, which is than by rank.
    fn of(size: usize) -> Self {
        let by_rank: Vec<_> = (0..size).collect();
        let fits = |it: &Self| {
            let (quick, long) = (it.slowest(STEPS.0), it.slowest(STEPS.1));
            quick * 10 <= it.cost(&by_rank).slowest * 9 && long * 10 <= quick * 9
        };
        (1..200).map(|seed| Self { size, seed }).find(fits).expect("such an instance")
    }

    /// Lets members know these speeds as if they had measured them; those of later ranks dial nobody.
    fn assume(&self, comms: &[Arc<Communicator>]) {
        for comm in comms {
            let (me, peers) = (comm.rank(), comm.peers());
            for other in peers.iter().filter(|peer| peer.rank > me) {
                let (sends, receives) = (self.rate(me, other.rank), self.rate(other.rank, me));
                comm.assume_link(other.id, sends, receives, Duration::from_micros(200));
            }
        }
    }
}

fn patient() -> Coordinator {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let builder = Coordinator::builder().listen(listen).ring_steps(STEPS.0, STEPS.1);
    builder.preset(outlast::membership::Preset::Local).start().expect("a coordinator")
}

/// Waits until the search in the background has found something better, and says so.
fn until_found(coordinator: &Coordinator) {
    let run = "default".parse().expect("a run id");
    let deadline = Instant::now() + Duration::from_mins(1);
    while !coordinator.status(&run).expect("an answer").expect("a run").contains("found in the background") {
        assert!(Instant::now() < deadline, "the search in the background finds something");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_the_search_in_the_background_found_is_taken_by_the_next_call() {
    let coordinator = patient();
    let comms = connected(&coordinator, 80..97);
    let instance = Instance::of(17);
    instance.assume(&comms);
    let ranks = |report: &TopologyReport, comms: &[Arc<Communicator>]| -> Vec<usize> {
        let rank = |peer| comms.iter().find(|comm| comm.peer_id() == peer).expect("a member").rank();
        report.ring.iter().map(|peer| rank(*peer)).collect()
    };
    let quick = optimised(&comms).remove(0);
    assert_eq!((quick.measured_pairs, quick.moonshot), (0, false));
    let quick_cost = instance.cost(&ranks(&quick, &comms)).slowest;
    assert_eq!(quick_cost, instance.slowest(STEPS.0));
    until_found(&coordinator);
    for report in optimised(&comms) {
        assert!(report.moonshot && report.improved, "{report:?}");
        let slowest = instance.cost(&ranks(&report, &comms)).slowest;
        assert_eq!(slowest, instance.slowest(STEPS.1));
        assert!(slowest < quick_cost && report.predicted < quick.predicted);
    }
    sums(&comms);
}

#[test]
fn what_the_search_in_the_background_found_is_dropped_when_somebody_came_meanwhile() {
    let coordinator = patient();
    let mut comms = connected(&coordinator, 100..117);
    let instance = Instance::of(17);
    instance.assume(&comms);
    assert!(!optimised(&comms)[0].moonshot);
    until_found(&coordinator);
    let newcomer = at_host(&coordinator, 120, "");
    let joining = Arc::clone(&newcomer);
    let connecting = thread::spawn(move || joining.connect(18).expect("connected"));
    each(&comms, |comm| comm.update_topology(18).expect("admitted"));
    connecting.join().unwrap();
    comms.push(newcomer);
    Instance { size: 18, ..instance }.assume(&comms);
    for report in optimised(&comms) {
        assert_eq!((report.moonshot, report.measured_pairs, report.ring.len()), (false, 0, 18));
    }
    sums(&comms);
}
