"""What lives in one process."""

from typing import NoReturn


class OfThisProcess:
    """Holds sockets and threads, so it can neither be pickled nor copied."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"outlast.{type(self).__name__} belongs to the process that made it and can be neither pickled nor copied: "
            "hand over its settings (addresses, the secret), and make another one where it is needed"
        )
