"""Runs ours and gloo by turns and writes one table into RESULTS.md: a machine's mood hits both alike."""

import json
import os
import subprocess
import sys

from results import middle, replace_section, size

SIZES = [1 << power for power in (12, 14, 16, 18, 20, 22, 24, 26, 27, 28)]
WORLDS = (2, 4)


def ours(program: str, world: int) -> list[dict]:
    """Lines of `votes` and of `ring`, measured by turns of a few operations."""
    sizes = ",".join(map(str, SIZES))
    command = [program, "bench", "all-reduce", "--world", str(world), "--bytes", sizes, "--encryption", "off", "--json"]
    return lines(command)


def gloo(python: str, world: int) -> list[dict]:
    found = lines([python, "bench/gloo_all_reduce.py", str(world), *map(str, SIZES)])
    return [{**line, "what": "gloo"} for line in found]


def lines(command: list[str]) -> list[dict]:
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def table(found: dict[tuple[int, int, str], list[dict]], rounds: int) -> str:
    text = [
        "## No tax: all-reduce beside gloo\n",
        f"Made by `bench/all_reduce {rounds}` on {os.cpu_count()} cores: f32 sum in place between processes over plaintext TCP on",
        f"loopback (`outlast bench all-reduce --encryption off`, gloo of torch), {rounds} rounds of each by turns; *ring* is ours",
        "without votes, measured by turns of four operations with *votes*. Milliseconds: the median of the rounds'",
        "medians, and the best single operation of all. *gloo / votes* above 1 means that ours is faster; *votes cost* is the",
        "median over the rounds of the difference between the two of ours.\n",
        "| N | bytes | votes | ring | gloo | gloo / votes | best votes | best gloo | best gloo / best votes | votes cost | |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for world in WORLDS:
        for count in SIZES:
            votes, ring, other = (found[world, count, what] for what in ("votes", "ring", "gloo"))
            medians = [middle([line["median"] for line in lines]) for lines in (votes, ring, other)]
            best = [min(line["best"] for line in lines) for lines in (votes, other)]
            cost = middle([a["median"] - b["median"] for a, b in zip(votes, ring)])
            text.append(
                f"| {world} | {size(count)} | {ms(medians[0])} | {ms(medians[1])} | {ms(medians[2])} "
                f"| {medians[2] / medians[0]:.2f} | {ms(best[0])} | {ms(best[1])} | {best[1] / best[0]:.2f} "
                f"| {cost * 1e6:.0f} us | {100 * cost / medians[1]:.1f} % |"
            )
    return "\n".join(text) + "\n"


def main() -> None:
    python, program, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    found: dict[tuple[int, int, str], list[dict]] = {}
    for _ in range(rounds):
        for world in WORLDS:
            for line in ours(program, world) + gloo(python, world):
                found.setdefault((world, line["bytes"], line["what"]), []).append(line)
    section = table(found, rounds)
    replace_section("bench/all_reduce", section)
    print(section)


if __name__ == "__main__":
    main()
