"""Makes a client's connections, one after the other, as the choice says (client/choice.py)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import aiohttp

from roskva.client.channels.carried import CarriedLink
from roskva.client.channels.link import Link, NotConnected, Received
from roskva.client.channels.longpoll import LongPollLink
from roskva.client.channels.websocket import WebSocketLink
from roskva.client.choice import AUTO, CARRIED, LONG_POLL, WEBSOCKET, Attempt, Choice
from roskva.errors import InvalidSetting
from roskva.protocol.channel import Channel

log = logging.getLogger(__name__)

_KINDS: Final = (AUTO, WEBSOCKET, LONG_POLL)


class Connector:
    """`async with` it, then again and again: `connect`, `carry`."""

    def __init__(self, url: str | Sequence[str], channel: str | Channel) -> None:
        self._carried = channel if isinstance(channel, Channel) else None
        self._urls = _addresses(url, self._carried)
        if self._carried is None and channel not in _KINDS:
            raise InvalidSetting(f"{channel!r} is not a channel: {', '.join(_KINDS)} or an object of roskva.Channel is expected.")
        self._choice = Choice(len(self._urls), CARRIED if isinstance(channel, Channel) else channel, random.random)
        self._attempt = self._choice.attempt(0.0)
        self._http: aiohttp.ClientSession | None = None
        self._returned: WebSocketLink | None = None  # made beside long polls, to take their place

    @property
    def url(self) -> str:
        """Where the client is connected, or tries to."""
        return self._urls[self._attempt.url]

    @property
    def kind(self) -> str:
        return self._attempt.kind

    @property
    def has_next(self) -> bool:
        """The next connection is made already."""
        return self._returned is not None

    @property
    def falls_back(self) -> bool:
        """A WebSocket did not come about, and long polls are next."""
        return self._attempt.kind == WEBSOCKET and self._choice.attempt(_now()).kind == LONG_POLL

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._returned is not None:
            await self._returned.close()
        assert self._http is not None
        await self._http.close()

    async def connect(self) -> Link:
        """The next connection. NotConnected says why there is none; then it is another's turn."""
        if self._returned is not None:
            link, self._returned = self._returned, None
            self._attempt = self._choice.returned()
            return link
        attempt = self._attempt = self._choice.attempt(_now())
        try:
            return await self._make(attempt)
        except NotConnected as error:
            self._choice.failed(_now(), attempt, error.why)
            raise

    async def _make(self, attempt: Attempt) -> Link:
        if self._carried is not None:
            return CarriedLink(self._carried)
        assert self._http is not None
        if attempt.kind == LONG_POLL:
            return await LongPollLink.connect(self._http, self.url)
        return await WebSocketLink.connect(self._http, self.url)

    async def carry(self, link: Link, received: Received) -> str:
        """Run the connection to its end; answers why it ended."""
        attempt, began_s = self._attempt, _now()
        returning = asyncio.create_task(self._return(link), name="roskva-return") if self._may_return(attempt) else None
        try:
            reason = await link.run(received)
        finally:
            if returning is not None:
                returning.cancel()
                await asyncio.gather(returning, return_exceptions=True)
        if self._returned is None:
            self._choice.ended(_now(), attempt, _now() - began_s, link.heard, link.cut)
        return reason

    def _may_return(self, attempt: Attempt) -> bool:
        return attempt.kind == LONG_POLL and self._choice.return_at() is not None

    async def _return(self, link: Link) -> None:
        """While long polls carry a client that may choose: try a WebSocket now and then, and change over once there is one."""
        assert self._http is not None
        while (at_s := self._choice.return_at()) is not None:
            await asyncio.sleep(max(0.0, at_s - _now()))
            try:
                self._returned = await WebSocketLink.connect(self._http, self.url)
            except NotConnected as error:
                log.debug("still no WebSocket: %s", error)
                self._choice.return_failed(_now(), error.why)
            else:
                link.hang_up("exchanged for a WebSocket")
                return


def _now() -> float:
    return asyncio.get_running_loop().time()


def _addresses(url: str | Sequence[str], carried: Channel | None) -> list[str]:
    urls = [url] if isinstance(url, str) else list(url)
    if carried is not None:
        if any(urls):
            raise InvalidSetting("A client over a channel of its own has no address: leave the url out.")
        return ["the application's channel"]
    for one in urls:
        parts = urlsplit(one)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidSetting(f"{one!r} is not the address of a service: http://HOST:PORT is expected.")
    if not urls:
        raise InvalidSetting("There is no address of a service: http://HOST:PORT is expected.")
    return [one.rstrip("/") for one in urls]
