"""gloo's all-reduce over loopback, measured as `outlast bench all-reduce` measures ours: one line of JSON per size."""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BUDGET = 1.5


def member(rank: int, world: int, port: int, sizes: list[int]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for size in sizes:
        tensor = torch.zeros(size // 4, dtype=torch.float32)
        for _ in range(3):
            dist.all_reduce(tensor)
        start = time.perf_counter()
        dist.all_reduce(tensor)
        once = max(time.perf_counter() - start, 1e-6)
        wish = torch.tensor([float(min(max(int(BUDGET / once), 7), 1000)) if rank == 0 else 0.0])
        dist.all_reduce(wish)
        processor = time.process_time()
        times = []
        for _ in range(int(wish.item())):
            start = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - start)
        if rank == 0:
            processor = (time.process_time() - processor) / len(times)
            times.sort()
            line = {"world": world, "bytes": size, "median": statistics.median(times), "best": times[0], "processor": processor}
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    world = int(sys.argv[1])
    sizes = [int(text) for text in sys.argv[2:]] or [1 << power for power in range(12, 29, 2)]
    port = 20000 + os.getpid() % 20000
    mp.spawn(member, args=(world, port, sizes), nprocs=world)
