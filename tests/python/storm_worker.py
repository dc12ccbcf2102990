"""One peer of the kill storm: reduces, checks every value, and keeps children alive as a data loader does."""

import json
import multiprocessing
import os
import sys
import time

import numpy as np
import outlast

SIZES = [1, 1_000, 16_384, 65_536, 262_144]
PATTERN = np.arange(max(SIZES), dtype=np.int64) % 1_000


def value(peer):
    """What a peer contributes, known to all from its id."""
    return int(peer[:8], 16)


def load(parent):
    """A data loader's worker: busy now and then, gone when its parent is."""
    while os.getppid() == parent:
        sum(range(1_000))
        time.sleep(0.05)


def say(**facts):
    print(json.dumps(facts | {"time": time.monotonic()}), flush=True)


def main(min_world, stop_file, forked):
    comm = outlast.Communicator(preset="local", timeout=60, listen="127.0.0.1:0")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=load, args=(os.getpid(),), daemon=True) for _ in range(forked)]
    for child in children:
        child.start()
    comm.connect(min_world=min_world)
    say(joined=comm.peer_id)
    before, commits = None, 0
    while True:
        # All members have seen the same commits since the last vote, so all choose the same size.
        count = SIZES[commits % len(SIZES)]
        x = PATTERN[:count] + value(comm.peer_id)
        try:
            receipt = comm.all_reduce(x)
            flag = np.array([os.path.exists(stop_file)], np.uint8)
            comm.all_reduce(flag, "max", tag=1)
            commits += 1
            if receipt.pending or comm.world_size < 2:
                comm.update_topology()
                commits = 0
        except outlast.RetryError as error:
            say(retry=repr(error))
            continue
        expected = PATTERN[:count] * len(receipt.contributors) + sum(map(value, receipt.contributors))
        if not np.array_equal(x, expected):
            say(wrong=count, contributors=receipt.contributors)
            sys.exit(3)
        if receipt.contributors != before:
            before = receipt.contributors
            say(contributors=before, attempts=receipt.attempts, seconds=receipt.seconds)
        if flag[0]:
            break
    say(done=True)
    comm.close()
    for child in children:
        child.terminate()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
