"""Training that goes on while peers die and come: a linear model, in numpy.

Every peer holds the same model. `outlast.Elastic` brings newcomers up to date, averages gradients over whoever
contributed, hands every sample number out exactly once, and saves checkpoints. Half-way everybody is killed, and
whoever is started again goes on from the newest checkpoint.

Run it:  python examples/elastic_numpy.py
"""

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time

import numpy as np
import outlast

FEATURES, BATCH, STEPS, RATE = 20, 64, 300, 0.1
TRUTH = np.linspace(-1, 1, FEATURES)


def batch(numbers):
    """The samples of these numbers: the same for whoever takes them."""
    rows = [np.random.default_rng(number).standard_normal(FEATURES + 1) for number in numbers]
    noise, x = np.split(np.array(rows), [1], axis=1)
    return x, x @ TRUTH + 0.01 * noise[:, 0]


def train(address, secret, number, folder):
    comm = outlast.Communicator(address, secret=secret, preset="local", name=f"peer-{number}")
    w = np.zeros(FEATURES)
    elastic = outlast.Elastic(comm, {"w": w}, min_world=2, verify_every=100, checkpoint=folder, every=25)
    if elastic.number:
        print(f"peer-{number} begins with the checkpoint of step {elastic.number}", flush=True)
    with comm:
        while elastic.number < STEPS:
            with elastic.step() as step:  # comes in, lets others in, heals
                x, y = batch(step.samples(BATCH))
                g = x.T @ (x @ w - y) / len(x)
                receipt = step.average([g], weight=len(x))
                w -= RATE * g  # from here on only local code
            if step.committed and step.rank == 0 and elastic.number % 50 == 0:
                peers, distance = len(receipt.contributors), np.abs(w - TRUTH).max()
                print(f"step {elastic.number}: {peers} peers, off by {distance:.4f}", flush=True)
            time.sleep(0.01)
    assert np.abs(w - TRUTH).max() < 0.05


def main():
    dice = random.Random(1)
    spawn = multiprocessing.get_context("spawn")
    with outlast.Coordinator(preset="local") as coordinator, tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(100))

        def start():
            arguments = (coordinator.address, coordinator.secret, next(numbers), folder)
            process = spawn.Process(target=train, args=arguments)
            process.start()
            return process

        def steps(count):
            goal = coordinator.status()["commits"] + count
            while coordinator.status()["commits"] < goal and any(peer.is_alive() for peer in peers):
                time.sleep(0.02)

        peers = [start() for _ in range(3)]
        for _ in range(3):
            steps(40)
            victim = peers.pop(dice.randrange(len(peers)))
            os.kill(victim.pid, signal.SIGKILL)
            print(f"killed {victim.name}, starting another", flush=True)
            peers.append(start())
        steps(40)
        for peer in peers:
            peer.kill()
            peer.join()
        print("killed everybody", flush=True)
        peers = [start() for _ in range(3)]
        for peer in peers:
            peer.join()
        sys.exit(max(peer.exitcode for peer in peers))


if __name__ == "__main__":
    main()
