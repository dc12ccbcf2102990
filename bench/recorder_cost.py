"""What the flight recorder costs: the same all-reduce with recorders and without, by turns.

Two processes on loopback with the defaults (TLS, votes). Each round measures every size once with recorders and once
without (`outlast bench all-reduce --no-recorder`), in an order that changes from round to round. Prints the median over
the rounds of each, and of their ratio with its middle half.

usage: python bench/recorder_cost.py PROGRAM [ROUNDS]     PROGRAM: the outlast program, built in release
"""

import json
import statistics
import subprocess
import sys

SIZES = ["4KiB", "64KiB"]


def measure(program, recorded):
    """Median seconds of a call, for each size."""
    command = [program, "bench", "all-reduce", "--no-ring", "--seconds", "1", "--json", "--bytes", ",".join(SIZES)]
    if not recorded:
        command.append("--no-recorder")
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    return [json.loads(line)["median"] for line in told.splitlines()]


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    taken = {True: [], False: []}
    for number in range(rounds):
        for recorded in [True, False] if number % 2 else [False, True]:
            taken[recorded].append(measure(program, recorded))
    print(f"{rounds} rounds by turns; medians in us\n")
    print("| bytes | recorded | not recorded | ratio | middle half |")
    print("|--:|--:|--:|--:|--:|")
    for at, size in enumerate(SIZES):
        with_it, without = ([one[at] * 1e6 for one in taken[recorded]] for recorded in (True, False))
        ratios = sorted(one / other for one, other in zip(with_it, without, strict=True))
        low, _, high = statistics.quantiles(ratios, n=4)
        row = [statistics.median(with_it), statistics.median(without)]
        print(f"| {size} | {row[0]:.1f} | {row[1]:.1f} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} |")


if __name__ == "__main__":
    main()
