"""What aiohttp answers by itself: requests that are no HTTP, and those whose connection broke (docs/http.md, Errors).

aiohttp would answer the first with what it could not read, and log it with the client's address and a traceback: anybody could fill the
log, and a key with one character too many would stand in it. Here such requests are answered in the form of all errors, and the log has
the class of what went wrong, for debugging only. Nobody is told which versions of what serve.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from roskva.errors import MalformedMessage, RoskvaError
from roskva.gateway.publish import error_object

log = logging.getLogger(__name__)

SERVER: Final = "roskva"  # the Server header of every answer, in place of aiohttp's and Python's versions
# What a peer does, not we: malformed heads and bodies, and to hang up.
_OF_THE_PEER: Final = (HttpProcessingError, web.RequestPayloadError, ConnectionError, TimeoutError)


class Answering(web.RequestHandler):
    """One connection that aiohttp serves."""

    __slots__ = ()

    def __init__(self, server: web.Server, idle_s: float) -> None:
        no_access_log: Any = None  # aiohttp's own way to say so, which its annotations do not know
        super().__init__(server, loop=asyncio.get_running_loop(), keepalive_timeout=idle_s, access_log=no_access_log, auto_decompress=False)

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


def _note(error: object) -> None:
    """The class, and for what nobody foresaw the place: what an exception says may be somebody's secret."""
    if not isinstance(error, BaseException) or isinstance(error, _OF_THE_PEER):
        log.debug("a request could not be read or answered: %s", type(error).__name__)
        return
    frames = traceback.extract_tb(error.__traceback__)
    log.error("a request failed: %s at %s", type(error).__name__, f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "no place")
