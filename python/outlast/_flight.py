"""An error of this package that nobody handles leaves a flight record behind.

The hooks are set with the first object of this package, and call those that were there before.
"""

import os
import sys
import threading
from types import TracebackType

from outlast import _outlast
from outlast.errors import InvalidArgument, OutlastError

_process: int | None = None


def dump(path: str | os.PathLike[str] | None = None) -> str:
    """Write what this process's communicators and coordinators did lately to a file, and return its path.

    These are the last few thousand messages, calls, links and health events of each, as JSON lines for
    `outlast debug merge`. SIGUSR2 does the same from outside, as does an `OutlastError` that nobody handles.

    Args:
        path: Where to write. Default: a new file in a directory of this user's own below the one for temporary files.
    """
    return _outlast.dump(None if path is None else os.fspath(path), "asked by the program")


def start() -> None:
    """Set the hooks; once for each process."""
    global _process
    if _process == os.getpid():
        return
    first, _process = _process is None, os.getpid()
    if not first:
        return
    before, before_in_threads = sys.excepthook, threading.excepthook

    def at_the_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        _tell(error)

    def at_the_end_of_a_thread(arguments: threading.ExceptHookArgs) -> None:
        before_in_threads(arguments)
        _tell(arguments.exc_value)

    sys.excepthook, threading.excepthook = at_the_end, at_the_end_of_a_thread


def _tell(error: BaseException | None) -> None:
    # An argument that makes no sense is told before anything happens that could be recorded.
    if not isinstance(error, OutlastError) or isinstance(error, InvalidArgument):
        return
    try:
        path = _outlast.dump(None, f"unhandled {type(error).__name__}")
        print(f"outlast: what this process did lately is in {path}; see outlast debug merge --help", file=sys.stderr)
    except Exception as failure:
        print(f"outlast: {failure}", file=sys.stderr)
