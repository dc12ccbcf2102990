"""Training that goes on while peers die and come: a linear model, in numpy.

Every peer holds the same model and its own samples. Gradients are averaged over whoever contributed, so a lost peer
costs its share of the samples and nothing else. A newcomer is let in between two steps, and gets the model by a
broadcast from the oldest member.

Run it:  python examples/elastic_numpy.py
"""

import multiprocessing
import os
import random
import signal
import sys
import time

import numpy as np
import outlast

FEATURES, BATCH, STEPS, RATE = 20, 64, 300, 0.1
TRUTH = np.linspace(-1, 1, FEATURES)


def admit(comm, model):
    """Lets newcomers in, and gives everybody the model of rank 0: whoever was here first."""
    while True:
        try:
            comm.update_topology()
            comm.broadcast(model, root=0, tag=1)
            return
        except outlast.RetryError:
            continue  # somebody was lost on the way: again, with whoever is left


def train(address, secret, seed):
    samples = np.random.default_rng(seed)
    comm = outlast.Communicator(address, secret=secret, preset="local", name=f"peer-{seed}")
    comm.connect()
    model = np.zeros(FEATURES + 1)  # the weights, and the number of steps that they have seen
    if comm.world_size > 1:
        try:
            comm.broadcast(model, root=0, tag=1)  # the members broadcast when they have let us in
        except outlast.RetryError:
            admit(comm, model)  # and so do they
    with comm:
        while model[-1] < STEPS:
            x = samples.standard_normal((BATCH, FEATURES))
            error = x @ (model[:-1] - TRUTH) + 0.01 * samples.standard_normal(BATCH)
            gradient = x.T @ error / BATCH
            try:
                receipt = comm.all_reduce(gradient, op="sum")
            except outlast.RetryError:
                continue  # nothing happened; the gradient is as it was
            gradient /= len(receipt.contributors)
            model[:-1] -= RATE * gradient
            model[-1] += 1
            if comm.rank == 0 and model[-1] % 50 == 0:
                distance = np.abs(model[:-1] - TRUTH).max()
                print(f"step {model[-1]:.0f}: {len(receipt.contributors)} peers, off by {distance:.4f}", flush=True)
            if receipt.pending:  # the same number on every member, so all come here together
                admit(comm, model)
            time.sleep(0.01)
        assert np.abs(model[:-1] - TRUTH).max() < 0.05


def main():
    dice = random.Random(1)
    spawn = multiprocessing.get_context("spawn")
    with outlast.Coordinator(preset="local") as coordinator:

        def start(seed):
            process = spawn.Process(target=train, args=(coordinator.address, coordinator.secret, seed))
            process.start()
            return process

        peers = [start(seed) for seed in range(3)]
        for seed in range(3, 7):
            goal = coordinator.status()["commits"] + 40
            while coordinator.status()["commits"] < goal and any(peer.is_alive() for peer in peers):
                time.sleep(0.02)
            victim = peers.pop(dice.randrange(len(peers)))
            os.kill(victim.pid, signal.SIGKILL)
            print(f"killed {victim.name}, starting another", flush=True)
            peers.append(start(seed))
        for peer in peers:
            peer.join()
        sys.exit(max(peer.exitcode for peer in peers))


if __name__ == "__main__":
    main()
