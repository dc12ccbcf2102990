"""Every Python snippet of the README and the guide is extracted and run."""

import re
import subprocess
import sys
import textwrap

import outlast
import pytest
from conftest import ROOT

PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs/guide").glob("*.md"))]
SNIPPETS = [
    pytest.param(page, number, code, id=f"{page}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M))
]

# What a reader of that page has by then, for snippets that are not whole programs.
BEFORE = {
    ("docs/guide/first-run.md", 1): """
        import numpy as np, outlast
        comm = outlast.Communicator()
        comm.connect()
        buckets = [np.ones(10) for _ in range(3)]
    """,
    ("docs/guide/state.md", 1): """
        import numpy as np, outlast
        w = np.zeros(1000, np.float32)
        state = outlast.SharedState({"w": w}, revision=12)
    """,
}


def test_there_are_snippets_to_run():
    assert BEFORE.keys() <= {tuple(snippet.values[:2]) for snippet in SNIPPETS}
    assert {page for page, *_ in (snippet.values for snippet in SNIPPETS)} >= {"README.md", "docs/guide/asyncio.md"}


@pytest.mark.parametrize(("page", "number", "code"), SNIPPETS)
def test_a_snippet_runs(page, number, code, tmp_path, monkeypatch):
    program = tmp_path / "snippet.py"
    program.write_text(textwrap.dedent(BEFORE.get((page, number), "")) + code)
    with outlast.Coordinator(preset="local") as coordinator:
        monkeypatch.setenv("OUTLAST_COORDINATOR", coordinator.address)
        monkeypatch.setenv("OUTLAST_SECRET", coordinator.secret)
        ran = subprocess.run(
            [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
