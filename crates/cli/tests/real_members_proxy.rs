//! A proxy in front of a member that goes on accepting after the member has died: the kernel's word is worth
//! less than it seems, and the wait is bounded by the stall budget (rule 22).

mod common;

use common::{Member, SECOND, new_secret};
use rustix::process::Signal;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Accepts connections at an address of its own, for ever, and passes their bytes on while the member lives.
/// Datagrams are not passed on, so health goes over streams (rule 24).
fn proxy(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        // Connections whose member is gone are kept open, as a careless proxy does.
        let mut kept = Vec::new();
        for client in listener.incoming().flatten() {
            match TcpStream::connect(to) {
                Ok(server) => {
                    let (Ok(from), Ok(back)) = (client.try_clone(), server.try_clone()) else { continue };
                    thread::spawn(move || pass(from, server));
                    thread::spawn(move || pass(back, client));
                }
                Err(_) => kept.push(client),
            }
            kept.truncate(1_000);
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Write);
}

#[test]
fn a_proxy_that_accepts_for_the_dead_delays_a_death_by_no_more_than_the_stall_budget() {
    let secret = new_secret();
    let times = ["--preset", "lan", "--stall-budget", "4s"];
    let reserved = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = reserved.local_addr().expect("an address");
    drop(reserved);
    let (listening, advertised) = (listen.to_string(), proxy(listen).to_string());
    let mut options = times.to_vec();
    options.extend(["--listen", &listening, "--advertise", &advertised]);
    let hidden = Member::start("hidden", &secret, &options);
    let mut watchers = Vec::new();
    for name in ["b", "c", "d"] {
        let mut options = times.to_vec();
        options.extend(["--join", &advertised]);
        watchers.push(Member::start(name, &secret, &options));
    }
    for member in &watchers {
        let all = |line: &common::OutputLine| {
            line.is("status")
                && line.json["active"] == 4
                && line.json["members"].as_array().unwrap().iter().all(|row| row["health"] == "alive")
        };
        member.wait_for("everybody alive", 30 * SECOND, 0, all);
    }
    let marks: Vec<_> = watchers.iter().map(Member::mark).collect();
    hidden.signal(Signal::KILL);
    for (member, mark) in watchers.iter().zip(marks) {
        let died = member.wait_for("the death", 20 * SECOND, mark, |line| line.is_about("died", &hidden.id));
        println!("{} saw: {}", member.name, died.json["reason_text"]);
        let wrong = member
            .since(mark)
            .into_iter()
            .find(|line| line.is("died") && line.json["member"]["id"] != hidden.id.as_str());
        assert!(wrong.is_none(), "{} saw another death: {wrong:?}", member.name);
    }
}
