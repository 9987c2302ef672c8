"""The parsers that are fuzzed, and what must hold of each, whatever it is given.

Of all: only the errors that are documented come out of them, in time, and what can be read is the same when it is written and read again.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import io
import re
import zlib
from collections.abc import Callable, Coroutine, Generator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from fuzzing.mutations import of_base64, of_bytes, of_frames, of_json, of_toml
from fuzzing.running import Target
from roskva.config import ApplicationSettings, Settings, load
from roskva.errors import BadRequest, InvalidName, InvalidSetting, MalformedMessage, MessageTooLarge, TokenInvalid, Unavailable
from roskva.feed.interface import Entry
from roskva.feed.lanes import Appended
from roskva.gateway.commands import Commands
from roskva.gateway.frames import UNPROVEN_BYTES_MAX, FrameConnection
from roskva.gateway.publish import LARGE_BYTES, Publishing
from roskva.matcher.forms import Malformed, check, extract, form_of
from roskva.model import (
    ClientId,
    Propagation,
    check_application,
    check_device,
    epoch_of,
    name_from_text,
    name_given,
    name_of,
    name_to_text,
    object_key,
    split_object_key,
    version_from_text,
)
from roskva.protocol import internal
from roskva.protocol.internal import Frame, encode_frame
from roskva.protocol.messages import ClientMessage, ServerMessage, decode_client, decode_server, encode
from roskva.protocol.tokens import Claims, Keyring
from roskva.telemetry.metrics import Metrics

ROOT: Final = Path(__file__).resolve().parents[1]
LIMIT: Final = 1 << 20


def said(side: str) -> list[bytes]:
    """What clients (C) or the server (S) say in the transcripts of docs/protocol.md."""
    lines = [line for file in sorted((ROOT / "docs/transcripts").glob("*.txt")) for line in file.read_text().splitlines()]
    return sorted({line[3:].encode() for line in lines if line.startswith(f"{side}: {{")})


def kind_of(error: Exception) -> str:
    """An error without what it quotes: how it differs from others."""
    return re.sub(r"[0-9]+|'[^']*'|\"[^\"]*\"|\[\.\.\.\]|(?<=field )`[^`]*`", "", str(error))[:90]


def text_of(data: bytes) -> str:
    return data.decode(errors="surrogateescape")  # bytes that are not UTF-8 become halves of surrogate pairs


CLIENT_SEEDS: Final = [
    *said("C"),
    b'{"v":1,"token":"TOKEN-1","credential":"secret-credential-1","info":{"library":"x","channel":"y"},"forget":false}',
    b'{"token":"TOKEN-1","acks":[{"object":"a","seqno":"4294967297","version":"9223372036854775807","epoch":3}]}',
    b'{"token":"TOKEN-1","sync":{"op":7,"objects":[{"object":"a","version":"3"}],"buckets":[0,255]}}',
    b'{"init":{"nonce":"n","application":"demo","device":"d","prior":"TOKEN-1"},"credential":"secret-credential-1"}',
]


def client_messages(data: bytes) -> str:
    try:
        message = decode_client(data, LIMIT)
    except (MalformedMessage, MessageTooLarge) as error:
        return kind_of(error)
    assert decode_client(encode(message), LIMIT) == message
    return "read " + fields_of(message)


def server_messages(data: bytes) -> str:
    try:
        message = decode_server(data)
    except MalformedMessage as error:
        return kind_of(error)
    assert decode_server(encode(message)) == message
    return "read " + fields_of(message)


def fields_of(message: ClientMessage | ServerMessage) -> str:
    return " ".join(name for name in message.__struct_fields__ if getattr(message, name))


KEY: Final = b"k" * 32
KEYRING: Final = Keyring({1: b"o" * 32, 7: KEY})
SIGNED: Final = frozenset(
    ring.sign(Claims(ClientId("abcdefghijklmnop"), application, "phone ☎", session, "local", 3, "tag", user))
    for ring in (KEYRING, Keyring({1: b"o" * 32}))
    for application in ("demo", "a" * 64)
    for session in (0, 2**31)
    for user in ("", "me@example.org")
)


def tokens(data: bytes) -> str:
    """A token counts if it is, byte for byte, one that was signed. A body of another version, properly signed, is read or refused."""
    try:
        claims = KEYRING.verify(text_of(data))
        assert text_of(data) in SIGNED, f"nobody signed this: {claims}"
        answer = "good"
    except TokenInvalid as error:
        answer = kind_of(error)
    letters = re.sub(rb"[^A-Za-z0-9_-]", b"", data)
    body = base64.urlsafe_b64decode(letters[: -1 if len(letters) % 4 == 1 else None] + b"==")[18:]
    signed = bytes((1, 7)) + hmac.digest(KEY, body, hashlib.sha256)[:16] + body
    try:
        claims = KEYRING.verify(base64.urlsafe_b64encode(signed).rstrip(b"=").decode())
    except TokenInvalid as error:
        return f"{answer}; {kind_of(error)}"
    assert KEYRING.verify(KEYRING.sign(claims)) == claims
    return answer + "; body read"


def check_short(error: Exception) -> None:
    assert len(str(error)) < 400, "an error grows with its input"


def names(data: bytes) -> str:
    text = text_of(data)
    for parse in (version_from_text, check_application, check_device):
        try:
            parse(text)
        except BadRequest as error:
            check_short(error)
    try:
        name = name_from_text(text)
    except InvalidName as error:
        check_short(error)
        answer = re.sub("[0-9]+", "", str(error).rpartition("cannot be used")[2])
    else:
        assert 1 <= len(name) <= 128
        shown = name_to_text(name)
        assert name_from_text(shown) == name
        assert name_to_text(name_from_text(shown)) == shown, "a name has one text form"
        shown.encode()
        answer = "a name" if shown == text else "a name, written otherwise"
    try:
        name = name_given(data)
    except InvalidName:
        return answer
    epoch = zlib.crc32(data)
    key = object_key("demo", epoch, name)
    assert name == data
    assert split_object_key(key) == ("demo", epoch, name)
    assert (name_of(key), epoch_of(key)) == (name, epoch)
    return answer + ", bytes"


FRAMES: Final[list[Frame]] = [
    internal.Hello(b"n" * 32, "g1", "g2"),
    internal.Challenge(b"n" * 32, b"m" * 32),
    internal.Prove(b"m" * 32),
    internal.Propagate(1, [Propagation(ClientId("c"), object_key("demo", 0, b"hello"), 2**32 + 1, 0, 7)] * 3),
    internal.Propagated(1, [0, 1, 2, 3]),
    internal.Probe(2),
    internal.Probed(2),
    internal.Forward(3, b'{"token":"T"}'),
    internal.Announce(3, "T"),
    internal.Closed(3),
    internal.Deliver(3, b'{"token":"T"}'),
    internal.Disconnect(3, "going-away"),
    internal.SessionNoted(3, "demo"),
]


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


def frames(data: bytes) -> str:
    """However the stream is cut, the same frames are found, until it is closed; what waits for its end is bounded."""
    cuts = Random(zlib.crc32(data))
    answers = []
    for proven in (False, True):
        found: list[list[Frame]] = [[], []]
        closed = []
        for whole, frames_found in zip((True, False), found, strict=True):
            connection = FrameConnection(lambda _, frame, into=frames_found: into.append(frame))  # type: ignore[misc]
            transport = _Transport()
            connection.connection_made(transport)
            connection.proven = proven
            rest = data
            while rest and not transport.closing:
                size = len(rest) if whole else cuts.choice((1, 3, 50, len(rest)))
                connection.data_received(rest[:size])
                rest = rest[size:]
                if not proven and not transport.closing:
                    assert len(connection._buffer) <= UNPROVEN_BYTES_MAX + 4
            closed.append(transport.closing)
        assert found[0] == found[1]
        assert closed[0] == closed[1]
        for frame in found[0]:
            assert internal.decode_frame(encode_frame(frame)[4:]) == frame
        answers.append(f"{[type(frame).__name__ for frame in found[0]][:4]} {closed[0]}")
    return " ".join(answers)


class _Done(asyncio.Future[Appended]):
    """Done at once, and without a loop."""

    def __init__(self, entries: int) -> None:
        self._appended = Appended(list(range(entries)), {})

    def __await__(self) -> Generator[Any, None, Appended]:
        yield from ()
        return self._appended

    __iter__ = __await__

    def cancel(self, msg: Any = None) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def exception(self) -> None:
        return None


class _Feed:
    """Everything is durable at once."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> asyncio.Future[Appended]:
        self.entries += entries
        return _Done(len(entries))


T = TypeVar("T")


def done(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


PUBLISH_SEEDS: Final = [
    b'{"application":"demo","object":"hello","version":7,"source":"phone"}',
    b'{"application":"demo","updates":[{"object":"hello","version":"7"},{"object":"base64:_wA","version":8,"source":null}]}',
    b'{"application":"demo","raw":[{"object":"hello","version":7},17,"x",null]}',
    b'{"application":"shop","raw":[{"doc":{"id":"hello","rev":7,"by":"me"}},{"doc":{"id":["x"],"rev":1.5}}]}',
    b'{"application":"shop","updates":[{"object":"hello","version":9223372036854775807}]}',
    b'{"application":"demo","prefix":"he"}',
    b'{"application":"demo","object":"hello"}',
]


class _Asked(msgspec.Struct):
    application: str
    raw: msgspec.Raw | UnsetType = UNSET


class PublishBodies:
    """What is accepted is in the feed, and the Bridge reads it; what is refused is not. Invalidations are read by the same rules."""

    def __init__(self) -> None:
        own = ApplicationSettings(object_path="doc.id", version_path="doc.rev", source_path="doc.by")
        self.settings = Settings(applications={"demo": ApplicationSettings(), "shop": own})

    def __call__(self, data: bytes) -> str:
        answers = []
        for work in (self._publish, self._invalidate):
            try:
                # What is large goes in pieces, which are tasks of a loop.
                answers.append(asyncio.run(work(data, _Feed())) if len(data) > LARGE_BYTES else done(work(data, _Feed())))
            except (BadRequest, Unavailable) as error:
                answers.append(kind_of(error))
        return "; ".join(answers)

    async def _publish(self, data: bytes, feed: _Feed) -> str:
        status, answer = await Publishing(self.settings, feed, lambda application: 0, Metrics()).publish(data)
        results = msgspec.json.decode(answer)["results"]
        accepted = [one for one in results if one == {"ok": True}]
        assert len(feed.entries) == len(accepted)
        assert (status == 200) == (bool(accepted) or not results)
        request = msgspec.json.decode(data, type=_Asked)
        form = form_of(self.settings.applications[request.application])
        read = [extract(entry.value, form) for entry in feed.entries]
        updates = [one if isinstance(one, Malformed) else check(request.application, 0, one) for one in read]
        if request.raw is UNSET:
            assert not any(isinstance(update, Malformed) for update in updates), "accepted, and the Bridge cannot read it"
        for update, entry in zip(updates, feed.entries, strict=True):
            assert isinstance(update, Malformed) or update.object == entry.key
        return f"{status} {len(accepted) > 0} {sorted({one['error']['code'] for one in results if 'error' in one})}"

    async def _invalidate(self, data: bytes, feed: _Feed) -> str:
        commands = Commands(self.settings, feed, lambda application: 0, lambda application, seen: seen + 1, lambda application: 0)
        return " ".join(await commands.invalidate(data))


SETTINGS_SEEDS: Final = [
    (
        b'data = "/var/lib/roskva"\nlisten = "127.0.0.1:8470"\nfeed_bytes_max = "4 GiB"\npartitions = 8\nproxies = ["::1"]\n'
        b"reload_s = 0.5\ninsecure = true\n\n[applications.shop]\nheartbeat_s = 600\nheartbeat_smear = 0.1\n"
        b'object_path = "article.id"\nauthentication = "jwt"\njwt_keys = "keys.pem"\nregistrable = ["news:*", "inbox:{sub}"]\n'
        b'origins = ["https://shop.example"]\nrevoked_users = ["me@5"]\nprivate_names = true\n'
    ),
    b"feed_retention_s = 86400\nobject_retention_days = 30\noutage_days_max = 7\nclient_retention_days = 60\n",
    b'[applications.demo]\npublish_keys = ["sha256:' + b"0" * 64 + b'"]\nconnections_max = 5\nretry_min_s = 1\nretry_max_s = 60\n',
]


class _File(type(Path())):  # type: ignore[misc]  # the class of this system
    """A file that is nowhere but here."""

    data = b""

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return io.TextIOWrapper(io.BytesIO(self.data), encoding, errors).read()


class SettingsFiles:
    """The file, and its lines as flags and as environment."""

    def __call__(self, data: bytes) -> str:
        file = _File("roskva.toml")
        file.data = data
        pairs = [line.split(" = ", 1) for line in text_of(data).splitlines() if " = " in line]
        flags = dict(chosen for chosen in pairs if chosen[0] in _SETTINGS)
        environment = {f"ROSKVA_{name.upper()}": text for name, text in flags.items()}
        loads: list[Callable[[], Settings]] = [
            lambda: load(file, {}, {}),
            lambda: load(None, environment, {}),
            lambda: load(None, {}, {name: text.strip('"') for name, text in flags.items()}),
        ]
        answers = []
        for attempt in loads:
            try:
                settings = attempt()
                assert all(re.fullmatch("[a-z0-9._-]{1,64}", name) for name in settings.applications)
                answers.append("good")
            except InvalidSetting as error:
                answers.append(kind_of(error))
        return "; ".join(answers)


_SETTINGS: Final = frozenset(Settings.__dataclass_fields__)


def targets() -> list[Target]:
    from fuzzing import access
    from fuzzing.gateways import GATEWAY_SEEDS, USER_SEEDS, gateway, gateway_with_users

    frame_seeds = [encode_frame(frame) for frame in FRAMES]
    name_seeds = [b"hello", b"a/b c", b"base64:_wA", "grüße".encode(), b"x" * 128, b"\xff\x00", b"9223372036854775807"]
    return [
        Target("client-messages", "what clients send", CLIENT_SEEDS, client_messages, of_json),
        Target("server-messages", "what clients are sent", said("S"), server_messages, of_json),
        Target("tokens", "who a client is", [token.encode() for token in sorted(SIGNED)], tokens, of_base64),
        Target("names", "names of objects, applications and devices; versions", name_seeds, names, of_bytes),
        Target("frames", "what gateways and pipeline tell each other", [*frame_seeds, b"".join(frame_seeds)], frames, of_frames),
        Target("publish", "what backends publish and invalidate", PUBLISH_SEEDS, PublishBodies(), of_json),
        Target("settings", "roskva.toml, environment and flags", SETTINGS_SEEDS, SettingsFiles(), of_toml),
        Target("credentials", "JSON Web Tokens of users", access.CREDENTIALS, access.credentials, of_base64),
        Target("jwk-sets", "the keys of whoever signs them", access.JWK_SETS, access.jwk_sets, of_json),
        Target("patterns", "what a user may register for", access.PATTERNS, access.patterns, of_json),
        Target("gateway", "a client's message at a gateway with its Registrar", GATEWAY_SEEDS, gateway, of_json),
        Target("gateway-users", "the same where users are asked for", USER_SEEDS, gateway_with_users, of_json),
    ]
