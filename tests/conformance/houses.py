"""A service for the player without a network: the real cores joined in memory, on virtual time, that may be told to lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from roskva.model import Update, name_from_text, object_key
from roskva.protocol.messages import ServerMessage, decode_client, decode_server, encode
from roskva.testing.joined import Server

Lie = Callable[[dict[str, Any]], dict[str, Any] | None]


class JoinedHouse:
    application = "demo"
    patience_s = 10.0
    quiet_s = 1.0

    def __init__(self, lie: Lie = lambda message: message) -> None:
        self.server = Server()
        self.lie = lie

    def now_s(self) -> float:
        return self.server.now_s

    async def connect(self) -> JoinedLine:
        return JoinedLine(self)

    async def publish(self, name: str, version: int, source: str) -> None:
        self.server.feed.append(Update(object_key(self.application, 0, name_from_text(name)), version, source))
        while self.server.work():
            pass

    async def configure(self, name: str, value: str) -> None:
        config = decode_server(json.dumps({"config": {name: json.loads(value)}}).encode()).config
        assert config is not None
        self.server.config = config
        self.server.registrations_max = config.registrations_max


class JoinedLine:
    def __init__(self, house: JoinedHouse) -> None:
        self._house = house
        self._outbox: list[ServerMessage] = []

    async def send(self, data: bytes) -> None:
        self._house.server.receive(self._outbox, decode_client(data, 1 << 20))

    async def receive(self, timeout_s: float) -> bytes | None:
        server, until_s = self._house.server, self._house.server.now_s + timeout_s
        while True:
            if self._outbox:
                said = self._house.lie(json.loads(encode(self._outbox.pop(0))))
                if said is not None:
                    return json.dumps(said).encode()
            elif not server.work():
                if server.now_s >= until_s:
                    return None
                server.now_s = min(until_s, server.now_s + 0.25)
                server.tick()

    async def close(self) -> None:
        for client, session in list(self._house.server.sessions.items()):
            if session.channel is self._outbox:
                del self._house.server.sessions[client]
