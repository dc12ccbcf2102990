"""The twenty-line proof: four peers train, one is killed, three go on, and no sample is lost.

Run it:  python examples/survive.py
"""

import multiprocessing
import os
import signal
import time

import numpy as np
import outlast


def peer(address, secret):
    comm = outlast.Communicator(address, secret=secret, preset="local")
    comm.connect(min_world=4)
    w = np.zeros(1_000_000, np.float32)
    elastic = outlast.Elastic(comm, {"w": w})
    while elastic.number < 30:
        with elastic.step() as step:
            samples = step.samples(8)
            g = np.ones_like(w)
            receipt = step.average([g], weight=len(samples))  # goes on with the survivors by itself
            w -= 0.1 * g
        if step.committed and step.rank == 0:
            peers, used = len(receipt.contributors), elastic.samples_used
            print(f"step {elastic.number:2}: {peers} peers, attempts {receipt.attempts}, {used} samples used")
        time.sleep(0.05)
    comm.leave()


def main():
    with outlast.Coordinator(preset="local") as coordinator:
        spawn = multiprocessing.get_context("spawn")
        peers = [spawn.Process(target=peer, args=(coordinator.address, coordinator.secret)) for _ in range(4)]
        for process in peers:
            process.start()
        while coordinator.status()["commits"] < 10:
            time.sleep(0.01)
        os.kill(peers[3].pid, signal.SIGKILL)
        print(f"killed peer {peers[3].pid}")
        for process in peers:
            process.join()


if __name__ == "__main__":
    main()
