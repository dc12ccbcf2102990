"""The flight recorder: what a process did lately, on request and after an error that nobody handled."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import outlast
from conftest import wait_until


def read(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def test_a_dump_tells_calls_messages_and_verdicts(peer, tmp_path):
    comm = peer(name="ada")
    comm.connect()
    comm.all_reduce(np.ones(5, np.float32), tag=7)
    path = outlast.dump(tmp_path / "flight.jsonl")
    assert path == str(tmp_path / "flight.jsonl")
    lines = read(path)
    (start,) = [at for at, line in enumerate(lines) if line.get("id") == comm.peer_id]
    assert (lines[start]["role"], lines[start]["name"]) == ("peer", "ada")
    mine = lines[start + 1 : start + 1 + lines[start]["events"]]
    told = [(line["what"], line["name"]) for line in mine]
    for expected in [("called", "all_reduce"), ("sent", "Initiate"), ("sent", "Complete"), ("heard", "Commit")]:
        assert expected in told, told
    (call,) = [line for line in mine if line["name"] == "all_reduce"]
    assert (call["amount"], call["text"]) == (5, "f32")
    (verdict,) = [line for line in mine if line["name"] == "Commit"]
    assert verdict["tag"] == 7
    assert [line["time_us"] for line in mine] == sorted(line["time_us"] for line in mine)


def test_the_coordinator_of_this_process_tells_too(coordinator, peer, tmp_path):
    peer(name="ada").connect()
    roles = {line["role"] for line in read(outlast.dump(tmp_path / "flight.jsonl")) if "flight" in line}
    assert roles >= {"coordinator", "peer"}


def test_an_error_that_nobody_handles_leaves_the_record_behind(program, tmp_path):
    code = """
        import outlast
        with outlast.Communicator(preset="local", listen="127.0.0.1:0", name="ada") as comm:
            comm.update_topology(min_world=2, timeout=0.2)
    """
    failed = program(code, TMPDIR=str(tmp_path))
    _, words = failed.communicate(timeout=60)
    assert (failed.returncode, "Traceback" in words) == (1, True), words
    (path,) = re.findall(r"outlast: what this process did lately is in (\S+);", words)
    assert path.startswith(str(tmp_path))
    lines = read(path)
    assert lines[0]["reason"] == "unhandled OperationTimeout", "and the with block has closed the communicator"
    assert ("called", "update_topology") in [(line.get("what"), line.get("name")) for line in lines]
    assert os.stat(path).st_mode & 0o077 == 0, "only this user may read it"


def test_an_error_in_a_thread_leaves_it_too_and_other_errors_leave_nothing(program, tmp_path):
    code = """
        import threading, outlast
        comm = outlast.Communicator(preset="local", listen="127.0.0.1:0")
        def work():
            comm.connect()
            comm.update_topology(min_world=2, timeout=0.1)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        raise ValueError("the program's own")
    """
    failed = program(code, TMPDIR=str(tmp_path))
    _, words = failed.communicate(timeout=60)
    assert (failed.returncode, "the program's own" in words) == (1, True), words
    assert words.count("what this process did lately") == 1, words


# Parent and child share one pipe, so each line is one write.
WAITS = """
    import os, signal, sys, time, outlast
    say = lambda line: os.write(1, (line + "\\n").encode())
    if "own" in sys.argv:
        signal.signal(signal.SIGUSR2, lambda *_: say("own handler"))
    comm = outlast.Communicator(preset="local", listen="127.0.0.1:0")
    comm.connect()
    if "fork" in sys.argv:
        child = os.fork()
        if child == 0:
            say(f"{os.getpid()}")
            time.sleep(60)
    say("ready")
    time.sleep(60)
"""


def records(folder):
    return [file for directory in folder.glob("outlast-*") for file in directory.glob("flight-*.jsonl")]


def test_sigusr2_writes_and_the_process_goes_on(program, tmp_path):
    process = program(WAITS, TMPDIR=str(tmp_path))
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    process.send_signal(signal.SIGUSR2)
    (path,) = wait_until(lambda: records(tmp_path))
    assert read(path)[0]["reason"] == "SIGUSR2"
    assert process.poll() is None


def test_a_handler_of_the_programs_own_stays(program, tmp_path):
    process = program(WAITS, "own", TMPDIR=str(tmp_path))
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    process.send_signal(signal.SIGUSR2)
    assert process.stdout.readline() == "own handler\n"
    assert records(tmp_path) == []


def test_a_forked_child_does_not_answer_for_its_parent(program, tmp_path):
    process = program(WAITS, "fork", TMPDIR=str(tmp_path))
    said = sorted([process.stdout.readline(), process.stdout.readline()])
    assert said[1] == "ready\n", process.stderr.read()
    child = int(said[0])
    try:
        os.kill(child, signal.SIGUSR2)
        # The parent answers a signal of its own; had the child's reached it, there would be two.
        process.send_signal(signal.SIGUSR2)
        (path,) = wait_until(lambda: records(tmp_path))
        assert read(path)[0]["pid"] == process.pid
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_command_merges_what_the_function_writes(peer, tmp_path):
    comm = peer(name="ada")
    comm.connect()
    comm.barrier()
    path = outlast.dump(tmp_path / "flight.jsonl")
    trace = tmp_path / "trace.json"
    command = [sys.executable, "-m", "outlast", "debug", "merge", "--chrome", str(trace), path]
    merged = subprocess.run(command, capture_output=True, text=True, check=True)
    first = json.loads(merged.stdout.splitlines()[0])
    assert any(actor["who"].startswith("ada ") for actor in first["actors"])
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"barrier", "sent Complete", "heard Commit"} <= names, names
