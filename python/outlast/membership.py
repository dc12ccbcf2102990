"""Who is in a group, and who has gone: membership without collectives."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeAlias

from outlast import _log, _outlast
from outlast._process import OfThisProcess
from outlast.coordinator import Path, _run_id
from outlast.records import PeerId


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group, as another one sees it."""

    id: PeerId
    name: str
    address: str
    """Its one port, `host:port`."""
    meta: bytes
    """What it attached to itself."""
    health: str
    """`alive`, `stalled`, `suspect`, `dead` or `left`."""


@dataclass(frozen=True, slots=True)
class _OfMember:
    member: Member
    """Whom it happened to."""

    @property
    def peer(self) -> PeerId:
        """The member's id."""
        return self.member.id

    @property
    def name(self) -> str:
        """The member's name."""
        return self.member.name


class Joined(_OfMember):
    """A member is here that was not here before, or is here again."""


class Stalled(_OfMember):
    """A member does not answer, but its kernel does: it is stopped or starved, not dead."""


class Suspected(_OfMember):
    """Neither the member nor its kernel answers; the others find out whether it is dead."""


class Recovered(_OfMember):
    """A member answers again."""


@dataclass(frozen=True, slots=True)
class Died(_OfMember):
    """A member is dead."""

    reason: str
    accusers: tuple[PeerId, ...]
    """Who testified."""


class Left(_OfMember):
    """A member said goodbye."""


@dataclass(frozen=True, slots=True)
class Rejoined:
    """The others had declared this very member dead; it has come back."""

    reason: str
    """Why they did."""
    seconds: float
    """For how long this member was out, as far as it was told."""


@dataclass(frozen=True, slots=True)
class Lagged:
    """Events were lost because nobody read them in time: read the lists to catch up."""

    lost: int


Event: TypeAlias = Joined | Stalled | Suspected | Recovered | Died | Left | Rejoined | Lagged
"""What happened to the group."""

_KINDS: dict[str, type[Joined | Stalled | Suspected | Recovered | Left]] = {
    "Joined": Joined,
    "Stalled": Stalled,
    "Suspected": Suspected,
    "Recovered": Recovered,
    "Left": Left,
}


class Membership(OfThisProcess):
    """One member of a group. It answers for this process until it leaves.

    Args:
        listen: Where to listen, `host:port`, TCP and UDP; port 0 takes a free one.
        join: Members to join through, `host:port`; one that answers is enough, and they may start later.
        preset: Times for one kind of network: `"local"`, `"lan"` or `"wan"`.
        secret: The group's secret. Default: `OUTLAST_SECRET` or the file that `OUTLAST_SECRET_FILE` names.
        meta: A few bytes that every member sees beside this one.
        run_id: Members of different runs never meet. Default: `OUTLAST_RUN_ID`, or `"default"`.
        name: A name for people. Default: the host's name and the process id.
        advertise: The address that others should use, if it is not the one listened on.
        accept_secret: One more secret that is accepted while the secret is rotated. Default: `OUTLAST_ACCEPT_SECRET` or
            the file that `OUTLAST_ACCEPT_SECRET_FILE` names.
        tls: Paths of PEM files for streams under an authority of your own: the authority's certificate, this process's,
            and its key. The id follows from the certificate's name, so each process needs a name of its own.

    >>> secret = outlast.new_secret()
    >>> with outlast.Membership("127.0.0.1:0", preset="local", secret=secret, meta=b"gpu=8") as member:
    ...     [(other.health, other.meta) for other in member.active()]
    [('alive', b'gpu=8')]
    """

    def __init__(
        self,
        listen: str = "0.0.0.0:0",
        join: Iterable[str] = (),
        preset: str = "lan",
        secret: str | None = None,
        meta: bytes = b"",
        *,
        run_id: str | None = None,
        name: str | None = None,
        advertise: str | None = None,
        accept_secret: str | None = None,
        tls: tuple[Path, Path, Path] | None = None,
    ) -> None:
        _log.start()
        seeds = [join] if isinstance(join, str) else list(join)
        run = _run_id(run_id)
        self._core = _outlast.Membership(
            listen, seeds, preset, secret, bytes(meta), run, name, advertise, accept_secret, tls
        )

    @property
    def address(self) -> str:
        """The address that others reach this member at."""
        return self._core.address

    @property
    def id(self) -> PeerId:
        """This member's id."""
        return self._core.id

    def active(self) -> list[Member]:
        """Everybody who is in the group, this member included."""
        return [Member(*row) for row in self._core.active()]

    def failed(self) -> list[Member]:
        """Everybody who died or left and is not forgotten yet."""
        return [Member(*row) for row in self._core.failed()]

    def events(self, timeout: float | None = None) -> list[Event]:
        """What happened since the last call; waits for the first event.

        Args:
            timeout: Seconds to wait; 0 only looks. Default: one minute. An empty list means that nothing happened.
        """
        return [_event(*row) for row in self._core.events(timeout)]

    def leave(self) -> None:
        """Say goodbye, so that nobody mistakes it for a death. Leaving twice is not an error."""
        self._core.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        try:
            where = "gone" if self._core.has_left() else self._core.address
        except Exception:
            where = "of another process"
        return f"<outlast.Membership {where}>"


def _event(kind: str, member: tuple[str, str, str, bytes, str] | None, text: str, accusers: list[str]) -> Event:
    if member is None:
        if kind == "Rejoined":
            return Rejoined(text, float(accusers[0]))
        return Lagged(int(text) if text.isdigit() else 0)
    if kind == "Died":
        return Died(Member(*member), text, tuple(accusers))
    return _KINDS[kind](Member(*member))
