"""`outlast.torch.Store` as torch uses it: from Python and C++, through prefixes, while a training loses a process."""

import gc
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import outlast
import pytest
from conftest import stop, wait_until

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import outlast.torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

PATIENCE = 60.0


@pytest.fixture
def join(coordinator):
    """Makes members of one store that have left when the test is over."""
    made = []

    def make(**options):
        options = {"timeout": PATIENCE, "listen": "127.0.0.1:0", "preset": "local"} | options
        made.append(outlast.torch.Store(coordinator.address, secret=coordinator.secret, **options))
        return made[-1]

    yield make
    for store in made:
        store.leave()


@pytest.mark.parametrize("prefixes", [(), ("one",), ("one", "two")])
def test_every_operation_also_by_way_of_c_plus_plus(join, prefixes):
    member, store = join(), join()
    for prefix in prefixes:
        store = dist.PrefixStore(prefix, store)
    before = store.num_keys()
    store.set("text", "value")
    assert store.get("text") == b"value"
    store.set("bytes", b"\x00\xff")
    assert store.get("bytes") == b"\x00\xff"
    store.set("empty", "")
    assert store.get("empty") == b""
    assert [store.add("count", 2), store.add("count", -5)] == [2, -3]
    assert [store.check(["text", "count"]), store.check(["text", "nothing"])] == [True, False]
    assert store.compare_set("text", "other", "changed") == b"value"
    assert store.compare_set("text", "value", "changed") == b"changed"
    assert store.compare_set("fresh", "", "first") == b"first"
    assert store.compare_set("missing", "expected", "desired") == b"expected", "as torch's own stores"
    assert store.has_extended_api()
    store.append("text", "!")
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.multi_get(["text", "a", "b"]) == [b"changed!", b"1", b"2"]
    store.wait(["a", "b"])
    store.wait(["a"], timedelta(seconds=1))
    assert store.num_keys() == before + 7
    assert [store.delete_key("a"), store.delete_key("a")] == [True, False]
    store.barrier("all here", 1)
    assert "/".join([*prefixes, "text"]) in member.list_keys()


def test_a_prefix_store_refuses_queues_and_lists_and_does_nothing(join):
    member = join()
    through = dist.PrefixStore("p", join())
    calls = {
        "queue_push": lambda: through.queue_push("line", "e"),
        "queue_pop": lambda: through.queue_pop("line", False),
        "queue_len": lambda: through.queue_len("line"),
        "list_keys": lambda: through.list_keys(),
    }
    for call in calls.values():
        # Torch's refusal: NotImplementedError is a RuntimeError.
        with pytest.raises(RuntimeError):
            call()
    assert [member.queue_len(queue) for queue in ("line", "p/line")] == [0, 0]


def test_the_same_as_torchs_own_store_where_both_can_be_asked(join):
    """Whatever a HashStore answers, ours answers, by type and value."""
    ours, theirs = join(), dist.HashStore()
    calls = [
        ("set", "k", "v"),
        ("get", "k"),
        ("add", "n", 7),
        ("get", "n"),
        ("check", ["k", "n"]),
        ("check", ["absent"]),
        ("compare_set", "k", "v", "w"),
        ("compare_set", "k", "v", "x"),
        ("compare_set", "none", "", "x"),
        ("append", "k", "z"),
        ("get", "k"),
        ("multi_get", ["k", "n"]),
        ("multi_set", ["p", "q"], ["1", "2"]),
        ("num_keys",),
        ("delete_key", "p"),
        ("delete_key", "p"),
        ("queue_push", "line", "e"),
        ("queue_len", "line"),
        ("queue_pop", "line"),
        ("has_extended_api",),
    ]
    for name, *arguments in calls:
        answers = [getattr(store, name)(*arguments) for store in (ours, theirs)]
        assert answers[0] == answers[1], (name, arguments)
        assert type(answers[0]) is type(answers[1]), (name, arguments)


def test_what_waits_raises_what_torch_raises_in_time(join):
    store = join()
    through = dist.PrefixStore("p", store)
    for call in (lambda: through.wait(["absent"], timedelta(seconds=0.5)), lambda: through.get("absent")):
        through.set_timeout(timedelta(seconds=0.5))
        began = time.monotonic()
        with pytest.raises(dist.DistStoreError, match="absent") as raised:
            call()
        assert time.monotonic() - began < 10
        assert isinstance(raised.value.__cause__, outlast.OperationTimeout)
    with pytest.raises(dist.DistStoreError, match="absent"):
        store.multi_get(["absent"])
    with pytest.raises(dist.DistStoreError):
        store.queue_pop("empty")
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("empty", False)
    assert store.timeout == timedelta(seconds=0.5)


def test_a_timeout_of_years_is_cut(join):
    """Torch takes it, and some of its callers mean "as long as it takes" by it."""
    years = timedelta(days=3650)
    store = join(timeout=years)
    through = dist.PrefixStore("p", store)
    for one in (store, through):
        one.set_timeout(years)
        one.set("key", "value")
        assert one.get("key") == b"value"
        one.wait(["key"], years)
    store.wait(["key"], timedelta.max)


def test_listed_keys_can_be_asked_for(join):
    store = join()
    store.set(b"\xff/\xc3\xa9", "value")
    (key,) = store.list_keys()
    assert store.get(key) == b"value"
    assert store.check([key])
    assert store.delete_key(key)
    assert store.list_keys() == []


def test_numbers_are_refused_as_by_torchs_own_stores(join):
    calls = [("set", "port", 29500), ("compare_set", "flag", 0, 1), ("get", 7), ("append", "port", 1)]
    for store in (join(), dist.HashStore()):
        for name, *arguments in calls:
            with pytest.raises(TypeError):
                getattr(store, name)(*arguments)
        assert not store.check(["port"])


HOLDER = """
import sys, outlast
store = outlast.Store(timeout=60, listen="127.0.0.1:0", preset="local")
print("READY", flush=True)
sys.stdin.read()
"""


def test_set_timeout_is_heeded_by_every_call_while_a_member_is_stopped(join, program):
    """Half of the keys are its own, and the copies of all others; the member's own timeout is much longer."""
    other = program(HOLDER)
    assert other.stdout.readline() == "READY\n"
    store = join(timeout=300)
    wait_until(lambda: len(store.member._core.view()[1]) == 2)
    keys = [f"key/{number}" for number in range(20)]
    store.multi_set(keys, ["value"] * len(keys))
    for key in keys:
        store.queue_push(key, "element")
    stop(other)
    through = dist.PrefixStore("key", store)
    through.set_timeout(timedelta(seconds=2))
    calls = {
        "set": lambda: store.set("key/0", "value"),
        "set by way of C++": lambda: through.set("1", "value"),
        "get": lambda: [store.get(key) for key in keys],
        "wait": lambda: store.wait(keys),
        "check": lambda: store.check(keys),
        "add": lambda: store.add("number", 1),
        "compare_set": lambda: store.compare_set("key/2", "value", "other"),
        "delete_key": lambda: store.delete_key("key/3"),
        "num_keys": lambda: store.num_keys(),
        "list_keys": lambda: store.list_keys(),
        "append": lambda: store.append("key/4", "more"),
        "multi_get": lambda: store.multi_get(keys),
        "multi_set": lambda: store.multi_set(keys, keys),
        "queue_push": lambda: store.queue_push("key/0", "element"),
        "queue_pop": lambda: store.queue_pop("key/1"),
        "queue_pop without waiting": lambda: store.queue_pop("key/2", False),
        "queue_len": lambda: [store.queue_len(key) for key in keys[3:]],
    }
    # Side by side: a member that is stopped for long is done without, and then calls succeed.
    with ThreadPoolExecutor(len(calls)) as pool:
        under_way = {name: pool.submit(call) for name, call in calls.items()}
        for name, call in under_way.items():
            error = call.exception(PATIENCE)
            assert isinstance(error, dist.DistStoreError), (name, error)
            assert isinstance(error.__cause__, outlast.OperationTimeout), (name, error)


def test_a_wait_ends_when_another_member_writes(join):
    one, two = dist.PrefixStore("p", join()), dist.PrefixStore("p", join())
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(one.get, "key")
        time.sleep(0.05)
        assert not waits.done()
        two.set("key", "value")
        assert waits.result(PATIENCE) == b"value"


def test_what_only_c_plus_plus_holds_stays_usable(join):
    through = dist.PrefixStore("p", join())
    through.set("key", "value")
    clone = through.clone()
    del through
    gc.collect()
    assert clone.get("key") == b"value"
    assert dist.PrefixStore("q", clone).clone().add("n", 1) == 1


def test_after_leaving_calls_say_so_and_the_store_goes_on(join):
    one, two = join(), join()
    one.set("key", "value")
    clone = one.clone()
    one.leave()
    one.leave()
    with pytest.raises(dist.DistStoreError, match="left the store"):
        clone.get("key")
    assert two.get("key") == b"value"
    two.shutdown()
    with pytest.raises(dist.DistStoreError, match="shut down"):
        two.get("key")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_static_store_needs_no_coordinator():
    address, secret = f"127.0.0.1:{free_port()}", outlast.new_secret()

    def play(rank):
        store = outlast.torch.Store.static(
            address, rank, 3, secret=secret, timeout=PATIENCE, listen="127.0.0.1:0", preset="local"
        )
        store.set(f"rank-{rank}", str(rank))
        values = store.multi_get([f"rank-{other}" for other in range(3)])
        store.barrier("done", 3)
        return store, values

    with ThreadPoolExecutor(3) as pool:
        played = list(pool.map(play, range(3)))
    assert [values for _, values in played] == [[b"0", b"1", b"2"]] * 3
    # Rank 0 decides on views: it goes last.
    for store, _ in reversed(played):
        store.leave()


# A member that only keeps keys. In a static store it is rank 0, at whose address the others found each other.
BOOTSTRAP = """
import sys, outlast
kind, address, members = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = dict(timeout=120, listen="127.0.0.1:0", preset="local")
if kind == "static":
    store = outlast.Store.static(address, 0, members, **options)
else:
    store = outlast.Store(**options)
store.set("who", "the bootstrap member")
print("READY", flush=True)
sys.stdin.read()
"""

# Trains until its loss is small. After its first steps it waits until the bootstrap member is gone.
TRAINER = """
import sys, torch, torch.distributed as dist, outlast.torch
from torch.nn.parallel import DistributedDataParallel
kind, address, members, rank = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
world, options = members - 1, dict(timeout=120, listen="127.0.0.1:0", preset="local")
if kind == "static":
    store = outlast.torch.Store.static(address, rank + 1, members, **options)
else:
    store = outlast.torch.Store(**options)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
assert store.get("who") == b"the bootstrap member"
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

def step():
    x = torch.rand(32, 4)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss)
    return loss.item() / world

first = [step() for _ in range(3)][0]
print("TRAINING", flush=True)
sys.stdin.readline()
last = [step() for _ in range(100)][-1]
if kind == "run":
    # Another group is bootstrapped on what the dead one helped to keep.
    group = dist.new_group(backend="gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones, group=group)
    assert ones.item() == world
    assert store.get("who") == b"the bootstrap member"
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
print(f"DONE {first > 10 * last} {weights.numpy().tobytes().hex()}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["run", "static"])
def test_gloo_trains_on_though_the_bootstrap_member_is_killed(program, kind):
    world = 2
    arguments = [kind, f"127.0.0.1:{free_port()}", world + 1]
    bootstrap = program(BOOTSTRAP, *arguments)
    if kind == "run":
        assert bootstrap.stdout.readline() == "READY\n", bootstrap.stderr.read()
    trainers = [program(TRAINER, *arguments, rank, OMP_NUM_THREADS="1") for rank in range(world)]
    for trainer in trainers:
        assert trainer.stdout.readline() == "TRAINING\n", trainer.stderr.read()
    bootstrap.kill()
    bootstrap.wait()
    for trainer in trainers:
        trainer.stdin.write("go on\n")
        trainer.stdin.flush()
    ends = []
    for trainer in trainers:
        out, errors = trainer.communicate(timeout=2 * PATIENCE)
        assert trainer.returncode == 0, errors
        ends.append(re.search(r"^DONE (\w+) (\w+)$", out, re.MULTILINE).groups())
    assert len(set(ends)) == 1, "all hold the same weights"
    assert ends[0][0] == "True", "and they learned something"


def test_threads_of_one_process_share_a_store(join):
    store = dist.PrefixStore("p", join())
    join()
    failed = []

    def work(number):
        try:
            for turn in range(50):
                store.set(f"{number}/{turn}", str(turn))
                assert store.get(f"{number}/{turn}") == str(turn).encode()
                store.add("all", 1)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: not any(thread.is_alive() for thread in threads), PATIENCE)
    assert not failed
    assert store.add("all", 0) == 400
