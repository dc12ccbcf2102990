"""State that is the same, to the bit, on every member of a group."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Self

from outlast import _outlast
from outlast._process import OfThisProcess


class SharedState(OfThisProcess):
    """Named tensors, a revision, and bytes that travel along.

    Args:
        tensors: Dense, writable CPU buffers by name: numpy arrays, torch tensors, bytearrays. They are used where they
            are; leave them alone while a call works on them. Two may be the very same memory (tied weights), and
            then are equal in all that this state can become; memory that is shared in part is refused.
        revision: The version of what they hold; it grows by one with each change that is synced. `None` means that this
            member has nothing to give and only receives.
        extra: Bytes that travel with the revision: the step, the scheduler's and the sampler's state.
        may_differ: Names of tensors whose contents are each member's own: they are neither compared nor moved.

    >>> weights = np.zeros(3, np.float32)
    >>> state = outlast.SharedState({"w": weights}, revision=0, extra=b"step 0")
    >>> state.revision, state.extra, state.keys()
    (0, b'step 0', ['w'])
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        revision: int | None = None,
        extra: bytes = b"",
        may_differ: Iterable[str] = (),
    ) -> None:
        self._core = _outlast.SharedState(list(tensors.items()), revision, extra, list(may_differ))

    @property
    def revision(self) -> int | None:
        """The version of what the tensors hold; `None` if there is nothing to give.

        After a change that the next sync should spread, set it to one more than it was.
        """
        return self._core.revision

    @revision.setter
    def revision(self, revision: int | None) -> None:
        self._core.revision = revision

    @property
    def extra(self) -> bytes:
        """Bytes that travel with the revision."""
        return self._core.extra

    @extra.setter
    def extra(self, extra: bytes) -> None:
        self._core.extra = extra

    @property
    def torn(self) -> bool:
        """Whether a heal was aborted in the middle: some of it is new, some is old, and nobody may use it."""
        return self._core.torn

    def keys(self) -> list[str]:
        """The tensors' names, in their order."""
        return self._core.keys()

    def digest(self) -> str:
        """A hash of everything: names, shapes, contents and extra bytes. Equal digests mean equal states."""
        return self._core.digest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: a new folder with `tensors.safetensors` and a manifest, whole or not at all.

        Raises:
            InvalidArgument: Something of that name exists, or the state has no revision.
            FatalError: It could not be written.
        """
        self._core.save(os.fspath(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], into: Mapping[str, Any], may_differ: Iterable[str] = ()) -> Self:
        """The state of a checkpoint, in these tensors.

        Args:
            path: A checkpoint, or a folder of checkpoints named by their revisions, of which the newest whole one is
                loaded.
            into: The tensors to load it into. If no checkpoint can be loaded they stay as they were.
            may_differ: As for a new state.

        Raises:
            FatalError: There is none, or none that is whole and of these tensors; the message says why, for each. Or
                one cannot be read though nothing says that it is damaged: an older one is not loaded in its place.
        """
        state = cls(into, may_differ=may_differ)
        state._core.load(os.fspath(path))
        return state

    def __repr__(self) -> str:
        return f"<outlast.SharedState of {len(self.keys())} tensors, revision {self.revision}>"
