"""Settings that change while a gateway runs: its file is looked at again and again, and the applications in it count at once.

All else needs a restart, and a log entry says so. A file that cannot be used is logged, and what was in use stays: also one that would let
anybody do what other machines can reach, by the addresses that the process has or by those in the file. A file counts when two looks in a
row, `reload_s` apart, found the same one: the beginning of one that is being written often is a good file, too, with an application less or
one that asks nobody. Files are looked at off the event loop; what changes, changes on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace

from roskva.access import check_access
from roskva.config import ApplicationSettings, LiveApplications, Settings, Sources
from roskva.errors import InvalidSetting
from roskva.gateway.exposure import check_exposure

log = logging.getLogger(__name__)

Applications = Mapping[str, ApplicationSettings]
# Called on the event loop with the applications before and after.
Observer = Callable[[Applications, Applications], None]

_Signature = tuple[int, int, int]


class Reloading:
    """`observers` hear of every change of the applications, after it counts."""

    def __init__(self, settings: Settings, applications: LiveApplications, sources: Sources | None) -> None:
        self.observers: list[Observer] = []
        self._settings = settings  # as the process was started
        self._applications = applications
        self._sources = sources  # None: nothing to look at
        self._seen: _Signature | None = None  # so the first look reads it once more: it may have changed since the process did
        self._told: tuple[str, ...] = ()  # which settings need a restart
        self._watching: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()  # so that what one look found has been applied when the next ends

    def start(self) -> None:
        if self._sources is not None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.reload_s)
            try:
                await self.look()
            except Exception:
                log.exception("the settings could not be looked at; those in use stay")

    async def look(self) -> None:
        """Read the file again if it changed, once it stays as it is."""
        async with self._looking:
            found = await self._found()
            if found is not None:
                self._apply(found)

    async def _found(self) -> Settings | None:
        signature = await asyncio.to_thread(self._signature)
        while signature != self._seen:
            before = signature
            await asyncio.sleep(self._settings.reload_s)
            signature = await asyncio.to_thread(self._signature)
            if signature == before:
                return await asyncio.to_thread(self._read, signature)
        return None

    def _apply(self, found: Settings) -> None:
        self._tell_of_restart(found)
        before = self._applications.now
        if found.applications == before:
            return
        self._applications.replace(found.applications)
        log.info("applications changed: %s", _difference(before, self._applications.now))
        for observer in self.observers:
            try:
                observer(before, self._applications.now)
            except Exception:
                log.exception("whoever was told that the applications changed failed")

    def _read(self, signature: _Signature | None) -> Settings | None:
        """In a thread. The settings of a file that is new since the last look, if they can be used."""
        if self._sources is None:
            return None
        self._seen = signature  # before it is read: what changes in between is read once more
        if signature is None:
            log.error("the settings file %s is gone; the settings in use stay", self._sources.file)
            return None
        try:
            found = self._sources.load()
            self._check(found)
        except InvalidSetting as error:
            log.error("the settings in use stay: %s", error)
            return None
        return found if self._signature() == signature else None  # it began to change while it was read

    def _check(self, found: Settings) -> None:
        """Raises InvalidSetting."""
        check_exposure(found)  # else it would be refused at the next start
        # The addresses of the file count after a restart. What its applications open now, they open where the process listens.
        started = self._settings
        check_exposure(replace(found, listen=started.listen, internal_listen=started.internal_listen, insecure=started.insecure))
        for name, application in found.applications.items():
            check_access(name, application)

    def _signature(self) -> _Signature | None:
        if self._sources is None:
            return None
        try:
            state = self._sources.file.stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size, state.st_ino

    def _tell_of_restart(self, found: Settings) -> None:
        names = [item.name for item in fields(Settings) if item.name != "applications"]
        changed = tuple(name for name in names if getattr(found, name) != getattr(self._settings, name))
        if changed and changed != self._told:
            log.warning("these settings changed, and need a restart to count: %s", ", ".join(changed))
        self._told = changed


def _difference(before: Applications, after: Applications) -> str:
    parts = {
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "changed": [name for name in after if name in before and after[name] != before[name]],
    }
    return "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in parts.items() if names)
