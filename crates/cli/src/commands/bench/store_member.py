"""One member of a store that is measured from Python; speaks as `outlast bench store` expects."""

import datetime
import sys
import time

name, address, rank, members, value_bytes = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
host, port = address.rsplit(":", 1)
timeout = datetime.timedelta(seconds=60)
if name == "torch":
    from torch.distributed import TCPStore

    store = TCPStore(host, int(port), members, rank == 0, timeout, wait_for_workers=False, use_libuv=True)
elif name == "moodist":
    import torch.distributed
    from moodist import TcpStore

    store = TcpStore(host, int(port), "bench", members, rank, timeout)
else:
    import outlast

    store = outlast.Store(address, timeout=60.0)

KEYS = 32
TOLD = 200
value = b"v" * value_bytes
clock = time.perf_counter_ns


def barrier(key):
    if name == "moodist":
        store.set(f"{key}/{rank}", b"")
        store.wait([f"{key}/{other}" for other in range(members)])
    elif store.add(key, 1) == members:
        store.set(key + "/open", b"")
    else:
        store.wait([key + "/open"])


def operate(kind, turn, number):
    if kind == "pairs":
        key = f"pair/{rank}/{number % KEYS}"
        store.set(key, value)
        store.get(key)
    elif kind == "add":
        store.add("counter", 1)
    elif kind == "spread":
        key = f"spread/{turn}/{number}"
        if number % members == rank:
            store.set(key, value)
        else:
            store.get(key)
    elif kind == "barrier":
        barrier(f"barrier/{turn}/{number}")
    else:
        key = f"get/{(rank + 1 + number) % members}/{number * 7 % KEYS}"
        if kind == "get":
            store.get(key)
        else:
            store.check([key])


for number in range(KEYS):
    store.set(f"get/{rank}/{number}", value)
barrier("there")
for member in range(members):
    for number in range(KEYS):
        store.get(f"get/{member}/{number}")
print("@0", flush=True)
for line in sys.stdin:
    kind, turn, lasts, many = line.split()
    is_common = kind in ("barrier", "spread")
    many = int(many) if is_common else sys.maxsize
    lasts = 60e9 if is_common else float(lasts) * 1e9
    times = []
    begun = before = clock()
    while len(times) < many and before - begun < lasts:
        operate(kind, turn, len(times))
        now = clock()
        times.append(now - before)
        before = now
    times.sort()
    told = [times[at * (len(times) - 1) // (TOLD - 1)] for at in range(TOLD)]
    print(f"@{len(times)} {begun} {before} " + " ".join(map(str, told)), flush=True)
if name == "outlast-python":
    store.leave()
