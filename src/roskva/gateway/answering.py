"""aiohttp's connections, and what they answer by themselves: requests that are no HTTP, and those that broke off (docs/http.md, Errors).

aiohttp would answer the first with what it could not read, and log it with the client's address and a traceback: anybody could fill the
log, and a key with one character too many would stand in it. Here such requests are answered in the form of all errors, and the log has
the class of what went wrong, for debugging only. Nobody is told which versions of what serve.

A publish that is there as a whole goes past aiohttp's request, routes and response, which took more of a gateway than all else that it
did for a publish: aiohttp's parser has read it, and keeps the order of pipelined requests. Everything that is not plain, such as a page's
request or a body that comes in pieces, takes the long way; both end in `Routes` (gateway/http.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDictProxy

from roskva.errors import MalformedMessage, RoskvaError
from roskva.gateway.publish import error_object
from roskva.gateway.steps import Steps

log = logging.getLogger(__name__)

SERVER: Final = "roskva"  # the Server header of every answer, in place of aiohttp's and Python's versions
# What a peer does, not we: malformed heads and bodies, and to hang up.
_OF_THE_PEER: Final = (HttpProcessingError, web.RequestPayloadError, ConnectionError, TimeoutError)


_PUBLISH_PATH: Final = "/v1/publish"
# Headers that make a publish one for the long way: of browsers' pages, and of bodies in another form or not sent yet.
_UNUSUAL: Final = ("Origin", "Content-Encoding", "Expect")


class Plain(NamedTuple):
    """Who asks, of a request on the short way."""

    headers: CIMultiDictProxy[str]
    transport: asyncio.Transport | None


# Answers a publish with all bytes of its response. Raises nothing.
Publish = Callable[[Plain, bytes], Awaitable[bytes]]


class Answering(web.RequestHandler):
    """One connection that aiohttp serves."""

    __slots__ = ("_answer", "_publish")

    def __init__(self, server: web.Server, idle_s: float, publish: Publish | None = None) -> None:
        no_access_log: Any = None  # aiohttp's own way to say so, which its annotations do not know
        super().__init__(server, loop=asyncio.get_running_loop(), keepalive_timeout=idle_s, access_log=no_access_log, auto_decompress=False)
        self._publish = publish
        self._answer: Steps | None = None  # of a publish on the short way

    def data_received(self, data: bytes) -> None:
        """Takes a plain publish away from aiohttp's task while that waits for a request, and hands over whatever else came.

        That task waits for `_waiter`, which is hidden meanwhile: what comes then is only parsed, and queued up to aiohttp's limit.
        """
        waiter = self._waiter
        if self._publish is None or waiter is None or waiter.done() or self._messages:
            super().data_received(data)
            return
        self._waiter = None
        super().data_received(data)
        if len(self._messages) == 1 and _is_plain_publish(*self._messages[0]):
            message, payload = self._messages.popleft()
            if self._parser is not None:
                self._parser.message_consumed()
            self._request_in_progress = True
            asked = Plain(message.headers, self.transport)  # type: ignore[union-attr]  # no error: it was looked at
            self._answer = Steps(self._answer_publish(self._publish, asked, payload.read_nowait(), waiter), self._loop)
            self._answer.begin()
        else:
            self._give_back(waiter)

    async def _answer_publish(self, publish: Publish, asked: Plain, body: bytes, waiter: asyncio.Future[None]) -> None:
        try:
            answer = await publish(asked, body)
            if self.transport is not None:
                self.transport.write(answer)
                with contextlib.suppress(ConnectionError):
                    await self._drain_helper()  # who does not read is not read: else its answers would fill our memory
                self._keep_alive()
        finally:
            self._answer = None
            self._request_in_progress = False
            if self._handler_waiter is not None and not self._handler_waiter.done():
                self._handler_waiter.set_result(None)
            self._give_back(waiter)

    def _keep_alive(self) -> None:
        """As aiohttp does after an answer: its timer looks at the time again when it fires, and may have fired meanwhile."""
        close_s = self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive = True
            self._keepalive_handle = self._loop.call_at(close_s, self._process_keepalive)

    def _give_back(self, waiter: asyncio.Future[None]) -> None:
        """aiohttp's task goes on waiting, or has something to do, or nothing more at all."""
        self._waiter = waiter
        if waiter.done():
            return
        if self._close or self._force_close:
            waiter.cancel()
        elif self._messages:
            waiter.set_result(None)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Neither the exception nor aiohttp's message is told or logged: both quote the request."""
        _note(exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already")
        if status < 500:
            error: RoskvaError = MalformedMessage("This is no HTTP request that can be understood.")
        else:
            error = RoskvaError("The request could not be handled.")
        body = msgspec.json.encode({"error": error_object(error)})
        response = web.Response(body=body, status=status, content_type="application/json", headers={"Server": SERVER})
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        _note(kw.get("exc_info"))


def _is_plain_publish(message: Any, payload: Any) -> bool:
    """Whole, and of the form that backends use; a request that aiohttp could not read has another type."""
    return (
        getattr(message, "path", None) == _PUBLISH_PATH
        and message.method == "POST"
        and message.version == HttpVersion11
        and not (message.should_close or message.upgrade or message.chunked)
        and payload.is_eof()
        and not any(name in message.headers for name in _UNUSUAL)
    )


def written(response: web.Response) -> bytes:
    """The bytes of a response on the short way."""
    fields = [f"{name}: {value}" for name, value in response.headers.items()]
    body = response.body
    assert isinstance(body, bytes)
    own = [f"HTTP/1.1 {response.status} {response.reason}", f"Server: {SERVER}", f"Date: {rfc822_formatted_time()}"]
    return "\r\n".join([*own, f"Content-Length: {len(body)}", *fields, "", ""]).encode() + body


def written_ok(body: bytes) -> bytes:
    """The same for what is answered to almost every publish."""
    return b"%s%s\r\nContent-Length: %d\r\n\r\n%s" % (_OK_HEAD, rfc822_formatted_time().encode(), len(body), body)


_OK_HEAD: Final = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nServer: {SERVER}\r\nDate: ".encode()


def _note(error: object) -> None:
    """The class, and for what nobody foresaw the place: what an exception says may be somebody's secret."""
    if not isinstance(error, BaseException) or isinstance(error, _OF_THE_PEER):
        log.debug("a request could not be read or answered: %s", type(error).__name__)
        return
    frames = traceback.extract_tb(error.__traceback__)
    log.error("a request failed: %s at %s", type(error).__name__, f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "no place")
