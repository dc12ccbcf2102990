"""Collectives that outlast the machines that run them.

A group of processes runs collectives and carries on when a member is killed, frozen, cut off or replaced:

>>> import outlast
>>> import numpy as np
>>> with outlast.Coordinator(listen="127.0.0.1:0") as coordinator:
...     comm = outlast.Communicator(coordinator.address, secret=coordinator.secret)
...     with comm:
...         x = np.ones(4, np.float32)
...         receipt = comm.all_reduce(x, op="sum")
...         x /= len(receipt.contributors)
>>> x
array([1., 1., 1., 1.], dtype=float32)

A call returns with its result and a `Receipt`, or raises an error that says what to do next:
`RetryError` (do it again), `RejoinError` (connect again) or `FatalError` (fix the program).
"""

import atexit as _atexit

from outlast._flight import dump
from outlast._outlast import __version__, at_exit, new_secret
from outlast.arrays import ErrorFeedback, empty
from outlast.background import Handle
from outlast.communicator import Communicator
from outlast.coordinator import Coordinator
from outlast.elastic import Elastic, Step
from outlast.errors import (
    Cancelled,
    CoordinatorLost,
    FatalError,
    InvalidArgument,
    Kicked,
    Mismatch,
    OperationTimeout,
    OutlastError,
    PeersLost,
    RejoinError,
    RendezvousClosed,
    RetryError,
    TooFewPeers,
    TopologyFailed,
    Unauthorized,
    Waiting,
)
from outlast.events import CoordinatorBack, EpochChanged, GroupEvent, Healing, LinkSlowed, SlowStep
from outlast.membership import (
    Died,
    Event,
    Joined,
    Lagged,
    Left,
    Member,
    Membership,
    Recovered,
    Rejoined,
    Stalled,
    Suspected,
)
from outlast.records import Lost, Peer, PeerId, Receipt, SyncReport, TopologyChange, TopologyReport
from outlast.rendezvous import Participant, Rendezvous, RendezvousEvent, RendezvousInfo
from outlast.state import SharedState
from outlast.store import Store

__all__ = [
    "Cancelled",
    "Communicator",
    "Coordinator",
    "CoordinatorBack",
    "CoordinatorLost",
    "Died",
    "Elastic",
    "EpochChanged",
    "ErrorFeedback",
    "Event",
    "FatalError",
    "GroupEvent",
    "Handle",
    "Healing",
    "InvalidArgument",
    "Joined",
    "Kicked",
    "Lagged",
    "Left",
    "LinkSlowed",
    "Lost",
    "Member",
    "Membership",
    "Mismatch",
    "OperationTimeout",
    "OutlastError",
    "Participant",
    "Peer",
    "PeerId",
    "PeersLost",
    "Receipt",
    "Recovered",
    "RejoinError",
    "Rejoined",
    "Rendezvous",
    "RendezvousClosed",
    "RendezvousEvent",
    "RendezvousInfo",
    "RetryError",
    "SharedState",
    "SlowStep",
    "Stalled",
    "Step",
    "Store",
    "Suspected",
    "SyncReport",
    "TooFewPeers",
    "TopologyChange",
    "TopologyFailed",
    "TopologyReport",
    "Unauthorized",
    "Waiting",
    "__version__",
    "dump",
    "empty",
    "new_secret",
]

_atexit.register(at_exit)
