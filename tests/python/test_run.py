"""`outlast run` from the installed package: its own interpreter, its exit codes, its logs, and what Ctrl-C leaves."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
from pathlib import Path

import pytest

PATIENCE = 60

# The command that the package installs, and the module that it stands for.
COMMANDS = {
    "script": [str(Path(sysconfig.get_path("scripts")) / "outlast")],
    "module": [sys.executable, "-m", "outlast"],
}
OUTLAST = COMMANDS["module"]

ELASTIC = """
    import os, signal, sys, time
    import numpy as np
    import outlast

    steps = int(sys.argv[1])
    w = np.zeros(1000, dtype=np.float32)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    comm = outlast.Communicator(listen="127.0.0.1:0", timeout=30.0)
    comm.connect(min_world=int(os.environ["WORLD_SIZE"]) if first else 1)
    elastic = outlast.Elastic(comm, {"w": w})
    while elastic.number < steps:
        with elastic.step() as step:
            x = step.samples(2)
            g = np.full(1000, float(len(x)), dtype=np.float32)
            receipt = step.average([g], weight=len(x))
            w += g
        if elastic.number == 5:
            print("at 5", flush=True)
            if first and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
    print("end", elastic.number, float(w[0]), len(receipt.contributors), flush=True)
    comm.close()
"""


def write(path, code):
    path.write_text(textwrap.dedent(code))
    return str(path)


def run(*arguments, cwd=None):
    return subprocess.run([*OUTLAST, "run", *arguments], capture_output=True, text=True, timeout=PATIENCE, cwd=cwd)


def lines(text, rank):
    return [line.removeprefix(f"[{rank}] ") for line in text.splitlines() if line.startswith(f"[{rank}] ")]


def processes_with(mark):
    """Who lives in whose environment this mark is."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state not in "ZX" and mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_plain_script_runs_under_the_packages_interpreter(tmp_path, command):
    script = write(tmp_path / "plain.py", "import os, sys; print(sys.prefix, os.environ['RANK'], sys.argv[1:])")
    done = subprocess.run(
        [*command, "run", "--standalone", "--nproc-per-node", "2", script, "--epochs", "3"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert lines(done.stdout, rank) == [f"{sys.prefix} {rank} ['--epochs', '3']"]


def test_torchruns_spellings_and_a_module(tmp_path):
    package = tmp_path / "job"
    package.mkdir()
    write(package / "__init__.py", "")
    write(
        package / "train.py", "import os; print(os.environ['TORCHELASTIC_RUN_ID'], os.environ['WORLD_SIZE'], __name__)"
    )
    done = run("--nproc_per_node=2", "--rdzv_id=here", "--max_restarts=0", "-m", "job.train", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, 0) == lines(done.stdout, 1) == ["here 2 __main__"]


def test_elastic_goes_on_when_a_worker_is_killed(tmp_path):
    script = write(tmp_path / "train.py", ELASTIC)
    done = run("--standalone", "--nproc-per-node", "3", script, "100")
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"^\[\d\] end 100 (\S+) (\d)$", done.stdout, re.M)
    assert len(ends) == 3, done.stdout
    assert len({value for value, _ in ends}) == 1, done.stdout
    assert "worker 1 is replaced" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("code", "expected"), [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 11)", 139)]
)
def test_exit_codes_are_the_first_failed_workers(tmp_path, code, expected):
    assert run("--max-restarts", "0", write(tmp_path / "fails.py", code)).returncode == expected


def test_usage_and_missing_programs_have_codes_of_their_own():
    assert run("--nproc-per-node", "0", "x.py").returncode == 64
    assert run("--", "no-such-program-anywhere").returncode == 127


def test_the_first_failure_is_told_with_its_traceback_and_logs_are_kept(tmp_path):
    script = write(
        tmp_path / "train.py",
        """
        import os, pathlib, time
        print("begin", flush=True)
        def step():
            raise ValueError("no such batch")
        other = pathlib.Path(__file__).with_name("the other has begun")
        if os.environ["RANK"] == "1":
            while not other.exists():
                time.sleep(0.01)
            step()
        other.touch()
        time.sleep(100)
        """,
    )
    logs = tmp_path / "logs"
    options = ["--nproc-per-node", "2", "--max-restarts", "0", "--grace", "5s", "--log-dir", str(logs), "--tee", "1:2"]
    done = run(*options, script)
    assert done.returncode == 1, done.stderr
    assert done.stdout == "", "stdout of neither was asked for"
    summary = done.stderr.split("the run failed: worker 1", 1)[1]
    assert "Traceback (most recent call last):" in summary
    assert "ValueError: no such batch" in summary
    assert lines(done.stderr, 0) == []
    assert lines(done.stderr, 1)[-1] == "ValueError: no such batch"
    for rank in "01":
        assert (logs / "default/0" / rank / "stdout.log").read_text() == "begin\n"
    assert "ValueError" in (logs / "default/0/1/stderr.log").read_text()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("trains", [False, True], ids=["sleeps", "trains"])
def test_ctrl_c_ends_everything(tmp_path, command, trains):
    waits = "import time; print('at 5', flush=True)\nwhile True: time.sleep(0.05)"
    script = write(tmp_path / "train.py", ELASTIC.replace('os.environ["RANK"] == "1"', "False") if trains else waits)
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    agent = subprocess.Popen(
        [*command, "run", "--standalone", "--nproc-per-node", "2", "--grace", "20s", script, "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OUTLAST_TEST_MARK": mark},
    )
    try:
        seen = 0
        while seen < 2:
            line = agent.stdout.readline()
            assert line, "it ended by itself"
            seen += "at 5" in line
        agent.send_signal(signal.SIGINT)
        told, _ = agent.communicate(timeout=PATIENCE)
        assert agent.returncode == 130, told
        assert "KeyboardInterrupt" in told
        assert "SIGKILL" not in told, "nobody had to be killed"
        assert processes_with(mark) == []
    finally:
        agent.kill()
        agent.communicate()
