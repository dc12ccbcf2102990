"""Unmodified torchrun on our rendezvous: real agents, real workers, real kills."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from conftest import wait_until

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PATIENCE = 120.0
# Times that suit a test: a lost agent is missed after two seconds.
QUICK = "last_call_timeout=1,keep_alive_interval=0.5,keep_alive_max_attempt=4"

# Adds up ones until a file says stop, or does once what the environment asks for.
WORKER = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
while True:
    x = torch.tensor([1.0, float((folder / "stop").exists())])
    dist.all_reduce(x)
    assert x[0] == world, (x, world)
    print(f"STEP {rank}/{world} attempt {attempt} run {os.environ.get('OUTLAST_RUN_ID')}", flush=True)
    fails = folder / f"fail-{rank}"
    if fails.exists() and attempt < int(fails.read_text()):
        os.kill(os.getpid(), 9)
    if x[1] > 0:
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Agents:
    """Agents of one job, each with processes of its own."""

    def __init__(self, folder, endpoint, nodes, *options, **environment):
        self.folder, self.nodes, self.options = folder, nodes, options
        self.endpoint, self.environment = endpoint, environment
        (folder / "train.py").write_text(WORKER)
        self.running = []

    def start(self, workers=2):
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=outlast", "--rdzv-id=job"]
        command += [f"--rdzv-endpoint={self.endpoint}", f"--nnodes={self.nodes}", f"--nproc-per-node={workers}"]
        command += ["--local-addr=127.0.0.1", "--monitor-interval=0.1", *self.options]
        command += [str(self.folder / "train.py"), str(self.folder)]
        env = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"} | self.environment
        with open(self.folder / f"agent-{len(self.running)}.log", "w") as log:
            agent = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        self.running.append(agent)
        return len(self.running) - 1

    def log(self, number):
        return (self.folder / f"agent-{number}.log").read_text()

    def steps(self, number, world):
        return len(re.findall(rf"STEP \d+/{world} ", self.log(number)))

    def reaches(self, number, world, more=1):
        """Waits until workers of that agent add up in a world of that size, again."""
        before = self.steps(number, world)
        deadline = time.monotonic() + PATIENCE
        while self.steps(number, world) < before + more:
            assert time.monotonic() < deadline, f"no step of {world}:\n{self.log(number)[-4000:]}"
            time.sleep(0.05)

    def kill(self, number):
        """The agent and its workers, as a host that vanishes."""
        session = self.running[number].pid
        listed = subprocess.run(["ps", "-eo", "pid,sess"], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines()[1:]:
            pid, sess = map(int, line.split())
            if sess == session or pid == session:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        # Workers lead sessions of their own in some versions of torch; their parent is gone.
        self.running[number].wait()

    def stop(self):
        (self.folder / "stop").touch()

    def ends(self, number):
        return self.running[number].wait(PATIENCE)

    def close(self):
        for number, agent in enumerate(self.running):
            if agent.poll() is None:
                self.kill(number)


@pytest.fixture
def agents(tmp_path):
    made = []

    def make(nodes, *options, endpoint=None, **environment):
        endpoint = endpoint or f"127.0.0.1:{free_port()}"
        made.append(Agents(tmp_path, endpoint, nodes, f"--rdzv-conf={QUICK}", *options, **environment))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_two_agents_with_two_workers_each_train_and_end(agents):
    job = agents("2")
    job.start()
    job.start()
    job.reaches(0, 4)
    job.reaches(1, 4)
    assert "run job" in job.log(0), "workers are told the run"
    job.stop()
    assert [job.ends(0), job.ends(1)] == [0, 0]


def restarts(job, times):
    """Kills a worker of the second agent that many times; the job goes on each time."""
    (job.folder / "fail-2").write_text(str(times))
    job.start()
    job.start()
    # Only the agent whose worker fails counts it as an attempt.
    for attempt in range(times + 1):
        wait_until(lambda number=attempt: f"attempt {number} " in job.log(0) + job.log(1), PATIENCE)
    job.reaches(0, 4)
    job.reaches(1, 4)
    job.stop()
    assert [job.ends(0), job.ends(1)] == [0, 0]


def test_a_worker_that_is_killed_is_replaced_and_nobody_hangs(agents):
    restarts(agents("2", "--max-restarts=3"), 2)


@pytest.mark.soak
def test_fifty_restarts_without_one_hang(agents):
    restarts(agents("2", "--max-restarts=60"), 50)


@pytest.mark.soak
def test_fifty_restarts_beside_a_coordinator_that_runs_already(agents, coordinator):
    job = agents("2", "--max-restarts=60", endpoint=coordinator.address, OUTLAST_SECRET=coordinator.secret)
    restarts(job, 50)


def test_a_lost_agent_is_missed_and_another_one_takes_its_place(agents):
    job = agents("1:2", "--max-restarts=5")
    job.start()
    job.reaches(0, 2)
    lost = job.start()
    job.reaches(0, 4)
    job.kill(lost)
    job.reaches(0, 2)
    job.start()
    job.reaches(0, 4)
    job.stop()
    assert [job.ends(0), job.ends(2)] == [0, 0]


def test_scale_from_one_to_three_to_two(agents, coordinator):
    # A coordinator that runs already is used.
    job = agents("1:3", "--max-restarts=5", endpoint=coordinator.address, OUTLAST_SECRET=coordinator.secret)
    job.start()
    job.reaches(0, 2)
    job.start()
    job.start()
    job.reaches(0, 6)
    job.kill(1)
    job.reaches(0, 4)
    job.stop()
    assert [job.ends(0), job.ends(2)] == [0, 0]


def test_the_agent_of_rank_zero_is_killed_and_the_others_go_on(agents, coordinator):
    job = agents("1:3", "--max-restarts=5", endpoint=coordinator.address, OUTLAST_SECRET=coordinator.secret)
    for _ in range(3):
        job.start()
    job.reaches(0, 6)
    first = next(number for number in range(3) if "STEP 0/6" in job.log(number))
    job.kill(first)
    left = [number for number in range(3) if number != first]
    for number in left:
        job.reaches(number, 4)
    job.stop()
    assert [job.ends(number) for number in left] == [0, 0]


def test_agents_meet_in_a_store_that_they_keep_themselves(agents):
    job = agents("1:2", "--max-restarts=5", endpoint=f"store://127.0.0.1:{free_port()}")
    job.start(1)
    job.reaches(0, 1)
    lost = job.start(1)
    job.reaches(0, 2)
    job.kill(lost)
    job.reaches(0, 1)
    job.stop()
    assert job.ends(0) == 0


def test_a_backend_that_is_none_is_refused_by_name(agents):
    job = agents("1", endpoint="zookeeper://127.0.0.1:1")
    job.start(1)
    assert job.ends(0) != 0
    assert "zookeeper:// is not a backend of Outlast" in job.log(0)


def test_exit_codes_are_torchruns(agents):
    job = agents("1", "--max-restarts=0")
    (job.folder / "fail-0").write_text("9")
    job.start(1)
    assert job.ends(0) == 1
    assert "Signal 9" in job.log(0)


def test_without_a_secret_across_hosts_the_two_commands_are_told(agents):
    job = agents("2", endpoint="192.0.2.1:29400")
    job.start(1)
    assert job.ends(0) != 0
    log = job.log(0)
    assert "outlast secret new > run.secret" in log
    assert "--rdzv-endpoint=192.0.2.1:29400 --rdzv-conf secret_file=run.secret" in log


def test_torchs_own_dynamic_rendezvous_runs_on_our_backend(coordinator):
    from outlast.torch import RendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    def backend():
        return RendezvousBackend(coordinator.address, "dynamic", coordinator.secret)

    one, two = backend(), backend()
    assert one.name == "outlast"
    assert one.get_state() is None
    state, token, written = one.set_state(b"first")
    assert (state, written) == (b"first", True)
    assert two.set_state(b"second") == (b"first", token, False)
    assert two.set_state(b"second", token)[2]
    assert one.get_state()[0] == b"second"
    store = torch.distributed.HashStore()

    def meet(number):
        made = RendezvousBackend(coordinator.address, "meeting", coordinator.secret)
        handler = DynamicRendezvousHandler.from_backend("meeting", store, made, 2, 2, local_addr=f"host-{number}")
        handler._create_tcp_store_server = lambda *_: threading.Event()  # only ranks matter here
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        info = handler.next_rendezvous()
        return info.rank, info.world_size

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(meet, range(2))) == [(0, 2), (1, 2)]


@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_agents_meet_in_etcd(agents, tmp_path):
    client, peer = free_port(), free_port()
    command = ["etcd", "--data-dir", str(tmp_path / "etcd"), "--log-level", "panic"]
    command += ["--listen-client-urls", f"http://127.0.0.1:{client}"]
    command += ["--advertise-client-urls", f"http://127.0.0.1:{client}"]
    command += ["--listen-peer-urls", f"http://127.0.0.1:{peer}"]
    command += ["--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"]
    command += ["--initial-cluster", f"default=http://127.0.0.1:{peer}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as etcd:
        try:
            job = agents("2", endpoint=f"etcd://127.0.0.1:{client}")
            job.start(1)
            job.start(1)
            job.reaches(0, 2)
            job.stop()
            assert [job.ends(0), job.ends(1)] == [0, 0]
        finally:
            etcd.kill()


def test_importing_the_package_does_not_import_torch():
    program = "import outlast, outlast.torch, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", program]).returncode == 0
