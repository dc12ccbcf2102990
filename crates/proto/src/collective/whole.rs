//! Small all-reduces: whole contributions around the ring.
//!
//! A ring reduces a tensor in parts: once around to add them up, once more to hand out the sums. Each member sends the least
//! bytes that way, in 2 (n - 1) messages, one after the other. Where the tensor is small the bytes hardly count, and what a
//! call takes is the number of messages that wait for each other. So each member sends its whole contribution once around,
//! as in an all-gather, and everybody adds up all of them for itself: half the messages.
//!
//! ```text
//!             messages, one after the other     bytes that a member sends
//! in parts    2 (n - 1)                         2 (n - 1) / n  x  the tensor
//! whole       n - 1                             (n - 1)        x  the tensor
//! ```
//!
//! Two members alone stay with parts: on one host that was measured to be faster.
//!
//! The invariant: all members decide alike, because they decide by the call and the number of members alone; and all add in
//! the order of ranks, so they have the same bits whatever the ring's order is.

use super::{DataType, Fingerprint, OpKind};
use crate::limits::{WHOLE_BYTES_MAX, WHOLE_SENT_BYTES_MAX};

/// How contributions get around, if the call is done like that.
pub fn whole(call: &Fingerprint, world: usize) -> Option<Fingerprint> {
    let adds = matches!(call.kind, OpKind::AllReduce | OpKind::AllReduceMany) && call.quantisation.is_none();
    let (bytes, _) = call.shape_bytes(world, false);
    let sent = bytes.saturating_mul(world.saturating_sub(1) as u64);
    let is_small = world > 2 && (1..=WHOLE_BYTES_MAX).contains(&bytes) && sent <= WHOLE_SENT_BYTES_MAX;
    (adds && is_small).then(|| Fingerprint::new(OpKind::AllGather, DataType::U8, [bytes]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Quantisation;

    fn call(kind: OpKind, counts: &[u64]) -> Fingerprint {
        Fingerprint::new(kind, DataType::F32, counts.iter().copied())
    }

    #[test]
    fn small_all_reduces_go_whole() {
        let bytes = |call: &Fingerprint, world| whole(call, world).map(|way| (way.kind, way.elements()));
        assert_eq!(bytes(&call(OpKind::AllReduce, &[1]), 3), Some((OpKind::AllGather, 4)));
        assert_eq!(bytes(&call(OpKind::AllReduce, &[4_096]), 17), Some((OpKind::AllGather, 16_384)));
        let list =
            call(OpKind::AllReduceMany, &[3, 0, 5]).typed(vec![DataType::U8, DataType::F32, DataType::F64]);
        assert_eq!(bytes(&list, 3), Some((OpKind::AllGather, 43)), "in bytes, whatever the types are");
    }

    #[test]
    fn nothing_else_does() {
        assert_eq!(whole(&call(OpKind::AllReduce, &[4_097]), 3), None, "too large");
        assert_eq!(whole(&call(OpKind::AllReduce, &[4_096]), 18), None, "too many would send it on");
        assert_eq!(whole(&call(OpKind::AllReduce, &[16]), 1), None, "nobody to send to");
        assert_eq!(whole(&call(OpKind::AllReduce, &[16]), 2), None, "parts are as few");
        assert_eq!(whole(&call(OpKind::AllReduce, &[0]), 4), None, "nothing to send");
        assert_eq!(whole(&call(OpKind::AllReduce, &[u64::MAX, u64::MAX]), 4), None);
        let quantised =
            Fingerprint { quantisation: Some(Quantisation::Int8), ..call(OpKind::AllReduce, &[16]) };
        assert_eq!(whole(&quantised, 4), None, "what is packed on the way is rounded on the way");
        for kind in [OpKind::ReduceScatter, OpKind::AllGather, OpKind::Broadcast, OpKind::Barrier] {
            assert_eq!(whole(&call(kind, &[16]), 4), None, "{kind}");
        }
    }
}
