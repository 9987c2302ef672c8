"""What the core of capture wants done. Data only; `Core` (core.py) returns them, the publisher's shell performs them in order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from roskva.capture.flows import Routed, Stream
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position

Connection: TypeAlias = int  # the shell's number of a connection to a subscriber process; never used again
CaravanId: TypeAlias = int  # the core's; never used again


class Open(NamedTuple):
    """Open a reader after this position (`Datastore.read_after`), and bring what it reads to `Core.read`. It stands until its first Pace.

    LogCut, now or later: `Core.cut`. DatastoreUnavailable: another reader at `Core.position_of(caravan)`, after a pause.
    """

    caravan: CaravanId
    after: Position
    lead: bool


class Close(NamedTuple):
    """Close its reader. What it still reads is of no use; `Core.read` ignores it."""

    caravan: CaravanId


class Pace(NamedTuple):
    """From now on read at most this much of the log per second. 0: stand still, all who ride wait for their subscribers."""

    caravan: CaravanId
    bytes_per_s: float


class Notice(NamedTuple):
    """Tell the subscriber: a stream of this flow begins, after this position (on_shard_notice)."""

    flow: FlowName
    connection: Connection
    stream: Stream
    after: Position


class Send(NamedTuple):
    """Hand these updates to the connection, in order. All of one action may be compressed together (`staleness_max_s`)."""

    flow: FlowName
    connection: Connection
    stream: Stream
    updates: Sequence[Routed]


class Token(NamedTuple):
    """Ask the subscriber to acknowledge all up to here, when it has dealt with it (on_token)."""

    flow: FlowName
    connection: Connection
    stream: Stream
    position: Position


class DataLoss(NamedTuple):
    """Tell the subscriber: what came after `lost_after`, up to and with `lost_to`, was cut off the log unread (on_data_loss)."""

    flow: FlowName
    connection: Connection
    stream: Stream
    lost_after: Position
    lost_to: Position


class Ended(NamedTuple):
    """Tell the subscriber: nothing of this stream comes any more. The flow was removed, fenced, rewound, or given to another connection."""

    flow: FlowName
    connection: Connection
    stream: Stream


class Store(NamedTuple):
    """Make this datamarker durable, if no later epoch has stored one, and call `Core.stored`; if one has, `Core.fenced`.

    A later one of the same flow makes an earlier one superfluous.
    """

    flow: FlowName
    position: Position
    epoch: int


class Confirm(NamedTuple):
    """No flow needs anything up to here any more: `Datastore.confirm`."""

    position: Position


Action: TypeAlias = Open | Close | Pace | Notice | Send | Token | DataLoss | Ended | Store | Confirm
