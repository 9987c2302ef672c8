"""The words that every room shares: objects, versions, partitions, events (docs/architecture.md: names and tables).

Pure: imports nothing but the standard library's data tools. Nothing here knows a wire form, a store or a clock.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, NewType, Protocol

from roskva.errors import InvalidApplication, InvalidDevice, InvalidName, InvalidVersion

VERSION_MAX: Final = 2**63 - 1
NAME_BYTES_MAX: Final = 128
DEVICE_BYTES_MAX: Final = 128
APPLICATION_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# Marks a name that is not printable UTF-8 text. A text name that begins like this is marked too, so every name has one form.
BASE64_MARK: Final = "base64:"
# Of a publish request: when the application called its Publisher, in microseconds since 1970; of a batch, for who waited longest.
PUBLISHED_HEADER: Final = "Roskva-Published"

ClientId = NewType("ClientId", str)
# application, epoch and name in one sortable byte string: the row key of the Matcher, and what cells of the Registrar name.
ObjectKey = NewType("ObjectKey", bytes)
EPOCH_MAX: Final = 2**32 - 1  # it has four bytes of the key
DAY_S: Final = 86_400  # what was long ago is counted in days since 1970


def object_key(application: str, epoch: int, name: bytes) -> ObjectKey:
    return ObjectKey(application.encode() + b"\x00" + epoch.to_bytes(4, "big") + name)


def split_object_key(key: ObjectKey) -> tuple[str, int, bytes]:
    application, _, rest = key.partition(b"\x00")
    return application.decode(), int.from_bytes(rest[:4], "big"), rest[4:]


def name_of(key: ObjectKey) -> bytes:
    return key[key.index(b"\x00") + 5 :]


def epoch_of(key: ObjectKey) -> int:
    start = key.index(b"\x00") + 1
    return int.from_bytes(key[start : start + 4], "big")


def name_to_text(name: bytes) -> str:
    """The one text form of a name, the same in JSON, URLs (percent-encoded), the command line and the clients."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable() and not text.startswith(BASE64_MARK):
        return text
    return BASE64_MARK + base64.urlsafe_b64encode(name).rstrip(b"=").decode()


def name_from_text(text: str) -> bytes:
    if text.startswith(BASE64_MARK):
        encoded = text[len(BASE64_MARK) :]
        if re.fullmatch(r"[A-Za-z0-9_-]*", encoded) is None:
            raise InvalidName(text, "what follows base64: is not base64url")
        try:
            name = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        except (binascii.Error, ValueError):
            raise InvalidName(text, "what follows base64: is not base64url") from None
    else:
        try:
            name = text.encode()
        except UnicodeEncodeError:
            raise InvalidName(text, "it holds half of a surrogate pair") from None
    if not 1 <= len(name) <= NAME_BYTES_MAX:
        raise InvalidName(text, f"it is {len(name)} bytes long; 1 to {NAME_BYTES_MAX} are allowed")
    return name


def name_given(name: object) -> bytes:
    """As an application gives it: text, or bytes."""
    if isinstance(name, bytes):
        return name_from_text(name_to_text(name))
    if not isinstance(name, str):
        raise InvalidName(name, "it is neither text nor bytes")
    return name_from_text(name)


class HasPrivateNames(Protocol):
    """An application's settings, as far as they are about logs."""

    @property
    def private_names(self) -> bool: ...


def are_private(application: str, applications: Mapping[str, HasPrivateNames]) -> bool:
    """Whether names of its objects must not be in logs. What is not known here may have been added meanwhile: its names are."""
    known = applications.get(application)
    return known is None or known.private_names


def hashed(name: bytes) -> str:
    """For logs: the same name is always the same there, and nobody can read it."""
    return f"#{hashlib.sha256(name).hexdigest()[:12]}"


def logged(key: ObjectKey, applications: Mapping[str, HasPrivateNames]) -> str:
    """An object as logs may name it."""
    application, _, name = split_object_key(key)
    return f"{application}/{hashed(name) if are_private(application, applications) else name_to_text(name)}"


def version_from_text(text: str) -> int:
    """Decimal digits only: no sign, no blanks, no exponent, no fraction."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > VERSION_MAX:
        raise InvalidVersion(text)
    return int(text)


def version_from_number(value: object) -> int:
    """A version as a publisher writes it: an integer, or the same in decimal digits."""
    if isinstance(value, str):
        return version_from_text(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= VERSION_MAX:
        raise InvalidVersion(value)
    return value


def check_application(application: str) -> str:
    if APPLICATION_PATTERN.fullmatch(application) is None:
        raise InvalidApplication(application)
    return application


def check_device(device: str) -> str:
    try:
        length = len(device.encode())
    except UnicodeEncodeError:
        raise InvalidDevice(device) from None
    if not 1 <= length <= DEVICE_BYTES_MAX:
        raise InvalidDevice(device)
    return device


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a row or record key: fixed for the life of a deployment."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % partitions


def client_partition(client: ClientId, partitions: int) -> int:
    return partition_of(client.encode(), partitions)


def seqno_of(session: int, counter: int) -> int:
    """A later session outranks all before it."""
    return session << 32 | counter


def session_of(seqno: int) -> int:
    return seqno >> 32


def rendezvous(partition: int, members: Iterable[str]) -> str | None:
    """The member that owns a partition: the highest hash wins, so that a change of members moves as little as possible."""

    def weight(member: str) -> tuple[bytes, str]:
        return hashlib.blake2b(f"{partition}/{member}".encode(), digest_size=8).digest(), member

    return max(members, key=weight, default=None)


class Update(NamedTuple):
    """One published version, in the standard form, as the Matcher accepts it."""

    object: ObjectKey
    version: int
    source: str  # the device that made the change; empty: nobody is left out
    again: bool = False  # brought back by a sweep or a repair: its source is not left out
    rounds: int = 0  # on its way to the fan-out: how often it was brought back from scratch


class Registration(NamedTuple):
    """A registration on its way from the Registrar to the Matcher (the value of a record of the feed "registrations")."""

    client: ClientId
    object: ObjectKey
    seqno: int
    registered: bool
    device: str
    held: int | None = None  # the version that the client said it holds, in the object's epoch
    repair: bool = False  # a reissue: always yields unknown


class Propagation(NamedTuple):
    """What the Matcher tells a Registrar about one client and object: (client, object, version, seqno of the registration)."""

    client: ClientId
    object: ObjectKey
    seqno: int
    outcome: int  # one of the OUTCOME constants
    version: int  # with OUTCOME_VERSION


class Stamps(NamedTuple):
    """When a sampled update passed which point, in microseconds since 1970 (Thialfi 6.3); 0: that is not known."""

    object: ObjectKey
    version: int
    published_us: int = 0  # the application called its Publisher: by the publisher's own clock
    received_us: int = 0  # a gateway had the request
    durable_us: int = 0  # and knew that it is in the feed
    picked_us: int = 0  # a batch was begun that has it
    read_us: int = 0  # and read it from the feed
    bridged_us: int = 0  # the Matcher's task had it
    matched_us: int = 0  # and had written its version and read who is registered
    told_us: int = 0  # a Registrar was called
    sent_us: int = 0  # and had sent it to a client for the first time
    fanned_out: bool = False  # through the query for objects with many registrations: batch and read are that one's


# The outcome of an update is always a version; that of a registration is any of these.
OUTCOME_UPDATE: Final = 0  # an update: notify of the version
OUTCOME_VERSION: Final = 1  # a registration took effect: notify of the version
OUTCOME_UNKNOWN: Final = 2  # a registration took effect, but no version is known: notify unknown
OUTCOME_COVERED: Final = 3  # a registration took effect, and the client holds what there is
OUTCOME_UNREGISTERED: Final = 4  # an unregistration took effect
OUTCOME_LOST: Final = 5  # of a sweep or an invalidation: what the Matcher or the feed held of it was lost or is void: register anew
OUTCOME_COLLECT: Final = 6  # of a sweep: not seen since the day `version`, or before: may the client be collected?
OUTCOME_ZOMBIE: Final = 7  # of a sweep: the row has no `created`: is it nobody's?
OUTCOME_ERASE: Final = 8  # of an operator: collect the client at once, online or not. These three name no object


SETTLED: Final = 0  # acknowledged, durable or void: nothing more is owed
DROP_COPY: Final = 1  # nothing of this registration lives at the Registrar: the Matcher drops its copy at this seqno
NOT_OWNER: Final = 2  # another Registrar owns this client by now: ask that one
UNAVAILABLE: Final = 3  # the client's row could not be read or written: try again
PUT_ASIDE: Final = 4  # a task's own verdict: nobody can write the client's row now, and nobody shall wait for it
