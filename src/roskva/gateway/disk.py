"""Near a full disk: publishes and registrations are refused while there is still room for what must go on.

A disk that is really full fails whoever writes next: the pipeline, acknowledgements, the manifest. So the free space of the data
directory is looked at once a second, in a thread, since a file system may hang. Below `disk_free_bytes_min` whatever brings new data is
answered `disk-full`; acknowledgements, heartbeats, handshakes and unregistrations are not, and the pipeline goes on: it makes room. It
resumes by itself, once there is an eighth more than that.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from roskva.errors import DiskFull
from roskva.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
_MORE_TO_RESUME: Final = 1 / 8  # else it would go to and fro at the limit


def free_bytes(path: Path) -> int:
    """What a process without privileges may still write. If somebody deleted the directory: where it will be made again."""
    while True:
        try:
            status = os.statvfs(path)
        except FileNotFoundError:
            if path == path.parent:
                raise
            path = path.parent
        else:
            return status.f_bavail * status.f_frsize


class DiskWatch:
    """`tell` is told why nothing new may be written, and with "" that it may again."""

    def __init__(
        self,
        path: Path,
        free_bytes_min: int,
        metrics: Metrics,
        tell: Callable[[str], None],
        look: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.full = ""  # why publishes are refused; empty: they are not
        self.free_bytes: int | None = None  # at the last look that succeeded
        self._path = path.absolute()
        self._free_bytes_min = free_bytes_min
        self._metrics = metrics
        self._tell = tell
        self._look = look
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Looks before it returns: a gateway that starts on a full disk accepts nothing."""
        await self.look()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="disk")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def check(self) -> None:
        """Raises DiskFull while nothing new may be published."""
        if self.full:
            self._metrics.publishes_disk_full += 1
            raise DiskFull(self.full)

    def report(self) -> dict[str, Any]:
        return {"free_bytes": self.free_bytes, "free_bytes_min": self._free_bytes_min, "refusing": bool(self.full)}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        try:
            free = await asyncio.to_thread(self._look, self._path)
        except OSError as error:
            if not self._failing:
                log.warning("the free space of %s cannot be looked at: %s; what was seen last counts", self._path, error)
            self._failing = True
            return
        self._failing = False
        self.judge(free)

    def judge(self, free: int) -> None:
        self.free_bytes = free
        least = self._free_bytes_min
        if not self.full and free < least:
            self.full = f"The disk of the data directory has {free >> 20:,} MiB left; {least >> 20:,} MiB must stay free."
            log.error("%s Publishes and registrations are refused until there is more room; what was accepted goes on.", self.full)
            self._tell(self.full)
        elif self.full and free >= least * (1 + _MORE_TO_RESUME):
            self.full = ""
            log.warning("the disk has %s MiB free again: publishes and registrations are accepted", f"{free >> 20:,}")
            self._tell("")
