//! Groups as a whole: quiet ones, cut ones, and how they come and go.

use super::Scenario;
use crate::nodes::Founding;
use crate::script::Script;
use crate::world::{Direction, Effect, Fault, HostId};

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "calm",
            about: "nothing happens: nobody dies, and at most 12 packets per member and second",
            script: |_| {
                let mut script = Script::quiet(32).safety_secs(30).all_survive();
                script.packets_per_second_max = 12.0;
                script
            },
        },
        Scenario {
            name: "kill-64",
            about: "a killed process is known to all of 64 within a second",
            script: |_| {
                Script::quiet(64)
                    .safety_secs(6)
                    .fault(2_000, Fault::Kill(HostId(17)))
                    .fires(&[Effect::Killed, Effect::RefusedForDead])
                    .dies(17, 2_000, 3_100)
            },
        },
        Scenario {
            name: "cut-off-64",
            about: "one of 64 is cut off: dead within three seconds, without a flood",
            script: |_| {
                Script::quiet(64)
                    .safety_secs(9)
                    .fault(2_000, Fault::CutOff(HostId(17), Direction::Both))
                    .fires(&[Effect::LostToCut, Effect::ConnectSilent])
                    .dies(17, 3_000, 5_000)
            },
        },
        Scenario {
            name: "two-alone-kill",
            about: "of two members one is killed: the kernel's refusal is enough",
            script: |_| {
                Script::quiet(2)
                    .safety_secs(6)
                    .fault(2_000, Fault::Kill(HostId(1)))
                    .fires(&[Effect::RefusedForDead])
                    .dies(1, 2_000, 3_500)
            },
        },
        Scenario {
            name: "two-alone-cut",
            about: "two members cut from each other: silence counts only after dead_after (rule 21)",
            script: |_| {
                Script::quiet(2)
                    .safety_secs(16)
                    .fault(2_000, Fault::CutOff(HostId(1), Direction::Both))
                    .fires(&[Effect::LostToCut])
                    .dies(1, 11_500, 15_000)
                    .dies(0, 11_500, 15_000)
            },
        },
        Scenario {
            name: "two-alone-stall",
            about: "of two members one is stopped: stalled, never dead",
            script: |_| {
                Script::quiet(2)
                    .safety_secs(15)
                    .fault(2_000, Fault::Stall(HostId(1)))
                    .fault(14_000, Fault::Resume(HostId(1)))
                    .fires(&[Effect::AcceptedForStalled])
                    .all_survive()
            },
        },
        Scenario {
            name: "six-of-eight",
            about: "6 of 8 cut at once: nobody is listed as failed before dead_after, and the lists merge (rule 21)",
            script: |_| {
                let mut script = Script::quiet(8).safety_secs(26).fires(&[Effect::LostToCut]);
                for host in 2..8 {
                    script = script.fault(2_000, Fault::CutOff(HostId(host), Direction::Both));
                    script = script.dies_by(host, 11_500, 25_000, &[0, 1]);
                }
                script
            },
        },
        Scenario {
            name: "partition",
            about: "5 against 3: each side lists the other as failed, and the lists merge after the heal",
            script: |_| {
                let mut script = Script::quiet(8)
                    .safety_secs(26)
                    .fault(2_000, Fault::Partition([5, 6, 7].map(HostId).to_vec()))
                    .fires(&[Effect::LostToCut]);
                for host in 5..8 {
                    script = script.dies_by(host, 3_000, 25_000, &[0, 1, 2, 3, 4]);
                }
                script
            },
        },
        Scenario {
            name: "join",
            about: "everybody joins through one member, at 5 % loss",
            script: |seed| {
                Script::joining(4 + (seed % 61) as u32)
                    .safety_secs(8)
                    .fault(0, Fault::Loss(0.05))
                    .all_survive()
            },
        },
        Scenario {
            name: "rejoin",
            about: "members are killed and come back under their old names and under new ones",
            script: |_| {
                let mut script = Script::quiet(12).safety_secs(20);
                for (host, same_identity) in [(2, true), (3, false), (4, true), (5, false)] {
                    let host = HostId(host);
                    let after = 300 + 1_900 * u64::from(host.0 - 2);
                    script = script
                        .fault(2_000, Fault::Kill(host))
                        .fault(2_000 + after, Fault::Restart { host, same_identity });
                }
                script.fires(&[Effect::Killed, Effect::Restarted])
            },
        },
        Scenario {
            name: "rejoin-other-seed",
            about: "a member restarts at once under a new name at the same address, seeds are few",
            script: |_| {
                let mut script = Script::quiet(8).safety_secs(20);
                script.founding = Founding::Known { members: 8, seeds: vec![HostId(0).address()] };
                script
                    .fault(2_000, Fault::Kill(HostId(4)))
                    .fault(2_050, Fault::Restart { host: HostId(4), same_identity: false })
                    .fires(&[Effect::Restarted])
            },
        },
        Scenario {
            name: "leave",
            about: "members say goodbye",
            script: |_| {
                Script::quiet(8)
                    .safety_secs(6)
                    .fault(2_000, Fault::Leave(HostId(6)))
                    .fault(3_000, Fault::Leave(HostId(1)))
                    .fires(&[Effect::Left])
            },
        },
        Scenario {
            name: "half-killed",
            about: "half of a group is killed at once",
            script: |_| {
                let mut script = Script::quiet(16).safety_secs(8).fires(&[Effect::Killed]);
                let survivors: Vec<u32> = (8..16).collect();
                for host in 0..8 {
                    script = script.fault(2_000, Fault::Kill(HostId(host)));
                    script = script.dies_by(host, 2_000, 5_000, &survivors);
                }
                script
            },
        },
    ]
}
