//! A killed process with living children is dead, and a child that touches our objects gets an error (rule 23).
//!
//! The victim is this very test program, started again in the role of a member that forks: a child of its own
//! lives on after the SIGKILL and holds whatever it inherited.

use outlast::Membership;
use outlast::membership::{DeathReason, Event, Happening, MembershipError, Preset};
use outlast::security::RunSecret;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "OUTLAST_TEST_FORKING_MEMBER";
const SEED: &str = "OUTLAST_TEST_SEED";
/// No child outlives a test that went wrong for longer than this.
const CHILD_SECONDS: u32 = 60;

fn member(secret: &str) -> outlast::membership::MembershipBuilder {
    let secret: RunSecret = secret.parse().unwrap();
    Membership::builder().listen("127.0.0.1:0".parse().unwrap()).preset(Preset::Lan).secret(secret)
}

/// Not a test by itself: the victim's program, when the environment says so.
#[test]
fn forking_member() {
    let Ok(secret) = std::env::var(ROLE) else { return };
    let seed = std::env::var(SEED).ok();
    let victim = member(&secret).join(seed).name("victim").start().unwrap();
    // SAFETY: the child only pauses; the alarm ends it.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(CHILD_SECONDS);
            loop {
                libc::pause();
            }
        }
        child
    };
    assert!(child > 0);
    println!("\nvictim {} {} {child}", victim.address(), victim.id());
    std::io::stdout().flush().unwrap();
    std::thread::sleep(Duration::from_secs(u64::from(CHILD_SECONDS)));
}

/// The victim, its address and id, and its child.
struct Victim {
    process: Child,
    address: SocketAddr,
    id: String,
    child: i32,
}

impl Victim {
    fn start(secret: &str, seed: Option<SocketAddr>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["forking_member", "--exact", "--nocapture"]).env(ROLE, secret).stdout(Stdio::piped());
        if let Some(seed) = seed {
            command.env(SEED, seed.to_string());
        }
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line =
            lines.map_while(Result::ok).find(|line| line.starts_with("victim")).expect("it announces itself");
        let words: Vec<_> = line.split(' ').collect();
        Self {
            process,
            address: words[1].parse().unwrap(),
            id: words[2].to_owned(),
            child: words[3].parse().unwrap(),
        }
    }

    fn kill(&mut self) -> Instant {
        self.process.kill().unwrap();
        let killed = Instant::now();
        self.process.wait().unwrap();
        // SAFETY: signal 0 only asks whether the process exists.
        assert_eq!(unsafe { libc::kill(self.child, 0) }, 0, "the child must outlive its parent in this test");
        killed
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // SAFETY: the child was started for this test and reparented; nobody else has its number meanwhile.
        unsafe { libc::kill(self.child, libc::SIGKILL) };
    }
}

#[test]
fn the_port_of_a_killed_parent_refuses_although_its_child_lives() {
    let mut victim = Victim::start(&RunSecret::generate().to_text(), None);
    let connect = |address| TcpStream::connect_timeout(&address, Duration::from_secs(2));
    assert!(connect(victim.address).is_ok(), "the victim does not even listen");
    victim.kill();
    assert_eq!(connect(victim.address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_killed_member_with_a_living_child_is_known_to_all_within_a_second() {
    let secret = RunSecret::generate().to_text();
    let first = member(&secret).name("m0").start().unwrap();
    let seed = first.address().to_string();
    let mut members = vec![first];
    members.extend((1..7).map(|n| member(&secret).join([&seed]).name(format!("m{n}")).start().unwrap()));
    let mut victim = Victim::start(&secret, Some(members[0].address()));
    let deadline = Instant::now() + Duration::from_secs(20);
    let settled = |member: &Membership| {
        let active = member.active().unwrap();
        active.len() == 8
            && active.iter().all(|row| row.info.id == member.id() || row.kernel_trusted == Some(true))
    };
    while !members.iter().all(settled) {
        assert!(Instant::now() < deadline, "the group does not come together");
        std::thread::sleep(Duration::from_millis(20));
    }
    for member in &members {
        member.events(Duration::ZERO).unwrap();
    }
    let killed = victim.kill();
    let mut slowest = Duration::ZERO;
    for member in &members {
        let reason = wait_death(member, &victim.id, killed + Duration::from_secs(10));
        slowest = slowest.max(killed.elapsed());
        assert_eq!(reason, DeathReason::Refused);
    }
    println!("kill to last event, with a living child: {} ms", slowest.as_millis());
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

fn wait_death(member: &Membership, id: &str, deadline: Instant) -> DeathReason {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "{} did not see the death", member.id());
        for event in member.events(left).unwrap() {
            if let Happening::Event(Event::Died { info, reason, .. }) = event.what {
                assert_eq!(info.id.to_string(), id, "somebody else was declared dead");
                return reason;
            }
        }
    }
}

#[test]
fn a_child_that_uses_our_objects_gets_an_error_and_no_hang() {
    let member = member(&RunSecret::generate().to_text()).start().unwrap();
    // SAFETY: the child calls functions that take no lock (that is what is tested) and exits without unwinding;
    // the alarm ends it if it hangs.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(10);
            let forked =
                |outcome: Result<(), MembershipError>| matches!(outcome, Err(MembershipError::Forked(_)));
            let refused = forked(member.events(Duration::from_secs(5)).map(drop))
                && forked(member.active().map(drop))
                && forked(member.failed().map(drop))
                && forked(member.leave(Duration::from_secs(5)));
            drop(member);
            libc::_exit(i32::from(!refused));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert_eq!(member.active().unwrap().len(), 1, "the parent's member is disturbed");
}
