"""Keys and values that a death does not take away."""

import atexit
import reprlib
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self, TypeAlias

from outlast import _outlast
from outlast._process import OfThisProcess
from outlast.coordinator import Path, _run_id
from outlast.errors import InvalidArgument

Bytes: TypeAlias = str | bytes | bytearray | memoryview
"""A key or a value: bytes, or text that is taken as UTF-8."""

_OPEN: "weakref.WeakSet[Store]" = weakref.WeakSet()


def _bytes(name: str, value: Bytes) -> bytes:
    if isinstance(value, str):
        # What is no text comes from `bytes.decode` with the same rule, as the names of keys that are listed do.
        return value.encode(errors="surrogateescape")
    if isinstance(value, bytes):
        return value
    try:
        # Not `bytes(value)`: of a number that is so many zeros.
        return bytes(memoryview(value))
    except TypeError:
        raise TypeError(f"{name}={reprlib.repr(value)}: give str or bytes") from None


def _all(name: str, values: Bytes | Iterable[Bytes]) -> list[bytes]:
    if isinstance(values, str | bytes | bytearray | memoryview):
        return [_bytes(name, values)]
    if not isinstance(values, Iterable):
        raise TypeError(f"{name}={reprlib.repr(values)}: give str or bytes, or several of them")
    return [_bytes(name, value) for value in values]


class Store(OfThisProcess):
    """A member of a run's store.

    It holds a part of the keys for everybody, and can ask for all of them. Two members hold each key, so any one of
    them may die: what was acknowledged is still there. Operations on one key happen one after the other for everybody,
    and a call that had to be repeated internally takes effect once. Keys and values are bytes; text is taken as UTF-8.

    Every call takes a `timeout` in seconds, for all of it; `None` means the store's own.

    Args:
        coordinator: The coordinator of the run, `host:port`. Default: `OUTLAST_COORDINATOR`.
        run_id: The run. Default: `OUTLAST_RUN_ID`, or `"default"`.
        secret: The run's secret. Default: `OUTLAST_SECRET` or the file that `OUTLAST_SECRET_FILE` names.
        timeout: Seconds that joining may take, and each call that is not given a timeout of its own.
        name: A name for people. Default: the host's name and the process id.
        listen: Where to listen, `host:port`. Default: any address, a free port.
        advertise: The address that others should use, if it is not the one listened on.
        preset: Times for one kind of network: `"local"`, `"lan"` or `"wan"`. All members should use the same.
        direct: Whether members that have something to say to each other are linked directly. Otherwise messages are
            passed on through the mesh.
        shutdown_on_exit: Whether the store ends for all when this process is gone without a goodbye.
        accept_secret: One more secret that is accepted while the secret is rotated.
        tls: Paths of PEM files for streams under an authority of your own.

    >>> with outlast.Coordinator(listen="127.0.0.1:0") as coordinator:
    ...     with outlast.Store(coordinator.address, secret=coordinator.secret) as store:
    ...         store.set("model", b"7b")
    ...         store.get("model"), store.add("arrived", 1)
    (b'7b', 1)
    """

    def __init__(
        self,
        coordinator: str | None = None,
        run_id: str | None = None,
        secret: str | None = None,
        timeout: float = 300.0,
        *,
        name: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        preset: str = "lan",
        direct: bool = True,
        shutdown_on_exit: bool = False,
        accept_secret: str | None = None,
        tls: tuple[Path, Path, Path] | None = None,
    ) -> None:
        self._core = _outlast.Store(
            coordinator,
            _run_id(run_id),
            None,
            secret,
            timeout,
            name,
            listen,
            advertise,
            preset,
            direct,
            shutdown_on_exit,
            accept_secret,
            tls,
        )
        _OPEN.add(self)

    @classmethod
    def static(
        cls,
        address: str,
        rank: int,
        world_size: int,
        key: str = "",
        secret: str | None = None,
        timeout: float = 300.0,
        *,
        name: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        preset: str = "lan",
        direct: bool = True,
        shutdown_on_exit: bool = False,
    ) -> Self:
        """Join a store without a coordinator: rank 0 listens at `address` (`host:port`) and decides on views.

        Returns when all `world_size` processes are there. After that they may die and come back under their rank. While
        rank 0 is away, calls wait for it until their timeouts. Views need more than half of the members; of two, one
        goes on alone only if the other is certainly dead.

        Args:
            address: Where rank 0 listens.
            rank: The number of this process, from 0.
            world_size: How many there are.
            key: Tells stores at one address apart.
            secret: All of them must have the same. Default: `OUTLAST_SECRET` or the file that `OUTLAST_SECRET_FILE`
                names.
            timeout: Seconds that joining, and each call, may take.
            name: As for `Store`, like all that follow.
            listen: Where the others listen.
            advertise: The address that others should use.
            preset: Times for one kind of network.
            direct: Whether members are linked directly.
            shutdown_on_exit: Whether the store ends for all when this process is gone without a goodbye.
        """
        store = cls.__new__(cls)
        store._core = _outlast.Store(
            address,
            None,
            (rank, world_size, key),
            secret,
            timeout,
            name,
            listen,
            advertise,
            preset,
            direct,
            shutdown_on_exit,
            None,
            None,
        )
        _OPEN.add(store)
        return store

    def set(self, key: Bytes, value: Bytes, *, timeout: float | None = None) -> None:
        """Give a key a value. When it returns, two members have it."""
        self._core.set(_bytes("key", key), _bytes("value", value), timeout)

    def get(self, key: Bytes, timeout: float | None = None) -> bytes:
        """The value of a key, as soon as it has one."""
        return self._core.get(_bytes("key", key), timeout)

    def wait(self, keys: Bytes | Iterable[Bytes], timeout: float | None = None) -> None:
        """Wait until all of these keys have values."""
        self._core.wait(_all("keys", keys), timeout)

    def check(self, keys: Bytes | Iterable[Bytes], *, timeout: float | None = None) -> bool:
        """Whether all of these keys have values now."""
        return self._core.check(_all("keys", keys), timeout)

    def add(self, key: Bytes, amount: int, *, timeout: float | None = None) -> int:
        """Add to the number that a key holds as decimal text, and return the sum; no value counts as zero."""
        return self._core.add(_bytes("key", key), amount, timeout)

    def compare_set(self, key: Bytes, expected: Bytes, desired: Bytes, *, timeout: float | None = None) -> bytes:
        """Give a key the value `desired` if it has `expected`, and return the value that it has then.

        As in torch: a key without a value takes `desired` if `expected` is empty; otherwise `expected` is returned.
        """
        return self._core.compare_set(
            _bytes("key", key), _bytes("expected", expected), _bytes("desired", desired), timeout
        )

    def append(self, key: Bytes, value: Bytes, *, timeout: float | None = None) -> None:
        """Append to the value of a key."""
        self._core.append(_bytes("key", key), _bytes("value", value), timeout)

    def delete_key(self, key: Bytes, *, timeout: float | None = None) -> bool:
        """Delete the value of a key; returns whether it had one."""
        return self._core.delete_key(_bytes("key", key), timeout)

    def num_keys(self, *, timeout: float | None = None) -> int:
        """How many keys have values. Not atomic."""
        return self._core.num_keys(timeout)

    def multi_get(self, keys: Iterable[Bytes], *, timeout: float | None = None) -> list[bytes]:
        """The values of several keys, as soon as all have one. Not atomic."""
        return self._core.multi_get(_all("keys", keys), timeout)

    def multi_set(
        self,
        keys: Mapping[str, Bytes] | Iterable[Bytes],
        values: Iterable[Bytes] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Give several keys values: a mapping, or keys and values as in torch. Not atomic."""
        if isinstance(keys, Mapping):
            values = keys.values()
        names, contents = _all("keys", keys), [_bytes("values", value) for value in values or ()]
        if len(names) != len(contents):
            raise InvalidArgument(f"multi_set with {len(names)} keys and {len(contents)} values: give one for each key")
        self._core.multi_set(names, contents, timeout)

    def queue_push(self, key: Bytes, value: Bytes, *, timeout: float | None = None) -> None:
        """Put an element at the end of a queue. Queues and values may have the same names."""
        self._core.queue_push(_bytes("key", key), _bytes("value", value), timeout)

    def queue_pop(self, key: Bytes, block: bool = True, timeout: float | None = None) -> bytes | None:
        """Take the first element of a queue; wait for one, or return `None` if there is none and `block` is false."""
        return self._core.queue_pop(_bytes("key", key), block, timeout)

    def queue_len(self, key: Bytes, *, timeout: float | None = None) -> int:
        """How many elements a queue has."""
        return self._core.queue_len(_bytes("key", key), timeout)

    def keys(self, prefix: Bytes = b"", *, timeout: float | None = None) -> list[bytes]:
        """The keys that begin with `prefix` and have values, sorted. Not atomic."""
        return self._core.keys(_bytes("prefix", prefix), timeout)

    def leave(self) -> None:
        """Leave and hand over what this member holds; the store goes on without it. Leaving twice is not an error.

        Ctrl-C ends the wait for the others; the member has left all the same.
        """
        _OPEN.discard(self)
        self._core.leave()

    def shutdown(self) -> None:
        """End the store for all: every call that waits fails with "the store was shut down"."""
        self._core.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        try:
            view = self._core.view() if self._core.is_open() else None
            what = f"view {view[0]} of {len(view[1])} members" if view else "in no view"
        except Exception:
            what = "of another process"
        return f"<outlast.Store {what}>"


def _leave_all() -> None:
    """A program that ends leaves its stores; it does not end them for the others."""
    for store in list(_OPEN):
        try:
            store.leave()
        except BaseException:
            # A Ctrl-C is for the one that waits. Those behind it would otherwise end the store when they are dropped.
            continue


atexit.register(_leave_all)
