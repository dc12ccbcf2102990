"""Runs all-reduce over a lab's links and writes one table into RESULTS.md."""

import json
import subprocess
import sys

from results import middle, replace_section, size

COMMAND = "bench all-reduce --world 4 --rate 1gbit --delay 100us --bytes 16MiB,64MiB --types f32,bf16,int8,int4 --seconds 6"
WANTED = {"bf16": 1.8, "int8": 3.3, "int4": 6.0}


def main() -> None:
    program = sys.argv[1]
    done = subprocess.run([program, *COMMAND.split(), "--json"], stdout=subprocess.PIPE, text=True, timeout=900, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    goodput = middle([line["bits_per_second"] for line in lines if line["what"] == "streams"])
    text = [
        "## A full link: all-reduce by type over 1 Gbit/s\n",
        f"Made by `bench/lab_rates` (`outlast {COMMAND}`): four hosts of a lab, encrypted links, with votes. Plain TCP streams from",
        f"each host to the next, all at once in the same run, carried {goodput / 1e6:.0f} Mbit/s each (the median of the slowest); the ring's bound is",
        "2 (N - 1) / N of the tensor at that speed. Medians; rates count elements, as many of each type. Wanted: 95 % of the bound,",
        "and 1.8, 3.3 and 6 times the rate of f32.\n",
        "| elements as f32 | type | ms | million elements/s | of the bound | times f32 | wanted |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    figures = [line for line in lines if line["what"] == "votes"]
    for line in figures:
        plain = next(other for other in figures if (other["bytes"], other["type"]) == (line["bytes"], "f32"))
        world, seconds = line["world"], line["median"]
        bound = 2 * (world - 1) / world * line["bytes"] * 8 / goodput
        is_plain = line["type"] == "f32"
        share = f"{100 * bound / seconds:.1f} %" if is_plain else ""
        factor = "" if is_plain else f"{plain['median'] / seconds:.2f}"
        wanted = "95 %" if is_plain else WANTED[line["type"]]
        rate = line["bytes"] / 4 / seconds / 1e6
        text.append(
            f"| {size(line['bytes'])} | {line['type']} | {seconds * 1e3:.1f} | {rate:.1f} | {share} | {factor} | {wanted} |"
        )
    section = "\n".join(text) + "\n"
    replace_section("bench/lab_rates", section)
    print(section)


if __name__ == "__main__":
    main()
