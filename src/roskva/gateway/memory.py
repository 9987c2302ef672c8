"""A limit to a gateway's memory: above it, what can be found again is dropped, and new work is refused until it is over (Thialfi 4.2.5).

Looks once a second at the resident size. Above the limit it has the Registrar drop its cached rows and its unfinished work, collects
garbage and gives free pages back to the system; publishes, handshakes and registrations are answered "overloaded" until the size is a tenth
below the limit. Acknowledgements, heartbeats and deliveries go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
RELIEF_S: Final = 10.0  # a full collection may take a fifth of a second: not more often than this
_RESUME_BELOW: Final = 0.9
_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Of this process; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def give_back() -> None:
    """Collect garbage, and return free pages to the system where its library can: else the size would never fall."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class MemoryWatch:
    """`press` is told why nothing new may begin, and with "" that it may again; `relieve` drops what can be found again."""

    def __init__(
        self,
        bytes_max: int,
        press: Callable[[str], None],
        relieve: Callable[[], None],
        size: Callable[[], int] = resident_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bytes_max = bytes_max
        self._press = press
        self._relieve = relieve
        self._size = size
        self._clock = clock
        self._pressed = False
        self._relieved_s = -RELIEF_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._bytes_max:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="memory")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:
                log.exception("memory could not be looked after; it goes on")

    def look(self) -> None:
        size, now_s = self._size(), self._clock()
        if size > self._bytes_max and now_s - self._relieved_s >= RELIEF_S:
            self._relieved_s = now_s
            self._relieve()
            give_back()
            after = self._size()
            log.warning("memory: %d MiB, limit %d MiB: caches were dropped, %d MiB now", size >> 20, self._bytes_max >> 20, after >> 20)
            size = after
        if size > self._bytes_max:
            self._pressed = True
            self._press(f"The gateway uses {size >> 20:,} MiB of memory; {self._bytes_max >> 20:,} MiB is its limit.")
        elif self._pressed and size <= _RESUME_BELOW * self._bytes_max:
            self._pressed = False
            self._press("")
