"""A `torch.distributed.Store` that the processes keep themselves, so that no death takes it away.

```python
store = outlast.torch.Store("10.0.0.1:29400", run_id="job")                        # as a member of a run
store = outlast.torch.Store.static("10.0.0.1:29500", rank=rank, world_size=world)    # without a coordinator
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
```

Torch's C++ calls the methods of this class from threads of its own, and holds on to a store without Python's knowledge.
So every object made here is kept for as long as the process lives; a clone shares the member that it is a clone of.

Torch's `PrefixStore` passes everything on but queues and `list_keys`, which it refuses for any store written in Python.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

import outlast
from outlast.coordinator import Path
from outlast.store import Bytes

# C++ alone may hold a store; what Python knows of it would be collected.
_KEPT: "list[Store]" = []


class Store(dist.Store):
    """Torch's store on `outlast.Store`: two members hold each key, and any one of them may die.

    Args:
        coordinator: The coordinator of the run, `host:port`. Default: `OUTLAST_COORDINATOR`.
        run_id: The run. Default: `OUTLAST_RUN_ID`, or `"default"`.
        secret: The run's secret. Default: `OUTLAST_SECRET` or the file that `OUTLAST_SECRET_FILE` names.
        timeout: Seconds, or a `timedelta`, that joining and each call may take; torch's `set_timeout` changes it.
        name: A name for people; this and the following as for `outlast.Store`.
        listen: Where to listen.
        advertise: The address that others should use.
        preset: Times for one kind of network.
        direct: Whether members are linked directly.
        shutdown_on_exit: Whether the store ends for all when this process is gone without a goodbye.
        accept_secret: One more secret that is accepted while the secret is rotated.
        tls: Paths of PEM files for streams under an authority of your own.

    Raises:
        torch.distributed.DistStoreError: What torch expects of a store that does not answer in time, or is over; the
            error behind it (`__cause__`) is Outlast's. `QueueEmptyError` of a queue that is empty.
    """

    def __init__(
        self,
        coordinator: str | None = None,
        run_id: str | None = None,
        secret: str | None = None,
        timeout: float | timedelta = 300.0,
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
        with _as_torch_says():
            member = outlast.Store(
                coordinator,
                run_id,
                secret,
                _seconds(timeout),
                name=name,
                listen=listen,
                advertise=advertise,
                preset=preset,
                direct=direct,
                shutdown_on_exit=shutdown_on_exit,
                accept_secret=accept_secret,
                tls=tls,
            )
        self._hold(member, timeout)

    @classmethod
    def static(
        cls,
        address: str,
        rank: int,
        world_size: int,
        key: str = "",
        secret: str | None = None,
        timeout: float | timedelta = 300.0,
        **options: Any,
    ) -> Self:
        """Join a store without a coordinator: rank 0 listens at `address`. As `outlast.Store.static`."""
        with _as_torch_says():
            member = outlast.Store.static(address, rank, world_size, key, secret, _seconds(timeout), **options)
        return cls.of(member, timeout)

    @classmethod
    def of(cls, member: outlast.Store, timeout: float | timedelta = 300.0) -> Self:
        """Torch's face of a member that has joined already."""
        store = cls.__new__(cls)
        store._hold(member, timeout)
        return store

    def _hold(self, member: outlast.Store, timeout: float | timedelta) -> None:
        super().__init__()
        self._member = member
        self.set_timeout(timedelta(seconds=_seconds(timeout)))
        _KEPT.append(self)

    @property
    def member(self) -> outlast.Store:
        """The member behind it."""
        return self._member

    def clone(self) -> Self:
        """Another object on the same member, which many threads may use."""
        return type(self).of(self._member, self.timeout)

    def set(self, key: Bytes, value: Bytes) -> None:
        """Give a key a value. When it returns, two members have it."""
        with _as_torch_says():
            self._member.set(key, value, timeout=self._limit())

    def get(self, key: Bytes) -> bytes:
        """The value of a key, as soon as it has one."""
        with _as_torch_says():
            return self._member.get(key, self._limit())

    def wait(self, keys: Sequence[Bytes], timeout: timedelta | None = None) -> None:
        """Wait until all of these keys have values."""
        with _as_torch_says():
            self._member.wait(keys, self._limit(timeout))

    def check(self, keys: Sequence[Bytes]) -> bool:
        """Whether all of these keys have values now."""
        with _as_torch_says():
            return self._member.check(keys, timeout=self._limit())

    def add(self, key: Bytes, amount: int) -> int:
        """Add to the number that a key holds, and return the sum."""
        with _as_torch_says():
            return self._member.add(key, amount, timeout=self._limit())

    def compare_set(self, key: Bytes, expected: Bytes, desired: Bytes) -> bytes:
        """Give a key the value `desired` if it has `expected`, and return the value that it has then."""
        with _as_torch_says():
            return self._member.compare_set(key, expected, desired, timeout=self._limit())

    def delete_key(self, key: Bytes) -> bool:
        """Take the value of a key away; whether it had one."""
        with _as_torch_says():
            return self._member.delete_key(key, timeout=self._limit())

    def num_keys(self) -> int:
        """How many keys have values."""
        with _as_torch_says():
            return self._member.num_keys(timeout=self._limit())

    def list_keys(self) -> list[str]:
        """All keys that have values."""
        with _as_torch_says():
            keys = self._member.keys(b"", timeout=self._limit())
            return [key.decode(errors="surrogateescape") for key in keys]

    def has_extended_api(self) -> bool:
        """Append, multi_get and multi_set are there."""
        return True

    def append(self, key: Bytes, value: Bytes) -> None:
        """Write behind the value of a key."""
        with _as_torch_says():
            self._member.append(key, value, timeout=self._limit())

    def multi_get(self, keys: Sequence[Bytes]) -> list[bytes]:
        """The values of several keys, as soon as all have one."""
        with _as_torch_says():
            return self._member.multi_get(keys, timeout=self._limit())

    def multi_set(self, keys: Sequence[Bytes], values: Sequence[Bytes]) -> None:
        """Give several keys values."""
        with _as_torch_says():
            self._member.multi_set(keys, values, timeout=self._limit())

    def queue_push(self, key: Bytes, value: Bytes) -> None:
        """Put an element behind the last of a queue."""
        with _as_torch_says():
            self._member.queue_push(key, value, timeout=self._limit())

    def queue_pop(self, key: Bytes, block: bool = True) -> bytes:
        """Take the first element of a queue; wait for one, unless `block` is false."""
        with _as_torch_says():
            value = self._member.queue_pop(key, block, self._limit())
        if value is None:
            raise dist.QueueEmptyError(f"the queue {key!r} is empty")
        return value

    def queue_len(self, key: Bytes) -> int:
        """How many elements a queue has."""
        with _as_torch_says():
            return self._member.queue_len(key, timeout=self._limit())

    # Torch's C++ looks these two up by other names.
    deleteKey: Callable[..., bool] = delete_key  # noqa: N815
    getNumKeys: Callable[..., int] = num_keys  # noqa: N815

    def leave(self) -> None:
        """Leave; the store goes on without this process. Leaving twice is no error, and clones leave with it."""
        self._member.leave()

    def shutdown(self) -> None:
        """End the store for all."""
        with _as_torch_says():
            self._member.shutdown()

    def _limit(self, timeout: timedelta | None = None) -> float:
        # None at all is what torch means by zero; ours ends at some time.
        return _seconds(timeout or self.timeout) or 300.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return repr(self._member).replace("outlast.Store", "outlast.torch.Store", 1)


# Three years: what Outlast takes for the longest wait that somebody means.
_SECONDS_MAX = 1e8


def _seconds(timeout: float | timedelta) -> float:
    # What torch gives for "as good as for ever" is no slip in a unit.
    return min(timeout.total_seconds(), _SECONDS_MAX) if isinstance(timeout, timedelta) else timeout


@contextmanager
def _as_torch_says() -> Iterator[None]:
    try:
        yield
    except outlast.OutlastError as error:
        raise dist.DistStoreError(str(error)) from error
