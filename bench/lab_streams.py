"""Runs all-reduce over a lab's links with one stream and with several, and writes one table into RESULTS.md."""

import json
import subprocess
import sys

from results import middle, replace_section

LINKS = [
    ("0.05 % of packets lost, 4 ms round trip, reno", "--rate 1gbit --delay 2ms --loss 0.05% --congestion reno --bytes 16MiB"),
    ("100 ms round trip, no loss, the machine's own congestion control", "--rate 1gbit --delay 50ms --queue 200ms --bytes 64MiB"),
    ("0.2 ms round trip, no loss: one stream fills it", "--rate 1gbit --delay 100us --bytes 16MiB"),
]
CALLS = {1: 3, 8: 45}


def measure(program: str, link: str, streams: int) -> tuple[float, float]:
    """What plain streams carried, and what the link of the ring did, in Mbit/s."""
    options = f"bench all-reduce --world 2 {link} --streams {streams} --warm-up {CALLS[streams]} --seconds 8 --json"
    done = subprocess.run([program, *options.split()], stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    plain = middle([line["bits_per_second"] for line in lines if line["what"] == "streams"])
    call = next(line for line in lines if line["what"] == "votes")
    # Between two members each link carries the tensor once.
    return plain / 1e6, call["bytes"] * 8 / call["median"] / 1e6


def main() -> None:
    text = [
        "## Several streams where one does not fill the link\n",
        "Made by `bench/lab_streams`: two hosts of a lab, 1 Gbit/s, encrypted links with votes, f32. What the link carried during the",
        "median call, with one stream allowed and with up to eight after 45 calls in which the ends found out how many help; *plain* is",
        "one plain TCP stream each way in the same run.\n",
        "| link | plain, Mbit/s | one stream | up to eight | gain |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, link in LINKS:
        plain, one = measure(sys.argv[1], link, 1)
        _, several = measure(sys.argv[1], link, 8)
        text.append(f"| {name} | {plain:.0f} | {one:.0f} | {several:.0f} | {several / one:.2f} |")
        print(text[-1], flush=True)
    replace_section("bench/lab_streams", "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
