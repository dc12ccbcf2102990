"""Several groups in one run: collectives stay inside a group, and a death in one changes nothing in another.

Two groups of two peers each train a model of their own; one peer of the second group is killed.

Run it:  python examples/groups.py
"""

import multiprocessing
import os
import signal
import time

import numpy as np
import outlast

PEERS, GROUPS, STEPS = 2, 2, 40


def work(address, secret, group):
    comm = outlast.Communicator(address, secret=secret, group=group, preset="local")
    comm.connect(min_world=PEERS)
    while comm.global_world_size < PEERS * GROUPS:  # whoever is in lets the others in, whatever their group
        comm.update_topology(min_world=PEERS)
    with comm:
        before = comm.epoch
        for _ in range(STEPS):
            x = np.full(1000, float(group))
            receipt = comm.all_reduce(x, op="avg")
            assert (x == group).all()
            time.sleep(0.02)
        changed = "changed" if comm.epoch != before else "did not change"
        print(f"group {group}: {len(receipt.contributors)} of {PEERS} at the end, its epoch {changed}", flush=True)


def main():
    spawn = multiprocessing.get_context("spawn")
    with outlast.Coordinator(preset="local") as coordinator:
        settings = coordinator.address, coordinator.secret
        peers = [spawn.Process(target=work, args=(*settings, number // PEERS)) for number in range(PEERS * GROUPS)]
        for peer in peers:
            peer.start()
        while coordinator.status()["commits"] < 20:
            time.sleep(0.01)
        os.kill(peers[-1].pid, signal.SIGKILL)
        print("killed a peer of group 1", flush=True)
        for peer in peers:
            peer.join()


if __name__ == "__main__":
    main()
