//! What strangers send, in bulk: refused, counted, and nothing else happens.
//!
//! First 100,000 datagrams against the guard that every datagram passes, then some thousand connections against
//! a real port on loopback. Each kind of attack is asserted to have been refused for its own reason, so that a
//! broken attack does not pass for a good defence.

mod gullible;
mod insider;

use outlast::port::{HEALTH, Port, RefusedConnection, Routes, ServeSettings, Serving, connect};
use outlast::security::datagram::{DatagramGuard, Opened, RefusedDatagram};
use outlast::security::tls::TlsIdentity;
use outlast::security::{ProcessKey, RunKeys, RunSecret};
use outlast_proto::id::{BootId, PeerId, RunId};
use outlast_proto::limits::{DATAGRAM_BYTES_MAX, PACKET_BYTES_MAX};
use outlast_proto::rng::Rng;
use outlast_proto::time::{Duration, Instant};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

const DATAGRAMS: usize = 100_000;
const PLENTY: Duration = Duration::from_secs(30);

fn keys(secret: &RunSecret, run: &str) -> Arc<RunKeys> {
    RunKeys::derive(secret, &run.parse::<RunId>().unwrap())
}

fn member(keys: &Arc<RunKeys>, peer: u8, boot: u64) -> DatagramGuard {
    DatagramGuard::new(keys.clone(), PeerId::from_bytes([peer; 16]), BootId(boot))
}

fn seal(by: &mut DatagramGuard, plaintext: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    by.seal(plaintext, &mut out);
    out
}

/// A member as the network sees it.
struct Host {
    guard: DatagramGuard,
    address: SocketAddr,
}

impl Host {
    fn new(keys: &Arc<RunKeys>, peer: u8, boot: u64) -> Self {
        let address = SocketAddr::from((Ipv4Addr::new(192, 0, 2, peer), 29_400));
        Self { guard: member(keys, peer, boot), address }
    }

    fn open(&mut self, now: Instant, from: &Self, datagram: &[u8]) -> Opened {
        self.guard.open(now, from.address, datagram)
    }
}

/// Lets the two believe each other; `b` receives `a`'s first packet.
fn introduce(now: Instant, a: &mut Host, b: &mut Host) {
    let hello = seal(&mut a.guard, b"hello");
    let Opened::Reply(challenge) = b.open(now, a, &hello) else { panic!("no challenge") };
    let Opened::Reply(echo) = a.open(now, b, &challenge) else { panic!("no echo") };
    let Opened::Packet { reply: Some(echo), .. } = b.open(now, a, &echo) else { panic!("no packet") };
    assert!(matches!(a.open(now, b, &echo), Opened::Settled(_)));
}

#[test]
fn a_hundred_thousand_hostile_datagrams_change_nothing() {
    let secret = RunSecret::generate();
    let ours = keys(&secret, "run");
    let (mut victim, mut previous, mut honest) =
        (Host::new(&ours, 1, 1), Host::new(&ours, 2, 1), Host::new(&ours, 2, 2));
    let mut now = Instant::ORIGIN;
    introduce(now, &mut previous, &mut victim);
    introduce(now, &mut honest, &mut victim);

    // What an attacker on the wire has: everything that anybody ever sent.
    let recorded: Vec<_> = (0..500).map(|n: u32| seal(&mut honest.guard, &n.to_be_bytes())).collect();
    for datagram in &recorded {
        assert!(matches!(victim.open(now, &honest, datagram), Opened::Packet { .. }));
    }
    let old_boot: Vec<_> = (0..500).map(|_| seal(&mut previous.guard, b"I live")).collect();
    let dead: Vec<_> = (0..2_000).map(|boot| seal(&mut member(&ours, 3, boot), b"I live")).collect();
    // Members of another run and with another secret, under an honest member's name and ahead of its numbers.
    let mut foreign =
        [member(&keys(&secret, "other"), 2, 2), member(&keys(&RunSecret::generate(), "run"), 2, 2)];
    for guard in &mut foreign {
        (0..2_000).for_each(|_| drop(seal(guard, b"")));
    }
    let to_alter = seal(&mut honest.guard, &[5; 300]);

    let mut rng = Rng::from_seed(7);
    let accepted_before = victim.guard.counters().accepted;
    let (mut refused, mut challenged) = (0, 0);
    for n in 0..DATAGRAMS {
        now += Duration::from_micros(50);
        // From many addresses, some of them the honest member's.
        let source = match rng.below(4) {
            0 => honest.address,
            _ => SocketAddr::from((Ipv4Addr::from(rng.next_u64() as u32), rng.next_u64() as u16)),
        };
        let kind = n % 8;
        let datagram = match kind {
            0 => (0..rng.below(DATAGRAM_BYTES_MAX)).map(|_| rng.next_u64() as u8).collect(),
            1 => to_alter[..rng.below(to_alter.len())].to_vec(),
            2 => {
                let (mut altered, bit) = (to_alter.clone(), rng.below(to_alter.len() * 8));
                altered[bit / 8] ^= 1 << (bit % 8);
                altered
            }
            3 => recorded[rng.below(recorded.len())].clone(),
            4 => [to_alter.clone(), vec![0; DATAGRAM_BYTES_MAX]].concat(),
            5 => seal(&mut foreign[rng.below(2)], &[0; 100]),
            6 => old_boot[rng.below(old_boot.len())].clone(),
            _ => dead[rng.below(dead.len())].clone(),
        };
        match (kind, victim.guard.open(now, source, &datagram)) {
            (0 | 2, Opened::Refused(_))
            | (1, Opened::Refused(RefusedDatagram::TooShort | RefusedDatagram::Unauthentic))
            | (3, Opened::Refused(RefusedDatagram::Replayed))
            | (4, Opened::Refused(RefusedDatagram::TooLong))
            | (5, Opened::Refused(RefusedDatagram::Unauthentic))
            | (6, Opened::Refused(RefusedDatagram::RetiredBoot)) => refused += 1,
            // Recorded words of a boot that we do not know: challenged, and nobody can answer.
            (7, Opened::Reply(challenge)) if challenge.len() <= datagram.len() => challenged += 1,
            (kind, outcome) => panic!("kind {kind}: {outcome:?}"),
        }
    }

    let counters = victim.guard.counters();
    assert_eq!(counters.accepted, accepted_before, "nothing was accepted");
    assert_eq!((counters.refused_total(), counters.challenges_sent), (refused, 2 + challenged));
    assert_eq!(refused + challenged, DATAGRAMS as u64);
    assert_eq!(victim.guard.believed(), 1, "no table grew");
    assert!(victim.guard.stashed() <= 256, "no table grew");
    let datagram = seal(&mut honest.guard, &[9; PACKET_BYTES_MAX]);
    assert!(matches!(victim.open(now, &honest, &datagram), Opened::Packet { .. }), "service goes on");
    assert!(
        matches!(victim.open(now, &honest, &to_alter), Opened::Packet { .. }),
        "the original was not used up"
    );
}

/// A port of run "run" that tells each caller its peer id, and a member that asks it.
struct Target {
    port: Port,
    serving: Serving,
    secret: RunSecret,
}

impl Target {
    fn new() -> Self {
        let secret = RunSecret::generate();
        let port = Port::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let routes = Routes::new().route(HEALTH, |mut incoming| {
            tokio::spawn(async move {
                let text = incoming.peer.to_string();
                incoming.stream.write_all(text.as_bytes()).await.ok();
                incoming.stream.shutdown().await.ok();
            });
        });
        let settings = ServeSettings {
            handshake_timeout: Duration::from_secs(2),
            handshakes_max: 512,
            handshakes_per_source_max: 256,
            ..ServeSettings::default()
        };
        let identity = Arc::new(TlsIdentity::derived(&keys(&secret, "run"), &ProcessKey::generate()));
        let serving = port.serve_runs(&Handle::current(), identity, routes, settings).unwrap();
        Self { port, serving, secret }
    }

    fn refused(&self, cause: &RefusedConnection) -> u64 {
        self.serving.counters().refused(cause)
    }

    async fn open(&self) -> TcpStream {
        TcpStream::connect(self.port.address()).await.unwrap()
    }

    /// A member is served as if nothing were going on.
    async fn assert_serves(&self) {
        let caller = TlsIdentity::derived(&keys(&self.secret, "run"), &ProcessKey::generate());
        let mut opened = connect(self.port.address(), HEALTH, &caller, PLENTY).await.unwrap();
        let mut text = String::new();
        opened.stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, caller.peer().to_string());
    }

    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = std::time::Instant::now() + PLENTY;
        while !condition(self) {
            assert!(std::time::Instant::now() < deadline, "never: {what}; {:?}", self.serving.counters());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Sends `bytes`, says that it is done, and reads until the port hangs up.
async fn shout(mut stream: TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.ok();
    stream.shutdown().await.ok();
    let mut answer = Vec::new();
    let hung_up = tokio::time::timeout(PLENTY, stream.read_to_end(&mut answer)).await;
    assert!(hung_up.is_ok(), "the port did not hang up");
    assert!(answer.len() < 64, "a stranger gets at most an alert, not {} bytes", answer.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_is_refused_and_members_are_served_meanwhile() {
    let target = Target::new();
    target.assert_serves().await;
    let descriptors = open_descriptors();
    let mut rng = Rng::from_seed(11);
    for round in 0..500 {
        let noise: Vec<u8> = (0..=rng.below(600)).map(|_| rng.next_u64() as u8).collect();
        // A record header in front gets the noise further into TLS.
        let record = [&[22, 3, 1, (noise.len() >> 8) as u8, noise.len() as u8][..], &noise].concat();
        shout(target.open().await, &record).await;
        shout(target.open().await, b"GET / HTTP/1.1\r\nHost: outlast\r\n\r\n").await;
        // Done in the middle of a record.
        shout(target.open().await, &[22, 3, 1, 0]).await;
        // Looks at the kernel and goes (rule 22): not a refusal.
        drop(target.open().await);
        if round % 100 == 0 {
            target.assert_serves().await;
        }
    }
    target.until("all judged", |target| target.serving.counters().hung_up() == 500).await;
    target.until("all refused", |target| target.serving.counters().refused_total() == 1_500).await;
    // HTTP is not TLS, the unfinished record breaks off, and noise may look like either.
    let (not_tls, broken) =
        (RefusedConnection::NotTls(String::new()), RefusedConnection::Broken(String::new()));
    assert!(target.refused(&not_tls) >= 500 && target.refused(&broken) >= 500);
    assert_eq!(target.refused(&not_tls) + target.refused(&broken), 1_500);
    target.until("all places given back", |target| target.serving.counters().handshakes() == 0).await;
    target.until("all descriptors closed", |_| open_descriptors() <= descriptors + 2).await;
    target.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_openers_are_put_out_and_do_not_keep_members_out() {
    let target = Target::new();
    let mut slow = Vec::new();
    for n in 0..200 {
        let mut stream = target.open().await;
        if n % 2 == 0 {
            stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        }
        slow.push(stream);
    }
    target.assert_serves().await;
    target.until("timed out", |target| target.refused(&RefusedConnection::TimedOut) == 200).await;
    target.until("all places given back", |target| target.serving.counters().handshakes() == 0).await;
    target.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_certificates_are_refused_even_if_the_caller_takes_ours() {
    let target = Target::new();
    let run: RunId = "run".parse().unwrap();
    let other_secret = TlsIdentity::derived(&keys(&RunSecret::generate(), "run"), &ProcessKey::generate());
    let other_run = TlsIdentity::derived(&keys(&target.secret, "other"), &ProcessKey::generate());
    for (n, identity) in [&other_secret, &other_run].into_iter().enumerate() {
        for alpn in [HEALTH, b"http/1.1"] {
            gullible::call(target.open().await, identity, &run, alpn).await;
        }
        let causes = [
            RefusedConnection::ForeignCertificate(String::new()),
            RefusedConnection::NoSuchPlane(String::new()),
        ];
        for cause in &causes {
            target.until("refused", |target| target.refused(cause) == n as u64 + 1).await;
        }
    }
    // The right certificate, but a run that is not served here, a name that is none, and no plane.
    let member = TlsIdentity::derived(&keys(&target.secret, "run"), &ProcessKey::generate());
    let other: RunId = "other".parse().unwrap();
    gullible::call(target.open().await, &member, &other, HEALTH).await;
    target.until("run", |target| target.refused(&RefusedConnection::WrongRun(String::new())) == 1).await;
    gullible::call(target.open().await, &member, &run, b"").await;
    target.until("plane", |target| target.refused(&RefusedConnection::NoSuchPlane(String::new())) == 3).await;
    gullible::call_without_certificate(target.open().await, &run).await;
    let foreign = RefusedConnection::ForeignCertificate(String::new());
    target.until("no certificate", |target| target.refused(&foreign) == 3).await;
    assert_eq!(target.serving.counters().authenticated(), 0);
    target.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_name_is_refused_counted_and_named() {
    let target = Target::new();
    let (run, victim) = ("run".parse().unwrap(), ProcessKey::generate().peer());
    let cause = RefusedConnection::FalseName { claimed: victim, proved: victim };
    assert!(cause.to_string().contains(&victim.to_string()), "{cause}");
    for n in 1..=20 {
        let (certificate, key) = insider::stolen_name(&target.secret, &run, victim);
        gullible::call_with(target.open().await, certificate, key, &run, HEALTH).await;
        target.until("refused", |target| target.refused(&cause) == n).await;
    }
    assert_eq!(target.serving.counters().authenticated(), 0);
    target.assert_serves().await;
}
