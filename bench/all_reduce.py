"""Runs ours and gloo by turns and writes one table into RESULTS.md: a machine's mood hits both alike."""

import json
import os
import subprocess
import sys

from results import middle, ms, replace_section, size

SIZES = [1 << power for power in (12, 14, 16, 18, 20, 22, 24, 26, 27, 28)]
WORLDS = (2, 4)


OURS = (["--no-ring"], ["--no-votes"], ["--no-votes", "--in-step"])


def ours(program: str, world: int) -> list[dict]:
    """Lines of `votes`, `ring` and `in step`, each measured in processes of its own, by turns for each size."""
    common = [program, "bench", "all-reduce", "--world", str(world), "--encryption", "off", "--seconds", "1", "--json"]
    return [line for count in SIZES for which in OURS for line in lines([*common, "--bytes", str(count), *which])]


def gloo(python: str, world: int) -> list[dict]:
    found = lines([python, "bench/gloo_all_reduce.py", str(world), *map(str, SIZES)])
    return [{**line, "what": "gloo"} for line in found]


def lines(command: list[str]) -> list[dict]:
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def table(found: dict[tuple[int, int, str], list[dict]], rounds: int) -> str:
    text = [
        "## No tax: all-reduce beside gloo\n",
        f"Made by `bench/all_reduce {rounds}` on {os.cpu_count()} cores: f32 sum in place between processes over plaintext TCP on",
        f"loopback (`outlast bench all-reduce --encryption off`, gloo of torch), {rounds} rounds of each by turns, each in processes",
        "of its own. *ring* is ours without votes; *in step* is the ring with a reduction of one number before each, so that",
        "members wait for each other as votes make them do. Milliseconds: the median of the rounds' medians, and the best",
        "single operation of all. *gloo / votes* above 1 means that ours is faster; *votes cost* is *votes* less *ring*.\n",
        "| N | bytes | votes | ring | in step | gloo | gloo / votes | best votes | best gloo | best gloo / best votes | votes cost | |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for world in WORLDS:
        for count in SIZES:
            all_lines = [found[world, count, what] for what in ("votes", "ring", "in step", "gloo")]
            votes, ring, step, other = (middle([line["median"] for line in lines]) for lines in all_lines)
            best, best_other = (min(line["best"] for line in lines) for lines in (all_lines[0], all_lines[3]))
            cost = votes - ring
            text.append(
                f"| {world} | {size(count)} | {ms(votes)} | {ms(ring)} | {ms(step)} | {ms(other)} "
                f"| {other / votes:.2f} | {ms(best)} | {ms(best_other)} | {best_other / best:.2f} "
                f"| {cost * 1e6:.0f} us | {100 * cost / ring:.1f} % |"
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
