"""What a publisher is told: its name, its applications, its limits. Data only; all but name and addresses can be changed while it runs.

Filters and the rule of the shards come compiled (filtering.py, sharding.py), so that nothing here reads text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from roskva.capture.balance import Strategy
from roskva.capture.flows import Terms
from roskva.capture.limits import CLOSE_S_MAX, Limits
from roskva.capture.ownership import STEADY_S, TAKEOVER_S, Peer
from roskva.capture.positions import Position
from roskva.capture.updates import Change, Update
from roskva.capture.wire import KEY_BYTES_MIN
from roskva.errors import InvalidSetting

FLOWS_MAX: Final = 8_192  # of a publisher, which looks at all of them many times a second: 4,096 took a tenth of the loop, once measured
SET_TOO: Final = ("memory_mib_max", "connections_max")  # that an operator may set while it runs, beside the fields of Limits

# Where a flow begins that has no datamarker yet: at the log's end, at its oldest, at a time (seconds since 1970), or at a position.
Start: TypeAlias = Literal["end", "oldest"] | float | Position


class Shards(Protocol):
    """Which shards a change is of, almost always one; sharding.py has one of these."""

    @property
    def shards(self) -> int: ...

    @property
    def misplaced(self) -> Mapping[str, int]:
        """By the reason, how many changes were put into shard 0 since nobody could tell theirs."""
        ...

    def shards_of(self, change: Change) -> tuple[int, ...]: ...


class OneShard:
    """All in one."""

    shards = 1
    misplaced: Mapping[str, int] = {}

    def shards_of(self, change: Change) -> tuple[int, ...]:
        return (0,)


@dataclass(frozen=True, slots=True)
class ApplicationSettings:
    key: bytes = field(repr=False)  # shared with the subscribers, and never sent
    passes: Callable[[Update], bool] | None = None  # the filter; None: everything
    terms: Terms = Terms()
    start: Start = "end"
    balance: str | Strategy = "coordinated"  # which process gets a flow: balance.py
    regions: Mapping[int, str] = field(default_factory=dict)  # shard -> the region whose publisher it prefers

    def __post_init__(self) -> None:
        if len(self.key) < KEY_BYTES_MIN:
            raise InvalidSetting(f"The key of an application of capture has {len(self.key)} bytes; it needs {KEY_BYTES_MIN} at least.")


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    name: str  # among the publishers of the same data
    listen: str  # HOST:PORT or unix:PATH
    control: Path | None  # the Unix socket for commands; None: none
    applications: Mapping[str, ApplicationSettings]
    shards: Shards = OneShard()
    # The publishers of the same data, the primary first. Empty: this one alone (single-copy).
    peers: tuple[Peer, ...] = ()
    limits: Limits = Limits()
    # Of what waits to be sent: half in flows' buffers, half under way to subscribers. At the limit flows get smaller windows, and buffers
    # are discarded and read again.
    memory_mib_max: int = 512
    # Read at once. Larger ones cost less per change, smaller ones come sooner.
    changes_max: int = 1_000
    connections_max: int = 1_000
    tick_s: float = 0.05
    look_s: float = 1.0  # how often the datastore is asked how long its log is, and told what nobody needs any more
    prepare_s: float = 10.0  # how often it is looked whether all is there that reading needs: slot, publication
    beat_s: float = 1.0  # how often a publisher shows that it lives, and looks whether its peers do
    takeover_s: float = TAKEOVER_S
    steady_s: float = STEADY_S
    behind_s_max: float = 30.0  # that a flow may wait for a log that is behind its datamarker, before that is a problem
    balance_s: float = 5.0  # how often flows are balanced when nobody came or went
    settle_s: float = 0.1  # that flows wait for more processes of their application, after one came or went
    # A process that was told to close a flow, and does not answer for so long, loses it: its callback stands still.
    close_s_max: float = CLOSE_S_MAX

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 64:
            raise InvalidSetting("A publisher needs a name of 1 to 64 characters.")
        flows = self.shards.shards * max(1, len(self.applications))
        if not 1 <= flows <= FLOWS_MAX:
            raise InvalidSetting(
                f"{self.shards.shards:,} shards for {len(self.applications)} applications are {flows:,} flows: a publisher has from 1 to"
                f" {FLOWS_MAX:,}. Divide the dataset into fewer shards."
            )
        if self.peers and self.name not in {peer.name for peer in self.peers}:
            raise InvalidSetting(f"The publisher {self.name!r} is not among its peers: {', '.join(peer.name for peer in self.peers)}.")

        for name in SET_TOO:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidSetting(f"{name} is {value}: a whole number above 0 is expected.")

    def limits_of_core(self) -> Limits:
        """The core's own, with its half of the memory."""
        total = self.memory_mib_max * 2**19
        return replace(
            self.limits,
            buffers_bytes_max=min(self.limits.buffers_bytes_max, total),
            buffer_bytes_max=min(self.limits.buffer_bytes_max, total),
        )
