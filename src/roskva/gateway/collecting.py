"""When the garbage collector walks through a gateway's memory: often over what is new, never over sessions that stay.

With a million sessions a full collection takes seconds, in which nobody is served. Nothing of it is needed: what belongs to a session goes
when the session does, by its reference counts. So what is there is frozen, which takes no time: at the start, and again whenever there are
a quarter more sessions than then. Whatever is garbage in a circle, and was frozen with the others, is found when most of them have left:
then all is walked through once, which is little by then.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any, Final

LOOK_S: Final = 1.0
SESSIONS_MIN: Final = 10_000  # fewer cost so little that it does not matter
_MORE: Final = 1.25
_LEFT: Final = 0.25
# New objects before the youngest are walked through, some milliseconds; how often that is until those that stayed are, too; and they,
# until everything is.
_THRESHOLDS: Final = (10_000, 5, 10_000)


class Collecting:
    """`start` once everything is loaded."""

    def __init__(self, sessions: Callable[[], int]) -> None:
        self._sessions = sessions
        self._frozen_at = SESSIONS_MIN  # sessions, when all was frozen last
        self._began_s = 0.0
        self._before: tuple[int, int, int] | None = None
        self._task: asyncio.Task[None] | None = None
        self.longest_ms = 0.0  # that a collection took

    def start(self) -> None:
        self._before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._noted)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="collecting")

    def stop(self) -> None:
        if self._task is not None and self._before is not None:
            self._task.cancel()
            self._task = None
            gc.callbacks.remove(self._noted)
            gc.set_threshold(*self._before)
            gc.unfreeze()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        count = self._sessions()
        if count > _MORE * self._frozen_at:
            gc.collect(1)  # what is new and garbage already
            gc.freeze()
            self._frozen_at = count
        elif self._frozen_at > SESSIONS_MIN and count < _LEFT * self._frozen_at:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._frozen_at = max(count, SESSIONS_MIN)

    def _noted(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
        else:
            self.longest_ms = max(self.longest_ms, 1000.0 * (time.perf_counter() - self._began_s))
