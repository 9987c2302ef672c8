"""What the service tells about itself and what it stores: status, readiness, versions of objects, dead letters.

Everything here only reads. Blocking reads of the feed run in a thread, those of the table in its lanes.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from roskva.config import Settings
from roskva.errors import MalformedMessage, RoskvaError, UnknownApplication, UnknownObject
from roskva.feed.interface import DEAD_LETTERS, FAN_OUTS, REGISTRATIONS, TOPICS, UPDATES, Feed, Position, Record
from roskva.feed.known import known_since
from roskva.gateway.members import Membership
from roskva.gateway.peers import Peers
from roskva.matcher.cells import object_row, read_version
from roskva.model import name_from_text, name_to_text, object_key
from roskva.registrar.members import MEMBERS_ROW
from roskva.table.interface import Table
from roskva.table.lanes import TableLanes
from roskva.table.manifest import COMPLETE, Manifest
from roskva.telemetry.latency import Latency
from roskva.telemetry.metrics import Metrics

LETTERS_MAX: Final = 1_000
SCRATCH_COUNTED_MAX: Final = 2_000  # rows of a partition: the status must be quick
_PROBE_S: Final = 2.0
_HEALTH_SILENCE_S: Final = 15.0  # the pipeline speaks every 5 s
_NO_PIPELINE: Final[dict[str, Any]] = {"alive": False, "state": "unknown", "batch": None, "last_batch_age_s": None, "lag": {}}


def release() -> str:
    try:
        return importlib.metadata.version("roskva")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


@dataclass(slots=True)
class Inspection:
    settings: Settings
    table: TableLanes
    feed: Feed
    membership: Membership
    metrics: Metrics
    epoch_of: Callable[[str], int]
    sessions: Callable[[], int]
    outstanding: Callable[[], int]
    manifest: Manifest
    work: Callable[[], dict[str, Any]]  # what this gateway's Registrar has not finished
    disk: Callable[[], dict[str, Any]]
    peers: Peers
    measured: Latency
    _since_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    _looking: asyncio.Task[list[str]] | None = None  # for who asks whether this is ready: all that ask meanwhile wait for one look
    _looked_s: float = 0.0

    async def unready_lately(self, for_s: float) -> list[str]:
        """As `unready`, by a look that began no longer than so many seconds ago."""
        now_s = time.monotonic()
        if self._looking is None or (self._looking.done() and now_s - self._looked_s >= for_s):
            self._looking, self._looked_s = asyncio.get_running_loop().create_task(self.unready()), now_s
        return await asyncio.shield(self._looking)

    def latency(self) -> dict[str, Any]:
        """The times of sampled updates that this gateway has seen since it started. Those of several gateways add up."""
        return {
            "member": self.membership.member.id,
            "since_ms": self._since_ms,
            "stamps_per_s": self.settings.stamps_per_s,
            **self.measured.document(),
        }

    async def object_version(self, application: str, text: str) -> dict[str, Any]:
        """The version that the Matcher knows. One that came before a loss no longer counts: versions after it may be lost."""
        if application not in self.settings.applications:
            raise UnknownApplication(application)
        name = name_from_text(text)
        key = object_key(application, self.epoch_of(application), name)
        row_key = object_row(key, self.settings.partitions)
        rows = await self.table.read([row_key], prefix=b"version")
        known = read_version(rows[row_key])
        since = await asyncio.to_thread(known_since, self.manifest.record, row_key.partition, self.settings.partitions)
        if known is None or since is None or known.incarnation != since:
            raise UnknownObject(application, name_to_text(name))
        return {
            "application": application,
            "object": name_to_text(name),
            "version": known.version,
            "version_text": str(known.version),  # JavaScript loses digits of numbers above 2^53
            "source": known.source or None,
            "epoch": self.epoch_of(application),
        }

    async def status(self) -> dict[str, Any]:
        """Of the whole service, whichever gateway answers. What gateways hold is summed over those that answer."""
        feed, stored, sweeps, pipeline, others = await asyncio.gather(
            asyncio.to_thread(self._feed_state),
            asyncio.to_thread(self._stored_state),
            asyncio.to_thread(_read_sweeps, self.table.table),
            self.pipeline(),
            self.peers.ask_all("/own"),
        )
        own = self.own()
        figures = [own, *(msgspec.json.decode(answer) for answer in others.values() if answer is not None)]
        view = self.membership.view
        return {
            "version": release(),
            "data_center": self.settings.data_center,
            "member": self.membership.member.id,
            "members": [
                {
                    "id": member.id,
                    "name": member.name or member.id,
                    "address": member.public,
                    "internal": member.internal,
                    "answers": others.get(member.id, b"") is not None,
                }
                for member in sorted(view.live.values(), key=lambda member: (member.name, member.id))
            ],
            "gateways": {one["name"]: one["holds"] | {"pid": one["pid"]} for one in figures},
            "partitions": {
                str(partition): None if (owner := view.owner(partition)) is None else owner.id
                for partition in range(self.settings.partitions)
            },
            **summed([one["holds"] for one in figures]),
            "disk": self.disk(),
            **stored,
            "applications": sorted(self.settings.applications),
            "pipeline": pipeline,
            "feed": feed,
            "sweeps": sweeps,
        }

    def own(self) -> dict[str, Any]:
        """What this gateway holds."""
        member = self.membership.member
        holds = {"sessions": self.sessions(), "connections": self.metrics.connections, "outstanding": self.outstanding(), **self.work()}
        return {"name": member.name or member.id, "pid": os.getpid(), "holds": holds}

    def _stored_state(self) -> dict[str, Any]:
        """What was put aside, and the partitions that are not as they should be."""
        from roskva.pipeline.scratch import size

        try:
            records = self.manifest.snapshot().records
        except RoskvaError as error:
            return {"scratch": None, "incomplete": {"manifest": error.code}}
        aside = size(self.table.table, self.settings, SCRATCH_COUNTED_MAX)
        incomplete = {str(address): record.state for address, record in sorted(records.items()) if record.state != COMPLETE}
        return {"scratch": {"rows": aside, "more": aside >= SCRATCH_COUNTED_MAX}, "incomplete": incomplete}

    def _feed_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for topic in TOPICS:
            try:
                oldest, newest = self.feed.oldest(topic), self.feed.newest(topic)
                state[topic] = {"records": sum(newest[partition].offset - oldest[partition].offset for partition in newest)}
            except RoskvaError as error:
                state[topic] = {"error": error.code}
        return state

    async def pipeline(self) -> dict[str, Any]:
        """The pipeline's own report, or that there is none."""
        try:
            return await asyncio.to_thread(_read_health, self.table.table, self.feed)
        except RoskvaError as error:
            return _NO_PIPELINE | {"state": error.code}

    async def unready(self) -> list[str]:
        """Why this service should not be given clients yet; empty when it should. The same at each of several gateways: one may own no
        partition of clients, and serves them all the same.
        """
        reasons = []
        if self.membership.view.owner(0) is None:
            reasons.append("no partition of clients belongs to a gateway (yet)")
        try:
            async with asyncio.timeout(_PROBE_S):
                await self.table.read([MEMBERS_ROW])
                await asyncio.to_thread(self.feed.newest, UPDATES)
        except (RoskvaError, TimeoutError) as error:
            reasons.append(f"table or feed do not answer: {error}")
            return reasons
        pipeline = await self.pipeline()
        lag = sum(count for counts in pipeline["lag"].values() for count in counts.values())
        if not pipeline["alive"]:
            reasons.append("the pipeline is not running")
        elif pipeline["batch"] is None and lag:
            reasons.append("the pipeline has not finished a batch yet")
        return reasons

    async def dead_letters(self, after: str, limit: int) -> dict[str, Any]:
        """A page of dead letters, oldest first within each partition, and the cursor for the next page."""
        if not 1 <= limit <= LETTERS_MAX:
            raise MalformedMessage(f"`limit` must be from 1 to {LETTERS_MAX}.")
        cursor = _read_cursor(after)
        return await asyncio.to_thread(self._letters, cursor, limit)

    def _letters(self, cursor: dict[int, Position], limit: int) -> dict[str, Any]:
        oldest, newest = self.feed.oldest(DEAD_LETTERS), self.feed.newest(DEAD_LETTERS)
        found: list[Record] = []
        reached: dict[int, Position] = {}
        for partition, end in sorted(newest.items()):
            start = oldest[partition]
            seen = cursor.get(partition)
            if seen is not None and seen.incarnation == end.incarnation:
                start = max(start, seen)
            records = self.feed.read(DEAD_LETTERS, partition, start.offset, min(end.offset, start.offset + limit - len(found)))
            found += records
            reached[partition] = Position(end.incarnation, records[-1].offset + 1 if records else start.offset)
        found.sort(key=lambda record: record.time_ms)
        return {"letters": [_letter(record) for record in found], "next": _write_cursor(reached)}


def summed(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of what several gateways hold, figure by figure."""
    total: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in figures for name in one):
        found = [one[name] for one in figures if name in one]
        total[name] = summed(found) if isinstance(found[0], Mapping) else sum(found)
    return total


def _letter(record: Record) -> dict[str, Any]:
    letter = msgspec.json.decode(record.value)
    fields = ("topic", "partition", "offset", "time_ms", "application", "reason", "code", "value")
    return {name: letter.get(name) for name in fields}


def _read_cursor(text: str) -> dict[int, Position]:
    try:
        parts = [tuple(int(number) for number in part.split("-")) for part in text.split(".") if part]
        return {partition: Position(incarnation, offset) for partition, incarnation, offset in parts}
    except ValueError:
        raise MalformedMessage("`after` is not a cursor that an earlier answer gave as `next`.") from None


def _write_cursor(reached: Mapping[int, Position]) -> str:
    return ".".join(f"{partition}-{position.incarnation}-{position.offset}" for partition, position in reached.items())


def _read_health(table: Table, feed: Feed) -> dict[str, Any]:
    """What the pipeline last said, in the form of /v1/status. Its room is imported only here, and brings no Spark along."""
    from roskva.pipeline.health import RUNNING, read_health
    from roskva.pipeline.offsets import STREAMS, SUBSCRIPTION

    health = read_health(table)
    if health is None:
        return _NO_PIPELINE | {"lag": _lag(feed, SUBSCRIPTION)}
    now_ms = time.time_ns() // 1_000_000
    alive = health.state == RUNNING and now_ms - health.written_ms < _HEALTH_SILENCE_S * 1000
    lag: dict[str, dict[str, int]] = {}
    for place, count in health.lag.items():
        topic, _, partition = place.rpartition("/")
        lag.setdefault(topic, {})[partition] = count
    finished = health.batch >= 0
    return {
        "alive": alive,
        "state": health.state if alive or health.state != RUNNING else "silent",
        "batch": health.batch if finished else None,
        "last_batch_age_s": max(0, now_ms - health.batch_finished_ms) / 1000 if finished else None,
        "lag": lag if alive else _lag(feed, SUBSCRIPTION),  # its own word is exact, but old when it is gone
        "boot": health.boot,
        "said_ms": health.written_ms,  # by its own clock
        "pid": health.pid,
        "queries": {
            stream.name: {
                "steps": health.steps.get(stream.name, 0),
                "lag": sum(sum(lag.get(topic, {}).values()) for topic in stream.topics),
            }
            for stream in STREAMS
        },
        "records": health.records,
        "durations_ms": health.durations_ms,
        "counts": health.counts,
        "error": health.error,
    }


def _read_sweeps(table: Table) -> dict[str, Any]:
    """The last sweep of each kind, those that never ran aside."""
    from roskva.pipeline.sweeps.record import PLANNED, read_records

    try:
        records = read_records(table)
    except RoskvaError as error:
        return {"error": error.code}
    return {name: msgspec.to_builtins(record) for name, record in sorted(records.items()) if record.state != PLANNED}


def _lag(feed: Feed, subscription: str) -> dict[str, dict[str, int]]:
    """How far the newest records are ahead of what the pipeline committed."""
    lag: dict[str, dict[str, int]] = {}
    for topic in (UPDATES, REGISTRATIONS, FAN_OUTS):
        done = {**feed.oldest(topic), **feed.committed(subscription, topic)}
        lag[topic] = {str(partition): max(0, end.offset - done[partition].offset) for partition, end in feed.newest(topic).items()}
    return lag
