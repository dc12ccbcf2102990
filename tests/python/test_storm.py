"""The kill storm: members die of SIGKILL and are replaced, and every sum is checked."""

import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

WORLD = 4
WORKER = Path(__file__).with_name("storm_worker.py")


class Worker:
    """One process, and what it said."""

    def __init__(self, coordinator, min_world, stop_file, forked=2):
        env = os.environ | {"OUTLAST_COORDINATOR": coordinator.address, "OUTLAST_SECRET": coordinator.secret}
        command = [sys.executable, str(WORKER), str(min_world), str(stop_file), str(forked)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=env
        )
        self.lines = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def peer(self):
        return next((line["joined"] for line in list(self.lines) if "joined" in line), None)

    def last_contributors(self):
        told = [line for line in list(self.lines) if "contributors" in line]
        return (told[-1]["contributors"], told[-1]["time"]) if told else ([], 0.0)


def wait_for(condition, workers, seconds=60):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        for worker in workers:
            code = worker.process.poll()
            assert code is None, (code, worker.process.stderr.read(), worker.lines[-3:])
        assert time.monotonic() < deadline, [worker.lines[-2:] for worker in workers]
        time.sleep(0.005)
    return result


def everybody_contributes(workers):
    everybody = {worker.peer() for worker in workers}
    return all(set(worker.last_contributors()[0]) == everybody for worker in workers)


def storm(coordinator, tmp_path, kills, seed):
    stop = tmp_path / "stop"
    dice = random.Random(seed)
    workers = [Worker(coordinator, WORLD, stop) for _ in range(WORLD)]
    recoveries = []
    try:
        for _ in range(kills):
            wait_for(lambda: everybody_contributes(workers), workers)
            time.sleep(dice.uniform(0, 0.05))
            victim = workers.pop(dice.randrange(len(workers)))
            peer = victim.peer()
            killed = time.monotonic()
            victim.process.kill()
            wait_for(lambda peer=peer: all(peer not in worker.last_contributors()[0] for worker in workers), workers)
            recoveries.append(max(worker.last_contributors()[1] for worker in workers) - killed)
            victim.process.communicate()
            workers.append(Worker(coordinator, 1, stop))
        wait_for(lambda: all(worker.peer() for worker in workers), workers)
        stop.touch()
        for worker in workers:
            worker.process.wait(60)
            worker.reader.join(10)
            assert worker.process.returncode == 0, (worker.process.stderr.read(), worker.lines[-3:])
            assert worker.lines[-1].get("done"), worker.lines[-3:]
            assert not any("wrong" in line for line in worker.lines)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()
    recoveries.sort()
    p90 = recoveries[int(0.9 * len(recoveries))]
    status = coordinator.status()
    print(
        f"\n{kills} kills among {WORLD} peers with forked children: recovered in {statistics.median(recoveries):.3f} s "
        f"in the median, {p90:.3f} s at 90 %, {recoveries[-1]:.3f} s at worst; {status['commits']} commits, "
        f"{status['aborts']} aborts, no wrong value"
    )
    # Whoever was killed was put out, and nobody else.
    assert status["evictions"] == kills


@pytest.mark.parametrize("seed", [1])
def test_thirty_kills(coordinator, tmp_path, seed):
    storm(coordinator, tmp_path, 30, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_thousand_kills(coordinator, tmp_path, seed):
    storm(coordinator, tmp_path, 100, seed)
