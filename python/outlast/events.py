"""What happens to a communicator's group: `Communicator.events` returns lists of these.

`Joined`, `Stalled` and `Recovered` are those of `Membership`, with the member that it happened to; the others are here.
"""

from dataclasses import dataclass
from typing import TypeAlias

from outlast.membership import Joined, Lagged, Member, Recovered, Stalled
from outlast.records import Lost


@dataclass(frozen=True, slots=True)
class EpochChanged:
    """The group has another epoch."""

    epoch: int
    world_size: int


@dataclass(frozen=True, slots=True)
class LinkSlowed:
    """A link of the ring carries much less than when the ring was made: `optimize_topology` may find a better one."""

    sender: str
    """Who sends over it: its peer id, and its name beside it."""
    sender_name: str
    receiver: str
    receiver_name: str
    before: int
    """Bytes per second when the ring was made."""
    rate: int
    """Bytes per second lately."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A call took much longer than others like it: at least three times their median, and 0.2 s more. It succeeded."""

    call: str
    """What was called, with its tag."""
    seconds: float
    usual: float
    """The median of earlier calls like it."""
    cause: str
    """One word: `called late`, `slow link`, `dead`, `coordinator away`, `stood still`, .. or `unknown`."""
    why: str
    """One sentence, with the evidence."""


@dataclass(frozen=True, slots=True)
class CoordinatorLost:
    """The connection to the coordinator is gone; this peer looks for it. (The error of that name ends a call.)"""


@dataclass(frozen=True, slots=True)
class CoordinatorBack:
    """The coordinator is back, or another one has taken its place."""


@dataclass(frozen=True, slots=True)
class Healing:
    """This member fetches what its state lacks, in leaves of 1 MiB; it is done when both numbers are equal."""

    have: int
    all: int


GroupEvent: TypeAlias = (
    Joined
    | Lost
    | Stalled
    | Recovered
    | EpochChanged
    | LinkSlowed
    | SlowStep
    | CoordinatorLost
    | CoordinatorBack
    | Healing
    | Lagged
)
"""What happened to the group."""


def _event(kind: str, about: tuple[str, ...] | None, text: str, numbers: tuple[int, int]) -> GroupEvent:
    if kind == "Lost" and about is not None:
        return Lost(about[0], about[1], text)
    if kind == "LinkSlowed" and about is not None:
        return LinkSlowed(about[0], about[1], about[2], about[3], *numbers)
    if kind == "SlowStep" and about is not None:
        return SlowStep(about[0], numbers[0] / 1e6, numbers[1] / 1e6, about[1], text)
    if about is not None:
        member = Member(*about)  # type: ignore[arg-type]
        if kind == "Joined":
            return Joined(member)
        return Stalled(member) if kind == "Stalled" else Recovered(member)
    if kind == "EpochChanged":
        return EpochChanged(*numbers)
    if kind == "Healing":
        return Healing(*numbers)
    if kind == "Lagged":
        return Lagged(numbers[0])
    return CoordinatorLost() if kind == "CoordinatorLost" else CoordinatorBack()
