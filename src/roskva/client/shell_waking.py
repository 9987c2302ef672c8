"""Looks now and then whether this machine slept (waking.py): once for all clients of an event loop, however many there are.

Knows the clocks and the event loop, and of a client only what it is to be told. Must not import the shell.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from roskva.client import waking

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Watch:
    """Of one event loop. It holds neither the loop nor a timer, which would hold the loop, nor a client: all of them may just be left."""

    def __init__(self) -> None:
        self.sleepers: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
        self._clocks = waking.Waking(asyncio.get_running_loop().time(), time.time())

    def look_later(self) -> None:
        asyncio.get_running_loop().call_later(waking.LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if not self.sleepers:
            _WATCHES.pop(loop, None)
            return
        self.look_later()  # first: whatever a client does with it, the others are told the next time
        if self._clocks.slept(loop.time(), time.time()):
            log.info("this program or its machine slept: the connections of its clients are checked")
            for sleeper, woke in list(self.sleepers.items()):
                try:
                    woke(sleeper)
                except Exception:
                    log.exception("a client could not check its connection after a sleep")


_WATCHES: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch]] = WeakKeyDictionary()


def watch(sleeper: T, woke: Callable[[T], None]) -> None:
    """From now on `woke(sleeper)` is called when this program or its machine slept."""
    loop = asyncio.get_running_loop()
    found = _WATCHES.get(loop)
    if found is None:
        found = _WATCHES[loop] = _Watch()
        found.look_later()
    found.sleepers[sleeper] = woke


def leave(sleeper: object) -> None:
    """It has ended. The last one leaves a timer behind, which ends the looking."""
    found = _WATCHES.get(asyncio.get_running_loop())
    if found is not None:
        found.sleepers.pop(sleeper, None)
