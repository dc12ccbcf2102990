"""A peer's place in a run, and its collectives."""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypedDict, Unpack

from outlast import _outlast
from outlast._process import OfThisProcess
from outlast.coordinator import Path, _run_id
from outlast.errors import InvalidArgument
from outlast.records import Peer, PeerId, Receipt, SyncReport, TopologyChange
from outlast.state import SharedState

Op: TypeAlias = Literal["sum", "avg", "prod", "min", "max", "band", "bor", "bxor"]
"""How contributions are joined. The last three work on the bits of integers."""

Quantize: TypeAlias = Literal["int8", "int4"]
"""How a reduction is made smaller on the wire."""

Strategy: TypeAlias = Literal["popular", "send_only", "receive_only"]
"""What a member is willing to do in a sync."""

Who: TypeAlias = PeerId | str | int
"""A member: its id, its name, or its rank at the time of the call."""


class CallOptions(TypedDict, total=False):
    """What every collective may be told by name."""

    tag: int
    """Tells concurrent collectives apart; default 0."""
    timeout: float | None
    """Seconds for the call, all attempts together; default: the communicator's."""
    min_world: int
    """Fewest members with which the result is wanted; default 1."""
    scope: Sequence[Who] | None
    """Only these members of the group take part, and each of them passes the same list; default: the whole group."""
    hash: bool
    """Whether the receipt carries a hash of the result; default no."""


class ReduceOptions(CallOptions, total=False):
    """What reductions may be told beside that."""

    quantize: Quantize | None
    """`"int8"` or `"int4"`: fewer bits on the wire, for an error with a bound. Floats only."""


class RetryOptions(ReduceOptions, total=False):
    """What reductions may be told that go on with the survivors."""

    retry: bool
    """Whether to try again with the survivors when members are lost; default yes. If not, `PeersLost` is raised."""


def _options(
    op: str = "sum",
    root: Who | None = None,
    retries: bool = False,
    *,
    tag: int = 0,
    timeout: float | None = None,
    min_world: int = 1,
    scope: Sequence[Who] | None = None,
    hash: bool = False,
    quantize: Quantize | None = None,
    retry: bool | None = None,
    **unknown: Any,
) -> "_outlast.Options":
    """The options in the order in which the extension module takes them."""
    if unknown:
        known = "tag, timeout, min_world, scope, hash; reductions also quantize"
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}: this call takes {known}")
    if retry is not None and not retries:
        raise TypeError("unknown option retry: only all_reduce, all_reduce_many and barrier go on with the survivors")
    return (op, tag, quantize, retries and retry is not False, min_world, timeout, scope, hash, root)


def _listen_from_environment() -> str:
    return f"0.0.0.0:{_outlast.port_from_environment() or 0}"


class Communicator(OfThisProcess):
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
        site: Where this peer is. Comes with the planning of rings in a later version; leave it `None`.
        timeout: Seconds that calls may take which are not told otherwise.
        encryption: `"on"`, or `"off"` to send tensors in the clear: faster, and readable for whoever sees the
            network. All peers of a run must say the same. Votes are encrypted either way.
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
        encryption: str = "on",
        accept_secret: str | None = None,
        tls: tuple[Path, Path, Path] | None = None,
        **options: Any,
    ) -> None:
        if options:
            unknown = ", ".join(sorted(options))
            raise InvalidArgument(f"unknown option {unknown}: see help(outlast.Communicator)")
        if site is not None:
            raise InvalidArgument(f"site={site!r}: rings are planned by site in a later version; leave it None")
        coordinator = coordinator or os.environ.get("OUTLAST_COORDINATOR")
        if not coordinator:
            raise InvalidArgument("no coordinator: pass its host:port, or set OUTLAST_COORDINATOR")
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
            timeout,
            encryption,
            accept_secret,
            tls,
        )

    # Taking part.

    def connect(self, min_world: int = 1, prefetch: None = None, timeout: float | None = None) -> TopologyChange:
        """Join the run. Returns once admitted and the group has at least `min_world` members.

        Newcomers are admitted while it waits. Those who are in already must call `update_topology` for this
        peer to be let in; `Receipt.pending` tells them that somebody waits.

        Args:
            min_world: How many members the group must have.
            prefetch: The state to fetch while waiting outside. Comes with shared state in a later version; leave
                it `None`.
            timeout: Seconds; default: the communicator's.

        Raises:
            OperationTimeout: Not admitted in time, or no coordinator was reached.
            Unauthorized: The coordinator has another secret.
        """
        if prefetch is not None:
            kind = type(prefetch).__name__
            raise InvalidArgument(f"prefetch={kind}: shared state comes with a later version; leave it None")
        return self._core.connect(min_world, timeout)

    def update_topology(self, min_world: int = 1, timeout: float | None = None) -> TopologyChange:
        """Admit newcomers, and wait until the group has at least `min_world` members.

        Every member of the run must call it; a common place is the top of a step, when the last receipt's
        `pending` is not zero.
        """
        return self._core.update_topology(min_world, timeout)

    def sync_state(
        self,
        state: SharedState,
        strategy: Strategy = "popular",
        staged: bool = False,
        timeout: float | None = None,
    ) -> SyncReport:
        """Make `state` the same on every member of the group, to the bit. Every member calls it.

        The highest revision wins; among its holders the most popular contents. Members that hold something else fetch
        the leaves that differ, from several donors at once, each verified. Who already agrees pays one pass over its
        memory and two round trips.

        Args:
            state: What this member holds. Leave its tensors alone until the call returns.
            strategy: `"popular"`: give or get. `"send_only"`: never be overwritten. `"receive_only"`: never give.
            staged: Keep what comes aside until everything is there: then an error leaves `state` as it was, for as
                much memory as differs.
            timeout: Seconds; default: the communicator's.

        Raises:
            RetryError: Sync again. If `torn`, this member's state is half new and half old until then.
            Mismatch: This member's keys, shapes, types or revision are not the group's; the message names it.
            FatalError: No member can give a state.
        """
        return self._core.sync_state(state._core, strategy, staged, timeout)

    def leave(self) -> None:
        """Say goodbye, so that nobody mistakes it for a failure. The object can `connect` again."""
        self._core.leave()

    def close(self) -> None:
        """Leave, and let go of the port and all threads. Closing twice is no error."""
        self._core.close()

    def __enter__(self) -> Self:
        """Connect, unless that is done already; leaving the block closes the communicator."""
        if self._core.standing() != "connected":
            self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Who is here. What is seen changes only inside a call or a wait.

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

    # Collectives.

    def all_reduce(
        self,
        x: Any,
        op: Op = "sum",
        out: Any = None,
        tag: int = 0,
        quantize: Quantize | None = None,
        retry: bool = True,
        min_world: int = 1,
        timeout: float | None = None,
        *,
        scope: Sequence[Who] | None = None,
        hash: bool = False,
    ) -> Receipt:
        """Join the contributions of all members; the result is the same to the bit on every member.

        Args:
            x: A dense CPU buffer: numpy array, torch tensor, bytearray, memoryview, .. Elements meet in the order
                of memory, so all members use the same layout.
            op: `"sum"`, `"avg"` (divided by the contributors), `"prod"`, `"min"`, `"max"`; for integers also
                `"band"`, `"bor"`, `"bxor"`.
            out: Where the result goes; default: `x` itself.
            tag: Tells concurrent collectives apart.
            quantize: `"int8"` or `"int4"`: fewer bits on the wire, for an error with a bound. Floats only.
            retry: Whether to try again with the survivors when members are lost. If not, `PeersLost` is raised.
            min_world: Fewest members with which the result is wanted.
            timeout: Seconds for all attempts together; default: the communicator's.
            scope: Only these members of the group take part; each of them passes the same list.
            hash: Whether the receipt carries a hash of the result.

        Returns:
            A receipt that says who contributed.

        Raises:
            RetryError: It did not happen, and `x` and `out` are as they were.
            RejoinError: This peer is out; its data is as it was, though the others may have committed.
            FatalError: The arguments make no sense, or differ from the others'.
        """
        options = (op, tag, quantize, retry, min_world, timeout, scope, hash, None)
        return self._core.collective("all_reduce", [x], None if out is None else [out], options)

    def all_reduce_async(self, x: Any, op: Op = "sum", out: Any = None, **options: Unpack[RetryOptions]) -> "Handle":
        """Begin an `all_reduce` and return at once; the handle's `wait` gives the receipt.

        The memory is in use until then: neither read nor write it. Concurrent operations need different tags.
        """
        outputs = None if out is None else [out]
        return Handle(self._core.collective_async("all_reduce", [x], outputs, _options(op, retries=True, **options)))

    def all_reduce_many(
        self,
        tensors: Sequence[Any],
        op: Op = "sum",
        out: Sequence[Any] | None = None,
        **options: Unpack[RetryOptions],
    ) -> Receipt:
        """Reduce several tensors in one transaction: one receipt, the same contributors for each.

        They may be of several types, as a model's gradients are. All members pass the same types and sizes in the same
        order. `avg` and `quantize` are for lists whose tensors all allow them; a refusal names the tensor, as `x[3]`.
        """
        outputs = None if out is None else list(out)
        return self._core.collective("all_reduce_many", list(tensors), outputs, _options(op, retries=True, **options))

    def all_gather(self, out: Any, x: Any, **options: Unpack[CallOptions]) -> Receipt:
        """Collect everybody's `x` in `out`, in the order of ranks: `out` is `world_size` times as large.

        This and all collectives below do not go on without a member by themselves, because what they mean
        depends on who is there: they raise `PeersLost`, and `out` is as it was.
        """
        return self._core.collective("all_gather", [x], [out], _options(**options))

    def reduce_scatter(self, out: Any, x: Any, op: Op = "sum", **options: Unpack[ReduceOptions]) -> Receipt:
        """Join everybody's `x` and keep the part of this member's rank in `out`."""
        return self._core.collective("reduce_scatter", [x], [out], _options(op, **options))

    def broadcast(self, x: Any, root: Who, **options: Unpack[CallOptions]) -> Receipt:
        """Give everybody the root's `x`. `root` is a peer's id, its name, or its rank at the time of the call."""
        return self._core.collective("broadcast", [x], None, _options(root=root, **options))

    def reduce(self, x: Any, root: Who, op: Op = "sum", **options: Unpack[ReduceOptions]) -> Receipt:
        """Join everybody's `x` at the root, in place; elsewhere `x` stays as it is."""
        return self._core.collective("reduce", [x], None, _options(op, root, **options))

    def gather(self, out: Any, x: Any, root: Who, **options: Unpack[CallOptions]) -> Receipt:
        """Collect everybody's `x` in the root's `out`, in the order of ranks; elsewhere `out` may be `None`."""
        return self._core.collective("gather", [x], [] if out is None else [out], _options(root=root, **options))

    def scatter(self, out: Any, x: Any, root: Who, **options: Unpack[CallOptions]) -> Receipt:
        """Give everybody its part of the root's `x`, in the order of ranks; elsewhere `x` may be `None`."""
        return self._core.collective("scatter", [] if x is None else [x], [out], _options(root=root, **options))

    def all_to_all(self, out: Any, x: Any, **options: Unpack[CallOptions]) -> Receipt:
        """Give part r of `x` to rank r, and collect the parts for this rank in `out`, in the order of ranks."""
        return self._core.collective("all_to_all", [x], [out], _options(**options))

    def send(self, x: Any, to: Who, tag: int = 0, *, timeout: float | None = None) -> None:
        """Send `x` to one other member, which must `recv` as many elements of the same type.

        Returns when they have arrived. Nobody votes on it, and it fails only its two ends: `PeersLost` if the
        other is lost, `OperationTimeout` if it does not receive in time.
        """
        self._core.transfer(x, to, False, tag, timeout)

    def recv(self, x: Any, source: Who, tag: int = 0, *, timeout: float | None = None) -> None:
        """Fill `x` with what one other member sends. After an error its contents are as they were."""
        self._core.transfer(x, source, True, tag, timeout)

    def barrier(self, everyone: bool = False, *, retry: bool = True, **options: Unpack[CallOptions]) -> Receipt:
        """Wait until every member of the group has called it.

        Args:
            everyone: Whether to wait for all groups of the run. In a run of one group that is the same; this version
                has no barrier across several and refuses.
            retry: Whether to go on with the survivors when members are lost.
            options: As for every collective.
        """
        if everyone:
            _, here, everywhere, _ = self._core.place()
            if options.get("scope") is not None:
                raise InvalidArgument("everyone=True with a scope: a barrier waits for all or for a part, not both")
            if everywhere > here:
                raise InvalidArgument(
                    f"everyone=True: {everywhere - here} of the run's {everywhere} members are in other groups, and "
                    "this version has no barrier across groups; put all in one group and use a scope for each part"
                )
        return self._core.collective("barrier", [], None, _options(retries=True, retry=retry, **options))

    def __repr__(self) -> str:
        standing = self._core.standing()
        if standing != "connected":
            return f"<outlast.Communicator {standing}>"
        rank, world_size, _, epoch = self._core.place()
        return f"<outlast.Communicator {self.peer_id[:8]}: rank {rank} of {world_size}, epoch {epoch}>"


class Handle(OfThisProcess):
    """A collective in the background. Dropping it changes nothing: the operation goes on to its verdict.

    In a coroutine wait with `await asyncio.to_thread(handle.wait)`.
    """

    def __init__(self, core: _outlast.Handle) -> None:
        self._core = core

    def done(self) -> bool:
        """Whether it is over, one way or the other."""
        return self._core.done()

    def wait(self, timeout: float | None = None) -> Receipt:
        """Wait for the end and return its receipt, or raise what the call would have raised.

        Args:
            timeout: Seconds to wait now; the operation goes on afterwards. Default: until the operation's own
                deadline has ended it.

        Raises:
            OperationTimeout: Not over yet; wait again.
        """
        return self._core.wait(timeout)

    def __repr__(self) -> str:
        return f"<outlast.Handle tag={self._core.tag}>"
