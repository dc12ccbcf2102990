"""Collectives in the background: every one of them, as a handle to wait for, to await, or to give up."""

import inspect
import os
from collections.abc import Callable, Generator
from typing import Any, Concatenate, ParamSpec, Self, cast

from outlast import _outlast
from outlast._process import OfThisProcess
from outlast.collectives import Collectives
from outlast.records import Receipt

P = ParamSpec("P")


class Handle(OfThisProcess):
    """A collective or a transfer in the background.

    `wait()` it on a thread, `await` it in a coroutine, or `cancel()` it. Its memory is in use until it is over: neither
    read nor write it before. Dropping a handle changes nothing: the operation goes on to its verdict.
    """

    def __init__(self, core: _outlast.Handle) -> None:
        self._core = core

    def done(self) -> bool:
        """Whether it is over, in whatever way."""
        return self._core.done()

    def cancel(self) -> bool:
        """Give it up, and return at once; returns `False` if it was over already.

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


class _Beginning:
    """Stands for a communicator whose calls are begun and not waited for: they return handles."""

    def __init__(self, core: _outlast.Communicator) -> None:
        self.collective = core.collective_async
        self.transfer = core.transfer_async
        self.place = core.place

    @property
    def _core(self) -> Self:
        return self


def _in_background(blocks: Callable[Concatenate[Any, P], object]) -> Callable[Concatenate[Any, P], Handle]:
    """The form of a blocking method that returns at once: the same method, on a core that only begins (decision 83)."""

    def begin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Handle:
        # The method hands on what its core returns, and that is a handle of the extension module here.
        return Handle(cast(_outlast.Handle, blocks(_Beginning(self._core), *args, **kwargs)))

    told = inspect.signature(blocks)
    begin.__signature__ = told.replace(return_annotation=Handle)  # type: ignore[attr-defined]
    begin.__name__ = f"{blocks.__name__}_async"
    begin.__qualname__ = f"BackgroundCollectives.{begin.__name__}"
    begin.__doc__ = f"Begin `{blocks.__name__}` and return at once; it takes the same arguments."
    return begin


class BackgroundCollectives:
    """The collectives of a communicator that return at once.

    Each takes the arguments of its blocking form, does the same, and returns a `Handle`, whose `wait` returns what the
    blocking form returns. The memory is in use until the operation is over. Concurrent collectives need different tags,
    and may be started in any order on different members.
    """

    _core: _outlast.Communicator

    all_reduce_async = _in_background(Collectives.all_reduce)
    all_reduce_many_async = _in_background(Collectives.all_reduce_many)
    all_gather_async = _in_background(Collectives.all_gather)
    reduce_scatter_async = _in_background(Collectives.reduce_scatter)
    broadcast_async = _in_background(Collectives.broadcast)
    reduce_async = _in_background(Collectives.reduce)
    gather_async = _in_background(Collectives.gather)
    scatter_async = _in_background(Collectives.scatter)
    all_to_all_async = _in_background(Collectives.all_to_all)
    barrier_async = _in_background(Collectives.barrier)
    send_async = _in_background(Collectives.send)
    recv_async = _in_background(Collectives.recv)
