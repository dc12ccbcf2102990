"""A coordinator inside this process."""

import json
import os
from types import TracebackType
from typing import Any, Self, TypeAlias

from outlast import _log, _outlast
from outlast._process import OfThisProcess
from outlast.errors import InvalidArgument

Path: TypeAlias = str | os.PathLike[str]


def _run_id(run_id: str | None) -> str:
    return run_id if run_id is not None else _outlast.run_id_from_environment() or "default"


class Coordinator(OfThisProcess):
    """The service that admits peers, counts their votes and gives verdicts; serves many runs, by run id.

    Args:
        listen: Where to listen, `host:port`; port 0 takes a free one.
        http: The address of the dashboard. Comes in a later version; leave it `None`.
        backend: Where to keep what should outlive it: `"memory"` (nothing), or `"file:PATH"` (its key, and for each run
            the term, the epochs and who was in). Only one coordinator at a time can use the file.
        secret: The secret that its peers must have, from `outlast.new_secret`. Default: `OUTLAST_SECRET` or the file
            that `OUTLAST_SECRET_FILE` names; if neither is set, a new one is made.
        preset: Times for one kind of network: `"local"`, `"lan"` or `"wan"`. Peers should use the same.
        stall_budget: Seconds for which a stopped process is waited for; default: the preset's.
        dead_after: Seconds of silence after which a member is dead, whoever testified; default: the preset's.
        control_lost_after: Seconds for which a peer whose connection is gone is waited for while it looks alive;
            default: the preset's.
        accept_secret: One more secret that is accepted while the secret is rotated. Default: `OUTLAST_ACCEPT_SECRET` or
            the file that `OUTLAST_ACCEPT_SECRET_FILE` names.
        tls: Paths of PEM files for streams under an authority of your own: the authority's certificate, this
            coordinator's, and its key. Then a secret alone is not enough to take part.
        key_file: Where to keep its key; made if it is not there. Peers remember the key and accept nobody else as their
            coordinator. Without it they trust anybody who holds the secret and answers at the address.

    It holds nothing that its peers could not tell it again: a new one at the same address, with the same secret,
    continues the runs.

    >>> with outlast.Coordinator(listen="127.0.0.1:0") as coordinator:
    ...     coordinator.status()["peers"]
    []
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        http: str | None = None,
        backend: str = "memory",
        secret: str | None = None,
        *,
        preset: str = "lan",
        stall_budget: float | None = None,
        dead_after: float | None = None,
        control_lost_after: float | None = None,
        accept_secret: str | None = None,
        tls: tuple[Path, Path, Path] | None = None,
        key_file: Path | None = None,
    ) -> None:
        if http is not None:
            raise InvalidArgument(f"http={http!r}: the dashboard comes in a later version; leave it None")
        if not isinstance(listen, str):
            raise TypeError(f'listen={listen!r}: give host:port as text, as in "127.0.0.1:29400"')
        _log.start()
        self._service = _outlast.Coordinator(
            listen, secret, preset, stall_budget, dead_after, control_lost_after, accept_secret, tls, key_file, backend
        )

    @property
    def address(self) -> str:
        """Where it listens, `host:port`."""
        return self._service.address

    @property
    def secret(self) -> str:
        """The secret that peers need. Anybody who has it can take part, so hand it over with care."""
        return self._service.secret

    def status(self, run_id: str | None = None) -> dict[str, Any]:
        """The state of a run: who is in, who waits for whom. The same as `outlast status --json` prints.

        Args:
            run_id: Which run; default: `OUTLAST_RUN_ID`, or `"default"`.
        """
        status: dict[str, Any] = json.loads(self._service.status(_run_id(run_id)))
        return status

    def close(self) -> None:
        """Stop serving. Closing twice is not an error."""
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            where = "closed" if self._service.is_closed() else self._service.address
        except Exception:
            where = "of another process"
        return f"<outlast.Coordinator {where}>"
