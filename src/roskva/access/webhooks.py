"""Calls of an application's own service, which says who a credential belongs to, or what a user may register for.

It may be slow, broken or gone, and must take nobody along: calls are bounded in time, in number for each application and kind of question,
and in the size of their answers; one that failed five times in a row is left alone for a while. What a stranger can make it answer is no
failure: whoever sends nonsense, and gets 400 for it or a redirect to a page for signing in, would shut out everybody. What is wrong with it
goes to the log; what clients hear names no address. Everything that it is asked may be asked twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

from roskva.access.files import WatchedFile
from roskva.config import ApplicationSettings
from roskva.errors import AuthorizationUnavailable, InvalidSetting

CALLS_MAX: Final = 64  # under way, for one application and kind of question
WAITING_MAX: Final = 10_000  # for one of those, in all
ANSWER_BYTES_MAX: Final = 64 << 10
FAILURES_MAX: Final = 5  # in a row; then there is a pause
PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
# The service's considered answer: a no, and nothing that is broken.
REFUSALS: Final = (401, 403)
_KEPT_MAX: Final = 1_000  # urls and files of which something is remembered
# Of the statuses below 500 those that speak of the service, and not of what it was asked: request timeout, too many requests.
_FAILURES_BELOW_500: Final = (408, 429)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Breaker:
    """What became of the last calls of one url."""

    failures: int = 0
    pause_s: float = 0.0
    paused_until_s: float = float("-inf")
    trying: bool = False  # one call after a pause says how it goes on


class Webhooks:
    """One for a gateway. `clock` is for pauses alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._breakers: dict[str, _Breaker] = {}
        self._keys: dict[str, WatchedFile[str]] = {}
        self._places: dict[str, tuple[asyncio.Semaphore, int]] = {}  # and how many use it or wait
        self._waiting = 0
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, url: str, body: object, settings: ApplicationSettings, group: str = "") -> Any:
        """The answer to a question, from JSON to JSON. Raises AuthorizationUnavailable, with the status if there was one.

        Calls are counted by group, or by url where none is given: users who are known must not wait until strangers have been asked about.
        """
        self._check(url)
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if settings.webhook_key_file:
            headers["Authorization"] = f"Bearer {self._key(settings.webhook_key_file)}"
        content = msgspec.json.encode(body)
        async with self._place(group or url, settings.webhook_timeout_s):
            with self._judged(url):
                return await self._call(url, content, headers, settings.webhook_timeout_s)

    # How many.

    @asynccontextmanager
    async def _place(self, group: str, timeout_s: float) -> AsyncIterator[None]:
        places, users = self._places.get(group, (None, 0))
        if places is None:
            places = asyncio.Semaphore(CALLS_MAX)
        self._places[group] = (places, users + 1)
        try:
            await self._acquire(places, timeout_s)
            try:
                yield
            finally:
                places.release()
        finally:
            users = self._places[group][1] - 1
            if users:
                self._places[group] = (places, users)
            else:
                del self._places[group]

    async def _acquire(self, places: asyncio.Semaphore, timeout_s: float) -> None:
        if places.locked() and self._waiting >= WAITING_MAX:
            raise AuthorizationUnavailable("Too many wait for the application's own service.")
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await places.acquire()
        except TimeoutError:
            # Says nothing about this call, which was not made: it does not count as a failure.
            raise AuthorizationUnavailable("The application's own service is busy with others.") from None
        finally:
            self._waiting -= 1

    # Whether.

    def _check(self, url: str) -> None:
        if self._closed:
            raise AuthorizationUnavailable("This gateway stops, and asks nobody any more.")
        breaker = self._breakers.get(url)
        if breaker is not None and breaker.failures >= FAILURES_MAX:
            left_s = breaker.paused_until_s - self._clock()
            if left_s > 0 or breaker.trying:
                raise AuthorizationUnavailable(
                    "The application's own service failed repeatedly, and is left alone for a moment.",
                    retry_after_s=max(left_s, PAUSE_MIN_S),
                )

    @contextmanager
    def _judged(self, url: str) -> Iterator[None]:
        self._check(url)  # once more: it may have waited for its place
        breaker = self._breakers.pop(url, None) or _Breaker()
        self._breakers[url] = breaker  # as the latest
        if len(self._breakers) > _KEPT_MAX:
            del self._breakers[next(iter(self._breakers))]
        trying = breaker.failures >= FAILURES_MAX
        breaker.trying |= trying
        try:
            yield
        except AuthorizationUnavailable as error:
            if _is_failure(error.answered):
                self._failed(url, breaker, trying, error)
            elif trying or error.answered in REFUSALS:
                self._succeeded(url, breaker)  # it answers, and is left alone no longer
            raise
        else:
            self._succeeded(url, breaker)
        finally:
            if trying:  # a try that was given up is followed by another
                breaker.trying = False

    def _succeeded(self, url: str, breaker: _Breaker) -> None:
        if breaker.failures >= FAILURES_MAX:
            log.info("the webhook %s answers again", shown_url(url))
        breaker.failures, breaker.pause_s = 0, 0.0

    def _failed(self, url: str, breaker: _Breaker, trying: bool, error: AuthorizationUnavailable) -> None:
        breaker.failures += 1
        if breaker.failures == FAILURES_MAX or trying:  # calls that were under way when the pause began do not make it longer
            breaker.pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, 2 * breaker.pause_s))
            breaker.paused_until_s = self._clock() + breaker.pause_s
            log.warning("the webhook %s is not called for %g s: %s", shown_url(url), breaker.pause_s, error.what)

    # The call.

    def _key(self, path: str) -> str:
        try:
            if path not in self._keys:
                self._keys[path] = WatchedFile(path, webhook_key, self._clock)
                if len(self._keys) > _KEPT_MAX:
                    del self._keys[next(iter(self._keys))]
            return self._keys[path].value()
        except InvalidSetting as error:
            log.error("webhooks are not called: %s", error)
            raise AuthorizationUnavailable("The application's own service cannot be asked.") from None

    async def _call(self, url: str, content: bytes, headers: dict[str, str], timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    status, answer = await self._exchange(url, content, headers)
                except aiohttp.ClientConnectorError:
                    raise
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    # A kept connection that the other side closed just now.
                    status, answer = await self._exchange(url, content, headers)
        except TimeoutError:
            raise AuthorizationUnavailable(f"The application's own service did not answer within {timeout_s:g} s.") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log.debug("the webhook %s: %r", shown_url(url), error)
            raise AuthorizationUnavailable(f"The application's own service cannot be reached ({type(error).__name__}).") from None
        if status != 200:
            raise AuthorizationUnavailable(f"The application's own service answered with status {status}.", answered=status)
        try:
            return msgspec.json.decode(answer)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise AuthorizationUnavailable("The application's own service did not answer with JSON.", answered=status) from None

    async def _exchange(self, url: str, content: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._session is None:
            self._session = new_session()
        async with self._session.post(url, data=content, headers=headers, allow_redirects=False) as response:
            return response.status, await bounded_answer(response)


def _is_failure(status: int) -> bool:
    """Whether the service is not well, as far as its status says; 0: it did not answer."""
    return not status or status >= 500 or status in _FAILURES_BELOW_500


def new_session() -> aiohttp.ClientSession:
    """Without cookies, without a limit of its own (an application that hangs would use up that of all), and without unpacking: what a
    few bytes unpack to has no limit.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def bounded_answer(response: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises AuthorizationUnavailable if it is too long."""
    answer = bytearray()
    async for piece in response.content.iter_any():
        answer += piece
        if len(answer) > ANSWER_BYTES_MAX:
            raise AuthorizationUnavailable(
                f"The application's own service answered with more than {ANSWER_BYTES_MAX:,} bytes.", answered=response.status
            )
    return bytes(answer)


def webhook_key(content: bytes) -> str:
    """The secret in a file; whitespace around it does not count."""
    try:
        key = content.decode("ascii").strip()
    except UnicodeDecodeError:
        key = ""
    if not key or not key.isprintable() or " " in key:
        raise InvalidSetting("it must hold one secret, of printable ASCII characters without spaces.")
    return key


def shown_url(url: str) -> str:
    """For the log: without what may be a secret in it."""
    return url.partition("?")[0].rpartition("@")[2]
