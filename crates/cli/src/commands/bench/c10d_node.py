"""One node of torch's dynamic rendezvous on its c10d backend; speaks as `outlast bench rendezvous` expects."""

import sys
import time

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

port, run, nodes, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
params = RendezvousParameters(
    backend="c10d",
    endpoint=f"127.0.0.1:{port}",
    run_id=run,
    min_nodes=nodes,
    max_nodes=nodes,
    is_host=number == 0,
)
handler = get_rendezvous_handler(params)
handler.is_closed()
while True:
    print("@0", flush=True)
    if not sys.stdin.readline():
        break
    arrived = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    info = handler.next_rendezvous()
    completed = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    print(f"@{arrived} {completed} {info.rank} 0", flush=True)
