"""The guide's own loop, taken from its page, under the faults that lost a trained model with an earlier one."""

import re

from conftest import ROOT, wait_until

STEPS = 400
PAGE = (ROOT / "docs/guide/elastic.md").read_text()
(LOOP,) = [code for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M) if "while elastic.number" in code]


def guide_loop(checkpoints, *, state='{"w": w}', before="", pause="0.004"):
    """The program of the page, a little slower and with fewer steps; it tells where it began and what it ends with."""
    code = before + LOOP

    def change(old, new):
        nonlocal code
        assert code.count(old) == 1, f"{old!r} in the page:\n{code}"
        code = code.replace(old, new)

    change("elastic.number < 1000", f"elastic.number < {STEPS}")
    change('"checkpoints"', repr(str(checkpoints)))
    change('{"w": w}', state)
    change("        x, y = batch(", f"        import time; time.sleep({pause})\n        x, y = batch(")
    change("comm = outlast.Communicator()", 'comm = outlast.Communicator(preset="local")\nfirst = None')
    change("        w -= 0.05 * g", "        first = elastic.number if first is None else first\n        w -= 0.05 * g")
    return code + '\nprint("end", first, elastic.number, w.tobytes().hex(), flush=True)\n'


def commits(coordinator):
    return coordinator.status()["commits"]


def end_of(process):
    out, words = process.communicate(timeout=90)
    assert process.returncode == 0, words
    (line,) = [line for line in out.splitlines() if line.startswith("end ")]
    _, first, number, digest = line.split()
    return int(first), int(number), digest


def test_one_trained_member_and_two_newcomers_at_once(coordinator, program, tmp_path):
    code = guide_loop(tmp_path / "a")
    trained = program(code)
    wait_until(lambda: commits(coordinator) > 60)
    newcomers = [program(guide_loop(tmp_path / name)) for name in "bc"]
    ends = [end_of(process) for process in [trained, *newcomers]]
    assert {end[1:] for end in ends} == {(STEPS, ends[0][2])}, "equal to the bit"
    assert all(first > 60 for first, *_ in ends[1:]), "they began where the trained one was"
    assert commits(coordinator) == STEPS, "no step was made twice: nobody began anew"


def test_a_newcomer_alone_does_not_begin_anew_and_goes_on_from_a_checkpoint(coordinator, program, tmp_path):
    trained = program(guide_loop(tmp_path / "a"))
    wait_until(lambda: commits(coordinator) > 220)
    wait_until(lambda: (tmp_path / "a" / "200").exists())
    trained.kill()
    trained.wait()
    reached = commits(coordinator)
    newcomer = program(guide_loop(tmp_path / "empty"))
    _, words = newcomer.communicate(timeout=60)
    assert newcomer.returncode == 1, words
    assert "FatalError" in words, words
    assert "last agreed on revision" in words, words
    assert commits(coordinator) == reached, "it did not train over the model that was lost"


def test_a_member_that_comes_again_in_the_middle_of_a_sync(coordinator, program, tmp_path):
    # So much that a sync takes a while, and the kills meet it; other bytes in each process, so that all of it moves.
    before = "import os\nimport numpy as np\nballast = np.full(60_000_000, os.getpid() % 251, np.uint8)\n"
    state = '{"w": w, "ballast": ballast}'
    # Until all kills have met it the training takes its time: it must not be over before an interpreter has started.
    killed = tmp_path / "killed"
    pause = f"0.004 if os.path.exists({str(killed)!r}) else 0.1"

    def start(name):
        return program(guide_loop(tmp_path / name, state=state, before=before, pause=pause))

    def syncs():
        return any("Sync" in peer["state"] for peer in coordinator.status()["peers"])

    trained = start("a")
    wait_until(lambda: commits(coordinator) > 20)
    for number in range(3):
        victim = start(f"victim-{number}")
        wait_until(lambda: syncs() or trained.poll() is not None)
        victim.kill()
        victim.wait()
    assert trained.poll() is None, "the kills met a training"
    wait_until(lambda: len(coordinator.status()["peers"]) == 1)
    again = start("again")
    wait_until(lambda: len(coordinator.status()["peers"]) == 2)
    killed.touch()
    ends = [end_of(process) for process in [trained, again]]
    assert {end[1:] for end in ends} == {(STEPS, ends[0][2])}
    assert ends[1][0] > 20
    assert commits(coordinator) == STEPS
