"""What carries a client's messages: WebSocket, long polls over HTTP, or a channel of the application's own; and which of them when."""

from __future__ import annotations

from roskva.protocol.channel import Channel

__all__ = ["Channel"]
