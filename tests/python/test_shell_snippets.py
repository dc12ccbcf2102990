"""Every `outlast` command of the README and the guide makes sense; those that end by themselves are run."""

import re
import shlex
import subprocess
import sys

import pytest
from test_snippets import PAGES, ROOT

OUTLAST = [sys.executable, "-m", "outlast"]


def commands():
    """The lines of code blocks that call the program, without comments, redirections and what the shell does next."""
    for page in PAGES:
        for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M):
            for line in block.splitlines() if kind in ("sh", "text", "") else []:
                found = re.match(r"(?:[A-Z_]+=\S+ )*outlast (.*)", line)
                if found:
                    yield page, found[1]


COMMANDS = [pytest.param(page, line, id=f"{page}-{line[:40]}") for page, line in dict.fromkeys(commands())]


def words(line):
    """What the shell would hand over; `*` is left as it is."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&>|")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    taken = []
    for word in lexer:
        if set(word) <= set(";&>|"):
            break
        taken.append(word)
    return taken


def test_the_pages_have_commands():
    assert len(COMMANDS) >= 15, COMMANDS


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_makes_sense(page, line):
    arguments = words(line)
    # Help is asked for where the program's own flags end: whatever stands before it must be right.
    own = next((at for at, word in enumerate(arguments) if word == "--" or word.endswith(".py")), len(arguments))
    if arguments != ["--version"]:
        arguments = [*arguments[:own], "--help"]
    asked = subprocess.run([*OUTLAST, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == 0, asked.stderr


def test_a_flag_that_does_not_exist_would_be_found():
    asked = subprocess.run([*OUTLAST, "run", "--no-such-flag", "--help"], capture_output=True, timeout=60, check=False)
    assert asked.returncode == 64


def run(line, folder):
    command = [*OUTLAST, *words(line)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def line_of(page, beginning):
    (found,) = [line for of, line in dict.fromkeys(commands()) if of == page and line.startswith(beginning)]
    return found


def test_workers_say_what_the_page_shows(tmp_path):
    done = run(line_of("docs/guide/run.md", "run --nproc-per-node 2 -- sh"), tmp_path)
    assert sorted(done.stdout.splitlines()) == ["[0] this is 0 of 2", "[1] this is 1 of 2"], done.stderr


def test_a_run_that_fails_says_what_the_page_shows(tmp_path):
    done = run(line_of("docs/guide/run.md", "run --max-restarts 1"), tmp_path)
    said = done.stderr + done.stdout
    assert done.returncode == 3
    for words_of_the_page in [
        "[0] no data",
        "is replaced in 0.2 s, restart 1 of 1",
        "all restarts are used (1)",
        "its last lines",
    ]:
        assert words_of_the_page in said, said


def test_a_secret_is_made_as_the_page_says(tmp_path):
    done = run(line_of("docs/guide/first-run.md", "secret new"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run.secret").read_text().startswith("outlast-1-")
