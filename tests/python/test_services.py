"""The coordinator, membership without collectives, the program, and the examples in docstrings."""

import doctest
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import outlast
import pytest
from conftest import stop, wait_until

MODULES = ["outlast", "outlast.arrays", "outlast.communicator", "outlast.coordinator", "outlast.membership"]


def test_a_coordinator_serves_many_runs_and_tells_about_them(coordinator, peer):
    comms = [peer(run_id=f"run-{number}", name=f"p{number}") for number in range(3)]
    for comm in comms:
        comm.connect()
    for number in range(3):
        status = coordinator.status(f"run-{number}")
        assert [one["name"] for one in status["peers"]] == [f"p{number}"]
    assert coordinator.status("nobody-is-here")["peers"] == []
    assert set(coordinator.status("nobody-is-here")) == set(coordinator.status("run-0"))
    assert coordinator.address in repr(coordinator)
    with pytest.raises(outlast.InvalidArgument, match="run_id"):
        coordinator.status("no such name!")


def test_a_coordinator_is_closed_by_its_context():
    with outlast.Coordinator() as coordinator:
        assert coordinator.secret.startswith("outlast-1-")
        host, port = coordinator.address.split(":")
        assert (host, int(port) > 0) == ("127.0.0.1", True)
    assert "closed" in repr(coordinator)
    coordinator.close()
    with pytest.raises(outlast.InvalidArgument, match="closed"):
        coordinator.status()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"http": "127.0.0.1:8080"}, "http"),
        ({"backend": "etcd:http://localhost"}, "backend"),
        ({"secret": "hunter2"}, "secret"),
        ({"listen": "here"}, "listen"),
        ({"preset": "moon"}, "preset"),
    ],
)
def test_settings_of_a_coordinator(options, words):
    with pytest.raises(outlast.InvalidArgument, match=words):
        outlast.Coordinator(**options)


def test_a_coordinators_port_is_free_when_it_is_closed():
    address, secret = "127.0.0.1:0", outlast.new_secret()
    for _ in range(50):
        coordinator = outlast.Coordinator(address, secret=secret, preset="local")
        address = coordinator.address
        coordinator.close()


def test_a_port_that_is_taken():
    with (
        outlast.Coordinator() as coordinator,
        pytest.raises(outlast.FatalError, match="cannot bind.*choose another port"),
    ):
        outlast.Coordinator(listen=coordinator.address)


def test_secrets_are_fresh():
    assert outlast.new_secret() != outlast.new_secret()
    assert len(outlast.new_secret()) == 70


MEMBER = """
    import sys, outlast
    member = outlast.Membership("127.0.0.1:0", join=sys.argv[1:2], preset="local", name=sys.argv[2], meta=b"m")
    print("ready")
    if sys.stdin.readline() == "leave\\n":
        member.leave()
"""


def test_membership_tells_who_comes_stalls_recovers_dies_and_leaves(coordinator, program):
    with outlast.Membership("127.0.0.1:0", preset="local", secret=coordinator.secret, name="watcher") as watcher:
        seen = []

        def happened(kind, name):
            seen.extend(watcher.events(0.2))
            return next((e for e in seen if type(e) is kind and e.member.name == name), None)

        children = {name: program(MEMBER, watcher.address, name) for name in ("killed", "leaver", "stalled")}
        for name, child in children.items():
            assert child.stdout.readline() == "ready\n", child.stderr.read()
            joined = wait_until(lambda name=name: happened(outlast.Joined, name))
            assert joined.member.meta == b"m"
        assert {member.name for member in watcher.active()} == {"watcher", *children}

        stop(children["stalled"])
        wait_until(lambda: happened(outlast.Stalled, "stalled"))
        assert "stalled" in {member.health for member in watcher.active()}
        children["stalled"].send_signal(signal.SIGCONT)
        wait_until(lambda: happened(outlast.Recovered, "stalled"))

        children["killed"].kill()
        died = wait_until(lambda: happened(outlast.Died, "killed"))
        assert died.reason
        assert isinstance(died.accusers, tuple)
        children["leaver"].stdin.write("leave\n")
        children["leaver"].stdin.flush()
        left = wait_until(lambda: happened(outlast.Left, "leaver"))
        assert left.member.health == "left"
        assert {member.name: member.health for member in watcher.failed()} == {"killed": "dead", "leaver": "left"}
        # Nobody was taken for dead who was not.
        assert {e.member.name for e in seen if isinstance(e, outlast.Died)} == {"killed"}
        watcher.events(0)
    with pytest.raises(outlast.InvalidArgument, match="left its group"):
        watcher.active()
    watcher.leave()
    assert "gone" in repr(watcher)


SLEEPER = """
    import sys, outlast
    member = outlast.Membership("127.0.0.1:0", join=sys.argv[1:2], preset="local", name="sleeper")
    while True:
        for event in member.events(0.1):
            if isinstance(event, outlast.Rejoined):
                print(f"{event.seconds} {event.reason}")
                sys.exit()
"""


def test_a_member_that_was_stopped_for_too_long_is_told_that_it_was_out_and_why(coordinator, program):
    # Two with less patience than the presets have: one alone could be the one that is cut off.
    command = [sys.executable, "-m", "outlast", "members", "--json", "--listen", "127.0.0.1:0", "--preset", "local"]
    command += ["--stall-budget", "1500ms", "--dead-after", "1500ms"]
    env = os.environ | {"OUTLAST_SECRET": coordinator.secret}
    watcher = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    other = None

    def told(event):
        return next(line for line in map(json.loads, watcher.stdout) if line["event"] == event)

    try:
        seed = told("started")["member"]["address"]
        other = subprocess.Popen([*command, "--join", seed], env=env, stdout=subprocess.DEVNULL)
        told("joined")
        child = program(SLEEPER, seed)
        assert told("joined")["member"]["name"] == "sleeper"
        stopped_at = time.monotonic()
        stop(child)
        died = told("died")
        assert died["member"]["name"] == "sleeper"
        child.send_signal(signal.SIGCONT)
        seconds, reason = child.stdout.readline().rstrip().split(" ", 1)
        assert reason == died["reason_text"]
        assert 0 <= float(seconds) <= time.monotonic() - stopped_at
    finally:
        for process in filter(None, (watcher, other)):
            process.kill()
            process.communicate()


def test_settings_of_a_member():
    with pytest.raises(outlast.InvalidArgument, match="secret"):
        outlast.Membership("127.0.0.1:0")
    secret = outlast.new_secret()
    with pytest.raises(outlast.InvalidArgument, match="described|meta"):
        outlast.Membership("127.0.0.1:0", secret=secret, meta=b"x" * 100_000)
    with pytest.raises(outlast.InvalidArgument, match="nowhere"):
        outlast.Membership("127.0.0.1:0", secret=secret, join=["nowhere"])
    member = outlast.Membership("127.0.0.1:0", secret=secret, join="127.0.0.1:1", preset="local")
    with pytest.raises(outlast.InvalidArgument, match="timeout"):
        member.events(-1)
    assert len(member.id) == 32
    member.leave()


def test_the_program_comes_along(coordinator):
    beside = Path(sys.executable).parent / "outlast"
    found = str(beside) if beside.exists() else shutil.which("outlast")
    assert found, "the package brings no `outlast`"
    for command in ([found], [sys.executable, "-m", "outlast"]):
        text = subprocess.check_output([*command, "--version"], text=True)
        assert text == f"outlast {outlast.__version__}\n"
        assert "coordinator" in subprocess.check_output([*command, "--help"], text=True)
        assert subprocess.run([*command, "nonsense"], capture_output=True).returncode == 64
        secret = subprocess.check_output([*command, "secret", "new"], text=True).strip()
        assert outlast.Coordinator(secret=secret).secret == secret
    asked = subprocess.run(
        [found, "status", "--coordinator", coordinator.address, "--json"],
        env={"OUTLAST_SECRET": coordinator.secret, "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert json.loads(asked.stdout)["peers"] == []
    nobody = [found, "status", "--coordinator", "127.0.0.1:1"]
    assert subprocess.run(nobody, env={"OUTLAST_SECRET": secret}, capture_output=True).returncode == 69


def test_the_programs_coordinator_serves_python(tmp_path):
    secret = outlast.new_secret()
    (tmp_path / "secret").write_text(secret)
    (tmp_path / "secret").chmod(0o600)
    command = [sys.executable, "-m", "outlast", "coordinator", "--listen", "127.0.0.1:0", "--preset", "local"]
    service = subprocess.Popen(
        [*command, "--secret-file", str(tmp_path / "secret")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        address = service.stdout.readline().split()[-1]
        with outlast.Communicator(address, secret=secret, preset="local") as comm:
            assert comm.world_size == 1
        service.send_signal(signal.SIGINT)
        assert service.wait(10) == 0
    finally:
        service.kill()
        service.communicate()


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    found = doctest.testmod(module, globs={"outlast": outlast}, verbose=False)
    assert found.failed == 0
    if name != "outlast.errors":
        assert found.attempted > 0


def test_every_public_name_is_documented():
    for name in outlast.__all__:
        thing = getattr(outlast, name)
        assert name == "__version__" or thing.__doc__, f"{name} says nothing about itself"
    for kind in (outlast.Communicator, outlast.Coordinator, outlast.Membership, outlast.Handle):
        for name, method in vars(kind).items():
            assert name.startswith("_") or method.__doc__, f"{kind.__name__}.{name} says nothing about itself"
