"""Injects what a failed call can be blamed on, and writes how often the blame was right into RESULTS.md."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

from faults import version
from results import replace_section

CAUSES = {
    "dead": "a member gets SIGKILL; the others are in a call that does not retry",
    "stalled": "a member gets SIGSTOP, in the call or before it; the others' deadline passes before the stall budget",
    "not calling": "a member does not make the call",
    "slow link": "a member's links carry 2 Mbit/s; all call, 4 MiB in 5 s",
    "partition": "a member's host is cut off; the others are in a call that does not retry",
    "coordinator away": "the coordinator gets SIGKILL, and is not started again",
}
AT_ONCE = 5
ATTEMPTS = 3
WANTED = 0.95


def build(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the test program, so that whatever is built meanwhile does not change what is measured."""
    command = "cargo test --locked --all-features -p outlast --test lab_blame --no-run --message-format=json"
    built = subprocess.run(command.split(), stdout=subprocess.PIPE, text=True, check=True)
    facts = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    (program,) = [fact["executable"] for fact in facts if fact.get("executable")]
    return pathlib.Path(shutil.copy(program, folder / "lab_blame")).resolve()


def measure(program: pathlib.Path, cause: str, first: int, count: int) -> list[dict]:
    """So many rounds; fewer if the run ended early."""
    command = [program, "--ignored", "--exact", "table", "--nocapture"]
    env = os.environ | {
        "OUTLAST_BLAME_CAUSE": cause,
        "OUTLAST_BLAME_FIRST": str(first),
        "OUTLAST_BLAME_ROUNDS": str(count),
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("@wrong "):
            print(line, flush=True)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr, sep="\n", flush=True)
    told = [line.removeprefix("@round ") for line in done.stdout.splitlines() if line.startswith("@round ")]
    keys = ("cause", "number", "right", "judges")
    rounds = [dict(zip(keys, line.split("|"), strict=True)) for line in told]
    return [line | {key: int(line[key]) for key in keys[1:]} for line in rounds]


def row(cause: str, found: list[dict]) -> str:
    right, judges = sum(line["right"] for line in found), sum(line["judges"] for line in found)
    whole = sum(line["right"] == line["judges"] for line in found)
    share = 100 * right / judges
    return f"| {cause} | {CAUSES[cause]} | {len(found)} | {whole} | {right} of {judges} | {share:.0f} % |"


def table(found: dict[str, list[dict]], call: str) -> str:
    text = [
        "## What a failed call is blamed on\n",
        f"Made by `{call}` on {os.cpu_count()} cores, debug build: three workers on three hosts of a lab and a coordinator on a fourth,",
        "preset `lan`. Each round is a run of its own: one all-reduce goes well, then the cause is injected, ranks taking turns. (A stop",
        "waits for two seconds: a process that is stopped before its kernel's word counts is put out as silent.) A",
        "survivor is *right* if the word of its diagnosis is the cause, and its sentence names the member (for a slow link: the link,",
        "by the member that sends over it; the others must say that it is not their own). Wanted: 95 %.\n",
        "| cause | how it is injected | rounds | all right | survivors right | |",
        "|---|---|--:|--:|--:|--:|",
        *(row(cause, lines) for cause, lines in found.items() if lines),
    ]
    return "\n".join(text) + "\n"


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    causes = sys.argv[2:] or list(CAUSES)
    folder = pathlib.Path("target/bench-blame")
    folder.mkdir(parents=True, exist_ok=True)
    program = build(folder)
    kept = folder / f"{version()}.jsonl"
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    found = {cause: [line for line in lines if line["cause"] == cause] for cause in causes}
    for cause, have in found.items():
        attempts = ATTEMPTS
        while len(have) < rounds and attempts:
            wanted = min(AT_ONCE, rounds - len(have))
            fresh = measure(program, cause, len(have), wanted)
            with kept.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in fresh)
            have += fresh
            attempts -= len(fresh) < wanted
            print(f"{len(have)} of {rounds}: {row(cause, have) if have else cause}", flush=True)
        del have[rounds:]
    section = table(found, " ".join(["bench/blame", *sys.argv[1:]]))
    replace_section("bench/blame", section)
    print(section)
    if any(len(have) < rounds for have in found.values()):
        sys.exit("some rounds are missing: run the same command again")
    shares = [sum(line["right"] for line in have) / sum(line["judges"] for line in have) for have in found.values()]
    if min(shares) < WANTED:
        sys.exit("the blame is wrong too often")


if __name__ == "__main__":
    main()
