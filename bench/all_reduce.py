"""Runs our ring and gloo by turns and prints one table: a machine's mood hits both alike."""

import json
import subprocess
import sys

SIZES = [1 << power for power in (12, 14, 16, 18, 20, 22, 24, 26, 28)]
WORLDS = (2, 4)


def measure(command: list[str], world: int) -> list[dict]:
    arguments = [str(world), *map(str, SIZES)]
    output = subprocess.run(command + arguments, capture_output=True, text=True, timeout=600, check=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def main() -> None:
    python, ring, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    contenders = {"ours": [ring], "gloo": [python, "bench/gloo_all_reduce.py"]}
    found: dict[tuple[int, int, str], list[dict]] = {}
    for _ in range(rounds):
        for world in WORLDS:
            for name, command in contenders.items():
                for line in measure(command, world):
                    found.setdefault((world, line["bytes"], name), []).append(line)
    print(f"Median of {rounds} runs' medians, best of all, processor time of rank 0; milliseconds.\n")
    print("| N | bytes | ours | gloo | gloo / ours | best ours | best gloo | processor ours | processor gloo |")
    print("|---|---|---|---|---|---|---|---|---|")
    for world in WORLDS:
        for count in SIZES:
            ours, gloo = found[world, count, "ours"], found[world, count, "gloo"]
            figures = [
                *(middle([line["median"] for line in lines]) for lines in (ours, gloo)),
                *(min(line["best"] for line in lines) for lines in (ours, gloo)),
                *(middle([line["processor"] for line in lines]) for lines in (ours, gloo)),
            ]
            a, b, c, d, e, f = (f"{value * 1e3:.3f}" for value in figures)
            print(f"| {world} | {size(count)} | {a} | {b} | {figures[1] / figures[0]:.2f} | {c} | {d} | {e} | {f} |")


if __name__ == "__main__":
    main()
