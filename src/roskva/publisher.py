"""For backends: `Publisher` (asyncio) and `BlockingPublisher` (threads) tell the service of changes (Thialfi 3.1 and 4.1.4).

A publish that returned is durable. One that raised a transient error may or may not have landed: publishing the same version
again is always safe, since only the highest version of an object counts. Nothing here knows the client, the Registrar or Spark.
"""

from __future__ import annotations

import asyncio
import http.client
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import SplitResult, urlsplit

import msgspec

from roskva.errors import ClientStopped, InvalidName, InvalidSetting, RoskvaError, ServiceUnreachable, from_report
from roskva.model import PUBLISHED_HEADER, check_application, check_device, name_from_text, name_to_text, version_from_number

BATCH_MAX: Final = 1_000  # updates in one request
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
REQUEST_S: Final = 15.0  # how long one request may take

# (object, version) or (object, version, source)
Change = tuple[str | bytes, int | str] | tuple[str | bytes, int | str, str | None]


class WireUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """One update of a request: checked, in the form of POST /v1/publish. A version goes as text, so that no digit is lost."""

    object: str
    version: str
    source: str | None = None


class _Report(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    transient: bool = False
    retry_after_s: float = 0.0


class _Result(msgspec.Struct, frozen=True):
    ok: bool = False
    error: _Report | None = None


class _Answer(msgspec.Struct, frozen=True):
    results: list[_Result] | None = None
    error: _Report | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one update: durable (no error), refused, or to be tried again after a pause."""

    error: RoskvaError | None = None
    again: bool = False
    retry_after_s: float = 0.0


DURABLE: Final = Outcome()


def update_of(name: str | bytes, version: int | str, source: str | None = None) -> WireUpdate:
    """Check everything here, so that a mistake is raised where it was made."""
    if not isinstance(name, str | bytes):
        raise InvalidName(name, "it is neither text nor bytes")
    text = name_to_text(name_from_text(name) if isinstance(name, str) else name_from_text(name_to_text(name)))
    return WireUpdate(text, str(version_from_number(version)), None if source is None else check_device(source))


def encode_request(application: str, updates: Sequence[WireUpdate]) -> bytes:
    return msgspec.json.encode({"application": application, "updates": updates})


def headers_of(key: str | None) -> dict[str, str]:
    """Of every request. The key is never shown: an error may end up in a log."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        if not key or not all("!" <= character <= "~" for character in key):
            raise InvalidSetting("A publish key is a text of printable ASCII characters, without spaces: `roskva app key add` makes one.")
        headers["Authorization"] = f"Bearer {key}"
    return headers


def outcomes_of(status: int, body: bytes, count: int, retry_after: str | None = None) -> list[Outcome]:
    """What an answer means for each update of its request. `retry_after` is the answer's header: a proxy's word, too."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = _Answer()
    if answer.results is not None and len(answer.results) == count:  # with any status: if none was accepted it is not 200
        return [DURABLE if result.error is None and result.ok else _refused(result.error, 200) for result in answer.results]
    return [_refused(answer.error, status, _seconds(retry_after))] * count


def _seconds(retry_after: str | None) -> float:
    """The header may be a date instead: then the own pauses must do."""
    return float(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else 0.0


def _refused(report: _Report | None, status: int, retry_after_s: float = 0.0) -> Outcome:
    if report is None:  # not from the service itself: a proxy, or an answer that was cut off
        again = status in (200, 408, 425, 429) or status >= 500
        kind = ServiceUnreachable(f"The service's address answered {status}, which is not its own answer.")
        return Outcome(kind, again, retry_after_s)
    error = from_report(report.code, report.message, report.transient)
    return Outcome(error, report.transient or status in (429, 502, 503, 504), max(report.retry_after_s, retry_after_s))


def pause_s(attempt: int, retry_after_s: float, dice: float) -> float:
    """Never before the service says so, and up to half as long again: who was refused together does not return together."""
    return max(retry_after_s * (1.0 + dice / 2), min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(attempt, 16)) * (0.5 + dice / 2))


def _address(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSetting(f"{url!r} is not the address of a service: http://HOST:PORT is expected.")
    return parts


def _now_us() -> int:
    return time.time_ns() // 1_000


@dataclass(slots=True, eq=False)
class _Waiting:
    update: WireUpdate
    done: asyncio.Future[None]
    deadline: float
    called_us: int  # the first stamp of its way (Thialfi 6.3)
    attempts: int = 0


class Publisher:
    """Publishes versions from asyncio. Concurrent calls travel together, up to 1,000 in a request.

    >>> import asyncio, os
    >>> from roskva import Publisher
    >>> async def main():
    ...     async with Publisher(os.environ["ROSKVA_URL"], application="demo") as publisher:
    ...         await publisher.publish("docs/publisher-example", 7)
    ...         return await publisher.publish_many([("docs/publisher-example", 8), ("docs/other-example", 1)])
    >>> asyncio.run(main())
    [None, None]

    What fails in a way that may pass is tried again for `retry_for_s` seconds. At most `waiting_max` updates wait at a time:
    beyond that `publish` waits for room. `source` names the device that made the change: it is not told of it. `key` is a publish key of
    the application, if it has any: one that is refused (PublishKeyRefused) is not tried again.
    """

    def __init__(
        self,
        url: str,
        *,
        application: str,
        key: str | None = None,
        retry_for_s: float = 30.0,
        requests_max: int = 4,
        waiting_max: int = 10_000,
    ) -> None:
        _address(url)
        self._url = url.rstrip("/") + "/v1/publish"
        self._application = check_application(application)
        self._retry_for_s = retry_for_s
        self._requests_max = max(1, requests_max)
        self._headers = headers_of(key)
        self._room = asyncio.Semaphore(max(1, waiting_max))
        self._waiting: deque[_Waiting] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._timers: dict[_Waiting, asyncio.TimerHandle] = {}
        self._session: Any = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def publish(self, name: str | bytes, version: int | str, source: str | None = None) -> None:
        """Returns when the version is durable."""
        await self._publish(update_of(name, version, source))

    async def publish_many(self, changes: Iterable[Change]) -> list[RoskvaError | None]:
        """For each, in order: None if it is durable, else why not. Bad input raises before anything is sent."""
        updates = [update_of(*change) for change in changes]
        results: list[RoskvaError | None] = []
        for start in range(0, len(updates), BATCH_MAX):
            part = updates[start : start + BATCH_MAX]
            answers = await asyncio.gather(*map(self._publish, part), return_exceptions=True)
            for answer in answers:
                if answer is not None and not isinstance(answer, RoskvaError):
                    raise answer
            results += cast("list[RoskvaError | None]", answers)
        return results

    async def close(self) -> None:
        """Waits for what was accepted, at most `retry_for_s`; accepts nothing more."""
        self._closed = True
        while self._waiting or self._requests or self._timers:
            tasks = list(self._requests)
            await (asyncio.wait(tasks) if tasks else asyncio.sleep(RETRY_MIN_S / 2))
        if self._session is not None:
            await self._session.close()

    async def _publish(self, update: WireUpdate) -> None:
        if self._closed:
            raise ClientStopped("The publisher was closed.")
        called_us = _now_us()
        async with self._room:
            loop = asyncio.get_running_loop()
            waiting = _Waiting(update, loop.create_future(), loop.time() + self._retry_for_s, called_us)
            self._enqueue(waiting)
            await waiting.done

    def _enqueue(self, waiting: _Waiting) -> None:
        self._timers.pop(waiting, None)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._dispatch)  # whatever else is published in this turn goes along
        self._waiting.append(waiting)

    def _dispatch(self) -> None:
        while self._waiting and len(self._requests) < self._requests_max:
            batch: list[_Waiting] = []
            while self._waiting and len(batch) < BATCH_MAX:
                waiting = self._waiting.popleft()
                if not waiting.done.done():  # else its caller gave up
                    batch.append(waiting)
            if batch:
                task = asyncio.get_running_loop().create_task(self._request(batch), name="roskva-publish")
                self._requests.add(task)
                task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if self._waiting:
            self._dispatch()

    async def _request(self, batch: list[_Waiting]) -> None:
        try:
            outcomes = await self._post([waiting.update for waiting in batch], min(waiting.called_us for waiting in batch))
        except Exception as error:  # a mistake of ours must not leave callers waiting for ever
            outcomes = [Outcome(RoskvaError(f"The request failed: {error!r}."))] * len(batch)
        dice, loop = random.random(), asyncio.get_running_loop()
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if waiting.done.done():
                continue
            pause = pause_s(waiting.attempts, outcome.retry_after_s, dice)
            waiting.attempts += 1
            if outcome.error is None:
                waiting.done.set_result(None)
            elif not outcome.again or loop.time() + pause > waiting.deadline:
                waiting.done.set_exception(outcome.error)
            else:
                self._timers[waiting] = loop.call_later(pause, self._enqueue, waiting)

    async def _post(self, updates: list[WireUpdate], called_us: int) -> list[Outcome]:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_S))
        try:
            body = encode_request(self._application, updates)
            headers = {**self._headers, PUBLISHED_HEADER: str(called_us)}
            async with self._session.post(self._url, data=body, headers=headers) as answer:
                return outcomes_of(answer.status, await answer.read(), len(updates), answer.headers.get("Retry-After"))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            what = f"{self._url} cannot be reached: {str(error) or type(error).__name__}."
            return [Outcome(ServiceUnreachable(what), again=True)] * len(updates)


class BlockingPublisher:
    """Publishes versions from threads, over connections that are kept and shared.

    >>> import os
    >>> from roskva import BlockingPublisher
    >>> with BlockingPublisher(os.environ["ROSKVA_URL"], application="demo") as publisher:
    ...     publisher.publish("docs/blocking-example", 7)
    ...     publisher.publish_many([("docs/blocking-example", 8, "phone-1")])
    [None]
    """

    def __init__(self, url: str, *, application: str, key: str | None = None, retry_for_s: float = 30.0, idle_max: int = 8) -> None:
        self._address = _address(url)
        self._path = self._address.path.rstrip("/") + "/v1/publish"
        self._application = check_application(application)
        self._retry_for_s = retry_for_s
        self._headers = headers_of(key)
        self._idle_max = idle_max
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def publish(self, name: str | bytes, version: int | str, source: str | None = None) -> None:
        """Returns when the version is durable."""
        (error,) = self._publish([update_of(name, version, source)])
        if error is not None:
            raise error

    def publish_many(self, changes: Iterable[Change]) -> list[RoskvaError | None]:
        """For each, in order: None if it is durable, else why not. Bad input raises before anything is sent."""
        updates = [update_of(*change) for change in changes]
        results: list[RoskvaError | None] = []
        for start in range(0, len(updates), BATCH_MAX):
            results += self._publish(updates[start : start + BATCH_MAX])
        return results

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _publish(self, updates: list[WireUpdate]) -> list[RoskvaError | None]:
        called_us = _now_us()
        results: list[RoskvaError | None] = [None] * len(updates)
        open_ones = list(range(len(updates)))
        deadline = time.monotonic() + self._retry_for_s
        attempt = 0
        while open_ones:
            outcomes = self._post([updates[index] for index in open_ones], called_us)
            again = []
            for index, outcome in zip(open_ones, outcomes, strict=True):
                results[index] = outcome.error
                if outcome.again:
                    again.append(index)
            open_ones = again
            pause = pause_s(attempt, max((outcome.retry_after_s for outcome in outcomes), default=0.0), random.random())
            attempt += 1
            if not open_ones or time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
        return results

    def _post(self, updates: list[WireUpdate], called_us: int) -> list[Outcome]:
        body = encode_request(self._application, updates)
        headers = {**self._headers, PUBLISHED_HEADER: str(called_us)}
        with self._lock:
            if self._closed:
                raise ClientStopped("The publisher was closed.")
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            try:
                return self._exchange(kept, body, headers, len(updates))
            except (OSError, http.client.HTTPException):
                pass  # the other side closed it while it was idle: a fresh one tells
        try:
            return self._exchange(self._connect(), body, headers, len(updates))
        except (OSError, http.client.HTTPException) as error:
            what = f"{self._address.netloc} cannot be reached: {str(error) or type(error).__name__}."
            return [Outcome(ServiceUnreachable(what), again=True)] * len(updates)

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        return kind(self._address.hostname or "", self._address.port, timeout=REQUEST_S)

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str], count: int) -> list[Outcome]:
        keep = False
        try:
            connection.request("POST", self._path, body, headers)
            answer = connection.getresponse()
            outcomes = outcomes_of(answer.status, answer.read(), count, answer.getheader("Retry-After"))
            keep = not answer.will_close
        finally:
            with self._lock:
                keep = keep and not self._closed and len(self._idle) < self._idle_max
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()
        return outcomes
