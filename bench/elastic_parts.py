"""Where the time of a step of Elastic goes: its parts, beside bare calls with and without a small tensor more.

Two processes on loopback with the defaults (TLS, votes), on one communicator and one piece of memory, by turns in blocks of
twenty calls. Prints median and lower quartile in microseconds.

usage: python bench/elastic_parts.py     with the package installed, built in release
"""

import multiprocessing
import statistics
from time import perf_counter

import numpy as np
import outlast

SIZES = (4 << 10, 64 << 10)
ROUNDS, CALLS = 60, 20


def one_step(elastic, g, taken):
    began = perf_counter()
    step = elastic.step()
    begun = perf_counter()
    with step:
        weight = len(step.samples(32))
        dealt = perf_counter()
        step.average([g], weight=weight)
        averaged = perf_counter()
    ended = perf_counter()
    taken["Elastic"].append(ended - began)
    taken["step()"].append(begun - began)
    taken["samples(32)"].append(dealt - begun)
    taken["average"].append(averaged - dealt)
    taken["end of the block"].append(ended - averaged)


def peer(address, secret, size, results):
    comm = outlast.Communicator(address, secret=secret, run_id=f"bytes-{size}", preset="local", listen="127.0.0.1:0")
    comm.connect(min_world=2)
    bare = {"bare": [], "bare and f64[8]": [np.zeros(8)], "bare and f32[16]": [np.zeros(16, np.float32)]}
    taken = {name: [] for name in (*bare, "Elastic", "step()", "samples(32)", "average", "end of the block")}
    with comm:
        w, g = np.zeros(size // 4, np.float32), np.ones(size // 4, np.float32)
        elastic = outlast.Elastic(comm, {"w": w}, min_world=2)
        for _ in range(ROUNDS):
            for name, beside in bare.items():
                comm.barrier()
                for _ in range(CALLS):
                    began = perf_counter()
                    comm.all_reduce_many([g, *beside], op="avg")
                    taken[name].append(perf_counter() - began)
            comm.barrier()
            for _ in range(CALLS):
                one_step(elastic, g, taken)
        if comm.rank == 0:
            results.put(taken)
        comm.barrier()


def main():
    spawn = multiprocessing.get_context("spawn")
    print("| bytes | part | median | lower quartile |\n|--:|---|--:|--:|")
    for size in SIZES:
        results = spawn.Queue()
        with outlast.Coordinator(preset="local") as coordinator:
            peers = [
                spawn.Process(target=peer, args=(coordinator.address, coordinator.secret, size, results))
                for _ in range(2)
            ]
            for process in peers:
                process.start()
            measured = results.get(timeout=120)
            for process in peers:
                process.join()
        for name, seconds in measured.items():
            low, middle, _ = (quarter * 1e6 for quarter in statistics.quantiles(seconds, n=4))
            print(f"| {size:,} | {name} | {middle:.1f} | {low:.1f} |", flush=True)


if __name__ == "__main__":
    main()
