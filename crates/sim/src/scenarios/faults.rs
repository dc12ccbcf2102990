//! One kind of trouble at a time, and exactly what must come of it. Times are those of the `lan` preset:
//! suspicion 1 s, `dead_after` 10 s, `stall_budget` 15 s.

use super::Scenario;
use crate::script::Script;
use crate::world::{Direction, Effect, Fault, Firewall, HostId};
use outlast_proto::time::Duration;

const VICTIM: HostId = HostId(3);

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "kill",
            about: "a killed process is known to all of 8 within a second",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(6)
                    .fault(2_000, Fault::Kill(VICTIM))
                    .fires(&[Effect::Killed, Effect::RefusedForDead])
                    .dies(VICTIM.0, 2_000, 3_000)
            },
        },
        Scenario {
            name: "cut-off",
            about: "a host that is cut off is dead to the others within three seconds, and comes back by itself",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(9)
                    .fault(2_000, Fault::CutOff(VICTIM, Direction::Both))
                    .fault(8_000, Fault::Reconnect(VICTIM))
                    .fires(&[Effect::LostToCut, Effect::ConnectSilent])
                    .dies(VICTIM.0, 3_000, 5_000)
            },
        },
        Scenario {
            name: "stall",
            about: "a process that is stopped for ten seconds is stalled, never dead",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(14)
                    .fault(2_000, Fault::Stall(VICTIM))
                    .fault(12_000, Fault::Resume(VICTIM))
                    .fires(&[Effect::WaitedForStall, Effect::AcceptedForStalled, Effect::LateTimer])
                    .all_survive()
            },
        },
        Scenario {
            name: "stall-lossy",
            about: "stalls of half the group at 10 % loss kill nobody",
            script: |_| {
                let mut script = Script::quiet(8).safety_secs(20).fault(0, Fault::Loss(0.1));
                for (host, at) in [(1, 2_000), (2, 2_500), (5, 3_000), (7, 6_000)] {
                    script = script
                        .fault(at, Fault::Stall(HostId(host)))
                        .fault(at + 9_000, Fault::Resume(HostId(host)));
                }
                script.fires(&[Effect::LostByChance, Effect::AcceptedForStalled]).all_survive()
            },
        },
        Scenario {
            name: "stall-over-budget",
            about: "a process that is stopped for longer than the stall budget is dead, and comes back",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(25)
                    .fault(2_000, Fault::Stall(VICTIM))
                    .fault(23_000, Fault::Resume(VICTIM))
                    .fires(&[Effect::AcceptedForStalled])
                    .dies(VICTIM.0, 16_000, 20_000)
            },
        },
        Scenario {
            name: "starvation",
            about: "processes that get the processor only now and then accuse nobody and die of nothing",
            script: |_| {
                let mut script = Script::quiet(8).safety_secs(14);
                for step in 0..40 {
                    for host in [1, 4] {
                        let at = 1_000 + step * 300 + u64::from(host) * 7;
                        script = script
                            .fault(at, Fault::Stall(HostId(host)))
                            .fault(at + 250, Fault::Resume(HostId(host)));
                    }
                }
                script.fires(&[Effect::LateTimer, Effect::WaitedForStall]).all_survive()
            },
        },
        Scenario {
            name: "freeze-short",
            about: "a host that stands still for less than the suspicion time survives",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(6)
                    .fault(2_000, Fault::Freeze(VICTIM))
                    .fault(2_700, Fault::Thaw(VICTIM))
                    .fires(&[Effect::LostToFrozen])
                    .all_survive()
            },
        },
        Scenario {
            name: "freeze",
            about: "a host that stands still is dead to the others, accuses nobody when it goes on, and comes back",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(10)
                    .fault(2_000, Fault::Freeze(VICTIM))
                    .fault(8_000, Fault::Thaw(VICTIM))
                    .fires(&[Effect::LostToFrozen, Effect::ConnectSilent, Effect::LateTimer])
                    .dies(VICTIM.0, 3_000, 5_000)
                    .survives(0)
                    .survives(1)
                    .survives(7)
            },
        },
        Scenario {
            name: "deaf",
            about: "a host that talks and cannot hear: one decision, after dead_after, the same for all",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(20)
                    .fault(2_000, Fault::CutOff(VICTIM, Direction::Inbound))
                    .fires(&[Effect::LostToCut])
                    .dies(VICTIM.0, 10_000, 18_000)
            },
        },
        Scenario {
            name: "mute",
            about: "a host that hears and cannot talk is as silent as one that is cut off, and accuses nobody",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(10)
                    .fault(2_000, Fault::CutOff(VICTIM, Direction::Outbound))
                    .fires(&[Effect::LostToCut])
                    .dies(VICTIM.0, 3_000, 6_000)
                    .survives(0)
                    .survives(7)
            },
        },
        Scenario {
            name: "pair-cut",
            about: "two members that cannot reach each other are vouched for by the others",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(20)
                    .fault(2_000, Fault::CutPair(VICTIM, HostId(5)))
                    .fault(2_000, Fault::CutPair(HostId(5), VICTIM))
                    .fires(&[Effect::LostToCut])
                    .all_survive()
            },
        },
        Scenario {
            name: "reject-tcp",
            about: "a firewall refuses connects for the living: nobody dies",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(12)
                    .fault(0, Fault::Loss(0.1))
                    .fault(2_000, Fault::Firewall(VICTIM, Firewall::RejectTcp))
                    .fault(10_000, Fault::Firewall(VICTIM, Firewall::Open))
                    .fires(&[Effect::RefusedByFirewall])
                    .all_survive()
            },
        },
        Scenario {
            name: "reject-all",
            about: "a firewall rejects everything for five seconds while what its host sends passes: nobody dies",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(9)
                    .fault(2_000, Fault::Firewall(VICTIM, Firewall::RejectAll))
                    .fault(7_000, Fault::Firewall(VICTIM, Firewall::Open))
                    .fires(&[Effect::LostToFirewall, Effect::RefusedByFirewall])
                    .all_survive()
            },
        },
        Scenario {
            name: "proxy",
            about: "a proxy accepts for a killed process: its word is not believed, and the death is known in bounded time",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(24)
                    .fault(0, Fault::Proxy(VICTIM, true))
                    .fault(4_000, Fault::Kill(VICTIM))
                    .fires(&[Effect::AcceptedByProxy, Effect::Killed])
                    .dies(VICTIM.0, 4_000, 22_000)
            },
        },
        Scenario {
            name: "udp-blocked",
            about: "datagrams to and from one host are dropped: health falls back to streams, nobody dies",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(22)
                    .fault(2_000, Fault::BlockUdp(VICTIM))
                    .fires(&[Effect::LostToUdpBlock])
                    .all_survive()
            },
        },
        Scenario {
            name: "udp-blocked-everywhere",
            about: "no datagram passes anywhere: health falls back to streams, nobody dies",
            script: |_| {
                let mut script = Script::quiet(6).safety_secs(25);
                for host in 0..6 {
                    script = script.fault(2_000, Fault::BlockUdp(HostId(host)));
                }
                script.fires(&[Effect::LostToUdpBlock]).all_survive()
            },
        },
        Scenario {
            name: "clock-jump",
            about: "leaping clocks kill nobody",
            script: |_| {
                let mut script = Script::quiet(8).safety_secs(10);
                for (host, by) in [(0, 500), (1, 3_000), (2, 20_000), (3, 120_000)] {
                    let leap = Fault::ClockJump(HostId(host), Duration::from_millis(by));
                    script = script.fault(2_000 + 1_000 * u64::from(host), leap);
                }
                script.fires(&[Effect::ClockJumped, Effect::LateTimer]).all_survive()
            },
        },
        Scenario {
            name: "bad-weather",
            about: "10 % loss, repetition, reordering and delay kill nobody",
            script: |_| {
                Script::quiet(16)
                    .safety_secs(30)
                    .fault(0, Fault::Loss(0.1))
                    .fault(0, Fault::Duplicate(0.1))
                    .fault(0, Fault::Reorder(0.1, Duration::from_millis(80)))
                    .fault(0, Fault::Delay(Duration::from_millis(15)))
                    .fires(&[Effect::LostByChance, Effect::Duplicated, Effect::Reordered])
                    .all_survive()
            },
        },
    ]
}
