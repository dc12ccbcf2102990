"""Two living members that cannot reach each other, on hosts of a lab: what Python is told of the link between them."""

import os
import subprocess
import sys
import threading
from queue import Empty, Queue

import outlast
import pytest
from conftest import ROOT, wait_until

OUTLAST = [sys.executable, "-m", "outlast"]
MEMBERS = ["a", "b", "c", "d"]
COORDINATOR = "e"

MEMBER = """
import sys, numpy as np, outlast
name = sys.argv[1]
comm = outlast.Communicator(preset="local", timeout=10, name=name)
comm.connect(4)
print("ready", flush=True)
while sys.stdin.readline():
    try:
        # Nobody else takes part, so nobody can pass anything on.
        comm.broadcast(np.ones(100_000, np.float32), "a", scope=["a", "b"])
        print("fine", flush=True)
    except outlast.OutlastError as error:
        reasons = list(error.lost.values()) if isinstance(error, outlast.PeersLost) else []
        print(type(error).__name__, *reasons, error, sep=" | ", flush=True)
"""


def why_not():
    asked = subprocess.run([ROOT / "tools/can-lab"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode else ""


@pytest.fixture
def lab():
    """Runs `outlast lab` on a lab of this test's own, and takes it down."""
    name = f"py{os.getpid()}"
    env = os.environ | {"OUTLAST_LAB": name}

    def do(*arguments):
        subprocess.run([*OUTLAST, "lab", *arguments], check=True, capture_output=True, env=env, timeout=60)

    do("up", "--hosts", ",".join([*MEMBERS, COORDINATOR]), "--name", name)
    yield do, env
    do("down", name)


class Process:
    """A program on a host, whose lines are read as they come."""

    def __init__(self, env, host, *command):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([*OUTLAST, "lab", "exec", host, "--", *command], env=env, **pipes)
        self.lines = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def hear(self, seconds=60):
        try:
            return self.lines.get(timeout=seconds)
        except Empty:
            pytest.fail(f"not a word within {seconds} s")


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_link_that_breaks_and_one_that_cannot_be_made_are_named(lab):
    do, env = lab
    env = env | {"OUTLAST_SECRET": outlast.new_secret(), "PYTHONUNBUFFERED": "1"}
    started = []

    def start(host, *command, **more):
        started.append(Process(env | more, host, *command))
        return started[-1]

    try:
        serve = ["coordinator", "--listen", "0.0.0.0:29400", "--preset", "local", "--forget-key"]
        coordinator = start(COORDINATOR, *OUTLAST, *serve)
        wait_until(lambda: "29400" in coordinator.hear())
        here = {"OUTLAST_COORDINATOR": f"{COORDINATOR}:29400"}
        members = [start(name, sys.executable, "-c", MEMBER, name, **here) for name in MEMBERS]
        assert [member.hear() for member in members] == ["ready"] * 4

        def call():
            for member in members[:2]:
                member.process.stdin.write("\n")
                member.process.stdin.flush()
            return [member.hear() for member in members[:2]]

        assert call() == ["fine", "fine"]
        do("cut", "a", "b")
        said = call()
        assert all(line.startswith("PeersLost | its link from ") for line in said), said
        # At most two calls are blamed on the link; after that all know that there is none.
        said = wait_until(lambda: [line for line in call() if not line.startswith("PeersLost")], 60)
        for line in said:
            assert line.startswith("InvalidArgument | "), said
            assert "no link can be made from " in line, said
        do("heal")
        wait_until(lambda: call() == ["fine", "fine"], 60)
    finally:
        for process in started:
            process.process.kill()
            process.process.wait()
