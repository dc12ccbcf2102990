//! A live member's port under fire from somebody without the secret.

mod common;

use common::{Member, SECOND, group, new_secret};
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const DATAGRAMS: u64 = 100_000;

/// Small numbers that look random and are the same in every run (xorshift).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Genuine datagrams of the run: a member is told to join through a socket that only listens.
fn genuine(secret: &str) -> Vec<Vec<u8>> {
    let ear = UdpSocket::bind("127.0.0.1:0").unwrap();
    ear.set_read_timeout(Some(5 * SECOND)).unwrap();
    let address = ear.local_addr().unwrap().to_string();
    let _talker = Member::start("talker", secret, &["--preset", "local", "--join", &address]);
    (0..4)
        .map(|_| {
            let mut datagram = vec![0; 2_000];
            let length = ear.recv(&mut datagram).expect("the talker knocks");
            datagram.truncate(length);
            datagram
        })
        .collect()
}

/// The `number`th hostile datagram: random, truncated, altered, replayed, oversized or empty.
fn hostile(number: u64, genuine: &[Vec<u8>], noise: &mut Noise) -> Vec<u8> {
    let mut datagram = genuine[noise.next() as usize % genuine.len()].clone();
    match number % 6 {
        0 => {
            let length = noise.next() as usize % 1_400;
            return noise.bytes(length);
        }
        1 => datagram.truncate(noise.next() as usize % datagram.len()),
        2 => {
            let place = noise.next() as usize % datagram.len();
            datagram[place] ^= 1 << (noise.next() % 8);
        }
        3 => {}
        4 => datagram.resize(1_201 + noise.next() as usize % 5_000, 0xa5),
        _ => datagram.clear(),
    }
    datagram
}

#[test]
fn a_hundred_thousand_hostile_datagrams_change_nothing() {
    let secret = new_secret();
    let genuine = genuine(&secret);
    let members = group(3, &secret, &["--preset", "lan"]);
    let target = &members[0];
    let counter = |name: &str| target.status()["counters"][name].as_u64().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let mut number = 0;
    let mut fire = |rounds: u64| {
        for _ in 0..rounds {
            let _ = socket.send_to(&hostile(number, &genuine, &mut noise), target.address);
            number += 1;
        }
    };
    // Warm up first, so that buffers and tables have their size before memory is measured.
    fire(2_000);
    let marks: Vec<_> = members.iter().map(Member::mark).collect();
    let memory_before = target.resident_bytes();
    let (received_before, refused_before) = (counter("packets_received"), counter("refused"));
    let deadline = Instant::now() + 60 * SECOND;
    // The kernel drops what comes too fast; go on until as many have really been read.
    while counter("packets_received") < received_before + DATAGRAMS {
        assert!(Instant::now() < deadline, "the target reads too slowly");
        fire(10_000);
    }
    for (member, mark) in members.iter().zip(&marks) {
        member.wait_settled(3, 10 * SECOND);
        member.assert_never(&["joined", "died", "left", "rejoined", "suspected"], *mark);
    }
    let refused = counter("refused") - refused_before;
    let grown = target.resident_bytes().saturating_sub(memory_before);
    println!("refused {refused} datagrams; resident memory grew by {} KiB", grown / 1_024);
    assert!(refused > DATAGRAMS / 2, "{refused}");
    assert!(grown < 8 << 20, "{grown} bytes");
}

#[test]
fn hostile_tcp_openings_change_nothing() {
    let members = group(3, &new_secret(), &["--preset", "lan"]);
    let target = &members[0];
    let marks: Vec<_> = members.iter().map(Member::mark).collect();
    let mut noise = Noise(7);
    let open = |address: SocketAddr| TcpStream::connect_timeout(&address, 5 * SECOND);
    // Some say nothing and hold the line for the whole test.
    let _slow: Vec<_> = (0..50).map(|_| open(target.address).unwrap()).collect();
    open_and_close(target.address, 200, &mut noise);
    let memory_before = target.resident_bytes();
    open_and_close(target.address, 2_000, &mut noise);
    for (member, mark) in members.iter().zip(&marks) {
        member.wait_settled(3, 10 * SECOND);
        member.assert_never(&["joined", "died", "left", "rejoined"], *mark);
    }
    let grown = target.resident_bytes().saturating_sub(memory_before);
    println!("resident memory grew by {} KiB", grown / 1_024);
    assert!(grown < 16 << 20, "{grown} bytes");
}

/// Opens `count` connections, one after the other; most say something meaningless before they close.
fn open_and_close(address: SocketAddr, count: usize, noise: &mut Noise) {
    for number in 0..count {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, 5 * SECOND) else { continue };
        let _ = stream.set_write_timeout(Some(Duration::from_millis(500)));
        let words = match number % 4 {
            0 => Vec::new(),
            // The first bytes of a TLS hello that never goes on.
            1 => vec![0x16, 0x03, 0x01, 0x02, 0x00],
            2 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            _ => noise.bytes(2_000),
        };
        let _ = stream.write_all(&words);
    }
}
