"""A service at an address, for the player: its channels, and the two HTTP routes by which a transcript publishes (docs/http.md)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from roskva.conformance.outcome import FAILED, PASSED, SKIPPED, Difference, NotPlayed, Outcome
from roskva.conformance.player import Line, Player
from roskva.conformance.transcripts import SLOW_S, Transcript
from roskva.errors import ServiceUnreachable

WEBSOCKET: Final = "websocket"
LONG_POLL: Final = "longpoll"
CHANNELS: Final = (WEBSOCKET, LONG_POLL)

_AT_ONCE: Final = 8  # transcripts
_MESSAGE_BYTES_MAX: Final = 16 << 20
_LOOK_S: Final = 0.05
_SPREAD_S: Final = 0.3  # for a version that is known to reach what is kept for each client
_QUIET_S: Final = 1.0


class ServiceHouse:
    def __init__(self, http: aiohttp.ClientSession, url: str, application: str, channel: str, patience_s: float) -> None:
        self.application = application
        self.patience_s = patience_s
        self.quiet_s = _QUIET_S
        self._http = http
        self._url = url
        self._channel = channel

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def connect(self) -> Line:
        with _as_differences("connecting", self.patience_s):
            async with asyncio.timeout(self.patience_s):
                if self._channel == WEBSOCKET:
                    return _WebSocketLine(await self._http.ws_connect(f"{self._url}/v1/channel", max_msg_size=_MESSAGE_BYTES_MAX))
                async with self._http.post(f"{self._url}/v1/channels") as answer:
                    opened = await answer.json(content_type=None)
                    if answer.status != 201 or not isinstance(opened, dict) or not isinstance(opened.get("id"), str):
                        raise Difference(f"POST /v1/channels was answered {answer.status} {str(opened)[:200]}")
                    return _LongPollLine(self._http, f"{self._url}/v1/channels/{quote(opened['id'], safe='')}")
        raise AssertionError("unreachable")

    async def publish(self, name: str, version: int, source: str) -> None:
        update = {"application": self.application, "object": name, "version": str(version)} | ({"source": source} if source else {})
        with _as_differences("publishing", self.patience_s):
            async with asyncio.timeout(self.patience_s):
                async with self._http.post(f"{self._url}/v1/publish", json=update) as answer:
                    if answer.status != 200:
                        raise Difference(f"POST /v1/publish was answered {answer.status} {(await answer.text())[:200]}")
                while await self._known(name) < version:  # noqa: ASYNC110  # another program's progress
                    await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_SPREAD_S)

    async def _known(self, name: str) -> int:
        async with self._http.get(f"{self._url}/v1/objects/{self.application}/{quote(name, safe='')}") as answer:
            if answer.status != 200:
                return -1
            return int((await answer.json(content_type=None))["version"])

    async def configure(self, name: str, value: str) -> None:
        """A service is configured by its owner."""


class _WebSocketLine:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        with _as_differences("sending", 0.0):
            await self._socket.send_str(data.decode())

    async def receive(self, timeout_s: float) -> bytes | None:
        try:
            frame = await self._socket.receive(timeout_s)
        except TimeoutError:
            return None
        if frame.type == aiohttp.WSMsgType.TEXT:
            return str(frame.data).encode()
        if frame.type == aiohttp.WSMsgType.BINARY:
            raise Difference("the server sent a binary frame")
        raise Difference(f"the connection was closed with {self._socket.close_code}")

    async def close(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            await asyncio.wait_for(self._socket.close(), 5.0)


class _LongPollLine:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._waiting: deque[bytes] = deque()

    async def send(self, data: bytes) -> None:
        status, body = await self._ask("POST", data=data)
        if status != 204:
            raise Difference(f"a POST of a message was answered {status} {body[:200].decode(errors='replace')}")

    async def receive(self, timeout_s: float) -> bytes | None:
        until_s = asyncio.get_running_loop().time() + timeout_s
        while not self._waiting:
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return None
            status, body = await self._ask("GET", params={"wait_s": str(min(50, max(1, int(left_s))))})
            if status not in (200, 204):
                raise Difference(f"a poll was answered {status} {body[:200].decode(errors='replace')}")
            self._waiting.extend(line for line in body.split(b"\n") if line)
        return self._waiting.popleft()

    async def _ask(self, method: str, **options: Any) -> tuple[int, bytes]:
        """No answer, or a 5xx: say it again; three in a row, and the connection is given up (docs/protocol.md, Long polls)."""
        for last in (False, False, True):
            try:
                async with self._http.request(method, self._url, **options) as answer:
                    if answer.status < 500 or last:
                        return answer.status, await answer.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if last:
                    raise Difference(f"a {method} was not answered: {str(error) or type(error).__name__}") from None
        raise AssertionError("unreachable")

    async def close(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with self._http.delete(self._url):
                pass


@contextlib.contextmanager
def _as_differences(what: str, seconds: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Difference(f"{what} took more than {seconds:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
        raise Difference(f"{what} failed: {str(error) or type(error).__name__}") from None


async def check(
    url: str,
    transcripts: Sequence[Transcript],
    *,
    application: str,
    channel: str,
    patience_s: float,
    key: str = "",
    slow: bool = False,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Play them all, several at once; each has a client and objects of its own. `told` hears of each as it ends. `key`: a publish key."""
    run = secrets.token_hex(4)
    room = asyncio.Semaphore(_AT_ONCE)
    limit = aiohttp.ClientTimeout(total=patience_s + 60.0)
    shown = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), timeout=limit, headers=shown) as http:
        await _reachable(http, url, patience_s)
        house = ServiceHouse(http, url, application, channel, patience_s)

        async def play(transcript: Transcript) -> Outcome:
            async with room:
                outcome = await _play(transcript, house, run, slow)
            told(outcome)
            return outcome

        return list(await asyncio.gather(*map(play, transcripts)))


async def _play(transcript: Transcript, house: ServiceHouse, run: str, slow: bool) -> Outcome:
    if transcript.seconds > SLOW_S and not slow:
        return Outcome(transcript.name, SKIPPED, f"takes {transcript.seconds:.0f} s or more: --slow")
    try:
        await Player(transcript, house, run).play()
    except NotPlayed as reason:
        return Outcome(transcript.name, SKIPPED, str(reason))
    except Difference as difference:
        return Outcome(transcript.name, FAILED, str(difference))
    return Outcome(transcript.name, PASSED)


async def _reachable(http: aiohttp.ClientSession, url: str, patience_s: float) -> None:
    try:
        async with asyncio.timeout(patience_s), http.get(url):
            pass
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ServiceUnreachable(f"{url} cannot be reached: {str(error) or 'no answer'}.") from None
