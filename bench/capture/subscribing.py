"""A process of subscribing applications, for the measurements: `python -m bench.capture.subscribing JSON`.

It takes what comes, acknowledges when it is asked, and writes down everything that reached a callback, in a file that outlives it, before
the callback returns: records.py reads it. Times are of the machine's clock, in microseconds. A line is one of

    u TIME APPLICATION SHARD FIRST LAST WAITED     rows FIRST to LAST of the shard, all of them, in order; WAITED is the sum of their ages
    n TIME APPLICATION SHARD                       the shard comes here from now on
    t TIME APPLICATION SHARD BYTES                 it was asked for a datamarker; question and answer take so many bytes
    l TIME APPLICATION SHARD                       the publisher says that something was lost
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import msgspec
import uvloop

from roskva.capture.positions import Position
from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.updates import Update
from roskva.capture.wire import Acknowledge, Token, framed

KEY: Final = "of measurements alone, 32 bytes"
RECONNECT_S_MAX: Final = 0.2  # a publisher that is back is found at once: what is measured is its part, not our pauses


class Given(msgspec.Struct, frozen=True):
    """What a process is told."""

    member: str
    applications: tuple[str, ...]
    publishers: tuple[str, ...]
    shards: int
    records: str


class Recording(Callbacks):
    def __init__(self, application: str, shards: int, descriptor: int) -> None:
        self._application = application
        self._shards = shards
        self._descriptor = descriptor

    def on_shard_notice(self, shard: Shard) -> None:
        self._write("n", shard)

    def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        now_us = time.time_ns() // 1000
        begins, stride, lines = f"u {now_us} {self._application} {shard.number}", self._shards, []
        first = last = waited_us = 0
        for update in updates:
            number = update.change.key["id"]
            assert isinstance(number, int)
            if number != last + stride or not waited_us:
                if waited_us:
                    lines.append(f"{begins} {first} {last} {waited_us}\n")
                first, waited_us = number, 0
            last = number
            waited_us += max(1, now_us - update.change.committed_us)
        lines.append(f"{begins} {first} {last} {waited_us}\n")
        os.write(self._descriptor, "".join(lines).encode())

    def on_token(self, shard: Shard, datamarker: Position) -> None:
        self._write("t", shard, len(framed(Token(1, datamarker))) + len(framed(Acknowledge(1, datamarker))))

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        self._write("l", shard)

    def _write(self, kind: str, shard: Shard, *more: int) -> None:
        words = (kind, time.time_ns() // 1000, self._application, shard.number, *more)
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


async def subscribe(given: Given) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    descriptor = os.open(given.records, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    async with AsyncExitStack() as stack:
        for application in given.applications:
            recording = Recording(application, given.shards, descriptor)
            subscriber = Subscriber(application, KEY.encode(), given.publishers, recording, given.member, reconnect_s_max=RECONNECT_S_MAX)
            await stack.enter_async_context(subscriber)
        await stop.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(subscribe(msgspec.json.decode(sys.argv[1], type=Given)))
