"""A coordinator per test, peers as threads of this process, and programs as processes of their own."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import outlast
import pytest

# Whatever the shell has set must not reach the tests.
for _name in [name for name in os.environ if name.startswith("OUTLAST_") and name != "OUTLAST_SOAK"]:
    del os.environ[_name]

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items):
    if os.environ.get("OUTLAST_SOAK"):
        return
    for item in items:
        if "soak" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="minutes long: set OUTLAST_SOAK=1"))


@pytest.fixture
def coordinator():
    with outlast.Coordinator(preset="local") as service:
        yield service


@pytest.fixture
def peer(coordinator):
    """Makes communicators that are closed when the test is over."""
    made = []

    def make(**options):
        options = {"preset": "local", "timeout": 20.0, "listen": "127.0.0.1:0"} | options
        comm = outlast.Communicator(coordinator.address, secret=coordinator.secret, **options)
        made.append(comm)
        return comm

    yield make
    for comm in made:
        comm.close()


@pytest.fixture
def together(peer):
    """Runs `program(number, comm)` as that many connected peers at once, and returns what each returned."""

    def run(count, program, **options):
        comms = [peer(name=f"p{number}", **options) for number in range(count)]
        results, errors = [None] * count, []

        def work(number):
            try:
                comms[number].connect(min_world=count)
                results[number] = program(number, comms[number])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), f"a peer hangs; others raised {errors}"
        if errors:
            raise errors[0]
        return results

    return run


@pytest.fixture
def program(coordinator):
    """Starts Python code as a process that finds the coordinator in its environment."""
    started = []

    def start(code, *arguments, **environment):
        env = os.environ | {
            "OUTLAST_COORDINATOR": coordinator.address,
            "OUTLAST_SECRET": coordinator.secret,
            "PYTHONUNBUFFERED": "1",
        }
        env |= environment
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stop(process):
    """Stops a process of ours, and returns when it has stopped: until then the signal is only on its way."""
    process.send_signal(signal.SIGSTOP)
    # The kernel tells when the last thread has stopped. Whoever ends instead is not reaped here.
    told = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert told.si_code == os.CLD_STOPPED, told


def wait_until(condition, seconds=20.0):
    """Waits for a condition, and says so if it never comes true."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{condition} was not true within {seconds} s"
        time.sleep(0.01)
    return result
