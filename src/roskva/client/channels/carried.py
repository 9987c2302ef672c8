"""A connection over a channel of the application's own (protocol/channel.py)."""

from __future__ import annotations

import asyncio
import logging

from roskva.client.channels.link import Link, Received
from roskva.protocol.channel import Channel

log = logging.getLogger(__name__)


class CarriedLink(Link):
    """There is nothing to open and nothing to close: the client speaks, and if it is not answered it begins again."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    async def _read(self, received: Received) -> str:
        defect: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def take(data: bytes) -> None:
            try:
                self._decoded(data, received)
            except Exception as error:  # of this library: not to be raised in the application, which only passed on a message
                if not defect.done():
                    defect.set_exception(error)

        self._channel.listen(take, lambda: self.hang_up("interrupted"))
        try:
            return await defect
        finally:
            self._channel.listen(None)

    async def _put(self, messages: list[bytes]) -> None:
        for data in messages:
            try:
                self._channel.send(data)
            except Exception:
                log.exception("the application's channel could not send a message, which is lost")

    async def _shut(self) -> None:
        try:
            self._channel.ended()
        except Exception:
            log.exception("the application's channel failed as it was told of the end")
