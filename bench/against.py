"""Runs two builds by turns and writes one table into RESULTS.md: a machine's mood hits both alike."""

import json
import os
import subprocess
import sys

from results import middle, ms, replace_section, size

SIZES = [1 << power for power in (12, 16, 20, 24, 26)]
WORLDS = (2, 4)
ENCRYPTION = ("on", "off")


def measure(program: str, world: int, encryption: str, count: int) -> float:
    """The median time of an all-reduce with votes, in seconds."""
    command = [program, "bench", "all-reduce", "--world", str(world), "--encryption", encryption, "--no-ring"]
    command += ["--seconds", "1", "--bytes", str(count), "--json"]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True).stdout
    return json.loads(output.splitlines()[0])["median"]


def table(found: dict[tuple[int, str, int], list[tuple[float, float]]], revision: str, rounds: int) -> str:
    text = [
        "## Before and after\n",
        f"Made by `bench/against {revision} {rounds}` on {os.cpu_count()} cores: f32 sum in place with votes between processes over",
        f"loopback, revision {revision} (*before*) and this tree (*after*) by turns, {rounds} rounds, each in processes of its own.",
        "Milliseconds: the median of the rounds' medians. *before / after* is the median of the rounds' ratios, with the",
        "quartiles; above 1 means that it became faster.\n",
        "| N | encryption | bytes | before | after | before / after | quartiles |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for (world, encryption, count), pairs in found.items():
        before, after = (middle([pair[which] for pair in pairs]) for which in (0, 1))
        ratios = sorted(pair[0] / pair[1] for pair in pairs)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        text.append(
            f"| {world} | {encryption} | {size(count)} | {ms(before)} | {ms(after)} "
            f"| {middle(ratios):.2f} | {low:.2f} to {high:.2f} |"
        )
    return "\n".join(text) + "\n"


def main() -> None:
    revision, older, newer, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    found: dict[tuple[int, str, int], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for world in WORLDS:
            for encryption in ENCRYPTION:
                for count in SIZES:
                    # Who goes first changes with each round: the second finds a warmer machine.
                    order = [(0, older), (1, newer)][:: 1 if number % 2 else -1]
                    times = dict((which, measure(program, world, encryption, count)) for which, program in order)
                    found.setdefault((world, encryption, count), []).append((times[0], times[1]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    section = table(found, revision, rounds)
    replace_section("bench/against", section)
    print(section)


if __name__ == "__main__":
    main()
