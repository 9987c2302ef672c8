"""The publishers of the same data, as this one sees them beside the datamarkers (Wormhole 3.3.2).

It beats its own counter there, with what it says of itself, and watches theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from roskva.capture.datamarkers import Beat, Datamarkers
from roskva.capture.ownership import FlowName, Liveness, Reach, Record
from roskva.capture.publisher.about import applications_of, reach_from

PUBLISHER: Final = "publisher:"  # members that are publishers


class Seen(NamedTuple):
    """What is written beside the datamarkers, and they themselves."""

    members: Mapping[str, Beat]
    records: Mapping[FlowName, Record]
    notes: Mapping[str, bytes]


class Peers:
    """`beat`, `read` and `leave` block."""

    def __init__(self, store: Datamarkers, name: str, takeover_s: float, steady_s: float) -> None:
        self.able: dict[str, Reach] = {}  # that live, and what of the log each can read; this one, too
        self.others: dict[str, bytes] = {}  # that live, and what each says of itself
        self._store = store
        self._me = PUBLISHER + name
        self._liveness = Liveness(self._me, takeover_s, steady_s)

    def beat(self, about: bytes) -> None:
        self._store.beat(self._me, about)

    def leave(self) -> None:
        self._store.leave(self._me)

    def read(self) -> Seen:
        return Seen(self._store.members(), self._store.records(), self._store.notes())

    def observe(self, seen: Seen, now_s: float) -> None:
        publishers = {name: beat for name, beat in seen.members.items() if name.startswith(PUBLISHER)}
        reaches = {name: reach for name, beat in publishers.items() if (reach := reach_from(beat.about)) is not None}
        self._liveness.observe({name: beat.counter for name, beat in publishers.items()}, reaches, now_s)
        self.able = {name.removeprefix(PUBLISHER): reaches[name] for name in self._liveness.able}
        living = self._liveness.live - {self._me}
        self.others = {name.removeprefix(PUBLISHER): beat.about for name, beat in publishers.items() if name in living}

    def having(self, application: str, records: Mapping[FlowName, Record]) -> list[str]:
        """Others that live, and own flows of it or would take them."""
        found = {name for name, about in self.others.items() if application in applications_of(about)}
        owners = {record.owner for flow, record in records.items() if flow.application == application and not record.released}
        return sorted(found | (owners & self.others.keys()))

    @property
    def live(self) -> set[str]:
        return {name.removeprefix(PUBLISHER) for name in self._liveness.live}

    @property
    def steady(self) -> set[str]:
        return {name.removeprefix(PUBLISHER) for name in self._liveness.steady}
