"""What can go wrong, sorted by what to do about it.

- `RetryError`: the call did not happen, and your data is as it was (unless `torn`). Call it again.
- `RejoinError`: this peer is out of the run. Its data is as it was, though the others may have committed.
  `connect()` again on the same object, then bring the state up to date.
- `FatalError`: the program or its settings are wrong. Fix it; trying again will not help.

Every error is one of the three, so a training loop needs two `except` clauses:

```python
while True:
    try:
        receipt = comm.all_reduce(gradient, op="avg")
    except outlast.RetryError:
        continue
    except outlast.RejoinError:
        comm.connect()
        restore(model)
        continue
```
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from outlast.records import PeerId


class OutlastError(Exception):
    """Every error of this package."""


class RetryError(OutlastError):
    """The call did not happen. Do it again."""

    torn: bool = False
    """Whether data was left half written; only a later sync heals it. Collectives never tear."""


class RejoinError(OutlastError):
    """This peer is out of the run, and its handles are dead: `connect()` again on the same object."""


class FatalError(OutlastError):
    """Trying again will not help: fix the program or its settings."""


class PeersLost(RetryError):
    """Members were lost, and this call does not retry without them."""

    lost: Mapping[PeerId, str]
    """Who was lost, and why."""

    def __init__(self, message: str, lost: Mapping[PeerId, str] | None = None) -> None:
        super().__init__(message)
        self.lost = dict(lost or {})

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.args[0], self.lost)


class TooFewPeers(RetryError):
    """Fewer members are left than the call's `min_world`: wait for newcomers with `update_topology`."""


class TopologyFailed(RetryError):
    """Newcomers could not be connected, or a better ring could not be made: call it again."""


class Waiting(NamedTuple):
    """A member that a call waited for in vain."""

    peer: PeerId
    name: str
    health: str
    """What the health plane says: `alive`, `stalled`, `suspect`, `disconnected`, .."""
    last_call: str
    """What it last called."""
    age: float
    """How many seconds ago that was."""


class OperationTimeout(RetryError, TimeoutError):
    """The deadline passed, ours or another member's. Nobody is put out for being slow."""

    waiting_for: Sequence[Waiting]
    """Whom the call waited for; empty if that was the coordinator, this program itself, or members that never came."""

    def __init__(self, message: str, waiting_for: Sequence[tuple[str, str, str, str, float]] = ()) -> None:
        super().__init__(message)
        self.waiting_for = [Waiting(*one) for one in waiting_for]

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.args[0], [tuple(one) for one in self.waiting_for])


class Cancelled(RetryError):
    """This program gave the call up: by `Handle.cancel`, or by the `stop` that it passed."""


class Kicked(RejoinError):
    """The coordinator put this peer out; the message says why."""


class CoordinatorLost(RejoinError):
    """No coordinator could be reached for too long."""


class Mismatch(FatalError):
    """This program's call differs from the others'."""

    ours: str
    """What this program called."""
    others: str
    """What the others called."""

    def __init__(self, message: str, sides: tuple[str, str] = ("", "")) -> None:
        super().__init__(message)
        self.ours, self.others = sides

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.args[0], (self.ours, self.others))


class InvalidArgument(FatalError, ValueError):
    """An argument makes no sense here; the message says what would."""


class Unauthorized(FatalError):
    """The process that answers does not belong to this run: do both sides have the same secret and run id?"""


class RendezvousClosed(FatalError):
    """The rendezvous was closed for all: start another one with a new run id."""
