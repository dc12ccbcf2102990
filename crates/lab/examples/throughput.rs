//! How much the switch carries on this machine: one TCP connection between two hosts for several rules, then
//! a ring of four hosts in which each sends to the next.
//!
//! `sudo cargo run --release -p outlast-lab --example throughput`

use outlast_lab::{Lab, LabError, Rate, Rule};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const SECONDS: f64 = 3.0;

fn main() {
    if let Err(error) = measure_all() {
        eprintln!("throughput: {error}");
        std::process::exit(1);
    }
}

fn measure_all() -> Result<(), LabError> {
    let perfect = Rule::perfect();
    let ms = Duration::from_millis;
    let cases = [
        ("perfect", perfect),
        ("1gbit", perfect.rate(Rate::mbit(1_000))),
        ("1gbit, 1ms", perfect.rate(Rate::mbit(1_000)).delay(ms(1))),
        ("5gbit", perfect.rate(Rate::mbit(5_000))),
        ("delay 1ms", perfect.delay(ms(1))),
        ("loss 0.01%", perfect.loss(0.0001)),
        ("100mbit, 20ms", perfect.rate(Rate::mbit(100)).delay(ms(20))),
    ];
    println!("{:<16} {:>6} {:>12} {:>10}", "rule", "mtu", "goodput", "CPU-s/GB");
    for mtu in [1_500, 9_000] {
        let lab = Lab::builder("throughput").hosts(["a", "b"]).mtu(mtu).start()?;
        for (name, rule) in cases {
            lab.set_all(rule)?;
            let before = cpu_seconds();
            let (bytes, seconds) = measure(&lab, "a", "b")?;
            let cpu = (cpu_seconds() - before) / (bytes as f64 / 1e9);
            println!("{name:<16} {mtu:>6} {:>7.2} Gbit/s {cpu:>8.2}", bytes as f64 * 8.0 / seconds / 1e9);
        }
    }
    ring(perfect.rate(Rate::mbit(1_000)).delay(ms(1)))
}

/// Four hosts, four connections at once, every link by the same rule.
fn ring(rule: Rule) -> Result<(), LabError> {
    let lab = Lab::builder("throughput").hosts(["a", "b", "c", "d"]).rule(rule).start()?;
    let pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")];
    std::thread::scope(|scope| {
        let flows = pairs.map(|(from, to)| (from, to, scope.spawn(|| measure(&lab, from, to))));
        for (from, to, flow) in flows {
            let (bytes, seconds) = flow.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            println!("ring {from} -> {to}: {rule} {:>9.2} Gbit/s", bytes as f64 * 8.0 / seconds / 1e9);
        }
        Ok(())
    })
}

/// Bytes that arrived, and the seconds they took. The first tenth is not counted: TCP starts slowly.
fn measure(lab: &Lab, from: &str, to: &str) -> Result<(u64, f64), LabError> {
    let broken = |cause| LabError::System { action: "measure".to_owned(), cause };
    let (a, b) = (lab.host(from)?, lab.host(to)?);
    let address = b.address();
    let listener = b.enter(|| TcpListener::bind((address, 0)))?.map_err(broken)?;
    let target = listener.local_addr().map_err(broken)?;
    let mut near = a.enter(|| TcpStream::connect(target))?.map_err(broken)?;
    let (mut far, _) = listener.accept().map_err(broken)?;
    far.set_read_timeout(Some(Duration::from_secs(5))).map_err(broken)?;
    // The writer ends with an error when the reader hangs up.
    let writer = std::thread::spawn(move || {
        let chunk = vec![0u8; 1 << 20];
        while near.write_all(&chunk).is_ok() {}
    });
    let mut buffer = vec![0u8; 1 << 20];
    let (start, mut counted, mut since) = (Instant::now(), 0u64, None::<Instant>);
    while start.elapsed().as_secs_f64() < SECONDS {
        let length = far.read(&mut buffer).map_err(broken)?;
        if since.is_some() {
            counted += length as u64;
        } else if start.elapsed().as_secs_f64() > SECONDS / 10.0 {
            since = Some(Instant::now());
        }
    }
    let seconds = since.map_or(SECONDS, |since| since.elapsed().as_secs_f64());
    drop(far);
    let _ = writer.join();
    Ok((counted, seconds))
}

/// What this process, kernel work included, has used so far. Sender, receiver and switch are all in it.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    // User and system time, in ticks of a hundredth of a second.
    (ticks(11) + ticks(12)) / 100.0
}
