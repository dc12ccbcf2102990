"""What the Python binding costs: the same all-reduce from Python and from Rust, by turns, in one run.

Two processes on loopback, with votes, f32 sum in place, one communicator and one piece of memory for all. Call by
call the peers take turns: one all-reduce as a program makes it (`comm.all_reduce(x)`, timed around it in Python), one
made and timed in Rust. So both kinds meet the same machine, the same moment and the same pause before them, which a
loop in Python makes in either case. The third column is Rust in a loop of its own that never comes back to
the interpreter; it tells what such pauses cost, whoever makes the call. Prints medians in microseconds, and per row the
difference between Python and Rust with the range that the middle half of the rounds had.

usage: python bench/python_cost.py [ROUNDS]     with the package installed, built in release
"""

import multiprocessing
import statistics
import sys
import time

import numpy as np
import outlast

SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
CALLS = 200
OPTIONS = ("sum", 0, None, True, 1, None, None, False, None)


def in_rust(comm, x, times=1):
    """The same call, made and timed without the interpreter."""
    return comm._core.repeated("all_reduce", [x], OPTIONS, times)


def by_turns(comm, x):
    """Median times of one round: from Python, from Rust, from a loop in Rust."""
    python, rust = [], []
    for _ in range(CALLS):
        began = time.perf_counter()
        comm.all_reduce(x)
        python.append(time.perf_counter() - began)
        rust += in_rust(comm, x)
    return [statistics.median(taken) * 1e6 for taken in (python, rust, in_rust(comm, x, CALLS))]


def peer(address, secret, rounds, encryption, results):
    comm = outlast.Communicator(address, secret=secret, preset="local", encryption=encryption, listen="127.0.0.1:0")
    comm.connect(min_world=2)
    table = {}
    with comm:
        for size in SIZES:
            x = np.zeros(size // 4, np.float32)
            by_turns(comm, x)
            table[size] = [by_turns(comm, x) for _ in range(rounds)]
        if comm.rank == 0:
            results.put(table)
        comm.barrier()


def row(size, rounds):
    python, rust, loop = (statistics.median(column) for column in zip(*rounds, strict=True))
    costs = sorted(one[0] - one[1] for one in rounds)
    low, high = costs[len(costs) // 4], costs[-1 - len(costs) // 4]
    cost = f"{statistics.median(costs):.1f} ({low:.1f} to {high:.1f})"
    return f"| {size >> 10} KiB | {python:.0f} | {rust:.0f} | {cost} | {loop:.0f} |"


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    spawn = multiprocessing.get_context("spawn")
    for encryption in ("on", "off"):
        results = spawn.Queue()
        with outlast.Coordinator(preset="local") as coordinator:
            settings = coordinator.address, coordinator.secret, rounds, encryption, results
            peers = [spawn.Process(target=peer, args=settings) for _ in range(2)]
            for process in peers:
                process.start()
            table = results.get(timeout=300)
            for process in peers:
                process.join()
        print(f"\nEncryption {encryption}, 2 peers, {rounds} rounds of {CALLS} calls of each, median microseconds:\n")
        print("| bytes | Python | Rust | binding | Rust in a loop |\n|--:|--:|--:|--:|--:|")
        for size, measured in table.items():
            print(row(size, measured))


if __name__ == "__main__":
    main()
