"""A peer's place in a run, and its collectives."""

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

from outlast import _flight, _log, _outlast
from outlast._process import OfThisProcess
from outlast.background import BackgroundCollectives
from outlast.collectives import Collectives
from outlast.coordinator import Path, _run_id
from outlast.errors import InvalidArgument
from outlast.events import GroupEvent, _event
from outlast.records import Peer, PeerId, SyncReport, TopologyChange, TopologyReport
from outlast.state import SharedState

Strategy: TypeAlias = Literal["popular", "send_only", "receive_only"]
"""What a member is willing to do in a sync."""


class Flag(Protocol):
    """Something that can be set, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it was set."""


Stop: TypeAlias = Flag | Callable[[], object]
"""What ends a call that waits: a flag that is set, or a function that returns `True`."""


def _question(stop: Stop | None) -> Callable[[], object] | None:
    if stop is None:
        return None
    question = getattr(stop, "is_set", stop)
    if not callable(question):
        raise TypeError(f"stop={stop!r}: give a threading.Event, or a function without arguments")
    return question


def _listen_from_environment() -> str:
    return f"0.0.0.0:{_outlast.port_from_environment() or 0}"


class Communicator(Collectives, BackgroundCollectives, OfThisProcess):
    """A peer's place in a run. Making one joins nothing yet: `connect` does, or `with`.

    Args:
        coordinator: The coordinator's `host:port`; several, separated by commas, are tried in turn. Default:
            `OUTLAST_COORDINATOR`.
        run_id: The run to take part in. Default: `OUTLAST_RUN_ID`, or `"default"`.
        group: The group within the run; collectives involve the peers of one group. Default: `OUTLAST_GROUP`, or 0.
        secret: The run's secret. Default: `OUTLAST_SECRET` or the file that `OUTLAST_SECRET_FILE` names.
        name: A name for people. Default: the host's name and the process id.
        listen: This peer's one port, `host:port`, TCP and UDP. Default: any address, port `OUTLAST_PORT` or a
            free one.
        advertise: The address that others should use, if it is not the one listened on.
        preset: Times for one kind of network: `"local"`, `"lan"` or `"wan"`. All members use the same.
        stall_budget: Seconds for which a stopped process is waited for; default: the preset's.
        dead_after: Seconds of silence after which a member is dead, whoever testified; default: the preset's. The
            coordinator evicts, so give it the same.
        control_lost_after: Seconds for which this peer goes on without a coordinator; default: the preset's.
        site: The name of the place where hosts share an uplink with this one, at most 64 bytes. Rings that
            `optimize_topology` makes cross between sites as seldom as they can.
        timeout: Seconds that a call may take if it is not given a timeout of its own.
        encryption: `"on"`, or `"off"` to send tensors in the clear: faster, but anybody who sees the network can
            read them. All peers of a run must say the same. Votes are encrypted either way.
        accept_secret: One more secret that is accepted while the secret is rotated. Default: `OUTLAST_ACCEPT_SECRET` or
            the file that `OUTLAST_ACCEPT_SECRET_FILE` names.
        tls: Paths of PEM files for streams under an authority of your own: the authority's certificate, this process's,
            and its key. The id follows from the certificate's name, so each process needs a name of its own.

    A communicator is driven by one thread at a time for each tag; threads may share it. Its objects belong to
    the process that made them: in a forked child every call raises, and the child may make its own.

    >>> with outlast.Coordinator() as coordinator:
    ...     with outlast.Communicator(coordinator.address, secret=coordinator.secret, name="me") as comm:
    ...         comm.rank, comm.world_size, [peer.name for peer in comm.peers()]
    (0, 1, ['me'])
    """

    def __init__(
        self,
        coordinator: str | None = None,
        run_id: str | None = None,
        group: int | None = None,
        secret: str | None = None,
        name: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        preset: str = "lan",
        stall_budget: float | None = None,
        site: str | None = None,
        timeout: float = 60.0,
        *,
        dead_after: float | None = None,
        control_lost_after: float | None = None,
        encryption: str = "on",
        accept_secret: str | None = None,
        tls: tuple[Path, Path, Path] | None = None,
        **options: Any,
    ) -> None:
        if options:
            unknown = ", ".join(sorted(options))
            raise InvalidArgument(f"unknown option {unknown}: see help(outlast.Communicator)")
        coordinator = coordinator or os.environ.get("OUTLAST_COORDINATOR")
        if not coordinator:
            raise InvalidArgument(
                "no coordinator: pass its host:port, set OUTLAST_COORDINATOR, or start this program with `outlast run`"
            )
        if not isinstance(coordinator, str):
            raise TypeError(f"coordinator={coordinator!r}: give its address as text, host:port")
        _log.start()
        _flight.start()
        self._core = _outlast.Communicator(
            coordinator,
            _run_id(run_id),
            _outlast.group_from_environment() or 0 if group is None else group,
            secret,
            name,
            listen or _listen_from_environment(),
            advertise,
            preset,
            stall_budget,
            dead_after,
            control_lost_after,
            timeout,
            encryption,
            accept_secret,
            tls,
            site,
        )

    # Taking part.

    def connect(
        self,
        min_world: int = 1,
        prefetch: None = None,
        timeout: float | None = None,
        *,
        stop: Stop | None = None,
    ) -> TopologyChange:
        """Join the run. Returns once this peer is admitted and the group has at least `min_world` members.

        Newcomers are admitted while it waits. Members that are already in must call `update_topology` to let this
        peer in; `Receipt.pending` tells them that somebody waits.

        Args:
            min_world: How many members the group must have.
            prefetch: The state to fetch while waiting outside. Comes in a later version; leave it `None`.
            timeout: Seconds; default: the communicator's.
            stop: A `threading.Event`, or a function without arguments, that is asked about 20 times a second: once it
                is set, or returns `True`, the call ends with `Cancelled`. So a signal handler that only sets a flag
                can end it.

        Raises:
            Cancelled: `stop` ended it. Nothing was joined.
            OperationTimeout: Not admitted in time, or no coordinator was reached.
            Unauthorized: The coordinator has another secret.
        """
        if prefetch is not None:
            kind = type(prefetch).__name__
            raise InvalidArgument(
                f"prefetch={kind}: fetching the state before admission comes in a later version; leave it None, and "
                "call sync_state after connect"
            )
        return self._core.connect(min_world, timeout, _question(stop))

    def update_topology(
        self, min_world: int = 1, timeout: float | None = None, *, stop: Stop | None = None
    ) -> TopologyChange:
        """Admit newcomers, and wait until the group has at least `min_world` members.

        Every member of the run must call it; a common place is the top of a step, when the last receipt's
        `pending` is not zero.

        Args:
            min_world: How many members the group must have.
            timeout: Seconds; default: the communicator's.
            stop: As for `connect`.
        """
        return self._core.update_topology(min_world, timeout, _question(stop))

    def optimize_topology(self, timeout: float | None = None) -> TopologyReport:
        """Measure the links that are not known yet, and order the ring by them. Every member calls it.

        A ring runs at the pace of its slowest link. Pairs that were never measured, or not for half an hour, are
        measured one way, the other, and both at once, each for 0.2 seconds (or ten round trips), never two at one host
        at a time. Then the best ring is searched for, and used if it is better by 5 percent. Ranks stay as they are.
        Call it once at the start, when members have come, and when a receipt's `seconds` are far above its
        `predicted_seconds`.

        Args:
            timeout: Seconds; default: the communicator's.

        Raises:
            TopologyFailed: A better ring could not be made; the ring is as it was. Call again: what failed is avoided.
            OperationTimeout: Somebody did not call it in time; `waiting_for` says who.
        """
        return self._core.optimize_topology(timeout)

    def sync_state(
        self,
        state: SharedState,
        strategy: Strategy = "popular",
        staged: bool = False,
        timeout: float | None = None,
    ) -> SyncReport:
        """Make `state` the same on every member of the group, to the bit. Every member calls it.

        The highest revision wins; among its holders the most popular contents. Members that hold something else fetch
        the leaves that differ, from several donors at once, each verified. A member that already agrees pays one pass
        over its memory and two round trips.

        Args:
            state: What this member holds. Leave its tensors alone until the call returns.
            strategy: `"popular"`: give or get. `"send_only"`: never be overwritten. `"receive_only"`: never give.
            staged: Collect what arrives in memory of its own until everything is there. Then an error leaves `state`
                as it was; it costs as much memory as differs.
            timeout: Seconds; default: the communicator's.

        Raises:
            RetryError: Sync again. If `torn`, this member's state is half new and half old until then. If its tensors
                changed during the call the others may have gone on: `leave(for_good=False)` and `connect` first.
            Mismatch: This member's keys, shapes, types or revision are not the group's, or two of its tensors are one
                memory and differ there; the message says which.
            FatalError: No member can give a state.
        """
        if not isinstance(state, SharedState):
            raise TypeError(f"state={type(state).__name__}: give an outlast.SharedState, which is made of such tensors")
        return self._core.sync_state(state._core, strategy, staged, timeout)

    def events(self, timeout: float | None = None) -> list[GroupEvent]:
        """What happened to the group since the last call, oldest first; waits for the first event.

        Members that came (`Joined`), are gone (`Lost`, with a name and a reason), are `Stalled` or have `Recovered`; a
        new epoch (`EpochChanged`); a link of the ring that got much slower (`LinkSlowed`); `events.CoordinatorLost` and
        `CoordinatorBack`; how far the healing of this member's state is (`Healing`). Events that nobody reads are
        kept up to a bound, then `Lagged` says how many were dropped. The same goes to `logging.getLogger("outlast")`.

        Args:
            timeout: Seconds to wait; 0 only looks. Default: one minute. An empty list means that nothing happened.
        """
        return [_event(kind, about, text, numbers) for kind, _, about, text, numbers in self._core.events(timeout)]

    def leave(self, *, for_good: bool = True) -> None:
        """Say goodbye, so that nobody mistakes it for a failure. The object can `connect` again.

        Args:
            for_good: Whether this peer's training is over. When the last one who has what its group had reached says
                so, another training may begin from nothing in the same group; with `False` nobody begins below it.
        """
        self._core.leave(for_good)

    def close(self) -> None:
        """Leave, and release the port and all threads. Closing twice is not an error."""
        self._core.close(True)

    def __enter__(self) -> Self:
        """Connect, unless that is done already; leaving the block closes the communicator.

        If an error ends the block, this peer is gone and its training is not over: nobody begins below what its group
        had reached.
        """
        if self._core.standing() != "connected":
            self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._core.close(kind is None)

    # Who is here. What is seen changes only inside a call or a wait, and raises while this peer is in no run.

    @property
    def peer_id(self) -> PeerId:
        """This peer's id."""
        return self._core.peer_id

    @property
    def rank(self) -> int:
        """This peer's number in its group, from 0 on; survivors keep their order."""
        return self._core.place()[0]

    @property
    def world_size(self) -> int:
        """Members of the group."""
        return self._core.place()[1]

    @property
    def global_world_size(self) -> int:
        """Members of all groups of the run."""
        return self._core.place()[2]

    @property
    def epoch(self) -> int:
        """The group's epoch: grows whenever the group changes."""
        return self._core.place()[3]

    def peers(self) -> list[Peer]:
        """The members of the group in the order of ranks, with their health at this moment."""
        return self._core.peers()

    def __repr__(self) -> str:
        standing = self._core.standing()
        if standing != "connected":
            return f"<outlast.Communicator {standing}>"
        rank, world_size, _, epoch = self._core.place()
        return f"<outlast.Communicator {self.peer_id[:8]}: rank {rank} of {world_size}, epoch {epoch}>"
