"""What a step of Elastic costs beside a bare all_reduce_many, by turns, in one run.

Processes on loopback with the defaults (TLS, votes), on one communicator and one piece of memory. By turns they make
a short block of steps of `Elastic`, with its sample numbers, and a block of as many steps of a bare loop that
averages the same gradient. Both change the model by the same line; the gradient is its own mean, so nothing grows or
vanishes. A block lasts some tens of milliseconds and its turn comes right after the other's, so both meet the same
machine; who goes first changes with each pair. A barrier ends a block, outside of its time, so that nothing of one is
paid for in the other.

What is told is the difference of the two blocks of a pair, per step: its median with its middle half, and the
interval in which the true median lies in 95 of 100 runs, as a share of the bare step. 2 % is the most that is wanted.

usage: python bench/elastic_cost.py [SECONDS]     for each row; with the package installed, built in release
"""

import math
import multiprocessing
import statistics
import sys
import time

import numpy as np
import outlast

# Bytes of the gradient. Odd ones beside powers of two: a ring cuts them differently.
SIZES = (4 << 10, 50_000, 64 << 10, 1 << 20, 3_000_000, 16 << 20, 64 << 20)
WORLDS = (2, 4)
BLOCK_SECONDS = 0.03


def with_elastic(elastic, w, g, steps):
    began = time.perf_counter()
    for _ in range(steps):
        with elastic.step() as step:
            step.average([g], weight=len(step.samples(32)))
            w -= g
    return (time.perf_counter() - began) / steps


def bare(comm, w, g, steps):
    began = time.perf_counter()
    for _ in range(steps):
        comm.all_reduce_many([g], op="avg")
        w -= g
    return (time.perf_counter() - began) / steps


def peer(address, secret, world, size, seconds, results):
    # A run for each size: a group never goes back to an earlier revision.
    comm = outlast.Communicator(address, secret=secret, run_id=f"bytes-{size}", preset="local", listen="127.0.0.1:0")
    comm.connect(min_world=world)
    with comm:
        w, g = np.zeros(size // 4, np.float32), np.ones(size // 4, np.float32)
        elastic = outlast.Elastic(comm, {"w": w}, min_world=world)
        with_elastic(elastic, w, g, 3)
        step = np.array([bare(comm, w, g, 3 + int(BLOCK_SECONDS * 1e9 / (size + 1_000_000)))])
        comm.all_reduce(step, op="max")
        steps = max(1, round(BLOCK_SECONDS / step[0]))
        table = []
        for number in range(max(20, round(seconds / (2 * steps * step[0])))):
            comm.barrier()
            if number % 2:
                plain = bare(comm, w, g, steps)
                comm.barrier()
                careful = with_elastic(elastic, w, g, steps)
            else:
                careful = with_elastic(elastic, w, g, steps)
                comm.barrier()
                plain = bare(comm, w, g, steps)
            table.append((careful, plain))
        if comm.rank == 0:
            results.put((steps, elastic.syncs, table))
        comm.barrier()


def row(world, size, measured):
    steps, syncs, pairs = measured
    assert syncs == 1, "one sync at the beginning, and none without a reason"
    plain = statistics.median(pair[1] for pair in pairs)
    more = sorted(careful - bare for careful, bare in pairs)
    low, middle, high = statistics.quantiles(more, n=4)
    # Between which two of so many sorted differences the median lies, by the binomial distribution.
    off = math.ceil(0.98 * math.sqrt(len(more)))
    sure = [more[at] / plain for at in (len(more) // 2 - off, (len(more) - 1) // 2 + off)]
    return (
        f"| {world} | {size:,} | {plain * 1e3:.3f} | {middle * 1e6:+.0f} | {low * 1e6:+.0f} to {high * 1e6:+.0f} "
        f"| {middle / plain:+.1%} | {sure[0]:+.1%} to {sure[1]:+.1%} | {len(more)} x {steps} |"
    )


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15.0
    spawn = multiprocessing.get_context("spawn")
    print("| N | bytes | bare, ms | Elastic, us more | middle half | share | 95 % | pairs x steps |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for world in WORLDS:
        for size in SIZES:
            results = spawn.Queue()
            with outlast.Coordinator(preset="local") as coordinator:
                settings = coordinator.address, coordinator.secret, world, size, seconds, results
                peers = [spawn.Process(target=peer, args=settings) for _ in range(world)]
                for process in peers:
                    process.start()
                measured = results.get(timeout=600)
                for process in peers:
                    process.join()
            print(row(world, size, measured), flush=True)


if __name__ == "__main__":
    main()
