"""Handles in coroutines: awaited without a thread, given up with their task."""

import asyncio
import os
import threading

import numpy as np
import outlast
import pytest
from conftest import wait_until


def ones():
    return np.ones(1000, np.float32)


def test_a_handle_is_awaited_while_other_coroutines_run(together):
    def work(number, comm):
        async def steps():
            beats = 0

            async def beat():
                nonlocal beats
                while True:
                    beats += 1
                    await asyncio.sleep(0.005)

            beating = asyncio.create_task(beat())
            if number == 1:
                await asyncio.sleep(0.3)
            buckets = [ones() for _ in range(4)]
            handles = [comm.all_reduce_async(bucket, tag=tag) for tag, bucket in enumerate(buckets)]
            receipts = await asyncio.gather(*handles)
            beating.cancel()
            assert [receipt.tag for receipt in receipts] == [0, 1, 2, 3]
            assert not any(thread.name.startswith("asyncio") for thread in threading.enumerate())
            return beats, [bucket[0] for bucket in buckets]

        return asyncio.run(steps())

    (beats, first), (_, second) = together(2, work)
    assert first == second == [2.0] * 4
    assert beats > 10


def test_a_handle_that_is_over_is_awaited_at_once_and_again(peer):
    comm = peer()
    comm.connect()

    async def steps():
        handle = comm.barrier_async()
        while not handle.done():
            await asyncio.sleep(0.001)
        assert (await handle).seq == (await handle).seq
        assert handle.cancel() is False

    asyncio.run(steps())


def test_an_error_is_raised_where_it_is_awaited(together):
    def work(number, comm):
        async def steps():
            with pytest.raises(outlast.OperationTimeout, match="under tag 3 within 0.3 s"):
                await comm.all_reduce_async(ones(), tag=3, timeout=0.3)

        if number == 0:
            asyncio.run(steps())
        comm.barrier()

    together(2, work)


def test_a_task_that_is_cancelled_gives_its_collective_up(together):
    """When the cancellation arrives, the memory is the program's again, and as it was."""

    def work(number, comm):
        async def steps():
            x = ones()
            handle = comm.all_reduce_async(x, tag=5, timeout=20)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(handle, 0.2)
            assert handle.done()
            assert (x == 1).all()
            with pytest.raises(outlast.Cancelled):
                handle.wait()
            await comm.all_reduce_async(x, tag=6)
            return x[0]

        if number == 0:
            return asyncio.run(steps())
        x = ones()
        comm.all_reduce(x, tag=6)
        return x[0]

    assert together(2, work) == [2.0, 2.0]


def test_a_handle_is_cancelled_without_a_coroutine(together):
    def work(number, comm):
        if number == 0:
            x = ones()
            handle = comm.all_gather_async(np.zeros(2000, np.float32), x, tag=1)
            assert handle.cancel() is True
            with pytest.raises(outlast.Cancelled):
                handle.wait(10)
            assert handle.cancel() is False
        comm.barrier()

    together(2, work)


def test_every_collective_has_its_form_in_the_background(together):
    def work(_, comm):
        number = comm.rank

        async def steps():
            x, pair, out = np.full(2, number + 1.0), np.arange(4.0), np.zeros(4)
            await comm.all_reduce_many_async([x.copy(), pair.copy()])
            await comm.all_gather_async(out, x)
            assert list(out) == [1, 1, 2, 2]
            await comm.reduce_scatter_async(x, pair)
            assert list(x) == ([0, 2] if number == 0 else [4, 6])
            x = np.full(2, number + 1.0)
            await comm.broadcast_async(x, 1)
            assert list(x) == [2, 2]
            await comm.reduce_async(x, 0)
            assert list(x) == ([4, 4] if number == 0 else [2, 2])
            await comm.gather_async(out if number == 0 else None, x, 0)
            assert number == 1 or list(out) == [4, 4, 2, 2]
            await comm.scatter_async(x, pair if number == 0 else None, 0)
            assert list(x) == ([0, 1] if number == 0 else [2, 3])
            await comm.all_to_all_async(out, pair)
            assert list(out) == ([0, 1, 0, 1] if number == 0 else [2, 3, 2, 3])
            await comm.barrier_async()
            other = 1 - number
            mine, theirs = np.full(3, float(number)), np.zeros(3)
            sent, received = comm.send_async(mine, other), comm.recv_async(theirs, other)
            assert await asyncio.gather(sent, received) == [None, None]
            assert list(theirs) == [other] * 3

        asyncio.run(steps())

    together(2, work)


def test_awaiting_leaves_no_descriptor_behind(peer):
    comm = peer()
    comm.connect()

    async def steps(count):
        for _ in range(count):
            await comm.all_reduce_async(ones())

    asyncio.run(steps(5))
    wait_until(lambda: True)
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(steps(50))
    assert len(os.listdir("/proc/self/fd")) <= before + 2
