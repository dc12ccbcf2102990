"""Behaviour inside somebody else's process: signals, forks, threads, the end, silence."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import outlast
import pytest
from conftest import wait_until

BEGIN = """
    import os, signal, sys, time, threading
    import numpy as np
    import outlast
    comm = outlast.Communicator(preset="local", timeout=30, listen="127.0.0.1:0")
"""
CALLS = {
    "all_reduce": "comm.all_reduce(np.ones(1 << 20, np.float32))",
    "small all_reduce": "comm.all_reduce(np.ones(3, np.float32))",
    "all_reduce_many": "comm.all_reduce_many([np.ones(1 << 18, np.float32)] )",
    "all_gather": "comm.all_gather(np.ones(2000, np.float32), np.ones(1000, np.float32))",
    "reduce_scatter": "comm.reduce_scatter(np.ones(1000, np.float32), np.ones(2000, np.float32))",
    "broadcast": "comm.broadcast(np.ones(1 << 18, np.float32), 1 - comm.rank)",
    "reduce": "comm.reduce(np.ones(1 << 18, np.float32), comm.rank)",
    "gather": "comm.gather(np.ones(2000, np.float32), np.ones(1000, np.float32), comm.rank)",
    "scatter": "comm.scatter(np.ones(1000, np.float32), None, 1 - comm.rank)",
    "all_to_all": "comm.all_to_all(np.ones(2000, np.float32), np.ones(2000, np.float32))",
    "send": "comm.send(np.ones(1 << 18, np.float32), 1 - comm.rank)",
    "recv": "comm.recv(np.ones(1 << 18, np.float32), 1 - comm.rank)",
    "barrier": "comm.barrier()",
    "update_topology": "comm.update_topology()",
    "optimize_topology": "comm.optimize_topology()",
    "wait for a handle": "comm.all_reduce_async(np.ones(1000, np.float32)).wait()",
    "events": "outlast.Membership('127.0.0.1:0', preset='local').events(30)",
}


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_is_answered_at_once_and_breaks_nothing(peer, program, call):
    code = (
        BEGIN
        + f"""
    comm.connect(2)
    {'m = outlast.Membership("127.0.0.1:0", preset="local"); m.events(0.5)' if call == "events" else "pass"}
    print("ready")
    try:
        {CALLS[call] if call != "events" else "m.events(30); m.events(30)"}
    except KeyboardInterrupt:
        print("interrupted")
    # Nothing is broken: the next collective, with the other taking part, works.
    sys.stdin.readline()
    x = np.ones(1000, np.float32)
    receipt = comm.all_reduce(x, tag=7)
    print(x[0], len(receipt.contributors))
    """
    )
    other = peer(name="other")
    joined = threading.Thread(target=other.connect, args=(2,))
    joined.start()
    child = program(code)
    assert child.stdout.readline() == "ready\n", child.stderr.read()
    joined.join()
    time.sleep(0.15)
    assert child.poll() is None
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n", child.stderr.read()
    took = time.monotonic() - began
    child.stdin.write("go\n")
    child.stdin.flush()
    x = np.ones(1000, np.float32)
    other.all_reduce(x, tag=7)
    assert x[0] == 2
    assert child.stdout.readline() == "2.0 2\n", child.stderr.read()
    assert child.wait(20) == 0, child.stderr.read()
    assert took < 0.2, f"{took} s"


def test_ctrl_c_while_connecting(coordinator, program):
    code = (
        BEGIN
        + """
    print("ready")
    began = time.monotonic()
    try:
        comm.connect(min_world=2)
    except KeyboardInterrupt:
        print("interrupted")
    comm.connect(min_world=1, timeout=10)
    print(comm.world_size)
    """
    )
    child = program(code)
    assert child.stdout.readline() == "ready\n"
    wait_until(lambda: coordinator.status()["world_size"] == 1)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n", child.stderr.read()
    assert time.monotonic() - began < 0.2
    assert child.stdout.readline() == "1\n", child.stderr.read()
    assert child.wait(20) == 0


@pytest.mark.parametrize("flag", ["threading.Event()", "lambda: stopped"])
def test_a_handler_that_only_sets_a_flag_can_end_a_connect(coordinator, program, flag):
    code = (
        BEGIN
        + f"""
    stopped = False
    stop = {flag}
    def on_sigterm(number, frame):
        global stopped
        stopped = True
        if hasattr(stop, "set"):
            stop.set()
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        comm.connect(min_world=2, stop=stop)
    except outlast.Cancelled as error:
        print("given up", isinstance(error, outlast.RetryError))
    comm.connect()
    try:
        comm.update_topology(min_world=2, stop=stop)
    except outlast.Cancelled:
        print("again")
    comm.barrier()
    print(comm.world_size)
    """
    )
    child = program(code)
    wait_until(lambda: coordinator.status()["world_size"] == 1)
    time.sleep(0.2)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=30)
    assert (out, err, child.returncode) == ("given up True\nagain\n1\n", "", 0)


def test_what_a_question_raises_ends_the_call_and_is_raised(peer):
    def question():
        raise LookupError("no such flag")

    comm = peer()
    with pytest.raises(LookupError, match="no such flag"):
        comm.connect(min_world=2, stop=question)
    comm.connect()


def test_a_handler_that_returns_does_not_disturb_the_call(coordinator, peer, program):
    code = (
        BEGIN
        + """
    seen = []
    def handler(number, frame):
        seen.append(number)
        try:
            comm.barrier(tag=3)
        except outlast.InvalidArgument as error:
            assert "signal's handler" in str(error)
            print("handled")
    signal.signal(signal.SIGUSR1, handler)
    comm.connect(2)
    print("ready")
    x = np.ones(1 << 20, np.float32)
    comm.all_reduce(x)
    print(x.sum() / len(x), len(seen))
    """
    )
    other = peer(name="other")
    threading.Thread(target=other.connect, args=(2,)).start()
    child = program(code)
    assert child.stdout.readline() == "ready\n", child.stderr.read()
    wait_until(lambda: coordinator.status()["groups"][0]["collectives"])
    for _ in range(3):
        child.send_signal(signal.SIGUSR1)
        assert child.stdout.readline() == "handled\n"
    x = np.ones(1 << 20, np.float32)
    other.all_reduce(x)
    assert child.stdout.readline() == "2.0 3\n"
    assert child.wait(20) == 0, child.stderr.read()


def test_blocking_calls_let_other_threads_run(peer):
    comms = [peer(name=f"p{number}") for number in range(2)]
    others = threading.Thread(target=comms[1].connect, args=(2,))
    others.start()
    comms[0].connect(2)
    others.join()
    waiting = threading.Thread(target=comms[0].barrier)
    waiting.start()
    count, until = 0, time.monotonic() + 0.3
    while time.monotonic() < until:
        count += 1
    assert waiting.is_alive()
    assert count > 10_000
    comms[1].barrier()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_forked_child_is_refused_and_holds_no_socket(request):
    # Whoever runs the tests, and the tests before this one, may have sockets of their own.
    others = socket_names()
    coordinator, peer = (request.getfixturevalue(name) for name in ("coordinator", "peer"))
    comm = peer()
    comm.connect()
    member = outlast.Membership("127.0.0.1:0", preset="local", secret=coordinator.secret)
    handle = comm.all_reduce_async(np.ones(3, np.float32), tag=1)
    handle.wait()
    uses = [
        lambda: comm.rank,
        lambda: comm.peer_id,
        lambda: comm.peers(),
        lambda: comm.connect(),
        lambda: comm.update_topology(),
        lambda: comm.all_reduce(np.ones(3, np.float32)),
        lambda: comm.all_reduce_async(np.ones(3, np.float32)),
        lambda: comm.barrier(),
        lambda: comm.leave(),
        lambda: comm.close(),
        lambda: handle.wait(),
        lambda: handle.done(),
        lambda: coordinator.status(),
        lambda: coordinator.address,
        lambda: coordinator.close(),
        lambda: member.active(),
        lambda: member.events(0),
        lambda: member.leave(),
    ]
    parents = socket_names() - others
    assert parents, "the test cannot see sockets"
    child = os.fork()
    if child == 0:
        code = 0
        try:
            for number, use in enumerate(uses):
                try:
                    use()
                    code = 100 + number
                except outlast.FatalError as error:
                    if "forked child" not in str(error):
                        code = 50 + number
            if socket_names() & parents:
                code = 2
            repr(comm), repr(coordinator), repr(member), repr(handle)
            # It may make its own, and dropping the parent's objects harms nobody.
            with outlast.Coordinator(preset="local") as own:
                mine = outlast.Communicator(own.address, secret=own.secret, preset="local")
                with mine:
                    mine.all_reduce(np.ones(3, np.float32))
        except BaseException:
            code = 1
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    x = np.ones(3, np.float32)
    comm.all_reduce(x)
    member.leave()


def socket_names():
    """The sockets that this process holds, by their kernel names."""
    names = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith("socket:"):
            names.add(target)
    return names


def test_a_forked_child_may_exit_as_usual(peer, program):
    """Its interpreter's end runs at-exit hooks and drops objects of the parent's."""
    code = (
        BEGIN
        + """
    comm.connect()
    handle = comm.all_reduce_async(np.ones(3, np.float32))
    child = os.fork()
    if child == 0:
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
    handle.wait()
    comm.all_reduce(np.ones(3, np.float32))
    print("fine")
    """
    )
    child = program(code)
    out, err = child.communicate(timeout=30)
    assert (out, err, child.returncode) == ("7\nfine\n", "", 0)


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_multiprocessing_pools(peer, program, way):
    code = (
        BEGIN
        + f"""
    import multiprocessing
    comm.connect()
    with multiprocessing.get_context("{way}").Pool(2) as pool:
        for step in range(5):
            squares = pool.map_async(abs, range(-10, 0))
            comm.all_reduce(np.ones(1000, np.float32))
            assert sum(squares.get(20)) == 55
    print("fine")
    """
    )
    child = program(code)
    out, err = child.communicate(timeout=60)
    assert (out, err, child.returncode) == ("fine\n", "", 0)


def test_a_spawned_child_makes_its_own_and_is_told_so(program, tmp_path):
    """A communicator cannot be handed over; its settings can, and the environment has them."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing, numpy as np, outlast

        def work(run_id, results):
            with outlast.Communicator(run_id=run_id, preset="local", listen="127.0.0.1:0") as mine:
                x = np.ones(3, np.float32)
                mine.all_reduce(x)
                results.put(x.sum())

        if __name__ == "__main__":
            spawn = multiprocessing.get_context("spawn")
            results = spawn.Queue()
            with outlast.Communicator(preset="local", listen="127.0.0.1:0") as comm:
                try:
                    spawn.Process(target=work, args=(comm, results)).start()
                except TypeError as error:
                    print("make another one" in str(error))
                child = spawn.Process(target=work, args=("child", results))
                child.start()
                print(results.get(timeout=30))
                child.join(30)
                comm.all_reduce(np.ones(3, np.float32))
                print(child.exitcode)
        """)
    )
    child = program(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    out, err = child.communicate(timeout=60)
    assert (out, child.returncode) == ("True\n3.0\n0\n", 0), err


def test_a_call_in_a_thread_lets_coroutines_run(together):
    def work(number, comm):
        async def steps():
            beats = 0

            async def beat():
                nonlocal beats
                while True:
                    beats += 1
                    await asyncio.sleep(0.005)

            beating = asyncio.create_task(beat())
            x = np.ones(1000, np.float32)
            if number == 1:
                await asyncio.sleep(0.3)
            await asyncio.to_thread(comm.all_reduce, x)
            handle = comm.all_reduce_async(x, tag=1)
            await asyncio.to_thread(handle.wait)
            beating.cancel()
            return beats, x[0]

        return asyncio.run(steps())

    (beats, first), (_, second) = together(2, work)
    assert (first, second) == (4, 4)
    assert beats > 10


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "del comm, handles", "comm.leave()", "comm.close()"])
def test_the_interpreter_ends_cleanly_with_operations_in_flight(coordinator, peer, program, end):
    """Others never come: the operations are in flight when the interpreter ends."""
    other = peer(name="other")
    threading.Thread(target=other.connect, args=(2,)).start()
    code = (
        BEGIN
        + f"""
    comm.connect(2)
    handles = [comm.all_reduce_async(np.ones(1 << 18, np.float32), tag=tag) for tag in range(4)]
    thread = threading.Thread(target=lambda: comm.all_reduce(np.ones(1 << 18, np.float32), tag=9), daemon=True)
    thread.start()
    time.sleep(0.2)
    print("ready")
    {end}
    """
    )
    child = program(code)
    out, err = child.communicate(timeout=30)
    assert (out, child.returncode) == ("ready\n", 0), err
    # A thread of the program may say how its call ended; nothing else is said.
    assert "Fatal Python error" not in err
    assert "panicked" not in err
    # It said goodbye: nobody had to find out.
    status = wait_until(lambda: (now := coordinator.status())["world_size"] == 1 and now)
    assert status["evictions"] == 0, status


@pytest.mark.parametrize("late", ["", "atexit.register(comm.close)"])
def test_the_interpreter_ends_cleanly_with_daemon_threads_in_every_call(program, late):
    """They come back from a call at every moment of the end; up to Python 3.13 asking for it too late is deadly."""
    code = (
        BEGIN
        + f"""
    import atexit
    {late}
    comm.connect()
    member = outlast.Membership("127.0.0.1:0", preset="local")
    coordinator = outlast.Coordinator(preset="local")
    feedback = outlast.ErrorFeedback()

    def again(call):
        while True:
            try:
                call()
            except outlast.OutlastError:
                pass

    calls = [
        lambda: comm.all_reduce(np.ones(1000, np.float32), tag=1),
        lambda: comm.all_reduce(np.ones(1000, np.float32), tag=2),
        lambda: comm.all_reduce_async(np.ones(1000, np.float32), tag=3).wait(),
        lambda: comm.all_reduce_async(np.ones(1000, np.float32), tag=4).wait(0.0001),
        lambda: comm.barrier(tag=5),
        lambda: comm.peers(),
        lambda: comm.connect(timeout=0.01),
        lambda: member.events(0.0001),
        lambda: member.active(),
        lambda: coordinator.status(),
        lambda: feedback(np.ones(1000, np.float32)),
    ]
    for call in calls:
        threading.Thread(target=again, args=(call,), daemon=True).start()
    time.sleep(0.1)
    print("ready")
    """
    )
    for _ in range(5):
        child = program(code)
        out, err = child.communicate(timeout=30)
        assert (out, child.returncode) == ("ready\n", 0), err
        assert "panicked" not in err


def test_nothing_is_printed_unless_asked(program):
    code = (
        BEGIN
        + """
    comm.connect()
    comm.all_reduce(np.ones(3, np.float32))
    comm.close()
    """
    )
    quiet = program(code)
    assert quiet.communicate(timeout=30) == ("", "")
    # Nobody listens at port 1.
    loud = program(BEGIN + "    comm.connect(timeout=0.3)", OUTLAST_LOG="debug", OUTLAST_COORDINATOR="127.0.0.1:1")
    out, err = loud.communicate(timeout=30)
    assert out == ""
    assert "no coordinator" in err
    assert (
        "OperationTimeout: no coordinator was reached within 0.3 s: cannot connect to 127.0.0.1:1: Connection refused"
        in err
    )


def test_two_communicators_of_one_run_in_one_thread_are_refused(peer):
    first, second = peer(name="first"), peer(name="second")
    first.connect()
    with pytest.raises(outlast.InvalidArgument, match="each would wait for the other"):
        second.connect(timeout=5)
    first.leave()
    second.connect(timeout=5)
    assert second.world_size == 1
    second.leave()
    other = peer(name="another run", run_id="another")
    other.connect(timeout=5)
    first.connect(timeout=5)
    other.all_reduce(np.ones(3, np.float32))
    first.all_reduce(np.ones(3, np.float32))


SLOW = {
    "memory that is lent slowly": """
    class Slow:
        shape, dtype = (3,), "slow"
        def __dlpack_device__(self):
            time.sleep(0.1)
            return (1, 0)
        def __dlpack__(self, **options):
            time.sleep(0.1)
            return np.ones(3, np.float32).__dlpack__(**options)
    """,
    "the first receipt is made slowly": """
    import builtins
    Slow = lambda: np.ones(3, np.float32)
    at_once = builtins.__import__
    def slowly(name, *rest):
        time.sleep(0.1)
        return at_once(name, *rest)
    builtins.__import__ = slowly
    """,
}


@pytest.mark.parametrize("slow", SLOW)
def test_python_code_inside_a_call_may_let_other_threads_run(program, slow):
    """No lock is held meanwhile that the others could wait for with the interpreter in their hands."""
    code = (
        BEGIN
        + SLOW[slow]
        + """
    comm.connect()
    call = lambda tag: comm.all_reduce(Slow(), tag=tag)
    threads = [threading.Thread(target=call, args=(tag,), daemon=True) for tag in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    print(comm.rank, any(thread.is_alive() for thread in threads))
    """
    )
    child = program(code)
    out, err = child.communicate(timeout=30)
    assert (out, err, child.returncode) == ("0 False\n", "", 0)


def test_threads_of_a_pool_may_take_turns(peer):
    from concurrent.futures import ThreadPoolExecutor

    comms = [peer(name=f"p{number}") for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda comm: comm.connect(3), comms))
        for step in range(10):
            tensors = [np.full(10, number, np.float32) for number in range(3)]
            order = comms[step % 3 :] + comms[: step % 3]
            list(pool.map(lambda pair: pair[0].all_reduce(pair[1]), zip(order, tensors, strict=True)))
            assert all(tensor[0] == 3 for tensor in tensors)


def test_importing_is_quick():
    # Beside a package of the standard library, by turns: the machine may be slow, and then it is for both.
    def processor_time(module):
        code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
        return float(subprocess.check_output([sys.executable, "-c", code]))

    turns = [(processor_time("outlast"), processor_time("asyncio")) for _ in range(7)]
    ours, usual = (min(times) for times in zip(*turns, strict=True))
    print(f"import outlast: {ours * 1e3:.0f} ms at best of {len(turns)}; import asyncio: {usual * 1e3:.0f} ms")
    assert ours < 3 * usual
    loaded = "import sys, outlast; print('numpy' in sys.modules, 'torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True) == "False False\n"
