//! Aborts at random moments, over whatever links a cluster has.

use super::{Cluster, bytes_of, bytes_of_mut, contribution_f32, reduce, sum_f32};
use outlast::executor::{Abort, Buffers, Stopped};
use outlast_proto::collective::{DataType, ReduceOp};
use std::time::{Duration, Instant};

/// A small generator: the same moments in every run of a seed.
pub(crate) struct Moments(pub(crate) u64);

impl Moments {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Aborts calls at moments of their own on every member, and makes a whole call after each.
pub(crate) fn abort_at_random_moments(cluster: &Cluster, count: usize, attempts: u64) {
    let world = cluster.members.len();
    let mut moments = Moments(0x9e37_79b9 + world as u64);
    let expected = sum_f32(world, count, 0);
    let (mut aborted, mut completed) = (0, 0);
    let mut healthy = Duration::from_millis(2);
    for attempt in 0..attempts {
        let spec = cluster.spec(3, 2 * attempt, DataType::F32, ReduceOp::Sum, &[count]);
        let delays: Vec<_> = (0..world)
            .map(|_| Duration::from_micros(moments.below(1 + healthy.as_micros() as u64)))
            .collect();
        let slowest = *delays.iter().max().unwrap();
        let outcomes = cluster.everybody(|number, member| {
            let original = contribution_f32(number, count, 0);
            let mut tensor = original.clone();
            let abort = Abort::new();
            let delay = delays[number];
            let outcome = std::thread::scope(|scope| {
                let trigger = abort.clone();
                scope.spawn(move || {
                    std::thread::sleep(delay);
                    trigger.trigger();
                });
                let started = Instant::now();
                let outcome =
                    member.plane.perform(&spec, Buffers::in_place([bytes_of_mut(&mut tensor)]), &abort);
                let late = started.elapsed().saturating_sub(delay);
                assert!(late < Duration::from_secs(5), "an abort takes {late:?}");
                match outcome {
                    Ok(performed) => {
                        performed.undo();
                        Ok(())
                    }
                    Err(stopped) => Err(stopped),
                }
            });
            assert_eq!(bytes_of(&tensor), bytes_of(&original), "attempt {attempt}, member {number}");
            outcome
        });
        for outcome in outcomes {
            match outcome {
                Ok(()) => completed += 1,
                Err(Stopped::Aborted) => aborted += 1,
                Err(other) => panic!("attempt {attempt}: {other}"),
            }
        }
        let spec = cluster.spec(3, 2 * attempt + 1, DataType::F32, ReduceOp::Sum, &[count]);
        let started = Instant::now();
        cluster.everybody(|number, member| {
            let mut tensor = contribution_f32(number, count, 0);
            reduce(member, &spec, &mut tensor).unwrap().commit();
            assert_eq!(tensor, expected, "the call after attempt {attempt}");
        });
        // Aim the next abort at the time that an operation takes here.
        healthy = started.elapsed().max(slowest / 2);
    }
    assert!(aborted > 0, "no abort came in time: nothing was tested ({completed} completed)");
}
