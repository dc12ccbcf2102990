"""A training loop that is right by construction."""

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from outlast import _outlast
from outlast._process import OfThisProcess
from outlast.communicator import Communicator
from outlast.errors import Cancelled, RejoinError, RetryError
from outlast.records import Receipt, SyncReport
from outlast.state import SharedState

_log = logging.getLogger("outlast")


class Elastic(OfThisProcess):
    """A training loop: connects and reconnects, lets newcomers in, heals, averages, hands out samples, saves.

    One step is one transaction. Before its commit nothing has happened, and all members repeat a step that fails. Its
    commit makes it count on every contributor. After it only local, in-place code runs. All members take the same steps
    with the same settings.

    Args:
        comm: This peer's communicator, connected or not.
        state: The tensors that training changes, by name: parameters and the optimiser's memory. Or a `SharedState`.
        min_world: The fewest members for which a step is wanted. With fewer, the loop waits for newcomers.
        extra: Bytes of the program that travel with the state. Those of a checkpoint or of another member replace them.
        timeout: Seconds of waiting for others after which a step without a commit is an error; the program's own
            computing does not count. Default: the communicator's.
        verify_every: Every so many steps, compare all members' states and heal those that differ.
        checkpoint: A folder. The newest whole checkpoint in it is loaded now, and one member saves the state to
            `checkpoint/<number>` after every `every` steps.
        every: How many steps there are between checkpoints.

    >>> w = np.zeros(4)
    >>> with outlast.Coordinator() as c, outlast.Communicator(c.address, secret=c.secret) as comm:
    ...     elastic = outlast.Elastic(comm, {"w": w})
    ...     while elastic.number < 3:
    ...         with elastic.step() as step:
    ...             g = np.full(4, float(sum(step.samples(2))))
    ...             receipt = step.average([g], weight=2)
    ...             w -= g
    >>> elastic.number, w.tolist(), elastic.samples_used
    (3, [-15.0, -15.0, -15.0, -15.0], 6)
    """

    def __init__(
        self,
        comm: Communicator,
        state: SharedState | Mapping[str, Any],
        min_world: int = 1,
        extra: bytes | None = None,
        timeout: float | None = None,
        verify_every: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 100,
    ) -> None:
        if not isinstance(comm, Communicator):
            raise TypeError(f"comm={type(comm).__name__}: give an outlast.Communicator, connected or not")
        self._comm = comm
        self._state = state if isinstance(state, SharedState) else SharedState(state, revision=0)
        folder = None if checkpoint is None else os.fspath(checkpoint)
        self._core = _outlast.Elastic(
            comm._core, self._state._core, min_world, extra, timeout, verify_every, folder, every
        )
        # A checkpoint that is being written when the program ends is written to its end.
        weakref.finalize(self, self._core.close)

    @property
    def number(self) -> int:
        """Steps committed so far, by everybody: the revision of the state."""
        return self._core.number

    @property
    def state(self) -> SharedState:
        """The state. Outside a step, only read it or `save` it."""
        return self._state

    @property
    def extra(self) -> bytes:
        """Bytes of the program that travel with the state. Set the same everywhere, inside a step, after `average`."""
        return self._core.extra

    @extra.setter
    def extra(self, extra: bytes) -> None:
        self._core.extra = extra

    @property
    def samples_used(self) -> int:
        """How many sample numbers committed steps have used."""
        return self._core.samples_used[0]

    @property
    def syncs(self) -> int:
        """How often states were compared and made the same: whenever somebody came, and every `verify_every` steps."""
        return self._core.syncs()[0]

    @property
    def last_sync(self) -> SyncReport | None:
        """What the last of these found and did."""
        return self._core.syncs()[1]

    @property
    def saved(self) -> int | None:
        """The newest checkpoint that this member has written."""
        return self._core.saved()[0]

    @property
    def save_failure(self) -> str | None:
        """Why the last checkpoint that this member should have written is not there; `None` if it is."""
        return self._core.saved()[1]

    def step(self) -> "Step":
        """The next step, for a `with` block. Does all waiting, joining and healing first.

        Raises:
            RetryError, RejoinError: No commit for `timeout` seconds of waiting. Call it again to go on waiting.
            FatalError: Nobody can give the state: bring back a member or a checkpoint. Or this member's state does not
                fit the group's.
        """
        return Step(self, *self._core.begin())

    def close(self) -> None:
        """Wait until a checkpoint that is being written is on the disk. The end of the program waits too."""
        self._core.close()

    def __repr__(self) -> str:
        return f"<outlast.Elastic at step {self.number}>"


class Step:
    """One step, inside its `with` block: take samples, compute, `average` once, then change the state in place.

    `RetryError` and `RejoinError` of the loop's communicator end the block quietly if the step is not committed: it is
    repeated, with `elastic.number` as it was. Every other error is passed on. After the commit every error is, and the
    state counts as torn: the next step heals it from the others.
    """

    def __init__(self, elastic: Elastic, number: int, rank: int, world_size: int) -> None:
        self._elastic = elastic
        self._core = elastic._core
        self._number = number
        self._rank = rank
        self._world_size = world_size

    @property
    def number(self) -> int:
        """Steps committed before this one."""
        return self._number

    @property
    def rank(self) -> int:
        """This member's place among those who take samples of this step."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many members take samples of this step. Agreed, so divide a batch by it: `batch // step.world_size`."""
        return self._world_size

    @property
    def committed(self) -> bool:
        """Whether this step counts, on every contributor."""
        return self._elastic.number > self._number

    def samples(self, count: int) -> list[int]:
        """This member's next sample numbers.

        Each number from 0 on is used by exactly one committed step, whoever dies meanwhile. Map them to your data as
        you like, for example modulo its length. Numbers of a step that was not committed are handed out again.
        """
        return self._core.samples(count)

    def average(self, tensors: Sequence[Any], weight: float = 1.0) -> Receipt:
        """Replace each tensor by `sum(weight * tensor) / sum(weight)` over the contributors, in place.

        Its commit is the commit of the step. If it raises without a commit, the tensors are as they were.

        Args:
            tensors: Dense, writable floating-point buffers, the same types and sizes on every member.
            weight: This member's share, such as its number of samples: finite and not negative. Zero counts for
                nothing, whatever the tensors hold.

        Raises:
            InvalidArgument: A second call in one block, a weight that makes no sense, or all weights are zero.
        """
        listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        return self._core.average(listed, weight)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self._core.end()
            return False
        ours = getattr(error, "_peer", None) == self._elastic._comm.peer_id
        action = None
        if ours and isinstance(error, RetryError) and not isinstance(error, Cancelled):
            action = "retry"
        elif ours and isinstance(error, RejoinError):
            action = "rejoin"
        again = self._core.abandon(action) and action is not None
        if again:
            _log.warning("step %d is done again: %s", self._number, error)
        return again

    def __repr__(self) -> str:
        return f"<outlast.Step {self._number}{', committed' if self.committed else ''}>"
