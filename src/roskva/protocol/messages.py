"""The messages between client and gateway, as docs/protocol.md describes them (Thialfi 3.3 and 4.1; docs/protocol.md).

One form over any channel, JSON. Unknown fields are ignored, so that either side may be older. Integers of 64 bits (versions and
seqnos) travel as decimal strings: many JSON readers lose digits above 2^53. Pure: no clock, no randomness, no I/O.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from roskva.errors import MalformedMessage, MessageTooLarge

PROTOCOL_VERSION: Final = 1
BUCKETS: Final = 256
NOTIFY_INTERVAL_MS_MAX: Final = 3_600_000
FULL_SYNC_MAX: Final = 256  # up to so many registrations a sync sends all of them

Decimal = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,18})\Z")]
Count = Annotated[int, Meta(ge=0, le=2**32)]
Operation = Annotated[int, Meta(ge=1, le=2**53)]  # numbers the operations of one session; a retry takes a new one
Epoch = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Bucket = Annotated[int, Meta(ge=0, lt=BUCKETS)]
Text = Annotated[str, Meta(max_length=512)]
Interval = Annotated[int, Meta(ge=0, le=NOTIFY_INTERVAL_MS_MAX)]
Secret = Annotated[str, Meta(max_length=8_192)]  # a user's credential: long enough for a JWT


class Wire(Struct, frozen=True, omit_defaults=True):
    """Base of everything on the wire: defaults are left out, unknown fields are ignored."""


class Summary(Wire, frozen=True):
    """A set of registrations: how many, and the sum modulo 2^128 of a hash of each (32 hexadecimal digits)."""

    count: Count
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Init(Wire, frozen=True):
    """Asks for a token. `nonce` is echoed by the grant; `prior` is the token of the last start, if one was kept."""

    nonce: Text
    application: Text
    device: Text
    prior: Text | None = None


class Register(Wire, frozen=True):
    op: Operation
    object: Text
    version: Decimal | None = None  # the version that the application holds, and keeps over a restart
    epoch: Epoch = 0  # the epoch which that version belongs to, as the notification told it
    notify_interval_ms: Interval | None = None  # at most one notification in so long; none: leave what the registration has


class Unregister(Wire, frozen=True):
    op: Operation
    object: Text


class Ack(Wire, frozen=True):
    """Names the notification that it answers: object, seqno and version as they came; no version means unknown."""

    object: Text
    seqno: Decimal
    version: Decimal | None = None
    epoch: Epoch = 0


class SyncObject(Wire, frozen=True):
    object: Text
    version: Decimal | None = None
    epoch: Epoch = 0
    notify_interval_ms: Interval | None = None


class BucketSummary(Wire, frozen=True):
    bucket: Bucket
    count: Count
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Sync(Wire, frozen=True):
    """States registrations, in one of three forms.

    `objects` alone: these are all. `objects` with `buckets`: these are all of the named buckets. `summaries` alone: the
    non-empty buckets' summaries; the server answers which buckets differ (`sync_request.buckets`).
    """

    op: Operation
    objects: list[SyncObject] | None = None
    buckets: list[Bucket] | None = None
    summaries: list[BucketSummary] | None = None

    def __post_init__(self) -> None:
        # A statement of nothing would read as "I wish for nothing": a form that this side does not know must not erase anything.
        if (self.objects is None) == (self.summaries is None) or (self.buckets is not None and self.objects is None):
            raise ValueError("a sync has either `objects`, with or without `buckets`, or `summaries`")


class Info(Wire, frozen=True):
    library: Text = ""
    channel: Text = ""


class ClientMessage(Wire, frozen=True):
    v: int = PROTOCOL_VERSION
    token: Text = ""
    summary: Summary | None = None  # of the registrations that the client wishes to have
    init: Init | None = None
    register: list[Register] = []
    unregister: list[Unregister] = []
    acks: list[Ack] = []
    sync: Sync | None = None
    info: Info | None = None
    forget: bool = False  # delete this client: its id, and whatever is kept of it
    # Who the user is: with an init, with the first message over a connection, and whenever there is a new one.
    credential: Secret = ""


class Grant(Wire, frozen=True):
    nonce: Text
    token: Text


class StartAnew(Wire, frozen=True):
    """The token cannot be used. Handshake again: with it as `prior` if `keep`, else as a new client."""

    code: Text
    keep: bool
    message: Text = ""
    nonce: Text = ""  # of the init that is refused, if it was one


class Status(Wire, frozen=True):
    """Of a registration: `registered`, `unregistered` or `failed`. Failed and not transient: give it up."""

    object: Text
    state: Text
    transient: bool = False
    code: Text = ""
    message: Text = ""


class Notify(Wire, frozen=True):
    object: Text
    seqno: Decimal
    version: Decimal | None = None  # none: unknown; fetch the object whatever you hold
    epoch: Epoch = 0


class SyncRequest(Wire, frozen=True):
    """A hint that the summaries differ; with `buckets`, the answer to a sync of summaries."""

    op: Annotated[int, Meta(ge=0)] = 0  # of the sync that this answers
    buckets: list[Bucket] | None = None


class Config(Wire, frozen=True):
    """What the server wishes of its clients. Clients hold no policy of their own: they may not be upgraded for years."""

    heartbeat_s: float = 1200.0
    heartbeat_smear: float = 0.2
    keepalive_s: float = 50.0
    offline_s: float = 4800.0  # after so long a silence, the server sends nothing until it hears from the client
    resend_min_s: float = 1.0  # how soon, and at most how late, the server repeats what was not acknowledged
    resend_max_s: float = 60.0
    retry_min_s: float = 1.0
    retry_max_s: float = 60.0
    connect_min_s: float = 0.5
    connect_max_s: float = 60.0
    quiet_s: float = 0.0  # stay silent for so long from now, acknowledgements aside
    operations_per_message_max: int = 1_000
    message_bytes_max: int = 1_048_576
    registrations_max: int = 100_000
    epoch: Epoch = 0


class CredentialState(Wire, frozen=True):
    """What became of the user's credential. Wanted: nothing was done with the message, and nothing is told until one is accepted."""

    wanted: bool = False
    good_s: float = 0.0  # it was accepted, for so long from now; 0: for as long as the session
    code: Text = ""  # why one is wanted
    message: Text = ""


class ErrorReport(Wire, frozen=True):
    code: Text
    message: str
    transient: bool = False
    retry_after_s: float = 0.0


class ServerMessage(Wire, frozen=True):
    v: int = PROTOCOL_VERSION
    token: Text = ""
    summary: Summary | None = None  # of the registrations that the server has
    unsettled: Count = 0  # registrations on their way, and notifications not yet acknowledged
    time_ms: int = 0
    grant: Grant | None = None
    start_anew: StartAnew | None = None
    status: list[Status] = []
    notify: list[Notify] = []
    sync_request: SyncRequest | None = None
    config: Config | None = None
    error: ErrorReport | None = None
    credential: CredentialState | None = None


REGISTERED: Final = "registered"
UNREGISTERED: Final = "unregistered"
FAILED: Final = "failed"

M = TypeVar("M")

_encoder = msgspec.json.Encoder()
_client_decoder = msgspec.json.Decoder(ClientMessage)
_server_decoder = msgspec.json.Decoder(ServerMessage)


def encode(message: ClientMessage | ServerMessage) -> bytes:
    return _encoder.encode(message)


def decode_client(data: bytes | memoryview, limit: int) -> ClientMessage:
    if len(data) > limit:
        raise MessageTooLarge(len(data), limit)
    return _decode(_client_decoder, data)


def decode_server(data: bytes | memoryview) -> ServerMessage:
    return _decode(_server_decoder, data)


def _decode(decoder: msgspec.json.Decoder[M], data: bytes | memoryview) -> M:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"The message is not of the documented form: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"The message is not JSON: {error}.") from None
    except RecursionError:
        raise MalformedMessage("The message is nested too deeply.") from None
