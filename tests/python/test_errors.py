"""Errors: each says what to do next, and carries what a program needs for it."""

import copy
import pickle
import re
import signal
import socket
import threading
import time

import numpy as np
import outlast
import pytest
from conftest import stop, wait_until

ONES = np.ones(3, np.float32)


def test_the_tree():
    tree = {
        outlast.RetryError: [
            outlast.PeersLost,
            outlast.TooFewPeers,
            outlast.TopologyFailed,
            outlast.OperationTimeout,
            outlast.Cancelled,
        ],
        outlast.RejoinError: [outlast.Kicked, outlast.CoordinatorLost],
        outlast.FatalError: [outlast.Mismatch, outlast.InvalidArgument, outlast.Unauthorized],
    }
    for parent, children in tree.items():
        assert issubclass(parent, outlast.OutlastError)
        assert all(issubclass(child, parent) for child in children)
    assert issubclass(outlast.OperationTimeout, TimeoutError)
    assert issubclass(outlast.InvalidArgument, ValueError)
    assert outlast.RetryError("x").torn is False


def test_errors_and_records_survive_pickling():
    lost = outlast.PeersLost("gone", {"ab": "killed"})
    late = outlast.OperationTimeout("late", [("ab", "p1", "alive", "barrier", 1.5)])
    other = outlast.Mismatch("differs", ("this", "that"))
    again = [pickle.loads(pickle.dumps(error)) for error in (lost, late, other)]
    assert again[0].lost == {"ab": "killed"}
    assert again[1].waiting_for[0].name == "p1"
    assert again[1].waiting_for[0].age == 1.5
    assert (again[2].ours, again[2].others) == ("this", "that")
    receipt = outlast.Receipt(1, 2, 3, 0, 2, ("a" * 32, "b" * 32), (), 1, 0, "ring", 10, 10, 0.1)
    assert pickle.loads(pickle.dumps(receipt)) == receipt
    assert "contributors=(aaaaaaaa, bbbbbbbb)" in repr(receipt)
    with pytest.raises(AttributeError):
        receipt.epoch = 5
    peer = outlast.Peer("ab", 0, 0, "me", "127.0.0.1:1", "alive")
    assert pickle.loads(pickle.dumps(peer)) == peer


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda comm: comm.connect(min_world=0), "min_world=0"),
        (lambda comm: comm.connect(min_world=-1), "min_world=-1"),
        (lambda comm: comm.connect(timeout=0), "timeout=0"),
        (lambda comm: comm.connect(timeout=-1.5), "timeout=-1.5"),
        (
            lambda comm: comm.connect(timeout=float("inf")),
            "timeout=inf: no call waits forever; give a number of seconds up to 100000000",
        ),
        (lambda comm: comm.connect(timeout=float("nan")), "timeout=NaN"),
        (lambda comm: comm.all_reduce(ONES.copy(), op="median"), "median.*sum"),
        (lambda comm: comm.all_reduce(ONES.copy(), tag=-1), "tag=-1"),
        (lambda comm: comm.all_reduce(ONES.copy(), min_world=0), "min_world=0"),
        (lambda comm: comm.all_reduce(ONES.copy(), timeout=0), "timeout=0"),
        (lambda comm: comm.all_reduce(ONES.copy(), quantize="int7"), "int7.*int8"),
        (lambda comm: comm.all_reduce(ONES.copy(), op="band"), "band|bits"),
        (lambda comm: comm.all_reduce(ONES.copy()), "not connected"),
        (lambda comm: comm.barrier(everyone=True, scope=[0]), "everyone=True with a scope"),
        (lambda comm: comm.connect(prefetch={"w": 1}), "prefetch=dict.*later version"),
        (lambda comm: comm.all_reduce(ONES.copy(), tag=2**63), "tag=9223372036854775808: give.*2\\*\\*63"),
        (lambda comm: comm.all_reduce(ONES.copy(), min_world=2**70), "min_world=1180591620717411303424: give"),
        (lambda comm: comm.update_topology(), "not connected"),
    ],
)
def test_arguments_that_make_no_sense(peer, use, words):
    with pytest.raises(outlast.InvalidArgument, match=words):
        use(peer())


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda comm: comm.connect("two"), "'str' object cannot be interpreted as an integer"),
        (lambda comm: comm.connect(timeout="soon"), "must be real number, not str"),
        (lambda comm: comm.all_reduce(ONES.copy(), op=3), "op=3: give the name of a reduction"),
        (lambda comm: comm.all_reduce(ONES.copy(), op=None), "op=None: give"),
        (lambda comm: comm.all_reduce(ONES.copy(), tag="zero"), "tag='zero': give a whole number"),
        (lambda comm: comm.all_reduce(ONES.copy(), tag=1.5), "tag=1.5"),
        (lambda comm: comm.all_reduce(ONES.copy(), quantize=8), 'quantize=8: give "int8"'),
        (lambda comm: comm.all_reduce(ONES.copy(), retry="no"), "retry='no': give True or False"),
        (lambda comm: comm.all_reduce(ONES.copy(), min_world=1.0), "min_world=1.0: give"),
        (lambda comm: comm.all_reduce(ONES.copy(), timeout="4"), "timeout='4': give a number of seconds"),
        (lambda comm: comm.all_reduce(ONES.copy(), scope=5), "scope=5: give a list"),
        (lambda comm: comm.all_reduce(ONES.copy(), scope="p0"), "scope='p0': give a list"),
        (lambda comm: comm.all_reduce(ONES.copy(), hash="x" * 1000), "hash='x{59}..: give"),
        (lambda comm: comm.all_reduce_many(5), "int"),
        (lambda comm: comm.broadcast(ONES.copy(), 1.5), "1.5: name a member by its id"),
        (lambda comm: comm.all_reduce(), "x"),
        (lambda comm: comm.all_reduce(ONES.copy(), unknown=1), "unknown"),
        (
            lambda comm: comm.all_gather(ONES.copy(), ONES.copy(), colour=1),
            "all_gather.* unexpected keyword argument 'colour'",
        ),
        (
            lambda comm: comm.all_gather(ONES.copy(), ONES.copy(), retry=True),
            "all_gather.* unexpected keyword argument 'retry'",
        ),
        (lambda comm: comm.connect(stop=5), "stop=5: give a threading.Event, or a function"),
        (lambda comm: comm.sync_state({"w": ONES.copy()}), "state=dict: give an outlast.SharedState"),
        (lambda comm: outlast.Elastic(None, {"w": ONES.copy()}), "comm=NoneType: give an outlast.Communicator"),
        (lambda comm: outlast.Communicator(29400), "coordinator=29400: give its address as text"),
        (lambda comm: outlast.Coordinator(29400), "listen=29400: give host:port as text"),
    ],
)
def test_arguments_of_the_wrong_type(peer, use, words):
    with pytest.raises(TypeError, match=words):
        use(peer())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"coordinator": None}, "OUTLAST_COORDINATOR"),
        ({"preset": "moon"}, "moon.*local"),
        ({"run_id": "a b"}, "run_id.*contains"),
        ({"run_id": ""}, "run_id.*bytes"),
        ({"secret": "hunter2"}, "secret.*does not start"),
        ({"secret": None}, "pass secret, or set OUTLAST_SECRET"),
        ({"dead_after": 0}, "dead_after=0"),
        ({"control_lost_after": 1.0}, "control_lost_after of 1s: a coordinator that restarts has .* 5s"),
        ({"listen": "nowhere"}, "listen.*host:port"),
        ({"advertise": "nowhere"}, "advertise.*host:port"),
        ({"stall_budget": 0}, "stall_budget=0"),
        ({"timeout": -1}, "timeout=-1"),
        ({"colour": "blue"}, "colour"),
        ({"site": "x" * 65}, "site.*65 bytes, at most 64"),
        ({"group": -1}, "group=-1"),
        ({"group": 2**32}, "group=4294967296"),
        ({"coordinator": "localhost"}, 'coordinator="localhost": write host:port'),
        ({"coordinator": "localhost:29400,"}, "host:port"),
        ({"coordinator": "etcd:a:2379?colour=red"}, "colour.*use ca, cert, key or user"),
        ({"coordinator": "localhost:port"}, "host:port"),
        ({"name": "x" * 1000}, "name is 1000, the limit is"),
    ],
)
def test_settings_that_make_no_sense(coordinator, options, words):
    settings = {"coordinator": coordinator.address, "secret": coordinator.secret} | options
    with pytest.raises(outlast.InvalidArgument, match=words):
        outlast.Communicator(**settings)


@pytest.mark.parametrize(
    "make",
    [
        lambda: outlast.Communicator("127.0.0.1:1"),
        lambda: outlast.Store("127.0.0.1:1", timeout=1),
        lambda: outlast.Store.static("127.0.0.1:1", 0, 1, timeout=1),
        lambda: outlast.Rendezvous("127.0.0.1:1"),
        lambda: outlast.Membership("127.0.0.1:0"),
    ],
)
def test_whoever_has_no_secret_is_told_where_to_put_one_in_the_words_of_python(make):
    words = "pass (it|secret), or set OUTLAST_SECRET or OUTLAST_SECRET_FILE"
    with pytest.raises(outlast.InvalidArgument, match=words) as caught:
        make()
    assert "builder" not in str(caught.value)


@pytest.mark.parametrize("dump", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_lives_in_one_process_is_neither_pickled_nor_copied(coordinator, peer, dump):
    comm = peer()
    comm.connect()
    handle = comm.all_reduce_async(ONES.copy())
    with outlast.Membership("127.0.0.1:0", preset="local", secret=coordinator.secret) as member:
        for thing in (comm, handle, coordinator, member):
            with pytest.raises(TypeError, match=f"outlast.{type(thing).__name__} belongs.*make another one"):
                dump(thing)
    handle.wait()


def test_a_barrier_for_everyone_is_one_for_the_group_if_there_is_no_other(peer):
    comm = peer(group=1)
    comm.connect()
    assert comm.barrier(everyone=True).contributors == (comm.peer_id,)
    other = peer(group=2)
    joined = threading.Thread(target=other.connect)
    joined.start()
    wait_until(lambda: comm.update_topology() and comm.global_world_size == 2)
    joined.join()
    with pytest.raises(outlast.InvalidArgument, match="everyone=True: 1 of the run's 2 members are in other groups"):
        comm.barrier(everyone=True)
    comm.barrier()


def test_the_environment_gives_defaults(coordinator, monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(coordinator.secret)
    secret.chmod(0o600)
    monkeypatch.setenv("OUTLAST_COORDINATOR", coordinator.address)
    monkeypatch.setenv("OUTLAST_SECRET_FILE", str(secret))
    monkeypatch.setenv("OUTLAST_RUN_ID", "by-environment")
    monkeypatch.setenv("OUTLAST_GROUP", "3")
    with outlast.Communicator(preset="local") as comm:
        assert comm.peers()[0].group == 3
        assert coordinator.status("by-environment")["world_size"] == 1
        assert coordinator.status()["world_size"] == 1
    monkeypatch.setenv("OUTLAST_SECRET", coordinator.secret)
    monkeypatch.setenv("OUTLAST_GROUP", "")
    with pytest.raises(outlast.InvalidArgument, match="both"):
        outlast.Communicator()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OUTLAST_RUN_ID", "a run"),
        ("OUTLAST_GROUP", "three"),
        ("OUTLAST_GROUP", "-1"),
        ("OUTLAST_PORT", "http"),
        ("OUTLAST_PORT", "65536"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named_with_its_value_and_what_to_do(
    coordinator, monkeypatch, variable, value
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(outlast.InvalidArgument, match=f'^{variable}="{value}": .* unset it'):
        outlast.Communicator(coordinator.address, secret=coordinator.secret)
    # Who says it anew is not asked about the variable.
    given = {"run_id": "a", "group": 1, "listen": "127.0.0.1:0"}
    outlast.Communicator(coordinator.address, secret=coordinator.secret, **given).close()


def test_who_never_answered_is_not_said_to_have_registered_us():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        comm = outlast.Communicator(address, secret=outlast.new_secret(), preset="local")
        with pytest.raises(
            outlast.OperationTimeout, match=f"no coordinator was reached within 0.5 s: {address}"
        ) as raised:
            comm.connect(timeout=0.5)
        assert "registered with" not in str(raised.value)
        comm.close()


def test_another_secret_is_unauthorized_at_once(coordinator):
    comm = outlast.Communicator(coordinator.address, secret=outlast.new_secret(), preset="local")
    began = time.monotonic()
    with pytest.raises(outlast.Unauthorized, match="same secret and run id"):
        comm.connect(timeout=30)
    assert time.monotonic() - began < 5
    comm.close()


def test_an_etcd_with_its_settings_is_a_place_to_look_for_coordinators():
    comm = outlast.Communicator("etcd:127.0.0.1:1?cluster=mine", secret=outlast.new_secret(), preset="local")
    words = "within 0.5 s: etcd:127.0.0.1:1.cluster=mine: etcd at 127.0.0.1:1 cannot be reached: .*refused"
    with pytest.raises(outlast.OperationTimeout, match=words):
        comm.connect(timeout=0.5)
    comm.close()


def test_no_coordinator_is_a_timeout_with_its_cause():
    comm = outlast.Communicator("127.0.0.1:1", secret=outlast.new_secret(), preset="local")
    with pytest.raises(outlast.OperationTimeout, match="127.0.0.1:1.*refused"):
        comm.connect(timeout=0.5)
    comm.close()


def test_nobody_lets_a_newcomer_in(peer):
    first, second = peer(name="first"), peer()
    first.connect()
    errors = []

    def join():
        try:
            second.connect(timeout=0.5)
        except outlast.OutlastError as error:
            errors.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    thread.join(10)
    assert isinstance(errors[0], outlast.OperationTimeout)
    message = str(errors[0])
    assert re.search(
        r"registered with the coordinator 127.0.0.1:\d+ and not admitted within 0.5 s: first must", message
    )
    assert "first must call update_topology to let it in; first last called" in message


def test_a_newcomer_is_told_how_many_are_missing(peer):
    with pytest.raises(outlast.OperationTimeout, match="within 0.3 s: 1 of 2 members are here: start the others"):
        peer().connect(min_world=2, timeout=0.3)


def test_a_vote_that_too_few_came_for_does_not_blame_the_coordinator(peer):
    comm = peer()
    comm.connect()
    words = r"update_topology\(min_world=3\) within 0.3 s: 1 of 3 members are here: start the others"
    with pytest.raises(outlast.OperationTimeout, match=words) as caught:
        comm.update_topology(min_world=3, timeout=0.3)
    assert caught.value.waiting_for == []
    comm.barrier()


def test_calls_under_different_tags_name_the_tags_and_nobody_waits_for_itself(together):
    both_are_done = threading.Barrier(2)

    def work(number, comm):
        for tag in (4, 9) if number == 0 else (9, 4):
            with pytest.raises(outlast.OperationTimeout) as caught:
                comm.all_reduce(ONES.copy(), tag=tag, timeout=1.0)
            message = str(caught.value)
            assert f"under tag {tag} within 1 s: " in message
            assert all(waiting.name != f"p{number}" for waiting in caught.value.waiting_for), message
            if caught.value.waiting_for:
                assert "last called all_reduce(f32[3], sum" in message
            else:
                assert "the others waited for this program" in message
            # Whoever began a moment later is still in its call, and the next one here would meet it.
            both_are_done.wait(30)

    together(2, work)


def test_a_name_that_does_not_resolve_yet_is_tried_again_inside_connect():
    comm = outlast.Communicator("coordinator.invalid:29400", secret=outlast.new_secret(), preset="local")
    words = "no coordinator was reached within 0.5 s: coordinator.invalid:29400: "
    with pytest.raises(outlast.OperationTimeout, match=words):
        comm.connect(timeout=0.5)
    comm.close()


@pytest.mark.parametrize("what", ["rank", "world_size", "global_world_size", "epoch", "peers"])
def test_who_is_in_no_run_has_no_place_in_it(peer, what):
    comm = peer()

    def look():
        value = getattr(comm, what)
        return value() if callable(value) else value

    with pytest.raises(outlast.InvalidArgument, match="not connected"):
        look()
    comm.connect()
    look()
    comm.leave()
    with pytest.raises(outlast.InvalidArgument, match="left"):
        look()
    comm.connect()
    look()
    comm.close()
    with pytest.raises(outlast.InvalidArgument, match="closed"):
        look()


def test_a_list_with_a_gap_says_where(peer):
    comm = peer()
    with pytest.raises(outlast.InvalidArgument, match=r"x\[2\] is None: a parameter without a gradient\?"):
        comm.all_reduce_many([ONES.copy(), ONES.copy(), None])
    with pytest.raises(outlast.InvalidArgument, match=r"x\[1\]: avg of bool has no meaning"):
        comm.all_reduce_many([ONES.copy(), np.ones(3, bool)], op="avg")
    with pytest.raises(outlast.InvalidArgument, match="x is None"):
        comm.all_reduce(None)


def test_the_errors_of_other_libraries_are_cut_to_their_first_line(peer):
    class Chatty:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            raise RuntimeError("no gradients, please\n" + "frame #1: somewhere in C++\n" * 100)

    with pytest.raises(outlast.InvalidArgument) as caught:
        peer().all_reduce(Chatty())
    assert "no gradients, please" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_help_shows_what_a_call_may_be_told():
    import inspect

    for name in ("all_reduce", "all_reduce_many", "all_gather", "broadcast", "barrier", "all_to_all"):
        for method in (getattr(outlast.Communicator, name), getattr(outlast.Communicator, f"{name}_async")):
            told = inspect.signature(method).parameters
            assert {"tag", "timeout", "min_world", "scope"} <= set(told), method
            assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in told.values())


def test_a_timeout_names_who_was_waited_for(together):
    def work(number, comm):
        if number == 0:
            x = ONES.copy()
            with pytest.raises(outlast.OperationTimeout) as caught:
                comm.all_reduce(x, timeout=0.5)
            assert (x == 1).all()
            (waiting,) = caught.value.waiting_for
            assert waiting.name == "p1"
            assert waiting.peer in {peer.id for peer in comm.peers()}
            assert waiting.age >= 0
            assert waiting.health
            assert "p1" in str(caught.value)
            with pytest.raises(outlast.OperationTimeout):
                comm.barrier(timeout=0.3, tag=2)
            comm.barrier(tag=5)
        else:
            comm.barrier(tag=5)

    together(2, work)


def test_a_call_that_differs_is_told_so(together):
    def work(number, comm):
        if number == 2:
            with pytest.raises(outlast.Mismatch) as caught:
                comm.all_reduce(np.ones(5, np.float64))
            assert "f64" in caught.value.ours
            assert "f32" in caught.value.others
        x = ONES.copy()
        comm.all_reduce(x)
        return x[0]

    assert together(3, work) == [3.0] * 3


def test_too_few_peers(together):
    def work(number, comm):
        with pytest.raises(outlast.TooFewPeers, match="update_topology"):
            comm.all_reduce(ONES.copy(), min_world=5)

    together(2, work)


PEER = """
    import sys, numpy as np, outlast
    comm = outlast.Communicator(preset="local", timeout=30, listen="127.0.0.1:0", name="victim")
    comm.connect(2)
    print("ready")
    sys.stdin.readline()
"""


def test_a_killed_peer_is_lost_with_a_reason(peer, program):
    comm = peer(name="survivor")
    joined = threading.Thread(target=comm.connect, args=(2,))
    joined.start()
    victim = program(PEER)
    assert victim.stdout.readline() == "ready\n"
    joined.join()
    victims = [other.id for other in comm.peers() if other.name == "victim"]
    killer = threading.Timer(0.3, victim.kill)
    killer.start()
    x = ONES.copy()
    with pytest.raises(outlast.PeersLost) as caught:
        comm.all_reduce(x, retry=False)
    assert list(caught.value.lost) == victims
    assert all(caught.value.lost.values())
    assert (x == 1).all()
    # By default the survivors go on.
    receipt = comm.all_reduce(x)
    assert receipt.contributors == (comm.peer_id,)
    assert comm.world_size == 1
    with pytest.raises(outlast.TooFewPeers):
        comm.all_reduce(x, min_world=2)


def test_the_loss_of_the_coordinator_and_the_way_back(program):
    first = outlast.Coordinator(preset="local")
    port, secret = first.address, first.secret
    # The preset says 10 s.
    comm = outlast.Communicator(port, secret=secret, preset="local", timeout=30, control_lost_after=3.0)
    comm.connect()
    first.close()
    began = time.monotonic()
    lost = f"nothing answered at {port} for 3 s \\(control_lost_after\\); last: .*refused"
    with pytest.raises(outlast.CoordinatorLost, match=lost):
        comm.all_reduce(ONES.copy(), timeout=60)
    with pytest.raises(outlast.CoordinatorLost, match=lost):
        print(comm.rank)
    assert 2 < time.monotonic() - began < 30
    with pytest.raises(outlast.CoordinatorLost):
        comm.barrier()
    with outlast.Coordinator(listen=port, secret=secret, preset="local"):
        comm.connect(timeout=20)
        assert comm.world_size == 1
        comm.all_reduce(ONES.copy())
    comm.close()


def test_a_stopped_peer_is_put_out_and_comes_back(program):
    with outlast.Coordinator(preset="local", stall_budget=1.0) as coordinator:
        comm = outlast.Communicator(
            coordinator.address, secret=coordinator.secret, preset="local", stall_budget=1.0, name="survivor"
        )
        joined = threading.Thread(target=comm.connect, args=(2,))
        joined.start()
        code = (
            PEER
            + """
    try:
        comm.barrier()
    except outlast.Kicked as error:
        print("kicked")
    comm.connect(min_world=2, timeout=20)
    print("back")
    comm.barrier(tag=8)
    """
        )
        victim = program(code, OUTLAST_COORDINATOR=coordinator.address, OUTLAST_SECRET=coordinator.secret)
        assert victim.stdout.readline() == "ready\n"
        joined.join()
        stop(victim)
        receipt = comm.all_reduce(ONES.copy(), timeout=30)
        assert receipt.contributors == (comm.peer_id,)
        victim.send_signal(signal.SIGCONT)
        victim.stdin.write("go\n")
        victim.stdin.flush()
        assert victim.stdout.readline() == "kicked\n", victim.stderr.read()
        change = comm.update_topology(min_world=2, timeout=20)
        assert len(change.joined) == 1
        assert comm.world_size == 2
        comm.barrier(tag=8)
        assert victim.stdout.readline() == "back\n", victim.stderr.read()
        comm.close()


def test_a_closed_communicator_says_so(peer):
    comm = peer()
    comm.connect()
    comm.close()
    comm.close()
    for use in (comm.connect, comm.barrier, comm.peers, lambda: comm.peer_id):
        with pytest.raises(outlast.InvalidArgument, match="closed"):
            use()
    assert "closed" in repr(comm)


def test_leaving_and_coming_back(peer):
    comm = peer()
    for _ in range(3):
        comm.connect()
        comm.all_reduce(ONES.copy())
        comm.leave()
        with pytest.raises(outlast.InvalidArgument):
            comm.all_reduce(ONES.copy())
    comm.connect()
    with pytest.raises(outlast.InvalidArgument, match="already connected"):
        comm.connect()


def test_what_is_seen_changes_only_inside_a_call(coordinator, peer):
    first, second = peer(name="first"), peer(name="second")
    joined = threading.Thread(target=second.connect, args=(2,))
    joined.start()
    first.connect(2)
    joined.join()
    second.leave()
    wait_until(lambda: coordinator.status()["world_size"] == 1)
    time.sleep(0.2)
    assert (first.world_size, len(first.peers())) == (2, 2)
    epoch = first.epoch
    first.barrier()
    assert (first.world_size, len(first.peers()), first.rank) == (1, 1, 0)
    assert first.epoch > epoch
