"""A store inside somebody else's process: signals and goodbyes."""

import signal
import time

import outlast
import pytest
from conftest import stop

PATIENCE = 30.0


def interrupted(child, word):
    """Sends a Ctrl-C to a program that has said that word and waits; how long it took to answer."""
    assert child.stdout.readline() == f"{word}\n", child.stderr.read()
    time.sleep(0.3)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n", child.stderr.read()
    return float(child.stdout.readline())


WAITS = """
import sys, time, outlast
{before}
print("waits", flush=True)
began = time.monotonic()
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    print(time.monotonic() - began, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    "call",
    [
        'outlast.Store.static("127.0.0.1:0", 0, 2, preset="local")',
        'outlast.Store("127.0.0.1:9", preset="local")',
    ],
)
def test_ctrl_c_while_joining_a_store(program, call):
    child = program(WAITS.format(before="", call=call))
    assert interrupted(child, "waits") < PATIENCE
    _, errors = child.communicate("go on\n", timeout=PATIENCE)
    assert (child.returncode, errors) == (0, "")


SERVICE = """
import sys, outlast
with outlast.Coordinator(listen="127.0.0.1:0", preset="local") as service:
    print(service.address, service.secret, flush=True)
    sys.stdin.readline()
"""

JOINS = """
store = outlast.Store(timeout=30, listen="127.0.0.1:0", preset="local")
print("in", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("call", ["store.leave()", "with store: pass"])
def test_ctrl_c_ends_a_leave_that_nobody_answers(program, call):
    """Whoever lets members go is stopped. Left alone it would go by itself after ten seconds."""
    service = program(SERVICE)
    address, secret = service.stdout.readline().split()
    child = program(WAITS.format(before=JOINS, call=call), OUTLAST_COORDINATOR=address, OUTLAST_SECRET=secret)
    assert child.stdout.readline() == "in\n", child.stderr.read()
    stop(service)
    child.stdin.write("go on\n")
    child.stdin.flush()
    assert interrupted(child, "waits") < 5
    _, errors = child.communicate("go on\n", timeout=PATIENCE)
    assert (child.returncode, errors) == (0, "")


def test_a_handler_may_leave_while_a_call_of_its_thread_waits(coordinator, program):
    code = """
import signal, sys, outlast
store = outlast.Store(timeout=60, listen="127.0.0.1:0", preset="local")

def on_sigterm(number, frame):
    store.leave()
    print("left", flush=True)
    sys.exit(7)

signal.signal(signal.SIGTERM, on_sigterm)
print("in", flush=True)
store.get("never")
"""
    with outlast.Store(coordinator.address, secret=coordinator.secret, listen="127.0.0.1:0", preset="local") as store:
        child = program(code)
        assert child.stdout.readline() == "in\n", child.stderr.read()
        store.set("key", "value")
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "left\n", child.stderr.read()
        assert child.wait(PATIENCE) == 7
        assert store.get("key") == b"value", "it goes on for the others"
