//! The ring alone: all-reduce between processes over plaintext TCP on loopback, without votes.
//!
//! `bench_ring WORLD [BYTES..]` starts WORLD processes of itself and prints, for each size, one line of JSON
//! with the median and the best time of rank 0. This is the "votes off" side of the comparison that
//! `bench/all_reduce` makes.

use outlast::executor::{Abort, Buffers, DataPlane, DataSettings, OpSpec};
use outlast::fork::Guarded;
use outlast::link::{PlainDialer, TcpSettings, TcpWire, read_plain_hello};
use outlast_proto::collective::{DataType, Fingerprint, OpKey, OpKind, ReduceOp, Scope};
use outlast_proto::id::PeerId;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Each size is repeated for about this long, within the bounds below.
const BUDGET: Duration = Duration::from_millis(1_500);
const REPETITIONS_MIN: usize = 7;
const REPETITIONS_MAX: usize = 1_000;
const WARM_UP: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<usize>().expect("a number");
    if arguments.first().is_some_and(|first| first == "--rank") {
        return member(
            number(&arguments[1]),
            number(&arguments[2]),
            arguments[3..].iter().map(number).collect(),
        );
    }
    let world = arguments.first().map_or(2, number);
    let mut sizes: Vec<usize> = arguments.iter().skip(1).map(number).collect();
    if sizes.is_empty() {
        sizes = (12..=28).step_by(2).map(|power| 1 << power).collect();
    }
    let program = std::env::current_exe().expect("the path of this program");
    let mut children: Vec<_> = (0..world)
        .map(|rank| {
            let mut command = Command::new(&program);
            command.arg("--rank").arg(rank.to_string()).arg(world.to_string());
            command.args(sizes.iter().map(usize::to_string));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process of this program")
        })
        .collect();
    let mut outputs: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().expect("it is piped"))).collect();
    let mut addresses = String::new();
    for output in &mut outputs {
        let mut line = String::new();
        output.read_line(&mut line).expect("a member's address");
        addresses.push_str(line.trim());
        addresses.push(' ');
    }
    for child in &mut children {
        writeln!(child.stdin.as_mut().expect("it is piped"), "{addresses}").expect("a living member");
    }
    for output in &mut outputs {
        // Members say "done" and stay until all are: a link that closes early would look like a failure.
        for line in output.lines().map(|line| line.expect("text")).take_while(|line| line != "done") {
            println!("{line}");
        }
    }
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait().expect("a child").success());
    }
}

fn peer(rank: usize) -> PeerId {
    PeerId::from_bytes([rank as u8 + 1; 16])
}

/// Processor time of this process: the figure that other work on the machine disturbs least.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// What rank 0 thinks: each bit as the sum of one number from it and zeros from the others.
fn agree(rank: usize, wish: usize, reduce: &mut impl FnMut(&mut [u8])) -> usize {
    let bits = |bit: usize| if rank == 0 && wish >> bit & 1 == 1 { 1.0_f32 } else { 0.0 };
    let mut bytes: Vec<u8> = (0..16).flat_map(|bit| bits(bit).to_ne_bytes()).collect();
    reduce(&mut bytes);
    let (sums, _) = bytes.as_chunks::<4>();
    sums.iter().enumerate().map(|(bit, sum)| usize::from(f32::from_ne_bytes(*sum) > 0.5) << bit).sum()
}

fn member(rank: usize, world: usize, sizes: Vec<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the addresses");
    let addresses: Vec<SocketAddr> =
        line.split_whitespace().map(|text| text.parse().expect("an address")).collect();
    let ring: Vec<_> = addresses.iter().enumerate().map(|(rank, address)| (peer(rank), *address)).collect();

    let mut settings = DataSettings::default();
    if let Ok(bytes) = std::env::var("WINDOW_BYTES") {
        settings.window_bytes = bytes.parse().expect("a number");
    }
    let dialer = Arc::new(PlainDialer { me: peer(rank), tcp: TcpSettings::default() });
    let plane = Arc::new(DataPlane::new(peer(rank), settings, dialer, |_| {}).expect("a plane"));
    let taker = Arc::clone(&plane);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let from = read_plain_hello(&mut stream, Duration::from_secs(5)).expect("a hello");
            let wire = TcpWire::new(Guarded::new(stream).expect("a guard"), &TcpSettings::default())
                .expect("socket options");
            taker.accept(from, Box::new(wire));
        }
    });
    plane.open_epoch(0, 1, ring.clone());

    let members: Arc<[PeerId]> = ring.iter().map(|(peer, _)| *peer).collect();
    let mut seq = 0;
    let mut tensor = vec![0_u8; sizes.iter().copied().max().unwrap_or(0)];
    let mut reduce = |bytes: &mut [u8]| {
        let spec = OpSpec {
            key: OpKey { group: 0, epoch: 1, scope: Scope::Whole, tag: 0, seq },
            fingerprint: Fingerprint {
                kind: OpKind::AllReduce,
                data_type: DataType::F32,
                counts: vec![bytes.len() as u64 / 4],
                op: ReduceOp::Sum,
                retry: true,
                min_world: 1,
            },
            ring: Arc::clone(&members),
            deadline: Instant::now() + Duration::from_mins(1),
        };
        seq += 1;
        let performed = plane.perform(&spec, Buffers::in_place([bytes]), &Abort::new());
        performed.expect("nobody fails here").commit();
    };
    for bytes in sizes {
        let tensor = &mut tensor[..bytes / 4 * 4];
        for _ in 0..WARM_UP {
            reduce(tensor);
        }
        let started = Instant::now();
        reduce(tensor);
        let once = started.elapsed().max(Duration::from_micros(1));
        let wish = usize::try_from(BUDGET.as_nanos() / once.as_nanos()).unwrap_or(REPETITIONS_MAX);
        let repetitions = agree(rank, wish.clamp(REPETITIONS_MIN, REPETITIONS_MAX), &mut reduce);
        let processor_before = processor_seconds();
        let mut times: Vec<f64> = (0..repetitions)
            .map(|_| {
                let started = Instant::now();
                reduce(tensor);
                started.elapsed().as_secs_f64()
            })
            .collect();
        if rank == 0 {
            times.sort_by(f64::total_cmp);
            let (median, best) = (times[times.len() / 2], times[0]);
            let processor = (processor_seconds() - processor_before) / repetitions as f64;
            let figures = format!("\"median\":{median:.9},\"best\":{best:.9},\"processor\":{processor:.9}");
            println!("{{\"world\":{world},\"bytes\":{bytes},{figures}}}");
        }
    }
    println!("done");
    std::io::stdin().read_line(&mut line).expect("the end of input");
}
