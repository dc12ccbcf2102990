"""Every example runs, and shows what it says that it shows."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT


def run(name):
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_survive():
    out = run("survive.py")
    assert "killed peer" in out
    assert re.search(r"step  5: 4 peers, attempts 1, 160 samples used", out)
    assert "step 30: 3 peers" in out
    # The step that was hit was tried again, and everything else was not.
    assert sum(int(number) > 1 for number in re.findall(r"attempts (\d+)", out)) <= 1


def test_elastic_numpy():
    out = run("elastic_numpy.py")
    assert out.count("killed") == 4
    assert "killed everybody" in out
    assert out.count("begins with the checkpoint of step") >= 3
    assert "step 300" in out


def test_groups():
    out = run("groups.py")
    assert out.count("group 0: 2 of 2 at the end, its epoch did not change") == 2
    assert "group 1: 1 of 2 at the end, its epoch changed" in out


@pytest.mark.parametrize("path", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_no_example_is_forgotten(path):
    assert f"test_{path.removesuffix('.py')}" in globals()
