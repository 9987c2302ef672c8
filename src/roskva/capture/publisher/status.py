"""What a publisher says of itself (Wormhole 5: "what are the datamarkers of all flows on it", rates, lag). Numbers and text only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from roskva.capture.flows import FlowStatus, Routed
from roskva.capture.interface import Malformed, Retained
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.errors import RoskvaError

if TYPE_CHECKING:
    from roskva.capture.publisher.server import Publisher

PERIOD_S: Final = 5.0  # over which rates are taken
ASKED_MAX: Final = 16  # questions to a flow that are remembered, each with its time


class Statistics:
    """Counters, and rates over the last period."""

    def __init__(self) -> None:
        self.bytes_read = 0  # of log, by all caravans that there were
        self.updates_sent = 0
        self.bytes_sent = 0
        self.datastore: RoskvaError | None = None  # why it does not answer
        self.rates: dict[str, float] = {"read_bytes_per_s": 0.0, "sent_bytes_per_s": 0.0, "sent_updates_per_s": 0.0}
        self._committed_us: dict[FlowName, int] = {}
        self._asked: dict[FlowName, list[tuple[Position, float]]] = {}  # what was not answered yet, and since when
        self._before: tuple[float, int, int, int] | None = None

    def sent(self, flow: FlowName, updates: Sequence[Routed]) -> None:
        self.updates_sent += len(updates)
        self.bytes_sent += sum([update.size for update in updates])
        self._committed_us[flow] = updates[-1].committed_us

    def lag_s(self, flow: FlowName) -> float | None:
        """How long ago what was last sent had been committed; None: nothing was sent yet."""
        committed_us = self._committed_us.get(flow)
        return None if committed_us is None else max(0.0, time.time() - committed_us / 1e6)

    def asked(self, flow: FlowName, position: Position) -> None:
        """A token was sent: has it dealt with all up to here?"""
        asked = self._asked.setdefault(flow, [])
        if len(asked) < ASKED_MAX:
            asked.append((position, time.monotonic()))
        else:
            asked[-1] = (position, asked[-1][1])  # one question with the last: the first is what counts

    def answered(self, flow: FlowName, datamarker: Position) -> None:
        """By a token's answer, or unasked."""
        if flow in self._asked:
            left = [(position, since_s) for position, since_s in self._asked[flow] if position > datamarker]
            if left:
                self._asked[flow] = left
            else:
                del self._asked[flow]

    def unanswered_s(self, flow: FlowName, datamarker: Position) -> float:
        """For how long a question has waited for its answer. While nothing is asked, what was sent counts as dealt with: a healthy flow is
        not behind because nobody asked it."""
        self.answered(flow, datamarker)  # an operator may have moved it
        asked = self._asked.get(flow)
        return max(0.0, time.monotonic() - asked[0][1]) if asked else 0.0

    def tick(self, now_s: float, publisher: Publisher) -> None:
        if self._before is not None and now_s - self._before[0] < PERIOD_S:
            return
        now = (now_s, self.bytes_read, self.bytes_sent, self.updates_sent)
        if self._before is not None:
            names = ("read_bytes_per_s", "sent_bytes_per_s", "sent_updates_per_s")
            seconds = now_s - self._before[0]
            self.rates = {
                name: round((after - before) / seconds, 1) for name, after, before in zip(names, now[1:], self._before[1:], strict=True)
            }
        self._before = now
        held = publisher.owning.held
        self._committed_us = {flow: committed_us for flow, committed_us in self._committed_us.items() if flow in held}
        self._asked = {flow: asked for flow, asked in self._asked.items() if flow in held}


def status_of(publisher: Publisher) -> dict[str, Any]:
    retained, malformed = publisher.retained, publisher.malformed()
    flows = [flow_status(publisher, status) for status in publisher.core.flows()]
    flows.sort(key=lambda flow: -flow["behind_share"])
    namesakes = publisher.placing.problems(asyncio.get_running_loop().time())
    troubles = (publisher.statistics.datastore, *publisher.owning.problems, *publisher.reading_problems(), *namesakes)
    problems = [*(str(error) for error in troubles if error is not None), *cut_off(publisher), *publisher.beyond.problems()]
    problems += passed_over(malformed)
    return {
        "publisher": publisher.name,
        "dataset": publisher.dataset,
        "address": publisher.address,
        "log": {
            "oldest": str(retained.oldest),
            "end": str(retained.end),
            "bytes_behind": retained.bytes_behind,
            "bytes_max": retained.bytes_max,
            "disk_free_bytes": publisher.disk_free_bytes(),
        },
        "problems": problems,
        "flows": flows,
        "elsewhere": [
            {"flow": str(flow), "owner": record.owner, "epoch": record.epoch, "released": record.released,
             "datamarker": None if record.datamarker is None else str(record.datamarker)}
            for flow, record in sorted(publisher.owning.foreign.items())
        ],
        "caravans": [
            {"caravan": c.caravan, "lead": c.lead, "position": str(c.position), "flows": c.flows, "standing": c.standing,
             "bytes_per_s_max": c.bytes_per_s_max, "bytes_read": c.bytes_read, "updates_read": c.updates_read}
            for c in publisher.core.caravans()
        ],
        "subscribers": [
            {"application": c.application, "member": c.member, "flows": len(c.flows), "load": round(c.load, 3), "weight": c.weight,
             "bytes_sent": c.bytes_sent, "waiting_bytes": c.waiting_bytes}
            for c in publisher.placing.connections.values()
        ],
        "bytes_read": publisher.statistics.bytes_read,
        "updates_sent": publisher.statistics.updates_sent,
        "bytes_sent": publisher.statistics.bytes_sent,
        "rates": publisher.statistics.rates,
        "fenced": publisher.core.times_fenced,
        "moves": publisher.placing.moves,
        "schemas": len(publisher.schemas),
        "filter_failures": publisher.filter_failures,
        "misplaced": dict(publisher.settings.shards.misplaced),
        "malformed_lines": None if malformed is None else malformed.lines,
    }  # fmt: skip


def cut_off(publisher: Publisher) -> list[str]:
    """Flows whose log is cut off. Whoever is not read for now is told of it later: an operator learns it at once."""
    oldest = publisher.retained.oldest
    lost = [status for status in publisher.core.flows() if status.datamarker < oldest and not _realtime(publisher, status.flow)]
    if not lost:
        return []
    first = min(lost, key=lambda status: status.datamarker)
    more = f" and {len(lost) - 1:,} more flows" if len(lost) > 1 else ""
    what = f"The log begins after {oldest}: what {first.flow}{more} had not read is lost, from {first.datamarker} on."
    return [f"{what} Subscribers are told (on_data_loss) as soon as it is read for them."]


def passed_over(malformed: Malformed | None) -> list[str]:
    if malformed is None or not malformed.lines:
        return []
    what = (
        f"Lines of the log that cannot be read: {malformed.lines:,}. The last is in {malformed.last}. What changed there nobody knows, so"
    )
    return [f"{what} Roskva's clients fetch everything. Correct the program that writes them; this is said until capture is started again."]


def _realtime(publisher: Publisher, flow: FlowName) -> bool:
    settings = publisher.settings.applications.get(flow.application)
    return settings is not None and settings.terms.realtime


def flow_status(publisher: Publisher, status: FlowStatus) -> dict[str, Any]:
    retained = publisher.retained
    share = behind_share(status.datamarker, retained)
    at = publisher.placing.where(status.flow)
    behind = status.sent < retained.end
    return {
        "application": status.flow.application,
        "shard": status.flow.shard,
        "state": str(status.state),
        "why": status.why or publisher.beyond.waits_for(status.flow),
        "member": None if at is None else at.member,
        "stays": publisher.placing.stays(status.flow),
        "epoch": status.epoch,
        "datamarker": str(status.datamarker),
        "stored": None if status.stored is None else str(status.stored),
        "sent": str(status.sent),
        "caravan": status.caravan,
        "behind_share": share,
        "lag_bytes": lag_bytes(status.datamarker, retained),
        "lag_s": (publisher.statistics.lag_s(status.flow) if behind else 0.0),
        "unanswered_s": publisher.statistics.unanswered_s(status.flow, status.datamarker),
        "buffered": status.buffered,
        "buffered_bytes": status.buffered_bytes,
        "credit_bytes": status.credit_bytes,
        "updates_sent": status.updates_sent,
        "bytes_sent": status.bytes_sent,
        "tokens_sent": status.tokens_sent,
        "falls": status.falls,
        "discarded": status.discarded,
        "too_old": status.too_old,
        "losses": status.losses,
        "refused": status.refused,
    }


def behind_share(datamarker: Position, retained: Retained) -> float:
    """Of the retained log, what comes after the datamarker: 0 at its end, 1 where it is about to be cut. By the numbers of commits."""
    return round(_share_after(datamarker, retained.oldest, retained.end), 4)


def lag_bytes(datamarker: Position, retained: Retained) -> int | None:
    """Of log between the datamarker and the end, about: as if all commits were of one size before what was confirmed, and all after it.

    What was confirmed is where the last of the flows was, unless one went back since."""
    behind, confirmed = retained.bytes_behind, retained.confirmed
    kept = behind if retained.bytes_kept is None else retained.bytes_kept
    if kept is None:
        return None
    if behind is None or confirmed is None:
        return round(kept * _share_after(datamarker, retained.oldest, retained.end))
    if datamarker < confirmed:
        return behind + round(max(0, kept - behind) * _share_after(datamarker, retained.oldest, confirmed))
    return round(behind * _share_after(datamarker, confirmed, retained.end))


def _share_after(position: Position, begin: Position, end: Position) -> float:
    """Of what is between begin and end, what comes after the position."""
    if position >= end:
        return 0.0
    if position <= begin or position.history != end.history:
        return 1.0
    return min(1.0, (end.sequence - position.sequence) / max(1, end.sequence - begin.sequence))
