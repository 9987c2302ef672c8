"""From rows of the feed to what the Matcher takes: updates and registrations; what is neither becomes a dead letter.

The Bridge took the fields out; `matcher.forms.check` decides here, and `matcher.forms.extract` where the Bridge left it open. A dead
letter is keyed by where its record came from, so that a repeat of the batch adds nothing. Imports no Spark.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from roskva.errors import UnknownApplication
from roskva.feed.interface import UPDATES, Entry
from roskva.matcher.forms import STANDARD, Fields, Form, Malformed, Stamp, check, extract
from roskva.model import VERSION_MAX, Registration, Update
from roskva.registrar.events import decode_registration

# Of every row the task needs these, in this order (the Bridge's columns last).
COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "incarnation",
    "time_ms",
    "headers",
    "value",
    "object",
    "version",
    "source",
    "kinds",
)

# The kinds of object, version and source in JSON for which their text alone is enough: strings and integers.
PLAIN: Final = frozenset(
    f"{name},{version}{source}"
    for name in ("STRING", "BIGINT")
    for version in ("STRING", "BIGINT")
    for source in ("", ",STRING", ",BIGINT", ",VOID")
)

_whole_json = msgspec.json.Decoder(msgspec.Raw)


class Origin(NamedTuple):
    """Where a record came from, and what it was."""

    topic: str
    partition: int
    offset: int
    incarnation: int
    time_ms: int
    headers: bytes
    value: bytes


class DeadLetter(msgspec.Struct, frozen=True):
    """The value of a record of the topic "dead-letters". `value` is the original as text, or base64: and its bytes."""

    code: str
    reason: str
    application: str
    topic: str
    partition: int
    incarnation: int
    offset: int
    time_ms: int
    value: str


@dataclass(slots=True)
class Events:
    """What one task found in its records."""

    updates: list[tuple[Update, Origin]] = field(default_factory=list)
    registrations: list[tuple[Registration, Origin]] = field(default_factory=list)
    letters: list[Entry] = field(default_factory=list)


def read_events(rows: Iterable[tuple[Any, ...]], forms: Mapping[str, Form], epoch_of: Callable[[str], int]) -> Events:
    """Sort rows of COLUMNS. `epoch_of` tells an application's present epoch, for updates that carry none."""
    events = Events()
    for row in rows:
        origin = Origin._make(row[:7])
        try:
            if origin.topic == UPDATES:
                update = _read_update(origin, row[7:], forms, epoch_of)
                if isinstance(update, Malformed):
                    events.letters.append(dead_letter(origin, update))
                else:
                    events.updates.append((update, origin))
            else:
                events.registrations.append((_read_registration(origin.value), origin))
        except Exception as error:  # one record must never end the query; the letter says what it was
            reason = Malformed("malformed-message", f"The record is not what this topic holds: {error}.")
            events.letters.append(dead_letter(origin, reason))
    return events


def _read_update(origin: Origin, bridged: tuple[Any, ...], forms: Mapping[str, Form], epoch_of: Callable[[str], int]) -> Update | Malformed:
    application, epoch, again, _, _, form, _ = Stamp.decode(origin.headers)
    known = forms.get(application)
    if known is None and form is None:
        error = UnknownApplication(application)
        return Malformed(error.code, str(error))
    # What the gateway accepted counts as it was accepted: this query may be older than the application, or than its form.
    form = form or known or STANDARD
    name, version, source, kinds = bridged
    fields: Fields | Malformed
    if again:
        fields = extract(origin.value, STANDARD)
    elif form == known and kinds in PLAIN and name is not None and version is not None and _is_whole_json(origin.value):
        fields = Fields(name.decode(), version.decode(), None if source is None else source.decode())
    else:
        fields = extract(origin.value, form)  # the rules in full, and the reason
    if isinstance(fields, Malformed):
        return fields
    return check(application, epoch_of(application) if epoch is None else epoch, fields, again)


def _read_registration(value: bytes) -> Registration:
    registration = decode_registration(value)
    in_range = 0 <= registration.seqno <= VERSION_MAX and (registration.held is None or 0 <= registration.held <= VERSION_MAX)
    if not in_range or not registration.client or registration.object.find(b"\x00") < 1:
        raise ValueError("a registration that no Registrar makes")
    return registration


def _is_whole_json(value: bytes) -> bool:
    """The JVM's parser stops at the end of the document, whatever follows, and reads what is not UTF-8 as question marks."""
    try:
        _whole_json.decode(value.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def dead_letter(origin: Origin, why: Malformed) -> Entry:
    letter = DeadLetter(
        code=why.code,
        reason=why.reason,
        application=origin.headers.decode(errors="replace").partition(" ")[0],
        topic=origin.topic,
        partition=origin.partition,
        incarnation=origin.incarnation,
        offset=origin.offset,
        time_ms=origin.time_ms,
        value=_as_text(origin.value),
    )
    key = f"{origin.topic}/{origin.partition}/{origin.incarnation}/{origin.offset}".encode()
    return Entry(key, msgspec.json.encode(letter), origin.headers)


def decode_dead_letter(value: bytes) -> DeadLetter:
    return msgspec.json.decode(value, type=DeadLetter)


def _as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
