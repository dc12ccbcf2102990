//! What a vote costs in a large run.

use outlast_proto::collective::{DataType, Fingerprint, OpKey, OpKind, Scope};
use outlast_proto::coordinator::{Action, Config, ConnectionId, Run};
use outlast_proto::id::PeerId;
use outlast_proto::membership::Preset;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::{Encryption, Registration, SessionId, ToCoordinator, ToPeer};
use outlast_proto::wire::membership::MemberInfo;
use std::time::Duration;

/// How long things took on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Members.
    pub peers: usize,
    /// Registering all of them and admitting them in one epoch.
    pub admission: Duration,
    /// One Initiate.
    pub initiate: Duration,
    /// One Complete, without the last.
    pub complete: Duration,
    /// The last Complete: the verdict to everybody.
    pub verdict: Duration,
    /// A member's death: the next epoch to everybody.
    pub eviction: Duration,
}

/// Measures `rounds` collectives of `peers` members. `clock` is the caller's, because machines have none.
pub fn measure(peers: usize, rounds: u32, mut clock: impl FnMut() -> Duration) -> Cost {
    let mut run = Run::new(Config::preset(Preset::Lan));
    let mut now = Instant::from_nanos(1);
    let id = |index: usize| PeerId::from_bytes((index as u128 + 1).to_be_bytes());
    let at = |index: usize| ConnectionId(index as u64);
    let mut epoch = 0;
    let drain = |run: &mut Run, epoch: &mut u64| {
        while let Some(action) = run.poll_action() {
            if let Action::SendAll(_, ToPeer::Epoch(record)) = action {
                *epoch = record.epoch;
            }
        }
    };
    let begin = clock();
    for index in 0..peers {
        let info = MemberInfo {
            id: id(index),
            address: ([10, 0, (index >> 8) as u8, index as u8], 7_000).into(),
            closed_port: 0,
            name: format!("node-{index}"),
            meta: Vec::new(),
        };
        let registration = Registration {
            info,
            group: 0,
            session: SessionId([1; 16]),
            min_world: peers as u32,
            encryption: Encryption::On,
            witness: None,
        };
        run.handle_message(now, at(index), id(index), ToCoordinator::Register(registration, 1, 0));
    }
    drain(&mut run, &mut epoch);
    for index in 0..peers {
        run.handle_message(now, at(index), id(index), ToCoordinator::Connected { group: 0, epoch });
    }
    drain(&mut run, &mut epoch);
    let admission = clock().saturating_sub(begin);

    let fingerprint = Fingerprint::new(OpKind::AllReduce, DataType::F32, [1 << 20]);
    let (mut initiate, mut complete, mut verdict) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for seq in 0..u64::from(rounds) {
        now += Duration::from_millis(1);
        let key = OpKey { group: 0, epoch, scope: Scope::Whole, tag: 0, seq };
        let begin = clock();
        for index in 0..peers {
            let (key, fingerprint) = (key.clone(), fingerprint.clone());
            let message = ToCoordinator::Initiate { key, fingerprint, timeout_ms: 60_000 };
            run.handle_message(now, at(index), id(index), message);
        }
        let initiated = clock();
        for index in 0..peers - 1 {
            run.handle_message(now, at(index), id(index), ToCoordinator::Complete { key: key.clone() });
        }
        let completed = clock();
        run.handle_message(now, at(peers - 1), id(peers - 1), ToCoordinator::Complete { key });
        drain(&mut run, &mut epoch);
        initiate += initiated.saturating_sub(begin);
        complete += completed.saturating_sub(initiated);
        verdict += clock().saturating_sub(completed);
    }
    assert_eq!(run.counters().commits, u64::from(rounds), "every round must be committed");
    let begin = clock();
    run.handle_message(now, at(0), id(0), ToCoordinator::Leave { for_good: true });
    drain(&mut run, &mut epoch);
    let eviction = clock().saturating_sub(begin);
    let votes = peers as u32 * rounds;
    Cost {
        peers,
        admission,
        initiate: initiate / votes,
        complete: complete / votes,
        verdict: verdict / rounds,
        eviction,
    }
}
