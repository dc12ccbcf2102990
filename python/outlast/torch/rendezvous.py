"""`torchrun --rdzv-backend=outlast`: torch's agents meet by Outlast.

An unmodified torchrun finds this module by its entry point. Agents meet in milliseconds, a lost agent is noticed by
all others, every round has keys of its own (stale keys are why restarts hang) in a store that the agents keep
themselves, and a coordinator that is started again is found again.

The endpoint is a coordinator's, or an etcd (`etcd://host:port`); with `store://host:port` the agents keep what they
agree on themselves, and the coordinator at that address only counts them.

Options, as `--rdzv-conf key=value,..`:

| key | meaning |
|---|---|
| `secret_file` | a file with the run's secret; otherwise `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE` |
| `is_host` | `1`: start the coordinator here, `0`: do not; default: if the endpoint's address is one of this host |
| `ca`, `cert`, `key`, `user` | for `--rdzv-endpoint=etcd://host:port`: files in PEM, and `name:password` |
| `join_timeout`, `last_call_timeout`, `close_timeout`, `heartbeat_timeout` | seconds, as torch's |
| `keep_alive_interval`, `keep_alive_max_attempt` | how soon a lost agent is missed: 5 s times 3 |
| `read_timeout` | seconds that a store waits for a key (60) |
"""

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.events import NodeState, construct_and_record_rdzv_event
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous import RendezvousHandler as _TorchHandler
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend as _TorchBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import Token
from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname, parse_rendezvous_endpoint

import outlast
from outlast import _outlast
from outlast.rendezvous import Rendezvous, _place
from outlast.torch._local import LocalFiles, is_loopback
from outlast.torch.store import Store

log = logging.getLogger(__name__)

NAME = "outlast"
DEFAULT_PORT = 29400
# How long the agent that hosts the coordinator waits for the others to leave before it.
_LAST_ONE_OUT = 10.0
# How long one attempt to reach the store of rank 0 may take.
_STORE_ATTEMPT = 5.0


def handler() -> Callable[[RendezvousParameters], "RendezvousHandler"]:
    """What torchrun calls by the entry point: returns the function that makes handlers."""
    return create_handler


def create_handler(params: RendezvousParameters) -> "RendezvousHandler":
    """A handler for these parameters of torchrun."""
    try:
        return RendezvousHandler(params)
    except outlast.OutlastError as error:
        raise RendezvousError(str(error)) from error


def _run_id(text: str) -> str:
    """Torch takes any text for a run id; what ours cannot be is hashed."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        return text
    return "torchrun-" + sha256(text.encode()).hexdigest()[:32]


class _Place:
    """Where agents meet: a coordinator, started here if this is its host, or an etcd."""

    def __init__(self, params: RendezvousParameters) -> None:
        self.run_id = _run_id(params.run_id)
        self.coordinator: outlast.Coordinator | None = None
        self.preset: str | None = None  # of a coordinator, which an etcd is not
        self.secret: str | None = None
        self._files: LocalFiles | None = None
        if params.endpoint.startswith(("etcd:", "etcds:")):
            keys = [key for key in ("ca", "cert", "key", "user") if params.get(key)]
            settings = "&".join(f"{key}={params.get(key)}" for key in keys)
            self.address = params.endpoint
            self.backend = params.endpoint + (f"?{settings}" if settings else "")
            return
        scheme, _, endpoint = params.endpoint.rpartition("://")
        scheme = scheme or "embedded"
        if scheme not in ("embedded", "store"):
            raise RendezvousError(f"{scheme}:// is not a backend of Outlast: use host:port, store:// or etcd://")
        host, port = parse_rendezvous_endpoint(endpoint, default_port=DEFAULT_PORT)
        self.address = _join(host, port)
        self.backend = f"{scheme}://{self.address}"
        self.preset = "local" if is_loopback(host) else "lan"
        self._meet_at_a_coordinator(params, host, port)

    def _meet_at_a_coordinator(self, params: RendezvousParameters, host: str, port: int) -> None:
        wanted = params.get_as_bool("is_host")
        is_host = _matches_machine_hostname(host) if wanted is None else wanted
        if is_loopback(host):
            self._files = LocalFiles(f"{port}-{self.run_id}")
        self.secret = _secret(params, self._files)
        if is_host:
            self._host(host, port, insists=wanted is True)
        os.environ["OUTLAST_COORDINATOR"] = self.address
        os.environ["OUTLAST_RUN_ID"] = self.run_id
        os.environ["OUTLAST_SECRET"] = self.secret
        os.environ.pop("OUTLAST_SECRET_FILE", None)

    def _host(self, host: str, port: int, insists: bool) -> None:
        """Start the coordinator here, unless one is here already."""
        local = is_loopback(host)
        listen = f"{'127.0.0.1' if local else '0.0.0.0'}:{port}"
        # A key of its own says that nobody can have been here before: then nobody is waited for.
        key_file = LocalFiles(f"{port}-{self.run_id}").key_file()
        try:
            self.coordinator = outlast.Coordinator(
                listen, secret=self.secret, preset=self.preset or "lan", key_file=key_file
            )
        except outlast.FatalError as error:
            if insists:
                raise RendezvousConnectionError(f"the coordinator cannot be started here: {error}") from error
            log.info("Using the coordinator that is at %s already: %s", self.address, error)
            return
        self.key_file = key_file
        message = f"Process {os.getpid()} hosts the coordinator at {self.address}."
        construct_and_record_rdzv_event(run_id=self.run_id, message=message, node_state=NodeState.INIT)
        log.info(message)

    def join_store(self, timeout: float) -> Store | None:
        """The store of all agents of the run; none where no coordinator counts its members."""
        if self.preset is None:
            return None
        # Workers may have a store of the run, and end it: the agents' is another one.
        run_id = _run_id(f"{self.run_id}.agents")
        return Store(self.address, run_id, self.secret, timeout, preset=self.preset)

    def close(self) -> None:
        """Stop the coordinator, if it is ours."""
        if self.coordinator is not None:
            self.coordinator.close()
            # Nobody comes back to a run that has ended: the next one begins afresh.
            self.key_file.unlink(missing_ok=True)
            self.coordinator = None


def _secret(params: RendezvousParameters, files: LocalFiles | None) -> str:
    path = params.get("secret_file") or os.environ.get("OUTLAST_SECRET_FILE")
    if params.get("secret_file") is None and os.environ.get("OUTLAST_SECRET"):
        return os.environ["OUTLAST_SECRET"]
    if path:
        try:
            with open(path, encoding="utf-8") as file:
                return file.read().strip()
        except OSError as error:
            raise RendezvousError(f"the secret file {path!r} cannot be read: {error}") from error
    if files is not None:
        return files.secret()
    if params.max_nodes == 1:
        return outlast.new_secret()
    raise RendezvousError(
        f"agents on several hosts need the run's secret, and there is none. Make one and copy it to every host:\n"
        f"    outlast secret new > run.secret\n"
        f"Then start torchrun with it on every host:\n"
        f"    torchrun --rdzv-backend=outlast --rdzv-endpoint={params.endpoint} --rdzv-conf secret_file=run.secret .."
    )


class RendezvousHandler(_TorchHandler):
    """Torch's handler, on Outlast's rendezvous. torchrun makes it; see this module for its options."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._run_id = params.run_id
        self._place = _Place(params)
        self._local_addr = params.local_addr or socket.getfqdn()
        self._read_timeout = float(params.get("read_timeout", 60))
        # What this agent serves for the workers of its rounds, and what the agents keep among themselves.
        self._served: list[dist.Store] = []
        self._agents: Store | None = None
        times: dict[str, Any] = {}
        for key in ("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval"):
            if params.get(key) is not None:
                times[key] = float(params.get(key))
        if params.get("keep_alive_max_attempt") is not None:
            times["keep_alive_max_attempt"] = params.get_as_int("keep_alive_max_attempt")
        times.setdefault("close_timeout", _LAST_ONE_OUT)
        self._join_timeout: float = times.get("join_timeout", 600.0)
        self._node = Rendezvous(
            self._place.backend,
            self._place.run_id,
            params.min_nodes,
            params.max_nodes,
            secret=self._place.secret,
            **times,
        )

    def get_backend(self) -> str:
        """The name that torchrun knows it by."""
        return NAME

    def get_run_id(self) -> str:
        """As it was given to torchrun."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Workers meet in a store of their round that rank 0's agent serves for them: no port is guessed."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other agents. The keys of the store are this round's own: none of an earlier round is among them."""
        deadline = time.monotonic() + self._join_timeout
        while True:
            with socket.create_server(("", 0), family=_family(self._local_addr), backlog=2048) as listener:
                port = listener.getsockname()[1]
                self._call(self._node.set_address, _join(self._local_addr, port))
                info = self._call(self._node.next_rendezvous)
                host, master_port = _split(info.participants[0].address)
                if self._agents is None:
                    self._agents = self._call(self._place.join_store, self._read_timeout)
                served = self._serve(listener.detach(), host, master_port) if info.rank == 0 else None
            found = self._agents or served or self._reach(host, master_port, deadline)
            if found is None:
                # Rank 0 was lost between its word and its store: meet again without it.
                log.warning("The store of round %s was lost with its host; meeting again.", info.round)
                continue
            # The store of the round before may still be read by somebody who leaves it.
            self._served = [*self._served[-1:], served or found]
            prefixed = dist.PrefixStore(f"torch.rendezvous.{self._place.run_id}.{info.round}", found)
            os.environ["OUTLAST_ROUND"] = str(info.round)
            return RendezvousInfo(prefixed, info.rank, info.world_size, RendezvousStoreInfo(host, master_port))

    def _serve(self, descriptor: int, host: str, port: int) -> dist.TCPStore:
        timeout = timedelta(seconds=self._read_timeout)
        return dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=descriptor
        )

    def _reach(self, host: str, port: int, deadline: float) -> dist.TCPStore | None:
        """The store of rank 0; `None` if rank 0 is gone."""
        while True:
            attempt = min(_STORE_ATTEMPT, self._read_timeout)
            try:
                store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=attempt))
            except (ValueError, RuntimeError, TimeoutError) as error:
                if self._node.num_nodes_waiting() > 0:
                    return None
                if time.monotonic() > deadline:
                    raise RendezvousConnectionError(f"the store of rank 0 at {host}:{port}: {error}") from error
            else:
                store.set_timeout(timedelta(seconds=self._read_timeout))
                return store

    def is_closed(self) -> bool:
        """Whether the rendezvous is over for all."""
        return self._call(self._node.is_closed)

    def set_closed(self) -> None:
        """End it for all."""
        self._call(self._node.set_closed)

    def num_nodes_waiting(self) -> int:
        """Agents that wait, and agents of this round that are gone."""
        return self._call(self._node.num_nodes_waiting)

    def shutdown(self) -> bool:
        """Leave. An agent whose work is done ends the rendezvous for all; one that gives up does not."""
        # torchrun calls this on its way out. If that is an error's way, the others may still go on.
        gives_up = sys.exc_info()[0] is not None
        try:
            # While the coordinator is there: it may end with the last agent of the rendezvous.
            if self._agents is not None:
                self._agents.leave()
            if not gives_up:
                self._node.set_closed()
            self._node.leave()
            if self._place.coordinator is not None and not gives_up:
                self._wait_for_the_others()
        except outlast.OutlastError as error:
            log.warning("Leaving the rendezvous failed; the others miss this agent soon: %s", error)
            return False
        finally:
            self._record()
            self._node.close()
            self._place.close()
        return True

    def _wait_for_the_others(self) -> None:
        """Who hosts the coordinator goes last, so that the others can say goodbye."""
        deadline = time.monotonic() + _LAST_ONE_OUT
        while self._node.num_nodes() > 0 and time.monotonic() < deadline:
            time.sleep(0.02)

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except outlast.RendezvousClosed as error:
            raise RendezvousClosedError(str(error)) from error
        except outlast.OperationTimeout as error:
            raise RendezvousTimeoutError(str(error)) from error
        except (outlast.Unauthorized, dist.DistStoreError) as error:
            raise RendezvousConnectionError(str(error)) from error
        except outlast.OutlastError as error:
            raise RendezvousError(str(error)) from error
        finally:
            self._record()

    def _record(self) -> None:
        """Pass events on to torch's own record."""
        try:
            events = self._node.events()
        except outlast.OutlastError:
            return
        for event in events:
            trace = f": {event.error_trace}" if event.error_trace else ""
            construct_and_record_rdzv_event(
                run_id=self._run_id,
                message=f"[{event.name}] {event.message}{trace}",
                node_state=NodeState[event.node_state],
                name=f"outlast.{event.name}",
                hostname=event.host,
                pid=event.pid,
                master_endpoint=self._place.address,
                local_id=event.local_id,
                rank=event.rank,
            )


class RendezvousBackend(_TorchBackend):
    """Torch's own dynamic rendezvous on a register of Outlast; give it to `DynamicRendezvousHandler.from_backend`.

    Args:
        backend: As of `outlast.Rendezvous`.
        run_id: The run.
        secret: The run's secret, for a coordinator.
        timeout: Seconds that one call may take.
    """

    def __init__(self, backend: str, run_id: str, secret: str | None = None, timeout: float = 60.0) -> None:
        place = _place(backend, _run_id(run_id), secret)
        self._register = _outlast.Register(place, "torch-dynamic", None)
        self._timeout = timeout

    @property
    def name(self) -> str:
        """The name of this backend."""
        return NAME

    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and its token; `None` if there is none yet."""
        try:
            value, token = self._register.read(self._timeout)
        except outlast.OutlastError as error:
            raise RendezvousConnectionError(str(error)) from error
        return None if value is None else (value, token)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write, if the token is the last one: what there is now, and whether it was written."""
        expected = token if isinstance(token, tuple) else (0, 0)
        try:
            written, (value, now) = self._register.write(expected, state, self._timeout)
        except outlast.OutlastError as error:
            raise RendezvousConnectionError(str(error)) from error
        return None if value is None else (value, now, written)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
