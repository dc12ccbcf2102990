"""A store inside somebody else's process: signals, goodbyes, names that take long to look up."""

import os
import shutil
import signal
import subprocess
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
        'outlast.Store.static("127.0.0.1:0", 0, 2, timeout=60, preset="local")',
        'outlast.Store("127.0.0.1:9", timeout=60, preset="local")',
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


# Looks up `slow.test` for as long as nobody writes to the pipe.
SLOW_RESOLVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    if (!node || strcmp(node, "slow.test")) {
        int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
        real = dlsym(RTLD_NEXT, "getaddrinfo");
        return real(node, service, hints, found);
    }
    char byte;
    int pipe = open(getenv("SLOW_PIPE"), O_RDONLY);
    ssize_t came = read(pipe, &byte, 1);
    close(pipe);
    return came == 1 ? EAI_NONAME : EAI_FAIL;
}
"""


def test_names_are_resolved_without_the_interpreter(program, tmp_path):
    """Another thread of Python ends the look-up: with the interpreter held it would never get to it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library, pipe = tmp_path / "slow.c", tmp_path / "slow.so", tmp_path / "pipe"
    source.write_text(SLOW_RESOLVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    os.mkfifo(pipe)
    code = """
    import os, threading, outlast
    makers = [
        lambda: outlast.Store(listen="slow.test:0"),
        lambda: outlast.Store(advertise="slow.test:0"),
        lambda: outlast.Communicator(listen="slow.test:0"),
        lambda: outlast.Coordinator(listen="slow.test:0"),
        lambda: outlast.Membership("slow.test:0"),
    ]
    for make in makers:
        def end_it():
            with open(os.environ["SLOW_PIPE"], "wb", buffering=0) as pipe:
                pipe.write(b"x")
        thread = threading.Thread(target=end_it)
        thread.start()
        try:
            make()
        except outlast.InvalidArgument as error:
            print(str(error).split(":")[0], flush=True)
        thread.join()
    """
    child = program(code, LD_PRELOAD=str(library), SLOW_PIPE=str(pipe))
    out, errors = child.communicate(timeout=PATIENCE)
    assert out.split() == ['listen="slow.test', 'advertise="slow.test', *['listen="slow.test'] * 3], errors
