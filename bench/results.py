"""What every table of RESULTS.md needs."""

import pathlib
import statistics

RESULTS = pathlib.Path("bench/RESULTS.md")


def middle(values: list[float]) -> float:
    """The median. Of an even number of values it is the mean of the two in the middle: the upper one alone leans upward."""
    return statistics.median(values)


def size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def replace_section(name: str, section: str) -> None:
    """Replaces the marked section of that name, or appends it."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = RESULTS.read_text()
    if begin in whole:
        before, rest = whole.split(begin, 1)
        after = rest.split(end, 1)[1]
    else:
        before, after = whole.rstrip("\n") + "\n\n", "\n"
    RESULTS.write_text(f"{before}{begin}\n{section}{end}{after}")
