"""What a step of Elastic costs beside a bare all_reduce_many, by turns, in one run.

Processes on loopback with the defaults (TLS, votes). Each round makes a block of steps both ways on the same communicator and the
same memory: a step of `Elastic` with its sample numbers, and a bare loop that averages the same gradient. Both change the model by
the same line. Prints the median time of a step each way, and the median over the rounds of the ratio with its middle half; 1.02 is
the most that is wanted.

usage: python bench/elastic_cost.py [ROUNDS]     with the package installed, built in release
"""

import multiprocessing
import statistics
import sys
import time

import numpy as np
import outlast

# Bytes of the gradient, and how many steps make a block.
SIZES = {64 << 10: 200, 1 << 20: 100, 16 << 20: 12, 64 << 20: 4}
WORLDS = (2, 4)


def with_elastic(elastic, w, g, steps):
    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        with elastic.step() as step:
            step.average([g], weight=len(step.samples(32)))
            np.multiply(g, 1e-3, out=g)
            w -= g
        taken.append(time.perf_counter() - began)
    return taken


def bare(comm, w, g, steps):
    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        comm.all_reduce_many([g], op="avg")
        np.multiply(g, 1e-3, out=g)
        w -= g
        taken.append(time.perf_counter() - began)
    return taken


def peer(address, secret, world, size, rounds, results):
    # A run for each size: a group never goes back to an earlier revision.
    comm = outlast.Communicator(address, secret=secret, run_id=f"bytes-{size}", preset="local", listen="127.0.0.1:0")
    comm.connect(min_world=world)
    steps = SIZES[size]
    table = []
    with comm:
        w, g = np.zeros(size // 4, np.float32), np.ones(size // 4, np.float32)
        elastic = outlast.Elastic(comm, {"w": w}, min_world=world)
        with_elastic(elastic, w, g, steps)
        bare(comm, w, g, steps)
        for number in range(rounds):
            # Who goes first changes with each round: the second finds a warmer machine.
            if number % 2:
                plain, careful = bare(comm, w, g, steps), with_elastic(elastic, w, g, steps)
            else:
                careful, plain = with_elastic(elastic, w, g, steps), bare(comm, w, g, steps)
            table.append((statistics.median(careful), statistics.median(plain)))
        if comm.rank == 0:
            results.put(table)
        comm.barrier()


def row(world, size, rounds):
    elastic, plain = (statistics.median(column) * 1e3 for column in zip(*rounds, strict=True))
    ratios = sorted(first / second for first, second in rounds)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return f"| {world} | {size >> 10} KiB | {elastic:.3f} | {plain:.3f} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} |"


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    spawn = multiprocessing.get_context("spawn")
    print("| N | gradient | Elastic, ms | bare, ms | Elastic / bare | middle half |\n|--:|--:|--:|--:|--:|--:|")
    for world in WORLDS:
        for size in SIZES:
            results = spawn.Queue()
            with outlast.Coordinator(preset="local") as coordinator:
                settings = coordinator.address, coordinator.secret, world, size, rounds, results
                peers = [spawn.Process(target=peer, args=settings) for _ in range(world)]
                for process in peers:
                    process.start()
                measured = results.get(timeout=600)
                for process in peers:
                    process.join()
            print(row(world, size, measured), flush=True)


if __name__ == "__main__":
    main()
