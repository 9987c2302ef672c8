"""The simulator's checkers, over the logs of real clients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from roskva.client.actions import Notification
from roskva.simulation.backends import Truth
from roskva.simulation.checkers import Checker, LatestLearned, NoRegress, OnlyPublished, UnregisteredSilence


class LoggedApplication:
    """As much of an application as the checkers ask for."""

    def __init__(self, world: LoggedWorld, device: str) -> None:
        self.world = world
        self.device = device
        self.running = True
        self.wishes: dict[bytes, None] = {}
        self.store: dict[bytes, int] = {}
        self.shown: dict[bytes, int] = {}

    def missing(self, name: bytes) -> list[int]:
        return [version for version in sorted(self.world.truth[name].acknowledged) if version > self.store.get(name, -1)]


class LoggedWorld:
    def __init__(self, names: Iterable[str]) -> None:
        self.truth = {name.encode(): Truth() for name in names}
        self.checkers: tuple[Checker, ...] = (NoRegress(), OnlyPublished(), UnregisteredSilence(), LatestLearned())
        self._applications: dict[str, LoggedApplication] = {}

    @property
    def applications(self) -> list[LoggedApplication]:
        return list(self._applications.values())

    def replay(self, log: Path) -> LoggedWorld:
        for line in log.read_text().splitlines():
            self._take(json.loads(line))
        return self

    def _take(self, event: dict[str, Any]) -> None:
        name = event.get("object", "").encode()
        if event["who"] == "backend":
            truth = self.truth[name]
            if event["what"] == "published":
                truth.versions.append(event["version"])
            else:
                truth.acknowledged.add(event["version"])
            return
        application = self._applications.setdefault(event["who"], LoggedApplication(self, event["who"]))
        if event["what"] == "starts":
            application.shown = {}
        elif event["what"] == "registers":
            application.wishes[name] = None
        elif event["what"] == "unregisters":
            application.wishes.pop(name, None)
        elif event["what"] == "told":
            self._told(application, name, event)

    def _told(self, application: Any, name: bytes, event: dict[str, Any]) -> None:
        for checker in self.checkers:
            checker.notified(application, Notification(name, event["version"]))
        learned = event["fetched"] if event["version"] is None else event["version"]
        application.store[name] = max(application.store.get(name, -1), learned)

    def reasons(self) -> list[str]:
        world: Any = self
        return [reason for checker in self.checkers if (reason := checker.reason(world)) is not None]
