//! Members on two hosts: all of one die at once, and nothing that was acknowledged is lost, because every key has its copy on
//! the other one. One machine has many addresses, and members with one address are on one host.

use crate::members::{Member, Role};
use crate::{all_see, coordinator, role_at};
use rustix::process::Signal;

const KEYS: u32 = 300;

#[test]
fn nothing_is_lost_when_all_members_of_one_host_are_killed_at_once() {
    let coordinator = coordinator();
    let mut members: Vec<_> = (0..6)
        .map(|place| {
            let listen = ["127.0.0.1:0", "127.0.0.2:0"][place / 3];
            let role = role_at(&coordinator, &format!("m{place}"));
            Member::start(&Role { listen: Some(listen.to_owned()), ..role })
        })
        .collect();
    members.iter().for_each(|member| assert_eq!(member.joined(), "in"));
    all_see(&mut members, 6);
    assert_eq!(members[0].done(&format!("fill key {KEYS}")).text, "filled");
    let dead = members.split_off(3);
    dead.iter().for_each(|member| member.signal(Signal::KILL));
    drop(dead);
    all_see(&mut members, 3);
    for member in &mut members {
        assert_eq!(member.done(&format!("missing key {KEYS}")).text, "");
    }
}
