"""Notes beside the datamarkers: what an operator has told one publisher and all shall know, and what the datastore keeps of its log."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from roskva.capture.datamarkers import Datamarkers
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position, position_from_text

ORDER: Final = "order:"  # of an application: its publishers, the first first
PAUSED: Final = "paused:"  # of a flow: why it is paused
BEYOND: Final = "beyond:"  # of a flow that is stopped until an operator rewinds it: `Stopped`
LOG: Final = "log"  # what the datastore must know of its log's past
SECRET: Final = "secret"  # by which publishers know what one of them has written into the log


def order_noted(notes: Mapping[str, bytes], application: str) -> tuple[str, ...]:
    """Empty: what the settings say."""
    note = notes.get(ORDER + application)
    return tuple(json.loads(note)) if note else ()


class Stopped(NamedTuple):
    """A flow that had come further than the log's end (beyond.py)."""

    reached: Position
    end: Position

    def __str__(self) -> str:
        return f"it had come to {self.reached}, beyond the log's end {self.end}: rewind it"

    def note(self) -> bytes:
        return f"{self.reached} {self.end}".encode()


def stopped_of(notes: Mapping[str, bytes], flows: Iterable[FlowName]) -> dict[FlowName, Stopped]:
    noted = {flow: note.decode() for flow in flows if (note := notes.get(f"{BEYOND}{flow}")) is not None}
    return {flow: Stopped(*map(position_from_text, note.split())) for flow, note in noted.items()}


def paused_of(notes: Mapping[str, bytes], flows: Collection[FlowName]) -> dict[FlowName, str]:
    """And why: by an operator, or since it is stopped."""
    stopped = {flow: str(why) for flow, why in stopped_of(notes, flows).items()}
    return stopped | {flow: why.decode() for flow in flows if (why := notes.get(f"{PAUSED}{flow}")) is not None}


def notes_of(notes: Iterable[str], application: str) -> list[str]:
    """The names of all that concern it."""
    of_flows = re.compile(rf"({re.escape(PAUSED)}|{re.escape(BEYOND)}){re.escape(application)}/\d+")
    return [name for name in notes if name == ORDER + application or of_flows.fullmatch(name)]


def secret_of(store: Datamarkers) -> str:
    """Made when it is first asked for, and the same for whoever asks later (interface.Signing)."""
    fresh = secrets.token_hex(16).encode()
    return (fresh if store.swap(SECRET, b"", fresh) else store.notes()[SECRET]).decode()


class SharedMemory:
    """Of the datastore, as a note (interface.Memory)."""

    def __init__(self, store: Datamarkers) -> None:
        self.owns: Callable[[], bool] = lambda: False  # any flow
        self._store = store

    def recall(self) -> bytes:
        return self._store.notes().get(LOG, b"")

    def swap(self, before: bytes, after: bytes) -> bool:
        return self.owns() and self._store.swap(LOG, before, after)
