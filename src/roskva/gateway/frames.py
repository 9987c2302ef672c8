"""One internal connection as a stream of frames (protocol/internal.py): cutting, sending, and the limit on what is unsent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

import msgspec

from roskva.protocol.internal import FRAME_BYTES_MAX, Frame, Hello, decode_frame, encode_frame

log = logging.getLogger(__name__)

UNPROVEN_BYTES_MAX: Final = 4_096  # of a frame, before the other side proved that it knows the key
BUFFER_BYTES_MAX: Final = 16 << 20  # unsent, at which frames that may be lost are dropped
_HARD_FACTOR: Final = 8  # times that, at which the connection is given up


class FrameConnection(asyncio.Protocol):
    """Calls `on_frame` for each frame, and `on_lost` once. A frame that cannot be read ends the connection."""

    def __init__(
        self,
        on_frame: Callable[[FrameConnection, Frame], None],
        on_made: Callable[[FrameConnection], None] | None = None,
        on_lost: Callable[[FrameConnection], None] | None = None,
    ) -> None:
        self._on_frame = on_frame
        self._on_made = on_made
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._full = False
        self.proven = False
        self.hello: Hello | None = None  # with which it began
        self.nonce = b""  # of the challenge that this side sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)
        if self._on_made is not None:
            self._on_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._on_lost is not None:
            self._on_lost(self)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= 4:
            length = int.from_bytes(self._buffer[start : start + 4], "big")
            if length > (FRAME_BYTES_MAX if self.proven else UNPROVEN_BYTES_MAX):
                log.warning("an internal connection sent a frame of %d bytes and is closed", length)
                self.close()
                return
            end = start + 4 + length
            if len(self._buffer) < end:
                break
            try:
                frame = decode_frame(bytes(self._buffer[start + 4 : end]))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                log.warning("an internal connection sent what cannot be read and is closed: %s", error)
                self.close()
                return
            start = end
            self._on_frame(self, frame)
            if self._transport is None or self._transport.is_closing():
                return
        if start:
            del self._buffer[:start]

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, frame: Frame, may_be_lost: bool = False) -> bool:
        """Never blocks. False: it was not sent, because the connection is gone, or full and the frame may be lost."""
        transport = self._transport
        if transport is None or transport.is_closing() or (self._full and may_be_lost):
            return False
        if self._full and transport.get_write_buffer_size() > BUFFER_BYTES_MAX * _HARD_FACTOR:
            log.warning("an internal connection does not take what is sent to it and is closed")
            transport.abort()
            return False
        transport.write(encode_frame(frame))
        return True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
