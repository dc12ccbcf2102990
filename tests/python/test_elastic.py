"""The training loop from Python."""

import signal
import threading
import time

import numpy as np
import outlast
import pytest
from conftest import wait_until


def loop(comm, goal, take=4, seen=None, **options):
    """Trains until `goal`: the state counts and adds up the samples that made it."""
    sums = np.zeros(3)
    elastic = outlast.Elastic(comm, {"sums": sums}, timeout=30.0, **options)
    while elastic.number < goal:
        with elastic.step() as step:
            numbers = np.array(step.samples(take), float)
            g = np.array([len(numbers), numbers.sum(), (numbers**2).sum()])
            receipt = step.average([g])
            assert step.committed
            sums += np.round(g * len(receipt.contributors))
            if seen is not None:
                seen.append(elastic.number)
    return elastic, sums


def worth(count):
    numbers = np.arange(count, dtype=float)
    return [count, numbers.sum(), (numbers**2).sum()]


def test_every_sample_is_used_once_and_a_step_is_one_transaction(together, coordinator):
    def program(number, comm):
        elastic, sums = loop(comm, 100)
        return sums.tolist(), elastic.samples_used, elastic.syncs, elastic.state.digest()

    ends = together(3, program)
    assert all(end == ends[0] for end in ends)
    assert ends[0][:3] == (worth(1200), 1200, 1)
    assert coordinator.status()["commits"] == 100


def test_a_newcomer_catches_up(peer):
    seen, ends = [], []
    goal = 400

    def train(name, seen):
        elastic, sums = loop(peer(name=name), goal, seen=seen)
        ends.append((sums.tolist(), elastic.state.digest()))

    first = threading.Thread(target=train, args=("old", seen), daemon=True)
    first.start()
    wait_until(lambda: len(seen) > 20)
    late = []
    second = threading.Thread(target=train, args=("new", late), daemon=True)
    second.start()
    first.join(60)
    second.join(60)
    assert len(ends) == 2
    assert ends[0] == ends[1]
    assert late[0] > 20, "it began where the others were"


def test_errors_before_the_commit_are_swallowed_only_if_they_are_the_loops_own(together):
    def program(number, comm):
        elastic = outlast.Elastic(comm, {"w": np.zeros(2)})
        with pytest.raises(ZeroDivisionError), elastic.step() as step:
            1 / 0  # noqa: B018
        with pytest.raises(outlast.RetryError, match="mine"), elastic.step() as step:
            raise outlast.RetryError("mine")
        assert not step.committed
        assert elastic.number == 0
        if number == 0:
            # Whoever leaves by itself is told so; its gradient is as it was, and the next step comes back.
            g = np.ones(2)
            with pytest.raises(outlast.InvalidArgument, match="left"), elastic.step() as step:  # noqa: PT012
                step.samples(3)
                comm.leave()
                step.average([g], weight=5)
            assert g.tolist() == [1.0, 1.0]
            assert elastic.number == 0
        together = False
        while not together:  # the receipt is the same on both, so both stop after the same step
            with elastic.step() as step:
                receipt = step.average([np.ones(2)])
                together = len(receipt.contributors) == 2
            time.sleep(0.005)
        return elastic.number, elastic.state.digest()

    assert len(set(together(2, program))) == 1


def test_a_block_whose_calls_always_fail_raises_after_the_timeout(together):
    over = threading.Event()

    def program(number, comm):
        elastic = outlast.Elastic(comm, {"w": np.zeros(2)}, timeout=30.0 if number else 2.0)
        while not elastic.number:
            with elastic.step() as step:
                step.average([np.ones(2)])
        if number == 1:
            assert over.wait(60)  # it lives, and calls nothing
            return
        tries = 0

        def forever():
            nonlocal tries
            while tries < 200:
                with elastic.step():
                    tries += 1
                    comm.barrier(timeout=0.3)

        with pytest.raises(outlast.OperationTimeout):
            forever()
        over.set()
        assert 1 < tries < 200

    together(2, program)


def test_an_error_after_the_commit_tears_and_the_next_step_heals(together):
    def program(number, comm):
        w = np.zeros(3)
        elastic = outlast.Elastic(comm, {"w": w})

        def step(bad=False):
            with elastic.step() as step:
                g = np.ones(3)
                step.average([g], weight=7)
                w[0] += 1
                if bad:
                    raise KeyboardInterrupt
                w[1:] += 1

        step()
        if number == 1:
            with pytest.raises(KeyboardInterrupt):
                step(bad=True)
            assert elastic.number == 2
            assert elastic.state.torn
            assert elastic.state.revision is None
        while elastic.number < 20:
            step()
        assert w.tolist() == [20.0] * 3
        assert not elastic.state.torn
        return elastic.syncs

    together(3, program)


def test_a_step_averages_once_with_weights_that_mean_something(peer):
    elastic = outlast.Elastic(peer(), {"w": np.zeros(2)})
    g = np.ones(2)
    with pytest.raises(outlast.InvalidArgument, match="exactly once"), elastic.step():
        pass
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(outlast.InvalidArgument, match="weight="), elastic.step() as step:
            step.average([g], weight=weight)
    with pytest.raises(outlast.InvalidArgument, match="floating-point"), elastic.step() as step:
        step.average([np.ones(2, np.int32)])
    with pytest.raises(outlast.InvalidArgument, match="samples in one step"), elastic.step() as step:
        step.samples(1 << 40)
    assert elastic.number == 0
    with pytest.raises(outlast.InvalidArgument, match="no mean"), elastic.step() as step:
        step.average([g], weight=0)
    assert elastic.number == 1, "it was committed, and changed nothing"
    with elastic.step() as step:
        receipt = step.average(g := np.full((2, 2), 3.0, np.float32).T, weight=2)
    assert len(receipt.contributors) == 1
    assert g.tolist() == [[3.0, 3.0]] * 2
    with pytest.raises(outlast.InvalidArgument, match="averages once"), elastic.step() as step:  # noqa: PT012
        step.average([g])
        step.average([g])
    with pytest.raises(outlast.FatalError, match="no member has a state to give"):
        elastic.step()


def test_means_are_weighted(together):
    def program(number, comm):
        elastic = outlast.Elastic(comm, {"w": np.zeros(1)})
        for _ in range(3):
            with elastic.step() as step:
                g = np.array([6.0 * 10**number])
                step.average([g], weight=number + 1)
            assert abs(g[0] - 321) < 1e-9
        with elastic.step() as step:
            g = np.array([5.0 if number == 1 else np.nan], np.float32)
            step.average([g], weight=1 if number == 1 else 0)
        assert g[0] == 5.0

    together(3, program)


def test_checkpoints_are_resumed_with_their_samples_and_bytes(coordinator, peer, tmp_path):
    first, _ = loop(peer(), 25, checkpoint=tmp_path, every=10, extra=b"mine")
    first.close()
    assert first.save_failure is None
    assert first.saved == 20
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdigit())[-1] == "20"
    comm = peer(run_id="another")
    sums = np.zeros(3)
    elastic = outlast.Elastic(comm, outlast.SharedState({"sums": sums}), checkpoint=tmp_path)
    assert (elastic.number, elastic.extra, sums.tolist()) == (20, b"mine", worth(80))
    with pytest.raises(outlast.InvalidArgument, match="after its average"):
        elastic.extra = b"early"
    with elastic.step() as step:
        assert (step.number, step.samples(2)) == (20, [80, 81])
        step.average([np.zeros(1)])
        elastic.extra = b"new"
    assert (elastic.number, elastic.extra, elastic.state.revision) == (21, b"new", 21)
    with pytest.raises(outlast.FatalError, match="no checkpoint"):
        outlast.Elastic(comm, {"other": np.zeros(3)}, checkpoint=tmp_path)


def test_a_silent_difference_is_found_and_named(together):
    def program(number, comm):
        w = np.zeros(4)
        elastic = outlast.Elastic(comm, {"w": w}, verify_every=5)
        while elastic.number < 11:
            with elastic.step() as step:
                step.average([np.zeros(1)])
                w += 1
                if number == 2 and step.number == 7:
                    w[3] = -1
        assert w.tolist() == [11.0] * 4
        assert elastic.syncs == 3
        return comm.peer_id, elastic.last_sync

    ends = together(3, program)
    culprit = ends[2][0]
    assert all(report.diverged == (culprit,) and report.healed == {culprit: ("w",)} for _, report in ends)


def test_ctrl_c_ends_the_wait_of_a_step(program):
    process = program("""
        import signal, sys
        import numpy as np, outlast
        comm = outlast.Communicator(preset="local")
        elastic = outlast.Elastic(comm, {"w": np.zeros(1)}, min_world=2, timeout=60)
        try:
            print("waits", flush=True)
            elastic.step()
        except KeyboardInterrupt:
            print("ended", flush=True)
    """)
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out == "ended\n", err


WORKER = """
    import sys
    import numpy as np, outlast
    goal, folder = int(sys.argv[1]), sys.argv[2]
    w, count = np.zeros(8), np.zeros(1)
    comm = outlast.Communicator(preset="local", timeout=30)
    elastic = outlast.Elastic(comm, {"w": w, "count": count}, min_world=2, checkpoint=folder, every=20)
    while elastic.number < goal:
        with elastic.step() as step:
            x = np.array(step.samples(4), float)
            g = np.outer(np.sin(x), np.arange(8)).mean(0)
            n = np.array([float(len(x))])
            receipt = step.average([g, n], weight=len(x))
            w -= 0.1 * g
            count += round(n[0] * len(receipt.contributors))
            print(elastic.number, flush=True)
    print("end", elastic.state.digest(), int(count[0]), elastic.samples_used, flush=True)
"""


def test_processes_that_are_killed_and_resumed(program, tmp_path):
    goal = 200

    def at(process, number):
        for line in process.stdout:
            if line.startswith("end") or int(line) >= number:
                return line
        raise AssertionError(process.stderr.read())

    workers = [program(WORKER, goal, tmp_path) for _ in range(3)]
    at(workers[0], 30)
    workers.pop(1).kill()
    workers.append(program(WORKER, goal, tmp_path))
    at(workers[0], 60)
    for worker in workers:  # everybody dies
        worker.kill()
        worker.wait()
    workers = [program(WORKER, goal, tmp_path) for _ in range(3)]
    begun = int(at(workers[0], 1))
    assert begun >= 21, "it goes on from a checkpoint"
    ends = {worker.communicate(timeout=60)[0].splitlines()[-1] for worker in workers}
    assert len(ends) == 1
    _, _, count, used = ends.pop().split()
    assert count == used
