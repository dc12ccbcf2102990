"""What calls return: small frozen records that can be compared, printed and pickled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

PeerId: TypeAlias = str
"""A peer's id: 32 hexadecimal digits. Kept across reconnects, different for every process."""


def _short(peer: PeerId) -> str:
    return peer[:8]


@dataclass(frozen=True, slots=True)
class Lost:
    """A member that is gone: an event of `Communicator.events`, and what `Receipt.lost` lists."""

    peer: PeerId
    name: str
    reason: str
    """Why, in words."""


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """Proof of a committed collective.

    Agreed, the same on every contributor even if the coordinator was restarted meanwhile: `epoch`, `tag`, `seq`,
    `world_size`, `contributors`, `pending`, and `hash` where all hold the same result. Branch on these alone; the
    others are this member's own.
    """

    epoch: int
    """The group's epoch in which it was committed. Agreed."""
    tag: int
    """Its name among concurrent collectives. Agreed."""
    seq: int
    """Its number under that tag in that epoch. Agreed."""
    rank: int
    """This peer's rank at that time."""
    world_size: int
    """Members of the group at that time. Agreed."""
    contributors: tuple[PeerId, ...]
    """Whose data is in the result, in the order of ranks. Agreed. After a sum, divide by their number."""
    lost: tuple[Lost, ...]
    """Who was lost while the call was under way, and why: the result is without them. This member's own."""
    attempts: int
    """How many attempts it took here; more than one means that a member or a link was lost. This member's own."""
    pending: int
    """Newcomers whom a vote (`update_topology`) would let in. Agreed, so that all can branch on it alike."""
    algorithm: str
    """How the bytes went."""
    bytes_sent: int
    """Payload bytes that this peer sent, over all attempts."""
    bytes_received: int
    """Payload bytes that this peer received, over all attempts."""
    seconds: float
    """From the call to its return."""
    predicted_seconds: float | None = None
    """What the plan was expected to take, where there is a prediction."""
    hash: str | None = None
    """Hash of this member's result, if asked for with `hash=True`. Agreed where all end with the same data."""

    def __repr__(self) -> str:
        who = ", ".join(_short(peer) for peer in self.contributors[:4])
        more = f", .. {len(self.contributors)} in all" if len(self.contributors) > 4 else ""
        gone = "".join(f", lost {lost.name} ({lost.reason})" for lost in self.lost)
        extra = f", hash={self.hash!r}" if self.hash is not None else ""
        return (
            f"Receipt(epoch={self.epoch}, tag={self.tag}, seq={self.seq}, rank={self.rank}, "
            f"world_size={self.world_size}, contributors=({who}{more}), attempts={self.attempts}, "
            f"pending={self.pending}, algorithm={self.algorithm!r}, bytes_sent={self.bytes_sent}, "
            f"bytes_received={self.bytes_received}, seconds={self.seconds:.6f}{extra}{gone})"
        )


@dataclass(frozen=True, slots=True)
class TopologyChange:
    """What admitting newcomers changed."""

    epoch: int
    """The group's epoch now."""
    joined: tuple[PeerId, ...]
    """Who came."""
    left: Mapping[PeerId, str]
    """Who went, and why."""


@dataclass(frozen=True, slots=True)
class TopologyReport:
    """The outcome of a vote for a better ring. Agreed, the same on every member, except for `seconds`."""

    ring: tuple[PeerId, ...]
    """The members in the ring's order. Ranks are as they were."""
    predicted: float | None
    """Seconds that an all-reduce of one gibibyte should take on it; `None` if a link was not measured."""
    improved: bool
    """Whether it is another ring than before."""
    measured_pairs: int
    """Pairs that were measured for it, in both directions."""
    seconds: float
    """From the call to its return."""
    moonshot: bool
    """Whether the search in the background found it."""
    before: float | None = None
    """What `predicted` would be on the old ring: the difference is the gain."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync found and did.

    Agreed, the same on every member: `revision`, `extra`, `healed`, `diverged`. The others are this member's own.
    """

    revision: int
    """The revision that all members hold now. Agreed."""
    extra: bytes
    """The bytes that travel along. Agreed."""
    sent: int
    """Payload bytes that this member served."""
    received: int
    """Payload bytes that this member received."""
    leaves: int
    """Leaves of 1 MiB that differed here."""
    donors: Mapping[PeerId, int]
    """Who gave the leaves that were kept here, and how many."""
    differed: tuple[str, ...]
    """Keys whose contents differed here."""
    seconds: float
    """From the call to its return."""
    healed: Mapping[PeerId, tuple[str, ...]]
    """Who was healed, and in which keys; the first few. Agreed."""
    diverged: tuple[PeerId, ...]
    """Who held the elected revision with other contents, without knowing it; the first few. Agreed."""
    replaced: Mapping[PeerId, str]
    """Donors that were replaced meanwhile, and why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One member of the group."""

    id: PeerId
    rank: int
    group: int
    name: str
    address: str
    """Its one port, `host:port`."""
    health: str
    """What the health plane says of it now: `alive`, `stalled`, `suspect`, `dead`, `left` or `unknown`."""
