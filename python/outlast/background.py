"""Collectives in the background: every one of them, as a handle to wait for, to await, or to give up."""

import os
from collections.abc import Generator, Sequence
from typing import Any

from outlast import _outlast
from outlast._process import OfThisProcess
from outlast.collectives import Op, Quantize, Who, _check_everyone
from outlast.records import Receipt


class Handle(OfThisProcess):
    """A collective or a transfer in the background.

    `wait()` it on a thread, `await` it in a coroutine, or `cancel()` it. Its memory is in use until it is over: neither
    read nor write it. Dropping a handle changes nothing: the operation goes on to its verdict.
    """

    def __init__(self, core: _outlast.Handle) -> None:
        self._core = core

    def done(self) -> bool:
        """Whether it is over, one way or the other."""
        return self._core.done()

    def cancel(self) -> bool:
        """Give it up, and return at once; `False` if it was over already.

        Soon afterwards it is over, usually with `Cancelled`, and its memory is as it was. An operation for which this
        member's part is done may still be committed: what counts is how it ends.
        """
        return self._core.cancel()

    def wait(self, timeout: float | None = None) -> Receipt:
        """Wait for the end and return its receipt, or raise what the call would have raised.

        Args:
            timeout: Seconds to wait now; the operation goes on afterwards. Default: until the operation's own
                deadline has ended it.

        Returns:
            The receipt; `None` for `send_async` and `recv_async`, which nobody votes on.

        Raises:
            OperationTimeout: Not over yet; wait again.
        """
        return self._core.wait(timeout)

    def __await__(self) -> Generator[Any, None, Receipt]:
        """Wait for the end without a thread. A task that is cancelled meanwhile gives the operation up."""
        return self._arrival().__await__()

    async def _arrival(self) -> Receipt:
        # Here, because importing outlast must stay quick for programs without coroutines.
        import asyncio

        if not self._core.done():
            loop = asyncio.get_running_loop()
            bell, over = self._core.bell(), asyncio.Event()
            loop.add_reader(bell, over.set)
            try:
                await over.wait()
            except asyncio.CancelledError:
                self.cancel()
                # The memory belongs to the program again before the program hears of it. That takes a moment only.
                await over.wait()
                raise
            finally:
                loop.remove_reader(bell)
                os.close(bell)
        return self._core.wait(None)

    def __repr__(self) -> str:
        return f"<outlast.Handle tag={self._core.tag}>"


class BackgroundCollectives:
    """The collectives of a communicator that return at once.

    Each takes what its blocking form takes, does what that does, and returns a `Handle`. The memory is in use until the
    operation is over. Concurrent collectives need different tags, and may be started in any order on different members.
    """

    _core: _outlast.Communicator

    def all_reduce_async(
        self,
        x: Any,
        op: Op = "sum",
        out: Any = None,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
        quantize: Quantize | None = None,
        retry: bool = True,
    ) -> Handle:
        """Begin an `all_reduce` and return at once; the handle gives the receipt."""
        options = (op, tag, quantize, retry, min_world, timeout, scope, hash, None)
        outputs = None if out is None else [out]
        return Handle(self._core.collective_async("all_reduce", [x], outputs, options))

    def all_reduce_many_async(
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
    ) -> Handle:
        """Begin a `all_reduce_many` and return at once; the handle gives the receipt."""
        options = (op, tag, quantize, retry, min_world, timeout, scope, hash, None)
        return Handle(
            self._core.collective_async("all_reduce_many", list(tensors), None if out is None else list(out), options)
        )

    def all_gather_async(
        self,
        out: Any,
        x: Any,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Handle:
        """Begin a `all_gather` and return at once; the handle gives the receipt."""
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, None)
        return Handle(self._core.collective_async("all_gather", [x], [out], options))

    def reduce_scatter_async(
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
    ) -> Handle:
        """Begin a `reduce_scatter` and return at once; the handle gives the receipt."""
        options = (op, tag, quantize, False, min_world, timeout, scope, hash, None)
        return Handle(self._core.collective_async("reduce_scatter", [x], [out], options))

    def broadcast_async(
        self,
        x: Any,
        root: Who,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Handle:
        """Begin a `broadcast` and return at once; the handle gives the receipt."""
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, root)
        return Handle(self._core.collective_async("broadcast", [x], None, options))

    def reduce_async(
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
    ) -> Handle:
        """Begin a `reduce` and return at once; the handle gives the receipt."""
        options = (op, tag, quantize, False, min_world, timeout, scope, hash, root)
        return Handle(self._core.collective_async("reduce", [x], None, options))

    def gather_async(
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
    ) -> Handle:
        """Begin a `gather` and return at once; the handle gives the receipt."""
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, root)
        return Handle(self._core.collective_async("gather", [x], [] if out is None else [out], options))

    def scatter_async(
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
    ) -> Handle:
        """Begin a `scatter` and return at once; the handle gives the receipt."""
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, root)
        return Handle(self._core.collective_async("scatter", [] if x is None else [x], [out], options))

    def all_to_all_async(
        self,
        out: Any,
        x: Any,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Handle:
        """Begin a `all_to_all` and return at once; the handle gives the receipt."""
        options = ("sum", tag, None, False, min_world, timeout, scope, hash, None)
        return Handle(self._core.collective_async("all_to_all", [x], [out], options))

    def send_async(self, x: Any, to: Who, tag: int = 0, *, timeout: float | None = None) -> Handle:
        """Begin a `send` and return at once; the handle gives `None`."""
        return Handle(self._core.transfer_async(x, to, False, tag, timeout))

    def recv_async(self, x: Any, source: Who, tag: int = 0, *, timeout: float | None = None) -> Handle:
        """Begin a `recv` and return at once; the handle gives `None`."""
        return Handle(self._core.transfer_async(x, source, True, tag, timeout))

    def barrier_async(
        self,
        everyone: bool = False,
        *,
        tag: int = 0,
        timeout: float | None = None,
        min_world: int = 1,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
        retry: bool = True,
    ) -> Handle:
        """Begin a `barrier` and return at once; the handle gives the receipt."""
        _check_everyone(self._core, everyone, scope)
        options = ("sum", tag, None, retry, min_world, timeout, scope, hash, None)
        return Handle(self._core.collective_async("barrier", [], None, options))
