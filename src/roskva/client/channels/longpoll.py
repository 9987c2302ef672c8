"""A connection by long polls: a GET that waits for what the service says, and POSTs (docs/protocol.md, Long polls)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import aiohttp
import msgspec

from roskva.client.channels.link import CLOSE_S, CONNECT_S, MESSAGE_BYTES_MAX, Link, NotConnected, Received, answered, not_connected
from roskva.client.choice import Failure

log = logging.getLogger(__name__)

TRIES: Final = 3  # of one request, or of polls in a row, before the connection is given up
PAUSE_S: Final = 1.0  # before a request is made again
WAIT_MIN_S: Final = 5.0
GRACE_S: Final = 15.0  # for an answer, beyond the wait that was asked for
SEND_S: Final = 15.0


class _Opened(msgspec.Struct, frozen=True):
    id: str
    wait_s: float = 50.0


class LongPollLink(Link):
    def __init__(self, http: aiohttp.ClientSession, url: str, wait_s: float) -> None:
        super().__init__()
        self._http = http
        self._url = url
        self._wait_s = max(WAIT_MIN_S, wait_s)

    @classmethod
    async def connect(cls, http: aiohttp.ClientSession, service: str) -> LongPollLink:
        url = f"{service}/v1/channels"
        try:
            async with http.post(url, timeout=aiohttp.ClientTimeout(total=CONNECT_S)) as answer:
                if answer.status != 201:
                    raise answered(url, answer.status, answer.reason)
                opened = msgspec.json.decode(await answer.content.read(MESSAGE_BYTES_MAX), type=_Opened)
        except msgspec.DecodeError as error:
            raise NotConnected(f"{url} answered what is not of the service: {error}.", Failure.REFUSED) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise not_connected(url, error) from None
        return cls(http, f"{url}/{opened.id}", opened.wait_s)

    async def _read(self, received: Received) -> str:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began_s = loop.time()
            status, body = await self._fetch()
            early = loop.time() - began_s < PAUSE_S
            if status in (200, 204):
                failures = 0
                for line in body.split(b"\n"):
                    if line:
                        self._decoded(line, received)
                if not body and early:  # whoever answered did not wait
                    await asyncio.sleep(PAUSE_S)
                continue
            failures += 1
            if status == 410:
                return "closed by the service"
            if failures == TRIES:
                self.cut = True
                return f"broken: {TRIES} polls in a row failed, the last with {status or 'no answer'}"
            if not early:  # perhaps a proxy that does not wait so long
                self._wait_s = max(WAIT_MIN_S, self._wait_s / 2)
            await asyncio.sleep(PAUSE_S)

    async def _fetch(self) -> tuple[int, bytes]:
        """One poll: status and body. Status 0: no answer came."""
        limit = aiohttp.ClientTimeout(total=self._wait_s + GRACE_S)
        try:
            async with self._http.get(self._url, params={"wait_s": f"{self._wait_s:.0f}"}, timeout=limit) as answer:
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MESSAGE_BYTES_MAX:
                        return 0, b""
                return answer.status, bytes(body)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.debug("a poll failed: %s", error)
            return 0, b""

    async def _put(self, messages: list[bytes]) -> None:
        status = 0
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(PAUSE_S)
            status = await self._post(b"\n".join(messages))
            if status == 413 and len(messages) > 1:
                for data in messages:
                    await self._put([data])
                return
            if 0 < status < 500 and status != 410:
                if status >= 400:
                    log.warning("the service refused a request with %d: %d messages were dropped", status, len(messages))
                return
            if status == 410:
                break
        raise ConnectionError(f"a request was answered with {status or 'nothing'}")

    async def _post(self, body: bytes) -> int:
        try:
            async with self._http.post(self._url, data=body, timeout=aiohttp.ClientTimeout(total=SEND_S)) as answer:
                return answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.debug("a request failed: %s", error)
            return 0

    async def _shut(self) -> None:
        """Tell the service, so that it need not wait for a poll that will not come."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with self._http.delete(self._url, timeout=aiohttp.ClientTimeout(total=CLOSE_S)):
                pass
