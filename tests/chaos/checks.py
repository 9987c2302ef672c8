"""The simulator's checkers, over the logs of real clients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from roskva.client.actions import Notification
from roskva.simulation.backends import State, Truth
from roskva.simulation.checkers import Checker, LatestLearned, NoRegress, OnlyPublished, UnregisteredSilence


class LoggedApplication:
    """As much of an application as the checkers ask for."""

    def __init__(self, world: LoggedWorld, device: str) -> None:
        self.world = world
        self.device = device
        self.running = True
        self.wishes: dict[bytes, None] = {}
        self.store: dict[bytes, int] = {}  # by serial
        self.shown: dict[bytes, tuple[int, int]] = {}

    def missing(self, name: bytes) -> list[int]:
        return [serial for serial in sorted(self.world.truth[name].acknowledged) if serial > self.store.get(name, -1)]


class LoggedStores:
    epochs_lost = False


class LoggedHistory:
    """As much of a history as the checkers ask for: nothing is ever reset."""

    def __init__(self, truth: dict[bytes, Truth]) -> None:
        self._truth = truth

    def serial_of(self, name: bytes, epoch: int, version: int) -> int | None:
        return self._truth[name].serials.get(State(0, version))


class LoggedWorld:
    def __init__(self, names: Iterable[str]) -> None:
        self.truth = {name.encode(): Truth() for name in names}
        self.history = LoggedHistory(self.truth)
        self.stores = LoggedStores()
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
                truth.change(0, event["version"])
            else:
                truth.acknowledge(truth.serials[State(0, event["version"])])
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
        serials = (serial for state, serial in self.truth[name].serials.items() if state.version <= learned)
        application.store[name] = max(application.store.get(name, -1), *serials, -1)

    def reasons(self) -> list[str]:
        world: Any = self
        return [reason for checker in self.checkers if (reason := checker.reason(world)) is not None]
