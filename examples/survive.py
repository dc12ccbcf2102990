"""The ten-line proof: four peers add up ones, one is killed, three go on.

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
    with comm:
        for step in range(30):
            x = np.ones(1_000_000, np.float32)
            receipt = comm.all_reduce(x)  # retries with the survivors by itself
            if comm.rank == 0:
                print(f"step {step:2}: sum {x[0]:.0f} of {len(receipt.contributors)}, attempts {receipt.attempts}")
            time.sleep(0.05)


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
