"""Values: every collective, every type, every operation."""

import functools
import operator
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import outlast
import pytest
from conftest import wait_until

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]
OPS = {
    "sum": functools.partial(functools.reduce, operator.add),
    "prod": functools.partial(functools.reduce, operator.mul),
    "min": functools.partial(functools.reduce, np.minimum),
    "max": functools.partial(functools.reduce, np.maximum),
    "band": functools.partial(functools.reduce, np.bitwise_and),
    "bor": functools.partial(functools.reduce, np.bitwise_or),
    "bxor": functools.partial(functools.reduce, np.bitwise_xor),
}


def contribution(number, dtype, count=257):
    """Small whole numbers, so that every order of joining them gives the same."""
    return (np.random.default_rng(number).integers(0, 5, count) + number).astype(dtype)


def test_all_reduce_of_every_type_with_every_operation(together):
    def work(number, comm):
        for dtype in DTYPES:
            parts = [contribution(who, dtype) for who in range(3)]
            for op, join in OPS.items():
                if op.startswith("b") and dtype.startswith("float"):
                    continue
                x = parts[number].copy()
                receipt = comm.all_reduce(x, op=op)
                np.testing.assert_array_equal(x, join(parts), err_msg=f"{dtype} {op}")
                assert x.dtype == dtype
                assert len(receipt.contributors) == 3
            if np.dtype(dtype).kind != "u":
                x = (parts[number] * 3).astype(dtype)
                comm.all_reduce(x, "avg")
                mean = np.trunc(sum(part.astype(np.float64) * 3 for part in parts) / 3).astype(dtype)
                np.testing.assert_array_equal(x, mean, err_msg=dtype)
        return comm.epoch

    epochs = together(3, work)
    assert len(set(epochs)) == 1


def test_truth_values(together):
    parts = [np.array(row, bool) for row in ([0, 0, 1, 1], [0, 1, 0, 1])]

    def work(number, comm):
        for op, expected in {"sum": np.logical_or, "prod": np.logical_and, "bxor": np.logical_xor}.items():
            x = parts[number].copy()
            comm.all_reduce(x, op)
            np.testing.assert_array_equal(x, expected(*parts), err_msg=op)
        with pytest.raises(outlast.InvalidArgument, match="avg"):
            comm.all_reduce(parts[number].copy(), "avg")

    together(2, work)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1023, 200_003])
def test_counts_and_results_elsewhere(together, count):
    parts = [contribution(who, "float32", count) for who in range(3)]

    def work(number, comm):
        x, out = parts[number].copy(), np.full(count, 7, np.float32)
        receipt = comm.all_reduce(x, out=out, hash=True)
        np.testing.assert_array_equal(x, parts[number])
        np.testing.assert_array_equal(out, sum(parts))
        return receipt

    receipts = together(3, work)
    assert len({receipt.hash for receipt in receipts}) == 1
    assert len(receipts[0].hash) == 32
    assert [receipt.rank for receipt in receipts].count(0) == 1
    same = {(r.epoch, r.tag, r.seq, r.world_size, r.contributors, r.attempts, r.pending) for r in receipts}
    assert len(same) == 1, same
    assert receipts[0].algorithm == "ring"


def test_many_in_one_transaction(together):
    def work(number, comm):
        tensors = [np.full(count, number + 1.0, np.float64) for count in (1, 0, 5, 1000)]
        receipt = comm.all_reduce_many(tensors, op="avg")
        assert all((tensor == 1.5).all() for tensor in tensors)
        outs = [np.empty_like(tensor) for tensor in tensors]
        comm.all_reduce_many(tensors, out=outs)
        assert all((out == 3.0).all() for out in outs)
        return receipt.seq

    assert together(2, work) == [0, 0]


def test_many_of_several_types(together):
    counts = {"float32": 1001, "int64": 3, "float16": 7, "bool": 5, "uint8": 0, "float64": 70_000}

    def work(number, comm):
        tensors = {name: np.full(count, number + 1).astype(name) for name, count in counts.items()}
        receipt = comm.all_reduce_many(list(tensors.values()), hash=True)
        for name, tensor in tensors.items():
            assert (tensor == (1 if name == "bool" else 6)).all(), name
        return receipt

    receipts = together(3, work)
    assert len({(receipt.hash, receipt.seq, receipt.contributors) for receipt in receipts}) == 1


def test_a_models_gradients_are_averaged_in_one_call(together):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

    def work(number, comm):
        types = [bfloat16, np.float32, np.float16, np.float64]
        grads = [np.full((50, 3), number + 1.0, dtype) for dtype in types]
        comm.all_reduce_many(grads, "avg")
        assert all((grad == 2.0).all() for grad in grads)
        comm.all_reduce_many(grads, "avg", quantize="int8")
        assert all((abs(grad.astype(np.float64) - 2.0) < 0.1).all() for grad in grads)

    together(3, work)


def test_one_other_type_at_one_peer_is_named_and_restored(together):
    def work(number, comm):
        tensors = [np.full(4, number, np.float32) for _ in range(20)]
        if number == 1:
            others = tensors[:17] + [np.full(4, 1.0)] + tensors[18:]
            with pytest.raises(outlast.Mismatch, match=r"whose x\[17\] is f32\[4\]"):
                comm.all_reduce_many(others)
            assert all((tensor == 1).all() for tensor in others), "as they were"
        comm.all_reduce_many(tensors)
        assert all((tensor == 3).all() for tensor in tensors)

    together(3, work)


def test_more_tags_than_there_may_be_cost_the_calls_that_are_too_many(together, coordinator):
    limit, too_many = 1024, 176

    def program(number, comm):
        def begin(tags):
            tensors = {tag: np.ones(16, np.float32) for tag in tags}
            return tensors, {tag: comm.all_reduce_async(tensors[tag], tag=tag) for tag in tags}

        # All at once is tried in Rust: a thousand threads are slow to take turns.
        for first in range(0, limit, 64):
            tensors, handles = begin(range(first, first + 64))
            assert all(len(handle.wait().contributors) == 2 for handle in handles.values())
            assert all((tensor == 2).all() for tensor in tensors.values())
        tensors, handles = begin(range(limit, limit + too_many))
        for handle in handles.values():
            with pytest.raises(outlast.InvalidArgument, match=f"takes part in {limit} tags"):
                handle.wait()
        assert all((tensor == 1).all() for tensor in tensors.values())
        assert comm.barrier().world_size == 2

    together(2, program)
    status = coordinator.status()
    assert (status["evictions"], status["kicks"]) == (0, 0)


def test_async_tags_in_any_order(together):
    def work(number, comm):
        tags = list(range(6)) if number else list(reversed(range(6)))
        tensors = {tag: np.full(50_000, tag + number, np.float32) for tag in tags}
        handles = {tag: comm.all_reduce_async(tensors[tag], tag=tag) for tag in tags}
        for tag, handle in handles.items():
            receipt = handle.wait(20)
            assert handle.done()
            assert receipt.tag == tag
            assert handle.wait() == receipt, "waiting twice gives the same"
            assert (tensors[tag] == 2 * tag + 1).all()

    together(2, work)


def test_what_is_in_flight_is_protected(together):
    def work(number, comm):
        x, y = np.ones(1000, np.float32), np.ones(10, np.float32)
        if number == 0:
            handle = comm.all_reduce_async(x, tag=5)
            with pytest.raises(outlast.InvalidArgument, match="tag 5 is in flight"):
                comm.all_reduce(y, tag=5)
            with pytest.raises(outlast.InvalidArgument, match="tag 5 is in flight"):
                comm.all_reduce_async(y, tag=5)
            with pytest.raises(outlast.InvalidArgument, match="in use by the collective under tag 5"):
                comm.all_reduce(x[10:20], tag=6)
            with pytest.raises(outlast.InvalidArgument, match=r"\[5\]"):
                comm.update_topology()
            with pytest.raises(outlast.OperationTimeout, match="wait\\(\\) again"):
                handle.wait(0.05)
            comm.barrier(tag=9)
        else:
            comm.barrier(tag=9)
            handle = comm.all_reduce_async(x, tag=5)
        handle.wait()
        assert (x == 2).all()

    together(2, work)


def test_a_dropped_handle_goes_on_and_keeps_its_memory(together):
    def work(number, comm):
        for step in range(20):
            x = np.full(10_000, 1.0, np.float32)
            comm.all_reduce_async(x, tag=step)
            del x
        comm.barrier(tag=99)
        x = np.ones(3, np.float32)
        comm.all_reduce(x, tag=100)
        return x[0]

    assert together(2, work) == [2.0, 2.0]


def test_what_is_seen_changes_in_a_wait(coordinator, peer):
    first, second = peer(name="first"), peer(name="second")
    joined = threading.Thread(target=second.connect, args=(2,))
    joined.start()
    first.connect(2)
    joined.join()
    x = np.ones(1000, np.float32)
    handle = first.all_reduce_async(x)
    second.leave()
    wait_until(handle.done)
    assert first.world_size == 2
    assert handle.wait().contributors == (first.peer_id,)
    assert first.world_size == 1


def test_one_communicator_serves_many_threads(together):
    """Each thread has a tag of its own; all go on at once."""

    def work(number, comm):
        def reduce(tag):
            for step in range(30):
                x = np.full(1000 + tag, number + step, np.float32)
                comm.all_reduce(x, tag=tag)
                assert (x == 2 * step + 1).all()
            return tag

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(reduce, range(8))) == list(range(8))

    together(2, work)


def test_the_collectives_that_cut_into_parts(together):
    def work(number, comm):
        rank, n = comm.rank, comm.world_size
        x = np.arange(4, dtype=np.int32) + 10 * rank
        out = np.empty(4 * n, np.int32)
        comm.all_gather(out, x)
        np.testing.assert_array_equal(out, np.concatenate([np.arange(4) + 10 * r for r in range(n)]))

        whole = np.arange(4 * n, dtype=np.int32) * (rank + 1)
        part = np.empty(4, np.int32)
        comm.reduce_scatter(part, whole)
        np.testing.assert_array_equal(part, np.arange(4 * rank, 4 * rank + 4) * sum(range(1, n + 1)))

        sent = np.repeat(np.arange(n, dtype=np.int32), 2) + 100 * rank
        got = np.empty_like(sent)
        comm.all_to_all(got, sent)
        np.testing.assert_array_equal(got, np.repeat([rank + 100 * r for r in range(n)], 2))

        # In place: this member's part of the whole.
        out[:] = 0
        out[4 * rank : 4 * rank + 4] = x
        comm.all_gather(out, out[4 * rank : 4 * rank + 4])
        np.testing.assert_array_equal(out[:4], np.arange(4))
        with pytest.raises(outlast.InvalidArgument, match="share memory"):
            comm.all_gather(out, out[1:5])
        with pytest.raises(outlast.InvalidArgument, match="reads .* writes|elements"):
            comm.all_gather(out[:-1].copy(), x)

    together(3, work)


@pytest.mark.parametrize("named", ["rank", "id", "name"])
def test_the_collectives_with_a_root(together, named):
    def work(number, comm):
        rank, n = comm.rank, comm.world_size
        boss = comm.peers()[1]
        root = {"rank": 1, "id": boss.id, "name": boss.name}[named]
        x = np.full(5, rank, np.float32)
        comm.broadcast(x, root)
        assert (x == 1).all()

        x = np.full(5, rank + 1, np.float32)
        comm.reduce(x, root)
        assert (x == (6 if rank == 1 else rank + 1)).all()

        x = np.full(2, rank, np.int64)
        out = np.empty(2 * n, np.int64) if rank == 1 else None
        comm.gather(out, x, root)
        if rank == 1:
            np.testing.assert_array_equal(out, [0, 0, 1, 1, 2, 2])

        parts = np.arange(2 * n, dtype=np.int64) if rank == 1 else None
        part = np.empty(2, np.int64)
        comm.scatter(part, parts, root)
        np.testing.assert_array_equal(part, [2 * rank, 2 * rank + 1])

        with pytest.raises(outlast.InvalidArgument, match="ranks 0 to 2"):
            comm.broadcast(x, 3)
        with pytest.raises(outlast.InvalidArgument, match="nobody"):
            comm.broadcast(x, "nobody")

    together(3, work)


def test_a_part_of_the_group(together):
    def work(number, comm):
        if comm.rank < 2:
            x = np.full(10, comm.rank + 1, np.float32)
            receipt = comm.all_reduce(x, scope=[1, 0], tag=4)
            assert (x == 3).all()
            assert receipt.contributors == tuple(peer.id for peer in comm.peers()[:2])
            assert receipt.world_size == 3
        else:
            with pytest.raises(outlast.InvalidArgument, match="not in"):
                comm.all_reduce(np.ones(1, np.float32), scope=[0, 1], tag=4)
            with pytest.raises(outlast.InvalidArgument, match="scope"):
                comm.barrier(scope=[])
        comm.barrier()

    together(3, work)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_quantised_is_close_and_the_same_everywhere(together, quantize):
    parts = [np.random.default_rng(who).standard_normal(10_000).astype(np.float32) for who in range(3)]

    def work(number, comm):
        x = parts[number].copy()
        receipt = comm.all_reduce(x, op="avg", quantize=quantize, hash=True)
        assert receipt.algorithm == f"ring/{quantize}"
        assert receipt.bytes_sent < x.nbytes * (4 / 3) / 2
        step = np.abs(parts).max() / (127 if quantize == "int8" else 7)
        assert np.abs(x - np.mean(parts, axis=0)).max() < 3 * step
        with pytest.raises(outlast.InvalidArgument, match="quantize"):
            comm.all_reduce(x, quantize="int3")
        with pytest.raises(outlast.InvalidArgument):
            comm.all_reduce(np.ones(3, np.int32), quantize=quantize)
        return receipt.hash

    assert len(set(together(3, work))) == 1


def test_several_groups_in_one_run(coordinator, peer):
    import threading

    comms = [peer(group=number // 2, name=f"p{number}") for number in range(4)]
    sums = [None] * 4

    def work(number):
        comm = comms[number]
        comm.connect(min_world=2)
        # Who is in votes for those who come, whatever their group.
        while comm.global_world_size < 4:
            comm.update_topology(2)
        x = np.full(10, number, np.float32)
        comm.all_reduce(x)
        sums[number] = (x[0], comm.world_size)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sums == [(1, 2), (1, 2), (5, 2), (5, 2)]
    assert coordinator.status()["world_size"] == 4


def test_send_and_receive(together):
    def work(number, comm):
        rank, n = comm.rank, comm.world_size
        onwards, back = (rank + 1) % n, (rank - 1) % n
        x, y = np.full(1000, rank, np.float32), np.zeros(1000, np.float32)
        for step in range(3):
            if rank == 0:
                comm.send(x, onwards, tag=step)
                comm.recv(y, comm.peers()[back].name, tag=step)
            else:
                comm.recv(y, comm.peers()[back].id, tag=step)
                comm.send(x, onwards, tag=step)
            assert (y == back).all()
        comm.barrier()
        with pytest.raises(outlast.InvalidArgument):
            comm.send(x, rank)
        if rank == 0:
            with pytest.raises(outlast.OperationTimeout) as caught:
                comm.recv(y, 1, timeout=0.3, tag=9)
            assert caught.value.waiting_for[0].peer == comm.peers()[1].id
        comm.barrier()

    together(3, work)


def test_tensors_in_the_clear(together, coordinator, peer):
    def work(number, comm):
        x = np.full(100_000, number + 1, np.float32)
        comm.all_reduce(x)
        assert (x == 3).all()

    together(2, work, encryption="off")
    with pytest.raises(outlast.InvalidArgument, match="encryption"):
        peer(encryption="rot13")


def test_peers_must_agree_about_encryption(coordinator, peer):
    comms = [peer(name="clear", encryption="off"), peer(name="secret")]
    comms[0].connect()
    errors = []

    def join():
        try:
            comms[1].connect(timeout=10)
        except outlast.OutlastError as error:
            errors.append(error)

    import threading

    thread = threading.Thread(target=join)
    thread.start()
    thread.join(20)
    assert isinstance(errors[0], outlast.FatalError), errors
    assert "encryption" in str(errors[0])


def test_error_feedback_loses_nothing_for_good(together):
    """A value below half a step of four bits is rounded away every time, unless what is lost comes back."""
    gradient = np.full(256, 0.01, np.float32)
    gradient[0] = 1.0

    def work(number, comm):
        plain, kept = np.zeros(256), np.zeros(256)
        feedback = outlast.ErrorFeedback("int4")
        for _ in range(50):
            x = gradient.copy()
            comm.all_reduce(x, "avg", quantize="int4")
            plain += x
            x = gradient.copy()
            feedback(x)
            comm.all_reduce(x, "avg", quantize="int4")
            kept += x
        # The neighbours of the large value, with which they share a scale.
        assert (plain[1:128] == 0).all()
        np.testing.assert_allclose(kept[1:128], 0.5, atol=0.15)
        with pytest.raises(outlast.InvalidArgument, match="one ErrorFeedback per tensor"):
            feedback(np.ones(3, np.float32))
        feedback.reset()
        feedback(np.ones(3, np.float32))
        with pytest.raises(outlast.InvalidArgument, match="only floats"):
            outlast.ErrorFeedback("int8")(np.ones(3, np.int32))
        with pytest.raises(outlast.InvalidArgument, match="int3"):
            outlast.ErrorFeedback("int3")

    together(2, work)
