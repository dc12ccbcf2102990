"""Nodes that come and go meet in rounds, and agree on their ranks."""

import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from outlast import _outlast
from outlast._process import OfThisProcess
from outlast.coordinator import Path
from outlast.errors import InvalidArgument, RetryError
from outlast.store import Store


@dataclass(frozen=True, slots=True)
class Participant:
    """One node of a round."""

    node: str
    """Its name: host, process and number."""
    address: str
    """Where it can be reached, in words of its own; empty if it said nothing."""


@dataclass(frozen=True, slots=True)
class RendezvousInfo:
    """A round that is complete. All its participants were told the same, except for their ranks."""

    round: int
    """Its number."""
    rank: int
    """This node's."""
    world_size: int
    """How many participants it has."""
    participants: tuple[Participant, ...]
    """Everybody, by rank."""
    _join_store: Callable[[], Store] = field(repr=False, compare=False)

    @property
    def store(self) -> Store:
        """The store of this round, which its participants keep: no key of another round is in it.

        This node joins it when you first ask for it, and leaves it when it meets again, leaves, or is closed.

        Raises:
            InvalidArgument: The backend is an etcd, which has no coordinator to count a store's members; or the round
                is over.
        """
        return self._join_store()


@dataclass(frozen=True, slots=True)
class RendezvousEvent:
    """Something that happened, as this node saw it."""

    name: str
    """`joining`, `joined`, `waiting`, `node_lost`, `lease_lost`, `keep_alive_failed`, `closed`, `left` or `failed`."""
    message: str
    rank: int | None
    node_state: str
    """`INIT`, `RUNNING`, `SUCCEEDED` or `FAILED`, in torch's words."""
    error_trace: str | None
    run_id: str
    """The run."""
    host: str
    """Of the node that saw it, like the next two."""
    pid: int
    local_id: int
    """Which node of its process."""
    endpoint: str
    """The backend."""


def _place(
    backend: str,
    run_id: str | None,
    secret: str | None,
    accept_secret: str | None = None,
    tls: tuple[Path, Path, Path] | None = None,
) -> dict[str, Any]:
    return {"backend": backend, "run_id": run_id, "secret": secret, "accept_secret": accept_secret, "tls": tls}


def _coordinator(backend: str) -> str:
    """The coordinator that a backend names."""
    addresses = backend.strip().removeprefix("embedded://").removeprefix("store://")
    if "://" not in backend or addresses != backend.strip():
        return addresses.rstrip("/")
    raise InvalidArgument(
        f"info.store needs a coordinator, and the backend {backend!r} has none: make a store of your own with "
        "outlast.Store.static, at an address of rank 0"
    )


def _over(number: int) -> InvalidArgument:
    return InvalidArgument(f"round {number} is over for this node: its store was left with it")


class Rendezvous(OfThisProcess):
    """One node of a rendezvous. A separate thread renews its lease until it leaves.

    Args:
        backend: Who keeps what the nodes agree on. `embedded://host:port`: a coordinator (several addresses, separated
            by commas, are tried in turn). `store://host:port`: the nodes themselves, in a store whose members that
            coordinator counts. `etcd://host:port,..`: an etcd, followed by
            `?ca=FILE&cert=FILE&key=FILE&user=NAME:PASSWORD` if needed.
        run_id: Nodes of different runs never meet. Default: `OUTLAST_RUN_ID`, or `"default"`.
        min_nodes: The fewest participants of a round.
        max_nodes: The most; default: `min_nodes`.
        secret: The run's secret, for a coordinator. Default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`.
        address: Where this node can be reached, in words of its own; every participant of a round is told.
        host: The name of this host; default: its fully qualified name.
        join_timeout: Seconds to get into a round (600).
        last_call_timeout: Seconds for which a round that has enough participants is held open for more (30).
        close_timeout: Seconds that closing, or leaving, may take (30).
        heartbeat_timeout: Seconds after which a heartbeat counts as failed and is tried again (5).
        keep_alive_interval: Seconds between heartbeats (5).
        keep_alive_max_attempt: How many of them may be missed (3).
        accept_secret: One more secret that is accepted while the secret is rotated.
        tls: Paths of PEM files for streams under an authority of your own, as for `Communicator`.

    >>> with outlast.Coordinator(listen="127.0.0.1:0") as coordinator:
    ...     with outlast.Rendezvous(coordinator.address, min_nodes=1, secret=coordinator.secret) as node:
    ...         info = node.next_rendezvous()
    >>> info.rank, info.world_size, info.round
    (0, 1, 0)
    """

    def __init__(
        self,
        backend: str,
        run_id: str | None = None,
        min_nodes: int = 1,
        max_nodes: int | None = None,
        secret: str | None = None,
        *,
        address: str | None = None,
        host: str | None = None,
        join_timeout: float | None = None,
        last_call_timeout: float | None = None,
        close_timeout: float | None = None,
        heartbeat_timeout: float | None = None,
        keep_alive_interval: float | None = None,
        keep_alive_max_attempt: int | None = None,
        accept_secret: str | None = None,
        tls: tuple[Path, Path, Path] | None = None,
    ) -> None:
        times = {
            "join": join_timeout,
            "last_call": last_call_timeout,
            "close": close_timeout,
            "heartbeat": heartbeat_timeout,
            "keep_alive_interval": keep_alive_interval,
            "keep_alive_max_attempt": keep_alive_max_attempt,
        }
        place = _place(backend, run_id, secret, accept_secret, tls)
        self._place = place
        # The store of the present round, and what leaves it; a store that is merely dropped would end for all.
        self._round: int | None = None
        self._store: Store | None = None
        self._leave_store: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        # Whoever joins the store of the present round holds this one, another one for each round.
        self._joining = threading.Lock()
        most = min_nodes if max_nodes is None else max_nodes
        self._node = _outlast.Rendezvous(place, min_nodes, most, times, host or socket.getfqdn(), address)

    @property
    def name(self) -> str:
        """Who this node is: host, process and number."""
        return self._node.name

    def set_address(self, address: str) -> None:
        """Change the address that the others are told, from the next round on."""
        self._node.set_address(address)

    def next_rendezvous(self) -> RendezvousInfo:
        """Leave the round that this node is in, if any, and wait for the next one that it is in.

        Raises:
            RendezvousClosed: Somebody closed it for all.
            OperationTimeout: No round within `join_timeout`; this node is no longer in any list.
            Unauthorized: The backend does not accept this node as one of the run.
        """
        number, rank, rows = self._node.next_rendezvous()
        self._begin(number)
        participants = tuple(Participant(node, address) for node, address in rows)
        return RendezvousInfo(number, rank, len(participants), participants, lambda: self._store_of(number))

    def _begin(self, number: int | None) -> None:
        """That round begins; the store of the one before is left."""
        with self._lock:
            leave, self._leave_store = self._leave_store, lambda: None
            self._round, self._store = number, None
            self._joining = threading.Lock()
        leave()

    def _store_of(self, number: int) -> Store:
        # Joining may take minutes. Whoever meets again, or leaves, meanwhile does not wait for it: only those who want
        # the same store do.
        with self._lock:
            joining = self._joining
            if (store := self._joined(number)) is not None:
                return store
        with joining:
            with self._lock:
                if (store := self._joined(number)) is not None:
                    return store
            place = self._place
            store = Store(
                _coordinator(place["backend"]),
                self._node.run_of_round(number),
                place["secret"],
                accept_secret=place["accept_secret"],
                tls=place["tls"],
            )
            with self._lock:
                if self._round == number:
                    leave = weakref.finalize(self, store.leave)
                    leave.atexit = False  # a program that ends leaves all its stores
                    self._store, self._leave_store = store, leave
                    return store
        store.leave()
        raise _over(number)

    def _joined(self, number: int) -> Store | None:
        """The store of that round, if it was joined already. Needs the lock."""
        if self._round != number:
            raise _over(number)
        return self._store

    def num_nodes_waiting(self) -> int:
        """Nodes that wait for the next round, and participants of this one that are gone: above zero, meet again."""
        return self._node.num_nodes_waiting()

    def num_nodes(self) -> int:
        """Participants of the present round that live, as far as is known here."""
        return self._node.num_nodes()

    def is_closed(self) -> bool:
        """Whether the rendezvous is over for all, as far as is known here."""
        return self._node.is_closed()

    def set_closed(self) -> None:
        """End the rendezvous for all. A wait of this node for a round ends with it."""
        self._node.set_closed()

    def leave(self) -> None:
        """Leave the round without closing it for the others. This object can still be used."""
        self._begin(None)
        self._node.leave()

    def close(self) -> None:
        """Drop this node without a word; its lease runs out. Closing twice is not an error."""
        self._begin(None)
        self._node.close()

    def shutdown(self) -> bool:
        """Leave for good, without closing it for the others. True if they were told; leaving twice is not an error."""
        self._begin(None)
        try:
            self._node.shutdown()
        except RetryError:
            # The backend is away: this node's lease runs out by itself.
            return False
        return True

    def events(self) -> list[RendezvousEvent]:
        """What happened since the last call, oldest first; no more than 256 events."""
        return [RendezvousEvent(*row) for row in self._node.events()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        try:
            return f"<outlast.Rendezvous {'left' if self._node.has_left() else self._node.name}>"
        except Exception:
            return "<outlast.Rendezvous of another process>"
