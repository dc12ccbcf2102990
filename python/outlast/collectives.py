"""Collectives that block: the methods that every communicator has.

Each is one call of the extension module with everything named in its signature, so that `help()` shows every argument.
The arguments that all of them share are explained at `all_reduce`. The forms in the background are these same methods
on a core that begins a call and does not wait for it (`background`), so each returns what its core returns.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from outlast import _outlast
from outlast.errors import InvalidArgument
from outlast.records import PeerId, Receipt

Op: TypeAlias = Literal["sum", "avg", "prod", "min", "max", "band", "bor", "bxor"]
"""How contributions are combined. The last three work on the bits of integers."""

Quantize: TypeAlias = Literal["int8", "int4"]
"""How a reduction is made smaller on the wire."""

Who: TypeAlias = PeerId | str | int
"""A member: its id, its name, or its rank at the time of the call."""


class Collectives:
    """The collectives of a communicator."""

    _core: _outlast.Communicator

    def all_reduce(
        self,
        x: Any,
        op: Op = "sum",
        out: Any = None,
        tag: int = 0,
        quantize: Quantize | None = None,
        retry: bool = True,
        min_world: int = 1,
        timeout: float | None = None,
        *,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Receipt:
        """Combine the contributions of all members; the result is the same to the bit on every member.

        Args:
            x: A dense CPU buffer: numpy array, torch tensor, bytearray, memoryview, .. Elements are combined in the
                order of memory, so all members use the same layout.
            op: `"sum"`, `"avg"` (divided by the contributors), `"prod"`, `"min"`, `"max"`; for integers also
                `"band"`, `"bor"`, `"bxor"`.
            out: Where the result goes; default: `x` itself.
            tag: Tells concurrent collectives apart.
            quantize: `"int8"` or `"int4"`: fewer bits on the wire, for an error with a bound. Floats only.
            retry: Whether to try again with the survivors when members are lost. If not, `PeersLost` is raised.
            min_world: The fewest members for which the result is wanted.
            timeout: Seconds for all attempts together; default: the communicator's.
            scope: Only these members of the group take part; each of them passes the same list.
            hash: Whether the receipt carries a hash of the result.

        Returns:
            A receipt that says who contributed.

        Raises:
            RetryError: It did not happen, and `x` and `out` are as they were.
            RejoinError: This peer is out; its data is as it was, though the others may have committed.
            FatalError: The arguments make no sense, or differ from the others'.
        """
        options = (op, tag, quantize, retry, min_world, timeout, scope, hash, None)
        return self._core.collective("all_reduce", [x], None if out is None else [out], options)

    def all_reduce_many(
        self,
        tensors: Sequence[Any],
        op: Op = "sum",
        out: Sequence[Any] | None = None,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
        quantize: Quantize | None = None,
        retry: bool = True,
    ) -> Receipt:
        """Reduce several tensors in one transaction: one receipt, the same contributors for each.

        They may be of several types, as a model's gradients are. All members pass the same types and sizes in the same
        order. `avg` and `quantize` are for lists whose tensors all allow them; a refusal names the tensor, such as
        `x[3]`.
        """
        options = (op, tag, quantize, retry, min_world, timeout, scope, hash, None)
        return self._core.collective("all_reduce_many", list(tensors), None if out is None else list(out), options)

    def all_gather(
        self,
        out: Any,
        x: Any,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Receipt:
        """Collect everybody's `x` in `out`, in the order of ranks: `out` is `world_size` times as large.

        This and all collectives below do not retry without a lost member, because their meaning depends on who is
        there: they raise `PeersLost`, and `out` is as it was.
        """
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, None)
        return self._core.collective("all_gather", [x], [out], options)

    def reduce_scatter(
        self,
        out: Any,
        x: Any,
        op: Op = "sum",
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
        quantize: Quantize | None = None,
    ) -> Receipt:
        """Combine everybody's `x`, and keep the part for this member's rank in `out`."""
        options = (op, tag, quantize, False, min_world, timeout, scope, hash, None)
        return self._core.collective("reduce_scatter", [x], [out], options)

    def broadcast(
        self,
        x: Any,
        root: Who,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Receipt:
        """Give everybody the root's `x`. `root` is a peer's id, its name, or its rank at the time of the call."""
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, root)
        return self._core.collective("broadcast", [x], None, options)

    def reduce(
        self,
        x: Any,
        root: Who,
        op: Op = "sum",
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
        quantize: Quantize | None = None,
    ) -> Receipt:
        """Combine everybody's `x` at the root, in place; elsewhere `x` stays as it is."""
        options = (op, tag, quantize, False, min_world, timeout, scope, hash, root)
        return self._core.collective("reduce", [x], None, options)

    def gather(
        self,
        out: Any,
        x: Any,
        root: Who,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Receipt:
        """Collect everybody's `x` in the root's `out`, in the order of ranks; elsewhere `out` may be `None`."""
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, root)
        return self._core.collective("gather", [x], [] if out is None else [out], options)

    def scatter(
        self,
        out: Any,
        x: Any,
        root: Who,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Receipt:
        """Give everybody its part of the root's `x`, in the order of ranks; elsewhere `x` may be `None`."""
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, root)
        return self._core.collective("scatter", [] if x is None else [x], [out], options)

    def all_to_all(
        self,
        out: Any,
        x: Any,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Receipt:
        """Give part r of `x` to rank r, and collect the parts for this rank in `out`, in the order of ranks."""
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, None)
        return self._core.collective("all_to_all", [x], [out], options)

    def send(self, x: Any, to: Who, tag: int = 0, *, timeout: float | None = None) -> None:
        """Send `x` to one other member, which must `recv` as many elements of the same type.

        Returns when they have arrived. There is no vote, and it fails only on its two ends: with `PeersLost` if the
        other end is lost, with `OperationTimeout` if it does not receive in time.
        """
        return self._core.transfer(x, to, False, tag, timeout)

    def recv(self, x: Any, source: Who, tag: int = 0, *, timeout: float | None = None) -> None:
        """Fill `x` with what one other member sends. After an error its contents are as they were."""
        return self._core.transfer(x, source, True, tag, timeout)

    def barrier(
        self,
        everyone: bool = False,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
        retry: bool = True,
    ) -> Receipt:
        """Wait until every member of the group has called it.

        Args:
            everyone: Whether to wait for all groups of the run. In a run of one group that is the same; this version
                has no barrier across several groups and refuses it.
            retry: Whether to go on with the survivors when members are lost.
            tag: As for `all_reduce`, like all the others.
            timeout: Seconds for all attempts together.
            min_world: The fewest members for which it counts.
            scope: Only these members take part.
            hash: Whether the receipt carries a hash, of nothing.
        """
        _check_everyone(self._core, everyone, scope)
        options = ("sum", tag, None, retry, min_world, timeout, scope, hash, None)
        return self._core.collective("barrier", [], None, options)


def _check_everyone(core: _outlast.Communicator, everyone: bool, scope: Sequence[Who] | None) -> None:
    if not everyone:
        return
    if scope is not None:
        raise InvalidArgument("everyone=True with a scope: a barrier waits for all or for a part, not both")
    _, here, everywhere, _ = core.place()
    if everywhere > here:
        raise InvalidArgument(
            f"everyone=True: {everywhere - here} of the run's {everywhere} members are in other groups, and "
            "this version has no barrier across groups; put all in one group and use a scope for each part"
        )
