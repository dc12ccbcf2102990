"""The `outlast` program: `outlast --help`, or `python -m outlast --help`."""

import signal
import sys

from outlast._outlast import main as _main


def main() -> int:
    """Run the program with the arguments of this process and return its exit code."""
    # The program answers these itself; Python's handler would wait for a moment that never comes.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _main(["outlast", *sys.argv[1:]], [sys.executable, "-m", "outlast"])


if __name__ == "__main__":
    sys.exit(main())
