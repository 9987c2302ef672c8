"""The other gateways of this service, asked at their doors (gateway/door.py) for what only they know, so that any gateway that shares the
port can answer for all of them.

Nobody waits long: one that does not answer within ASK_S is left out, and the answer says so. A request about something that one other
gateway holds is passed on to it as a whole, and its answer comes back as it is written: a poll, or a stream of events.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import string
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web
from yarl import URL

from roskva.errors import Unavailable
from roskva.gateway.door import MEMBER_HEADER, door_name
from roskva.gateway.sharing import RUN
from roskva.registrar.members import Member

log = logging.getLogger(__name__)

ASK_S: Final = 2.0
_AGAIN_S: Final = 0.05  # after which a door is tried a second time: so many may have come at once that its queue was full
_LOOK_S: Final = 1.0  # how often it is looked whether who asked is still there
_PASSED_BACK: Final = ("Content-Type", "Cache-Control", "X-Accel-Buffering", "Retry-After")
_KEPT: Final = string.punctuation.replace("#", "")


class Peers:
    """`live` tells the living members; `own` is this gateway's id among them."""

    def __init__(self, data: Path, own: str, live: Callable[[], dict[str, Member]]) -> None:
        self._folder = data / RUN
        self._own = own
        self._live = live
        self.relaying = 0  # requests that are passed on now: each takes a connection
        self._sessions: dict[str, tuple[aiohttp.ClientSession, int]] = {}  # and the descriptor of the folder, by member

    async def close(self) -> None:
        for member in list(self._sessions):
            await self._drop(member)

    def others(self) -> list[Member]:
        return sorted((member for identity, member in self._live().items() if identity != self._own), key=lambda member: member.id)

    def knows(self, identity: str) -> bool:
        return identity != self._own and identity in self._live()

    async def ask_all(self, path: str, body: bytes | None = None, among: Iterable[Member] | None = None) -> dict[str, bytes | None]:
        """What each answers, by member; None: nothing within ASK_S. `path` is as it was sent: escaped."""
        asked = list(self.others() if among is None else among)
        answers = await asyncio.gather(*(self._ask(member, path, body) for member in asked))
        return {member.id: answer for member, answer in zip(asked, answers, strict=True)}

    async def _ask(self, member: Member, path: str, body: bytes | None) -> bytes | None:
        try:
            async with asyncio.timeout(ASK_S):
                session = await self._session(member)
                async with session.request("GET" if body is None else "POST", _url(path), data=body) as answer:
                    if answer.headers.get(MEMBER_HEADER) != member.id:  # it was killed, and started again under its name
                        return None
                    return await answer.read() if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("gateway %s was asked and does not answer: %s", member.name or member.id, type(error).__name__)
            # There is no door any more, or another one. One that is only busy keeps its connections.
            if isinstance(error, OSError) and not _is_busy(error):
                await self._drop(member.id)
            return None

    async def relay(self, request: web.Request, identity: str) -> web.StreamResponse:
        """Pass a request on, and its answer back. Raises Unavailable if that gateway cannot be reached."""
        member = self._live().get(identity)
        if member is None:
            raise Unavailable("The gateway that this belongs to is gone.")
        relaying = asyncio.ensure_future(self._relayed(request, member))
        self.relaying += 1
        try:
            while not relaying.done():
                await asyncio.wait({relaying}, timeout=_LOOK_S)
                if request.transport is None:  # it hung up: what comes now is for its next request
                    raise ConnectionResetError
            return relaying.result()
        except (aiohttp.ClientError, OSError) as error:
            if request.transport is None:
                raise ConnectionResetError from None
            log.warning("a request could not be passed on to gateway %s: %s", member.name or member.id, type(error).__name__)
            raise Unavailable("The gateway that this belongs to does not answer.") from None
        finally:
            self.relaying -= 1
            relaying.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await relaying

    async def _relayed(self, request: web.Request, member: Member) -> web.StreamResponse:
        try:
            return await self._passed_on(request, member)
        except aiohttp.ClientConnectorError:  # nothing of it was sent
            await asyncio.sleep(_AGAIN_S)
            return await self._passed_on(request, member)

    async def _passed_on(self, request: web.Request, member: Member) -> web.StreamResponse:
        session = await self._session(member)
        body = request.content.iter_any() if request.can_read_body else None
        async with session.request(request.method, _url(request.raw_path), data=body) as answer:
            headers = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
            if answer.status == 204 or answer.content_length is not None:
                return web.Response(status=answer.status, body=await answer.read() or None, headers=headers)
            streamed = web.StreamResponse(status=answer.status, headers=headers)
            with suppress(ConnectionError, aiohttp.ClientError):  # either side may be gone at any moment: the stream ends
                await streamed.prepare(request)
                async for piece in _pieces(answer):
                    await streamed.write(piece)
            return streamed

    async def _session(self, member: Member) -> aiohttp.ClientSession:
        if member.id not in self._sessions:
            for gone in [identity for identity in self._sessions if identity not in self._live()]:
                await self._drop(gone)
        found = self._sessions.get(member.id)  # only now: meanwhile another may have made it
        if found is not None:
            return found[0]
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        connector = aiohttp.UnixConnector(f"/proc/self/fd/{descriptor}/{door_name(member.name or member.id)}", limit=0)
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, connect=ASK_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._sessions[member.id] = session, descriptor
        return session

    async def _drop(self, identity: str) -> None:
        found = self._sessions.pop(identity, None)
        if found is not None:
            await found[0].close()
            os.close(found[1])


def _url(path: str) -> URL:
    """As it came: names of objects may be dots, which are no way up here. Only what is not ASCII is escaped."""
    if not path.startswith("/"):  # it names the host as well, as requests to a proxy do
        path = "/" + path.partition("://")[2].partition("/")[2]
    return URL(f"http://gateway{urllib.parse.quote(path, safe=_KEPT, errors='surrogateescape')}", encoded=True)


def _is_busy(error: OSError) -> bool:
    """Whether there is somebody behind the door: it takes long, or so many wait that its queue is full."""
    return isinstance(error, TimeoutError) or error.errno == errno.EAGAIN


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for piece in answer.content.iter_any():
        yield piece
