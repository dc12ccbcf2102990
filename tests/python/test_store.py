"""The store from Python: what each call does, and what becomes of it when processes die."""

import array
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import outlast
import pytest
from conftest import stop, wait_until

PATIENCE = 30.0


@pytest.fixture
def coordinator():
    with outlast.Coordinator(listen="127.0.0.1:0", preset="local") as coordinator:
        yield coordinator


def join(coordinator, **options):
    options = {"timeout": PATIENCE, "listen": "127.0.0.1:0", "preset": "local"} | options
    return outlast.Store(coordinator.address, secret=coordinator.secret, **options)


def test_every_operation(coordinator):
    with join(coordinator) as one, join(coordinator) as two:
        one.set("text", "value")
        assert two.get("text") == b"value"
        one.set(b"\x00\xff", memoryview(b"\xff\x00"))
        assert two.get(b"\x00\xff") == b"\xff\x00"
        one.set("", "")
        assert two.get("") == b""
        assert (one.add("n", 5), two.add("n", -2)) == (5, 3)
        assert one.compare_set("c", "", "first") == b"first"
        assert two.compare_set("c", "other", "second") == b"first"
        assert two.compare_set("missing", "expected", "desired") == b"expected"
        one.append("log", "a")
        two.append("log", "b")
        assert one.get("log") == b"ab"
        assert one.delete_key("log") is True
        assert one.delete_key("log") is False
        assert one.check(["n", "c"]) is True
        assert one.check(["n", "nothing"]) is False
        one.multi_set({"x": "1", "y": b"2"})
        one.multi_set(["z"], ["3"])
        assert two.multi_get(["x", "y", "z"]) == [b"1", b"2", b"3"]
        one.queue_push("q", "first")
        assert two.queue_len("q") == 1
        assert two.queue_pop("q") == b"first"
        assert two.queue_pop("q", block=False) is None
        assert two.keys("x") == [b"x"]
        assert one.num_keys() == len(one.keys())


def test_a_wait_is_woken_and_a_timeout_explains_itself(coordinator):
    with join(coordinator) as one, join(coordinator) as two:
        threading.Timer(0.2, lambda: two.set("late", "here")).start()
        one.wait(["late"], timeout=PATIENCE)
        with pytest.raises(outlast.OperationTimeout, match="the key is absent") as raised:
            one.get("absent", timeout=0.5)
        assert isinstance(raised.value, TimeoutError)
        with pytest.raises(outlast.OperationTimeout):
            one.queue_pop("empty", timeout=0.2)


HOLDER = """
import outlast, sys
store = outlast.Store(sys.argv[1], secret=sys.argv[2], timeout=30, listen="127.0.0.1:0", preset="local")
print("in", flush=True)
sys.stdin.read()
"""


def test_every_call_ends_in_its_own_time_while_a_member_is_stopped(coordinator):
    """Half of the keys are its own, and the copies of all others; the store's own timeout is much longer."""
    arguments = [sys.executable, "-c", HOLDER, coordinator.address, coordinator.secret]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        store = join(coordinator, timeout=300)
        try:
            assert other.stdout.readline() == "in\n"
            wait_until(lambda: len(store._core.view()[1]) == 2)
            keys = [f"key/{number}" for number in range(20)]
            store.multi_set(keys, ["value"] * len(keys))
            for key in keys:
                store.queue_push(key, "element")
            stop(other)
            calls = {
                "set": lambda: store.set("key/0", "value", timeout=1),
                "get": lambda: [store.get(key, timeout=1) for key in keys],
                "wait": lambda: store.wait(keys, timeout=1),
                "check": lambda: store.check(keys, timeout=1),
                "add": lambda: store.add("number", 1, timeout=1),
                "compare_set": lambda: store.compare_set("key/1", "value", "other", timeout=1),
                "append": lambda: store.append("key/2", "more", timeout=1),
                "delete_key": lambda: store.delete_key("key/3", timeout=1),
                "num_keys": lambda: store.num_keys(timeout=1),
                "multi_get": lambda: store.multi_get(keys, timeout=1),
                "multi_set": lambda: store.multi_set(keys, keys, timeout=1),
                "queue_push": lambda: store.queue_push("key/0", "element", timeout=1),
                "queue_pop": lambda: store.queue_pop("key/1", timeout=1),
                "queue_pop without waiting": lambda: store.queue_pop("key/2", block=False, timeout=1),
                "queue_len": lambda: [store.queue_len(key, timeout=1) for key in keys[3:]],
                "keys": lambda: store.keys("key/", timeout=1),
            }
            # Side by side: a member that is stopped for long is done without, and then calls succeed.
            with ThreadPoolExecutor(len(calls)) as pool:
                under_way = {name: pool.submit(call) for name, call in calls.items()}
                for name, call in under_way.items():
                    assert isinstance(call.exception(PATIENCE), outlast.OperationTimeout), name
        finally:
            other.kill()
            store.leave()


def test_wrong_arguments_are_named(coordinator):
    with join(coordinator) as store:
        store.set("word", "many")
        with pytest.raises(outlast.InvalidArgument, match="not a whole number"):
            store.add("word", 1)
        with pytest.raises(outlast.InvalidArgument, match='a key of 70000 bytes, which begins with "kkk'):
            store.set("k" * 70_000, "")
        with pytest.raises(
            outlast.InvalidArgument, match=r"amount=9223372036854775808: give a whole number from -2\*\*63"
        ):
            store.add("count", 2**63)
        with pytest.raises(TypeError, match=r"amount='1': give a whole number"):
            store.add("count", "1")
        with pytest.raises(outlast.InvalidArgument, match="multi_set with 1 keys and 0 values: give one for each"):
            store.multi_set(["a"], [])
        with pytest.raises(outlast.InvalidArgument, match="multi_set with 1 keys and 2 values"):
            store.multi_set(["a"], ["1", "2"])
        assert not store.check(["count"])
    with pytest.raises(outlast.InvalidArgument, match="left the store"):
        store.get("word")
    for rank, world_size, words in [
        (-1, 2, r"rank=-1: give a whole number from 0 to 1, below world_size"),
        (2, 2, r"rank=2: give a whole number from 0 to 1"),
        (2**70, 2, r"rank=1180591620717411303424: give a whole number from 0 to 1"),
        (0, 0, r"world_size=0: give a whole number of members, at least 1"),
        (0, -1, r"world_size=-1: give a whole number of members, at least 1"),
    ]:
        with pytest.raises(outlast.InvalidArgument, match=words):
            outlast.Store.static("127.0.0.1:1", rank, world_size, secret=outlast.new_secret())


def test_numbers_are_no_bytes(coordinator):
    """`bytes(29500)` is so many zeros, and `bytes(0)` is what stands for "no value"."""
    with join(coordinator) as store:
        calls = {
            r"value=29500: give str or bytes": lambda: store.set("port", 29500),
            r"key=7: give": lambda: store.set(7, "value"),
            r"expected=0: give": lambda: store.compare_set("flag", 0, "1"),
            r"desired=1: give": lambda: store.compare_set("flag", "", 1),
            r"value=None: give": lambda: store.append("port", None),
            r"values=1: give": lambda: store.multi_set({"port": 1}),
            r"keys=3: give": lambda: store.multi_get(["port", 3]),
            r"keys=5: give str or bytes, or several of them": lambda: store.wait(5),
            r"value=\[1, 2, 3\]: give": lambda: store.queue_push("queue", [1, 2, 3]),
        }
        for words, call in calls.items():
            with pytest.raises(TypeError, match=words):
                call()
        assert store.keys() == []
        store.set("array", array.array("B", b"bytes too"))
        assert store.get("array") == b"bytes too"


@pytest.mark.parametrize("ends", ["shutdown", "del"])
def test_one_shuts_it_down_for_all(coordinator, ends):
    one, two = join(coordinator), join(coordinator)
    raised = []

    def wait():
        try:
            two.get("never")
        except outlast.RejoinError as error:
            raised.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    if ends == "shutdown":
        one.shutdown()
    else:
        del one
    waiting.join(PATIENCE)
    assert raised == ["the store was shut down"]


MEMBER = """
import outlast, sys
store = outlast.Store(sys.argv[1], secret=sys.argv[2], timeout=30, listen="127.0.0.1:0", preset="local")
print("in", flush=True)
number = 0
while True:
    store.set(f"{sys.argv[3]}/{number}", "written")
    print(number, flush=True)
    number += 1
"""


def test_a_killed_member_takes_no_acknowledged_write_with_it(coordinator):
    with join(coordinator) as store, join(coordinator) as other:
        for round_ in range(3):
            arguments = [sys.executable, "-c", MEMBER, coordinator.address, coordinator.secret, str(round_)]
            member = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
            lines = [member.stdout.readline() for _ in range(200)]
            member.send_signal(signal.SIGKILL)
            rest = member.stdout.read().splitlines()
            member.wait(PATIENCE)
            acknowledged = [int(line) for line in [*lines[1:], *rest] if line.strip().isdigit()]
            assert len(acknowledged) > 100
            begun = time.monotonic()
            assert all(store.check([f"{round_}/{number}"]) for number in acknowledged)
            assert other.add("rounds", 1) == round_ + 1
            assert time.monotonic() - begun < PATIENCE


def test_static_without_a_coordinator():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    secret, stores = outlast.new_secret(), {}

    def start(rank):
        stores[rank] = outlast.Store.static(address, rank, 3, secret=secret, timeout=PATIENCE, preset="local")

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    stores[1].set("key", "value")
    assert stores[2].get("key") == b"value"
    for rank in (2, 1, 0):
        stores[rank].leave()


def test_static_names_who_never_came():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(outlast.OperationTimeout, match="1 of 2 members never connected: rank 1"):
        outlast.Store.static(address, 0, 2, secret=outlast.new_secret(), timeout=1.0, preset="local")


def test_a_forked_child_may_not_use_it(coordinator):
    with join(coordinator) as store:
        child = os.fork()
        if child == 0:
            try:
                store.get("key", timeout=1.0)
            except outlast.FatalError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        store.set("key", "still here")


STATIC = """
import outlast, sys
store = outlast.Store.static(sys.argv[1], int(sys.argv[2]), 3, secret=sys.argv[3], timeout=60, preset="local")
print("in", flush=True)
sys.stdin.read()
"""


def test_static_goes_on_when_rank_0_was_killed_and_is_back():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    secret = outlast.new_secret()

    def start(rank):
        arguments = [sys.executable, "-c", STATIC, address, str(rank), secret]
        return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    zero, two = start(0), start(2)
    store = outlast.Store.static(address, 1, 3, secret=secret, timeout=60, preset="local")
    try:
        assert [process.stdout.readline() for process in (zero, two)] == ["in\n", "in\n"]
        for number in range(50):
            store.set(f"key/{number}", str(number))
        zero.kill()
        zero.wait(PATIENCE)
        zero = start(0)
        assert zero.stdout.readline() == "in\n"
        assert [store.get(f"key/{number}") for number in range(50)] == [str(number).encode() for number in range(50)]
        assert store.add("counter", 1) == 1
    finally:
        for process in (zero, two):
            process.kill()
            process.wait(PATIENCE)


def ask(coordinator, *words):
    environment = {**os.environ, "OUTLAST_COORDINATOR": coordinator.address, "OUTLAST_SECRET": coordinator.secret}
    command = [sys.executable, "-m", "outlast", "store", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_looks_from_outside_and_changes_no_view(coordinator):
    nobody = ask(coordinator, "keys")
    assert nobody.returncode == 69, nobody
    assert "nobody is in the store" in nobody.stderr
    with join(coordinator) as one, join(coordinator) as two:
        before = wait_until(lambda: view if len((view := one._core.view())[1]) == 2 else None)
        two.set(b"\xff", b"\xfe")
        assert ask(coordinator, "set", "text", "value").returncode == 0
        assert one.get("text") == b"value"
        assert ask(coordinator, "get", "text").stdout == "value\n"
        assert [ask(coordinator, "add", "n", amount).stdout for amount in ("5", "-2")] == ["5\n", "3\n"]
        assert ask(coordinator, "cas", "text", "value", "other").stdout == "other\n"
        assert json.loads(ask(coordinator, "get", "text", "--json").stdout) == {"key": "text", "value": "other"}
        keys = json.loads(ask(coordinator, "keys", "--json").stdout)["keys"]
        assert {"key": "text"} in keys
        assert {"key_hex": "ff"} in keys
        assert ask(coordinator, "del", "text").stdout == "deleted\n"
        assert ask(coordinator, "wait", "n").returncode == 0
        late = ask(coordinator, "get", "absent", "--timeout", "0.5")
        assert late.returncode == 75, late
        assert "the key is absent" in late.stderr
        two.set("word", "many")
        refused = ask(coordinator, "add", "word", "1")
        assert refused.returncode == 1
        assert "not a whole number" in refused.stderr
        assert one._core.view() == before
        status = subprocess.run(
            [sys.executable, "-m", "outlast", "status", "--coordinator", coordinator.address],
            env={**os.environ, "OUTLAST_SECRET": coordinator.secret},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert re.search(r"store: view \d+ of 2 members; \d+ keys", status.stdout), status
