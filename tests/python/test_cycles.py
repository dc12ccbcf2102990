"""Nothing grows: connecting and leaving, over and over."""

import gc
import os
import threading
import time

import numpy as np
import outlast
import pytest
from conftest import wait_until


def resident():
    """Bytes of memory that this process has in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def threads():
    return len(os.listdir("/proc/self/task"))


def settle(before):
    """Waits until what is let go in the background is gone: the coordinator keeps an empty run for a while."""
    gc.collect()
    wait_until(lambda: descriptors() <= before[0] + 2 and threads() <= before[1] + 2, 30)


def cycle(coordinator):
    comms = [
        outlast.Communicator(coordinator.address, secret=coordinator.secret, preset="local", listen="127.0.0.1:0")
        for _ in range(2)
    ]

    def work(comm):
        comm.connect(2)
        comm.all_reduce(np.ones(10_000, np.float32))
        comm.all_reduce_async(np.ones(10_000, np.float32), tag=1).wait()
        comm.leave()
        comm.close()

    workers = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive()


def cycles(coordinator, warm_up, count, growth):
    cycle(coordinator)
    before = descriptors(), threads()
    for _ in range(warm_up):
        cycle(coordinator)
    settle(before)
    memory = resident()
    for _ in range(count):
        cycle(coordinator)
    settle(before)
    grown = resident() - memory
    print(f"\n{count} cycles: {grown / 1024:.0f} KiB more memory, descriptors {before[0]} -> {descriptors()}")
    assert grown < growth, f"{grown} bytes in {count} cycles"
    assert coordinator.status()["world_size"] == 0


def test_fifty_cycles_leave_nothing_behind(coordinator):
    cycles(coordinator, 25, 25, 8 << 20)


@pytest.mark.soak
def test_a_thousand_cycles_leave_nothing_behind(coordinator):
    cycles(coordinator, 200, 800, 8 << 20)


def test_goodbyes_are_heard_when_all_leave_at_once():
    """Each goodbye is news for those who are closing at that moment: writing to them must not lose theirs."""
    count = 8
    for _ in range(20):
        with outlast.Coordinator(preset="local") as coordinator:
            settings = {"secret": coordinator.secret, "preset": "local", "listen": "127.0.0.1:0"}
            comms = [outlast.Communicator(coordinator.address, **settings) for _ in range(count)]
            ready = threading.Barrier(count)

            def work(comm, ready=ready):
                comm.connect(count)
                ready.wait(30)
                comm.close()

            peers = [threading.Thread(target=work, args=(comm,)) for comm in comms]
            for peer in peers:
                peer.start()
            for peer in peers:
                peer.join(30)
            status = coordinator.status
            wait_until(lambda status=status: status()["world_size"] == 0)
            assert status()["evictions"] == 0


def test_what_a_closed_communicator_had_is_given_back_at_once(coordinator):
    cycle(coordinator)
    gc.collect()
    time.sleep(1.2)  # whatever the first one left behind is gone by now
    before = descriptors()
    for _ in range(10):
        cycle(coordinator)
    gc.collect()
    wait_until(lambda: descriptors() <= before + 4, 0.5)


def test_the_same_object_connects_and_leaves(coordinator, peer):
    comm = peer()
    for _ in range(20):
        comm.connect()
        comm.all_reduce(np.ones(100, np.float32))
        comm.leave()
    before = descriptors(), threads()
    for _ in range(30):
        comm.connect()
        comm.all_reduce(np.ones(100, np.float32))
        comm.leave()
    settle(before)


def test_objects_that_are_dropped_are_let_go(coordinator):
    cycle(coordinator)  # the coordinator has a member of its own in every run
    before = descriptors(), threads()
    for _ in range(5):
        comm = outlast.Communicator(coordinator.address, secret=coordinator.secret, preset="local")
        comm.connect()
        handle = comm.all_reduce_async(np.ones(1000, np.float32))
        del comm, handle
        gc.collect()
        wait_until(lambda: coordinator.status()["world_size"] == 0)
    settle(before)
    assert coordinator.status()["evictions"] == 0
