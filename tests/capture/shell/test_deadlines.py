"""Commands to a publisher are answered, however long what they wait for may take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from roskva.capture import limits
from roskva.capture.publisher import PublisherSettings
from roskva.capture.subscriber import Shard
from roskva.capture.updates import Update
from tests.capture.shell.numberlog import NumberLog
from tests.capture.shell.serving import command, publishing, subscriber
from tests.capture.shell.watching import Watching, until


class Stuck(Watching):
    """Its callback stands still until it is let go."""

    def __init__(self) -> None:
        super().__init__(1)
        self.inside, self.go = asyncio.Event(), asyncio.Event()

    async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:  # type: ignore[override]
        self.inside.set()
        await self.go.wait()
        super().on_updates(shard, updates)


async def test_a_rewind_of_a_flow_whose_callback_stands_still_is_answered_when_it_is_done(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the process as long as that has to close the flow: longer than other commands may take."""
    monkeypatch.setattr(limits, "COMMAND_S_MAX", 0.5)
    watching = Stuck()
    log.append(10)
    async with publishing(tmp_path, log, close_s_max=1.0) as publisher, subscriber(publisher, watching):
        await watching.inside.wait()
        assert await command(tmp_path, command="rewind", application="watch", to="0/0") == {"watch/0": "0/0"}
        watching.go.set()
        await until(lambda: watching.has_all(10))


async def test_a_command_that_takes_too_long_is_answered_and_not_cut_off(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMMAND_S_MAX", 0.2)
    async with publishing(tmp_path, log) as publisher, publisher.owning.round:
        assert await command(tmp_path, command="pause", application="watch") == "unavailable"


def test_by_default_a_rewind_may_take_longer_than_the_process_that_has_the_flow() -> None:
    close_s_max = next(float(field.default) for field in fields(PublisherSettings) if field.name == "close_s_max")  # type: ignore[arg-type]
    assert limits.command_s_max("rewind") > limits.take_back_s_max(close_s_max)
