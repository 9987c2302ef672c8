"""When a subscriber hangs up on a publisher that says nothing, and when not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from roskva.capture import wire
from roskva.capture.subscriber import Shard
from roskva.capture.subscriber.connection import Connection, new_nonce
from roskva.capture.updates import Update
from tests.capture.shell.numberlog import KEY, NumberLog
from tests.capture.shell.serving import publishing, subscriber
from tests.capture.shell.watching import Watching, until


class Line(asyncio.Transport):
    """Nobody answers at its other end."""

    aborted = False

    def write(self, data: object) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def connected() -> tuple[Connection, Line]:
    connection, line = Connection(wire.Hello(wire.VERSION, "watch", "m1", new_nonce(), 1, 1.0), KEY, lambda _, frame: None), Line()
    connection.connection_made(line)
    return connection, line


async def test_a_publisher_that_is_silent_for_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SILENCE_S_MAX", 0.1)
    connection, line = connected()
    connection.beat(0.0)
    assert not line.aborted
    await asyncio.sleep(0.15)
    connection.beat(0.0)
    assert line.aborted


async def test_a_time_in_which_nobody_listened_is_no_silence_of_the_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SILENCE_S_MAX", 0.1)
    connection, line = connected()
    await asyncio.sleep(0.15)
    connection.beat(0.0, away_s=0.15)
    assert not line.aborted, "what lies unread in the connection would say that it lives"
    await asyncio.sleep(0.15)
    connection.beat(0.0)
    assert line.aborted, "and if there is nothing, it is not waited for longer than ever"


async def test_the_time_that_a_callback_blocks_the_loop_for_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away_s: list[float] = []

    class Blocking(Watching):
        def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
            time.sleep(0.4)

    monkeypatch.setattr(Connection, "beat", lambda connection, load, away=0.0: away_s.append(away))
    log = NumberLog(tmp_path / "numbers")
    log.append(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, Blocking(1)):
        await until(lambda: len(away_s) > 3)
        assert max(away_s) > 0.3
        assert min(away_s) < 0.1
    log.close()
