//! Faults do what they say, fire when asked, and end when told: cuts, freezes, blocks, refusals.

use crate::common::{PATIENCE, SILENCE, alone, arrives, connect, lab, listener, stream, udp, wait_until};
use outlast_lab::{Answer, LabError, Refusal, Rule};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::Stdio;
use std::time::Duration;

#[test]
fn a_one_way_cut_is_one_way_and_heals() {
    let _alone = alone();
    let Some(lab) = lab("cut", &["a", "b"]) else { return };
    let (a, a_address) = udp(lab.host("a").unwrap());
    let (b, b_address) = udp(lab.host("b").unwrap());
    lab.cut("a", "b").unwrap();
    assert!(!arrives(&a, (&b, b_address), SILENCE));
    assert!(arrives(&b, (&a, a_address), PATIENCE));
    assert_eq!(lab.counters("a", "b").unwrap().cut, 1, "the cut fired");
    lab.heal("a", "b").unwrap();
    assert!(arrives(&a, (&b, b_address), PATIENCE));
    lab.cut_both("a", "b").unwrap();
    assert!(!arrives(&a, (&b, b_address), SILENCE));
    assert!(!arrives(&b, (&a, a_address), SILENCE));
    lab.heal_all().unwrap();
    assert!(arrives(&a, (&b, b_address), PATIENCE));
}

#[test]
fn a_cut_takes_what_is_on_the_way() {
    let _alone = alone();
    let Some(lab) = lab("on-the-way", &["a", "b"]) else { return };
    lab.set("a", "b", Rule::perfect().delay(Duration::from_millis(200))).unwrap();
    let (a, _) = udp(lab.host("a").unwrap());
    let (b, b_address) = udp(lab.host("b").unwrap());
    a.send_to(b"lost", b_address).unwrap();
    // Half of the delay is enough for the datagram to set out, and too short for it to arrive.
    std::thread::sleep(Duration::from_millis(100));
    lab.cut("a", "b").unwrap();
    lab.heal("a", "b").unwrap();
    b.set_read_timeout(Some(SILENCE)).unwrap();
    assert_eq!(b.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(lab.counters("a", "b").unwrap().cut, 1);
    assert!(arrives(&a, (&b, b_address), PATIENCE));
}

#[test]
fn an_isolated_host_hears_nobody_and_the_others_go_on() {
    let _alone = alone();
    let Some(lab) = lab("isolate", &["a", "b", "c"]) else { return };
    let (a, a_address) = udp(lab.host("a").unwrap());
    let (b, b_address) = udp(lab.host("b").unwrap());
    let (c, c_address) = udp(lab.host("c").unwrap());
    lab.isolate("b").unwrap();
    assert!(!arrives(&a, (&b, b_address), SILENCE));
    assert!(!arrives(&b, (&c, c_address), SILENCE));
    assert!(arrives(&a, (&c, c_address), PATIENCE) && arrives(&c, (&a, a_address), PATIENCE));
    lab.reconnect("b").unwrap();
    assert!(arrives(&a, (&b, b_address), PATIENCE) && arrives(&b, (&c, c_address), PATIENCE));
}

/// A process that writes a line many times a second, and its lines.
fn ticker(lab: &outlast_lab::Lab, host: &str) -> (std::process::Child, std::sync::mpsc::Receiver<String>) {
    let mut command = lab.host(host).unwrap().command("sh");
    let script = "while :; do hostname; sleep 0.02; done";
    let mut child = command.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    (child, lines)
}

#[test]
fn a_frozen_host_stands_still_and_its_kernel_answers() {
    let _alone = alone();
    let Some(lab) = lab("freeze", &["a", "b"]) else { return };
    let (mut child, lines) = ticker(&lab, "b");
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), "b", "a process knows its host's name");
    let (_listener, address) = listener(lab.host("b").unwrap());

    let frozen = lab.host("b").unwrap().freeze().unwrap();
    assert!(frozen >= 1);
    while lines.try_recv().is_ok() {}
    assert!(lines.recv_timeout(SILENCE).is_err(), "no line from a frozen process");
    let (all, stopped) = lab.host("b").unwrap().count_processes();
    assert_eq!(all, stopped);
    connect(lab.host("a").unwrap(), address, PATIENCE).expect("the kernel accepts for a frozen process");

    lab.thaw("b").unwrap();
    lines.recv_timeout(PATIENCE).expect("it goes on after the thaw");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_halted_host_is_silent_as_a_whole() {
    let _alone = alone();
    let Some(lab) = lab("halt", &["a", "b"]) else { return };
    let (_listener, address) = listener(lab.host("b").unwrap());
    lab.halt("b").unwrap();
    let error = connect(lab.host("a").unwrap(), address, SILENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    lab.thaw("b").unwrap();
    connect(lab.host("a").unwrap(), address, PATIENCE).unwrap();
}

#[test]
fn blocked_udp_leaves_tcp_alone() {
    let _alone = alone();
    let Some(lab) = lab("udp", &["a", "b", "c"]) else { return };
    let (a, a_address) = udp(lab.host("a").unwrap());
    let (b, b_address) = udp(lab.host("b").unwrap());
    let (c, c_address) = udp(lab.host("c").unwrap());
    lab.block_udp("b", true).unwrap();
    assert!(!arrives(&a, (&b, b_address), SILENCE));
    assert!(!arrives(&b, (&a, a_address), SILENCE));
    assert!(arrives(&a, (&c, c_address), PATIENCE), "others are not concerned");
    assert_eq!(lab.counters("a", "b").unwrap().udp_blocked, 1);
    let (mut near, mut far) = stream(lab.host("a").unwrap(), lab.host("b").unwrap());
    near.write_all(b"hello").unwrap();
    far.read_exact(&mut [0; 5]).unwrap();
    lab.block_udp("b", false).unwrap();
    assert!(arrives(&a, (&b, b_address), PATIENCE) && arrives(&c, (&b, b_address), PATIENCE));
}

#[test]
fn a_refusal_is_heard_and_ends() {
    let _alone = alone();
    let Some(lab) = lab("refuse", &["a", "b"]) else { return };
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (_listener, address) = listener(b);
    let (mut near, _far) = stream(a, b);
    for (answer, kind) in [
        (Answer::PortUnreachable, ErrorKind::ConnectionRefused),
        (Answer::Prohibited, ErrorKind::HostUnreachable),
        (Answer::Reset, ErrorKind::ConnectionRefused),
    ] {
        lab.reject("b", Some(Refusal::everything().answer(answer))).unwrap();
        let error = connect(a, address, PATIENCE).unwrap_err();
        assert_eq!(error.kind(), kind, "{answer:?}: {error}");
    }
    assert!(lab.counters("a", "b").unwrap().refused >= 3);

    // An open connection dies of a reset, though not of the other two.
    near.write_all(b"x").unwrap();
    wait_until("the reset to arrive", || near.take_error().unwrap().is_some() || near.write(b"x").is_err());

    let (from, _) = udp(a);
    let (_to, to_address) = udp(b);
    from.connect(to_address).unwrap();
    from.send(b"x").unwrap();
    assert_eq!(from.recv(&mut [0; 4]).unwrap_err().kind(), ErrorKind::ConnectionRefused);

    lab.reject("b", None).unwrap();
    connect(a, address, PATIENCE).unwrap();
}

#[test]
fn refusing_udp_leaves_tcp_alone() {
    let _alone = alone();
    let Some(lab) = lab("refuse-udp", &["a", "b"]) else { return };
    lab.reject("b", Some(Refusal::udp())).unwrap();
    stream(lab.host("a").unwrap(), lab.host("b").unwrap());
}

#[test]
fn names_resolve_inside_and_mistakes_are_named() {
    let _alone = alone();
    let Some(lab) = lab("names", &["a", "trainer-2"]) else { return };
    let output = lab.host("a").unwrap().command("getent").args(["hosts", "trainer-2"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).split_whitespace().next(), Some("10.77.0.2"));

    assert_eq!(lab.cut("a", "x").unwrap_err().to_string(), "no host 'x'; hosts are a, trainer-2");
    assert!(matches!(lab.cut("a", "a"), Err(LabError::SameHost { .. })));
    assert!(matches!(lab.set_all(Rule::perfect().loss(2.0)), Err(LabError::OutOfRange { what: "loss", .. })));
    let twice = outlast_lab::Lab::new("twice", ["a", "a"]);
    assert!(matches!(twice, Err(LabError::HostTwice { .. })));
    let bad = outlast_lab::Lab::new("bad", ["a.b"]);
    assert!(matches!(bad, Err(LabError::BadName { what: "host", .. })));
    assert!(matches!(outlast_lab::Lab::new("none", [""; 0]), Err(LabError::HostCount { given: 0, .. })));
}
