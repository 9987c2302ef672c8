"""What the publisher beside a database may use, and what happens at each limit (Wormhole 3.1 and 5). Pure.

All of it can be changed while the publisher runs: `Core.configure`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from roskva.errors import BadRequest

CATCH_UP_MIN: Final = 1.25  # Wormhole 3.1: "typically 1.25 to 2 times faster"
CATCH_UP_MAX: Final = 2.0
CARAVANS_MAX: Final = 64
CLOSE_S_MAX: Final = 30.0  # a process that was told to close a flow, and does not answer for so long, loses it
COMMAND_S_MAX: Final = 30.0  # within which a publisher answers a command of an operator


def take_back_s_max(close_s_max: float) -> float:
    """Within which no process has a flow any more that is taken back, whatever its callbacks do."""
    return 2 * close_s_max


def command_s_max(command: object, close_s_max: float = CLOSE_S_MAX) -> float:
    """Within which this command is answered: a rewind takes flows back first. Whoever asks waits for longer."""
    return COMMAND_S_MAX + (take_back_s_max(close_s_max) if command == "rewind" else 0.0)


@dataclass(frozen=True, slots=True)
class Limits:
    # Which function of policies.py places flows on caravans.
    policy: str = "cluster"
    # Readers of the log at any time. At the limit flows that lag share a caravan, and those ahead in it wait for those behind. With 1
    # even the flows at the log's end wait for the one that lags most: from 2 on they never do.
    caravans_max: int = 4
    # Bytes of log per second that one caravan may read, and all together. At the limit everything comes later; nothing is lost.
    caravan_rate_max: float = 64 * 1024.0 * 1024.0
    caravans_rate_total_max: float = 128 * 1024.0 * 1024.0
    # A lagging caravan reads so many times faster than the lead does; but not slower than this, however quiet the log's end is.
    catch_up_factor: float = CATCH_UP_MAX
    caravan_rate_min: float = 16 * 1024.0 * 1024.0
    # Datamarkers nearer to each other than this share of the retained log are one cluster.
    close_share: float = 0.02
    # What waits in one flow for its subscriber's credit. At the limit it is discarded, and the flow is read for again from where its
    # connection is. A batch that is read at once should be at most a quarter of this.
    buffer_updates_max: int = 16_384
    buffer_bytes_max: int = 4 * 1024 * 1024
    # In all flows together; a batch that was just read may stand above it. At the limit the largest buffers are discarded.
    buffers_bytes_max: int = 256 * 1024 * 1024
    # How often a flow's subscriber is asked how far it is (Wormhole 3.3.1).
    datamarker_period_s: float = 30.0
    # How often flows are placed anew. A flow that rides nowhere does not wait for it.
    allocation_period_s: float = 1.0
    # A flow whose buffer is half full or more, and whose subscriber takes nothing for so long, gives its buffer and its seat back.
    choke_max_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("caravans_max", "buffer_updates_max", "buffer_bytes_max", "buffers_bytes_max"):
            if not isinstance(getattr(self, name), int):
                raise BadRequest(f"{name} is {getattr(self, name)}: a whole number is expected.")
        if not 1 <= self.caravans_max <= CARAVANS_MAX:
            raise BadRequest(f"caravans_max is {self.caravans_max}: 1 to {CARAVANS_MAX} caravans can read.")
        if not CATCH_UP_MIN <= self.catch_up_factor <= CATCH_UP_MAX:
            raise BadRequest(f"catch_up_factor is {self.catch_up_factor}: {CATCH_UP_MIN} to {CATCH_UP_MAX} is expected.")
        if not 0.0 <= self.close_share <= 1.0:
            raise BadRequest(f"close_share is {self.close_share}: a share of the retained log, 0 to 1, is expected.")
        for name in (
            "caravan_rate_max",
            "caravans_rate_total_max",
            "caravan_rate_min",
            "buffer_updates_max",
            "buffer_bytes_max",
            "buffers_bytes_max",
            "datamarker_period_s",
            "allocation_period_s",
            "choke_max_s",
        ):
            if not getattr(self, name) > 0:
                raise BadRequest(f"{name} is {getattr(self, name)}: a number above 0 is expected.")
