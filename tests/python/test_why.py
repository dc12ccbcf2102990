"""Why something happened: lost members in receipts, events, the log, and one sentence of diagnosis."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import outlast
import pytest
from conftest import stop, wait_until

ONES = np.ones(3, np.float32)

VICTIM = """
    import sys, time, numpy as np, outlast
    comm = outlast.Communicator(preset="local", timeout=60, listen="127.0.0.1:0", name="victim")
    comm.connect(2)
    print("ready", flush=True)
    while True:
        command = sys.stdin.readline().strip()
        if command == "leave":
            comm.leave()
            break
        comm.barrier(tag=int(command))
        print("done", flush=True)
"""


@pytest.fixture
def pair(peer, program):
    """A communicator, and a process beside it that makes the calls it is told to."""
    comm = peer(name="survivor", timeout=60)
    joined = threading.Thread(target=comm.connect, args=(2,))
    joined.start()
    victim = program(VICTIM)
    assert victim.stdout.readline() == "ready\n", victim.stderr.read()
    joined.join()
    # What befalls it is told apart at once only if its health plane was heard before.
    wait_until(lambda: all(other.health == "alive" for other in comm.peers()))
    comm.events(0)
    return comm, victim


def tell(victim, word):
    victim.stdin.write(f"{word}\n")
    victim.stdin.flush()


def collect(comm, kind, seconds=20.0):
    """Reads events until one of that kind comes, and returns all."""
    seen = []

    def came():
        seen.extend(comm.events(0.2))
        return any(isinstance(event, kind) for event in seen)

    wait_until(came, seconds)
    return seen


def test_a_receipt_says_without_whom_it_is(pair):
    comm, victim = pair
    (gone,) = [other.id for other in comm.peers() if other.name == "victim"]
    assert comm.all_reduce(ONES.copy(), scope=[comm.rank]).lost == ()
    threading.Timer(0.3, victim.kill).start()
    receipt = comm.all_reduce(ONES.copy())
    assert receipt.lost == (outlast.Lost(gone, "victim", "its connection closed and its port refuses"),)
    assert "lost victim (its connection closed" in repr(receipt)
    assert comm.all_reduce(ONES.copy()).lost == ()


def test_events_tell_who_came_and_who_went_and_why(pair, peer):
    comm, victim = pair
    victim.kill()
    seen = collect(comm, outlast.Lost)
    (lost,) = [event for event in seen if isinstance(event, outlast.Lost)]
    assert (lost.name, lost.reason) == ("victim", "its connection closed and its port refuses")
    assert any(isinstance(event, outlast.EpochChanged) and event.world_size == 1 for event in seen)
    newcomer = peer(name="newcomer")
    joining = threading.Thread(target=newcomer.connect, args=(2,))
    joining.start()
    wait_until(lambda: comm.update_topology() and comm.world_size == 2)
    joining.join()
    (joined,) = [event for event in collect(comm, outlast.Joined) if isinstance(event, outlast.Joined)]
    assert (joined.name, joined.peer) == ("newcomer", newcomer.peer_id)
    newcomer.leave()
    (left,) = [event for event in collect(comm, outlast.Lost) if isinstance(event, outlast.Lost)]
    assert (left.name, left.reason) == ("newcomer", "it said goodbye")
    assert comm.events(0) == []


def test_a_stop_is_told_and_so_is_its_end(pair):
    comm, victim = pair
    stop(victim)
    (stalled,) = [event for event in collect(comm, outlast.Stalled) if isinstance(event, outlast.Stalled)]
    assert stalled.name == "victim"
    victim.send_signal(signal.SIGCONT)
    assert any(event.name == "victim" for event in collect(comm, outlast.Recovered))


def test_the_coordinator_is_missed_and_met_again():
    first = outlast.Coordinator(preset="local")
    address, secret = first.address, first.secret
    comm = outlast.Communicator(address, secret=secret, preset="local", timeout=30, listen="127.0.0.1:0")
    comm.connect()
    comm.events(0)
    first.close()
    assert collect(comm, outlast.events.CoordinatorLost)[0] == outlast.events.CoordinatorLost()
    with outlast.Coordinator(listen=address, secret=secret, preset="local"):
        collect(comm, outlast.CoordinatorBack)
        comm.barrier()
        comm.close()


def test_events_wait_and_answer_ctrl_c(peer):
    comm = peer()
    comm.connect()
    assert [type(event).__name__ for event in comm.events(5)] == ["EpochChanged"]
    began = time.monotonic()
    assert comm.events(0.2) == []
    assert time.monotonic() - began >= 0.2
    with pytest.raises(outlast.InvalidArgument, match="timeout=-1"):
        comm.events(-1)


def test_the_log_goes_to_logging_and_is_silent_by_default(pair, caplog):
    _, victim = pair
    with caplog.at_level(logging.INFO, logger="outlast"):
        victim.kill()
        words = "victim [0-9a-f]{8} was lost: its connection closed and its port refuses"

        def told():
            return [record for record in caplog.records if re.search(words, record.getMessage())]

        (record, *_) = wait_until(told)
    assert record.name.startswith("outlast.")
    assert record.levelno == logging.WARNING
    assert record.threadName == "outlast-log"


def test_the_status_tells_the_last_events_with_names(pair, coordinator):
    _, victim = pair
    tell(victim, "leave")
    status = wait_until(lambda: (now := coordinator.status())["world_size"] == 1 and now)
    texts = [event["text"] for event in status["events"]]
    assert any(text.startswith("victim ") and text.endswith("was lost: it said goodbye") for text in texts), texts
    assert any(text.startswith("survivor ") and text.endswith(" joined") for text in texts), texts
    assert abs(status["events"][0]["time"] - time.time()) < 60
    assert status["known"] is True
    assert [run["run_id"] for run in status["runs"]] == ["default"]
    assert coordinator.status("mistyped")["known"] is False


def test_the_events_of_a_run_outlive_its_coordinator():
    first = outlast.Coordinator(preset="local")
    address, secret = first.address, first.secret
    comm = outlast.Communicator(address, secret=secret, preset="local", listen="127.0.0.1:0", name="witness")
    comm.connect()
    (before,) = [event for event in first.status()["events"] if event["text"].endswith(" joined")]
    assert before["text"].startswith("witness ")
    # Peers are told a moment later; this one says what it remembers.
    ask = [sys.executable, "-m", "outlast", "status", "--json", "--peer", comm.peers()[0].address]
    env = os.environ | {"OUTLAST_SECRET": secret}
    wait_until(lambda: before["text"] in subprocess.check_output(ask, env=env, text=True))
    first.close()
    with outlast.Coordinator(listen=address, secret=secret, preset="local") as second:
        wait_until(lambda: second.status()["world_size"] == 1)
        comm.barrier()
        texts = [event["text"] for event in second.status()["events"]]
        assert before["text"] in texts, texts
        comm.close()


# One sentence of diagnosis.


def test_a_timeout_blames_who_does_not_call_and_says_what_it_called_last(pair):
    comm, victim = pair
    tell(victim, 7)
    comm.barrier(tag=7)
    assert victim.stdout.readline() == "done\n"
    words = r"Diagnosis: victim is alive and has not made this call; it last called barrier\(.*\) under tag 7, \d"
    with pytest.raises(outlast.OperationTimeout, match=words):
        comm.all_reduce(ONES.copy(), timeout=0.5)


def test_a_timeout_blames_who_is_stopped(pair):
    comm, victim = pair
    stop(victim)
    collect(comm, outlast.Stalled)
    with pytest.raises(outlast.OperationTimeout, match="Diagnosis: victim is stalled: its kernel answers"):
        comm.all_reduce(ONES.copy(), timeout=0.5)


def test_a_step_that_succeeds_late_is_told_with_its_cause(pair, caplog):
    comm, victim = pair
    for _ in range(10):
        tell(victim, 3)
        comm.barrier(tag=3)
        assert victim.stdout.readline() == "done\n"
    comm.events(0)
    threading.Timer(2.0, tell, (victim, 3)).start()
    with caplog.at_level(logging.WARNING, logger="outlast"):
        comm.barrier(tag=3)
        (slow,) = [event for event in collect(comm, outlast.SlowStep) if isinstance(event, outlast.SlowStep)]
        wait_until(lambda: "slow step" in caplog.text, 10)
    assert slow.cause == "called late", slow
    assert slow.usual * 3 <= slow.seconds, slow
    assert re.match(r"victim [0-9a-f]{8} made the call [0-9.]+ s after the first", slow.why), slow
    assert slow.call.startswith("barrier(")
    assert slow.call.endswith("under tag 3")
    (line,) = [record.message for record in caplog.records if "slow step" in record.message]
    assert slow.why in line


def test_a_loss_blames_the_dead(pair):
    comm, victim = pair
    threading.Timer(0.3, victim.kill).start()
    with pytest.raises(
        outlast.PeersLost, match="Diagnosis: victim [0-9a-f]{8} is dead: its (control )?connection closed"
    ):
        comm.all_reduce(ONES.copy(), retry=False)


def test_a_timeout_without_a_coordinator_blames_nobody_else():
    coordinator = outlast.Coordinator(preset="local")
    settings = {"preset": "local", "listen": "127.0.0.1:0", "control_lost_after": 60.0}
    comm = outlast.Communicator(coordinator.address, secret=coordinator.secret, **settings)
    comm.connect()
    coordinator.close()
    collect(comm, outlast.events.CoordinatorLost)
    with pytest.raises(outlast.OperationTimeout, match="Diagnosis: the coordinator is away"):
        comm.all_reduce(ONES.copy(), timeout=0.5)
    comm.close()


def test_presets_that_differ_are_named(coordinator, peer, caplog):
    """Both sides of a pair, and the coordinator, say whose times are others."""
    caplog.set_level(logging.WARNING, "outlast")
    quick, slow = peer(name="quick", preset="local"), peer(name="slow", preset="wan")
    joining = threading.Thread(target=slow.connect, args=(2,))
    joining.start()
    quick.connect(2)
    joining.join()

    def said(words):
        return any(words in record.getMessage() for record in caplog.records)

    wait_until(lambda: said("has the preset wan and this peer has local"))
    wait_until(lambda: said("has the preset local and this peer has wan"))
    (event,) = [event for event in coordinator.status()["events"] if "preset" in event["text"]]
    assert event["text"].startswith("slow ")
    assert "has the preset wan and the coordinator has local" in event["text"]
