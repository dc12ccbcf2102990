"""What the Python binding costs: the same all-reduce from Python and from Rust, by turns, in one run.

Two processes on loopback, with votes, f32 sum. All turns use the same communicator and memory; the Rust side repeats
the call without coming back to the interpreter, once without a pause, which finds every thread still awake, and once
with the pause that a loop in Python makes between two calls. Prints medians in microseconds.

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
PAUSE = 10e-6
OPTIONS = ("sum", 0, None, True, 1, None, None, False, None)


def from_python(comm, x):
    taken = []
    for _ in range(CALLS):
        began = time.perf_counter()
        comm.all_reduce(x)
        taken.append(time.perf_counter() - began)
    return taken


def from_rust(comm, x):
    return comm._core.repeated("all_reduce", [x], OPTIONS, CALLS, 0.0)


def from_rust_with_pauses(comm, x):
    return comm._core.repeated("all_reduce", [x], OPTIONS, CALLS, PAUSE)


def peer(address, secret, rounds, encryption, results):
    comm = outlast.Communicator(address, secret=secret, preset="local", encryption=encryption)
    comm.connect(min_world=2)
    table = {}
    with comm:
        for size in SIZES:
            x = np.zeros(size // 4, np.float32)
            from_python(comm, x)
            turns = {from_rust: [], from_rust_with_pauses: [], from_python: []}
            for _ in range(rounds):
                for turn, taken in turns.items():
                    taken.append(statistics.median(turn(comm, x)))
            table[size] = tuple(statistics.median(taken) * 1e6 for taken in turns.values())
        if comm.rank == 0:
            results.put(table)
        comm.barrier()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
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
        print(f"encryption {encryption}, 2 peers, {rounds} turns of {CALLS} calls: median us")
        print(f"{'bytes':>9} {'Rust':>9} {'paused':>9} {'Python':>9} {'binding':>9} {'- paused':>9}")
        for size, (rust, paused, python) in table.items():
            print(f"{size:>9} {rust:>9.1f} {paused:>9.1f} {python:>9.1f} {python - rust:>9.1f} {python - paused:>9.1f}")


if __name__ == "__main__":
    main()
