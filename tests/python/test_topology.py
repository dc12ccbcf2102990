"""A better ring, from Python."""

import threading

import numpy as np
import outlast
import pytest


def test_every_member_hears_the_same_ring_and_receipts_predict(together):
    def program(number, comm):
        assert comm.all_reduce(np.ones(1 << 18, np.float32)).predicted_seconds is None
        rank = comm.rank
        first = comm.optimize_topology(timeout=60)
        assert comm.rank == rank
        again = comm.optimize_topology()
        receipt = comm.all_reduce(np.ones(1 << 18, np.float32))
        assert receipt.predicted_seconds is not None
        assert receipt.predicted_seconds > 0
        return comm.peer_id, first, again

    peers, first, again = zip(*together(3, program), strict=True)
    assert sorted(first[0].ring) == sorted(peers)
    for report in first:
        assert (report.ring, report.improved, report.moonshot) == (first[0].ring, first[0].improved, False)
        # They share a host: each is measured with the first of them.
        assert report.measured_pairs == 2
        assert report.predicted is not None
        assert report.before is not None
        assert 0 < report.seconds < 60
    assert all(report.measured_pairs == 0 for report in again)


def test_what_cannot_be_is_refused_with_words(together):
    timed_out = threading.Event()

    def program(number, comm):
        handle = comm.all_reduce_async(np.ones(4, np.float32), tag=3)
        if not handle.done():
            with pytest.raises(outlast.InvalidArgument, match="3"):
                comm.optimize_topology()
        handle.wait()
        with pytest.raises(outlast.InvalidArgument, match="timeout"):
            comm.optimize_topology(timeout=-1)
        comm.barrier()
        if number == 0:
            with pytest.raises(outlast.OperationTimeout) as raised:
                comm.optimize_topology(timeout=0.3)
            assert len(raised.value.waiting_for) == 1
            timed_out.set()
        assert timed_out.wait(60)
        assert issubclass(outlast.TopologyFailed, outlast.RetryError)

    together(2, program)


def test_a_link_that_got_slower_is_an_event_with_both_ends():
    from outlast.events import _event

    event = _event("LinkSlowed", ("p1", "a", "p2", "b"), "", (9_000_000, 4_000_000))
    assert event == outlast.LinkSlowed("p1", "a", "p2", "b", before=9_000_000, rate=4_000_000)
