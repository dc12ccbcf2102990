"""The runtime's words, handed to `logging.getLogger("outlast")`.

What the runtime says waits in a queue of its own; a daemon thread comes for it and passes it on. It is started with the
first object of this package, and again in a forked child that makes one. As usual for a library nothing is shown unless
the program has set up logging.
"""

import logging
import os
import threading

from outlast import _outlast

_lock = threading.Lock()
_process: int | None = None
_wait = 3600.0


def start() -> None:
    """Begin to pass on what the runtime says; once for each process."""
    global _process
    if _process == os.getpid():
        return
    with _lock:
        first, _process = _process is None, os.getpid()
    if first:
        logging.getLogger("outlast").addHandler(logging.NullHandler())
        if not _outlast.begin_log():
            return
    threading.Thread(target=_pass_on, name="outlast-log", daemon=True).start()


def _pass_on() -> None:
    while True:
        for level, name, text in _outlast.next_lines(_wait):
            logging.getLogger(name).log(level, "%s", text)
