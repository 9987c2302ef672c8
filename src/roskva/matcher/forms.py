"""The forms in which applications publish, and their translation into the standard one: the Bridge's rules (Thialfi 4, Bridge).

An application may publish its own JSON; its settings say where object, version and source are (`doc.id`, `doc.rev`). In Spark the
fields of such forms are taken out by column expressions, here by `extract`; both feed `check`, which decides. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from roskva.errors import BadRequest
from roskva.model import ObjectKey, Stamps, Update, check_device, name_from_text, object_key, version_from_text


class Form(NamedTuple):
    """Where an application's updates carry what Roskva needs: paths of keys, joined by dots."""

    object_path: str = "object"
    version_path: str = "version"
    source_path: str = "source"


STANDARD: Final = Form()
_AT: Final = "at"  # the word before the times of a sampled update, behind all others: what does not know it passes over it
SAMPLED: Final = b" at "  # is in the headers of every sampled record, and hardly ever in others


class Paths(Protocol):
    """An application's settings, as far as they are about its form."""

    @property
    def object_path(self) -> str: ...
    @property
    def version_path(self) -> str: ...
    @property
    def source_path(self) -> str: ...


def form_of(application: Paths) -> Form:
    return Form(application.object_path, application.version_path, application.source_path)


class At(NamedTuple):
    """When a sampled update passed the points before the Matcher (model.Stamps), in microseconds since 1970; 0: not known."""

    received_us: int
    published_us: int = 0
    picked_us: int = 0
    read_us: int = 0


class Stamp(NamedTuple):
    """The headers of a record of "updates": what the service says of it, apart from the application's own words in its value."""

    application: str
    epoch: int | None = None  # None: the application's present epoch
    again: bool = False  # brought back by a sweep, in the standard form, whatever the application's own is
    since: int = 0  # if so: for its version cell, as it was when it first came
    rounds: int = 0  # and how often it was brought back
    form: Form | None = None  # in which it was accepted, whatever the settings say by now; None: by the settings
    at: At | None = None  # if it is one of those whose way is measured

    def encode(self) -> bytes:
        words = [self.application, "" if self.epoch is None else str(self.epoch)]
        if self.again:
            words += ["again", str(self.since), str(self.rounds)]
        elif self.form is not None:
            words += ["form", *self.form] if self.form != STANDARD else ["standard"]
        if self.at is not None:
            words += [_AT, str(self.at.received_us), str(self.at.published_us)]
        return " ".join(words).rstrip().encode()

    @classmethod
    def decode(cls, headers: bytes) -> Stamp:
        """Raises ValueError for what no part of the service wrote."""
        application, epoch, kind, *rest = [*headers.decode().split(" "), "", "", ""]
        number = int(epoch) if epoch else None
        if kind == "standard":
            return cls(application, number, form=STANDARD, at=_at(rest))
        if kind == "form":
            return cls(application, number, form=Form(*rest[:3]), at=_at(rest[3:]))
        if kind == _AT:
            return cls(application, number, at=_at([kind, *rest]))
        if kind != "again":
            return cls(application, number)
        since, rounds = (int(word or 0) for word in [*rest, "", ""][:2])
        return cls(application, number, True, since, rounds, at=_at(rest[2:]))


def stamps_of(key: ObjectKey, version: int, headers: bytes) -> Stamps | None:
    """Of the update in a sampled record."""
    at = Stamp.decode(headers).at if SAMPLED in headers else None
    return None if at is None else Stamps(key, version, at.published_us, at.received_us, picked_us=at.picked_us, read_us=at.read_us)


def handed_over(key: ObjectKey, stamps: Stamps | None) -> bytes:
    """The headers of a record that goes on through another topic; empty, unless it is sampled."""
    if stamps is None:
        return b""
    return Stamp(key.partition(b"\x00")[0].decode(), at=At(stamps.received_us, stamps.published_us)).encode()


def _at(words: Sequence[str]) -> At | None:
    """What cannot be read is left out: no update is lost for a time that nobody needs."""
    if words[:1] != [_AT] or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words[1:5] if word):
        return None
    at = At._make(int(word or 0) for word in [*words[1:5], "", "", "", ""][:4])
    return at if at.received_us else None


def picked(headers: bytes, picked_us: int, read_us: int) -> bytes:
    """Headers of a sampled record as the feed has them, with the times at which a batch was begun and read it."""
    return headers + b" %d %d" % (picked_us, read_us)


class Fields(NamedTuple):
    """What the paths led to, as text; None where there was nothing."""

    object: str | None
    version: str | None
    source: str | None


class Malformed(NamedTuple):
    """Why an update cannot be used. It goes to the dead letters with this reason."""

    code: str
    reason: str


def extract(value: bytes, form: Form) -> Fields | Malformed:
    try:
        document = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Malformed("malformed-message", f"The update is not JSON: {error}.")
    return Fields(*(_text_at(document, path) for path in form))


def _text_at(document: object, path: str) -> str | None:
    for key in path.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    if isinstance(document, bool) or document is None:
        return None
    if isinstance(document, (int, str)):
        return str(document)
    return msgspec.json.encode(document).decode()


def check(application: str, epoch: int, fields: Fields, again: bool = False) -> Update | Malformed:
    if fields.object is None:
        return Malformed("invalid-name", "The update names no object where the application's form says it is.")
    if fields.version is None:
        return Malformed("invalid-version", "The update has no version where the application's form says it is.")
    try:
        name = name_from_text(fields.object)
        version = version_from_text(fields.version)
        source = check_device(fields.source) if fields.source else ""
    except BadRequest as error:
        return Malformed(error.code, str(error))
    return Update(object_key(application, epoch, name), version, source, again)
