"""What a publisher and a subscriber say to each other over one connection (Wormhole 3, 3.3.1; Table 1).

No I/O: bytes come in, frames come out, and the other way round. This text and the classes below are all that another client needs;
rows.py holds the form of the updates themselves.

**Framing.** TCP, TLS or a Unix socket. The subscriber connects. A frame is its length (4 bytes, big-endian, the length itself not
counted) and so many bytes of msgpack: an array of the frame's kind (a number, `tag` below) and its fields in the order in which they are
declared. Fields at the end may be left out if they have a default; unknown fields at the end are ignored, so that a later version may add
some. A position is an array of history, sequence and index (positions.py). A frame of more than FRAME_BYTES_MAX ends the connection.

**Who are you.** Subscriber: Hello. Publisher: Challenge. Subscriber: Proof. Publisher: Welcome, or Refused and the end of the connection.
The key is never sent: a proof is the HMAC-SHA256, under the application's key, of the role's name (`ROLE_SUBSCRIBER`, `ROLE_PUBLISHER`)
followed by the SHA-256 of the bytes of Hello's frame and the bytes of Challenge's frame, both without their lengths. Each side's nonce of
32 random bytes makes the other's proof new. The publisher proves itself in Welcome: a subscriber that cannot verify it must hang up.
Nothing is encrypted by this: use TLS where others can listen. A second connection of one member is refused (`member-connected`) while the
publisher has heard the first one within PING_S; otherwise it takes its place.

**Flows.** The publisher opens a flow (Open: this is the paper's shard notice) under a number that is used once. The subscriber takes at
first `window_bytes` of updates for each flow, as it said in Hello, and more with each Credit that it sends for that flow, as updates are
dealt with. The publisher never has more than that under way for a flow, and may keep to less, as Open says: the subscriber gives credit
back at the latest when half of that window was dealt with. A flow that stands still therefore blocks no other. What counts are the bytes
of the rows, before compression, without the head of the array around them. The last row may exceed what is left, so that a large one goes
through: the rest is then below zero until more is given. Nothing but rows needs credit.

**Updates.** Schema says once per connection how the rows of one kind look, before the first row of that kind; then come Updates with many
rows each, or the same as Compressed: zlib over the msgpack of the array of rows. Rows of one flow come in the order of the log. A row is
named by its position; after an interruption rows may come again, from the flow's datamarker on.

**Datamarkers.** Token names a position: all of the flow up to it was sent before. The subscriber answers Acknowledge with that position
when it has dealt with everything before it, and may acknowledge any position that it has dealt with at any time by itself. Only what was
acknowledged is never sent again. DataLoss says that what is after its first position, up to and with the second, will not come.

**The end of a flow.** Close from the publisher: the subscriber drops what it has not begun, finishes what it has, and answers Closed.
Only then is the flow opened at another subscriber (or after the connection broke). Closed without being asked gives a flow back: with
`after_s`, after which it may come again; with `to`, to another member of the application, if that is there: where flows are spread
evenly, it stays with that one for as long as it is connected. `epoch` in Open fences: a
subscriber that knows the same shard of the same dataset under a higher epoch answers Closed at once, since the publisher that opened it
is no longer its owner. The same for an equal epoch and a smaller number.

**Staying alive.** The subscriber sends Ping now and then; the publisher answers Pong. A subscriber that hears nothing for SILENCE_S_MAX
hangs up; a publisher waits four times as long, since an application may block its own event loop. Load tells the publisher how busy the
subscriber is, for balancing. Bye says that the sender leaves on purpose.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from roskva.capture.positions import Position
from roskva.errors import CaptureRefused, MalformedMessage, MessageTooLarge

VERSION: Final = 1
FRAME_BYTES_MAX: Final = 64 * 2**20
FRAME_BYTES_MAX_TO_PUBLISHER: Final = 2**16  # what subscribers say is short
HANDSHAKE_BYTES_MAX: Final = 4096  # of a frame before the other side has proved itself
NONCE_BYTES: Final = 32
KEY_BYTES_MIN: Final = 16
SILENCE_S_MAX: Final = 15.0
PING_S: Final = 5.0  # after so much silence
ROLE_SUBSCRIBER: Final = b"roskva capture subscriber"
ROLE_PUBLISHER: Final = b"roskva capture publisher"
LENGTH_BYTES: Final = 4
ARRAY_HEAD_BYTES: Final = 5


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """An array of the tag and the fields."""


class Hello(_Frame, frozen=True, tag=1):
    """To the publisher: the first frame."""

    version: int
    application: str
    member: str  # one process of the application; its name is the same after a reconnect
    nonce: bytes
    window_bytes: int  # of each flow
    weight: float = 1.0  # how many flows it wishes to have, beside the others of its application; 0: none but what is left


class Proof(_Frame, frozen=True, tag=2):
    proof: bytes


class Credit(_Frame, frozen=True, tag=3):
    """So many bytes more of Updates."""

    flow: int
    bytes: int


class Acknowledge(_Frame, frozen=True, tag=4):
    """All of the flow up to this position was dealt with."""

    flow: int
    position: Position


class Closed(_Frame, frozen=True, tag=5):
    """The flow ends here: nothing of it is dealt with any more after this."""

    flow: int
    after_s: float = 0.0  # it may be opened here again then
    to: str = ""  # another member that shall have it


class Load(_Frame, frozen=True, tag=6):
    """How busy this process is: 0 idle, 1 just able to follow, more: overloaded."""

    load: float


class Ping(_Frame, frozen=True, tag=10):
    number: int


class Pong(_Frame, frozen=True, tag=11):
    number: int


class Bye(_Frame, frozen=True, tag=12):
    """The sender leaves. From a subscriber: all its flows are closed, and what it acknowledged came before."""

    why: str = ""


class Challenge(_Frame, frozen=True, tag=20):
    version: int
    publisher: str
    dataset: str  # the identity of the data, the same at every replica
    nonce: bytes


class Welcome(_Frame, frozen=True, tag=21):
    proof: bytes


class Refused(_Frame, frozen=True, tag=22):
    code: str  # of errors.py
    message: str


class Open(_Frame, frozen=True, tag=23):
    """The shard notice: updates of this shard come from now on, from after the position."""

    flow: int
    shard: int
    epoch: int
    position: Position
    window_bytes: int  # that the publisher uses: the subscriber's own, or less


class Schema(_Frame, frozen=True, tag=24):
    """How rows look that name this number: see rows.py."""

    number: int
    operation: str
    database: str
    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    old_key: tuple[str, ...] | None
    unchanged: tuple[str, ...]
    attached: tuple[str, ...] | None
    key_in_columns: bool  # the key's values are those of the columns of the same names, and not sent twice


class Updates(_Frame, frozen=True, tag=25):
    flow: int
    history: int
    rows: msgspec.Raw  # an array of rows, read when their turn comes: rows.py


class Compressed(_Frame, frozen=True, tag=26):
    flow: int
    history: int
    length: int  # of what is inside: the array of rows
    deflated: bytes


class Token(_Frame, frozen=True, tag=27):
    """The publisher wishes to know when everything up to here is dealt with."""

    flow: int
    position: Position


class DataLoss(_Frame, frozen=True, tag=28):
    flow: int
    after: Position
    upto: Position


class Close(_Frame, frozen=True, tag=29):
    flow: int
    why: str = ""  # moved, removed, paused, ...
    to: str = ""  # the publisher that goes on with it, if that is known


ToPublisher: TypeAlias = Credit | Acknowledge | Closed | Load | Ping | Pong | Bye
ToSubscriber: TypeAlias = Open | Schema | Updates | Compressed | Token | DataLoss | Close | Ping | Pong | Bye
Greeting: TypeAlias = Hello | Challenge | Proof | Welcome | Refused
AnyFrame: TypeAlias = Greeting | ToPublisher | ToSubscriber

Decoded = TypeVar("Decoded")

_encode: Final = msgspec.msgpack.Encoder().encode
_to_publisher: Final[msgspec.msgpack.Decoder[ToPublisher]] = msgspec.msgpack.Decoder(ToPublisher)
_to_subscriber: Final[msgspec.msgpack.Decoder[ToSubscriber]] = msgspec.msgpack.Decoder(ToSubscriber)
_greeting: Final[msgspec.msgpack.Decoder[Greeting]] = msgspec.msgpack.Decoder(Greeting)


def framed(frame: AnyFrame) -> bytes:
    """A frame with its length, ready to be written."""
    return with_length(_encode(frame))


def body_of(frame: AnyFrame) -> bytes:
    """A frame without its length, as proofs are made of it."""
    return _encode(frame)


def with_length(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def to_publisher(body: bytes | memoryview) -> ToPublisher:
    return _decoded(_to_publisher, body)


def to_subscriber(body: bytes | memoryview) -> ToSubscriber:
    return _decoded(_to_subscriber, body)


def greeting(body: bytes | memoryview) -> Greeting:
    return _decoded(_greeting, body)


def _decoded(decoder: msgspec.msgpack.Decoder[Decoded], body: bytes | memoryview) -> Decoded:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"A frame of a capture connection cannot be read: {str(error)[:200]}.") from None


def proof(key: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    """What shows that one has the key, in answer to these bytes of Hello and Challenge."""
    return hmac.new(key, role + hashlib.sha256(hello + challenge).digest(), hashlib.sha256).digest()


def verify(key: bytes, role: bytes, hello: bytes, challenge: bytes, shown: bytes) -> None:
    if not hmac.compare_digest(proof(key, role, hello, challenge), shown):
        raise CaptureRefused("The other side of a capture connection does not have the application's key.")


def array_of(rows: Sequence[bytes]) -> bytes:
    """An array of rows that are msgpack already: what many flows share is encoded once."""
    return b"".join((b"\xdd", len(rows).to_bytes(4, "big"), *rows))


def updates(flow: int, history: int, rows: Sequence[bytes], squeeze: bool = False) -> bytes:
    """An Updates frame, or a Compressed one, with its length, ready to be written."""
    array = array_of(rows)
    frame = Compressed(flow, history, len(array), zlib.compress(array, 1)) if squeeze else Updates(flow, history, msgspec.Raw(array))
    return framed(frame)


def cost_of(frame: Updates | Compressed) -> int:
    """The credit that it uses."""
    return max(0, (frame.length if isinstance(frame, Compressed) else memoryview(frame.rows).nbytes) - ARRAY_HEAD_BYTES)


def inflated(frame: Compressed) -> Updates:
    """The Updates frame that it stands for. Never more than it says, and never more than a frame may have."""
    if frame.length > FRAME_BYTES_MAX:
        raise MessageTooLarge(frame.length, FRAME_BYTES_MAX)
    inflater = zlib.decompressobj()
    try:
        array = inflater.decompress(frame.deflated, max(1, frame.length))
    except zlib.error as error:
        raise MalformedMessage(f"A compressed frame of a capture connection cannot be read: {error}.") from None
    if len(array) != frame.length or inflater.unconsumed_tail:
        raise MalformedMessage("A compressed frame of a capture connection has another length than it says.")
    return Updates(frame.flow, frame.history, msgspec.Raw(array))


class Framing:
    """Cuts what arrives into frames. Feed it, then take what is whole."""

    def __init__(self, frame_bytes_max: int = HANDSHAKE_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._rest = bytearray()

    @property
    def held_bytes(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies of the frames that are whole now. Raises MessageTooLarge as soon as a length is read that is over the limit."""
        self._rest += data
        start = 0
        have = len(self._rest)
        try:
            while have - start >= LENGTH_BYTES:
                length = int.from_bytes(self._rest[start : start + LENGTH_BYTES], "big")
                if length > self.frame_bytes_max:
                    raise MessageTooLarge(length, self.frame_bytes_max)
                end = start + LENGTH_BYTES + length
                if end > have:
                    break
                with memoryview(self._rest) as view:
                    body = bytes(view[start + LENGTH_BYTES : end])
                start = end
                yield body
        finally:
            del self._rest[:start]
