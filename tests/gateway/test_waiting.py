"""Whether something waits for the event loop, asked of both kinds of loop that there are."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from roskva.gateway.waiting import something_waits


async def look() -> list[bool]:
    """Before something is sent to the loop, while that waits, and when it was read."""
    loop = asyncio.get_running_loop()
    waits = something_waits()
    near, far = socket.socketpair()
    near.setblocking(False)
    read = asyncio.Event()

    def read_it() -> None:
        near.recv(10)
        read.set()

    try:
        loop.add_reader(near, read_it)
        await asyncio.sleep(0.01)
        found = [waits()]
        far.send(b"x")
        found.append(waits())
        await read.wait()
        found.append(waits())
        loop.remove_reader(near)
    finally:
        near.close()
        far.close()
    return found


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_what_was_sent_and_not_read_waits(factory: type[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(look()) == [False, True, False]
