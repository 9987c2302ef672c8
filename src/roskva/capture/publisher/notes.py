"""Notes beside the datamarkers: what an operator has told one publisher and all shall know, and what the datastore keeps of its log."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from roskva.capture.datamarkers import Datamarkers
from roskva.capture.ownership import FlowName

ORDER: Final = "order:"  # of an application: its publishers, the first first
PAUSED: Final = "paused:"  # of a flow: why it is paused
LOG: Final = "log"  # what the datastore must know of its log's past
SECRET: Final = "secret"  # by which publishers know what one of them has written into the log


def order_noted(notes: Mapping[str, bytes], application: str) -> tuple[str, ...]:
    """Empty: what the settings say."""
    note = notes.get(ORDER + application)
    return tuple(json.loads(note)) if note else ()


def paused_of(notes: Mapping[str, bytes], flows: Iterable[FlowName]) -> dict[FlowName, str]:
    return {flow: why.decode() for flow in flows if (why := notes.get(f"{PAUSED}{flow}")) is not None}


def notes_of(notes: Iterable[str], application: str) -> list[str]:
    """The names of all that concern it."""
    paused = f"{PAUSED}{application}/"
    return [name for name in notes if name == ORDER + application or (name.startswith(paused) and name.removeprefix(paused).isdigit())]


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
