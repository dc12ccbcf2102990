"""Rendezvous between threads and processes, by a coordinator."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import outlast
import pytest
from conftest import wait_until


def node(coordinator, name, least, most=None, **options):
    options.setdefault("last_call_timeout", 0.2)
    return outlast.Rendezvous(
        coordinator.address, min_nodes=least, max_nodes=most, secret=coordinator.secret, host=name, **options
    )


def meet(*nodes):
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda one: one.next_rendezvous(), nodes))


def test_all_nodes_of_a_round_are_told_the_same(coordinator):
    nodes = [node(coordinator, name, 3, address=f"{name}:1") for name in "cab"]
    infos = meet(*nodes)
    assert [info.rank for info in infos] == [2, 0, 1]
    assert {(info.round, info.world_size, info.participants) for info in infos} == {(0, 3, infos[0].participants)}
    assert [one.address for one in infos[0].participants] == ["a:1", "b:1", "c:1"]
    assert infos[0].participants[0].node == nodes[1].name
    events = nodes[0].events()
    assert [event.name for event in events] == ["joining", "joined"]
    for event in events:
        assert (event.run_id, event.host, event.pid) == ("default", "c", os.getpid())
        assert event.endpoint == f"embedded://{coordinator.address}"
        assert nodes[0].name.endswith(f"_{event.local_id}")
    for one in nodes:
        assert one.shutdown()
        assert one.shutdown(), "leaving twice is no error"


def test_who_waits_and_who_is_lost_is_a_reason_to_meet_again(coordinator):
    a, b = node(coordinator, "a", 1, 3), node(coordinator, "b", 1, 3)
    meet(a, b)
    assert a.num_nodes_waiting() == 0
    b.close()
    wait_until(lambda: a.num_nodes_waiting() == 1)
    assert meet(a)[0].world_size == 1
    c = node(coordinator, "c", 1, 3)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(c.next_rendezvous)
        wait_until(lambda: a.num_nodes_waiting() == 1)
        assert a.next_rendezvous().world_size == 2
        assert waits.result().rank == 1


def test_closing_is_for_all_and_errors_say_what_to_do(coordinator):
    a, b = node(coordinator, "a", 1), node(coordinator, "b", 1)
    meet(a)
    assert not b.is_closed()
    a.set_closed()
    wait_until(b.is_closed)
    with pytest.raises(outlast.RendezvousClosed, match="new run id") as raised:
        b.next_rendezvous()
    assert isinstance(raised.value, outlast.FatalError)
    other = node(coordinator, "a", 2, run_id="other", join_timeout=0.3)
    with pytest.raises(outlast.OperationTimeout, match="2 to 2 can take part") as late:
        other.next_rendezvous()
    assert isinstance(late.value, outlast.RetryError)
    stranger = outlast.Rendezvous(coordinator.address, min_nodes=1, secret=outlast.new_secret())
    with pytest.raises(outlast.Unauthorized):
        stranger.next_rendezvous()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"backend": "zookeeper://a:1"}, "embedded://host:port"),
        ({"backend": "nowhere"}, "write host:port"),
        ({"min_nodes": 3, "max_nodes": 2}, "min_nodes is 3"),
        ({"min_nodes": 0}, "min_nodes is 0"),
        ({"join_timeout": -1.0}, "join_timeout"),
        ({"run_id": "a/b"}, "a/b"),
        ({"address": "a\nb"}, "address"),
        ({"backend": "etcd:https://a:1"}, "--etcd-ca"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments, text):
    given = {"backend": "127.0.0.1:1", "min_nodes": 1, "secret": outlast.new_secret(), **arguments}
    with pytest.raises(outlast.InvalidArgument, match=text):
        outlast.Rendezvous(**given)


def test_ctrl_c_ends_a_wait_and_the_node_is_out(coordinator):
    alone, timer = node(coordinator, "a", 2), threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        alone.next_rendezvous()
    assert time.monotonic() - began < 20
    wait_until(lambda: alone.num_nodes() == 0)


def test_a_forked_child_is_refused(coordinator):
    one = node(coordinator, "a", 1)
    one.next_rendezvous()
    child = os.fork()
    if child == 0:
        try:
            one.num_nodes_waiting()
        except outlast.FatalError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert one.num_nodes_waiting() == 0


def test_a_killed_process_is_missed(coordinator):
    program = (
        "import outlast, sys, time\n"
        "node = outlast.Rendezvous(sys.argv[1], min_nodes=2, host='b', keep_alive_interval=0.2)\n"
        "print(node.next_rendezvous().rank, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "OUTLAST_SECRET": coordinator.secret}
    command = [sys.executable, "-c", program, coordinator.address]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as other:
        one = node(coordinator, "a", 2, keep_alive_interval=0.2)
        assert one.next_rendezvous().rank == 0
        assert other.stdout.readline() == b"1\n"
        other.kill()
        wait_until(lambda: one.num_nodes_waiting() == 1)


@pytest.mark.parametrize("scheme", ["embedded", "store"])
def test_every_round_has_a_store_of_its_own(coordinator, scheme):
    def one_node(name):
        return outlast.Rendezvous(
            f"{scheme}://{coordinator.address}",
            min_nodes=2,
            secret=coordinator.secret,
            host=name,
            last_call_timeout=0.2,
        )

    a, b = one_node("a"), one_node("b")
    first = meet(a, b)
    stores = [info.store for info in first]
    assert first[0].store is stores[0], "joined once"
    stores[0].set("key", f"of round {first[0].round}")
    assert stores[1].get("key") == b"of round 0"
    second = meet(a, b)
    assert second[0].round > first[0].round
    assert not second[0].store.check("key"), "no key of another round"
    assert second[1].store.add("arrived", 1) == 1
    with pytest.raises(outlast.InvalidArgument, match="round 0 is over"):
        first[0].store.get("key")
    with pytest.raises(outlast.InvalidArgument, match="left the store"):
        stores[0].get("key")
    assert [a.shutdown(), b.shutdown()] == [True, True]


@pytest.mark.parametrize("way", ["leave", "shutdown", "close", "next_rendezvous"])
def test_a_store_that_takes_long_to_join_holds_nobody_up(coordinator, monkeypatch, way):
    """One thread asks for the store of a round; another one goes on meanwhile, and the store comes too late."""
    begun, goes_on, joined = threading.Event(), threading.Event(), []

    def slow(*arguments, **options):
        begun.set()
        assert goes_on.wait(60)
        joined.append(outlast.Store(*arguments, **options))
        return joined[0]

    one = node(coordinator, "a", 1)
    info = one.next_rendezvous()
    monkeypatch.setattr("outlast.rendezvous.Store", slow)
    with ThreadPoolExecutor(2) as pool:
        store = pool.submit(lambda: info.store)
        assert begun.wait(60)
        other = pool.submit(getattr(one, way))
        try:
            other.result(20)
        finally:
            goes_on.set()
        with pytest.raises(outlast.InvalidArgument, match="round 0 is over"):
            store.result(60)
    with pytest.raises(outlast.InvalidArgument, match="left the store"):
        joined[0].get("key")
    one.shutdown()


def test_threads_that_ask_for_a_rounds_store_at_once_get_one(coordinator):
    one = node(coordinator, "a", 1)
    info = one.next_rendezvous()
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: info.store, range(4)))
    assert len({id(store) for store in stores}) == 1
    stores[0].set("key", "value")
    one.shutdown()


def test_without_a_coordinator_there_is_no_store_of_a_round():
    from outlast.rendezvous import _coordinator

    assert (
        _coordinator("embedded://a:1,b:2/") == _coordinator("store://a:1,b:2") == _coordinator("a:1,b:2") == "a:1,b:2"
    )
    with pytest.raises(outlast.InvalidArgument, match=r"outlast\.Store\.static"):
        _coordinator("etcd://a:1")


def test_nodes_meet_in_a_store_that_they_keep_themselves(coordinator):
    """A process that took part is killed: what it helped to keep is still there, and it is missed."""
    code = """
        import outlast, sys
        node = outlast.Rendezvous(
            sys.argv[1], min_nodes=2, max_nodes=3, host="b", last_call_timeout=0.5,
            keep_alive_interval=0.3, keep_alive_max_attempt=3, secret=sys.argv[2],
        )
        print(node.next_rendezvous().world_size, flush=True)
        sys.stdin.read()
    """
    backend = f"store://{coordinator.address}"
    options = {"last_call_timeout": 0.5, "keep_alive_interval": 0.3, "keep_alive_max_attempt": 3}
    a = outlast.Rendezvous(backend, min_nodes=2, max_nodes=3, host="a", secret=coordinator.secret, **options)
    command = [sys.executable, "-c", textwrap.dedent(code), backend, coordinator.secret]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as b:
        try:
            assert a.next_rendezvous().world_size == 2
        finally:
            b.kill()
    wait_until(lambda: a.num_nodes_waiting() == 1)
    assert not a.is_closed()
    a.shutdown()
