"""A trusted line: one WebSocket that carries many simulated clients to a gateway (docs/protocol.md, The trusted channel)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from picows import WSError, WSFrame, WSInvalidStatusError, WSListener, WSMsgType, WSTransport, ws_connect

from roskva.errors import BadRequest, RoskvaError, ServiceUnreachable, TrustRefused
from roskva.load.measuring import Counts

_TEXT: Final = WSMsgType.TEXT
_CONNECT_S: Final = 10.0
_AGAIN_MIN_S: Final = 0.25
_AGAIN_MAX_S: Final = 5.0
_BUFFER_BYTES_MAX: Final = 32 << 20
_FRAME_BYTES_MAX: Final = 4 << 20
_UNAUTHORIZED: Final = 401
_OF_THE_LINE: Final = (b"+", b"-", b"=")  # its keepalive, for whom that stands (simulated clients take its word for all), who is settled

_quiet = logging.getLogger("roskva.load.picows")
_quiet.setLevel(logging.CRITICAL)  # a line that breaks is told of here


class Line(WSListener):
    """Stays connected: `stay` ends only with an error that no patience helps against."""

    def __init__(
        self,
        url: str,
        key: str,
        drop: float,
        counts: Counts,
        received: Callable[[int, bytes, float, int], None],
        settled: Callable[[int, float], None],
        changed: Callable[[Line, bool], None],
        place: int = 0,
        lines: int = 1,
    ) -> None:
        self._url = url.replace("http", "ws", 1) + "/v1/trusted?keepalive=line"
        self._key = key
        self.drop = drop  # part of the messages, in either direction
        self._counts = counts
        self._received = received
        self._settled = settled
        # Of clients that take turns on so many lines, this one has every so many: on it their numbers follow each other.
        self._place = place
        self._lines = lines
        self._changed = changed
        self._transport: WSTransport | None = None
        self._lost = asyncio.Event()
        self._full = False
        self.heard_s = 0.0
        self.trouble = ""  # why it is not connected

    @property
    def connected(self) -> bool:
        return self._transport is not None

    @property
    def full(self) -> bool:
        """The gateway does not read as fast as this side writes: nobody else should arrive now."""
        return self._full

    async def stay(self, first_try_counts: bool) -> None:
        """Connect, and again whenever it breaks. `first_try_counts`: if the very first attempt fails, give up."""
        failures = 0
        while True:
            try:
                await self._connect()
                failures = 0
                await self._lost.wait()
            except (OSError, WSError, TimeoutError) as error:
                refusal = self._refusal(error)
                if isinstance(refusal, TrustRefused) or first_try_counts:
                    raise refusal from None
                failures += 1
                self.trouble = str(error) or type(error).__name__
            first_try_counts = False
            await asyncio.sleep(min(_AGAIN_MAX_S, _AGAIN_MIN_S * 2.0**failures) * (0.5 + random.random() / 2))

    async def _connect(self) -> None:
        self._lost.clear()
        headers = {"Authorization": f"Bearer {self._key}"}
        async with asyncio.timeout(_CONNECT_S):
            await ws_connect(
                lambda: self,
                self._url,
                extra_headers=headers,
                max_frame_size=_FRAME_BYTES_MAX,
                websocket_handshake_timeout=_CONNECT_S,
                read_buffer_init_size=1 << 16,
                max_redirects=0,  # whoever an answer points to is not shown the key
                logger_name=_quiet,
            )

    def _refusal(self, error: Exception) -> RoskvaError:
        status = getattr(getattr(error, "response", None), "status", None)
        if isinstance(error, WSInvalidStatusError) and status is not None and int(status) == _UNAUTHORIZED:
            return TrustRefused("The service does not take this key for that of trusted servers.")
        if isinstance(error, WSInvalidStatusError):
            return BadRequest(f"{self._url} answered with status {status}: is there a gateway of Roskva?")
        return ServiceUnreachable(f"{self._url} does not answer ({str(error) or type(error).__name__}).")

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._full = False
        self.trouble = ""
        self.heard_s = time.monotonic()
        self._changed(self, True)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._transport is not None:
            self._transport = None
            self.trouble = self.trouble or "the connection broke"
            self._counts.interrupted += 1
            self._changed(self, False)
        self._lost.set()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == WSMsgType.CLOSE:
            self.trouble = f"closed by the service: {(frame.get_close_message() or b'').decode(errors='replace')}"
            transport.disconnect()
            return
        if kind != _TEXT:
            return
        data = frame.get_payload_as_bytes()
        counts = self._counts
        counts.received += 1
        counts.bytes_received += len(data)
        if self.drop and data[:1] not in _OF_THE_LINE and random.random() < self.drop:  # a line itself loses nothing
            counts.dropped += 1
            return
        self.heard_s = time.monotonic()
        if data[:1] in _OF_THE_LINE:
            if data[:1] == b"=":
                for number in data.split()[1:]:
                    self._settled(int(number) * self._lines + self._place, self.heard_s)
            return
        digits, _, message = data.partition(b" ")
        self._received(int(digits) * self._lines + self._place, message, self.heard_s, time.time_ns() // 1000)

    def send(self, number: int, message: bytes) -> None:
        """What cannot be sent now is lost, as over any channel."""
        transport, counts = self._transport, self._counts
        if transport is None:
            return
        if self._full and transport.underlying_transport.get_write_buffer_size() > _BUFFER_BYTES_MAX:
            counts.overflowed += 1
            return
        frame = b"%d %b" % (number // self._lines, message)
        counts.sent += 1
        counts.bytes_sent += len(frame)
        if self.drop and random.random() < self.drop:
            counts.dropped += 1
            return
        transport.send(_TEXT, frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.disconnect(False)

    def cut_if_silent(self, silent_s: float, now_s: float) -> None:
        if self._transport is not None and now_s - self.heard_s > silent_s:
            self.trouble = f"nothing was heard for {silent_s:g} s"
            self._transport.disconnect(False)
